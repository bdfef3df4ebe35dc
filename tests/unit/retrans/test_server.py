"""The server of retransmissions: every reason, quotas, order, chunks, slow and silent clients."""

import pytest

from feedhandler.codecs import Feed
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.protocol import (
    NEVER_NS,
    Data,
    Frame,
    Heartbeat,
    HeartbeatReply,
    RefreshReject,
    RefreshRequest,
    Response,
    RetransReject,
    RetransRequest,
    StreamFramer,
)
from feedhandler.retrans.server import (
    ANSWERS_WAITING_MAX,
    COUNTS,
    SOURCE_IDS_MAX,
    RequestServer,
    ServerSession,
)
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.retrans import (
    FEED,
    MS,
    NOON_NS,
    PROTOCOL,
    Pair,
    Snapshots,
    filled,
    live_packet,
    publish,
    refresh_packet,
    sent_again,
)

HOUR_NS = 3600 * 10**9


def serve(settings: ServerSettings | None = None, refresher=None, **stores: PacketStore):
    """A server of service 104 (packets 1..100) and one of its sessions."""
    held = {104: stores.get("store") or filled(1, 101)}
    server = RequestServer(FEED, held, settings or ServerSettings(), refresher)
    return server, server.session("test", NOON_NS)


def request(first: int, end: int, service: int = 104, who: str = "ME", number: int = 1) -> bytes:
    return PROTOCOL.retrans_request(RetransRequest(number, service, first, end, who), NOON_NS)


def refresh(service: int = 104, who: str = "ME", number: int = 1) -> bytes:
    return PROTOCOL.refresh_request(RefreshRequest(number, service, who), NOON_NS)


def frames(data: bytes) -> list[Frame]:
    return [PROTOCOL.read(packet) for packet in StreamFramer(FEED).feed(data)]


def reason(data: bytes) -> int:
    (frame,) = frames(data)
    assert isinstance(frame, Response)
    return frame.reason


def drained(session: ServerSession, now: int = NOON_NS) -> bytes:
    """All that the session has to say at `now`, a chunk at a time."""
    said = b""
    while session.deadline_ns <= now:
        said += session.tick(now)
    return said


def test_a_request_is_answered_with_its_packets_and_only_the_flag_changed() -> None:
    server, session = serve()
    answer = session.feed(request(7, 10), NOON_NS)
    response, *packets = StreamFramer(FEED).feed(answer)
    assert PROTOCOL.read(response) == Response(False, 1, 104, "ME", 0)
    assert packets == [sent_again(number) for number in (7, 8, 9)]
    assert [p[:14] + b"\0" + p[15:] for p in packets] == [live_packet(n) for n in (7, 8, 9)]
    assert server.counts["packets"] == 3
    assert server.counts["bytes"] == sum(map(len, packets))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (request(1, 101), RetransReject.NONE),
        (request(1, 2, who="OTHER"), RetransReject.PERMISSION),
        (request(1, 2, who=""), RetransReject.PERMISSION),
        (request(5, 5), RetransReject.INVALID_RANGE),
        (request(9, 5), RetransReject.INVALID_RANGE),
        (request(0, 5), RetransReject.INVALID_RANGE),
        (request(99, 102), RetransReject.INVALID_RANGE),
        (request(1, 103), RetransReject.INVALID_RANGE),
        (request(21, 23), RetransReject.NONE),
        (request(1, 2, who="\x01"), RetransReject.BADLY_FORMED),
        (b"\0\x14" + request(1, 2)[2:20], RetransReject.BADLY_FORMED),
        (b"\0\x30" + request(1, 2)[2:] + bytes(4), RetransReject.BADLY_FORMED),
        (request(1, 2, service=105), RetransReject.WRONG_SERVICE),
    ],
)
def test_each_request_gets_its_reason(data: bytes, expected: RetransReject) -> None:
    server, session = serve(ServerSettings(source_ids=("ME", "\x01")))
    first = frames(session.feed(data, NOON_NS))[0]
    assert isinstance(first, Response)
    assert first.reason == expected
    assert not session.closed
    name = f"rejected_{expected.name.lower()}" if expected else "accepted"
    assert server.counts[name] == 1


def test_ranges_over_the_threshold_are_refused() -> None:
    _, session = serve(ServerSettings(request_packets_max=10))
    assert reason(session.feed(request(1, 12), NOON_NS)) == RetransReject.OVER_THRESHOLD
    assert len(frames(session.feed(request(1, 11), NOON_NS))) == 11


def test_what_left_the_window_or_was_never_published_is_no_longer_available() -> None:
    store = filled(1, 101, bytes_max=20 * len(live_packet(1)))
    publish(store, 105)
    _, session = serve(store=store)
    assert store.first > 1
    for first, end in [(1, 2), (store.first - 1, 90), (100, 102), (103, 104)]:
        answer = session.feed(request(first, end), NOON_NS)
        assert reason(answer) == RetransReject.NO_LONGER_AVAILABLE, (first, end)
    assert len(frames(session.feed(request(105, 106), NOON_NS))) == 2


def test_requests_of_a_day_are_counted_by_source_and_kind() -> None:
    server, session = serve(ServerSettings(requests_per_day=2), Snapshots())
    other = server.session("other", NOON_NS)
    for _ in range(2):
        assert frames(session.feed(request(1, 2), NOON_NS))[0].reason == 0
    assert reason(other.feed(request(1, 2), NOON_NS)) == RetransReject.TOO_MANY_TODAY
    assert frames(other.feed(request(1, 2, who="YOU"), NOON_NS))[0].reason == 0
    for expected in (0, 0, RefreshReject.TOO_MANY_TODAY):
        assert reason(session.feed(refresh(), NOON_NS)) == expected
    evening = NOON_NS + 10 * HOUR_NS
    assert reason(session.feed(request(1, 2), evening)) == RetransReject.TOO_MANY_TODAY
    tomorrow = NOON_NS + 13 * HOUR_NS
    assert frames(session.feed(request(1, 2), tomorrow))[0].reason == 0
    assert frames(session.feed(request(1, 2), tomorrow))[0].reason == 0
    assert reason(session.feed(request(1, 2), tomorrow)) == RetransReject.TOO_MANY_TODAY
    server.new_day()
    assert frames(session.feed(request(1, 2), tomorrow))[0].reason == 0


def test_the_table_of_sources_is_bounded() -> None:
    server, _ = serve(ServerSettings(requests_per_day=5))
    wanted = RetransRequest(1, 104, 1, 2, "")
    for number in range(SOURCE_IDS_MAX):
        wanted.source_id = f"S{number}"
        assert server.judge(wanted, NOON_NS) == RetransReject.NONE
    wanted.source_id = "ONE MORE"
    assert server.judge(wanted, NOON_NS) == RetransReject.TOO_MANY_TODAY
    wanted.source_id = "S0"
    assert server.judge(wanted, NOON_NS) == RetransReject.NONE


@pytest.mark.parametrize("expected", list(RefreshReject))
def test_each_refresh_request_gets_its_reason(expected: RefreshReject) -> None:
    settings = ServerSettings(
        source_ids=() if expected != RefreshReject.PERMISSION else ("YOU",),
        requests_per_day=1 if expected == RefreshReject.TOO_MANY_TODAY else 0,
    )
    refresher = Snapshots()
    if expected in (RefreshReject.WRONG_SERVICE, RefreshReject.NO_DATA, RefreshReject.SECONDARY):
        refresher.reason = expected
    asked = None if expected == RefreshReject.WRONG_PACKET_TYPE else refresher
    server, session = serve(settings, asked)
    data = refresh()
    if expected == RefreshReject.BADLY_FORMED:
        data = b"\0\x12" + refresh()[2:18]
    if expected == RefreshReject.TOO_MANY_TODAY:
        session.feed(refresh(), NOON_NS)
    assert reason(session.feed(data, NOON_NS)) == expected
    name = f"refresh_rejected_{expected.name.lower()}" if expected else "refresh_accepted"
    assert server.counts[name] == 1
    assert not session.closed


def test_a_refresh_source_that_cannot_be_read_is_badly_formed() -> None:
    _, session = serve(None, Snapshots())
    assert reason(session.feed(refresh(who="\x01"), NOON_NS)) == RefreshReject.BADLY_FORMED


def test_answers_keep_the_order_of_the_requests() -> None:
    pair = Pair({104: filled(1, 301), 105: filled(1, 11, service=105)})
    first, refused, second = pair.ask(1, 201), pair.ask(290, 302), pair.ask(3, 5, 105)
    events = pair.run()
    kinds = [(type(event), event.request_id) for event in events]
    assert kinds == [
        (Accepted, first),
        *[(Packet, first)] * 200,
        (Answered, first),
        (Rejected, refused),
        (Accepted, second),
        *[(Packet, second)] * 2,
        (Answered, second),
    ]
    assert pair.numbers(first) == list(range(1, 201))


def test_a_long_answer_comes_in_chunks_and_others_get_their_turn() -> None:
    server, greedy = serve(ServerSettings(chunk_bytes=2048, request_packets_max=1000))
    modest = server.session("modest", NOON_NS)
    begun = greedy.feed(request(1, 101), NOON_NS)
    longest = 2048 + len(live_packet(1))
    assert 2048 <= len(begun) <= longest
    assert greedy.deadline_ns <= NOON_NS
    assert greedy.waiting
    assert len(frames(modest.feed(request(1, 2), NOON_NS))) == 2
    said = begun
    while greedy.deadline_ns <= NOON_NS:
        chunk = greedy.tick(NOON_NS)
        assert len(chunk) <= longest
        said += chunk
    assert [f.sequence for f in frames(said)[1:]] == list(range(1, 101))
    assert not greedy.waiting


def test_an_answer_that_the_window_overtakes_is_cut_short() -> None:
    store = filled(1, 101, bytes_max=100 * len(live_packet(1)))
    server, session = serve(ServerSettings(chunk_bytes=2048), store=store)
    said = session.feed(request(1, 101), NOON_NS)
    for number in range(101, 201):
        publish(store, number)
    said += drained(session)
    assert 2 < len(frames(said)) < 101
    assert server.counts["cut_short"] == 1
    assert not session.waiting
    assert not session.closed


def test_an_answer_never_mixes_epochs() -> None:
    store = filled(1, 101)
    server, session = serve(ServerSettings(chunk_bytes=2048), store=store)
    before = session.feed(request(1, 101), NOON_NS)
    store.clear()
    for number in range(1, 101):
        publish(store, number)
    assert drained(session) == b""
    assert server.counts["cut_short"] == 1
    assert len(frames(before)) < 101


def test_heartbeats_go_out_and_are_answered() -> None:
    server, session = serve(ServerSettings(heartbeat_us=1_000_000, dead_us=3_000_000))
    now = session.deadline_ns
    assert now == NOON_NS + 1000 * MS
    assert session.tick(now - 1) == b""
    assert frames(session.tick(now)) == [Heartbeat()]
    assert session.feed(PROTOCOL.heartbeat_reply("ME", now), now) == b""
    assert server.counts["heartbeats_answered"] == 1
    assert frames(session.feed(PROTOCOL.heartbeat(now), now)) == [HeartbeatReply("")]
    session.feed(request(1, 2), now)
    assert frames(session.feed(PROTOCOL.heartbeat(now), now)) == [HeartbeatReply("ME")]


def test_a_silent_client_is_closed() -> None:
    server, session = serve(ServerSettings(heartbeat_us=1_000_000, dead_us=2_500_000))
    now = NOON_NS
    heartbeats = 0
    while not session.closed:
        now = session.deadline_ns
        heartbeats += len(frames(session.tick(now)))
    assert now == NOON_NS + 2500 * MS
    assert heartbeats == 2
    assert session.closed == "the client is silent"
    assert server.counts["clients_silent"] == 1
    assert not server.sessions
    assert session.deadline_ns == NEVER_NS
    assert session.tick(now) == session.feed(request(1, 2), now) == b""


def test_a_client_too_many_is_closed_and_its_slot_is_free_when_another_leaves() -> None:
    server, first = serve(ServerSettings(clients_max=2))
    server.session("second", NOON_NS)
    third = server.session("third", NOON_NS)
    assert third.closed == "more than 2 clients"
    third.end()
    assert server.counts["clients_refused"] == 1
    first.end()
    first.end()
    assert server.counts["clients_left"] == 1
    assert not server.session("fourth", NOON_NS).closed
    assert len(server.sessions) == 2


def test_a_paused_client_gets_nothing_until_it_takes_bytes_again() -> None:
    server, session = serve(ServerSettings(dead_us=5_000_000))
    session.pause(NOON_NS)
    session.pause(NOON_NS + MS)
    assert session.feed(request(1, 11), NOON_NS) == b""
    assert session.deadline_ns == NOON_NS + 5000 * MS
    assert session.tick(NOON_NS + 4000 * MS) == b""
    later = NOON_NS + 4500 * MS
    session.resume(later)
    assert session.deadline_ns == later
    assert len(frames(session.tick(later))) == 12  # the heartbeat due, the response, ten packets
    assert not session.closed
    assert server.counts["heartbeats_sent"] == 1


def test_a_client_that_takes_nothing_is_closed() -> None:
    server, session = serve()
    session.pause(NOON_NS)
    session.feed(request(1, 11), NOON_NS)
    session.tick(session.deadline_ns)
    assert session.closed == "the client takes nothing any more"
    assert server.counts["clients_slow"] == 1


def test_a_client_that_asks_more_than_it_reads_is_closed() -> None:
    server, session = serve(ServerSettings(output_bytes_max=1 << 16))
    session.pause(NOON_NS)
    refused = request(5, 5) * 5
    for _ in range(1 << 16):
        if session.closed:
            break
        session.feed(refused, NOON_NS)
    assert session.closed == "the client takes its answers too slowly"
    assert server.counts["clients_slow"] == 1


def test_a_client_whose_requests_pile_up_is_closed() -> None:
    server, session = serve()
    session.pause(NOON_NS)
    session.feed(request(1, 2) * ANSWERS_WAITING_MAX, NOON_NS)
    assert not session.closed
    session.feed(request(1, 2), NOON_NS)
    assert session.closed == "the client sent requests faster than it takes the answers"
    assert server.counts["too_many_waiting"] == server.counts["clients_wrong"] == 1


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (bytes(16), "length_too_small"),
        (b"\xff\xff" + request(1, 2)[2:], "length_too_big"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "length_too_big"),
        (b"\0\x10\0\x0b" + bytes(12), "unknown_type"),
        (live_packet(1), "wrong_direction"),
        (FEED.encode_packet(kind="reset", sequence=1), "wrong_direction"),
        (PROTOCOL.response(Response(False, 1, 104, "ME", 0), 0), "wrong_direction"),
        (b"\0\x12" + PROTOCOL.heartbeat(0)[2:] + b"ab", "wrong_body_size"),
        (b"\0\x12" + PROTOCOL.heartbeat_reply("", 0)[2:18], "wrong_body_size"),
    ],
)
@pytest.mark.parametrize("share", [1, 1000])
def test_a_client_that_breaks_the_protocol_is_closed_after_its_answers(
    data: bytes, name: str, share: int
) -> None:
    server, session = serve()
    stream, said = request(1, 3) + data + request(3, 5), b""
    for at in range(0, len(stream), share):
        said += session.feed(stream[at : at + share], NOON_NS)
    assert [f.sequence for f in frames(said)[1:] if isinstance(f, Data)] == [1, 2]
    assert session.closed.startswith("the client sent ")
    assert server.counts[name] == server.counts["clients_wrong"] == 1
    assert not server.sessions


def test_one_client_that_breaks_does_not_touch_another() -> None:
    server, bad = serve()
    good = server.session("good", NOON_NS)
    bad.feed(bytes(16), NOON_NS)
    assert len(frames(good.feed(request(1, 3), NOON_NS))) == 3
    assert server.sessions == {good}


def test_requests_may_come_a_byte_at_a_time() -> None:
    pair = Pair()
    asked = pair.ask(10, 40)
    pair.run(share=1)
    assert pair.numbers(asked) == list(range(10, 40))


def test_a_snapshot_is_sent_over_the_connection_where_configured() -> None:
    refresher = Snapshots()
    pair = Pair(server_settings=ServerSettings(refresh_over_tcp=True), refresher=refresher)
    outputs = []
    pair.session.on_output = lambda: outputs.append(1)
    asked = pair.ask_refresh()
    assert pair.run() == [RefreshAccepted(asked)]
    again = pair.ask_refresh()
    pair.run()
    assert len(refresher.callbacks) == 1
    packets = [refresh_packet(1), refresh_packet(2)]
    refresher.give(packets)
    assert outputs
    assert pair.run() == [RefreshPacket(104, 1, packets[0]), RefreshPacket(104, 2, packets[1])]
    assert pair.count("refresh_packets") == 2
    assert refresher.requests == [104, 104]
    pair.session.end()
    assert refresher.callbacks == []
    assert again != asked


def test_the_response_goes_before_a_snapshot_that_was_there_at_once() -> None:
    refresher = Snapshots()
    refresher.at_once = [refresh_packet(1)]
    pair = Pair(server_settings=ServerSettings(refresh_over_tcp=True), refresher=refresher)
    asked = pair.ask_refresh()
    assert pair.run() == [RefreshAccepted(asked), RefreshPacket(104, 1, refresh_packet(1))]


def test_a_refused_refresh_subscribes_to_nothing() -> None:
    refresher = Snapshots(RefreshReject.NO_DATA)
    pair = Pair(server_settings=ServerSettings(refresh_over_tcp=True), refresher=refresher)
    asked = pair.ask_refresh()
    assert pair.run() == [RefreshRejected(asked, 6)]
    assert refresher.callbacks == []


def test_snapshots_stay_off_the_connection_by_default() -> None:
    refresher = Snapshots()
    pair = Pair(refresher=refresher)
    asked = pair.ask_refresh()
    assert pair.run() == [RefreshAccepted(asked)]
    assert refresher.callbacks == []


def test_a_client_that_reads_its_snapshots_too_slowly_is_closed() -> None:
    settings = ServerSettings(refresh_over_tcp=True, output_bytes_max=1 << 16)
    refresher = Snapshots()
    server, session = serve(settings, refresher)
    session.feed(refresh(), NOON_NS)
    session.pause(NOON_NS)
    (callback,) = refresher.callbacks
    callback([refresh_packet(n) for n in range(1, 901)])
    assert not session.closed
    callback([refresh_packet(n) for n in range(1, 901)])
    assert session.closed == "the client takes its answers too slowly"
    assert refresher.callbacks == []
    assert server.counts["clients_slow"] == 1
    callback([refresh_packet(1)])
    assert server.counts["refresh_packets"] == 1800


def test_every_counter_has_a_meaning() -> None:
    server, _ = serve()
    assert server.counts.keys() == COUNTS.keys()
    assert all(COUNTS.values())
    assert all(name == name.lower() for name in COUNTS)
    assert isinstance(server.feed, Feed)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"request_packets_max": 0}, "request_packets_max must be from 1 to"),
        ({"chunk_bytes": 100}, "chunk_bytes must be from 2048 to"),
        ({"clients_max": 1 << 20}, "clients_max must be from 1 to 65536"),
        ({"heartbeat_us": 10_000, "dead_us": 5_000}, "must not be longer than dead_us"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerSettings(**wrong)
