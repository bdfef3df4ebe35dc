# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Stamping: the channel's header onto application messages, in compiled code.

A `Stamper` does for messages by the hundred thousand what `messages.Header.application` does for
one, and writes the same bytes: MsgType, MsgSeqNum, the channel's own fields, all other header
fields, then the unchanged body, with a correct BodyLength and CheckSum. It refuses the same
messages, without giving a reason: call that function to get it.

`measure` reads a message and returns its stamped length; `write` then writes it. Nothing is
allocated, and nothing is read outside the given bytes. The compiled module and this very file,
interpreted, agree.
"""

import cython
from cython.cimports.feedhandler.codecs.fix.framing import Frame, frame_at
from cython.cimports.feedhandler.codecs.fix.reasons import FINE, SEQUENCE_MISSING

from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.feedhandler.codecs.fix.byte_sums import byte_sum, to_soh
    from cython.cimports.libc.string import memcpy
else:

    def byte_sum(first, size):
        """Return the sum of the first `size` bytes, modulo 256."""
        return sum(first[:size]) & 0xFF

    def to_soh(first):
        """Return the number of bytes up to the next SOH."""
        size = 64
        while (found := bytes(first[:size]).find(1)) < 0:
            size *= 2
        return found


#: Upper limit on runs of kept header fields: six fields are the channel's own, and none of them
#: occurs twice in a header that the framing accepts.
KEPT_RUNS_MAX = 7
_KEPT_RUNS_MAX = cython.declare(cython.int, KEPT_RUNS_MAX)
#: `10=ddd` and its SOH.
_TRAILER = cython.declare(cython.Py_ssize_t, 7)


@cython.final
@cython.cclass
class Stamper:
    """Stamper of messages with a channel's header.

    The header has BeginString `begin_string`, and after MsgSeqNum the fields `own`, complete with
    their SOH, such as SenderSubID, SenderCompID and TargetCompID.

    frame  frame of the message that was measured last
    size   stamped size of that message in bytes
    """

    frame: Readonly[Frame]
    size: Readonly[cython.Py_ssize_t]
    begin: cython.const_uchar[::1]
    own: cython.const_uchar[::1]
    own_size: cython.Py_ssize_t
    body_size: cython.Py_ssize_t
    number: cython.ulonglong
    runs: cython.int
    kept_at: cython.Py_ssize_t[8]
    kept_end: cython.Py_ssize_t[8]

    def __init__(self, begin_string: bytes, own: bytes) -> None:
        self.begin = memoryview(b"8=%b\x019=" % begin_string)
        self.frame = Frame()
        self.number = 0
        self.size = self.body_size = 0
        self.runs = 0
        if not cython.compiled:
            self.kept_at = [0] * 8
            self.kept_end = [0] * 8
        self.own = memoryview(own + b"\x01")  # never empty: its address is taken
        self.own_size = len(own)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def measure(
        self,
        first: cython.p_const_uchar,
        size: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        number: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """Read the message at `at` and return its stamped size; 0 where it cannot be published.

        `first` points to the bytes that offsets count from, of which `size` may be read; `number`
        is the MsgSeqNum it gets.
        """
        verdict: cython.int = frame_at(first, size, at, self.frame)
        self.size = 0
        if verdict != FINE and verdict != SEQUENCE_MISSING:
            return 0
        if _is_administrative(self.frame.message_type) or not self._read_header(first):
            return 0
        self.number = number
        self.body_size += 4 + self.frame.type_size + 4 + _digits(number) + self.own_size
        self.body_size += self.frame.body_end - self.frame.header_end
        self.size = len(self.begin) + _digits(self.body_size) + 1 + self.body_size + _TRAILER
        return self.size

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _read_header(self, first: cython.p_const_uchar) -> cython.bint:
        """Find the runs of header fields that are not the channel's own.

        Returns 0 where there are data fields, which may contain SOH.
        """
        index: cython.Py_ssize_t = self.frame.body
        since: cython.Py_ssize_t = -1
        self.runs = 0
        self.body_size = 0
        while index < self.frame.header_end:
            own: cython.int = _kind_of_field(first, index)
            if own < 0:
                return 0
            if own and since >= 0:
                if not self._keep(since, index):
                    return 0
                since = -1
            elif not own and since < 0:
                since = index
            index += to_soh(first + index if cython.compiled else first[index:]) + 1
        return 1 if since < 0 else self._keep(since, index)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _keep(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Keep the header fields from `at` to `end`; return 0 where there are too many runs."""
        if self.runs >= _KEPT_RUNS_MAX:
            return 0
        self.kept_at[self.runs] = at
        self.kept_end[self.runs] = end
        self.runs += 1
        self.body_size += end - at
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def write(
        self, first: cython.p_const_uchar, out: cython.uchar[::1], index: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write the message that was measured last to `out[index]`, and return where it ends.

        `first` must give the same bytes as then. Raises `IndexError` where the message does not
        fit.
        """
        start: cython.Py_ssize_t = index
        run: cython.int
        if self.size == 0 or index < 0 or index + self.size > len(out):
            raise IndexError("a message outside its buffer")
        index = _copy(out, index, self.begin, len(self.begin))
        index = _put_digits(out, index, self.body_size, _digits(self.body_size))
        out[index] = 1
        index = _put(
            out, index + 1, first, self.frame.body, self.frame.type_at + self.frame.type_size + 1
        )
        out[index] = 51
        out[index + 1] = 52
        out[index + 2] = 61
        index = _put_digits(out, index + 3, self.number, _digits(self.number))
        out[index] = 1
        index = _copy(out, index + 1, self.own, self.own_size)
        for run in range(self.runs):
            index = _put(out, index, first, self.kept_at[run], self.kept_end[run])
        index = _put(out, index, first, self.frame.header_end, self.frame.body_end)
        total: cython.uint = byte_sum(
            cython.address(out[start]) if cython.compiled else out[start:], index - start
        )
        out[index] = 49
        out[index + 1] = 48
        out[index + 2] = 61
        index = _put_digits(out, index + 3, total, 3)
        out[index] = 1
        return index + 1

    def stamped(self, data: bytes, number: cython.ulonglong) -> bytes | None:
        """Return one message with this number; None where it cannot be published."""
        size: cython.Py_ssize_t = 0
        if data:
            first = cython.cast(cython.p_const_uchar, data) if cython.compiled else memoryview(data)
            size = self.measure(first, len(data), 0, number)
        if size == 0 or self.frame.end != len(data):
            return None
        out = bytearray(size)
        self.write(first, out, 0)
        return bytes(out)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_administrative(message_type: cython.uint) -> cython.bint:
    """Return whether the type is a session message's: 0 to 5, A, and the Time Beacon."""
    if message_type == 0x41 or message_type == 0x5542:
        return True
    return 0x30 <= message_type <= 0x35


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _kind_of_field(first: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.int:
    """Classify the header field at `at`.

    Returns 1 where the channel writes it itself (35, 34, 43, 49, 50, 56), -1 where it gives the
    length of data (90, 212), else 0.
    """
    tens: cython.uint = first[at]
    ones: cython.uint = first[at + 1]
    if first[at + 2] != 61:
        if tens == 50 and ones == 49 and first[at + 2] == 50 and first[at + 3] == 61:
            return -1
        return 0
    if tens == 51:
        return ones == 53 or ones == 52
    if tens == 53:
        return ones == 48 or ones == 54
    if tens == 52:
        return ones == 57 or ones == 51
    return -1 if tens == 57 and ones == 48 else 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digits(value: cython.ulonglong) -> cython.Py_ssize_t:
    """Return the number of decimal digits."""
    count: cython.Py_ssize_t = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=False)
def _put_digits(
    out: cython.uchar[::1],
    offset: cython.Py_ssize_t,
    value: cython.ulonglong,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a number with so many digits; return where it ends."""
    at: cython.Py_ssize_t = offset + count
    while at > offset:
        at -= 1
        out[at] = cython.cast(cython.uchar, 48 + value % 10)
        value //= 10
    return offset + count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)  # `write` has checked the whole message against the bounds
@cython.exceptval(-1, check=False)
def _put(
    out: cython.uchar[::1],
    index: cython.Py_ssize_t,
    first: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy bytes of the message that was measured; return where they end."""
    if cython.compiled:
        memcpy(cython.address(out[index]), first + at, end - at)
    else:
        out[index : index + end - at] = first[at:end]
    return index + end - at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)  # as `_put`
@cython.exceptval(-1, check=False)
def _copy(
    out: cython.uchar[::1],
    index: cython.Py_ssize_t,
    text: cython.const_uchar[::1],
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy fields of the channel; return where they end."""
    if cython.compiled:
        memcpy(cython.address(out[index]), cython.address(text[0]), size)
    else:
        out[index : index + size] = text[:size]
    return index + size
