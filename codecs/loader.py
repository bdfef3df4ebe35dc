"""Loading of a description file into a `Feed`: checks that its parts fit, builds what runs.

`description` has checked the structure (keys, types of values). Here every statement is checked
against the others: fields that overlap or leave their message, names of fields that do not exist,
types that come twice, scales without a field. The first contradiction ends the loading with a
`ConfigError` that names file, line, key and reason. `list_feeds` and `load_feed` find the
descriptions that come with the package (`codecs/feeds/*.toml`).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo, available_timezones

from feedhandler.codecs import feed_table
from feedhandler.codecs.book_builder import BookBuilder
from feedhandler.codecs.description import (
    FIX_MESSAGE,
    FIX_PACKET,
    NO_LENGTH,
    NO_SEND_TIME,
    DescriptionFile,
    FieldDescription,
    FixDescription,
    LayoutDescription,
    PartDescription,
    ReferenceDescription,
    TimeDescription,
)
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed import Clock, Feed, Reference
from feedhandler.codecs.feed_table import SLOTS_MAX, FeedTable
from feedhandler.codecs.field_builder import (
    IDENTIFIER,
    SIZE_MAX,
    SYMBOL,
    FieldBuilder,
    fault_of_name,
    names_of,
    renamed,
    tells_time,
    type_text,
)
from feedhandler.codecs.field_values import nearest
from feedhandler.codecs.fix.framing import TAG_DIGITS_MAX
from feedhandler.codecs.fix_feed import FixFeed, is_administrative, type_code
from feedhandler.codecs.layouts import Block, Field, Layout
from feedhandler.codecs.parts import Group, Part
from feedhandler.codecs.recovery import WrongRecovery, checked
from feedhandler.codecs.table_builder import TableBuilder
from feedhandler.codecs.times import UNIT_NS, TimeReader, time_reader
from feedhandler.codecs.trading_day import TradingDay

FEEDS_FOLDER = Path(__file__).parent / "feeds"

#: Feeds of description files outside the package that are in use, by number.
_OWN_FEEDS: "WeakValueDictionary[int, Feed]" = WeakValueDictionary()


class _Builder:
    """Checks one description and builds its parts; `refuse` raises the error of every refusal."""

    def __init__(self, file: DescriptionFile) -> None:
        self.file = file
        self.description = file.description
        self.byte_order = file.description.byte_order
        self.fields = FieldBuilder(file)
        #: Indices of `[[times]]`: rules that fit a message, and rules that give one its time.
        self._fitting: set[int] = set()
        self._applied: set[int] = set()
        #: Types of the fields that messages have, by the specification's name.
        self._types: defaultdict[str, set[str]] = defaultdict(set)

    def refuse(self, key: str, reason: str) -> NoReturn:
        self.fields.refuse(key, reason)

    def feed(self) -> Feed:
        description = self.description
        self._check_names()
        self._check_framing()
        self._check_recovery()
        if description.fix is not None:
            return self._fix_feed(description.fix)
        self._check_required()
        header = self.fields.block(
            "packet", "header", description.packet.header_size, description.packet.fields, 0
        )
        layouts = self._layouts()
        controls = self._controls()
        self._check_times()

        def table_of(module: ModuleType) -> FeedTable:
            return TableBuilder(self.fields).table(module, header, layouts, controls)

        references = self._references(layouts, table_of(feed_table))
        return Feed(
            description, table_of, header, layouts, controls, references,
            self._message_header(), self._clock(layouts), BookBuilder(self.fields, layouts).rules(),
        )  # fmt: skip

    def _clock(self, layouts: dict[int, list[Layout]]) -> Clock | None:
        """Build the clock; refuse times that count from one where there is none."""
        spec = self.description.clock
        if spec is None:
            for index, rule in enumerate(self.description.times):
                if rule.since == "clock":
                    self.refuse(f"times[{index}].since", "no [clock] is described")
            return None
        code = self.code("clock.type", spec.type)
        if code not in layouts:
            self.refuse("clock.type", f"message {spec.type} is not described")
        unsigned = [field for field in layouts[code][0].named if field.kind == "u"]
        for field in unsigned:
            if spec.field in (field.wire, field.name):
                return Clock(
                    code, field, UNIT_NS[spec.unit], spec.since == "midnight", self.byte_order
                )
        near = nearest(spec.field, (field.wire for field in unsigned))
        self.refuse("clock.field", f"{spec.field!r} is no unsigned field of {spec.type}{near}")

    def _message_header(self) -> Block:
        """Build the block of the message header's fields, as far as they are described."""
        spec = self.description.message
        if not spec.fields:
            return Block("message_header", 0, [], self.byte_order)
        return self.fields.block("message", "message_header", spec.header_size, spec.fields, 0)

    def _check_names(self) -> None:
        description = self.description
        if not IDENTIFIER.fullmatch(description.name.replace("-", "_")):
            self.refuse("name", f"{description.name!r} must be lower-case words with hyphens")
        if not IDENTIFIER.fullmatch(description.key.replace("-", "_")):
            self.refuse("key", f"{description.key!r} must be lower-case words with hyphens")
        if not 0 < description.number < 65_536:
            self.refuse("number", f"{description.number} is not within 1..65535")
        blocks = [block.name for block in description.blocks]
        for index, name in enumerate(blocks):
            if name in blocks[:index]:
                self.refuse(f"blocks[{index}]", f"the name {name!r} comes twice")
        try:
            ZoneInfo(description.zone)
        except (KeyError, ValueError, OSError):
            near = nearest(description.zone, available_timezones())
            self.refuse("zone", f"{description.zone!r} is not a time zone of the tz database{near}")
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
            for key in ("packet", "message", "messages", "times", "controls", "reference", "book"):
                default = {
                    "packet": FIX_PACKET,
                    "message": FIX_MESSAGE,
                    "reference": None,
                    "book": None,
                }
                if getattr(description, key) != default.get(key, []):
                    self.refuse(key, "a feed that is framed by FIX has no such table")

    def _check_recovery(self) -> None:
        """Check the protocols of recovery and their numbers."""
        spec = self.description.recovery
        if spec is None:
            return
        try:
            checked(spec, self.description.packet.sequence.counts)
        except WrongRecovery as wrong:
            self.refuse(f"recovery.{wrong.key}", wrong.reason)

    def _fix_feed(self, fix: FixDescription) -> Feed:
        """Build a feed that is framed by FIX."""
        names: dict[int, str] = {}
        if len(fix.messages) > SLOTS_MAX:
            self.refuse("fix.messages", f"more than {SLOTS_MAX} message types")
        if not 0 < fix.symbol_tag < 10**TAG_DIGITS_MAX:
            self.refuse("fix.symbol_tag", f"{fix.symbol_tag} is no FIX tag")
        for label, name in fix.messages.items():
            if not re.fullmatch("[A-Za-z0-9]{1,2}", label):
                self.refuse(f"fix.messages.{label}", "a message type is one or two characters")
            if not IDENTIFIER.fullmatch(name) or name in names.values():
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
        """Check that the header fields that no feed can do without are named, and the sizes of
        headers."""
        packet = self.description.packet
        self.fields.check_size("message.header_size", self.description.message.header_size)
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
        begin, free = self.description.message.header_size, self._free_header_bytes()
        types_end = self._types_end()
        for index, spec in enumerate(self.description.messages):
            self.file.table = ("messages", index)
            key = f"messages[{spec.type}]"
            layout = self._layout(key, spec, begin, free)
            if layout.code >= types_end:
                self.refuse(key, f"type {spec.type} is not within 0..{types_end - 1}")
            self._check_symbol_name(key, layout)
            others = layouts.setdefault(layout.code, [])
            if any(other.size == layout.size for other in others):
                self.refuse(key, f"type {spec.type} with {spec.size} bytes comes twice")
            if layout.name in names:
                self.refuse(key, f"the name {layout.name!r} comes twice")
            if others and not _same_symbol(others[0], layout):
                self.refuse(key, "the layouts of one type must keep their symbol in one place")
            if others and not _same_conflation(others[0], layout):
                self.refuse(key, "the layouts of one type must be conflated alike")
            names.add(layout.name)
            others.append(layout)
            others.sort(key=lambda each: each.size)
            if len(layouts) > SLOTS_MAX:
                self.refuse(key, f"more than {SLOTS_MAX} message types")
        if not layouts:
            self.refuse("messages", "no message is described")
        return layouts

    def _types_end(self) -> int:
        """Return the number behind the last message type that fits where the type stands."""
        spec = self.description.message.type
        if spec is None:
            return 1 << 16
        size = self.fields.type_of("message.type", spec.type)[1]
        return 1 << 8 * min(2, size if spec.second is None else size + 1)

    def _controls(self) -> dict[int, Layout]:
        kind = self.description.packet.kind
        known = set(kind.control + kind.reset + kind.heartbeat) if kind else set()
        controls: dict[int, Layout] = {}
        for index, spec in enumerate(self.description.controls):
            self.file.table = ("controls", index)
            key = f"controls[{spec.type}]"
            if spec.revokes:
                self.refuse(f"{key}.revokes", "control packets revoke no message")
            if spec.conflate != "never" or spec.conflate_by:
                self.refuse(f"{key}.conflate", "control packets are never conflated")
            layout = self._layout(key, spec, 0)
            if layout.code not in known:
                self.refuse(
                    key, "packet.kind does not list its type as control, reset or heartbeat"
                )
            if layout.code in controls:
                self.refuse(key, f"type {spec.type} comes twice")
            controls[layout.code] = layout
        return controls

    def _free_header_bytes(self) -> frozenset[int]:
        """Return the bytes of the message header that nothing in `[message]` takes."""
        spec = self.description.message
        given = {
            "length": spec.length, "sequence": spec.sequence, "block_length": spec.block_length
        }  # fmt: skip
        if spec.type is not None:
            given["type"] = FieldDescription(spec.type.at, spec.type.type)
            given["type.second"] = spec.type.second
        taken: dict[int, str] = {}
        for key, each in given.items():
            if each is None:
                continue
            size = self.fields.type_of(f"message.{key}", each.type)[1]
            begin = each.at or 0
            if not 0 <= begin <= spec.header_size - size:
                self.refuse(f"message.{key}", "lies outside message.header_size")
            for at in range(begin, begin + size):
                if taken.setdefault(at, key) != key:
                    self.refuse(f"message.{key}", f"begins inside {taken[at]}: both have byte {at}")
        free = set(range(spec.header_size)) - set(taken)
        for field in self._message_header().fields:
            free -= set(range(field.at, field.at + field.size))
        return frozenset(free)

    def _layout(
        self, key: str, spec: LayoutDescription, begin: int, free: frozenset[int] = frozenset()
    ) -> Layout:
        if not IDENTIFIER.fullmatch(spec.name):
            self.refuse(f"{key}.name", f"{spec.name!r} must be snake_case")
        fields = self.fields.fields(key, spec.fields, begin, spec.size, free)
        end = max([begin, *(field.at + field.size for field in fields)])
        size = end if spec.size is None else spec.size
        if not begin <= size <= SIZE_MAX:
            self.refuse(f"{key}.size", f"{size} is not within {begin}..{SIZE_MAX}")
        fields = self.fields.priced(key, fields, [])
        symbol = self._symbol(key, spec, fields)
        built = self.fields.parts(key, spec.parts, fields)
        if spec.group is not None:
            built.insert(0, self.fields.last_group(key, spec.group, fields, size, bool(built)))
        return Layout(
            spec.name,
            size,
            fields,
            self.byte_order,
            code=self.code(key, spec.type),
            label=spec.type,
            title=spec.title,
            doc=spec.doc,
            symbol=symbol,
            conflate=spec.conflate,
            conflate_by=self._conflate_by(key, spec, fields, symbol),
            revokes=self._revokes(key, spec),
            times=self._times(fields, built),
            parts=built,
            symbols=self._symbols(key, spec, built),
            fixed_size=self._fixed_size(begin) if begin else None,
            least_size=begin if begin and self.description.message.block_length else None,
        )

    def _fixed_size(self, begin: int) -> Callable[[bytes, int], int] | None:
        """Return what reads the bytes of a message's fixed part, where messages give them."""
        given = self.description.message.block_length
        if given is None:
            return None
        field = self.fields.field("message.block_length", renamed(given, "block_length"))

        def fixed_size(data: bytes, at: int) -> int:
            index = at + field.at
            return begin + field.integer(data[index : index + field.size], self.byte_order)

        return fixed_size

    def _symbol(self, key: str, spec: LayoutDescription, fields: list[Field]) -> str:
        """Return the name of the field with the symbol; "" where there is none such."""
        if not spec.symbol or self._symbol_group(spec) is not None:
            return ""
        for field in fields:
            if spec.symbol in (field.wire, field.name):
                self._check_symbol(f"{key}.symbol", field)
                return field.name
        group = spec.symbol.partition(".")[0]
        if group in [part.group for part in spec.parts[1:]]:
            reason = f"{spec.symbol!r}: only elements of the first part name symbols"
            self.refuse(f"{key}.symbol", reason)
        known = [field.wire for field in fields]
        if spec.parts and spec.parts[0].group:
            known += [f"{spec.parts[0].group}.{field.name}" for field in spec.parts[0].fields]
        reason = f"{spec.symbol!r} names no field{nearest(spec.symbol, known)}"
        self.refuse(f"{key}.symbol", reason)

    def _check_symbol(self, key: str, field: Field) -> None:
        if field.kind in "fx" or field.byte_order or (field.kind == "c" and field.size > 255):
            self.refuse(key, "must be an integer, or text of at most 255 bytes")

    @staticmethod
    def _symbol_group(spec: LayoutDescription) -> PartDescription | None:
        """Return the first part, where `symbol` names one of its fields: `group.Field`."""
        group, _, field = spec.symbol.partition(".")
        if field and spec.parts and spec.parts[0].group == group:
            return spec.parts[0]
        return None

    def _symbols(
        self, key: str, spec: LayoutDescription, parts: list[Part]
    ) -> tuple[Group, Field] | None:
        """Return the group whose elements name the symbols, and their field; or None."""
        if self._symbol_group(spec) is None:
            return None
        part, wire = parts[0], spec.symbol.partition(".")[2]
        if not isinstance(part, Group) or not part.is_plain_group:
            self.refuse(f"{key}.symbol", "needs a group of even elements, counted in front of them")
        for field in part.elements.named:
            if wire in (field.wire, field.name):
                self._check_symbol(f"{key}.symbol", field)
                return part, field
        near = nearest(wire, (field.wire for field in part.elements.named))
        self.refuse(f"{key}.symbol", f"{wire!r} names no field of {part.name}{near}")

    def _check_symbol_name(self, key: str, layout: Layout) -> None:
        """Check that no other field has the name of the symbol in records and columns."""
        for field in layout.named:
            if field.name == SYMBOL and layout.symbol != SYMBOL:
                self.refuse(
                    f"{key}.{field.wire}",
                    "'symbol' is the name of the message's symbol: give another name with `as`, or "
                    "name the field as the message's `symbol`",
                )

    def _conflate_by(
        self, key: str, spec: LayoutDescription, fields: list[Field], symbol: str
    ) -> list[str]:
        """Return the fields that, with type and symbol, identify what a newer message replaces."""
        if spec.conflate_by and spec.conflate != "latest":
            self.refuse(f"{key}.conflate_by", 'is for conflate = "latest" alone')
        names = {name: field for field in fields for name in (field.wire, field.name) if name}
        chosen = [names[name].name for name in spec.conflate_by if name in names]
        for name in spec.conflate_by:
            if name not in names:
                near = nearest(name, (field.wire for field in fields))
                self.refuse(f"{key}.conflate_by", f"{name!r} names no field{near}")
        if len({*chosen, symbol}) <= len(chosen):
            self.refuse(f"{key}.conflate_by", "names a field twice, or the symbol")
        return chosen

    def _revokes(self, key: str, spec: LayoutDescription) -> list[str]:
        """Return the names of the messages that no longer hold when this one comes."""
        known = [each.name for each in self.description.messages]
        for name in spec.revokes:
            if name not in known:
                near = nearest(name, known)
                self.refuse(f"{key}.revokes", f"no message is called {name!r}{near}")
        return spec.revokes

    def _times(self, fields: list[Field], parts: list[Part]) -> list[tuple[str, TimeReader]]:
        """Return the readers of the first time rule of each name whose fields the layout has."""
        named = [field for field in fields if field.kind != "x"]
        for field in named:
            self._types[field.wire].add(type_text(field))
        positions = {field.wire: i for i, field in enumerate(named) if tells_time(field)}
        taken = {*names_of(fields), *(part.name for part in parts)}
        times: dict[str, TimeReader] = {}
        for index, rule in enumerate(self.description.times):
            parts_of_time = _time_parts(rule)
            if not parts_of_time:
                self.refuse(f"times[{index}]", "names no field")
            if fault := fault_of_name(rule.name):
                self.refuse(f"times[{index}].name", fault)
            if rule.name == SYMBOL:
                self.refuse(f"times[{index}].name", "'symbol' is reserved")
            if not all(field in positions for field, _ in parts_of_time):
                continue
            self._fitting.add(index)
            if rule.name not in times:
                self._applied.add(index)
                if rule.name in taken:
                    self.refuse(f"times[{index}].name", f"{rule.name!r} is the name of a field")
                units = [(positions[field], unit) for field, unit in parts_of_time]
                nulls = [
                    (index, null) for index, _ in units if (null := named[index].null) is not None
                ]
                times[rule.name] = time_reader(rule.since, units, nulls)
        return list(times.items())

    def _check_times(self) -> None:
        """Check that every time rule applies to some message."""
        for index, rule in enumerate(self.description.times):
            if index in self._applied:
                continue
            key = f"times[{index}]"
            if index in self._fitting:
                self.refuse(
                    key, f"an earlier rule for {rule.name!r} takes every message that this one fits"
                )
            names = [name for name, _ in _time_parts(rule)]
            self.refuse(key, f"fits no message: {self._why_none(names)}")

    def _why_none(self, names: list[str]) -> str:
        """Return why no message has all of these fields as unsigned integers or i64."""
        header = {field.name for field in self.description.message.fields}
        for name in names:
            if name in self._types:
                types = sorted(self._types[name])
                if not any(each.startswith("u") or each == "i64" for each in types):
                    return (
                        f"{name!r} is {' or '.join(types)}, and must be an unsigned integer or i64"
                    )
            elif name in header:
                return f"none has a field {name!r}: fields of [message] do not count"
            else:
                return f"none has a field {name!r}{nearest(name, self._types)}"
        return f"none has {' and '.join(names)} as unsigned integers or i64"

    def _references(
        self, layouts: dict[int, list[Layout]], table: FeedTable
    ) -> dict[int, Reference]:
        """Return the messages that name symbols, by type."""
        spec = self.description.reference
        if spec is None:
            return {}
        if not spec.name:
            self.refuse("reference.name", "empty: it must name the fields with a symbol's name")
        labels = spec.type if isinstance(spec.type, list) else [spec.type]
        if not labels:
            self.refuse("reference.type", "empty: it must name the messages that name symbols")
        references: dict[int, Reference] = {}
        for label in labels:
            code = self.code("reference.type", label)
            if code not in layouts:
                self.refuse("reference.type", f"message {label} is not described")
            if code in references:
                self.refuse("reference.type", f"message {label} comes twice")
            references[code] = self._reference(spec, layouts[code][0], table)
        for name, wire in spec.scales.items():
            if not any(name in reference.scales for reference in references.values()):
                known = [field.wire for code in references for field in layouts[code][0].named]
                near = nearest(wire, known)
                self.refuse("reference.scale", f"{wire!r} is no field of any of the messages{near}")
        return references

    def _reference(self, spec: ReferenceDescription, layout: Layout, table: FeedTable) -> Reference:
        """Find the fields with symbol, name and scale in one message that names symbols."""
        fields = {**layout.by_name, **{field.wire: field for field in layout.named}}
        for key, name in [
            ("index", spec.index),
            *(("name", name) for name in spec.name),
            *([("scale", spec.scale)] if spec.scale and isinstance(spec.scale, str) else []),
        ]:
            if name not in fields:
                near = nearest(name, (field.wire for field in layout.named))
                self.refuse(
                    f"reference.{key}", f"{name!r} is no field of message {layout.label}{near}"
                )
            if fields[name].kind == "f":
                self.refuse(f"reference.{key}", f"{name!r} is floating point")
        self._check_symbol("reference.index", fields[spec.index])
        return Reference(
            code=layout.code,
            index=fields[spec.index],
            name=tuple(fields[name] for name in spec.name),
            separator=spec.separator,
            scales={key: fields[name] for key, name in spec.scales.items() if name in fields},
            byte_order=self.byte_order,
            least_size=layout.size,
            table=table,
        )


def _same_symbol(one: Layout, other: Layout) -> bool:
    first, second = one.by_name.get(one.symbol), other.by_name.get(other.symbol)
    if first is None or second is None:
        return first is second
    return (first.at, first.size, first.kind) == (second.at, second.size, second.kind)


def _same_conflation(one: Layout, other: Layout) -> bool:
    """Return whether two layouts of one type are conflated by the same fields."""
    fields = [
        [(layout.by_name[name].at, layout.by_name[name].size) for name in layout.conflate_by]
        for layout in (one, other)
    ]
    return one.conflate == other.conflate and fields[0] == fields[1]


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
