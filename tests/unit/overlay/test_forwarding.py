"""A proxy's compiled path: it decides as `Admission` does, and sends each first copy to all."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.admission import FRESH_NS, Admission
from feedhandler.overlay.forwarding import RING, Forwarder
from feedhandler.overlay.judging import RARE, Judge, address_number
from feedhandler.overlay.members import Proxy, Sender
from feedhandler.overlay.running import Loop, open_socket
from feedhandler.overlay.topology import Address, Topology, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import HEAD_BYTES, PAYLOAD_MAX, Head, Kind, encode, seal

NOW = 1_800_000_000 * 10**9
PATIENCE_S = 20
NAME = "proxy-0-0"
TREE = 7
SMALL = Shape(4, 2, 2, 1)


def topology_at(addresses: list[Address], shape: Shape = SMALL) -> Topology:
    return make_topology(shape, TREE, addresses, iter(lambda: os.urandom(32), b""))


def admitted_compiled(
    judge: Judge, admission: Admission, datagram: bytes, address: Address, now_ns: int
) -> bool:
    """As a proxy's loop does it: what is rare is asked of Python."""
    answer = judge.admit(datagram, address)
    judge.drain_counts(admission.counts)
    if answer != RARE:
        return answer == "first"
    found = admission.admit(datagram, address, now_ns)
    judge.refresh()
    return found is not None


@pytest.mark.random
def test_compiled_code_decides_as_the_reference_does(seed: int) -> None:
    rng = random.Random(seed)
    topology = topology_at([("10.0.0.1", 7_000 + n) for n in range(7)])
    plain, copies = Admission(topology, NAME, 64), Admission(topology, NAME, 64)
    judge = Judge()
    judge.direct(topology, NAME, copies.copies)
    addresses = [each.address for each in topology.members] + [("10.9.9.9", 7_000)]
    epoch, number, said = NOW, 0, Counter[str]()
    for _ in range(5_000):
        number += rng.choice([0, 1, 1, 1, 2])
        if rng.random() < 0.002:
            epoch, number = epoch + rng.choice([1, 2 * FRESH_NS]), 1
        kind = rng.choice([Kind.DATA] * 8 + list(Kind))
        sent_ns, deadline_ns = (
            rng.choice([NOW, NOW, NOW, -1, epoch]),
            rng.choice([0, 0, 0, NOW, -1]),
        )
        head = Head(
            kind, TREE + (rng.random() < 0.02), epoch - (rng.random() < 0.02),
            max(number - rng.choice([0, 0, 0, 1, 64, 70]), 0), sent_ns, deadline_ns,
        )  # fmt: skip
        address = rng.choice(addresses[:1] * 8 + addresses)
        key = rng.choice([topology.key] * 9 + [topology.members[3].key])
        datagram = encode(head, rng.randbytes(rng.choice([0, 1, 87, 88, 89, 300])), key)
        if rng.random() < 0.1:
            mutable = bytearray(datagram)
            mutable[rng.randrange(len(mutable))] ^= 1 << rng.randrange(8)
            datagram = bytes(mutable[: rng.choice([len(mutable), rng.randrange(len(mutable) + 1)])])
        now_ns = rng.choice([NOW, epoch])
        one = plain.admit(datagram, address, now_ns) is not None
        assert one == admitted_compiled(judge, copies, datagram, address, now_ns)
        assert plain.counts == copies.counts
        assert plain.copies.epoch == copies.copies.epoch
        said["admitted" if one else "not"] += 1
    assert plain.copies.ids == copies.copies.ids
    assert min(said.values()) > 100
    wanted = {"first", "duplicate", "behind", "old", "seal", "stranger", "tree", "number", "length"}
    assert wanted <= plain.counts.keys()


@pytest.mark.random
def test_seals_of_compiled_code_are_those_of_hashlib(seed: int) -> None:
    rng = random.Random(seed)
    topology = topology_at([("10.0.0.1", 7_000 + n) for n in range(7)])
    judge = Judge()
    admission = Admission(topology, NAME)
    judge.direct(topology, NAME, admission.copies)
    source = topology.members[0].address
    admission.copies.restart(NOW)
    judge.refresh()
    for number, size in enumerate([*range(300), *range(1_200, PAYLOAD_MAX + 1, 7), PAYLOAD_MAX], 1):
        datagram = encode(
            Head(Kind.DATA, TREE, NOW, number, NOW), rng.randbytes(size), topology.key
        )
        assert datagram[40:HEAD_BYTES] == seal(topology.key, datagram[:40], datagram[HEAD_BYTES:])
        index = rng.choice([*range(8, 40), *range(40, len(datagram))])
        forged = bytearray(datagram)
        forged[index] ^= 1 << rng.randrange(8)
        assert judge.admit(bytes(forged), source) != "first"
        assert judge.admit(datagram, source) == "first"


def test_a_host_that_is_no_address_is_refused() -> None:
    assert address_number(("10.0.0.1", 7_000)) == 0x0A000001_1B58
    with pytest.raises(UsageError, match="no IPv4 address"):
        address_number(("proxy.example", 7_000))


class Rig:
    """A sender's socket, a proxy with its loop, and its children's sockets, on loopback. `sharing`
    receivers have one socket, each by an address of its own."""

    def __init__(self, shape: Shape, sharing: int = 1) -> None:
        count = 1 + shape.proxies + shape.receivers // sharing
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        for each in self.sockets:
            each.bind(("127.0.0.1" if sharing == 1 else "", 0))
            each.settimeout(PATIENCE_S)
        ports = [each.getsockname()[1] for each in self.sockets]
        members, receivers = ports[: 1 + shape.proxies], ports[1 + shape.proxies :]
        addresses = [("127.0.0.1", port) for port in members] + [
            (f"127.0.0.{1 + n}", port) for n in range(sharing) for port in receivers
        ]
        self.topology = topology_at(addresses, shape)
        self.me = self.topology.member(NAME)
        self.sockets[1].close()
        self.member = Proxy(self.topology, NAME, time.time_ns())
        self.loop = Loop(self.member, open_socket(self.me))
        self.sender = Sender(self.topology, time.time_ns())
        by_port = dict(zip(ports, self.sockets, strict=True))
        self.targets = [by_port[port] for _, port in self.member.targets]

    def send(self, count: int, size: int = 10) -> list[bytes]:
        """Messages to the proxy, unforwarded yet."""
        made = [self.sender.send(os.urandom(size), time.time_ns())[0][0] for _ in range(count)]
        for each in made:
            self.sockets[0].sendto(each, self.me.address)
        return made

    def close(self) -> None:
        for each in (*self.sockets, self.loop.sock):
            each.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with contextlib.closing(Rig(SMALL)) as made:
        yield made


def test_each_first_copy_reaches_all_targets_unchanged_in_order(rig: Rig) -> None:
    made = rig.send(30)
    for each in made:
        rig.sockets[0].sendto(each, rig.me.address)
    while rig.loop.poll():
        pass
    assert len(rig.targets) == 4
    for target in rig.targets:
        assert [target.recv(2_048) for _ in made] == made
    assert rig.member.counts == {"first": 30, "duplicate": 30, "forwarded": 120}
    assert (rig.loop.port.received, rig.loop.port.sent) == (60, 120)


def test_what_the_kernel_drops_is_counted_and_when_data_came_is_known(rig: Rig) -> None:
    rig.loop.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    began_ns = time.time_ns()
    rig.send(200, 1_000)
    while rig.loop.poll():
        pass
    rig.send(1)
    while rig.loop.poll():
        pass
    port = rig.loop.port
    assert port.kernel_drops > 0
    assert port.received + port.kernel_drops == 201
    assert began_ns <= rig.member.heard_ns <= time.time_ns()


def test_what_a_proxy_has_taken_when_it_is_stopped_is_forwarded(rig: Rig) -> None:
    made = rig.send(100)
    rig.loop.run(lambda: True)
    assert [rig.targets[-1].recv(2_048) for _ in made] == made


def test_heartbeats_and_restarts_keep_their_position_among_the_data(rig: Rig) -> None:
    made = rig.send(5)
    (beat, _), *_ = rig.sender.beat(time.time_ns())
    rig.sockets[0].sendto(beat, rig.me.address)
    rig.sender = Sender(rig.topology, time.time_ns())
    made += [beat, *rig.send(5)]
    while rig.loop.poll():
        pass
    assert [rig.targets[0].recv(2_048) for _ in made] == made
    assert rig.member.counts == {"first": 11, "forwarded": 44}
    assert rig.member.admission.copies.epoch == rig.sender.epoch


def test_the_ring_goes_round_and_what_is_too_long_is_counted(rig: Rig) -> None:
    for _ in range(3 * RING // 40):
        made = rig.send(40, 1_000)
        rig.sockets[0].sendto(bytes(4_000), rig.me.address)
        while rig.loop.poll():
            pass
        for target in rig.targets:
            assert [target.recv(2_048) for _ in made] == made
    assert rig.loop.port.oversize == 3 * RING // 40
    assert not rig.loop.port.errors


def test_a_later_topology_is_in_force_at_once(rig: Rig) -> None:
    rig.send(1)
    while rig.loop.poll():
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(PATIENCE_S)
        after = rig.topology.replaced("receiver-0", other.getsockname(), os.urandom(32))
        assert rig.member.change(after) == ""
        made = rig.send(1)
        while rig.loop.poll():
            pass
        assert other.recv(2_048) == made[0]


def test_more_targets_than_one_call_takes_have_it_too() -> None:
    with contextlib.closing(Rig(Shape(1_500, 2, 1), sharing=50)) as rig:
        made = rig.send(2)
        while rig.loop.poll():
            pass
        assert len(rig.targets) == 1_500
        for each in made:
            assert {target.recv(2_048) for target in rig.targets} == {each}
        assert rig.loop.port.sent == 3_000


@pytest.mark.parametrize("busy", [False, True])
def test_it_returns_in_time_and_for_a_signal(rig: Rig, busy: bool) -> None:
    port = rig.loop.port
    assert isinstance(port, Forwarder)
    assert not port.serve(time.time_ns() + 25_000_000, busy)
    assert not port.serve(time.time_ns() + 2_000_000, busy)

    class Ended(Exception):
        pass

    def end(*_: object) -> None:
        raise Ended

    def serve_for_ever() -> None:
        # Begun here: a busy machine may take longer to come to where the signal is expected.
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while True:
            port.serve(time.time_ns() + 10_000_000_000 * (not busy), busy)

    before = signal.signal(signal.SIGALRM, end)
    try:
        with pytest.raises(Ended):
            serve_for_ever()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_the_kernel_refuses_is_counted_and_the_rest_sent() -> None:
    with contextlib.closing(Rig(SMALL)) as rig:
        # No datagram goes to port 0.
        odd = rig.topology.replaced("receiver-0", ("127.0.0.1", 0), os.urandom(32))
        assert rig.member.change(odd) == ""
        made = rig.send(3)
        while rig.loop.poll():
            pass
        for target in rig.targets[1:]:
            assert [target.recv(2_048) for _ in made] == made
        assert sum(rig.loop.port.errors.values()) == 3
        assert rig.loop.port.sent == 9


def test_a_proxy_does_without_numpy() -> None:
    program = "import sys, feedhandler.ops.overlay.members; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
