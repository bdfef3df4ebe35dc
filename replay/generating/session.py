"""One generated session, put together: the listing, the books, what happens to them, the tape.

Every generated session is a `Session`: a profile's on two lines (`traffic`) and the one that
advances step by step in simulated time, for the exchange and for tests (`generator`). It answers
with blocks of packets, up to any moment; where a session is cut into blocks changes nothing in it.
The same seed and settings give the same packets on every machine, compiled or not.

The contents are a market's own: reference data, order books that never cross, quotes and trades
that follow them, numbered packets. A fresh `Market` takes all of it without a problem.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.replay.generating.books import SLOTS, ShareBooks
from feedhandler.replay.generating.closing import Closing
from feedhandler.replay.generating.flow import Flow
from feedhandler.replay.generating.instruments import Instrument, Kind, listing
from feedhandler.replay.generating.issuers import IndexValues, IssuerQuotes
from feedhandler.replay.generating.notices import Notices
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.prng import Crowd, Prng
from feedhandler.replay.generating.profile_plan import FlowSettings
from feedhandler.replay.generating.snapshots import SnapshotSource, rows_of
from feedhandler.replay.generating.tape import COLUMNS, REALTIME, Tape
from feedhandler.replay.generating.times import MessageTime

Array = np.ndarray[Any, Any]

#: A block: some thousand packets, in a buffer that a cache may hold.
BLOCK_PACKETS, BLOCK_BYTES = 8_192, 3 << 20
#: Weights fall with rank as 1 / (rank + HEAD): no single instrument has all the traffic.
HEAD = 6
#: What a heartbeat says of the sequence, by the description's word: the next number less this.
BEAT_LESS = {"none": -1, "next": 0, "last": 1}


@dataclass(frozen=True, slots=True)
class Block:
    """Packets of the exchange: payloads in `data` (uint8), and a row a packet in `columns`, as
    `tape.COLUMNS` lists; times count from midnight, exchange time."""

    data: Array
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.columns["length"])


class Session:
    """See the module. `day` dates the messages; `losses` and `skew_ns` are the lines', as the tape
    counts them. `flow` and `tape` say how far it is, `states` the present state of each service;
    `market` holds the parts that the flow drives. Raises `UsageError`."""

    def __init__(
        self,
        feed: Feed,
        seed: int,
        settings: FlowSettings,
        day: date,
        *,
        losses: tuple[int, int] = (0, 0),
        skew_ns: tuple[int, int] = (0, 0),
    ) -> None:
        self.feed, self.settings = feed, settings
        self.instruments = listing(random.Random(seed), settings.instruments)
        self.tape = Tape(
            feed, len(self.instruments), Prng(seed * 2 + 1_000_003),
            byte_ps=settings.byte_ps, second_bytes=settings.second_bytes, losses=losses,
            skew_ns=skew_ns,
        )  # fmt: skip
        self._time = MessageTime(day)
        self.market = _market(feed, self.instruments, Prng(seed * 2), self.tape, self._time)
        self.states = States(feed, self.market)
        self._drive(settings)
        self.flow = Flow(self.market, settings)

    def _drive(self, settings: FlowSettings) -> None:
        """Give the market what a flow sends beside its messages: snapshots, control packets."""
        feed, market = self.feed, self.market
        market.snapshots = SnapshotSource(
            feed, self.tape, market.prng, self.states, settings.refresh_body,
            settings.refresh_messages,
        )  # fmt: skip
        market.resets = [
            feed.encode_packet(kind="reset", sequence=1, service=service)
            if channel < REALTIME or settings.shares_ppm[REALTIME] else None
            for channel, service in enumerate(SERVICES * 2)
        ]  # fmt: skip
        market.beats = [
            feed.encode_packet(kind="heartbeat", sequence=0, service=service)
            for service in SERVICES
        ]
        market.beat_less = BEAT_LESS[feed.description.packet.sequence.heartbeat]
        market.delimiters = memoryview(bytearray(
            b"".join(feed.encode_message(231, retransmission_indicator=each) for each in "SE")
        ))  # fmt: skip

    def block(self, until_ns: int) -> Block:
        """Generate what is due by `until_ns` after midnight, as much as a block has room for.

        Bursts are not split: the last packets may be due a fraction of a millisecond later; later
        blocks have nothing that is due earlier. There is more only where `full` is true."""
        self._begin()
        self.flow.run(until_ns)
        return self._block_so_far()

    @property
    def full(self) -> bool:
        """Whether the latest block ended because it was full."""
        return self.tape.full()

    def close(self, now_ns: int) -> Iterator[Block]:
        """Close the market at `now_ns` after midnight, but not before it has opened; yield blocks.

        They have closing prices, cleared books, last quotes, then a heartbeat on every service.
        Later blocks have heartbeats only."""
        while not self.flow.trading:
            yield self.block(self.flow.next_ns)
        tape = self.tape
        tape.now_ns = max(tape.now_ns, now_ns)
        self._begin()
        closing = Closing(self.feed, self.market, self._time, self.settings.prelude_byte_ps)
        for _ in closing.steps():
            if tape.full():
                yield self._block_so_far()
                self._begin()
        self.flow.close()
        yield self._block_so_far()

    def _begin(self) -> None:
        data = np.empty(BLOCK_BYTES, np.uint8)
        columns = {name: np.empty(BLOCK_PACKETS, dtype) for name, dtype in COLUMNS.items()}
        self.tape.begin(data, columns)
        self._data = data

    def _block_so_far(self) -> Block:
        tape = self.tape
        used = {name: column[: tape.count] for name, column in tape.columns.items()}
        return Block(self._data[: tape.used], used)


def _market(
    feed: Feed, instruments: tuple[Instrument, ...], prng: Prng, tape: Any, time: MessageTime
) -> SimpleNamespace:
    """Create the parts of a market that a `Flow` drives."""
    shares = [instrument for instrument in instruments if instrument.kind is Kind.EQUITY]
    warrants = [instrument for instrument in instruments if instrument.kind is Kind.WARRANT]
    indices = [instrument for instrument in instruments if instrument.kind is Kind.INDEX]
    books = ShareBooks(feed, shares, prng, tape, (time.date, time.previous_date))
    issuers = IssuerQuotes(feed, warrants, len(shares), prng, tape)
    values = IndexValues(feed, indices, len(shares) + len(warrants), tape, books, shares)
    notices = Notices(feed, instruments, books.halted, prng, tape, time)
    return SimpleNamespace(
        tape=tape, prng=prng, books=books, issuers=issuers, indices=values, notices=notices,
        shares=_crowd(prng, len(shares)), warrants=_crowd(prng, len(warrants)),
        listed_shares=shares, listed_warrants=warrants,
    )  # fmt: skip


def _crowd(prng: Prng, members: int) -> Crowd:
    return Crowd(prng, [(1 << 32) // (rank + HEAD) for rank in range(members)])


class States:
    """The present state of each service as messages, for snapshots: called with a channel, it
    answers with arrays of rows of equal size."""

    def __init__(self, feed: Feed, market: Any) -> None:
        self._books, self._issuers, self._values = market.books, market.issuers, market.indices
        self._notices: Notices = market.notices
        self._size = {type_: feed.layout(type_).size for type_ in (140, 230, 240, 241, 546)}
        self._delimiters = [
            np.frombuffer(feed.encode_message(231, retransmission_indicator=each), np.uint8)
            for each in "SE"
        ]

    def __call__(self, channel: int) -> list[Array]:
        """Return the messages of service 101 + channel, in the order of a snapshot."""
        books, issuers, size = self._books, self._issuers, self._size
        if channel == 0:
            return self._reference()
        if channel == 2:
            return [rows_of(books.tables["quotes"], size[140], books.mask())]
        if channel == 3:
            return self._orders()
        if channel == 5:
            return [rows_of(issuers.tables["quotes"], size[140], issuers.mask())]
        if channel == 6:
            return [rows_of(self._values.tables["values"], size[546], self._values.mask())]
        owner = books if channel == 1 else issuers
        return [
            rows_of(owner.tables["trades"], size[240], owner.deals.mask("deals")),
            rows_of(owner.tables["updates"], size[241], owner.deals.mask("announced")),
        ]

    def _reference(self) -> list[Array]:
        notices = self._notices
        sizes = notices.sizes
        start, end = (np.frombuffer(each, np.uint8)[None] for each in (notices.start, notices.end))
        return [
            start, rows_of(notices.reference, sizes[0]), end,
            rows_of(notices.states, sizes[1], notices.stated),
        ]  # fmt: skip

    def _orders(self) -> list[Array]:
        """Return every book's orders between delimiters."""
        books, size = self._books, self._size[230]
        room = np.empty(books.shares * SLOTS * size, np.uint8)
        view, count = memoryview(room), 0
        for share in range(books.shares):
            count += books.resent(share, view, count * size)
        start, end = (delimiter[None] for delimiter in self._delimiters)
        return [start, rows_of(room[: count * size], size), end]
