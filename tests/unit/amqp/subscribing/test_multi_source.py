"""Several gateways as one source: what the merge needs from outside, its time and its positions."""

import asyncio
import itertools
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.amqp.subscribing import multi_source, stream_merger
from feedhandler.amqp.subscribing.inbox import Inbox, Message
from feedhandler.amqp.subscribing.multi_source import MultiSource
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, Rig, prefix_of

HOLD_NS = 1_000_000
SECONDS = 60


class Gateway:
    """The core of a gateway, and a subscriber's link to it, as `MultiSource` knows one."""

    def __init__(self, *services: int) -> None:
        self.rig = Rig(services)
        _, self._sent = self.rig.attach("euronext.#?as=packet")
        self._inbox = Inbox()
        for channel in range(len(services)):
            self.rig.control_event(RecordKind.START, channel=channel, sequence=1, next_sequence=1)

    @property
    def link(self) -> Any:
        """The link; `count` is that of its messages."""
        self.rig.pump()
        return SimpleNamespace(count=len(self._sent.frames))

    def grant(self, consumed: int) -> None:
        """Credit has no end."""

    def read(self) -> list[Message]:
        """Return the messages that have come since the last time."""
        self.rig.pump()
        frames = self._sent.frames[:]
        self._sent.frames.clear()
        bounds = array("q", [0, *itertools.accumulate(map(len, frames))])
        return self._inbox.read(b"".join(frames), memoryview(bounds), len(frames))


def sequences(source: MultiSource) -> list[tuple[int, int]]:
    """Service and number of the packets that are handed out now."""
    found = source.read_links(Gateway.read)  # type: ignore[arg-type]
    return [(x.service, x.sequence) for x in found if x.content == "packet"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the merge is told, `ns`; `HOLD_NS` is short, as timers are real."""
    clock = SimpleNamespace(ns=10 * HOLD_NS)
    clock.monotonic_ns = lambda: clock.ns
    monkeypatch.setattr(multi_source, "time", clock)
    monkeypatch.setattr(stream_merger, "HOLD_NS", HOLD_NS)
    return clock


async def test_what_a_gateway_brought_last_waits_no_longer_where_the_other_is_quiet(
    clock: SimpleNamespace,
) -> None:
    woken = asyncio.Event()
    source = MultiSource("packet", False, woken.set)
    a, b = Gateway(104), Gateway(104)
    for link, gateway in enumerate((a, b)):
        gateway.rig.packets(1, 2)
        source.up(link, gateway, False)  # type: ignore[arg-type]
    assert sequences(source) == [(104, 1), (104, 2)]
    clock.ns += 2 * HOLD_NS
    assert sequences(source) == []  # and nothing waits
    a.rig.control_event(RecordKind.GAP, sequence=3, next_sequence=6)
    a.rig.packets(6, 7)
    source.down(0, a.read())
    assert not source.waiting, "B may still have what A lacks"
    clock.ns += HOLD_NS
    async with asyncio.timeout(SECONDS):
        await woken.wait()
    assert sequences(source) == [(104, 6), (104, 7)]
    source.close()


async def test_every_service_that_a_read_brought_can_be_resumed(clock: SimpleNamespace) -> None:
    source, gateway = MultiSource("packet", False, lambda: None), Gateway(104, 105)
    gateway.rig.packets(1, 3)
    gateway.rig.packets(1, 2, channel=1)
    source.up(0, gateway, False)  # type: ignore[arg-type]
    assert sorted(sequences(source)) == [(104, 1), (104, 2), (104, 3), (105, 1), (105, 2)]
    assert source.tags() == {
        service: prefix_of(FEED, service) + last.to_bytes(8) + WHOLE_PACKET.to_bytes(2)
        for service, last in ((104, 3), (105, 2))
    }
    source.close()
