# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Summary of a datagram of FIX messages: its numbers, and what the publisher announces.

`walk_datagram` frames the consecutive messages of a datagram and sums up what a gateway needs of
them. Administrative messages take no sequence number: they carry the channel's next one. The time
beacon carries none. Promises and offsets as in `feedhandler.codecs.fix.framing`.

Source: FIX over multicast, "Session layer" and "Time Beacon"; FIX 4.4, volume 2.
"""

import cython
from cython.cimports.feedhandler.codecs.fix.framing import (
    Frame,
    frame_at,
    next_field,
    read_flag,
    read_number,
)
from cython.cimports.feedhandler.codecs.fix.reasons import (
    FINE,
    FLAG_WRONG,
    NEW_SEQUENCE_MISSING,
    NO_MESSAGES,
)
from cython.cimports.feedhandler.codecs.fix.values import utc_ns

from feedhandler.codecs.visibility import Readonly

#: Types of administrative messages, as `Frame.message_type` has them: one byte, or two big-endian.
HEARTBEAT = 0x30
TEST_REQUEST = 0x31
RESEND_REQUEST = 0x32
SEQUENCE_RESET = 0x34
LOGOUT = 0x35
LOGON = 0x41
#: Our own type of the time beacon, `UB`: FIX leaves types that begin with U to their users.
TIME_BEACON = 0x5542


@cython.cclass
class Datagram:
    """The summary of the messages of one datagram; written by `walk_datagram`.

    messages        number of messages
    applications    how many of them carry application data: they alone take sequence numbers
    sequence        number of the first application message; without any, the number that the
                    administrative ones carry last, which is the next one of the channel
    next_sequence   the number after this datagram
    consecutive     whether each application message's number is the one before it plus one
    admin_sequence  number of the last of them that has one (all but the beacon)
    new_sequence    NewSeqNo (36) of the last SequenceReset, which numbers skip to; `gap_fill`: it
                    is a gap fill (123=Y), else a reset
    reset_numbers   whether a Logon has ResetSeqNumFlag (141=Y)
    send_time_ns    SendingTime of the first message since 1970 UTC, or `NO_TIME`
    fault_at        offset of the fault of a rejected datagram
    """

    messages: Readonly[cython.int]
    applications: Readonly[cython.int]
    sequence: Readonly[cython.ulonglong]
    next_sequence: Readonly[cython.ulonglong]
    consecutive: Readonly[cython.bint]
    admin_sequence: Readonly[cython.ulonglong]
    new_sequence: Readonly[cython.ulonglong]
    gap_fill: Readonly[cython.bint]
    reset_numbers: Readonly[cython.bint]
    send_time_ns: Readonly[cython.longlong]
    fault_at: Readonly[cython.Py_ssize_t]

    def __init__(self) -> None:
        self.messages = self.applications = 0
        self.sequence = self.next_sequence = self.admin_sequence = self.new_sequence = 0
        self.consecutive = self.gap_fill = self.reset_numbers = False
        self.send_time_ns = -1
        self.fault_at = 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _admin_bit(message_type: cython.uint) -> cython.uint:
    """Return the bit of an administrative type; 0 for application messages."""
    if message_type == 0x30:
        return 1
    if message_type == 0x41:
        return 2
    if message_type == 0x35:
        return 4
    if message_type == 0x34:
        return 8
    if message_type == 0x5542:
        return 16
    return 32 if 0x31 <= message_type <= 0x33 else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_admin(first: cython.p_const_uchar, frame: Frame, out: Datagram) -> cython.int:
    """Read the body of a Logon or a SequenceReset; return a `FixReject`."""
    at: cython.Py_ssize_t = frame.header_end
    named: cython.bint = False
    reset: cython.bint = frame.message_type == 0x34
    if reset:
        out.gap_fill = False
    while at < frame.body_end:
        verdict: cython.int = next_field(first, at, frame)
        if verdict != FINE:
            return verdict
        if reset and frame.tag == 36:
            verdict = read_number(first, frame)
            if verdict != FINE:
                return verdict
            out.new_sequence = frame.data_size
            named = True
        elif frame.tag == (123 if reset else 141):
            flag: cython.int = read_flag(first, frame)
            if flag < 0:
                return FLAG_WRONG
            if reset:
                out.gap_fill = flag == 1
            else:
                out.reset_numbers = flag == 1
        at = frame.value_end + 1
    frame.fault_at = frame.header_end
    return NEW_SEQUENCE_MISSING if reset and not named else FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add_message(first: cython.p_const_uchar, frame: Frame, out: Datagram) -> cython.int:
    """Add the message just framed to the summary of its datagram; return a `FixReject`."""
    bit: cython.uint = _admin_bit(frame.message_type)
    if out.messages == 0 and frame.time_size:
        out.send_time_ns = utc_ns(first, frame.time_at, frame.time_size)
    out.messages += 1
    if bit:
        if frame.flags & 1 and bit != 16:
            out.admin_sequence = frame.sequence
        return _read_admin(first, frame, out) if bit == 2 or bit == 8 else FINE
    if out.applications == 0:
        out.sequence = frame.sequence
    elif frame.sequence != out.next_sequence:
        out.consecutive = False
    out.next_sequence = frame.sequence + 1
    out.applications += 1
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_datagram_at(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, frame: Frame, out: Datagram
) -> cython.int:
    """Summarise a datagram for compiled callers; return a `FixReject`.

    The datagram is the first `size` bytes from `first` on, and offsets count from there. See
    `walk_datagram`.
    """
    at: cython.Py_ssize_t = 0
    out.messages = out.applications = 0
    out.sequence = out.next_sequence = out.admin_sequence = out.new_sequence = 0
    out.gap_fill = out.reset_numbers = False
    out.consecutive = True
    out.send_time_ns = -1
    out.fault_at = 0
    if size < 1:
        return NO_MESSAGES
    while at < size:
        verdict: cython.int = frame_at(first, size, at, frame)
        if verdict == FINE:
            verdict = _add_message(first, frame, out)
        if verdict != FINE:
            out.fault_at = frame.fault_at
            return verdict
        at = frame.end
    if out.applications == 0:
        out.sequence = out.next_sequence = out.admin_sequence
    return FINE


@cython.boundscheck(False)  # the first line checks the datagram against the bounds
@cython.ccall
@cython.nogil
def walk_datagram(
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    frame: Frame,
    out: Datagram,
) -> cython.int:
    """Summarise the messages of the datagram `data[start:start + size]` in `out`.

    Returns the `FixReject` of the first message that is wrong, or FINE. Offsets count from the
    datagram's first byte. `frame` is left with the last message that was read.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return NO_MESSAGES
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    return walk_datagram_at(first, size, frame, out)
