"""Running hosts of a mesh: one socket for each, all of a process on one thread.

Each host sends a round of probes, one to every other host, at a rate; hosts of one process begin
one after the other. Probes are sent one by one, each with its own stamp: copies of one call leave
some microseconds after one another, which is what is to be measured.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from feedhandler.overlay.mesh import WINDOW_NS, MeshHost, PairWindow
from feedhandler.overlay.port import Port
from feedhandler.overlay.running import SLEEP_NS, open_socket
from feedhandler.overlay.topology import Address, Member, Topology, make_topology
from feedhandler.overlay.tree import Shape

#: Wait after the last round for probes in flight.
LAST_NS = 100_000_000
_FAR_NS = 1 << 62


class Mesh:
    """Hosts of a mesh at work; see the module. Made by `opened` and `opened_here`."""

    def __init__(self, hosts: Sequence[tuple[MeshHost, socket.socket]], rate: float) -> None:
        self.hosts = [host for host, _ in hosts]
        self._ports = {sock.fileno(): (host, Port(sock)) for host, sock in hosts}
        self._every_ns = int(1e9 / rate)
        self._poll = select.epoll()
        for number in self._ports:
            self._poll.register(number, select.EPOLLIN)

    @property
    def unsent(self) -> int:
        """Number of probes that the kernel did not take, or whose target was not there."""
        return sum(sum(port.errors.values()) for _, port in self._ports.values())

    def run(
        self, seconds: float, stopped: Callable[[], bool], output: Callable[[PairWindow], None]
    ) -> None:
        """Probe for `seconds` (0: without limit), or until `stopped`.

        `output` is called with each window as it ends.
        """
        began_ns = time.monotonic_ns()
        end_ns = began_ns + int(seconds * 1e9) if seconds else _FAR_NS
        ports = list(self._ports.values())
        share_ns = self._every_ns // len(ports)
        due = [began_ns + at * share_ns for at in range(len(ports))]
        closes_ns = began_ns + WINDOW_NS
        turn = 0
        while not stopped() and (now_ns := time.monotonic_ns()) < end_ns:
            at = turn % len(ports)
            if due[at] <= now_ns:
                self._round(*ports[at], turn // len(ports))
                due[at] = max(due[at] + self._every_ns, now_ns)
                turn += 1
            if closes_ns <= now_ns:
                self._receive(
                    0
                )  # what waits here is not late, however long this process stood still
                self._close(time.time_ns(), output)
                closes_ns = now_ns + WINDOW_NS
            self._receive(min(due[turn % len(ports)], end_ns) - time.monotonic_ns())
        end_ns = time.monotonic_ns() + LAST_NS
        while (left_ns := end_ns - time.monotonic_ns()) > 0:
            self._receive(left_ns)
        self._close(_FAR_NS, output)

    def _round(self, host: MeshHost, port: Port, turn: int) -> None:
        for target in host.targets(turn):
            port.send(host.probe(target, time.time_ns()), (target,))
            self._receive(0)

    def _receive(self, most_ns: int) -> None:
        """Take received probes; wait at most so long for some."""
        for number, _ in self._poll.poll(min(max(most_ns, 0), SLEEP_NS) / 1e9):
            host, port = self._ports[number]
            for datagram, address, came_ns in port.receive():
                host.receive(datagram, address, came_ns)

    def _close(self, now_ns: int, output: Callable[[PairWindow], None]) -> None:
        for host in self.hosts:
            for row in host.close(now_ns):
                output(row)

    def close(self) -> None:
        """Close the poll's descriptor."""
        self._poll.close()


@contextlib.contextmanager
def opened(topology: Topology, name: str, rate: float) -> Iterator[Mesh]:
    """Open one host of a mesh that runs on several machines. Raises `ConfigError`, `UsageError`."""
    host = MeshHost(topology, name)
    with open_socket(host.me) as sock, contextlib.closing(Mesh([(host, sock)], rate)) as mesh:
        yield mesh


@contextlib.contextmanager
def opened_here(hosts: int, rate: float) -> Iterator[Mesh]:
    """Open a mesh of so many hosts, all of them on this machine's loopback."""
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(hosts):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.bind(("127.0.0.1", 0))
            socks.append(sock)
        topology = _here([sock.getsockname() for sock in socks])
        members = zip(topology.members, socks, strict=True)
        mesh = Mesh([(MeshHost(topology, each.name), sock) for each, sock in members], rate)
        yield stack.enter_context(contextlib.closing(mesh))


def _here(addresses: Sequence[Address]) -> Topology:
    keys = (os.urandom(32) for _ in range(len(addresses) + 1))
    made = make_topology(Shape(len(addresses) - 1, 1, 1), 0, addresses, keys)
    named = tuple(
        Member(f"host-{at}", each.role, each.layer, each.index, each.address, each.key)
        for at, each in enumerate(made.members)
    )
    return Topology(made.version, made.tree, made.shape, made.key, named)
