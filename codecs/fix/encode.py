# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Encoding of FIX messages: field by field into one buffer, or from a list of fields.

`MessageWriter` is the compiled part: it appends fields after a space that BeginString and
BodyLength are written into at the end, when the length is known, and adds the CheckSum. Fields that
are the same in every message are appended as one text (`put_fields`), made once by `field_text`.
`encode` writes a message from (tag, value) pairs, groups as lists of entries, and writes lengths
before data.

Wrong input (an empty value, SOH in a value that is no data) raises `UsageError`: a message that is
written can be read.
"""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import cython
import numpy

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.framing import MESSAGE_BYTES_MAX, data_field_of
from feedhandler.codecs.prices import Price
from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.feedhandler.codecs.fix.byte_sums import byte_sum
else:

    def byte_sum(first, size):
        """Return the sum of the first `size` bytes, modulo 256."""
        return sum(first[:size]) & 0xFF


#: Room before the body: `8=`, a BeginString of at most 14 bytes, `9=`, nine digits, two SOH.
HEAD_BYTES = 32
#: Length fields by the data fields that they count.
LENGTH_OF = {data: tag for tag in range(1, 2_000) if (data := data_field_of(tag))}
_LENGTHS = frozenset(LENGTH_OF.values())

#: The types of a value; a list of entries is a repeating group.
Value = bytes | str | int | bool | Decimal | Price | list[Any]
Fields = Iterable[tuple[int, Value]]


@cython.cclass
class MessageWriter:
    """Writes messages one after the other into `data`; the last one is `data[start:end]`.

    A message longer than `capacity` is given up: `finish` raises `UsageError`. Raises `UsageError`
    for a wrong `begin_string`, and for a `capacity` below 64 or above `MESSAGE_BYTES_MAX`.
    """

    data: Readonly[cython.uchar[::1]]
    start: Readonly[cython.Py_ssize_t]
    end: Readonly[cython.Py_ssize_t]
    at: cython.Py_ssize_t
    overflowed: cython.bint
    begin_string: bytes

    def __init__(
        self, begin_string: bytes = b"FIXT.1.1", capacity: cython.Py_ssize_t = 1 << 16
    ) -> None:
        if not begin_string.startswith(b"FIX") or len(begin_string) > 14 or b"\x01" in begin_string:
            raise UsageError(f"{begin_string!r} is no BeginString", "FIX.4.4 or FIXT.1.1")
        if capacity < 64 or capacity > MESSAGE_BYTES_MAX:
            raise UsageError(
                f"a message cannot have {capacity:,} bytes", f"64 to {MESSAGE_BYTES_MAX:,}"
            )
        self.data = memoryview(numpy.zeros(capacity, numpy.uint8))
        self.start = self.end = self.at = 0
        self.overflowed = False
        self.begin_string = b"8=" + begin_string + b"\x019="

    @cython.ccall
    def begin(self, message_type: cython.const_uchar[::1]) -> cython.void:
        """Begin a message of type `message_type` (35)."""
        self.at = 32
        self.overflowed = False
        self.put_bytes(35, message_type)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _room(self, size: cython.Py_ssize_t) -> cython.int:
        if self.at + size + 7 <= self.data.shape[0]:
            return 1
        self.overflowed = True
        return 0

    @cython.cfunc
    def _digits(self, value: cython.ulonglong, least: cython.int) -> cython.void:
        """Append a number, with zeros before it up to `least` digits."""
        index: cython.Py_ssize_t
        count: cython.int = 1
        rest: cython.ulonglong = value // 10
        while rest:
            count += 1
            rest //= 10
        count = max(count, least)
        for index in range(self.at + count - 1, self.at - 1, -1):
            self.data[index] = 48 + value % 10
            value //= 10
        self.at += count

    @cython.cfunc
    def _tag(self, tag: cython.uint) -> cython.void:
        self._digits(tag, 1)
        self.data[self.at] = 61
        self.at += 1

    def put_bytes(self, tag: cython.uint, value: cython.const_uchar[::1]) -> cython.int:
        """Append a field. Raises `UsageError` for an empty value and for one with an SOH."""
        size: cython.Py_ssize_t = value.shape[0] if cython.compiled else len(value)
        begin: cython.Py_ssize_t = self.at
        index: cython.Py_ssize_t
        if size == 0:
            raise UsageError(f"field {tag} has no value", "leave the field out")
        if not self._room(12 + size):
            return 0
        self._tag(tag)
        for index in range(size):
            if value[index] == 1:
                self.at = begin  # the message goes on without the field
                raise UsageError(f"the value of field {tag} has an SOH", "only data fields may")
            self.data[self.at + index] = value[index]
        self.data[self.at + size] = 1
        self.at += size + 1
        return 0

    def put_number(self, tag: cython.uint, value: cython.ulonglong) -> cython.int:
        """Append a field with a whole number of 0 or more."""
        if self._room(32):
            self._tag(tag)
            self._digits(value, 1)
            self.data[self.at] = 1
            self.at += 1
        return 0

    def put_decimal(self, tag: cython.uint, raw: cython.longlong, places: cython.int) -> cython.int:
        """Append a field with the number `raw` / 10**`places`, with all its decimal places.

        Raises `UsageError` for `places` outside 0 to 18.
        """
        whole: cython.ulonglong = raw
        power: cython.ulonglong = 1
        if places < 0 or places > 18:
            raise UsageError(f"field {tag}: {places} decimal places", "0 to 18")
        if not self._room(40):
            return 0
        self._tag(tag)
        if raw < 0:
            self.data[self.at] = 45
            self.at += 1
            whole = 0 - whole
        for _ in range(places):
            power *= 10
        self._digits(whole // power, 1)
        if places:
            self.data[self.at] = 46
            self.at += 1
            self._digits(whole % power, places)
        self.data[self.at] = 1
        self.at += 1
        return 0

    def put_time(
        self, tag: cython.uint, time_ns: cython.longlong, places: cython.int
    ) -> cython.int:
        """Append a field with the UTCTimestamp `time_ns`, in ns since 1970, with `places` decimals.

        Raises `UsageError` for a time before 1970, and for `places` outside 0 to 9.
        """
        seconds: cython.longlong = time_ns // 1_000_000_000
        days: cython.longlong = seconds // 86_400
        fraction: cython.longlong = time_ns % 1_000_000_000
        shifted: cython.longlong = days + 719_468
        era: cython.longlong = shifted // 146_097
        of_era: cython.longlong = shifted % 146_097
        year: cython.longlong = (
            of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096
        ) // 365
        of_year: cython.longlong = of_era - (365 * year + year // 4 - year // 100)
        month: cython.longlong = (5 * of_year + 2) // 153
        if time_ns < 0 or places < 0 or places > 9:
            raise UsageError(f"field {tag}: {time_ns} ns, {places} decimals", "0 to 9 decimals")
        if not self._room(44):
            return 0
        self._tag(tag)
        self._digits(year + 400 * era + (month >= 10), 4)
        self._digits(month + 3 if month < 10 else month - 9, 2)
        self._digits(of_year - (153 * month + 2) // 5 + 1, 2)
        self._clock(seconds % 86_400)
        if places:
            self.data[self.at] = 46
            self.at += 1
            for _ in range(9 - places):
                fraction //= 10
            self._digits(fraction, places)
        self.data[self.at] = 1
        self.at += 1
        return 0

    @cython.cfunc
    def _clock(self, second: cython.longlong) -> cython.void:
        """Append -HH:MM:SS."""
        self.data[self.at] = 45
        self.data[self.at + 3] = self.data[self.at + 6] = 58
        self.at += 1
        self._digits(second // 3600, 2)
        self.at += 1
        self._digits(second // 60 % 60, 2)
        self.at += 1
        self._digits(second % 60, 2)

    def put_fields(self, text: cython.const_uchar[::1]) -> cython.int:
        """Append fields that `field_text` has encoded."""
        size: cython.Py_ssize_t = text.shape[0] if cython.compiled else len(text)
        if self._room(size):
            self.data[self.at : self.at + size] = text if cython.compiled else bytes(text)
            self.at += size
        return 0

    def finish(self) -> cython.Py_ssize_t:
        """Write BeginString, BodyLength and CheckSum; return the message's size in bytes.

        Raises `UsageError` where the message did not fit.
        """
        length: cython.Py_ssize_t = self.at - 32
        index: cython.Py_ssize_t
        head: cython.Py_ssize_t = len(self.begin_string)
        digits: cython.Py_ssize_t = 1
        rest: cython.Py_ssize_t = length // 10
        if self.overflowed:
            raise UsageError(
                f"a message is longer than {len(self.data):,} bytes", "give the writer more room"
            )
        while rest:
            digits += 1
            rest //= 10
        self.start = 32 - head - digits - 1
        for index in range(head):
            self.data[self.start + index] = self.begin_string[index]
        self.end = self.at
        self.at = self.start + head
        self._digits(length, 1)
        self.data[31] = 1
        return self._seal()

    def _seal(self) -> cython.Py_ssize_t:
        """Append CheckSum behind the body that ends at `end`; return the message's size."""
        size: cython.Py_ssize_t = self.end - self.start
        first = (
            cython.address(self.data[self.start]) if cython.compiled else self.data[self.start :]
        )
        total: cython.uint = byte_sum(first, size)
        self.at = self.end
        self.data[self.at] = 49
        self.data[self.at + 1] = 48
        self.data[self.at + 2] = 61
        self.at += 3
        self._digits(total, 3)
        self.data[self.at] = 1
        self.end = self.at + 1
        return self.end - self.start

    def message(self) -> bytes:
        """Return a copy of the message that was finished last."""
        return bytes(self.data[self.start : self.end])


def _text_of(tag: int, value: object) -> bytes:
    """Return a value as its bytes in a message. Raises `UsageError` for a type that has none."""
    match value:
        case bool():
            return b"Y" if value else b"N"
        case bytes():
            return value
        case str():
            return value.encode()
        case int() | Price():
            return str(value).encode()
        case Decimal():
            return f"{value:f}".encode()
    raise UsageError(
        f"field {tag} cannot be {type(value).__name__}", "bytes, text, numbers, Price, lists"
    )


def _flat(fields: Fields, length_of: dict[int, int]) -> Iterator[tuple[int, bytes]]:
    """Yield the fields in wire order: counts before their entries, lengths before their data.

    Raises `UsageError` for a tag outside 1 to 999,999,999.
    """
    waiting: tuple[int, bytes] | None = None
    for tag, value in fields:
        if not 1 <= tag <= 999_999_999:
            raise UsageError(f"there is no tag {tag}", "tags have one to nine digits")
        if tag in length_of:
            waiting = None
            data = _text_of(tag, value)
            yield length_of[tag], b"%d" % len(data)
            yield tag, data
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        if isinstance(value, list):
            yield tag, b"%d" % len(value)
            for entry in value:
                yield from _flat(entry, length_of)
        elif tag in _LENGTHS:
            waiting = tag, _text_of(tag, value)  # written with the data, where those follow
        else:
            yield tag, _text_of(tag, value)
    if waiting is not None:
        yield waiting


def field_text(fields: Fields, length_of: dict[int, int] = LENGTH_OF) -> bytes:
    """Encode fields as they stand in a message, for `MessageWriter.put_fields`.

    A value is bytes, text, a number, a `Price`, or a list of entries, each a list of fields: the
    field counts them. The length of data is written before them, whether it is given or not.
    `length_of` has the length fields by data field. Raises `UsageError` for an empty value, for SOH
    where none may be, and for a tag outside 1 to 999,999,999.
    """
    parts = []
    for tag, value in _flat(fields, length_of):
        if not value:
            raise UsageError(f"field {tag} has no value", "leave the field out")
        if b"\x01" in value and tag not in length_of:
            raise UsageError(f"the value of field {tag} has an SOH", "only data fields may")
        parts.append(b"%d=%b\x01" % (tag, value))
    return b"".join(parts)


def encode(
    fields: Fields, begin_string: bytes = b"FIXT.1.1", length_of: dict[int, int] = LENGTH_OF
) -> bytes:
    """Encode a whole message of these fields, MsgType (35) first; otherwise as `field_text`.

    BeginString (8), BodyLength (9) and CheckSum (10) may be among them, as a decoded message has
    them: the first is kept, the others are computed. Raises `UsageError` where MsgType is not
    first.
    """
    body = []
    for tag, value in fields:
        if tag == 8:
            begin_string = _text_of(tag, value)
        elif tag not in (9, 10):
            body.append((tag, value))
    if not body or body[0][0] != 35:
        raise UsageError("a message begins with its type", "put field 35 first")
    text = field_text(body, length_of)
    head = b"8=%b\x019=%d\x01" % (begin_string, len(text))
    return b"%b%b10=%03d\x01" % (head, text, sum(head + text) & 0xFF)
