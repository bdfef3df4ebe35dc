"""The state of an order feed, as messages: the content of GLIMPSE's snapshots and of spins.

An `OrderState` takes every message of a session and keeps, as messages, what a receiver that joins
now must know: the latest system event, each symbol's directory entry and trading state, and the
message that added each open order, with what is left of it, in the order of their priority. From
these messages a fresh book reaches the same state. Other messages (trades) leave none. Where times
count from a clock message, the one in force stands in front of what it was in force for, and the
latest one last.

What messages do is the feed's `[book]` table. Memory is bounded by the session's: one message a
symbol and kind, one an open order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from feedhandler.codecs import Feed
from feedhandler.codecs.book_rules import FieldLocation, MessageRules, Rule
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.layouts import Field

#: Kept though no rule names it, the latest of all, in front of what is known of symbols.
EVENT = "system_event"
#: What is kept, the latest of each symbol, in the order in which it is sent.
DIRECTORY = "directory"
LATEST = (DIRECTORY, "status")
#: What leaves nothing.
PASSING = ("trade",)


class _Kept(NamedTuple):
    """A message, and the clock message that its time counts from (b"": none)."""

    message: bytes
    clock: bytes


class _Adds(NamedTuple):
    """The parts of an addition that others change: its rule's locations, and those of its time."""

    order: FieldLocation
    price: FieldLocation
    size: FieldLocation
    times: tuple[FieldLocation, ...]


Do = Callable[[bytes], None]


class OrderState:
    """The state of one session; raises `UsageError` for a feed whose books are not of orders.

    `apply` raises `UsageError` for a message that changes books in a way that is not kept here:
    generated sessions have none.
    """

    def __init__(self, feed: Feed) -> None:
        book = feed.book
        if book is None or book.by != "order":
            raise UsageError(f"no state is kept of {feed.name}", "its books are not of orders")
        self._feed = feed
        self._clock = b""
        #: The latest of each kind, by symbol; and the open orders by their numbers.
        self._latest: dict[str, dict[bytes, _Kept]] = {name: {} for name in (EVENT, *LATEST)}
        self._orders: dict[bytes, _Kept] = {}
        self._adds: dict[int, _Adds] = {}
        self._do: dict[int, Do] = {}
        for layout in (way for ways in feed.layouts.values() for way in ways):
            if layout.name == EVENT:
                self._do[layout.code] = self._keeping(EVENT)
        for code, reference in feed.references.items():
            self._do[code] = self._keeping(DIRECTORY, reference.index)
        if feed.clock is not None:
            self._do[feed.clock.code] = self._timing
        for message in book.messages:
            self._do[message.code] = self._doing(message)

    def apply(self, message: bytes) -> None:
        """Take a message, as the feed frames it."""
        do = self._do.get(self._feed.message_code(message))
        if do is not None:
            do(message)

    def messages(self) -> tuple[bytes, ...]:
        """Return the state as messages."""
        written: list[bytes] = []
        clock = b""
        for kept in (*self._latest.values(), self._orders):
            for message, since in kept.values():
                if since != clock:
                    clock = since
                    written.append(clock)
                written.append(message)
        if self._clock != clock:
            written.append(self._clock)
        return tuple(written)

    # -- what each message does ---------------------------------------------------------------

    def _doing(self, message: MessageRules) -> Do:
        """Return what a message does by its one rule, or by several that define an instrument."""
        rule = message.rules[0]
        plain = len(message.rules) == 1 and not (rule.group or rule.when or rule.snapshot)
        plain |= all(each.does == DIRECTORY for each in message.rules)
        makers: dict[str, Callable[[], Do]] = {
            "add": lambda: self._adding(message, rule),
            "modify": lambda: self._modifying(rule),
            "reduce": lambda: self._reducing(rule),
            "execute": lambda: self._reducing(rule),
            "delete": lambda: self._deleting(rule),
            "replace": lambda: self._replacing(message, rule),
            **dict.fromkeys(LATEST, lambda: self._keeping(rule.does, rule.symbol)),
            **dict.fromkeys(PASSING, lambda: _nothing),
        }
        if plain and rule.does == "clear" and rule.all:
            return lambda _: self._orders.clear()
        if not plain or rule.does not in makers:
            return self._refusing(message.name)
        return makers[rule.does]()

    def _refusing(self, name: str) -> Do:
        def do(message: bytes) -> None:
            raise UsageError(
                f"no state of {self._feed.name} is kept behind {name}",
                "it is kept of generated sessions alone",
            )

        return do

    def _timing(self, message: bytes) -> None:
        self._clock = message

    def _adding(self, message: MessageRules, rule: Rule) -> Do:
        (order,) = rule.order
        assert rule.price is not None
        assert rule.size is not None
        self._adds[message.code] = _Adds(order, rule.price, rule.size, _times(message))
        named = _at(order)

        def do(added: bytes) -> None:
            self._orders[added[named]] = _Kept(added, self._clock)

        return do

    def _keeping(self, kind: str, symbol: FieldLocation | Field | None = None) -> Do:
        latest = self._latest[kind]
        named = slice(0, 0) if symbol is None else _at(symbol)

        def do(message: bytes) -> None:
            latest[message[named]] = _Kept(message, self._clock)

        return do

    def _reducing(self, rule: Rule) -> Do:
        (order,), size, remaining = rule.order, rule.size, rule.remaining
        assert size is not None
        named = _at(order)

        def do(message: bytes) -> None:
            kept = self._orders.get(message[named])
            if kept is None:
                return
            whole = self._adds[self._feed.message_code(kept.message)].size
            if remaining is not None:
                left = _value(message, remaining)
            else:
                left = _value(kept.message, whole) - _value(message, size)
            if left > 0:
                reduced = _with(kept.message, whole, left)
                self._orders[message[named]] = kept._replace(message=reduced)
            else:
                del self._orders[message[named]]

        return do

    def _modifying(self, rule: Rule) -> Do:
        (order,), size = rule.order, rule.size
        assert size is not None
        named = _at(order)

        def do(message: bytes) -> None:
            kept = self._orders.get(message[named])
            if kept is None:
                return
            added, left = kept.message, _value(message, size)
            adds = self._adds[self._feed.message_code(added)]
            price = _value(added, adds.price)
            new = price if rule.price is None else _value(message, rule.price)
            if left == 0 or new != price or left > _value(added, adds.size):
                del self._orders[message[named]]  # it loses its priority
            if left > 0:
                changed = _with(_with(added, adds.price, new), adds.size, left)
                self._orders[message[named]] = kept._replace(message=changed)

        return do

    def _deleting(self, rule: Rule) -> Do:
        (order,) = rule.order
        named = _at(order)

        def do(message: bytes) -> None:
            self._orders.pop(message[named], None)

        return do

    def _replacing(self, replacing: MessageRules, rule: Rule) -> Do:
        (order,), new_order = rule.order, rule.new_order
        assert new_order is not None
        named, new = _at(order), _at(new_order)
        values: list[Any] = [new_order, rule.price, rule.size, *_times(replacing)]

        def do(message: bytes) -> None:
            kept = self._orders.pop(message[named], None)
            if kept is None:
                return
            added = kept.message
            adds = self._adds[self._feed.message_code(added)]
            locations = (adds.order, adds.price, adds.size, *adds.times)
            for field, source in zip(locations, values, strict=True):
                added = _with(added, field, _value(message, source))
            self._orders[message[new]] = _Kept(added, self._clock)

        return do


def _nothing(message: bytes) -> None:
    """Leave the state as it is."""


def _times(message: MessageRules) -> tuple[FieldLocation, ...]:
    """Return where a message carries its time."""
    return tuple(location for location, _ in message.time.parts) if message.time is not None else ()


def _at(location: FieldLocation | Field) -> slice:
    return slice(location.at, location.at + location.size)


def _value(message: bytes, location: FieldLocation) -> int:
    return int.from_bytes(message[_at(location)], "big" if location.big else "little")


def _with(message: bytes, location: FieldLocation, value: int) -> bytes:
    """Return the message with another value at a location."""
    changed = value.to_bytes(location.size, "big" if location.big else "little")
    return message[: location.at] + changed + message[location.at + location.size :]
