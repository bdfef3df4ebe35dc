"""Recovery over real sockets: many clients, reconnecting, and peers that are hostile or dead."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from feedhandler.codecs import ConfigError
from feedhandler.retrans import tcp
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Event,
    Packet,
    RefreshAccepted,
    RefreshPacket,
)
from feedhandler.retrans.protocol import RetransRequest, StreamFramer
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.server import RequestServer, ServerSession
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import RequestConnection, RequestListener, serve
from tests.support import free_addresses
from tests.support.node import PATIENCE_S
from tests.support.retrans import (
    FEED,
    PROTOCOL,
    Snapshots,
    filled,
    live_packet,
    refresh_packet,
    sent_again,
)

pytestmark = pytest.mark.gateways_loop

HOST = "127.0.0.1"
#: Waits of tests that want a server back: short, so that the test is.
QUICK = RecoverySettings(reconnect_us=1_000, reconnect_max_us=4_000)


class Counted(ReconnectingClient):
    """Counts how often a connection was lost, or could not be made."""

    losses = 0

    def lost(self, reason: str, now_ns: int) -> None:
        self.losses += 1
        super().lost(reason, now_ns)
        self.on_lost()

    on_lost: Callable[[], None]


class Owner:
    """A `RequestConnection` with everything it reported, and a way to wait for it."""

    def __init__(
        self, port: int, settings: RecoverySettings = QUICK, source_id: str = "ME"
    ) -> None:
        self.events: list[Event] = []
        self.ups = 0
        self.downs: list[str] = []
        self._changed = asyncio.Event()
        self.server = Counted(
            RequestClient(FEED, source_id, settings),
            settings,
            on_events=self._receive,
            on_up=self._up,
            on_down=self._down,
            seed=1,
        )
        self.server.on_lost = self._changed.set
        self.connection = RequestConnection(self.server, HOST, port)
        self.connection.start()

    def _receive(self, events: list[Event], now_ns: int) -> None:
        self.events += events
        self._changed.set()

    def _up(self, now_ns: int) -> None:
        self.ups += 1
        self._changed.set()

    def _down(self, reason: str, now_ns: int) -> None:
        self.downs.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that this owner is told."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"never happened: {what}; {self.downs=} {self.events[-3:]=}")

    def ask(self, request_id: int, first: int, end: int) -> None:
        assert self.asks(Ask(request_id, 104, first, end, 0))

    def asks(self, request: Ask | AskRefresh) -> bool:
        """Make a request; whether it was made."""
        ask = self.server.ask if isinstance(request, Ask) else self.server.ask_refresh
        return ask(request, self.connection.clock())  # type: ignore[arg-type]

    def answered(self, request_id: int) -> bool:
        return Answered(request_id) in self.events

    def numbers(self, request_id: int) -> list[int]:
        return [
            event.sequence
            for event in self.events
            if isinstance(event, Packet) and event.request_id == request_id
        ]


async def listening(
    settings: ServerSettings | None = None,
    refresher: Snapshots | None = None,
    *,
    store: PacketStore | None = None,
    port: int = 0,
) -> tuple[RequestServer, RequestListener]:
    """A server of service 104, packets 1..1000, on a real socket."""
    stores = {104: store or filled(1, 1001)}
    server = RequestServer(FEED, stores, settings or ServerSettings(), refresher)
    return server, await serve(server, HOST, port)


async def until_counted(server: RequestServer, name: str, count: int = 1) -> None:
    """Wait until the server has counted something so often."""
    async with asyncio.timeout(PATIENCE_S):
        while server.counts[name] < count:
            await asyncio.sleep(0.001)


async def test_many_clients_get_what_they_ask_for() -> None:
    server, listener = await listening()
    owners = [Owner(listener.address[1], source_id=f"C{n}") for n in range(5)]
    for owner in owners:
        await owner.until(lambda owner=owner: owner.ups, "connected")
        for request_id in range(10):
            owner.ask(request_id, 1 + 100 * request_id, 101 + 100 * request_id)
    for owner in owners:
        await owner.until(lambda owner=owner: owner.answered(9), "all answered")
        for request_id in range(10):
            expected = list(range(1 + 100 * request_id, 101 + 100 * request_id))
            assert owner.numbers(request_id) == expected
        packets = [event for event in owner.events if isinstance(event, Packet)]
        assert all(event.data == sent_again(event.sequence) for event in packets[::97])
        await owner.connection.close()
        assert owner.downs == []
    assert server.counts["accepted"] == 50
    assert server.counts["packets"] == 5000
    await listener.close()
    assert not server.sessions


async def test_a_client_that_takes_long_answers_does_not_starve_another() -> None:
    _, listener = await listening(ServerSettings(chunk_bytes=2048))
    greedy, modest = Owner(listener.address[1]), Owner(listener.address[1])
    await greedy.until(lambda: greedy.ups, "connected")
    await modest.until(lambda: modest.ups, "connected")
    for request_id in range(40):
        greedy.ask(request_id, 1, 1001)
    await greedy.until(lambda: greedy.events, "begun")
    modest.ask(1, 1, 2)
    await modest.until(lambda: modest.answered(1), "answered")
    assert not greedy.answered(39)
    await greedy.until(lambda: greedy.answered(39), "everything after all")
    for owner in (greedy, modest):
        await owner.connection.close()
    await listener.close()


async def test_a_server_that_cannot_be_reached_is_reported_once_and_tried_again() -> None:
    port = free_addresses.port()
    owner = Owner(port)
    await owner.until(lambda: owner.server.losses >= 5, "five attempts")
    assert len(owner.downs) == 1
    assert owner.downs[0].startswith(f"cannot connect to {HOST}:{port}: ")
    assert not owner.connection.up
    assert not owner.asks(Ask(1, 104, 1, 2, 0))
    _, listener = await listening(port=port)
    await owner.until(lambda: owner.ups == 1, "connected")
    owner.ask(1, 1, 3)
    await owner.until(lambda: owner.answered(1), "answered")
    await owner.connection.close()
    await listener.close()
    assert len(owner.downs) == 1


async def test_a_server_that_does_not_answer_is_not_waited_for_as_long_as_it_may_be_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "CONNECT_SECONDS_MAX", 0.05)
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(8):  # more than wait to be accepted: the kernel drops further ones
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        owner = Owner(full.getsockname()[1], RecoverySettings(dead_us=3_600_000_000))
        await owner.until(lambda: owner.downs, "the server is reported")
        assert "no answer" in owner.downs[0]
        await owner.connection.close()


async def test_a_server_that_restarts_is_found_again() -> None:
    _, listener = await listening()
    port = listener.address[1]
    owner = Owner(port)
    for restart in range(3):
        await owner.until(lambda restart=restart: owner.ups == restart + 1, "connected")
        owner.ask(restart, 1, 101)
        await owner.until(lambda restart=restart: owner.answered(restart), "answered")
        await listener.close()
        await owner.until(lambda restart=restart: len(owner.downs) == restart + 1, "gone")
        _, listener = await listening(port=port)
    await owner.until(lambda: owner.ups == 4, "connected")
    await owner.connection.close()
    await listener.close()
    assert owner.downs == ["the server closed it"] * 3


async def hostile(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    """A server that says what `talk` says."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve_one, HOST, 0)


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize(
    ("said", "reason", "counter"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server sent a packet of 18516 bytes", ""),
        (sent_again(5), "the server sent packet 5 of service 104, which was not", "unasked_packet"),
        (live_packet(5), "the server sent a packet with delivery flag 0", "wrong_flag"),
        (sent_again(5)[:30], "the server closed it", "cut_off"),
    ],
    ids=["http", "unasked", "live", "cut off"],
)
async def test_a_hostile_server_is_left_and_tried_again_later(
    said: bytes, reason: str, counter: str
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in said:
            writer.write(bytes([byte]))
            await writer.drain()
        if counter != "cut_off":
            await reader.read()

    server = await hostile(talk)
    owner = Owner(port_of(server))
    await owner.until(lambda: len(owner.downs) == 3, "left three times")
    assert all(down.startswith(reason) for down in owner.downs)
    assert owner.events == []
    assert owner.server.client.counts[counter or "length_too_big"] >= 3
    await owner.connection.close()
    server.close()


async def test_a_silent_server_is_left() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(16))
        await reader.read()

    heard: list[bytes] = []
    server = await hostile(talk)
    settings = RecoverySettings(heartbeat_us=20_000, dead_us=1_000_000)
    owner = Owner(port_of(server), settings)
    await owner.until(lambda: owner.downs and any(heard), "left, after a heartbeat")
    assert any(down.startswith("the server was silent for ") for down in owner.downs)
    assert PROTOCOL.read(next(filter(None, heard))) == PROTOCOL.read(PROTOCOL.heartbeat(0))
    await owner.connection.close()
    server.close()


async def test_a_server_that_does_not_read_is_left() -> None:
    done = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()

    server = await hostile(talk)
    owner = Owner(port_of(server))
    await owner.until(lambda: owner.ups, "connected")
    for request_id in range(10_000_000):
        if not owner.asks(Ask(request_id, 104, 1, 2, 0)):
            break
        owner.server.cancel(request_id)
        if request_id % 1000 == 0:
            await asyncio.sleep(0)
    await owner.until(lambda: owner.downs, "left")
    assert owner.downs[0] == "the server does not read its requests"
    await owner.connection.close()
    done.set()
    server.close()


async def test_a_client_that_does_not_read_is_closed() -> None:
    settings = ServerSettings(heartbeat_us=250_000, dead_us=1_000_000)
    server, listener = await listening(settings)
    sock = reluctant(listener.address[1], 1000)
    await until_counted(server, "clients_slow")
    assert not server.sessions
    await listener.close()
    sock.close()


def paused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set as soon as some session's client takes nothing for the moment."""
    happened, pause = asyncio.Event(), ServerSession.pause

    def note(session: ServerSession, now_ns: int) -> None:
        happened.set()
        pause(session, now_ns)

    monkeypatch.setattr(ServerSession, "pause", note)
    return happened


def reluctant(port: int, requests: int) -> socket.socket:
    """A client with little room that has asked for packets 1..1000 so many times."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((HOST, port))
    request = PROTOCOL.retrans_request(RetransRequest(1, 104, 1, 1001, "ME"), 0)
    sock.sendall(request * requests)
    sock.setblocking(False)
    return sock


async def test_a_client_that_reads_late_still_gets_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = paused(monkeypatch)
    server, listener = await listening()
    sock = reluctant(listener.address[1], 100)
    loop, framer = asyncio.get_running_loop(), StreamFramer(FEED)
    async with asyncio.timeout(PATIENCE_S):
        await full.wait()
        count = 0
        while count < 100 * 1001:
            count += len(framer.feed(await loop.sock_recv(sock, 1 << 16)))
    assert server.counts["packets"] == 100_000
    assert len(server.sessions) == 1
    sock.close()
    await listener.close()


async def test_a_listener_cuts_those_who_do_not_take_its_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "GOODBYE_SECONDS", 0.05)
    full = paused(monkeypatch)
    server, listener = await listening()
    sock = reluctant(listener.address[1], 1000)
    async with asyncio.timeout(PATIENCE_S):
        await full.wait()
        await listener.close()
    assert not server.sessions
    sock.close()


async def test_a_client_leaves_a_server_that_does_not_read_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()

    monkeypatch.setattr(tcp, "GOODBYE_SECONDS", 0.05)
    monkeypatch.setattr(tcp, "REQUEST_BYTES_WAITING_MAX", 1 << 30)
    server = await hostile(talk)
    owner = Owner(port_of(server))
    await owner.until(lambda: owner.ups, "connected")
    for request_id in range(40_000):
        assert owner.asks(Ask(request_id, 104, 1, 2, 0))
        owner.server.cancel(request_id)
    async with asyncio.timeout(PATIENCE_S):
        await owner.connection.close()
    assert owner.downs == []
    done.set()
    server.close()


async def test_a_silent_client_is_closed_and_one_that_breaks_the_protocol_too() -> None:
    settings = ServerSettings(heartbeat_us=20_000, dead_us=1_000_000)
    server, listener = await listening(settings)
    silent, broken = socket.socket(), socket.socket()
    for sock in (silent, broken):
        sock.connect((HOST, listener.address[1]))
    broken.sendall(bytes(100))
    await until_counted(server, "clients_wrong")
    await until_counted(server, "heartbeats_sent")
    await until_counted(server, "clients_silent")
    await listener.close()
    for sock in (silent, broken):
        sock.close()


async def test_a_quiet_connection_lives_on_heartbeats() -> None:
    server, listener = await listening(ServerSettings(heartbeat_us=5_000, dead_us=5_000_000))
    owner = Owner(listener.address[1])
    await owner.until(lambda: owner.ups, "connected")
    await until_counted(server, "heartbeats_answered")
    assert owner.server.client.counts["heartbeats"] >= 1
    assert owner.downs == []
    await owner.connection.close()
    await listener.close()


async def test_clients_beyond_the_bound_are_closed() -> None:
    server, listener = await listening(ServerSettings(clients_max=1))
    first = Owner(listener.address[1])
    await first.until(lambda: first.ups, "connected")
    await until_counted(server, "clients")
    second = Owner(listener.address[1])
    await second.until(lambda: second.downs, "closed")
    assert server.counts["clients_refused"] >= 1
    first.ask(1, 1, 2)
    await first.until(lambda: first.answered(1), "answered")
    await first.connection.close()
    # What it connects before its slot is free looks up for a moment, too.
    await until_counted(server, "clients", 2)
    await second.until(lambda: second.connection.up, "a slot is free")
    second.ask(1, 1, 2)
    await second.until(lambda: second.answered(1), "answered")
    await second.connection.close()
    await listener.close()


async def test_a_snapshot_can_come_over_the_connection() -> None:
    refresher = Snapshots()
    _, listener = await listening(ServerSettings(refresh_over_tcp=True), refresher)
    owner = Owner(listener.address[1])
    await owner.until(lambda: owner.ups, "connected")
    owner.asks(AskRefresh(1, 104))
    await owner.until(lambda: owner.events, "accepted")
    packets = [refresh_packet(number) for number in range(1, 2001)]
    refresher.give(packets)
    await owner.until(lambda: len(owner.events) == 2001, "the snapshot")
    assert owner.events[0] == RefreshAccepted(1)
    assert owner.events[-1] == RefreshPacket(104, 2000, packets[-1])
    await owner.connection.close()
    await listener.close()
    assert refresher.callbacks == []


async def test_closing_is_orderly_at_any_moment() -> None:
    server, listener = await listening()
    port = listener.address[1]
    never = Owner(free_addresses.port())
    await never.connection.close()
    asked = Owner(port)
    await asked.until(lambda: asked.ups, "connected")
    asked.ask(1, 1, 1001)
    await asked.until(lambda: Accepted(1) in asked.events, "accepted")
    await asked.connection.close()
    await asked.connection.close()
    await until_counted(server, "clients_left")
    assert asked.downs == []
    assert never.ups == 0
    asked.connection.start()
    await asked.until(lambda: asked.ups == 2, "connected again")
    await asked.connection.close()
    await listener.close()
    assert len(asyncio.all_tasks()) == 1


async def test_an_address_that_cannot_be_had_is_the_operators_fault() -> None:
    server, listener = await listening()
    with pytest.raises(ConfigError, match="cannot listen"):
        await serve(server, HOST, listener.address[1])
    await listener.close()
