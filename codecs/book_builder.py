"""The `[book]` table of a description, checked against its messages and resolved to offsets.

Refused, with file, line and key: a message, group or field that is not there (with the nearest one
that is), a key that a rule has no use for or lacks, and a rule that can never fire, because its
values cannot stand in the field or earlier rules take every message that it fits.
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from feedhandler.codecs.book_rules import (
    BY_POSITION,
    OF_QUOTES,
    POSITIONS_MAX,
    BookRules,
    Codes,
    EventTime,
    FieldLocation,
    GroupStep,
    MessageRules,
    Rule,
    Test,
)
from feedhandler.codecs.definition_builder import DefinitionBuilder
from feedhandler.codecs.description import (
    BookRuleDescription,
    QuoteSideDescription,
    SideDescription,
    StateDescription,
)
from feedhandler.codecs.field_builder import FieldBuilder, tells_time
from feedhandler.codecs.field_lookup import FieldLookup, location_of
from feedhandler.codecs.field_values import nearest
from feedhandler.codecs.layouts import Field, Layout
from feedhandler.codecs.parts import Dimensions, Group, Part
from feedhandler.codecs.times import UNIT_NS

#: Of each kind of rule the keys that it must have, and those that it may have.
_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    does: (frozenset(needed.split()), frozenset(allowed.split()))
    for does, needed, allowed in [
        ("add", "order side price size", "level_size level_orders"),
        ("modify", "order size", "side price"),
        ("replace", "order new_order price size", "side"),
        ("reduce", "order size", "side"),
        ("execute", "order size", "side price remaining"),
        ("delete", "", "order side price"),
        ("clear", "", "all"),
        ("trade", "price size", "side"),
        ("level", "side price size", ""),
        ("level_insert", "position side price size", ""),
        ("level_change", "position side price size", ""),
        ("level_remove", "position side", ""),
        ("delete_through", "position side", ""),
        ("delete_from", "position side", ""),
        ("quote", "bid ask", "of"),
        ("quote_side", "side price size", "of bid ask"),
        ("quote_delete", "", "of"),
        ("status", "state", ""),
        ("directory", "", "depth definition"),
        ("snapshot_begin", "", "all"),
        ("snapshot_end", "", "all"),
    ]
}
_ALL_KEYS = frozenset[str]().union(*(needed | allowed for needed, allowed in _KEYS.values()))
#: Rules that change what others have brought, and those others.
_BROUGHT_BY = {
    "level_change": ("level_insert",),
    "level_remove": ("level_insert",),
    "quote_side": ("quote",),
    "quote_delete": ("quote", "quote_side"),
}
#: Rules that are about books of orders alone, and of levels alone.
_BY_ORDER = {"add", "modify", "replace", "reduce", "execute"}
_BY_LEVEL = {"level"}
#: Rules of which the order, or the quote, alone gives the instrument, where it names no symbol.
_BY_NAME = {"modify", "replace", "reduce", "execute", "delete", "quote_side", "quote_delete"}
#: Keys of a rule whose fields are numbers, which no text is.
_NUMBERS = {"price", "size", "level_size", "level_orders", "remaining", "position"}
#: Decimals of sizes in records, at most.
_SIZE_DECIMALS_MAX = 9
_STATES = ("trading", "halted", "auction", "quoting", "closed")


class BookBuilder:
    """Builds the `BookRules` of one description."""

    def __init__(self, fields: FieldBuilder, layouts: Mapping[int, list[Layout]]) -> None:
        self.fields = fields
        self.big = fields.byte_order == "big"
        self.layouts = {layout.name: layout for ways in layouts.values() for layout in ways}
        self.times = fields.description.times

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise `ConfigError` for a key of the `[book]` table, with the key's line."""
        self.fields.refuse(f"book.{key}", reason)

    def rules(self) -> BookRules | None:
        """Build the rules; None where there is no `[book]`. Raises `ConfigError`."""
        book = self.fields.description.book
        if book is None:
            return None
        if not book.rules:
            self.refuse("rules", "no rule is given")
        times = [rule.name for rule in self.times]
        if book.event_time and book.event_time not in times:
            near = nearest(book.event_time, times)
            self.refuse("event_time", f"no [[times]] rule is called {book.event_time!r}{near}")
        found: dict[str, list[Rule]] = {}
        for number, given in enumerate(book.rules):
            self._check_keys(number, given, book.by)
            for layout in self._messages(number, given):
                rule = self._rule(f"rules[{number}]", number, given, layout)
                self._check_fires(f"rules[{number}]", rule, found.get(layout.name, ()), layout)
                found.setdefault(layout.name, []).append(rule)
        rules = [rule for each in found.values() for rule in each]
        self._check_whole(rules)
        if not 0 <= book.depth <= POSITIONS_MAX:
            self.refuse("depth", f"is no depth of 1 to {POSITIONS_MAX}")
        if book.depth and not {rule.does for rule in rules} & {*BY_POSITION, "level"}:
            self.refuse("depth", "no rule is about levels")
        if not 0 <= book.size_decimals <= _SIZE_DECIMALS_MAX:
            self.refuse("size_decimals", f"is not within 0..{_SIZE_DECIMALS_MAX}")
        if book.order_ids == "per_side":
            self._check_sides(book.by, rules)
        messages = tuple(self._message(name, each) for name, each in found.items())
        return BookRules(
            by=book.by,
            messages=messages,
            names_symbols=all(rule.symbol is not None for rule in rules if rule.order or rule.of),
            conflates=book.conflate != "never",
            ids_per_side=book.order_ids == "per_side",
            size_decimals=book.size_decimals,
            depth=book.depth,
        )

    def _check_whole(self, rules: Iterable[Rule]) -> None:
        """Check that what some rules change others bring into the book."""
        does = {rule.does for rule in rules}
        by_of = any(rule.of is not None for rule in rules)
        for rule in rules:
            brings = _BROUGHT_BY.get(rule.does, ())
            # A side of a quote that names its symbol brings the quote.
            brought = rule.does == "quote_side" and rule.symbol is not None
            if brings and not brought and does.isdisjoint(brings):
                reason = f"{rule.does!r} finds nothing without a rule that does {brings[0]!r}"
                self.refuse("rules", reason)
        for rule in rules:
            key = f"rules[{rule.number}]"
            if rule.does in OF_QUOTES and rule.of is None and by_of:
                self.refuse(key, "other rules find the quote by its of, and it has none")
            if (rule.depth or rule.depth_field) and not does & {*BY_POSITION, "level"}:
                self.refuse(f"{key}.depth", "no rule is about levels")
            if not 0 <= rule.depth <= POSITIONS_MAX:
                self.refuse(f"{key}.depth", f"is no depth of 1 to {POSITIONS_MAX}")

    def _check_sides(self, by: str, rules: Iterable[Rule]) -> None:
        """Check that each rule about an order gives its side and its symbol."""
        if by != "order":
            self.refuse("order_ids", "there are no orders in a book by level")
        for rule in rules:
            if rule.order and rule.side is None:
                self.refuse(f"rules[{rule.number}]", f"{rule.does} needs side: ids are per side")
            if rule.order and rule.symbol is None:
                reason = f"{rule.does} needs a message with a symbol: ids are per side"
                self.refuse(f"rules[{rule.number}]", reason)

    def _messages(self, number: int, given: BookRuleDescription) -> list[Layout]:
        """Return the layouts that a rule names."""
        key = f"rules[{number}].messages"
        if not given.messages:
            self.refuse(key, "names no message")
        for name in given.messages:
            if name not in self.layouts:
                self.refuse(key, f"no message is called {name!r}{nearest(name, self.layouts)}")
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
                self.refuse(f"{key}.{name}", _without_meaning(does))
        if does in (_BY_LEVEL if by == "order" else _BY_ORDER):
            self.refuse(f"{key}.does", f"{does!r} is not for a book by {by}")

    def _rule(
        self, key: str, number: int, given: BookRuleDescription, layout: Layout
    ) -> Rule:  # fmt: skip
        """Resolve a rule for one layout."""
        element = self._group(key, given.group, layout)
        look = FieldLookup(layout, element, self.fields.byte_order, self.refuse)

        def location(name: str) -> FieldLocation | None:
            wire = getattr(given, name)
            find = look.number if name in _NUMBERS else look.location
            return find(f"{key}.{name}", wire) if wire else None

        orders = [given.order] if isinstance(given.order, str) else given.order
        order = tuple(look.location(f"{key}.order", name) for name in orders if name)
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
        if symbol is None and given.does in OF_QUOTES and not given.of:
            self.refuse(key, f"{given.does} needs of: {layout.name!r} names no symbol")
        return Rule(
            number=number,
            does=given.does,
            group=given.group,
            when=tuple(look.test(f"{key}.when", each.field, each.among) for each in given.when),
            symbol=symbol,
            order=order,
            new_order=location("new_order"),
            side=self._side(f"{key}.side", look, given.side),
            price=location("price"),
            size=location("size"),
            level_size=location("level_size"),
            level_orders=location("level_orders"),
            remaining=location("remaining"),
            bid=_quote(f"{key}.bid", look, given.bid) if given.does == "quote" else None,
            ask=_quote(f"{key}.ask", look, given.ask) if given.does == "quote" else None,
            bid_when=self._side_tests(f"{key}.bid", look, given.does, given.bid),
            ask_when=self._side_tests(f"{key}.ask", look, given.does, given.ask),
            of=location("of"),
            position=location("position"),
            depth=given.depth if isinstance(given.depth, int) else 0,
            depth_field=look.number(f"{key}.depth", given.depth)
            if isinstance(given.depth, str)
            else None,
            terms=DefinitionBuilder(key, look).terms(given),
            state=self._state(f"{key}.state", look, given.state),
            all=given.all,
            snapshot=given.snapshot,
            also=given.also,
        )

    def _side_tests(
        self, key: str, look: FieldLookup, does: str, given: QuoteSideDescription | None
    ) -> tuple[Test, ...]:
        """Return the conditions under which a side of a quote is in the book."""
        if given is None:
            return ()
        for name in ("price", "size"):
            if bool(getattr(given, name)) != (does == "quote"):
                reason = "is missing" if does == "quote" else _without_meaning(does)
                self.refuse(f"{key}.{name}", reason)
        return tuple(look.test(f"{key}.when", each.field, each.among) for each in given.when)

    def _group(self, key: str, name: str, layout: Layout) -> Group | None:
        """Return the group that a rule names."""
        if not name:
            return None
        groups = {part.name: part for part in layout.parts if isinstance(part, Group)}
        if name not in groups:
            self.refuse(
                f"{key}.group", f"{layout.name!r} has no group {name!r}{nearest(name, groups)}"
            )
        for part in layout.parts[: layout.parts.index(groups[name]) + 1]:
            if not _is_even(part):
                self.refuse(
                    f"{key}.group", f"{part.name!r} is no group of even elements without parts"
                )
        return groups[name]

    def _side(
        self, key: str, look: FieldLookup, given: SideDescription | str | None
    ) -> Codes | str | None:
        if given is None or isinstance(given, str):
            return given
        return self._codes(key, look, given.field, {"buy": given.buy, "sell": given.sell})

    def _state(self, key: str, look: FieldLookup, given: StateDescription | None) -> Codes | None:
        if given is None:
            return None
        return self._codes(key, look, given.field, {each: getattr(given, each) for each in _STATES})

    def _codes(
        self, key: str, look: FieldLookup, field: str, meanings: Mapping[str, list[int | str]]
    ) -> Codes:
        """Resolve a field whose values have meanings."""
        location = look.location(key, field)
        codes: dict[int, str] = {}
        for meaning, labels in meanings.items():
            for label in labels:
                for value in look.values(key, location, label):
                    if codes.setdefault(value, meaning) != meaning:
                        self.refuse(key, f"{label!r} means {codes[value]} and {meaning}")
        if not codes:
            self.refuse(key, "names no value")
        return Codes(location, codes)

    def _check_fires(self, key: str, rule: Rule, earlier: Iterable[Rule], layout: Layout) -> None:
        """Check that an earlier rule does not take all messages that this one fits."""
        for other in earlier:
            if (
                other.group == rule.group
                and not other.also
                and all(
                    any(
                        own.location == test.location and set(own.values) <= set(test.values)
                        for own in rule.when
                    )
                    for test in other.when
                )
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
            length = None if text is None else self._location(text)
            return GroupStep(
                given.size, self._location(given.count), False, length, part.elements.size
            )
        if part.count and part.count not in layout.by_name:
            self.refuse("rules", f"{part.count!r}, the count of {part.name}, is bits of a field")
        count = self._location(layout.by_name[part.count]) if part.count else None
        return GroupStep(0, count, count is not None, None, part.elements.size)

    def _location(self, field: Field) -> FieldLocation:
        return location_of(field, self.fields.byte_order)

    def _time(self, layout: Layout) -> EventTime | None:
        """Return how a message gives the event's time: the first rule whose fields it has."""
        book = self.fields.description.book
        fields = {field.wire: field for field in layout.named if tells_time(field)}
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
                    tuple((self._location(fields[name]), unit) for name, unit in named),
                )
        return None


def _quote(
    key: str, look: FieldLookup, given: QuoteSideDescription | None
) -> tuple[FieldLocation, FieldLocation] | None:
    """Return price and size of one side of a quote."""
    if given is None or not (given.price and given.size):
        return None
    return look.number(f"{key}.price", given.price), look.number(f"{key}.size", given.size)


def _is_even(part: Part) -> bool:
    """Return whether elements of one size can be walked without looking into them."""
    return (
        isinstance(part, Group)
        and part.when is None
        and not part.elements.parts
        and part.length is None
    )


def _without_meaning(does: str) -> str:
    return f"means nothing where a rule does {does!r}"


def _or_all(does: str) -> str:
    return ": say all = true where all books are meant" if does == "clear" else ""
