"""One service on its way out: its links, its routes, its templates, its store.

What it is for: everything that the fan-out keeps for one service. The links of each symbol are
cached here as `Route`s; the templates hold what all messages of the service have in common.

What it leaves to others: who is in the lists, and what is done with them (`fanout`).
"""

import cython

if cython.compiled:
    from cython.cimports.feedhandler.amqp.framing import Template
    from cython.cimports.feedhandler.amqp.symbols import SymbolMap
    from cython.cimports.feedhandler.histogram import Histogram
else:
    from feedhandler.amqp.framing import Template
    from feedhandler.amqp.symbols import SymbolMap
    from feedhandler.histogram import Histogram

from feedhandler.amqp import framing
from feedhandler.amqp.outlet import Outlet
from feedhandler.amqp.routing import Grain


@cython.cclass
class Route:
    """Where one symbol's messages go: to links that take them alone (`singles`), and to links that
    take them in thinned packets."""

    def __init__(self, key: str, prefix: bytes) -> None:
        self.key = key
        self.plain = Template(key, framing.CONTENT_MESSAGE, prefix, False)
        self.stamped = Template(key, framing.CONTENT_MESSAGE, prefix, True)
        self.singles = []
        self.thinned = []


@cython.cclass
class Stream:
    """One service on its way out: its links, its routes, its templates.

    `index` is the channel's number in the ring, `key` the service's routing key, `prefix` the
    first eight bytes of its tags (trading day, feed, service). Where `store` is a `PacketStore`,
    each packet is kept there. A `closed` stream's packets are stored only: not delivered, not
    counted.
    """

    def __init__(self, index: int, service: int, key: str, prefix: bytes, symbols_max: int) -> None:
        self.index = index
        self.service = service
        self.key = key
        self.whole = []
        self.fine = []
        self.concerned = []
        self.symbols = SymbolMap(symbols_max)
        self.routes = []
        self.packets = 0
        self.messages = 0
        self.next_sequence = 0
        self.latency = Histogram()
        self.store = None
        self.closed = False
        self.set_prefix(prefix)

    def set_prefix(self, prefix: bytes) -> None:
        """Begin a trading day: new tags from here on."""
        self.prefix = prefix
        self.packet_plain = Template(self.key, framing.CONTENT_PACKET, prefix, False)
        self.packet_stamped = Template(self.key, framing.CONTENT_PACKET, prefix, True)
        self.batch_plain = Template(self.key, framing.CONTENT_BATCH, prefix, False)
        self.batch_stamped = Template(self.key, framing.CONTENT_BATCH, prefix, True)
        self.quality_template = Template(
            f"{self.key}.quality", framing.CONTENT_QUALITY, prefix, False
        )
        self.forget_routes()

    def forget_routes(self) -> None:
        """Drop the cache: subscriptions or names have changed."""
        if self.routes:
            self.symbols.clear()
            self.routes.clear()

    def admit(self, outlet: Outlet) -> None:
        """Let a link take part that this service concerns, if it does not already."""
        subscription = outlet.subscription
        feed, service = self.words
        if not subscription.concerns(feed, service) or outlet in self.whole or outlet in self.fine:
            return
        whole = (
            subscription.grain != Grain.MESSAGE
            and subscription.types is None
            and subscription.wants_service(feed, service)
        )
        (self.whole if whole else self.fine).append(outlet)
        if subscription.quality:
            self.concerned.append(outlet)
        self.forget_routes()

    def withhold(self, outlet: Outlet) -> None:
        """Let a link take no further part in this service."""
        for links in (self.whole, self.fine, self.concerned):
            if outlet in links:
                links.remove(outlet)
        self.forget_routes()

    @property
    def words(self) -> list[str]:
        """The feed's and the service's word of the key."""
        return self.key.split(".")
