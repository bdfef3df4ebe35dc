"""A FIX channel that a gateway has recorded is played back, and yields the same stream."""

import asyncio
import sys
from pathlib import Path

import feedhandler
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    StatsConfig,
)
from feedhandler.config.recording import RecordConfig
from feedhandler.fixcast.channels import Address, Channel, Channels
from feedhandler.fixcast.exchange import LossyLines
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.fixcast.publisher import Publisher, PublisherSettings
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.generating.fix_market import FixMarket
from tests.support import free_addresses
from tests.support.fix_readers import our_messages
from tests.support.gateway_here import gateway_here

SERVICE, CHANNEL = 7, "recorded"
MESSAGES = 2_000
#: 2026-01-05 09:00:00 UTC.
OPENING_NS = 1_767_603_600_000_000_000
PATIENCE_S = 60


def lines() -> tuple[LineConfig, ...]:
    """Two lines of a channel that no other test uses."""
    port = free_addresses.port()
    return tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")


def configuration(of: tuple[LineConfig, ...], record: RecordConfig) -> Config:
    return Config(
        gateway=GatewaySettings(feed="fix-marketdata"),
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        stats=StatsConfig(bind=""),
        record=record,
        channels=(ChannelConfig(service=SERVICE, lines=of),),
    )


class Received:
    """Record of what a gateway published: the messages' bytes, the ranges it announced as lost."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.lost: list[object] = []

    async def follow(self, url: str, attached: asyncio.Event) -> None:
        async with feedhandler.subscribe(url, "fix.#", as_="message", reconnect=False) as messages:
            attached.set()
            async for each in messages:
                if each.content == "quality":
                    self.lost += (each.quality or {}).get("lost", [])
                    continue
                self.bodies.append(each.body)
                if len(self.bodies) == MESSAGES:
                    return


async def received(config: Config, send: object) -> Received:
    """Run a gateway while `send` sends; what a subscriber got, once it has all."""
    got, attached = Received(), asyncio.Event()
    async with gateway_here(config) as (_, url), asyncio.timeout(PATIENCE_S):
        following = asyncio.create_task(got.follow(url, attached))
        await attached.wait()
        await send()  # type: ignore[operator]
        await following
    return got


def publishing(of: tuple[LineConfig, ...], seed: int) -> object:
    """A publisher of the simulated market on two lines, each of which loses datagrams."""
    a, b = (Address(group=line.group, port=line.port) for line in of)
    channels = Channels((Channel(id=CHANNEL, sender="SIM", a=a, b=b),))
    lossy = LossyLines((0.1, 0.1), seed, spare_shared=True)
    market = FixMarket(seed, symbols_of(1)[:10])

    async def publish() -> None:
        settings = PublisherSettings(interface="127.0.0.1", rate_bytes_s=4_000_000)
        async with Publisher(channels, (), settings, lambda *_: lossy.carry()) as publisher:
            for number in range(MESSAGES):
                await publisher.publish(CHANNEL, market.next_message(OPENING_NS + number))

    return publish


def playing(folder: Path, recorded: tuple[LineConfig, ...], to: tuple[LineConfig, ...]) -> object:
    """`feedhandler replay` of the recording of both lines, onto other lines."""
    words = ["replay", *sorted(str(path) for path in folder.glob("lines-*.pcap"))]
    for was, now in zip(recorded, to, strict=True):
        words += ["--map", f"{was.group}:{was.port}={now.group}:{now.port}@{now.name}"]

    async def play() -> None:
        player = await asyncio.create_subprocess_exec(sys.executable, "-m", "feedhandler", *words)
        assert await player.wait() == 0

    return play


def test_a_recorded_channel_plays_back_as_the_same_stream(tmp_path: Path, seed: int) -> None:
    first, second = lines(), lines()
    record = RecordConfig(dir=str(tmp_path), what="both", disk_free_min_share=0.0)
    live = asyncio.run(received(configuration(first, record), publishing(first, seed)))
    assert not live.lost
    again = asyncio.run(
        received(configuration(second, RecordConfig()), playing(tmp_path, first, second))
    )
    assert again.bodies == live.bodies
    assert not again.lost
    went = [each for path in tmp_path.glob("published-*.pcap") for each in Capture(path)]
    sent = [each for one in went for each in our_messages(one.payload)]
    assert [each for each in sent if b"\x01268=" in each] == live.bodies
