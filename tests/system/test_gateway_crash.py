"""A gateway that is killed without warning, again and again, under load.

What must hold: its subscriber is told at once (no hang), a gateway started anew on the same port
and lines joins the stream where it is, says so, and goes on in order without a gap of its own.
`CRASHES` sets how often (`make crash` runs many); the instants are random, the seed is printed.
"""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import AmqpConfig, ChannelConfig, Config, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support import free_addresses
from tests.support.gateway import ending, start_again
from tests.support.load import LoadGenerator, LoadTemplate

CRASHES = int(os.environ.get("CRASHES", "1"))
RATE = 2000
SERVICE = 104
PATIENCE_S = 60.0


@pytest.fixture
def config() -> Config:
    """Two lines on groups of this test's own, and a port that stays the same after a crash."""
    port = free_addresses.port()
    lines = tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")
    return Config(
        amqp=AmqpConfig(listen=f"127.0.0.1:{port}"),
        channels=(ChannelConfig(service=SERVICE, lines=lines),),
    )


@pytest.fixture
def market(config: Config) -> Iterator[None]:
    """Packets on both lines for as long as the test runs."""
    feed = load_feed("euronext-utp-md")
    message = feed.encode_message(230, symbol_index=7, price=1, price_scale_code=2)
    packet = feed.encode_packet(sequence=0, service=SERVICE, messages=[message])
    lines = [MulticastLine(x.name, (x.group, x.port)) for x in config.channels[0].lines]
    with LoadGenerator([LoadTemplate(packet)], lines, sequence_offset=4) as load:
        sender = threading.Thread(target=load.run, args=(RATE, 3600.0))
        sender.start()
        yield
        load.stop()
        sender.join()


async def live_and_die(path: Path, url: str, packets: int) -> tuple[int, int]:
    """Start, take `packets` packets in order, kill; (first, last) sequence number seen."""
    async with ending(await start_again(path)) as gateway:
        sequences: list[int] = []
        since = None
        async with feedhandler.subscribe(url, f"euronext.{SERVICE}", reconnect=False) as messages:
            async for message in messages:
                if message.quality:
                    assert message.quality["lost_total"] == 0
                    since = message.quality["since"] or since
                    continue
                sequences.append(message.seq)
                if len(sequences) == packets:
                    break
            gateway.send_signal(signal.SIGKILL)
            with pytest.raises(feedhandler.PeerError):
                async for _ in messages:
                    pass
        assert since is not None
        assert since <= sequences[0]
        assert sequences == list(range(sequences[0], sequences[0] + packets))
        return sequences[0], sequences[-1]


@pytest.mark.timeout(60 + 20 * CRASHES)
@pytest.mark.usefixtures("market")
async def test_a_killed_gateway_is_noticed_and_its_successor_goes_on(
    config: Config, tmp_path: Path, seed: int
) -> None:
    instants = random.Random(seed)
    path = tmp_path / "gateway.toml"
    path.write_text(to_toml(config))
    url = f"amqp://{config.amqp.listen}"
    last = 0
    for _ in range(CRASHES + 1):
        async with asyncio.timeout(PATIENCE_S):
            first, newest = await live_and_die(path, url, instants.randrange(1, 1500))
        assert first > last
        last = newest
