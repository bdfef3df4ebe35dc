"""The `[book]` table of a description, checked against its messages and resolved to offsets.

Refused, with file, line and key: a message, group or field that is not there (with the nearest one
that is), a key that a rule has no use for or lacks, and a rule that can never fire, because its
values cannot stand in the field or earlier rules take every message that it fits.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

import msgspec

from feedhandler.codecs.book_rules import (
    BookRules,
    Codes,
    EventTime,
    GroupStep,
    MessageRules,
    Place,
    Rule,
    Test,
)
from feedhandler.codecs.description import BookRuleDescription, SideDescription, StateDescription
from feedhandler.codecs.field_builder import FieldBuilder, snake_case
from feedhandler.codecs.layouts import Block, Field, Layout, in_reference
from feedhandler.codecs.parts import Dimensions, Group, Part
from feedhandler.codecs.times import UNIT_NS

#: Of each kind of rule the keys that it must have, and those that it may have.
_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    does: (frozenset(needed.split()), frozenset(allowed.split()))
    for does, needed, allowed in [
        ("add", "order side price size", ""),
        ("modify", "order size", "side price"),
        ("replace", "order new_order price size", "side"),
        ("reduce", "order size", ""),
        ("execute", "order size", "side price remaining"),
        ("delete", "", "order side price"),
        ("clear", "", "all"),
        ("trade", "price size", "side"),
        ("level", "side price size", ""),
        ("quote", "bid ask", "of"),
        ("status", "state", ""),
        ("directory", "", ""),
        ("snapshot_begin", "", "all"),
        ("snapshot_end", "", ""),
    ]
}
_ALL_KEYS = frozenset[str]().union(*(needed | allowed for needed, allowed in _KEYS.values()))
#: Rules that are about books of orders alone, and of levels alone.
_BY_ORDER = {"add", "modify", "replace", "reduce", "execute"}
_BY_LEVEL = {"level"}
#: Rules of which the order alone tells the instrument, where orders name no symbol.
_BY_NAME = {"modify", "replace", "reduce", "execute", "delete"}
_STATES = ("trading", "halted", "auction", "quoting", "closed")


class BookBuilder:
    """Builds the `BookRules` of one description."""

    def __init__(self, fields: FieldBuilder, layouts: Mapping[int, list[Layout]]) -> None:
        self.fields = fields
        self.big = fields.byte_order == "big"
        self.layouts = {layout.name: layout for ways in layouts.values() for layout in ways}
        self.times = fields.description.times

    def refuse(self, key: str, reason: str) -> NoReturn:
        self.fields.refuse(f"book.{key}", reason)

    def rules(self) -> BookRules | None:
        """Build the rules; None where there is no `[book]`. Raises `ConfigError`."""
        book = self.fields.description.book
        if book is None:
            return None
        if not book.rules:
            self.refuse("rules", "no rule is given")
        if book.event_time and book.event_time not in {rule.name for rule in self.times}:
            self.refuse("event_time", f"no [[times]] rule is called {book.event_time!r}")
        found: dict[str, list[Rule]] = {}
        for number, given in enumerate(book.rules):
            self._check_keys(number, given, book.by)
            for layout in self._messages(number, given):
                rule = self._rule(f"rules[{number}]", number, given, layout)
                self._check_fires(f"rules[{number}]", rule, found.get(layout.name, ()), layout)
                found.setdefault(layout.name, []).append(rule)
        messages = tuple(self._message(name, each) for name, each in found.items())
        return BookRules(
            by=book.by,
            messages=messages,
            names_symbols=all(
                rule.symbol is not None for each in found.values() for rule in each if rule.order
            ),
            conflates=book.conflate != "never",
        )

    def _messages(self, number: int, given: BookRuleDescription) -> list[Layout]:
        """Return the layouts that a rule names."""
        key = f"rules[{number}].messages"
        if not given.messages:
            self.refuse(key, "names no message")
        for name in given.messages:
            if name not in self.layouts:
                self.refuse(key, f"no message is called {name!r}{_nearest(name, self.layouts)}")
        return [self.layouts[name] for name in given.messages]

    def _check_keys(self, number: int, given: BookRuleDescription, by: str) -> None:
        """Check that a rule has the keys that it needs, and none that mean nothing in it."""
        key, does = f"rules[{number}]", given.does
        needed, allowed = _KEYS[does]
        if does == "delete":
            needed = frozenset(("order",) if by == "order" else ("side", "price"))
        for name in sorted(needed):
            if not getattr(given, name):
                self.refuse(key, f"{does} needs {name}")
        for name in sorted(_ALL_KEYS - needed - allowed):
            if getattr(given, name):
                self.refuse(f"{key}.{name}", f"means nothing where a rule does {does!r}")
        if does in (_BY_LEVEL if by == "order" else _BY_ORDER):
            self.refuse(f"{key}.does", f"{does!r} is not for a book by {by}")

    def _rule(
        self, key: str, number: int, given: BookRuleDescription, layout: Layout
    ) -> Rule:  # fmt: skip
        """Resolve a rule for one layout."""
        element = self._group(key, given.group, layout)
        look = _Lookup(self, layout, element)

        def place(name: str) -> Place | None:
            wire = getattr(given, name)
            return look.place(f"{key}.{name}", wire) if wire else None

        orders = [given.order] if isinstance(given.order, str) else given.order
        order = tuple(look.place(f"{key}.order", name) for name in orders if name)
        if sum(each.size for each in order) > 8:
            self.refuse(f"{key}.order", "has more than 8 bytes")
        if not given.group and layout.symbols is not None and not given.all:
            self.refuse(
                f"{key}.group", f"the elements of {layout.symbols[0].name!r} name the symbols"
            )
        symbol = look.symbol()
        named = given.does.startswith("snapshot") or given.all
        if symbol is None and not named and given.does not in (*_BY_NAME, "status", "directory"):
            self.refuse(key, f"{layout.name!r} names no symbol{_or_all(given.does)}")
        return Rule(
            number=number,
            does=given.does,
            group=given.group,
            when=tuple(
                self._test(f"{key}.when", look, each.field, each.among) for each in given.when
            ),
            symbol=symbol,
            order=order,
            new_order=place("new_order"),
            side=self._side(f"{key}.side", look, given.side),
            price=place("price"),
            size=place("size"),
            remaining=place("remaining"),
            bid=look.quote(f"{key}.bid", given.bid),
            ask=look.quote(f"{key}.ask", given.ask),
            of=place("of"),
            state=self._state(f"{key}.state", look, given.state),
            all=given.all,
            snapshot=given.snapshot,
        )

    def _group(self, key: str, name: str, layout: Layout) -> Group | None:
        """Return the group that a rule names."""
        if not name:
            return None
        groups = {part.name: part for part in layout.parts if isinstance(part, Group)}
        if name not in groups:
            self.refuse(
                f"{key}.group", f"{layout.name!r} has no group {name!r}{_nearest(name, groups)}"
            )
        for part in layout.parts[: layout.parts.index(groups[name]) + 1]:
            if not _is_even(part):
                self.refuse(
                    f"{key}.group", f"{part.name!r} is no group of even elements without parts"
                )
        return groups[name]

    def _side(
        self, key: str, look: "_Lookup", given: SideDescription | str | None
    ) -> Codes | str | None:
        if given is None or isinstance(given, str):
            return given
        return self._codes(key, look, given.field, {"buy": given.buy, "sell": given.sell})

    def _state(self, key: str, look: "_Lookup", given: StateDescription | None) -> Codes | None:
        if given is None:
            return None
        return self._codes(key, look, given.field, {each: getattr(given, each) for each in _STATES})

    def _codes(
        self, key: str, look: "_Lookup", field: str, meanings: Mapping[str, list[int | str]]
    ) -> Codes:
        """Resolve a field whose values have meanings."""
        place = look.place(key, field)
        codes: dict[int, str] = {}
        for meaning, labels in meanings.items():
            for label in labels:
                for value in self._values(key, place, label):
                    if codes.setdefault(value, meaning) != meaning:
                        self.refuse(key, f"{label!r} means {codes[value]} and {meaning}")
        if not codes:
            self.refuse(key, "names no value")
        return Codes(place, codes)

    def _test(self, key: str, look: "_Lookup", field: str, among: Iterable[int | str]) -> Test:
        place = look.place(key, field)
        values = [value for label in among for value in self._values(key, place, label)]
        if not values:
            self.refuse(key, "names no value: the rule could never fire")
        return Test(place, tuple(values))

    def _values(self, key: str, place: Place, label: int | str) -> list[int]:
        """Return a label as the unsigned integers that mean it: text with either padding."""
        if place.text:
            if not isinstance(label, str) or len(label) > place.size or not label.isascii():
                self.refuse(key, f"{label!r} is no text of at most {place.size} characters")
            data = label.encode()
            return [int.from_bytes(data.ljust(place.size, pad), "big") for pad in (b"\0", b" ")]
        width = place.width or 8 * place.size
        least, most = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if place.signed else (
            0, (1 << width) - 1
        )  # fmt: skip
        if not isinstance(label, int) or not least <= label <= most:
            self.refuse(key, f"{label!r} is no value of the field: {least} to {most}")
        return [label & ((1 << width) - 1)]

    def _check_fires(self, key: str, rule: Rule, earlier: Iterable[Rule], layout: Layout) -> None:
        """Check that an earlier rule does not take all messages that this one fits."""
        for other in earlier:
            if other.group == rule.group and all(
                any(
                    own.place == test.place and set(own.values) <= set(test.values)
                    for own in rule.when
                )
                for test in other.when
            ):
                self.refuse(
                    key, f"never fires for {layout.name!r}: rule {other.number} takes all of it"
                )

    def _message(self, name: str, rules: list[Rule]) -> MessageRules:
        layout = self.layouts[name]
        return MessageRules(
            code=layout.code,
            name=name,
            size=layout.least_size,
            fixed_size=layout.size,
            rules=tuple(rules),
            groups={rule.group: self._path(layout, rule.group) for rule in rules if rule.group},
            time=self._time(layout),
        )

    def _path(self, layout: Layout, group: str) -> tuple[GroupStep, ...]:
        """Return how the groups up to the one of this name are walked."""
        steps: list[GroupStep] = []
        for part in layout.parts:
            assert isinstance(part, Group)
            steps.append(self._step(layout, part))
            if part.name == group:
                break
        return tuple(steps)

    def _step(self, layout: Layout, part: Group) -> GroupStep:
        given: Dimensions | None = part.dimensions
        if given is not None:
            text = given.block_length
            length = None if text is None else self.place_of(text)
            return GroupStep(
                given.size, self.place_of(given.count), False, length, part.elements.size
            )
        count = self.place_of(layout.by_name[part.count]) if part.count else None
        return GroupStep(0, count, count is not None, None, part.elements.size)

    def place_of(self, field: Field, *, in_element: bool = False) -> Place:
        """Return where a field stands, without its scale."""
        width = 8 * field.size
        return Place(
            at=field.at,
            size=field.size,
            big=(field.byte_order or self.fields.byte_order) == "big" or field.kind == "c",
            signed=field.kind == "i",
            text=field.kind == "c",
            in_element=in_element,
            null=None if field.null is None else field.null & ((1 << width) - 1),
        )

    def _time(self, layout: Layout) -> EventTime | None:
        """Return how a message tells the event's time: the first rule whose fields it has."""
        book = self.fields.description.book
        fields = {field.wire: field for field in layout.named if field.kind == "u"}
        for rule in self.times:
            parts = [
                (rule.seconds, UNIT_NS["s"]),
                (rule.milliseconds, UNIT_NS["ms"]),
                (rule.microseconds, UNIT_NS["us"]),
                (rule.nanoseconds, UNIT_NS["ns"]),
            ]
            named = [(name, unit) for name, unit in parts if name]
            if book and rule.name == book.event_time and all(name in fields for name, _ in named):
                return EventTime(
                    rule.since,
                    tuple((self.place_of(fields[name]), unit) for name, unit in named),
                )
        return None


class _Lookup:
    """Finds fields by name: in the element of a rule's group first, then in its message."""

    def __init__(self, builder: BookBuilder, layout: Layout, group: Group | None) -> None:
        self.builder = builder
        self.layout = layout
        self.group = group
        self.blocks: list[tuple[Block, bool]] = [(layout, False)]
        if group is not None:
            self.blocks.insert(0, (group.elements, True))

    def place(self, key: str, name: str) -> Place:
        """Return where a field or named bits stand. Raises `ConfigError` where there are none."""
        found = self._find(name)
        if found is None:
            names = [each for block, _ in self.blocks for each in _names(block)]
            where = f"{self.layout.name!r} has no field {name!r}"
            self.builder.refuse(key, where + _nearest(name, names))
        place, field, in_element = found
        if place.size > 8:
            self.builder.refuse(key, f"{name!r} has more than 8 bytes")
        if field.kind == "f":
            self.builder.refuse(key, f"{name!r} is floating point, and books are of integers")
        return self._scaled(place, field, in_element)

    def _find(self, name: str) -> tuple[Place, Field, bool] | None:
        for block, in_element in self.blocks:
            for field in block.named:
                place = self.builder.place_of(field, in_element=in_element)
                if name in (field.wire, field.name):
                    return place, field, in_element
                for bits in (name, snake_case(name)):
                    if bits in field.bits:
                        shift, width = field.bits[bits]
                        return _with_bits(place, shift, width), field, in_element
        return None

    def _scaled(self, place: Place, field: Field, in_element: bool) -> Place:
        """Return the place with the scale of its field's prices."""
        name = field.exponent or field.price
        if name is None:
            return place
        if isinstance(name, int):
            return _with_scale(place, "fixed", name, None)
        if in_reference(name):
            return msgspec.structs.replace(place, scale="reference", scale_name=name)
        found = self._find(name)
        assert found is not None, "the loader has checked the scale's field"
        return _with_scale(place, "exponent" if field.exponent else "code", 0, found[0])

    def quote(self, key: str, given: object) -> tuple[Place, Place] | None:
        """Return price and size of one side of a quote."""
        if given is None:
            return None
        price, size = getattr(given, "price", ""), getattr(given, "size", "")
        return self.place(f"{key}.price", price), self.place(f"{key}.size", size)

    def symbol(self) -> Place | None:
        """Return where the symbol stands: in the element, or else in the message."""
        layout, builder = self.layout, self.builder
        if layout.symbols is not None:
            group, field = layout.symbols
            if group is self.group:
                return builder.place_of(field, in_element=True)
        if layout.symbol:
            return builder.place_of(layout.by_name[layout.symbol])
        return None


def _with_bits(place: Place, shift: int, width: int) -> Place:
    return Place(
        place.at, place.size, place.big, in_element=place.in_element, shift=shift, width=width
    )


def _with_scale(place: Place, scale: str, decimals: int, other: Place | None) -> Place:
    return Place(
        place.at, place.size, place.big, place.signed, place.text, place.in_element,
        null=place.null, scale=scale, decimals=decimals, scale_place=other,  # type: ignore[arg-type]
    )  # fmt: skip


def _is_even(part: Part) -> bool:
    """Return whether elements of one size can be walked without looking into them."""
    return (
        isinstance(part, Group)
        and part.when is None
        and not part.elements.parts
        and part.length is None
    )


def _names(block: Block) -> Iterator[str]:
    for field in block.named:
        yield field.wire
        yield from field.bits


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _or_all(does: str) -> str:
    return ": say all = true where all books are meant" if does == "clear" else ""
