"""Helpers of tests with real gateway processes under load: the market that they all receive, what
a subscriber was handed out compared with it, and a relay whose connections can be cut.

`Market` sends packets that can be told apart by their numbers alone, so that a `Ledger` knows of
every packet and message that it is given whether it is the next one, byte for byte as it was sent.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.feed import split_packets
from feedhandler.config import AmqpConfig, ChannelConfig, Config, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support import free_addresses
from tests.support.load import LoadGenerator, LoadTemplate

PATIENCE_S = 60.0
FEED = load_feed("euronext-utp-md")
SERVICES = (104, 105)
#: Packets that differ, and messages in each: a packet with another one's number is noticed.
TEMPLATES, MESSAGES = 7, 3
SEQUENCE = slice(4, 8)


class Market:
    """Two lines of two services on groups of this test's own. `rate`: packets a second, all
    services together."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        #: Of the lines, and where gateways listen.
        self.port = free_addresses.port()
        self._listening = [self.port]
        self.groups = {
            name: {service: free_addresses.group() for service in SERVICES} for name in "AB"
        }
        self.messages = [
            [
                FEED.encode_message(230, symbol_index=7 + number, price=kind, price_scale_code=2)
                for number in range(MESSAGES)
            ]
            for kind in range(TEMPLATES)
        ]
        self.packets = {
            service: [
                FEED.encode_packet(sequence=0, service=service, messages=x) for x in self.messages
            ]
            for service in SERVICES
        }
        lines = [
            MulticastLine(name, {service: (group, self.port) for service, group in groups.items()})
            for name, groups in self.groups.items()
        ]
        templates = [
            LoadTemplate(self.packets[service][kind], channel=service)
            for kind in range(TEMPLATES)
            for service in SERVICES
        ]
        self._load = LoadGenerator(templates, lines, sequence_offset=SEQUENCE.start)
        self._sender = threading.Thread(target=self._load.run, args=(rate, 36_000.0))

    def config(self, number: int = 0, **amqp: Any) -> Config:
        """A gateway of these lines; each `number` listens on a port of its own."""
        channels = tuple(
            ChannelConfig(
                service=service,
                lines=tuple(
                    LineConfig(name=name, group=groups[service], port=self.port)
                    for name, groups in self.groups.items()
                ),
            )
            for service in SERVICES
        )
        while len(self._listening) <= number:
            self._listening.append(free_addresses.port())
        listen = f"127.0.0.1:{self._listening[number]}"
        return Config(amqp=AmqpConfig(listen=listen, **amqp), channels=channels)

    def start(self) -> None:
        """Send, from number 1 on."""
        self._sender.start()

    @property
    def sent(self) -> dict[int, int]:
        """By service, the last number sent, or about to be."""
        return {s: int(n) - 1 for s, n in zip(SERVICES, self._load.next_sequences, strict=True)}

    def stop(self) -> None:
        """Send no more; what `sent` says is final."""
        self._load.stop()
        if self._sender.is_alive():
            self._sender.join()

    def __enter__(self) -> "Market":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._load.close()


class Ledger:
    """Account of what one subscriber was handed out.

    A packet or message that is not the next one, and leaves no gap, is an AssertionError at once;
    `gaps` has (first, last) of packets that did not come as a whole, by service.
    """

    def __init__(self, market: Market, grain: str) -> None:
        self.grain = grain
        self._market = market
        self.reached = dict.fromkeys(SERVICES, 0)
        self.gaps: dict[int, list[tuple[int, int]]] = {service: [] for service in SERVICES}
        self.notes: list[dict[str, Any]] = []
        self._numbers = dict.fromkeys(SERVICES, MESSAGES - 1)
        #: How often the gateway of a URL was attached.
        self.attached: dict[str, int] = {}
        self.messages: Any = None
        self._task: asyncio.Task[None]

    def follow(self, messages: Any) -> None:
        """Take everything that this subscriber is handed out, from now on."""
        self.messages = messages
        self._task = asyncio.get_running_loop().create_task(self._consume())

    async def close(self) -> None:
        """No more; raises what was wrong."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def check(self) -> None:
        """Raises what ended the taking, if anything did."""
        if self._task.done():
            self._task.result()
            raise AssertionError("the stream ended")

    def on_connection(self, event: Any) -> None:
        """Count the returns of each gateway."""
        self.attached[event.url] = self.attached.get(event.url, 0) + event.connected

    async def _consume(self) -> None:
        async for message in self.messages:
            self.receive(message)

    def receive(self, message: Any) -> None:
        """Check what was handed out next, and account for it."""
        service = message.service
        if message.content == "quality":
            self.notes.append(message.quality)
        elif message.content == "message":
            self._advance(service, message.sequence, message.number)
            kind = self._market.messages[(message.sequence - 1) % TEMPLATES]
            assert message.body == kind[message.number]
        else:
            for packet in split_packets(FEED, message.body):
                sequence = int.from_bytes(packet[SEQUENCE], "big")
                self._advance(service, sequence, 0)
                self._numbers[service] = MESSAGES - 1
                sent = bytearray(self._market.packets[service][(sequence - 1) % TEMPLATES])
                sent[SEQUENCE] = packet[SEQUENCE]
                assert packet == sent

    def _advance(self, service: int, sequence: int, number: int) -> None:
        reached, before = self.reached[service], self._numbers[service]
        position, last = f"{sequence}.{number}", f"{reached}.{before}"
        if number == 0:
            assert sequence > reached, f"{position} after {last}: twice, or out of order"
            missing = reached + (before == MESSAGES - 1)
            if sequence > missing:
                self.gaps[service].append((missing, sequence - 1))
        else:
            assert (sequence, number) == (reached, before + 1), f"{position} after {last}"
        self.reached[service], self._numbers[service] = sequence, number

    def has(self, numbers: dict[int, int]) -> bool:
        """Return whether each service has come as far as its number here."""
        return all(self.reached[service] >= number for service, number in numbers.items())

    def notices(self, reason: str) -> list[dict[str, Any]]:
        """The quality messages with this reason."""
        return [note for note in self.notes if note["reason"] == reason]

    def assert_whole(self) -> None:
        """All that was sent came once and in order, and nothing else was said of it."""
        assert self.gaps == {service: [] for service in SERVICES}
        assert self.reached == self._market.sent
        assert not self.notices("gap")
        assert not self.notices("reset")
        assert not [x for x in self.notes if x["lost_total"] or x["stale"] or x.get("lost")]


class Relay:
    """A TCP relay to one port, whose connections `cut` resets wherever they are; while it is not
    `open`, new ones are reset at once."""

    def __init__(self, port: int) -> None:
        self.open = True
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset all connections; what is in flight is lost, half an AMQP frame perhaps."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers -= pair

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # cut; so is the other direction
        writer.transport.abort()


async def start(config: Config, path: Path) -> asyncio.subprocess.Process:
    """A gateway process that says it is ready; `path`: where its configuration may be written."""
    path.write_text(to_toml(config))
    return await start_again(path)


async def start_again(path: Path) -> asyncio.subprocess.Process:
    """A gateway process that says it is ready, of a configuration that is written already."""
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "run", str(path), stderr=asyncio.subprocess.PIPE
    )
    assert gateway.stderr is not None
    seen = b""
    while b"ready" not in seen:
        line = await asyncio.wait_for(gateway.stderr.readline(), PATIENCE_S)
        assert line, f"the gateway ended: {seen.decode()}"
        seen += line
    return gateway


async def run_command(*arguments: str) -> asyncio.subprocess.Process:
    """A command of `feedhandler` as a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", *arguments, stderr=asyncio.subprocess.PIPE
    )


async def amqp_url(gateway: asyncio.subprocess.Process) -> str:
    """The gateway's URL, from the line with which it says that it is ready."""
    assert gateway.stderr is not None
    seen = b""
    while b"AMQP on" not in seen:
        line = await asyncio.wait_for(gateway.stderr.readline(), PATIENCE_S)
        assert line, f"the gateway ended: {seen.decode()}"
        seen += line
    return "amqp://" + seen.decode().rsplit("AMQP on ", 1)[1].strip()


async def subscribed(stack: AsyncExitStack, market: Market, urls: list[str], grain: str) -> Ledger:
    """A subscriber to all that these gateways have, whose ledger is kept while the block lasts."""
    ledger = Ledger(market, grain)
    messages = feedhandler.subscribe(
        urls, "euronext.#", as_=grain, on_connection=ledger.on_connection
    )
    ledger.follow(await stack.enter_async_context(messages))
    stack.push_async_callback(ledger.close)
    return ledger


async def kill(gateway: asyncio.subprocess.Process) -> None:
    """SIGKILL; returns once it is gone."""
    if gateway.returncode is None:
        gateway.kill()
    await gateway.wait()


@contextlib.asynccontextmanager
async def ending(process: asyncio.subprocess.Process) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the block, if not before."""
    try:
        yield process
    finally:
        await kill(process)


async def until(ledgers: Iterable[Ledger], condition: Callable[[Ledger], bool], what: str) -> None:
    """Wait until a condition holds for every ledger."""
    deadline = time.monotonic() + PATIENCE_S
    for ledger in ledgers:
        while not condition(ledger):
            ledger.check()
            assert time.monotonic() < deadline, f"never happened: {what}; {ledger.reached}"
            await asyncio.sleep(0.005)
