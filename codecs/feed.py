"""A feed: everything its description says, ready to decode and encode packets.

`Feed.table` drives the compiled scanner; the methods here serve tools, tests, generators and others
that read a message at a time. `load_feed` (in `loader`) makes feeds.

Prices in encoding: an `int` is the wire integer; a `Price`, `Decimal`, `float` or text is scaled by
the message's own scale. Times are encoded from the raw wire fields.
"""

import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from feedhandler.codecs import feed_table, scanner
from feedhandler.codecs.bad_packet import INFLATED_SIZE_MAX, BadPacket
from feedhandler.codecs.book_rules import BookRules
from feedhandler.codecs.description import NO_SEND_TIME, FeedDescription
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.field_values import snake_case
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.layouts import (
    Block,
    ByteOrder,
    CutShort,
    Field,
    Layout,
    Leaf,
    Record,
    UnknownMessage,
    in_reference,
    record_values,
)
from feedhandler.codecs.prices import SCALE_MAX
from feedhandler.codecs.recovery import FeedRecovery, checked
from feedhandler.codecs.times import DAY_NS, UNIT_NS, DecodeContext, Midnights
from feedhandler.codecs.trading_day import TradingDay

if TYPE_CHECKING:
    from feedhandler.codecs.reference_data import ReferenceData

#: Characters that a routing key or an address reserves: word and pattern separators, wildcards,
#: and what begins and joins an address's options. A word contains no blanks either.
KEY_RESERVED = ".,*#?& "
_KEY_TABLE = str.maketrans(dict.fromkeys(KEY_RESERVED, "_"))

#: Digits of a symbol that is an index, at most.
_INDEX_DIGITS = 20
#: The greatest message type, and how many digits it has.
_TYPE_MAX = 0xFFFF
_TYPE_DIGITS = len(str(_TYPE_MAX))
_KINDS = {kind.name.lower(): kind for kind in PacketKind}


def key_word(text: str) -> str:
    """Return `text` as one word of a routing key: each character of `KEY_RESERVED` becomes `_`.

    So an address can name every symbol.
    """
    return text.translate(_KEY_TABLE)


class Reference(msgspec.Struct, frozen=True):
    """A message type that names symbols; `read` takes a name straight from a message's bytes."""

    code: int
    """the message type, as `MessageIndex.types` has it"""
    index: Field
    name: tuple[Field, ...]
    separator: str
    scales: dict[str, Field]
    """the fields with decimal places, by what prices say to have them: `reference.USE`"""
    byte_order: ByteOrder
    least_size: int
    """messages shorter than this give nothing"""
    table: Any
    """the feed's, by which text symbols become numbers"""

    def read(self, message: bytes | memoryview) -> tuple[int, str] | None:
        """Return (symbol, name) of a whole reference message; None where it is short or nameless.

        The name's parts are joined by the separator: `AIRF.XPAR`.
        """
        if len(message) < self.least_size:
            return None
        parts = [
            _stripped(message, field) if field.kind == "c" else str(self._integer(message, field))
            for field in self.name
        ]
        name = self.separator.join(part for part in parts if part)
        return (self.symbol(message), name) if name else None

    def symbol(self, message: bytes | memoryview) -> int:
        """Return the symbol that a whole reference message is about."""
        field = self.index
        data = bytes(message[field.at : field.at + field.size])
        return _symbol_in(self.table, field, data, self.byte_order)

    def read_scales(self, message: bytes | memoryview) -> dict[str, int]:
        """Return the decimal places of the symbol's prices that the message has, by their name."""
        if len(message) < self.least_size:
            return {}
        read = ((name, self._decimals(message, field)) for name, field in self.scales.items())
        return {name: decimals for name, decimals in read if decimals is not None}

    def _decimals(self, message: bytes | memoryview, field: Field) -> int | None:
        """Return the decimal places that a field of the message gives; None for nonsense."""
        if field.decimals is not None:
            return field.decimals.decimals_of(message[field.at])
        if field.kind == "c":
            digits = _stripped(message, field)
            decimals = int(digits) if digits.isdecimal() else -1
        else:
            decimals = self._integer(message, field)
        return decimals if 0 <= decimals <= SCALE_MAX else None

    def _integer(self, message: bytes | memoryview, field: Field) -> int:
        data = message[field.at : field.at + field.size]
        return int.from_bytes(data, self.byte_order)


class Clock(msgspec.Struct, frozen=True):
    """The message that gives a moment which times of later messages count from."""

    code: int
    field: Field
    unit_ns: int
    from_midnight: bool
    byte_order: ByteOrder

    def read(self, message: bytes | memoryview, midnights: Midnights | None) -> int | None:
        """Return the moment in ns since 1970; None where it is not known or not whole."""
        data = bytes(message[self.field.at : self.field.at + self.field.size])
        if len(data) < self.field.size:
            return None
        value_ns = self.field.integer(data, self.byte_order) * self.unit_ns
        if not self.from_midnight:
            return value_ns
        return None if midnights is None else midnights.moment_ns(value_ns)


def _symbol_in(table: Any, field: Field, data: bytes, byte_order: ByteOrder) -> int:
    """Return the symbol that the bytes of a field name, as the scanner gives it."""
    if field.kind == "c":
        return int(scanner.symbol_at(table, data, 0, field.size, 2))
    return int.from_bytes(data, byte_order)


def _stripped(message: bytes | memoryview, field: Field) -> str:
    data = bytes(message[field.at : field.at + field.size])
    return data.split(b"\0", 1)[0].strip(b" ").decode("latin-1")


class Packet(msgspec.Struct):
    """A decoded packet.

    `header` has every header field by name, as on the wire; `messages` are records, or
    `UnknownMessage` where a message could not be decoded; `sequences` are the messages' numbers
    (their own where the feed counts messages, else the packet's); `control` is the body of a
    control or reset packet. `send_time_ns` is None where the day is not known.
    """

    kind: PacketKind
    sequence: int
    next_sequence: int
    session: int
    service: int
    flags: int
    send_time: int
    send_time_ns: int | None
    header: dict[str, Any]
    messages: list[Any]
    types: list[int | str]
    symbols: list[int]
    sequences: list[int]
    control: Record | None = None


def merged(packets: Iterable[Packet]) -> Packet:
    """Return the packets of one datagram as one, with the messages of all.

    Kind and numbers are those of the first that has messages, or else of the first.
    """
    whole: Packet | None = None
    for packet in packets:
        if whole is None or (packet.messages and not whole.messages):
            whole = packet
        elif packet.messages:
            whole.next_sequence = packet.next_sequence
            for name in ("messages", "types", "symbols", "sequences"):
                getattr(whole, name).extend(getattr(packet, name))
    assert whole is not None, "a datagram has a packet, or is bad"
    return whole


class Feed:
    """One feed, shared and read-only: its methods keep no state between calls, but for `longer`.

    name, title, key, number, zone, byte_order   as described
    table       the compiled scanner's `FeedTable`
    layouts     message type (integer) to its layouts, by ascending size
    controls    packet type to the layout of a control packet's body
    references  the messages that name symbols, by type; empty where the feed has none
    clock       the message that times of later ones count from; None where the feed has none
    book        how messages change order books; None where the description does not say
    trading_day when its trading days begin
    recovery    the protocols and numbers of its `[recovery]` table; None where it has none
    symbols_are_text  whether symbols are names themselves, rather than indices
    """

    def __init__(
        self,
        description: FeedDescription,
        table_of: Callable[[ModuleType], feed_table.FeedTable],
        header: Block,
        layouts: dict[int, list[Layout]],
        controls: dict[int, Layout],
        references: Mapping[int, Reference],
        message_header: Block | None = None,
        clock: Clock | None = None,
        book: BookRules | None = None,
    ) -> None:
        self.description = description
        self.name = description.name
        self.title = description.title
        self.key = description.key
        self.number = description.number
        self.zone = description.zone
        self.trading_day = TradingDay(description.zone, description.day_begins_at)
        self.byte_order = description.byte_order
        self.first_sequence = description.packet.sequence.first
        self.counts_messages = description.packet.sequence.counts == "messages"
        self.recovery: FeedRecovery | None = None
        if description.recovery is not None:
            counts = description.packet.sequence.counts
            self.recovery = checked(description.recovery, counts)
        self.header = header
        self.message_header = message_header or Block("message_header", 0, [], self.byte_order)
        self.layouts = layouts
        self.controls = controls
        self.references = references
        self.clock = clock
        self.book = book
        self.table_of = table_of
        self.table = table_of(feed_table)
        self._by_name = {layout.name: layout for ways in layouts.values() for layout in ways}
        self.symbols_are_text = any(
            (layout.symbol and layout.by_name[layout.symbol].kind == "c")
            or (layout.symbols is not None and layout.symbols[1].kind == "c")
            for layout in self._by_name.values()
        )
        #: Layouts whose messages were longer than described, as those of a later version are:
        #: by name, the fixed bytes of the first such message, and the bytes described.
        self.longer: dict[str, tuple[int, int]] = {}
        self._scratch: list[tuple[feed_table.PacketHeader, feed_table.MessageIndex]] = []
        self._header_names: dict[str, str] = {}
        self._send_unit_ns = UNIT_NS[description.packet.send_time.unit]

    # -- what there is --------------------------------------------------------------------------

    @property
    def message_types(self) -> dict[int | str, list[Layout]]:
        """Layouts by message type as written in the description (number, or one character)."""
        return {ways[0].label: ways for ways in self.layouts.values()}

    def type_name(self, code: int) -> str | None:
        """Return the description's name of a message type; None for one that it does not have."""
        ways = self.layouts.get(code)
        return ways[0].name if ways else None

    def type_label(self, code: int) -> int | str:
        """Return a message type as people write it: `230`, or `P` where types are characters."""
        ways = self.layouts.get(code)
        if ways:
            return ways[0].label
        text = code.to_bytes(2, "big").lstrip(b"\0")
        readable = all(32 < byte < 127 for byte in text)
        return text.decode() if self._labels_are_text and text and readable else code

    def type_code(self, label: int | str) -> int:
        """Return the integer of a message type given as number, character or digits.

        Raises `UsageError` for what can be no type.
        """
        if isinstance(label, int):
            return label
        if self._labels_are_text and len(label) == self._label_size:
            return int.from_bytes(label.encode("latin-1", "replace"), "big")
        digits = label.lstrip("0") or label
        if digits.isdecimal() and len(digits) <= _TYPE_DIGITS and int(digits) <= _TYPE_MAX:
            return int(digits)
        raise UsageError(f"{label!r} is no message type of {self.name}", self._types_hint())

    @functools.cached_property
    def _labels_are_text(self) -> bool:
        return any(map(self._is_text, self.layouts.values()))

    @functools.cached_property
    def _label_size(self) -> int:
        return max(len(str(ways[0].label)) for ways in self.layouts.values() if self._is_text(ways))

    @staticmethod
    def _is_text(ways: list[Layout]) -> bool:
        return isinstance(ways[0].label, str)

    @functools.cached_property
    def needs_reference_scales(self) -> bool:
        """Return whether the scale of some prices is known from reference data only."""
        blocks: list[Block] = [*self._by_name.values()]
        blocks += [part.elements for layout in self._by_name.values() for part in layout.parts]
        return any(in_reference(field.price) for block in blocks for field in block.named)

    @functools.cached_property
    def scale_names(self) -> tuple[str, ...]:
        """Words by which prices have their decimals of reference data: `reference.USE`."""
        reference = self.description.reference
        return () if reference is None else tuple(reference.scales)

    @functools.cached_property
    def needs_send_time(self) -> bool:
        """Return whether some messages, alone, need their packet's send time for their own times.

        False where the type is in the packet header: there a message alone travels as a packet of
        one message, whose header has the send time.
        """
        rules = self.description.times
        return not self.table.type_in_packet and any(rule.since == "send_second" for rule in rules)

    def _types_hint(self) -> str:
        return "its types are " + ", ".join(str(label) for label in self.message_types)

    def layout(self, type: int | str, size: int | None = None) -> Layout:
        """Return the layout of a message type, or the layout with that name.

        Of several, the one for a message of `size` bytes: the largest that is not longer; without
        `size` the shortest. Raises `UsageError` for an unknown type, and where `size` is below
        every layout.
        """
        if isinstance(type, str) and type in self._by_name:
            return self._by_name[type]
        ways = self.layouts.get(self.type_code(type))
        if not ways:
            raise UsageError(f"{self.name} has no message type {type!r}", self._types_hint())
        if size is None:
            return ways[0]
        fitting = [layout for layout in ways if layout.size <= size]
        if not fitting:
            raise UsageError(f"message {type} has at least {ways[0].size} bytes, not {size}")
        return fitting[-1]

    def describe(self) -> dict[str, Any]:
        """Return a JSON-ready summary of the feed."""
        packet = self.description.packet
        return {
            "name": self.name,
            "title": self.title,
            "key": self.key,
            "number": self.number,
            "zone": self.zone,
            "day_begins_at": self.trading_day.begins_at,
            "byte_order": self.byte_order,
            "sequence_counts": packet.sequence.counts,
            "heartbeat_sequence": packet.sequence.heartbeat,
            "unsequenced": packet.sequence.unsequenced,
            "header_bytes": packet.header_size,
            "messages": len(self.layouts),
            "layouts": len(self._by_name),
            "controls": len(self.controls),
            "source": self.description.source,
        }

    # -- symbols --------------------------------------------------------------------------------

    def symbol_name(self, symbol: int) -> str | None:
        """Return the text of a symbol as the scanner gives it; None for `NO_SYMBOL`.

        That is its index in decimal, or its text without padding; of a text of more than eight
        bytes the digest in hexadecimal, since its text is only in the messages. None for several,
        too.
        """
        if symbol in (feed_table.NO_SYMBOL, feed_table.SEVERAL_SYMBOLS):
            return None
        if self.table.long_symbols and symbol >= LONG_SYMBOL_BIT:
            return f"{symbol:016x}"
        if self.symbols_are_text:
            return symbol.to_bytes(8, "big").strip(b"\0 ").decode("latin-1")
        return str(symbol)

    def symbols_named(self, name: str) -> tuple[int, ...]:
        """Return the symbols whose `symbol_name` is `name`.

        A text of up to eight characters gives two, one for each padding; an index, or the digest of
        a longer text in hexadecimal, gives one. A longer text gives none: only messages have it.
        """
        if not self.symbols_are_text:
            return (int(name),) if name.isdecimal() and len(name) <= _INDEX_DIGITS else ()
        if self.table.long_symbols and re.fullmatch("[89a-f][0-9a-f]{15}", name):
            return (int(name, 16),)
        if len(name) > 8 or not name.isascii():
            return ()
        return tuple(int.from_bytes(name.encode().ljust(8, pad), "big") for pad in (b"\0", b" "))

    def symbol_text(self, symbol: int) -> str:
        """Return the symbol as a word of a routing key; `-` where it has no name."""
        name = self.symbol_name(symbol)
        return key_word(name) if name else "-"

    # -- decoding -------------------------------------------------------------------------------

    def decode_packet(
        self,
        data: bytes,
        day: date | None = None,
        *,
        scales: Mapping[int, int] | None = None,
        known: "ReferenceData | None" = None,
    ) -> Packet:
        """Decode a whole packet; compressed bodies are inflated (at most `INFLATED_SIZE_MAX`).

        `day` is the trading day that times since midnight belong to. `scales` gives decimal places
        by symbol, for feeds that have them in reference data only; `known` has them instead, and
        learns from the reference messages in the packet. Raises `BadPacket` where the scanner
        rejects the packet.
        """
        header, index = scratch = self._take_scratch()
        try:
            return self._decode(bytes(data), header, index, day, scales or {}, known)
        finally:
            self._scratch.append(scratch)

    def _take_scratch(self) -> tuple[feed_table.PacketHeader, feed_table.MessageIndex]:
        """Take a header and an index from the spare ones, as they take longer to make than to use;
        the caller puts them back."""
        try:
            return self._scratch.pop()
        except IndexError:  # none is spare, perhaps because another thread took the last one
            return feed_table.PacketHeader(), feed_table.MessageIndex()

    def _decode(
        self,
        data: bytes,
        header: feed_table.PacketHeader,
        index: feed_table.MessageIndex,
        day: date | None,
        scales: Mapping[int, int],
        known: "ReferenceData | None",
    ) -> Packet:
        if self.table.several:
            return merged(
                self._decoded(data[at : at + one.length], one, messages, day, scales, known)
                for at, one, messages in self.scanned(data)
            )
        received = data
        verdict = scanner.parse_header(self.table, data, 0, len(data), header)
        if verdict == Reject.FINE:
            verdict = scanner.scan_messages(self.table, data, 0, header, index)
            if verdict == Reject.COMPRESSED:
                data, flags = self.inflate(data), header.flags
                verdict = scanner.parse_header(self.table, data, 0, len(data), header)
                header.flags = 0  # the flag means compressed; the body is inflated now
                verdict = verdict or scanner.scan_messages(self.table, data, 0, header, index)
                header.flags = flags
        if verdict != Reject.FINE:
            raise self._refusal(verdict, received)
        return self._decoded(data, header, index, day, scales, known)

    def _decoded(
        self,
        data: bytes,
        header: feed_table.PacketHeader,
        index: feed_table.MessageIndex,
        day: date | None,
        scales: Mapping[int, int],
        known: "ReferenceData | None",
    ) -> Packet:
        """Decode a packet whose messages were found."""
        midnights = self.midnights(day)
        packet = self._packet(data, header, midnights)
        context = DecodeContext(midnights, packet.send_time_ns)
        clocks = {} if known is None else known.clocks
        context.clock_ns = clocks.get(packet.service)
        context.scales_of = self._scales_by_field(scales, known)
        for i in range(index.count):
            code, symbol = index.types[i], index.symbols[i]
            packet.types.append(self.type_label(code))
            packet.symbols.append(symbol)
            packet.sequences.append(index.sequences[i])
            at, size = index.offsets[i], index.sizes[i]
            if self.clock is not None and code == self.clock.code:
                context.clock_ns = self.clock.read(data[at : at + size], midnights)
                if context.clock_ns is not None:
                    clocks[packet.service] = context.clock_ns
            scale: Mapping[str, int | None]
            if known is None:
                scale = dict.fromkeys(self.scale_names, scales.get(symbol))
            else:
                if code in known.references:
                    known.learn(code, data[at : at + size])
                scale = known.scales_of(symbol)
            packet.messages.append(self._message(data, code, at, size, context, scale))
        return packet

    def _scales_by_field(
        self, scales: Mapping[int, int], known: "ReferenceData | None"
    ) -> "Callable[[Field, bytes], Mapping[str, int | None]] | None":
        """Return a function from a field of an element and its bytes to the scales of the symbol
        that they name; None where no prices have their scales in reference data."""
        if not self.scale_names:
            return None

        def read(field: Field, data: bytes) -> Mapping[str, int | None]:
            symbol = _symbol_in(self.table, field, data, self.byte_order)
            if known is None:
                return dict.fromkeys(self.scale_names, scales.get(symbol))
            return known.scales_of(symbol)

        return read

    def midnights(self, day: date | None) -> Midnights | None:
        """Return the midnights that wire times of `day` count from; None for an unknown day."""
        return None if day is None else self.trading_day.midnights(day, self.zone)

    def _packet(
        self, data: bytes, header: feed_table.PacketHeader, midnights: Midnights | None
    ) -> Packet:
        context = DecodeContext(midnights)
        whole = data if header.body == self.header.size else data[: header.body].ljust(
            self.header.size, b"\0"
        )  # fmt: skip
        values = self.header.values(whole, 0, context, {})
        control = None
        layout = self.controls.get(header.packet_type)
        if layout is not None and header.kind in (PacketKind.CONTROL, PacketKind.RESET):
            size = header.length - header.body
            control = layout.decode(data, header.body, size, context, {})
        return Packet(
            kind=PacketKind(header.kind),
            sequence=header.sequence,
            next_sequence=header.next_sequence,
            session=header.session,
            service=header.service,
            flags=header.flags,
            send_time=header.send_time,
            send_time_ns=self.send_time_ns(header.send_time, midnights),
            header=dict(zip(self.header.by_name, values, strict=True)),
            messages=[],
            types=[],
            symbols=[],
            sequences=[],
            control=control,
        )

    def _message(
        self,
        data: bytes,
        code: int,
        at: int,
        size: int,
        context: DecodeContext,
        scales: Mapping[str, int | None],
    ) -> Record | UnknownMessage:
        layout = self._layout_for(code, size)
        if layout is None:
            reason = "shorter than its layout" if code in self.layouts else "unknown message type"
        else:
            if size > layout.size and layout.name not in self.longer:
                self._note_longer(layout, data, at, size)
            try:
                return layout.decode(data, at, size, context, scales)
            except CutShort as short:
                reason = f"ends inside {short}"
        return UnknownMessage(self.type_label(code), data[at : at + size], reason)

    def _layout_for(self, code: int, size: int) -> Layout | None:
        """Return the largest layout of a type that a message of `size` bytes can have."""
        fitting = [each for each in self.layouts.get(code, ()) if each.least_size <= size]
        return fitting[-1] if fitting else None

    def _note_longer(self, layout: Layout, data: bytes, at: int, size: int) -> None:
        """Note a message whose fixed part is longer than its layout's, to be reported once."""
        fixed = layout.size if layout.parts or layout.group is not None else size
        with contextlib.suppress(CutShort):
            if self.table.block_size:
                fixed = layout.fixed(data, at, size)
        if fixed - layout.size >= self.table.message_align:  # more than padding
            self.longer[layout.name] = fixed, layout.size

    def _refusal(self, verdict: int, data: bytes, where: str = "packet") -> BadPacket:
        """Return the error of a datagram; its fault is looked for only when the text is read."""

        def fault() -> str:
            from feedhandler.codecs.explain import explain

            found = explain(self, kept)
            return "" if found is None else str(found)

        kept = bytes(data)  # a copy of a buffer that the caller may reuse; of bytes none is made
        return BadPacket(Reject(verdict), where, fault)

    def messages_of(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes of each message of a packet. Raises `BadPacket`."""
        for at, size, _ in self.message_spans(data):
            yield data[at : at + size]

    def message_spans(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield first byte, size and type of each message of a packet. Raises `BadPacket`."""
        for begin, _, index in self.scanned(data):
            for i in range(index.count):
                yield begin + index.offsets[i], index.sizes[i], index.types[i]

    def sequence_of(self, data: bytes) -> int:
        """Return the number of a datagram's first packet. Raises `BadPacket`."""
        header, _ = scratch = self._take_scratch()
        try:
            verdict = scanner.parse_next(self.table, data, 0, len(data), header)
            if verdict != Reject.FINE:
                raise self._refusal(verdict, data)
            return header.sequence
        finally:
            self._scratch.append(scratch)

    def leaves(self, data: bytes) -> Iterator[Leaf]:
        """Yield each field of a packet as it stands in the bytes, from the header on.

        Messages that cannot be decoded have those of their header alone. Raises `BadPacket` where
        the scanner rejects the packet.
        """
        for begin, header, index in self.scanned(data):
            end = begin + header.length
            yield from self.header.leaves(data, begin, end, header.body, {})
            control = self.controls.get(header.packet_type)
            if control is not None and header.kind in (PacketKind.CONTROL, PacketKind.RESET):
                yield from control.leaves(data, begin + header.body, end, control.size, {})
            for i in range(index.count):
                at, size = begin + index.offsets[i], index.sizes[i]
                yield from self._message_leaves(data, index.types[i], at, size)

    def scanned(
        self, data: bytes
    ) -> Iterator[tuple[int, feed_table.PacketHeader, feed_table.MessageIndex]]:
        """Yield first byte, header and messages of each packet of a datagram. Raises `BadPacket`.

        Header and messages are good until the next step.
        """
        header, index = scratch = self._take_scratch()
        begin = 0
        try:
            while begin < len(data) or begin == 0:
                verdict = scanner.parse_next(self.table, data, begin, len(data) - begin, header)
                if verdict == Reject.FINE:
                    verdict = scanner.scan_messages(self.table, data, begin, header, index)
                if verdict != Reject.FINE:
                    raise self._refusal(verdict, data)
                yield begin, header, index
                begin += header.length
        finally:
            self._scratch.append(scratch)

    def _message_leaves(self, data: bytes, code: int, at: int, size: int) -> Iterator[Leaf]:
        yield from self.message_header.leaves(data, at, at + size, self.message_header.size, {})
        layout = self._layout_for(code, size)
        if layout is not None:
            with contextlib.suppress(CutShort):
                fixed = layout.fixed(data, at, size)
                yield from layout.leaves(data, at, at + size, fixed, {})

    def decode_message(
        self,
        message: bytes,
        *,
        type: int | str | None = None,
        day: date | None = None,
        scale: int | None = None,
        send_time: int | None = None,
        service: int = 0,
        known: "ReferenceData | None" = None,
    ) -> Record | UnknownMessage:
        """Decode one whole message to its record.

        `type` is needed only where the packet header has the message type. `scale`: decimal places
        of prices that have them in reference data only; `known` has them instead, and learns where
        this is a reference message. `send_time`: its packet's, as in the header, for times that are
        given within that second only. `service`: its packet's, whose clock in `known` times may
        count from. Raises `UsageError` where `type` is needed and missing.
        """
        table = self.table
        if table.type_in_packet:
            if type is None:
                raise UsageError(f"{self.name} messages do not carry their type", "give `type`")
            code = self.type_code(type)
        else:
            code = self.message_code(message)
        midnights = self.midnights(day)
        sent = None if send_time is None else self.send_time_ns(send_time, midnights)
        context = DecodeContext(midnights, sent)
        if known is not None:
            if self.clock is not None and code == self.clock.code:
                value_ns = self.clock.read(message, midnights)
                if value_ns is not None:
                    known.clocks[service] = value_ns
            context.clock_ns = known.clocks.get(service)
            if code in known.references:
                known.learn(code, message)
            context.scales_of = self._scales_by_field({}, known)
        scales = (
            dict.fromkeys(self.scale_names, scale)
            if known is None
            else known.scales_of(self.symbol_of(message, code))
        )
        return self._message(bytes(message), code, 0, len(message), context, scales)

    def message_code(self, message: bytes | memoryview) -> int:
        """Return the type of a whole message that gives it itself, as the scanner does."""
        table = self.table
        index = slice(table.message_type_at, table.message_type_at + table.message_type_size)
        code = int.from_bytes(message[index], self.byte_order)
        if table.type_second_size:
            code = code << 8 | message[table.type_second_at]
        return code

    def is_whole(self, message: bytes) -> bool:
        """Return whether a message is complete, and as long as its length field, if any, says."""
        table = self.table
        if len(message) < table.message_header_size:
            return False
        if not table.message_length_size:
            return True
        index = slice(table.message_length_at, table.message_length_at + table.message_length_size)
        length = int.from_bytes(message[index], self.byte_order)
        return length + table.message_length_add == len(message)

    def symbol_of(self, message: bytes, code: int | None = None) -> int:
        """Return the symbol of a whole message, as the scanner gives it.

        `code` is its type, where it does not give that itself.
        """
        code = self.message_code(message) if code is None else code
        layout = self.layouts[code][0] if code in self.layouts else None
        if layout is None or not layout.symbol:
            return feed_table.NO_SYMBOL
        field = layout.by_name[layout.symbol]
        if len(message) < field.at + field.size:
            return feed_table.NO_SYMBOL
        return scanner.symbol_of(self.table, message, code)

    def send_time_ns(self, send_time: int, midnights: Midnights | None) -> int | None:
        """Return a header's raw send time in ns since 1970.

        None where it counts from a midnight that is not known, and where packets have none.
        """
        spec = self.description.packet.send_time
        if spec is NO_SEND_TIME:
            return None
        if spec.nanoseconds:
            return send_time
        if spec.since == "epoch":
            return send_time * self._send_unit_ns
        return None if midnights is None else midnights.moment_ns(send_time * self._send_unit_ns)

    def send_times_apart_ns(self, earlier: int, later: int) -> int:
        """Return the ns from one raw send time to another, negative where `later` is earlier.

        Times since midnight are taken as at most half a day apart.
        """
        spec = self.description.packet.send_time
        apart = (later - earlier) * (1 if spec.nanoseconds else self._send_unit_ns)
        if spec.since == "epoch":
            return apart
        return (apart + DAY_NS // 2) % DAY_NS - DAY_NS // 2

    def inflate(self, data: bytes) -> bytes:
        """Return the packet with its compressed body inflated and its length patched.

        Raises `BadPacket` where the body is no zlib stream or inflates to more than
        `INFLATED_SIZE_MAX`.
        """
        table = self.table
        begin = scanner.header_bytes(table, data, 0, len(data))
        inflater = zlib.decompressobj()
        try:
            body = inflater.decompress(data[begin:], INFLATED_SIZE_MAX)
        except zlib.error as error:
            raise self._refusal(Reject.COMPRESSED, data, "compressed packet") from error
        if inflater.unconsumed_tail:
            raise self._refusal(Reject.LENGTH_MISMATCH, data, "inflated packet")
        packet = bytearray(data[:begin] + body)
        size = table.count_size
        count = int.from_bytes(packet[table.count_at : table.count_at + size], self.byte_order)
        scanner.patch_header(table, packet, 0, len(packet), count)
        return bytes(packet)

    def inflated(self, data: bytes) -> bytes:
        """Return the packet as it would be without compression: inflated, and its flags 0.

        Raises `BadPacket` as `inflate` does.
        """
        table = self.table
        made = bytearray(self.inflate(data))
        made[table.flags_at : table.flags_at + table.flags_size] = bytes(table.flags_size)
        return bytes(made)

    def to_dicts(
        self,
        data: bytes,
        day: date | None = None,
        *,
        names: Mapping[int, str] | None = None,
        scales: Mapping[int, int] | None = None,
        known: "ReferenceData | None" = None,
    ) -> list[dict[str, Any]]:
        """Return the messages of a packet as JSON-ready dicts.

        Each has `seq`, `service`, `type`, `name` (of the layout), `symbol` (its name where `names`
        has it), then the fields; of an unsequenced packet `unsequenced` as well. A packet without
        messages that is no data packet gives one dict whose `type` is its kind. `scales` and
        `known` as in `decode_packet`. Raises `BadPacket`.
        """
        packet = self.decode_packet(data, day, scales=scales, known=known)
        if packet.kind != PacketKind.DATA and not packet.messages:
            return [self._control_dict(packet)]
        return [
            self._message_dict(packet, index, names or {}) for index in range(len(packet.messages))
        ]

    def _message_dict(self, packet: Packet, index: int, names: Mapping[int, str]) -> dict[str, Any]:
        symbol, message = packet.symbols[index], packet.messages[index]
        plain = {
            "seq": packet.sequences[index],
            "service": packet.service,
            "type": packet.types[index],
            "name": message.layout.name if isinstance(message, Record) else "unknown",
        }
        return {
            **plain,
            **message.to_dict(),
            "symbol": names.get(symbol) or self._name_in(message) or self.symbol_name(symbol),
            **({"unsequenced": True} if packet.kind == PacketKind.UNSEQUENCED else {}),
        }

    @staticmethod
    def _name_in(message: Any) -> str | None:
        """Return the symbol of a message as its own text has it; None where that is no text."""
        layout = message.layout if isinstance(message, Record) else None
        name = getattr(message, layout.symbol or "layout") if isinstance(layout, Layout) else None
        return name if isinstance(name, str) and name else None

    def _control_dict(self, packet: Packet) -> dict[str, Any]:
        return {
            "seq": packet.sequence,
            "service": packet.service,
            "type": packet.kind.name.lower(),
            "name": packet.control.layout.name if packet.control else packet.kind.name.lower(),
            "symbol": None,
            **(packet.control.to_dict() if packet.control else {}),
        }

    # -- encoding -------------------------------------------------------------------------------

    def encode_message(
        self,
        type: int | str | Record,
        /,
        *,
        scale: int | None = None,
        **fields: Any,
    ) -> bytes:
        """Encode one whole message, its own header included.

        `type` is a message type, a layout's name (where a type has two layouts, the type alone
        means the shortest), or a record; `fields` are by attribute name, the missing ones 0 or
        blank. `scale`: the decimal places of prices whose scale is in reference data; of a message
        with a field of that name the field. Raises `UsageError` for an unknown type or field and
        for values that do not fit.
        """
        if isinstance(type, Record):
            layout = type.layout
            if not isinstance(layout, Layout):
                raise UsageError(f"{layout.name} is no message", "encode the message it is part of")
            fields = {**record_values(type), **fields}
        else:
            layout = self.layout(type)
        if scale is not None and "scale" in layout.by_name:
            fields["scale"] = scale
        message = layout.encode(fields, dict.fromkeys(self.scale_names, scale))
        table = self.table
        if self.message_header.named:
            header = self.message_header.pack({}, {})
            for field in self.message_header.named:
                message[field.at : field.at + field.size] = header[field.at :][: field.size]
        length = len(message) - table.message_length_add
        size = table.message_length_size
        if size and length >= 1 << 8 * size:
            raise UsageError(f"{layout.name}: {len(message)} bytes are too many for one message")
        self._put(message, table.message_length_at, size, length)
        self._put(
            message, table.block_at, table.block_size, layout.size - table.message_header_size
        )
        if not table.type_in_packet:
            second = table.type_second_size
            self._put(
                message, table.message_type_at, table.message_type_size, layout.code >> 8 * second
            )
            self._put(message, table.type_second_at, second, layout.code & 0xFF)
        return bytes(message).ljust(
            -(-len(message) // table.message_align) * table.message_align, b"\0"
        )

    def _put(self, message: bytearray, at: int, size: int, value: int) -> None:
        """Write an integer of a message's header; of size 0: none."""
        if size:
            message[at : at + size] = value.to_bytes(size, self.byte_order)

    def encode_control(self, packet_type: int, **fields: Any) -> bytes:
        """Encode the body of a control packet, for `encode_packet(kind="control", body=...)`.

        Raises `UsageError` for an unknown packet type or field and for values that do not fit.
        """
        layout = self.controls.get(packet_type)
        if layout is None:
            raise UsageError(
                f"{self.name} has no control packet {packet_type}",
                f"it has {', '.join(map(str, self.controls))}",
            )
        return bytes(layout.encode(fields, {}))

    def encode_packet(
        self,
        *,
        sequence: int = 0,
        messages: Sequence[bytes] = (),
        service: int = 0,
        send_time: int = 0,
        kind: str | PacketKind = "data",
        flags: int | None = None,
        session: int | str = 0,
        packet_type: int | None = None,
        body: bytes = b"",
        next_sequence: int | None = None,
        count: int | None = None,
        header: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Encode one whole packet.

        `messages` are whole messages; `body` is a control packet's body instead (for a reset whose
        body carries the next number it is made from `next_sequence`, by default the number after
        `sequence`). An unsequenced packet gets the number that the feed sets aside. `send_time` is
        the raw number, with two fields seconds * 10**9 + nanoseconds. `packet_type` is the kind
        field's value, by default the first that the description lists for `kind`. `header` sets
        further header fields by name. `count` overrides the number of messages (for packets whose
        body is compressed). Raises `UsageError` where the feed has no packets of this kind, and for
        values that do not fit.
        """
        kind = _KINDS[kind] if isinstance(kind, str) else kind
        packet = self.description.packet
        if kind == PacketKind.UNSEQUENCED:
            if packet.sequence.unsequenced is None:
                raise UsageError(f"{self.name} sets no sequence number aside")
            kind, sequence = PacketKind.DATA, packet.sequence.unsequenced
        if kind == PacketKind.RESET and not body:
            after = sequence + 1 if next_sequence is None else next_sequence
            if packet.reset_message is not None:
                messages = messages or [self._reset_message(after)]
            elif self.table.reset_size:
                body = self._reset_body(after)
        size = self.table.header_size
        if packet.kind is not None:
            packet_type = self._packet_type(kind, packet_type)
            size = self.header_size_of(packet_type)
        body = body + b"".join(self._numbered(messages, sequence))
        body += b"\0" * (-(size + len(body)) % packet.align)
        values: dict[str, Any] = dict(packet.constants)
        values.update(self._send_time_fields(send_time))
        high = None
        if packet.sequence.high:
            high, sequence = divmod(sequence, 1 << 8 * self.table.sequence_size)
        for name, value in [
            (packet.length.field, size + len(body) - packet.length.add),
            (packet.sequence.field, sequence),
            (packet.sequence.high, high),
            (packet.count, len(messages) if count is None else count),
            (packet.service, service),
            (packet.session, session),
            (packet.flags, flags),
        ]:
            if name and value is not None:
                values[name] = value
        if packet.kind is not None:  # its field may be the flags' too
            values[packet.kind.field] = packet_type
        names = self._header_names
        named = {
            names.get(name) or self._header_name(name): value for name, value in values.items()
        }
        named.update(header or {})
        return self.header.pack(named, {})[:size] + body

    def header_size_of(self, packet_type: int) -> int:
        """Return the bytes of the header of packets whose kind field has this value."""
        table = self.table
        return table.short_header if table.has_short(packet_type) else table.header_size

    def _numbered(self, messages: Sequence[bytes], sequence: int) -> Iterable[bytes]:
        """Return the messages, each with its own number from `sequence` on where they have one."""
        if not self.table.number_size:
            return messages
        numbered = []
        for number, message in enumerate(messages, sequence):
            changed = bytearray(message)
            self._put(changed, self.table.number_at, self.table.number_size, number)
            numbered.append(bytes(changed))
        return numbered

    def _packet_type(self, kind: PacketKind, packet_type: int | None) -> int:
        if packet_type is not None:
            return packet_type
        assert self.description.packet.kind is not None
        listed = getattr(self.description.packet.kind, kind.name.lower())
        if not listed:
            raise UsageError(f"{self.name} has no {kind.name.lower()} packets")
        return int(listed[0])

    def _header_name(self, name: str) -> str:
        """Return what the header calls the field, or bits, that the description calls `name`."""
        bits, found = snake_case(name), name
        for field in self.header.named:
            if name in (field.wire, field.name):
                found = field.name
                break
            if bits in field.bits:
                found = bits
                break
        self._header_names[name] = found
        return found

    def _send_time_fields(self, send_time: int) -> dict[str, int]:
        spec = self.description.packet.send_time
        if spec is NO_SEND_TIME:
            return {}
        if not spec.nanoseconds:
            return {spec.field: send_time}
        return {
            spec.field: send_time // 1_000_000_000,
            spec.nanoseconds: send_time % 1_000_000_000,
        }

    def _reset_message(self, next_sequence: int) -> bytes:
        """Return the message that makes its packet a reset."""
        layout = self.layouts[self.table.reset_message][0]
        name = self.description.packet.reset_next
        fields = {self._control_name(layout, name): next_sequence} if name else {}
        return self.encode_message(layout.name, **fields)

    def _reset_body(self, next_sequence: int) -> bytes:
        packet = self.description.packet
        assert packet.kind is not None
        for code in packet.kind.reset:
            if code in self.controls:
                name = self._control_name(self.controls[code], packet.reset_next)
                return self.encode_control(code, **{name: next_sequence})
        raise UsageError(f"{self.name} has no reset packet")

    @staticmethod
    def _control_name(layout: Layout, name: str) -> str:
        return next(f.name for f in layout.named if name in (f.wire, f.name))


def pack_messages(messages: Iterable[bytes], room: int) -> list[list[bytes]]:
    """Cut messages, in order, into runs for packets: at most `room` bytes and 255 messages.

    A message longer than `room` makes a run of its own.
    """
    runs: list[list[bytes]] = []
    used = room + 1
    for message in messages:
        if used + len(message) > room or len(runs[-1]) == 255:
            runs.append([])
            used = 0
        runs[-1].append(message)
        used += len(message)
    return runs


def split_packets(feed: Feed, data: bytes) -> list[bytes]:
    """Split a batch body into its packets by their length fields.

    Raises PeerError where the bytes do not end with a packet's end.
    """
    packets = []
    at = 0
    while at < len(data):
        size = scanner.frame_length(feed.table, data, at, len(data) - at)
        if size <= 0 or at + size > len(data):
            raise PeerError(f"batch body breaks off at byte {at} of {len(data)}")
        packets.append(data[at : at + size])
        at += size
    return packets
