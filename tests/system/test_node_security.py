"""The node's door on real sockets: TLS, log-ins, what is whose, limits, and strangers."""

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Any

import proton
import pytest

from feedhandler.amqp.security import TLS_HEADER
from feedhandler.amqp.serving import login as login_module
from feedhandler.amqp.serving.sasl import SASL_HEADER
from feedhandler.observe.subscriptions import Subscriptions
from feedhandler.operator_log import LogConfig
from feedhandler.operator_log import opened as log_opened
from tests.support import amqp_wire as wire
from tests.support.node import (
    PATIENCE_S,
    RawClient,
    Settings,
    in_thread,
    read_all,
    running,
)
from tests.support.security import SECRET, Certificates, gate, user

ACTIVE = proton.Endpoint.REMOTE_ACTIVE
CLOSED = proton.Endpoint.REMOTE_CLOSED


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(ours: Certificates) -> tuple[str, str]:
    return ours.issue("127.0.0.1", "localhost")


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    from feedhandler.amqp.serving import connection

    monkeypatch.setattr(connection, "REFUSAL_SECONDS", 0.01)


def opened(client: RawClient) -> None:
    client.pump(lambda: bool(client.connection.state & ACTIVE), "open")


def turned_away(client: RawClient) -> Any:
    """Wait until the log-in has an outcome that is none; it."""
    sasl = client.transport.sasl()
    with contextlib.suppress(AssertionError):
        client.pump(lambda: sasl.outcome is not None, "outcome")
    client.drop()
    return sasl.outcome


def answered(client: RawClient, link: proton.Receiver) -> str:
    """ "" where the link was accepted, else the condition's name and description."""
    client.pump(lambda: bool(link.state & (ACTIVE | CLOSED)), "answer")
    if link.remote_source.address is not None:
        return ""
    client.pump(lambda: bool(link.state & CLOSED), "detach")
    return f"{link.remote_condition.name}: {link.remote_condition.description}"


def received(client: RawClient, link: proton.Receiver, count: int) -> list[Any]:
    client.pump(lambda: len(client.got(link)) >= count, f"{count} messages")
    return client.got(link)


# -- who comes in -------------------------------------------------------------------------------


@pytest.mark.gateways_loop
async def test_each_way_of_logging_in_over_tls(ours: Certificates, node: tuple[str, str]) -> None:
    mine = ours.issue("desk@example.org", common="desk 7")
    door = gate(
        user("ann"),
        user("bob", certificate="desk 7"),
        tls=node,
        client_ca=ours.ca,
        anonymous=True,
    )
    async with running(gate=door) as rig:
        ways = {
            "ann": {"user": "ann", "password": SECRET, "context": ours.context()},
            "bob": {"mechanisms": "EXTERNAL", "context": ours.context(*mine)},
            "anonymous": {"mechanisms": "ANONYMOUS", "context": ours.context()},
        }
        for name, options in ways.items():
            client = await in_thread(rig.raw, rig.tls_port, **options)
            link = client.receiver("euronext.104?quality=0", 10)
            await in_thread(opened, client)
            assert await in_thread(answered, client, link) == ""
            assert [each.user.name for each in rig.node.connections] == [name]
            await rig.stream(1, 1)
            await in_thread(received, client, link, 1)
            await in_thread(client.close)
            await rig.until(lambda: not rig.node.connections, "gone")
        assert rig.count("logins") == 3
        assert rig.count("logins_refused") == 0


@pytest.mark.gateways_loop
@pytest.mark.parametrize(
    "options",
    [
        {"user": "ann", "password": "wrong"},
        {"user": "nobody", "password": SECRET},
        {"user": "bob", "password": ""},
        {"mechanisms": "ANONYMOUS"},
        {"sasl": False},
    ],
    ids=["wrong password", "no such user", "user without password", "anonymous", "no sasl"],
)
async def test_an_unknown_user_is_turned_away_and_reported_once(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    door = gate(user("ann"), plain_without_tls=True)

    with log_opened(LogConfig(), "gate"):
        async with running(gate=door, observer=Subscriptions()) as rig:
            client = rig.raw(**options)
            assert await in_thread(turned_away, client) != proton.SASL.OK
            await rig.until(lambda: not rig.node.connections, "gone")
            assert rig.count("logins") == 0
            assert rig.count("logins_refused") <= 1
            assert rig.node.links == 0
    errors = capsys.readouterr().err
    assert SECRET not in errors
    assert "wrong" not in errors.replace("wrong user or password", "")
    assert errors.count("refused") <= 1


async def test_a_password_is_not_taken_without_tls_unless_that_is_allowed(
    ours: Certificates, node: tuple[str, str]
) -> None:
    async with running(gate=gate(user("ann"), tls=node)) as rig:
        client = rig.raw(user="ann", password=SECRET)
        await in_thread(turned_away, client)
        assert rig.count("logins") == 0
    async with running(gate=gate(user("ann"), plain_without_tls=True)) as rig:
        client = rig.raw(user="ann", password=SECRET)
        await in_thread(opened, client)
        assert rig.count("logins") == 1


async def test_who_fails_too_often_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    door = gate(user("ann"), plain_without_tls=True, limits={"failed_logins": 2})
    async with running(gate=door) as rig:
        for _ in range(2):
            client = rig.raw(user="ann", password="no")
            assert await in_thread(turned_away, client) == proton.SASL.AUTH
        late = socket.create_connection(("127.0.0.1", rig.port))
        assert await in_thread(read_all, late) == b""
        assert rig.count("logins_shut") == 1
        monkeypatch.setattr(login_module.time, "monotonic_ns", lambda: 1 << 62)
        assert not rig.node.gate.shut("127.0.0.1")


async def test_passwords_that_wait_to_be_checked_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login_module, "CHECKS_MAX", 0)
    async with running(gate=gate(user("ann"), plain_without_tls=True)) as rig:
        client = rig.raw(user="ann", password=SECRET)
        assert await in_thread(turned_away, client) == proton.SASL.TEMP
        assert rig.count("logins_deferred") == 1
        assert not rig.node.gate.shut("127.0.0.1")


# -- strangers, silence, broken handshakes --------------------------------------------------------


@pytest.mark.gateways_loop
async def test_what_is_no_tls_on_the_tls_port_ends_its_own_connection_only(
    ours: Certificates, node: tuple[str, str]
) -> None:
    async with running(gate=gate(tls=node)) as rig:
        good = await in_thread(rig.raw, rig.tls_port, context=ours.context())
        link = good.receiver("euronext.104?quality=0", 10)
        assert await in_thread(answered, good, link) == ""
        for said, answer in (
            (SASL_HEADER, TLS_HEADER),
            (b"GET / HTTP/1.1\r\n\r\n", b""),
            (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" * 10, None),
            (bytes(range(22, 250)) * 50, None),
        ):
            stranger = socket.create_connection(("127.0.0.1", rig.tls_port))
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            heard = await in_thread(read_all, stranger)
            assert answer is None or heard == answer
        await rig.until(lambda: len(rig.node.connections) == 1, "strangers gone")
        assert rig.count("tls_failed") == 4
        await rig.stream(1, 3)
        await in_thread(received, good, link, 3)


@pytest.mark.gateways_loop
async def test_tls_on_the_port_without_is_answered_with_what_is_spoken_there(
    ours: Certificates,
) -> None:
    async with running() as rig:
        with pytest.raises(ssl.SSLError):
            await in_thread(rig.raw, rig.port, context=ours.context())
        await rig.until(lambda: not rig.node.connections, "gone")


@pytest.mark.gateways_loop
async def test_half_a_handshake_and_silence_are_ended_in_time(
    ours: Certificates, node: tuple[str, str]
) -> None:
    hello = TlsHello(ours).bytes
    door = gate(user("ann"), tls=node, plain_without_tls=True, limits={"login_ms": 2_000})
    async with running(gate=door) as rig:
        waiting = []
        for port, said in (
            (rig.tls_port, b""),
            (rig.tls_port, hello[: len(hello) // 2]),
            (rig.tls_port, hello),
            (rig.port, b""),
            (rig.port, SASL_HEADER),
        ):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(said)
            waiting.append(sock)
        await rig.until(lambda: rig.count("connections_opened") == 5, "all there")
        await rig.until(lambda: not rig.node.connections, "all ended")
        assert rig.count("logins_late") == 5
        for sock in waiting:
            sock.close()


@pytest.mark.gateways_loop
async def test_a_reset_in_mid_handshake_is_forgotten(
    ours: Certificates, node: tuple[str, str]
) -> None:
    hello = TlsHello(ours).bytes
    async with running(gate=gate(user("ann"), tls=node)) as rig:
        for size in (1, 5, len(hello) // 2, len(hello)):
            sock = socket.create_connection(("127.0.0.1", rig.tls_port))
            sock.sendall(hello[:size])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        await rig.until(lambda: rig.count("connections_opened") == 4, "there")
        await rig.until(lambda: not rig.node.connections, "gone")
        assert rig.count("tls_failed") == 4
        assert not rig.node.gate.by_address


class TlsHello:
    """TLS ClientHello: the first bytes that a client sends."""

    def __init__(self, ours: Certificates) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        talker = ours.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            talker.do_handshake()
        self.bytes = outgoing.read()


async def test_a_node_that_stops_does_not_wait_for_who_has_not_logged_in(
    node: tuple[str, str],
) -> None:
    async with running(gate=gate(tls=node)) as rig:
        socks = [socket.create_connection(("127.0.0.1", p)) for p in (rig.port, rig.tls_port)]
        await rig.until(lambda: len(rig.node.connections) == 2, "there")
        began = asyncio.get_running_loop().time()
        await rig.node.stop(60.0)
        assert asyncio.get_running_loop().time() - began < 30.0
        for sock in socks:
            sock.close()


# -- much data ------------------------------------------------------------------------------------


@pytest.mark.gateways_loop
async def test_everything_arrives_in_order_over_tls_and_a_slow_reader_slows_no_other(
    ours: Certificates, node: tuple[str, str]
) -> None:
    async with running(gate=gate(user("ann"), tls=node)) as rig:
        login = {"user": "ann", "password": SECRET, "context": ours.context()}
        quick = await in_thread(rig.raw, rig.tls_port, **login)
        slow = await in_thread(rig.raw, rig.tls_port, receive_buffer=4096, **login)
        good = quick.receiver("euronext.104?quality=0", 100_000)
        late = slow.receiver("euronext.104?quality=0", 100_000)
        for client, link in ((quick, good), (slow, late)):
            assert await in_thread(answered, client, link) == ""
        await rig.stream(1, 1500)
        got = await in_thread(received, quick, good, 1500)
        assert [each.sequence for each in got] == list(range(1, 1501))
        got = await in_thread(received, slow, late, 1500)
        assert [each.sequence for each in got] == list(range(1, 1501))
        await in_thread(quick.close)
        await in_thread(slow.close)
        assert rig.count("tls_failed") == 0


# -- what is whose --------------------------------------------------------------------------------


async def test_a_link_outside_the_users_services_is_refused_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    door = gate(user("ann", "euronext.104"), plain_without_tls=True)
    with log_opened(LogConfig(), "gate"):
        async with running(gate=door, observer=Subscriptions()) as rig:
            client = rig.raw(user="ann", password=SECRET)
            outside = client.receiver("euronext.105", 10)
            inside = client.receiver("euronext.104", 10)
            said = await in_thread(answered, client, outside)
            assert said == "amqp:unauthorized-access: user ann is not entitled to euronext.105"
            assert await in_thread(answered, client, inside) == ""
            assert rig.count("links_unentitled") == 1
            assert rig.count("links_refused") == 1
            assert rig.count("links_narrowed") == 0
    assert "user ann is not entitled to euronext.105" in capsys.readouterr().err


async def test_anonymous_has_what_a_user_of_that_name_has() -> None:
    door = gate(user("anonymous", "euronext.104"), anonymous=True)
    async with running(gate=door) as rig:
        for options in ({"sasl": True}, {"sasl": False}):
            client = rig.raw(**options)
            outside = client.receiver("euronext.105", 10)
            assert "not entitled" in await in_thread(answered, client, outside)
            assert await in_thread(answered, client, client.receiver("euronext.104", 1)) == ""


# -- limits --------------------------------------------------------------------------------


async def test_connections_of_an_address_have_a_bound() -> None:
    door = gate(limits={"connections_per_address": 2})
    async with running(gate=door) as rig:
        clients = [rig.raw() for _ in range(2)]
        for client in clients:
            await in_thread(opened, client)
        late = socket.create_connection(("127.0.0.1", rig.port))
        assert await in_thread(read_all, late) == b""
        assert rig.count("connections_limited") == 1
        await in_thread(clients[0].close)
        await rig.until(lambda: len(rig.node.connections) == 1, "a slot is free")
        again = rig.raw()
        await in_thread(opened, again)


async def test_addresses_without_a_valid_login_leave_the_others_their_slots() -> None:
    door = gate(limits={"connections_before_login": 6})

    def opened_from(host: str, port: int) -> socket.socket:
        client = socket.create_connection(
            ("127.0.0.1", port), timeout=PATIENCE_S, source_address=(host, 0)
        )
        client.sendall(wire.opening())
        assert client.recv(8) == wire.AMQP_HEADER
        return client

    async with running(Settings(max_connections=2), gate=door) as rig:
        silent = [
            socket.create_connection(("127.0.0.1", rig.port), source_address=(host, 0))
            for _ in range(4)
            for host in ("127.0.0.1", "127.0.0.2")
        ]
        await rig.until(lambda: rig.count("connections_crowded") == 2, "all slots taken")
        clients = [await in_thread(opened_from, "127.0.0.3", rig.port) for _ in range(2)]
        assert len(door.strangers) == 5
        late = socket.create_connection(("127.0.0.1", rig.port))
        assert await in_thread(read_all, late) == b""
        assert rig.count("connections_refused") == 1
        for each in (*silent, *clients):
            each.close()


async def test_connections_of_a_user_have_a_bound_and_the_excess_is_refused_with_the_reason() -> (
    None
):
    door = gate(
        user("ann"),
        user("bob", connections=2),
        plain_without_tls=True,
        limits={"connections_per_user": 1},
    )
    async with running(gate=door) as rig:
        held = []
        for name in ("ann", "bob", "bob"):
            client = rig.raw(user=name, password=SECRET)
            await in_thread(opened, client)
            held.append(client)
        for name in ("ann", "bob"):
            client = rig.raw(user=name, password=SECRET)
            refused = lambda c=client: bool(c.connection.state & CLOSED)  # noqa: E731
            await in_thread(client.pump, refused, "refusal")
            condition = client.connection.remote_condition
            assert condition.name == "amqp:resource-limit-exceeded"
            assert f"user {name} has" in condition.description
            await in_thread(client.close)
        assert rig.count("connections_limited") == 2
        for client in held:
            await in_thread(client.close)
        await rig.until(lambda: not rig.node.connections, "gone")
        assert not rig.node.gate.by_user


async def test_links_of_a_connection_have_a_bound() -> None:
    door = gate(limits={"links_per_connection": 2})
    async with running(gate=door) as rig:
        client, other = rig.raw(), rig.raw()
        links = [client.receiver("euronext.104", 1, f"n{n}") for n in range(3)]
        said = [await in_thread(answered, client, link) for link in links]
        assert said == ["", "", "amqp:resource-limit-exceeded: too many links"]
        assert await in_thread(answered, other, other.receiver("euronext.104", 1)) == ""
        assert rig.count("links_limited") == 1


async def test_links_that_are_asked_for_too_quickly_are_refused() -> None:
    door = gate(limits={"attaches_per_s": 2})
    async with running(gate=door) as rig:
        client = rig.raw()
        links = [client.receiver("euronext.104", 1, f"n{n}") for n in range(20)]
        said = [await in_thread(answered, client, link) for link in links]
        assert said[:4] == [""] * 4
        assert "amqp:resource-limit-exceeded: links are asked for too quickly" in said


async def test_sessions_of_a_connection_have_a_bound() -> None:
    door = gate(limits={"sessions_per_connection": 3})
    async with running(gate=door) as rig:
        client = rig.raw()
        await in_thread(opened, client)
        assert client.transport.remote_channel_max == 2
        await in_thread(client.close)
        # A client that does not care what was said.
        rude = socket.create_connection(("127.0.0.1", rig.port))
        header = b"AMQP\x00\x01\x00\x00"
        opening = bytes.fromhex("00000018 02000000 005310 c00b 01 a108") + b"stranger"
        opening = struct.pack(">I", len(opening)) + opening[4:]
        begin = bytes.fromhex("02000009 005311 c007 04 40 43 5264 5264".replace(" ", ""))
        begin = struct.pack(">I", 4 + len(begin)) + begin
        rude.sendall(header + opening + begin)

        def until_closed() -> None:
            heard = b""
            rude.settimeout(PATIENCE_S)
            while b"amqp:" not in heard:
                data = rude.recv(65536)
                assert data, heard
                heard += data
            rude.close()

        await in_thread(until_closed)
        await rig.until(lambda: not rig.node.connections, "gone")


async def test_messages_that_a_link_does_not_settle_have_a_bound() -> None:
    door = gate(limits={"unsettled_per_link": 5})
    async with running(gate=door) as rig:
        client = rig.raw()
        client.settle = False
        link = client.receiver("euronext.104?quality=0", 100, settled=False)
        assert await in_thread(answered, client, link) == ""
        await rig.stream(1, 20)
        await in_thread(received, client, link, 5)
        await in_thread(client.sync)
        assert len(client.got(link)) == 5
        for _ in range(3):
            for delivery in client.deliveries:
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
            client.deliveries.clear()
            await in_thread(received, client, link, len(client.got(link)) + 5)
        assert [each.sequence for each in client.got(link)] == list(range(1, 21))


async def test_a_small_frame_client_and_settings_still_fit_over_tls(
    ours: Certificates, node: tuple[str, str]
) -> None:
    async with running(Settings(max_frame_bytes=512), gate=gate(tls=node)) as rig:
        client = await in_thread(rig.raw, rig.tls_port, context=ours.context(), max_frame=512)
        link = client.receiver("euronext.104?as=batch&quality=0", 100)
        assert await in_thread(answered, client, link) == ""
        await rig.stream(1, 100)
        await in_thread(received, client, link, 1)
