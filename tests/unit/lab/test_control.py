"""The paper's measurement: which packets and messages it samples, their datagrams, their stamps."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.lab import control, gateway, stamper
from feedhandler.lab.control import DATAGRAM, Sender, attach
from feedhandler.lab.stamper import SIDES, STAMPED, Side, Stamper, matched
from feedhandler.lab.stamping import Stamping, start_stamping
from feedhandler.lab.supervisor import RoleFailed
from tests.support.amqp import Rig

WHOLE = 0xFFFF
WAIT_S = 60.0


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    """Yield the UDP socket to which datagrams go."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(WAIT_S)
        yield sock


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


def received(sock: socket.socket, count: int) -> list[tuple[int, int, int]]:
    """So many datagrams, and no more."""
    found = [DATAGRAM.unpack(sock.recv(100)) for _ in range(count)]
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(100)
    return found


# -- marks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grain", "numbers"), [("packet", [WHOLE]), ("message", [1, 3])])
def test_the_gateway_tells_of_what_it_is_about_to_publish(
    receiver: socket.socket, grain: str, numbers: list[int]
) -> None:
    rig = Rig()
    sender_queue = attach(rig.fanout, address_of(receiver), grain)
    _, link = rig.attach(f"euronext.104?as={grain}")
    rig.packets(1, 4)
    rig.pump()
    expected = [(104, sequence, number) for sequence in (1, 3) for number in numbers]
    assert received(receiver, len(expected)) == expected
    assert sender_queue.sampled == len(expected)
    assert link.sent, "the other links get what they get"


def test_the_datagram_leaves_before_any_link_has_the_message(receiver: socket.socket) -> None:
    rig = Rig()
    order: list[str] = []
    sender_queue = attach(rig.fanout, address_of(receiver), "packet")
    sender_queue.sock = SimpleNamespace(send=lambda data: order.append("sent"))
    _, link = rig.attach("euronext.104?quality=0")
    send = link.send

    def noted(*arguments: Any) -> int:
        order.append("sent")
        return send(*arguments)

    link.send = noted  # type: ignore[method-assign]
    rig.packets(1, 1)
    rig.pump()
    assert order[0] == "sent"


def test_the_client_tells_of_what_it_has_received(receiver: socket.socket) -> None:
    sender = Sender(address_of(receiver))
    batch = SimpleNamespace(
        services=numpy.array([104, 104, 105, 105]),
        sequences=numpy.array([7, 8, 9, 9]),
        numbers=numpy.array([WHOLE, WHOLE, 0, 1]),
    )
    sender.send(batch)
    batch.sequences = numpy.array([2, 4, 6, 8])
    sender.send(batch)
    assert received(receiver, 2) == [(104, 7, WHOLE), (105, 9, 1)]
    sender.close()


def test_an_absent_receiver_holds_up_nothing(receiver: socket.socket) -> None:
    sender = Sender(address_of(receiver))
    receiver.close()
    ones = numpy.ones(50, numpy.int64)
    for _ in range(3):
        sender.send(SimpleNamespace(services=ones, sequences=ones, numbers=ones))
    sender.close()


@pytest.mark.parametrize("wrong", ["", "nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="no address of a stamping process"):
        control.connected(wrong)


# -- stamps -----------------------------------------------------------------------------------


def rows(*found: tuple[int, int, int, int]) -> Any:
    return numpy.array(list(found), STAMPED)


def test_stamps_are_matched_by_service_sequence_and_message() -> None:
    gateway = rows((104, 1, WHOLE, 100), (105, 1, WHOLE, 110), (104, 3, 1, 120), (104, 5, 1, 130))
    client = rows((105, 1, WHOLE, 160), (104, 3, 1, 300), (104, 1, WHOLE, 149), (106, 1, 1, 1))
    found, published_only, received_only = matched(gateway, client)
    assert sorted(found.tolist()) == [49, 50, 180]
    assert (published_only, received_only) == (1, 1)
    nothing = rows()
    assert matched(nothing, nothing)[0].tolist() == []


def test_sequences_that_differ_in_their_upper_half_are_not_the_same() -> None:
    gateway = rows((104, 1, 1, 100), (104, 1 + (1 << 32), 1, 200), (104, 1 << 62, 1, 300))
    client = rows((104, 1 + (1 << 32), 1, 230), (104, 2 << 62, 1, 301))
    found, published_only, received_only = matched(gateway, client)
    assert (found.tolist(), published_only, received_only) == ([30], 2, 1)


def test_of_a_datagram_that_comes_twice_the_first_counts() -> None:
    gateway = rows((104, 1, 1, 100))
    client = rows((104, 1, 1, 130), (104, 1, 1, 999))
    found, published_only, received_only = matched(gateway, client)
    assert (found.tolist(), published_only, received_only) == ([30], 0, 0)


def send(role: Stamper, side: str, *found: tuple[int, int, int]) -> None:
    host, port = role.sides[side].address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for each in found:
            sock.sendto(DATAGRAM.pack(*each), (host, int(port)))
        sock.sendto(b"no such thing", (host, int(port)))


async def until(role: Stamper, gateway: int, client: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while role.progress() != {"gateway": gateway, "client": client}:
            await asyncio.sleep(0.001)


async def test_the_role_stamps_on_arrival_and_leaves_the_warm_up_out(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "expected.npz", services=[104, 105], timed_from=[3, 1])
    role = Stamper()
    try:
        assert set(await role.addresses({})) == set(SIDES)
        send(role, "gateway", (104, 9, WHOLE))
        await until(role, 1, 0)
        await role.expect({"path": str(tmp_path / "expected.npz")})
        sampled = [(104, 1, WHOLE), (104, 3, WHOLE), (105, 1, WHOLE)]
        send(role, "gateway", *sampled, (105, 3, WHOLE))
        await until(role, 4, 0)
        send(role, "client", *sampled)
        await until(role, 4, 3)
        latency = await role.latency({})
    finally:
        await role.close()
    assert latency["count"] == sum(latency["counts"]) == 2
    assert (latency["published_only"], latency["received_only"], latency["over"]) == (1, 0, 0)
    assert 0 < latency["min_ns"] <= latency["max_ns"] < 1e9 * WAIT_S
    assert latency["sum_ns"] == latency["min_ns"] + latency["max_ns"]


def test_a_side_keeps_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamper, "ROWS_MAX", 2)
    side = Side()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        host, port = side.address.split(":")
        for sequence in range(5):
            sock.sendto(DATAGRAM.pack(104, sequence, 1), (host, int(port)))
    side.read()
    side.sock.close()
    assert side.drain()["sequence"].tolist() == [0, 1]
    assert side.over == 3


# -- the controller's side --------------------------------------------------------------------


class Supervisor:
    """Answers as the stamping role would."""

    def __init__(self, **answer: int) -> None:
        self.answer = {"buckets": [30], "counts": [98], "sum_ns": 0, "min_ns": 30, "max_ns": 30}
        self.answer |= {"count": 98, "published_only": 0, "received_only": 0, "over": 0, **answer}
        self.enlisted: list[tuple[str, str]] = []

    async def enlist_role(self, name: str, kind: str) -> None:
        self.enlisted.append((name, kind))

    async def greeted(self, step: str, timeout_s: float, *names: str) -> None: ...

    async def ask_all(self, step: str, timeout_s: float, names: list[str], verb: str) -> list[Any]:
        return [{"gateway": "g:1", "client": "c:2"} if verb == "addresses" else self.answer]


async def test_what_could_be_matched_is_the_steps_latency() -> None:
    supervisor: Any = Supervisor(published_only=0)
    stamping = await start_stamping(supervisor)
    assert supervisor.enlisted == [("stamper", "stamper")]
    assert (stamping.gateway, stamping.client) == ("g:1", "c:2")
    latency = await stamping.latency()
    assert (latency.count, latency.min_ns, int(latency.buckets[30])) == (98, 30, 98)


@pytest.mark.parametrize("lone", ["published_only", "received_only", "over"])
def test_too_many_without_a_match_fail_the_run(lone: str) -> None:
    supervisor: Any = Supervisor(**{lone: 2})
    stamping = Stamping(supervisor, {"gateway": "g:1", "client": "c:2"})
    with pytest.raises(RoleFailed, match="98 control datagrams had a match"):
        asyncio.run(stamping.latency())


def test_the_gateways_hook_is_called_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    config = SimpleNamespace(gateway=SimpleNamespace(loop="asyncio"))
    monkeypatch.setattr(gateway, "load_config", lambda path: config)
    monkeypatch.setattr(gateway, "run_async", lambda work, loop: work("stop"))
    monkeypatch.setattr(gateway, "attach", lambda *what: seen.append(what))

    def serve(config: Any, stop: Any, prepare: Any) -> int:
        prepare(SimpleNamespace(fanout="fanout"))
        return 3

    monkeypatch.setattr(gateway, "serve", serve)
    assert gateway.run(Path("any.toml"), "h:1", "message") == 3
    assert seen == [("fanout", "h:1", "message")]
