"""The overlay in simulated time: a sender, proxies and receivers over links that fail.

What plays are the objects that ship: `Sender`, `Proxy` and `Receiver`. A seed draws the tree, how
often datagrams are lost, doubled and late, which proxy dies, whether it is replaced while the rest
runs and comes back afterwards as if nothing were, which members are cut off and for how long, which
receiver lies in its reports, whether the sender restarts, how the members know the time, and whose
clock steps. Strangers send what they have recorded and altered.

Checked for each receiver: what comes out is what was sent, in order and once; what is not is
announced as a gap, and after the network has healed it is complete up to the sender's last message;
nothing comes before its deadline by the receiver's own clock, and what is late comes at once. The
deadline is never further away than its bound, whoever lies. What strangers send is answered by
nobody. A tree with H = 1 that loses one proxy and nothing else announces no gap.

`SEEDS=n` plays n seeds (a campaign: 10,000), `SEED=s` just one.
"""

import heapq
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from feedhandler.overlay.admission import Admission
from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.deduplication import Deduplicator, Verdict
from feedhandler.overlay.node import Event, Node, NodeSettings, Outcome, Send
from feedhandler.overlay.proxy import Proxy
from feedhandler.overlay.receiver import Receiver
from feedhandler.overlay.release import Deliver, Gap, NewEpoch, ReleaseQueue
from feedhandler.overlay.sender import Sender, SenderSettings
from feedhandler.overlay.topology import Address, Member, Role, Shape, Topology
from feedhandler.overlay.wire import DELAY_NS_MAX, QUANTILE_LEVELS, read_header

SEEDS = int(os.environ.get("SEEDS", "1000"))
US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
#: The time that a world begins with: clocks are not 0 anywhere.
BEGIN_NS = 1_700_000_000 * SECOND
HOLD_NS_MAX = 20 * MS
SHAPES = (
    Shape(1, 3, 0, 3),
    Shape(2, 2, 0, 3),
    Shape(2, 2, 1, 3),
    Shape(2, 3, 1, 4),
    Shape(2, 3, 2, 3),
    Shape(3, 2, 1, 4),
)
STRANGER: Address = ("10.9.9.9", 9)
SETTINGS = NodeSettings(
    messages_per_second=1_000, hello_ns=200 * MS, report_ns=40 * MS, heartbeat_ns=50 * MS
)


@dataclass
class Plan:
    """What a seed draws."""

    shape: Shape
    messages: int
    gap_ns: int
    lost: float = 0.0
    doubled: float = 0.0
    spikes: float = 0.0
    dies: bool = False
    replaced: bool = False
    cut: bool = False
    liar: bool = False
    restarts: bool = False
    probes: bool = False
    step_ns: int = 0
    wanted: float = 0.99
    strangers: bool = True

    @classmethod
    def drawn(cls, dice: random.Random) -> "Plan":
        """The plan of a seed."""
        shape = dice.choice(SHAPES)
        return cls(
            shape=shape,
            messages=dice.choice([10, 20, 30]),
            gap_ns=dice.choice([100 * US, MS, 4 * MS]),
            lost=dice.choice([0, 0, 0.01, 0.1]),
            doubled=dice.choice([0, 0, 0.05]),
            spikes=dice.choice([0, 0, 0.01, 0.1]),
            dies=dice.random() < 0.4 and shape.depth > 1,
            replaced=dice.random() < 0.5,
            cut=dice.random() < 0.2,
            liar=dice.random() < 0.2,
            restarts=dice.random() < 0.15,
            probes=dice.random() < 0.3,
            step_ns=dice.choice([0, 0, 0, -50 * MS, 50 * MS, -SECOND, 3_600 * SECOND]),
            wanted=dice.choice([0, 0.9, 0.99]),
        )

    @property
    def calm(self) -> bool:
        """Whether nothing but a proxy's death happens to messages."""
        return not (self.lost or self.spikes or self.cut or self.restarts)


class Liar(Receiver):
    """A receiver that reports the longest delays there are, and all messages as late."""

    def _interval(self, now_ns: int, outcome: Outcome) -> None:
        self._window.take = lambda: (DELAY_NS_MAX,) * len(QUANTILE_LEVELS)  # type: ignore
        for id in range(max(1, self.queue.expected - 20), self.queue.expected):
            self._late.add(id)
        super()._interval(now_ns, outcome)


class Checker:
    """What should come out of one receiver."""

    def __init__(self, world: "World", receiver: Receiver) -> None:
        self.world, self.receiver = world, receiver
        self.epoch = self.expected = self.released_ns = 0
        self.seen: Counter[str] = Counter()
        self.lost = 0

    def take(self, events: list[Event]) -> None:
        """Check events, in their order."""
        for event in events:
            self.seen[type(event).__name__] += 1
            if isinstance(event, NewEpoch):
                assert event.epoch > self.epoch
                self.epoch, self.expected = event.epoch, event.first
                self.released_ns = self.world.time_of(self.receiver)
            elif isinstance(event, Gap):
                assert (event.epoch, event.first) == (self.epoch, self.expected), event
                assert event.first <= event.last
                self.lost += event.last + 1 - event.first
                self.expected = event.last + 1
                self.released_ns = self.world.time_of(self.receiver)
            elif isinstance(event, Deliver):
                self.delivered(event)

    def delivered(self, event: Deliver) -> None:
        assert (event.epoch, event.id) == (self.epoch, self.expected), "order, or a duplicate"
        self.expected += 1
        assert event.datagram == self.world.sent[event.epoch, event.id]
        stepped = bool(self.world.plan.step_ns) or not self.receiver.clock.known
        if not stepped:
            assert event.released_ns >= event.deadline_ns, "before its deadline"
            assert event.late == (0 < event.deadline_ns < event.arrived_ns)
        elif event.deadline_ns > (event.released_ns if self.receiver.clock.known else 0):
            self.seen["overheld"] += 1
            assert self.receiver.counts[C.OVERHELD]
        if event.late:
            self.seen["late"] += 1
            if not stepped and not self.world.plan.probes:
                # At once: with its arrival, or with what it had to wait for in the order.
                assert event.released_ns == max(event.arrived_ns, self.released_ns), "not at once"
        self.released_ns = event.released_ns


class World:
    """Everything, and the time."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.dice = random.Random(seed)
        self.plan = plan or Plan.drawn(self.dice)
        self.now_ns = BEGIN_NS
        self.healed = False
        self.counts: Counter[str] = Counter()
        self.sent: dict[tuple[int, int], bytes] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._turns = itertools.count()
        self._woken: dict[Node, int] = {}
        self.nodes: dict[Address, Node] = {}
        self._addresses: dict[Node, Address] = {}
        self.cut: set[Address] = set()
        #: What a wall clock is wrong by, and where a local clock begins.
        self.wrong_ns: dict[str, int] = {}
        self.base_ns: dict[str, int] = {}
        self.checkers: dict[str, Checker] = {}
        self._recorded: list[bytes] = []
        self.topology = self.make_topology()
        liar = f"receiver-{self.dice.randrange(self.plan.shape.receivers)}"
        self.liar = liar if self.plan.liar else ""
        for member in self.topology.members:
            self.begin(member)

    def make_topology(self) -> Topology:
        shape, dice = self.plan.shape, self.dice
        places = [(-1, 0)] + [
            (layer, index) for layer, width in enumerate(shape.widths) for index in range(width)
        ]
        last = shape.depth - 1
        members = []
        for port, (layer, index) in enumerate(places, 1):
            role = Role.SENDER if layer < 0 else Role.RECEIVER if layer == last else Role.PROXY
            name = {Role.SENDER: "sender", Role.RECEIVER: f"receiver-{index}"}.get(
                role, f"proxy-{layer}-{index}"
            )
            address = ("10.0.0.1", port)
            members.append(Member(name, role, layer, index, address, dice.randbytes(32)))
        return Topology(1, 7, shape, dice.randbytes(32), members)

    # -- members -----------------------------------------------------------------------------------

    def begin(self, member: Member) -> Node:
        """A member's process begins."""
        name = member.name
        self.base_ns[name] = self.dice.randint(1, 10**15) - self.now_ns
        self.wrong_ns.setdefault(name, self.dice.randint(-20 * US, 20 * US))
        now_ns = self.local(name)
        asks = self.plan.probes and member.role is not Role.SENDER
        settings = SETTINGS._replace(probe_ns=20 * MS if asks else 0)
        clock = OverlayClock(known=False)
        if not asks:
            clock.wall(now_ns, self.wall(name))
        if member.role is Role.SENDER:
            sending = SenderSettings(wanted=self.plan.wanted, hold_ns_max=HOLD_NS_MAX)
            self.sender = Sender(self.topology, self.now_ns, now_ns, settings, clock, sending)
            node: Node = self.sender
        elif member.role is Role.PROXY:
            node = Proxy(self.topology, name, self.now_ns, now_ns, settings, clock)
        else:
            kind = Liar if name == self.liar else Receiver
            receiver = kind(self.topology, name, self.now_ns, now_ns, settings, clock)
            self.checkers[name] = Checker(self, receiver)
            node = receiver
        self.nodes[member.address] = node
        self._addresses[node] = member.address
        self.wake(node)
        return node

    def local(self, name: str) -> int:
        return self.now_ns + self.base_ns[name]

    def wall(self, name: str) -> int:
        return self.now_ns + self.wrong_ns[name]

    def time_of(self, node: Node) -> int:
        """The overlay's time as a member knows it now."""
        return node.clock.time_ns(self.local(node.name))

    # -- time --------------------------------------------------------------------------------------

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when_ns, self.now_ns), next(self._turns), what))

    def run(self, for_ns: int) -> None:
        end_ns = self.now_ns + for_ns
        while self._queue and self._queue[0][0] <= end_ns:
            self.now_ns, _, what = heapq.heappop(self._queue)
            what()
        self.now_ns = end_ns

    def wake(self, node: Node) -> None:
        """Have a member woken at its deadline, once for each."""
        when_ns = node.deadline_ns - self.base_ns[node.name]
        if self._woken.get(node, 1 << 63) <= when_ns:
            return
        self._woken[node] = when_ns

        def due() -> None:
            if self._woken.get(node) != when_ns:
                return
            del self._woken[node]
            if self.nodes.get(self._addresses[node]) is node:
                now_ns = self.local(node.name)
                self.done(node, node.tick(now_ns))
                assert node.deadline_ns > now_ns, "what is due was not done"

        self.at(when_ns, due)

    def done(self, node: Node, outcome: Outcome) -> None:
        """Send what a member wants sent, check its events, and wake it when it wants."""
        self.send(node, outcome.sends)
        for event in outcome.events:
            self.counts[type(event).__name__] += 1
        if isinstance(node, Receiver):
            self.checkers[node.name].take(outcome.events)
        self.wake(node)

    # -- the network -------------------------------------------------------------------------------

    def send(self, node: Node, sends: list[Send]) -> None:
        plan, dice = self.plan, self.dice
        source = self._addresses[node]
        for at, (address, datagram) in enumerate(sends):
            lost = (dice.random() < plan.lost) and not self.healed
            if lost or (source in self.cut) != (address in self.cut):
                continue
            delay_ns = 20 * US + 3 * US * at + dice.randrange(20 * US)
            if not self.healed and dice.random() < plan.spikes:
                delay_ns += dice.choice([MS, 2 * MS, 30 * MS])
            self.carry(source, address, datagram, delay_ns)
            if dice.random() < plan.doubled:
                self.carry(source, address, datagram, delay_ns + dice.randrange(5 * MS))
        if plan.strangers and sends and dice.random() < 0.02:
            self._recorded.append(sends[0][1])
            self.attack(sends[0][0], source)

    def carry(self, source: Address, address: Address, datagram: bytes, delay_ns: int) -> None:
        def arrive() -> None:
            node = self.nodes.get(address)
            if node is not None:
                self.done(node, node.receive(datagram, source, self.local(node.name)))

        self.at(self.now_ns + delay_ns, arrive)

    def attack(self, address: Address, source: Address) -> None:
        """A stranger sends what it has recorded, or has altered under a member's address."""
        node = self.nodes.get(address)
        if node is None:
            return
        recorded = self.dice.choice(self._recorded)
        altered = bytearray(recorded)
        altered[self.dice.randrange(len(altered))] ^= 1 << self.dice.randrange(8)
        for datagram, whence in ((recorded, STRANGER), (bytes(altered), source)):
            outcome = node.receive(datagram, whence, self.local(node.name))
            assert not outcome.sends, "a stranger was answered"
            assert not outcome.events, "a stranger was believed"
        self.counts["attacks"] += 1

    # -- what happens ------------------------------------------------------------------------------

    def publish(self) -> None:
        sender = self.sender
        before = sender.controller.hold_ns
        sends = sender.send(self.dice.randbytes(self.dice.randrange(60)), self.local("sender"))
        if not sends:
            return
        datagram = sends[0][1]
        header = read_header(datagram)
        self.sent[header.epoch, header.id] = datagram
        if header.deadline_ns:
            self.counts["dated"] += 1
            assert header.deadline_ns - header.sent_ns <= HOLD_NS_MAX
            previous = self.sent.get((header.epoch, header.id - 1))
            assert previous is None or read_header(previous).deadline_ns <= header.deadline_ns
        # Cut to its bound, and half again at most where the controller goes beyond the maximum.
        assert before <= SETTINGS.delays.delay_ns_max * 3 // 2
        self.send(sender, sends)
        self.wake(sender)

    def sample_walls(self) -> None:
        """Read the wall clocks, as a member's process does."""
        for node in list(self.nodes.values()):
            if not node.settings.probe_ns:
                self.done(node, node.wall(self.local(node.name), self.wall(node.name)))
        self.at(self.now_ns + 50 * MS, self.sample_walls)

    def kill(self) -> None:
        """A proxy dies."""
        proxies = [each for each in self.topology.members if each.role is Role.PROXY]
        self.dead = self.dice.choice(proxies)
        self.zombie = self.nodes.pop(self.dead.address)

    def replace(self) -> None:
        """Another process takes the dead one's place; members hear of it one by one."""
        address = ("10.0.0.2", 1)
        self.topology = self.topology.replaced(self.dead.name, address, self.dice.randbytes(32))
        topology = self.topology
        for node in list(self.nodes.values()):
            self.at(
                self.now_ns + self.dice.randrange(150 * MS),
                lambda node=node: node.adopt(topology, self.local(node.name)),
            )
        self.base_ns["zombie"] = self.base_ns[self.dead.name]
        self.zombie.name = "zombie"
        self.begin(topology.member(self.dead.name))
        # The old one was only cut off: it goes on with what it knows.
        self.nodes[self.dead.address] = self.zombie
        self.wrong_ns["zombie"] = 0
        self._woken.pop(self.zombie, None)
        self.wake(self.zombie)

    def step(self) -> None:
        name = self.dice.choice([each.name for each in self.topology.members])
        self.wrong_ns[name] += self.plan.step_ns

    def partition(self) -> None:
        self.cut = {a for a in self.nodes if self.dice.random() < 0.3}

    def restart(self) -> None:
        member = self.topology.member("sender")
        del self.nodes[member.address]
        self.begin(member)


def play(world: World) -> World:
    """Publish, let things happen, heal, end; every receiver must be complete then."""
    plan, dice = world.plan, world.dice
    world.at(world.now_ns, world.sample_walls)
    world.run(50 * MS)
    happenings = [
        (plan.dies, world.kill),
        (plan.step_ns, world.step),
        (plan.cut, world.partition),
        (plan.restarts, world.restart),
    ]
    wanted = {dice.randrange(plan.messages): what for happens, what in happenings if happens}
    for at in range(plan.messages):
        if at in wanted:
            wanted.pop(at)()
        world.publish()
        world.run(plan.gap_ns)
        if at % 10 == 9:
            world.run(40 * MS)
    if plan.dies and plan.replaced and hasattr(world, "dead"):
        world.replace()
        world.publish()
        world.run(220 * MS)
    world.healed, world.cut = True, set()
    world.run(120 * MS)
    for _ in range(3):
        world.publish()
        world.run(MS)
    world.run(120 * MS)
    check_end(world)
    return world


def check_end(world: World) -> None:
    plan, sender = world.plan, world.sender
    cut_off = plan.dies and not plan.replaced and not plan.shape.hedge
    for checker in world.checkers.values():
        whole = (checker.epoch, checker.expected) == (sender.epoch, sender.id + 1)
        assert whole or cut_off, (checker.receiver.name, checker.expected, sender.id)
        assert checker.seen["Deliver"] == checker.receiver.counts[C.DELIVERED]
        assert not checker.receiver.counts[C.OVERHELD] or plan.step_ns or plan.probes
        if plan.calm and plan.step_ns >= 0 and (plan.shape.hedge or not plan.dies):
            assert not checker.lost, "the death of one proxy lost messages"


def seeds() -> list[int]:
    """The seeds that are asked for."""
    one = os.environ.get("SEED")
    return [int(one)] if one else list(range(SEEDS))


@pytest.mark.timeout(36_000)
def test_receivers_get_every_message_once_in_order_and_not_before_its_deadline() -> None:
    seen: Counter[str] = Counter()
    for seed in seeds():
        try:
            world = play(World(seed))
        except AssertionError as error:
            again = f"SEED={seed} python -m pytest tests/simulation/test_overlay.py"
            raise AssertionError(f"seed {seed} failed; again with: {again}\n{error}") from error
        seen += world.counts
        for checker in world.checkers.values():
            seen += checker.seen
    print(dict(seen))
    if len(seeds()) >= 1000:
        wanted = ("Deliver", "Gap", "NewEpoch", "late", "dated", "attacks", "ClockStepped")
        wanted += ("Change", "SetApart", "OtherTopology", "overheld")
        assert not [name for name in wanted if not seen[name]], "something never happened"


@pytest.mark.parametrize("shape", [Shape(2, 3, 1, 6), Shape(3, 2, 1, 4)])
def test_with_one_hedge_the_death_of_any_proxy_loses_nothing(seed: int, shape: Shape) -> None:
    for each in range(seed, seed + 5):
        plan = Plan(shape, 40, MS, dies=True, replaced=bool(each % 2))
        world = play(World(each, plan))
        assert not [checker for checker in world.checkers.values() if checker.lost]
        assert world.counts["Deliver"] == shape.receivers * world.sender.id


def test_without_a_hedge_what_a_dead_proxy_lost_is_announced(seed: int) -> None:
    plan = Plan(Shape(2, 3, 0, 6), 40, MS, dies=True, replaced=True)
    world = play(World(seed, plan))
    assert sum(checker.lost for checker in world.checkers.values()) > 0
    for checker in world.checkers.values():
        assert checker.seen["Deliver"] + checker.lost == world.sender.id


def test_a_liar_moves_the_hold_within_its_bound_and_is_told(seed: int) -> None:
    shape = Shape(2, 2, 1, 8)
    plan = Plan(shape, 150, MS, wanted=0, strangers=False)
    honest = play(World(seed, plan)).sender
    plan.liar = True
    liar = play(World(seed, plan))
    # Of four children that report to one proxy, one is set apart: the deadline does not move.
    assert liar.counts["SetApart"] > 0
    assert liar.sender.outliers == (int(liar.liar.rpartition("-")[2]),)
    assert liar.sender.controller.hold_ns < 2 * honest.controller.hold_ns


# -- the checks bite -------------------------------------------------------------------------------


def too_early(patch: pytest.MonkeyPatch) -> None:
    """Release what came without waiting for its deadline."""
    patch.setattr(ReleaseQueue, "_due_ns", lambda self, held: held.arrived_local_ns)


def too_late(patch: pytest.MonkeyPatch) -> None:
    """Hold what is late for a while."""
    due_ns = ReleaseQueue._due_ns
    patch.setattr(ReleaseQueue, "_due_ns", lambda self, held: due_ns(self, held) + 5 * MS)


def out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Hand over what came, whatever is missing before it."""

    def advance(self: ReleaseQueue) -> None:
        for id in sorted(self._waiting):
            self._ready.append(self._waiting.pop(id))
            self._ready_messages += 1
            self.expected = id + 1

    patch.setattr(ReleaseQueue, "_advance", advance)


def twice(patch: pytest.MonkeyPatch) -> None:
    """Take every copy for the first one."""
    patch.setattr(Deduplicator, "judge", lambda self, epoch, id: Verdict.ACCEPTED)

    def add(self: ReleaseQueue, id: int, datagram: bytes, deadline_ns: int, now_ns: int) -> bool:
        self.expected = min(self.expected, id)
        return real(self, id, datagram, deadline_ns, now_ns)

    real = ReleaseQueue.add
    patch.setattr(ReleaseQueue, "add", add)


def gullible(patch: pytest.MonkeyPatch) -> None:
    """Believe everybody, under any seal."""
    patch.setattr(Admission, "check_source", lambda self, header, source: None)
    patch.setattr(Admission, "check_seal", lambda self, datagram: None)


def backwards(patch: pytest.MonkeyPatch) -> None:
    """Date messages by the hold alone."""
    patch.setattr(Sender, "_date", lambda self, time_ns: time_ns + self.controller.hold_ns)


def silent_gaps(patch: pytest.MonkeyPatch) -> None:
    """Go on behind a gap, and tell nobody."""
    leave = ReleaseQueue._leave
    patch.setattr(
        ReleaseQueue,
        "_leave",
        lambda self, now_ns: (e for e in leave(self, now_ns) if not isinstance(e, Gap)),
    )


BROKEN = (too_early, too_late, out_of_order, twice, gullible, backwards, silent_gaps)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
def test_a_member_that_does_one_thing_wrong_is_found(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    def play_seeds() -> None:
        for seed in range(100):
            play(World(seed))

    with pytest.raises(AssertionError):
        play_seeds()
