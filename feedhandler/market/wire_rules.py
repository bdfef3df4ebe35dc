# cython: language_level=3
"""The `[book]` rules of a feed's messages, compiled: of each value where it is and how it is read.

What it is for: `normaliser` runs these rules on each message, and reads no names and no tables
then. A rule of the feed's description (`codecs.book_rules`) becomes a `WireRule`, a value's
location a `WireField`; words become small numbers, their places in `DOES`, `STATES` and `SINCE`.
`WireMessage` has all rules of one layout.
"""

import cython
import numpy

from feedhandler.codecs.book_rules import (
    REAL_SLACK,
    Codes,
    FieldLocation,
    GroupStep,
    MessageRules,
    Rule,
    Term,
    Test,
)

#: What a rule does; a `WireRule` has the place here.
DOES = (
    "add", "modify", "replace", "reduce", "execute", "delete", "clear", "trade", "level", "quote",
    "status", "directory", "snapshot_begin", "snapshot_end", "quote_side", "quote_delete",
    "level_insert", "level_change", "level_remove", "delete_through", "delete_from",
)  # fmt: skip
#: Trading statuses, as `Normaliser.statuses` has them; 0: none.
STATES = ("", "trading", "halted", "auction", "quoting", "closed")
#: What times are counted from; 0: a message has none.
SINCE = ("", "epoch", "midnight", "clock", "send_second")


@cython.cclass
class WireField:
    """Reading of one value, compiled from a `FieldLocation`."""

    at: cython.int
    size: cython.int
    shift: cython.int
    decimals: cython.int
    slack: cython.double
    big: cython.bint
    is_signed: cython.bint
    is_text: cython.bint
    is_real: cython.bint
    in_element: cython.bint
    has_null: cython.bint
    scale_codes: cython.schar[::1]
    mask: cython.ulonglong
    null: cython.ulonglong
    scale_field: "WireField"
    scale_name: str

    def __init__(self, location: FieldLocation) -> None:
        self.at, self.size, self.shift = location.at, location.size, location.shift
        self.big, self.is_signed, self.is_text = location.big, location.signed, location.text
        self.is_real = location.floating
        self.slack = REAL_SLACK[location.size] if location.floating else 0.0
        self.in_element = location.in_element
        self.mask = (1 << (location.width or min(8 * location.size, 64))) - 1
        self.has_null = location.null is not None
        self.null = location.null or 0
        self.decimals = location.decimals
        self.scale_field = _field(location.scale_location)
        self.scale_codes = memoryview(numpy.array(location.scale_codes, numpy.int8))
        self.scale_name = location.scale_name


@cython.cclass
class WireTest:
    """A condition of a rule."""

    field: WireField
    values: cython.ulonglong[::1]

    def __init__(self, test: Test) -> None:
        self.field = WireField(test.location)
        self.values = memoryview(numpy.array(test.values, numpy.uint64))


@cython.cclass
class WireCodes:
    """Meanings of a field's values, as small numbers: a constant, a table of bytes, or a dict."""

    field: WireField
    constant: cython.uchar
    small: cython.uchar[::1]
    meanings: dict

    def __init__(self, codes: Codes | str, meanings: tuple[str, ...]) -> None:
        self.field = None
        self.constant = 0
        self.small = memoryview(bytearray(256))
        self.meanings = {}
        if isinstance(codes, str):
            self.constant = meanings.index(codes)
            return
        self.field = WireField(codes.location)
        for value, meaning in codes.meanings.items():
            if value < 256:
                self.small[value] = meanings.index(meaning)
            else:
                self.meanings[value] = meanings.index(meaning)


@cython.cclass
class WireStep:
    """Walk of a group, compiled from a `GroupStep`."""

    head: cython.int
    size: cython.int
    count_in_message: cython.bint
    count: WireField
    length: WireField

    def __init__(self, step: GroupStep) -> None:
        self.head, self.size = step.head, step.size
        self.count_in_message = step.count_in_message
        self.count, self.length = _field(step.count), _field(step.length)


@cython.cclass
class WireTerm:
    """A key of a directory rule's definition, its fields as `WireField`."""

    term: object
    fields: list
    none: list
    is_code: cython.bint
    is_price: cython.bint

    def __init__(self, term: Term) -> None:
        self.term = term
        self.fields = [_field(location) for location in term.locations]
        self.none = [WireTest(test) for test in term.none]
        self.is_code = term.kind == "code"
        self.is_price = term.kind in ("price", "whole")


@cython.cclass
class WireRule:
    """A rule, its fields as `WireField`."""

    does: cython.int
    depth: cython.int
    whole: cython.bint
    snapshot: cython.bint
    also: cython.bint
    tests: list
    orders: list
    terms: list
    symbol: WireField
    new_order: WireField
    price: WireField
    size: WireField
    remaining: WireField
    of: WireField
    position: WireField
    depth_field: WireField
    bid_tests: list
    ask_tests: list
    bid_price: WireField
    bid_size: WireField
    ask_price: WireField
    ask_size: WireField
    side: WireCodes
    state: WireCodes

    def __init__(self, rule: Rule) -> None:
        self.does = DOES.index(rule.does)
        self.whole, self.snapshot, self.also = rule.all, rule.snapshot, rule.also
        self.tests = [WireTest(test) for test in rule.when]
        self.symbol = _field(rule.symbol)
        self.orders = [WireField(location) for location in rule.order]
        self.new_order = _field(rule.new_order)
        self.price, self.size = _field(rule.price), _field(rule.size)
        self.remaining, self.of = _field(rule.remaining), _field(rule.of)
        self.bid_price, self.bid_size = map(_field, rule.bid or (None, None))
        self.ask_price, self.ask_size = map(_field, rule.ask or (None, None))
        self.bid_tests = [WireTest(test) for test in rule.bid_when]
        self.ask_tests = [WireTest(test) for test in rule.ask_when]
        self.position, self.depth = _field(rule.position), rule.depth
        self.depth_field = _field(rule.depth_field)
        self.terms = [WireTerm(term) for term in rule.terms]
        self.side = WireCodes(rule.side, ("", "buy", "sell")) if rule.side else None
        self.state = WireCodes(rule.state, STATES) if rule.state else None


@cython.cclass
class WireMessage:
    """The rules of one layout. `groups` are pairs of rules and the steps to their group."""

    size: cython.Py_ssize_t
    fixed_size: cython.Py_ssize_t
    rules: list
    groups: list
    since: cython.int
    time_fields: list
    time_units: cython.ulonglong[::1]

    def __init__(self, given: MessageRules) -> None:
        self.size, self.fixed_size = given.size, given.fixed_size
        self.rules = [WireRule(rule) for rule in given.rules if not rule.group]
        self.groups = [
            (
                [WireRule(rule) for rule in given.rules if rule.group == name],
                [WireStep(step) for step in steps],
            )
            for name, steps in given.groups.items()
        ]
        parts = given.time.parts if given.time is not None else ()
        self.since = SINCE.index(given.time.since) if given.time is not None else 0
        self.time_fields = [WireField(location) for location, _ in parts]
        self.time_units = memoryview(numpy.array([unit for _, unit in parts], numpy.uint64))


def _field(location: FieldLocation | None) -> WireField | None:
    return None if location is None else WireField(location)
