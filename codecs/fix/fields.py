"""The fields of one FIX message (tag=value), in order, checked to be whole.

Checked are BeginString and BodyLength first, CheckSum last, and their values; tags are numbers
without leading zeros. Values are taken as they are, but where a length field says that data follow
(RawDataLength 95 before RawData 96): those may contain SOH. What a tag means, and which fields a
message must have, is the reader's.

Source: FIX 4.4, volume 1, "Message format" and "Data types"; the tables of length fields of FIX 5.0
SP2.
"""

from collections.abc import Iterator

SOH = b"\x01"
#: Tags whose values say how long the next field's is (FIX 5.0 SP2, fields of type Length).
LENGTHS = {
    90: 91, 93: 89, 95: 96, 212: 213, 348: 349, 350: 351, 352: 353, 354: 355, 356: 357, 358: 359,
    360: 361, 362: 363, 364: 365, 383: 0, 445: 446, 618: 619, 621: 622, 1184: 1185, 1277: 1278,
    1280: 1281, 1282: 1283, 1397: 1398, 1401: 1402, 1403: 1404, 1468: 1469, 1525: 1527,
}  # fmt: skip
#: Digits of a tag and of a length at most.
DIGITS_MAX = 9
_CHECKSUM_BYTES = len(b"10=000\x01")


class FixError(ValueError):
    """Bytes that are no whole FIX message; the text says where and why."""


def _number(text: bytes, what: str) -> int:
    if not text.isdigit() or len(text) > DIGITS_MAX:
        raise FixError(f"{what} is no number: {text[:20]!r}")
    return int(text)


def _next(data: bytes, at: int, length: int | None = None) -> tuple[int, bytes, int]:
    """The field that begins at `at`: its tag, its value, where the next one begins."""
    equals = data.find(b"=", at, at + DIGITS_MAX + 1)
    if equals < 0 or data[at : at + 1] == b"0":
        raise FixError(f"no tag at byte {at}: {data[at : at + 20]!r}")
    tag = _number(data[at:equals], f"the tag at byte {at}")
    end = data.find(SOH, equals) if length is None else equals + 1 + length
    if end < 0 or data[end : end + 1] != SOH:
        raise FixError(f"field {tag} at byte {at} does not end")
    return tag, data[equals + 1 : end], end + 1


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, value) of each field. Raises `FixError` for bytes that are not one whole message; the
    fields before the fault have been given by then."""
    tag, _, body = _next(data, 0)
    if tag != 8:
        raise FixError(f"a message begins with field 8, this one with {tag}")
    tag, said, begin = _next(data, body)
    if tag != 9:
        raise FixError(f"field 9 is the second, here it is {tag}")
    end = begin + _number(said, "BodyLength")
    if len(data) != end + _CHECKSUM_BYTES:
        raise FixError(
            f"BodyLength says {end + _CHECKSUM_BYTES} bytes in all, there are {len(data)}"
        )
    tag, said, _ = _next(data, end)
    total = sum(data[:end]) & 0xFF
    if tag != 10 or said != b"%03d" % total:
        raise FixError(f"field 10 should be {total:03d}, it is {tag}={said[:20].decode('latin-1')}")
    at, follows, length = begin, 0, None
    while at < end:
        tag, value, at = _next(data, at, length)
        if length is not None and tag != follows:
            raise FixError(f"field {follows} comes behind its length, here it is {tag}")
        follows = LENGTHS.get(tag, 0)
        length = _number(value, f"field {tag}") if follows else None
        yield tag, value
    if at != end:
        raise FixError("the last field runs over BodyLength")
