"""Whole trees in simulated time: the members that ship, on links that lose, delay and break.

A seed draws a tree, its links, and what goes wrong: loss, spikes, proxies that die (and are
replaced or not), partitions, receivers that lie, clocks that are off and step, a sender that begins
anew, forged and replayed datagrams. What must hold: each receiver has each message at most once, in
order, none before its deadline by the sender's time as it knows it; what it has not is an announced
gap; deadlines never go back; a liar moves the hold by no more than its bound. `SEEDS=10000` plays
more, `SEED=n` one.
"""

import os
import random
from dataclasses import dataclass, field

import pytest

from feedhandler.overlay.fairness import HoldController
from feedhandler.overlay.last_hop import BOUND_NS as LAST_HOP_BOUND_NS
from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.release import HOLD_MAX_NS
from feedhandler.overlay.topology import Address, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, encode, read
from tests.support.overlay_trees import (
    MS,
    US,
    S,
    TreeWorld,
    announced,
    check_nothing_unannounced,
    ids_in_order,
    lie,
    play_seeds,
)

SEEDS = int(os.environ.get("SEEDS", "16"))
BOUND_NS = 3 * MS
INTERVAL_NS = 50 * MS
SHAPES = [Shape(3, 1, 1), Shape(5, 2, 2, 1), Shape(6, 2, 3, 2), Shape(8, 3, 2, 1), Shape(4, 2, 2)]


@dataclass
class Plan:
    """Scenario of one seed: the overlay's shape, its messages and its faults."""

    shape: Shape
    messages: int = 60
    gap_us: int = 2_000
    loss: float = 0.0
    spikes: float = 0.0
    dead: list[tuple[int, str]] = field(default_factory=list)
    replaced: bool = False
    partition: tuple[int, int, str] | None = None
    liar: str = ""
    clocks: bool = False
    steps: list[tuple[int, str, int]] = field(default_factory=list)
    restart: int = 0
    forged: float = 0.0
    wanted: float = 0.0


def drawn(rng: random.Random) -> Plan:
    """A plan; each fault with its own odds."""
    shape = rng.choice(SHAPES)
    plan = Plan(shape, rng.randrange(15, 50), rng.choice([200, 1_000, 4_000]))
    plan.loss = rng.choice([0, 0, 0.01, 0.1])
    plan.spikes = rng.choice([0, 0, 0.01, 0.1])
    proxies = [f"proxy-{layer}-{n}" for layer, w in enumerate(shape.widths[:-1]) for n in range(w)]
    end = plan.messages * plan.gap_us
    if proxies and rng.random() < 0.4:
        plan.dead = [(rng.randrange(end), rng.choice(proxies))]
        plan.replaced = rng.random() < 0.5
    if rng.random() < 0.2:
        begin = rng.randrange(end)
        plan.partition = (
            begin,
            begin + rng.randrange(1, end),
            f"receiver-{rng.randrange(shape.receivers)}",
        )
    if rng.random() < 0.2:
        plan.liar = f"receiver-{rng.randrange(shape.receivers)}"
    plan.clocks = rng.random() < 0.3
    if plan.clocks and rng.random() < 0.5:
        plan.steps = [(rng.randrange(end), f"receiver-{rng.randrange(shape.receivers)}",
                       rng.choice([-1, 1]) * rng.choice([300 * MS, 3 * S]))]  # fmt: skip
    plan.restart = rng.randrange(5, plan.messages) if rng.random() < 0.2 else 0
    plan.forged = rng.choice([0, 0, 0.05])
    plan.wanted = rng.choice([0.0, 0.9, 0.99])
    return plan


class World(TreeWorld):
    """Members of one tree, known by their names."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        super().__init__("sender", rng)
        self.plan = plan
        count = 1 + plan.shape.proxies + plan.shape.receivers
        addresses = [("10.0.0.1", 7_000 + n) for n in range(count)]
        keys = (rng.randbytes(32) for _ in range(count + 1))
        self.topology = make_topology(plan.shape, 3, addresses, keys)
        self.off = {each.name: 0 for each in self.topology.members}
        if plan.clocks:
            for each in self.topology.members[1:]:
                self.off[each.name] = rng.randrange(-40 * MS, 40 * MS)
        self.at: dict[Address, str] = {}
        self.holds: list[int] = []
        self.forgeries = 0
        self.recorded: list[bytes] = []
        controller = HoldController(plan.wanted) if plan.wanted else None
        self.sender = self.begin_sender(controller)
        for each in self.topology.members[1:]:
            self.begin(each.name)

    def begin_sender(self, controller: HoldController | None) -> Sender:
        me = self.topology.members[0]
        sender = Sender(self.topology, self.clock(me.name), controller=controller,
                        rotate=self.rng.random() < 0.5, bound_ns=BOUND_NS,
                        interval_ns=INTERVAL_NS)  # fmt: skip
        self.members[me.name] = sender
        self.at[me.address] = me.name
        return sender

    def begin(self, name: str) -> None:
        """Start a proxy or a receiver."""
        me = self.topology.member(name)
        epoch, clocks = self.clock(name), self.plan.clocks
        if me.role == "proxy":
            self.members[name] = Proxy(
                self.topology, name, epoch, 256, clocks, BOUND_NS, INTERVAL_NS
            )
        else:
            self.members[name] = Receiver(
                self.topology, name, epoch, 256, clocks, 5 * MS, INTERVAL_NS
            )
            self.had.setdefault(name, [])
        self.at[me.address] = name
        self.later(1, lambda: self.wake(name))

    # -- links ------------------------------------------------------------------------------

    def send(self, source: str, sends: list[tuple[bytes, tuple[Address, ...]]]) -> None:
        """Put datagrams on their way."""
        plan, rng = self.plan, self.rng
        address = self.topology.member(source).address
        for datagram, addresses in sends:
            if source == plan.liar:
                key = self.topology.member(source).key
                datagram = lie(datagram, rng, BOUND_NS, lambda _, key=key: key)  # type: ignore[misc]
            for index, to in enumerate(addresses):
                name = self.at.get(to, "")
                if rng.random() < plan.loss or self.cut(source, name):
                    continue
                delay = self.delay(index, plan.spikes)
                self.later(delay, lambda n=name, d=datagram: self.arrive(n, d, address))  # type: ignore[misc]
                if plan.forged and rng.random() < plan.forged:
                    self.forge(name, datagram, address)

    def cut(self, source: str, to: str) -> bool:
        """Return whether nothing goes between two members now."""
        part = self.plan.partition
        apart = part is not None and part[0] <= self.now // US < part[1] and part[2] in (source, to)
        return apart or source in self.down or to in self.down

    def forge(self, name: str, datagram: bytes, address: Address) -> None:
        """A host without keys sends, from a member's address or a stranger's."""
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:  # another content under the next id
            head = read(datagram)
            assert isinstance(head, Head)
            made = encode(
                head._replace(id=head.id + rng.randrange(1, 4)), b"false", rng.randbytes(32)
            )
        elif kind == 1:
            made = datagram[:-1] + bytes([datagram[-1] ^ 1])
        elif kind == 2:  # recorded, and sent again
            self.recorded.append(datagram)
            made = rng.choice(self.recorded)
        else:  # a true one, from a stranger
            made, address = datagram, ("10.9.9.9", 9)
        self.forgeries += 1
        self.later(rng.randrange(5 * MS), lambda: self.arrive(name, made, address))

    def arrive(self, name: str, datagram: bytes, address: Address) -> None:
        """A datagram reaches a member."""
        if not name or name in self.down:
            return
        member = self.members[name]
        self.send(name, member.receive(datagram, address, self.clock(name)))
        if self.rng.random() < 0.2:  # what comes together is released together
            self.later(100 * US, lambda: self.release(name))
        else:
            self.release(name)
        self.arm(name)

    # -- members ----------------------------------------------------------------------------

    def wake(self, name: str) -> None:
        """A member's time has come."""
        super().wake(name)
        if name == self.root:
            self.holds.append(self.sender.hold_ns)

    def published(self, number: int) -> None:
        """The sender, which may begin anew with it, has a message."""
        if number == self.plan.restart:
            self.sender = self.begin_sender(None)
        self.publish(number, counted=self.plan.restart == 0)

    def die(self, name: str) -> None:
        """A proxy dies; perhaps another one takes its place a little later."""
        self.down.add(name)
        if self.plan.replaced:
            self.later(10 * MS, lambda: self.replace(name))

    def replace(self, name: str) -> None:
        """A new topology for everybody, while they run."""
        self.topology = self.topology.replaced(name, ("10.0.0.2", 7_000), self.rng.randbytes(32))
        for each, member in self.members.items():
            if each != name:
                assert member.change(self.topology) == ""
        self.down.discard(name)
        self.begin(name)

    def step(self, name: str, by: int) -> None:
        """A member's clock is set."""
        self.off[name] += by
        if abs(by) > HOLD_MAX_NS:
            self.set_far.add(name)


def play(seed: int) -> World:
    """One seed's course, checked."""
    rng = random.Random(seed)
    plan = drawn(rng)
    world = World(plan, rng)
    # With clocks of their own members know the sender's time first.
    start = 600 * MS if plan.clocks else MS
    world.arm(world.root)
    for number in range(1, plan.messages + 1):
        world.later(start + number * plan.gap_us * US, lambda n=number: world.published(n))  # type: ignore[misc]
    for at, name in plan.dead:
        world.later(start + at * US, lambda n=name: world.die(n))  # type: ignore[misc]
    for at, name, by in plan.steps:
        world.later(start + at * US, lambda n=name, b=by: world.step(n, b))  # type: ignore[misc]
    if plan.partition:
        begin, end, name = plan.partition
        plan.partition = begin + start // US, end + start // US, name
    world.run(start + plan.messages * plan.gap_us * US + 800 * MS)
    check(world)
    return world


def check(world: World) -> None:
    """Check what must hold of a world at the end."""
    plan = world.plan
    assert world.deadlines == sorted(world.deadlines), "a deadline went back"
    assert max(world.holds, default=0) <= BOUND_NS, "a liar moved the hold beyond its bound"
    assert world.sender.longest_hop_ns <= LAST_HOP_BOUND_NS, "a liar's last hop, beyond its bound"
    for name, had in world.had.items():
        ids = ids_in_order(name, had)
        if name in world.down or cut_off(world, name) or not ids:
            continue
        gaps = announced(name, had, ids)
        if stepped(plan, name):
            continue  # what its clock made it refuse is counted
        check_nothing_unannounced(name, had, ids, gaps, world.sent)
        if whole(plan):
            assert not gaps, f"{name}: lost something"


def cut_off(world: World, name: str) -> bool:
    """Return whether a receiver has no live source at the end, or could not hear of an epoch."""
    part = world.plan.partition
    if part is not None and part[2] == name:
        return True
    shape, down = world.topology.shape, world.down
    alive = {(-1, 0)}
    for layer in range(shape.depth):
        for index in range(shape.widths[layer]):
            there = world.topology.at(layer, index).name not in down
            if there and any((layer - 1, n) in alive for n in shape.sources(layer, index)):
                alive.add((layer, index))
    me = world.topology.member(name)
    return (me.layer, me.index) not in alive


def stepped(plan: Plan, name: str) -> bool:
    return any(each[1] == name for each in plan.steps)


def whole(plan: Plan) -> bool:
    """Return whether nothing at all may be lost in this plan.

    That is without loss, and where each of a dead proxy's children has another source. Layer 0 has
    the sender alone, but what a proxy there misses its neighbours have.
    """
    return (
        plan.loss == 0 and plan.spikes == 0 and plan.partition is None and not plan.restart
        and plan.forged == 0 and (not plan.dead or plan.shape.hedging > 0)
        and not plan.clocks
    )  # fmt: skip


@pytest.mark.parametrize("share", range(4))
def test_every_course_keeps_order_deadlines_and_bounds(share: int) -> None:
    play_seeds(play, range(1 + share, SEEDS + 1, 4), __file__)


def test_a_seed_does_the_same_again() -> None:
    assert play(7).had == play(7).had
