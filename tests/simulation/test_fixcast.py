"""FIX over multicast in simulated time: a publisher, two lossy lines, a server, many receivers.

What plays are the objects that ship: `ChannelSender`, `ResendServer` and `ChannelReceiver`. A
seed draws how often datagrams are lost (on each line, on both at once, for everybody at once),
doubled and delayed, how late line B is and how it packs, what kind of server there is (good,
late, silent, wrong, none), whether messages wait for missing ones, and whether the publisher
skips numbers, ends and goes on, or is killed and begins anew.

Checked for each receiver: what comes out is what was published, in order and once, from where it
joined; what is not is marked as skipped or lost, and is: what came in time is not declared lost;
after the lines have healed it is complete up to the publisher's last number. And the economy: what
a loss costs. That each of these checks bites is shown by receivers and servers that do one thing
wrong.

`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import heapq
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import Frame
from feedhandler.fixcast.messages import Header, read_datagram
from feedhandler.fixcast.pacing import TokenBucket
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import (
    RETRANSMISSION,
    Deliver,
    Ended,
    Event,
    Joined,
    Lost,
    NewEpoch,
    ReceptionSettings,
    Skipped,
)
from feedhandler.fixcast.sending import ChannelSender, SendingSettings
from feedhandler.fixcast.session import SessionSettings
from feedhandler.fixcast.values import Kind, Message
from feedhandler.retrans.fix.client import RequesterSettings
from feedhandler.retrans.fix.request import RequestFormat, ResendRequest
from feedhandler.retrans.fix.server import ResendServer, ResendSettings, ServedChannel
from tests.support.fixcast import pop_due
from tests.support.seeds import naming, seeds_to_play

SEEDS = int(os.environ.get("SEEDS", "50"))
US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
TOPIC = "equities"
FORMAT = RequestFormat()
#: One seed in so many has a hundred receivers.
CROWDED = 50
#: Messages of an epoch that is not announced: so many that some of them come.
UNREPORTED_MESSAGES = 40
#: Until when one may join where several follow: while the first one's messages still come.
UNREPORTED_JOIN_MS_MAX = 10
SERVERS = ("good", "good", "late", "silent", "wrong", "none")


@dataclass
class Plan:
    """Draws of one seed: receivers, messages, network faults, the server's kind, settings."""

    receivers: int
    messages: int
    lost: tuple[float, float]
    lost_for_all: float
    lost_answers: float
    doubled: float
    jitter_ns: int
    skew_ns: int
    repacked: bool
    server: str
    route: str
    poss_dup: bool
    answer: str
    ordered: bool
    reported: bool
    restarts: int
    skips: float

    @classmethod
    def drawn(cls, rng: random.Random, receivers: int) -> "Plan":
        """The plan of a seed."""
        reported = rng.random() < 0.7
        route = rng.choice(["group", "group", "main"])
        plan = cls(
            receivers=receivers,
            messages=rng.choice([50, 50, 100, 100, 200, 400]) if receivers < 50 else 60,
            lost=(rng.choice([0, 0.02, 0.2, 0.5]), rng.choice([0, 0.02, 0.2, 1])),
            lost_for_all=rng.choice([0, 0.02, 0.05]),
            lost_answers=rng.choice([0, 0, 0.1]),
            doubled=rng.choice([0, 0.1]),
            jitter_ns=rng.choice([0, 100 * US, 3 * MS]),
            skew_ns=rng.choice([0, 0, MS, 15 * MS]),
            repacked=rng.random() < 0.5,
            server=rng.choice(SERVERS),
            route=route,
            # On the main group nothing else says that a message is not of a new epoch.
            poss_dup=rng.random() < 0.5 or (route == "main" and not reported),
            answer=rng.choice(["once", "once", "timer"]),
            ordered=rng.random() < 0.7,
            reported=reported,
            restarts=rng.choice([0, 0, 1, 2]),
            skips=rng.choice([0, 0, 0.02]),
        )
        if plan.restarts and not reported:
            # An epoch of which nothing came cannot be told from the next one; nor can what comes
            # after it was given up, which is at once where no server is asked.
            plan.messages = max(plan.messages, UNREPORTED_MESSAGES * (plan.restarts + 1))
            if plan.server == "none":
                plan.jitter_ns = min(plan.jitter_ns, 100 * US)
        return plan


@dataclass
class Epoch:
    """Messages and skipped numbers published of one epoch."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)
    next: int = 1
    logged_out: bool = False


def numbers_of(messages: list[Message]) -> list[int]:
    """The numbers of application messages."""
    return [each.number for each in messages if each.kind is Kind.APPLICATION]


def essence(body: bytes) -> bytes:
    """A message without what PossDupFlag changes."""
    return body[body.index(b"\x0134=") : -7]


class Listener:
    """One receiver, and what should come out of it."""

    def __init__(self, world: "World", seed: int, joins_ns: int) -> None:
        plan = world.plan
        asks = plan.server != "none"
        self.world = world
        self.joins_ns = joins_ns
        self.receiver = ChannelReceiver(
            TOPIC,
            TOPIC.encode(),
            ReceptionSettings(
                ordered=plan.ordered,
                recovery_wait_ns=2 * SECOND if asks else 0,
                epoch_wait_ns=SECOND // 2,
            ),
            RequesterSettings(receivers=plan.receivers) if asks else None,
            seed,
            joins_ns,
        )
        self.expected = 0
        self.epoch: Epoch | None = None
        self.handled: set[int] = set()
        #: By epoch: numbers that its lines have brought.
        self.came: dict[int, set[int]] = defaultdict(set)
        self.lost = 0
        self.seen: Counter[str] = Counter()

    def take(self, events: list[Event], source: Epoch) -> None:
        """Check events; `source` is the epoch of the datagram that brought them."""
        for event in events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, NewEpoch):
                assert self.epoch is not None
                assert not event.ended or self.epoch.logged_out
                self.check_whole(self.epoch, whole=event.ended)
                self.begin(source, 1)
            elif isinstance(event, Joined):
                self.begin(source, event.number)
            elif isinstance(event, Ended):
                assert self.epoch is not None
                assert self.epoch.logged_out
                assert event.next == self.epoch.next
            elif isinstance(event, Deliver):
                assert self.epoch is not None
                assert essence(event.body) == essence(self.epoch.bodies[event.number])
                self.handle(event.number, event.number)
            elif isinstance(event, Skipped):
                assert self.epoch is not None
                assert self.epoch.skipped.issuperset(range(event.first, event.last + 1))
                self.handle(event.first, event.last)
            elif isinstance(event, Lost):
                self.lost += event.last - event.first + 1
                if self.world.plan.reported:
                    # An epoch that is not announced may have been heard and not been known yet.
                    came = self.came[id(self.epoch)]
                    assert not came.intersection(range(event.first, event.last + 1))
                self.handle(event.first, event.last)

    def begin(self, epoch: Epoch, number: int) -> None:
        self.epoch, self.expected, self.joined = epoch, number, number
        self.handled = set()

    def handle(self, first: int, last: int) -> None:
        """Numbers come once, and where they wait for one another, in order."""
        if self.world.plan.ordered:
            assert first == self.expected, (first, self.expected)
            self.expected = last + 1
        numbers = set(range(first, last + 1))
        assert not numbers & self.handled
        self.handled |= numbers

    def check_whole(self, epoch: Epoch, whole: bool) -> None:
        """Nothing is left out: up to the highest number, and where it is `whole`, to the last."""
        top = epoch.next if whole else max(self.handled, default=self.joined - 1) + 1
        assert self.handled == set(range(self.joined, top)), "something was left out"


class World:
    """Everything, and the time."""

    def __init__(self, seed: int, plan: Plan | None = None, receivers: int = 0) -> None:
        self.rng = random.Random(seed)
        crowd = 100 if seed % CROWDED == CROWDED - 1 else self.rng.randint(1, 6)
        self.plan = plan or Plan.drawn(self.rng, receivers or crowd)
        self.now_ns = 0
        self.healed = False
        self.counts: Counter[str] = Counter()
        #: By epoch and number: how often it was retransmitted.
        self.repeats: Counter[tuple[int, int]] = Counter()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._turns = itertools.count()
        self._timers: dict[object, int] = {}
        self._server_on = False
        self.epochs: list[Epoch] = []
        self.runs_for_all = 0
        self._frame = Frame()
        late = [plan is None and self.rng.random() < 0.2 for _ in range(self.plan.receivers)]
        # Joined at the end of an epoch that is not announced: its last ones pass for the next.
        soon = self.plan.restarts and not self.plan.reported
        joins_ms_max = UNREPORTED_JOIN_MS_MAX if soon else 100
        self.listeners = [
            Listener(self, seed * 1000 + at, self.rng.randint(0, joins_ms_max) * MS if each else 0)
            for at, each in enumerate(late)
        ]
        self.begin_publisher()

    # -- time ----------------------------------------------------------------------------------

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when_ns, self.now_ns), next(self._turns), what))

    def run(self, end_ns: int) -> None:
        while self._queue and self._queue[0][0] <= end_ns:
            self.now_ns, _, what = heapq.heappop(self._queue)
            what()
        self.now_ns = end_ns

    def arm(self, whose: object, deadline_ns: int, what: Callable[[], None]) -> None:
        """Wake up at a deadline, unless that has been arranged."""
        if self._timers.get(whose, 1 << 63) <= deadline_ns:
            return
        self._timers[whose] = deadline_ns

        def due() -> None:
            if self._timers.get(whose) == deadline_ns:
                del self._timers[whose]
                what()

        if deadline_ns < 1 << 62:
            self.at(deadline_ns, due)

    # -- the publisher -------------------------------------------------------------------------

    def begin_publisher(self) -> None:
        """A publisher's process begins, with a new epoch."""
        plan = self.plan
        header = Header(b"FIXT.1.1", b"PUB", TOPIC.encode(), plan.reported)
        # By its Heartbeats alone an epoch that is not announced has to be recognised in time.
        heartbeat_ns = 300 * MS if plan.reported or not plan.restarts else 100 * MS
        settings = SendingSettings(
            period_ns=200 * US,
            store_bytes=1 << 18,
            session=SessionSettings(heartbeat_ns=heartbeat_ns, logon_ns=SECOND, beacon_ns=700 * MS),
        )
        self.sender = ChannelSender(header, settings, TokenBucket(10**7, 20_000))
        self.sender.start(self.now_ns, len(self.epochs) + 1)
        self.epochs.append(Epoch())
        self.serve()
        self.wake_publisher()

    def serve(self) -> None:
        plan, header = self.plan, self.sender.header
        session = self.sender.session
        answer = "never" if plan.server == "silent" else plan.answer
        self.server = ResendServer(
            ResendSettings(answer=answer, route=plan.route, poss_dup=plan.poss_dup)  # type: ignore
        )

        def gap_fill(first: int, end: int) -> bytes:
            fill = Message(Kind.GAP_FILL, first, b"", end, session.epoch)
            return header.administrative(fill, poss_dup=plan.poss_dup)

        self.served = ServedChannel(self.sender.store, gap_fill, header.repeated)
        self.server.add(TOPIC, self.served)

    def wake_publisher(self) -> None:
        self.sender.tick(self.now_ns)
        for datagram in pop_due(self.sender, self.now_ns):
            self.send_lines(datagram)
        self.arm("publisher", self.sender.deadline_ns, self.wake_publisher)

    def publish(self) -> None:
        epoch = self.epochs[-1]
        if self.rng.random() < self.plan.skips:
            wide = self.rng.randint(1, 5)
            self.served.skip(epoch.next, epoch.next + wide - 1)
            epoch.skipped.update(range(epoch.next, epoch.next + wide))
            epoch.next += wide
            self.sender.skip(epoch.next, self.now_ns)
        text = b"35=X\x0158=%d %b\x01" % (self.now_ns, b"x" * self.rng.randint(0, 300))
        assert self.sender.publish(envelope(b"FIXT.1.1", text), self.now_ns) == epoch.next
        _, _, body = self.sender.store.packets(epoch.next, epoch.next + 1)[0]
        epoch.bodies[epoch.next] = body
        epoch.next += 1
        self.wake_publisher()

    def stop_publisher(self) -> None:
        self.sender.stop(self.now_ns)
        self.epochs[-1].logged_out = True
        self.wake_publisher()

    def restart(self) -> None:
        """The publisher ends in order, or is killed, and another one begins."""
        if self.rng.random() < 0.5:
            self.stop_publisher()
        self._timers.pop("publisher", None)
        if not self.plan.reported:
            # What is still on its way of the old epoch could not be told from the new one.
            self.run(self.now_ns + 50 * MS)
        self.begin_publisher()

    # -- the network ---------------------------------------------------------------------------

    def send_lines(self, datagram: bytes) -> None:
        plan, rng = self.plan, self.rng
        epoch = self.epochs[-1]
        found = read_datagram(datagram, self._frame)[0]
        pieces = [(datagram, numbers_of(found))]
        if plan.repacked:
            pieces = [(each.body, numbers_of([each])) for each in found]
        lost_for_all = not self.healed and rng.random() < plan.lost_for_all
        self.runs_for_all += lost_for_all
        for line, parts in ((0, [(datagram, numbers_of(found))]), (1, pieces)):
            for part in parts:
                for listener in self.listeners if not lost_for_all else ():
                    if not self.healed and rng.random() < plan.lost[line]:
                        continue
                    delay_ns = 50 * US + line * plan.skew_ns + rng.randint(0, plan.jitter_ns)
                    self.deliver(listener, part, line, delay_ns, epoch)
                    if rng.random() < plan.doubled:
                        self.deliver(listener, part, line, delay_ns + MS, epoch)

    def deliver(
        self,
        listener: Listener,
        part: tuple[bytes, list[int]],
        line: int,
        delay_ns: int,
        epoch: Epoch,
    ) -> None:
        """Bring a datagram, and the numbers that are in it for certain, to a receiver."""
        data, numbers = part

        def arrive() -> None:
            if self.now_ns < listener.joins_ns:
                return
            listener.take(listener.receiver.datagram(data, line, self.now_ns), epoch)
            listener.came[id(epoch)].update(numbers)
            self.wake(listener)

        self.at(self.now_ns + delay_ns, arrive)

    def wake(self, listener: Listener) -> None:
        receiver = listener.receiver
        if receiver.deadline_ns <= self.now_ns:
            listener.take(receiver.tick(self.now_ns), self.epochs[-1])
            for request in receiver.requests(self.now_ns):
                self.counts["requests"] += 1
                self.at(self.now_ns + 100 * US, lambda request=request: self.ask(request))
            assert receiver.deadline_ns > self.now_ns, "what is due was not done"
        self.arm(listener, receiver.deadline_ns, lambda: self.wake(listener))

    # -- the server ----------------------------------------------------------------------------

    def ask(self, request: ResendRequest) -> None:
        """A request reaches the server."""
        if self.plan.server == "wrong" and self.rng.random() < 0.5:
            request = request._replace(begin=max(1, request.begin - 3), end=request.begin)
        self.server.request(FORMAT.decode(FORMAT.encode(request)), 0, self.now_ns)
        delay_ns = self.rng.randint(0, 3 * SECOND) if self.plan.server == "late" else 0
        self.at(self.server.deadline_ns + delay_ns, self.answer)

    def answer(self) -> None:
        epoch = self.epochs[-1]
        for answer in self.server.tick(self.now_ns):
            for message in answer.messages:
                for each in read_datagram(message, self._frame)[0]:
                    self.repeats[len(self.epochs), each.number] += 1
            for datagram in self.packed(answer.messages):
                self.send_answer(datagram, epoch)

    def packed(self, messages: list[bytes]) -> list[bytes]:
        datagrams = [b"".join(messages[at : at + 4]) for at in range(0, len(messages), 4)]
        if self.plan.server == "wrong":
            self.rng.shuffle(datagrams)
            datagrams = [self.spoilt(each) for each in datagrams]
        return datagrams

    def spoilt(self, datagram: bytes) -> bytes:
        """A datagram as a wrong server sends it."""
        trick = self.rng.randrange(4)
        if trick == 0:
            at = self.rng.randrange(len(datagram))
            return datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :]
        if trick == 1:
            return datagram[: self.rng.randrange(1, len(datagram))]
        if trick == 2:
            return Header(target=b"another").application(
                envelope(b"FIXT.1.1", b"35=X\x0158=wrong\x01"), self.rng.randint(1, 500), 1
            )
        return datagram

    def send_answer(self, datagram: bytes, epoch: Epoch) -> None:
        lines = (0, 1) if self.plan.route == "main" else (RETRANSMISSION,)
        for line in lines:
            for listener in self.listeners:
                if self.rng.random() >= self.plan.lost_answers:
                    self.deliver(listener, (datagram, []), line, 100 * US, epoch)


def play(world: World) -> World:
    """Publish, restart, heal, end; every receiver must be complete then."""
    plan, rng = world.plan, world.rng
    for restart in range(plan.restarts + 1):
        for _ in range(plan.messages // (plan.restarts + 1)):
            world.at(world.now_ns, world.publish)
            world.run(world.now_ns + rng.choice([0, 0, 50 * US, MS, 2 * MS]))
        if restart < plan.restarts:
            world.restart()
            # An epoch that is not announced is recognised when the old one is heard no more.
            world.run(world.now_ns + (0 if plan.reported else 2 * SECOND))
    world.healed = True
    world.run(world.now_ns + 4 * SECOND)
    world.at(world.now_ns, world.publish)
    world.run(world.now_ns + SECOND)
    world.stop_publisher()
    world.run(world.now_ns + 5 * SECOND)
    for listener in world.listeners:
        reception = listener.receiver.reception
        assert listener.epoch is world.epochs[-1]
        assert reception.missing == []
        assert reception.floor == reception.top == world.epochs[-1].next
        listener.check_whole(world.epochs[-1], whole=True)
        if plan.server == "good" and not plan.lost_answers and not plan.restarts:
            assert listener.lost == 0
    if plan.server == "good" and not plan.lost_answers:
        asked = sum(each.receiver.reception.counts["asked"] for each in world.listeners)
        assert world.counts["requests"] <= 1.5 * asked
    return world


@pytest.mark.timeout(36_000)
def test_what_comes_out_is_what_was_published_or_is_marked() -> None:
    seen: Counter[str] = Counter()
    for seed in seeds_to_play(range(SEEDS)):
        with naming(seed, __file__):
            world = play(World(seed))
        for listener in world.listeners:
            seen += listener.seen
    print(dict(seen))
    if len(seeds_to_play(range(SEEDS))) > 1:
        wanted = ("Deliver", "Skipped", "Lost", "Missing", "Joined", "NewEpoch", "Ended")
        assert not [name for name in wanted if not seen[name]], "something never happened"


def calm(receivers: int, **drawn: object) -> Plan:
    """A plan without faults, but for those that are given."""
    plan = Plan(
        receivers, 300, (0, 0), 0, 0, 0, 100 * US, 0, False, "good", "group", False, "once", True,
        True, 0, 0,
    )  # fmt: skip
    for name, value in drawn.items():
        setattr(plan, name, value)
    return plan


def check_a_common_loss(seed: int, receivers: int) -> None:
    """A loss of all receivers is retransmitted twice at most, and asked for 1.5 times."""
    world = World(seed, calm(receivers, lost_for_all=0.15, messages=200))
    lost: set[int] = set()
    send_lines = world.send_lines

    def watched(datagram: bytes) -> None:
        before = world.runs_for_all
        send_lines(datagram)
        if world.runs_for_all > before:
            lost.update(numbers_of(read_datagram(datagram, Frame())[0]))

    world.send_lines = watched  # type: ignore[method-assign]
    play(world)
    assert len(lost) > 10
    runs = sum(number - 1 not in lost for number in lost)
    assert lost == {number for _, number in world.repeats}
    assert max(world.repeats.values()) <= 2
    assert world.counts["requests"] <= 1.5 * runs, (world.counts, runs)


def check_own_losses(seed: int, lost: tuple[float, float]) -> None:
    """One receiver's losses are asked for 1.5 times at most, and all are made good."""
    world = World(seed, calm(1, lost=lost, messages=1000))
    play(world)
    reception = world.listeners[0].receiver.reception
    assert reception.counts["asked"] > 10
    assert world.counts["requests"] <= 1.5 * reception.counts["asked"]
    assert reception.counts["lost"] == 0


def test_a_loss_common_to_a_hundred_costs_at_most_two_retransmissions(seed: int) -> None:
    check_a_common_loss(seed, 100)


@pytest.mark.parametrize("lost", [(0.2, 0.2), (0.2, 1), (0.5, 0.3)])
def test_requests_are_at_most_half_again_the_runs_of_loss(
    seed: int, lost: tuple[float, float]
) -> None:
    check_own_losses(seed, lost)
