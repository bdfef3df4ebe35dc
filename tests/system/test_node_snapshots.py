"""Snapshots and quality from the node to `feedhandler.subscribe`: in place, and distinguished."""

import asyncio
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.amqp.stream import Stream
from feedhandler.amqp.subscribing import attachment as attachment_module
from feedhandler.codecs import PeerError, UsageError
from feedhandler.ingest.records import RecordKind
from feedhandler.retrans.quality import Quality
from tests.support.amqp import FEED, order, packet, quote
from tests.support.node import PATIENCE_S, NodeRig, running
from tests.support.subscriber import subscribed

pytestmark = pytest.mark.gateways_loop

GRAINS = ("packet", "batch", "message")
BLOCK = [packet(4, [order(1000 + n, n), quote(1001, n)]) for n in range(50)]


def snapshots_to(rig: NodeRig, last: int = 4) -> Any:
    """Return a callback that gives a link with snapshot=1 a block for it alone, as a node does."""

    def on_attach(sender_queue: SenderQueue, streams: list[Stream]) -> None:
        for stream in streams:
            quality = rig.qualities[stream.index]
            begin = quality.snapshot_begin(last, len(BLOCK))
            end = quality.snapshot_end(last + 1, heals=False)
            rig.fanout.block(stream, begin, BLOCK, last, end, [sender_queue])

    return on_attach


async def story(messages: Any, until: int) -> list[Any]:
    """Reasons of quality messages, and sequences of live packets or "block", till one is there."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in messages:
            if message.content == "quality":
                assert not message.snapshot
                found.append(message.quality["reason"])
            elif found[-1] != (word := "block" if message.snapshot else message.sequence):
                found.append(word)
            if found[-1] == until:
                return found
    raise AssertionError(found)


@pytest.mark.parametrize("grain", ["packet", "message"])
async def test_a_link_that_asks_for_it_begins_with_a_snapshot(grain: str) -> None:
    async with running(snapshots=True) as rig:
        rig.node.on_attach = snapshots_to(rig)
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        rig.packets(1, 4)
        await rig.deliver()
        async with (
            feedhandler.subscribe(rig.url, "euronext.104", as_=grain) as plain,
            feedhandler.subscribe(rig.url, "euronext.104", as_=grain, snapshot=True) as full,
        ):
            rig.packets(5, 6)
            await rig.deliver()
            begun = ["attached", "snapshot-begin", "block", "snapshot-end"]
            assert await story(full, 6) == [*begun, 5, 6]
            assert await story(plain, 6) == ["attached", 5, 6]


@pytest.mark.parametrize("grain", GRAINS)
async def test_a_batch_never_mixes_a_block_with_live_packets(grain: str) -> None:
    async with subscribed(as_=grain) as (rig, messages):
        rig.packets(1, 4)
        rig.pump()
        rig.block(BLOCK, last=4)
        rig.packets(5, 6)
        await rig.deliver()
        seen: list[tuple[bool, int]] = []
        reasons: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            async for batch in messages.batches():
                reasons += [note["reason"] for note in batch.quality]
                if batch.count:
                    seen += [(batch.snapshot, n) for n in batch.sequences.tolist()]
                if seen and seen[-1] == (False, 6 if grain != "batch" else 5):
                    break
        first = next(index for index, (block, _) in enumerate(seen) if block)
        blocks = [n for block, n in seen if block]
        assert [block for block, _ in seen[first : first + len(blocks)]] == [True] * len(blocks)
        assert blocks[0] == 4 << 24
        assert reasons == ["attached", "snapshot-begin", "snapshot-end"]
        if grain == "packet":
            assert blocks == [4 << 24 | index for index in range(50)]


@pytest.mark.parametrize("form", ["messages", "batches", "deliver"])
async def test_quality_is_an_event_and_the_latest_is_kept_by_service(form: str) -> None:
    events: list[Quality] = []
    kit = subscribed("euronext.#", node={"services": (104, 105)}, on_quality=events.append)
    async with kit as (rig, messages):
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        rig.packets(1, 3)
        rig.control_event(RecordKind.GAP, sequence=4, next_sequence=9)
        rig.packets(9, 9)
        await rig.deliver()

        async def consume() -> None:
            if form == "deliver":
                await messages.deliver(lambda batch: None)
            async for _ in messages if form == "messages" else messages.batches():
                pass

        consuming = asyncio.create_task(consume())
        await rig.until(lambda: len(events) == 4, "every quality message")
        assert [(each.service, each.reason) for each in events] == [
            (104, "attached"),
            (105, "attached"),
            (104, "start"),
            (104, "gap"),
        ]
        assert messages.quality == {104: events[3], 105: events[1]}
        assert events[3].state == "STALE"
        assert events[3].lost == events[3].stale == ((4, 8),)
        assert not events[3].complete
        consuming.cancel()


async def test_where_no_snapshots_are_offered_asking_is_refused() -> None:
    async with running() as rig:
        with pytest.raises(PeerError) as refusal:
            async with feedhandler.subscribe(rig.url, "euronext.104", snapshot=True):
                pass
        assert "amqp:not-implemented" in refusal.value.hint
    async with running(snapshots=True) as rig:
        with pytest.raises(PeerError) as refusal:
            async with feedhandler.subscribe(rig.url, "euronext.104?snapshot=1&quality=0"):
                pass
        assert "amqp:invalid-field" in refusal.value.hint
    with pytest.raises(UsageError):
        feedhandler.subscribe("amqp://host", "e.1", snapshot=True, quality=False)


async def test_a_market_is_rebuilt_from_a_snapshot_and_what_follows() -> None:
    async with running(snapshots=True) as rig:
        rig.node.on_attach = snapshots_to(rig)
        async with feedhandler.subscribe(rig.url, "euronext.104", snapshot=True) as messages:
            rig.packets(5, 6)
            await rig.deliver()
            market = feedhandler.Market(FEED)
            async with asyncio.timeout(PATIENCE_S):
                async for message in messages:
                    market.update(message)
                    if message.sequence == 6:
                        break
        expected = feedhandler.Market(FEED)
        for data in (*BLOCK, packet(5), packet(6)):
            expected.apply(data)
        assert market.digest(104) == expected.digest(104)


async def test_a_message_beyond_the_bound_is_a_peer_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_module, "MESSAGE_BYTES_MAX", 100_000)
    async with subscribed(quality=False) as (rig, messages):
        rig.packets(1, 3)
        await rig.deliver()
        (sender_queue,) = rig.fanout.sender_queues
        large = bytes(3_000_000)
        sender_queue.sender.send(large, 0, len(large))
        for connection in rig.node.connections:
            connection.work()
        got: list[int] = []

        async def consume() -> None:
            async for message in messages:
                got.append(message.sequence)

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError, match="more than 100000 bytes"):
                await consume()
        assert got == [1, 2, 3]
