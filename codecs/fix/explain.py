"""Explains FIX messages to a reader: every field by name, and exactly what is wrong with a bad one.

`messages` finds consecutive messages in some bytes, and goes on after a bad one at the next
BeginString. The hot path only counts reasons; this is for reports and commands.

Bad messages may each claim all of what follows. So that the time stays linear in the bytes, the
bytes examined for bad messages are added up; where they exceed `LOOKS_MAX` times the bytes read,
the next message is sought up to the next BeginString alone: a good message in such bytes that has a
BeginString in its data is then reported as bad.
"""

from collections.abc import Iterator

import msgspec

from feedhandler.codecs.fix import kinds
from feedhandler.codecs.fix.dictionary import Dictionary
from feedhandler.codecs.fix.framing import MESSAGE_BYTES_MAX, Frame, frame_message
from feedhandler.codecs.fix.index import FieldIndex, index_message
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject

#: Most bytes of a value that are shown.
SHOWN_BYTES_MAX = 60
#: How often, on average, each byte may be examined for messages that turn out bad.
LOOKS_MAX = 8
#: The form of the values of each type.
TYPE_TEXT = {
    kinds.CHAR: "one character",
    kinds.MULTIPLE_CHAR: "characters with spaces between",
    kinds.INT: "a whole number",
    kinds.NUMBER: "a whole number of 0 or more",
    kinds.GROUP_COUNT: "a whole number of up to nine digits",
    kinds.DECIMAL: "a decimal number",
    kinds.BOOLEAN: "Y or N",
    kinds.TIMESTAMP: "YYYYMMDD-HH:MM:SS, with decimals or without",
    kinds.DATE: "YYYYMMDD",
    kinds.TIME: "HH:MM:SS, with decimals or without",
    kinds.MONTH_YEAR: "YYYYMM, YYYYMMDD or YYYYMMwN",
    kinds.CURRENCY: "three capital letters",
    kinds.COUNTRY: "two capital letters",
}


class Shown(msgspec.Struct, frozen=True):
    """A field: the number of groups around it, its tag and name, and its value."""

    depth: int
    tag: int
    name: str
    value: bytes


class Fault(msgspec.Struct, frozen=True):
    """A fault: the reason, the byte, the field (tag 0: none), what is expected, what is found."""

    reason: FixReject
    at: int
    tag: int
    name: str
    expected: str
    found: str

    def __str__(self) -> str:
        field = f", field {self.tag} ({self.name})" if self.tag else ""
        wanted = f"; expected {self.expected}" if self.expected else ""
        found = f", found {self.found}" if self.found else ""
        return f"byte {self.at}{field}: {REJECT_TEXT[self.reason]}{wanted}{found}"


class Explained(msgspec.Struct, frozen=True):
    """One message: where it is, its fields up to the fault, and its fault, if it has one."""

    at: int
    size: int
    code: str
    name: str
    fields: tuple[Shown, ...]
    fault: Fault | None


def messages(data: bytes, dictionary: Dictionary) -> Iterator[Explained]:
    """Yield the messages in `data`, which line ends and blanks may separate."""
    frame, index = Frame(MESSAGE_BYTES_MAX), FieldIndex(dictionary.table)
    at, looked = _next_start(data, 0), 0
    while at < len(data):
        size = len(data) - at
        if looked > LOOKS_MAX * (at + MESSAGE_BYTES_MAX):
            size = _next_begin(data, at) - at
        reason = FixReject(frame_message(data, at, size, frame))
        if reason != FixReject.FINE:
            looked += _looked_at(reason, frame, size)
            end = _next_begin(data, at)
            fault = _fault(data, dictionary, reason, frame.fault_at, frame.tag, frame, None)
            yield Explained(at, end - at, "", "", (), fault)
            at = end
            continue
        reason = FixReject(index_message(dictionary.table, data, frame, index))
        code = data[frame.type_at : frame.type_at + frame.type_size].decode("latin-1")
        known = dictionary.messages.get(code)
        reason_text = None
        if reason != FixReject.FINE:
            reason_text = _fault(
                data, dictionary, reason, index.fault_at, index.fault_tag, frame, index
            )
        shown = tuple(_shown(data, dictionary, index))
        name = known.name if known else ""
        yield Explained(at, frame.end - at, code, name, shown, reason_text)
        at = _next_start(data, frame.end)


def _next_begin(data: bytes, at: int) -> int:
    """Return the offset of the next BeginString behind `at`, or the end."""
    found = data.find(b"8=FIX", at + 1)
    return len(data) if found < 0 else found


def _looked_at(reason: FixReject, frame: Frame, size: int) -> int:
    """Return how many bytes, at most, the framing has examined to find this reason."""
    if reason in _ENVELOPE_REASONS:
        return frame.fault_at - frame.begin
    if reason == FixReject.CHECKSUM_MISSING:
        return min(size, MESSAGE_BYTES_MAX)
    return frame.end - frame.begin


#: Reasons that are found at the byte that they name; nothing behind it has been examined.
_ENVELOPE_REASONS = frozenset(
    {
        FixReject.TRUNCATED,
        FixReject.NO_BEGIN_STRING,
        FixReject.NO_BODY_LENGTH,
        FixReject.BODY_LENGTH_NOT_NUMBER,
        FixReject.BODY_LENGTH_TOO_SHORT,
        FixReject.BODY_LENGTH_TOO_LONG,
        FixReject.BODY_LENGTH_BEYOND,
        FixReject.MESSAGE_TOO_LONG,
    }
)


def _next_start(data: bytes, at: int) -> int:
    """Return the first offset from `at` on that is no line end or blank."""
    while at < len(data) and data[at] in b"\r\n \t":
        at += 1
    return at


def _shown(data: bytes, dictionary: Dictionary, index: FieldIndex) -> Iterator[Shown]:
    depths = [0]
    for entry in range(1, index.entry_count):
        depths.append(depths[index.parents[entry]] + 1)
    spans = zip(index.tags[: index.count], index.offsets, index.sizes, index.entries, strict=False)
    for tag, at, size, entry in spans:
        yield Shown(depths[entry], tag, dictionary.name_of(tag), data[at : at + size])


def _fault(
    data: bytes,
    dictionary: Dictionary,
    reason: FixReject,
    at: int,
    tag: int,
    frame: Frame,
    index: FieldIndex | None,
) -> Fault:
    expected = _expected(data, dictionary, reason, at, tag, frame, index)
    found = _found(data, reason, at, index)
    tag = _ENVELOPE_TAGS.get(reason, tag)
    return Fault(reason, at, tag, dictionary.name_of(tag) if tag else "", expected, found)


#: The fields that the envelope's reasons are about.
_ENVELOPE_TAGS = {
    FixReject.NO_BEGIN_STRING: 8,
    FixReject.NO_BODY_LENGTH: 9,
    FixReject.BODY_LENGTH_NOT_NUMBER: 9,
    FixReject.BODY_LENGTH_TOO_SHORT: 9,
    FixReject.BODY_LENGTH_TOO_LONG: 9,
    FixReject.BODY_LENGTH_BEYOND: 9,
    FixReject.MESSAGE_TOO_LONG: 9,
    FixReject.CHECKSUM_MISSING: 10,
    FixReject.CHECKSUM_NOT_DIGITS: 10,
    FixReject.CHECKSUM_WRONG: 10,
    FixReject.NO_MESSAGE_TYPE: 35,
    FixReject.SEQUENCE_MISSING: 34,
}


def _expected(
    data: bytes,
    dictionary: Dictionary,
    reason: FixReject,
    at: int,
    tag: int,
    frame: Frame,
    index: FieldIndex | None,
) -> str:
    """Return what should be there, or "" where that cannot be said."""
    field = dictionary.fields.get(tag)
    match reason:
        case FixReject.CHECKSUM_WRONG:
            return f"{sum(data[frame.begin : frame.body_end]) & 0xFF:03}"
        case FixReject.BODY_LENGTH_TOO_SHORT | FixReject.BODY_LENGTH_TOO_LONG:
            return str(at - frame.body) if data[at : at + 3] == b"10=" else ""
        case FixReject.BODY_LENGTH_BEYOND:
            return f"at most {max(0, len(data) - frame.body - 7)}"
        case FixReject.GROUP_COUNT_WRONG if index is not None:
            return f"{index.declared} entries"
        case FixReject.VALUE_TYPE_WRONG if field is not None:
            return TYPE_TEXT.get(field.kind, "")
        case FixReject.VALUE_NOT_LISTED if field is not None:
            return "one of " + " ".join(field.values)
        case FixReject.REQUIRED_MISSING:
            return dictionary.name_of(tag)
        case FixReject.FLAG_WRONG:
            return "Y or N"
    return ""


def _found(data: bytes, reason: FixReject, at: int, index: FieldIndex | None) -> str:
    """Return what is there instead, or ""."""
    if reason == FixReject.GROUP_COUNT_WRONG and index is not None:
        more = " or more" if index.found > index.declared else ""
        return f"{index.found}{more}"
    if reason in (FixReject.REQUIRED_MISSING, FixReject.SEQUENCE_MISSING) or at >= len(data):
        return ""
    end = data.find(b"\x01", at, at + SHOWN_BYTES_MAX)
    return ascii(data[at : end if end >= 0 else at + SHOWN_BYTES_MAX].decode("latin-1"))
