"""Running members: one UDP socket, one loop, the clock of the machine.

A loop receives datagrams, passes them to the member, sends what the member returns, and sleeps
until something comes or the member's deadline. A receiver's loop wakes up for deadlines, to the
microsecond. A proxy's data do not pass here: compiled code receives, judges and forwards them
(`forwarding.pyx`) and leaves the rest.

With `busy` a receiver's loop does not sleep when a deadline is less than `SPIN_NS` away, and a
proxy's never: it polls the clock, or the socket, which costs a processor and saves the wake-up.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.overlay.forwarding import RING, Forwarder
from feedhandler.overlay.members import Proxy, Receiver, Sender, Sends
from feedhandler.overlay.merging import MergedReceiver, MergedSender
from feedhandler.overlay.port import Port
from feedhandler.overlay.release import Event
from feedhandler.overlay.topology import Member

#: Receive buffer requested for each socket: a burst waits while the loop is not scheduled.
BUFFER_BYTES = 4 << 20
#: The longest sleep: a signal that came just before it is noticed after this.
SLEEP_NS = 100_000_000
#: A busy loop does not sleep when a deadline is nearer than this.
SPIN_NS = 200_000
#: Switch interval of the interpreter beside other threads: a member's gets it soon, not in 5 ms.
SWITCH_SECONDS = 0.0002

AnyMember = Sender | Proxy | Receiver | MergedSender | MergedReceiver
Output = Callable[[Sequence[Event], int], object]


def open_socket(member: Member) -> socket.socket:
    """Open the member's socket, at its address. Raises `ConfigError`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(member.address)
    except OSError as error:
        sock.close()
        host, port = member.address
        raise ConfigError(
            f"{member.name} cannot have {host}:{port}: {reason_of(error)}",
            "a member runs on the machine that has its address, once",
        ) from None
    return sock


def pin(processor: int | None) -> None:
    """Pin this thread to one processor; None: do nothing. Raises `ConfigError` where it is
    unusable."""
    if processor is None:
        return
    try:
        os.sched_setaffinity(0, {processor})
    except OSError:
        there = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise ConfigError(
            f"no processor {processor} for this process", f"it may use {there}"
        ) from None


class Loop:
    """The loop of one member.

    `output` is called with what a receiver releases, and when; `busy`: see the module.
    """

    def __init__(
        self,
        member: AnyMember,
        sock: socket.socket,
        output: Output = lambda events, now_ns: None,
        busy: bool = False,
    ) -> None:
        self.member = member
        self.sock = sock
        #: When it turned last, ns since 1970.
        self.turned_ns = time.time_ns()
        self._output = output
        self._busy = busy
        self._receiver = member if isinstance(member, Receiver | MergedReceiver) else None
        self._forwarding = _Forwarding(member, sock, busy) if isinstance(member, Proxy) else None
        self.port = self._forwarding.port if self._forwarding else Port(sock)

    def send(self, sends: Sends) -> None:
        """Send what a member returned."""
        for datagram, addresses in sends:
            self.port.send(datagram, addresses)

    def turn(self, most_ns: int = SLEEP_NS) -> None:
        """Do what is due; if nothing is, sleep until something comes, `most_ns` at most.

        A proxy forwards all that time.
        """
        if self._forwarding is not None:
            until_ns = time.time_ns() + most_ns
            self._forwarding.serve(min(until_ns, self._due_ns()))
            self._tick()
            return
        if self.poll():
            return
        wait_ns = min(self._due_ns() - time.time_ns(), most_ns)
        if wait_ns > 0 and not (self._busy and wait_ns < SPIN_NS):
            self.port.wait(wait_ns)

    def poll(self) -> bool:
        """Do what is due now, without sleeping; return whether there was anything."""
        if self._forwarding is not None:
            came = self._forwarding.serve(0)
            return self._tick() or came
        found = self.port.receive()
        for datagram, address, came_ns in found:
            for each, addresses in self.member.receive(datagram, address, came_ns):
                self.port.send(each, addresses)
        return self._tick() or bool(found)

    def _tick(self) -> bool:
        """Do what is due by time; return whether anything was."""
        now_ns, due = time.time_ns(), False
        # The member's deadline is of the clock before it was set back.
        set_back = now_ns < self.turned_ns
        self.turned_ns = now_ns
        receiver = self._receiver
        if receiver is not None and 0 < receiver.release_ns <= now_ns:
            self._output(receiver.release(now_ns), now_ns)
            due = True
        if set_back or 0 < self.member.deadline_ns <= now_ns:
            self.send(self.member.tick(now_ns))
            due = True
        return due

    def _due_ns(self) -> int:
        found = self.member.deadline_ns or 1 << 62
        if self._receiver is not None:
            found = min(found, self._receiver.release_ns or 1 << 62)
        return found

    def run(self, stopped: Callable[[], bool]) -> None:
        """Turn until `stopped`. What a proxy has received by then is forwarded."""
        self.send(self.member.tick(time.time_ns()))
        while not stopped():
            self.turn()
        if self._forwarding is not None:
            # Bounded, because datagrams may keep coming.
            for _ in range(RING):
                if not self.poll():
                    break


class _Forwarding:
    """A proxy's datagrams: compiled code handles the data, the member the rest."""

    def __init__(self, member: Proxy, sock: socket.socket, busy: bool) -> None:
        self.port = Forwarder(sock)
        self._member = member
        self._busy = busy
        self._topology = member.topology
        self._direct()

    def _direct(self) -> None:
        member = self._member
        self._topology = member.topology
        self.port.direct(member.topology, member.me.name, member.admission.copies, member.targets)

    def serve(self, until_ns: int) -> bool:
        """Forward until `until_ns` or something for the member; return whether anything came."""
        member, port = self._member, self.port
        if member.topology is not self._topology:
            self._direct()
        came = port.serve(until_ns, self._busy)
        port.drain_counts(member.counts)
        member.heard_ns = max(member.heard_ns, port.heard_ns)
        found = port.rare()
        if found is not None:
            for each, addresses in member.receive(*found):
                port.send(each, addresses)
            port.refresh()
        return came or found is not None


@contextlib.contextmanager
def opened(
    member: AnyMember,
    me: Member,
    output: Output = lambda events, now_ns: None,
    busy: bool = False,
) -> Iterator[Loop]:
    """Open a member's loop on its socket, which is closed at the end."""
    with open_socket(me) as sock:
        yield Loop(member, sock, output, busy)
