"""Faults of a packet that the scanner rejects: message, field, found and wanted values.

The scanner answers a bad packet with a reason and nothing else, which is all that a hot path needs.
`explain` examines such a packet again, slowly, for a person who has to find out whose fault it is.
It allocates at will: limit the number of packets that it is called for.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from feedhandler.codecs.bad_packet import INFLATED_SIZE_MAX, BadPacket
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.fix_faults import SEQUENCE_END, find_beyond, find_fault
from feedhandler.codecs.kinds import REJECT_TEXT, Reject
from feedhandler.codecs.layouts import Field
from feedhandler.codecs.scanner import (
    check_messages,
    message_size_by_type,
    parse_header,
    parse_next,
)

if TYPE_CHECKING:
    from feedhandler.codecs.feed import Feed


class Fault(msgspec.Struct, frozen=True):
    """The fault of a packet, and where it is."""

    reason: Reject
    what: str
    """the field, by the specification's name, or the part of the packet"""
    at: int
    """its first byte, from the packet's first (a compressed body's: as inflated)"""
    found: str
    wanted: str
    message: int = 0
    """the message's number in the packet, from 1; 0: the packet as a whole"""
    type: int | str | None = None
    """the message's type, where it can be read"""

    def __str__(self) -> str:
        message = f"message {self.message}" if self.message else ""
        if message and self.type is not None:
            message += f" of type {self.type}"
        subject = f"{message}, {self.what}" if message else self.what
        return f"{subject} at byte {self.at}: {self.found}, wanted {self.wanted}"


def explain(feed: "Feed", data: bytes) -> Fault | None:
    """Return the fault of a packet of `feed`, or None where it has none.

    Of a datagram with several packets it is that of the first bad one; `at` counts from the
    datagram's first byte.
    """
    if feed.table.fix:
        return _fix_fault(feed, data)
    if not feed.table.several:
        return _packet_fault(feed, data)
    begin, header = 0, PacketHeader()
    while begin < len(data) or begin == 0:
        verdict = parse_next(feed.table, data, begin, len(data) - begin, header)
        whole = verdict == Reject.FINE
        packet = data[begin : begin + header.length] if whole else data[begin:]
        if (fault := _packet_fault(feed, packet)) is not None:
            return msgspec.structs.replace(fault, at=fault.at + begin)
        assert whole, "what is no header has a fault"
        begin += header.length
    return None


def _packet_fault(feed: "Feed", data: bytes) -> Fault | None:
    """Return the fault of one packet, which is all of `data`, or None."""
    header = PacketHeader()
    verdict = parse_header(feed.table, data, 0, len(data), header)
    if verdict == Reject.FINE:
        verdict = check_messages(feed.table, data, 0, header)
    if verdict == Reject.COMPRESSED:
        try:
            data = feed.inflate(data)
        except BadPacket as error:
            return _not_inflated(error.reason, data, header)
        verdict = parse_header(feed.table, data, 0, len(data), header)
        header.flags = 0  # the flag means compressed; the body is inflated now
        verdict = verdict or check_messages(feed.table, data, 0, header)
    if verdict == Reject.FINE:
        return None
    return _EXPLAINED[Reject(verdict)](feed, data, header)


def _fix_fault(feed: "Feed", data: bytes) -> Fault | None:
    """Return the fault of a FIX datagram, or None.

    The framing's own fault comes first; where it finds none, that of an administrative message's
    body.
    """
    try:
        feed.decode_packet(data)
    except BadPacket as error:
        fault = find_fault(data)
        if fault is None and (beyond := find_beyond(data)):
            wanted = f"a number below {SEQUENCE_END:,} (2**62): a gateway counts no further"
            found = f"{beyond.number:,}"
            return Fault(error.reason, "MsgSeqNum", beyond.at, found, wanted, beyond.message)
        if fault is None:
            what, wanted = "administrative message", "right fields, and a NewSeqNo below 2**62"
            return Fault(error.reason, what, 0, REJECT_TEXT[error.reason], wanted)
        return Fault(error.reason, fault.what, fault.at, fault.found, "a whole message",
                     fault.message)  # fmt: skip
    return None


def _not_inflated(reason: Reject, data: bytes, header: PacketHeader) -> Fault:
    if reason == Reject.COMPRESSED:
        found = f"{len(data) - header.body} bytes that zlib cannot inflate"
        return Fault(reason, "compressed body", header.body, found, "a zlib stream")
    found = f"more than {INFLATED_SIZE_MAX} bytes when inflated"
    return Fault(reason, "compressed body", header.body, found, "no more than that")


def _truncated(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    table = feed.table
    if not table.reset_size or len(data) < table.header_size:
        wanted = f"a header of {table.header_size} bytes"
        return Fault(Reject.TRUNCATED, "packet", 0, f"{len(data)} bytes", wanted)
    name, at = feed.description.packet.reset_next, table.reset_at
    if table.reset_message >= 0:  # in a message, not in the packet
        at += header.body
    wanted = f"{at + table.reset_size} bytes to hold it"
    return Fault(Reject.TRUNCATED, name, at, f"a reset of {len(data)} bytes", wanted)


def _length(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    length = feed.description.packet.length
    field = _header_field(feed, length.field)
    found, wanted = _number(feed, data, field), len(data) - length.add
    text = f"{wanted}, for a datagram of {len(data)} bytes"
    return Fault(Reject.LENGTH_MISMATCH, field.wire, field.at, str(found), text)


def _constant(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    for name, wanted in feed.description.packet.constants.items():
        field = _header_field(feed, name)
        found = _number(feed, data, field)
        if found != wanted:
            break
    return Fault(Reject.WRONG_CONSTANT, field.wire, field.at, _code(found), _code(wanted))


def _packet_type(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    kind = feed.description.packet.kind
    assert kind is not None, "a feed without kinds knows every packet"
    field = _header_field(feed, kind.field)
    known = sorted({*kind.data, *kind.heartbeat, *kind.reset, *kind.control})
    wanted = "one of " + ", ".join(map(str, known))
    if kind.mask is not None:
        wanted += f" in its bits {kind.mask:#x}"
    found = _code(_number(feed, data, field))
    return Fault(Reject.UNKNOWN_PACKET_TYPE, field.wire, field.at, found, wanted)


def _control(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    layout = feed.controls[header.packet_type]
    what = f"body of control packet {header.packet_type} ({layout.name})"
    found = f"{header.length - header.body} bytes"
    return Fault(Reject.CONTROL_SHORT, what, header.body, found, f"{layout.size} bytes")


def _count(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    if feed.description.packet.count is None:  # and a packet that should have no messages
        found = f"{header.length - header.body} bytes behind the header"
        return Fault(Reject.COUNT_MISMATCH, "packet", header.body, found, "none")
    field = _header_field(feed, feed.description.packet.count)
    *_, (number, end, _, _) = _messages(feed, data, header)
    if number < header.count:
        wanted = f"{number}: the packet ends behind them"
    else:
        wanted = f"more: behind them {len(data) - end} bytes are left, from byte {end} on"
    return Fault(Reject.COUNT_MISMATCH, field.wire, field.at, str(header.count), wanted)


def _short(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    *_, (number, at, size, kind) = _messages(feed, data, header)
    wanted = f"at least the {feed.table.message_header_size} bytes of its own header"
    return _sized(Reject.MESSAGE_SHORT, feed, number, at, f"{size} bytes", wanted, kind)


def _overrun(feed: "Feed", data: bytes, header: PacketHeader) -> Fault:
    *_, (number, at, size, kind) = _messages(feed, data, header)
    left = f"at most the {len(data) - at} that are left of the packet"
    if size < 0:
        least = f"the {feed.table.message_header_size} of a message's header"
        return Fault(Reject.MESSAGE_OVERRUN, "header", at, f"{len(data) - at} bytes", least, number)
    return _sized(Reject.MESSAGE_OVERRUN, feed, number, at, f"{size} bytes", left, kind)


def _sized(
    reason: Reject, feed: "Feed", number: int, at: int, found: str, wanted: str, kind: int | str
) -> Fault:
    return Fault(reason, "length", at + feed.table.message_length_at, found, wanted, number, kind)


def _messages(
    feed: "Feed", data: bytes, header: PacketHeader
) -> Iterator[tuple[int, int, int, int | str]]:
    """Yield (number from 1, first byte, size, type) of each message up to the first bad one.

    The size is -1 where a message's header is not whole. Before them comes (0, ...), and behind
    each message that fits its number with the byte behind it and size 0.
    """
    table = feed.table
    at = header.body
    yield 0, at, 0, ""
    for number in range(1, (header.count if table.count_size else len(data)) + 1):
        if len(data) - at <= table.trailing_max:
            return
        if len(data) - at < table.message_header_size:
            yield number, at, -1, ""
            return
        index = at + table.message_length_at
        length = data[index : index + table.message_length_size]
        size = int.from_bytes(length, feed.byte_order) + table.message_length_add
        if table.sized:
            size = message_size_by_type(table, data, at, len(data))
        elif not table.message_length_size:
            size = len(data) - at
        code = header.packet_type if table.type_in_packet else feed.message_code(data[at:])
        yield number, at, size, feed.type_label(code)
        if size < table.message_header_size or size > len(data) - at:
            return
        at += -(-size // table.message_align) * table.message_align
        yield number, at, 0, ""


def _header_field(feed: "Feed", name: str) -> Field:
    return next(field for field in feed.header.named if name in (field.wire, field.name))


def _number(feed: "Feed", data: bytes, field: Field) -> int:
    return int.from_bytes(data[field.at : field.at + field.size], feed.byte_order)


def _code(value: int) -> str:
    """Return a code as specifications write it: small ones as numbers, others also as 0x8004."""
    return str(value) if value < 1000 else f"{value} ({value:#x})"


_EXPLAINED: dict[Reject, Callable[["Feed", bytes, PacketHeader], Fault]] = {
    Reject.TRUNCATED: _truncated,
    Reject.LENGTH_MISMATCH: _length,
    Reject.COUNT_MISMATCH: _count,
    Reject.MESSAGE_SHORT: _short,
    Reject.MESSAGE_OVERRUN: _overrun,
    Reject.UNKNOWN_PACKET_TYPE: _packet_type,
    Reject.WRONG_CONSTANT: _constant,
    Reject.CONTROL_SHORT: _control,
}
