"""`feedhandler.subscribe` against the node: every grain, columns, credit, each way it can end."""

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.framing import CONTENT_PACKET, CONTENT_QUALITY, Frame, Template
from feedhandler.amqp.proton import Connection, SenderLink
from feedhandler.amqp.request import Request
from feedhandler.codecs import PeerError, UsageError
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, STAMP_NS, decoded, order, packet, prefix_of, quote
from tests.support.node import PATIENCE_S, Run, Settings, both_loops, running
from tests.support.subscriber import Pieces, patience, subscribed


async def receive(messages: Any, count: int) -> list[Any]:
    """The next `count` messages that are no quality messages."""
    found = []
    async with patience():
        async for message in messages:
            if message.content != "quality":
                found.append(message)
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} of {count}")


async def gather(messages: Any, count: int) -> tuple[list[Any], list[dict[str, Any]]]:
    """Rows of type 230 until `count` market messages came, and the quality seen on the way."""
    rows: list[Any] = []
    notes: list[dict[str, Any]] = []
    seen = 0
    async with patience():
        async for batch in messages.batches():
            notes += batch.quality
            seen += len(batch)
            if len(batch):
                assert sum(batch.types().values()) == len(batch)
                columns = batch.columns(230)
                rows += zip(
                    columns["seq"].tolist(),
                    columns["symbol_index"].tolist(),
                    columns["price"].tolist(),
                    strict=True,
                )
                table = batch.arrow(230)
                assert table.num_rows == len(columns["seq"])
            if seen >= count:
                break
    return rows, notes


@both_loops
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_every_market_message_arrives_decoded_in_order(run: Run, grain: str) -> None:
    async with subscribed(as_=grain, stamp=True) as (rig, messages):
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        put = rig.packets(1, 50)
        await rig.deliver()
        wanted = [str(m) for data in put for m in FEED.decode_packet(data).messages]
        records: list[str] = []
        stamps = []
        async with patience():
            async for message in messages:
                if message.content == "quality":
                    assert message.quality["service"] == 104
                    continue
                assert message.quality is None
                assert message.content == grain
                assert (message.day, message.service) == (20261121, 104)
                records += [str(m) for m in message.records()]
                stamps.append(message.received_ns)
                if len(records) == 250:
                    break
        assert [r.split("event_time")[0] for r in records] == [
            w.split("event_time")[0] for w in wanted
        ]
        assert stamps[0] == STAMP_NS + 1
        assert stamps == sorted(stamps)


@both_loops
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_batches_have_all_messages_as_columns(run: Run, grain: str) -> None:
    async with subscribed(as_=grain) as (rig, messages):
        for sequence in range(1, 101):
            rig.put(packet(sequence, [order(sequence, 7), quote(1), order(3, 9)]), sequence, 3)
        await rig.deliver()
        rows, notes = await gather(messages, 300)
        assert rows == [row for n in range(1, 101) for row in ((n, n, 0.07), (n, 3, 0.09))]
        assert [note["reason"] for note in notes] == ["attached"]


@both_loops
async def test_quality_comes_with_the_batch_it_precedes(run: Run) -> None:
    async with subscribed(as_="batch") as (rig, messages):
        rig.packets(1, 3)
        rig.control_event(RecordKind.GAP, sequence=4, next_sequence=9)
        rig.packets(9, 10)
        await rig.deliver()
        story: list[Any] = []
        async with patience():
            async for batch in messages.batches():
                story += [note["reason"] for note in batch.quality]
                if len(batch):
                    story += sorted(set(batch.columns(230)["seq"].tolist()))
                if story[-1] == 10:
                    break
        assert story == ["attached", 1, 2, 3, "gap", 9, 10]


@both_loops
async def test_credit_is_granted_again_for_as_long_as_messages_are_consumed(run: Run) -> None:
    total = 2520
    async with subscribed(as_="message", quality=False, credit=250) as (rig, messages):

        async def feed() -> None:
            sequence = 1
            while sequence * 60 <= total:
                for _ in range(20):
                    rig.put(packet(sequence, [order(n % 50) for n in range(60)]), sequence, 60)
                    sequence += 1
                await rig.deliver()
                await rig.until(lambda: not any(o.queued_bytes for o in rig.fanout.sender_queues))

        feeding = asyncio.create_task(feed())
        expected = 0
        async with asyncio.timeout(3 * PATIENCE_S):
            async for message in messages:
                assert (message.sequence - 1) * 60 + message.number == expected
                assert message.group_sequence == expected
                expected += 1
                if expected == total - total % 60:
                    break
        feeding.cancel()


@both_loops
async def test_a_slow_consumer_is_granted_no_more_than_its_credit(run: Run) -> None:
    async with subscribed(quality=False, credit=50) as (rig, messages):
        await rig.stream(1, 500)
        await rig.until(lambda: rig.count("sent") == 50, "the credit used up")
        await rig.stream(501, 510)
        assert rig.count("sent") == 50
        assert len(await receive(messages, 510)) == 510


@both_loops
async def test_types_and_patterns_are_the_nodes_work(run: Run) -> None:
    async with subscribed("euronext.*.1003", as_="message", types=[230]) as (rig, messages):
        await rig.stream(1, 30)
        for message in await receive(messages, 10):
            assert message.key == "euronext.104.1003"
            assert message.symbol == "1003"
            assert message.type == 230
            assert message.own_sequence == message.seq == message.sequence
            assert message.record().symbol_index == 1003


@both_loops
@pytest.mark.parametrize(
    ("pattern", "options", "condition"),
    [
        ("euronext.104", {"types": ["order"]}, "amqp:invalid-field"),
        ("euronext..1", {}, "amqp:invalid-field"),
        ("euronext.104?colour=red", {}, "amqp:invalid-field"),
        ("queue.a", {}, "amqp:not-found"),
        ("euronext.104?snapshot=1", {}, "amqp:not-implemented"),
    ],
)
async def test_a_refusal_is_a_peer_error_with_the_condition(
    run: Run, pattern: str, options: dict[str, Any], condition: str
) -> None:
    async with running() as rig:
        async with patience():
            with pytest.raises(PeerError) as refusal:
                async with feedhandler.subscribe(rig.url, pattern, **options):
                    pass
        assert condition in str(refusal.value) + refusal.value.hint
        await rig.until(lambda: not rig.node.connections, "gone")


@both_loops
async def test_an_overrun_link_ends_in_a_peer_error_after_what_was_received(run: Run) -> None:
    kit = subscribed(
        node={"settings": Settings(queue_bytes=50_000)},
        quality=False,
        credit=10,
        reconnect=False,
    )
    async with kit as (rig, messages):
        await rig.stream(1, 1000)
        got: list[int] = []

        async def consume() -> None:
            async for message in messages:
                got.append(message.sequence)

        async with patience():
            with pytest.raises(PeerError) as error:
                await consume()
        assert "amqp:resource-limit-exceeded" in error.value.hint
        assert got == list(range(1, len(got) + 1))
        assert len(got) >= 10


@both_loops
async def test_a_node_that_stops_is_a_peer_error_after_the_last_message(run: Run) -> None:
    async with running() as rig:
        async with feedhandler.subscribe(
            rig.url, "euronext.104", quality=False, reconnect=False
        ) as messages:
            await rig.stream(1, 3000)
            stopping = asyncio.create_task(rig.node.stop(10))
            assert len(await receive(messages, 3000)) == 3000
            async with patience():
                with pytest.raises(PeerError) as error:
                    await anext(messages)
            assert "amqp:connection:forced" in error.value.hint
            with pytest.raises(PeerError):  # and stays so
                await anext(messages)
        await stopping


@both_loops
async def test_a_subscriber_finds_the_node_again_after_a_restart(run: Run) -> None:
    async with running() as first:
        port = first.port
        async with feedhandler.subscribe(first.url, "euronext.104", reconnect=False) as messages:
            await first.node.stop(1)
            async with patience():
                with pytest.raises(PeerError):
                    async for _ in messages:
                        pass
    async with (
        running(Settings(address=("127.0.0.1", port))) as second,
        feedhandler.subscribe(second.url, "euronext.104") as messages,
    ):
        await second.stream(1, 5)
        assert len(await receive(messages, 5)) == 5


@both_loops
async def test_closing_wakes_who_waits_and_ends_the_stream(run: Run) -> None:
    async with running() as rig:
        async with feedhandler.subscribe(rig.url, "euronext.104") as messages:

            async def listen() -> list[Any]:
                return [message async for message in messages]

            async def listen_in_batches() -> int:
                return sum([len(batch.quality) async for batch in messages.batches()])

            listening = asyncio.create_task(listen())
            batching = asyncio.create_task(listen_in_batches())
            await rig.until(lambda: rig.count("sent") == 1, "the quality message")
            await asyncio.sleep(0)
            await messages.close()
            async with patience():
                assert len(await listening) + await batching <= 1
        await rig.until(lambda: not rig.node.connections, "gone")
        assert rig.count("connections_failed") == 0


@both_loops
async def test_leaving_early_in_the_middle_of_a_flood_is_no_trouble(run: Run) -> None:
    async with running() as rig:
        async with feedhandler.subscribe(rig.url, "euronext.104", quality=False) as messages:
            await rig.stream(1, 5000)
            assert len(await receive(messages, 10)) == 10
        await rig.until(lambda: not rig.node.connections, "gone")
        assert rig.fanout.sender_queues == []


@both_loops
async def test_a_port_without_a_listener_is_a_peer_error(run: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(PeerError, match="cannot connect"):
            async with feedhandler.subscribe(f"amqp://127.0.0.1:{port}", "euronext.104"):
                pass


class Impostor:
    """A server that speaks AMQP by our engine but sends what the test wants."""

    def __init__(self, frames: list[bytes], goodbye: str) -> None:
        self.frames = frames
        self.goodbye = goodbye
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.url = f"amqp://127.0.0.1:{self.listener.getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def subscribed(self) -> AsyncIterator[feedhandler.Subscriber]:
        """A subscriber that it serves meanwhile."""
        serving = asyncio.create_task(self._serve())
        subscription = feedhandler.subscribe(self.url, "euronext.104", reconnect=False)
        async with patience():
            async with subscription as messages:
                yield messages
            await serving

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        sock, _ = await loop.sock_accept(self.listener)
        self.listener.close()
        sock.setblocking(False)
        engine = Connection(sock.fileno(), server=True, container="impostor")
        served = False
        while True:
            readable = loop.create_future()
            loop.add_reader(sock.fileno(), lambda f=readable: f.done() or f.set_result(None))
            await readable
            loop.remove_reader(sock.fileno())
            if engine.receive() < 0:
                break
            engine.open()
            for _, link in engine.events():
                if not isinstance(link, SenderLink):
                    continue
                link.open()
                if link.ready() and not served:
                    served = True
                    for frame in self.frames:
                        link.send(frame, 0, len(frame))
                    if self.goodbye == "detach":
                        link.close("amqp:internal-error", "the impostor is tired")
            engine.flush()
            if served and self.goodbye == "vanish":
                break
        sock.close()


def frames_of(numbers: list[int]) -> list[bytes]:
    """Valid messages with these group-sequences."""
    found = []
    for number in numbers:
        frame = Frame(2000)
        frame.begin(
            Template("euronext.104", CONTENT_PACKET, prefix_of(FEED, 104)), number, 0xFFFF, 0
        )
        data = packet(number % 1000)
        frame.append(data, 0, len(data))
        frame.finish(number)
        assert decoded(frame.snapshot()).body == data
        found.append(frame.snapshot())
    return found


@both_loops
@pytest.mark.parametrize("grain", ["packet", "message"])
async def test_a_reader_that_leaves_the_batches_of_a_read_finds_the_others_later(
    run: Run, grain: str
) -> None:
    async with subscribed(as_=grain, credit=200) as (rig, messages), patience():
        packets, parts = [*range(1, 6), *range(8, 13)], 1 if grain == "packet" else 5
        for turn in range(8):  # what is read goes beyond the credit that there was at first
            first = 20 * turn
            rig.packets(first + 1, first + 5)
            rig.control_event(RecordKind.GAP, sequence=first + 6, next_sequence=first + 8)
            rig.packets(first + 8, first + 12)
            rig.control_event(RecordKind.GAP, sequence=first + 13, next_sequence=first + 21)
            await rig.deliver()
            link = messages._upstream.intake.link
            came = 10 * parts + 2 + (turn == 0)
            await rig.until(lambda: link.count == came, "one read")  # noqa: B023
            seen: list[int] = []
            while len(seen) < 10 * parts:
                async for batch in messages.batches():
                    seen += [int(number) for number in batch.sequences]
                    break
            assert seen == [first + n for n in packets for _ in range(parts)]
            async for batch in messages.batches():
                assert [note.quality["reason"] for note in batch.notes] == ["gap"]
                break


class Switcher(Pieces):
    """A consumer that goes over from one form to the other, at random."""

    def __init__(self, messages: Any, rng: random.Random) -> None:
        super().__init__()
        self.messages = messages
        self.rng = rng

    def note(self, quality: dict[str, Any]) -> tuple[str, int]:
        return quality["reason"], quality["next"]

    async def change_about(self, until: tuple[int, int]) -> None:
        while until not in self.seen[-1:]:
            left = self.rng.randrange(1, 4)
            if self.rng.random() < 0.5:
                async for batch in self.messages.batches():
                    self.receive_batch(batch)
                    left -= 1
                    if not left or until in self.seen[-1:]:
                        break
            else:
                async for message in self.messages:
                    self.receive(message)
                    left -= 1
                    if not left or until in self.seen[-1:]:
                        break


@both_loops
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_reader_that_changes_between_batches_and_single_messages_misses_nothing(
    run: Run, grain: str, gateways: int, seed: int
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        rigs = [await stack.enter_async_context(running()) for _ in range(gateways)]
        subscription = feedhandler.subscribe(
            [rig.url for rig in rigs], "euronext.104", as_=grain, credit=200
        )
        messages = await stack.enter_async_context(subscription)
        await stack.enter_async_context(patience())
        rng = random.Random(seed)
        switcher = Switcher(messages, rng)
        numbers = [0xFFFF] if grain != "message" else list(range(5))
        expected: list[tuple[int, int]] = []
        at = 0
        while at < 400:
            for _ in range(rng.randrange(1, 5)):  # a read with quality messages in its midst
                first, last = at + 1, at + rng.randrange(1, 7)
                for rig in rigs:
                    rig.packets(first, last)
                    rig.control_event(RecordKind.GAP, sequence=last + 1, next_sequence=last + 3)
                expected += [(n, x) for n in range(first, last + 1) for x in numbers]
                at = last + 2
            for rig in rigs:
                await rig.deliver()
            await switcher.change_about(expected[-1])
        assert switcher.positions == expected
        if gateways == 1:  # of several, the other may bring the data before the word
            gaps = [at for at, x in enumerate(switcher.seen) if x[0] == "gap"]
            following = [switcher.seen[at][1] for at in gaps]
            assert following == sorted(set(following))
            assert following == [switcher.seen[at - 1][0] + 3 for at in gaps]


@both_loops
@pytest.mark.parametrize("form", ["messages", "batches"])
@pytest.mark.parametrize(
    ("frames", "goodbye", "complaint"),
    [
        (frames_of([0, 1, 3]), "", "group-sequence"),
        (frames_of([5, 5]), "", "group-sequence"),
        ([*frames_of([0]), b"\x00\x53\x77\xa1\x02no"], "", "no AMQP message"),
        (frames_of([0, 1]), "detach", "the impostor is tired"),
        (frames_of([0, 1]), "vanish", "closed the connection|aborted"),
    ],
    ids=["hole", "twice", "no data section", "detach", "vanish"],
)
async def test_what_a_node_must_not_do_ends_in_a_peer_error(
    run: Run, frames: list[bytes], goodbye: str, complaint: str, form: str
) -> None:
    async with Impostor(frames, goodbye).subscribed() as messages:
        source = messages if form == "messages" else messages.batches()
        with pytest.raises(PeerError, match=complaint):
            async for _ in source:
                pass
        with pytest.raises(PeerError):  # the error is the end: nothing follows it
            await anext(messages)


@both_loops
@pytest.mark.parametrize("form", ["messages", "batches", "deliver"])
@pytest.mark.parametrize("goodbye", ["", "detach"])
@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (frames_of([4]), "group-sequence jumped to 4"),
        ([b"\x00\x53\x77\xa1\x02no"], "no AMQP message"),
    ],
    ids=["hole", "no data section"],
)
async def test_what_came_before_a_bad_message_is_delivered_first(
    run: Run, bad: list[bytes], complaint: str, goodbye: str, form: str
) -> None:
    impostor = Impostor([*frames_of([0, 1, 2]), *bad, *frames_of([5])], goodbye)
    got: list[int] = []

    async def consume(messages: feedhandler.Subscriber) -> None:
        if form == "messages":
            async for message in messages:
                got.append(message.sequence)
        elif form == "batches":
            async for batch in messages.batches():
                got.extend(batch.sequences.tolist())
        else:
            await messages.deliver(lambda batch: got.extend(batch.sequences.tolist()))

    async with impostor.subscribed() as messages:
        with pytest.raises(PeerError, match=complaint):
            await consume(messages)
        assert got == [0, 1, 2]
        with pytest.raises(PeerError, match=complaint):
            await anext(messages)


@both_loops
async def test_a_quality_message_that_is_none_is_a_peer_error(run: Run) -> None:
    for body in (b"no json", b"[]", b'{"state": 1}'):
        frame = Frame(2000)
        frame.begin(Template("e.104.quality", CONTENT_QUALITY, prefix_of(FEED, 104)), 1, 0, 0)
        frame.append(body, 0, len(body))
        frame.finish(1)
        for form in ("messages", "batches"):
            impostor = Impostor([*frames_of([0]), frame.snapshot(), *frames_of([2])], "")
            async with impostor.subscribed() as messages:
                source = messages if form == "messages" else messages.batches()
                assert (await anext(source)).snapshot is False
                with pytest.raises(PeerError, match="quality message"):
                    await anext(source)
                with pytest.raises(PeerError, match="quality message"):
                    await anext(messages)


@both_loops
async def test_group_sequences_wrap_around_without_a_hole(run: Run) -> None:
    impostor = Impostor(frames_of([2**32 - 2, 2**32 - 1, 0, 1]), "detach")
    async with impostor.subscribed() as messages:
        numbers = [m.group_sequence for m in await receive(messages, 4)]
        assert numbers == [2**32 - 2, 2**32 - 1, 0, 1]


def test_addresses_are_built_from_what_the_caller_says() -> None:
    assert Request(pattern="e.1").address() == "e.1"
    request = Request(pattern="e.1", grain="batch", types=(1, "A"), quality=False, stamp=True)
    assert request.address() == "e.1?as=batch&types=1,A&quality=0&stamp=1"
    assert request.address(snapshot=True) == "e.1?as=batch&types=1,A&stamp=1&snapshot=1"
    assert Request(pattern="e.1?x=1", stamp=True).address() == "e.1?x=1&stamp=1"
    assert Request(pattern="e.1", snapshot=True).address() == "e.1?snapshot=1"
    again = Request(pattern="e.1?from=ab&x=1", quality=False)
    assert again.address([b"\1\2", b"\3"], quality=True) == "e.1?x=1&from=0102,03"
    assert Request(pattern="e.1?from=ab").address([b"\1"]) == "e.1?from=01"
    with pytest.raises(UsageError):
        feedhandler.subscribe("amqp://host", "e.1", as_="byte")


def test_importing_the_package_alone_loads_nothing_heavy() -> None:
    code = (
        "import sys, feedhandler; "
        "heavy = {'numpy', 'proton', 'cproton_ffi', 'msgspec', 'asyncio'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "assert callable(feedhandler.subscribe); "
        "assert 'numpy' in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_command_that_runs_a_gateway_loads_nothing_for_others() -> None:
    code = (
        "import sys; "
        "from feedhandler.cli.app import chosen; "
        "chosen(['run', 'gateway.toml']); "
        "import feedhandler.gateway.process; "
        "others = {'pydantic', 'prometheus_client', 'rich', 'matplotlib'} & set(sys.modules); "
        "assert not others, others"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
