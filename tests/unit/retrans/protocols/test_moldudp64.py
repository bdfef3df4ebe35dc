"""MoldUDP64 requests: client and server face to face, and the client before a server that is not
what it should be. `test_udp` has exchanges by datagrams that get lost, doubled and late."""

import struct
from collections.abc import Sequence

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Broken, Event, Packet, Rejected
from feedhandler.retrans.protocol import RetransReject
from feedhandler.retrans.protocols.moldudp64 import MoldClient, MoldServer
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import by_datagrams, numbers, stored

FEED = load_feed("nasdaq-totalview-itch")
#: By the specification: session, first number, count; a message is a length and its bytes.
HEADER = struct.Struct(">10sQH")
SESSION, OTHER = b"000000001A", b"000000002B"
SERVICE = 3
MS = 1_000_000
#: A "system event", of 12 bytes; its tracking number tells which it is.
EVENT = struct.Struct(">HcHH6sc")


def message(number: int) -> bytes:
    return EVENT.pack(12, b"S", 0, number & 0xFFFF, bytes(6), b"O")


def packet(first: int, count: int, session: bytes = SESSION) -> bytes:
    return HEADER.pack(session, first, count) + b"".join(
        message(number) for number in range(first, first + count)
    )


def holding(runs: list[tuple[int, int]], bytes_max: int = 1 << 16) -> PacketStore:
    """A store with packets of these first numbers and counts."""
    return stored(FEED, [packet(*each) for each in runs], bytes_max)


def client(latest: Sequence[bytes] = (packet(1, 1),), **settings: int) -> MoldClient:
    return by_datagrams(MoldClient, FEED, SERVICE, latest, **settings)


def server(store: PacketStore, **settings: int) -> MoldServer:
    return MoldServer(ServerSetup(FEED, {SERVICE: store}, ServerSettings(**settings)))


def test_a_request_is_what_the_specification_says() -> None:
    asking = client()
    assert asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.data_to_send() == HEADER.pack(SESSION, 7, 3)
    assert asking.data_to_send() == b""


def test_a_range_of_many_datagrams_is_asked_for_part_by_part_until_it_is_whole() -> None:
    asking = client()
    serving = server(holding([(first, 7) for first in range(1, 701, 7)])).session("c", 0)
    asking.ask(Ask(1, SERVICE, 5, 505, 0), 0)
    events: list[Event] = []
    sizes = []
    while request := asking.data_to_send():
        answer = serving.feed(request, 0)
        sizes.append(len(answer))
        events += asking.feed(answer, 0)
    assert max(sizes) <= 1_400
    assert len(sizes) > 1
    assert numbers(events) == list(range(5, 505))
    assert events[0] == Accepted(1)
    assert events[-1] == Answered(1)
    assert (asking.outstanding, asking.counts["answered"]) == (0, 1)
    whole = b"".join(each.data[HEADER.size :] for each in events if isinstance(each, Packet))
    assert whole == b"".join(map(message, range(5, 505)))


@pytest.mark.parametrize(
    ("request_", "counted", "answer"),
    [
        (HEADER.pack(SESSION, 20, 5), "not_yet", b""),
        (HEADER.pack(OTHER, 5, 5), "wrong_session", b""),
        (HEADER.pack(SESSION, 5, 0), "badly_formed", b""),
        (HEADER.pack(SESSION, 5, 65_535), "badly_formed", b""),
        (HEADER.pack(SESSION, 0, 5), "badly_formed", b""),
        (HEADER.pack(SESSION, 5, 5)[:-1], "badly_formed", b""),
        (HEADER.pack(SESSION, 1, 2), "gone", HEADER.pack(SESSION, 1, 0)),
        (HEADER.pack(SESSION, 8, 9), "packets", packet(8, 2)),
        (HEADER.pack(SESSION, 18, 9), "packets", packet(18, 2)),
    ],
)
def test_the_server_answers_with_what_it_has_and_says_nothing_of_what_was_never_there(
    request_: bytes, counted: str, answer: bytes
) -> None:
    serving = server(holding([(5, 5), (15, 5)]))  # 10 to 14 are missing
    assert serving.session("c", 0).feed(request_, 0) == answer
    assert serving.counts[counted] == 1


@pytest.mark.parametrize(
    ("datagram", "counted"),
    [
        (packet(7, 3, OTHER), "wrong_session"),
        (packet(6, 3), "unasked_packet"),
        (packet(9, 2), "unasked_packet"),
        (packet(7, 3)[:-1], "bad_packets"),
        (packet(7, 3) + b"\0", "bad_packets"),
        (b"x" * 30, "bad_packets"),
    ],
)
def test_what_answers_no_request_is_counted_and_ignored(datagram: bytes, counted: str) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.feed(datagram, 0) == []
    assert asking.counts[counted] == 1
    assert numbers(asking.feed(packet(7, 3), 0)) == [7, 8, 9]


def test_a_packet_with_count_0_refuses_the_request_that_begins_there() -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 0)
    assert asking.feed(HEADER.pack(SESSION, 8, 0), 0) == []
    gone = RetransReject.NO_LONGER_AVAILABLE
    assert asking.feed(HEADER.pack(SESSION, 7, 0), 0) == [Rejected(1, gone)]
    assert asking.outstanding == 0


def test_a_silent_server_is_given_up_and_one_that_answers_is_not() -> None:
    asking = client(heartbeat_us=1_000, dead_us=50_000)
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 10 * MS)
    assert asking.deadline_ns == 60 * MS
    asking.feed(packet(7, 1), 40 * MS)
    assert asking.tick(60 * MS) == []
    assert asking.tick(90 * MS) == [Broken("the server has not answered for 50 ms")]
    assert not asking.up
    assert not asking.ask(Ask(2, SERVICE, 7, 10, 0), 91 * MS)
    asking.connected(100 * MS)
    assert asking.ask(Ask(3, SERVICE, 7, 10, 0), 100 * MS)
    asking.feed(packet(7, 3), 100 * MS)
    assert asking.tick(10_000 * MS) == []


def test_a_server_that_refused_all_that_was_asked_owes_nothing() -> None:
    asking = client(heartbeat_us=1_000, dead_us=50_000)
    asking.ask(Ask(1, SERVICE, 7, 10, 0), 10 * MS)
    asking.feed(HEADER.pack(SESSION, 7, 0), 20 * MS)
    assert asking.tick(10_000 * MS) == []
    assert asking.up


def test_it_asks_for_one_channel_of_a_feed_that_is_framed_so() -> None:
    two = (ChannelNames(1), ChannelNames(2))
    with pytest.raises(UsageError):
        MoldClient(ClientSetup(FEED, RecoverySettings(), "us", retransmission=two))
    with pytest.raises(UsageError):
        MoldServer(ServerSetup(load_feed("iex-deep"), {}, ServerSettings()))


def test_a_server_whose_answers_come_too_late_is_slow_but_not_silent() -> None:
    asking = client(dead_us=3_000_000, heartbeat_us=1_000_000)
    serving = server(holding([(1, 9)])).session("c", 0)
    for second in range(1, 10):
        now_ns = second * 1_000 * MS
        asking.ask(Ask(second, SERVICE, 1, 4, 0), now_ns)
        answer = serving.feed(asking.data_to_send(), now_ns)
        asking.cancel(second)
        assert asking.feed(answer, now_ns + 300 * MS) == []
        assert asking.tick(now_ns + 300 * MS) == []
    assert asking.up
    assert asking.counts["late_packets"] == 9
