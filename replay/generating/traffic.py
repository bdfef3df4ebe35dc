"""Generated UTP-MD traffic after a profile: blocks of packets, and both lines' datagrams in time.

    traffic = Traffic(load_profile("market"), seed=7, scale=5, duration_s=60)
    for datagrams in traffic.datagrams():
        ...  # columns: data, time_ns, destination, offset, length

`Traffic.blocks` gives what the exchange sends, packet by packet in columns; `Traffic.datagrams`
what arrives on the two lines, merged in time, without what was lost. `traffic_capture` writes
captures. The same profile, seed, scale and duration give the same bytes on every machine, compiled
or not.

The contents are a market's own: reference data, order books that never cross, quotes and trades
that follow them, numbered packets. A fresh `Market` takes all of it without a problem.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.exchange.exchange_plan import ExchangePlan
from feedhandler.replay.generating.dice import Crowd, Dice
from feedhandler.replay.generating.generator_books import SLOTS, ShareBooks
from feedhandler.replay.generating.generator_flow import Flow
from feedhandler.replay.generating.generator_issuers import IndexValues, IssuerQuotes
from feedhandler.replay.generating.generator_notices import Notices
from feedhandler.replay.generating.generator_packets import SERVICES
from feedhandler.replay.generating.generator_snapshots import SnapshotSource, rows_of
from feedhandler.replay.generating.generator_tape import CHANNELS, COLUMNS, REALTIME, Tape
from feedhandler.replay.generating.generator_wire import MessageTime
from feedhandler.replay.generating.instruments import Kind, listing
from feedhandler.replay.generating.profile import Profile, load_profile
from feedhandler.replay.generating.profile_plan import midnight_ns, settings_of

Array = np.ndarray[Any, Any]

#: A block: some thousand packets, in a buffer that a cache may hold.
BLOCK_PACKETS, BLOCK_BYTES = 8_192, 3 << 20
LINES = ("A", "B")
#: Weights fall with rank as 1 / (rank + HEAD): no single instrument has all the traffic.
HEAD = 6


@dataclass(frozen=True, slots=True)
class Block:
    """What the exchange sent: payloads in `data` (uint8), and a row a packet in `columns`, as
    `generator_tape.COLUMNS` tells; times count from midnight, exchange time."""

    data: Array
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.columns["length"])


@dataclass(frozen=True, slots=True)
class Datagrams:
    """What arrived, in time: payloads in `data` (uint8) at `offset` (uint32) of `length` (uint16);
    `time_ns` (int64) counts from 1970 UTC; `destination` (uint8) is a number into
    `Traffic.destinations`; `messages` (uint16) as the packet header counts them."""

    data: Array
    time_ns: Array
    destination: Array
    offset: Array
    length: Array
    messages: Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def payload(self, row: int) -> bytes:
        """One datagram's payload."""
        start = int(self.offset[row])
        return self.data[start : start + int(self.length[row])].tobytes()


class Traffic:
    """One generated session; see the module. Use it once.

    `scale` multiplies instruments and bursts (a stationary profile's rate); `duration_s` is the
    length of a stationary stretch after its prelude, or ends a day early; `rate_mbps` sets a
    stationary profile's scale so that it has this rate. `refresh=False` leaves the refresh
    channels out. `loss` overrides the profile's, as (A, B). Raises `UsageError`.
    """

    def __init__(
        self,
        profile: Profile,
        seed: int = 1,
        *,
        scale: float = 1.0,
        duration_s: float | None = None,
        rate_mbps: float | None = None,
        refresh: bool = True,
        loss: tuple[float, float] | None = None,
        feed: Feed | None = None,
    ) -> None:
        if seed < 0:
            raise UsageError(f"a seed of {seed}", "seeds are not negative")
        if rate_mbps is not None:
            if not profile.stationary:
                raise UsageError(
                    f"profile {profile.name} is a day: it has no rate", "give a scale instead"
                )
            scale = rate_mbps / profile.rate_mbps
        self.profile, self.seed, self.scale = profile, seed, scale
        self.feed = feed or load_feed(profile.feed)
        self.settings = settings_of(profile, self.feed, seed, scale, duration_s)
        if not refresh:
            self.settings.shares_ppm[REALTIME] = 0
        self.instruments = listing(random.Random(seed), self.settings.instruments)
        lines = profile.lines
        self._loss = loss or (lines.loss_a, lines.loss_b)
        self.tape = Tape(
            self.feed, len(self.instruments), Dice(seed * 2 + 1_000_003),
            byte_ps=self.settings.byte_ps,
            losses=_loss_of(self._loss),
            skew_ns=(lines.skew_us[0] * 1000, (lines.skew_us[1] - lines.skew_us[0]) * 1000),
        )  # fmt: skip
        self.midnight_ns = midnight_ns(profile, self.feed)
        #: Books, issuers, indices, notices and snapshots, which the flow drives.
        self.market = _market(self, self.tape)
        self.flow = Flow(self.market, self.settings)
        #: Told of every block: its data and its columns.
        self.on_block: Callable[[Array, dict[str, Array]], object] | None = None
        #: Group and port by number: services' line A and B, then refreshes' A and B.
        self.destinations = _destinations()

    def blocks(self) -> Iterator[Block]:
        """What the exchange sends, a block at a time; a block's arrays are its own."""
        flow, tape = self.flow, self.tape
        end_ns = 1 << 62
        while not flow.ended:
            data = np.empty(BLOCK_BYTES, np.uint8)
            columns = {name: np.empty(BLOCK_PACKETS, dtype) for name, dtype in COLUMNS.items()}
            tape.begin(data, columns)
            flow.run(end_ns)
            used = {name: column[: tape.count] for name, column in columns.items()}
            if self.on_block is not None:
                self.on_block(data, used)
            yield Block(data[: tape.used], used)

    @property
    def share_done(self) -> float:
        """How much of the session is generated, 0 to 1."""
        return min(1.0, self.flow.due / max(int(self.settings.plan.packets[-1]), 1))

    def datagrams(self) -> Iterator[Datagrams]:
        """What arrives on both lines, merged in time, some thousand at a time."""
        waiting: Datagrams | None = None
        for block in self.blocks():
            if not len(block):
                continue
            horizon = int(block.columns["time_a_ns"][-1]) + self.midnight_ns
            ready, waiting = _split(self._arrivals(block, waiting), horizon)
            if len(ready):
                yield ready
        if waiting is not None and len(waiting):
            yield waiting

    def _arrivals(self, block: Block, waiting: Datagrams | None) -> Datagrams:
        """Both lines' copies of a block, and what is still waiting, in time."""
        columns = block.columns
        kept = [(columns["lost"] & bit) == 0 for bit in (1, 2)]
        data, base = block.data, 0
        parts: list[tuple[Array, ...]] = []
        if waiting is not None and len(waiting):
            base = len(waiting.data)
            data = np.concatenate([waiting.data, data])
            parts.append((waiting.time_ns, waiting.destination, waiting.offset, waiting.length,
                          waiting.messages))  # fmt: skip
        for line, name in enumerate(("time_a_ns", "time_b_ns")):
            keep = kept[line]
            parts.append((
                columns[name][keep] + self.midnight_ns,
                (columns["channel"][keep] + line * CHANNELS).astype(np.uint8),
                columns["offset"][keep] + np.uint32(base),
                columns["length"][keep],
                columns["messages"][keep],
            ))  # fmt: skip
        merged = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        order = np.argsort(merged[0], kind="stable")
        return Datagrams(data, *(column[order] for column in merged))


def packets(
    seed: int,
    messages: int,
    *,
    rate_mbps: float = 40.0,
    feed: Feed | None = None,
    opening: bool = True,
) -> tuple[Array, Array, Array]:
    """Packets of the `market` profile, one line's, without refreshes: until there are so many
    messages. (data uint8, offset int64, length int64), in the order in which they are sent.
    `opening=False` leaves out the resets, the reference data and the telling of the books."""
    traffic = Traffic(load_profile("market"), seed, rate_mbps=rate_mbps, refresh=False, feed=feed)
    parts, offsets, lengths, at, so_far = [], [], [], 0, 0
    for block in traffic.blocks():
        parts.append(block.data)
        offsets.append(block.columns["offset"].astype(np.int64) + at)
        lengths.append(block.columns["length"].astype(np.int64))
        at += len(block.data)
        so_far += int(block.columns["messages"].sum(dtype=np.int64))
        opened = traffic.flow.opened
        before = 0 if opening or opened is None else int(opened["messages"].sum())
        if so_far - before >= messages and (opening or opened is not None):
            break
    first = 0 if opening or opened is None else int(opened["packets"].sum())
    return np.concatenate(parts), np.concatenate(offsets)[first:], np.concatenate(lengths)[first:]


def _split(all_: Datagrams, horizon: int) -> tuple[Datagrams, Datagrams]:
    """Those up to the horizon, and those after it with payloads of their own."""
    at = int(np.searchsorted(all_.time_ns, horizon, "right"))
    columns = (all_.time_ns, all_.destination, all_.offset, all_.length, all_.messages)
    ready = Datagrams(all_.data, *(column[:at] for column in columns))
    lengths = all_.length[at:].astype(np.int64)
    data = np.concatenate([
        all_.data[start : start + length]
        for start, length in zip(all_.offset[at:].tolist(), lengths.tolist(), strict=True)
    ] or [np.empty(0, np.uint8)])  # fmt: skip
    offset = (np.cumsum(lengths) - lengths).astype(np.uint32)
    return ready, Datagrams(
        data, all_.time_ns[at:], all_.destination[at:], offset, all_.length[at:],
        all_.messages[at:],
    )  # fmt: skip


def _loss_of(loss: tuple[float, float]) -> tuple[int, int]:
    """Shares as the tape counts them."""
    a, b = (min(int(share * (1 << 32)), (1 << 32) - 1) for share in loss)
    return a, b


def _destinations() -> list[tuple[str, int]]:
    """By line: the services' groups and ports, then their refresh channels'; as the simulated
    exchange has them unless told otherwise."""
    plan = ExchangePlan()
    return [
        place(line, service)
        for line in LINES
        for place in (plan.address, plan.refresh_address)
        for service in SERVICES
    ]


def _market(traffic: Traffic, tape: Any) -> SimpleNamespace:
    """The parts of a market that a `Flow` drives."""
    feed, instruments = traffic.feed, traffic.instruments
    dice = Dice(traffic.seed * 2)
    time = MessageTime(date.fromisoformat(traffic.profile.day))
    shares = [each for each in instruments if each.kind is Kind.EQUITY]
    warrants = [each for each in instruments if each.kind is Kind.WARRANT]
    indices = [each for each in instruments if each.kind is Kind.INDEX]
    books = ShareBooks(feed, shares, dice, tape, (time.date, time.previous_date))
    issuers = IssuerQuotes(feed, warrants, len(shares), dice, tape)
    values = IndexValues(feed, indices, len(shares) + len(warrants), tape, books, shares)
    notices = Notices(feed, instruments, books.halted, dice, tape, time)
    settings = traffic.settings
    return SimpleNamespace(
        tape=tape, dice=dice, books=books, issuers=issuers, indices=values, notices=notices,
        shares=_crowd(dice, len(shares)), warrants=_crowd(dice, len(warrants)),
        snapshots=SnapshotSource(
            feed, tape, dice, States(feed, books, issuers, values, notices),
            settings.refresh_body, settings.refresh_messages,
        ),
        resets=[
            feed.encode_packet(kind="reset", sequence=1, service=service)
            if channel < REALTIME or settings.shares_ppm[REALTIME] else None
            for channel, service in enumerate(SERVICES * 2)
        ],
        beats=[feed.encode_packet(kind="heartbeat", sequence=0, service=s) for s in SERVICES],
        delimiters=memoryview(bytearray(
            b"".join(feed.encode_message(231, retransmission_indicator=each) for each in "SE")
        )),
    )  # fmt: skip


def _crowd(dice: Dice, members: int) -> Crowd:
    return Crowd(dice, [(1 << 32) // (rank + HEAD) for rank in range(members)])


class States:
    """The present state of each service as messages, for snapshots: called with a channel, it
    answers with arrays of rows of equal size."""

    def __init__(self, feed: Feed, books: Any, issuers: Any, values: Any, notices: Notices) -> None:
        self._books, self._issuers, self._values = books, issuers, values
        self._notices = notices
        self._size = {type_: feed.layout(type_).size for type_ in (140, 230, 240, 241, 546)}
        self._delimiters = [
            np.frombuffer(feed.encode_message(231, retransmission_indicator=each), np.uint8)
            for each in "SE"
        ]

    def __call__(self, channel: int) -> list[Array]:
        """The messages of service 101 + channel, in the order in which a snapshot has them."""
        books, issuers, size = self._books, self._issuers, self._size
        if channel == 0:
            return self._reference()
        if channel == 2:
            return [rows_of(books.tables["quotes"], size[140], books.marks("quoted"))]
        if channel == 3:
            return self._orders()
        if channel == 5:
            return [rows_of(issuers.tables["quotes"], size[140], issuers.marks("quoted"))]
        if channel == 6:
            return [rows_of(self._values.tables["values"], size[546], self._values.marks())]
        owner = books if channel == 1 else issuers
        return [
            rows_of(owner.tables["trades"], size[240], owner.marks("deals")),
            rows_of(owner.tables["updates"], size[241], owner.marks("told")),
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
        """Every book's orders between delimiters."""
        books, size = self._books, self._size[230]
        room = np.empty(books.shares * SLOTS * size, np.uint8)
        view, count = memoryview(room), 0
        for share in range(books.shares):
            count += books.retold(share, view, count * size)
        start, end = (each[None] for each in self._delimiters)
        return [start, rows_of(room[: count * size], size), end]
