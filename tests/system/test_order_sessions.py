"""Generated sessions of each family in real time, both lines lossy, through a gateway: as messages,
as packets, as normalised records, and by symbol."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.codecs.kinds import PacketKind
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.records import Records
from feedhandler.replay.exchange.ledger import read_ledger
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.order_session import CHANNEL, OrderSession
from feedhandler.replay.generating.order_writers import ORDER_WRITERS
from feedhandler.replay.playing.inject import LineFaults
from tests.support import free_addresses
from tests.support.gateway import amqp_url, run_command

pytestmark = pytest.mark.gateways_loop

RUN_SECONDS = 120
#: The feeds with a writer, without those that are framed and read as another one here is.
LIKE_OTHERS = ("cboe-c1-options-pitch", "nyse-integrated-xdp")
FAMILIES = [name for name in ORDER_WRITERS if name not in LIKE_OTHERS]
#: The name of the second instrument.
NAME = "AAAB"
#: What a record has of the receiver alone.
RECEIVED = ("ts_recv", "ts_in_delta")


def plan(feed: str, ledger: Path) -> ExchangePlan:
    """A few seconds, 10 % loss on each line, never of the same packet."""
    groups = [free_addresses.group().rsplit(".", 1)[0] for _ in "AB"]
    return ExchangePlan(
        feed=feed,
        seed=11,
        seconds=2.0,
        messages_per_s=500.0,
        instruments=20,
        faults=(LineFaults(loss=0.1), LineFaults(loss=0.1)),
        spare_shared=True,
        ledger=ledger,
        group_prefixes=(groups[0], groups[1]),
        base_ports=(free_addresses.port(), free_addresses.port()),
    )


def service_of(name: str) -> int:
    """The service that the generated packets of a feed say; 1 where they say none."""
    feed = load_feed(name)
    for each in OrderSession(feed, 1).packets(10**8):
        for _, header, _ in feed.scanned(each.packet):
            if header.kind == PacketKind.DATA:
                return header.service or 1
    raise AssertionError("no data")


def configuration(sent: ExchangePlan) -> Config:
    addresses = [(name, *sent.address(name, CHANNEL)) for name in "AB"]
    lines = tuple(LineConfig(name=n, group=group, port=port) for n, group, port in addresses)
    return Config(
        gateway=GatewaySettings(feed=sent.feed),
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0", records=True),
        channels=(ChannelConfig(service=service_of(sent.feed), lines=lines),),
    )


class Taken:
    """Record of what subscribers of one gateway were handed out."""

    def __init__(self, feed: str) -> None:
        self.feed = load_feed(feed)
        self.numbers: list[int] = []
        self.packets: list[Any] = []
        self.records: dict[str, list[np.ndarray]] = {}
        self.symbols: dict[int, str] = {}
        self.came = asyncio.Event()
        #: By how many packets there were: what followed from them.
        self._expected: dict[int, np.ndarray] = {}

    async def collect(self, messages: Any, on_message: Callable[[Any], None]) -> None:
        async for message in messages:
            on_message(message)
            self.came.set()

    def add_message(self, message: Any) -> None:
        self.numbers.append(message.own_sequence)

    def add_records(self, name: str) -> Callable[[Any], None]:
        found = self.records.setdefault(name, [])

        def on_message(message: Any) -> None:
            if message.content != "records":
                return
            records = message.records()
            self.symbols |= message.symbols
            if len(records):
                found.append(records)

        return on_message

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.came.wait()
            self.came.clear()

    def expected(self) -> np.ndarray:
        """The order events of all packets, made apart from the gateway."""
        count = len(self.packets)
        if count not in self._expected:
            self._expected = {count: self._events()}
        return self._expected[count]

    def _events(self) -> np.ndarray:
        records = Records(self.feed, "mbo")
        service = service_of(self.feed.name)
        for message in self.packets:
            records.normaliser.set_day(message.date)
            for begin, header, index in self.feed.scanned(message.body):
                sent_ns = self.feed.send_time_ns(
                    header.send_time, self.feed.midnights(message.date)
                )
                records.apply_packet(
                    message.body, begin, index, 0, UNDEFINED_TIME if sent_ns is None else sent_ns,
                    0, service,
                )  # fmt: skip
        return records.of("mbo").copy()

    def wanted(self) -> np.ndarray:
        """The records of all that concern the one instrument."""
        (number,) = (each for each, name in self.symbols.items() if name == NAME)
        records = self.all("all")
        return records[np.isin(records["instrument_id"], (0, number))]

    def books(self) -> dict[int, list[tuple[int, int]]]:
        """The ten best levels of both sides, from all order events."""
        book = DepthBook()
        book.apply(self.all("all"))
        return {
            number: [level[:2] for side in (0, 1) for level in book.levels(number, side)]
            for number in book.instruments()
        }

    def last_levels(self) -> dict[int, list[tuple[int, int]]]:
        """The same, from the last record of each instrument that the slow subscriber was sent."""
        return {
            int(record["instrument_id"]): [
                (int(record[f"{side}_px_{depth:02}"]), int(record[f"{side}_sz_{depth:02}"]))
                for side in ("bid", "ask")
                for depth in range(10)
                if record[f"{side}_sz_{depth:02}"]
            ]
            for record in self.all("slow")
        }

    def all(self, name: str) -> np.ndarray:
        return np.concatenate(self.records[name]) if self.records[name] else np.zeros(0)


def sent_by_exchange(records: np.ndarray) -> np.ndarray:
    """The records without what the receiver added."""
    records = records.copy()
    for name in RECEIVED:
        records[name] = 0
    return records


@pytest.mark.parametrize("feed", FAMILIES)
async def test_messages_and_records_of_a_lossy_session_arrive_once_and_in_order(
    feed: str, tmp_path: Path
) -> None:
    sent = plan(feed, tmp_path / "sent.ledger")
    path = tmp_path / "gateway.toml"
    path.write_text(to_toml(configuration(sent)))
    gateway = await run_command("run", str(path))
    taken, key = Taken(feed), load_feed(feed).key
    tasks: list[asyncio.Task[Any]] = []

    def subscribe(pattern: str, kind: str) -> Any:
        return feedhandler.subscribe(
            url, f"{key}.{pattern}", as_=kind, quality=False, reconnect=False
        )

    try:
        url = await amqp_url(gateway)
        exchange = Exchange(sent)
        async with (
            asyncio.timeout(RUN_SECONDS),
            subscribe("#", "message") as messages,
            subscribe("#", "packet") as packets,
            subscribe("#", "mbo") as events,
            subscribe(f"*.{NAME}", "mbo") as one,
            feedhandler.subscribe(
                url, f"{key}.#", as_="mbp10", full="conflate", credit=1, reconnect=False
            ) as slow,
        ):
            tasks += [
                asyncio.create_task(taken.collect(source, on_message))
                for source, on_message in (
                    (messages, taken.add_message),
                    (packets, taken.packets.append),
                    (events, taken.add_records("all")),
                    (one, taken.add_records("one")),
                )
            ]
            result = await asyncio.to_thread(exchange.run)
            count = result.messages[CHANNEL]
            await taken.until(lambda: len(taken.numbers) == count)
            await taken.until(lambda: len(taken.all("all")) >= len(taken.expected()))
            await taken.until(lambda: len(taken.all("one")) >= len(taken.wanted()))
            # Until now no client has read what it was sent.
            tasks.append(asyncio.create_task(taken.collect(slow, taken.add_records("slow"))))
            await taken.until(lambda: taken.last_levels() == taken.books())
    finally:
        gateway.terminate()
        await asyncio.wait_for(gateway.wait(), 60)
        for task in tasks:
            task.cancel()
    assert result.lines["A"].dropped > 5
    assert len(read_ledger(sent.ledger).records) == count
    check(taken, count)


def check(taken: Taken, count: int) -> None:
    """All messages came, and all records as they follow from the packets."""
    if taken.feed.counts_messages:
        assert taken.numbers == list(range(1, count + 1))
    else:
        assert taken.numbers == sorted(taken.numbers)
    expected = sent_by_exchange(taken.expected())
    records = sent_by_exchange(taken.all("all"))
    assert len(records) > 500
    assert records.tobytes() == expected.tobytes()
    assert len(taken.symbols) == 20
    one = sent_by_exchange(taken.all("one"))
    assert 0 < len(one) < len(records)
    assert one.tobytes() == sent_by_exchange(taken.wanted()).tobytes()
    assert len(taken.all("slow")) < len(records) // 4, "levels that wait are replaced"
