"""The node towards what is wrong: addresses, senders, bounds, nonsense, silence, broken clients."""

import asyncio
import itertools
import os
import random
import resource
import socket
import struct
import time
from typing import Any

import proton
import pytest

import feedhandler
from feedhandler.amqp.proton import DESCRIPTION_CHARS_MAX
from feedhandler.amqp.routing import ADDRESS_CHARS_MAX
from feedhandler.amqp.serving import connection, node
from feedhandler.amqp.serving.node import Node
from feedhandler.amqp.work_budget import TURN_UNITS, WorkBudget, attach_units
from feedhandler.codecs import ConfigError
from feedhandler.observe.subscriptions import Subscriptions
from feedhandler.operator_log import LogConfig, opened
from tests.support import amqp_wire as wire
from tests.support.durable import ANSWERED
from tests.support.node import (
    PATIENCE_S,
    NodeRig,
    RawClient,
    Settings,
    in_thread,
    read_all,
    running,
)

pytestmark = pytest.mark.gateways_loop

REMOTE_CLOSED = proton.Endpoint.REMOTE_CLOSED


def refused(client: RawClient, link: proton.Link) -> tuple[str, str, Any]:
    """The condition with which the node refuses a link, and the source it answered with."""
    client.pump(lambda: bool(link.state & REMOTE_CLOSED), "the refusal")
    condition = link.remote_condition
    return condition.name, condition.description, link.remote_source.address


def closed(client: RawClient) -> bool:
    return bool(client.connection.state & REMOTE_CLOSED)


#: The counter of refused links that each condition has beside the one of all.
BY_REASON = {
    "amqp:invalid-field": "links_invalid",
    "amqp:not-found": "links_not_found",
    "amqp:not-implemented": "links_unsupported",
}


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("euronext.104?colour=red", "amqp:invalid-field"),
        ("euronext.104?as=byte", "amqp:invalid-field"),
        ("euronext..104", "amqp:invalid-field"),
        ("", "amqp:invalid-field"),
        ("x" * (ADDRESS_CHARS_MAX + 1), "amqp:invalid-field"),
        ("#." * 2000 + "#", "amqp:invalid-field"),
        ("euronext.104?types=" + "9" * 300, "amqp:invalid-field"),
        ("euronext.104?types=é", "amqp:invalid-field"),
        ("queue.orders", "amqp:not-found"),
        ("euronext.104?snapshot=1", "amqp:not-implemented"),
    ],
    ids=lambda value: value[:24],
)
async def test_a_wrong_address_is_refused_and_the_connection_lives_on(
    address: str, condition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(LogConfig(), "gate"):
        async with running(observer=Subscriptions()) as rig:
            client = rig.raw()
            link = client.receiver(address, 10)
            name, description, source = await in_thread(refused, client, link)
            assert name == condition
            assert description
            assert source is None
            good = client.receiver("euronext.104?quality=0", 10)
            await in_thread(client.attached, good)
            await rig.stream(1, 1)
            await in_thread(client.pump, lambda: len(client.got(good)) == 1, "data")
            assert rig.count("links_refused") == rig.count(BY_REASON[condition]) == 1
            assert rig.node.links == 1
    (line,) = capsys.readouterr().err.splitlines()
    asked = f"link to {address!r}" if address else "link without an address"
    expected = f"{asked} refused: {description}"  # ASCII, and cut, where it was sent
    assert expected.replace("é", "?")[:DESCRIPTION_CHARS_MAX] in line.replace("é", "?")


async def test_a_refusal_fits_the_smallest_frame_a_client_may_insist_on() -> None:
    async with running() as rig:
        client = rig.raw(max_frame=512)
        link = client.receiver("e.1?types=" + "9" * 300, 10)
        name, *_ = await in_thread(refused, client, link)
        assert name == "amqp:invalid-field"


async def test_an_address_that_the_clients_frames_have_no_room_for_is_refused() -> None:
    async with running() as rig:
        client = rig.raw(max_frame=2048)
        keys = ",".join(f"euronext.104.{number}" for number in range(200))
        name, *_ = await in_thread(refused, client, client.receiver(keys, 10, name="long"))
        assert name == "amqp:invalid-field"
        fits = client.receiver(keys[:1500].rpartition(",")[0], 10, name="fits")
        await in_thread(client.attached, fits)


async def test_a_client_that_wants_to_send_is_refused() -> None:
    async with running() as rig:
        client = rig.raw()
        link = client.new_session().sender("upstream")
        link.target.address = "euronext.104"
        link.open()
        name, *_ = await in_thread(refused, client, link)
        assert name == "amqp:not-allowed"
        assert link.credit == 0
        assert rig.count("links_not_allowed") == 1
        good = client.receiver("euronext.104", 10)
        await in_thread(client.attached, good)


async def test_a_client_that_wants_transactions_is_told_that_there_are_none() -> None:
    async with running() as rig:
        client = rig.raw()
        link = client.new_session().sender("coordinator")
        link.target.type = proton.Terminus.COORDINATOR
        link.open()
        name, description, _ = await in_thread(refused, client, link)
        assert name == "amqp:not-implemented"
        assert "no transactions" in description
        assert rig.count("links_unsupported") == 1


def _unforeseen(*_arguments: Any) -> Any:
    raise ZeroDivisionError("unforeseen")


def _at_an_attach(rig: NodeRig, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rig.node.queues, "concerns", _unforeseen)


def _at_a_welcome(rig: NodeRig, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rig.node.gate, "welcome", _unforeseen)


def _at_a_password(rig: NodeRig, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rig.node.gate, "at_once", lambda *_: None)
    patch.setattr(rig.node.gate, "check", _unforeseen)


def _at_an_acceptance(_rig: NodeRig, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node, "NodeConnection", _unforeseen)


@pytest.mark.parametrize(
    "break_it", [_at_an_attach, _at_a_welcome, _at_a_password, _at_an_acceptance]
)
async def test_an_error_of_ours_ends_the_connection_it_came_up_in_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, break_it: Any, capsys: Any
) -> None:
    with opened(LogConfig(), "gate"):
        wrong: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with running(faults=1, observer=Subscriptions()) as rig:
            bystander, good = await rig.attached("euronext.104?quality=0", 10)
            with monkeypatch.context() as patch:
                break_it(rig, patch)
                struck = rig.raw()
                struck.receiver("euronext.104", 10)
                await in_thread(struck.pump, lambda: struck.gone or closed(struck), "the end")
            if closed(struck):
                assert struck.connection.remote_condition.name == "amqp:internal-error"
            await rig.until(lambda: len(rig.node.connections) == 1, "it is forgotten")
            await rig.stream(1, 3)
            await in_thread(bystander.pump, lambda: len(bystander.got(good)) == 3, "data")
        assert not wrong
    (line,) = capsys.readouterr().err.splitlines()
    assert "internal error at test_node_hostile.py:" in line
    assert "ZeroDivisionError: unforeseen" in line


async def test_links_beyond_the_bound_are_refused_and_free_again_when_others_leave() -> None:
    async with running(Settings(max_links=2)) as rig:
        client = rig.raw()
        first, second = (client.receiver("euronext.104", 1, f"n{n}") for n in range(2))
        await in_thread(client.attached, first, second)
        third = client.receiver("euronext.104", 1, "third")
        assert (await in_thread(refused, client, third))[0] == "amqp:resource-limit-exceeded"
        first.close()
        await in_thread(client.pump, lambda: bool(first.state & REMOTE_CLOSED), "detach")
        fourth = client.receiver("euronext.104", 1, "fourth")
        await in_thread(client.attached, fourth)


async def test_connections_beyond_the_bound_are_closed_at_once() -> None:
    async with running(Settings(max_connections=2)) as rig:
        clients = [rig.raw() for _ in range(2)]
        for client in clients:
            await in_thread(client.attached, client.receiver("euronext.104", 1))
        late = socket.create_connection(("127.0.0.1", rig.port))
        assert await in_thread(read_all, late) == b""
        assert rig.count("connections_refused") == 1
        await in_thread(clients[0].close)
        await rig.until(lambda: len(rig.node.connections) == 1, "a slot is free")
        again = rig.raw()
        await in_thread(again.attached, again.receiver("euronext.104", 1))
        for client in (clients[1], again):
            await in_thread(client.close)
        late.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"AMQP\x00\x00\x09\x01",
        b"\0" * 100_000,
        random.Random(5).randbytes(50_000),
        b"AMQP\x00\x01\x00\x00" + b"\xff" * 1000,
        b"AMQP\x00\x01\x00\x00" + struct.pack(">IBBH", 2**31, 2, 0, 0) + bytes(5000),
    ],
    ids=["http", "tls", "amqp 0.9", "zeros", "random", "frames of nonsense", "a huge frame"],
)
async def test_what_is_not_amqp_ends_its_own_connection_only(garbage: bytes) -> None:
    async with running() as rig:
        client, link = await rig.attached("euronext.104?quality=0", 100)
        stranger = socket.create_connection(("127.0.0.1", rig.port))
        await in_thread(stranger.sendall, garbage)
        await in_thread(read_all, stranger)
        stranger.close()
        await rig.until(lambda: len(rig.node.connections) == 1, "the stranger is gone")
        assert rig.count("connections_failed") == 1
        await rig.stream(1, 3)
        await in_thread(client.pump, lambda: len(client.got(link)) == 3, "data")


@pytest.mark.parametrize("seed", range(4))
async def test_damaged_frames_of_a_real_client_harm_no_other_client(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)

    def damaged(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(8, len(changed))] = chance.randrange(256)
        return bytes(changed)

    async with running() as rig:
        # What a client says when it attaches, taken from its own engine.
        client = rig.raw(sasl=False)
        watched = client.receiver("euronext.104?quality=0", 1000)
        spoken = client.transport.peek(client.transport.pending())
        await in_thread(client.attached, watched)
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", rig.port)) as stranger:
                await in_thread(stranger.sendall, damaged(spoken))
                stranger.shutdown(socket.SHUT_WR)
                await in_thread(read_all, stranger)
        await rig.until(lambda: len(rig.node.connections) == 1, "strangers gone")
        assert rig.node.links == 1
        await rig.stream(1, 3)
        await in_thread(client.pump, lambda: len(client.got(watched)) == 3, "data")


async def test_a_client_that_disappears_in_mid_transfer_is_forgotten() -> None:
    async with running() as rig:
        rig.narrow()
        steady, fleeting = rig.raw(), rig.raw(receive_buffer=4096)
        kept = steady.receiver("euronext.104?quality=0", 10_000)
        lost = fleeting.receiver("euronext.104?as=batch", 10_000)
        await in_thread(steady.attached, kept)
        await in_thread(fleeting.attached, lost)
        rig.packets(1, 2000)
        await rig.deliver()
        await in_thread(fleeting._read)  # a part of a frame, no more
        fleeting.drop()
        await rig.until(lambda: len(rig.node.connections) == 1, "noticed")
        assert rig.node.links == 1
        assert len(rig.fanout.sender_queues) == 1
        await in_thread(steady.pump, lambda: len(steady.got(kept)) == 2000, "the other")
        assert [each.sequence for each in steady.got(kept)] == list(range(1, 2001))


async def test_a_subscriber_that_stops_reading_is_detached_and_the_others_get_everything() -> None:
    bound = 300_000
    async with running(Settings(queue_bytes=bound)) as rig:
        rig.narrow()
        quick, stuck = rig.raw(), rig.raw(receive_buffer=4096)
        good = quick.receiver("euronext.104?quality=0", 100_000)
        bad = stuck.receiver("euronext.104?quality=0", 100_000)
        no_credit = quick.receiver("euronext.104?quality=0", 0, "no credit")
        await in_thread(quick.attached, good, no_credit)
        await in_thread(stuck.attached, bad)
        high = 0
        sequence = 1
        while rig.count("links_overrun") < 2:
            await rig.stream(sequence, sequence + 499)
            sequence += 500
            await in_thread(quick.pump, lambda n=sequence: len(quick.got(good)) == n - 1)
            high = max([high, *(o.queued_bytes for o in rig.fanout.sender_queues)])
            assert sequence < 100_000
        assert high <= bound
        # The one without credit hears at once; the stuck one when it reads again.
        name, *_ = await in_thread(refused, quick, no_credit)
        assert name == "amqp:resource-limit-exceeded"
        name, description, _ = await in_thread(refused, stuck, bad)
        assert name == "amqp:resource-limit-exceeded"
        assert str(bound) in description
        got = [each.sequence for each in stuck.got(bad)]
        assert got == list(range(1, len(got) + 1)), "what it got is whole and in order"
        assert rig.node.links == 1
        # The connection lives: the same client may come back.
        again = stuck.receiver("euronext.104?quality=0", 10, "again")
        await in_thread(stuck.attached, again)
        await rig.stream(sequence, sequence)
        await in_thread(stuck.pump, lambda: len(stuck.got(again)) == 1, "the new link")
        await in_thread(quick.pump, lambda: len(quick.got(good)) == sequence, "the good one")


async def test_a_silent_client_is_dropped_and_a_living_one_kept() -> None:
    async with running(Settings(idle_timeout_ms=4_000)) as rig:
        silent = socket.create_connection(("127.0.0.1", rig.port))  # not a word
        mute = rig.raw()  # opens, and then nothing, not even empty frames
        await in_thread(mute.attached, mute.receiver("euronext.104", 10))
        alive, link = await rig.attached("euronext.104?quality=0", 10)

        def speak_until_alone() -> None:
            def beat() -> bool:
                alive.transport.tick(time.monotonic())
                return len(rig.node.connections) == 1

            alive.pump(beat, "the silent ones dropped")

        await in_thread(speak_until_alone)
        assert rig.count("connections_failed") == 2
        assert rig.node.links == 1
        await rig.stream(1, 1)
        await in_thread(alive.pump, lambda: len(alive.got(link)) == 1, "data")
        await in_thread(read_all, silent)
        silent.close()
        mute.drop()


async def test_a_client_without_sasl_is_served() -> None:
    async with running() as rig:
        client = rig.raw(sasl=False)
        link = client.receiver("euronext.104", 10)
        await in_thread(client.pump, lambda: len(client.got(link)) == 1, "quality")


async def test_descriptors_are_not_lost_over_many_connections() -> None:
    async with running() as rig:
        before = len(os.listdir("/proc/self/fd"))
        for turn in range(40):
            client, _ = await rig.attached("euronext.104", 10)
            if turn % 2:
                await in_thread(client.close)
            else:
                client.drop()
        await rig.until(lambda: not rig.node.connections, "all gone")
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        assert rig.count("connections_opened") == 40


async def test_a_port_in_use_is_a_configuration_error() -> None:
    async with running() as rig:
        second = Settings(address=("127.0.0.1", rig.port))
        node = Node(rig.fanout, second, rig.qualities, rig.feed.type_code, "second", pump=rig.share)
        with pytest.raises(ConfigError, match="cannot listen"):
            node.start()
        elsewhere = Settings(address=("192.0.2.1", 0))
        node = Node(
            rig.fanout, elsewhere, rig.qualities, rig.feed.type_code, "third", pump=rig.share
        )
        with pytest.raises(ConfigError, match="cannot listen"):
            node.start()


async def test_without_descriptors_left_clients_wait_and_are_taken_later() -> None:
    async with running() as rig:
        with socket.create_connection(("127.0.0.1", rig.port), PATIENCE_S):
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                await rig.until(lambda: rig.count("connections_refused") > 0, "no descriptor")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await rig.until(lambda: rig.count("connections_opened") == 1, "taken later")


async def test_the_node_listens_on_ipv6_as_well() -> None:
    settings = Settings(address=("::1", 0))
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    async with (
        running(settings) as rig,
        feedhandler.subscribe(f"amqp://[::1]:{rig.port}", "euronext.104") as messages,
    ):
        rig.packets(1, 1)
        await rig.deliver()
        assert [(await anext(messages)).content for _ in range(2)] == ["quality", "packet"]


# -- work -----------------------------------------------------------------------------------


async def test_sixty_large_attaches_in_one_write_are_done_over_many_turns_of_the_loop() -> None:
    names = ",".join(f"#.S{n}" for n in range(200))
    share = TURN_UNITS // attach_units(names) + 1
    async with running() as rig:
        seen = [0]

        def look() -> None:
            seen.append(rig.node.links)
            if seen[-1] < 60:
                rig.node.loop.call_soon(look)

        client = await in_thread(socket.create_connection, ("127.0.0.1", rig.port))
        links = b"".join(wire.attach(f"l{n}", n, names) for n in range(60))
        look()
        client.sendall(wire.opening() + wire.begin() + links)
        await rig.until(lambda: rig.node.links == 60, "sixty links")
        client.close()
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert max(steps) <= 2 * share  # a read, and those whose turn it is


async def test_a_client_whose_open_comes_as_the_turn_is_spent_hears_of_session_and_links() -> None:
    def talk(port: int) -> list[bool]:
        client = RawClient(port)
        links = [client.receiver("euronext.104", credit=1) for _ in range(5)]
        client.pump(lambda: all(link.state & ANSWERED for link in links), "the answers")
        return [bool(link.remote_source.address) for link in links]

    async with running() as rig:
        rig.node.budget = WorkBudget(rig.node.loop.call_soon, units_max=1)  # a read costs more
        assert await in_thread(talk, rig.port) == [True] * 5


class Unread:
    """Hears of connections that are closed because they did not read."""

    def __init__(self) -> None:
        self.reported: list[int] = []

    def refused(self, *_: Any) -> None: ...

    def unread(self, peer: str, held_bytes: int) -> None:
        self.reported.append(held_bytes)


@pytest.mark.parametrize("reads", [False, True], ids=["that reads nothing", "that closes no link"])
async def test_a_client_of_endless_refused_links_is_closed_and_reported_once(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OWED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(connection, "LINGERING_LINKS_MAX", 200 if reads else 1 << 20)
    wrong = "." + "x" * 2000

    def attack(port: int) -> None:
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        try:
            sock.sendall(wire.opening() + wire.begin())
            for n in range(20_000):
                sock.sendall(wire.attach(f"l{n}", n, wrong))
                if reads:
                    sock.recv(1 << 20)
        except (BrokenPipeError, ConnectionResetError):
            return
        raise AssertionError("the node takes everything")

    observer = Unread()
    async with running(observer=observer) as rig:
        await in_thread(attack, rig.port)
        await rig.until(lambda: not rig.node.connections, "the end")
        assert rig.count("connections_unread") == len(observer.reported) == 1
        a_turn = connection.TURN_BYTES * 8
        assert observer.reported[0] < (1 << 20) + a_turn
        assert rig.node.owed_bytes == 0
