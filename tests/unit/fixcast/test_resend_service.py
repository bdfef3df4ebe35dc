"""A client of a resend server that reads slowly, or not at all: its connection without sockets."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from feedhandler.fixcast import resend_service
from feedhandler.fixcast.resend_service import _Client
from tests.support.fix_messages import sealed

PATIENCE_S = 60.0
#: An answer of 20 MB, and requests for two.
ANSWER = [bytes([number]) * 100_000 for number in range(200)]
REQUESTS = sealed(b"35=2|34=1|7=1|16=9|") + sealed(b"35=2|34=2|7=10|16=19|")
HIGH_BYTES = 64 << 10


class Service:
    """It answers each request with `ANSWER`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.requests: list[bytes] = []

    def enter(self, client: _Client) -> int:
        self.client = client
        return 0

    def leave(self, _id: int) -> None:
        pass

    def receive(self, message: bytes, _id: int) -> None:
        self.requests.append(message)
        self.client.write(ANSWER)


class Transport:
    """What was written waits until the test reads it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.unread = bytearray()
        self.most = 0
        self.reading, self.aborted = True, asyncio.Event()

    def write(self, data: bytes) -> None:
        self.unread += data
        self.most = max(self.most, len(self.unread))
        if len(self.unread) > HIGH_BYTES and self.reading:
            self.client.pause_writing()

    def read(self) -> bytes:
        data = bytes(self.unread)
        self.unread.clear()
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
        return None

    def abort(self) -> None:
        self.aborted.set()


def connected() -> tuple[Service, Transport]:
    service: Any = Service()
    client = _Client(service)
    transport: Any = Transport(client)
    client.connection_made(transport)
    client.data_received(REQUESTS)
    return service, transport


async def test_a_client_that_reads_slowly_gets_answers_of_any_length() -> None:
    service, transport = connected()
    assert not transport.reading
    assert len(service.requests) == 1, "the second waits until the first is answered"
    got = bytearray()
    while data := transport.read():
        got += data
    assert got == b"".join(ANSWER) * 2
    assert len(service.requests) == 2
    assert transport.reading
    assert not transport.aborted.is_set()
    assert transport.most < 4 * HIGH_BYTES


async def test_a_client_that_reads_nothing_any_more_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resend_service, "UNREAD_SECONDS", 0.0)
    service, transport = connected()
    async with asyncio.timeout(PATIENCE_S):
        await transport.aborted.wait()
    assert service.counts == {"unread": 1}
