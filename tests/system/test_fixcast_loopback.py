"""A publisher and receivers of FIX over multicast, on loopback."""

import array
import asyncio
import contextlib
import errno
import json
import random
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.fixcast import receiver as receiver_module
from feedhandler.fixcast import resend_service
from feedhandler.fixcast.channels import host_and_port, parse_channels
from feedhandler.fixcast.epoch_file import EpochFile, StoredEpoch
from feedhandler.fixcast.market_data_service import requests_answered
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.pacing import BURST_MAX_BYTES, RATE_MAX_BYTES_S
from feedhandler.fixcast.publisher import Network, Publisher, PublisherSettings
from feedhandler.fixcast.receiver import Receiver, ReceiverSettings, Stated
from feedhandler.fixcast.reception import (
    Deliver,
    Ended,
    Joined,
    Lost,
    Missing,
    NewEpoch,
    ReceptionSettings,
    Skipped,
)
from feedhandler.fixcast.sending import SendingSettings
from feedhandler.fixcast.session import SessionSettings
from feedhandler.fixcast.system_calls import LineSender
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.fix.client import RequesterSettings
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.request import ResendRequest
from feedhandler.retrans.fix.server import ResendSettings
from tests.support.fix_market import Flow, state_of
from tests.support.fixcast import SECONDS, Sink, channels, definition, lossy_lines, update

#: Heartbeats come often, so that no test waits for one.
SENDING = SendingSettings(session=SessionSettings(heartbeat_ns=20_000_000))
MANY = 500


def receiving(**reception: Any) -> ReceiverSettings:
    return ReceiverSettings(
        reception=ReceptionSettings(recovery_wait_ns=30_000_000_000, **reception),
        requests=RequesterSettings(spread_us=1000, receivers=2),
        seed=1,
    )


def losing_once(parts: set[bytes]) -> Network:
    """Of the datagrams that contain each of these, the first is sent on neither line."""

    def network(channel: str, datagram: bytes) -> tuple[bool, bool]:
        found = {part for part in parts if part in datagram}
        parts.difference_update(found)
        return not found, not found

    return network


async def test_many_at_once_return_their_own_last_number_beside_others() -> None:
    settings = PublisherSettings(sending=SENDING)
    async with Publisher(channels(), ["c1"], settings) as publisher:
        runs = [[update(f"{run} {number}") for number in range(20_000)] for run in range(2)]
        numbers = await asyncio.gather(*(publisher.publish_many("c1", run) for run in runs))
        assert sorted(numbers)[1] == 40_000
        assert len(set(numbers)) == 2


async def test_an_end_that_is_cut_short_is_no_ordered_one(tmp_path: Path) -> None:
    slow = PublisherSettings(
        sending=SENDING, state=tmp_path, rate_bytes_s=1000, burst_bytes=1, interface="127.0.0.1"
    )
    entered = asyncio.Event()

    async def publish() -> None:
        async with Publisher(channels(), ["c1"], slow) as publisher:
            await publisher.publish_many("c1", [update("x" * 1000) for _ in range(200)])
            entered.set()

    publishing = asyncio.ensure_future(publish())
    await entered.wait()
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.wait({publishing})
    assert publishing.cancelled()
    (stored,) = tmp_path.iterdir()
    assert json.loads(stored.read_text())["next"] == 0, "what was sent last is not known"


@pytest.mark.parametrize(
    ("most_us", "waited"), [(0, [1, 1, 1, 1]), (3_600_000_000, [1, 2, 3, 4])],
    ids=["lasted", "too short"],
)  # fmt: skip
async def test_a_lost_connection_is_no_failure_if_it_has_lasted(
    most_us: int, waited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "RECONNECT_MOST_US", most_us)
    waits: list[int] = []
    enough = asyncio.Event()

    class Noted(Backoff):
        def delay_ns(self, tries: int) -> int:
            waits.append(tries)
            if len(waits) == 4:
                enough.set()
            return 0

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = receiver_module._Link(f"{host}:{port}", lambda message: None)
    link._backoff = Noted(1, 1, 1)
    async with asyncio.timeout(SECONDS):
        await enough.wait()
    await link.close()
    server.close()
    assert waits[:4] == waited


async def test_what_is_published_is_received_in_order() -> None:
    known, sink = channels(count=2), Sink()
    async with Receiver(known, [], receiving(), sink.receive):
        async with Publisher(known, [], PublisherSettings(sending=SENDING)) as publisher:
            for number in range(MANY):
                taken = await publisher.publish("c1", update(f"one {number}"))
                assert taken == number + 1
                await publisher.publish("c2", update(f"two {number}"))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await sink.until(lambda: len(sink.texts("c2")) == MANY)
            await sink.until(lambda: len(sink.texts("c1")) == MANY)
        await sink.until(lambda: Ended(MANY + 1) in sink.events["c1"])
    assert sink.texts("c1") == [f"one {number}" for number in range(MANY)]
    assert sink.texts("c2") == [f"two {number}" for number in range(MANY)]
    assert [each for each in sink.others("c1") if isinstance(each, Joined | Lost)] == [Joined(1)]


async def test_many_at_once_are_numbered_and_received_in_order() -> None:
    known, sink = channels(), Sink()
    sending = SendingSettings(session=SENDING.session, waiting_max=4)
    settings = PublisherSettings(sending=sending, rate_bytes_s=2_000_000, burst_bytes=3000)
    given = [update(f"{number}") for number in range(MANY)]
    async with (
        Receiver(known, [], receiving(), sink.receive),
        Publisher(known, [], settings) as publisher,
    ):
        assert await publisher.publish_many("c1", given[:300]) == 300
        assert await publisher.publish("c1", given[300]) == 301
        assert await publisher.publish_many("c1", given[301:]) == MANY
        await sink.until(lambda: len(sink.texts()) == MANY)
        assert publisher.counts == {}
    assert sink.texts() == [f"{number}" for number in range(MANY)]


async def test_of_many_those_before_a_wrong_one_are_published() -> None:
    known, sink = channels(), Sink()
    async with (
        Receiver(known, [], receiving(), sink.receive),
        Publisher(known, [], PublisherSettings(sending=SENDING)) as publisher,
    ):
        given = [update("0"), update("1"), b"rubbish", update("3")]
        with pytest.raises(UsageError, match="byte 0") as caught:
            await publisher.publish_many("c1", given)
        assert "message 3 of 4; those before it are published" in caught.value.hint
        with pytest.raises(UsageError, match="nothing to publish"):
            await publisher.publish_many("c1", [])
        assert await publisher.publish("c1", update("2")) == 3
        await sink.until(lambda: len(sink.texts()) == 3)
    assert sink.texts() == ["0", "1", "2"]


def test_what_the_system_does_not_take_is_counted_and_the_rest_is_sent() -> None:
    slab = bytes(range(200)) + bytes(70_000)
    offsets, sizes = array.array("q", [7, 0, 3]), array.array("q", [100, 70_000, 5])
    with contextlib.ExitStack() as opened:

        def sock() -> socket.socket:
            return opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

        to, other = sock(), sock()
        to.settimeout(SECONDS)
        to.bind(("127.0.0.1", 0))
        lines = LineSender([(sock(), to.getsockname()), (other, to.getsockname())])
        # From the third one on, round to the first.
        lines.send(slab, offsets, sizes, 2, 3)
        found = [to.recv(2000) for _ in range(4)]
        for first, size in ((3, 5), (0, 300)):
            sizes[0] = size if first == 0 else 100
            with pytest.raises(IndexError):
                lines.send(bytes(200), offsets, sizes, first, 1)
    assert found == [slab[3:8], slab[7:107]] * 2
    assert lines.errors == {errno.EMSGSIZE: 2}
    assert lines.sent == 4


@pytest.mark.parametrize(
    ("resend", "by_topic"),
    [
        (ResendSettings(), False),
        (ResendSettings(route="tcp"), False),
        (ResendSettings(route="main", poss_dup=True), False),
        (ResendSettings(answer="timer", poss_dup=True), False),
        (ResendSettings(), True),
    ],
    ids=["group", "tcp", "main", "timer", "topic"],
)
async def test_what_both_lines_lost_is_retransmitted(
    resend: ResendSettings, by_topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy_lines(monkeypatch, {4, 5, 9, 30}.__contains__)
    known, sinks = channels(by_topic=by_topic), [Sink(), Sink()]
    settings = PublisherSettings(sending=SENDING, resend=resend)
    async with (
        Receiver(known, [], receiving(), sinks[0].receive),
        Receiver(known, [], receiving(ordered=False), sinks[1].receive),
        Publisher(known, [], settings) as publisher,
    ):
        for number in range(MANY):
            await publisher.publish("c1", update(f"{number} {'x' * 200}"))
        for sink in sinks:
            await sink.until(lambda sink=sink: len(sink.texts()) == MANY)  # type: ignore[misc]
    assert sinks[0].texts() == [f"{number} {'x' * 200}" for number in range(MANY)]
    assert sorted(sinks[0].texts()) == sorted(sinks[1].texts())
    for sink in sinks:
        assert [each for each in sink.others() if isinstance(each, Missing)]
        assert not [each for each in sink.others() if isinstance(each, Lost)]


async def test_what_is_skipped_is_announced_though_its_gap_fill_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lossy_lines(monkeypatch, {3}.__contains__)
    known, sink = channels(), Sink()
    settings = PublisherSettings(sending=SENDING)
    async with (
        Receiver(known, [], receiving(), sink.receive),
        Publisher(known, [], settings) as publisher,
    ):
        await publisher.publish("c1", update("before"))
        await sink.until(lambda: sink.texts() == ["before"])
        publisher.skip("c1", 10)
        assert await publisher.publish("c1", update("after")) == 10
        await sink.until(lambda: len(sink.texts()) == 2)
    assert [each for each in sink.others() if isinstance(each, Skipped)] == [Skipped(2, 9)]


class Killed(Exception):
    """The publisher does not end in order."""


async def test_an_epoch_goes_on_after_an_ordered_end_and_not_after_another(
    tmp_path: Path,
) -> None:
    known, sink = channels(), Sink()
    settings = PublisherSettings(sending=SENDING, state=tmp_path)
    numbers = []
    async with Receiver(known, [], receiving(), sink.receive):
        for turn in range(4):
            try:
                async with Publisher(known, [], settings) as publisher:
                    numbers.append(await publisher.publish("c1", update(str(turn))))
                    await sink.until(lambda: len(sink.texts()) == turn + 1)  # noqa: B023
                    if turn == 1:
                        raise Killed
            except Killed:
                pass
    assert numbers == [1, 2, 1, 2]
    assert sink.texts() == ["0", "1", "2", "3"]
    assert sum(isinstance(each, NewEpoch) for each in sink.others()) == 1
    assert not [each for each in sink.others() if isinstance(each, Lost)]


async def test_a_publisher_waits_while_its_channel_is_full() -> None:
    known, sink = channels(), Sink()
    sending = SendingSettings(waiting_max=2, session=SENDING.session)
    settings = PublisherSettings(sending=sending, rate_bytes_s=2_000_000, burst_bytes=3000)
    async with Receiver(known, [], receiving(), sink.receive):
        async with Publisher(known, [], settings) as publisher:
            for number in range(200):
                await publisher.publish("c1", update(f"{number} {'x' * 500}"))
                assert publisher.sender("c1").waiting <= 3
        await sink.until(lambda: len(sink.texts()) == 200)


async def test_a_second_publisher_of_a_channel_leaves_the_first_one_be(tmp_path: Path) -> None:
    known, settings = channels(), PublisherSettings(state=tmp_path)
    async with Publisher(known, [], settings) as publisher:
        with pytest.raises(ConfigError, match="another process"):
            async with Publisher(known, [], settings):
                pass
        assert await publisher.publish("c1", update("still")) == 1
        with pytest.raises(UsageError, match="there are: c1"):
            await publisher.publish("c2", update("elsewhere"))


def test_what_is_set_wrong_is_refused() -> None:
    async def enter(publisher: Publisher) -> None:
        async with publisher:
            pass

    text = definition()
    unanswered = parse_channels(text.replace("\nline = {", "\n#"), "definition")
    known = channels()
    for publisher, reason in (
        (Publisher(unanswered), "no line to send answers to"),
        (
            Publisher(
                channels(by_topic=True), [], PublisherSettings(resend=ResendSettings(route="tcp"))
            ),
            "no TCP sessions to answer in",
        ),
        (Publisher(known, [], PublisherSettings(interface="10.255.255.1")), "cannot send to"),
        (Publisher(known, [], PublisherSettings(interface="lo")), "not an IPv4 address"),
        (
            Publisher(
                known, [], PublisherSettings(
                    has_epoch=False, resend=ResendSettings(route="main")
                ),
            ),
            "could be taken for a new sequence epoch",
        ),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=reason):
            asyncio.run(enter(publisher))
    for made in (
        lambda: Publisher(known, ["c9"]),
        lambda: Receiver(known, ["c9"], ReceiverSettings(), lambda channel, events: None),
    ):
        with pytest.raises(UsageError, match="there are: c1"):
            made()


async def raw(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes and return what the server answers before it ends the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_client_that_sends_something_else_is_cut_off_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lossy_lines(monkeypatch, {3}.__contains__)
    known, sink = channels(), Sink()
    server = host_and_port(known.retransmissions["r"].server)
    async with (
        Receiver(known, [], receiving(), sink.receive),
        Publisher(known, [], PublisherSettings(sending=SENDING)) as publisher,
    ):
        async with asyncio.timeout(SECONDS):
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"8=FIX.4.4\x019=9999999\x01"):
                assert await raw(server, data) == b""
        for number in range(50):
            await publisher.publish("c1", update(f"{number} {'x' * 200}"))
        await sink.until(lambda: len(sink.texts()) == 50)
    assert [each for each in sink.others() if isinstance(each, Missing)]


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend_service, "CLIENTS_MAX", 2)
    known = channels()
    server = host_and_port(known.retransmissions["r"].server)
    async with Publisher(known, [], PublisherSettings(sending=SENDING)):
        taken = [await asyncio.open_connection(*server) for _ in range(2)]
        async with asyncio.timeout(SECONDS):
            assert await raw(server, b"8=FIX") == b""
        for _, writer in taken:
            writer.close()


@pytest.mark.parametrize(
    "server",
    ["nowhere", ":1", "host:", "host:0", "host:99999", "host..a:1", f"{64 * 'x'}:1"],
)
def test_a_server_has_a_host_and_a_port(server: str) -> None:
    with pytest.raises(ConfigError, match="is no server"):
        host_and_port(server)


async def test_a_group_that_is_joined_when_needed_is_joined_by_a_loss_and_left_after_it() -> None:
    losses = losing_once({b"text 2", b"text 3"})
    known, sink = channels(join="needed"), Sink()
    async with Receiver(known, [], receiving(), sink.receive) as receiver:
        assert receiver.counts["groups_joined"] == 0
        settings = PublisherSettings(sending=SENDING, resend=ResendSettings(route="group"))
        async with Publisher(known, [], settings, losses) as publisher:
            for number in range(5):
                await publisher.publish("c1", update(f"text {number}"))
            await sink.until(lambda: len(sink.texts()) == 5)
            async with asyncio.timeout(SECONDS):
                while not receiver.counts["groups_left"]:
                    await asyncio.sleep(0.01)
    assert sink.texts() == [f"text {number}" for number in range(5)]
    assert not [each for each in sink.others() if isinstance(each, Lost)]
    assert receiver.counts["groups_joined"] == receiver.counts["groups_left"] > 0


async def test_a_late_receiver_and_a_loss_without_an_answer_are_healed_by_the_books_state(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lost: set[int] = set()
    lossy_lines(monkeypatch, lost.__contains__)
    flow = Flow(random.Random(seed))
    sent = {number: flow.message() for number in range(1, 301)}
    books = MarketState()

    def on_events(channel: str, events: list[Any]) -> None:
        """The books of a user: a state, what follows it, then what comes."""
        sink.receive(channel, events)
        for event in events:
            if isinstance(event, Stated):
                books.clear()
                for each in event.states:
                    books.apply(each, event.as_of)
                for number, body in event.since:
                    books.apply(body, number)
            elif isinstance(event, Deliver):
                books.apply(event.body, event.number)

    def stated() -> list[Stated]:
        return [each for each in sink.others() if isinstance(each, Stated)]

    sink = Sink()
    known = channels(market_data=True)
    (group,) = known.retransmissions.values()
    resend = ResendSettings(answer="never")
    settings = PublisherSettings(sending=SENDING, resend=resend)
    quick = ReceiverSettings(reception=ReceptionSettings(recovery_wait_ns=20_000_000), seed=seed)
    async with (
        Publisher(known, [], settings) as publisher,
        requests_answered(publisher, host_and_port(group.market_data)),
    ):
        first = Sink()
        async with Receiver(known, [], quick, first.receive):
            for number in range(1, 101):
                await publisher.publish("c1", sent[number])
            await first.until(lambda: first.count() == 100)
        async with Receiver(known, [], quick, on_events):
            for number in range(101, 301):
                if number == 200:
                    # Told late enough to be behind the first state, and lost on both lines.
                    await sink.until(lambda: bool(stated()))
                    lost.update(range(1, 10_000))
                if number == 205:
                    await asyncio.sleep(0.05)
                    lost.clear()
                await publisher.publish("c1", sent[number])
                await asyncio.sleep(0.001)
            await sink.until(lambda: any(isinstance(each, Lost) for each in sink.others()))
            await sink.until(lambda: len(stated()) > 1 and books.number == 300)
    assert stated()[0].as_of >= 100
    assert books.contents() == state_of(sent).contents()


@pytest.mark.parametrize(
    "resend",
    [
        ResendSettings(poss_dup=True),
        ResendSettings(poss_dup=True, route="main"),
        ResendSettings(poss_dup=True, route="tcp"),
    ],
    ids=["group", "main", "tcp"],
)
async def test_a_message_without_room_for_the_flag_of_duplicates_is_retransmitted_without_it(
    resend: ResendSettings,
) -> None:
    known, sink, size = channels(), Sink(), 1400
    sending = SendingSettings(long="refuse", session=SENDING.session)
    settings = PublisherSettings(sending=sending, resend=resend)
    quick = ReceiverSettings(
        reception=ReceptionSettings(recovery_wait_ns=5_000_000_000),
        requests=RequesterSettings(receivers=1),
    )
    async with (
        Receiver(known, [], quick, sink.receive),
        Publisher(known, [], settings, losing_once({b"x" * 100})) as publisher,
    ):
        while True:
            try:
                await publisher.publish("c1", update("x" * size))
                break
            except UsageError:  # a byte too long
                size -= 1
        await publisher.publish("c1", update("after"))
        await sink.until(lambda: sink.texts()[-1:] == ["after"])
    assert sink.texts() == ["x" * size, "after"]


async def test_runs_published_one_after_the_other_leave_the_loop_its_turns() -> None:
    settings = PublisherSettings(
        sending=SENDING, rate_bytes_s=RATE_MAX_BYTES_S, burst_bytes=BURST_MAX_BYTES
    )
    async with Publisher(channels(), ["c1"], settings) as publisher:
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        for number in range(20_000):
            await publisher.publish_many("c1", [update(str(number))])
        assert turned.is_set()


async def test_a_start_that_fails_leaves_the_epoch_as_it_was(tmp_path: Path) -> None:
    known, settings = channels(), PublisherSettings(sending=SENDING, state=tmp_path)
    numbers = []
    async with Publisher(known, [], settings) as publisher:
        numbers.append(await publisher.publish("c1", update("before")))
    taken = await asyncio.start_server(
        lambda reader, writer: None, *host_and_port(known.retransmissions["r"].server)
    )
    with pytest.raises(ConfigError, match="cannot listen"):
        async with Publisher(known, [], settings):
            pass
    taken.close()
    async with Publisher(known, [], settings) as publisher:
        numbers.append(await publisher.publish("c1", update("after")))
    assert numbers == [1, 2]


async def test_an_epoch_that_cannot_be_stored_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, settings = channels(count=3), PublisherSettings(sending=SENDING, state=tmp_path)
    write = EpochFile.write

    def written(self: EpochFile, kept: StoredEpoch) -> None:
        if kept.next and self.path.stem == "c2":
            raise ConfigError("the disk is full")
        write(self, kept)

    monkeypatch.setattr(EpochFile, "write", written)
    with pytest.raises(ConfigError, match="disk is full"):
        async with Publisher(known, [], settings):
            pass
    for id, following in (("c1", 1), ("c2", 0), ("c3", 1)):
        file = EpochFile(tmp_path, id)  # nobody holds it any more
        assert file.read().next == following
        file.close()


async def test_what_a_full_channel_does_not_take_is_counted() -> None:
    sending = SendingSettings(waiting_max=1, session=SENDING.session)
    slow = PublisherSettings(sending=sending, rate_bytes_s=200_000, burst_bytes=1)
    async with Publisher(channels(), ["c1"], slow) as publisher:
        for _ in range(100):
            publisher.sender("c1").repeat(b"8=FIX", 0)
        dropped = publisher.sender("c1").counts["dropped"]
        assert publisher.counts["dropped"] == dropped > 0


async def test_requests_by_multicast_come_in_where_the_answers_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = definition(by_topic=True).replace('"127.0.0.1"', '"127.0.0.2"')
    interfaces: list[str] = []
    monkeypatch.setattr(
        resend_service.ResendService, "join", lambda _, topic: interfaces.append(topic.interface)
    )
    for settings in (PublisherSettings(), PublisherSettings(interface="127.0.0.1")):
        async with Publisher(parse_channels(text, "definition"), [], settings):
            pass
    assert interfaces == ["127.0.0.2", "127.0.0.1"]


async def test_a_group_is_joined_before_what_it_brings_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []
    ask = Receiver._ask

    def noted(self: Receiver, channel: str, request: ResendRequest) -> None:
        joined.append(self.counts["groups_joined"])
        ask(self, channel, request)

    monkeypatch.setattr(Receiver, "_ask", noted)
    known, sink = channels(join="needed"), Sink()
    alone = replace(receiving(), requests=RequesterSettings(receivers=1))
    async with (
        Receiver(known, [], alone, sink.receive),
        Publisher(
            known, [], PublisherSettings(sending=SENDING), losing_once({b"text 2"})
        ) as publisher,
    ):
        for number in range(4):
            await publisher.publish("c1", update(f"text {number}"))
        await sink.until(lambda: len(sink.texts()) == 4)
    assert joined[0] == 1


async def test_an_error_over_an_answer_is_reported_and_ends_no_connection() -> None:
    answers = [Header().application(update(str(number)), number, 1) for number in (1, 2)]
    taken: list[bytes] = []
    reported: list[BaseException] = []
    both = asyncio.Event()

    def take(message: bytes) -> None:
        taken.append(message)
        if len(taken) == 1:
            raise Killed
        both.set()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(answers))

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context["exception"])
    )
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = receiver_module._Link(f"{host}:{port}", take)
    async with asyncio.timeout(SECONDS):
        await both.wait()
    await link.close()
    server.close()
    assert taken == answers
    assert [type(each) for each in reported] == [Killed]


def test_what_a_publisher_does_not_send_for_want_of_a_key_is_counted_while_it_runs() -> None:
    publisher = Publisher(channels(), ["c1"])
    publisher._counts["answers_dropped"] += 0
    output: Any = SimpleNamespace(
        sender=SimpleNamespace(counts=Counter()), lines=None, answers_sealer=None,
        sealer=SimpleNamespace(counts=Counter(no_key=2)),
    )  # fmt: skip
    publisher._outputs["c1"] = output
    assert dict(publisher.counts) == {"no_key": 2}


def vanished_ms(sock: socket.socket) -> int:
    """After what time without a sign of the other host a connection ends; 0: where it is idle,
    never."""
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return 0
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


async def test_both_ends_notice_that_the_other_host_has_vanished() -> None:
    known, sink = channels(), Sink()
    async with (
        Publisher(known, [], PublisherSettings(sending=SENDING)) as publisher,
        Receiver(known, [], receiving(), sink.receive) as receiver,
        asyncio.timeout(SECONDS),
    ):
        (service,), (link,) = publisher._services.values(), receiver._links.values()
        while not (service._clients and link._writer):
            await asyncio.sleep(0)
        (client,) = service._clients.values()
        for transport in (client._transport, link._writer.transport):
            sock = transport.get_extra_info("socket")
            assert vanished_ms(sock) == 1000 * resend_service.VANISHED_SECONDS


async def test_a_host_that_does_not_answer_is_connected_to_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, tries, connected = asyncio.open_connection, [0], asyncio.Event()

    async def second_only(*address: Any) -> Any:
        tries[0] += 1
        if tries[0] == 1:
            await asyncio.Event().wait()
        return await connect(*address)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()

    monkeypatch.setattr(receiver_module, "CONNECT_SECONDS", 0.01)
    monkeypatch.setattr(receiver_module.asyncio, "open_connection", second_only)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = receiver_module._Link(f"{host}:{port}", lambda message: None)
    async with asyncio.timeout(SECONDS):
        await connected.wait()
    await link.close()
    server.close()
