"""A feed of each family through everything: replay, two lossy lines, gateway, subscribers.

What a packet is differs: SBE messages name their instruments in groups, symbols of CTA have eleven
bytes, and a datagram of MIAX holds several packets; families with a generated session are in
`test_order_sessions.py`. Gateway and player are processes of their own, as an operator starts them.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

import feedhandler
from feedhandler.codecs import Feed, load_feed
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.config.trading_day import TradingDayConfig
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support import free_addresses
from tests.support.gateway import amqp_url, run_command

PACKETS = 400
RUN_SECONDS = 120
#: Feed to the messages of its packets, made of a number, and one symbol with the word for it.
FAMILIES: dict[str, tuple[Callable[[Feed, int], bytes], str]] = {
    "cme-mdp3": (
        lambda feed, n: feed.encode_message(
            "incremental_refresh_book",
            transact_time=n,
            entries=[{"security_id": 1_000 + n % 7}, {"security_id": 1_000 + (n + 1) % 7}],
        ),
        "1003",
    ),
    "siac-cts": (
        lambda feed, n: feed.encode_message(
            "long_trade", security_symbol=f"LONGNAME.{n % 7}A", transaction_id=n
        ),
        "LONGNAME_3A",
    ),
    "miax-onyx-tom": (
        lambda feed, n: feed.encode_message("best_bid_and_offer", instrument_id=n % 7, timestamp=n),
        "3",
    ),
}


def write_session(feed: Feed, path: Path, make: Callable[[Feed, int], bytes]) -> list[bytes]:
    """Write a capture of a session, and return the bytes of its messages in order."""
    messages: list[bytes] = []
    prng = random.Random(7)
    number = 1
    with CaptureWriter(path) as writer:
        for index in range(PACKETS):
            datagram = b""
            for _ in range(2 if feed.table.several and index % 3 == 0 else 1):
                most = 3 if feed.table.message_length_size else 1
                count = prng.randint(1, most)
                bodies = [make(feed, len(messages) + each) for each in range(count)]
                service = {"service": 1} if feed.description.packet.service else {}
                datagram += feed.encode_packet(sequence=number, messages=bodies, **service)
                messages += bodies
                number += count if feed.counts_messages else 1
            at_ns = 1_700_000_000_000_000_000 + index * 1_000_000
            writer.write(at_ns, "239.1.1.1", 30_001, datagram)
    return messages


def configuration(feed: Feed) -> Config:
    port = free_addresses.port()
    lines = tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")
    return Config(
        gateway=GatewaySettings(feed=feed.name),
        trading_day=TradingDayConfig(date="2023-11-14"),
        # A busy machine may stop the player between the two lines' copies for long.
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        channels=(ChannelConfig(service=1, lines=lines),),
    )


async def receive(url: str, pattern: str, feed: Feed, count: int, ready: asyncio.Event) -> Any:
    bodies: list[bytes] = []
    async with feedhandler.subscribe(
        url, pattern, as_="message", feed=feed, quality=False, reconnect=False
    ) as messages:
        ready.set()
        while len(bodies) < count:
            bodies.append((await anext(messages)).body)
    return bodies


async def receive_batches(url: str, feed: Feed, count: int, ready: asyncio.Event) -> int:
    """Receive batches until their packets have `count` messages; return how many there were."""
    seen = 0
    async with feedhandler.subscribe(
        url, f"{feed.key}.#", as_="batch", feed=feed, quality=False, reconnect=False
    ) as messages:
        ready.set()
        while seen < count:
            seen += sum(len(each.messages) for each in (await anext(messages)).packets())
    return seen


async def play_through(name: str, folder: Path) -> None:
    make, word = FAMILIES[name]
    feed = load_feed(name)
    expected = write_session(feed, folder / "session.pcap", make)
    wanted = [body for number, body in enumerate(expected) if _names(name, number)]
    config = configuration(feed)
    (folder / "gateway.toml").write_text(to_toml(config))
    gateway = await run_command("run", str(folder / "gateway.toml"))
    try:
        url = await amqp_url(gateway)
        ready = [asyncio.Event() for _ in range(3)]
        every = asyncio.create_task(receive(url, f"{feed.key}.#", feed, len(expected), ready[0]))
        some = asyncio.create_task(
            receive(url, f"{feed.key}.1.{word}", feed, len(wanted), ready[1])
        )
        batches = asyncio.create_task(receive_batches(url, feed, len(expected), ready[2]))
        await asyncio.gather(*(each.wait() for each in ready))
        line_a, line_b = config.channels[0].lines
        player = await run_command(
            *("replay", str(folder / "session.pcap"), "--feed", name, "--speed", "5x"),
            *("--line-a", f"{line_a.group}:{line_a.port}"),
            *("--line-b", f"{line_b.group}:{line_b.port}"),
            *("--loss-a", "5%", "--loss-b", "5%", "--spare-shared", "--seed", "7"),
        )
        assert await every == expected
        assert await some == wanted
        assert await batches == len(expected)
        assert await asyncio.wait_for(player.wait(), 60) == 0
    finally:
        if gateway.returncode is None:
            gateway.kill()
            await gateway.wait()


def _names(name: str, number: int) -> bool:
    """Return whether message `number` names the symbol that the second subscriber wants."""
    return number % 7 == 3 or (name == "cme-mdp3" and number % 7 == 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_message_arrives_once_in_order_and_by_its_symbol(name: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(RUN_SECONDS):
            await play_through(name, tmp_path)

    uvloop.run(run())
