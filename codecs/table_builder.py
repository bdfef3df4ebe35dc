"""The scanner's table, built of a description: where header fields, types and symbols stand."""

import re
from types import ModuleType

from feedhandler.codecs.description import FieldDescription
from feedhandler.codecs.feed_table import CONSTANTS_MAX, FeedTable
from feedhandler.codecs.field_builder import FieldBuilder, renamed
from feedhandler.codecs.field_values import fault_of_integer, nearest, snake_case
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.layouts import Block, Field, Layout
from feedhandler.codecs.parts import Group
from feedhandler.codecs.size_builder import SizeBuilder


class TableBuilder:
    """Builds `FeedTable`s of one description; what does not fit together is refused by `fields`."""

    def __init__(self, fields: FieldBuilder) -> None:
        self.fields = fields
        self.description = fields.description
        self.byte_order = fields.byte_order
        self.refuse = fields.refuse

    def table(
        self,
        module: ModuleType,
        header: Block,
        layouts: dict[int, list[Layout]],
        controls: dict[int, Layout],
    ) -> FeedTable:
        """Build the table, a `FeedTable` of `module` (`feed_table`, or its interpreted twin)."""
        table = module.FeedTable()
        packet = self.description.packet
        table.big_endian = self.byte_order == "big"
        table.symbol_pad = 0x2020_2020_2020_2020 if self.description.pad == "space" else 0
        table.header_size = packet.header_size
        table.counts_messages = packet.sequence.counts == "messages"
        table.heartbeat_adds = {"next": 0, "last": 1, "none": -1}[packet.sequence.heartbeat]
        table.heartbeat_when_empty = packet.heartbeat_when_empty
        self._set_header_field(table, header, "length", packet.length.field, 4)
        self.fields.check_added("packet.length.add", packet.length.add, packet.header_size)
        table.length_add = packet.length.add
        self._set_header_field(table, header, "sequence", packet.sequence.field, 8)
        self._unsequenced(table)
        self._set_session(table, header)
        self._set_header_field(table, header, "service", packet.service, 4)
        self._set_header_field(table, header, "flags", packet.flags, 1)
        self._set_header_field(table, header, "count", packet.count or "", 2)
        self._set_header_field(table, header, "time", packet.send_time.field, 8)
        if packet.send_time.nanoseconds:
            key = "packet.send_time.nanoseconds"
            field = self._header_field(header, key, packet.send_time.nanoseconds)
            if field.size != 4 or table.time_size > 4 or packet.send_time.unit != "s":
                self.refuse(key, "must be a u32 beside a u32 in seconds")
            table.time_ns_at = field.at
        self._constants(table, header)
        self._flags(table, header)
        self._kinds(table, header, controls)
        self._messages(table, layouts)
        self._high_bits(table, header)
        self._short_headers(table)
        self._reset_message(table, layouts)
        self._variations(table)
        return table

    def _variations(self, table: FeedTable) -> None:
        """Set what only some feeds have: a datagram without a length, padding and the like."""
        packet = self.description.packet
        table.several = packet.several
        table.end_of_session = -1
        if packet.end_of_session is not None:
            if not table.count_size:
                self.refuse("packet.end_of_session", "is a value of the count, which is not there")
            if fault := fault_of_integer(packet.end_of_session, 8 * table.count_size):
                self.refuse("packet.end_of_session", fault)
            table.end_of_session = packet.end_of_session
        if not 1 <= packet.align <= 16:
            self.refuse("packet.align", "is not within 1..16")
        table.trailing_max = packet.align - 1
        table.alone = not table.length_size and not (table.count_size and table.message_length_size)
        table.varied = bool(
            not table.length_size
            or not table.count_size
            or not table.time_size
            or table.session_size > 8
            or table.end_of_session >= 0
            or table.short_header
            or table.kind_mask != 0xFFFF
            or table.session_mask
            or table.high_size
            or table.reset_message >= 0
            or table.several
            or not table.sequence_size
        )

    def _short_headers(self, table: FeedTable) -> None:
        """Set which kinds of packets have a shorter header, and what must be in it."""
        kind = self.description.packet.kind
        if kind is None or kind.header_size is None:
            if kind is not None and kind.short is not None:
                self.refuse("packet.kind.short", "needs packet.kind.header_size")
            return
        if not 0 < kind.header_size <= table.header_size:
            self.refuse("packet.kind.header_size", f"is not within 1..{table.header_size}")
        table.short_header = kind.header_size
        others = kind.heartbeat + kind.reset + kind.control
        needed = {
            "kind": (table.kind_at, table.kind_size),
            "length": (table.length_at, table.length_size),
        }
        for value in others if kind.short is None else kind.short:
            if value not in kind.data + others:
                self.refuse("packet.kind.short", f"{value} is no value of a kind")
            table.set_short(value)
            if value in kind.data:
                needed["sequence"] = table.sequence_at, table.sequence_size
                needed["count"] = table.count_at, table.count_size
                needed["bits above the sequence"] = table.high_at, table.high_size
                needed["session"] = table.session_at, table.session_size
        for name, (at, size) in needed.items():
            if at + size > table.short_header:
                self.refuse("packet.kind.header_size", f"leaves out the {name}")

    def _set_session(self, table: FeedTable, header: Block) -> None:
        """Set where the session stands: a field, or some of its bits."""
        name = self.description.packet.session
        if (found := _bits_of(header, name)) is None:
            self._set_header_field(table, header, "session", name, 32, texts=True)
            return
        field, shift, width = found
        self._set_header_field(table, header, "session", field.wire, 8)
        table.session_shift, table.session_mask = shift, (1 << width) - 1

    def _high_bits(self, table: FeedTable, header: Block) -> None:
        """Set the bits that stand above the sequence number's."""
        name, key = self.description.packet.sequence.high, "packet.sequence.high"
        if not name:
            return
        found = _bits_of(header, name)
        if found is None:
            near = nearest(name, _names_of_bits(header))
            self.refuse(key, f"{name!r} names no bits of a field of the packet header{near}")
        field, shift, width = found
        self._header_field(header, key, field.wire)
        if not table.sequence_size or 8 * table.sequence_size + width > 62:
            self.refuse(key, "there is no sequence field, or both together have more than 62 bits")
        table.high_at, table.high_size = field.at, field.size
        table.high_shift, table.high_mask = shift, (1 << width) - 1

    def _reset_message(self, table: FeedTable, layouts: dict[int, list[Layout]]) -> None:
        """Set the type of the message that makes its packet a reset."""
        packet, key = self.description.packet, "packet.reset_message"
        if packet.reset_message is None:
            return
        if table.type_in_packet:
            self.refuse(key, "the packet has the type: name it in packet.kind.reset")
        if packet.kind is not None and packet.kind.reset:
            self.refuse(key, "packet.kind has resets: leave one of both out")
        for ways in layouts.values():
            if packet.reset_message in (ways[0].label, ways[0].code):
                break
        else:
            self.refuse(key, f"{packet.reset_message!r} is no type of a message")
        table.reset_message = ways[0].code
        if not packet.reset_next:
            return
        self._set_reset_next(table, ways[0].named, 0)
        place = table.reset_at, table.reset_size
        for layout in ways[1:]:
            self._set_reset_next(table, layout.named, 0)
            if (table.reset_at, table.reset_size) != place:
                self.refuse("packet.reset_next", "stands elsewhere in the type's other layouts")

    def _unsequenced(self, table: FeedTable) -> None:
        """Set the sequence number that marks unsequenced packets, where there is one."""
        spec = self.description.packet.sequence
        if not 0 <= spec.first < 1 << 8 * (table.sequence_size or 8):
            self.refuse("packet.sequence.first", f"{spec.first} is no number of the sequence")
        if spec.unsequenced is None:
            return
        key = "packet.sequence.unsequenced"
        if not table.sequence_size:
            self.refuse(key, "is a value of the field, which is not there")
        if not 0 <= spec.unsequenced < 1 << 8 * table.sequence_size:
            self.refuse(key, f"{spec.unsequenced} does not fit into {spec.field!r}")
        if spec.unsequenced == spec.first:
            self.refuse(key, "the first number of the sequence cannot be set aside")
        table.unsequenced = spec.unsequenced
        table.sets_aside = True

    def _constants(self, table: FeedTable, header: Block) -> None:
        """Set the header fields that have one value alone."""
        for number, (name, value) in enumerate(self.description.packet.constants.items()):
            key = f"packet.constants.{name}"
            field = self._header_field(header, key, name)
            if number == CONSTANTS_MAX:
                self.refuse(key, f"more than {CONSTANTS_MAX} of them")
            if fault := fault_of_integer(value, 8 * field.size):
                self.refuse(key, fault)
            table.set_constant(field.at, field.size, value)

    def _flags(self, table: FeedTable, header: Block) -> None:
        """Set the delivery flags that mean a compressed body, and those that are known: those in
        the field's `values`; without any, all."""
        packet = self.description.packet
        if not packet.flags:
            if packet.compressed_flags:
                self.refuse("packet.compressed_flags", "are values of `flags`, which is not there")
            return
        for flags in packet.compressed_flags:
            if fault := fault_of_integer(flags, 8):
                self.refuse("packet.compressed_flags", fault)
            table.set_compressed(flags)
        known: list[int] = []
        for text in self._header_field(header, "packet.flags", packet.flags).values:
            if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) > 255:
                self.refuse(
                    f"packet.{packet.flags}.values.{text}", f"{text!r} is no integer of 0 to 255"
                )
            known.append(int(text))
        if known:
            table.set_known_flags(known + packet.compressed_flags)

    def _header_field(self, header: Block, key: str, name: str, *, texts: bool = False) -> Field:
        for field in header.named:
            if name in (field.wire, field.name):
                if field.kind != "u" and not (texts and field.kind == "c"):
                    self.refuse(key, f"{name!r} must be an unsigned integer")
                if field.byte_order:
                    self.refuse(key, f"{name!r} must have the feed's byte order")
                return field
        near = nearest(name, (field.wire for field in header.named))
        self.refuse(key, f"{name!r} names no field of the packet header{near}")

    def _set_header_field(
        self, table: object, header: Block, role: str, name: str, widest: int, *,
        texts: bool = False,
    ) -> None:  # fmt: skip
        if not name:
            return
        field = self._header_field(header, f"packet.{role}", name, texts=texts)
        if field.size > widest:
            self.refuse(f"packet.{role}", f"{name!r} is wider than {widest} bytes")
        setattr(table, f"{role}_at", field.at)
        setattr(table, f"{role}_size", field.size)

    def _kinds(self, table: FeedTable, header: Block, controls: dict[int, Layout]) -> None:
        kind = self.description.packet.kind
        if kind is None:
            packet = self.description.packet
            if packet.reset_next and packet.reset_message is None:
                self.refuse("packet.reset_next", "without packet.kind no packet is a reset")
            if not self.description.packet.heartbeat_when_empty:
                self.refuse("packet.kind", "needed unless heartbeat_when_empty is true")
            return
        self._set_header_field(table, header, "kind", kind.field, 2)
        self._set_header_field(table, header, "type", kind.field, 2)
        if kind.mask is not None:
            if not 0 < kind.mask < 1 << 8 * table.kind_size:
                self.refuse("packet.kind.mask", f"has no bits, or more than {kind.field!r}")
            table.kind_mask = kind.mask
        seen: set[int] = set()
        for name in PacketKind:
            # Unsequenced packets are known by their number: no value of the field marks them.
            for value in getattr(kind, name.name.lower(), ()):
                if value in seen or not 0 <= value < 1 << 8 * table.kind_size:
                    self.refuse(
                        f"packet.kind.{name.name.lower()}", f"{value} is out of range or twice"
                    )
                if value & ~table.kind_mask:
                    self.refuse(
                        f"packet.kind.{name.name.lower()}", f"{value} has bits that mask leaves out"
                    )
                seen.add(value)
                table.set_kind(value, name)
        if not kind.data:
            self.refuse("packet.kind.data", "no value is named")
        for code, layout in controls.items():
            if layout.size > 65_535:
                self.refuse(f"controls[{layout.label}].size", "is not within 0..65535")
            table.set_control(code, layout.size)
        self._reset(table, controls)

    def _reset(self, table: FeedTable, controls: dict[int, Layout]) -> None:
        packet = self.description.packet
        if not packet.reset_next or packet.reset_message is not None:
            return
        assert packet.kind is not None, "the caller has checked it"
        bodies = [controls[code].named for code in packet.kind.reset if code in controls]
        self._set_reset_next(
            table, [field for body in bodies for field in body], packet.header_size
        )

    def _set_reset_next(self, table: FeedTable, fields: list[Field], begin: int) -> None:
        """Set where a reset has the next number; the fields begin at `begin`."""
        name = self.description.packet.reset_next
        table.reset_size = 0
        for field in fields:
            if name in (field.wire, field.name) and field.kind == "u" and not field.byte_order:
                table.reset_at, table.reset_size = begin + field.at, field.size
        if not table.reset_size:
            near = nearest(name, (field.wire for field in fields))
            self.refuse("packet.reset_next", f"{name!r} is no field of a reset{near}")

    def _messages(self, table: FeedTable, layouts: dict[int, list[Layout]]) -> None:
        message = self.description.message
        table.message_header_size = message.header_size
        if message.length is not None:
            length = self._message_field("length", message.length, 4)
            table.message_length_at = length.at
            table.message_length_size = length.size
            least = min(layout.size for ways in layouts.values() for layout in ways)
            self.fields.check_added("message.length_add", message.length_add, least)
            table.message_length_add = message.length_add
        elif message.length_add:
            self.refuse("message.length_add", "there is no length to add to")
        if not 1 <= message.align <= 16:
            self.refuse("message.align", "is not within 1..16")
        table.message_align = message.align
        if message.sequence is not None:
            number = self._message_field("sequence", message.sequence, 8)
            table.number_at, table.number_size = number.at, number.size
            if not table.counts_messages:
                self.refuse("message.sequence", 'needs packet.sequence.counts = "messages"')
        if message.block_length is not None:
            block = self._message_field("block_length", message.block_length, 4)
            table.block_at, table.block_size = block.at, block.size
        self._message_type(table)
        table.odd_messages = bool(
            table.message_align > 1 or table.number_size or table.type_second_size
        )
        for code, ways in layouts.items():
            symbol = ways[0].by_name.get(ways[0].symbol)
            table.set_type(
                code,
                symbol.at if symbol else 0,
                symbol.size if symbol else 0,
                symbol is not None and symbol.kind == "c",
                ways[0].least_size,
            )
            self._note_text(table, symbol)
            if ways[0].group is not None:
                self._first_group(table, ways[0])
        if message.sized_by_type:
            SizeBuilder(self.fields).fill(table, layouts)

    def _message_type(self, table: FeedTable) -> None:
        """Set where messages have their type."""
        spec = self.description.message.type
        if spec is None:
            if self.description.packet.kind is None:
                self.refuse("message.type", "without it packet.kind must give the message type")
            table.type_in_packet = True
            return
        kind = self._message_field("type", FieldDescription(spec.at, spec.type), 2, texts=True)
        table.message_type_at = kind.at
        table.message_type_size = kind.size
        if kind.kind == "c" and kind.size == 2 and self.byte_order == "little":
            self.refuse("message.type", 'a c2 needs byte_order = "big": its text is read as it is')
        if spec.second is not None:
            second = self._message_field("type.second", spec.second, 1, texts=True)
            if kind.size > 1:
                self.refuse("message.type.second", "both parts must have one byte")
            table.type_second_at, table.type_second_size = second.at, second.size

    def _message_field(
        self, key: str, spec: FieldDescription, widest: int, *, texts: bool = False
    ) -> Field:
        """Build a field of the message header: unsigned, and of at most `widest` bytes."""
        field = self.fields.field(
            f"message.{key}", renamed(spec, spec.name or key.replace(".", "_"))
        )
        if not (field.kind == "u" or (texts and field.kind == "c")) or field.size > widest:
            types = " or text" if texts else ""
            self.refuse(
                f"message.{key}", f"must be an unsigned integer{types} of at most {widest} bytes"
            )
        return field

    def _note_text(self, table: FeedTable, symbol: Field | None) -> None:
        """Note of a symbol that is text whether it is long, or padded otherwise than the feed's."""
        if symbol is not None and symbol.kind == "c":
            table.long_symbols |= symbol.size > 8
            table.strips_symbols |= symbol.size > 1 and symbol.pad != self.description.pad

    def _first_group(self, table: FeedTable, layout: Layout) -> None:
        """Set where a message's elements stand, and their symbols where they have some."""
        part = layout.parts[0]
        assert isinstance(part, Group)
        head, count, length = 0, None, None
        if part.dimensions is not None:
            head, count = part.dimensions.size, part.dimensions.count
            length = part.dimensions.block_length
        symbol = layout.symbols[1] if layout.symbols is not None else None
        table.set_group(
            layout.code,
            [
                layout.size,
                head,
                count.at if count else 0,
                count.size if count else 0,
                length.at if length else 0,
                length.size if length else 0,
                part.elements.size,
                symbol.at if symbol else 0,
                symbol.size if symbol else 0,
            ],
        )
        if symbol is not None:
            table.set_symbol_order(layout.code, symbol.kind == "c")
            self._note_text(table, symbol)


def _bits_of(header: Block, name: str) -> tuple[Field, int, int] | None:
    """Return the header's field with the bits of this name, the lowest one's number, how many."""
    for field in header.named:
        if snake_case(name) in field.bits:
            return field, *field.bits[snake_case(name)]
    return None


def _names_of_bits(header: Block) -> list[str]:
    return [name for field in header.named for name in field.bits]
