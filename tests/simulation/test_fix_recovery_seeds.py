"""A gateway that recovers a FIX channel, behind a bad network: nothing lost unmarked, nothing
invented, and its books are true whenever it says so.

What plays are the objects that ship: `GatewayCore` with the arbiter, the recovery manager and the
clients of FIX servers on one side, `ResendServer` and `MarketDataServer` on the other. A seed draws
how often datagrams are lost (on a line, on both), delayed, doubled, and how line B packs; by which
way the server of Resend Requests answers, and whether it is good, late, lossy, silent or wrong;
whether there is a server of the books' state, and when it is out of order; how connections stall
and break; whether the publisher skips numbers or begins anew; when the gateway joins. After
`HEAL_NS` all is well, and two simulated seconds later the stream must be whole, where a server can
make it so.

Checked of what a subscriber gets: each message is what was published, in order and once; what is
not there was announced before, exactly; a snapshot block, and all that follows it, leaves the books
that were published. And the economy: with a good server, requests are at most 1.5 times the runs
that were missing.

`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from channel_world import (
    HEAL_NS,
    LINES,
    MS,
    SERVICE,
    WHOLE,
    ChannelConnection,
    ChannelWorld,
    LinePlan,
    SessionConnection,
    drawn_lines,
    drawn_recovery,
    play_seeds,
)
from core_driver import Outward
from network import TcpFaults, TcpLink

from feedhandler.codecs import load_feed
from feedhandler.codecs.fix.fields import fields
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.config import (
    ChannelConfig,
    Config,
    ServerConfig,
    ServerLineConfig,
)
from feedhandler.fixcast.values import Kind, Message
from feedhandler.retrans.fix.market_data import MarketDataFormat
from feedhandler.retrans.fix.market_data_requests import MarketDataServer, MarketDataSettings
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.request import RequestFormat
from feedhandler.retrans.fix.server import ALL, ResendServer, ResendSettings
from feedhandler.retrans.settings import RecoverySettings
from tests.support.fix_market import Flow, PublishedChannel, Truth

FEED = load_feed("fix-marketdata")
FORM = RequestFormat()
#: Longer than the network reorders.
QUIET_NS = 20 * MS
END_NS = HEAL_NS + 2_000 * MS
DATAGRAM_BYTES_MAX = 1_400
SERVERS = ("good", "good", "late", "lossy", "silent", "wrong")
STATES = MarketDataSettings(part_messages=8, heartbeat_us=50_000)


@dataclass
class Plan(LinePlan):
    """Draws of one seed: network faults, the publisher's course, the server's kind, settings."""

    server: str
    route: str
    poss_dup: bool
    states: str
    tcp: TcpFaults
    restarts: bool
    skips: float
    join_ns: int
    lag_ns: int
    recovery: RecoverySettings
    #: Number of the session's first message.
    begins: int

    @classmethod
    def drawn(cls, rng: random.Random) -> "Plan":
        """The plan of a seed."""
        server = rng.choice(SERVERS)
        good = server == "good"
        route = rng.choice(["tcp", "tcp", "group", "main"])
        return cls(
            **drawn_lines(rng),
            server=server,
            route=route,
            # On the main group a line that goes back without a word contradicts itself.
            poss_dup=rng.random() < 0.5 or route == "main",
            states=rng.choice(["none", "good", "good", "silent until healed"]),
            tcp=TcpFaults() if good else TcpFaults.drawn(rng, HEAL_NS),
            restarts=rng.random() < 0.25,
            skips=rng.choice([0, 0, 0.03]),
            # Not just behind a restart: who joins there cannot tell old numbers from new ones.
            join_ns=rng.choice([0, 0, 0, rng.randrange(HEAL_NS // 2 - 50 * MS)]),
            lag_ns=rng.choice([0, 0, 50_000, rng.randrange(2 * MS)]),
            recovery=drawn_recovery(rng, good, (100_000, 300_000), (100_000, 300_000)),
            begins=rng.choice([1, 1, 1, 2**40, 2**62 - 10_000]),
        )

    @property
    def recovers(self) -> bool:
        """Must everything that is published after the join come, whatever the lines lose?"""
        return self.server == "good" and self.route != "main" and not self.restarts


class Resends(ChannelConnection):
    """A session of the server of Resend Requests."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.stream = FixStream()
        self.id = next(self.world.ids)
        self.world.sessions[self.id] = self

    def heard(self, data: bytes, now_ns: int) -> None:
        world, calm = self.world, now_ns >= HEAL_NS
        kind = "good" if calm else world.plan.server
        for message in self.stream.receive(data):
            if reply := FORM.reply(message):
                if kind != "silent":
                    self.say(reply, now_ns)
                continue
            world.requests += 1
            request = FORM.decode(message)
            assert request is not None
            world.asked.append((request.begin, request.end))
            if kind == "silent" or (kind == "lossy" and world.rng.random() < 0.4):
                continue
            if kind == "wrong" and world.rng.random() < 0.5:
                self.say(world.nonsense(request.begin), now_ns)
                continue
            wait_ns = world.rng.randrange(200 * MS) if kind == "late" else 0
            world.schedule(now_ns + wait_ns, world.answer, request, self.id)


class States(SessionConnection):
    """A session of the server of Market Data Requests."""

    wait_least_ns = 100_000

    def __init__(self, world: "World", link: TcpLink, to_client: Callable[..., None]) -> None:
        super().__init__(world, world.states, link, to_client)

    def heard(self, data: bytes, now_ns: int) -> None:
        if self.world.plan.states != "silent until healed" or now_ns >= HEAL_NS:
            super().heard(data, now_ns)


class Port:
    """A server that listens."""

    def __init__(self, world: "World", kind: Callable[..., ChannelConnection]) -> None:
        self.world = world
        self.kind = kind

    def connect(self, now_ns: int, to_client: Callable[..., None]) -> ChannelConnection | None:
        """A connection; None: refused."""
        if self.world.refused(now_ns):
            return None
        return self.kind(self.world, TcpLink(self.world.rng, self.world.plan.tcp), to_client)


class World(ChannelWorld):
    """One seed: the publisher, the network, the servers, and the gateway, whose `GatewayIO` it
    is."""

    end_ns = END_NS

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        super().__init__(rng, Plan.drawn(rng), FEED)
        self.ids = itertools.count()
        self.sessions: dict[int, Resends] = {}
        self.requests = 0
        #: Messages of a wrong server that were never published.
        self.invented: set[bytes] = set()
        #: First and last number of each request.
        self.asked: list[tuple[int, int]] = []
        self.flow = Flow(self.rng)
        self.channel = PublishedChannel()
        self.channel.now_ns = 0
        #: Of each epoch what was published, and what was skipped.
        self.published: list[tuple[dict[int, bytes], set[int]]] = [(self.channel.bodies, set())]
        plan = self.plan
        self.channel.next = plan.begins
        history = self.channel.history()
        history.state.number = plan.begins - 1
        self.resends = ResendServer(
            ResendSettings(
                route=plan.route, poss_dup=plan.poss_dup, once_ns=20 * MS  # type: ignore[arg-type]
            )
        )  # fmt: skip
        self.resends.add("c1", self.channel.served)
        self.states = MarketDataServer(MarketDataFormat(), {"c1": history}, STATES)
        self._make_gateway(seed)
        self._plan_session()

    def _make_gateway(self, seed: int) -> None:
        self.attach(self._configuration(), "fix.#", seed)
        kinds = {"rts": Resends, "mds": States}
        self.outward = {
            name: Outward(self, server, Port(self, kinds[name]))  # type: ignore[arg-type]
            for name, server in self.core.servers.items()
        }

    def _configuration(self) -> Config:
        plan = self.plan
        line = ServerLineConfig(name="R", group="239.1.1.3", port=30_003)
        rts = ServerConfig(
            name="rts", address="127.0.0.1:1", lines=(line,) if plan.route == "group" else ()
        )
        mds = ServerConfig(name="mds", address="127.0.0.1:2")
        channel = ChannelConfig(
            service=SERVICE, topic="c1", target="c", retransmission="rts",
            refresh="mds" if plan.states != "none" else "",
            lines=LINES,
        )  # fmt: skip
        return self.configured((rts, mds) if plan.states != "none" else (rts,), channel)

    # -- what is published ----------------------------------------------------------------------

    def _plan_session(self) -> None:
        at, half = 5 * MS, HEAL_NS // 2
        while at < END_NS - 1_000 * MS:
            self.schedule(at, self._publish)
            at += self.rng.randrange(500_000, 4 * MS) if at < HEAL_NS else 25 * MS
        self.schedule(MS, self._beat)
        if self.plan.restarts:
            self.schedule(half, self._restart)
        self.schedule(self.plan.join_ns, self.start)

    def _publish(self, now_ns: int) -> None:
        """A clock period's messages, and maybe numbers that are skipped."""
        if self._is_quiet(now_ns):
            return
        self.channel.now_ns = now_ns
        data = []
        if self.rng.random() < self.plan.skips and self.channel.next > 1:
            count = self.rng.randint(1, 5)
            first = self.channel.next
            self.channel.skip(count)
            self.published[-1][1].update(range(first, first + count))
            data.append(self.channel.gap_fill(first, first + count))
        for _ in range(self.rng.randint(1, 4)):
            number = self.channel.publish(self.flow.message())
            data.append(self.channel.bodies[number])
        self._send(data, now_ns)

    def _beat(self, now_ns: int) -> None:
        """A heartbeat, every 10 ms."""
        said = Message(Kind.HEARTBEAT, self.channel.next, epoch=self.channel.epoch)
        if not self._is_quiet(now_ns):
            self._send([self.channel.header.administrative(said)], now_ns)
        if now_ns < END_NS:
            self.schedule(now_ns + 10 * MS, self._beat)

    def _is_quiet(self, now_ns: int) -> bool:
        """A publisher that is replaced says nothing for a moment."""
        return self.plan.restarts and abs(now_ns - HEAL_NS // 2) < QUIET_NS

    def _restart(self, now_ns: int) -> None:
        """A new epoch begins with a Logon, which is not lost: what happens without it, or where
        it is overtaken, is arbitration's matter."""
        self.channel.restart()
        self.flow = Flow(self.rng)
        self.published.append((self.channel.bodies, set()))
        said = Message(Kind.LOGON, 1, epoch=self.channel.epoch)
        data = self.channel.header.administrative(said, 10 * MS)
        for line in (0, 1):
            self.schedule(now_ns + self.delay_ns(line, now_ns), self._arrive, line, data)

    def _send(self, messages: list[bytes], now_ns: int) -> None:
        both = self.happens(self.plan.lost_on_both, now_ns)
        for line in (0, 1):
            for data in self._packed(messages, line):
                if both or self.happens(self.plan.lost[line], now_ns):
                    continue
                self.schedule(now_ns + self.delay_ns(line, now_ns), self._arrive, line, data)
                if self.happens(self.plan.doubled, now_ns):
                    self.schedule(now_ns + self.delay_ns(line, now_ns), self._arrive, line, data)

    def _packed(self, messages: list[bytes], line: int) -> list[bytes]:
        cut = self.rng.randrange(len(messages) + 1) if line and self.plan.repacked else 0
        return [data for part in (messages[:cut], messages[cut:]) for data in datagrams(part)]

    # -- the server of Resend Requests ----------------------------------------------------------

    def answer(self, now_ns: int, request: Any, client: int) -> None:
        """The server takes a request, and answers by its route."""
        self.resends.request(request, client, now_ns)
        for answer in self.resends.tick(now_ns):
            if answer.client != ALL:
                session = self.sessions[answer.client]
                session.say(b"".join(answer.messages), now_ns)
            elif self.plan.route == "main":
                self._send(answer.messages, now_ns)
            else:
                for message in answer.messages:
                    self.schedule(now_ns + 50_000, self._group, message)

    def nonsense(self, number: int) -> bytes:
        """Return bytes of a wrong server: garbage, or an invented message, GapFill or Logon."""
        header, rng = self.channel.header, self.rng
        far = number + rng.randrange(1, 10_000)
        invented = header.application(self.flow_message(), far, 99)
        self.invented.add(invented)
        return rng.choice(
            [
                b"garbage",
                self.channel.gap_fill(far, far + 1000),
                invented,
                header.administrative(Message(Kind.LOGON, 1, epoch=99), 1),
            ]
        )

    def flow_message(self) -> bytes:
        """A message that was never published."""
        return Flow(random.Random(1)).message()

    def _group(self, now_ns: int, data: bytes) -> None:
        if self.plan.join_ns <= now_ns:
            self.core.group_datagram("rts", data, now_ns)
            self.settle()

    def start(self, now_ns: int) -> None:
        self.joined_in = len(self.published) - 1
        super().start(now_ns)


def datagrams(messages: list[bytes]) -> list[bytes]:
    """Whole messages, as many a datagram as it holds."""
    packed: list[bytes] = []
    for message in messages:
        if packed and len(packed[-1]) + len(message) <= DATAGRAM_BYTES_MAX:
            packed[-1] += message
        else:
            packed.append(message)
    return packed


def essence(data: bytes) -> bytes:
    """A message without what PossDupFlag changes: an answer on the main group has it."""
    found = fields(data)
    return b"\x01".join(b"%d=%b" % each for each in found if each[0] != 43)


class Oracle:
    """A subscriber that trusts nothing, and knows what was published."""

    def __init__(self, world: World) -> None:
        self.published = world.published
        self.whole = False
        self.poss_dup = world.plan.route == "main" and world.plan.poss_dup
        self.lies = world.plan.server == "wrong"
        self.invented = world.invented
        self.asked = world.asked
        self.epoch = world.joined_in
        self.number = -1
        self.state = MarketState()
        self.truth = Truth({})
        self.missing: set[int] = set()
        #: Numbers that came or were skipped.
        self.reported: set[int] = set()
        #: Numbers that did not come, but are part of a snapshot.
        self.covered: set[int] = set()
        self.block: tuple[int, MarketState] | None = None
        self.stands = ""
        self.seen: Counter[str] = Counter()

    def receive(self, sent: Any) -> None:
        """Check one message that the link was sent, and account for it."""
        if sent.content == "quality+json":
            self._quality(json.loads(sent.body))
            return
        for message in FixStream().receive(sent.body):
            said = dict(reversed(fields(message)))
            if 369 in said:
                self._snapshot(message, int(said[369]))
            elif said[35] != b"A":
                self._message(message, int(said[34]))

    def _quality(self, quality: dict[str, Any]) -> None:
        self.stands, reason = quality["state"], quality["reason"]
        self.seen[reason] += 1
        if reason == "gap":
            ((first, last),) = quality["lost"]
            self.missing.update(range(first, last + 1))
            self.whole = False
        elif reason == "skipped":
            ((first, last),) = quality["skipped"]
            lied = not set(range(first, last + 1)) <= self.published[self.epoch][1]
            # A server's false GapFill cannot be told from a true one: its numbers are marked.
            assert not lied or self.lies, quality
            self.whole &= not lied
            self.reported.update(range(first, last + 1))
        elif reason == "reset":
            self.epoch += 1
            self.number = 0
            self.missing, self.reported, self.covered = set(), set(), set()
            self.state.clear()
            self.whole = True
        elif reason == "withdrawn":
            # What was announced lost comes by a line after all: the stream goes back to it.
            self.number = quality["next"] - 1
            self.whole = False
            for low, high in quality["withdrawn"]:
                self.missing -= set(range(low, high + 1))
                self.covered -= set(range(low, high + 1))
        elif reason == "snapshot-begin":
            self.block = quality["last"], MarketState()
        elif reason == "snapshot-end":
            self._end()
        elif reason == "start":
            self.number = quality["next"] - 1
            self.whole = self.number == 0

    def _snapshot(self, message: bytes, last: int) -> None:
        assert self.block is not None, "a state outside a block"
        assert last == self.block[0]
        self.block[1].apply(message, last)

    def _message(self, data: bytes, number: int) -> None:
        bodies, _ = self.published[self.epoch]
        same = essence(data) == essence(bodies[number]) if self.poss_dup else data == bodies[number]
        # What a server invented cannot be told from what it was asked for; the books may differ.
        invented = data in self.invented and any(a <= number <= b for a, b in self.asked)
        assert same or invented, f"{number} is not what was published"
        self.whole &= same
        if self.block is not None:
            assert number > self.block[0], "a block repeats what is after its state alone"
            self.block[1].apply(data, number)
            return
        assert number > self.number, f"{number} after {self.number}"
        between = set(range(self.number + 1, number)) if self.number >= 0 else set()
        unsaid = between - self.missing - self.reported - self.covered
        assert not unsaid, f"{sorted(unsaid)} were not announced"
        assert number not in self.reported, f"{number} comes twice"
        self.number = number
        self.reported.add(number)
        if self.whole:
            self.state.apply(data, number)

    def _end(self) -> None:
        assert self.block is not None
        last, self.state = self.block
        self.block = None
        if self.number >= 0:
            self.covered.update(range(self.number + 1, last + 1))
        self.whole = True
        self.number = max(self.number, last)
        self.check("a snapshot block")

    def check(self, where: str) -> None:
        """The books are those that were published up to here."""
        bodies, _ = self.published[self.epoch]
        if self.truth.bodies is not bodies:
            self.truth = Truth(bodies)
        truth = self.truth.up_to(self.number)
        assert self.state.contents() == truth.contents(), f"{where}: the books differ"


def play(seed: int) -> Oracle:
    """A seed, played and checked."""
    world = World(seed)
    world.play()
    plan, oracle = world.plan, Oracle(world)
    for sent in world.link.sent:
        oracle.receive(sent)
    if oracle.stands in WHOLE and oracle.whole:
        oracle.check("the end")
    last = max(world.published[-1][0])
    assert oracle.epoch == len(world.published) - 1
    assert oracle.number == last, f"{oracle.number} of {last}: {plan}"
    if plan.recovers:
        assert not oracle.seen["gap"], f"a good server, and something is lost: {plan}"
    if plan.states != "none":
        assert oracle.stands in WHOLE, f"{oracle.stands} at the end: {plan}"
        assert oracle.whole
    if plan.recovers and plan.route == "tcp":
        assert world.requests <= 1.5 * max(world.control_events["MISSING"], 1), world.control_events
    oracle.seen.update(world.control_events)
    return oracle


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_fix_channel_is_what_went_in_or_is_marked() -> None:
    wanted = {"gap", "skipped", "reset", "snapshot-begin", "MISSING", "CLOSED", "SKIPPED"}
    play_seeds(lambda seed: play(seed).seen, wanted)


def test_a_seed_does_the_same_again() -> None:
    def story(seed: int) -> list[bytes]:
        world = World(seed)
        world.play()
        return world.link.frames

    assert story(3) == story(3)
