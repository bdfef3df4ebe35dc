"""The gateway's core with nothing around it: what goes where, recorded by its I/O."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from feedhandler.config import Config, loopback_config
from feedhandler.gateway import GatewayCore
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.retrans import StreamEvent, StreamEventKind
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import RefreshAccepted
from tests.support.amqp import FEED, FakeLink, packet

CONTROL_KINDS = [kind for kind in RecordKind if kind not in (RecordKind.PACKET, RecordKind.PAD)]
NOW_NS = 1_795_000_000_000_000_000
#: Channels of the ring: two live ones, and the refresh lines of the second.
LIVE, OTHER, REFRESH = range(3)


class Io:
    """The core's `GatewayIO`: notes what was done."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.reported: list[str] = []
        self.room = True

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        self.done.append(("fill", channel_index, data, epoch))
        return self.room

    def give_up(self, channel_index: int, until: int, epoch: int) -> bool:
        self.done.append(("give up", channel_index, until, epoch))
        return self.room

    def flush_soon(self) -> None:
        self.done.append(("flush",))

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        self.done.append(("wake",))

    def line_changed(self, kind: int, channel_index: int, line: int) -> None:
        self.done.append(("line", kind, channel_index, line))

    def renumbered(self) -> None:
        self.done.append(("renumbered",))

    def report(self, text: str) -> None:
        self.reported.append(text)


class Inside:
    """A core of two services, the second one with refresh lines, and a link that takes all."""

    def __init__(self, symbols: str = "index", **amqp: Any) -> None:
        full = loopback_config(services=(101, 104), with_servers=True)
        first, second = full.channels
        config = Config(
            channels=(
                type(first)(service=101, lines=first.lines, retransmission="rts"),
                second,
            ),
            servers=full.servers,
            gateway=type(full.gateway)(feed=FEED.name, symbols=symbols),
            amqp=type(full.amqp)(**amqp),
        )
        self.io = Io()
        self.ring = Ring()
        self.core = GatewayCore(config, FEED, self.ring, self.io, NOW_NS, seed=1)
        self.peer = Peer(self.core.fanout.dirty_peers)
        self.sender_queue, self.link = self.attach("euronext.#")

    def attach(self, address: str) -> tuple[SenderQueue, FakeLink]:
        link = FakeLink()
        subscription = parse_address(address, FEED.type_code, snapshots=True)
        sender_queue = SenderQueue(self.peer, link, subscription, 1 << 20, 65_536)
        self.core.fanout.add(sender_queue)
        return sender_queue, link

    def put(self, kind: int, channel: int, sequence: int, following: int, **more: Any) -> None:
        assert self.ring.put(
            kind, channel=channel, sequence=sequence, next_sequence=following, **more
        )
        self.ring.publish()

    def publish(
        self, sequence: int, channel: int = LIVE, messages: list[bytes] | None = None
    ) -> bytes:
        data = packet(sequence, messages, (101, 104, 104)[channel])
        count = len(FEED.decode_packet(data).messages)
        self.put(RecordKind.PACKET, channel, sequence, sequence + 1, payload=data, count=count)
        return data

    def pump(self) -> None:
        assert not self.core.pump(1 << 20, NOW_NS)

    def numbers(self) -> list[int]:
        """Of the live packets that the link was sent."""
        return [each.sequence for each in self.link.data]

    def reasons(self, link: FakeLink | None = None) -> list[str]:
        """Of the quality messages."""
        notes = [each for each in (link or self.link).sent if each.content == "quality+json"]
        return [json.loads(each.body)["reason"] for each in notes]

    def notes(self, name: str) -> list[tuple[Any, ...]]:
        return [about for what, *about in self.io.done if what == name]  # type: ignore[misc]


def named(symbol: int, name: str) -> bytes:
    """Reference data that names a symbol."""
    (reference,) = FEED.references.values()
    fields = {each.at: each.name for each in FEED.layouts[reference.code][0].named}
    at = fields[reference.index.at], fields[reference.name[0].at]
    return FEED.encode_message(reference.code, **dict(zip(at, (symbol, name), strict=True)))


def test_the_events_of_a_stream_have_the_numbers_and_names_of_the_rings() -> None:
    named = {kind.name: kind.value for kind in CONTROL_KINDS}
    assert {kind.name: kind.value for kind in StreamEventKind} == named


@pytest.fixture
def inside() -> Inside:
    return Inside()


@pytest.mark.parametrize("kind", CONTROL_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("channel", "live"), [(LIVE, LIVE), (OTHER, OTHER), (REFRESH, OTHER)])
def test_every_control_event_of_the_ring_is_recoverys(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, kind: RecordKind, channel: int, live: int
) -> None:
    heard: list[tuple[Any, ...]] = []
    for name in ("stream_event", "refresh_line_event"):
        monkeypatch.setattr(
            inside.core.recovery, name, lambda *about, name=name: heard.append((name, *about))
        )
    inside.put(kind, channel, 5, 7, line=1, auxiliary=9)
    inside.pump()
    if channel < REFRESH:
        event = StreamEvent(StreamEventKind(kind), live, 1, 5, 7, 9)
        assert heard == [("stream_event", event, NOW_NS)]
    else:
        assert heard == [("refresh_line_event", live, StreamEventKind(kind), NOW_NS)]
    # The observer of the lines hears it first, and recovery's deadline may have moved.
    assert inside.io.done == [("line", kind, channel, 1), ("wake",)]


def test_packets_of_refresh_lines_are_recoverys_and_those_of_live_lines_the_links(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[Any, ...]] = []
    monkeypatch.setattr(inside.core.recovery, "refresh_packet", lambda *about: heard.append(about))
    inside.publish(1)
    data = inside.publish(3, REFRESH)
    inside.pump()
    assert heard == [(OTHER, 3, data, NOW_NS)]
    assert inside.numbers() == [1]
    assert inside.io.done == [("wake",)]


@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
def test_events_are_applied_between_the_packets_they_stand_between(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    story: list[Any] = []
    for name in ("stream_event", "refresh_packet"):
        monkeypatch.setattr(
            inside.core.recovery,
            name,
            lambda *about, name=name: story.append((name, inside.numbers())),
        )
    inside.publish(1)
    inside.put(RecordKind.GAP_NOTICED, LIVE, 2, 3)
    inside.put(RecordKind.MISSING, LIVE, 2, 3)
    inside.publish(9, REFRESH)
    inside.publish(3)
    inside.put(RecordKind.CLOSED, LIVE, 4, 4)
    inside.publish(4)
    while inside.core.pump(bytes_max, NOW_NS):
        pass
    assert story == [
        ("stream_event", [1]),
        ("stream_event", [1]),
        ("refresh_packet", [1]),
        ("stream_event", [1, 3]),
    ]
    assert inside.numbers() == [1, 3, 4]


def test_who_applies_an_event_cannot_pump_the_same_fan_out(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanout = inside.core.fanout
    monkeypatch.setattr(
        inside.core.recovery, "stream_event", lambda event, now_ns: fanout.pump(1 << 20)
    )
    inside.put(RecordKind.MISSING, LIVE, 2, 3)
    inside.publish(3)
    with pytest.raises(RuntimeError, match="not applied"):
        inside.pump()
    assert inside.numbers() == []


def test_an_event_that_could_not_be_applied_is_the_next_shares_first(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[StreamEvent] = []

    def fail(event: StreamEvent, now_ns: int) -> None:
        raise ZeroDivisionError

    inside.publish(1)
    inside.put(RecordKind.MISSING, LIVE, 2, 3)
    inside.publish(3)
    monkeypatch.setattr(inside.core.recovery, "stream_event", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            inside.pump()
    monkeypatch.setattr(
        inside.core.recovery, "stream_event", lambda event, now_ns: applied.append(event)
    )
    inside.pump()
    assert applied == [StreamEvent(StreamEventKind.MISSING, LIVE, 0, 2, 3)]
    assert inside.numbers() == [1, 3], "no packet twice"


def test_a_closed_stream_keeps_its_packets_until_it_is_opened_with_them(inside: Inside) -> None:
    core, store = inside.core, inside.core.recovery.store(OTHER)
    assert store is not None
    core.close_stream(OTHER)
    for sequence in (5, 6):
        inside.publish(sequence, OTHER)
    inside.pump()
    assert (inside.numbers(), core.next_sequence(OTHER), store.end) == ([], 0, 7)
    core.open_stream(OTHER, store.packets(5, 7), 5)
    inside.publish(7, OTHER)
    inside.pump()
    assert (inside.numbers(), core.next_sequence(OTHER)) == ([5, 6, 7], 8)


def test_who_is_withheld_gets_nothing_until_admitted_and_who_has_left_never(
    inside: Inside,
) -> None:
    core = inside.core
    core.withhold(LIVE, inside.sender_queue)
    inside.publish(1)
    inside.pump()
    core.admit(LIVE, inside.sender_queue)
    inside.publish(2)
    inside.pump()
    assert inside.numbers() == [2]
    core.fanout.remove(inside.sender_queue)
    assert not core.is_here(inside.sender_queue)
    core.admit(LIVE, inside.sender_queue)
    inside.publish(3)
    inside.pump()
    assert inside.numbers() == [2]


def test_quality_and_blocks_go_to_all_whom_they_concern_or_to_those_named(inside: Inside) -> None:
    late, link = inside.attach("euronext.104?snapshot=1")
    quality = inside.core.qualities[OTHER]
    inside.core.quality(OTHER, quality.awaiting_snapshot(), [late])
    begin, end = quality.snapshot_begin(4, 1), quality.snapshot_end(5, heals=False)
    inside.core.block(OTHER, begin, [packet(9)], 4, end, [late])
    assert inside.reasons() == []
    assert inside.reasons(link) == ["snapshot", "snapshot-begin", "snapshot-end"]
    inside.core.block(OTHER, begin, [packet(9)], 4, end, None)
    assert inside.reasons() == ["snapshot-begin", "snapshot-end"]
    assert [each.block_position for each in inside.link.data] == [(4, 0)]


def test_what_finds_no_room_on_its_way_to_the_receive_thread_is_counted(inside: Inside) -> None:
    for room in (True, False):
        inside.io.room = room
        inside.core.fill(OTHER, b"packet", 3)
        inside.core.give_up(OTHER, 12, 3)
    assert inside.notes("fill") == [[OTHER, b"packet", 3]] * 2
    assert inside.notes("give up") == [[OTHER, 12, 3]] * 2
    assert inside.core.recovery_snapshot(NOW_NS)["inlet_full"] == 2


@pytest.mark.parametrize(
    ("server", "ask"),
    [
        ("rts", lambda core: core.ask("rts", Ask(1, 101, 5, 7, 0), NOW_NS)),
        ("rfs", lambda core: core.ask_refresh("rfs", AskRefresh(1, 104), NOW_NS)),
    ],
)
def test_requests_are_made_of_the_server_that_the_channel_names(
    inside: Inside, server: str, ask: Callable[[GatewayCore], None]
) -> None:
    clients = inside.core.servers
    for each in clients.values():
        each.made(NOW_NS)
    ask(inside.core)
    assert {name: each.client.outstanding for name, each in clients.items()} == {
        "rts": int(server == "rts"),
        "rfs": int(server == "rfs"),
    }
    inside.core.cancel(server, 1)
    assert clients[server].client.outstanding == 0


@pytest.mark.parametrize(
    "happens",
    [
        lambda inside: inside.core.attached(inside.sender_queue, inside.core.streams, NOW_NS),
        lambda inside: inside.core.tick(NOW_NS),
        lambda inside: inside.core.servers["rts"].made(NOW_NS),
        lambda inside: inside.core.servers["rts"].lost("refused", NOW_NS),
        lambda inside: inside.core._on_events("rfs", [], NOW_NS),
    ],
    ids=["attached", "tick", "up", "down", "events"],
)
def test_whatever_may_fill_links_outside_a_pump_has_them_written_and_the_timer_set(
    inside: Inside, happens: Callable[[Inside], None]
) -> None:
    happens(inside)
    assert inside.io.done[-2:] == [("flush",), ("wake",)]


def test_a_new_epoch_is_announced_before_anything_of_it_is_sent(inside: Inside) -> None:
    sent: list[int] = []
    inside.io.renumbered = lambda: sent.append(len(inside.link.frames))  # type: ignore[method-assign]
    inside.put(RecordKind.RESET, LIVE, 1, 1)
    inside.pump()
    assert (sent, inside.reasons()) == ([0], ["reset"])


def test_at_the_end_closed_streams_are_published_honestly_stale(inside: Inside) -> None:
    inside.put(RecordKind.START, OTHER, 50, 50)
    inside.publish(50, OTHER)
    inside.pump()
    assert inside.numbers() == []
    inside.core.finish(NOW_NS)
    assert inside.numbers() == [50]
    assert inside.reasons()[-1] == "stopping"


def test_a_server_that_takes_every_connection_and_drops_it_is_reported_once(inside: Inside) -> None:
    core, reported = inside.core, inside.io.reported
    server = core.servers["rfs"]
    for _ in range(50):
        server.made(NOW_NS)
        server.lost("the server closed it", NOW_NS)
    assert reported == ["server rfs: the server closed it; connecting again"]
    server.made(NOW_NS)
    core._on_events("rfs", [RefreshAccepted(1)], NOW_NS)
    server.lost("the server closed it", NOW_NS)
    assert len(reported) == 2
    for _ in range(2):
        core.alert("service 1: refused", NOW_NS)
    assert len(reported) == 3
    counts = core.recovery_snapshot(NOW_NS)
    assert (counts["untold"], counts["disconnects"]) == (50, 51)


@pytest.mark.parametrize(
    ("symbols", "before", "after"),
    [("index", ("5", None), ("5", "{}")), ("name", ("5", None), ("{}", "5"))],
)
def test_reference_data_names_symbols_until_the_trading_day_turns(
    symbols: str, before: tuple[str, str | None], after: tuple[str, str]
) -> None:
    inside = Inside(symbols, max_symbols=1)
    core = inside.core

    def words(symbol: int = 5) -> tuple[str, str | None]:
        return core.name_of(symbol), core.alias_of(symbol)

    inside.publish(1)
    inside.pump()
    assert words() == before
    definitions = [named(7, ""), named(5, "A.B"), named(5, "A.B"), named(6, "C")]
    for sequence, message in enumerate(definitions, 2):
        inside.publish(sequence, LIVE, [message])
    inside.pump()
    (word,) = core.names.values()
    assert "." not in word
    assert words() == tuple(each.format(word) for each in after)
    assert words(6) == ("6", None), "no more than max_symbols have names"
    assert not core.turn_day(core.day.turns_ns - 1)
    assert core.turn_day(core.day.turns_ns)
    assert words() == before


def test_the_operator_is_alerted_again_on_the_next_trading_day() -> None:
    inside = Inside()
    for _ in range(2):
        inside.core.alert("service 101: no more requests today", 0)
    assert inside.core.turn_day(inside.core.day.turns_ns)
    inside.core.alert("service 101: no more requests today", 0)
    assert inside.io.reported == ["service 101: no more requests today"] * 2


@pytest.mark.parametrize("kept", [False, True])
def test_books_and_a_history_are_kept_only_where_they_are_configured(kept: bool) -> None:
    core = Inside(conflate=kept, history_bytes=(1 << 18) * kept).core
    assert (core.fanout.book_cache is not None) == kept
    # The history is in the store that recovery has, where it has one.
    for channel_index, stream in enumerate(core.streams):
        assert (stream.history is not None) == kept
        assert stream.store is core.recovery.store(channel_index) or (
            kept and channel_index == LIVE
        )
