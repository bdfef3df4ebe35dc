# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Runs: the parts of a FIX datagram that a gateway takes as one packet each.

A datagram may hold application messages, a heartbeat and a gap fill, one behind the other. A *run*
is as many application messages as follow one another in the bytes and in their numbers, or one
administrative message. A feed that is framed by FIX has runs where others have packets: a run has
one kind and one first number, and is itself a sequence of whole messages.

`begin_run` and `extend_run` check the messages that they read, by envelope and header. The other
functions find messages, types and symbols in a run that has been found right; all of them read
nothing outside the given bytes. Nothing is allocated. The compiled module and this file,
interpreted, agree.
"""

import cython
from cython.cimports.feedhandler.codecs.fix.datagram import Datagram, walk_datagram_at
from cython.cimports.feedhandler.codecs.fix.framing import (
    Frame,
    frame_at,
    frame_next,
    next_field,
)
from cython.cimports.feedhandler.codecs.fix.reasons import FINE, NO_MESSAGES
from cython.cimports.feedhandler.codecs.fix.values import utc_ns
from cython.cimports.feedhandler.codecs.kinds import CONTROL, DATA, HEARTBEAT, RESET, SKIP

from feedhandler.codecs.visibility import Public, Readonly

#: The bit of symbols that are made of a name longer than eight bytes, or not of ASCII characters.
LONG_SYMBOL_BIT = 1 << 63
#: Most digits of BodyLength, as in `framing`.
_LENGTH_DIGITS = cython.declare(cython.int, 9)
#: Most bytes of `8=...` before its SOH, as in `framing`.
_BEGIN_STRING = cython.declare(cython.int, 16)
_SOH = cython.declare(cython.int, 1)
_TRAILER = cython.declare(cython.Py_ssize_t, 7)
#: Odd, and below 2**63 (C keeps larger literals as Python objects).
_FACTOR = cython.declare(cython.ulonglong, 0x1E3779B97F4A7C15)
_MASK_64 = (1 << 64) - 1


@cython.cclass
class Run:
    """One run, written by `begin_run` and `extend_run`; holds the state of walks over it, too.

    kind           DATA, or of an administrative message: HEARTBEAT (heartbeat, logon, logout), SKIP
                   (gap fill), RESET (sequence reset; logon that begins at number 1 anew), CONTROL
                   (time beacon, and types that are not sent by multicast)
    sequence       number of the first message; an administrative one's: what it carries
    next_sequence  number after the run; HEARTBEAT: what it carries; SKIP, RESET: NewSeqNo (a
                   logon's: what it carries); CONTROL: 0
    count          application messages
    length         bytes of the run
    message_type   type of the first message
    unknown        messages of types without a slot
    send_time      SendingTime of the first message, ns since 1970; 0 where it has none
    poss_dup       whether the first message has PossDupFlag

    `body`, `end`: what `envelope` found. `symbol_at`, `symbol_size`: the value that `next_symbol`
    found, and `field_at` where it goes on.
    """

    frame: Readonly[Frame]
    datagram: Readonly[Datagram]
    kind: Public[cython.int]
    count: Public[cython.int]
    sequence: Public[cython.ulonglong]
    next_sequence: Public[cython.ulonglong]
    send_time: Public[cython.ulonglong]
    length: Public[cython.Py_ssize_t]
    message_type: Public[cython.uint]
    poss_dup: Public[cython.bint]
    body: Public[cython.Py_ssize_t]
    end: Public[cython.Py_ssize_t]
    field_at: Public[cython.Py_ssize_t]
    symbol_at: Public[cython.Py_ssize_t]
    symbol_size: Public[cython.Py_ssize_t]
    unknown: Public[cython.int]

    def __init__(self) -> None:
        self.frame = Frame()
        self.datagram = Datagram()
        self.kind = self.count = self.unknown = 0
        self.sequence = self.next_sequence = self.send_time = self.length = 0
        self.message_type = 0
        self.poss_dup = False
        self.body = self.end = self.field_at = self.symbol_at = self.symbol_size = 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_administrative(message_type: cython.uint) -> cython.bint:
    """Return whether messages of this type take no number of the channel."""
    if message_type == 0x41 or message_type == 0x5542:
        return True
    return 0x30 <= message_type <= 0x35


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begin_run(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, slots: cython.p_const_uchar, run: Run
) -> cython.int:
    """Read the first message of the datagram of `size` bytes at `first`, as a run of its own.

    `slots` is indexed by type, 0 for unknown ones. Returns a `FixReject`.
    """
    if size < 1:
        return NO_MESSAGES
    verdict: cython.int = frame_at(first, size, 0, run.frame)
    if verdict != FINE:
        return verdict
    run.kind = DATA
    run.length = run.frame.end
    run.message_type = run.frame.message_type
    run.sequence = run.frame.sequence
    run.poss_dup = run.frame.flags & 2 != 0
    run.send_time = 0
    if run.frame.time_size > 0:
        run.send_time = max(utc_ns(first, run.frame.time_at, run.frame.time_size), 0)
    if is_administrative(run.frame.message_type):
        return _read_admin(first, run)
    run.count = 1
    run.next_sequence = run.frame.sequence + 1
    run.unknown = slots[run.message_type & 0xFFFF] == 0
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def extend_run(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, slots: cython.p_const_uchar, run: Run
) -> cython.int:
    """Extend the run that has just begun by the messages that continue it.

    A fault behind the run's last message is not part of the run: the next run finds it.
    """
    at: cython.Py_ssize_t = run.length
    if run.kind != DATA:
        return 0
    while at < size and run.count < 0xFFFF:
        if (
            frame_next(first, size, at, run.frame) != FINE
            or run.frame.sequence != run.next_sequence
            or is_administrative(run.frame.message_type)
        ):
            break
        run.length = at = run.frame.end
        run.count += 1
        run.next_sequence += 1
        run.unknown += slots[run.frame.message_type & 0xFFFF] == 0
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_admin(first: cython.p_const_uchar, run: Run) -> cython.int:
    """Read the administrative message that the run is; return a `FixReject`."""
    verdict: cython.int = walk_datagram_at(first, run.length, run.frame, run.datagram)
    run.count = run.unknown = 0
    if verdict != FINE:
        return verdict
    run.kind = HEARTBEAT
    run.next_sequence = run.sequence
    if run.message_type == 0x34:
        if not run.datagram.gap_fill:
            run.kind = RESET
            run.next_sequence = run.datagram.new_sequence
        elif run.datagram.new_sequence > run.sequence:
            run.kind = SKIP
            run.next_sequence = run.datagram.new_sequence
    elif run.message_type == 0x41:
        # A logon that is repeated later carries a later number, and resets nothing.
        if run.datagram.reset_numbers and run.sequence <= 1:
            run.kind = RESET
    elif run.message_type != 0x30 and run.message_type != 0x35:
        run.kind = CONTROL
        run.next_sequence = 0
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _body_length(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the value of BodyLength, whose digits begin at `at`; -1 where it is no length."""
    length: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t = min(at + _LENGTH_DIGITS, end)
    while at < limit and 48 <= first[at] <= 57:
        length = 10 * length + first[at] - 48
        at += 1
    return length if length >= 5 and at < end and first[at] == _SOH else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _length_at(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where the value of BodyLength begins; `end` where there is none."""
    limit: cython.Py_ssize_t = min(at + _BEGIN_STRING + 1, end)
    while at < limit and first[at] != _SOH:
        at += 1
    return at + 3 if at + 3 + _TRAILER < end and first[at] == _SOH else end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def message_bytes(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message at `at`, by BodyLength alone; 0 where `end` comes before."""
    begin: cython.Py_ssize_t = at
    at = _length_at(first, at, end)
    length: cython.Py_ssize_t = _body_length(first, at, end)
    if length < 0:
        return 0
    while first[at] != _SOH:
        at += 1
    at += 1 + length + _TRAILER
    return at - begin if at <= end else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def envelope(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, run: Run
) -> cython.int:
    """Find `run.body`, at `35=`, and `run.end` of the message at `at`, by BodyLength alone.

    Returns 1, or 0 where it does not end by `end`.
    """
    size: cython.Py_ssize_t = message_bytes(first, at, end)
    if size == 0:
        return 0
    run.end = at + size
    at = _length_at(first, at, end)
    while first[at] != _SOH:
        at += 1
    run.body = at + 1
    return 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def type_of(first: cython.p_const_uchar, run: Run) -> cython.uint:
    """Return the type of the message that `envelope` found, as `Frame.message_type` has it."""
    at: cython.Py_ssize_t = run.body + 3
    if first[at + 1] == _SOH:
        return first[at]
    if first[at + 2] == _SOH:
        return (cython.cast(cython.uint, first[at]) << 8) | first[at + 1]
    return 0xFFFF


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begin_symbols(run: Run) -> cython.int:
    """Let `next_symbol` begin at the first field of the message that `envelope` found."""
    run.field_at = run.body
    run.frame.body_end = run.end - _TRAILER
    run.frame.data_tag = 0
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def next_symbol(first: cython.p_const_uchar, tag: cython.uint, run: Run) -> cython.int:
    """Find the next field `tag` of the message; return 1, or 0 where there is none any more.

    Sets `run.symbol_at` and `run.symbol_size`.
    """
    while run.field_at < run.frame.body_end:
        if next_field(first, run.field_at, run.frame) != FINE:
            run.field_at = run.frame.body_end
            return 0
        run.field_at = run.frame.value_end + 1
        if run.frame.tag == tag:
            run.symbol_at = run.frame.value_at
            run.symbol_size = run.frame.value_end - run.frame.value_at
            return 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def symbol_value(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.ulonglong:
    """Return a symbol as a number.

    Its text big-endian where that is at most eight ASCII bytes, else a digest of it with
    `LONG_SYMBOL_BIT`.
    """
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    if size <= 8 and first[at] < 0x80:
        for index in range(size):
            value = (value << 8) | first[at + index]
        return value
    value = size
    for index in range(size):
        value = (value ^ first[at + index]) * _FACTOR
        if not cython.compiled:
            value &= _MASK_64
        value ^= value >> 29
    return (value >> 2) | (cython.cast(cython.ulonglong, 1) << 63)


@cython.ccall
def symbol_number(text: cython.const_uchar[::1]) -> cython.ulonglong:
    """Return the text of a symbol as a number, as `symbol_value` does; 0 for an empty one."""
    if len(text) == 0:
        return 0
    first = cython.address(text[0]) if cython.compiled else memoryview(text)
    return symbol_value(first, 0, len(text))
