"""The clients of FIX servers that a gateway's recovery speaks to."""

import random
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.fix.datagram import SEQUENCE_RESET
from feedhandler.codecs.fix.framing import Frame, frame_message
from feedhandler.codecs.loader import load_feed
from feedhandler.codecs.scanner import parse_header
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import Accepted, Answered, Broken, Packet, RefreshSnapshot
from feedhandler.retrans.fix.request import RequestFormat, ResendRequest
from feedhandler.retrans.fix.resend_client import (
    KEPT_MAX,
    KEPT_NS,
    RUN_BYTES_MAX,
    ResendClient,
    Topic,
    gap_fill,
)
from feedhandler.retrans.fix.state_client import fits, snapshot_of, trimmed
from feedhandler.retrans.requesting import REQUESTS_MAX
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore
from tests.support.fix_messages import sealed

FEED = load_feed("fix-marketdata")
FORM = RequestFormat()
MS = 1_000_000
SETTINGS = RecoverySettings(heartbeat_us=100_000, dead_us=300_000, request_packets_max=100)
#: Two channels of one server.
SERVICE, OTHER = 7, 8
TOPICS = {SERVICE: Topic("c1", b"c1"), OTHER: Topic("c2", b"two")}


def message(number: int, target: str = "c1", text: str = "", dup: bool = False) -> bytes:
    mark = "43=Y|" if dup else ""
    return sealed(f"35=X|{mark}34={number}|56={target}|55=A|58={text or number}|".encode())


def filled(first: int, end: int, target: str = "c1") -> bytes:
    return sealed(f"35=4|34={first}|56={target}|123=Y|36={end}|".encode())


def client(topics: dict[int, Topic] | None = None) -> ResendClient:
    """A client whose connection stands since 0."""
    made = ResendClient(TOPICS if topics is None else topics, SETTINGS)
    made.connected(0)
    return made


def asking(first: int, last: int, service: int = SERVICE, id: int = 1) -> ResendClient:
    """A client that waits for a range."""
    made = client()
    assert made.ask(Ask(id, service, first, last + 1, 0), 0)
    made.data_to_send()
    return made


def brief(events: list[Any]) -> list[tuple[Any, ...]]:
    """Events as tuples: packets by their numbers."""
    return [
        (type(each).__name__, each.sequence, each.next_sequence)
        if isinstance(each, Packet)
        else (type(each).__name__,)
        for each in events
    ]


def test_a_range_is_asked_for_by_its_channel_and_its_ends():
    made = client()
    assert made.ask(Ask(5, OTHER, 10, 13, 0), 0)
    assert FORM.decode(made.data_to_send()) == ResendRequest("c2", 10, 12)
    assert made.outstanding == 1
    assert made.counts["asked"] == 1


def test_messages_that_follow_one_another_are_one_packet_and_end_the_request():
    made = asking(3, 5)
    data = b"".join(message(number) for number in (3, 4, 5))
    events = made.feed(data, MS)
    assert brief(events) == [("Accepted",), ("Packet", 3, 6), ("Answered",)]
    assert events[1] == Packet(1, SERVICE, 3, 6, data)
    assert made.outstanding == 0


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([3, 5], [("Accepted",), ("Packet", 3, 4), ("Packet", 5, 6)]),
        ([5, 4, 3], [("Accepted",), ("Packet", 5, 6), ("Packet", 4, 5), ("Packet", 3, 4),
                     ("Answered",)]),
        ([3, 3, 4, 5], [("Accepted",), ("Packet", 3, 6), ("Answered",)]),
        ([1, 2, 3, 4, 5, 6], [("Accepted",), ("Packet", 3, 6), ("Answered",)]),
        ([6, 7], []),
    ],
)  # fmt: skip
def test_only_what_was_asked_for_is_handed_on_and_each_number_once(sent, expected):
    made = asking(3, 5)
    assert brief(made.feed(b"".join(message(number) for number in sent), MS)) == expected


@pytest.mark.parametrize(
    ("fill", "expected", "data"),
    [
        ((3, 6), (3, 6), filled(3, 6)),
        ((3, 5), (3, 5), filled(3, 5)),
        ((1, 5), (3, 5), gap_fill(3, 5)),
        ((4, 1000), (4, 6), gap_fill(4, 6)),
        ((1, 2**64 - 1), (3, 6), gap_fill(3, 6)),
    ],
)
def test_of_a_gap_fill_only_what_was_asked_for_is_skipped(fill, expected, data):
    made = asking(3, 5)
    packets = [each for each in made.feed(filled(*fill), MS) if isinstance(each, Packet)]
    assert [(each.sequence, each.next_sequence, each.data) for each in packets] == [
        (*expected, data)
    ]
    frame = Frame()
    assert frame_message(packets[0].data, 0, len(packets[0].data), frame) == 0
    assert (frame.message_type, frame.sequence) == (SEQUENCE_RESET, expected[0])


def test_a_packet_is_no_longer_than_a_datagram():
    made = asking(1, 40)
    sent = [message(number, text="x" * 200) for number in range(1, 41)]
    packets = [each for each in made.feed(b"".join(sent), MS) if isinstance(each, Packet)]
    assert all(len(each.data) <= RUN_BYTES_MAX for each in packets)
    assert b"".join(each.data for each in packets) == b"".join(sent)
    assert len(packets) < 10


def test_possible_duplicates_have_the_bytes_that_were_published():
    made = asking(3, 3)
    events = made.feed(message(3, dup=True), MS)
    assert events[1] == Packet(1, SERVICE, 3, 4, message(3))


def test_channels_are_told_apart_by_their_targets():
    made = client()
    made.ask(Ask(1, SERVICE, 3, 4, 0), 0)
    made.ask(Ask(2, OTHER, 3, 4, 0), 0)
    events = made.feed(message(3, "two") + message(3, "c3") + message(3, "c1"), MS)
    assert [each.service for each in events if isinstance(each, Packet)] == [OTHER, SERVICE]
    assert made.counts["other_channels"] == 1


def test_one_channel_alone_needs_no_target():
    made = client({SERVICE: Topic("c1", b"c1")})
    made.ask(Ask(1, SERVICE, 3, 4, 0), 0)
    assert brief(made.feed(sealed(b"35=X|34=3|55=A|"), MS)) == [
        ("Accepted",), ("Packet", 3, 4), ("Answered",)
    ]  # fmt: skip


def test_channels_that_nothing_tells_apart_are_refused():
    with pytest.raises(UsageError, match="cannot be distinguished"):
        ResendClient({1: Topic("c1", b"t"), 2: Topic("c2", b"t")}, SETTINGS)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400\r\n", b"8=FIXT.1.1\x019=x\x01"])
def test_a_server_that_sends_something_else_is_given_up(data):
    made = asking(3, 5)
    assert isinstance(made.feed(message(3) + data, MS)[-1], Broken)
    assert not made.up
    assert made.counts["not_fix"] == 1


def test_however_the_bytes_are_cut_the_same_is_handed_on(seed):
    rng = random.Random(seed)
    data = b"".join(message(number, text="x" * rng.randrange(90)) for number in range(1, 60))
    data = data[: len(data)] + filled(60, 80) + b"".join(map(message, range(80, 90)))
    made = asking(1, 89)
    got, at = [], 0
    while at < len(data):
        end = at + rng.randint(1, 300)
        got += made.feed(data[at:end], MS)
        at = end
    joined = b"".join(each.data for each in got if isinstance(each, Packet))
    assert joined == data
    assert isinstance(got[-1], Answered)
    assert sum(isinstance(each, Accepted) for each in got) == 1


# -- states of books ----------------------------------------------------------------------


@pytest.mark.parametrize(("first", "kept"), [(1, [3, 4, 5]), (4, [4, 5]), (5, [5]), (6, [])])
def test_of_a_packet_only_what_is_behind_a_state_follows_it(first, kept):
    packet = b"".join(message(number) for number in (3, 4, 5))
    assert trimmed(packet, first) == b"".join(message(number) for number in kept)


def test_a_state_becomes_packets_of_messages_that_are_numbered_within_it():
    texts = ["a", "b" * 900, "c" * 900, "d" * 3000, "e"]
    states = tuple(sealed(f"35=W|34=0|50=9|369=77|55={text}|".encode()) for text in texts)
    snapshot = snapshot_of(RefreshSnapshot(1, SERVICE, 77, states))
    assert (snapshot.last, snapshot.messages, snapshot.service) == (77, 5, SERVICE)
    assert [len(each) > RUN_BYTES_MAX for each in snapshot.packets] == [False, False, True, False]
    header, at = PacketHeader(), 1
    for packet in snapshot.packets:
        assert parse_header(FEED.table, packet, 0, len(packet), header) == 0
        assert (header.sequence, header.next_sequence) == (at, at + header.count)
        at += header.count
    assert at == 6


@pytest.mark.parametrize(
    ("said", "published", "expected"),
    [(b"50=9|", b"50=9|", True), (b"50=9|", b"50=8|", False), (b"", b"50=8|", True),
     (b"50=9|", b"", True), (b"50=9|", None, True)],
)  # fmt: skip
def test_a_state_of_another_epoch_does_not_fit(said, published, expected):
    state = sealed(b"35=W|34=0|" + said + b"369=3|55=A|")
    store = PacketStore(1 << 16)
    if published is not None:
        data = sealed(b"35=X|34=3|" + published + b"55=A|")
        store.append(3, 4, data, 0, len(data))
    assert fits(snapshot_of(RefreshSnapshot(1, SERVICE, 3, (state,))), store) == expected


# -- a retransmission group ---------------------------------------------------------------


def test_what_a_group_brought_before_it_was_missed_is_not_asked_for():
    made = client()
    data = message(3) + message(4)
    assert made.datagram(data, 0) == []
    assert made.ask(Ask(1, SERVICE, 3, 5, 0), 10 * MS)
    assert made.data_to_send() == b""
    assert made.deadline_ns == 0
    assert made.tick(10 * MS)[1] == Packet(1, SERVICE, 3, 5, data)
    assert (made.counts["spared"], made.counts["asked"]) == (1, 0)


def test_what_a_group_did_not_bring_is_asked_for():
    made = client()
    made.datagram(message(3) + message(6), 0)
    made.ask(Ask(1, SERVICE, 3, 8, 0), 10 * MS)
    assert FORM.decode(made.data_to_send()) == ResendRequest("c1", 4, 7)
    assert brief(made.datagram(message(4) + message(5) + message(7), 20 * MS)) == [
        ("Accepted",), ("Packet", 3, 4), ("Packet", 6, 7), ("Packet", 4, 6), ("Packet", 7, 8),
        ("Answered",),
    ]  # fmt: skip


@pytest.mark.parametrize(("now_ns", "epoch"), [(KEPT_NS + MS, 0), (MS, 1)])
def test_what_is_old_or_of_another_epoch_is_not_used(now_ns, epoch):
    made = client()
    made.ask(Ask(1, SERVICE, 1, 2, 0), 0)
    made.datagram(message(3), 0)
    made.ask(Ask(2, SERVICE, 3, 4, epoch), now_ns)
    assert made.counts["asked"] == 2


def test_what_came_before_a_new_epoch_is_not_used_for_the_first_loss_of_all_either():
    made = client()
    made.datagram(message(3), 0)
    made.ask(Ask(1, SERVICE, 3, 4, 1), MS)
    assert made.counts["asked"] == 1


def test_a_group_that_brings_what_is_not_missing_costs_a_bounded_memory():
    made = client()
    for number in range(1, 3 * KEPT_MAX):
        made.datagram(message(number), number)
    assert len(made._kept[SERVICE].messages) == KEPT_MAX
    assert made._kept[SERVICE].size == sum(
        len(each[1]) for each in made._kept[SERVICE].messages.values()
    )


@pytest.mark.parametrize(("data", "name"), [(b"FS" + bytes(60), "sealed"), (b"garbage", "not_fix")])
def test_datagrams_that_cannot_be_read_are_counted_by_kind(data, name):
    made = asking(3, 3)
    assert made.datagram(data, 0) == []
    assert made.counts[name] == 1
    assert made.up


# -- the connection -----------------------------------------------------------------------


def test_a_server_that_answers_tests_is_dead_when_it_falls_silent():
    made = client()
    assert made.tick(100 * MS) == []
    answer = FORM.reply(made.data_to_send())
    assert answer is not None
    assert made.feed(answer, 110 * MS) == []
    assert isinstance(made.tick(410 * MS)[-1], Broken)
    assert made.counts["silent"] == 1


def test_of_a_server_that_never_answers_tests_silence_says_nothing():
    made = client()
    for now_ms in range(100, 5000, 100):
        assert made.tick(now_ms * MS) == []
    assert made.up
    assert made.counts["heartbeats_sent"] == 49


def test_a_test_of_the_server_is_answered():
    made = client()
    made.feed(FORM.test(), MS)
    assert b"\x0135=0\x01" in made.data_to_send()


def test_without_a_connection_nothing_is_asked():
    made = client()
    made.disconnected(MS)
    assert not made.ask(Ask(1, SERVICE, 3, 4, 0), MS)
    assert made.counts["not_asked"] == 1
    assert not made.ask_refresh(AskRefresh(2, SERVICE), MS)


def test_requests_are_bounded_and_what_is_cancelled_is_late():
    made = client()
    for number in range(REQUESTS_MAX):
        assert made.ask(Ask(number, SERVICE, number + 1, number + 2, 0), 0)
    assert not made.ask(Ask(REQUESTS_MAX, SERVICE, 9, 10, 0), 0)
    made.cancel(0)
    made.cancel(0)
    assert made.counts["cancelled"] == 1
    assert made.feed(message(1), MS) == []
    assert made.counts["late_packets"] == 1


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Ask(1, SERVICE, 5, 5, 0), "a request for 0 messages"),
        (Ask(1, SERVICE, 5, 106, 0), "a request for 101 messages"),
        (Ask(9, SERVICE, 5, 6, 0), "request 9 is under way"),
    ],
)
def test_requests_that_make_no_sense_are_refused(request_, why):
    made = asking(1, 1, id=9)
    with pytest.raises(UsageError, match=why):
        made.ask(request_, 0)
