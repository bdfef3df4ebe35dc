"""A market-data gateway: two multicast lines in, one ordered AMQP 1.0 stream out.

Subscribers begin at `feedhandler.subscribe`; `feedhandler.Market` keeps what they receive as books,
trades and quotes. Both are imported on first use, so that `import feedhandler` alone stays light.
"""

import os as _os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from feedhandler import _compiled

_compiled.install_finder()
if _os.environ.get("FEEDHANDLER_PURE"):
    _compiled.prefer_interpreted()

if TYPE_CHECKING:
    from feedhandler.amqp.identity import Login
    from feedhandler.amqp.subscribing.columns import Batch
    from feedhandler.amqp.subscribing.inbox import Message
    from feedhandler.amqp.subscribing.subscriber import Subscriber, subscribe
    from feedhandler.amqp.subscribing.upstream import ConnectionEvent
    from feedhandler.codecs.errors import ConfigError, FeedhandlerError, PeerError, UsageError
    from feedhandler.replay.state.book import Book
    from feedhandler.replay.state.markets import open_market as Market
    from feedhandler.retrans.quality import Quality

__all__ = [
    "Batch",
    "Book",
    "ConfigError",
    "ConnectionEvent",
    "FeedhandlerError",
    "Login",
    "Market",
    "Message",
    "PeerError",
    "Quality",
    "Subscriber",
    "UsageError",
    "subscribe",
]

_FROM_AMQP = (
    "Batch",
    "ConnectionEvent",
    "Login",
    "Message",
    "Quality",
    "Subscriber",
    "subscribe",
)


def __getattr__(name: str) -> Any:
    if name in _FROM_AMQP:
        from feedhandler.amqp import identity
        from feedhandler.amqp.subscribing import columns, inbox, subscriber, upstream
        from feedhandler.retrans import quality

        home = {
            "Batch": columns,
            "ConnectionEvent": upstream,
            "Login": identity,
            "Message": inbox,
            "Quality": quality,
        }
        return getattr(home.get(name, subscriber), name)
    if name == "Book":
        from feedhandler.replay.state import book

        return book.Book
    if name == "Market":
        from feedhandler.replay.state import markets

        return markets.open_market
    if name in __all__:
        from feedhandler.codecs import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'feedhandler' has no attribute {name!r}")
