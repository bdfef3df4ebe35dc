"""Several trees of one sender in simulated time, merged by number: the members that ship.

A seed draws trees with the same sender and receivers, their links, and what goes wrong: loss,
spikes, a proxy that dies in one of the trees (and is replaced there or not), a receiver that lies
about delays and its last hop, clocks that are off, a sender that begins anew. What must hold is
what holds in one tree (`test_overlay`): each receiver has each message at most once, in the order
of the numbers over all trees, none before its deadline; what it has not is an announced gap;
deadlines never go back over all trees; a liar moves holds by no more than its bounds. `SEEDS=10000`
plays more, `SEED=n` one.
"""

import os
import random
from dataclasses import dataclass

import pytest

from feedhandler.overlay.last_hop import BOUND_NS as LAST_HOP_BOUND_NS
from feedhandler.overlay.members import Proxy, Sends
from feedhandler.overlay.merging import (
    MergedReceiver,
    MergedSender,
    check_trees,
    receiver_of,
    sender_of,
)
from feedhandler.overlay.topology import Address, Topology, make_topology
from feedhandler.overlay.tree import Shape
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
GAP_WAIT_NS = 5 * MS
SHAPES = [Shape(5, 2, 2, 1), Shape(6, 2, 3, 2), Shape(8, 3, 2, 1), Shape(4, 2, 2), Shape(3, 1, 1)]
ROOT = ("10.0.0.1", 7_000)


@dataclass
class Plan:
    """Scenario of one seed: the trees, their shape, the messages and the faults."""

    trees: int
    shape: Shape
    messages: int
    gap_us: int
    loss: float
    spikes: float
    dead: tuple[int, int] | None
    replaced: bool
    liar: str
    clocks: bool
    last_hops: bool
    restart: int


def drawn(rng: random.Random) -> Plan:
    """A plan; each fault with its own odds."""
    shape, messages, gap_us = (
        rng.choice(SHAPES), rng.randrange(30, 80), rng.choice([20, 200, 1_000, 4_000]),
    )  # fmt: skip
    some = shape.proxies and rng.random() < 0.4
    return Plan(
        trees=rng.choice([2, 2, 3]), shape=shape, messages=messages, gap_us=gap_us,
        loss=rng.choice([0, 0, 0.01, 0.1]), spikes=rng.choice([0, 0, 0.01, 0.1]),
        dead=(rng.randrange(messages * gap_us), rng.randrange(shape.proxies)) if some else None,
        replaced=rng.random() < 0.5,
        liar=f"receiver-{rng.randrange(shape.receivers)}" if rng.random() < 0.2 else "",
        clocks=rng.random() < 0.3, last_hops=rng.random() < 0.5,
        restart=rng.randrange(5, messages) if rng.random() < 0.2 else 0,
    )  # fmt: skip


class World(TreeWorld):
    """Trees at work; members are known by their addresses."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        super().__init__(ROOT, rng)
        self.plan = plan
        self.topologies = [self.planted(tree) for tree in range(1, plan.trees + 1)]
        check_trees(self.topologies)
        self.off[ROOT] = 0
        self.liar = self.topologies[0].member(plan.liar).address if plan.liar else None
        self.extra_holds: list[int] = []
        self.sender = self.begin_sender()
        for topology in self.topologies:
            for each in topology.members[1:]:
                if each.role == "proxy" or topology is self.topologies[0]:
                    self.begin(topology, each.address)

    def planted(self, tree: int) -> Topology:
        """A tree's topology: proxies of their own, the sender and the receivers of all."""
        shape, rng = self.plan.shape, self.rng
        addresses = [ROOT]
        addresses += [(f"10.0.{tree}.1", 7_000 + n) for n in range(shape.proxies)]
        addresses += [("10.0.0.2", 7_000 + n) for n in range(shape.receivers)]
        keys = (rng.randbytes(32) for _ in range(len(addresses) + 1))
        return make_topology(shape, tree, addresses, keys)

    def begin_sender(self) -> MergedSender:
        sender = sender_of(
            self.topologies, self.clock(ROOT), bound_ns=BOUND_NS, interval_ns=INTERVAL_NS,
            rotate=self.rng.random() < 0.5,
        )  # fmt: skip
        assert isinstance(sender, MergedSender)
        self.members[ROOT] = sender
        return sender

    def begin(self, topology: Topology, at: Address) -> None:
        """Start the member of an address: a tree's proxy, or a receiver in all trees."""
        me = next(each for each in topology.members if each.address == at)
        clocks = self.plan.clocks
        self.off[at] = self.rng.randrange(-40 * MS, 40 * MS) if clocks else 0
        epoch = self.clock(at)
        if me.role == "proxy":
            self.members[at] = Proxy(topology, me.name, epoch, 256, clocks, BOUND_NS, INTERVAL_NS)
        else:
            receiver = receiver_of(
                self.topologies, me.name, epoch, slots=256, follows_clock=clocks,
                gap_wait_ns=GAP_WAIT_NS, interval_ns=INTERVAL_NS,
                echo=("10.1.0.2", at[1]) if self.plan.last_hops else None,
            )  # fmt: skip
            assert isinstance(receiver, MergedReceiver)
            self.members[at], self.had[at] = receiver, []
        self.later(1, lambda: self.wake(at))

    # -- links ------------------------------------------------------------------------------

    def send(self, source: Address, sends: Sends) -> None:
        """Put datagrams on their way."""
        plan, rng = self.plan, self.rng
        for datagram, addresses in sends:
            if source == self.liar:
                datagram = lie(datagram, rng, BOUND_NS, self.key_of_liar)
            for index, to in enumerate(addresses):
                if to[0] == "10.1.0.2":  # an isolated process, which answers
                    trip = 2 * rng.randrange(10 * US, 50 * US)
                    self.later(trip, lambda s=source, d=datagram, e=to: self.arrive(s, d, e))  # type: ignore[misc]
                    continue
                if source in self.down or to not in self.members or rng.random() < plan.loss:
                    continue
                delay = self.delay(index, plan.spikes)
                self.later(delay, lambda t=to, d=datagram, s=source: self.arrive(t, d, s))  # type: ignore[misc]

    def key_of_liar(self, tree: int) -> bytes:
        """The key of the receiver that lies, in a tree."""
        return self.topologies[tree - 1].member(self.plan.liar).key

    def arrive(self, to: Address, datagram: bytes, source: Address) -> None:
        """A datagram reaches a member."""
        if to in self.down:
            return
        self.send(to, self.members[to].receive(datagram, source, self.clock(to)))
        self.release(to)
        self.arm(to)

    # -- members ----------------------------------------------------------------------------

    def release(self, at: Address) -> None:
        """Release what a receiver may release now, and check it."""
        if at in self.had:
            self.extra_holds.append(self.members[at].holding.extra_hold_ns)
        super().release(at)

    def published(self, number: int) -> None:
        """The sender, which may begin anew with it, has a message."""
        if number == self.plan.restart:
            self.sender = self.begin_sender()
        head = self.publish(number, counted=not self.plan.restart)
        assert head.tree == (head.id - 1) % self.plan.trees + 1

    def die(self, tree: int, number: int) -> None:
        """A tree's proxy dies; perhaps another one takes its place a little later."""
        topology = self.topologies[tree]
        dead = [each for each in topology.members if each.role == "proxy"][number]
        self.down.add(dead.address)
        if self.plan.replaced:
            self.later(10 * MS, lambda: self.replace(tree, dead.name))

    def replace(self, tree: int, name: str) -> None:
        """A later version of one tree's topology for everybody in it, while they run."""
        before = self.topologies[tree]
        after = before.replaced(name, (f"10.0.{tree + 1}.9", 7_000), self.rng.randbytes(32))
        self.topologies[tree] = after
        for each in before.members:
            if each.name != name:
                assert self.members[each.address].change(after) == ""
        self.begin(after, after.member(name).address)


def play(seed: int) -> World:
    """One seed's course, checked."""
    rng = random.Random(seed)
    plan = drawn(rng)
    world = World(plan, rng)
    # With clocks of their own members know the sender's time first.
    start = 1_000 * MS if plan.clocks else MS
    world.arm(ROOT)
    for number in range(1, plan.messages + 1):
        world.later(start + number * plan.gap_us * US, lambda n=number: world.published(n))  # type: ignore[misc]
    if plan.dead is not None:
        at, number = plan.dead
        tree = rng.randrange(plan.trees)
        world.later(start + at * US, lambda: world.die(tree, number))
    world.run(start + plan.messages * plan.gap_us * US + 800 * MS)
    check(world)
    return world


def check(world: World) -> None:
    """Check what must hold of a world at the end."""
    plan = world.plan
    assert world.deadlines == sorted(world.deadlines), "a deadline went back"
    for sender in world.sender.members:
        assert sender.hold_ns <= BOUND_NS, "a liar moved the hold beyond its bound"
        assert sender.longest_hop_ns <= LAST_HOP_BOUND_NS, "a liar's last hop, beyond its bound"
    assert max(world.extra_holds, default=0) <= LAST_HOP_BOUND_NS
    for name, had in world.had.items():
        ids = ids_in_order(name, had)
        if not ids:
            continue
        gaps = announced(name, had, ids)
        check_nothing_unannounced(name, had, ids, gaps, world.sent)
        if whole(plan):
            assert (ids[0][1], len(gaps)) == (1, 0), f"{name}: lost something"


def whole(plan: Plan) -> bool:
    """Return whether nothing at all may be lost in this plan.

    That is where a dead proxy's children have another source in its tree, and nothing takes longer
    than what is waited for.
    """
    dead = plan.dead is not None and plan.shape.hedging == 0
    return not (plan.loss or plan.spikes or plan.restart or plan.clocks or dead)


@pytest.mark.parametrize("share", range(4))
def test_every_course_keeps_order_deadlines_and_bounds_over_all_trees(share: int) -> None:
    play_seeds(play, range(1 + share, SEEDS + 1, 4), __file__)


def test_a_seed_does_the_same_again() -> None:
    assert play(7).had == play(7).had


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_more_trees_as_neighbours_make_goodput_whole(count: int) -> None:
    """A proxy sends (1 + H) times each message of its tree, which has one of 1 + H messages."""
    shape, messages = Shape(9, 2, 3, count - 1), 60 * count
    plan = Plan(
        trees=count, shape=shape, messages=messages, gap_us=1_000, loss=0, spikes=0, dead=None,
        replaced=False, liar="", clocks=False, last_hops=False, restart=0,
    )  # fmt: skip
    world = World(plan, random.Random(1))
    for number in range(1, messages + 1):
        world.later(number * MS, lambda n=number: world.published(n))  # type: ignore[misc]
    world.run(messages * MS + S // 10)
    proxies = [each for each in world.members.values() if isinstance(each, Proxy)]
    assert len(proxies) == count * shape.proxies
    for each in proxies:
        beats = each.counts["first"] - 60
        data = each.counts["forwarded"] - len(each.targets) * beats
        assert data == messages * shape.fan_out, "as often as it has children, of all messages"
