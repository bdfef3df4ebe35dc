"""`feedhandler.subscribe` comes back after a lost connection, and says what is lacking."""

import asyncio
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp import client as client_module
from feedhandler.amqp.serving.connection import NodeConnection
from feedhandler.amqp.subscribing.upstream import State
from feedhandler.codecs import PeerError
from feedhandler.ingest.records import RecordKind
from tests.support.node import NodeRig, Settings, running
from tests.support.subscriber import Story, came_back, cut_off, patience, subscribed


@pytest.mark.parametrize("form", ["messages", "batches", "deliver"])
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_a_hole_in_between_is_announced_where_the_node_does_not_resume(
    grain: str, form: str
) -> None:
    story = Story()
    async with subscribed(as_=grain, resume=False, **story.options) as (rig, messages):
        await rig.stream(1, 50)
        await story.consume(messages, form, 50)
        cut_off(rig)
        await rig.stream(51, 60)
        await came_back(rig, story)
        assert messages.state is State.UP
        await rig.stream(61, 70)
        await story.consume(messages, form, 70)
        assert sorted({*story.sequences}) == [*range(1, 51), *range(61, 71)]
        assert [x[:2] for x in story.notes] == [
            ("attached", "WAITING"), ("resume", "STALE"), ("attached", "STALE")
        ]  # fmt: skip
        assert story.notes[1][2] == [[51, 60]]
        assert messages.quality[104].stale == ((51, 60),)
        assert not messages.quality[104].complete
        assert [e.connected for e in story.events] == [True, False, True]
        assert story.events[1].reason
        assert messages.reconnects == 1


async def bids(rig: NodeRig, first: int, last: int) -> None:
    """Put and deliver packets with one new bid each, better than the one before."""
    for number in range(first, last + 1):
        order = rig.feed.encode_message(
            "order_update", symbol_index=7, order_id=number, side="B", action_type="A",
            price=number, volume=5, price_scale_code=2,
        )  # fmt: skip
        data = rig.feed.encode_packet(sequence=number, service=104, messages=[order])
        rig.put(data, number, 1)
    await rig.deliver()


async def records_until(number: int, messages: Any, story: Story) -> None:
    """Consume until a record of this number has come."""
    async with patience():
        async for message in messages:
            if message.content == "quality":
                story.receive(message)
            elif message.records()["sequence"][-1] == number:
                return


@pytest.mark.parametrize(("snapshot", "state"), [(True, "REFRESHED"), (False, "STALE")])
@pytest.mark.parametrize("schema", ["mbo", "bbo"])
async def test_books_as_they_are_make_good_what_was_lost_in_between(
    schema: str, snapshot: bool, state: str
) -> None:
    story = Story()
    kit = subscribed(node={"records": True}, as_=schema, snapshot=snapshot, **story.options)
    async with kit as (rig, messages):
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        await bids(rig, 1, 50)
        await records_until(50, messages, story)
        cut_off(rig)
        await bids(rig, 51, 60)
        await came_back(rig, story)
        await story.consume(messages, "messages", ("attached", state, []))
        assert ("resume", "STALE", [[51, 60]]) in story.seen
        assert messages.quality[104].complete == snapshot
        await bids(rig, 61, 61)
        await records_until(61, messages, story)


async def test_a_node_that_does_not_offer_to_resume_is_asked_without_it() -> None:
    story = Story()
    async with subscribed(**story.options) as (rig, messages):
        await rig.stream(1, 5)
        await story.consume(messages, "messages", 5)
        refused = rig.count("links_refused")
        cut_off(rig)
        await came_back(rig, story)
        await rig.stream(6, 9)
        await story.consume(messages, "messages", 9)
        assert story.sequences == list(range(1, 10))
        assert "resume" not in [x[0] for x in story.notes]
        if story.events[-1].resumed is False:
            assert rig.count("links_refused") == refused + 1


async def test_a_restarted_node_is_found_again_with_nothing_said_twice() -> None:
    story = Story()
    async with running() as first:
        port = first.port
        messages = feedhandler.subscribe(first.url, "euronext.104", **story.options)
        await messages.__aenter__()
        await first.stream(1, 20)
        await first.node.stop(1)
    async with running(Settings(address=("127.0.0.1", port))) as second:
        await came_back(second, story)
        await second.stream(31, 40)
        await story.consume(messages, "messages", 40)
        assert story.sequences == [*range(1, 21), *range(31, 41)]
        await messages.close()
    assert "the gateway stops" in story.events[1].reason
    assert messages.state is State.CLOSED


async def test_a_subscriber_without_quality_messages_hears_of_the_hole_by_its_callback() -> None:
    qualities: list[feedhandler.Quality] = []
    story = Story(on_quality=qualities.append)
    async with subscribed(quality=False, resume=False, **story.options) as (rig, messages):
        await rig.stream(1, 5)
        await story.consume(messages, "batches", 5)
        cut_off(rig)
        await rig.stream(6, 7)
        await came_back(rig, story)
        await rig.stream(8, 9)
        await story.consume(messages, "batches", 9)
        assert story.seen == [1, 2, 3, 4, 5, 8, 9]
        assert [(x.reason, x.lost) for x in qualities] == [("resume", ((6, 7),))]


async def test_a_slow_consumer_that_was_detached_comes_back() -> None:
    story = Story()
    kit = subscribed(
        node={"settings": Settings(queue_bytes=50_000)},
        credit=10,
        resume=False,
        **story.options,
    )
    async with kit as (rig, messages):
        await rig.stream(1, 1000)
        await came_back(rig, story)
        await rig.stream(1001, 1003)
        await story.consume(messages, "messages", 1003)
        got = story.sequences
        assert got[-3:] == [1001, 1002, 1003]
        assert got[:-3] == list(range(1, len(got) - 2))
        assert ("resume", "STALE", [[got[-4] + 1, 1000]]) in story.seen


@pytest.mark.parametrize("form", ["messages", "batches", "deliver"])
async def test_more_unread_than_a_connection_brings_is_consumed_before_it_comes_back(
    form: str,
) -> None:
    story = Story()
    kit = subscribed(
        node={"history_bytes": 1 << 20}, credit=10, give_up_seconds=0.2, **story.options
    )
    async with kit as (rig, messages):
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        await rig.stream(1, 40)
        link = messages._upstream.intake.link
        for count in (9, 10):  # the credit is given back where a read is taken, not consumed
            story.receive(await anext(messages))
            await rig.until(lambda count=count: link.count == count, "all that the credit allows")
        cut_off(rig)
        await rig.until(lambda: messages._crowded, "ready but for what is unread")
        await asyncio.sleep(0.3)  # the consumer's time is not the gateway's
        await story.consume(messages, form, 40)
        assert story.sequences == [*range(1, 41)]
        assert messages.reconnects == 1


async def test_an_end_for_good_in_the_midst_of_attaching_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    async with subscribed(**story.options) as (rig, messages):
        await rig.stream(1, 3)
        await story.consume(messages, "messages", 3)
        attach = NodeConnection._attach

        def attach_and_end(connection: NodeConnection, link: Any) -> None:
            attach(connection, link)
            connection._detach(link)
            link.close("amqp:not-allowed", "the test says so")

        monkeypatch.setattr(NodeConnection, "_attach", attach_and_end)
        cut_off(rig)
        with pytest.raises(PeerError, match="the test says so"):
            await story.consume(messages, "messages", 4)
        keeper = messages._upstream._task
        assert keeper is not None
        await rig.until(keeper.done, "the end of trying")
        assert messages.state is State.CLOSED


@pytest.mark.parametrize("connected", [False, True])
async def test_an_error_of_on_connection_is_raised_where_the_stream_is_consumed(
    connected: bool,
) -> None:
    heard: list[bool] = []

    def hear(event: Any) -> None:
        heard.append(event.connected)
        if heard[1:] and event.connected is connected:
            raise ValueError("the test says so")

    story = Story(on_connection=hear)
    async with subscribed(**story.options) as (rig, messages):
        await rig.stream(1, 3)
        await story.consume(messages, "messages", 3)
        cut_off(rig)
        with pytest.raises(ValueError, match="the test says so"):
            await story.consume(messages, "messages", 4)


async def test_it_gives_up_after_the_time_it_was_given() -> None:
    async with running() as rig:
        url = rig.url
        messages = feedhandler.subscribe(url, "euronext.104", give_up_seconds=0.2)
        await messages.__aenter__()
        await rig.node.stop(1)
    async with patience():
        with pytest.raises(PeerError, match=r"gone for more than 0\.2 s"):
            async for _ in messages:
                pass
    await messages.close()


async def test_a_node_that_falls_silent_is_given_up_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "IDLE_TIMEOUT_MS", 300)
    story = Story()
    async with subscribed(**story.options) as (rig, messages):
        (connection,) = rig.node.connections
        rig.node.loop.remove_reader(connection.sock.fileno())
        rig.node.connections.discard(connection)  # neither read nor ticked any more
        await came_back(rig, story)
        assert messages.reconnects == 1
        connection.sock.close()


async def test_leaving_while_it_is_coming_back_is_no_trouble() -> None:
    story = Story()
    async with running() as rig:
        async with feedhandler.subscribe(rig.url, "euronext.104", **story.options) as messages:
            await rig.node.stop(1)
            await rig.until(lambda: messages.state is not State.UP, "lost")
        assert messages.state is State.CLOSED
        async with patience():
            assert [m.content async for m in messages] in ([], ["quality"])
