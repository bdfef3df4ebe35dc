"""Clients of a resend service that read slowly, or not at all: connections without sockets."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from feedhandler.fixcast import resend_service
from feedhandler.fixcast.resend_service import ResendService, _Client
from feedhandler.retrans.fix import server as module
from feedhandler.retrans.fix.request import RequestFormat, ResendRequest
from feedhandler.retrans.fix.server import ResendServer, ResendSettings, ServedChannel
from feedhandler.retrans.store import PacketStore

PATIENCE_S = 60.0
FORM = RequestFormat()
#: 20 MB, of which two requests each want a half.
MESSAGES = [bytes([number]) * 100_000 for number in range(200)]
REQUESTS = [FORM.encode(ResendRequest("c", *numbers)) for numbers in ((1, 100), (101, 200))]
HIGH_BYTES = 64 << 10
PART = 10


class Transport:
    """What was written waits until the test reads it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.unread = bytearray()
        self.reading, self.aborted, self.written = True, asyncio.Event(), asyncio.Event()

    def write(self, data: bytes) -> None:
        self.unread += data
        self.written.set()
        if len(self.unread) > HIGH_BYTES and self.reading:
            self.client.pause_writing()

    def read(self) -> bytes:
        data = bytes(self.unread)
        self.unread.clear()
        self.written.clear()
        if not self.reading:
            self.client.resume_writing()
        return data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def get_extra_info(self, _name: str) -> Any:
        return Mock()

    def abort(self) -> None:
        self.aborted.set()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ResendService:
    monkeypatch.setattr(module, "PART_NUMBERS", PART)
    store = PacketStore(1 << 25)
    for number, text in enumerate(MESSAGES, 1):
        store.append(number, number + 1, text, 0, len(text))
    server = ResendServer(ResendSettings(route="tcp"))
    server.add("c", ServedChannel(store, lambda _first, _next: b"", lambda data: data))
    return ResendService(server, FORM, lambda _answer: None)


def connected(service: ResendService) -> Transport:
    client = _Client(service)
    transport: Any = Transport(client)
    client.connection_made(transport)
    return transport


async def taken(transport: Transport, size: int) -> tuple[bytes, int]:
    """Read so much; return it, and how many messages were made ahead of the client at most."""
    got, ahead = bytearray(), 0
    async with asyncio.timeout(PATIENCE_S):
        while len(got) < size:
            await transport.written.wait()
            ahead = max(ahead, len(transport.client._unsent))
            got += transport.read()
    return bytes(got), ahead


async def test_a_client_that_reads_slowly_gets_answers_of_any_length(
    service: ResendService,
) -> None:
    transport = connected(service)
    transport.client.data_received(b"".join(REQUESTS))
    got, ahead = await taken(transport, 20_000_000)
    assert sorted(got[at : at + 100_000] for at in range(0, len(got), 100_000)) == MESSAGES
    assert ahead <= PART
    assert transport.reading
    assert not transport.aborted.is_set()


async def test_a_client_that_is_behind_does_not_hold_up_another(service: ResendService) -> None:
    slow, other = connected(service), connected(service)
    slow.client.data_received(REQUESTS[0])
    async with asyncio.timeout(PATIENCE_S):
        await slow.written.wait()
    assert not slow.reading
    other.client.data_received(REQUESTS[1])
    got, _ = await taken(other, 10_000_000)
    assert got == b"".join(MESSAGES[100:])
    assert len(slow.client._unsent) <= PART
    got, _ = await taken(slow, 10_000_000)
    assert got == b"".join(MESSAGES[:100])


async def test_a_client_that_reads_nothing_any_more_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, service: ResendService
) -> None:
    monkeypatch.setattr(resend_service, "UNREAD_SECONDS", 0.0)
    transport = connected(service)
    transport.client.data_received(REQUESTS[0])
    async with asyncio.timeout(PATIENCE_S):
        await transport.aborted.wait()
    assert service.counts == {"connections": 1, "unread": 1}
