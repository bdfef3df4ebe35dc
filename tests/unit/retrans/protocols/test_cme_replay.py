"""CME's TCP replay: the bytes of both ends, client and server face to face, each before a peer that
is not what it should be, and connections that come and go."""

import random
import struct
from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Broken, Event, Finished, Packet
from feedhandler.retrans.protocols.cme_replay import COUNTS, ReplayClient, State
from feedhandler.retrans.protocols.cme_replay_server import (
    SERVER_COUNTS,
    ReplayServer,
    ReplaySession,
)
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import chunks, keep, mutated, numbers
from tests.support.seeds import drawn

FEED = load_feed("cme-mdp3")
CHANNEL, OTHER = 310, 311
MS = 1_000_000
NOON_NS = 1_700_046_000 * 10**9


def text(*fields: str) -> bytes:
    """By the specification: plain FIX text, its length first and its sum last."""
    body = "".join(f"{each}\x01" for each in fields)
    message = f"9={len(body)}\x01{body}"
    return f"{message}10={sum(message.encode()) & 255:03}\x01".encode()


LOGON = text("35=A", "553=USER", "554=SECRET")
LOGOUT = text("35=5")
BEAT = text("35=0")


def request(first: int, last: int, turn: int = 1, channel: int = CHANNEL) -> bytes:
    return text("35=V", f"1180={channel}", f"262={channel}-{turn}", f"1182={first}", f"1183={last}")


def framed(packet: bytes) -> bytes:
    """A packet behind its length."""
    return struct.pack("<H", len(packet)) + packet


def message(template: int, body: bytes) -> bytes:
    """Size, block length, template, schema, version; and the block."""
    return struct.pack("<HHHHH", 10 + len(body), len(body), template, 1, 9) + body


def said(number: int, template: int, body: bytes = b"") -> bytes:
    """A message of the session, as the server sends it."""
    return framed(struct.pack("<IQ", number, NOON_NS) + message(template, body))


CONFIRMED = said(1, 15, b"\x01")


def logout(number: int, why: str = "") -> bytes:
    return said(number, 16, why.encode().ljust(180, b"\0"))


def packet(number: int) -> bytes:
    """A packet of the lines, with a quote request whose time tells its number."""
    return struct.pack("<IQ", number, number) + FEED.encode_message(39, transact_time=number)


def stored(first: int, end: int, bytes_max: int = 1 << 20) -> PacketStore:
    store = PacketStore(bytes_max)
    for number in range(first, end):
        keep(FEED, store, packet(number))
    return store


def setup(**changes: Any) -> ClientSetup:
    given: dict[str, Any] = {
        "feed": FEED, "settings": RecoverySettings(), "source_id": "USER", "password": "SECRET",
        "retransmission": (ChannelNames(CHANNEL), ChannelNames(OTHER)), **changes,
    }  # fmt: skip
    return ClientSetup(**given)


def client(**settings: int) -> ReplayClient:
    return ReplayClient(setup(settings=RecoverySettings(**settings)))


def replaying(*asks: Ask, **settings: int) -> ReplayClient:
    """A client that is logged on and has requested what `asks` span."""
    asking = client(**settings)
    for each in asks:
        assert asking.ask(each, NOON_NS)
    asking.connected(NOON_NS)
    assert asking.data_to_send() == LOGON
    assert all(isinstance(each, Accepted) for each in asking.feed(CONFIRMED, NOON_NS))
    return asking


def server(stores: dict[int, PacketStore], **settings: Any) -> ReplayServer:
    return ReplayServer(ServerSetup(FEED, stores, ServerSettings(**settings)))


# -- the client -----------------------------------------------------------------------------------


def test_a_client_logs_on_asks_and_leaves_as_the_specification_says() -> None:
    asking = client()
    asking.ask(Ask(1, CHANNEL, 7, 10, 0), NOON_NS)
    asking.connected(NOON_NS)
    assert asking.data_to_send() == LOGON
    assert asking.feed(CONFIRMED, NOON_NS) == [Accepted(1)]
    assert asking.data_to_send() == request(7, 9)
    assert asking.feed(framed(packet(7)) + framed(packet(8)), NOON_NS) == [
        Packet(1, CHANNEL, 7, 8, packet(7)), Packet(1, CHANNEL, 8, 9, packet(8)),
    ]  # fmt: skip
    assert asking.feed(framed(packet(9)), NOON_NS) == [
        Packet(1, CHANNEL, 9, 10, packet(9)), Answered(1),
    ]  # fmt: skip
    assert not asking.wants
    asking.ask(Ask(2, CHANNEL, 20, 21, 0), NOON_NS)
    assert asking.wants, "another request waits for another connection"
    assert asking.feed(logout(2), NOON_NS) == [Finished()]
    assert asking.data_to_send() == LOGOUT
    assert asking.feed(framed(packet(9)), NOON_NS) == []
    asking.disconnected(NOON_NS)
    asking.connected(NOON_NS)
    asking.feed(CONFIRMED, NOON_NS)
    assert asking.data_to_send() == LOGON + request(20, 20, 2)


def test_what_waits_goes_with_one_request_as_far_as_one_may_span() -> None:
    asking = replaying(
        Ask(1, CHANNEL, 100, 103, 0), Ask(2, CHANNEL, 90, 95, 0), Ask(3, OTHER, 95, 99, 0),
        Ask(4, CHANNEL, 300, 301, 0), Ask(5, CHANNEL, 120, 121, 0), request_packets_max=50,
    )  # fmt: skip
    assert asking.data_to_send() == request(90, 120)
    came = asking.feed(b"".join(framed(packet(n)) for n in range(90, 121)), NOON_NS)
    assert numbers(came) == [*range(90, 95), 100, 101, 102, 120]
    assert asking.counts["late_packets"] == 31 - 9
    assert asking.feed(logout(2), NOON_NS) == [Finished()]
    assert (asking.wants, asking.outstanding) == (True, 2)


def test_a_request_of_what_is_coming_is_served_by_the_connection_that_brings_it() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0))
    asking.feed(framed(packet(7)), NOON_NS)
    asking.cancel(1)
    asking.ask(Ask(2, CHANNEL, 7, 10, 0), NOON_NS)
    assert asking.deadline_ns == 0, "the rest is not waited for"
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0), Ask(2, CHANNEL, 9, 10, 0))
    asking.cancel(1)
    asking.ask(Ask(3, CHANNEL, 8, 9, 0), NOON_NS)
    came = asking.feed(b"".join(framed(packet(n)) for n in range(7, 10)), NOON_NS)
    assert numbers(came) == [8, 9]
    assert asking.outstanding == 0


def test_a_connection_that_is_no_longer_waited_for_is_left() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0))
    asking.data_to_send()
    asking.cancel(1)
    asking.cancel(1)
    assert asking.deadline_ns == 0
    assert asking.tick(NOON_NS) == [Finished()]
    assert asking.data_to_send() == LOGOUT
    early = client()
    early.ask(Ask(1, CHANNEL, 7, 10, 0), NOON_NS)
    early.connected(NOON_NS)
    early.cancel(1)
    assert early.feed(CONFIRMED, NOON_NS) == [Finished()]
    assert early.data_to_send() == LOGON + LOGOUT


def test_a_refused_request_ends_without_its_packets_and_recovery_asks_again() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0))
    assert asking.feed(logout(2, "no such packets"), NOON_NS) == [Answered(1), Finished()]
    assert (asking.counts["rejected"], asking.counts["broken"]) == (1, 0)


def test_requests_that_were_refused_together_are_asked_for_alone() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0), Ask(2, CHANNEL, 20, 21, 0))
    assert asking.feed(logout(2, "too old"), NOON_NS) == [Finished()]
    assert asking.counts["alone"] == 2
    asking.ask(Ask(3, CHANNEL, 22, 23, 0), NOON_NS)
    for turn, (first, last) in enumerate([(7, 9), (20, 20), (22, 22)], 2):
        asking.disconnected(NOON_NS)
        asking.connected(NOON_NS)
        asking.data_to_send()
        asking.feed(CONFIRMED, NOON_NS)
        assert asking.data_to_send() == request(first, last, turn)
        asking.feed(logout(2, "too old"), NOON_NS)
    assert not asking.wants


def test_an_answer_that_is_cut_short_is_asked_for_again_by_recovery() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0), Ask(2, CHANNEL, 10, 12, 0))
    came = asking.feed(framed(packet(7)) + logout(2), NOON_NS)
    assert came[1:] == [Answered(1), Answered(2), Finished()]
    assert asking.counts["cut_short"] == 2


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (logout(1, "bad password"), "login_refused"),
        (framed(packet(7)), "wrong_direction"),
        (CONFIRMED + CONFIRMED, "wrong_direction"),
        (b"\x15\0" + bytes(21), "length_too_small"),
        (framed(bytes(22)), "bad_packet"),
        (framed(packet(7) + b"\0"), "bad_packet"),
        (framed(packet(7)[:-1]), "bad_packet"),
    ],
)
def test_a_server_that_refuses_the_logon_or_breaks_the_protocol_is_given_up(
    data: bytes, counted: str
) -> None:
    asking = client()
    asking.ask(Ask(1, CHANNEL, 7, 10, 0), NOON_NS)
    asking.connected(NOON_NS)
    broken = asking.feed(data, NOON_NS)[-1]
    assert isinstance(broken, Broken)
    assert (asking.counts[counted], asking.counts["broken"]) == (1, 1)
    assert not asking.up
    assert asking.tick(NOON_NS * 2) == []
    assert asking.failed(broken.reason, NOON_NS) == []
    asking.disconnected(NOON_NS)
    assert asking.wants, "the request waits for the next connection"
    assert "SECRET" not in broken.reason


def test_why_a_logon_was_refused_is_reported() -> None:
    asking = client()
    asking.ask(Ask(1, CHANNEL, 7, 10, 0), NOON_NS)
    asking.connected(NOON_NS)
    assert asking.feed(logout(1, "bad password"), NOON_NS) == [
        Broken("the server refuses the logon: bad password")
    ]


def test_heartbeats_go_both_ways_and_a_silent_server_is_given_up() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0), heartbeat_us=1_000_000, dead_us=3_000_000)
    asking.data_to_send()
    assert asking.tick(NOON_NS + 999 * MS) == []
    assert asking.tick(NOON_NS + 1_000 * MS) == []
    assert asking.data_to_send() == BEAT
    assert asking.feed(said(2, 12), NOON_NS + 1_500 * MS) == []
    assert asking.tick(NOON_NS + 2_000 * MS) == []
    assert asking.feed(b"\xff\xff", NOON_NS + 4_000 * MS) == [], "no sign of life"
    assert asking.tick(NOON_NS + 4_500 * MS) == [Broken("the server was silent for 3000 ms")]
    assert (asking.counts["heartbeats"], asking.counts["silent"]) == (1, 1)
    asking.disconnected(NOON_NS + 4_500 * MS)
    assert asking.deadline_ns > NOON_NS * 2


def test_packets_of_other_numbers_are_ignored_and_a_heartbeat_of_the_lines_is_a_packet() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 9, 0))
    assert asking.feed(framed(packet(6)) + framed(packet(9)), NOON_NS) == []
    assert asking.counts["others_packets"] == 2
    beat = struct.pack("<IQ", 8, NOON_NS - 1) + message(12, b"")
    assert numbers(asking.feed(framed(packet(7)) + said(8, 12), NOON_NS)) == [7]
    assert numbers(asking.feed(framed(beat), NOON_NS)) == [8]
    assert asking.counts["heartbeats"] == 1


def test_a_connection_that_ends_within_a_packet_is_counted() -> None:
    asking = replaying(Ask(1, CHANNEL, 7, 10, 0))
    asking.feed(framed(packet(7))[:-1], NOON_NS)
    asking.disconnected(NOON_NS)
    assert (asking.counts["cut_off"], asking.state, asking.wants) == (1, State.CLOSED, True)


def test_a_request_has_at_most_2_000_packets_and_they_count_from_1() -> None:
    asking = client(request_packets_max=5_000)
    with pytest.raises(UsageError):
        asking.ask(Ask(1, CHANNEL, 7, 2_008, 0), NOON_NS)
    assert asking.ask(Ask(1, CHANNEL, 7, 2_007, 0), NOON_NS)
    assert not asking.ask(Ask(3, CHANNEL, 0, 2, 0), NOON_NS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_id": ""}, {"source_id": "U\x01"}, {"password": ""}, {"password": "\u00e9"},
        {"refresh": (ChannelNames(CHANNEL),)}, {"feed": load_feed("b3-umdf")},
    ],
)  # fmt: skip
def test_credentials_and_feeds_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        ReplayClient(setup(**wrong))
    assert caught.value.hint
    assert "\u00e9" not in str(caught.value), "a password is never shown"


# -- the server -----------------------------------------------------------------------------------


def texts(data: bytes) -> list[str]:
    """Return what a server has said: "logon", "beat", numbers of packets, texts of logouts."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<H", data, at)
        each = data[at + 2 : at + 2 + size]
        template, number = struct.unpack_from("<H", each, 16)[0], struct.unpack_from("<I", each)[0]
        names = {15: "logon", 12: "beat", 16: each[22:].rstrip(b"\0").decode()}
        found.append(names.get(template, str(number)))
        at += 2 + size
    return found


def run(session: ReplaySession, data: bytes) -> bytes:
    """Return all that a session answers to `data`, until nothing waits."""
    said = session.feed(data, NOON_NS)
    while session.waiting:
        said += session.tick(NOON_NS)
    return said


@pytest.mark.parametrize(
    ("data", "answers", "counted"),
    [
        (LOGON + request(7, 9), ["logon", "7", "8", "9", "replay complete"], "replays"),
        (LOGON, ["logon"], "logins"),
        (LOGON + BEAT, ["logon"], "heartbeats"),
        (LOGON + LOGOUT + BEAT, ["logon"], "clients_left"),
        (LOGON + LOGOUT + b"x", ["logon"], "clients_left"),
        (LOGON + BEAT + b"x", ["logon"], "badly_formed"),
        (LOGON + request(7, 9) + request(8, 8), ["logon", "7", "8", "9", "replay complete"],
         "ignored"),
        (LOGON + request(9, 7), ["logon", "the range is empty, or has numbers that no packet has"],
         "rejected"),
        (LOGON + request(0, 7), ["logon", "the range is empty, or has numbers that no packet has"],
         "rejected"),
        (LOGON + request(1, 2_001), ["logon", "more than 1000 packets"], "rejected"),
        (LOGON + request(4, 7), ["logon", "not all of these packets are available"], "rejected"),
        (LOGON + request(18, 20), ["logon", "not all of these packets are available"], "rejected"),
        (LOGON + request(7, 9, channel=OTHER), ["logon", "channel 311 is not replayed here"],
         "rejected"),
        (LOGON + text("35=V", "1180=310"), ["logon", "channel 0 is not replayed here"], "rejected"),
        (text("35=A", "553=WHO", "554=X"), ["unknown username or password"], "login_refused"),
        (text("35=A"), ["unknown username or password"], "login_refused"),
        (LOGON + LOGON, ["logon"], "wrong_direction"),
        (request(7, 9), [], "wrong_direction"),
        (BEAT, [], "wrong_direction"),
        (text("35=D"), [], "wrong_direction"),
        (text("553=USER"), [], "wrong_direction"),
        (b"8=FIX.4.4\x01", [], "badly_formed"),
        (b"9=x\x01", [], "badly_formed"),
        (text("35"), [], "badly_formed"),
        (text("=A"), [], "badly_formed"),
        (text("35="), [], "badly_formed"),
        (LOGON[:-4] + b"000\x01", [], "badly_formed"),
        (b"9=9999", [], "too_long"),
        (b"9=\x01", [], "too_long"),
        (b"9=600\x01", [], "too_long"),
    ],
)  # fmt: skip
def test_the_server_does_what_it_is_asked_or_says_why_not(
    data: bytes, answers: list[str], counted: str
) -> None:
    serving = server({CHANNEL: stored(5, 20)}, source_ids=("USER",))
    session = serving.session("c", NOON_NS)
    assert texts(run(session, data)) == answers
    assert serving.counts[counted] == 1
    assert bool(session.closed) == (counted not in ("logins", "heartbeats"))
    assert session.feed(data, NOON_NS) == session.tick(NOON_NS * 2) == b"" or not session.closed


def test_an_answer_goes_out_in_shares_and_stops_where_the_window_has_left_it() -> None:
    store = stored(1, 500)
    serving = server({CHANNEL: store}, chunk_bytes=1 << 11)
    session = serving.session("c", NOON_NS)
    session.feed(LOGON + request(1, 400), NOON_NS)
    first = session.tick(NOON_NS)
    assert (1 << 11) <= len(first) < 1 << 12
    session.pause(NOON_NS)
    assert (session.waiting, session.tick(NOON_NS)) == (False, b"")
    session.resume(NOON_NS)
    assert session.deadline_ns == NOON_NS
    store.clear()
    assert texts(session.tick(NOON_NS)) == ["the packets are no longer available"]
    assert (serving.counts["cut_short"], serving.counts["packets"]) == (1, len(texts(first)))


def test_a_day_has_as_many_requests_as_the_server_bears() -> None:
    serving = server({CHANNEL: stored(1, 10)}, requests_per_day=1)
    said = [texts(run(serving.session("c", NOON_NS), LOGON + request(1, 1))) for _ in range(2)]
    assert said == [["logon", "1", "replay complete"], ["logon", "too many requests today"]]


def test_clients_are_bounded_and_a_silent_one_is_closed() -> None:
    serving = server({}, clients_max=1, heartbeat_us=1_000, dead_us=5_000)
    session = serving.session("a", NOON_NS)
    assert serving.session("b", NOON_NS).closed
    session.feed(LOGON, NOON_NS)
    assert session.deadline_ns == NOON_NS + MS
    assert texts(session.tick(NOON_NS + MS)) == ["beat"]
    assert session.tick(NOON_NS + MS) == b""
    session.pause(NOON_NS + 2 * MS)
    assert session.tick(NOON_NS + 3 * MS) == b""
    assert session.deadline_ns == NOON_NS + 4 * MS  # a heartbeat that was due is left out
    session.tick(NOON_NS + 5 * MS)
    assert session.closed
    assert session.deadline_ns > NOON_NS * 2
    session.end()
    gone = serving.session("c", NOON_NS)
    gone.end()
    assert gone.feed(LOGON, NOON_NS) == b""
    assert (serving.counts["clients_silent"], serving.counts["clients_left"]) == (1, 1)
    with pytest.raises(UsageError):
        ReplayServer(ServerSetup(load_feed("iex-deep"), {}, ServerSettings()))


# -- both -----------------------------------------------------------------------------------------


def test_a_connection_is_made_when_something_is_asked_for_and_closed_behind_it() -> None:
    events: list[Event] = []
    changes: list[str] = []
    kept = ReconnectingClient(
        client(), RecoverySettings(), seed=1,
        on_events=lambda some, now_ns: events.extend(some),
        on_up=lambda now_ns: changes.append("up"),
        on_down=lambda reason, now_ns: changes.append(reason),
    )  # fmt: skip
    serving = server({CHANNEL: stored(1, 50)})
    for turn, first in enumerate([3, 20], 1):
        assert kept.deadline_ns > NOON_NS * 2, "there is nothing to connect for"
        assert kept.ask(Ask(turn, CHANNEL, first, first + 5, 0), NOON_NS)
        assert kept.deadline_ns <= NOON_NS
        kept.made(NOON_NS)
        session = serving.session("c", NOON_NS)
        said = run(session, kept.data_to_send())
        kept.feed(said, NOON_NS)
        said = run(session, kept.data_to_send())
        assert kept.feed(said, NOON_NS)
        assert kept.finished
        kept.lost("closed", NOON_NS)
    assert numbers(events) == [*range(3, 8), *range(20, 25)]
    assert changes == []
    kept.ask(Ask(3, CHANNEL, 3, 5, 0), NOON_NS)
    kept.lost("cannot connect", NOON_NS)
    assert changes == ["cannot connect"]
    assert NOON_NS < kept.deadline_ns < NOON_NS + 1_000 * MS, "the request waits for another try"


@drawn(6)
def test_however_the_bytes_are_cut_all_comes_once_and_unchanged(seed: int) -> None:
    draw = random.Random(seed)
    asking = client()
    serving = server({CHANNEL: stored(1, 400), OTHER: stored(100, 300)}, chunk_bytes=1 << 11)
    wanted: dict[int, list[int]] = {}
    for request_id in range(1, draw.randint(2, 9)):
        first = draw.randint(100, 290)
        end = min(first + draw.randint(1, 20), 300)
        asking.ask(Ask(request_id, draw.choice([CHANNEL, OTHER]), first, end, 0), NOON_NS)
        wanted[request_id] = list(range(first, end))
    came: dict[int, list[int]] = {}
    for _ in range(20):
        if not asking.wants:
            break
        asking.connected(NOON_NS)
        session = serving.session("c", NOON_NS)
        while asking.up:
            said = b"".join(session.feed(each, NOON_NS) for each in chunks(asking.data_to_send(),
                                                                            draw))  # fmt: skip
            while session.waiting:
                said += session.tick(NOON_NS)
            for each in chunks(said, draw):
                for event in asking.feed(each, NOON_NS):
                    if isinstance(event, Packet):
                        assert event.data == packet(event.sequence)
                        came.setdefault(event.request_id, []).append(event.sequence)
        asking.disconnected(NOON_NS)
        session.end()
    assert came == wanted, f"seed {seed}"


@drawn(6)
def test_mutated_bytes_never_raise_and_bring_nothing_that_was_not_asked_for(seed: int) -> None:
    draw = random.Random(seed)
    serving = server({CHANNEL: stored(1, 100)})
    asking = replaying(Ask(1, CHANNEL, 7, 30, 0))
    session = serving.session("c", NOON_NS)
    sent = LOGON + asking.data_to_send()
    said = b""
    for each in chunks(draw.choice([sent, mutated(sent, draw)]), draw):
        said += session.feed(each, NOON_NS)
    while session.waiting:
        said += session.tick(NOON_NS)
    behind = said[len(CONFIRMED) :]
    for each in chunks(draw.choice([behind, mutated(behind, draw)]), draw):
        for event in asking.feed(each, NOON_NS):
            assert set(numbers([event])) <= set(range(7, 30)), f"seed {seed}"
    assert set(asking.counts) == set(COUNTS)
    assert set(serving.counts) == set(SERVER_COUNTS)
