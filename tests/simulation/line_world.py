"""One seed of a channel whose server answers by multicast lines or by datagrams, and a subscriber
that trusts nothing.

What plays are the objects that ship: `GatewayCore` with the arbiter, the recovery manager and the
clients of the venue's servers on one side, the venue's servers on the other. A seed draws how often
datagrams are lost (on a line, on both, on refresh lines), delayed, doubled, and how line B packs;
whether the server is good, late, silent, sparing with its quota (over UDP: with its store), or
wrong, and what its retransmission lines, or its datagrams, lose; how connections stall, break and
are refused; when the gateway joins. After `HEAL_NS` all is well, and two simulated seconds later
the stream must be whole, where a server can make it so.
"""

import copy
import json
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from channel_world import (
    HEAL_NS,
    LINES,
    MS,
    SERVICE,
    WHOLE,
    ChannelWorld,
    LinePlan,
    SessionConnection,
    drawn_lines,
    drawn_recovery,
)
from core_driver import Outward
from msgspec.structs import replace
from network import TcpFaults, TcpLink

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.recovery import PROTOCOLS, ProtocolFacts
from feedhandler.config import (
    ChannelConfig,
    Config,
    RefreshLineConfig,
    RetransmissionLineConfig,
    ServerConfig,
)
from feedhandler.retrans.protocols.registry import REGISTRY
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import keep, mutated

END_NS = HEAL_NS + 2_500 * MS
#: The variable that has the password of servers that want one.
PASSWORD = "SIMULATED_PASSWORD"
REFRESH_LINES = tuple(
    RefreshLineConfig(name=name, group=f"239.1.2.{at}", port=30_002)
    for at, name in enumerate("AB", 1)
)
SERVERS = ("good", "good", "late", "lossy", "silent", "sparing", "wrong")
#: Of a sparing server: requests a day, and numbers a request.
SPARING_REQUESTS, SPARING_NUMBERS = 5, 3
#: And what it keeps where it answers by datagrams, and has no quota.
SPARING_BYTES = 1 << 10


def open_or_close(orders: dict[int, bytes], order: int, message: bytes, adds: bool) -> None:
    """Take a message into the open orders, which adds one that is not open or deletes one."""
    if adds:
        assert order not in orders, f"order {order} is open already"
        orders[order] = message
    else:
        assert orders.pop(order, None) is not None, f"order {order} is not open"


@dataclass
class Venue:
    """Properties of a venue that differ between venues.

    `message(number, draw, open)` makes a message and keeps the open orders up to date, `apply`
    takes a message into them; `server` is what a [[server]] has; `snapshots` is the protocol of
    snapshots, "" for none, and `snapshot_server` what its [[server]] has; `nonsense` is what a
    wrong server says on a connection, `harmed` what it makes of what it should say. `header` are
    arguments of every packet. `mutates`: a wrong server may change what it says on a connection,
    which cannot be noticed in a snapshot's messages. `batch`: most messages of a packet.
    `wanted` is what must be seen in some seed of a few, and in the `rare` ones.
    """

    feed: Feed
    protocol: str
    message: Callable[[int, random.Random, dict[int, bytes]], bytes]
    apply: Callable[[dict[int, bytes], bytes], None]
    server: dict[str, Any]
    nonsense: Callable[[random.Random], bytes]
    wanted: set[str]
    rare: tuple[int, ...] = ()
    snapshots: str = ""
    product: int = 0
    harmed: Callable[[bytes, random.Random], bytes] = mutated
    batch: int = 4
    snapshot_server: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    mutates: bool = True
    #: Messages that name the symbols, which snapshots alone have here.
    names: tuple[bytes, ...] = ()
    #: The symbols that they name, by index.
    symbols: dict[int, str] = field(default_factory=dict)
    #: Whether there may be a secondary server of requests.
    secondary: bool = False
    #: Bounds of what is drawn for `refresh_timeout_us`; a spin is announced once a second.
    refresh_timeout_us: tuple[int, int] = (1_100_000, 1_300_000)
    #: What makes the world of a seed, where it is not `World`.
    world: "Callable[[Venue, int], World] | None" = None

    @property
    def facts(self) -> ProtocolFacts:
        """What is known of the protocol of requests."""
        return PROTOCOLS[self.protocol]


@dataclass
class Plan(LinePlan):
    """Draws of one seed: network faults, kinds of servers, timing and recovery settings."""

    server: str
    answers_lost: float
    snapshots: str
    tcp: TcpFaults
    join_ns: int
    lag_ns: int
    recovery: RecoverySettings
    #: Of which kind the secondary server of requests is; "": there is none.
    secondary: str

    @classmethod
    def drawn(cls, rng: random.Random, venue: Venue) -> "Plan":
        """The plan of a seed."""
        server = rng.choice(SERVERS)
        good = server == "good"
        return cls(
            **drawn_lines(rng),
            server=server,
            answers_lost={"good": 0.0, "lossy": 0.5}.get(server, rng.choice([0, 0, 0.1])),
            snapshots=rng.choice(["none", "good", "good", "silent until healed", "wrong"])
            if venue.snapshots
            else "none",
            tcp=TcpFaults() if good else TcpFaults.drawn(rng, HEAL_NS),
            join_ns=rng.choice([0, 0, 0, rng.randrange(HEAL_NS // 2)]),
            lag_ns=rng.choice([0, 0, 50_000, rng.randrange(2 * MS)]),
            recovery=drawn_recovery(rng, good, venue.refresh_timeout_us, (150_000, 300_000)),
            secondary=rng.choice(["", "good", *SERVERS]) if venue.secondary else "",
        )


class KindConnection(SessionConnection):
    """A client's connection to a server of some kind."""

    def __init__(
        self, world: "World", kind: str, server: Any, link: TcpLink, to_client: Callable[..., None]
    ) -> None:
        self.kind = kind
        #: Of a late server: when its latest words go out, and how many do yet.
        self._said_ns = self._unsaid = 0
        super().__init__(world, server, link, to_client)

    def say(self, data: bytes, now_ns: int) -> None:
        """The server's bytes, as its kind has it before all is well."""
        rng, healed = self.world.rng, now_ns >= HEAL_NS
        if not self.open or not data or (self.kind == "silent until healed" and not healed):
            return
        if self.kind == "silent" and not healed:
            return
        if self.kind == "wrong" and not healed and rng.random() < 0.1:
            venue = self.world.venue
            nonsense = venue.nonsense(rng)
            mutates = venue.mutates
            other = venue.harmed(data, rng) if mutates else data[: rng.randrange(len(data))]
            data = rng.choice([nonsense, other])
        if self.kind == "late" and (self._unsaid or not healed):
            late_ns = 0 if healed else rng.randrange(100 * MS)
            self._said_ns = max(self._said_ns, now_ns + late_ns)
            self._unsaid += 1
            self.world.schedule(self._said_ns, self._say_late, data)
        else:
            self._say(now_ns, data)

    def _say_late(self, now_ns: int, data: bytes) -> None:
        self._unsaid -= 1
        self._say(now_ns, data)

    def _say(self, now_ns: int, data: bytes) -> None:
        if self.open:
            self.link.send(1, data, now_ns)
            self.watch()
        if self.session.closed and self.open and not self._unsaid:
            self.open = False
            self.link.close(now_ns)
            self.watch()

    def _answer(self, data: bytes, now_ns: int) -> None:
        self.say(data, now_ns)
        self._closed(now_ns)
        self._plan()

    def _closed(self, now_ns: int) -> None:
        """Close the link of a session that has closed itself, behind what it has said."""
        if self.session.closed and self.open:
            self.world.schedule(now_ns + MS, lambda now: self._say(now, b""))


class Port:
    """A server that listens."""

    def __init__(self, world: "World", kind: str, server: Any) -> None:
        self.world, self.kind, self.server = world, kind, server

    def connect(self, now_ns: int, to_client: Callable[..., None]) -> Any:
        """A connection; None: refused."""
        if self.world.refused(now_ns):
            return None
        self.world.now = now_ns
        return self._made(to_client)

    def _made(self, to_client: Callable[..., None]) -> Any:
        link = TcpLink(self.world.rng, self.world.plan.tcp)
        return KindConnection(self.world, self.kind, self.server, link, to_client)


class DatagramConnection:
    """A client's socket, and what a server makes of its datagrams: each may be lost, or late."""

    def __init__(self, world: "World", kind: str, server: Any, to_client: Callable[..., None]):
        self.world, self.kind, self.to_client = world, kind, to_client
        self.session = server.session("sim", world.now)
        self.open = True

    def send(self, data: bytes, now_ns: int) -> None:
        """The client's datagram."""
        self._travel(self._receive, data, now_ns)

    def close(self, now_ns: int) -> None:
        """The client closes its socket."""
        self.open = False
        self.session.end()

    def _travel(self, arrive: Callable[..., None], data: bytes, now_ns: int) -> None:
        """Deliver a datagram either way, as the kind of server has it before all is well."""
        world = self.world
        silent = self.kind == "silent" and now_ns < HEAL_NS
        if silent or world.happens(world.plan.answers_lost, now_ns):
            return
        late = self.kind == "late" and now_ns < HEAL_NS
        for _ in range(1 + world.happens(world.plan.doubled, now_ns)):
            at = now_ns + world.delay_ns(0, now_ns) + (world.rng.randrange(50 * MS) if late else 0)
            world.schedule(at, arrive, data)

    def _receive(self, now_ns: int, data: bytes) -> None:
        answer = self.session.feed(data, now_ns) if self.open else b""
        while answer:
            self._travel(self._answer, self.world.said(answer, self.kind), now_ns)
            answer = self.session.tick(now_ns) if self.session.waiting else b""

    def _answer(self, now_ns: int, data: bytes) -> None:
        if self.open and data:
            self.to_client(data, now_ns)


class DatagramPort(Port):
    """A server that answers datagrams."""

    def _made(self, to_client: Callable[..., None]) -> Any:
        return DatagramConnection(self.world, self.kind, self.server, to_client)


class DatagramOutward(Outward):
    """A socket for one server: what the client has to say goes out datagram by datagram."""

    def flush(self) -> None:
        """Send every datagram that waits."""
        self.asked = False
        while data := self.server.data_to_send():
            if self.connection is not None:
                self.connection.send(data, self.driver.now)


class World(ChannelWorld):
    """One seed: the publisher, the network, the servers, and the gateway, whose `GatewayIO` it
    is."""

    #: Whether lines bring snapshots.
    healed_by_lines = False
    end_ns = END_NS

    def __init__(self, venue: Venue, seed: int) -> None:
        self.venue = venue
        rng = random.Random(seed)
        super().__init__(rng, Plan.drawn(rng, venue), venue.feed)
        #: Message n, published, at n - 1; the open orders after the last one.
        self.published: list[bytes] = []
        self.open: dict[int, bytes] = {}
        self.store = PacketStore(1 << 20)
        #: When each refresh line's latest packet arrives.
        self.refreshed_ns = [0, 0]
        #: What the server of requests has.
        self.served = self.store
        if self.plan.server == "sparing" and venue.facts.transport == "udp":
            self.served = PacketStore(SPARING_BYTES)
        self._make_servers()
        self._make_gateway(seed)
        self._plan_session()

    def _make_servers(self) -> None:
        plan, venue = self.plan, self.venue
        sparing = plan.server == "sparing"
        settings = ServerSettings(
            heartbeat_us=40_000,
            dead_us=300_000,
            requests_per_day=SPARING_REQUESTS if sparing else 0,
            request_packets_max=SPARING_NUMBERS if sparing else 1000,
        )
        lines = {"retransmit": self.retransmit, "refresh": self.refresh, "product": venue.product}
        setup = ServerSetup(venue.feed, {SERVICE: self.served}, settings, **lines)
        make = REGISTRY[venue.protocol].server
        assert make is not None
        port = DatagramPort if venue.facts.transport == "udp" else Port
        self.ports = {"rts": port(self, plan.server, make(setup))}
        if plan.secondary:
            self.ports["rts secondary"] = port(self, plan.secondary, make(setup))
        #: The requests that the server has heard of.
        self.requests = self.ports["rts"].server.counts
        if plan.snapshots != "none":
            make = REGISTRY[venue.snapshots].server
            assert make is not None
            served, free = {SERVICE: self.store}, replace(settings, requests_per_day=0)
            states = make(ServerSetup(venue.feed, served, free, self.state, **lines))
            self.ports["snapshots"] = Port(self, plan.snapshots, states)

    def state(self, service: int) -> tuple[int, tuple[bytes, ...]]:
        """The names of the symbols, and the open orders now."""
        return len(self.published), (*self.venue.names, *self.open.values())

    def _make_gateway(self, seed: int) -> None:
        self.attach(self._configuration(), f"{self.feed.key}.#?as=message", seed)
        for server_name, server in self.core.servers.items():
            for end, name in zip(
                server.ends, (server_name, f"{server_name} secondary"), strict=False
            ):
                port = self.ports[name]
                kind = DatagramOutward if isinstance(port, DatagramPort) else Outward
                self.outward[name] = kind(self, end, port)  # type: ignore[arg-type]

    def _configuration(self) -> Config:
        plan, venue = self.plan, self.venue
        second = "127.0.0.1:3" if plan.secondary else ""
        servers = [
            ServerConfig(name="rts", address="127.0.0.1:1", secondary=second, **venue.server)
        ]
        if plan.snapshots != "none":
            named = venue.snapshot_server or venue.server
            servers.append(ServerConfig(name="snapshots", address="127.0.0.1:2", **named))
        group = RetransmissionLineConfig(name="A", group="239.1.1.3", port=30_003)
        by_lines = "retransmission_lines" in venue.facts.offers
        refreshes = venue.feed.recovery.snapshots_by_lines and plan.snapshots != "none"
        channel = ChannelConfig(
            service=SERVICE, retransmission="rts",
            refresh="snapshots" if plan.snapshots != "none" else "",
            lines=LINES,
            refresh_lines=REFRESH_LINES if refreshes else (),
            retransmission_lines=(group,) if by_lines else (),
        )  # fmt: skip
        return self.configured(servers, channel)

    # -- what is published ----------------------------------------------------------------------

    def _plan_session(self) -> None:
        at = 5 * MS
        while at < END_NS - 500 * MS:
            self.schedule(at, self._publish)
            at += self.rng.randrange(500_000, 4 * MS) if at < HEAL_NS else 25 * MS
        self.schedule(self.plan.join_ns, self.start)

    def _publish(self, now_ns: int) -> None:
        first = len(self.published) + 1
        for number in range(first, first + self.rng.randint(1, self.venue.batch)):
            self.published.append(self.venue.message(number, self.rng, self.open))
        end = len(self.published) + 1
        whole = self._packet(first, end)
        for store in {id(each): each for each in (self.store, self.served)}.values():
            keep(self.feed, store, whole)
        both = self.happens(self.plan.lost_on_both, now_ns)
        for line in (0, 1):
            for data in self._packed(first, end, line, whole):
                if both or self.happens(self.plan.lost[line], now_ns):
                    continue
                copies = 1 + self.happens(self.plan.doubled, now_ns)
                for _ in range(copies):
                    self.schedule(now_ns + self.delay_ns(line, now_ns), self._arrive, line, data)

    def _packet(self, first: int, end: int) -> bytes:
        feed = self.feed
        service = SERVICE if feed.table.service_size else 0
        return feed.encode_packet(
            sequence=first, service=service, messages=self.published[first - 1 : end - 1],
            send_time=self.now,
            **self.venue.header,
        )  # fmt: skip

    def _packed(self, first: int, end: int, line: int, whole: bytes) -> list[bytes]:
        cut = self.rng.randrange(first, end + 1) if line and self.plan.repacked else first
        if cut in (first, end):
            return [whole]
        return [self._packet(first, cut), self._packet(cut, end)]

    # -- the retransmission lines ---------------------------------------------------------------

    def retransmit(self, service: int, data: bytes) -> None:
        """A server's datagram goes out by two lines; a silent server's does not."""
        assert service == SERVICE
        now, rng, plan = self.now, self.rng, self.plan
        if plan.server == "silent" and now < HEAL_NS:
            return
        for line in (0, 1):
            if self.happens(plan.answers_lost, now):
                continue
            late = plan.server == "late" and now < HEAL_NS
            at = now + self.delay_ns(line, now) + (rng.randrange(100 * MS) if late else 0)
            self.schedule(at, self._answer, self.said(data, plan.server))

    def said(self, data: bytes, kind: str) -> bytes:
        """Return the datagram as a server sends it: a wrong one may cut it or set a far number."""
        rng = self.rng
        if kind != "wrong" or not self.happens(0.3, self.now):
            return data
        table = self.feed.table
        at, size = table.sequence_at, table.sequence_size
        number = len(self.published) + rng.randrange(5_000, 10_000)
        far = number.to_bytes(size, self.feed.byte_order)
        return rng.choice(
            [
                data[: rng.randrange(len(data))],
                data + b"\0",
                rng.randbytes(rng.randrange(60)),
                data[:at] + far + data[at + size :],
            ]
        )

    def refresh(self, service: int, data: bytes) -> None:
        """A packet of a snapshot goes out by two lines, each in order and at its own pace."""
        now, plan = self.now, self.plan
        if plan.snapshots == "silent until healed" and now < HEAL_NS:
            return
        for line in (0, 1):
            self.refreshed_ns[line] = max(self.refreshed_ns[line], now) + self.delay_ns(line, now)
            if not self.happens(plan.lost[line], now):
                for _ in range(1 + self.happens(plan.doubled, now)):
                    at, said = self.refreshed_ns[line], self.said(data, plan.snapshots)
                    self.schedule(at, self._refresh_came, line, said)

    def _refresh_came(self, now_ns: int, line: int, data: bytes) -> None:
        if now_ns >= self.plan.join_ns:
            self.core.refresh_datagram(0, line, data, now_ns)
            self.settle()

    def _answer(self, now_ns: int, data: bytes) -> None:
        if self.plan.join_ns <= now_ns:
            self.core.line_datagram(0, data, now_ns)
            self.settle()


class Oracle:
    """A subscriber that trusts nothing, and has the ledger of what was published."""

    def __init__(self, world: World) -> None:
        self.published = world.published
        self.apply = world.venue.apply
        kind = world.feed.description.packet.kind
        #: How many messages there are in front of the first that matters: a reset, where it is one.
        self.resets = int(kind is not None and bool(kind.reset))
        #: The latest number that came; -1 before any.
        self.number = -1
        self.missing: set[int] = set()
        self.reported: set[int] = set()
        #: Numbers that did not come, but are part of a snapshot.
        self.covered: set[int] = set()
        #: The open orders, true where `whole`.
        self.open: dict[int, bytes] = {}
        self.whole = False
        self.block: int | None = None
        self.stands = ""
        self.seen: Counter[str] = Counter()
        self._header = PacketHeader()

    def receive(self, sent: Any) -> None:
        """Check one message that the link was sent, and account for it."""
        if sent.content == "quality+json":
            self._quality(json.loads(sent.body))
            return
        message = bytes(sent.body)
        sequence, index = struct.unpack_from(">QH", sent.tag, 8)
        if sequence >> 63:
            assert self.block is not None, "part of a snapshot outside a block"
            self.apply(self.open, message)
            return
        number = sequence + index
        assert message == self.published[number - 1], f"{number} is not what was published"
        self._message(number, message)

    def _quality(self, quality: dict[str, Any]) -> None:
        self.stands, reason = quality["state"], quality["reason"]
        self.seen[reason] += 1
        if reason == "gap":
            ((first, last),) = quality["lost"]
            self.missing.update(range(first, last + 1))
            self.whole = False
        elif reason == "withdrawn":
            self.number = quality["next"] - 1
            self.whole = False
            for low, high in quality["withdrawn"]:
                self.missing -= set(range(low, high + 1))
                self.covered -= set(range(low, high + 1))
        elif reason == "snapshot-begin":
            self.block, self.open = quality["last"], {}
        elif reason == "snapshot-end":
            self._end(quality["next"] - 1)
        elif reason == "start":
            # Nothing is missing at the beginning, or right behind a snapshot that came before it.
            before, self.number = self.number, quality["next"] - 1
            beginning = self.number <= self.resets
            self.whole = beginning or (self.whole and self.number == before)

    def _message(self, number: int, message: bytes) -> None:
        assert self.block is None, "live messages within a block"
        assert number > self.number, f"{number} after {self.number}"
        between = set(range(self.number + 1, number)) if self.number >= 0 else set()
        unsaid = between - self.missing - self.reported - self.covered
        assert not unsaid, f"{sorted(unsaid)} were not announced"
        assert number not in self.missing, f"{number} was announced lost"
        self.number = number
        self.reported.add(number)
        if self.whole:
            self.apply(self.open, message)

    def _end(self, last: int) -> None:
        """A block has ended: the state is that after number `last`."""
        assert self.block is not None
        assert last >= self.block
        self.block = None
        if self.number >= 0:
            self.covered.update(range(self.number + 1, last + 1))
        self.number = max(self.number, last)
        self.whole = True
        self.check("a snapshot block")

    def check(self, where: str) -> None:
        """The open orders are those that were published up to here."""
        truth: dict[int, bytes] = {}
        for message in self.published[: self.number]:
            self.apply(truth, message)
        assert self.open == truth, f"{where}: the orders differ at {self.number}"


def played(venue: Venue, seed: int) -> World:
    """The world of a seed, at its end."""
    world = (venue.world or World)(venue, seed)
    world.play()
    return world


def play(venue: Venue, seed: int) -> Counter[str]:
    """A seed, played and checked; what was seen in it."""
    world = played(venue, seed)
    plan, oracle = world.plan, Oracle(world)
    for sent in world.link.sent:
        oracle.receive(sent)
    last = len(world.published)
    assert oracle.number == last, f"{oracle.number} of {last}: {plan}"
    if oracle.whole:
        oracle.check("the end")
    if plan.server == "good":
        assert not oracle.seen["gap"], f"a good server, and something is lost: {plan}"
        runs = max(world.control_events["MISSING"], 1)
        told = (world.requests, world.control_events, plan)
        assert world.requests["requests"] <= 1.5 * runs + 1, told
    if plan.snapshots != "none" or world.healed_by_lines:
        assert oracle.stands in WHOLE, f"{oracle.stands} at the end: {plan}"
        assert oracle.whole
    if venue.symbols and oracle.seen["snapshot-end"]:
        assert world.core.names == venue.symbols
    oracle.seen.update(world.control_events)
    oracle.seen[f"a {plan.server} server"] += 1
    for name, server in world.core.servers.items():
        oracle.seen.update({f"{name} {what}": n for what, n in server.counts.items()})
    refreshes = world.core.recovery.snapshot(0)["refresh"]
    oracle.seen.update({f"refresh {what}": n for what, n in refreshes.items()})
    return oracle.seen


def bites(venue: Venue, seed: int) -> list[str]:
    """Return which harms the ledger lets pass: one message lost, doubled, moved or changed."""
    world = played(venue, seed)
    sent = world.link.sent
    data = [index for index, each in enumerate(sent) if each.content == "message"]
    chosen = data[len(data) // 2]
    later = data[len(data) // 2 + 3]
    changed = copy.copy(sent[chosen])
    object.__setattr__(changed, "body", bytes(changed.body)[:-1] + b"?")
    harms = {
        "lost": [*sent[:chosen], *sent[chosen + 1 :]],
        "doubled": [*sent[: chosen + 1], *sent[chosen:]],
        "moved": [*sent[:chosen], *sent[chosen + 1 : later], sent[chosen], *sent[later:]],
        "changed": [*sent[:chosen], changed, *sent[chosen + 1 :]],
    }
    passed = []
    for name, stream in harms.items():
        oracle = Oracle(world)
        try:
            for each in stream:
                oracle.receive(each)
            passed.append(name)
        except AssertionError:
            pass
    return passed
