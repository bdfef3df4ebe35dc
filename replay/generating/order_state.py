"""The state that an order feed's messages lead to, told in messages: what GLIMPSE sends.

An `OrderState` takes every message of a session and keeps what a receiver must know who joins now:

* the latest of messages that newer ones replace: those of which the description says so
  (`conflate = "latest"`), statuses and directories by its `[book]` table, clocks, `MOMENTS`;
* the books, which are written by the `[book]` table (`market.book_messages`): an addition of each
  open order with what is left of it, in the order of their priority, without what the table does
  not name (attributions), at the time of the latest message.

From these messages a fresh book reaches the same state. Other messages (trades) leave none.

Memory is bounded by the session's: one message a symbol and kind, and the open orders.
"""

from collections.abc import Iterator

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.layouts import Layout
from feedhandler.market.book_messages import KeptBooks

#: Messages that are each a moment of the day, of which the latest says what the day has come to.
MOMENTS = ("system_event",)
#: The one service of a state.
_SERVICE = 0


class OrderState:
    """The state of one session; raises `UsageError` for a feed whose books cannot be written."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        try:
            self._books = KeptBooks(feed)
        except UsageError as error:
            raise UsageError(f"no state is kept of {feed.name}", error.message) from None
        #: What tells the latest messages of a kind apart, and those messages by it.
        self._keys = {
            code: _key_of(ways[0])
            for code, ways in feed.layouts.items()
            if _is_replaced(feed, ways[0])
        }
        self._latest: dict[int, dict[bytes, bytes]] = {code: {} for code in self._keys}

    def apply(self, message: bytes) -> None:
        """Take a message, as the feed frames it."""
        code = self._feed.message_code(message)
        if code in self._keys:
            key = b"".join(message[each] for each in self._keys[code])
            self._latest[code][key] = message
        self._books.apply_message(message, _SERVICE)

    def messages(self) -> tuple[bytes, ...]:
        """Return the state as messages: the latest in the order of the description, the books."""
        return (*self._kept(), *self._books.all_messages(_SERVICE))

    def _kept(self) -> Iterator[bytes]:
        for latest in self._latest.values():
            yield from latest.values()


def _is_replaced(feed: Feed, layout: Layout) -> bool:
    """Return whether the latest message of a type, and symbol, says all."""
    assert feed.book is not None
    does = {rule.does for rule in feed.book.rules_of(layout.code)}
    if feed.book.effect_of(layout.code) != "none":
        return False
    is_clock = feed.clock is not None and layout.code == feed.clock.code
    is_told = is_clock or layout.conflate == "latest" or layout.name in MOMENTS
    return is_told or bool(does & {"status", "directory"})


def _key_of(layout: Layout) -> tuple[slice, ...]:
    """Return where the symbol stands, and what else tells messages of a type apart."""
    names = [layout.symbol, *layout.conflate_by] if layout.symbol else layout.conflate_by
    fields = [layout.by_name[name] for name in names]
    return tuple(slice(field.at, field.at + field.size) for field in fields)
