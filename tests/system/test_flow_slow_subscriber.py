"""A subscriber that stops reading, over a real socket: the feed goes on, the bound holds, what gave
way is announced, and when it reads again it gets the rest."""

import asyncio
import random

import pytest

import feedhandler
from feedhandler.amqp.queueing.book_cache import book_cache_of
from feedhandler.codecs import load_feed
from feedhandler.ingest.records import RecordKind
from feedhandler.replay.generating.order_session import OrderSession
from tests.support.amqp import FEED
from tests.support.flow import Traffic, without
from tests.support.node import Settings, running

BOUND = 256 << 10
PACKETS = 3000


async def read_until(
    messages: feedhandler.Subscriber, market: feedhandler.Market, last: int, seen: list[int]
) -> list:
    """Take everything up to the packet `last`; the quality messages among it."""
    notes = []
    async with asyncio.timeout(60):
        async for message in messages:
            market.update(message)
            if message.content == "quality":
                notes.append(message.quality)
                if notes[-1]["reason"] == "caught-up":
                    return notes
            elif not message.snapshot:
                seen.append(message.seq)
                if message.seq == last:
                    return notes
    return notes


@pytest.mark.parametrize("policy", ["drop_oldest", "conflate"])
async def test_a_subscriber_that_stops_reading(policy: str, seed: int) -> None:
    async with running(Settings(queue_bytes=BOUND)) as rig:
        rig.fanout.book_cache, rig.node.conflates = book_cache_of(FEED), FEED
        rig.control_event(RecordKind.START, sequence=0, next_sequence=1)
        await rig.deliver()
        traffic = Traffic(random.Random(seed), symbols=20)
        slow_market, quick_market = (feedhandler.Market(load_feed(FEED.name)) for _ in range(2))
        slow = feedhandler.subscribe(rig.url, "euronext.104", full=policy, credit=20)
        quick = feedhandler.subscribe(rig.url, "euronext.104")
        async with slow, quick:
            await rig.until(lambda: rig.node.links == 2, "two links")
            seen = [0]
            reading = asyncio.create_task(read_until(quick, quick_market, PACKETS, seen))
            sent = 0
            while sent < PACKETS:
                for _ in range(100):
                    sent += 1
                    messages = without(traffic.messages(6), 240, 523)
                    data = FEED.encode_packet(sequence=sent, service=104, messages=messages)
                    rig.put(data, sent, len(messages))
                await rig.deliver()
                waiting = max(
                    sender_queue.queued_bytes for sender_queue in rig.node.sender_queues()
                )
                assert waiting <= BOUND
                await rig.until(lambda now=sent: seen[-1] == now, "the other one keeps up")
            assert await reading is not None, "the other one has all of it"
            assert rig.count("links_overrun") == 0
            gave_way = "dropped" if policy == "drop_oldest" else "conflated"
            assert rig.count(gave_way) > 500
            assert rig.count("behind_us") > 0
            last = PACKETS if policy == "drop_oldest" else PACKETS + 1
            notes = await read_until(slow, slow_market, last, [])
            reasons = {note["reason"] for note in notes}
            if policy == "conflate":
                assert {"conflated", "books-begin", "books-end", "caught-up"} <= reasons
                assert notes[-1]["state"] == "OK"
                assert slow_market.digest(104) == quick_market.digest(104)
            else:
                assert notes[-1]["reason"] == "overflow"
                assert notes[-1]["state"] == "STALE"
            await rig.until(
                lambda: (
                    not any(sender_queue.queued_bytes for sender_queue in rig.node.sender_queues())
                ),
                "all is drained",
            )


async def test_a_subscriber_of_another_feed_ends_with_the_same_books(seed: int) -> None:
    feed = load_feed("cboe-byx-pitch")
    session = OrderSession(feed, seed, instruments=4, messages_per_s=5_000.0)
    packets = [each for each in session.step(400_000_000) if each.messages]
    settings = Settings(queue_bytes=2 * BOUND)
    async with running(settings, feed=feed, services=(1,), conflate=True) as rig:
        rig.node.conflates = feed
        rig.control_event(RecordKind.START, sequence=0, next_sequence=1)
        await rig.deliver()
        slow_market, quick_market = (feedhandler.Market(feed) for _ in range(2))
        slow = feedhandler.subscribe(rig.url, "byx.1", full="conflate", credit=20)
        quick = feedhandler.subscribe(rig.url, "byx.1")
        async with slow, quick:
            await rig.until(lambda: rig.node.links == 2, "two links")
            sent, seen = 1, [0]
            last = 1 + sum(each.messages for each in packets[:-1])
            reading = asyncio.create_task(read_until(quick, quick_market, last, seen))
            for number, each in enumerate(packets):
                rig.put(each.packet, sent, each.messages)
                sent += each.messages
                if number % 100 == 99:
                    await rig.deliver()
                    now = sent - each.messages
                    await rig.until(lambda now=now: seen[-1] == now, "the other one keeps up")
            await rig.deliver()
            assert await reading is not None
            assert rig.count("conflated") > 500
            notes = await read_until(slow, slow_market, sent, [])
            assert "books-begin" in {note["reason"] for note in notes}
            assert notes[-1]["reason"] == "caught-up"
            assert len(quick_market.books) == 4
            for name, book in quick_market.books.items():
                assert slow_market.books[name].bids.orders == book.bids.orders
                assert slow_market.books[name].asks.orders == book.asks.orders
