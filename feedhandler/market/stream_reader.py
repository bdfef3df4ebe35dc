# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Packets of a stream read into books and, where they are kept, the latest messages.

One reader has the books of one `OrderMessages`, and teaches one `ReferenceData` what reference
messages carry. Sans-IO.
"""

import cython
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs import scanner as scan
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.market.latest_messages import LatestMessages
from cython.cimports.feedhandler.market.normaliser import Normaliser
from cython.cimports.feedhandler.market.order_messages import OrderMessages
from cython.cimports.feedhandler.market.records import Records

from feedhandler.codecs.dbn import MBO, UNDEFINED_TIME
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.codecs.visibility import Readonly
from feedhandler.market.latest_messages import MESSAGES_MAX

_WORDS = cython.declare(cython.int, MBO.itemsize // 8)
_LOW = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
_NO_TIME = cython.declare(cython.ulonglong, UNDEFINED_TIME)
_TRADE = cython.declare(cython.int, 84)


@cython.cclass
class StreamReader:
    """Reads datagrams and messages of a feed; see the module.

    `latest` keeps other messages, or None. With `clears_on_reset` a reset of sequence numbers
    empties its service.
    """

    orders: Readonly[OrderMessages]
    latest: Readonly[LatestMessages]
    records: Readonly[Records]
    feed: Readonly[object]
    known: Readonly[object]
    clears_on_reset: Readonly[cython.bint]
    trades: Readonly[dict]
    states: Readonly[dict]
    kept_max: Readonly[cython.Py_ssize_t]
    refused: Readonly[cython.Py_ssize_t]
    table: FeedTable
    normaliser: Normaliser
    header: PacketHeader
    index: MessageIndex
    teaches: cython.uchar[::1]

    def __init__(
        self,
        feed: Feed,
        orders: OrderMessages,
        known: ReferenceData,
        latest: LatestMessages | None = None,
        clears_on_reset: bool = False,
    ) -> None:
        self.table, self.orders, self.known, self.latest = feed.table, orders, known, latest
        self.feed = feed
        self.records, self.normaliser = orders.records, orders.records.normaliser
        self.clears_on_reset = clears_on_reset
        self.header, self.index = PacketHeader(), MessageIndex()
        #: By type: whether its messages carry reference data.
        self.teaches = memoryview(bytearray(65_536))
        for code in known.references:
            self.teaches[code] = 1
        #: By instrument, of as many as messages are kept of a service (those beyond are counted):
        #: the last trade (price, size, side, time as records have them), the trading state as
        #: records have it, each behind its service.
        self.trades, self.states = {}, {}
        self.kept_max = MESSAGES_MAX if latest is None else latest.messages_max
        self.refused = 0

    @cython.ccall
    @cython.exceptval(-999, check=True)
    def read(
        self, data: bytes, service: cython.longlong, skip: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read the packets of a datagram, but for the first `skip` messages of each.

        `service` is theirs, or -1: that in their headers. Return how many messages they have; where
        the scanner rejects one, the negative of its `Reject`: those before it are read.
        """
        view: cython.const_uchar[::1] = data
        begin: cython.Py_ssize_t = 0
        count: cython.Py_ssize_t = 0
        while begin < len(data) or begin == 0:
            verdict: cython.int = scan.parse_next(
                self.table, view, begin, len(data) - begin, self.header
            )
            if verdict == kinds.FINE:
                verdict = scan.scan_messages(self.table, view, begin, self.header, self.index)
            if verdict != kinds.FINE:
                return -verdict
            channel: cython.uint = (
                self.header.service if service < 0 else cython.cast(cython.uint, service)
            )
            if self.clears_on_reset and self.header.kind == kinds.RESET:
                self.empty(channel)
            self.records.clear()
            self.learn(data, begin)
            self.orders.apply_packet(view, begin, self.index, skip, channel)
            if self.latest is not None:
                before: cython.ulonglong = self.latest.clears
                self.latest.apply_packet(data, begin, self.index, skip, channel)
                if self.latest.clears != before:
                    self.drop(channel)
                self.note(channel)
            count += self.index.count
            begin += self.header.length
        return count

    def read_message(self, data: bytes, service: cython.uint) -> cython.bint:
        """Read one whole message of a service; return whether it ends where its size says."""
        if not self.feed.is_whole(data):
            return False
        self.records.clear()
        code: cython.ushort = self.feed.message_code(data)
        if self.teaches[code]:
            self.known.learn(code, data)
        self.orders.apply_message(data, 0, len(data), code, 0, service)
        if self.latest is not None:
            symbol: cython.ulonglong = self.feed.symbol_of(data, code)
            before: cython.ulonglong = self.latest.clears
            self.latest.apply_message(data, 0, len(data), code, symbol, service)
            if self.latest.clears != before:
                self.drop(service)
            self.note(service)
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def learn(self, data: bytes, begin: cython.Py_ssize_t) -> cython.int:
        """Learn from the reference messages of the packet that was scanned."""
        i: cython.Py_ssize_t
        for i in range(self.index.count):
            if self.teaches[self.index.types[i]]:
                at: cython.Py_ssize_t = begin + self.index.offsets[i]
                self.known.learn(self.index.types[i], data[at : at + self.index.sizes[i]])
        return 0

    def empty(self, service: cython.uint) -> cython.int:
        """Empty the books of a service, and take away its latest messages, trades and states."""
        self.drop(service)
        self.records.empty(service, _NO_TIME)
        if self.latest is not None:
            self.latest.clear(service)
        return 0

    def put(self, kept: dict[int, object], instrument: int, value: object) -> None:
        """Keep the last trade, or the state, of an instrument in `trades` or `states`."""
        if instrument in kept or len(kept) < self.kept_max:
            kept[instrument] = value
        else:
            self.refused += 1

    def drop(self, service: int) -> None:
        """Forget the trades and the states of a service."""
        self.trades = {each: trade for each, trade in self.trades.items() if trade[0] != service}
        self.states = {each: state for each, state in self.states.items() if state[0] != service}

    def note(self, service: cython.uint) -> cython.int:
        """Keep the trades and states of what was read last, which was of a service."""
        words: cython.ulonglong[::1] = self.normaliser.words
        index: cython.Py_ssize_t
        for index in range(self.normaliser.count):
            at: cython.Py_ssize_t = index * _WORDS
            if (words[at + 4] >> 48) & 0xFF == _TRADE:
                self.put(
                    self.trades,
                    words[at] >> 32,
                    (
                        service, words[at + 3], words[at + 4] & _LOW, words[at + 4] >> 56,
                        words[at + 1],
                    ),
                )  # fmt: skip
        if self.records.statuses:
            for status in self.records.of("status"):
                state = (service, int(status["action"]))
                self.put(self.states, int(status["instrument_id"]), state)
        return 0
