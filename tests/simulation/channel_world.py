"""The gateway of one channel in a simulated world: lines A and B, links to servers, one subscriber.

A `ChannelWorld` drives the core that ships (`core_driver`), keeps the time, and draws the faults of
its plan until `HEAL_NS`.
"""

import heapq
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core_driver import CoreDriver
from network import NEVER, Connection, TcpFaults, TcpLink

from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_next
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    ServerConfig,
)
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.settings import RecoverySettings
from tests.support.amqp import FakeLink
from tests.support.seeds import seeds_to_play

MS = 1_000_000
SERVICE = 7
#: After this all is well.
HEAL_NS = 600 * MS
#: Seeds that are played where nobody says how many.
SEEDS_USUAL = 50
#: Qualities of a stream of which nothing is missing.
WHOLE = ("OK", "REFRESHED")
LINES = tuple(
    LineConfig(name=name, group=f"239.1.1.{at}", port=30_001) for at, name in enumerate("AB", 1)
)


@dataclass(kw_only=True)
class LinePlan:
    """Draws of one seed for lines A and B, whatever the servers."""

    lost: tuple[float, float]
    lost_on_both: float
    doubled: float
    jitter_ns: int
    skew_ns: int
    repacked: bool


def drawn_lines(rng: random.Random) -> dict[str, Any]:
    """Draw the fields of a `LinePlan`."""
    return {
        "lost": (rng.choice([0, 0.02, 0.2]), rng.choice([0, 0.02, 0.2])),
        "lost_on_both": rng.choice([0, 0.02, 0.1]),
        "doubled": rng.choice([0, 0.1]),
        "jitter_ns": rng.choice([0, 100_000, 3 * MS]),
        "skew_ns": rng.choice([0, 0, MS, 5 * MS]),
        "repacked": rng.random() < 0.5,
    }


class Plan(Protocol):
    """Draws of one seed for the network, whatever the servers."""

    jitter_ns: int
    skew_ns: int
    tcp: TcpFaults
    join_ns: int
    lag_ns: int
    recovery: RecoverySettings


def drawn_recovery(
    rng: random.Random,
    good: bool,
    refresh_timeout_us: tuple[int, int],
    dead_us: tuple[int, int],
) -> RecoverySettings:
    """Settings of recovery from a `good` server, or one that is given up sooner or later; of the
    last two the bounds."""
    return RecoverySettings(
        request_packets_max=rng.choice([10, 100, 1000]),
        request_timeout_us=rng.randrange(30_000, 100_000),
        request_gather_us=rng.choice([0, 500, 2_000]),
        retries=8 if good else rng.randrange(4),
        backoff_us=rng.randrange(1_000, 20_000),
        recovery_wait_us=2_000_000 if good else rng.randrange(1_000, 300_000),
        refresh_timeout_us=rng.randrange(*refresh_timeout_us),
        refresh_tries=rng.randrange(1, 4),
        refresh_backoff_us=rng.randrange(20_000, 200_000),
        refresh_retry_us=rng.randrange(100_000, 300_000),
        heartbeat_us=50_000,
        dead_us=rng.randrange(*dead_us),
        reconnect_us=5_000,
        reconnect_max_us=100_000,
        failback_us=100_000,
    )


class ChannelConnection(Connection):
    """A client's connection to a server of a world."""

    def __init__(self, world: "ChannelWorld", link: TcpLink, to_client: Callable[..., None]):
        super().__init__(link, world.schedule, to_client)
        self.world: Any = world

    def say(self, data: bytes, now_ns: int) -> None:
        """The server's bytes."""
        if self.open:
            self.link.send(1, data, now_ns)
            self.watch()


class SessionConnection(ChannelConnection):
    """A connection whose server has a `sessions.Session` for it."""

    #: The shortest wait for a deadline.
    wait_least_ns = 1_000

    def __init__(
        self, world: "ChannelWorld", server: Any, link: TcpLink, to_client: Callable[..., None]
    ) -> None:
        super().__init__(world, link, to_client)
        self.session = server.session("sim", world.now)
        self._due = NEVER
        self._plan()

    def heard(self, data: bytes, now_ns: int) -> None:
        self._answer(self.session.feed(data, now_ns), now_ns)

    def ended(self) -> None:
        self.session.end()

    def _plan(self) -> None:
        due = max(self.session.deadline_ns, self.world.now + self.wait_least_ns)
        if self.open and not self.session.closed and due < self._due:
            self._due = due
            self.world.schedule(due, self._tick)

    def _tick(self, now_ns: int) -> None:
        if self.open and now_ns == self._due:
            self._due = NEVER
            self._answer(self.session.tick(now_ns), now_ns)

    def _answer(self, data: bytes, now_ns: int) -> None:
        """Say what the session has to say, and plan its next deadline."""
        self.say(data, now_ns)
        self._plan()


class ChannelWorld(CoreDriver):
    """One seed's world. Subclasses draw the plan, publish, and have the servers."""

    end_ns: int

    def __init__(self, rng: random.Random, plan: Plan, feed: Feed) -> None:
        super().__init__()
        self.rng = rng
        self.plan: Any = plan
        self.feed = feed
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ties = itertools.count()
        self.control_events: Counter[str] = Counter()

    def configured(self, servers: Sequence[ServerConfig], channel: ChannelConfig) -> Config:
        """The configuration of a gateway of one channel and these servers."""
        return Config(
            gateway=GatewaySettings(feed=self.feed.name),
            arbitration=ArbitrationSettings(gap_wait_us=15_000, start_wait_us=15_000),
            recovery=self.plan.recovery,
            amqp=AmqpConfig(),
            servers=tuple(servers),
            channels=(channel,),
        )

    def attach(self, config: Config, address: str, seed: int) -> None:
        """Make the gateway, and its subscriber of an address."""
        self.make_core(config, self.feed, self.plan.lag_ns, seed)
        self.link = FakeLink()
        subscription = parse_address(address, self.feed.type_code, snapshots=True)
        self.core.fanout.add(SenderQueue(self.peer, self.link, subscription, 1 << 30, 65_536))
        self.header = PacketHeader()

    def happens(self, chance: float, now_ns: int) -> bool:
        """Draw whether a fault happens; none does once all is well."""
        return now_ns < HEAL_NS and self.rng.random() < chance

    def delay_ns(self, line: int, now_ns: int) -> int:
        """Draw how long a datagram is on its way."""
        jitter = self.rng.randrange(self.plan.jitter_ns + 1) if now_ns < HEAL_NS else 0
        return 10_000 + jitter + (self.plan.skew_ns if line else 0)

    def refused(self, now_ns: int) -> bool:
        """Draw whether a server that is asked for a connection does not take it."""
        faults: TcpFaults = self.plan.tcp
        return now_ns < faults.until_ns and self.rng.random() < faults.refused

    def _arrive(self, now_ns: int, line: int, data: bytes) -> None:
        """A datagram of a line, run by run as the receive thread takes it."""
        if now_ns < self.plan.join_ns:
            return
        at = 0
        while at < len(data):
            assert parse_next(self.feed.table, data, at, len(data) - at, self.header) == 0
            end = at + self.header.length
            self.arbiters[0].receive(line, self.header, data, at, now_ns, now_ns)
            at = end
        self.received(0, now_ns)

    def schedule(self, at: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(now_ns, *arguments)` at `at`."""
        heapq.heappush(self._heap, (at, next(self._ties), function, arguments))

    def play(self) -> None:
        """Run to the end."""
        heap = self._heap
        while True:
            due = heap[0][0] if heap else NEVER
            deadline = NEVER if self.now < self.plan.join_ns else self.deadline_ns
            now = max(min(due, deadline), self.now)
            if now > self.end_ns:
                return
            self.now = now
            if deadline <= now:
                self.tick(now)
            else:
                _, _, function, arguments = heapq.heappop(heap)
                function(now, *arguments)

    def now_ns(self) -> int:
        return self.now

    def line_changed(self, kind: int, channel: int, line: int) -> None:
        self.control_events[RecordKind(kind).name] += 1


def play_seeds(
    play: Callable[[int], Counter[str]], wanted: set[str], rare: tuple[int, ...] = ()
) -> None:
    """Play the first `SEEDS` seeds (without it `SEEDS_USUAL`) and those of `rare`, which bring what
    others seldom do, or just `SEED`; together they must have seen all that is wanted.

    A seed that fails is named by the error.
    """
    seen: Counter[str] = Counter()
    usual = range(int(os.environ.get("SEEDS", SEEDS_USUAL)))
    for seed in seeds_to_play((*usual, *(seed for seed in rare if seed not in usual))):
        try:
            seen += play(seed)
        except Exception as error:
            raise AssertionError(f"SEED={seed}: {error}") from error
    if not os.environ.get("SEED"):
        assert wanted <= set(seen), f"no seed brought {wanted - set(seen)}"
