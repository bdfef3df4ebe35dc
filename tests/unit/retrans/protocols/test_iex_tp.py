"""IEX-TP gap fill: the bytes of requests and answers, client and server face to face, each before
a peer that is not what it should be. `test_udp` has exchanges by datagrams that get lost."""

import random
import struct
from collections.abc import Sequence

import pytest

from feedhandler.codecs import list_feeds, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Broken, Packet
from feedhandler.retrans.protocols.iex_tp import (
    COUNTS,
    RANGES_MAX,
    GapFillClient,
    GapFillServer,
    SegmentCutter,
)
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.serving import DATAGRAMS_WAITING_MAX
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import by_datagrams, mutated, numbers, stored, whole
from tests.support.seeds import drawn

FEED = load_feed("iex-deep")
SERVICE, OTHER_SERVICE = 1, 2
SESSION, OTHER = 0x41000000, 0x42000000
PROTOCOL = 0x8004
MS = 1_000_000
#: A "system event", of 12 bytes with its length; its time tells which it is.
EVENT = struct.Struct("<HccQ")
#: Messages are as long as one another, so a number tells its offset.
SIZE = EVENT.size


def message(number: int) -> bytes:
    return EVENT.pack(SIZE - 2, b"S", b"S", number)


def packet(first: int, count: int, session: int = SESSION, channel: int = SERVICE) -> bytes:
    """By the specification: the header of an outbound segment, then messages."""
    body = b"".join(map(message, range(first, first + count)))
    return struct.pack(
        "<BxHIIHHqqq", 1, PROTOCOL, channel, session, len(body), count,
        (first - 1) * SIZE, first, 0,
    ) + body  # fmt: skip


def request(
    *ranges: tuple[int, int], kind: int = 1, session: int = SESSION, channel: int = SERVICE
) -> bytes:
    """Version, request type, protocol, channel, session, number of ranges, and the ranges."""
    header = struct.pack("<BBHIII", 1, kind, PROTOCOL, channel, session, len(ranges))
    return header + b"".join(struct.pack("<qq", *each) for each in ranges)


def holding(runs: list[tuple[int, int]], bytes_max: int = 1 << 16) -> PacketStore:
    """A store with segments of these first numbers and counts."""
    return stored(FEED, [packet(*each) for each in runs], bytes_max)


def client(latest: Sequence[bytes] = (packet(1, 1),), **settings: int) -> GapFillClient:
    return by_datagrams(GapFillClient, FEED, SERVICE, latest, **settings)


def server(store: PacketStore, **settings: int) -> GapFillServer:
    return GapFillServer(ServerSetup(FEED, {SERVICE: store}, ServerSettings(**settings)))


def answers(serving: GapFillServer, data: bytes) -> list[bytes]:
    """Every datagram that a request is answered with."""
    session = serving.session("c", 0)
    sent = [session.feed(data, 0)]
    while session.waiting:
        sent.append(session.tick(0))
    session.end()
    return [each for each in sent if each]


# -- the client -----------------------------------------------------------------------------------


def test_a_request_is_what_the_specification_says() -> None:
    asking = client()
    assert asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.data_to_send() == request((7, 9))
    assert asking.data_to_send() == b""


def test_the_feeds_of_iex_are_asked_by_it_and_no_others() -> None:
    named = {
        name
        for name in list_feeds()
        if (found := load_feed(name).recovery) and found.retransmission
        and found.retransmission.name == "iex-tp"
    }  # fmt: skip
    assert named == {"iex-deep", "iex-deep-plus", "iex-tops"}
    with pytest.raises(UsageError, match="IEX-TP"):
        GapFillServer(ServerSetup(load_feed("nasdaq-totalview-itch"), {}, ServerSettings()))


def test_an_answer_may_have_more_than_was_asked_for_and_is_cut_with_its_offset() -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.feed(packet(5, 4), 0) == [
        Accepted(1), Packet(1, SERVICE, 7, 9, packet(7, 2)),
    ]  # fmt: skip
    assert asking.feed(packet(9, 4), 0) == [
        Packet(1, SERVICE, 9, 10, packet(9, 1)), Answered(1),
    ]  # fmt: skip
    assert (asking.outstanding, asking.counts["answered"]) == (0, 1)


@pytest.mark.parametrize("cut", [(5, 9), (5, 6), (6, 8), (8, 9)])
def test_a_segment_that_is_cut_says_where_in_the_stream_it_begins(cut: tuple[int, int]) -> None:
    first, end = cut
    assert SegmentCutter(FEED).cut(packet(5, 4), first, end) == packet(first, end - first)


@pytest.mark.parametrize(
    ("datagram", "counted"),
    [
        (packet(7, 3, OTHER), "wrong_session"),
        (packet(7, 3, channel=OTHER_SERVICE), "wrong_channel"),
        (packet(20, 3), "others_packets"),
        (packet(7, 3)[:-1], "bad_packets"),
        (packet(7, 3) + b"\0", "bad_packets"),
        (b"x" * 50, "bad_packets"),
        (packet(7, 3).replace(b"\x04\x80", b"\x03\x80", 1), "bad_packets"),
    ],
)
def test_what_answers_no_request_is_counted_and_ignored(datagram: bytes, counted: str) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.feed(datagram, 0) == []
    assert asking.counts[counted] == 1
    assert numbers(asking.feed(packet(7, 3), 0)) == [7, 8, 9]


def test_an_answer_about_a_session_that_is_over_is_none() -> None:
    latest = [packet(1, 1)]
    asking = client(latest)
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    latest[0] = packet(1, 1, OTHER)
    assert asking.feed(packet(7, 3), 0) == []
    asking.ask(Ask(2, SERVICE, 7, 10, 0), 0)
    asking.data_to_send()
    assert asking.data_to_send() == request((7, 9), session=OTHER)
    assert numbers(asking.feed(packet(7, 3, OTHER), 0)) == [7, 8, 9, 7, 8, 9]


def test_a_server_that_owes_something_is_tested_and_given_up_when_it_shows_no_life() -> None:
    asking = client(heartbeat_us=20_000, dead_us=50_000)
    assert asking.tick(10 * MS) == []
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 10 * MS)
    asking.data_to_send()
    assert asking.deadline_ns == 30 * MS
    for at in (30, 50):
        assert asking.tick(at * MS) == []
        assert asking.data_to_send() == request()
    assert asking.tick(60 * MS) == [Broken("the server has not answered for 50 ms")]
    assert not asking.up
    assert asking.feed(packet(7, 3), 61 * MS) == []
    assert not asking.ask(Ask(2, SERVICE, 7, 10, 0), 61 * MS)
    counts = asking.counts
    assert (counts["tests"], counts["silent"], counts["broken"]) == (2, 1, 1)
    asking.connected(100 * MS)
    assert asking.ask(Ask(3, SERVICE, 7, 10, 0), 100 * MS)
    asking.disconnected(101 * MS)
    assert (asking.up, asking.outstanding) == (False, 0)


def test_a_server_that_answers_tests_is_not_given_up_though_it_has_not_what_was_asked() -> None:
    asking = client(heartbeat_us=20_000, dead_us=50_000)
    serving = server(holding([(50, 5)]))
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert answers(serving, asking.data_to_send()) == []
    for at in range(20, 400, 20):
        asking.tick(at * MS)
        if test := asking.data_to_send():
            (answer,) = answers(serving, test)
            assert asking.feed(answer, at * MS) == []
    assert asking.up
    assert asking.counts["tests_answered"] == asking.counts["tests"] > 5
    asking.cancel(1)
    asking.tick(400 * MS)
    for answer in answers(serving, asking.data_to_send()):
        asking.feed(answer, 400 * MS)
    assert asking.deadline_ns > 10**18, "it owes nothing, and is asked nothing"


def test_a_session_that_is_over_is_not_tested() -> None:
    latest = [packet(1, 1)]
    asking = client(latest, heartbeat_us=20_000, dead_us=50_000)
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    asking.data_to_send()
    latest[0] = b""
    assert asking.tick(20 * MS) == []
    assert asking.data_to_send() == b""


def test_it_has_no_snapshots() -> None:
    with pytest.raises(UsageError, match="no snapshots"):
        GapFillClient(ClientSetup(FEED, RecoverySettings(), "us", refresh=(ChannelNames(SERVICE),)))


# -- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "counted", "answer"),
    [
        (request(), "tests", [packet(20, 0)]),
        (request(kind=0), "tests", [packet(20, 0)]),
        (request((8, 9)), "packets", [packet(8, 2)]),
        (request((8, 16)), "packets", [packet(8, 2), packet(15, 2)]),
        (request((5, 6), (8, 9)), "packets", [packet(5, 2), packet(8, 2)]),
        (request((18, 99)), "packets", [packet(18, 2)]),
        (request((10, 14)), "gone", []),
        (request((1, 3)), "gone", []),
        (request((1, 3), (18, 18)), "gone", [packet(18, 1)]),
        (request((20, 24)), "not_yet", []),
        (request((8, 9), session=OTHER), "wrong_session", []),
        (request((8, 9), channel=OTHER_SERVICE), "wrong_session", []),
        (request((8, 9)).replace(b"\x04\x80", b"\x03\x80", 1), "wrong_session", []),
        (request((8, 9), kind=0), "wrong_type", []),
        (request((0, 9), kind=0), "wrong_type", []),
        (request((8, 9))[:-1], "badly_formed", []),
        (request((8, 9)) + b"\0", "badly_formed", []),
        (b"\2" + request((8, 9))[1:], "badly_formed", []),
        (request()[:-1], "badly_formed", []),
        (request((0, 5)), "badly_formed", []),
        (request((9, 8)), "badly_formed", []),
        (request((8, 9), (9, 10)), "badly_formed", []),
        (request((8, 9), (5, 6)), "badly_formed", []),
        (request((8, (1 << 63) - 1)), "badly_formed", []),
        (request(*[(n, n) for n in range(1, RANGES_MAX + 2)]), "badly_formed", []),
    ],
)
def test_the_server_answers_what_it_has_and_ignores_what_breaks_a_rule(
    data: bytes, counted: str, answer: list[bytes]
) -> None:
    serving = server(holding([(5, 5), (15, 5)]))  # 10 to 14 are missing
    assert answers(serving, data) == answer
    assert serving.counts[counted] >= 1


def test_nothing_is_known_of_a_channel_before_its_first_segment() -> None:
    serving = server(holding([]))
    assert answers(serving, request()) == []
    assert serving.counts["wrong_session"] == 1


def test_an_answer_has_as_many_messages_as_the_servers_bound_and_full_segments() -> None:
    serving = server(holding([(n, 1) for n in range(1, 1_001)], 1 << 20), request_packets_max=500)
    sent = answers(serving, request((11, 200), (301, 900)))
    assert max(map(len, sent)) <= 1_400 < 2 * min(map(len, sent[:1]))
    came = [number for each in sent for number in range(*_span(each))]
    assert came == [*range(11, 201), *range(301, 611)]
    assert serving.counts["messages"] == 500
    assert all(each == packet(_span(each)[0], _span(each)[1] - _span(each)[0]) for each in sent)
    assert answers(server(holding([(1, 9)]), request_packets_max=2), request((1, 2), (4, 5))) == [
        packet(1, 2)
    ]


def _span(data: bytes) -> tuple[int, int]:
    count, number = struct.unpack_from("<H8xq", data, 14)
    return number, number + count


def test_segments_that_wait_are_bounded_and_a_client_that_left_gets_none() -> None:
    serving = server(holding([(2 * n + 1, 1) for n in range(1_500)], 1 << 20))
    session = serving.session("c", 0)
    for _ in range(4):
        session.feed(request((1, 3_000)), 0)
    assert len(session.datagrams) <= DATAGRAMS_WAITING_MAX
    many = server(holding([(2 * n + 1, 1) for n in range(3_000)], 1 << 20),
                  request_packets_max=1 << 20)  # fmt: skip
    other = many.session("d", 0)
    other.feed(request((1, 5_999)), 0)
    other.feed(request((1, 5_999)), 0)
    assert many.counts["too_many_waiting"] == 1
    assert len(other.datagrams) == DATAGRAMS_WAITING_MAX - 1
    assert (other.waiting, other.deadline_ns) == (True, 0)
    other.end()
    assert (other.waiting, other.feed(request(), 0), other.tick(0)) == (False, b"", b"")


# -- both, and bytes of all kinds ------------------------------------------------------------------


@drawn(6)
def test_mutated_bytes_never_raise_and_nothing_is_handed_on_that_was_not_asked_for(
    seed: int,
) -> None:
    draw = random.Random(seed)
    asking = client()
    serving = server(holding([(n, 4) for n in range(1, 101, 4)]))
    wanted: set[int] = set()
    for request_id in range(1, 60):
        low = draw.randint(1, 90)
        asking.ask(Ask(request_id, SERVICE, low, low + draw.randint(1, 9), 0), request_id)
        sent = asking.data_to_send()
        wanted |= set(range(low, low + 9))
        for data in answers(serving, draw.choice([sent, mutated(sent, draw)])):
            for event in asking.feed(draw.choice([data, mutated(data, draw)]), request_id):
                assert not isinstance(event, Broken), f"seed {seed}"
                assert set(numbers([event])) <= wanted, f"seed {seed}: {whole([event])}"
    assert set(asking.counts) == set(COUNTS)
