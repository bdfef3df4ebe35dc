"""The real IEX capture through everything: replay, two lossy lines, gateway, subscriber.

The gateway and the player are processes of their own, started as an operator starts them; the
subscriber is `feedhandler.subscribe` in this one. What arrives is held against a decode by dpkt
and struct that shares no code with the project.
"""

import asyncio
import gzip
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import dpkt
import pytest

import feedhandler
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
)
from feedhandler.config.show import to_toml
from feedhandler.config.trading_day import TradingDayConfig
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support import free_addresses
from tests.support.gateway import amqp_url, ending, run_command

#: `wire/iex-tp.md` of the feed's description counts the same: a check on the oracle itself.
MESSAGES = 48_325
#: Time-out of a whole run; at 500 times its pace the capture takes 3 s.
RUN_SECONDS = 200


@dataclass
class Stream:
    """Messages in order: (sequence number, type, symbol), and their bytes."""

    keys: list[tuple[int, str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def by_type(self) -> Counter[str]:
        return Counter(kind for _, kind, _ in self.keys)

    @property
    def by_symbol(self) -> Counter[str]:
        return Counter(symbol for _, _, symbol in self.keys)


def decode_by_hand(path: Path) -> Stream:
    """The capture by dpkt and struct: IEX-TP header of 40 bytes, then u16-framed messages."""
    stream = Stream()
    with gzip.open(path) as file:
        for _, frame in dpkt.pcap.Reader(file):
            data = dpkt.ethernet.Ethernet(frame).data.data.data
            _, count, _, sequence = struct.unpack_from("<HHQQ", data, 12)
            at = 40
            for number in range(count):
                (size,) = struct.unpack_from("<H", data, at)
                body = data[at + 2 : at + 2 + size]
                kind = chr(body[0])
                symbol = "-" if kind == "S" else body[10:18].decode().rstrip()
                stream.keys.append((sequence + number, kind, symbol))
                stream.bodies.append(data[at : at + 2 + size])
                at += 2 + size
    return stream


@pytest.fixture(scope="module")
def expected(captures: Path) -> Stream:
    return decode_by_hand(captures / "iex" / "deep-2023-10-02.pcap.gz")


def configuration() -> Config:
    """One channel, two lines, on groups that no other test uses."""
    port = free_addresses.port()
    lines = tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")
    return Config(
        gateway=GatewaySettings(feed="iex-deep"),
        trading_day=TradingDayConfig(date="2023-10-02"),
        # A busy machine may stop the player between the two lines' copies for long.
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        channels=(ChannelConfig(service=1, lines=lines),),
    )


def key_of(message: feedhandler.Message) -> tuple[int, str, str]:
    """Number, type and symbol of a message, the symbol as the message's own bytes have it."""
    symbol = getattr(message.record(), "symbol", "-")
    return message.own_sequence, str(message.type), symbol


async def play_through(config: Config, capture: Path, speed: str, folder: Path) -> Stream:
    """Replay with 5 % loss on each line, never the same packet on both; all that arrived."""
    path = folder / "gateway.toml"
    path.write_text(to_toml(config))
    got = Stream()
    async with ending(await run_command("run", str(path))) as gateway:
        url = await amqp_url(gateway)
        async with feedhandler.subscribe(
            url, "iex.#", as_="message", quality=False, reconnect=False
        ) as messages:
            line_a, line_b = config.channels[0].lines
            player = await run_command(
                *("replay", str(capture), "--feed", "iex-deep", "--speed", speed),
                *("--line-a", f"{line_a.group}:{line_a.port}"),
                *("--line-b", f"{line_b.group}:{line_b.port}"),
                *("--loss-a", "5%", "--loss-b", "5%", "--spare-shared", "--seed", "7"),
            )
            async for message in messages:
                got.keys.append(key_of(message))
                got.bodies.append(message.body)
                if len(got.keys) == MESSAGES:
                    break
            assert await asyncio.wait_for(player.wait(), 60) == 0
            # Whatever comes beyond these would come before the stream's end.
            gateway.terminate()

            async def read_on() -> None:
                async for message in messages:
                    got.keys.append(key_of(message))

            with pytest.raises(feedhandler.PeerError):
                await read_on()
        assert await asyncio.wait_for(gateway.wait(), 60) == 0
        return got


@pytest.mark.captures
@pytest.mark.gateways_loop
async def test_every_message_of_the_iex_capture_arrives_once_and_in_order(
    captures: Path, expected: Stream, tmp_path: Path
) -> None:
    capture = captures / "iex" / "deep-2023-10-02.pcap.gz"

    async with asyncio.timeout(RUN_SECONDS):
        got = await play_through(configuration(), capture, "500x", tmp_path)
    assert len(expected.keys) == MESSAGES
    assert len(got.keys) == MESSAGES
    sequences = [sequence for sequence, _, _ in got.keys]
    assert sequences == sorted(set(sequences))
    assert got.by_type == expected.by_type
    assert got.by_symbol == expected.by_symbol
    assert got.keys == expected.keys
    assert got.bodies == expected.bodies
