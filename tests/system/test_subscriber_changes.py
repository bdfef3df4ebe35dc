"""`messages.change`: another subscription on the same stream, no gap, no duplicate.

The links of both are thinned by symbol; `amqp.packet` says which symbols packet n has. Instants
are random, the seed is printed.
"""

import asyncio
import random
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.serving.connection import NodeConnection
from feedhandler.amqp.subscribing import upstream
from feedhandler.codecs import PeerError, UsageError, load_feed
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import packet
from tests.support.node import PATIENCE_S, NodeRig, Settings, running
from tests.support.subscriber import WHOLE, Pieces, Story, came_back, cut_off, subscribed

FORMS = pytest.mark.parametrize("form", ["messages", "batches", "deliver"])
GRAINS = pytest.mark.parametrize("grain", ["packet", "batch", "message"])
HISTORY = 16 << 20
FEED = load_feed("euronext-utp-md")
#: The symbols that are moved about; 1000 is always wanted.
SYMBOLS = range(1000, 1007)


def symbols_of(sequence: int) -> list[int]:
    """The symbols of the messages in a packet, in order."""
    return [1000 + (sequence + index) % 7 for index in range(5)]


def wanted(grain: str, symbols: set[int], first: int, last: int) -> set[tuple[int, int]]:
    """Return the positions of everything that concerns these symbols."""
    if grain == "message":
        return {
            (n, index)
            for n in range(first, last + 1)
            for index, symbol in enumerate(symbols_of(n))
            if symbol in symbols
        }
    return {(n, WHOLE) for n in range(first, last + 1) if symbols & set(symbols_of(n))}


def patterns(symbols: set[int]) -> list[str]:
    return [f"euronext.104.{symbol}" for symbol in sorted(symbols)]


def test_the_packets_of_the_kit_have_the_symbols_that_are_assumed_here() -> None:
    for n in (1, 12):
        assert [x.symbol_index for x in FEED.decode_packet(packet(n)).messages] == (symbols_of(n))


#: Packets that the load may be ahead of the consumer: more than the queue of a link holds.
AHEAD_MAX = 2000


class Load:
    """Packets for as long as it runs, in shares at random instants."""

    def __init__(self, rig: NodeRig, rng: random.Random, story: Pieces) -> None:
        self.rig = rig
        self.rng = rng
        self.story = story
        self.last = 0
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            share = self.rng.randrange(1, 60)
            await self.rig.stream(self.last + 1, self.last + share)
            self.last += share
            await asyncio.sleep(self.rng.random() * 0.004)
            if self.last - self._consumed() > AHEAD_MAX:
                await self._pause()

    async def _pause(self) -> None:
        """Let a slow consumer come to the end."""
        while not self.stopped and self.last - self._consumed() > len(SYMBOLS):
            await asyncio.sleep(0.002)

    def _consumed(self) -> int:
        """The sequence number that the consumer has come to."""
        return next((x[0] for x in reversed(self.story.seen) if isinstance(x[0], int)), 0)


@FORMS
@GRAINS
@pytest.mark.parametrize("cuts", [False, True], ids=["", "connection-lost"])
async def test_what_is_in_both_comes_once_and_in_order_whatever_the_instant(
    grain: str, form: str, cuts: bool, seed: int
) -> None:
    name = f"{seed}/{grain}/{form}/{cuts}"
    rng = random.Random(name)
    story = Pieces()
    steps: list[set[int]] = [{1000, 1001}]
    kit = subscribed(
        ",".join(patterns(steps[0])),
        node={"history_bytes": HISTORY},
        as_=grain,
        credit=rng.choice([8, 200, 4096]),
        **story.options,
    )
    async with kit as (rig, messages):
        if rng.random() < 0.7:
            rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        load = Load(rig, rng, story)
        loading = asyncio.create_task(load.run())
        # The last packet of all is one that every subscription wants: it has symbol 1000.
        end = (10**6, 0 if grain == "message" else WHOLE)
        consuming = asyncio.create_task(story.consume(messages, form, end))
        for _ in range(5):
            await asyncio.sleep(rng.random() * 0.02)
            steps.append({1000, *rng.sample(SYMBOLS, rng.randrange(0, 4))})
            if cuts and rng.random() < 0.6:
                asyncio.get_running_loop().call_later(rng.random() * 0.004, cut_off, rig)
            async with asyncio.timeout(PATIENCE_S):
                await messages.change(*patterns(steps[-1]))
        async with asyncio.timeout(PATIENCE_S):
            await rig.until(lambda: messages.state.value == "UP", "up at the end")
        load.stopped = True
        await loading
        rig.put(packet(10**6, [FEED.encode_message(
            230, symbol_index=1000, price=1, price_scale_code=2
        )]), 10**6, 1)  # fmt: skip
        await rig.deliver()
        await consuming
        got = story.positions
        assert got == sorted(set(got)), name
        assert got[-1] == end
        always = wanted(grain, set.intersection(*steps), got[0][0] + 1, load.last)
        assert always <= set(got), (name, sorted(always - set(got))[:5])
        anything = wanted(grain, set.union(*steps), 1, load.last) | {end}
        assert set(got) <= anything, name
        assert not [x for x in story.notes if x[2]], (name, story.notes)


@FORMS
async def test_what_is_new_begins_somewhere_and_has_no_hole_from_there_and_what_is_gone_ends(
    form: str,
) -> None:
    story = Pieces()
    async with subscribed("euronext.104.1001", as_="message", **story.options) as (rig, messages):
        await rig.stream(1, 100)
        changing = asyncio.create_task(messages.change("euronext.104.1002"))
        await rig.stream(101, 150)
        await changing
        await messages._finish_change()  # what is published from now on is the new one's
        await rig.stream(151, 200)
        until = max(wanted("message", {1002}, 151, 200))
        await story.consume(messages, form, until)
        new = [x for x in story.positions if symbols_of(x[0])[x[1]] == 1002]
        old = [x for x in story.positions if symbols_of(x[0])[x[1]] == 1001]
        assert set(new) == wanted("message", {1002}, new[0][0], 200)
        assert set(old) == wanted("message", {1001}, 1, old[-1][0])
        assert {*wanted("message", {1002}, 151, 200)} <= set(new)
        assert messages.request.pattern == "euronext.104.1002"
        await messages.change(types=[140])
        await messages._finish_change()
        await rig.stream(201, 220)
        last = max(x for x in wanted("message", {1002}, 201, 220) if x[1] % 2)
        await story.consume(messages, form, last)
        other = {x for x in wanted("message", {1002}, 201, 220) if x[1] % 2}
        assert other <= set(story.positions)
        assert rig.count("links_overrun") == 0


async def test_a_change_that_the_gateway_refuses_leaves_the_stream_as_it_was() -> None:
    story = Story()
    async with subscribed(**story.options) as (rig, messages):
        await rig.stream(1, 5)
        with pytest.raises(PeerError, match="colour"):
            await messages.change("euronext.104?colour=red")
        await rig.stream(6, 9)
        await story.consume(messages, "messages", 9)
        assert story.sequences == list(range(1, 10))
        assert messages.request.pattern == "euronext.104"
        cut_off(rig)
        await came_back(rig, story)
        with pytest.raises(UsageError, match="to what"):
            await messages.change()
        with pytest.raises(UsageError, match="alone"):
            await messages.change("euronext.104", "euronext.105?as=message")


async def test_a_change_while_the_connection_is_lost_waits_for_it_and_fails_with_it() -> None:
    story = Story()
    async with running(history_bytes=HISTORY) as rig:
        port = rig.port
        messages = feedhandler.subscribe(
            rig.url, "euronext.104.1000", give_up_seconds=3.0, **story.options
        )
        await messages.__aenter__()
        await rig.stream(1, 5)
        await rig.node.stop(1)
    async with running(Settings(address=("127.0.0.1", port))) as again:
        async with asyncio.timeout(PATIENCE_S):
            await messages.change("euronext.104")
        await messages._finish_change()
        await again.stream(10, 20)
        await story.consume(messages, "messages", 20)
        assert set(range(10, 21)) <= set(story.sequences)
        await again.node.stop(1)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError, match="gone"):
                await messages.change("euronext.104.1000")
    await messages.close()


@FORMS
async def test_a_node_that_never_ends_the_former_link_is_left_and_the_stream_goes_on(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_only(connection: Any, sender_queue: Any, asked: bool = False) -> None:
        sender_queue.drain()
        if sender_queue.catching:
            connection.node.catch_up_soon()

    story = Pieces()
    kit = subscribed(
        "euronext.104.1000", node={"history_bytes": HISTORY}, as_="message", **story.options
    )
    async with kit as (rig, messages):
        monkeypatch.setattr(upstream, "OVERLAP_SECONDS", 0.05)
        monkeypatch.setattr(NodeConnection, "_drain_link", send_only)
        await rig.stream(1, 50)
        consuming = asyncio.create_task(
            story.consume(messages, form, max(wanted("message", {1000}, 51, 200)))
        )
        await messages.change("euronext.104.1000,euronext.104.1002")
        await rig.until(lambda: [e.connected for e in story.events] == [True, False, True])
        assert "did not drain" in story.events[1].reason
        assert story.events[2].resumed
        await rig.stream(51, 200)
        await consuming
        assert story.positions == sorted(set(story.positions))
        assert wanted("message", {1000}, 1, 200) <= set(story.positions)
        assert wanted("message", {1000, 1002}, 51, 199) <= set(story.positions)


async def test_a_subscription_to_several_gateways_is_not_changed() -> None:
    async with (
        running() as a,
        running() as b,
        feedhandler.subscribe([a.url, b.url], "euronext.104") as messages,
    ):
        with pytest.raises(UsageError, match="several gateways cannot be changed"):
            await messages.change("euronext.105")


async def test_a_change_in_the_midst_of_consuming_needs_no_other_consumer() -> None:
    kit = subscribed(node={"settings": Settings(queue_bytes=32 << 20)}, credit=10)
    async with kit as (rig, messages):
        await rig.stream(1, 300)
        got = []
        async with asyncio.timeout(PATIENCE_S):
            async for message in messages:
                if message.content == "quality":
                    continue
                got.append(message.sequence)
                if len(got) in (5, 7, 50, 90):
                    await messages.change("euronext.104", types=[230, len(got)])
                if message.sequence == 300:
                    break
        assert got == list(range(1, 301))
