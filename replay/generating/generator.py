"""Generated UTP-MD sessions: seven services of a simulated exchange, packet by packet.

A `SessionGenerator` is a sans-IO machine: seeded, fed with simulated time, answering with the
packets that fall due. Two generators with the same description, seed and settings give the same
packets whatever the steps in which time is told; a real-time exchange, a capture writer and a
simulation all draw from it.

A session begins with a sequence reset on each service (packet 1; the next is 2), the reference
data on 101 (550, a 553 for each instrument, 551) and the opening books. Then activity comes in
bursts, as the source paper found: a burst is a few runs, a run a few events of one instrument
within a fraction of a millisecond, and some runs go on a few milliseconds later, so that about
70 % of a symbol's repeats come within 1 ms and 80 % within 10 ms. Packets are cut when they hold
their service's usual number of messages or when the burst ends, never held back longer. Services
idle for `heartbeat_ns` send heartbeats. Now and then an equity is halted (505 on 101): nothing of
it moves until it is reopened.

Rates: the gap after each burst is drawn in proportion to the messages it brought, so that the
mean rate is `messages_per_s` whatever the mix. The shape of a day (openings, peaks, refresh
traffic) is not modelled here.
"""

import heapq
import random
from bisect import bisect
from collections import deque
from collections.abc import Iterator
from datetime import date
from itertools import accumulate

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.generator_market import (
    REFERENCE_SYSTEM,
    SHARE_SYSTEM,
    IndexMarket,
    IssuerMarket,
    Share,
    ShareMarket,
    Warrant,
)
from feedhandler.replay.generating.generator_packets import (
    INDICES,
    ORDERS,
    QUOTES,
    REFERENCE,
    SERVICES,
    TRADES,
    WARRANT_QUOTES,
    WARRANT_TRADES,
    Outgoing,
    PacketCutter,
)
from feedhandler.replay.generating.generator_wire import MessageTime, Wire
from feedhandler.replay.generating.instruments import Instrument, Kind, listing

#: Cumulative shares of bursts: index values, warrant trades, warrant quotes; the rest are equities.
INDEX_BURSTS, WARRANT_TRADES_BURSTS, WARRANT_BURSTS = 0.022, 0.045, 0.36
#: The chances that a burst goes on to another run, and a run to another event.
MORE_RUNS, MORE_EVENTS = 0.6, 0.6
MORE_WARRANTS, MORE_WARRANT_EVENTS = 0.55, 0.6
#: The chance that a run goes on later, and when.
ECHO, ECHO_NS_MIN, ECHO_NS_MAX = 0.12, 1_000_000, 9_000_000
#: Events of a burst lie up to this far apart, closer where the rate asks for it.
EVENT_GAP_NS_MAX = 40_000

#: While books open, packets are filled up and nothing waits for the session's mean rate.
OPENING_MESSAGES, OPENING_RATE_MIN = 20, 20_000.0
#: What closing one share brings, about: the close takes its time as the opening does.
CLOSING_MESSAGES = 13
#: Simulated time between halts, and how long one lasts.
HALT_EVERY_NS, HALT_NS = 2_000_000_000, 400_000_000
#: A trading day of the month whose figures the source paper printed.
DEFAULT_DAY = date(2011, 3, 15)
NINE_O_CLOCK_NS = 9 * 3_600_000_000_000
#: Beyond this no machine here generates in real time; a wrong unit is likelier.
RATE_MAX = 10_000_000


class SessionGenerator:
    """One session of all seven services; see the module for what it is made of.

    `instruments` counts equities, warrants and indices together; `day` and `opening_ns` (after
    midnight, exchange time) date the messages. Raises `UsageError` for settings out of bounds.
    """

    def __init__(
        self,
        feed: Feed,
        seed: int,
        *,
        instruments: int = 300,
        messages_per_s: float = 20_000.0,
        heartbeat_ns: int = 1_000_000_000,
        day: date = DEFAULT_DAY,
        opening_ns: int = NINE_O_CLOCK_NS,
    ) -> None:
        if not 0 < messages_per_s <= RATE_MAX:
            raise UsageError(f"{messages_per_s} messages a second", f"use up to {RATE_MAX}")
        if heartbeat_ns < 1_000_000:
            raise UsageError(f"heartbeats every {heartbeat_ns} ns", "use 1 ms or more")
        self._rng = random.Random(seed)
        self._random = self._rng.random
        self.instruments = listing(self._rng, instruments)
        self.day = day
        self._opening_ns = opening_ns
        self._message_ns = 1e9 / messages_per_s
        self._event_gap_ns = min(EVENT_GAP_NS_MAX, int(self._message_ns))
        self._time = MessageTime(day)
        self._cutter = PacketCutter(feed, self._time, opening_ns, heartbeat_ns)
        self._wire = Wire(feed)
        #: All times from here on count from the session's start.
        self._now_ns = 0
        self._next_burst_ns = 0
        self._next_halt_ns = HALT_EVERY_NS
        #: What comes later: (when, tie-break, whose run goes on or who is reopened).
        self._later: list[tuple[int, int, Share | Warrant]] = []
        self._put_off = 0
        self._reference_number = 0
        self._begun = False
        self._build_markets()

    @property
    def messages(self) -> int:
        """Market messages in the packets given so far."""
        return self._cutter.messages

    def step(self, until_ns: int) -> list[Outgoing]:
        """The packets of every burst that begins at or before `until_ns`, in order of `due_ns`.

        A burst is given whole, so its last packets may be due a fraction of a millisecond after
        `until_ns`; nothing given later is due earlier. Times count from the session's start.
        """
        if not self._begun:
            self._begun = True
            self._begin()
        while True:
            coming = self._next_burst_ns
            if self._later and self._later[0][0] < coming:
                coming = self._later[0][0]
            coming = max(coming, self._now_ns)
            heartbeat = self._cutter.heartbeat_due_ns
            if heartbeat < coming:
                if heartbeat > until_ns:
                    break
                self._set_time(max(heartbeat, self._now_ns))
                self._cutter.beat()
            elif coming > until_ns:
                break
            else:
                self._set_time(coming)
                self._advance()
        return self._cutter.take()

    def packets(self, duration_ns: int, step_ns: int = 10_000_000) -> Iterator[Outgoing]:
        """All packets of the bursts of the first `duration_ns` of the session."""
        for until in range(step_ns, duration_ns + step_ns, step_ns):
            yield from self.step(min(until, duration_ns))

    def close(self, now_ns: int) -> list[Outgoing]:
        """The market closes: closing prices, books cleared, last quotes, then heartbeats.

        Every service gets at least one packet of messages, so that receivers notice a loss just
        before the end; whoever sends these packets should not lose them on purpose. The session
        is over afterwards. `now_ns` counts from the session's start, as in `step`.
        """
        self._set_time(max(now_ns, self._now_ns))
        for service in SERVICES:
            self._cutter.set_messages_max(service, OPENING_MESSAGES)
        for share in self._shares.shares:
            self._set_time(self._now_ns + self._opening_gap_ns(CLOSING_MESSAGES))
            self._shares.close(share, self._time)
            share.halted = False
            self._set_halted(share, True)
        for warrant in self._issuers.warrants:
            self._issuers.close(warrant, self._time)
        self._indices.show(self._time)
        self._cutter.cut_all()
        self._cutter.beat_all()
        return self._cutter.take()

    def rest(self, until_ns: int) -> list[Outgoing]:
        """Heartbeats due by `until_ns`: all that comes after `close`."""
        while self._cutter.heartbeat_due_ns <= until_ns:
            self._set_time(max(self._cutter.heartbeat_due_ns, self._now_ns))
            self._cutter.beat()
        return self._cutter.take()

    def next_sequences(self) -> dict[int, int]:
        """The number that the next packet of each service will carry."""
        return self._cutter.next_sequences()

    def _build_markets(self) -> None:
        kinds: dict[Kind, list[Instrument]] = {kind: [] for kind in Kind}
        for instrument in self.instruments:
            kinds[instrument.kind].append(instrument)
        wire, rng, tape = self._wire, self._rng, self._cutter.tape
        self._reference_tape = tape(REFERENCE)
        self._shares = ShareMarket(
            wire, rng, kinds[Kind.EQUITY], tape(ORDERS), tape(QUOTES), tape(TRADES)
        )
        self._issuers = IssuerMarket(
            wire, rng, kinds[Kind.WARRANT], tape(WARRANT_QUOTES), tape(WARRANT_TRADES)
        )
        self._indices = IndexMarket(wire, kinds[Kind.INDEX], self._shares.shares, tape(INDICES))
        self._share_weights = list(accumulate(i.activity for i in kinds[Kind.EQUITY]))
        self._warrant_weights = list(accumulate(i.activity for i in kinds[Kind.WARRANT]))
        self._opening = deque(self._shares.shares)

    def _set_time(self, ns: int) -> None:
        self._now_ns = ns
        self._time.set(self._opening_ns + ns)

    def _begin(self) -> None:
        """Sequence resets, then the reference data; the opening books follow as bursts."""
        self._set_time(0)
        self._cutter.reset_all()
        self._reference_tape(self._wire.start_reference)
        for instrument in self.instruments:
            self._reference_number += 1
            self._reference_tape(
                self._wire.reference(
                    instrument, self._reference_number, REFERENCE_SYSTEM, self._time
                )
            )
            self._set_time(self._now_ns + self._opening_gap_ns(1))
        self._reference_tape(self._wire.end_reference)
        self._cutter.cut_all()
        for service in (ORDERS, QUOTES):
            self._cutter.set_messages_max(service, OPENING_MESSAGES)
        self._next_burst_ns = self._now_ns

    def _advance(self) -> None:
        """One burst, whichever is next; what it brought decides when the following one comes."""
        before = self._cutter.messages
        start = self._now_ns
        if self._opening:
            self._open_next()
            self._next_burst_ns = start + self._opening_gap_ns(self._cutter.messages - before)
            return
        if self._later and self._later[0][0] <= start:
            self._go_on(heapq.heappop(self._later)[2])
            base = self._next_burst_ns
        else:
            self._burst()
            base = start
        self._cutter.cut_all()
        messages = self._cutter.messages - before
        gap_ns = self._rng.expovariate(1.0) * max(messages, 1) * self._message_ns
        self._next_burst_ns = base + int(gap_ns)

    def _opening_gap_ns(self, messages: int) -> int:
        return int(messages * min(self._message_ns, 1e9 / OPENING_RATE_MIN))

    def _open_next(self) -> None:
        self._shares.open(self._opening.popleft(), self._time)
        self._cutter.cut_all()
        if not self._opening:
            for service in (ORDERS, QUOTES):
                self._cutter.set_messages_max(service, None)

    def _burst(self) -> None:
        draw = self._random()
        if self._now_ns >= self._next_halt_ns:
            self._next_halt_ns = self._now_ns + HALT_EVERY_NS
            self._set_halted(self._pick_share(), True)
        elif draw < INDEX_BURSTS:
            self._indices.show(self._time)
        elif draw < WARRANT_TRADES_BURSTS:
            self._issuers.trade(self._pick_warrant(), self._time)
        elif draw < WARRANT_BURSTS:
            self._run_warrant(self._pick_warrant())
            while self._random() < MORE_WARRANTS:
                self._run_warrant(self._pick_warrant())
        else:
            self._run_share(self._pick_share())
            while self._random() < MORE_RUNS:
                self._run_share(self._pick_share())

    def _go_on(self, what: Share | Warrant) -> None:
        """A run continues, or a halted share is reopened: a halted share has nothing else to do."""
        if isinstance(what, Warrant):
            self._run_warrant(what)
        elif what.halted and self._now_ns >= what.halted_until_ns:
            self._set_halted(what, False)
        else:
            self._run_share(what)

    def _run_share(self, share: Share) -> None:
        """Events of one share close together, and perhaps a continuation."""
        if share.halted:
            return
        self._shares.act(share, self._time)
        while self._random() < MORE_EVENTS:
            self._pause()
            self._shares.act(share, self._time)
        if self._random() < ECHO:
            self._come_back(share, ECHO_NS_MIN + int(self._random() * ECHO_NS_MAX))

    def _run_warrant(self, warrant: Warrant) -> None:
        self._issuers.act(warrant, self._time)
        while self._random() < MORE_WARRANT_EVENTS:
            self._pause()
            self._issuers.act(warrant, self._time)
        if self._random() < ECHO:
            self._come_back(warrant, ECHO_NS_MIN + int(self._random() * ECHO_NS_MAX))

    def _pause(self) -> None:
        self._set_time(self._now_ns + int(self._random() * self._event_gap_ns))

    def _come_back(self, what: Share | Warrant, delay_ns: int) -> None:
        self._put_off += 1
        heapq.heappush(self._later, (self._now_ns + delay_ns, self._put_off, what))

    def _set_halted(self, share: Share, halted: bool) -> None:
        if share.halted == halted:
            return
        share.halted = halted
        share.halted_until_ns = self._now_ns + HALT_NS
        self._shares.number += 1
        reopening_ns = self._opening_ns + share.halted_until_ns if halted else self._time.ns
        self._reference_tape(
            self._wire.state(
                share.instrument,
                halted,
                reopening_ns,
                self._shares.number,
                SHARE_SYSTEM,
                self._time,
            )
        )
        if halted:
            self._come_back(share, HALT_NS)

    def _pick_share(self) -> Share:
        weights = self._share_weights
        return self._shares.shares[bisect(weights, self._random() * weights[-1])]

    def _pick_warrant(self) -> Warrant:
        weights = self._warrant_weights
        return self._issuers.warrants[bisect(weights, self._random() * weights[-1])]
