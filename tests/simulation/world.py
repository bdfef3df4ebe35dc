"""A whole exchange, a network and a gateway in one process, in simulated time, out of one seed.

`World(seed)` draws everything: the session, how its times are stretched, what the lines and the
servers do wrong and how hard, the settings of the gateway, when it starts. `World.play` runs it:
faults until `heal_ns`, then none. Everything that happens is an arrival on a line, known in
advance, or an event in one heap; both come in the order of their times, ties in a fixed order.

`Plan` holds what a seed drew; the bars of economy set one up by hand instead.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from network import (
    DATA,
    JITTER_NS_MAX,
    MS,
    NEVER,
    RESET,
    SKEW_NS_MAX,
    LineFaults,
    Shared,
    TcpFaults,
    arrivals,
    sometimes,
)
from oracle import Link, Subscriber
from servers import (
    REFRESH_TRICKS,
    RETRANS_TRICKS,
    Exchange,
    Mischief,
    Port,
    RefreshFaults,
)
from sessions import SECOND, Session, outside, session
from watched_gateway import WatchedGateway

from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.settings import RecoverySettings, ServerSettings

#: Faults end two seconds into a session, times its stretch.
FAULTS_NS = 2 * SECOND
#: What healed must be whole by then.
CONVERGE_NS = 2 * SECOND
#: Packets outside the sequence that each service has in a session with some.
OUTSIDE = 8
POOL = 6


@dataclass
class Plan:
    """Plan of a run: its session, faults and settings. Times count from the session's start."""

    session: Session
    stretch: float = 1.0
    start_ns: int = 0
    heal_ns: int = NEVER
    #: The reset packet in the session's middle is lost on both lines: numbers begin anew unsaid.
    reset_lost: bool = False
    #: (line A, line B, both) of the live channels, in the order of services; and of refresh lines.
    live: list[tuple[LineFaults, LineFaults, Shared]] = field(default_factory=list)
    refresh: list[tuple[LineFaults, LineFaults, Shared]] = field(default_factory=list)
    tcp: dict[str, TcpFaults] = field(default_factory=dict)
    mischief: dict[str, Mischief] = field(default_factory=dict)
    snapshots: RefreshFaults = field(default_factory=RefreshFaults)
    cycle_ns: int = 0
    lag_ns: int = 0
    #: How often the receive thread's inlet has no room for what recovery brings.
    inlet_full: float = 0.0
    history_bytes: int = 0
    #: Packets outside the sequence are sent among the others.
    outside: bool = False
    #: When subscribers attach that want each service's state first.
    attach_ns: list[int] = field(default_factory=list)
    arbitration: ArbitrationSettings = field(default_factory=ArbitrationSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    rts: ServerSettings = field(default_factory=ServerSettings)
    rfs: ServerSettings = field(default_factory=ServerSettings)


def calm() -> tuple[LineFaults, LineFaults, Shared]:
    """Two good lines."""
    return LineFaults(), LineFaults(), Shared()


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"{seed}/plan")
    stretch = draw.uniform(1.0, 1.3)
    heal = int(FAULTS_NS * stretch)
    plan = Plan(session(draw.randrange(POOL)), stretch, heal_ns=heal)
    if draw.random() < 0.2:
        # Not just behind a reset: who joins there cannot tell the lagging line's numbers, nor its
        # copy of the reset, from new ones.
        latest = heal // 2 if plan.session.renumbered else heal
        plan.start_ns = draw.randrange(SKEW_NS_MAX + JITTER_NS_MAX, latest)
    count = len(plan.session.services)
    plan.live = [_lines(draw, heal) for _ in range(count)]
    plan.refresh = [_lines(draw, heal) if draw.random() < 0.5 else calm() for _ in range(count)]
    if draw.random() < 0.1:
        plan.live = [calm()] * count
    for name, tricks in (("rts", RETRANS_TRICKS), ("rfs", REFRESH_TRICKS)):
        plan.tcp[name] = TcpFaults.drawn(draw, heal)
        plan.mischief[name] = Mischief.drawn(draw, tricks, heal)
    plan.snapshots = RefreshFaults.drawn(draw, heal)
    plan.cycle_ns = draw.choice([0, 0, draw.randrange(200 * MS, 1_000 * MS)])
    plan.lag_ns = draw.choice([0, 50_000, draw.randrange(2 * MS)])
    if draw.random() < 0.2:
        plan.attach_ns = [draw.randrange(plan.start_ns, heal), heal + draw.randrange(500 * MS)]
    _draw_settings(draw, plan)
    plan.outside = draw.random() < 0.3
    plan.inlet_full = sometimes(draw, 0.2, 0.0, 0.5)
    plan.history_bytes = draw.choice([0, 0, 1 << 18])
    return plan


def _lines(draw: random.Random, heal: int) -> tuple[LineFaults, LineFaults, Shared]:
    return (
        LineFaults.drawn(draw, heal, False),
        LineFaults.drawn(draw, heal, True),
        Shared.drawn(draw, heal),
    )


def _draw_settings(draw: random.Random, plan: Plan) -> None:
    wait = draw.choice([0, 500, 5_000, draw.randrange(50_000)])
    plan.arbitration = ArbitrationSettings(
        gap_wait_us=wait, start_wait_us=wait, compare_packets=256, silent_us=350_000,
        hold_packets=draw.choice([64, 512, 512, 2048]), quarantine_packets=16,
        packet_bytes_max=1536,
    )  # fmt: skip
    plan.recovery = RecoverySettings(
        request_packets_max=draw.choice([10, 100, 1000]),
        outstanding_max=draw.choice([1, 4, 16]),
        requests_per_s=draw.choice([0, 0, 200, 1000]),
        requests_per_day=draw.choice([0, 0, 0, draw.randrange(1, 50)]),
        request_timeout_us=draw.randrange(10_000, 100_000),
        request_gather_us=draw.choice((0, 0, 500, 2_000, 20_000)),
        retries=draw.randrange(4),
        backoff_us=draw.randrange(1_000, 20_000),
        recovery_wait_us=draw.choice([20_000, 100_000, draw.randrange(1_000, 400_000)]),
        refresh_timeout_us=draw.randrange(100_000, 300_000),
        refresh_tries=draw.randrange(1, 4),
        refresh_clock_us=0,  # one clock for all
        refresh_backoff_us=draw.randrange(20_000, 200_000),
        refresh_retry_us=draw.randrange(100_000, 300_000),
        store_bytes=draw.choice([1 << 16, 1 << 20]),
        heartbeat_us=50_000,
        dead_us=draw.randrange(100_000, 300_000),
        reconnect_us=5_000,
        reconnect_max_us=100_000,
    )
    quota = draw.choice([0, 0, 0, draw.randrange(1, 30)])
    plan.rts = ServerSettings(
        request_packets_max=draw.choice([5, 100, 1000]),
        requests_per_day=quota,
        window_bytes=draw.choice([1 << 14, 1 << 17, 1 << 22]),
        chunk_bytes=draw.choice([1 << 11, 1 << 16]),
        heartbeat_us=50_000,
        dead_us=500_000,
    )
    plan.rfs = ServerSettings(
        refresh_over_tcp=draw.random() < 0.3,
        chunk_bytes=draw.choice([1 << 11, 1 << 16]),
        heartbeat_us=50_000,
        dead_us=500_000,
    )


class World:
    """One run of a plan; `seed` draws what happens within it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.seed = seed
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple]] = []
        self._ties = 0
        self._inlet_draw = random.Random(f"{seed}/inlet")
        self._refresh_draws = [random.Random(f"{seed}/refresh/{n}") for n in range(3)]
        self.channels = {service: index for index, service in enumerate(plan.session.services)}
        self.exchange = Exchange(
            plan.session, plan.stretch, random.Random(f"{seed}/exchange"),
            plan.rts.window_bytes, plan.snapshots, self._send_refresh,
        )  # fmt: skip
        ports = {
            name: Port(
                name, self.exchange, settings, plan.tcp.get(name, TcpFaults()),
                plan.mischief.get(name, Mischief()), random.Random(f"{seed}/{name}"),
                self.schedule,
            )
            for name, settings in (("rts", plan.rts), ("rfs", plan.rfs))
        }  # fmt: skip
        self.ports = ports
        self.subscriber = Subscriber(plan.session, lambda: self.now)
        self.gateway = WatchedGateway(
            plan.session.services, plan.arbitration, plan.recovery, plan.history_bytes, ports,
            self.subscriber, self.schedule, self._inlet_has_room, seed, plan.lag_ns,
        )  # fmt: skip
        self.arrivals = self._arrivals()
        if plan.cycle_ns:
            for index, service in enumerate(plan.session.services):
                first = plan.cycle_ns * (index + 1) // 4
                self.schedule(first, self._cycle, service, plan.cycle_ns)

        for at in plan.attach_ns:
            self.schedule(at, self._attach)

    def _attach(self, now_ns: int) -> None:
        link = Link(now_ns)
        self.subscriber.links.append(link)
        self.gateway.attach(now_ns, link)

    def schedule(self, at: int, function: Callable[..., None], *arguments) -> None:
        """Call `function(now_ns, *arguments)` at `at`."""
        self._ties += 1
        heapq.heappush(self._heap, (at, self._ties, function, arguments))

    def play(self, until_ns: int | None = None) -> None:
        """Run to the end: `CONVERGE_NS` after the healing, or `until_ns` of the session."""
        plan, gateway, heap = self.plan, self.gateway, self._heap
        end = plan.heal_ns + CONVERGE_NS if until_ns is None else until_ns
        if plan.heal_ns < NEVER:
            self.schedule(plan.heal_ns, self._heal)
        gateway.start(plan.start_ns)
        coming, index, count = self.arrivals, 0, len(self.arrivals)
        while index < count and coming[index][0] < plan.start_ns:
            index += 1
        arrival = coming[index][0] if index < count else NEVER
        while True:
            due = heap[0][0] if heap else NEVER
            deadline = gateway.deadline_ns
            now = min(arrival, due, deadline)
            if now > end:
                break
            self.now = now = max(now, self.now)
            if deadline <= now:
                gateway.tick(now)
            elif due <= now:
                _, _, function, arguments = heapq.heappop(heap)
                function(now, *arguments)
            else:
                _, _, channel, line, sent = coming[index]
                gateway.live(channel, line, sent, now)
                index += 1
                arrival = coming[index][0] if index < count else NEVER
        self.now = end
        self.subscriber.settled(end)

    # -- parts ------------------------------------------------------------------------------

    def _arrivals(self) -> list[tuple]:
        """Everything that the live lines bring: (time, tie, channel, line, what was sent)."""
        plan, came, tie = self.plan, [], 0
        for service, i in self.channels.items():
            mine = [
                sent
                for sent in plan.session.sent
                if sent.service == service
                and not (plan.reset_lost and sent.kind == RESET and sent.epoch)
            ]
            sends = [(int(sent.at * plan.stretch), sent.kind) for sent in mine]
            a, b, shared = plan.live[i] if plan.live else calm()
            draw = random.Random(f"{self.seed}/live/{i}")
            lost = shared.lost(draw, sends)
            for line, faults in enumerate((a, b)):
                for at, index in arrivals(draw, faults, sends, lost):
                    tie += 1
                    came.append((at, tie, i, line, mine[index]))
            if plan.outside:
                draw = random.Random(f"{self.seed}/outside/{i}")
                until = plan.heal_ns if plan.heal_ns < NEVER else plan.session.duration
                mine = [outside(draw.randrange(until), service, n) for n in range(OUTSIDE)]
                sends = [(sent.at, DATA) for sent in mine]
                for line, faults in enumerate((a, b)):
                    for at, index in arrivals(draw, faults, sends):
                        tie += 1
                        came.append((at, tie, i, line, mine[index]))
        came.sort()
        return came

    def _send_refresh(self, service: int, timed: list[tuple[int, bytes]]) -> None:
        """Packets for a service's refresh lines, with what happens to them there."""
        i = self.channels[service]
        a, b, shared = self.plan.refresh[i] if self.plan.refresh else calm()
        draw = self._refresh_draws[i]
        sends = [(at, DATA) for at, _ in timed]
        lost = shared.lost(draw, sends)
        for line, faults in enumerate((a, b)):
            for at, index in arrivals(draw, faults, sends, lost):
                self.schedule(at, self._refresh_arrives, i, line, timed[index][1])

    def _refresh_arrives(self, now_ns: int, channel: int, line: int, packet: bytes) -> None:
        if now_ns >= self.plan.start_ns:
            self.gateway.refresh(channel, line, packet, now_ns)

    def _inlet_has_room(self) -> bool:
        chance = 0.0 if self.now >= self.plan.heal_ns else self.plan.inlet_full
        return not chance or self._inlet_draw.random() >= chance

    def _cycle(self, now_ns: int, service: int, every: int) -> None:
        """A cyclic snapshot, unasked."""
        if now_ns < self.plan.heal_ns + CONVERGE_NS:
            self.exchange.snapshot(service, now_ns)
            self.schedule(now_ns + every, self._cycle, service, every)

    def _heal(self, now_ns: int) -> None:
        """Faults are over. Who was told that the day's quota is used up can ask no more, so
        snapshots come by themselves from here on."""
        refused_today = self.ports["rfs"].refused[5]
        if refused_today and not self.plan.cycle_ns:
            for service in self.channels:
                self._cycle(now_ns, service, 400 * MS)
