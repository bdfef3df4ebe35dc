"""The state that an order feed's messages lead to, told in messages: what GLIMPSE sends.

An `OrderState` takes every message of a session of ITCH and keeps, as messages, what a receiver
must know who joins now: the latest system event, each stock's directory entry and trading state,
and an "add order" for each open order with what is left of it, in the order of their priority.
From these messages a fresh book reaches the same state. Other messages (trades) leave none.

Memory is bounded by the session's: one message a stock and kind, one an open order.
"""

from collections.abc import Callable
from typing import Any

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.layouts import Layout

#: The messages that add an order.
ADDS = ("add_order_no_mpid_attribution", "add_order_with_mpid_attribution")
#: What is kept, the latest of each stock, in the order in which it is told.
LATEST = ("system_event", "stock_directory", "stock_trading_action")
#: The messages that take something off an order, and where they say how much.
REDUCES = {
    "order_executed": "executed_shares",
    "order_executed_with_price": "executed_shares",
    "order_cancel": "canceled_shares",
}
ORDER, SHARES, STOCK = "order_reference_number", "shares", "stock_locate"
#: What the message of a replacement says of the new order, by the name in an addition.
REPLACED = {
    ORDER: "new_order_reference_number",
    SHARES: "shares",
    "price": "price",
    "timestamp": "timestamp",
}


class OrderState:
    """The state of one session; raises `UsageError` for a feed without ITCH's messages."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        #: The latest of each kind and stock, and the open orders by their numbers.
        self._latest: dict[str, dict[bytes, bytes]] = {name: {} for name in LATEST}
        self._orders: dict[bytes, bytes] = {}
        self._adds: dict[int, Layout] = {}
        self._do: dict[int, Callable[[bytes], None]] = {}
        try:
            for name in ADDS:
                layout = feed.layout(name)
                self._adds[layout.code] = layout
                self._do[layout.code] = self._adding(_at(layout, ORDER))
            for name in LATEST:
                layout = feed.layout(name)
                self._do[layout.code] = self._keeping(self._latest[name], _at(layout, STOCK))
            for name, shares in REDUCES.items():
                layout = feed.layout(name)
                self._do[layout.code] = self._reducing(_at(layout, ORDER), _at(layout, shares))
            layout = feed.layout("order_delete")
            self._do[layout.code] = self._deleting(_at(layout, ORDER))
            layout = feed.layout("order_replace")
            self._do[layout.code] = self._replacing(layout)
        except (UsageError, KeyError):
            raise UsageError(
                f"no state is kept of {feed.name}", "known: nasdaq-totalview-itch"
            ) from None

    def apply(self, message: bytes) -> None:
        """Take a message, as the feed frames it."""
        do = self._do.get(self._feed.message_code(message))
        if do is not None:
            do(message)

    def messages(self) -> tuple[bytes, ...]:
        """Return the state as messages."""
        known = [each for kind in self._latest.values() for each in kind.values()]
        return (*known, *self._orders.values())

    # -- what each message does ---------------------------------------------------------------

    def _adding(self, order: slice) -> Callable[[bytes], None]:
        def do(message: bytes) -> None:
            self._orders[message[order]] = message

        return do

    def _keeping(self, latest: dict[bytes, bytes], stock: slice) -> Callable[[bytes], None]:
        def do(message: bytes) -> None:
            latest[message[stock]] = message

        return do

    def _reducing(self, order: slice, shares: slice) -> Callable[[bytes], None]:
        def do(message: bytes) -> None:
            added = self._orders.get(message[order])
            if added is None:
                return
            at = _at(self._adds[self._feed.message_code(added)], SHARES)
            left = int.from_bytes(added[at], "big") - int.from_bytes(message[shares], "big")
            if left > 0:
                self._orders[message[order]] = _with(added, at, left.to_bytes(4, "big"))
            else:
                del self._orders[message[order]]

        return do

    def _deleting(self, order: slice) -> Callable[[bytes], None]:
        def do(message: bytes) -> None:
            self._orders.pop(message[order], None)

        return do

    def _replacing(self, layout: Layout) -> Callable[[bytes], None]:
        old = _at(layout, "original_order_reference_number")
        new = {name: _at(layout, source) for name, source in REPLACED.items()}

        def do(message: bytes) -> None:
            added = self._orders.pop(message[old], None)
            if added is None:
                return
            adds = self._adds[self._feed.message_code(added)]
            for name, at in new.items():
                added = _with(added, _at(adds, name), message[at])
            self._orders[message[new[ORDER]]] = added

        return do


def _at(layout: Layout, name: str) -> slice:
    """Return where a field stands in a message. Raises `KeyError`."""
    field: Any = layout.by_name[name]
    return slice(field.at, field.at + field.size)


def _with(message: bytes, at: slice, value: bytes) -> bytes:
    return message[: at.start] + value + message[at.stop :]
