"""A gateway gets back what both lines of a FIX channel lost, from `feedhandler fixcast publish`.

The publisher is a process of its own; between its lines and the gateway's stands a relay that loses
datagrams, some on one line, some on both. Retransmission and Market Data Requests are not lossy.
"""

import asyncio
import contextlib
import random
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import feedhandler
from feedhandler.codecs.fix.fields import fields
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    ServerConfig,
    ServerLineConfig,
)
from feedhandler.ingest.lines import Line, open_line
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.settings import RecoverySettings
from tests.support import free_addresses
from tests.support.fix_market import Flow, state_of
from tests.support.fixcast import update
from tests.support.gateway import ending
from tests.support.gateway_here import gateway_here, multicast_sender, until

SERVICE = 7
PATIENCE_S = 120
MESSAGES = 600
#: Datagrams lost on both lines, and on each line alone.
LOST_ON_BOTH, LOST_ALONE = 0.1, 0.1
#: Waits that no busy machine reaches: what is lost is lost because no server had it.
RECOVERY = RecoverySettings(
    recovery_wait_us=30_000_000,
    request_timeout_us=500_000,
    retries=20,
    reconnect_us=20_000,
    reconnect_max_us=50_000,
)


class Addresses:
    """Addresses of one run: the publisher's groups, the gateway's behind the relay, the servers."""

    def __init__(self) -> None:
        self.published = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.relayed = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.answers = (free_addresses.group(), free_addresses.port())
        self.server, self.requests = free_addresses.port(), free_addresses.port()

    def definition(self, folder: Path) -> Path:
        """The publisher's definition of channels."""

        def line(name: str, address: tuple[str, int]) -> str:
            group, port = address
            return f'{name} = {{ group = "{group}", port = {port}, source = "127.0.0.1" }}\n'

        path = folder / "channels.toml"
        path.write_text(
            '[[channel]]\nid = "c1"\nsender = "PUB"\nretransmission = "r"\n'
            + line("a", self.published[0])
            + line("b", self.published[1])
            + f'[[retransmission]]\nid = "r"\nserver = "127.0.0.1:{self.server}"\n'
            + line("line", self.answers)
        )
        return path

    def configuration(self, route: str, **channel: Any) -> Config:
        """The gateway's configuration."""
        group, port = self.answers
        lines = [ServerLineConfig(name="R", group=group, port=port)] if route == "group" else []
        rts = ServerConfig(name="rts", address=f"127.0.0.1:{self.server}", lines=tuple(lines))
        mds = ServerConfig(name="mds", address=f"127.0.0.1:{self.requests}")
        return Config(
            gateway=GatewaySettings(feed="fix-marketdata"),
            arbitration=ArbitrationSettings(gap_wait_us=20_000, start_wait_us=20_000),
            recovery=RECOVERY,
            amqp=AmqpConfig(listen="127.0.0.1:0"),
            servers=(rts, mds) if channel.get("refresh") else (rts,),
            channels=(
                ChannelConfig(
                    service=SERVICE,
                    topic="c1",
                    retransmission="rts",
                    lines=tuple(
                        LineConfig(name=name, group=group, port=port)
                        for name, (group, port) in zip("AB", self.relayed, strict=True)
                    ),
                    **channel,
                ),
            ),
        )


class Relay:
    """Carries datagrams from the publisher's lines to the gateway's, and loses some.

    A datagram that is sent once more, as an answer on the main group is, is not lost again.
    """

    def __init__(self, at: Addresses, seed: int) -> None:
        self.at = at
        self.rng = random.Random(seed)
        self.fates: dict[bytes, tuple[bool, bool]] = {}
        self.seen: set[tuple[int, bytes]] = set()
        self.lost_on_both = 0
        self.out = multicast_sender()

    def _is_lost(self, line: int, data: bytes) -> bool:
        if (line, data) in self.seen:
            return False
        self.seen.add((line, data))
        if data not in self.fates:
            both = self.rng.random() < LOST_ON_BOTH
            alone = self.rng.randrange(2) if self.rng.random() < LOST_ALONE else 2
            self.fates[data] = (both or alone == 0, both or alone == 1)
            self.lost_on_both += both
        return self.fates[data][line]

    def _read(self, line: int, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data = sock.recv(65_535)
                if not self._is_lost(line, data):
                    self.out.sendto(data, self.at.relayed[line])

    @contextlib.contextmanager
    def gateway_here(self) -> Iterator["Relay"]:
        """Carry, meanwhile."""
        loop = asyncio.get_running_loop()
        socks = [
            open_line(Line(name, group, port, "127.0.0.1"))
            for name, (group, port) in zip("AB", self.at.published, strict=True)
        ]
        for line, sock in enumerate(socks):
            loop.add_reader(sock, self._read, line, sock)
        try:
            yield self
        finally:
            for sock in socks:
                loop.remove_reader(sock)
                sock.close()
            self.out.close()


@contextlib.asynccontextmanager
async def publishing(path: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`feedhandler fixcast publish` of what is written to its standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "fixcast", "publish", str(path), "-",
        "--channel", "c1", "--heartbeat-ms", "50", *options,
        stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with ending(process):
        yield process


async def write(process: asyncio.subprocess.Process, numbers: range) -> None:
    """Publish messages with these texts."""
    assert process.stdin is not None
    for number in numbers:
        process.stdin.write(update(f"text {number}", symbol=f"S{number % 3}"))
        if number % 10 == 0:
            await process.stdin.drain()
            await asyncio.sleep(0.001)
    await process.stdin.drain()


def texts(bodies: list[bytes]) -> list[bytes]:
    """The texts of messages, in order."""
    return [each.split(b"\x01")[0] for each in b"".join(bodies).split(b"\x0158=")[1:]]


@pytest.mark.parametrize("route", ["group", "tcp", "main"])
async def test_what_both_lines_lost_is_got_back_by_every_route(
    route: str, tmp_path: Path, seed: int
) -> None:
    at = Addresses()
    bodies: list[bytes] = []
    qualities: list[str] = []
    path, relay = at.definition(tmp_path), Relay(at, seed)
    async with gateway_here(at.configuration(route)) as (gateway, url):
        with relay.gateway_here():
            async with (
                publishing(path, "--route", route, "--poss-dup") as publisher,
                feedhandler.subscribe(
                    url,
                    f"fix.{SERVICE}.#",
                    on_quality=lambda quality: qualities.append(quality.reason),
                ) as messages,
            ):
                await until(lambda: gateway.core.servers["rts"].client.up)
                await write(publisher, range(MESSAGES))
                async with asyncio.timeout(PATIENCE_S):
                    async for one in messages:
                        if one.content != "quality":
                            bodies.append(one.body)
                        if len(texts(bodies)) >= MESSAGES:
                            break
                counts = gateway.core.recovery_snapshot(gateway.runner.now_ns())
    assert texts(bodies) == [b"text %d" % number for number in range(MESSAGES)]
    assert relay.lost_on_both
    assert counts["requests"]
    assert "gap" not in qualities
    assert "mismatch" not in qualities
    assert b"\x0143=Y\x01" not in b"".join(bodies) or route == "main"


class Books:
    """A subscriber's books: what the gateway gives, applied as it comes."""

    def __init__(self) -> None:
        self.state = MarketState()
        self.reasons: list[str] = []
        self.number = 0
        self.stands = ""

    def quality(self, quality: Any) -> None:
        """A quality message."""
        self.reasons.append(quality.reason)
        self.stands = quality.state
        if quality.reason == "snapshot-begin":
            self.state.clear()

    def receive(self, body: bytes) -> None:
        """Messages: states have LastMsgSeqNumProcessed, others a number of the channel."""
        for message in FixStream().receive(body):
            said = dict(reversed(fields(message)))
            number = int(said.get(369, said[34]))
            assert number >= self.number or 369 in said or "snapshot-begin" in self.reasons
            self.number = max(number, self.number)
            if said[35] in (b"W", b"X"):
                self.state.apply(message, number)


async def test_a_late_joiner_and_losses_that_no_server_answers_are_healed_by_the_present_state(
    tmp_path: Path, seed: int
) -> None:
    at, flow = Addresses(), Flow(random.Random(seed))
    sent = {number: flow.message() for number in range(1, 401)}

    async def publish(process: asyncio.subprocess.Process, numbers: range) -> None:
        assert process.stdin is not None
        for number in numbers:
            process.stdin.write(sent[number])
            if number % 10 == 0:
                await process.stdin.drain()
                await asyncio.sleep(0.001)
        await process.stdin.drain()

    books, path, relay = Books(), at.definition(tmp_path), Relay(at, seed)
    options = ("--answer", "never", "--requests", f"127.0.0.1:{at.requests}")
    recovery = msgspec.structs.replace(
        RECOVERY, recovery_wait_us=100_000, request_timeout_us=20_000, retries=1,
        refresh_backoff_us=20_000, refresh_tries=100,
    )  # fmt: skip
    config = msgspec.structs.replace(at.configuration("tcp", refresh="mds"), recovery=recovery)
    async with publishing(path, *options) as publisher:
        await publish(publisher, range(1, 101))
        async with gateway_here(config) as (gateway, url):
            with relay.gateway_here():
                async with feedhandler.subscribe(
                    url, f"fix.{SERVICE}.#", on_quality=books.quality
                ) as messages:
                    await until(lambda: gateway.core.servers["mds"].client.up)
                    await publish(publisher, range(101, 401))
                    async with asyncio.timeout(PATIENCE_S):
                        async for one in messages:
                            if one.content != "quality":
                                books.receive(one.body)
                            if books.number == 400 and books.stands in ("OK", "REFRESHED"):
                                break
    assert "gap" in books.reasons
    assert "snapshot-begin" in books.reasons
    assert relay.lost_on_both
    assert books.state.contents() == state_of(sent).contents()
