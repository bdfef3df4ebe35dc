"""A simulated FIX exchange: book updates published on two lossy lines, in real time, with a server.

`FixExchange.run` has a `FixMarket` (`replay.generating.fix_market`) for each channel, and publishes
its messages by a `Publisher`: numbered, packed, paced, on both lines. The lines lose datagrams,
each by itself and both together. The publisher's server of Resend Requests has what both lost,
except one datagram (`gap_s`), for which the server of Market Data Requests gives the present state
of the books. Everything published is written to a ledger, lost or not.

A run ends after `seconds`, or when `stop` is set. Then the lines lose nothing more, and Heartbeats
go on for `linger_s`, so that a loss just before the end shows and is requested; a Logout is last.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.kinds import PacketKind
from feedhandler.fixcast.exchange_plan import (
    FEED_NAME,
    SERVICES,
    FixExchangePlan,
    channel_id,
    definition,
    market_seed,
    symbols_of,
)
from feedhandler.fixcast.market_data_service import requests_answered
from feedhandler.fixcast.publisher import Publisher, PublisherSettings
from feedhandler.fixcast.sending import SendingSettings
from feedhandler.fixcast.session import SessionSettings
from feedhandler.replay.exchange.ledger import LedgerWriter
from feedhandler.replay.exchange.plan import ExchangeProgress, ExchangeResult
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.fix_market import FixMarket
from feedhandler.replay.playing.inject import FaultCounts, Injector, LineFaults

#: Interval of publishing what is due: a clock period of the publisher.
STEP_S = 0.002
#: Interval of Heartbeats on a silent channel, after which a loss at the end shows.
HEARTBEAT_NS = 100_000_000
PROGRESS_INTERVAL_S = 0.25
#: Number of datagrams that losses are drawn for at once.
DRAWN = 1024


class LossyLines:
    """Simulated lines that lose datagrams, and count what each has lost.

    `counts[line].together`: datagrams that no line carried, whatever the reason.
    """

    def __init__(
        self,
        losses: Sequence[float],
        seed: int = 0,
        spare_shared: bool = False,
        together: float = 0.0,
    ) -> None:
        faults = [LineFaults(loss=loss) for loss in losses]
        self._injector = Injector(faults, seed, spare_shared, together)
        self._drawn: list[list[bool]] = []
        self._all = [True] * len(faults)
        self.counts = [FaultCounts() for _ in faults]
        self.healed = False

    def carry(self, lost: bool = False) -> Sequence[bool]:
        """Return by line whether it carries the next datagram; `lost`: none does."""
        carried = self._all if self.healed else self._next()
        if lost:
            carried = [False] * len(carried)
        lost_by_all = not any(carried)
        for each, counts in zip(carried, self.counts, strict=True):
            counts.datagrams += 1
            counts.sends += each
            counts.dropped += not each
            counts.together += lost_by_all
        return carried

    def _next(self) -> list[bool]:
        if not self._drawn:
            columns = np.zeros((DRAWN, len(self._all)), bool)
            first = self._injector.oldest_held
            for line, sends in enumerate(self._injector.plan(np.zeros(DRAWN, np.int64))):
                columns[sends.index - first, line] = True
            self._drawn = columns[::-1].tolist()
        return self._drawn.pop()


class FixExchange:
    """One run of a plan.

    Raises `ConfigError`, in `run`, where an interface, a port or a ledger is unusable.
    """

    def __init__(self, plan: FixExchangePlan, feed: Feed | None = None) -> None:
        self.plan = plan
        self.lines = LossyLines(plan.losses, plan.seed, plan.spare_shared, plan.together)
        self._feed = feed or load_feed(FEED_NAME)
        self._services = {channel_id(service): service for service in SERVICES}
        self._markets = {
            id: FixMarket(market_seed(plan.seed, service), symbols_of(service))
            for id, service in self._services.items()
        }
        self._ledger: LedgerWriter | None = None
        self._packets = dict.fromkeys(SERVICES, 0)
        #: Number of messages published, by channel.
        self.messages = dict.fromkeys(SERVICES, 0)
        self._late_ns = 0
        self._publisher: Publisher | None = None
        #: Id of the channel whose next datagram is to be lost for good; "": none.
        self._hole = ""
        self._withheld: tuple[int, int] | None = None

    async def run(
        self, stop: asyncio.Event, on_progress: Callable[[ExchangeProgress], object] | None = None
    ) -> ExchangeResult:
        """Publish to the end of the plan, or until `stop` is set; return the account."""
        plan, begun_ns = self.plan, time.monotonic_ns()
        with contextlib.ExitStack() as opened:
            if plan.ledger is not None:
                self._ledger = opened.enter_context(LedgerWriter(plan.ledger, self._feed))
            settings = PublisherSettings(
                interface=plan.interface,
                serves=plan.server_port is not None,
                sending=SendingSettings(
                    store_bytes=plan.store_bytes, session=SessionSettings(heartbeat_ns=HEARTBEAT_NS)
                ),
            )
            state = (plan.host, plan.state_port) if plan.state_port is not None else None
            async with (
                Publisher(definition(plan), (), settings, self._network) as publisher,
                requests_answered(publisher, state),
            ):
                self._publisher = publisher
                await self._publish(publisher, stop, on_progress)
                stopped = stop.is_set()
                self.lines.healed = True
                await self._linger(stop, on_progress)
                servers = {"resend server": dict(publisher.answered)} if settings.serves else {}
                following = {
                    service: publisher.sender(id).session.next
                    for id, service in self._services.items()
                }
        counts = dict(zip(LINES, self.lines.counts, strict=True))
        return ExchangeResult(
            packets=dict(self._packets),
            messages=dict(self.messages),
            lines=counts,
            next_sequences=following,
            sent=sum(count.sends for count in self.lines.counts),
            duration_ns=time.monotonic_ns() - begun_ns,
            lateness_max_ns=self._late_ns,
            behind=0,
            withheld=self._withheld,
            snapshots={},
            servers=servers,
            stopped=stopped,
        )

    def _network(self, channel: str, datagram: bytes) -> Sequence[bool]:
        """Write a datagram to the ledger, and return by line whether it is carried."""
        service = self._services[channel]
        self._packets[service] += 1
        if self._ledger is not None:
            self._ledger.sent(datagram, service)
        return self.lines.carry(lost=channel == self._hole and self._withhold(channel, datagram))

    def _withhold(self, channel: str, datagram: bytes) -> bool:
        """Withhold a datagram's messages from the server; return whether it has any."""
        packet = self._feed.decode_packet(datagram)
        if packet.kind != PacketKind.DATA or self._publisher is None:
            return False
        self._hole = ""
        self._withheld = (self._services[channel], packet.sequence)
        served = self._publisher.served[channel]
        served.withhold(packet.sequence, packet.next_sequence - 1)
        return True

    async def _publish(
        self,
        publisher: Publisher,
        stop: asyncio.Event,
        on_progress: Callable[[ExchangeProgress], object] | None,
    ) -> None:
        """Publish what is due, step by step from one start time, the channels in turn."""
        plan, ids = self.plan, list(self._services)
        anchor_ns = time.monotonic_ns()
        until_ns = int(plan.seconds * 1e9) or None
        done = step = reported_ns = 0
        while not stop.is_set():
            elapsed_ns = time.monotonic_ns() - anchor_ns
            over = until_ns is not None and elapsed_ns >= until_ns
            due = int(min(elapsed_ns, until_ns or elapsed_ns) * plan.messages_per_s / 1e9)
            wall_ns = time.time_ns()
            if self._hole_is_due(elapsed_ns):  # before publishing: these may be the last messages
                self._hole = ids[0]
            for number in range(done, due):
                if stop.is_set():  # what is due may be more than the lines take in minutes
                    return
                id = ids[number % len(ids)]
                await publisher.publish(id, self._markets[id].next_message(wall_ns))
                self.messages[self._services[id]] += 1
            done = due
            if over:
                return
            if on_progress is not None and elapsed_ns - reported_ns >= PROGRESS_INTERVAL_S * 1e9:
                reported_ns = elapsed_ns
                on_progress(self._progress(elapsed_ns))
            step = max(step + 1, int(elapsed_ns / 1e9 / STEP_S))
            late_ns = time.monotonic_ns() - anchor_ns - int(step * STEP_S * 1e9)
            self._late_ns = max(self._late_ns, late_ns)
            await asyncio.sleep(max(-late_ns, 0) / 1e9)

    def _hole_is_due(self, elapsed_ns: int) -> bool:
        gap_s = self.plan.gap_s
        return gap_s is not None and self._withheld is None and elapsed_ns >= gap_s * 1e9

    async def _linger(
        self, stop: asyncio.Event, on_progress: Callable[[ExchangeProgress], object] | None
    ) -> None:
        """Wait, with Heartbeats alone, while receivers may still request something."""
        if on_progress is not None:
            on_progress(self._progress(0, closed=True))
        if not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self.plan.linger_s)

    def _progress(self, elapsed_ns: int, closed: bool = False) -> ExchangeProgress:
        return ExchangeProgress(
            elapsed_ns=elapsed_ns,
            packets=sum(self._packets.values()),
            messages=sum(self.messages.values()),
            sent=sum(count.sends for count in self.lines.counts),
            lateness_max_ns=self._late_ns,
            closed=closed,
        )
