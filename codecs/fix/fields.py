"""The fields of one FIX message (tag=value), in order, checked to be whole, without a dictionary.

Checked are BeginString and BodyLength first, CheckSum last, and their values; tags are numbers
without leading zeros. Values are taken as they are; where a length field says that data follow
(RawDataLength 95 before RawData 96), the data may contain SOH. The meaning of a tag, and the fields
that a message must have, are left to the reader.
"""

from feedhandler.codecs.fix.framing import Frame, frame_envelope
from feedhandler.codecs.fix.index import INDEX_CAPACITY, FieldIndex, FixTable, list_fields
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject

#: BeginString, BodyLength and CheckSum, which the index lists as well.
_ENVELOPE_FIELDS = 3
# Reused for every message: nothing else runs between their filling and their reading.
_frame = Frame(1 << 31)
_index = FieldIndex(FixTable(1, 1), INDEX_CAPACITY + _ENVELOPE_FIELDS)


class FixError(ValueError):
    """Bytes that are no whole FIX message, because of `reason`; the text has the byte as well."""

    def __init__(self, reason: FixReject, at: int, data: bytes) -> None:
        found = f": {bytes(data[at : at + 20])!r}" if at < len(data) else ""
        super().__init__(f"{REJECT_TEXT[reason]}, at byte {at}{found}")
        self.reason = reason
        self.at = at


def fields(data: bytes, fields_max: int = INDEX_CAPACITY) -> list[tuple[int, bytes]]:
    """Return (tag, value) of each field between BodyLength and CheckSum.

    Raises `FixError` for bytes that are not one whole message, and for one of more than
    `fields_max` fields, which is 16,384 at most.
    """
    if not data:
        raise FixError(FixReject.NO_MESSAGES, 0, data)
    reason = FixReject(frame_envelope(data, 0, len(data), _frame))
    if reason == FixReject.FINE and _frame.end != len(data):
        raise FixError(FixReject.BODY_LENGTH_TOO_SHORT, _frame.end, data)
    if reason != FixReject.FINE:
        raise FixError(reason, _frame.fault_at, data)
    reason = FixReject(list_fields(data, _frame, _index))
    if reason != FixReject.FINE:
        raise FixError(reason, _index.fault_at, data)
    if _index.count - _ENVELOPE_FIELDS > fields_max:
        raise FixError(FixReject.INDEX_FULL, _index.offsets[fields_max], data)
    return _index.fields(data)[2:-1]
