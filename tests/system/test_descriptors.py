"""Descriptors that run out: what clients of the node get then, and what still answers."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from feedhandler import descriptors
from feedhandler.descriptors import RESERVED
from feedhandler.observe.web import Answer, WebServer
from tests.support.node import PATIENCE_S, in_thread, running

pytestmark = pytest.mark.gateways_loop


@contextlib.contextmanager
def at_most(descriptors: int) -> Iterator[None]:
    """So many descriptors for this process, counted by their numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


async def _alive() -> Answer:
    return Answer(b"alive\n")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(descriptors, "log_event", lambda event, text, level: lines.append(text))
    return lines


async def test_clients_never_get_the_last_descriptors_and_the_operator_is_told_once(
    logged: list[str],
) -> None:
    async with running() as rig:
        clients = []
        # Both ends of a connection are this process's.
        with at_most(lowest_free() + RESERVED + 30):
            for _ in range(20):
                clients.append(socket.create_connection(("127.0.0.1", rig.port)))
            await rig.until(
                lambda: (
                    rig.count("connections_refused") + rig.count("connections_opened")
                    == len(clients)
                ),
                "all taken or turned away",
            )
            assert 1 <= rig.count("connections_opened") < 20
            turned_away = clients[-1]
            turned_away.settimeout(PATIENCE_S)
            assert await in_thread(turned_away.recv, 1) == b""
        (line,) = logged
        assert "AMQP clients" in line
        assert "LimitNOFILE" in line
        for each in clients:
            each.close()


async def test_health_answers_where_no_descriptor_is_left(logged: list[str]) -> None:
    server = WebServer(("127.0.0.1", 0), {"/live": _alive})
    server.start()
    taken: list[int] = []
    clients = [socket.socket() for _ in range(3)]
    try:
        with at_most(lowest_free() + 8):
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for client in clients:  # one after the other
                client.settimeout(PATIENCE_S)
                await in_thread(client.connect, server.address)
                client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
                said = await in_thread(client.recv, 4096)
                assert said.startswith(b"HTTP/1.1 200 ")
                client.close()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        await server.close()
    assert len(logged) == 1
