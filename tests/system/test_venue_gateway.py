"""A feed of each family through everything: replay, two lossy lines, gateway, subscribers.

What a packet is differs: SBE messages name their instruments in groups, symbols of CTA have eleven
bytes, a datagram of MIAX holds several packets, and a packet of OpenBook Ultra tells the type of
its message; families with a generated session are in `test_order_sessions.py`. Gateway and player
are processes of their own, as an operator starts them.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import feedhandler
from feedhandler.codecs import Feed, load_feed
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.config.trading_day import TradingDayConfig
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.market.records import Records
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support import free_addresses
from tests.support.gateway import amqp_url, ending, run_command

pytestmark = pytest.mark.gateways_loop

PACKETS = 400
RUN_SECONDS = 120


class Family(NamedTuple):
    """The message of a number, as name and fields, and the word of the symbol of every seventh."""

    make: Callable[[int], tuple[str, dict[str, Any]]]
    word: str = "3"


def _side(number: int, buy: object, sell: object) -> object:
    return buy if number % 2 else sell


FAMILIES: dict[str, Family] = {
    "cme-mdp3": Family(
        lambda n: ("incremental_refresh_book", {
            "transact_time": n,
            "entries": [
                {"security_id": 1_000 + n % 7, "md_entry_type_book": "0", "md_price_level": 1,
                 "md_entry_px_optional_ex": n * 10**9, "md_entry_size_short_optional": n + 1},
                {"security_id": 1_000 + (n + 1) % 7, "md_entry_type_book": "1",
                 "md_price_level": 1, "md_entry_px_optional_ex": (n + 5_000) * 10**9,
                 "md_entry_size_short_optional": n + 1},
            ],
        }),
        "1003",
    ),
    "siac-cts": Family(
        lambda n: ("long_trade", {
            "security_symbol": f"LONGNAME.{n % 7}A", "transaction_id": n,
            "trade_price": n * 10_000, "trade_volume": n + 1,
        }),
        "LONGNAME_3A",
    ),
    "siac-cqs": Family(
        lambda n: ("long_quote", {
            "security_symbol": f"LONGNAME.{n % 7}A", "participant_id": "N", "transaction_id": n,
            "bid_price_lower_limit_price_band": n * 10_000, "bid_size_long": 5,
            "offer_price_upper_limit_price_band": (n + 1) * 10_000, "offer_size_long": 6,
        }),
        "LONGNAME_3A",
    ),
    "miax-onyx-tom": Family(
        lambda n: ("best_bid_and_offer", {
            "instrument_id": n % 7, "timestamp": n, "mbb_price": n + 1, "mbb_size": 5,
            "mbo_price": n + 2, "mbo_size": 6,
        }),
    ),
    "eurex-eobi": Family(
        lambda n: ("order_add", {
            "security_id": n % 7, "trd_reg_ts_time_priority": n + 1, "side": _side(n, 1, 2),
            "price": n * 10**8, "display_qty": (n + 1) * 10**4,
        }),
    ),
    "ice-impact": Family(
        lambda n: ("add_or_modify_order", {
            "market_id": n % 7, "order_id": n + 1, "side": _side(n, "1", "2"), "price": n + 1,
            "quantity": 5,
        }),
    ),
    "otc-link-ats": Family(
        lambda n: ("quote", {
            "security_id": n % 7, "quote_id": n + 1, "quote_action": 2, "state": 1,
            "bid_priced": 1, "bid_price": n + 1, "bid_size": 5, "ask_priced": 1,
            "ask_price": n + 2, "ask_size": 6,
        }),
    ),
    "b3-umdf": Family(
        lambda n: ("order_mbo", {
            "security_id": n % 7, "md_update_action": 0, "md_entry_type": _side(n, "0", "1"),
            "md_corporate_offset_price_optional": n + 1, "md_entry_size_quantity": 5,
            "secondary_order_id": n + 1,
        }),
    ),
    "nyse-openbook-ultra": Family(
        lambda n: ("delta_update", {
            "symbol_index": n % 7, "price_scale_code": 2, "source_seq_num": n,
            "price_points": [{"price_numerator": n + 1, "volume": 5, "side": _side(n, "B", "S")}],
        }),
    ),
}  # fmt: skip


def write_session(feed: Feed, path: Path, family: Family) -> tuple[list[bytes], np.ndarray]:
    """Write a capture of a session; return the bytes of its messages in order, and its records."""
    messages: list[bytes] = []
    records = Records(feed, "mbo")
    prng = random.Random(7)
    number = 1
    with CaptureWriter(path) as writer:
        for index in range(PACKETS):
            datagram = b""
            for _ in range(2 if feed.table.several and index % 3 == 0 else 1):
                most = 3 if feed.table.message_length_size else 1
                count = prng.randint(1, most)
                made = [family.make(len(messages) + each) for each in range(count)]
                bodies = [feed.encode_message(name, **fields) for name, fields in made]
                service = {"service": 1} if feed.description.packet.service else {}
                datagram += feed.encode_packet(sequence=number, messages=bodies, **service)
                messages += bodies
                number += count if feed.counts_messages else 1
            at_ns = 1_700_000_000_000_000_000 + index * 1_000_000
            writer.write(at_ns, "239.1.1.1", 30_001, datagram)
            for begin, header, found in feed.scanned(datagram):
                records.apply_packet(datagram, begin, found, 0, at_ns, at_ns, header.service)
    return messages, records.of("mbo").copy()


def configuration(feed: Feed) -> Config:
    port = free_addresses.port()
    lines = tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")
    return Config(
        gateway=GatewaySettings(feed=feed.name),
        trading_day=TradingDayConfig(date="2023-11-14"),
        # A busy machine may stop the player between the two lines' copies for long.
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0", records=True),
        channels=(ChannelConfig(service=1, lines=lines),),
    )


async def receive(url: str, pattern: str, feed: Feed, count: int, ready: asyncio.Event) -> Any:
    bodies: list[bytes] = []
    async with feedhandler.subscribe(
        url, pattern, as_="message", feed=feed, quality=False, reconnect=False
    ) as messages:
        ready.set()
        while len(bodies) < count:
            body = (await anext(messages)).body
            # Where a packet's header has the type, a message comes in a packet of its own.
            bodies += feed.messages_of(body) if feed.table.type_in_packet else [body]
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


async def receive_records(url: str, feed: Feed, count: int, ready: asyncio.Event) -> np.ndarray:
    """Receive so many normalised records."""
    found: list[np.ndarray] = []
    async with feedhandler.subscribe(
        url, f"{feed.key}.#", as_="mbo", feed=feed, quality=False, reconnect=False
    ) as messages:
        ready.set()
        while sum(map(len, found)) < count:
            found.append((await anext(messages)).records())
    return np.concatenate(found)


async def play_through(name: str, folder: Path) -> None:
    family, feed = FAMILIES[name], load_feed(name)
    expected, events = write_session(feed, folder / "session.pcap", family)
    wanted = [body for number, body in enumerate(expected) if _names(name, number)]
    config = configuration(feed)
    (folder / "gateway.toml").write_text(to_toml(config))
    async with ending(await run_command("run", str(folder / "gateway.toml"))) as gateway:
        url = await amqp_url(gateway)
        ready = [asyncio.Event() for _ in range(4)]
        every = asyncio.create_task(receive(url, f"{feed.key}.#", feed, len(expected), ready[0]))
        some = asyncio.create_task(
            receive(url, f"{feed.key}.1.{family.word}", feed, len(wanted), ready[1])
        )
        records = asyncio.create_task(receive_records(url, feed, len(events), ready[3]))
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
        assert len(events) >= PACKETS
        for field in ("instrument_id", "action", "side", "order_id", "price", "size"):
            assert (await records)[field].tolist() == events[field].tolist(), field
        assert await asyncio.wait_for(player.wait(), 60) == 0


def _names(name: str, number: int) -> bool:
    """Return whether message `number` names the symbol that the second subscriber wants."""
    return number % 7 == 3 or (name == "cme-mdp3" and number % 7 == 2)


@pytest.mark.parametrize("name", FAMILIES)
async def test_messages_and_records_arrive_once_in_order_and_by_their_symbols(
    name: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(RUN_SECONDS):
        await play_through(name, tmp_path)
