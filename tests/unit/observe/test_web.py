"""The HTTP endpoint: what it answers, and what it does about clients that are none."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
import uvloop

from feedhandler.codecs.errors import ConfigError
from feedhandler.observe import web
from feedhandler.observe.web import Answer, WebServer

PATIENCE_S = 60


async def _hello() -> Answer:
    return Answer(b"hello\n")


async def _sick() -> Answer:
    return Answer(b"not well\n", HTTPStatus.SERVICE_UNAVAILABLE)


async def _fault() -> Answer:
    raise RuntimeError("a fault within")


PAGES = {"/hello": _hello, "/sick": _sick, "/fault": _fault}


@contextlib.asynccontextmanager
async def serving(pages: dict[str, web.Page] | None = None) -> AsyncIterator[WebServer]:
    """A server on a free port; nothing may reach the loop's exception handler."""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    server = WebServer(("127.0.0.1", 0), PAGES if pages is None else pages)
    server.start()
    try:
        yield server
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await server.close()
    assert not faults


async def answer(server: WebServer, request: bytes) -> bytes:
    """Everything that comes back for `request`."""
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[Any]], Any]:
    """Runs a coroutine on either loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


Run = Callable[[Any], Any]


def request_of(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".encode()


async def test_a_page_is_answered_and_the_connection_closed(run: Run) -> None:
    async with serving() as server:
        head, _, body = (await answer(server, request_of("/hello?x=1"))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 6" in head
        assert b"Connection: close" in head
        assert body == b"hello\n"
        assert server.counts()["requests"] == 1


async def test_head_is_answered_without_a_body(run: Run) -> None:
    async with serving() as server:
        response = await answer(server, request_of("/sick", "HEAD"))
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"Content-Length: 9" in response
        assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (request_of("/other"), 404),
        (request_of("/"), 404),
        (request_of("/hello", "POST"), 405),
        (request_of("/hello", "DELETE"), 405),
        (request_of("/fault"), 500),
        (b"\x00\xff\x16\x03\x01 garbage\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello SIP/2.0\r\n\r\n", 400),
        (b"AMQP\x00\x01\x00\x00\n", 400),
        (b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 4000, 431),
        (b"A" * 100_000, 431),
    ],
)
async def test_anything_else_is_refused_with_its_status(
    run: Run, request_bytes: bytes, status: int
) -> None:
    async with serving() as server:
        response = await answer(server, request_bytes)
        assert response.startswith(b"HTTP/1.1 %d " % status)
        if status == 405:
            assert b"Allow: GET, HEAD" in response
        assert b"200 OK" in await answer(server, request_of("/hello"))


async def test_who_does_not_ask_in_time_is_cut_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.05)
    async with serving() as server:
        assert await answer(server, b"GET /hel") == b""
        assert server.counts()["timed_out"] == 1


async def test_who_does_not_take_the_answer_in_time_is_cut_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ANSWER_SECONDS", 0.05)

    async def large() -> Answer:
        return Answer(bytes(50_000_000))

    async with serving({"/large": large}) as server:
        _, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(request_of("/large"))
        async with asyncio.timeout(PATIENCE_S):
            while not server.counts()["timed_out"]:
                await asyncio.sleep(0.01)
        writer.close()


async def test_the_one_that_has_kept_us_waiting_longest_makes_room(run: Run) -> None:
    async with serving() as server:
        silent = [
            await asyncio.open_connection(*server.address) for _ in range(3 * web.CONNECTIONS_MAX)
        ]
        assert b"200 OK" in await answer(server, request_of("/hello"))
        async with asyncio.timeout(PATIENCE_S):
            assert await silent[0][0].read() == b""
        assert server.counts()["pushed_out"] >= 2 * web.CONNECTIONS_MAX
        for _, writer in silent:
            writer.close()


def test_where_no_client_keeps_us_waiting_none_is_pushed_out() -> None:
    server = WebServer(("127.0.0.1", 0), PAGES)
    assert not server._make_room()
    assert server.counts()["pushed_out"] == 0


async def test_a_client_that_resets_does_no_harm(run: Run) -> None:
    async with serving() as server:
        for _ in range(20):
            sock = socket.create_connection(server.address)
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sock.send(request_of("/hello")[:10])
            sock.close()
        assert b"200 OK" in await answer(server, request_of("/hello"))


async def test_closing_cuts_off_all_clients_and_can_be_repeated(run: Run) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection(*server.address)
        assert b"200 OK" in await answer(server, request_of("/hello"))
        await server.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_an_address_that_is_taken_is_the_operators_mistake() -> None:
    async with serving() as server:
        with pytest.raises(ConfigError, match=r"metrics\.listen: cannot listen on"):
            WebServer(server.address, {}).start()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9100", 200),
        ("127.0.0.1:9100", 200),
        ("[::1]:9100", 200),
        ("192.0.2.7", 200),
        ("Gateway.example:9100", 200),
        ("", 200),
        ("attacker.example", 421),
        ("localhost.attacker.example:9100", 421),
        ("127.0.0.1.attacker.example", 421),
        (":9100", 200),
        ("a:b:c", 421),
    ],
)
async def test_only_who_asks_for_this_server_by_a_name_of_its_own_is_answered(
    host: str, status: int
) -> None:
    server = WebServer(("127.0.0.1", 0), PAGES, ("gateway.example",))
    server.start()
    try:
        request = f"GET /hello HTTP/1.1\r\nhOST: {host}\r\n\r\n".encode()
        assert (await answer(server, request)).startswith(f"HTTP/1.1 {status} ".encode())
        if not host:
            bare = await answer(server, b"GET /hello HTTP/1.0\r\n\r\n")
            assert bare.startswith(b"HTTP/1.1 200 ")
    finally:
        await server.close()
