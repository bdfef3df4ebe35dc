"""NYSE XDP requests: the bytes of the specification, client and server face to face, the client
before a server that is not what it should be, and the server before such a client."""

import random
import struct
from functools import partial

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Broken,
    Event,
    RefreshAccepted,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.protocols.nyse_xdp import ANSWER_NS, XdpClient
from feedhandler.retrans.protocols.nyse_xdp_server import ANSWERS_WAITING_MAX, XdpServer
from feedhandler.retrans.protocols.setup import (
    ChannelNames,
    ClientSetup,
    ServerSetup,
    SnapshotSource,
)
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import (
    Lines,
    answered,
    check_pieces,
    drawn_packets,
    exchange_by_lines,
    messages,
    mutated,
    numbers,
    stored,
    whole,
)
from tests.support.seeds import drawn

FEED = load_feed("nyse-integrated-xdp")
SERVICE, PRODUCT, SOURCE = 3, 7, b"US"
MS = 1_000_000
#: A Wednesday noon; nothing depends on which.
NOON_NS = 1_700_046_000 * 10**9


def header(size: int, flag: int, count: int, sequence: int, now_ns: int = NOON_NS) -> bytes:
    """By the specification: size, flag, count, number, seconds and nanoseconds."""
    return struct.pack("<HBBIII", size, flag, count, sequence, *divmod(now_ns, 10**9))


def control(sequence: int, body: bytes, flag: int = 11) -> bytes:
    """A packet with one message."""
    return header(16 + len(body), flag, 1, sequence) + body


def message(number: int) -> bytes:
    """An "add order" of 39 bytes, whose order id tells which it is."""
    return struct.pack("<HHIIIQII", 39, 100, 0, 9, number, number, 100, 5) + b"BFIRM \0"


def packet(first: int, count: int, flag: int = 11) -> bytes:
    """A packet of the lines."""
    body = b"".join(message(number) for number in range(first, first + count))
    return header(16 + len(body), flag, count, first) + body


def response(
    number: int, status: bytes = b"0", first: int = 0, last: int = 0, source: bytes = SOURCE,
    product: int = PRODUCT, channel: int = SERVICE,
) -> bytes:  # fmt: skip
    body = struct.pack(
        "<HHIII10sBBc", 29, 11, number, first, last, source, product, channel, status
    )
    return control(1, body)


def request(
    number: int, first: int, last: int, source: bytes = SOURCE, product: int = PRODUCT,
    channel: int = SERVICE,
) -> bytes:  # fmt: skip
    body = struct.pack("<HHII10sBB", 24, 10, first, last, source, product, channel)
    return control(number, body)


def unavailable(
    first: int, last: int, product: int = PRODUCT, channel: int = SERVICE, code: int = 31
) -> bytes:
    return control(first, struct.pack("<HHIIBB", 14, code, first, last, product, channel), 21)


HEARTBEAT = header(16, 1, 0, 5)
BEAT_ANSWER = struct.pack("<HH10s", 14, 12, SOURCE)
MAPPING = struct.pack("<HHI10sBBB", 21, 13, 0, SOURCE, PRODUCT, SERVICE, 0)
REFRESH = struct.pack("<HHI10sBB", 20, 15, 0, SOURCE, PRODUCT, SERVICE)


def client(**settings: int) -> XdpClient:
    made = XdpClient(
        ClientSetup(
            FEED,
            RecoverySettings(**settings),
            SOURCE.decode(),
            retransmission=(ChannelNames(SERVICE),),
            product=PRODUCT,
        )
    )
    made.connected(NOON_NS)
    return made


def state(service: int) -> tuple[int, tuple[bytes, ...]]:
    """A channel with one order."""
    assert service == SERVICE
    return 5, (FEED.encode_message("symbol_index_mapping", symbol_index=9), message(5))


def server(
    store: PacketStore, source: SnapshotSource | None = None, **settings: int
) -> tuple[XdpServer, Lines]:
    lines = Lines(SERVICE)
    setup = ServerSetup(
        FEED, {SERVICE: store}, ServerSettings(**settings), source, retransmit=lines,
        product=PRODUCT,
    )  # fmt: skip
    return XdpServer(setup), lines


# -- the client -----------------------------------------------------------------------------------


def test_requests_are_what_the_specification_says() -> None:
    asking = client()
    assert asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    assert asking.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    assert asking.ask_mapping(SERVICE, NOON_NS)
    expected = request(1, 7, 9) + control(2, MAPPING) + control(3, REFRESH) + control(4, MAPPING)
    assert asking.data_to_send() == expected
    assert asking.data_to_send() == b""
    assert asking.feed(HEARTBEAT, NOON_NS) == []
    assert asking.data_to_send() == control(5, BEAT_ANSWER)
    assert asking.counts["heartbeats"] == 1


STATUS = {
    b"1": RetransReject.PERMISSION,
    b"2": RetransReject.INVALID_RANGE,
    b"3": RetransReject.OVER_THRESHOLD,
    b"4": RetransReject.TOO_MANY_TODAY,
    b"6": RetransReject.NO_LONGER_AVAILABLE,
    b"7": RetransReject.WRONG_SERVICE,
    b"8": RetransReject.WRONG_SERVICE,
    b"9": RetransReject.BADLY_FORMED,
}


@pytest.mark.parametrize(("status", "reason"), STATUS.items())
def test_each_status_is_a_reason_of_recovery(status: bytes, reason: RetransReject) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    assert asking.feed(response(1, status), NOON_NS) == [Rejected(1, reason)]
    assert asking.outstanding == 0


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (b"0", RefreshAccepted(1)),
        (b"1", RefreshRejected(1, RefreshReject.PERMISSION)),
        (b"5", RefreshRejected(1, RefreshReject.TOO_MANY_TODAY)),
        (b"7", RefreshRejected(1, RefreshReject.WRONG_SERVICE)),
    ],
)
def test_a_refresh_request_is_accepted_or_refused(status: bytes, event: Event) -> None:
    asking = client()
    asking.ask_refresh(AskRefresh(1, SERVICE), NOON_NS)
    assert asking.feed(response(1) + response(2, status), NOON_NS) == [event]
    asking.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    asking.cancel(2)
    assert asking.feed(response(3, b"7") + response(4, status), NOON_NS) == []
    assert (asking.counts["mappings"], asking.counts["mappings_rejected"]) == (1, 1)


# What comes, and in which order, is the table's key; what the client then tells its events.
ACCEPT, PACKET, SECOND = response(1, b"0", 7, 9), packet(7, 3, 13), packet(8, 2, 15)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([ACCEPT, PACKET], [Accepted(1), (SERVICE, 7, 10), Answered(1)]),
        ([PACKET, ACCEPT], [Accepted(1), (SERVICE, 7, 10), Answered(1)]),
        ([PACKET, PACKET, ACCEPT], [Accepted(1), (SERVICE, 7, 10), Answered(1)]),
        (
            [ACCEPT, SECOND, packet(5, 4, 15)],
            [Accepted(1), (SERVICE, 8, 10), (SERVICE, 7, 8), Answered(1)],
        ),
        ([packet(1, 20, 13)], [Accepted(1), (SERVICE, 7, 10), Answered(1)]),
        (
            [packet(8, 1, 15), packet(6, 9, 15)],
            [Accepted(1), (SERVICE, 8, 9), (SERVICE, 7, 8), (SERVICE, 9, 10), Answered(1)],
        ),
        ([ACCEPT, unavailable(7, 9)], [Accepted(1), Rejected(1, 5)]),
        (
            [ACCEPT, unavailable(7, 7), SECOND],
            [Accepted(1), (SERVICE, 8, 10), Rejected(1, 5)],
        ),
        ([SECOND, unavailable(1, 100)], [Accepted(1), (SERVICE, 8, 10), Rejected(1, 5)]),
        (
            [unavailable(7, 8), packet(7, 2, 15), packet(9, 1, 15)],
            [Accepted(1), (SERVICE, 7, 9), (SERVICE, 9, 10), Answered(1)],
        ),
        ([response(1, b"4"), PACKET], [Rejected(1, 4)]),
        ([packet(7, 3, 11), packet(7, 3, 17)], []),
        ([packet(1, 6, 13), packet(10, 5, 13)], []),
        ([unavailable(1, 6), unavailable(9, 7)], []),
        ([unavailable(7, 9, product=8), unavailable(7, 9, channel=4)], []),
        ([unavailable(7, 9, code=32)], []),
    ],
)
def test_what_comes_in_whichever_order_is_reported_once(
    came: list[bytes], expected: list[object]
) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    events: list[Event] = []
    for data in came:
        is_response = data[2] == 11 and data[18] == 11
        events += (
            asking.feed(data, NOON_NS) if is_response else asking.datagram(SERVICE, data, NOON_NS)
        )
    assert whole(events) == expected
    for number, body in messages(FEED, events).items():
        assert body == message(number)


@pytest.mark.parametrize(
    ("datagram", "counted"),
    [
        (packet(7, 3, 11), "wrong_flag"),
        (packet(7, 3, 20), "wrong_flag"),
        (header(16, 1, 0, 0), "line_heartbeats"),
        (header(16, 13, 0, 0), "line_heartbeats"),
        (packet(7, 3, 13)[:-1], "bad_packets"),
        (packet(7, 3, 13) + b"\0", "bad_packets"),
        (packet(7, 3, 99), "bad_packets"),
        (b"x" * 40, "bad_packets"),
        (b"", "bad_packets"),
        (packet(70, 3, 13), "others_packets"),
        (unavailable(7, 9)[:-1], "bad_packets"),
    ],
)
def test_what_answers_no_request_is_counted_and_ignored(datagram: bytes, counted: str) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    assert asking.datagram(SERVICE, datagram, NOON_NS) == []
    assert asking.counts[counted] == 1
    assert asking.datagram(SERVICE + 1, packet(7, 3, 13), NOON_NS) == []
    assert numbers(asking.datagram(SERVICE, packet(7, 3, 13), NOON_NS)) == [7, 8, 9]


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (response(9), "never_asked"),
        (response(1) + response(1), "answered_twice"),
        (response(1, source=b"THEM"), "wrong_source_id"),
        (response(1, channel=4), "wrong_service"),
        (response(1, product=8), "wrong_service"),
        (response(1, b"x"), "malformed_answer"),
        (request(1, 7, 9), "wrong_direction"),
        (control(1, BEAT_ANSWER), "wrong_direction"),
        (header(9, 11, 0, 1), "length_too_small"),
        (header(60_000, 11, 0, 1), "length_too_big"),
        (header(16, 99, 0, 1), "unknown_type"),
        (control(1, struct.pack("<HH", 4, 11)), "wrong_body_size"),
        (header(20, 11, 1, 1) + b"\3\0\13\0", "bad_packet"),
        (header(18, 11, 1, 1) + b"\4\0", "wrong_count"),
        (header(20, 11, 0, 1) + b"\4\0\13\0", "wrong_count"),
    ],
)
def test_a_server_that_breaks_the_protocol_is_given_up(data: bytes, counted: str) -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    events = asking.feed(data, NOON_NS)
    assert isinstance(events[-1], Broken)
    assert (asking.counts[counted], asking.counts["broken"]) == (1, 1)
    assert not asking.up
    assert asking.feed(response(1), NOON_NS) == []
    assert asking.datagram(SERVICE, packet(7, 3, 13), NOON_NS) == []
    assert not asking.ask(Ask(2, SERVICE, 7, 10, 0), NOON_NS)


def test_a_silent_server_and_one_that_does_not_respond_are_given_up() -> None:
    asking = client(dead_us=60_000_000, heartbeat_us=1_000_000)
    assert asking.deadline_ns == NOON_NS + 60_000 * MS
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    assert asking.deadline_ns == NOON_NS + ANSWER_NS
    asking.feed(HEARTBEAT, NOON_NS + 1)
    assert asking.tick(NOON_NS + ANSWER_NS - 1) == []
    assert asking.tick(NOON_NS + ANSWER_NS) == [Broken("the server did not respond for 5000 ms")]
    asking.connected(NOON_NS)
    assert asking.tick(NOON_NS + 60_000 * MS) == [Broken("the server was silent for 60000 ms")]
    assert (asking.counts["unanswered"], asking.counts["silent"]) == (1, 1)


def test_bytes_of_a_packet_that_never_ends_are_no_sign_of_life() -> None:
    asking = client(dead_us=60_000_000, heartbeat_us=1_000_000)
    asking.feed(header(2_000, 11, 1, 1), NOON_NS)
    asking.feed(HEARTBEAT, NOON_NS + 50_000 * MS)
    assert asking.tick(NOON_NS + 60_000 * MS) == [Broken("the server was silent for 60000 ms")]


def test_a_cancelled_request_is_answered_late_and_its_packets_serve_the_next() -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    asking.cancel(1)
    asking.ask(Ask(2, SERVICE, 7, 10, 0), NOON_NS)
    assert asking.feed(response(1), NOON_NS) == []
    assert whole(asking.datagram(SERVICE, packet(7, 3, 13), NOON_NS)) == [
        Accepted(2), (SERVICE, 7, 10), Answered(2),
    ]  # fmt: skip
    assert asking.feed(response(2), NOON_NS) == []


def test_nothing_of_an_earlier_connection_counts() -> None:
    asking = client()
    asking.ask(Ask(1, SERVICE, 7, 10, 0), NOON_NS)
    asking.feed(response(1)[:20], NOON_NS)
    asking.disconnected(NOON_NS)
    assert (asking.counts["cut_off"], asking.outstanding) == (1, 0)
    asking.connected(NOON_NS)
    assert asking.datagram(SERVICE, packet(7, 3, 13), NOON_NS) == []
    assert isinstance(asking.feed(response(1), NOON_NS)[0], Broken)
    assert asking.counts["never_asked"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_id": "TENLETTERS"}, {"source_id": ""}, {"source_id": "\u00e9"}, {"product": 0},
        {"product": 256}, {"retransmission": (ChannelNames(256),)},
        {"feed": load_feed("nyse-openbook-ultra")}, {"feed": load_feed("euronext-utp-md")},
    ],
)  # fmt: skip
def test_what_requests_cannot_name_is_refused_with_a_remedy(wrong: dict[str, object]) -> None:
    given = {"feed": FEED, "settings": RecoverySettings(), "source_id": "US", "product": 7}
    with pytest.raises(UsageError) as caught:
        XdpClient(ClientSetup(**(given | wrong)))  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_refresh_is_asked_for_once_and_by_a_connection() -> None:
    asking = client()
    asking.ask_refresh(AskRefresh(3, SERVICE), NOON_NS)
    with pytest.raises(UsageError):
        asking.ask_refresh(AskRefresh(3, SERVICE), NOON_NS)
    asking.disconnected(NOON_NS)
    assert not asking.ask_refresh(AskRefresh(4, SERVICE), NOON_NS)
    assert not asking.ask_mapping(SERVICE, NOON_NS)
    assert asking.counts["not_asked"] == 2


# -- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(4, 7, 9), [response(4, b"0", 7, 9), packet(7, 2, 15), packet(9, 1, 15)]),
        (request(4, 5, 6), [response(4, b"0", 5, 6), packet(5, 2, 13)]),
        (request(4, 9, 16), [response(4, b"0", 9, 16), packet(9, 1, 15), unavailable(10, 14),
                             packet(15, 2, 15)]),
        (request(4, 18, 30), [response(4, b"0", 18, 30), packet(18, 2, 13), unavailable(20, 30)]),
        (request(4, 30, 31), [response(4, b"0", 30, 31), unavailable(30, 31)]),
        (request(4, 3, 5), [response(4, b"0", 3, 5), unavailable(3, 4), packet(5, 1, 13)]),
        (request(4, 1, 4), [response(4, b"6", 1, 4)]),
        (request(4, 9, 8), [response(4, b"2", 9, 8)]),
        (request(4, 0, 8), [response(4, b"2", 0, 8)]),
        (request(4, 5, 105), [response(4, b"3", 5, 105)]),
        (request(4, 7, 9, source=b""), [response(4, b"1", 7, 9, source=b"")]),
        (request(4, 7, 9, product=8), [response(4, b"8", 7, 9, product=8)]),
        (request(4, 7, 9, channel=4), [response(4, b"7", 7, 9, channel=4)]),
        (control(4, REFRESH), [response(4, b"9")]),
        (control(4, MAPPING), [response(4, b"9")]),
    ],
)  # fmt: skip
def test_the_server_answers_each_request_by_what_it_has(asked: bytes, said: list[bytes]) -> None:
    held = [packet(5, 2), packet(7, 2), packet(9, 1), packet(15, 5)]
    serving, lines = server(stored(FEED, held), request_packets_max=100)
    assert answered(serving.session("c", NOON_NS), lines, asked, NOON_NS) == said


def test_requests_of_a_day_are_counted_by_source_id() -> None:
    serving, lines = server(stored(FEED, [packet(1, 5)]), state,
                            requests_per_day=1)  # fmt: skip
    session = serving.session("c", NOON_NS)
    said = [
        answered(session, lines, each, NOON_NS)[0][-1:]
        for each in (request(1, 1, 2), request(2, 1, 2), request(3, 1, 2, source=b"OTHER"),
                     control(4, REFRESH), control(5, REFRESH))
    ]  # fmt: skip
    assert said == [b"0", b"4", b"0", b"0", b"5"]


def test_a_client_that_does_not_answer_heartbeats_is_closed_and_one_that_does_is_not() -> None:
    serving, _ = server(stored(FEED, []), heartbeat_us=1_000, dead_us=5_000)
    session = serving.session("c", NOON_NS)
    assert session.tick(NOON_NS + MS) == header(16, 1, 0, 0, NOON_NS + MS)
    session.feed(control(1, BEAT_ANSWER), NOON_NS + 2 * MS)
    session.tick(NOON_NS + 7 * MS)
    assert not session.closed
    session.tick(NOON_NS + 12 * MS)
    assert session.closed
    assert serving.counts["clients_silent"] == 1
    assert session.tick(NOON_NS) == session.feed(HEARTBEAT, NOON_NS) == b""


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (response(1), "wrong_direction"),
        (control(1, MAPPING[:-1]), "bad_packet"),
        (control(1, struct.pack("<HH", 4, 10)), "wrong_body_size"),
        (header(300, 11, 0, 1), "length_too_big"),
        (header(16, 99, 0, 1), "unknown_type"),
    ],
)
def test_a_client_that_breaks_the_protocol_is_closed(data: bytes, counted: str) -> None:
    serving, _ = server(stored(FEED, []))
    session = serving.session("c", NOON_NS)
    session.feed(data, NOON_NS)
    assert session.closed
    assert (serving.counts[counted], serving.counts["clients_wrong"]) == (1, 1)
    assert not serving.sessions


def test_clients_and_their_answers_are_bounded() -> None:
    serving, _ = server(stored(FEED, [packet(1, 5)]), clients_max=1)
    first = serving.session("a", NOON_NS)
    assert serving.session("b", NOON_NS).closed
    for number in range(ANSWERS_WAITING_MAX):
        first.feed(request(number, 1, 5), NOON_NS)
    assert not first.closed
    first.feed(request(1, 1, 5), NOON_NS)
    assert serving.counts["too_many_waiting"] == 1
    assert first.closed
    second = serving.session("b", NOON_NS)
    second.end()
    assert (serving.counts["clients_left"], serving.counts["clients_refused"]) == (1, 1)


def test_what_leaves_the_store_before_it_goes_out_is_said_to_be_unavailable() -> None:
    store = stored(FEED, [packet(1, 5)])
    serving, lines = server(store)
    session = serving.session("c", NOON_NS)
    session.feed(request(1, 1, 5), NOON_NS)
    store.clear()
    session.tick(NOON_NS)
    assert lines.drain() == [unavailable(1, 5)]


# -- both -----------------------------------------------------------------------------------------


def conversation(seed: int) -> bytes:
    """Return a correct server's responses to a few requests, some refused, among heartbeats."""
    draw = random.Random(seed)
    said = [response(number, draw.choice([b"0", b"4"])) for number in range(1, 6)]
    return b"".join(each for one in said for each in (one, HEARTBEAT))


def asked_of(asking: XdpClient) -> XdpClient:
    for number in range(1, 6):
        asking.ask(Ask(number, SERVICE, number * 10, number * 10 + 5, 0), NOON_NS)
    return asking


@drawn(6)
def test_any_chunking_gives_the_same_events(seed: int) -> None:
    both = asked_of(client()), asked_of(client())
    check_pieces(*both, conversation(seed), random.Random(seed), NOON_NS)


@drawn(4)
def test_mutated_bytes_raise_nothing_and_invent_no_numbers(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        asking = asked_of(client())
        serving, _ = server(stored(FEED, [packet(1, 50)]), state)
        session = serving.session("c", NOON_NS)
        events = asking.feed(mutated(conversation(draw.random().__hash__()), draw), NOON_NS)
        for data in (packet(8, 20, 15), unavailable(11, 30), packet(30, 15, 13)):
            events += asking.datagram(SERVICE, mutated(data, draw), NOON_NS)
        asked = {n for number in range(1, 6) for n in range(number * 10, number * 10 + 5)}
        assert set(numbers(events)) <= asked
        session.feed(mutated(request(1, 1, 9) + control(2, REFRESH) + control(3, MAPPING), draw),
                     NOON_NS)  # fmt: skip
        session.tick(NOON_NS)


@drawn(6)
def test_by_lines_that_lose_and_double_all_comes_once_and_unchanged(seed: int) -> None:
    draw = random.Random(seed)
    serving, lines = server(
        stored(FEED, drawn_packets(packet, 30, draw), 1 << 20), chunk_bytes=1 << 12
    )
    answers = partial(answered, serving.session("c", NOON_NS), lines, now_ns=NOON_NS)
    exchange_by_lines(client(), answers, FEED, SERVICE, message, draw)
