"""A market-data gateway: two multicast lines in, one ordered AMQP 1.0 stream out.

Subscribers begin at `feedhandler.subscribe`; `feedhandler.Market` keeps what they receive as books,
trades and states. Both are imported on first use, so that `import feedhandler` alone stays light.
"""

import os as _os

__version__ = "0.1.0"

from feedhandler import _compiled
from feedhandler._lazy import lazy_names

# Importing `typing` is half of this package's import, in which Ctrl-C leaves a traceback.
TYPE_CHECKING = False

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
    from feedhandler.market.stream_market import Market
    from feedhandler.retrans.quality import Quality

__all__ = [
    "Batch",
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

__getattr__ = lazy_names(__name__)
