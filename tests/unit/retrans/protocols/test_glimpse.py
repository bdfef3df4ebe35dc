"""GLIMPSE: the bytes of the specification, client and server face to face, each before a peer that
is not what it should be; and the connection that is there while it is wanted."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from feedhandler import codecs
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Broken,
    Finished,
    RefreshAccepted,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
)
from feedhandler.retrans.protocol import NEVER_NS, RefreshReject
from feedhandler.retrans.protocols.glimpse import (
    COUNTS,
    MAY_COME,
    GlimpseClient,
    GlimpseSnapshots,
    State,
)
from feedhandler.retrans.protocols.glimpse_server import GlimpseServer, GlimpseSession
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.reconnection import FINISHED, OnDemandClient, ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import check_pieces, keep, mutated, stored
from tests.support.seeds import drawn

FEED = load_feed("nasdaq-totalview-itch")
SERVICE = 7
MS = 1_000_000
NOON_NS = 1_700_046_000 * 10**9


def soup(kind: bytes, payload: bytes = b"") -> bytes:
    """By the specification: length of type and payload, type, payload."""
    return (len(payload) + 1).to_bytes(2, "big") + kind + payload


LOGIN = soup(b"L", b"MEUSER" + b"SECRET    " + b" " * 10 + b"1".rjust(20))
ACCEPTED = soup(b"A", b"SESSION001" + b"1".rjust(20))
HEARTBEAT, BEATS, LOGOUT = soup(b"H"), soup(b"R"), soup(b"O")


def added(order: int, shares: int = 100) -> bytes:
    """An "add order" as the feed frames it."""
    return FEED.encode_message(
        "add_order_no_mpid_attribution", stock_locate=1, order_reference_number=order,
        buy_sell_indicator="B", shares=shares, stock="ZVZZT", price=100_000,
    )  # fmt: skip


def said(message: bytes) -> bytes:
    """A message of a snapshot, which has no length of its own."""
    return soup(b"S", message[2:])


def end(following: int) -> bytes:
    return soup(b"S", b"G" + b"%020d" % following)


STATE = tuple(map(added, range(1, 4)))
SNAPSHOT = ACCEPTED + b"".join(map(said, STATE)) + end(10)


def setup(**changes: Any) -> ClientSetup:
    known: dict[str, Any] = {
        "feed": FEED, "settings": RecoverySettings(), "source_id": "MEUSER", "password": "SECRET",
        "refresh": (ChannelNames(SERVICE),), **changes,
    }  # fmt: skip
    return ClientSetup(**known)


def asking(connected: bool = True, **settings: int) -> GlimpseClient:
    """A client that wants a snapshot, as request 1."""
    client = GlimpseClient(setup(settings=RecoverySettings(**settings)))
    assert client.ask_refresh(AskRefresh(1, SERVICE), NOON_NS)
    if connected:
        client.connected(NOON_NS)
        assert client.data_to_send() == LOGIN
    return client


class Source:
    """A source of snapshots: what a test says."""

    def __init__(self, last: int = 9, state: tuple[bytes, ...] = STATE) -> None:
        self.state: tuple[int, tuple[bytes, ...]] | None = (last, state)

    def __call__(self, service: int) -> tuple[int, tuple[bytes, ...]] | None:
        assert service == SERVICE
        return self.state


def serving(source: Source | None = None, **settings: Any) -> GlimpseServer:
    return GlimpseServer(
        ServerSetup(
            FEED, {SERVICE: stored(FEED, [])}, ServerSettings(**settings), source or Source(),
            session="SESSION001", passwords={"MEUSER": "SECRET"},
        )
    )  # fmt: skip


# -- the client -----------------------------------------------------------------------------------


def test_a_client_connects_for_a_snapshot_and_leaves_when_it_has_it() -> None:
    client = asking(connected=False)
    assert isinstance(client, OnDemandClient)
    assert client.wants
    assert (client.state, client.deadline_ns) == (State.CLOSED, NEVER_NS)
    client.connected(NOON_NS)
    assert (client.state, client.wants, client.up) == (State.LOGIN, False, True)
    assert client.data_to_send() == LOGIN
    assert client.feed(SNAPSHOT, NOON_NS) == [
        RefreshAccepted(1), RefreshSnapshot(1, SERVICE, 9, STATE), Finished()
    ]  # fmt: skip
    assert (client.state, client.up, client.wants) == (State.OVER, False, False)
    assert client.data_to_send() == LOGOUT
    assert client.feed(SNAPSHOT, NOON_NS) == []
    client.disconnected(NOON_NS)
    assert client.failed("closed", NOON_NS) == []
    assert client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    assert (client.counts["snapshots"], client.counts["logins"]) == (1, 1)


@pytest.mark.parametrize("following", [1, 2**63 - 1])
def test_the_end_names_the_first_message_that_is_not_in_the_snapshot(following: int) -> None:
    events = asking().feed(ACCEPTED + end(following), NOON_NS)
    assert events[1] == RefreshSnapshot(1, SERVICE, following - 1, ())


def test_heartbeats_and_debug_packets_may_stand_anywhere_and_numbers_be_padded_by_blanks() -> None:
    between = HEARTBEAT + soup(b"+", b"text")
    data = b"".join(
        [ACCEPTED, between, said(STATE[0]), between, soup(b"S", b"G" + b"10".rjust(20))]
    )
    events = asking().feed(between + data, NOON_NS)
    assert events[1:] == [RefreshSnapshot(1, SERVICE, 9, STATE[:1]), Finished()]


@pytest.mark.parametrize(
    ("data", "reason", "text"),
    [
        (soup(b"J", b"A"), RefreshReject.PERMISSION, "not authorized: compare source_id"),
        (soup(b"J", b"S"), RefreshReject.NO_DATA, "there is no snapshot of this session"),
        (soup(b"J", b"x"), RefreshReject.PERMISSION, "reason b'x'"),
        (soup(b"J"), RefreshReject.PERMISSION, "reason b''"),
    ],
)
def test_a_refused_login_refuses_the_snapshot_and_says_why(
    data: bytes, reason: RefreshReject, text: str
) -> None:
    client = asking()
    rejected, broken = client.feed(data, NOON_NS)
    assert rejected == RefreshRejected(1, reason)
    assert isinstance(broken, Broken)
    assert text in broken.reason
    assert client.counts["login_refused"] == client.counts["broken"] == 1
    client.disconnected(NOON_NS)
    assert client.failed(broken.reason, NOON_NS) == []
    assert client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (said(STATE[0]), "wrong_direction"),
        (end(10), "wrong_direction"),
        (soup(b"Z"), "wrong_direction"),
        (ACCEPTED + ACCEPTED, "wrong_direction"),
        (ACCEPTED + soup(b"J", b"A"), "wrong_direction"),
        (ACCEPTED + soup(b"U", b"x"), "wrong_direction"),
        (ACCEPTED + soup(b"Z"), "malformed_answer"),
        (soup(b"A", b"SESSION001" + b"2".rjust(20)), "malformed_answer"),
        (soup(b"A", b"SESSION001"), "malformed_answer"),
        (ACCEPTED + soup(b"S", b"G" + b"9" * 19), "malformed_answer"),
        (ACCEPTED + soup(b"S", b"G" + b"9" * 5000), "malformed_answer"),
        (ACCEPTED + soup(b"S", b"G" + b"9" * 20), "malformed_answer"),
        (ACCEPTED + end(0), "malformed_answer"),
        (ACCEPTED + soup(b"S", b"G"), "malformed_answer"),
        (ACCEPTED + soup(b"S"), "bad_packet"),
        (soup(b"R"), "bad_packet"),
        (LOGIN, "bad_packet"),
        (b"\0\0", "bad_packet"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_packet"),
    ],
)
def test_a_server_that_breaks_the_protocol_is_given_up_and_the_request_fails(
    data: bytes, counted: str
) -> None:
    client = asking()
    broken = client.feed(data, NOON_NS)[-1]
    assert isinstance(broken, Broken)
    assert broken.reason.startswith("the server sent ")
    assert (client.counts[counted], client.counts["broken"]) == (1, 1)
    assert not client.up
    assert client.feed(SNAPSHOT, NOON_NS) == []
    assert client.deadline_ns == NEVER_NS
    client.disconnected(NOON_NS)
    assert client.failed(broken.reason, NOON_NS) == [RefreshFailed(1, broken.reason)]
    assert client.failed(broken.reason, NOON_NS) == []


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", sorted(MAY_COME))
def test_each_packet_in_each_state_is_taken_where_the_table_has_it(
    state: State, kind: bytes
) -> None:
    client = asking(connected=False)
    if state is not State.CLOSED:
        client.connected(NOON_NS)
    if state in (State.SNAPSHOT, State.OVER):
        client.feed(ACCEPTED, NOON_NS)
    if state is State.OVER:
        client.feed(end(10), NOON_NS)
    assert client.state is state
    data = {b"A": ACCEPTED, b"S": said(STATE[0])}.get(kind, soup(kind, b"A"))
    client.feed(data, NOON_NS)
    ignored = state in (State.CLOSED, State.OVER)
    wrong = not ignored and state not in MAY_COME[kind]
    assert client.counts["wrong_direction"] == wrong


def test_a_snapshot_that_is_too_large_fails_and_the_connection_ends() -> None:
    client = asking(snapshot_bytes_max=1024)
    big = ACCEPTED + said(STATE[0]) * 40
    assert client.feed(big, NOON_NS) == [
        RefreshAccepted(1), RefreshFailed(1, COUNTS["failed_too_large"]), Finished()
    ]  # fmt: skip


def test_one_snapshot_at_a_time_and_no_packets() -> None:
    client = asking(connected=False)
    assert not client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    client.connected(NOON_NS)
    assert not client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    assert not client.ask(Ask(3, SERVICE, 1, 2, 0), NOON_NS)
    assert client.counts["not_asked"] == 3


def test_a_cancelled_request_ends_its_connection_and_the_next_gets_one_of_its_own() -> None:
    client = asking(connected=False)
    client.cancel(1)
    assert not client.wants
    client.connected(NOON_NS)
    assert client.deadline_ns == 0
    assert client.tick(NOON_NS) == [Finished()], "it was cancelled while we connected"
    client = asking()
    client.cancel(99)
    client.feed(ACCEPTED + said(STATE[0]), NOON_NS)
    client.cancel(1)
    assert client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    assert client.feed(said(STATE[1]), NOON_NS) == []
    assert client.tick(NOON_NS) == [Finished()]
    assert client.wants
    client.disconnected(NOON_NS)
    client.connected(NOON_NS)
    assert client.feed(SNAPSHOT, NOON_NS)[1] == RefreshSnapshot(2, SERVICE, 9, STATE)
    assert client.counts["cancelled"] == 1


def test_a_request_before_the_login_is_answered_takes_the_place_of_a_cancelled_one() -> None:
    client = asking()
    client.cancel(1)
    assert client.ask_refresh(AskRefresh(2, SERVICE), NOON_NS)
    assert not client.wants
    assert client.feed(SNAPSHOT, NOON_NS)[:2] == [
        RefreshAccepted(2), RefreshSnapshot(2, SERVICE, 9, STATE)
    ]  # fmt: skip


def test_a_snapshot_that_is_no_longer_wanted_is_not_reported() -> None:
    client = asking()
    client.cancel(1)
    assert client.feed(SNAPSHOT, NOON_NS) == [Finished()]
    client = asking()
    client.cancel(1)
    assert isinstance(*client.feed(soup(b"J", b"A"), NOON_NS), Broken)


def test_heartbeats_are_sent_and_a_silent_server_is_given_up() -> None:
    client = asking(heartbeat_us=1_000_000, dead_us=3_000_000)
    assert client.deadline_ns == NOON_NS + 1_000 * MS
    assert client.tick(NOON_NS + 999 * MS) == []
    assert client.data_to_send() == b""
    assert client.tick(NOON_NS + 1_000 * MS) == []
    assert client.data_to_send() == BEATS
    client.feed(ACCEPTED[:-1], NOON_NS + 2_000 * MS)
    client.tick(NOON_NS + 2_000 * MS)
    assert client.tick(NOON_NS + 3_000 * MS) == [Broken("the server was silent for 3000 ms")]
    client.disconnected(NOON_NS)


def test_heartbeats_alone_are_not_what_was_wanted() -> None:
    client = asking(heartbeat_us=1_000_000, dead_us=3_000_000)
    client.feed(ACCEPTED, NOON_NS + 500 * MS)
    for at_ms in (1_000, 2_000, 3_000):
        client.feed(HEARTBEAT, NOON_NS + at_ms * MS)
        assert client.tick(NOON_NS + at_ms * MS) == []
    (broken,) = client.tick(NOON_NS + 3_500 * MS)
    assert broken == Broken("the server sent nothing that was wanted for 3000 ms")
    assert client.counts["unanswered"] == 1


def test_a_connection_that_ends_within_a_packet_is_counted_and_fails_the_request() -> None:
    client = asking()
    client.feed(SNAPSHOT[:-5], NOON_NS)
    client.disconnected(NOON_NS)
    assert client.failed("the server closed it", NOON_NS) == [
        RefreshFailed(1, "the server closed it")
    ]
    assert (client.counts["cut_off"], client.counts["failed_cut"]) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_id": "SEVENTY"}, {"password": ""}, {"password": "ELEVENCHARS"},
        {"session": "ELEVENCHARS"}, {"feed": load_feed("iex-deep")},
        {"refresh": ()}, {"refresh": (ChannelNames(1), ChannelNames(2))},
        {"retransmission": (ChannelNames(7),)},
    ],
)  # fmt: skip
def test_what_a_client_cannot_be_made_of_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        GlimpseClient(setup(**wrong))
    assert caught.value.hint
    assert "ELEVENCHARS" not in str(caught.value), "a password is never shown"


# -- the server -----------------------------------------------------------------------------------


def whole(session: GlimpseSession, data: bytes) -> bytes:
    """Return what a session answers to `data`, and what it writes until nothing waits."""
    found = session.feed(data, NOON_NS)
    while session.deadline_ns <= NOON_NS:
        found += session.tick(NOON_NS)
    return found


def test_the_server_sends_the_state_and_its_end_behind_the_login() -> None:
    server = serving(chunk_bytes=2_048)
    session = server.session("c", NOON_NS)
    assert whole(session, LOGIN) == SNAPSHOT
    assert session.feed(LOGOUT, NOON_NS) == b""
    assert session.closed == "the client logged out"
    names = ("logins", "snapshots", "logouts", "clients")
    assert [server.counts[name] for name in names] == [1] * 4
    assert server.counts["bytes"] == len(SNAPSHOT) - len(ACCEPTED)
    assert not server.sessions


def test_a_large_snapshot_goes_out_in_chunks_and_waits_for_a_slow_reader() -> None:
    state = tuple(map(added, range(500)))
    server = serving(Source(9, state), chunk_bytes=2_048, dead_us=3_000_000)
    session = server.session("c", NOON_NS)
    assert session.feed(LOGIN, NOON_NS) == ACCEPTED
    chunk = session.tick(NOON_NS)
    assert 2_048 <= len(chunk) < 2_100
    session.pause(NOON_NS)
    session.pause(NOON_NS + MS)
    assert session.tick(NOON_NS + 2_999 * MS) == b""
    session.resume(NOON_NS + 2_999 * MS)
    assert session.deadline_ns == NOON_NS + 2_999 * MS
    assert session.tick(NOON_NS + 2_999 * MS)
    session.pause(NOON_NS + 3_000 * MS)
    assert session.tick(NOON_NS + 6_000 * MS) == b""
    assert session.closed == "the client takes nothing any more"
    assert server.counts["clients_slow"] == 1
    assert session.tick(NOON_NS + 9_000 * MS) == session.feed(LOGIN, NOON_NS) == b""


@pytest.mark.parametrize(
    ("data", "answer", "counted"),
    [
        (LOGIN.replace(b"MEUSER", b"WRONG "), soup(b"J", b"A"), "login_refused"),
        (LOGIN.replace(b"SECRET", b"WRONG "), soup(b"J", b"A"), "login_refused"),
        (LOGIN.replace(b" " * 10, b"OTHER".rjust(10), 1), soup(b"J", b"S"), "login_refused"),
        (soup(b"L", b"short"), b"", "badly_formed"),
        (LOGIN[:-1] + b"x", b"", "badly_formed"),
        (soup(b"U", b"x"), b"", "wrong_direction"),
        (soup(b"S", b"x"), b"", "bad_packet"),
        (soup(b"L", bytes(300)), b"", "bad_packet"),
        (LOGIN + LOGIN, ACCEPTED, "wrong_direction"),
        (LOGOUT, b"", "logouts"),
        (BEATS + soup(b"+", b"hello"), b"", "heartbeats"),
    ],
)
def test_who_logs_in_wrongly_is_refused_and_who_breaks_the_protocol_closed(
    data: bytes, answer: bytes, counted: str
) -> None:
    server = serving(source_ids=("MEUSER",))
    session = server.session("c", NOON_NS)
    assert session.feed(data, NOON_NS) == answer
    assert server.counts[counted] == 1
    assert bool(session.closed) == (counted != "heartbeats")
    assert len(server.sessions) == (counted == "heartbeats")
    session.end()


def test_a_username_that_has_no_password_is_refused_where_others_have_one() -> None:
    session = serving().session("c", NOON_NS)
    assert session.feed(LOGIN.replace(b"MEUSER", b"OTHER "), NOON_NS) == soup(b"J", b"A")
    open_to_all = GlimpseServer(
        ServerSetup(FEED, {SERVICE: stored(FEED, [])}, ServerSettings(), Source())
    )
    assert open_to_all.session("c", NOON_NS).feed(LOGIN, NOON_NS)[2:3] == b"A"


@pytest.mark.parametrize("source", [None, Source()])
def test_without_a_state_there_is_no_session(source: Source | None) -> None:
    if source is not None:
        source.state = None
    server = GlimpseServer(ServerSetup(FEED, {SERVICE: stored(FEED, [])}, ServerSettings(), source))
    assert server.session("c", NOON_NS).feed(LOGIN, NOON_NS) == soup(b"J", b"S")


def test_clients_are_bounded_and_silent_ones_closed() -> None:
    server = serving(clients_max=1, heartbeat_us=1_000_000, dead_us=3_000_000)
    session = server.session("a", NOON_NS)
    assert server.session("b", NOON_NS).closed
    whole(session, LOGIN)
    assert session.tick(NOON_NS + 1_000 * MS) == HEARTBEAT
    session.feed(BEATS, NOON_NS + 1_500 * MS)
    assert session.tick(NOON_NS + 2_000 * MS) == HEARTBEAT
    assert session.tick(NOON_NS + 4_500 * MS) == b""
    assert session.closed == "the client is silent"
    assert server.counts["clients_silent"] == server.counts["clients_refused"] == 1
    assert session.deadline_ns == NEVER_NS
    server.session("c", NOON_NS).end()
    assert server.counts["clients_left"] == 1


def test_a_server_has_one_channel_of_an_itch_feed() -> None:
    with pytest.raises(UsageError):
        GlimpseServer(ServerSetup(FEED, {}, ServerSettings()))
    with pytest.raises(UsageError):
        GlimpseServer(
            ServerSetup(load_feed("iex-deep"), {1: PacketStore(1 << 16)}, ServerSettings())
        )


# -- the form -------------------------------------------------------------------------------------


def test_a_snapshot_becomes_packets_and_a_market_of_it_and_what_follows_is_the_market() -> None:
    form = GlimpseSnapshots(FEED, RecoverySettings())
    state = tuple(map(added, range(1, 301)))
    snapshot = form.whole(RefreshSnapshot(1, SERVICE, 300, state))
    assert all(len(each) <= 1_400 for each in snapshot.packets)
    assert tuple(m for each in snapshot.packets for m in FEED.messages_of(each)) == state
    assert (snapshot.last, snapshot.messages, snapshot.service) == (300, 300, SERVICE)
    live = [
        *map(added, range(1, 301)),
        FEED.encode_message("order_delete", stock_locate=1, order_reference_number=5),
        FEED.encode_message(
            "order_executed", stock_locate=1, order_reference_number=7, executed_shares=40
        ),
    ]
    store = PacketStore(1 << 16)
    for first, last in ((1, 20), (290, 301), (302, 302)):
        keep(FEED, store, FEED.encode_packet(sequence=first, messages=live[first - 1 : last]))
    since = form.since(snapshot, store, 303)
    assert [each[:2] for each in since] == [(301, 302), (302, 303)]
    of_all, of_both = Market(FEED), Market(FEED)
    for message in live:
        of_all.apply_message(message)
    for packet in (*snapshot.packets, *(each[2] for each in since)):
        of_both.apply(packet)
    assert of_both.books[1].bids.orders == of_all.books[1].bids.orders
    assert len(of_both.books[1].bids.orders) == 299
    assert not of_both.problems
    assert form.fit(snapshot, store)
    assert form.assemblers(SERVICE) == ()
    with pytest.raises(UsageError):
        GlimpseSnapshots(load_feed("iex-deep"), RecoverySettings())


# -- a connection on demand -----------------------------------------------------------------------


class Story:
    """A `ReconnectingClient` of a GLIMPSE server, and what it reported."""

    def __init__(self) -> None:
        self.now = NOON_NS
        self.reported: list[Any] = []
        self.outputs = 0
        settings = RecoverySettings(reconnect_us=8_000, reconnect_max_us=64_000)
        self.server = ReconnectingClient(
            GlimpseClient(setup(settings=settings)),
            settings,
            on_events=lambda events, now_ns: self.reported.extend(events),
            on_up=lambda now_ns: self.reported.append("up"),
            on_down=lambda reason, now_ns: self.reported.append(f"down: {reason}"),
            seed=3,
        )
        self.server.on_output = self._output

    def _output(self) -> None:
        self.outputs += 1

    def ask(self, request_id: int) -> None:
        assert self.server.ask_refresh(AskRefresh(request_id, SERVICE), self.now)


def test_nothing_is_connected_to_before_a_snapshot_is_wanted_nor_behind_it() -> None:
    story = Story()
    assert story.server.deadline_ns == story.server.connect_ns == NEVER_NS
    assert story.server.available
    story.ask(1)
    assert (story.outputs, story.server.connect_ns) == (1, 0)
    story.server.made(story.now)
    assert story.server.data_to_send() == LOGIN
    assert story.server.feed(SNAPSHOT, story.now) == FINISHED
    assert story.server.finished
    assert story.server.data_to_send() == LOGOUT
    story.server.lost("closed", story.now)
    assert story.server.connect_ns == NEVER_NS
    assert story.reported == [RefreshAccepted(1), RefreshSnapshot(1, SERVICE, 9, STATE)]
    story.ask(2)
    assert story.server.connect_ns == story.now, "at once: the server was well"


def test_what_fails_is_reported_once_and_the_next_attempt_waits() -> None:
    story = Story()
    for request_id in (1, 2):
        story.ask(request_id)
        story.server.lost("refused", story.now)
        assert story.server.connect_ns == NEVER_NS
        assert not story.server.available
    assert story.reported == [
        RefreshFailed(1, "refused"),
        "down: refused",
        RefreshFailed(2, "refused"),
    ]
    story.ask(3)
    assert 8 * MS <= story.server.connect_ns - story.now <= 16 * MS
    story.server.made(story.now)
    assert story.server.available
    reason = story.server.feed(b"\0\0", story.now)
    assert not story.server.finished
    story.server.lost(reason, story.now)
    assert story.reported[3:] == [RefreshFailed(3, reason), f"down: {reason}"]


def test_a_cancelled_request_has_its_connection_closed_and_nothing_is_reported() -> None:
    story = Story()
    story.ask(1)
    story.server.made(story.now)
    story.server.feed(ACCEPTED, story.now)
    story.server.cancel(1)
    assert (story.outputs, story.server.deadline_ns) == (2, 0)
    assert story.server.tick(story.now) == FINISHED
    story.server.lost("closed", story.now)
    assert story.reported == [RefreshAccepted(1)]


# -- pieces, mutations ----------------------------------------------------------------------------


@drawn(6)
def test_any_chunking_gives_the_same_events(seed: int) -> None:
    check_pieces(asking(), asking(), HEARTBEAT + SNAPSHOT, random.Random(seed), NOON_NS)


@drawn(4)
def test_mutated_bytes_raise_nothing(seed: int) -> None:
    draw = random.Random(seed)
    server = serving()
    form = GlimpseSnapshots(FEED, RecoverySettings())
    for _ in range(100):
        client = asking()
        for event in client.feed(mutated(SNAPSHOT, draw), NOON_NS):
            if isinstance(event, RefreshSnapshot):
                for packet in form.whole(event).packets:
                    Market(FEED).apply(packet)
        client.tick(NOON_NS + 10_000 * MS)
        session = server.session("c", NOON_NS)
        session.feed(mutated(LOGIN + BEATS + LOGOUT, draw), NOON_NS)
        session.tick(NOON_NS)
        session.end()
    assert not server.sessions


def test_a_feed_whose_messages_have_the_type_of_the_end_has_no_snapshots(tmp_path: Path) -> None:
    feeds = Path(codecs.__file__).parent / "feeds"
    shutil.copytree(feeds / "shared", tmp_path / "shared")
    text = (feeds / "nasdaq-totalview-itch.toml").read_text()
    text = text.replace('snapshots = "glimpse"\n', "").replace('type = "N"', 'type = "G"')
    path = tmp_path / "mine.toml"
    text = text.replace('name = "nasdaq-totalview-itch"', 'name = "mine"')
    path.write_text(text.replace("\nnumber = 6\n", "\nnumber = 999\n"))
    with pytest.raises(UsageError, match="mine has a message of type G"):
        GlimpseSnapshots(load_feed(str(path)), RecoverySettings())
