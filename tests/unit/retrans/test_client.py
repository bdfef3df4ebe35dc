"""The request client: what it asks and tells; wrong answers break nothing but themselves."""

import random
import zlib
from dataclasses import dataclass, field

import pytest

from feedhandler.codecs import UsageError, load_feed
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import (
    COUNTS,
    GRANTED_RANGES_MAX,
    REQUESTS_MAX,
    RequestClient,
)
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Broken,
    Event,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.protocol import (
    NEVER_NS,
    Heartbeat,
    HeartbeatReply,
    RefreshRequest,
    Response,
    RetransRequest,
    StreamFramer,
)
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from tests.support.retrans import (
    FEED,
    MS,
    NOON_NS,
    PROTOCOL,
    Pair,
    filled,
    live_packet,
    publish,
    refresh_packet,
    sent_again,
)
from tests.support.seeds import drawn


@dataclass
class Lone:
    """A client whose server is the test itself."""

    settings: RecoverySettings = field(default_factory=RecoverySettings)

    def __post_init__(self) -> None:
        self.now = NOON_NS
        self.client = RequestClient(FEED, "ME", self.settings)
        self.client.connected(self.now)
        self.number = 0

    def ask(self, request_id: int, first: int, end: int, service: int = 104, epoch: int = 0) -> int:
        """Ask; the PacketSeqNum that the request went out with."""
        assert self.client.ask(Ask(request_id, service, first, end, epoch), self.now)
        self.number += 1
        return self.number

    def ask_refresh(self, request_id: int, service: int = 104) -> int:
        assert self.client.ask_refresh(AskRefresh(request_id, service), self.now)
        self.number += 1
        return self.number

    def feed(self, *packets: bytes) -> list[Event]:
        return self.client.feed(b"".join(packets), self.now)

    def sent(self) -> list:
        """Return the packets that the client has written, parsed."""
        stream = StreamFramer(FEED).feed(self.client.data_to_send())
        return [PROTOCOL.read(packet) for packet in stream]


def answer(
    number: int, reason: int = 0, service: int = 104, who: str = "ME", refresh: bool = False
) -> bytes:
    return PROTOCOL.response(Response(refresh, number, service, who, reason), NOON_NS)


def got(request_id: int, number: int, service: int = 104) -> Packet:
    return Packet(request_id, service, number, number + 1, sent_again(number, service))


@pytest.fixture
def lone() -> Lone:
    return Lone()


def test_requests_go_out_numbered_with_inclusive_ranges(lone: Lone) -> None:
    lone.ask(70, 5, 8)
    lone.ask_refresh(71, 105)
    packets = StreamFramer(FEED).feed(lone.client.data_to_send())
    assert [PROTOCOL.read(packet) for packet in packets] == [
        RetransRequest(1, 104, 5, 8, "ME"),
        RefreshRequest(2, 105, "ME"),
    ]
    assert packets[0][16:24] == bytes.fromhex("00000005 00000007")
    assert lone.client.data_to_send() == b""
    assert lone.client.outstanding == 2
    assert lone.client.counts["asked"] == 2


def test_an_answer_is_reported_packet_by_packet(lone: Lone) -> None:
    number = lone.ask(70, 5, 7)
    assert lone.feed(answer(number)) == [Accepted(70)]
    assert lone.feed(sent_again(5)) == [got(70, 5)]
    assert lone.feed(sent_again(6)) == [got(70, 6), Answered(70)]
    assert lone.client.outstanding == 0


def test_packets_of_an_earlier_request_may_follow_a_later_response(lone: Lone) -> None:
    first, second = lone.ask(1, 5, 7), lone.ask(2, 5, 7, service=105)
    third = lone.ask(3, 10, 11)
    events = lone.feed(answer(first), answer(second, service=105), answer(third))
    assert events == [Accepted(1), Accepted(2), Accepted(3)]
    packets = sent_again(10), sent_again(6), sent_again(5, 105), sent_again(5), sent_again(6, 105)
    assert lone.feed(*packets) == [
        got(3, 10),
        Answered(3),
        got(1, 6),
        got(2, 5, 105),
        got(1, 5),
        Answered(1),
        got(2, 6, 105),
        Answered(2),
    ]


@pytest.mark.parametrize("reason", [*range(1, 8), 99])
def test_a_refusal_is_reported_with_its_reason(lone: Lone, reason: int) -> None:
    first, second = lone.ask(1, 5, 7), lone.ask_refresh(2)
    refusals = answer(first, reason), answer(second, reason, refresh=True)
    assert lone.feed(*refusals) == [Rejected(1, reason), RefreshRejected(2, reason)]
    assert lone.client.outstanding == 0
    assert lone.client.counts["rejected"] == 2


def test_a_refresh_may_come_over_the_connection_once_accepted(lone: Lone) -> None:
    number = lone.ask_refresh(1)
    packets = refresh_packet(900), refresh_packet(901)
    assert lone.feed(answer(number, refresh=True)) == [RefreshAccepted(1)]
    assert lone.feed(*packets) == [
        RefreshPacket(104, 900, packets[0]),
        RefreshPacket(104, 901, packets[1]),
    ]
    (broken,) = lone.feed(refresh_packet(1, service=105))
    assert isinstance(broken, Broken)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("too_large_inflated", zlib.compress(bytes(1 << 20))),
        ("malformed", bytes(50)),
        ("malformed", zlib.compress(bytes(50))),
        ("malformed", zlib.compress(b"\0\x02\x27\x10" * 3)[:-5]),
        ("malformed", zlib.compress(b"\0\x02\x27\x10" * 3) + b"more"),
    ],
    ids=["a bomb", "no zlib stream", "no messages", "cut off", "more behind it"],
)
def test_a_snapshot_that_cannot_be_read_breaks_the_connection(
    lone: Lone, name: str, body: bytes
) -> None:
    lone.feed(answer(lone.ask_refresh(1), refresh=True))
    bad = FEED.encode_packet(sequence=2, service=104, flags=17, count=3, body=body)
    fine, broken = lone.feed(refresh_packet(1), bad, refresh_packet(3))
    assert isinstance(fine, RefreshPacket)
    assert isinstance(broken, Broken)
    assert "snapshot" in broken.reason
    assert not lone.client.up
    assert lone.feed(refresh_packet(4)) == []
    counts = lone.client.counts
    assert (counts[name], counts["broken"], counts["refresh_packets"]) == (1, 1, 1)


def test_a_packet_that_comes_twice_is_handed_on_once(lone: Lone) -> None:
    lone.feed(answer(lone.ask(1, 5, 7)), sent_again(5))
    assert lone.feed(sent_again(5), sent_again(6)) == [got(1, 6), Answered(1)]
    assert lone.feed(sent_again(6)) == []
    assert lone.client.counts["late_packets"] == 2
    assert lone.client.counts["packets"] == 2


def test_what_answers_a_cancelled_request_is_late_not_wrong(lone: Lone) -> None:
    number = lone.ask(1, 5, 8)
    lone.client.cancel(1)
    lone.client.cancel(1)
    lone.client.cancel(999)
    assert lone.feed(answer(number), sent_again(5), sent_again(6)) == []
    refused = lone.ask(2, 9, 10)
    lone.client.cancel(2)
    refresh = lone.ask_refresh(3)
    lone.client.cancel(3)
    assert lone.feed(answer(refused, 5), answer(refresh, refresh=True)) == []
    assert lone.feed(refresh_packet(1)) == [RefreshPacket(104, 1, refresh_packet(1))]
    assert lone.client.up
    assert lone.client.counts["cancelled"] == 3
    assert lone.client.counts["late_packets"] == 2


def test_a_late_packet_serves_the_request_that_waits_for_it_now(lone: Lone) -> None:
    """A server that takes longer than the time-out must not be asked for the same for ever."""
    first = lone.ask(1, 5, 8)
    lone.client.cancel(1)
    second = lone.ask(2, 6, 10)
    assert lone.feed(answer(first), *map(sent_again, (5, 6, 7))) == [got(2, 6), got(2, 7)]
    assert lone.feed(answer(second), *map(sent_again, (6, 7, 8, 9))) == [
        Accepted(2),
        got(2, 8),
        got(2, 9),
        Answered(2),
    ]
    assert lone.client.counts["late_packets"] == 3


def test_a_late_packet_does_not_serve_a_request_of_another_epoch(lone: Lone) -> None:
    first = lone.ask(1, 5, 8)
    lone.client.cancel(1)
    second = lone.ask(2, 6, 8, epoch=1)
    assert lone.feed(answer(first), *map(sent_again, (5, 6, 7))) == []
    assert lone.feed(answer(second), *map(sent_again, (6, 7))) == [
        Accepted(2), got(2, 6), got(2, 7), Answered(2)
    ]  # fmt: skip
    assert lone.client.counts["late_packets"] == 3


def test_a_request_can_be_done_before_it_is_answered(lone: Lone) -> None:
    first = lone.ask(1, 5, 6)
    lone.client.cancel(1)
    second = lone.ask(2, 5, 6)
    assert lone.feed(answer(first), sent_again(5)) == [got(2, 5), Answered(2)]
    assert lone.feed(answer(second), sent_again(5)) == []
    assert lone.client.up


def wrong_answers() -> list[tuple[str, str, list[bytes]]]:
    """Return what a server may send wrong to requests 1 (5..9 of 104), accepted, and 2 (a refresh
    of 104), not answered yet: a word for it, the counter, the packets."""
    mangled = bytearray(sent_again(5))
    mangled[16:18] = b"\0\xff"
    missing = bytearray(sent_again(5))
    missing[15] = 3
    spare = bytearray(sent_again(5) + bytes(4))
    spare[1] += 4
    long = bytearray(sent_again(5))
    long[:2] = b"\x7f\xff"
    short = bytearray(sent_again(5))
    short[:2] = b"\0\x0c"
    status = bytearray(answer(2, refresh=True))
    status[40] = ord("X")
    return [
        ("an answer to a question never asked", "never_asked", [answer(3)]),
        ("an answer to no question", "never_asked", [answer(0)]),
        ("a second answer", "answered_twice", [answer(1)]),
        ("a refusal after all", "answered_twice", [answer(1, 5)]),
        ("the answer to another kind of question", "wrong_answer_type", [answer(2)]),
        ("a wrong service", "wrong_service", [answer(2, service=105, refresh=True)]),
        ("another client's SourceID", "wrong_source_id", [answer(2, who="YOU", refresh=True)]),
        ("no SourceID", "wrong_source_id", [answer(2, who="", refresh=True)]),
        ("a status that is none", "malformed_answer", [bytes(status)]),
        ("a packet below the range", "unasked_packet", [sent_again(4)]),
        ("a packet beyond the range", "unasked_packet", [sent_again(9), sent_again(10)]),
        ("a packet of another service", "unasked_packet", [sent_again(5, 105)]),
        ("a snapshot that was not asked for", "unasked_packet", [refresh_packet(1, 105)]),
        ("a snapshot before the response", "unasked_packet", [refresh_packet(1)]),
        ("a packet of the live stream", "wrong_flag", [live_packet(5)]),
        ("an unknown flag", "wrong_flag", [live_packet(5, flags=13)]),
        ("a message longer than its packet", "bad_messages", [bytes(mangled)]),
        ("fewer messages than declared", "bad_messages", [bytes(missing)]),
        ("more bytes than messages", "bad_messages", [bytes(spare)]),
        ("a length that lies upwards", "length_too_big", [bytes(long)]),
        ("a length that lies downwards", "length_too_small", [bytes(short)]),
        ("an unknown type", "unknown_type", [b"\0\x10\0\x63" + bytes(12)]),
        ("a truncated response", "wrong_body_size", [b"\0\x28" + answer(1)[2:40]]),
        ("a response with more to it", "wrong_body_size", [b"\0\x30" + answer(1)[2:] + bytes(4)]),
        ("a heartbeat with a body", "wrong_body_size", [b"\0\x12\0\x02" + bytes(14)]),
        ("a response of many", "wrong_count", [answer(1)[:15] + b"\2" + answer(1)[16:]]),
        (
            "a request",
            "wrong_direction",
            [PROTOCOL.retrans_request(RetransRequest(1, 104, 1, 2, "ME"), 0)],
        ),
        (
            "a refresh request",
            "wrong_direction",
            [PROTOCOL.refresh_request(RefreshRequest(1, 104, "ME"), 0)],
        ),
        ("a sequence reset", "wrong_direction", [FEED.encode_packet(kind="reset", sequence=1)]),
        ("another's heartbeat answer", "wrong_source_id", [PROTOCOL.heartbeat_reply("YOU", 0)]),
        ("another protocol", "length_too_big", [b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    ]


@pytest.mark.parametrize("share", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("name", "packets"),
    [(name, packets) for _, name, packets in wrong_answers()],
    ids=[words for words, *_ in wrong_answers()],
)
def test_a_wrong_answer_breaks_the_connection_and_is_reported_once(
    lone: Lone, name: str, packets: list[bytes], share: int
) -> None:
    number = lone.ask(1, 5, 10)
    lone.ask_refresh(2)
    stream = answer(number) + sent_again(8) + b"".join(packets) + sent_again(6)
    events = []
    for at in range(0, len(stream), share):
        events += lone.feed(stream[at : at + share])
    assert events[:2] == [Accepted(1), got(1, 8)]
    broken = [event for event in events if isinstance(event, Broken)]
    assert broken == events[-1:]
    assert broken[0].reason.startswith("the server sent ")
    assert got(1, 6) not in events
    assert lone.client.counts[name] == lone.client.counts["broken"] == 1
    assert not lone.client.up
    assert lone.client.deadline_ns == NEVER_NS
    assert lone.client.tick(NEVER_NS) == []


def test_the_next_connection_begins_with_a_clean_sheet(lone: Lone) -> None:
    lone.ask(1, 5, 10)
    lone.feed(sent_again(5)[:20])
    lone.client.disconnected(lone.now)
    assert lone.client.counts["cut_off"] == 1
    assert lone.client.data_to_send() == b""
    assert not lone.client.ask(Ask(2, 104, 5, 10, 0), lone.now)
    assert not lone.client.ask_refresh(AskRefresh(3, 104), lone.now)
    assert lone.client.counts["not_asked"] == 2
    assert lone.feed(sent_again(5)) == []
    lone.client.connected(lone.now)
    number = lone.ask(1, 5, 6) + 0
    assert number == 2
    assert lone.sent() == [RetransRequest(2, 104, 5, 6, "ME")]
    assert lone.feed(answer(2), sent_again(5)) == [Accepted(1), got(1, 5), Answered(1)]


def test_answers_to_an_earlier_connection_are_wrong(lone: Lone) -> None:
    number = lone.ask(1, 5, 10)
    lone.client.disconnected(lone.now)
    lone.client.connected(lone.now)
    (broken,) = lone.feed(answer(number))
    assert isinstance(broken, Broken)
    assert lone.client.counts["never_asked"] == 1


def test_heartbeats_are_answered_with_our_source_id(lone: Lone) -> None:
    assert lone.feed(PROTOCOL.heartbeat(0), PROTOCOL.heartbeat(0)) == []
    assert lone.sent() == [HeartbeatReply("ME")] * 2
    assert lone.client.counts["heartbeats"] == 2
    assert lone.feed(PROTOCOL.heartbeat_reply("ME", 0), PROTOCOL.heartbeat_reply("", 0)) == []


def test_a_silent_server_is_asked_for_a_sign_of_life_and_then_given_up() -> None:
    lone = Lone(RecoverySettings(heartbeat_us=1_000_000, dead_us=2_500_000))
    client = lone.client
    assert client.deadline_ns == NOON_NS + 1000 * MS
    assert client.tick(client.deadline_ns - 1) == []
    assert lone.sent() == []
    assert client.tick(client.deadline_ns) == []
    assert lone.sent() == [Heartbeat()]
    lone.now = NOON_NS + 1500 * MS
    lone.feed(PROTOCOL.heartbeat_reply("ME", 0))
    expected = [(2500, []), (3500, []), (4000, [Broken("the server was silent for 2500 ms")])]
    for when, events in expected:
        assert client.deadline_ns == NOON_NS + when * MS
        assert client.tick(client.deadline_ns) == events
    assert client.counts["silent"] == client.counts["broken"] == 1
    assert client.counts["heartbeats_sent"] == 3
    assert client.tick(NEVER_NS) == []


def test_a_server_that_accepts_and_sends_nothing_else_is_not_the_clients_matter(
    lone: Lone,
) -> None:
    lone.feed(answer(lone.ask(1, 5, 10)))
    for _ in range(20):
        lone.now += 900 * MS
        assert lone.feed(PROTOCOL.heartbeat(0)) == []
        assert lone.client.tick(lone.now) == []
    assert lone.client.up
    assert lone.client.outstanding == 1


@pytest.mark.parametrize("source_id", ["", "X" * 21, "Käse", " ME", "ME ", "a\nb", "a\0"], ids=repr)
def test_a_source_id_that_cannot_be_sent_is_refused(source_id: str) -> None:
    with pytest.raises(UsageError, match="SourceID"):
        RequestClient(FEED, source_id, RecoverySettings())


def test_a_feed_without_recovery_is_refused() -> None:
    with pytest.raises(UsageError, match="recovery"):
        RequestClient(load_feed("iex-deep"), "ME", RecoverySettings())


def test_a_request_id_may_be_used_again_once_it_is_answered(lone: Lone) -> None:
    number = lone.ask(1, 5, 6)
    lone.feed(answer(number), sent_again(5))
    lone.ask(1, 7, 8)


def test_numbers_that_do_not_fit_leave_nothing_behind(lone: Lone) -> None:
    with pytest.raises(UsageError):
        lone.client.ask(Ask(1, 104, 2**32, 2**32 + 1, 0), lone.now)
    assert lone.client.outstanding == 0
    assert lone.sent() == []


def test_a_server_that_answers_nothing_costs_a_bounded_memory(lone: Lone) -> None:
    first = lone.ask(0, 1, 2)
    for request_id in range(1, 3 * REQUESTS_MAX):
        lone.ask(request_id, 1, 2)
        lone.client.cancel(request_id)
    assert lone.feed(answer(first)) == [Accepted(0)]
    (broken,) = lone.feed(answer(first + 1))
    assert broken == Broken("the server sent another answer to request 2")


def test_a_server_that_accepts_and_never_sends_is_left_in_the_end(lone: Lone) -> None:
    for request_id in range(REQUESTS_MAX):
        assert lone.feed(answer(lone.ask(request_id, 1, 2))) == [Accepted(request_id)]
        lone.client.cancel(request_id)
    (broken,) = lone.feed(answer(lone.ask(9999, 1, 2)))
    assert isinstance(broken, Broken)
    assert lone.client.counts["never_sent"] == 1


def test_answers_that_a_server_cuts_short_do_not_pile_up(lone: Lone) -> None:
    for request_id in range(0, 2 * REQUESTS_MAX + 2, 2):
        cut = lone.ask(request_id, 5, 7)
        lone.feed(answer(cut), sent_again(5))
        lone.client.cancel(request_id)
        rest = lone.ask(request_id + 1, 6, 8)
        events = lone.feed(answer(rest), sent_again(6), sent_again(7))
        assert events[-1] == Answered(request_id + 1)
    assert lone.client.counts["never_sent"] == 0


def test_what_is_due_of_an_epoch_before_takes_no_packets_of_the_present_one(lone: Lone) -> None:
    lone.feed(answer(lone.ask(0, 5, 7)))
    for epoch in range(1, REQUESTS_MAX + 2):
        lone.client.cancel(epoch - 1)
        sent = lone.ask(epoch, 5, 7, epoch=epoch)
        events = lone.feed(answer(sent), sent_again(5))
        assert events == [Accepted(epoch), got(epoch, 5)]
    assert lone.client.counts["never_sent"] == 0


def test_two_requests_for_one_number_both_get_it(lone: Lone) -> None:
    first, second = lone.ask(1, 5, 7), lone.ask(2, 6, 8)
    lone.feed(answer(first), answer(second))
    assert lone.feed(sent_again(6)) == [got(1, 6), got(2, 6)]
    assert lone.feed(sent_again(6), sent_again(5), sent_again(7)) == [
        got(1, 5),
        Answered(1),
        got(2, 7),
        Answered(2),
    ]
    assert lone.client.counts["late_packets"] == 1


@drawn(3)
def test_whatever_the_server_has_arrives_whole_and_once(seed: int) -> None:
    """Requests of two services, cancelled at random, through the real server, cut anywhere."""
    print("seed", seed)
    chance = random.Random(seed)
    pair = Pair(
        {104: filled(1, 201), 105: filled(50, 121, 105)},
        server_settings=ServerSettings(chunk_bytes=2048),
    )
    asked: dict[int, tuple[int, int, int]] = {}
    cancelled = set()
    for _ in range(60):
        first = chance.randint(1, 150)
        end = min(first + chance.randint(1, 60), 201)
        service = chance.choice([104, 105])
        asked[pair.ask(first, end, service)] = (service, first, end)
        if chance.random() < 0.2:
            gone = chance.choice(list(asked))
            pair.client.cancel(gone)
            cancelled.add(gone)
        if chance.random() < 0.5:
            pair.run(chance.choice([1, 13, 1000, 1 << 20]))
    pair.run()
    assert pair.client.up
    done = {event.request_id for event in pair.events if isinstance(event, Answered)}
    refused = {event.request_id for event in pair.events if isinstance(event, Rejected)}
    for request_id, (service, first, end) in asked.items():
        numbers = pair.numbers(request_id)
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) <= set(range(first, end))
        if request_id in done:
            assert sorted(numbers) == list(range(first, end))
        else:
            assert request_id in cancelled | refused
        if request_id in refused:
            assert service == 105
            assert first < 50 or end > 121
    for event in pair.events:
        if isinstance(event, Packet):
            assert event.data == sent_again(event.sequence, event.service)


@drawn(3)
def test_mutated_answers_break_or_are_harmless(seed: int) -> None:
    """Whatever a server sends, what is handed on was asked for and fits; nothing is raised."""
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        lone = Lone()
        number = lone.ask(1, 5, 15)
        stream = bytearray(answer(number) + b"".join(map(sent_again, range(5, 15))))
        for _ in range(chance.randint(1, 4)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
        events, share = [], chance.choice([1, 50, 5000])
        for at in range(0, len(stream), share):
            events += lone.feed(bytes(stream[at : at + share]))
        numbers = [event.sequence for event in events if isinstance(event, Packet)]
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) <= set(range(5, 15))
        assert sum(isinstance(event, Broken) for event in events) == lone.client.counts["broken"]
        for event in events:
            if isinstance(event, Packet):
                assert FEED.decode_packet(event.data).sequence == event.sequence


def test_a_day_of_publishing_and_asking_stays_bounded() -> None:
    store = filled(1, 2)
    pair = Pair({104: store})
    for number in range(2, 6000):
        publish(store, number)
        pair.ask(number, number + 1)
        if number % 50 == 0:
            pair.run()
    pair.run()
    assert pair.client.counts["answered"] == 5998
    assert pair.client.outstanding == 0


def test_every_counter_has_a_meaning(lone: Lone) -> None:
    assert lone.client.counts.keys() == COUNTS.keys()
    assert all(COUNTS.values())
    assert all(name == name.lower() for name in COUNTS)


def test_a_packet_sent_twice_is_late_however_many_ranges_were_granted_since(lone: Lone) -> None:
    numbers = range(1, 6 * GRANTED_RANGES_MAX, 2)
    for number in numbers:
        sent = lone.ask(number, number, number + 1)
        events = lone.feed(answer(sent), sent_again(number))
        assert events == [Accepted(number), got(number, number), Answered(number)]
    for late, number in enumerate(numbers, 1):
        assert lone.feed(sent_again(number)) == []
        assert lone.client.counts["late_packets"] == late
    (broken,) = lone.feed(sent_again(numbers[-1] + 1))
    assert isinstance(broken, Broken)
    assert lone.client.counts["unasked_packet"] == 1
