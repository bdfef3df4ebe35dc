"""The rules of a description's `[book]`, resolved to offsets: which bytes of a message hold what.

`book_builder` makes a `BookRules` of a description that it has checked; `Feed.book` holds it. The
normaliser (`market`) runs by it and asks no name of a field again.
"""

from typing import Literal

import msgspec

#: How a price's decimal places are stated: fixed, by a field with their number, by a field with the
#: power of ten, or by the reference message of the symbol.


#: What messages do to books: change those of the symbols that they are about; concern all books of
#: their channel; or nothing.
Effect = Literal["changes", "all", "none"]
#: Rules that change a book.
CHANGES = frozenset(
    (
        "add", "modify", "replace", "reduce", "execute", "delete", "clear", "level",
        "level_insert", "level_change", "level_remove", "delete_through", "delete_from",
        "quote", "quote_side", "quote_delete",
    )
)  # fmt: skip
#: Rules about price levels by their position, and those about quotes.
BY_POSITION = frozenset(("level_insert", "level_change", "level_remove"))
OF_QUOTES = frozenset(("quote", "quote_side", "quote_delete"))
#: Levels by position of one side of a book, at most.
POSITIONS_MAX = 255
#: By the bytes of a floating point size, the share of it by which it may be too small: that it is
#: cut to whole units takes none off because of the last bit of the number.
REAL_SLACK = {4: 1e-7, 8: 1e-12}
#: Where each side has ids of its own, the bit that is inverted in a sell order's id.
SELL_ID_BIT = 1 << 63


class FieldLocation(msgspec.Struct, frozen=True):
    """Position of a value: `at` counts from the message's first byte, or from the element's."""

    at: int
    size: int
    big: bool
    signed: bool = False
    text: bool = False
    floating: bool = False
    in_element: bool = False
    shift: int = 0
    width: int = 0
    """number of bits from `shift` on; 0: the whole integer"""
    null: int | None = None
    """the bytes of the null value, as an unsigned integer"""
    decimals: int = 0
    """of a fixed scale"""
    scale_location: "FieldLocation | None" = None
    """the field with the scale, if there is one"""
    scale_codes: tuple[int, ...] = ()
    """the decimal places by the byte there: `ScaleCodes.decimals`"""
    scale_name: str = ""
    """of reference data: what `ReferenceData.all_scales` has it under"""


class Test(msgspec.Struct, frozen=True):
    """A condition: the value there is one of `values` (unsigned, as the bytes have them)."""

    location: FieldLocation
    values: tuple[int, ...]


class Codes(msgspec.Struct, frozen=True):
    """A field of codes: what each value of it means (`buy`, `sell`; or a trading status)."""

    location: FieldLocation
    meanings: dict[int, str]


#: How the fields of a term become values of a definition: a number of 1e-9, a whole number, the
#: same of a number with decimals, text, the text that a code means, one that is the same for all,
#: ns since 1970 of a number of units, and dates of numbers or of their parts.
TermKind = Literal[
    "price", "integer", "whole", "text", "code", "constant", "moment", "yyyymmdd", "yymmdd",
    "yyyymm", "parts",
]  # fmt: skip


class Term(msgspec.Struct, frozen=True):
    """One key of a rule's `definition`: the fields that give it, and how they are read."""

    name: str
    """of the field of DBN's definition; `maturity`: of those of which it is made"""
    kind: TermKind
    locations: tuple[FieldLocation | None, ...] = ()
    """one, or those of year, month, day and week"""
    none: tuple[Test, ...] = ()
    """where it holds, the value gives nothing"""
    codes: dict[int, str] = {}
    text: str = ""
    """of a constant"""
    unit_ns: int = 0
    """of a moment"""


class GroupStep(msgspec.Struct, frozen=True):
    """Walk of one group: bytes in front of it, its count, and the size of an element.

    Without `count` the elements go on to the message's end. `count_in_message`: it is a field of
    the message, not of the dimensions. `length` gives an element's size, else it is `size`.
    """

    head: int
    count: FieldLocation | None
    count_in_message: bool
    length: FieldLocation | None
    size: int


class Rule(msgspec.Struct, frozen=True):
    """One rule, for one layout: what it does, under which conditions, with which fields."""

    number: int
    """its index in the description"""
    does: str
    group: str = ""
    when: tuple[Test, ...] = ()
    symbol: FieldLocation | None = None
    order: tuple[FieldLocation, ...] = ()
    new_order: FieldLocation | None = None
    side: Codes | str | None = None
    """codes, or `buy` or `sell` for all"""
    price: FieldLocation | None = None
    size: FieldLocation | None = None
    level_size: FieldLocation | None = None
    """of a level: what its orders have together, up to and with this one"""
    level_orders: FieldLocation | None = None
    """how many they are"""
    remaining: FieldLocation | None = None
    bid: tuple[FieldLocation, FieldLocation] | None = None
    ask: tuple[FieldLocation, FieldLocation] | None = None
    bid_when: tuple[Test, ...] = ()
    """of a quote: the conditions under which the side is in the book"""
    ask_when: tuple[Test, ...] = ()
    of: FieldLocation | None = None
    position: FieldLocation | None = None
    depth: int = 0
    """levels that each side of the instrument's book has; 0: not given"""
    depth_field: FieldLocation | None = None
    """the field that gives them"""
    terms: tuple[Term, ...] = ()
    """of a directory: what it gives of its instrument"""
    state: Codes | None = None
    all: bool = False
    snapshot: bool = False
    also: bool = False
    """the rules behind this one may apply, too"""


class EventTime(msgspec.Struct, frozen=True):
    """Time of a message: the sum of the parts, of so many ns a unit, since `since`."""

    since: str
    parts: tuple[tuple[FieldLocation, int], ...]


class MessageRules(msgspec.Struct, frozen=True):
    """The rules of one layout, in order; those of a group behind the path to the group."""

    code: int
    name: str
    size: int
    """bytes that the message must have at least"""
    fixed_size: int
    """bytes of header and fixed fields, where the message does not give them"""
    rules: tuple[Rule, ...]
    groups: dict[str, tuple[GroupStep, ...]]
    time: EventTime | None


class BookRules(msgspec.Struct, frozen=True):
    """All that `[book]` says."""

    by: Literal["order", "level"]
    messages: tuple[MessageRules, ...]
    #: Whether every message about an order or a quote names its symbol, so that ids need not be
    #: unique.
    names_symbols: bool
    #: Whether a symbol's whole book may replace its changes.
    conflates: bool
    #: Whether an order is known by its id and its side.
    ids_per_side: bool = False
    #: What sizes in records count: units of 10^-size_decimals.
    size_decimals: int = 0
    #: Levels of each side of the instruments that no message gives the depth of; 0: not bounded.
    depth: int = 0

    @property
    def keeps_quotes(self) -> bool:
        """Return whether sides of quotes are kept that are not in the book and may come into it."""
        return any(
            rule.does == "quote_side" or rule.bid_when or rule.ask_when
            for each in self.messages
            for rule in each.rules
        )

    def does(self, action: str) -> bool:
        """Return whether some rule does this: `add`, `status`, `quote` and so on."""
        return any(rule.does == action for message in self.messages for rule in message.rules)

    def rules_of(self, code: int) -> list[Rule]:
        """Return the rules of messages of a type, of whatever size."""
        return [rule for message in self.messages if message.code == code for rule in message.rules]

    def effect_of(self, code: int) -> Effect:
        """Return what messages of a type do to books."""
        rules = self.rules_of(code)
        if any(rule.all or rule.does in ("snapshot_begin", "snapshot_end") for rule in rules):
            return "all"
        return "changes" if any(rule.does in CHANGES for rule in rules) else "none"
