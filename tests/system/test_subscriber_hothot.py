"""One subscriber, two gateways: whichever falls away, the stream goes on without a gap."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.subscribing.upstream import State
from feedhandler.codecs import PeerError, UsageError
from feedhandler.ingest.records import RecordKind
from tests.support.node import PATIENCE_S, NodeRig, Settings, running
from tests.support.subscriber import Story, cut_off

FORMS = pytest.mark.parametrize("form", ["messages", "batches", "deliver"])


@contextlib.asynccontextmanager
async def two(**options: Any) -> AsyncIterator[tuple[NodeRig, NodeRig, feedhandler.Subscriber]]:
    """Two nodes that get the same packets, if the test says so, and a subscriber of both."""
    async with (
        running() as a,
        running() as b,
        feedhandler.subscribe([a.url, b.url], "euronext.104", **options) as messages,
    ):
        yield a, b, messages


@FORMS
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_each_packet_comes_once_and_the_others_fill_holes(grain: str, form: str) -> None:
    story = Story()
    async with two(as_=grain, **story.options) as (a, b, messages):
        await a.stream(1, 50)
        await b.stream(1, 40)
        a.control_event(RecordKind.GAP, sequence=51, next_sequence=61)
        await a.stream(61, 80)
        await b.stream(41, 70)
        await story.consume(messages, form, 70)
        cut_off(b)
        await a.stream(81, 90)
        await story.consume(messages, form, 90)
        assert sorted({*story.sequences}) == list(range(1, 91))
        if grain != "message":
            assert story.sequences == list(range(1, 91))
        reasons = [x[0] for x in story.notes]
        assert "gap" not in reasons
        assert messages.state is State.UP


async def test_what_one_drops_from_a_full_queue_the_other_brings() -> None:
    story = Story()
    async with running(Settings(queue_bytes=20_000)) as a, running() as b:
        options = {"full": "drop_oldest", "credit": 10, **story.options}
        async with feedhandler.subscribe([a.url, b.url], "euronext.104", **options) as messages:
            await a.stream(1, 500)
            assert a.count("dropped") > 100
            await b.stream(1, 500)
            await story.consume(messages, "messages", 500)
            assert story.sequences == list(range(1, 501))
            assert not {"gap", "overflow"} & {reason for reason, *_ in story.notes}


async def test_what_all_drop_from_full_queues_is_announced() -> None:
    story = Story()
    small = Settings(queue_bytes=20_000)
    async with running(small) as a, running(small) as b:
        options = {"full": "drop_oldest", "credit": 10, **story.options}
        async with feedhandler.subscribe([a.url, b.url], "euronext.104", **options) as messages:
            for rig in (a, b):
                await rig.stream(1, 500)
                assert rig.count("dropped") > 100
            await story.consume(messages, "messages", 500)
            ranges = [x[2] for x in story.notes if x[0] == "gap"]
            lost = {n for each in ranges for first, last in each for n in range(first, last + 1)}
            assert lost
            assert sorted([*story.sequences, *lost]) == list(range(1, 501))


async def test_a_gateway_that_comes_back_takes_part_again() -> None:
    rng = random.Random(7)
    story = Story()
    async with two(**story.options) as (a, b, messages):
        rigs, at = (a, b), 0
        for turn in range(8):
            first, at = at + 1, at + rng.randrange(1, 200)
            for rig in rigs:
                await rig.stream(first, at)
            await story.consume(messages, "messages", at)
            ups = sum(event.connected for event in story.events)
            cut_off(rigs[turn % 2])
            first, at = at + 1, at + 20
            for rig in rigs:
                await rig.stream(first, at)
            await a.until(
                lambda ups=ups: sum(e.connected for e in story.events) > ups, "back again"
            )
        await story.consume(messages, "messages", at)
        assert story.sequences == list(range(1, at + 1))
        assert messages.reconnects == 8
        assert not [x for x in story.notes if x[0] == "gap"]


async def test_one_gateway_is_enough_to_begin_with_and_none_is_an_error() -> None:
    async with running() as a, running() as b:
        port = b.port
        await b.node.stop(1)
        story = Story()
        urls = [a.url, f"amqp://127.0.0.1:{port}"]
        async with feedhandler.subscribe(urls, "euronext.104", **story.options) as messages:
            await a.stream(1, 5)
            await story.consume(messages, "messages", 5)
            assert set(messages.states.values()) != {State.UP}
            async with running(Settings(address=("127.0.0.1", port))) as again:
                await a.until(lambda: messages.states[urls[1]] is State.UP, "the other")
                await again.stream(6, 9)
                await story.consume(messages, "messages", 9)
                assert story.sequences == list(range(1, 10))
    with pytest.raises(PeerError, match="none of the gateways"):
        async with feedhandler.subscribe(urls, "euronext.104"):
            pass


async def test_a_hole_of_both_is_announced_once_its_time_is_up_or_both_have_announced_it() -> None:
    story = Story()
    async with two(**story.options) as (a, b, messages):
        for rig in (a, b):
            await rig.stream(1, 5)
        a.control_event(RecordKind.GAP, sequence=6, next_sequence=10)
        await a.stream(10, 12)
        await story.consume(messages, "messages", 12)  # B keeps silent: its time is up
        assert ("gap", "STALE", [[6, 9]]) in story.seen
        assert messages.quality[104].stale == ((6, 9),)
        assert story.sequences == [1, 2, 3, 4, 5, 10, 11, 12]


async def test_credit_comes_back_for_what_waited_until_its_time_was_up() -> None:
    story = Story()
    async with two(credit=10, **story.options) as (a, b, messages):
        for rig in (a, b):
            await rig.stream(1, 5)
        a.control_event(RecordKind.GAP, sequence=6, next_sequence=10)
        await a.stream(10, 60)  # B keeps silent: more than a window waits for it
        await story.consume(messages, "messages", 60)
        assert story.sequences == [1, 2, 3, 4, 5, *range(10, 61)]


async def test_a_refusal_by_any_gateway_is_an_error() -> None:
    async with running() as a, running() as b, asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerError, match="colour"):
            async with feedhandler.subscribe([a.url, b.url], "euronext.104?colour=red"):
                pass
        await a.until(lambda: not a.node.connections and not b.node.connections, "gone")
    with pytest.raises(UsageError):
        feedhandler.subscribe(["amqp://a", "amqp://a"], "e.1")
    with pytest.raises(UsageError):
        feedhandler.subscribe([], "e.1")
