"""A FIX channel as a feed of the gateway: two multicast lines that pack differently, AMQP out."""

import asyncio
import random

import numpy
import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import MBO, UNDEFINED_TIME
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    StatsConfig,
)
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.market.records import Records
from tests.support import free_addresses
from tests.support.fix_messages import sealed
from tests.support.gateway_here import gateway_here, multicast_sender

FEED = load_feed("fix-marketdata")
SERVICE = 7
MESSAGES = 1_000
#: Securities, one of them too long for a word of eight bytes; every tenth message names two.
NAMES = ("ABC", "XYZ", "EUR/USD-SPOT-2026", "DEF")
RUN_SECONDS = 60


def message(number: int) -> bytes:
    """Message `number` of the session, from 1."""
    name = NAMES[number % 4]
    other = f"279=1|55={NAMES[(number + 1) % 4]}|" if number % 10 == 0 else ""
    text = f"35=X|34={number}|268={1 + bool(other)}|279=0|55={name}|58={'x' * (number % 90)}|"
    return sealed((text + other).encode())


def order(number: int) -> bytes:
    """Message `number` of a session of orders: one is added, and often an earlier one goes."""
    name = NAMES[number % 4]
    entry = f"279=0|269={number % 2}|278={number}|55={name}|270={100 + number % 7}.5|271={number}|"
    gone = f"279=2|269={number % 2}|278={number - 8}|" if number % 3 == 0 and number > 8 else ""
    return sealed(f"35=X|34={number}|268={1 + bool(gone)}|{entry}{gone}".encode())


def names_of(number: int) -> set[str]:
    """The securities that message `number` names."""
    return {NAMES[number % 4]} | ({NAMES[(number + 1) % 4]} if number % 10 == 0 else set())


SENT = [message(number) for number in range(1, MESSAGES + 1)]


def datagrams(rng: random.Random, sent: list[bytes]) -> list[tuple[int, int, bytes]]:
    """One line's datagrams: (first number, one past the last, bytes); a heartbeat beside some."""
    found, at = [], 0
    while at < MESSAGES:
        end = min(at + rng.randint(1, 6), MESSAGES)
        data = b"".join(sent[at:end])
        if rng.random() < 0.2:
            data += sealed(b"35=0|34=%d|" % (end + 1))
        found.append((at, end, data))
        at = end
    return found


def lossy(rng: random.Random, sent: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Both lines' datagrams with losses, of which no message is lost on both."""
    lines = datagrams(rng, sent), datagrams(rng, sent)
    lost: tuple[set[int], set[int]] = (set(), set())
    kept: tuple[list[bytes], list[bytes]] = ([], [])
    for index in range(2):
        for first, end, data in lines[index]:
            if rng.random() < 0.15 and lost[1 - index].isdisjoint(range(first, end)):
                lost[index].update(range(first, end))
            else:
                kept[index].append(data)
    assert lost[0]
    assert lost[1]
    return kept


def configuration(**amqp: bool) -> Config:
    """One channel on two groups of loopback."""
    port = free_addresses.port()
    lines = tuple(LineConfig(name=name, group=free_addresses.group(), port=port) for name in "AB")
    return Config(
        gateway=GatewaySettings(feed="fix-marketdata"),
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0", **amqp),
        stats=StatsConfig(bind=""),
        channels=(ChannelConfig(service=SERVICE, lines=lines),),
    )


async def send(config: Config, lines: tuple[list[bytes], list[bytes]]) -> None:
    """Send both lines, a few datagrams at a time so that no socket buffer overruns."""
    with multicast_sender() as out:
        targets = [(line.group, line.port) for line in config.channels[0].lines]
        for each in targets:
            out.sendto(sealed(b"35=A|34=1|141=Y|108=1|"), each)
        for at in range(max(map(len, lines))):
            for line in (0, 1):
                if at < len(lines[line]):
                    out.sendto(lines[line][at], targets[line])
            if at % 20 == 19:
                await asyncio.sleep(0)


async def receive(url: str, address: str, grain: str, count: int, ready: asyncio.Event) -> list:
    """The bodies that a subscriber gets, until `count` market messages are there."""
    bodies, seen = [], 0
    async with feedhandler.subscribe(
        url, address, as_=grain, quality=False, reconnect=False
    ) as messages:
        ready.set()
        async for one in messages:
            bodies.append(one)
            seen += one.body.count(b"\x0135=X\x01")
            if seen >= count:
                return bodies
    return bodies


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_each_message_arrives_once_and_in_order_from_lines_that_pack_differently(grain, seed):
    config = configuration()
    async with gateway_here(config) as (_, url):
        ready = [asyncio.Event() for _ in range(3)]
        one_name = [at for at in range(1, MESSAGES + 1) if NAMES[2] in names_of(at)]
        tasks = [
            asyncio.create_task(receive(url, *each, ready[index]))
            for index, each in enumerate(
                [
                    (f"fix.{SERVICE}.#", grain, MESSAGES),
                    (f"fix.{SERVICE}.EUR/USD-SPOT-2026", grain, len(one_name)),
                    (
                        f"fix.{SERVICE}.ABC,fix.{SERVICE}.XYZ,fix.{SERVICE}.DEF,"
                        f"fix.{SERVICE}.EUR/USD-SPOT-2026",
                        grain,
                        MESSAGES,
                    ),
                ]
            )
        ]
        for each in ready:
            await each.wait()
        await send(config, lossy(random.Random(seed), SENT))
        every, some, named = await asyncio.wait_for(asyncio.gather(*tasks), RUN_SECONDS)
    everything = b"".join(SENT)
    got = b"".join(each.body for each in every)
    assert strip_logons(got) == everything
    assert b"".join(each.body for each in some) == b"".join(SENT[at - 1] for at in one_name)
    assert b"".join(each.body for each in named) == everything
    if grain == "message":
        assert {each.symbol for each in some} == {NAMES[2]}
        assert [each.own_sequence for each in some] == one_name
        assert {each.type for each in some} == {"X"}


def strip_logons(data: bytes) -> bytes:
    """The bytes without the logons that begin an epoch."""
    return data.replace(sealed(b"35=A|34=1|141=Y|108=1|"), b"")


async def receive_records(
    url: str, address: str, count: int, ready: asyncio.Event
) -> tuple[numpy.ndarray, feedhandler.Market]:
    """Return the first `count` order events that a subscriber gets, and the market they make."""
    found, market = [], feedhandler.Market(FEED)
    async with feedhandler.subscribe(url, address, as_="mbo", reconnect=False) as messages:
        ready.set()
        async for one in messages:
            market.update(one)
            if one.content == "records":
                # The first number of the session begins with books that are empty.
                found += [event for event in one.records() if event["action"] != b"R"]
            if len(found) >= count:
                return numpy.array(found, MBO), market


async def test_records_have_the_orders_of_the_messages_of_lossy_lines(seed):
    sent, config = [order(number) for number in range(1, MESSAGES + 1)], configuration(records=True)
    records, market = Records(FEED, "mbo"), feedhandler.Market(FEED)
    for number, data in enumerate(sent, 1):
        code = FEED.message_code(data)
        records.apply_message(data, 0, len(data), code, UNDEFINED_TIME, 1, number, SERVICE)
        market.apply_message(data, SERVICE)
    every = records.of("mbo")
    long = every[every["instrument_id"] == market.instrument_of(NAMES[2])]
    async with gateway_here(config) as (_, url):
        ready = [asyncio.Event(), asyncio.Event()]
        tasks = [
            asyncio.create_task(receive_records(url, f"fix.{SERVICE}.{name}", len(events), event))
            for name, events, event in (("#", every, ready[0]), (NAMES[2], long, ready[1]))
        ]
        for each in ready:
            await each.wait()
        await send(config, lossy(random.Random(seed), sent))
        (got, books), (some, _) = await asyncio.wait_for(asyncio.gather(*tasks), RUN_SECONDS)
    for events, wanted in ((got, every), (some, long)):
        for name in ("action", "side", "order_id", "price", "size", "sequence"):
            assert (events[name] == wanted[name]).all(), name
    assert sorted(books.books) == sorted(NAMES)
    for name in NAMES:
        assert books.books[name].bids.orders == market.books[name].bids.orders
        assert books.books[name].asks.orders == market.books[name].asks.orders
