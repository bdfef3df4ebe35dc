"""io_uring's way from one datagram to many addresses, beside `sendmmsg`'s: the same comes, the same
counts, and nothing stays open."""

import errno
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from feedhandler.overlay.io_uring import ENTRIES, RingPort, refusal
from feedhandler.overlay.port import Port
from feedhandler.overlay.topology import Address
from tests.support.needs import absent

RECEIVERS = 12
PATIENCE_S = 20
#: Beyond what UDP takes, and where a socket may not send that has not asked for it.
OVERSIZE = bytes(70_000)
FORBIDDEN = ("255.255.255.255", 9)


def bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(PATIENCE_S)
    return sock


@pytest.fixture
def receivers() -> Iterator[list[socket.socket]]:
    found = [bound() for _ in range(RECEIVERS)]
    yield found
    for each in found:
        each.close()


@pytest.fixture
def sending() -> Iterator[socket.socket]:
    with bound() as sock:
        sock.setblocking(False)
        yield sock


@pytest.fixture
def ring(sending: socket.socket) -> Iterator[RingPort]:
    if reason := refusal():
        absent("io_uring", f"io_uring is refused: {reason}")
    port = RingPort(sending)
    yield port
    port.close()


def addresses_of(sockets: list[socket.socket]) -> tuple[Address, ...]:
    return tuple(each.getsockname() for each in sockets)


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_every_receiver_has_each_datagram_once_in_order(
    ring: RingPort, receivers: list[socket.socket], sending: socket.socket
) -> None:
    addresses = addresses_of(receivers)
    for number in range(50):
        ring.send(f"{number}".encode(), addresses)
    for each in receivers:
        for number in range(50):
            assert each.recvfrom(100) == (f"{number}".encode(), sending.getsockname())
    assert ring.sent == 50 * RECEIVERS
    assert ring.errors == {}


def test_more_targets_than_entries_take_several_calls(
    ring: RingPort, receivers: list[socket.socket]
) -> None:
    targets = addresses_of(receivers) * (ENTRIES // RECEIVERS + 2)
    assert len(targets) > ENTRIES
    ring.send(b"x", targets)
    assert ring.sent == len(targets)
    for each in receivers:
        for _ in range(len(targets) // RECEIVERS):
            assert each.recv(100) == b"x"


def test_what_the_kernel_refuses_counts_as_with_sendmmsg(
    ring: RingPort, receivers: list[socket.socket], sending: socket.socket
) -> None:
    with bound() as gone:
        closed = gone.getsockname()
    addresses = addresses_of(receivers)
    sends = [
        (b"x", addresses),
        (b"x", ()),
        (OVERSIZE, addresses),
        (b"x", (addresses[0], FORBIDDEN, addresses[1])),
        (b"x", (FORBIDDEN, FORBIDDEN)),
        # No error is reported: the socket is not connected.
        (b"x", (closed, addresses[0], closed)),
    ]
    plain = Port(sending)
    for datagram, to in sends:
        ring.send(datagram, to)
        plain.send(datagram, to)
        assert (ring.sent, ring.errors) == (plain.sent, plain.errors)
    assert ring.errors == {errno.EMSGSIZE: RECEIVERS, errno.EACCES: 3}


def test_a_closed_peer_of_a_connected_socket_is_an_error_counted_once(
    ring: RingPort, sending: socket.socket
) -> None:
    with bound() as gone:
        closed = gone.getsockname()
    sending.connect(closed)
    ring.send(b"x", (closed,))
    assert (ring.sent, ring.errors) == (1, {})
    ring.send(b"x", (closed,))  # reported by the first one
    assert (ring.sent, ring.errors) == (1, {errno.ECONNREFUSED: 1})
    ring.send(b"x", (closed,))
    assert (ring.sent, ring.errors) == (2, {errno.ECONNREFUSED: 1})


def test_a_port_with_rings_receives_as_any(
    ring: RingPort, receivers: list[socket.socket], sending: socket.socket
) -> None:
    receivers[0].sendto(b"back", sending.getsockname())
    ((datagram, address, came_ns),) = ring.receive()
    assert (datagram, address) == (b"back", receivers[0].getsockname())
    assert came_ns > 0


@pytest.mark.usefixtures("ring")
def test_closing_gives_the_rings_back_and_leaves_the_socket(sending: socket.socket) -> None:
    before = descriptors()
    port = RingPort(sending)
    assert len(descriptors()) == len(before) + 1
    port.close()
    port.close()
    assert descriptors() == before
    with pytest.raises(ValueError, match="closed"):
        port.send(b"x", (("127.0.0.1", 9),))
    forgotten = RingPort(sending)
    assert len(descriptors()) == len(before) + 1
    del forgotten
    assert descriptors() == before
    assert sending.fileno() >= 0


@pytest.mark.usefixtures("ring")
def test_a_refusal_is_reported_with_its_reason(sending: socket.socket) -> None:
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        reason = refusal()
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as raised:
            RingPort(sending)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reason == os.strerror(errno.EMFILE)
    assert raised.value.errno == errno.EMFILE
    assert descriptors() == before
