"""A tree of real processes in network namespaces: proxies are killed, links go down.

`KILLS=500` for the campaign (`make crash-overlay`). A random test prints how to play it again.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.release import Event
from feedhandler.overlay.running import Loop, open_socket
from feedhandler.overlay.topology import Member, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind, encode
from tests.support.overlay_hooks import Network, NoNetwork, require

KILLS = int(os.environ.get("KILLS", "8"))
PATIENCE_S = 60.0
#: A port that no member has.
PROBE_PORT = 9_998
SHAPE = Shape(6, 2, 3, 1)
HOSTS = ["sender", "proxy0", "proxy1", "proxy2", "receivers0", "receivers1"]
#: How long a receiver waits for a missing message: where it comes by a neighbour, however busy the
#: machine is; where it is lost, and to be announced soon.
COMES_NS, LOST_NS = 20_000_000_000, 50_000_000
FORK = multiprocessing.get_context("fork")
#: What each receiver tells, in shared memory: delivered, missing, the last id it is done with,
#: and whether it ever had something out of order or before its deadline.
DELIVERED, MISSING, LAST, WRONG = range(4)
FIELDS = 4


class Tree:
    """The members of a tree, each in its host; the sender is in the test's own process."""

    def __init__(self, network: Network, hedging: int, gap_wait_ns: int) -> None:
        self.network = network
        self.gap_wait_ns = gap_wait_ns
        shape = Shape(SHAPE.receivers, SHAPE.depth, SHAPE.fan_out, hedging)
        self.host_of: dict[str, str] = {}
        addresses = []
        for n, host in enumerate(["sender", "proxy0", "proxy1", "proxy2"]):
            addresses.append((network.address(host), 7_000 + n))
        for n in range(shape.receivers):
            addresses.append((network.address(f"receivers{n % 2}"), 7_100 + n))
        keys = (os.urandom(32) for _ in range(20))
        self.topology = make_topology(shape, 1, addresses, keys)
        by_address = {network.address(host): host for host in HOSTS}
        for each in self.topology.members:
            self.host_of[each.name] = by_address[each.address[0]]
        self.receivers = [each for each in self.topology.members if each.role == "receiver"]
        self.proxies = [each for each in self.topology.members if each.role == "proxy"]
        self.reported = FORK.Array("q", FIELDS * len(self.receivers), lock=False)
        self.processes: dict[str, BaseProcess] = {}
        me = self.topology.members[0]
        with network.inside("sender"):
            self._sock = open_socket(me)
        self.sender = Sender(self.topology, time.time_ns())
        self.loop = Loop(self.sender, self._sock)

    def start(self, member: Member) -> None:
        """Start a member's process; returns when its socket is there."""
        ready, said = FORK.Pipe(False)
        process = FORK.Process(target=self._work, args=(member, said), daemon=True)
        process.start()
        assert ready.poll(PATIENCE_S), f"{member.name} did not start"
        ready.recv()
        self.processes[member.name] = process

    def _work(self, me: Member, said: Any) -> None:
        with self.network.inside(self.host_of[me.name]):
            sock = open_socket(me)
        said.send(1)
        if me.role == "proxy":
            Loop(Proxy(self.topology, me.name, time.time_ns()), sock).run(lambda: False)
        else:
            member = Receiver(self.topology, me.name, time.time_ns(), gap_wait_ns=self.gap_wait_ns)
            Loop(member, sock, self._output(me, member)).run(lambda: False)

    def _output(self, me: Member, member: Receiver) -> Callable[[Any, int], None]:
        at = FIELDS * me.index
        reported = self.reported

        def output(events: list[Event], now_ns: int) -> None:
            for event in events:
                last = getattr(event, "last", None) or getattr(event, "id", 0)
                if last <= reported[at + LAST] or getattr(event, "deadline_ns", 0) > now_ns:
                    reported[at + WRONG] += 1
                reported[at + LAST] = last
            reported[at + DELIVERED] = member.holding.delivered
            reported[at + MISSING] = member.holding.missing

        return output

    def send(self, count: int) -> None:
        """Send messages, a millisecond apart."""
        for _ in range(count):
            self.loop.send(self.sender.send(b"message", time.time_ns()))
            self.loop.turn(1_000_000)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Turn until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"never happened: {what}; {list(self.reported)}"
            self.loop.turn(5_000_000)

    def all_have(self, last: int) -> bool:
        """Return whether each receiver is done with all messages up to number `last`."""
        return all(self.of(each, LAST) >= last for each in self.receivers)

    def of(self, member: Member, field: int) -> int:
        """Return the value that a receiver reports in field number `field`."""
        return int(self.reported[FIELDS * member.index + field])

    def total(self, field: int) -> int:
        """The same of all receivers."""
        return sum(self.of(each, field) for each in self.receivers)

    def end(self) -> None:
        """Kill all members."""
        for process in self.processes.values():
            process.kill()
            process.join()
        self._sock.close()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        require()
    except NoNetwork as reason:
        pytest.skip(str(reason))
    with Network(HOSTS) as made:
        yield made


@contextlib.contextmanager
def started(network: Network, hedging: int, gap_wait_ns: int = COMES_NS) -> Iterator[Tree]:
    """A tree whose receivers have had their first message."""
    tree = Tree(network, hedging, gap_wait_ns)
    try:
        for each in tree.topology.members[1:]:
            tree.start(each)
        tree.send(5)
        tree.wait("the first messages", lambda: tree.all_have(5))
        yield tree
    finally:
        tree.end()


@pytest.mark.random
def test_with_one_neighbour_no_death_of_a_proxy_loses_anything(network: Network, seed: int) -> None:
    rng = random.Random(seed)
    with started(network, 1) as tree:
        for _ in range(KILLS):
            victim = rng.choice(tree.proxies)
            tree.send(rng.randrange(1, 8))
            process = tree.processes[victim.name]
            os.kill(process.pid or 0, signal.SIGKILL)
            tree.send(rng.randrange(1, 8))
            process.join()
            tree.start(victim)
            tree.send(3)
            tree.wait("all messages", lambda: tree.all_have(tree.sender.last_id))
            assert tree.total(MISSING) == tree.total(WRONG) == 0
        first = [tree.sender.last_id - tree.of(each, DELIVERED) for each in tree.receivers]
        assert max(first) < 5, "who heard from the first messages on has had all since"


@pytest.mark.random
def test_without_neighbours_what_a_death_loses_is_announced(network: Network, seed: int) -> None:
    rng = random.Random(seed)
    with started(network, 0, LOST_NS) as tree:
        for _ in range(max(KILLS // 4, 1)):
            victim = rng.choice(tree.proxies)
            tree.send(4)
            process = tree.processes[victim.name]
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            tree.send(6)
            tree.start(victim)
            tree.send(4)
            tree.wait("all messages", lambda: tree.all_have(tree.sender.last_id))
            assert tree.total(WRONG) == 0
            for each in tree.receivers:
                done = tree.of(each, DELIVERED) + tree.of(each, MISSING)
                assert tree.sender.last_id - done < 5
        assert tree.total(MISSING) > 0


def wait_for(network: Network, host: str) -> None:
    """Wait until datagrams of the sender reach a host whose link is up again, and its own the
    sender: the kernel may take a second over that."""
    with network.bind("sender", PROBE_PORT) as near, network.bind(host, PROBE_PORT) as far:
        for source, target, to in ((near, far, host), (far, near, "sender")):
            target.settimeout(0.05)
            deadline = time.monotonic() + PATIENCE_S
            came = b""
            while not came:
                assert time.monotonic() < deadline, f"{to} is never reached"
                source.sendto(b"probe", (network.address(to), PROBE_PORT))
                with contextlib.suppress(TimeoutError):
                    came = target.recv(2_048)


def check_partitions(tree: Tree, rng: random.Random, hosts: list[str], count: int) -> None:
    """Cut hosts off, one after the other: each receiver has, or announces, every message."""
    for _ in range(count):
        host = rng.choice(hosts)
        tree.send(3)
        tree.network.ip(host, "link", "set", "eth0", "down")
        tree.send(rng.randrange(1, 10))
        tree.network.ip(host, "link", "set", "eth0", "up")
        wait_for(tree.network, host)
        tree.send(3)
        tree.wait("all messages", lambda: tree.all_have(tree.sender.last_id))
        assert tree.total(WRONG) == 0
        for each in tree.receivers:
            done = tree.of(each, DELIVERED) + tree.of(each, MISSING)
            assert tree.sender.last_id - done < 5


@pytest.mark.random
def test_the_neighbour_of_a_proxy_that_is_cut_off_reaches_its_children(
    network: Network, seed: int
) -> None:
    with started(network, 1) as tree:
        check_partitions(tree, random.Random(seed), HOSTS[1:4], max(KILLS // 2, 1))
        assert tree.total(MISSING) == 0


@pytest.mark.random
def test_receivers_that_are_cut_off_announce_what_they_did_not_get(
    network: Network, seed: int
) -> None:
    with started(network, 1, LOST_NS) as tree:
        check_partitions(tree, random.Random(seed), HOSTS[4:], max(KILLS // 2, 1))
        assert tree.total(MISSING) > 0


def test_what_strangers_send_is_neither_forwarded_nor_answered(network: Network) -> None:
    with started(network, 1) as tree:
        stranger = network.bind("receivers0", 9_999)
        proxy = tree.proxies[0]
        head = Head(Kind.DATA, 1, tree.sender.epoch, 1 << 40, time.time_ns())
        for kind in Kind:
            stranger.sendto(
                encode(head._replace(kind=kind), b"false", os.urandom(32)), proxy.address
            )
            stranger.sendto(
                encode(head._replace(kind=kind), b"false", tree.topology.key), proxy.address
            )
        tree.send(20)
        tree.wait("all messages", lambda: tree.all_have(tree.sender.last_id))
        assert tree.total(MISSING) == tree.total(WRONG) == 0
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(2_048)
