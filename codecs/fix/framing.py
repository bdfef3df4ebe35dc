# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Finding and checking one FIX message: BeginString, BodyLength, CheckSum and header fields.

`frame_message` reads one message: BeginString (8) first, BodyLength (9) second, MsgType (35) third,
CheckSum (10) last; then the header up to its first field that is not of the header. The body is
left to the index (`feedhandler.codecs.fix.index`), the summary of a datagram's messages to
`feedhandler.codecs.fix.datagram`.

Promises: answers every message with exactly one `FixReject` (0, `FINE`, where nothing is wrong) and
never raises for what a peer sent; reads nothing outside the given bytes; allocates nothing; time
linear in the bytes. The compiled module and this very file, interpreted, agree on every input.

Of the header only 8, 9, 35 and 34 must be there, 34 not even in a time beacon. Source: FIX 4.4,
volume 1, "Message format"; FIXT 1.1, "Standard header".
"""

import cython
from cython.cimports.feedhandler.codecs.fix.reasons import (
    BODY_LENGTH_BEYOND,
    BODY_LENGTH_NOT_NUMBER,
    BODY_LENGTH_TOO_LONG,
    BODY_LENGTH_TOO_SHORT,
    CHECKSUM_MISSING,
    CHECKSUM_NOT_DIGITS,
    CHECKSUM_WRONG,
    DATA_LENGTH_WRONG,
    DUPLICATE_HEADER_FIELD,
    EMPTY_VALUE,
    FIELD_ORDER,
    FINE,
    FLAG_WRONG,
    MESSAGE_TOO_LONG,
    NO_BEGIN_STRING,
    NO_BODY_LENGTH,
    NO_MESSAGE_TYPE,
    NO_MESSAGES,
    NO_SOH,
    SEQUENCE_MISSING,
    SEQUENCE_NOT_NUMBER,
    SEQUENCE_TOO_LARGE,
    TAG_NOT_NUMBER,
    TAG_TOO_LONG,
    TAG_ZERO_LED,
    TRUNCATED,
)

from feedhandler.codecs.visibility import Public, Readonly

if cython.compiled:
    from cython.cimports.feedhandler.codecs.fix.byte_sums import byte_sum, to_soh
    from cython.cimports.libc.string import memcmp
else:

    def byte_sum(first, size):
        """Return the sum of the first `size` bytes, modulo 256."""
        return sum(first[:size]) & 0xFF

    def to_soh(first):
        """Return the number of bytes before the next SOH; there must be one."""
        size = 64
        while (found := bytes(first[:size]).find(1)) < 0:
            size *= 2
        return found


#: Default of the most bytes of a message: a book of thousands of levels.
MESSAGE_BYTES_MAX = 1 << 20
#: Most digits of a tag, so that a tag fits 32 bits.
TAG_DIGITS_MAX = 9
#: The largest sequence number: the one after it still fits an unsigned 64-bit integer.
SEQUENCE_MAX = 0xFFFF_FFFF_FFFF_FFFE
#: `Frame.message_type` of types longer than two bytes: their text is at `type_at`.
LONG_TYPE = 0xFFFF

#: Bits of `Frame.flags`.
HAS_SEQUENCE = 1
POSS_DUP = 2
HAS_LAST_PROCESSED = 4

_SOH = cython.declare(cython.int, 1)
_EQUALS = cython.declare(cython.int, 61)
_SEQUENCE_MAX = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFE)
# Results of `_header_bit` that are no bit number.
_NOT_OF_HEADER = cython.declare(cython.int, -1)
_MAY_REPEAT = cython.declare(cython.int, 63)


@cython.cclass
class Frame:
    """The envelope and the header of one message; written by `frame_message`.

    begin, end    the message, from the 8 of `8=` to behind CheckSum's SOH
    length_at     offset of BodyLength's value
    body          offset of `35=`; the bytes that BodyLength counts end at `body_end`, at `10=`
    header_end    offset of the first field that is not of the header
    sequence      MsgSeqNum; 0 where `flags` has no HAS_SEQUENCE
    message_type  MsgType: its byte, or its two bytes big-endian, else `LONG_TYPE`
    last_processed  LastMsgSeqNumProcessed (369): the number that a snapshot goes up to; 0 where
                  `flags` has no HAS_LAST_PROCESSED
    flags         HAS_SEQUENCE, POSS_DUP, HAS_LAST_PROCESSED
    type_at, sequence_at, sender_at, target_at, time_at   where the values of MsgType (35),
                  MsgSeqNum (34), SenderCompID (49), TargetCompID (56) and SendingTime (52) begin;
                  their `_size` is 0 where they are missing
    fault_at      offset of the fault of a rejected message

    Offsets count from the beginning of the buffer. A message longer than `bytes_max` is rejected.
    `tag`, `value_at`, `value_end` are the field that `next_field` read last; `data_tag` and
    `data_size` the data field that has to follow, where a length field came.
    """

    bytes_max: Public[cython.Py_ssize_t]
    begin: Readonly[cython.Py_ssize_t]
    end: Readonly[cython.Py_ssize_t]
    length_at: Readonly[cython.Py_ssize_t]
    body: Readonly[cython.Py_ssize_t]
    body_end: Readonly[cython.Py_ssize_t]
    header_end: Readonly[cython.Py_ssize_t]
    sequence: Readonly[cython.ulonglong]
    last_processed: Readonly[cython.ulonglong]
    message_type: Readonly[cython.uint]
    flags: Readonly[cython.uint]
    type_at: Readonly[cython.Py_ssize_t]
    type_size: Readonly[cython.Py_ssize_t]
    sender_at: Readonly[cython.Py_ssize_t]
    sender_size: Readonly[cython.Py_ssize_t]
    target_at: Readonly[cython.Py_ssize_t]
    target_size: Readonly[cython.Py_ssize_t]
    time_at: Readonly[cython.Py_ssize_t]
    time_size: Readonly[cython.Py_ssize_t]
    fault_at: Readonly[cython.Py_ssize_t]
    tag: Readonly[cython.uint]
    value_at: Readonly[cython.Py_ssize_t]
    value_end: Readonly[cython.Py_ssize_t]
    data_tag: Readonly[cython.uint]
    data_size: Readonly[cython.ulonglong]
    sequence_at: Readonly[cython.Py_ssize_t]
    sequence_size: Readonly[cython.Py_ssize_t]

    def __init__(self, bytes_max: cython.Py_ssize_t = 1 << 20) -> None:
        self.bytes_max = bytes_max
        self.begin = self.end = self.length_at = self.body = self.body_end = self.header_end = 0
        self.sequence = self.last_processed = self.message_type = self.flags = 0
        self.type_at = self.type_size = self.sender_at = self.sender_size = 0
        self.target_at = self.target_size = self.time_at = self.time_size = 0
        self.sequence_at = self.sequence_size = 0
        self.fault_at = self.tag = self.value_at = self.value_end = 0
        self.data_tag = self.data_size = 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _expect(
    first: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    text: cython.p_const_char,
    length: cython.int,
) -> cython.int:
    """Return 1 where `text` is at `at`, 0 where something else is, -1 where the bytes end in it."""
    index: cython.int
    for index in range(length):
        if at + index >= size:
            return -1
        if first[at + index] != text[index]:
            return 0
    return 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_envelope(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Read BeginString and BodyLength: `body`, `body_end`, `end`; return a `FixReject`."""
    found: cython.int = _expect(first, size, at, b"8=FIX", 5)
    limit: cython.Py_ssize_t = at + 16
    out.fault_at = at
    if found < 1:
        return NO_BEGIN_STRING if found == 0 else TRUNCATED
    at += 5
    while at < size and first[at] != _SOH:
        if at == limit:
            return NO_BEGIN_STRING
        at += 1
    if at >= size:
        return TRUNCATED
    found = _expect(first, size, at + 1, b"9=", 2)
    if found < 1:
        out.fault_at = at + 1
        return NO_BODY_LENGTH if found == 0 else TRUNCATED
    at += 3
    return _read_body_length(first, size, at, out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_body_length(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Read the value of BodyLength at `at`, the rest of `_read_envelope`; return a `FixReject`."""
    length: cython.Py_ssize_t = 0
    value_at: cython.Py_ssize_t = at
    out.fault_at = out.length_at = at
    while at < size and first[at] != _SOH:
        digit: cython.int = first[at] - 48
        if digit < 0 or digit > 9:
            return BODY_LENGTH_NOT_NUMBER
        if at - value_at == 9:
            return MESSAGE_TOO_LONG
        length = 10 * length + digit
        at += 1
    if at >= size:
        return TRUNCATED
    if at == value_at:
        return BODY_LENGTH_NOT_NUMBER
    out.body = at + 1
    out.body_end = out.body + length
    out.end = out.body_end + 7
    if out.end - out.begin > out.bytes_max:
        return MESSAGE_TOO_LONG
    if length < 5:
        return BODY_LENGTH_TOO_SHORT
    return BODY_LENGTH_BEYOND if out.end > size else FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _explain_trailer(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Return why CheckSum is not where BodyLength says: it is before, behind, or nowhere."""
    at: cython.Py_ssize_t = out.body
    limit: cython.Py_ssize_t = min(size, out.begin + out.bytes_max) - 7
    while at < limit:
        if (
            first[at] == _SOH
            and first[at + 7] == _SOH
            and _expect(first, size, at + 1, b"10=", 3) == 1
        ):
            out.fault_at = at + 1
            return BODY_LENGTH_TOO_LONG if at < out.body_end else BODY_LENGTH_TOO_SHORT
        at += 1
    return CHECKSUM_MISSING


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_trailer(first: cython.p_const_uchar, size: cython.Py_ssize_t, out: Frame) -> cython.int:
    """Check that CheckSum ends the message and is right; return a `FixReject`."""
    at: cython.Py_ssize_t = out.body_end
    total: cython.uint = 0
    index: cython.int
    out.fault_at = at
    if _expect(first, size, at, b"10=", 3) != 1:
        return _explain_trailer(first, size, out)
    if first[at - 1] != _SOH:
        return NO_SOH
    for index in range(3, 6):
        digit: cython.int = first[at + index] - 48
        if digit < 0 or digit > 9:
            return CHECKSUM_NOT_DIGITS
        total = 10 * total + cython.cast(cython.uint, digit)
    if first[at + 6] != _SOH:
        return CHECKSUM_NOT_DIGITS
    if total != byte_sum(
        first + out.begin if cython.compiled else first[out.begin :], at - out.begin
    ):
        return CHECKSUM_WRONG
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _data_field_of(tag: cython.uint) -> cython.uint:
    """Return the data field that follows this length field; 0 where the tag is no length field."""
    if tag < 90 or tag > 1525:
        return 0
    if tag == 90 or tag == 212 or tag == 95 or tag == 93:
        return 89 if tag == 93 else tag + 1
    if 348 <= tag <= 364:
        return 0 if tag & 1 else tag + 1
    if tag == 445 or tag == 618 or tag == 621:
        return tag + 1
    if tag == 1184 or tag == 1277 or tag == 1280 or tag == 1282:
        return tag + 1
    if tag == 1397 or tag == 1401 or tag == 1403 or tag == 1468:
        return tag + 1
    return 1527 if tag == 1525 else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def next_field(first: cython.p_const_uchar, at: cython.Py_ssize_t, frame: Frame) -> cython.int:
    """Read the field at `at` of a framed message into `frame`; return a `FixReject`.

    Sets `tag`, `value_at`, `value_end` and `fault_at`; the next field begins behind `value_end`.
    `at` lies before `frame.body_end`, and the byte before that is SOH, as `frame_message` has
    checked: no read goes past the message.
    """
    tag: cython.uint = 0
    index: cython.Py_ssize_t = at
    frame.fault_at = at
    frame.tag = 0
    digit: cython.uint = cython.cast(cython.uint, first[index]) - 48
    if digit == 0:
        return TAG_ZERO_LED
    while True:
        digit = cython.cast(cython.uint, first[index]) - 48
        if not 0 <= digit <= 9:
            break
        if index - at == 9:
            return TAG_TOO_LONG
        tag = 10 * tag + digit
        index += 1
    if first[index] != _EQUALS or index == at:
        return TAG_NOT_NUMBER
    frame.tag = tag
    frame.value_at = at = index + 1
    if frame.data_tag:
        return _end_of_data(first, tag, frame)
    frame.value_end = at + to_soh(first + at if cython.compiled else first[at:])
    if frame.value_end == at:
        return EMPTY_VALUE
    frame.data_tag = _data_field_of(tag)
    return read_data_size(first, frame) if frame.data_tag else FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _end_of_data(first: cython.p_const_uchar, tag: cython.uint, frame: Frame) -> cython.int:
    """Find the end of a data field by the length that came before it; it may contain SOH."""
    at: cython.Py_ssize_t = frame.value_at
    wanted: cython.uint = frame.data_tag
    frame.data_tag = 0
    if tag != wanted or frame.data_size >= cython.cast(cython.ulonglong, frame.body_end - at):
        return DATA_LENGTH_WRONG
    if frame.data_size == 0:
        return EMPTY_VALUE
    frame.value_end = at + cython.cast(cython.Py_ssize_t, frame.data_size)
    return FINE if first[frame.value_end] == _SOH else DATA_LENGTH_WRONG


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_data_size(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Read the value just found as the length of the next data field; return a `FixReject`."""
    size: cython.ulonglong = 0
    index: cython.Py_ssize_t
    if frame.value_end - frame.value_at > 9:
        return DATA_LENGTH_WRONG
    for index in range(frame.value_at, frame.value_end):
        digit: cython.int = first[index] - 48
        if digit < 0 or digit > 9:
            return DATA_LENGTH_WRONG
        size = 10 * size + cython.cast(cython.ulonglong, digit)
    frame.data_size = size
    # A length as the last field: no data field can follow.
    return FINE if frame.value_end + 1 < frame.body_end else DATA_LENGTH_WRONG


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _header_bit(tag: cython.uint) -> cython.int:
    """Return a bit number for each header field that may follow MsgType (35).

    By it a field that comes twice is detected.
    """
    if tag == 34:
        return 0
    if tag == 43:
        return 1
    if tag == 49 or tag == 50:
        return cython.cast(cython.int, tag) - 47
    if tag == 52:
        return 4
    if tag == 56 or tag == 57:
        return cython.cast(cython.int, tag) - 51
    if tag == 90 or tag == 91:
        return cython.cast(cython.int, tag) - 80
    if tag == 97:
        return 12
    if tag == 115 or tag == 116:
        return cython.cast(cython.int, tag) - 102
    if tag == 122:
        return 15
    if tag == 128 or tag == 129:
        return cython.cast(cython.int, tag) - 112
    if 142 <= tag <= 145:
        return cython.cast(cython.int, tag) - 124
    if tag == 212 or tag == 213:
        return cython.cast(cython.int, tag) - 190
    if tag == 347 or tag == 369 or tag == 370:
        return 24 if tag == 347 else cython.cast(cython.int, tag) - 344
    if 627 <= tag <= 630:
        return 27 if tag == 627 else _MAY_REPEAT
    if tag == 1128 or tag == 1129 or tag == 1156:
        return 30 if tag == 1156 else cython.cast(cython.int, tag) - 1100
    return _NOT_OF_HEADER


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_number(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Read the value just found as a sequence number, into `data_size`; return a `FixReject`."""
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    for index in range(frame.value_at, frame.value_end):
        digit: cython.uint = cython.cast(cython.uint, first[index]) - 48
        if not 0 <= digit <= 9:
            return SEQUENCE_NOT_NUMBER
        if value > (_SEQUENCE_MAX - digit) // 10:
            return _too_large(first, index, frame)
        value = 10 * value + digit
    frame.data_size = value
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _too_large(first: cython.p_const_uchar, at: cython.Py_ssize_t, frame: Frame) -> cython.int:
    """Return SEQUENCE_TOO_LARGE, or SEQUENCE_NOT_NUMBER where a later byte is no digit."""
    index: cython.Py_ssize_t
    for index in range(at, frame.value_end):
        digit: cython.int = first[index] - 48
        if digit < 0 or digit > 9:
            return SEQUENCE_NOT_NUMBER
    return SEQUENCE_TOO_LARGE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_flag(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Return 1 or 0 for a value of Y or N, else -1."""
    if frame.value_end - frame.value_at != 1:
        return -1
    if first[frame.value_at] == 89:
        return 1
    return 0 if first[frame.value_at] == 78 else -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _store_header_field(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Store the field just read, where the frame keeps it; return a `FixReject`."""
    size: cython.Py_ssize_t = frame.value_end - frame.value_at
    if frame.tag == 34:
        verdict: cython.int = read_number(first, frame)
        if verdict != FINE:
            return verdict
        frame.sequence = frame.data_size
        frame.sequence_at = frame.value_at
        frame.sequence_size = size
        frame.flags |= 1
    elif frame.tag == 49:
        frame.sender_at = frame.value_at
        frame.sender_size = size
    elif frame.tag == 52:
        frame.time_at = frame.value_at
        frame.time_size = size
    elif frame.tag == 56:
        frame.target_at = frame.value_at
        frame.target_size = size
    elif frame.tag == 43:
        verdict = read_flag(first, frame)
        if verdict < 0:
            return FLAG_WRONG
        frame.flags |= 2 * cython.cast(cython.uint, verdict)
    elif frame.tag == 369:
        verdict = read_number(first, frame)
        if verdict != FINE:
            return verdict
        frame.last_processed = frame.data_size
        frame.flags |= 4
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_type(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Read MsgType, the first field of the body; return a `FixReject`."""
    if _expect(first, frame.body_end, frame.body, b"35=", 3) != 1:
        frame.fault_at = frame.body
        return NO_MESSAGE_TYPE
    verdict: cython.int = next_field(first, frame.body, frame)
    if verdict != FINE:
        return verdict
    frame.type_at = frame.value_at
    frame.type_size = frame.value_end - frame.value_at
    frame.message_type = first[frame.type_at]
    if frame.type_size == 2:
        frame.message_type = (frame.message_type << 8) | first[frame.type_at + 1]
    elif frame.type_size > 2:
        frame.message_type = 0xFFFF
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_header(first: cython.p_const_uchar, frame: Frame) -> cython.int:
    """Read the header's fields, up to the first that is not of the header; return a `FixReject`."""
    seen: cython.ulonglong = 0
    verdict: cython.int = _read_type(first, frame)
    at: cython.Py_ssize_t = frame.value_end + 1
    if verdict != FINE:
        return verdict
    while at < frame.body_end:
        verdict = next_field(first, at, frame)
        if verdict != FINE:
            return verdict
        if frame.tag <= 10 and frame.tag >= 8:
            return FIELD_ORDER if frame.tag == 10 else DUPLICATE_HEADER_FIELD
        if frame.tag == 35:
            return DUPLICATE_HEADER_FIELD
        bit: cython.int = _header_bit(frame.tag)
        if bit < 0:
            break
        if bit != _MAY_REPEAT:
            if seen & (cython.cast(cython.ulonglong, 1) << bit):
                return DUPLICATE_HEADER_FIELD
            seen |= cython.cast(cython.ulonglong, 1) << bit
        verdict = _store_header_field(first, frame)
        if verdict != FINE:
            return verdict
        at = frame.value_end + 1
    frame.data_tag = 0
    frame.header_end = frame.fault_at = at
    if frame.flags & 1 or frame.message_type == 0x5542:
        return FINE
    return SEQUENCE_MISSING


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def frame_at(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Frame a message for compiled callers; return a `FixReject`.

    Of the `size` bytes from `first` on, the message begins at `at`, and offsets count from `first`.
    See `frame_message`.
    """
    out.begin = out.end = out.body = out.body_end = out.header_end = at
    out.sequence = out.last_processed = out.message_type = out.flags = out.data_tag = out.tag = 0
    out.type_size = out.sender_size = out.target_size = out.time_size = out.sequence_size = 0
    verdict: cython.int = _read_envelope(first, size, at, out)
    if verdict == FINE:
        verdict = _check_trailer(first, size, out)
    if verdict == FINE:
        verdict = _read_header(first, out)
    return verdict


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def frame_next(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Frame the message at `at`, which follows somewhere behind the one that `out` holds.

    As `frame_at`. Messages of one sender mostly differ in their headers by number and time alone:
    then the fields between need not be parsed again, only compared.
    """
    if out.flags & 1 and out.end > out.begin and _frame_like(first, size, at, out):
        return FINE
    return frame_at(first, size, at, out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _frame_like(
    first: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t, out: Frame
) -> cython.bint:
    """Frame a message whose header differs from that in `out` by number and time alone.

    These are the values of MsgSeqNum and, behind it, SendingTime. Returns False where the header is
    another, or wrong: then `frame_at` must read it.
    """
    begin: cython.Py_ssize_t = out.begin
    body: cython.Py_ssize_t = out.body
    head: cython.Py_ssize_t = out.length_at - begin
    header_end: cython.Py_ssize_t = out.header_end
    has_body: cython.bint = header_end < out.body_end
    if not has_body or _data_field_of(out.tag) or (out.time_size and out.time_at < out.sequence_at):
        return False
    if at + head >= size or not _same(first, begin, at, head):
        return False
    out.begin = at
    if _read_body_length(first, size, at + head, out) != FINE:
        return False
    if _check_trailer(first, size, out) != FINE:
        return False
    return _header_like(first, body, header_end, out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _header_like(
    first: cython.p_const_uchar,
    body: cython.Py_ssize_t,
    header_end: cython.Py_ssize_t,
    out: Frame,
) -> cython.bint:
    """Compare the header at `out.body` with the one from `body` to `header_end`.

    `out` still has the fields of the latter; where the two are alike, it gets those of the new one.
    """
    number_at: cython.Py_ssize_t = out.sequence_at
    rest: cython.Py_ssize_t = number_at + out.sequence_size
    index: cython.Py_ssize_t = out.body + number_at - body
    end: cython.Py_ssize_t = header_end
    if index >= out.body_end or not _same(first, body, out.body, number_at - body):
        return False
    out.value_at = index
    out.value_end = index + to_soh(first + index if cython.compiled else first[index:])
    if out.value_end == index or read_number(first, out) != FINE:
        return False
    shift: cython.Py_ssize_t = out.value_end - rest
    # Up to the tag of the first field behind the header, with its equals sign and a value.
    while first[end] != _EQUALS:
        end += 1
    if end + 1 + shift >= out.body_end or first[end + 1 + shift] == _SOH:
        return False
    if out.time_size:
        index = out.time_at + shift
        if not _same(first, rest, rest + shift, out.time_at - rest):
            return False
        if to_soh(first + index if cython.compiled else first[index:]) != out.time_size:
            return False
        rest = out.time_at + out.time_size
        out.time_at = index
    if not _same(first, rest, rest + shift, end + 1 - rest):
        return False
    out.sender_at += shift if out.sender_at > number_at else out.body - body
    out.target_at += shift if out.target_at > number_at else out.body - body
    out.type_at += out.body - body
    out.sequence = out.data_size
    out.sequence_at = out.value_at
    out.sequence_size = out.value_end - out.value_at
    out.header_end = out.fault_at = header_end + shift
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(
    first: cython.p_const_uchar,
    one: cython.Py_ssize_t,
    other: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether the same bytes are at both offsets."""
    if cython.compiled:
        return memcmp(first + one, first + other, size) == 0
    return first[one : one + size] == first[other : other + size]


@cython.boundscheck(False)  # the first line checks the bytes against the bounds
@cython.ccall
@cython.nogil
def frame_message(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Frame the message that begins at `data[start]` into `out`; return a `FixReject`.

    At most `size` bytes are there. Offsets count from the beginning of `data`. TRUNCATED and
    BODY_LENGTH_BEYOND mean that more bytes could still make a whole message of it.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return NO_MESSAGES
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    return frame_at(first, start + size, start, out)


@cython.boundscheck(False)  # the first line checks the bytes against the bounds
@cython.ccall
@cython.nogil
def frame_envelope(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t, out: Frame
) -> cython.int:
    """Check BeginString, BodyLength and CheckSum alone, whatever is between; return a `FixReject`.

    As `frame_message` without the header: of `out`, the offsets up to `body_end` are set, and
    `end`.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return NO_MESSAGES
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    out.begin = out.end = out.body = out.body_end = out.header_end = start
    out.data_tag = 0
    verdict: cython.int = _read_envelope(first, start + size, start, out)
    return verdict if verdict != FINE else _check_trailer(first, start + size, out)


def data_field_of(tag: cython.uint) -> int:
    """Return the tag of the data field that follows length field `tag` (95: 96), else 0."""
    return _data_field_of(tag)


@cython.boundscheck(False)  # the first line checks the bytes against the bounds
@cython.ccall
@cython.nogil
def frame_all(
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: Frame,
    begins: cython.uint[::1],
    sequences: cython.ulonglong[::1],
) -> cython.Py_ssize_t:
    """Frame the consecutive messages in `data[start:start + size]`; return how many are right.

    `begins` gets the offset of each from the beginning of `data`, `sequences` its number. `out`
    holds the last message that was read: where it is right, all were or the arrays are full.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = min(len(begins), len(sequences))
    if start < 0 or size < 1 or end > len(data):
        return 0
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    out.flags = 0  # what it holds may be of other bytes
    while at < end and count < room:
        if frame_next(first, end, at, out) != FINE:
            break
        begins[count] = cython.cast(cython.uint, at)
        sequences[count] = out.sequence
        count += 1
        at = out.end
    return count
