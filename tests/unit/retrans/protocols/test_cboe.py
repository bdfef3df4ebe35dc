"""Cboe's Gap Request Proxy and Spin Server: the bytes of the specification, clients and servers
face to face, each before a peer that is not what it should be."""

import random
import struct
from functools import partial
from typing import Any

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
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
    Rejected,
)
from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.protocols.cboe_grp import ANSWERS_WAITING_MAX, GrpClient, GrpServer
from feedhandler.retrans.protocols.cboe_session import CboeSession
from feedhandler.retrans.protocols.cboe_spin import (
    COUNTS,
    IMAGE_NS,
    SpinClient,
    SpinServer,
    SpinSnapshots,
)
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.requesting import REQUESTS_MAX
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import (
    Lines,
    answered,
    check_pieces,
    drawn_packets,
    exchange_by_lines,
    keep,
    messages,
    mutated,
    numbers,
    stored,
    whole,
)
from tests.support.seeds import drawn

FEED = load_feed("cboe-byx-pitch")
UNIT = 3
MS = 1_000_000
NOON_NS = 1_700_046_000 * 10**9


def unit(*body: bytes, number: int = UNIT, sequence: int = 0) -> bytes:
    """By the specification: length, count, unit, sequence number; and messages."""
    size = 8 + sum(map(len, body))
    return struct.pack("<HBBI", size, len(body), number, sequence) + b"".join(body)


LOGIN = b"\x16\x01" + b"0001" + b"USER" + b"  " + b"PASSWORD  "
HEARTBEAT = unit(number=0)


def login_answer(status: bytes = b"A") -> bytes:
    return unit(b"\x03\x02" + status, number=0)


def gap_request(first: int, count: int, number: int = UNIT) -> bytes:
    return unit(struct.pack("<BBBIH", 9, 3, number, first, count), number=number)


def gap_response(first: int, count: int, status: bytes = b"A", number: int = UNIT) -> bytes:
    return unit(struct.pack("<BBBIHc", 10, 4, number, first, count, status), number=number)


def message(number: int) -> bytes:
    """A "delete order" of 14 bytes, whose order id tells which it is."""
    return struct.pack("<BBIQ", 14, 0x29, 0, number)


def added(number: int) -> bytes:
    """A short "add order" of 26 bytes."""
    return struct.pack("<BBIQcH6sHB", 26, 0x22, 0, number, b"B", 100, b"ZVZZT ", 10, 1)


def packet(first: int, count: int, number: int = UNIT) -> bytes:
    """A packet of the lines."""
    return unit(*map(message, range(first, first + count)), number=number, sequence=first)


def available(last: int) -> bytes:
    return unit(struct.pack("<BBI", 6, 0x80, last))


def spin_request(last: int) -> bytes:
    return unit(struct.pack("<BBI", 6, 0x81, last))


def spin_response(last: int, orders: int, status: bytes = b"A") -> bytes:
    return unit(struct.pack("<BBIIc", 11, 0x82, last, orders, status))


def finished(last: int) -> bytes:
    return unit(struct.pack("<BBI", 6, 0x83, last))


def credentials(**changes: Any) -> dict[str, Any]:
    return {
        "feed": FEED, "settings": RecoverySettings(), "source_id": "USER", "session": "0001",
        "password": "PASSWORD", **changes,
    }  # fmt: skip


def grp(logged_in: bool = True, **settings: int) -> GrpClient:
    asking = GrpClient(
        ClientSetup(**credentials(
            settings=RecoverySettings(**settings), retransmission=(ChannelNames(UNIT),)
        ))
    )  # fmt: skip
    asking.connected(NOON_NS)
    if logged_in:
        assert asking.data_to_send() == unit(LOGIN, number=0)
        assert asking.feed(login_answer(), NOON_NS) == []
    return asking


def spinning(logged_in: bool = True, **settings: int) -> SpinClient:
    asking = SpinClient(
        ClientSetup(**credentials(
            settings=RecoverySettings(**settings), refresh=(ChannelNames(UNIT),)
        ))
    )  # fmt: skip
    asking.connected(NOON_NS)
    if logged_in:
        asking.data_to_send()
        assert asking.feed(login_answer(), NOON_NS) == []
    return asking


def grp_server(store: PacketStore, **settings: Any) -> tuple[GrpServer, Lines]:
    lines = Lines(UNIT)
    setup = ServerSetup(
        FEED, {UNIT: store}, ServerSettings(**settings), session="0001", retransmit=lines
    )
    return GrpServer(setup), lines


class State:
    """A source of snapshots: what a test says."""

    def __init__(self, last: int = 9, orders: int = 3) -> None:
        self.state: tuple[int, tuple[bytes, ...]] | None = (last, tuple(map(added, range(orders))))

    def __call__(self, service: int) -> tuple[int, tuple[bytes, ...]] | None:
        assert service == UNIT
        return self.state


def spin_server(state: State, **settings: Any) -> SpinServer:
    return SpinServer(
        ServerSetup(FEED, {UNIT: stored(FEED, [])}, ServerSettings(**settings), state)
    )


def entered(session: CboeSession) -> CboeSession:
    """A session whose client has logged in."""
    assert session.feed(unit(LOGIN, number=0), NOON_NS) == login_answer()
    return session


# -- the login, for both --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [grp, spinning])
def test_a_client_logs_in_first_and_asks_when_it_may(make: Any) -> None:
    asking = make(logged_in=False)
    asks = make is grp
    if asks:
        assert asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    assert asking.data_to_send() == unit(LOGIN, number=0)
    asking.feed(login_answer(), NOON_NS)
    assert asking.data_to_send() == (gap_request(7, 3) if asks else b"")
    assert asking.counts["logins"] == 1


@pytest.mark.parametrize("make", [grp, spinning])
@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (login_answer(b"N"), "login_refused"),
        (login_answer(b"B"), "login_refused"),
        (login_answer(b"S"), "login_refused"),
        (login_answer(b"x"), "login_refused"),
        (login_answer() + login_answer(), "wrong_direction"),
        (unit(b"\x02\x02"), "wrong_body_size"),
        (gap_response(7, 3), "not_logged_in"),
        (available(9), "not_logged_in"),
        (unit(added(1)), "not_logged_in"),
        (login_answer() + unit(LOGIN), "wrong_direction"),
        (struct.pack("<HBBI", 7, 0, 0, 0), "length_too_small"),
        (struct.pack("<HBBI", 9, 1, 0, 0) + b"\1", "bad_packet"),
        (struct.pack("<HBBI", 10, 1, 0, 0) + b"\3\2", "bad_packet"),
        (struct.pack("<HBBI", 9, 0, 0, 0) + b"\0", "wrong_count"),
    ],
)
def test_a_server_that_refuses_the_login_or_breaks_the_protocol_is_given_up(
    make: Any, data: bytes, counted: str
) -> None:
    asking = make(logged_in=False)
    (broken,) = asking.feed(data, NOON_NS)
    assert isinstance(broken, Broken)
    assert (asking.counts[counted], asking.counts["broken"]) == (1, 1)
    assert not asking.up
    assert asking.feed(HEARTBEAT, NOON_NS) == []
    assert asking.deadline_ns > NOON_NS * 2


@pytest.mark.parametrize("make", [grp, spinning])
def test_heartbeats_go_both_ways_and_a_silent_server_is_given_up(make: Any) -> None:
    asking = make(heartbeat_us=1_000_000, dead_us=3_000_000)
    assert asking.deadline_ns == NOON_NS + 1_000 * MS
    assert asking.tick(asking.deadline_ns) == []
    assert asking.data_to_send() == HEARTBEAT
    asking.feed(HEARTBEAT, NOON_NS + 1_500 * MS)
    for _ in range(2):
        asking.tick(asking.deadline_ns)
    assert asking.tick(NOON_NS + 4_500 * MS) == [Broken("the server was silent for 3000 ms")]
    mute = make(logged_in=False, heartbeat_us=1_000_000, dead_us=3_000_000)
    mute.data_to_send()
    mute.feed(HEARTBEAT, NOON_NS + 2_000 * MS)
    assert mute.tick(NOON_NS + 1_000 * MS) == []
    assert mute.data_to_send() == b"", "a heartbeat before the login is accepted"
    assert mute.tick(NOON_NS + 3_000 * MS) == [Broken("the server did not answer for 3000 ms")]


@pytest.mark.parametrize("make", [grp, spinning])
def test_bytes_of_a_unit_that_never_ends_are_no_sign_of_life(make: Any) -> None:
    asking = make(heartbeat_us=1_000_000, dead_us=3_000_000)
    asking.feed(struct.pack("<HBBI", 60_000, 0, 0, 0), NOON_NS)
    for at_ms in (1_000, 2_000):
        asking.feed(HEARTBEAT, NOON_NS + at_ms * MS)
        assert asking.tick(NOON_NS + at_ms * MS) == []
    assert asking.tick(NOON_NS + 3_000 * MS) == [Broken("the server was silent for 3000 ms")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": ""}, {"session": "00001"}, {"source_id": "USERS"}, {"password": "ELEVENCHARS"},
        {"password": "\u00e9"}, {"retransmission": (ChannelNames(256),)},
        {"feed": load_feed("nyse-integrated-xdp")},
    ],
)  # fmt: skip
def test_credentials_and_services_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        GrpClient(ClientSetup(**credentials(**wrong)))
    assert caught.value.hint
    assert "ELEVENCHARS" not in str(caught.value), "a password is never shown"


def test_a_spin_server_has_one_unit_and_no_gap_requests() -> None:
    one, two = (ChannelNames(1),), (ChannelNames(1), ChannelNames(2))
    for wrong in ({"refresh": two}, {"refresh": one, "retransmission": one}, {}):
        with pytest.raises(UsageError):
            SpinClient(ClientSetup(**credentials(**wrong)))
    with pytest.raises(UsageError):
        SpinServer(ServerSetup(FEED, {}, ServerSettings()))
    assert not spinning().ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)


@pytest.mark.parametrize(
    ("said", "answer", "counted"),
    [
        (unit(LOGIN), login_answer(), "logins"),
        (unit(LOGIN.replace(b"0001", b"0002")), login_answer(b"S"), "login_refused"),
        (unit(LOGIN.replace(b"USER", b"WHO ")), login_answer(b"N"), "login_refused"),
        (gap_request(7, 3), b"", "not_logged_in"),
        (unit(LOGIN[:-1]), b"", "bad_packet"),
        (unit(LOGIN) + unit(LOGIN), login_answer(), "wrong_direction"),
        (unit(LOGIN) + gap_response(7, 3), login_answer(), "wrong_direction"),
        (struct.pack("<HBBI", 300, 0, 0, 0), b"", "length_too_big"),
        (HEARTBEAT, b"", "heartbeats"),
    ],
)
def test_the_server_lets_in_whom_it_knows(said: bytes, answer: bytes, counted: str) -> None:
    serving, _ = grp_server(stored(FEED, []), source_ids=("USER",))
    session = serving.session("c", NOON_NS)
    assert session.feed(said, NOON_NS) == answer
    assert serving.counts[counted] == 1
    assert bool(session.closed) == (counted not in ("logins", "heartbeats"))


def test_a_session_is_used_by_one_client_at_a_time_and_clients_are_bounded() -> None:
    serving, _ = grp_server(stored(FEED, []), clients_max=2)
    first = entered(serving.session("a", NOON_NS))
    second = serving.session("b", NOON_NS)
    assert serving.session("c", NOON_NS).closed
    assert second.feed(unit(LOGIN), NOON_NS) == login_answer(b"B")
    assert second.closed
    first.end()
    entered(serving.session("d", NOON_NS))
    assert (serving.counts["clients_left"], serving.counts["clients_refused"]) == (1, 1)


def test_a_silent_client_is_closed_and_heartbeats_keep_one_open() -> None:
    serving, _ = grp_server(stored(FEED, []), heartbeat_us=1_000, dead_us=5_000)
    session = entered(serving.session("c", NOON_NS))
    assert session.deadline_ns == NOON_NS + MS
    assert session.tick(NOON_NS + MS) == HEARTBEAT
    session.feed(HEARTBEAT, NOON_NS + 4 * MS)
    session.pause(NOON_NS + 5 * MS)
    assert session.tick(NOON_NS + 6 * MS) == b""
    session.resume(NOON_NS + 6 * MS)
    session.tick(NOON_NS + 9 * MS)
    assert session.closed
    assert serving.counts["clients_silent"] == 1


# -- gap requests ---------------------------------------------------------------------------------

REFUSED = {
    b"O": RetransReject.NO_LONGER_AVAILABLE,
    b"D": RetransReject.TOO_MANY_TODAY,
    b"C": RetransReject.OVER_THRESHOLD,
    b"I": RetransReject.WRONG_SERVICE,
}


@pytest.mark.parametrize(("status", "reason"), REFUSED.items())
def test_each_refusal_is_a_reason_of_recovery(status: bytes, reason: RetransReject) -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    assert asking.data_to_send() == gap_request(7, 3)
    assert asking.feed(gap_response(7, 3, status), NOON_NS) == [Rejected(1, reason)]
    assert asking.outstanding == 0


@pytest.mark.parametrize("status", [b"M", b"S", b"U"])
def test_a_refusal_for_the_moment_ends_the_request_without_its_messages(status: bytes) -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    assert asking.feed(gap_response(7, 3, status), NOON_NS) == [Answered(1)]
    assert (asking.counts["not_now"], asking.counts["answered"]) == (1, 0)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([gap_response(7, 3), packet(7, 3)], [Accepted(1), (UNIT, 7, 10), Answered(1)]),
        ([packet(7, 3), gap_response(7, 3)], [Accepted(1), (UNIT, 7, 10), Answered(1)]),
        ([packet(7, 3), packet(7, 3)], [Accepted(1), (UNIT, 7, 10), Answered(1)]),
        (
            [packet(9, 9), gap_response(7, 3), packet(1, 8)],
            [Accepted(1), (UNIT, 9, 10), (UNIT, 7, 9), Answered(1)],
        ),
        ([packet(1, 6), packet(10, 1)], []),
        ([gap_response(7, 3, b"D"), packet(7, 3)], [Rejected(1, 4)]),
    ],
)
def test_what_comes_in_whichever_order_is_reported_once(
    came: list[bytes], expected: list[object]
) -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    events: list[Event] = []
    for data in came:
        by_line = data[9] == 0x29
        events += asking.datagram(UNIT, data, NOON_NS) if by_line else asking.feed(data, NOON_NS)
    assert whole(events) == expected
    assert all(body == message(n) for n, body in messages(FEED, events).items())


@pytest.mark.parametrize(
    ("datagram", "counted"),
    [
        (HEARTBEAT, "line_heartbeats"),
        (packet(7, 3, number=4), "wrong_unit"),
        (unit(message(7)), "others_packets"),
        (packet(7, 3)[:-1], "bad_packets"),
        (packet(7, 3) + b"\0", "bad_packets"),
        (b"", "bad_packets"),
        (packet(70, 3), "others_packets"),
    ],
)
def test_what_answers_no_request_is_counted_and_ignored(datagram: bytes, counted: str) -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    assert asking.datagram(UNIT, datagram, NOON_NS) == []
    assert asking.counts[counted] == 1
    assert numbers(asking.datagram(UNIT, packet(7, 3), NOON_NS)) == [7, 8, 9]


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (gap_response(8, 3), "never_asked"),
        (gap_response(7, 3) + gap_response(7, 3), "never_asked"),
        (gap_response(7, 3, number=4), "never_asked"),
        (gap_response(7, 3, b"x"), "malformed_answer"),
        (gap_request(7, 3), "wrong_direction"),
        (available(7), "wrong_direction"),
    ],
)
def test_a_proxy_that_answers_what_was_not_asked_is_given_up(data: bytes, counted: str) -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    assert isinstance(asking.feed(data, NOON_NS)[-1], Broken)
    assert asking.counts[counted] == 1
    assert asking.datagram(UNIT, packet(7, 3), NOON_NS) == []
    assert not asking.ask(Ask(2, UNIT, 7, 10, 0), NOON_NS)


def test_requests_for_the_same_gap_are_answered_in_their_order() -> None:
    asking = grp()
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    asking.cancel(1)
    asking.ask(Ask(2, UNIT, 7, 10, 0), NOON_NS)
    assert asking.feed(gap_response(7, 3, b"D"), NOON_NS) == []
    assert asking.feed(gap_response(7, 3), NOON_NS) == [Accepted(2)]
    assert numbers(asking.datagram(UNIT, packet(7, 3), NOON_NS)) == [7, 8, 9]


def test_gap_requests_whose_answers_are_awaited_are_bounded() -> None:
    asking = grp()
    for number in range(REQUESTS_MAX + 1):
        asking.ask(Ask(number, UNIT, number + 1, number + 2, 0), NOON_NS)
        asking.cancel(number)
    assert asking.counts["not_answered"] == 1
    assert isinstance(asking.feed(gap_response(1, 1), NOON_NS)[-1], Broken)


def test_a_proxy_that_does_not_respond_is_given_up_and_one_that_responds_is_not() -> None:
    asking = grp(heartbeat_us=1_000_000, dead_us=3_000_000)
    asking.ask(Ask(1, UNIT, 7, 10, 0), NOON_NS)
    asking.ask(Ask(2, UNIT, 17, 20, 0), NOON_NS)
    asking.feed(gap_response(7, 3), NOON_NS + 1_000 * MS)
    asking.feed(HEARTBEAT, NOON_NS + 3_900 * MS)
    for at_ms in (1_000, 2_000, 3_000):
        assert asking.tick(NOON_NS + at_ms * MS) == []
    assert asking.tick(NOON_NS + 4_000 * MS) == [Broken("the server did not answer for 3000 ms")]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (gap_request(7, 3), [gap_response(7, 3), packet(7, 2), packet(9, 1)]),
        (gap_request(6, 2), [gap_response(6, 2), packet(6, 1), packet(7, 1)]),
        (gap_request(9, 5), [gap_response(9, 5, b"O")]),
        (gap_request(18, 3), [gap_response(18, 3, b"O")]),
        (gap_request(1, 2), [gap_response(1, 2, b"O")]),
        (gap_request(7, 0), [gap_response(7, 0, b"C")]),
        (gap_request(7, 101), [gap_response(7, 101, b"C")]),
        (gap_request(7, 3, number=4), [gap_response(7, 3, b"I", number=4)]),
    ],
)
def test_the_proxy_answers_each_request_by_what_it_has(asked: bytes, said: list[bytes]) -> None:
    held = [packet(5, 2), packet(7, 2), packet(9, 1), packet(15, 5)]
    serving, lines = grp_server(stored(FEED, held), request_packets_max=100)
    assert answered(entered(serving.session("c", NOON_NS)), lines, asked, NOON_NS) == said


def test_the_proxys_quota_and_what_left_its_store() -> None:
    store = stored(FEED, [packet(1, 5)])
    serving, lines = grp_server(store, requests_per_day=1)
    session = entered(serving.session("c", NOON_NS))
    session.feed(gap_request(1, 5), NOON_NS)
    assert session.feed(gap_request(1, 5), NOON_NS) == gap_response(1, 5, b"D")
    store.clear()
    session.tick(NOON_NS)
    assert (lines.drain(), serving.counts["cut_short"]) == ([], 1)


def test_answers_that_wait_for_the_lines_are_bounded() -> None:
    serving, _ = grp_server(stored(FEED, [packet(1, 5)]))
    session = entered(serving.session("c", NOON_NS))
    for _ in range(ANSWERS_WAITING_MAX):
        session.feed(gap_request(1, 5), NOON_NS)
    assert not session.closed
    session.feed(gap_request(1, 5), NOON_NS)
    assert serving.counts["too_many_waiting"] == 1


# -- spins ----------------------------------------------------------------------------------------

STATUS_MESSAGE = struct.pack("<BBI8sccxx", 18, 0x31, 0, b"ZVZZT   ", b"T", b"0")
SPIN = [spin_response(9, 2), unit(added(1), STATUS_MESSAGE), unit(added(2)), finished(9)]


def test_a_spin_is_asked_for_with_the_first_image_after_the_request_and_comes_whole() -> None:
    asking = spinning()
    asking.feed(available(8), NOON_NS)
    assert asking.data_to_send() == b""
    assert asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    assert asking.data_to_send() == b""
    asking.feed(available(9), NOON_NS)
    assert asking.data_to_send() == spin_request(9)
    asking.feed(available(10), NOON_NS)
    assert asking.data_to_send() == b""
    events = asking.feed(b"".join(SPIN), NOON_NS)
    state = (added(1), STATUS_MESSAGE, added(2))
    assert events == [RefreshAccepted(1), RefreshSnapshot(1, UNIT, 9, state)]
    assert asking.ask_refresh(AskRefresh(2, UNIT), NOON_NS)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([spin_response(9, 0, b"O")], [RefreshRejected(1, RefreshReject.NO_DATA)]),
        ([spin_response(9, 0, b"S")], [RefreshRejected(1, RefreshReject.NO_DATA)]),
        ([spin_response(9, 0), finished(9)], [RefreshAccepted(1), RefreshSnapshot(1, UNIT, 9, ())]),
        (
            [*SPIN[:2], available(11), HEARTBEAT, *SPIN[2:]],
            [
                RefreshAccepted(1),
                RefreshSnapshot(1, UNIT, 9, (added(1), STATUS_MESSAGE, added(2))),
            ],
        ),
        (
            [*SPIN[:2], finished(9)],
            [RefreshAccepted(1), RefreshFailed(1, COUNTS["failed_count"])],
        ),
        (
            [*SPIN[:3], finished(10)],
            [RefreshAccepted(1), RefreshFailed(1, COUNTS["failed_number"])],
        ),
        (
            [spin_response(9, 99), *[unit(added(1))] * 99, finished(9)],
            [RefreshAccepted(1), RefreshFailed(1, COUNTS["failed_too_large"])],
        ),
    ],
)
def test_what_a_spin_server_says_is_reported_once(came: list[bytes], expected: list[Event]) -> None:
    asking = spinning(snapshot_bytes_max=1024)
    asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    asking.feed(available(9), NOON_NS)
    events: list[Event] = []
    for data in came:
        events += asking.feed(data, NOON_NS)
    assert events == expected
    asking.data_to_send()
    assert asking.ask_refresh(AskRefresh(2, UNIT), NOON_NS)
    asking.feed(available(19), NOON_NS)
    assert asking.data_to_send() == spin_request(19)


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (spin_response(8, 2), "never_asked"),
        (SPIN[0] * 2, "never_asked"),
        (unit(added(1)), "never_asked"),
        (finished(9), "never_asked"),
        (spin_response(9, 2, b"x"), "malformed_answer"),
        (spin_request(9), "wrong_direction"),
        (gap_response(9, 2), "wrong_direction"),
        (unit(b"\6\x84" + bytes(4)), "wrong_direction"),
    ],
)
def test_a_spin_server_that_breaks_the_protocol_is_given_up(data: bytes, counted: str) -> None:
    asking = spinning()
    asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    asking.feed(available(9), NOON_NS)
    assert isinstance(asking.feed(data, NOON_NS)[-1], Broken)
    assert asking.counts[counted] == 1
    assert not asking.ask_refresh(AskRefresh(2, UNIT), NOON_NS)


def test_a_cancelled_spin_goes_by_unheeded_and_the_next_waits_for_its_end() -> None:
    asking = spinning()
    asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    assert not asking.ask_refresh(AskRefresh(2, UNIT), NOON_NS)
    asking.cancel(1)
    asking.ask_refresh(AskRefresh(3, UNIT), NOON_NS)
    asking.feed(available(9) + SPIN[0] + SPIN[1], NOON_NS)
    asking.cancel(3)
    asking.data_to_send()
    assert asking.ask_refresh(AskRefresh(4, UNIT), NOON_NS)
    assert asking.feed(available(10) + SPIN[2] + SPIN[3], NOON_NS) == []
    assert asking.data_to_send() == b""
    asking.feed(available(11), NOON_NS)
    assert asking.data_to_send() == spin_request(11)
    assert (asking.counts["cancelled"], asking.counts["unheeded"]) == (2, 1)


def test_a_spin_that_stands_still_breaks_the_connection() -> None:
    asking = spinning(heartbeat_us=1_000_000, dead_us=3_000_000)
    asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    asking.feed(available(9) + SPIN[0], NOON_NS)
    asking.feed(SPIN[1], NOON_NS + 2_000 * MS)
    asking.feed(HEARTBEAT, NOON_NS + 4_900 * MS)
    for at_ms in (1_000, 2_000, 3_000, 4_000):
        assert asking.tick(NOON_NS + at_ms * MS) == []
    assert asking.tick(NOON_NS + 5_000 * MS) == [Broken("the server did not answer for 3000 ms")]


def test_the_spin_server_announces_images_and_sends_the_one_that_is_asked_for() -> None:
    state = State(last=9, orders=200)
    serving = spin_server(state, chunk_bytes=2_048, heartbeat_us=60_000_000, dead_us=60_000_000)
    session = entered(serving.session("c", NOON_NS))
    assert session.tick(NOON_NS) == b""
    assert session.deadline_ns == NOON_NS + IMAGE_NS
    assert session.tick(NOON_NS + IMAGE_NS) == available(9)
    state.state = (12, ())
    assert session.tick(NOON_NS + 2 * IMAGE_NS) == available(12)
    assert session.feed(spin_request(11), NOON_NS + 2 * IMAGE_NS) == spin_response(11, 0, b"O")
    assert session.feed(spin_request(9), NOON_NS + 2 * IMAGE_NS) == spin_response(9, 200)
    assert session.feed(spin_request(12), NOON_NS + 2 * IMAGE_NS) == spin_response(12, 0, b"S")
    session.pause(NOON_NS + 2 * IMAGE_NS)
    assert not session.waiting
    session.resume(NOON_NS + 2 * IMAGE_NS)
    said = b""
    while session.waiting:
        said += session.tick(NOON_NS + 2 * IMAGE_NS)
    asking = spinning()
    asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    events = asking.feed(available(9) + spin_response(9, 200) + said, NOON_NS)
    expected = tuple(map(added, range(200)))
    assert events == [RefreshAccepted(1), RefreshSnapshot(1, UNIT, 9, expected)]
    assert session.feed(spin_request(12), NOON_NS + 2 * IMAGE_NS) == spin_response(12, 0)


def test_a_spin_server_without_a_state_announces_none_and_keeps_few() -> None:
    state = State()
    state.state = None
    serving = spin_server(state)
    session = entered(serving.session("c", NOON_NS))
    assert session.tick(NOON_NS + IMAGE_NS) == HEARTBEAT
    for number in range(1, 10):
        state.state = (number, ())
        serving.advance(NOON_NS + (number + 1) * IMAGE_NS)
    assert [last for last, _ in serving.images] == [6, 7, 8, 9]
    assert SpinServer(ServerSetup(FEED, {UNIT: stored(FEED, [])}, ServerSettings())).advance(1) < 0


def test_a_spin_becomes_packets_outside_the_sequence_and_what_followed_is_cut_to_it() -> None:
    form = SpinSnapshots(FEED, RecoverySettings())
    state = tuple(map(added, range(300)))
    snapshot = form.whole(RefreshSnapshot(1, UNIT, 9, state))
    assert all(len(each) <= 1_400 for each in snapshot.packets)
    assert tuple(m for each in snapshot.packets for m in FEED.messages_of(each)) == state
    assert (snapshot.last, snapshot.messages, snapshot.service) == (9, 300, UNIT)
    store = PacketStore(1 << 16)
    for data in (packet(1, 5), packet(6, 6), packet(12, 2)):
        keep(FEED, store, data)
    assert form.since(snapshot, store, 14) == [(10, 12, packet(10, 2)), (12, 14, packet(12, 2))]
    assert form.fit(snapshot, store)
    assert form.assemblers(UNIT) == ()
    with pytest.raises(UsageError):
        SpinSnapshots(load_feed("iex-deep"), RecoverySettings())


# -- pieces, mutations, loss ----------------------------------------------------------------------


def talk(make: Any, draw: random.Random) -> bytes:
    """Return what a correct server sends: a login answer, then answers among heartbeats."""
    if make is grp:
        said = [
            gap_response(number * 10, 5, draw.choice([b"A", b"D", b"M"])) for number in range(5)
        ]
    else:
        said = [available(9), *SPIN, available(10)]
    return login_answer() + b"".join(each for one in said for each in (one, HEARTBEAT))


def asked_of(make: Any) -> Any:
    asking = make(logged_in=False)
    if make is grp:
        for number in range(5):
            asking.ask(Ask(number, UNIT, number * 10, number * 10 + 5, 0), NOON_NS)
    else:
        asking.ask_refresh(AskRefresh(1, UNIT), NOON_NS)
    return asking


@pytest.mark.parametrize("make", [grp, spinning])
@drawn(6)
def test_any_chunking_gives_the_same_events(make: Any, seed: int) -> None:
    draw = random.Random(seed)
    check_pieces(asked_of(make), asked_of(make), talk(make, draw), draw, NOON_NS)


@pytest.mark.parametrize("make", [grp, spinning])
@drawn(4)
def test_mutated_bytes_raise_nothing(make: Any, seed: int) -> None:
    draw = random.Random(seed)
    state = State()
    for _ in range(100):
        asking = asked_of(make)
        events = asking.feed(mutated(talk(make, draw), draw), NOON_NS)
        if make is grp:
            session: CboeSession = grp_server(stored(FEED, [packet(1, 50)]))[0].session("c", 0)
            for data in (packet(8, 20), packet(30, 15)):
                events += asking.datagram(UNIT, mutated(data, draw), NOON_NS)
            asked = {n for number in range(5) for n in range(number * 10, number * 10 + 5)}
            assert set(numbers(events)) <= asked
        else:
            session = spin_server(state).session("c", 0)
        said = unit(LOGIN) + gap_request(1, 9) + HEARTBEAT + spin_request(9)
        session.feed(mutated(said, draw), 1)
        session.tick(IMAGE_NS)


@drawn(6)
def test_by_lines_that_lose_and_double_all_comes_once_and_unchanged(seed: int) -> None:
    draw = random.Random(seed)
    store = stored(FEED, drawn_packets(packet, 30, draw), 1 << 20)
    serving, lines = grp_server(store, chunk_bytes=1 << 12)
    session = entered(serving.session("c", NOON_NS))
    answers = partial(answered, session, lines, now_ns=NOON_NS)
    exchange_by_lines(grp(), answers, FEED, UNIT, message, draw)
