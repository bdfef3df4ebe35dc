"""One service of the fan-out: its links, its routes, its templates, its store.

What it is for: everything that the fan-out keeps for one service. The links of each symbol are
cached here as `Route`s; the templates hold what all messages of the service have in common. A link
that names its symbols is found by their names, and its coming and going concerns those symbols'
routes alone; a link that takes every symbol concerns them all.

What it leaves to others: which links are in the lists, and what is delivered to them (`fanout`).
"""

import cython
from cython.cimports.feedhandler.amqp.framing import Template
from cython.cimports.feedhandler.amqp.symbols import SymbolMap
from cython.cimports.feedhandler.histogram import Histogram

from feedhandler.amqp import framing
from feedhandler.amqp.history import NOTES_SHARE, History
from feedhandler.amqp.routing import Grain
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.retrans.store import PacketStore


@cython.cclass
class Route:
    """The links of one symbol's messages: those that take them alone (`singles`), and those that
    take them in thinned packets (`thinned`).

    Tuples, so that what a message has to read for its symbol lies together, and those of the many
    symbols without links are one object. For the same reason templates are made when first used.
    `timed`: a message alone brings its packet's send time.
    """

    singles: tuple
    thinned: tuple
    plain: Template
    stamped: Template
    key: Readonly[str]
    prefix: bytes
    timed: cython.bint

    def __init__(
        self,
        key: str,
        prefix: bytes,
        singles: tuple[SenderQueue, ...],
        thinned: tuple[SenderQueue, ...],
        timed: bool,
    ) -> None:
        self.key = key
        self.prefix = prefix
        self.timed = timed
        self.plain = None
        self.stamped = None
        self.singles = singles
        self.thinned = thinned

    @cython.ccall
    def template(self, stamped: cython.bint) -> Template:
        """Return the template of the symbol's messages, with or without room for the receive
        stamp."""
        if stamped:
            if self.stamped is None:
                self.stamped = self._made(True)
            return self.stamped
        if self.plain is None:
            self.plain = self._made(False)
        return self.plain

    def _made(self, stamped: bool) -> Template:
        return Template(self.key, framing.CONTENT_MESSAGE, self.prefix, stamped, self.timed)


@cython.cclass
class Stream:
    """One service of the fan-out: its links, its routes, its templates.

    `index` is the channel's number in the ring, `key` the service's routing key, `prefix` the first
    eight bytes of its tags (trading day, feed, service). Where `store` is a `PacketStore`, each
    packet is kept there; with a `history`, the quality messages between them as well, and links
    that still read it are in the stream's `past`. A `closed` stream's packets are stored only: not
    delivered, not counted.

    `whole` are the links that take all of the service, `fine` those that take messages or thinned
    packets, `takes_records` those of normalised records; `concerned` those of them that hear of
    quality.
    """

    index: Readonly[cython.int]
    service: Readonly[cython.uint]
    key: Readonly[str]
    prefix: Readonly[bytes]
    packet_plain: Template
    packet_stamped: Template
    batch_plain: Template
    batch_stamped: Template
    records_plain: Readonly[Template]
    records_stamped: Readonly[Template]
    quality_template: Template
    whole: Readonly[list]
    fine: Readonly[list]
    concerned: Readonly[list]
    takes_records: Readonly[list]
    symbols: SymbolMap
    routes: list
    indexes_by_word: dict
    naming: Readonly[dict]
    taking_all: Readonly[list]
    store: Public[PacketStore]
    history: Public[object]
    _past: "Stream"
    symbols_max: cython.int
    closed: Public[cython.bint]
    packets: Readonly[cython.ulonglong]
    messages: Readonly[cython.ulonglong]
    next_sequence: Readonly[cython.ulonglong]
    latency: Readonly[Histogram]

    def __init__(self, index: int, service: int, key: str, prefix: bytes, symbols_max: int) -> None:
        self.index = index
        self.service = service
        self.key = key
        self.whole: list[SenderQueue] = []
        self.fine: list[SenderQueue] = []
        self.concerned: list[SenderQueue] = []
        self.takes_records: list[SenderQueue] = []
        self.symbols = SymbolMap(symbols_max)
        self.symbols_max = symbols_max
        self.routes = []
        self.indexes_by_word = {}
        self.naming = {}
        self.taking_all = []
        self.packets = 0
        self.messages = 0
        self.next_sequence = 0
        self.latency = Histogram()
        self.store: PacketStore | None = None
        self.history: History | None = None
        self._past = None
        self.closed = False
        self.set_prefix(prefix)

    def begin_day(self, prefix: bytes) -> None:
        """Begin a trading day: new tags from here on. Where the numbers go on, the history goes on
        as well, so that yesterday's last tag leads to today's first."""
        if prefix == self.prefix:
            return
        self.set_prefix(prefix)
        if self.history is not None:
            self.history.begin(prefix, self.next_sequence, self.history.store.end, goes_on=True)

    def set_prefix(self, prefix: bytes) -> None:
        """Make the templates anew with this prefix of tags."""
        self.prefix = prefix
        self.packet_plain = Template(self.key, framing.CONTENT_PACKET, prefix, False)
        self.packet_stamped = Template(self.key, framing.CONTENT_PACKET, prefix, True)
        self.batch_plain = Template(self.key, framing.CONTENT_BATCH, prefix, False)
        self.batch_stamped = Template(self.key, framing.CONTENT_BATCH, prefix, True)
        self.records_plain = Template(self.key, framing.CONTENT_RECORDS, prefix, False)
        self.records_stamped = Template(self.key, framing.CONTENT_RECORDS, prefix, True)
        self.quality_template = Template(
            f"{self.key}.quality", framing.CONTENT_QUALITY, prefix, False
        )
        self.forget_routes()

    # -- routes -----------------------------------------------------------------------------

    def forget_routes(self) -> None:
        """Drop the cache: any symbol's links may have changed."""
        if self.routes:
            self.symbols.clear()
            self.routes.clear()
            self.indexes_by_word.clear()
        if self._past is not None:
            self._past.forget_routes()

    def forget_word(self, word: str) -> None:
        """Drop what is cached of the symbols that this word names."""
        for index in self.indexes_by_word.pop(word, ()):
            self.routes[index] = None
        if self._past is not None:
            self._past.forget_word(word)

    def keep_route(self, symbol: int, words: list[str], route: Route) -> bool:
        """Cache a symbol's route, which patterns may call by any of `words`.

        Returns False where the bound on symbols is reached: then the cache has been started afresh.
        """
        known = True
        index = self.symbols.get(symbol)
        if index < 0:
            known = self.symbols.put(symbol, len(self.routes))
            if not known:
                self.forget_routes()
                self.symbols.put(symbol, 0)
            index = len(self.routes)
            self.routes.append(route)
        else:
            self.routes[index] = route
        for word in words:
            indexes = self.indexes_by_word.setdefault(word, [])
            if index not in indexes:
                indexes.append(index)
        return known

    def candidates(self, words: list[str]) -> list[SenderQueue]:
        """Return those of the fine links that ask for a symbol that has these words for names."""
        found = dict.fromkeys(self.taking_all)
        for word in words:
            found.update(dict.fromkeys(self.naming.get(word, ())))
        return list(found)

    # -- links ------------------------------------------------------------------------------

    def admit(self, sender_queue: SenderQueue) -> None:
        """Add a link that this service concerns, if it is not in the lists already."""
        subscription = sender_queue.subscription
        feed, service = self.words
        if (
            not subscription.concerns(feed, service)
            or sender_queue in self.whole
            or sender_queue in self.fine
            or sender_queue in self.takes_records
        ):
            return
        if subscription.quality:
            self.concerned.append(sender_queue)
        if subscription.schema:
            self.takes_records.append(sender_queue)
            return
        if (
            subscription.grain != Grain.MESSAGE
            and subscription.types is None
            and subscription.wants_service(feed, service)
        ):
            self.whole.append(sender_queue)
            return
        self.fine.append(sender_queue)
        named = subscription.named(feed, service)
        if named is None:
            self.taking_all.append(sender_queue)
            self.forget_routes()
            return
        for word in named:
            self.naming.setdefault(word, []).append(sender_queue)
            self.forget_word(word)

    def withhold(self, sender_queue: SenderQueue) -> None:
        """Remove a link from this service."""
        for links in (self.whole, self.concerned, self.takes_records):
            if sender_queue in links:
                links.remove(sender_queue)
        if sender_queue not in self.fine:
            return
        self.fine.remove(sender_queue)
        if sender_queue in self.taking_all:
            self.taking_all.remove(sender_queue)
            self.forget_routes()
            return
        for word in sender_queue.subscription.named(*self.words):
            self.naming[word].remove(sender_queue)
            if not self.naming[word]:
                del self.naming[word]
            self.forget_word(word)

    def remember(self, history_bytes: int) -> None:
        """Keep a history of `history_bytes` of packets, in the store that is there already or in
        one of its own."""
        if self.store is None:
            self.store = PacketStore(history_bytes)
        notes_bytes = int(self.store.bytes_max * NOTES_SHARE)
        self.history = History(self.store, notes_bytes, self.prefix)

    def close(self) -> None:
        """Close the stream to links: packets are only stored from here on."""
        self.closed = True
        if self.history is not None:
            self.history.close()

    def open(self, first: int) -> None:
        """Deliver packets again; of those that were stored, number `first` and later are
        published."""
        self.closed = False
        if self.history is not None:
            self.history.open(first)

    @property
    def past(self) -> "Stream":
        """The same service for links that still read its history."""
        if self._past is None:
            self._past = Stream(self.index, self.service, self.key, self.prefix, self.symbols_max)
        return self._past

    @property
    def words(self) -> list[str]:
        """The feed's and the service's word of the key."""
        return self.key.split(".")
