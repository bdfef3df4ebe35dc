"""Measures techniques side by side on this machine, message by message, with real sockets.

A sender, the proxies and receivers of each technique are in one process on loopback: the members
that ship, each on its socket, driven by one thread. Techniques take turns, so that each meets the
same conditions; each is a tree of its own number and its own proxies, to the same receivers. What
is measured is when the kernel had the first copy of each message at each receiver, less when it was
sent. Deadlines are then put on those delays as the sender would (`holding`). The sender
of a technique may send by io_uring instead of `sendmmsg`.

Spikes may be injected: each sending to an address is put off with a probability, by some time. The
hosts of a tree are not parallel here, so a tree's latency beside unicast means nothing on one
machine; windows, spikes and deadlines do.
"""

import contextlib
import heapq
import os
import random
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy

from feedhandler.overlay.admission import Admission
from feedhandler.overlay.holding import Delays
from feedhandler.overlay.io_uring import RingPort
from feedhandler.overlay.members import Proxy, Sender, Sends
from feedhandler.overlay.port import Port
from feedhandler.overlay.topology import Address, Topology, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Kind

#: After the last message, so long is waited for what is still on its way.
PATIENCE_NS = 2_000_000_000
PAYLOAD = bytes(64)


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to multicast: a name and a tree's shape; depth 1 is unicast by the sender. `by_rule`:
    its latency and windows are those of delivery with the rule's deadlines, not of arrival.
    `by_ring`: its sender sends by io_uring, not by `sendmmsg`."""

    name: str
    shape: Shape
    by_rule: bool = False
    by_ring: bool = False


@dataclass(frozen=True, slots=True)
class Spikes:
    """Delays that are injected: of this share of all hops, so long."""

    share: float = 0.0
    delay_ns: int = 2_000_000


@dataclass(slots=True)
class _Tree:
    """One technique at work."""

    technique: Technique
    topology: Topology
    sender: Sender
    port: Port
    #: When each receiver had each message; -1: not yet.
    arrived: numpy.ndarray
    sent: list[int] = field(default_factory=list)
    admissions: dict[Address, Admission] = field(default_factory=dict)
    missing: int = 0


class Measurement:
    """See the module; made by `opened`."""

    def __init__(
        self, techniques: Sequence[Technique], messages: int, spikes: Spikes, seed: int
    ) -> None:
        self._messages, self._spikes = messages, spikes
        self._rng = random.Random(seed)
        self._poll = select.epoll()
        self._ports: dict[int, Port] = {}
        self._proxies: dict[int, Proxy] = {}
        self._receivers: dict[int, tuple[int, Address]] = {}
        self._delayed: list[tuple[int, int, Port, bytes, Address]] = []
        self._number = 0
        self.stack = contextlib.ExitStack()
        self.trees: list[_Tree] = []
        receivers = [self._socket() for _ in range(techniques[0].shape.receivers)]
        for index, sock in enumerate(receivers):
            self._receivers[sock.fileno()] = index, sock.getsockname()
        for number, technique in enumerate(techniques, 1):
            self._plant(number, technique, [sock.getsockname() for sock in receivers])

    def _socket(self, by_ring: bool = False) -> socket.socket:
        sock = self.stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        port = Port(sock)
        if by_ring:
            port = ring = RingPort(sock)
            self.stack.callback(ring.close)
        self._ports[sock.fileno()] = port
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def _plant(self, number: int, technique: Technique, receivers: list[Address]) -> None:
        shape = technique.shape
        sending = self._socket(technique.by_ring)
        proxies = [self._socket() for _ in range(shape.proxies)]
        addresses = [each.getsockname() for each in (sending, *proxies)]
        keys = (os.urandom(32) for _ in range(2 + shape.proxies + shape.receivers))
        topology = make_topology(shape, number, [*addresses, *receivers], keys)
        epoch = time.time_ns()
        tree = _Tree(
            technique, topology, Sender(topology, epoch, held=False), self._ports[sending.fileno()],
            numpy.full((self._messages, shape.receivers), -1, numpy.int64),
        )  # fmt: skip
        for member in topology.members:
            if member.role == "receiver":
                tree.admissions[member.address] = Admission(topology, member.name, 1024)
        for sock, member in zip(proxies, topology.members[1:], strict=False):
            self._proxies[sock.fileno()] = Proxy(topology, member.name, epoch)
        self.trees.append(tree)

    def run(self, rate: float) -> None:
        """Send all messages, `rate` a second of each technique, in turns, and take what comes."""
        began_ns = time.monotonic_ns()
        for message in range(self._messages):
            for turn, tree in enumerate(self.trees):
                due = (message * len(self.trees) + turn) / len(self.trees) / rate
                self._until(began_ns + int(due * 1e9))
                now_ns = time.time_ns()
                tree.sent.append(now_ns)
                self._send(tree.port, tree.sender.send(PAYLOAD, now_ns))
        end_ns = time.monotonic_ns() + PATIENCE_NS
        while time.monotonic_ns() < end_ns and any((t.arrived < 0).any() for t in self.trees):
            self._turn(10_000_000)
        for tree in self.trees:
            tree.missing = int((tree.arrived < 0).sum())

    def _until(self, at_ns: int) -> None:
        while (left := at_ns - time.monotonic_ns()) > 0:
            self._turn(left)

    def _send(self, port: Port, sends: Sends) -> None:
        spikes = self._spikes
        for datagram, addresses in sends:
            if spikes.share:
                late = [address for address in addresses if self._rng.random() < spikes.share]
                if late:
                    at = time.monotonic_ns() + spikes.delay_ns
                    for each in late:
                        self._number += 1
                        entry = (at, self._number, port, datagram, each)
                        heapq.heappush(self._delayed, entry)
                    addresses = tuple(address for address in addresses if address not in late)
            port.send(datagram, addresses)

    def _turn(self, most_ns: int) -> None:
        """Take what has come; sleep at most so long until something does."""
        if self._delayed:
            most_ns = min(most_ns, self._delayed[0][0] - time.monotonic_ns())
        for number, _ in self._poll.poll(max(most_ns, 0) / 1e9):
            self._receive(number)
        while self._delayed and self._delayed[0][0] <= time.monotonic_ns():
            _, _, port, datagram, address = heapq.heappop(self._delayed)
            port.send(datagram, (address,))

    def _receive(self, number: int) -> None:
        port = self._ports[number]
        proxy = self._proxies.get(number)
        for datagram, address, came_ns in port.receive():
            if proxy is not None:
                self._send(port, proxy.receive(datagram, address, came_ns))
            elif number in self._receivers:
                self._arrived(self._receivers[number], datagram, address, came_ns)

    def _arrived(
        self, receiver: tuple[int, Address], datagram: bytes, address: Address, came_ns: int
    ) -> None:
        index, own = receiver
        tree = self.trees[int.from_bytes(datagram[4:6], "little") - 1]
        admitted = tree.admissions[own].admit(datagram, address, came_ns)
        if admitted is not None and admitted[0].kind == Kind.DATA:
            tree.arrived[admitted[0].id - 1, index] = came_ns

    def delays(self) -> list[Delays]:
        """Each technique's one-way delays, us; messages that some receiver never had left out."""
        found = []
        for tree in self.trees:
            whole = (tree.arrived >= 0).all(axis=1)
            delays = (tree.arrived - numpy.array(tree.sent)[:, None])[whole] / 1e3
            found.append(Delays(tree.technique.name, delays.astype(numpy.float32)))
        return found


@contextlib.contextmanager
def opened(
    techniques: Sequence[Technique], messages: int, spikes: Spikes, seed: int
) -> Iterator[Measurement]:
    """Yield a measurement with its sockets, which are closed at the end."""
    measurement = Measurement(techniques, messages, spikes, seed)
    with measurement.stack:
        yield measurement
