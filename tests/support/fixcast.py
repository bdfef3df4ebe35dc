"""Channels on loopback for tests of FIX over multicast, and messages to publish."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast import publisher
from feedhandler.fixcast.channels import Channels, parse_channels
from feedhandler.fixcast.reception import Deliver, Event
from feedhandler.fixcast.sending import ChannelSender
from feedhandler.fixcast.system_calls import LineSender
from tests.support.free_addresses import group, port

#: A test that waits longer has failed.
SECONDS = 120
_TEXT = re.compile(rb"\x0158=([^\x01]*)\x01")


def pop_due(sender: ChannelSender, now_ns: int) -> list[bytes]:
    """Take the datagrams that leave now, each for every line."""
    taken: list[bytes] = []
    while count := sender.due(now_ns, sender.queue.slots):
        taken += sender.queue.datagrams(count)
        sender.gone(count, now_ns)
    return taken


def definition(
    *, count: int = 1, by_topic: bool = False, join: str = "always", market_data: bool = False
) -> str:
    """Channels `c1`, `c2` and so on, which share a retransmission group and a server."""
    text = ""
    for number in range(1, count + 1):
        text += f'[[channel]]\nid = "c{number}"\nsender = "PUB"\nretransmission = "r"\n'
        text += f'carries = [{{ symbols = ["S{number}", "T{number}"] }}]\n'
        for line in "ab":
            text += f'{line} = {{ group = "{group()}", port = {port()}, source = "127.0.0.1" }}\n'
    text += f'[[retransmission]]\nid = "r"\njoin = "{join}"\n'
    if market_data:
        text += f'market_data = "127.0.0.1:{port()}"\n'
    if by_topic:
        text += f'requests = {{ group = "{group()}", port = {port()} }}\n'
    else:
        text += f'server = "127.0.0.1:{port()}"\n'
    text += f'line = {{ group = "{group()}", port = {port()}, source = "127.0.0.1" }}\n'
    return text


def channels(**given: object) -> Channels:
    """As `definition`, read."""
    return parse_channels(definition(**given), "definition")  # type: ignore[arg-type]


def update(text: str, symbol: str = "S1") -> bytes:
    """An application message that carries a text."""
    fields = f"35=X\x01268=1\x01279=0\x0155={symbol}\x0158={text}\x01"
    return envelope(b"FIXT.1.1", fields.encode())


def text_of(body: bytes) -> str:
    """The text of an `update`."""
    found = _TEXT.search(body)
    assert found
    return found[1].decode()


def lossy_lines(
    monkeypatch: pytest.MonkeyPatch,
    lost: Callable[[int], bool],
    seen: Callable[[bytes], object] = len,
) -> None:
    """Of publishers' datagrams to channels, the first being 1, those that are `lost` are sent on
    neither line; `seen` is called with each of the others."""
    count = 0

    class LossyLines:
        def __init__(self, lines: Any) -> None:
            self.inner = LineSender(lines)
            self.errors = self.inner.errors

        def send(self, slab: Any, offsets: Any, sizes: Any, first: int, many: int) -> None:
            nonlocal count
            for ahead in range(many):
                index = (first + ahead) % len(offsets)
                count += 1
                if lost(count):
                    continue
                seen(bytes(slab[offsets[index] : offsets[index] + sizes[index]]))
                self.inner.send(slab, offsets, sizes, index, 1)

    monkeypatch.setattr(publisher, "LineSender", LossyLines)


class Sink:
    """Takes a receiver's events."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self._changed = asyncio.Event()

    def receive(self, channel: str, events: list[Event]) -> None:
        self.events[channel] += events
        self._changed.set()

    def texts(self, channel: str = "c1") -> list[str]:
        """Return the texts of a channel's delivered messages, in order."""
        return [text_of(each.body) for each in self.events[channel] if isinstance(each, Deliver)]

    def count(self, channel: str = "c1") -> int:
        """Return how many messages of a channel were delivered."""
        return sum(isinstance(each, Deliver) for each in self.events[channel])

    def others(self, channel: str = "c1") -> list[Event]:
        """Return the events of a channel that are no deliveries."""
        return [each for each in self.events[channel] if not isinstance(each, Deliver)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
