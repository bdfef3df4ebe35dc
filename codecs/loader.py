"""Loading of a description file into a `Feed`: checks that its parts fit, builds what runs.

`description` has checked the structure (keys, types of values). Here every statement is checked
against the others: fields that overlap or leave their message, names of fields that do not exist,
types that come twice, scales without a field. The first contradiction ends the loading with a
`ConfigError` that names file, line, key and reason. `list_feeds` and `load_feed` find the
descriptions that come with the package (`codecs/feeds/*.toml`).
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

import msgspec

from feedhandler.codecs import scanner
from feedhandler.codecs.description import (
    FIX_MESSAGE,
    FIX_PACKET,
    NO_LENGTH,
    NO_SEND_TIME,
    ConditionDescription,
    DescriptionFile,
    FieldDescription,
    FixDescription,
    GroupDescription,
    LayoutDescription,
    PartDescription,
    TimeDescription,
)
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed import Clock, Feed, Reference
from feedhandler.codecs.fix.framing import TAG_DIGITS_MAX
from feedhandler.codecs.fix_feed import FixFeed, is_administrative, type_code
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.layouts import Block, Field, Layout
from feedhandler.codecs.parts import Condition, Conditional, Dimensions, Group, Part, Text
from feedhandler.codecs.scanner import FeedTable
from feedhandler.codecs.times import UNIT_NS, TimeReader, time_reader
from feedhandler.codecs.trading_day import TradingDay

FEEDS_FOLDER = Path(__file__).parent / "feeds"

#: Largest whole message or packet of a u16 length, with room for what the length excludes.
SIZE_MAX = 65_575
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")
#: Types of fields: integers of 1 to 8 bytes, text, reserved bytes.
_TYPE = re.compile(
    r"(?P<integer>[ui])(?P<bits>8|16|24|32|40|48|56|64)|(?P<other>[cx])(?P<size>[1-9]\d*)"
)
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
#: Names that records, or the JSON objects made of them, use for something else.
_RESERVED_NAMES = {"type", "seq", "service", "name", "layout", "wire", "to_dict"}
#: The name of the symbol itself in these: a message's field has it only where it is the symbol.
_SYMBOL = "symbol"
#: Feeds of description files outside the package that are in use, by number.
_OWN_FEEDS: "WeakValueDictionary[int, Feed]" = WeakValueDictionary()


def snake_case(wire_name: str) -> str:
    """Convert `SourceTimeMicroSecs` to `source_time_micro_secs`; snake_case stays as it is."""
    return "_".join(word.lower() for word in _WORD.findall(wire_name))


class _Builder:
    """Checks one description and builds its parts; `refuse` raises the error of every refusal."""

    def __init__(self, file: DescriptionFile) -> None:
        self.file = file
        self.description = file.description
        self.byte_order = file.description.byte_order
        self.blocks = {block.name: block.fields for block in file.description.blocks}
        #: Indices of `[[times]]`: rules that fit a message, and rules that give one its time.
        self._fitting: set[int] = set()
        self._applied: set[int] = set()

    def refuse(self, key: str, reason: str) -> NoReturn:
        raise self.file.refusal(key, reason)

    def feed(self) -> Feed:
        description = self.description
        self._check_names()
        self._check_framing()
        if description.fix is not None:
            return self._fix_feed(description.fix)
        self._check_required()
        header = self._block(
            "packet", "header", description.packet.header_size, description.packet.fields, 0
        )
        layouts = self._layouts()
        controls = self._controls()
        self._check_times()

        def table_of(module: ModuleType) -> FeedTable:
            return self.table(module, header, layouts, controls)

        reference = self._reference(layouts, table_of(scanner))
        return Feed(
            description, table_of, header, layouts, controls, reference,
            self._message_header(), self._clock(layouts),
        )  # fmt: skip

    def _clock(self, layouts: dict[int, list[Layout]]) -> Clock | None:
        """Build the clock; refuse times that count from one where there is none."""
        given = self.description.clock
        if given is None:
            for place, rule in enumerate(self.description.times):
                if rule.since == "clock":
                    self.refuse(f"times[{place}].since", "no [clock] is described")
            return None
        code = self.code("clock.type", given.type)
        if code not in layouts:
            self.refuse("clock.type", f"message {given.type} is not described")
        for field in layouts[code][0].named:
            if given.field in (field.wire, field.name) and field.kind == "u":
                return Clock(
                    code, field, UNIT_NS[given.unit], given.since == "midnight", self.byte_order
                )
        self.refuse("clock.field", f"{given.field!r} is no unsigned field of {given.type}")

    def _message_header(self) -> Block:
        """Build the block of the message header's fields, as far as they are described."""
        given = self.description.message
        if not given.fields:
            return Block("message_header", 0, [], self.byte_order)
        return self._block("message", "message_header", given.header_size, given.fields, 0)

    def _check_names(self) -> None:
        description = self.description
        if not _IDENTIFIER.fullmatch(description.name.replace("-", "_")):
            self.refuse("name", f"{description.name!r} must be lower-case words with hyphens")
        if not _IDENTIFIER.fullmatch(description.key.replace("-", "_")):
            self.refuse("key", f"{description.key!r} must be lower-case words with hyphens")
        if not 0 < description.number < 65_536:
            self.refuse("number", f"{description.number} is not within 1..65535")
        try:
            ZoneInfo(description.zone)
        except (KeyError, ValueError, OSError):
            self.refuse("zone", f"{description.zone!r} is not a time zone of the tz database")
        try:
            TradingDay(description.zone, description.day_begins_at)
        except ConfigError as error:
            self.refuse("day_begins_at", error.message)

    def _check_framing(self) -> None:
        """Check that the tables of the feed's framing are there, and none of the other framing."""
        description = self.description
        if description.framing == "binary":
            if description.fix is not None:
                self.refuse("fix", 'is for framing = "fix" alone')
            for key, given in (("packet", FIX_PACKET), ("message", FIX_MESSAGE)):
                if getattr(description, key) is given:
                    self.refuse(key, "missing")
        elif description.fix is None:
            self.refuse("framing", '"fix" needs a table [fix]')
        else:
            for key in ("packet", "message", "messages", "times", "controls", "reference"):
                default = {"packet": FIX_PACKET, "message": FIX_MESSAGE, "reference": None}
                if getattr(description, key) != default.get(key, []):
                    self.refuse(key, "a feed that is framed by FIX has no such table")

    def _fix_feed(self, fix: FixDescription) -> Feed:
        """Build a feed that is framed by FIX."""
        names: dict[int, str] = {}
        if not 0 < fix.symbol_tag < 10**TAG_DIGITS_MAX:
            self.refuse("fix.symbol_tag", f"{fix.symbol_tag} is no FIX tag")
        for label, name in fix.messages.items():
            if not re.fullmatch("[A-Za-z0-9]{1,2}", label):
                self.refuse(f"fix.messages.{label}", "a message type is one or two characters")
            if not _IDENTIFIER.fullmatch(name) or name in names.values():
                self.refuse(f"fix.messages.{label}", f"{name!r} must be snake_case, and unique")
            if is_administrative(type_code(label)):
                self.refuse(f"fix.messages.{label}", "an administrative message needs no name")
            names[type_code(label)] = name

        def table_of(module: ModuleType) -> FeedTable:
            table = module.FeedTable()
            table.fix = table.counts_messages = table.long_symbols = table.several = True
            table.symbol_tag = fix.symbol_tag
            for code in names:
                table.set_type(code, 0, 0, False, 0)
            return table

        return FixFeed(self.description, table_of, names)

    def _check_required(self) -> None:
        """Check that the header fields that no feed can do without are named."""
        packet = self.description.packet
        named: list[tuple[str, str | None]] = [("count", packet.count)]
        if packet.length is not NO_LENGTH:
            named.append(("length.field", packet.length.field))
        if packet.send_time is not NO_SEND_TIME:
            named.append(("send_time.field", packet.send_time.field))
        if packet.kind is not None:
            named.append(("kind.field", packet.kind.field))
        if self.description.message.sequence is None:
            named.append(("sequence.field", packet.sequence.field))
        for key, name in named:
            if name == "":
                self.refuse(f"packet.{key}", "empty: it must name a field of the packet header")
        if packet.several and packet.length is NO_LENGTH:
            self.refuse("packet.several", "packets of one datagram need a length each")

    def check_number(self, others: Iterable[Feed]) -> None:
        """Check that no other feed has this number, which alone identifies the feed in tags."""
        number, name = self.description.number, self.description.name
        taken = {feed.number: feed.name for feed in others if feed.name != name}
        if number in taken:
            self.refuse(
                "number",
                f"{number} is the number of {taken[number]}: choose another one, or for a variant "
                f"of that feed give this one its name",
            )

    # -- fields ---------------------------------------------------------------------------------

    def _field(self, key: str, given: FieldDescription) -> Field:
        """Build one field, its type parsed."""
        where = f"{key}.{given.name or given.type}"
        found = _TYPE.fullmatch("c1" if given.type == "c" else given.type)
        if found is None:
            self.refuse(where, f"unknown type {given.type!r}: u8 to u64, i8 to i64, cN or xN")
        kind = found["integer"] or found["other"]
        width = int(found["bits"]) // 8 if found["integer"] else int(found["size"])
        name = given.rename or snake_case(given.name)
        if kind != "x" and (not _IDENTIFIER.fullmatch(name) or iskeyword(name)):
            self.refuse(where, f"{name!r} cannot be an attribute: give a name with `as`")
        if (
            name in _RESERVED_NAMES
            and kind != "x"
            and key.split(".")[0] not in ("packet", "message")
        ):
            self.refuse(where, f"{name!r} is reserved: give another name with `as`")
        if given.at is not None and given.at < 0:
            self.refuse(where, f"offset {given.at} is negative")
        for what, value in (("a price", given.price), ("an exponent's price", given.exponent or None),
                            ("null", given.null), ("constant", given.constant),
                            ("in bits", given.bits or None)):  # fmt: skip
            if value is not None and kind not in "ui":
                self.refuse(where, f"only an integer can be {what}")
        price = given.price if isinstance(given.price, int | None) else snake_case(given.price)
        return Field(
            name=name,
            wire=given.name,
            at=given.at or 0,
            size=width,
            kind=kind,
            price=price,
            exponent=snake_case(given.exponent),
            null=given.null,
            constant=given.constant,
            bits=self._bits(where, given, width),
            byte_order=given.byte_order if given.byte_order != self.byte_order else "",
            values=given.values,
            pad=given.pad or self.description.pad,
            doc=given.doc,
        )

    def _bits(self, where: str, given: FieldDescription, width: int) -> dict[str, tuple[int, int]]:
        """Return the named bits of a field by attribute name: (lowest bit's place, how many)."""
        bits: dict[str, tuple[int, int]] = {}
        for wire, place in given.bits.items():
            name = snake_case(wire)
            first, many = (place, 1) if isinstance(place, int) else (*place, 1)[:2]
            if not _IDENTIFIER.fullmatch(name) or iskeyword(name) or name in _RESERVED_NAMES:
                self.refuse(f"{where}.bits.{wire}", f"{name!r} cannot be an attribute")
            if not (first >= 0 and many > 0 and first + many <= 8 * width):
                self.refuse(f"{where}.bits.{wire}", f"bits {place} are not within {8 * width}")
            bits[name] = (first, many)
        return bits

    def _expanded(self, key: str, given: list[FieldDescription]) -> list[FieldDescription]:
        """Return the fields with those of named blocks in their place."""
        fields: list[FieldDescription] = []
        for field in given:
            if not field.block:
                fields.append(field)
                continue
            where = f"{key}.{field.name or field.block}"
            if field.block not in self.blocks:
                self.refuse(where, f"no block {field.block!r}: {', '.join(self.blocks) or 'none'}")
            inner = self._expanded(where, self.blocks[field.block])
            for place, each in enumerate(inner):
                changes: dict[str, Any] = {}
                if field.at is not None:
                    if each.at is not None:
                        changes["at"] = field.at + each.at
                    elif place == 0:
                        changes["at"] = field.at
                if field.name and each.name:
                    changes["name"] = f"{field.name}.{each.name}"
                    changes["rename"] = (
                        f"{field.rename or snake_case(field.name)}_"
                        f"{each.rename or snake_case(each.name)}"
                    )
                    for scale in ("price", "exponent"):
                        if isinstance(getattr(each, scale), str) and getattr(each, scale):
                            if getattr(each, scale) != "reference":
                                changes[scale] = f"{field.name}.{getattr(each, scale)}"
                fields.append(msgspec.structs.replace(each, **changes))
        return fields

    def _fields(
        self, key: str, given: list[FieldDescription], begin: int, size: int | None
    ) -> list[Field]:
        """Build fields by ascending offset, none overlapping, all within [begin, size).

        A field without an offset follows the one before it. Without `size` they end where they end.
        """
        fields: list[Field] = []
        at = begin
        for description in self._expanded(key, given):
            field = self._field(key, description)
            if description.at is None:
                field = msgspec.structs.replace(field, at=at)
            at = field.at + field.size
            fields.append(field)
        fields.sort(key=lambda each: each.at)
        at = begin
        names: set[str] = set()
        for field in fields:
            where = f"{key}.{field.wire or 'reserved'}"
            if field.at < at:
                self.refuse(where, f"begins at {field.at}, inside what ends at {at}")
            at = field.at + field.size
            if size is not None and at > size:
                self.refuse(where, f"ends at {at}, outside the {size} bytes of {key}")
            if field.kind != "x":
                for name in (field.name, *field.bits):
                    if name in names:
                        self.refuse(where, f"the name {name!r} comes twice")
                    names.add(name)
        return fields

    def _check_prices(self, key: str, fields: list[Field], outer: list[Field]) -> None:
        codes = {f.name for f in [*fields, *outer] if f.kind in "uic" and f.size == 1}
        for field in fields:
            if field.exponent and field.exponent not in codes:
                self.refuse(
                    f"{key}.{field.wire}", f"its exponent {field.exponent!r} is no one-byte integer"
                )
            if isinstance(field.price, str):
                if field.price == "reference":
                    if not (self.description.reference and self.description.reference.scale):
                        self.refuse(f"{key}.{field.wire}", "no reference.scale is described")
                elif field.price not in codes:
                    self.refuse(
                        f"{key}.{field.wire}", f"its scale {field.price!r} is no one-byte integer"
                    )
            elif field.price is not None and not 0 <= field.price <= 18:
                self.refuse(f"{key}.{field.wire}", f"a scale of {field.price} is not within 0..18")

    def _block(
        self, key: str, name: str, size: int, given: list[FieldDescription], begin: int
    ) -> Block:
        if not 0 <= size <= SIZE_MAX:
            self.refuse(f"{key}.size", f"{size} is not within 0..{SIZE_MAX}")
        fields = self._fields(key, given, begin, size)
        self._check_prices(key, fields, [])
        return Block(name, size, fields, self.byte_order)

    # -- layouts --------------------------------------------------------------------------------

    def code(self, key: str, label: int | str) -> int:
        """Return a message type as the integer that the wire carries."""
        if isinstance(label, str):
            wide = self.description.message.type
            size = 2 if wide and (wide.second is not None or wide.type == "c2") else 1
            if len(label) != size or not label.isascii():
                many = "one character" if size == 1 else f"{size} characters"
                self.refuse(key, f"type {label!r} must be a number or {many}")
            return int.from_bytes(label.encode(), "big")
        if not 0 <= label <= 65_535:
            self.refuse(key, f"type {label} is not within 0..65535")
        return label

    def _layouts(self) -> dict[int, list[Layout]]:
        """Build the layouts by type, each type's sorted by size."""
        layouts: dict[int, list[Layout]] = {}
        names: set[str] = set()
        begin = self.description.message.header_size
        for place, given in enumerate(self.description.messages):
            self.file.table = ("messages", place)
            key = f"messages[{given.type}]"
            layout = self._layout(key, given, begin)
            self._check_symbol_name(key, layout)
            others = layouts.setdefault(layout.code, [])
            if any(other.size == layout.size for other in others):
                self.refuse(key, f"type {given.type} with {given.size} bytes comes twice")
            if layout.name in names:
                self.refuse(key, f"the name {layout.name!r} comes twice")
            if others and not _same_symbol(others[0], layout):
                self.refuse(key, "the layouts of one type must keep their symbol in one place")
            if others and not _same_conflation(others[0], layout):
                self.refuse(key, "the layouts of one type must be conflated alike")
            names.add(layout.name)
            others.append(layout)
            others.sort(key=lambda each: each.size)
        if not layouts:
            self.refuse("messages", "no message is described")
        return layouts

    def _controls(self) -> dict[int, Layout]:
        kind = self.description.packet.kind
        known = set(kind.control + kind.reset + kind.heartbeat) if kind else set()
        controls: dict[int, Layout] = {}
        for place, given in enumerate(self.description.controls):
            self.file.table = ("controls", place)
            key = f"controls[{given.type}]"
            if given.conflate != "never" or given.conflate_by:
                self.refuse(f"{key}.conflate", "control packets are never conflated")
            layout = self._layout(key, given, 0)
            if layout.code not in known:
                self.refuse(
                    key, "packet.kind does not list its type as control, reset or heartbeat"
                )
            if layout.code in controls:
                self.refuse(key, f"type {given.type} comes twice")
            controls[layout.code] = layout
        return controls

    def _layout(self, key: str, given: LayoutDescription, begin: int) -> Layout:
        if not _IDENTIFIER.fullmatch(given.name):
            self.refuse(f"{key}.name", f"{given.name!r} must be snake_case")
        fields = self._fields(key, given.fields, begin, given.size)
        end = max((field.at + field.size for field in fields), default=begin)
        size = end if given.size is None else given.size
        if not begin <= size <= SIZE_MAX:
            self.refuse(f"{key}.size", f"{size} is not within {begin}..{SIZE_MAX}")
        self._check_prices(key, fields, [])
        symbol = self._symbol(key, given, fields)
        built = self._parts(key, given.parts, fields)
        if given.group is not None:
            built.insert(0, self._last_group(key, given.group, fields, size, bool(built)))
        return Layout(
            given.name,
            size,
            fields,
            self.byte_order,
            code=self.code(key, given.type),
            label=given.type,
            title=given.title,
            doc=given.doc,
            symbol=symbol,
            conflate=given.conflate,
            conflate_by=self._conflate_by(key, given, fields, symbol),
            times=self._times(fields),
            parts=built,
            symbols=self._symbols(key, given, built),
            fixed_size=self._fixed_size(begin) if begin else None,
            least_size=begin if begin and self.description.message.block_length else None,
        )

    def _last_group(
        self, key: str, given: GroupDescription, outer: list[Field], size: int, more: bool
    ) -> Group:
        """Build the group that goes on to the end of the message."""
        key = f"{key}.group"
        if not _IDENTIFIER.fullmatch(given.name) or given.name in {f.name for f in outer}:
            self.refuse(f"{key}.name", f"{given.name!r} must be snake_case and not a field")
        if given.size <= 0:
            self.refuse(f"{key}.size", "must be positive")
        end = max((field.at + field.size for field in outer), default=0)
        if given.at < end:
            self.refuse(f"{key}.at", f"{given.at} lies inside the fields before it, end {end}")
        if given.at != size:
            self.refuse(f"{key}.at", f"{given.at} is not the message's size, {size}")
        if more:
            self.refuse(key, "goes on to the end of the message: no parts can follow it")
        fields = self._fields(key, given.fields, 0, given.size)
        self._check_prices(key, fields, outer)
        for field in fields:
            if field.name == _SYMBOL:
                self.refuse(f"{key}.{field.wire}", "give another name with `as`")
        return Group(given.name, Block(given.name, given.size, fields, self.byte_order))

    def _fixed_size(self, begin: int) -> Callable[[bytes, int], int] | None:
        """Return what reads the bytes of a message's fixed part, where messages tell them."""
        given = self.description.message.block_length
        if given is None:
            return None
        field = self._field("message.block_length", _named(given, "block_length"))

        def fixed_size(data: bytes, at: int) -> int:
            place = at + field.at
            return begin + field.integer(data[place : place + field.size], self.byte_order)

        return fixed_size

    # -- parts ----------------------------------------------------------------------------------

    def _parts(self, key: str, given: list[PartDescription], outer: list[Field]) -> list[Part]:
        """Build the parts behind the fixed fields `outer`; those of elements with them."""
        parts: list[Part] = []
        for place, each in enumerate(given):
            named = [name for name in (each.group, each.text, each.block) if name]
            if len(named) != 1:
                self.refuse(f"{key}.parts[{place}]", "name it by one of group, text and block")
            where = f"{key}.{named[0]}"
            if not _IDENTIFIER.fullmatch(named[0]) or iskeyword(named[0]):
                self.refuse(where, f"{named[0]!r} must be snake_case")
            taken = {field.name for field in outer} | {part.name for part in parts}
            if named[0] in taken or named[0] in _RESERVED_NAMES:
                self.refuse(where, f"the name {named[0]!r} is taken")
            if parts and parts[-1].to_the_end:
                self.refuse(where, f"{parts[-1].name} goes on to the end of the message before it")
            parts.append(self._part(where, each, named[0], outer))
        return parts

    def _part(self, key: str, given: PartDescription, name: str, outer: list[Field]) -> Part:
        when = self._condition(key, given.when, outer)
        if given.text:
            length = FieldDescription(type=given.length, name=f"{name}_length")
            fields = self._fields(f"{key}.length", [length], 0, None)
            if fields[0].kind != "u":
                self.refuse(f"{key}.length", "must be an unsigned integer")
            return Text(name, Block(name, fields[0].size, fields, self.byte_order), when)
        fields = self._fields(key, given.fields, 0, given.size or None)
        size = given.size or max((field.at + field.size for field in fields), default=0)
        if not size:
            self.refuse(key, "has no fields")
        self._check_prices(key, fields, outer)
        parts = self._parts(key, given.parts, [*outer, *fields])
        elements = Block(name, size, fields, self.byte_order, parts=parts)
        if given.block:
            return Conditional(name, elements, when)
        dimensions = self._dimensions(key, given)
        count = ""
        if isinstance(given.count, str):
            count = self._named_field(f"{key}.count", given.count, outer)
        if given.parts and dimensions is None and not count:
            self.refuse(key, "elements with parts need a count")
        length = None
        if given.element_length is not None:
            found = self._named_field(f"{key}.element_length", given.element_length.field, fields)
            length = next(field for field in fields if found == field.name)
            if length.kind != "u":
                self.refuse(f"{key}.element_length", "must be an unsigned integer")
        return Group(
            name, elements, when, dimensions=dimensions, count=count, length=length,
            length_add=given.element_length.add if given.element_length else 0,
        )  # fmt: skip

    def _dimensions(self, key: str, given: PartDescription) -> Dimensions | None:
        """Return what stands before a group's elements; None where their count stands elsewhere."""
        if isinstance(given.count, FieldDescription):
            if given.dimensions:
                self.refuse(f"{key}.count", "the dimensions tell the count already")
            named = _named(given.count, given.count.name or "Count")
            count = self._fields(f"{key}.count", [named], 0, None)[0]
            return Dimensions(count.at + count.size, count, None, self.byte_order)
        if not given.dimensions:
            return None
        known = self.description.dimensions
        if given.dimensions not in known:
            names = ", ".join(known) or "none"
            self.refuse(f"{key}.dimensions", f"no dimensions {given.dimensions!r}: {names}")
        chosen = known[given.dimensions]
        where = f"dimensions.{given.dimensions}"
        numbers = [_named(chosen.count, chosen.count.name or "NumInGroup")]
        if chosen.block_length is not None:
            name = chosen.block_length.name or "BlockLength"
            numbers.append(_named(chosen.block_length, name))
        fields = {each.wire: each for each in self._fields(where, numbers, 0, chosen.size)}
        length = fields[numbers[1].name] if len(numbers) > 1 else None
        return Dimensions(chosen.size, fields[numbers[0].name], length, self.byte_order)

    def _condition(
        self, key: str, given: ConditionDescription | None, outer: list[Field]
    ) -> Condition | None:
        if given is None:
            return None
        if not given.field:
            if not given.left:
                self.refuse(f"{key}.when", "needs `field` with `in` or `mask`, or `left`")
            return Condition(left=given.left)
        if bool(given.among) == bool(given.mask):
            self.refuse(f"{key}.when", "needs one of `in` and `mask`")
        name = self._named_field(f"{key}.when", given.field, outer)
        return Condition(name, tuple(given.among), given.mask, given.left)

    def _named_field(self, key: str, wire: str, fields: list[Field]) -> str:
        """Return the attribute of the field, or of the bits, that `wire` names."""
        for field in reversed(fields):
            if wire in (field.wire, field.name):
                return field.name
            if snake_case(wire) in field.bits:
                return snake_case(wire)
        self.refuse(key, f"{wire!r} names no field before it")

    def _symbol(self, key: str, given: LayoutDescription, fields: list[Field]) -> str:
        """Return the name of the field with the symbol; "" where there is none, or a group has it."""
        if not given.symbol or self._symbol_group(given) is not None:
            return ""
        for field in fields:
            if given.symbol in (field.wire, field.name):
                self._check_symbol(key, field)
                return field.name
        self.refuse(f"{key}.symbol", f"{given.symbol!r} names no field")

    def _check_symbol(self, key: str, field: Field) -> None:
        if field.kind == "x" or field.byte_order or (field.kind == "c" and field.size > 255):
            self.refuse(f"{key}.symbol", "must be an integer, or text of at most 255 bytes")

    @staticmethod
    def _symbol_group(given: LayoutDescription) -> PartDescription | None:
        """Return the first part, where `symbol` names one of its fields: `group.Field`."""
        group, _, field = given.symbol.partition(".")
        if field and given.parts and given.parts[0].group == group:
            return given.parts[0]
        return None

    def _symbols(
        self, key: str, given: LayoutDescription, parts: list[Part]
    ) -> tuple[Group, Field] | None:
        """Return the group whose elements name the symbols, and their field; None: there is none."""
        if self._symbol_group(given) is None:
            return None
        part, wire = parts[0], given.symbol.partition(".")[2]
        if not isinstance(part, Group) or not part.is_plain_group:
            self.refuse(f"{key}.symbol", "needs a group of even elements, counted in front of them")
        for field in part.elements.named:
            if wire in (field.wire, field.name):
                self._check_symbol(key, field)
                return part, field
        self.refuse(f"{key}.symbol", f"{wire!r} names no field of {part.name}")

    def _check_symbol_name(self, key: str, layout: Layout) -> None:
        """Check that no other field has the name of the symbol in records and columns."""
        places = [(f"{key}.{field.wire}", field) for field in layout.named]
        for where, field in places:
            if field.name == _SYMBOL and layout.symbol != _SYMBOL:
                self.refuse(
                    where,
                    "'symbol' is the name of the message's symbol: give another name with `as`, or "
                    "name the field as the message's `symbol`",
                )

    def _conflate_by(
        self, key: str, given: LayoutDescription, fields: list[Field], symbol: str
    ) -> list[str]:
        """Return the fields that, with type and symbol, identify what a newer message replaces."""
        if given.conflate_by and given.conflate != "latest":
            self.refuse(f"{key}.conflate_by", 'is for conflate = "latest" alone')
        names = {name: field for field in fields for name in (field.wire, field.name) if name}
        chosen = [names[name].name for name in given.conflate_by if name in names]
        for name in given.conflate_by:
            if name not in names:
                self.refuse(f"{key}.conflate_by", f"{name!r} names no field")
        if len({*chosen, symbol}) <= len(chosen):
            self.refuse(f"{key}.conflate_by", "names a field twice, or the symbol")
        return chosen

    def _times(self, fields: list[Field]) -> list[tuple[str, TimeReader]]:
        """Return the readers of the first time rule of each name whose fields the layout has."""
        named = [field for field in fields if field.kind != "x"]
        positions = {field.wire: i for i, field in enumerate(named) if field.kind == "u"}
        times: dict[str, TimeReader] = {}
        for place, rule in enumerate(self.description.times):
            parts = _time_parts(rule)
            if not parts:
                self.refuse(f"times[{place}]", "names no field")
            if not _IDENTIFIER.fullmatch(rule.name):
                self.refuse(f"times[{place}].name", f"{rule.name!r} must be snake_case")
            if not all(field in positions for field, _ in parts):
                continue
            self._fitting.add(place)
            if rule.name not in times:
                self._applied.add(place)
                if rule.name in {field.name for field in named}:
                    self.refuse(f"times[{place}].name", f"{rule.name!r} is a field's name")
                times[rule.name] = time_reader(
                    rule.since, [(positions[field], unit) for field, unit in parts]
                )
        return list(times.items())

    def _check_times(self) -> None:
        """Check that every time rule applies to some message."""
        for place, rule in enumerate(self.description.times):
            if place in self._applied:
                continue
            if place in self._fitting:
                reason = f"an earlier rule for {rule.name!r} takes every message that this one fits"
            else:
                names = " and ".join(name for name, _ in _time_parts(rule))
                reason = f"fits no message: none has {names} as unsigned integers"
            self.refuse(f"times[{place}]", reason)

    def _reference(self, layouts: dict[int, list[Layout]], table: FeedTable) -> Reference | None:
        given = self.description.reference
        if given is None:
            return None
        code = self.code("reference.type", given.type)
        if code not in layouts:
            self.refuse("reference.type", f"message {given.type} is not described")
        layout = layouts[code][0]
        fields = {field.wire: field for field in layout.named}
        for key, name in [
            ("index", given.index),
            *(("name", name) for name in given.name),
            *([("scale", given.scale)] if given.scale else []),
        ]:
            if name not in fields:
                self.refuse(f"reference.{key}", f"{name!r} is no field of message {given.type}")
        return Reference(
            code=code,
            index=fields[given.index],
            name=tuple(fields[name] for name in given.name),
            separator=given.separator,
            scale=fields[given.scale] if given.scale else None,
            byte_order=self.byte_order,
            least_size=layout.size,
            table=table,
        )

    # -- the scanner's table --------------------------------------------------------------------

    def table(
        self,
        module: ModuleType,
        header: Block,
        layouts: dict[int, list[Layout]],
        controls: dict[int, Layout],
    ) -> FeedTable:
        """Build the `FeedTable` of scanner `module` (compiled, or its interpreted twin)."""
        table = module.FeedTable()
        packet = self.description.packet
        table.big_endian = self.byte_order == "big"
        table.symbol_pad = 0x2020_2020_2020_2020 if self.description.pad == "space" else 0
        table.header_size = packet.header_size
        table.counts_messages = packet.sequence.counts == "messages"
        table.heartbeat_adds = {"next": 0, "last": 1, "none": -1}[packet.sequence.heartbeat]
        table.heartbeat_when_empty = packet.heartbeat_when_empty
        self._place(table, header, "length", packet.length.field, 4)
        table.length_add = packet.length.add
        self._place(table, header, "sequence", packet.sequence.field, 8)
        self._unsequenced(table)
        self._place(table, header, "session", packet.session, 32, texts=True)
        self._place(table, header, "service", packet.service, 4)
        self._place(table, header, "flags", packet.flags, 1)
        self._place(table, header, "count", packet.count or "", 2)
        self._place(table, header, "time", packet.send_time.field, 8)
        if packet.send_time.nanoseconds:
            key = "packet.send_time.nanoseconds"
            field = self._header_field(header, key, packet.send_time.nanoseconds)
            if field.size != 4 or table.time_size > 4 or packet.send_time.unit != "s":
                self.refuse(key, "must be a u32 beside a u32 in seconds")
            table.time_ns_at = field.at
        for name, value in packet.constants.items():
            field = self._header_field(header, f"packet.constants.{name}", name)
            table.set_constant(field.at, field.size, value)
        for flags in packet.compressed_flags:
            table.set_compressed(flags)
        self._known_flags(table, header)
        self._kinds(table, header, controls)
        self._messages(table, layouts)
        self._variations(table)
        return table

    def _variations(self, table: FeedTable) -> None:
        """Set what only some feeds have: a datagram without a length, padding and the like."""
        packet = self.description.packet
        table.several = packet.several
        table.end_of_session = -1 if packet.end_of_session is None else packet.end_of_session
        if packet.end_of_session is not None and not table.count_size:
            self.refuse("packet.end_of_session", "is a value of the count, which is not there")
        if packet.kind is not None and packet.kind.header_size is not None:
            table.short_header = packet.kind.header_size
            if not 0 < table.short_header <= table.header_size:
                self.refuse("packet.kind.header_size", f"is not within 1..{table.header_size}")
            if table.kind_at + table.kind_size > table.short_header:
                self.refuse("packet.kind.header_size", "leaves out the kind")
        if not 1 <= packet.align <= 16:
            self.refuse("packet.align", "is not within 1..16")
        table.trailing_max = packet.align - 1
        table.varied = bool(
            not table.length_size
            or not table.count_size
            or not table.time_size
            or table.session_size > 8
            or table.end_of_session >= 0
            or table.short_header
            or table.several
            or not table.sequence_size
        )

    def _unsequenced(self, table: FeedTable) -> None:
        """Set the sequence number that marks unsequenced packets, where there is one."""
        given = self.description.packet.sequence
        if given.unsequenced is None:
            return
        key = "packet.sequence.unsequenced"
        if not 0 <= given.unsequenced < 1 << 8 * table.sequence_size:
            self.refuse(key, f"{given.unsequenced} does not fit into {given.field!r}")
        if given.unsequenced == given.first:
            self.refuse(key, "the first number of the sequence cannot be set aside")
        table.unsequenced = given.unsequenced
        table.sets_aside = True

    def _known_flags(self, table: FeedTable, header: Block) -> None:
        """Set the known delivery flags: those in the field's `values`; without any, all."""
        packet = self.description.packet
        if not packet.flags:
            return
        named = self._header_field(header, "packet.flags", packet.flags).values
        if named:
            table.set_known_flags([int(value) for value in named] + packet.compressed_flags)

    def _header_field(self, header: Block, key: str, name: str, *, texts: bool = False) -> Field:
        for field in header.named:
            if name in (field.wire, field.name):
                if field.kind != "u" and not (texts and field.kind == "c"):
                    self.refuse(key, f"{name!r} must be an unsigned integer")
                if field.byte_order:
                    self.refuse(key, f"{name!r} must have the feed's byte order")
                return field
        self.refuse(key, f"{name!r} names no field of the packet header")

    def _place(
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
            if not self.description.packet.heartbeat_when_empty:
                self.refuse("packet.kind", "needed unless heartbeat_when_empty is true")
            return
        self._place(table, header, "kind", kind.field, 2)
        self._place(table, header, "type", kind.field, 2)
        seen: set[int] = set()
        for name in PacketKind:
            # Unsequenced packets are known by their number: no value of the field marks them.
            for value in getattr(kind, name.name.lower(), ()):
                if value in seen or not 0 <= value < 1 << 8 * table.kind_size:
                    self.refuse(
                        f"packet.kind.{name.name.lower()}", f"{value} is out of range or twice"
                    )
                seen.add(value)
                table.set_kind(value, name)
        if not kind.data:
            self.refuse("packet.kind.data", "no value is named")
        for code, layout in controls.items():
            table.set_control(code, layout.size)
        self._reset(table, controls)

    def _reset(self, table: FeedTable, controls: dict[int, Layout]) -> None:
        packet = self.description.packet
        if not packet.reset_next:
            return
        assert packet.kind is not None
        for code in packet.kind.reset:
            for field in controls[code].named if code in controls else ():
                if packet.reset_next in (field.wire, field.name) and field.kind == "u":
                    table.reset_at = packet.header_size + field.at
                    table.reset_size = field.size
        if not table.reset_size:
            self.refuse("packet.reset_next", f"{packet.reset_next!r} is no field of a reset's body")

    def _messages(self, table: FeedTable, layouts: dict[int, list[Layout]]) -> None:
        message = self.description.message
        table.message_header_size = message.header_size
        if message.length is not None:
            length = self._message_field("length", message.length, 4)
            table.message_length_at = length.at
            table.message_length_size = length.size
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
            if symbol is not None and symbol.kind == "c" and symbol.size > 8:
                table.long_symbols = True
            if ways[0].group is not None:
                self._first_group(table, ways[0])

    def _message_type(self, table: FeedTable) -> None:
        """Set where messages have their type."""
        given = self.description.message.type
        if given is None:
            if self.description.packet.kind is None:
                self.refuse("message.type", "without it packet.kind must tell the message type")
            table.type_in_packet = True
            return
        kind = self._message_field("type", FieldDescription(given.at, given.type), 2, texts=True)
        table.message_type_at = kind.at
        table.message_type_size = kind.size
        if kind.kind == "c" and kind.size == 2 and self.byte_order == "little":
            self.refuse("message.type", 'a c2 needs byte_order = "big": its text is read as it is')
        if given.second is not None:
            second = self._message_field("type.second", given.second, 1, texts=True)
            if kind.size > 1:
                self.refuse("message.type.second", "both parts must have one byte")
            table.type_second_at, table.type_second_size = second.at, second.size

    def _message_field(
        self, key: str, given: FieldDescription, widest: int, *, texts: bool = False
    ) -> Field:
        """Build a field of the message header: unsigned, and of at most `widest` bytes."""
        field = self._field(f"message.{key}", _named(given, given.name or key.replace(".", "_")))
        if not (field.kind == "u" or (texts and field.kind == "c")) or field.size > widest:
            types = " or text" if texts else ""
            self.refuse(
                f"message.{key}", f"must be an unsigned integer{types} of at most {widest} bytes"
            )
        if field.at + field.size > self.description.message.header_size:
            self.refuse(f"message.{key}", "lies outside message.header_size")
        return field

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
            table.long_symbols |= symbol.kind == "c" and symbol.size > 8


def _named(given: FieldDescription, name: str) -> FieldDescription:
    return msgspec.structs.replace(given, name=name)


def _same_symbol(one: Layout, other: Layout) -> bool:
    first, second = one.by_name.get(one.symbol), other.by_name.get(other.symbol)
    if first is None or second is None:
        return first is second
    return (first.at, first.size, first.kind) == (second.at, second.size, second.kind)


def _same_conflation(one: Layout, other: Layout) -> bool:
    """Return whether two layouts of one type are conflated by the same fields."""
    places = [
        [(layout.by_name[name].at, layout.by_name[name].size) for name in layout.conflate_by]
        for layout in (one, other)
    ]
    return one.conflate == other.conflate and places[0] == places[1]


def _time_parts(rule: TimeDescription) -> list[tuple[str, int]]:
    """Return (field, ns a unit) of each part that a time rule names."""
    named = [
        (rule.seconds, UNIT_NS["s"]),
        (rule.milliseconds, UNIT_NS["ms"]),
        (rule.microseconds, UNIT_NS["us"]),
        (rule.nanoseconds, UNIT_NS["ns"]),
    ]
    return [(field, unit) for field, unit in named if field]


def list_feeds() -> list[str]:
    """Return the names of the feeds that come with the package, in alphabetical order."""
    return sorted(path.stem for path in FEEDS_FOLDER.glob("*.toml"))


def load_feed(name_or_path: str | Path) -> Feed:
    """Return the feed of that name (see `list_feeds`), or of the description file at that path.

    A feed of the package is loaded once and shared: treat it as read-only. Raises `ConfigError` for
    an unknown name (naming the known ones) and for a wrong description (naming file, line, key and
    reason), also where it has the number of another feed.
    """
    text = str(name_or_path)
    if not text.endswith(".toml"):
        path = FEEDS_FOLDER / f"{text}.toml"
        if "/" in text or not path.is_file():
            raise ConfigError(
                f"unknown feed {text!r}",
                f"known feeds: {', '.join(list_feeds())}; or give the path of a .toml file",
            )
        return _load_own(path)
    return _load_other(Path(name_or_path))


@lru_cache(maxsize=64)
def _load_own(path: Path) -> Feed:
    return _Builder(DescriptionFile(path)).feed()


def _load_other(path: Path) -> Feed:
    """Load a description outside the package, whose number must not be that of a feed in use."""
    builder = _Builder(DescriptionFile(path))
    feed = builder.feed()
    builder.check_number([*map(load_feed, list_feeds()), *_OWN_FEEDS.values()])
    _OWN_FEEDS[feed.number] = feed
    return feed
