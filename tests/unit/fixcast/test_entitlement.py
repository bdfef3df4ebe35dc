"""Entitlement by a Logon: both ends of its session, wired back to back (`fixcast.entitlement`)."""

import itertools
import random
from types import SimpleNamespace

import pytest

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.fix.encode import encode
from feedhandler.fixcast import entitlement, entitlement_service
from feedhandler.fixcast import entitlement_messages as messages
from feedhandler.fixcast.entitlement import (
    CLIENT_MESSAGE_BYTES_MAX,
    TABLE,
    Action,
    Close,
    EntitlementClient,
    EntitlementServer,
    EntitlementSettings,
    Event,
    Input,
    LoggedOn,
    LoggedOut,
    Send,
    State,
    Verify,
)
from feedhandler.fixcast.entitlement_messages import Dictionary, Grant, Withdrawal, read, write
from feedhandler.fixcast.keys import ChannelKey, KeyRing
from feedhandler.fixcast.session import NEVER
from tests.support.fix_keys import CHANNEL, SECOND, START, key

SETTINGS = EntitlementSettings(heartbeat_ns=10 * SECOND, lead_ns=60 * SECOND)
PASSWORD = "s3cret"
OPTIONS = Grant(
    "options", ("W", "X"), (b"\x01" * 32, b"\x02" * 32), b"[[channel]]\nid = 'options'\n"
)
EQUITIES = Grant(CHANNEL)
DICTIONARY = Dictionary("FIX50SP2", b"<fix>\x01data\x01</fix>")


class Wired:
    """A server with its users' connections; bytes go over cut as `chance` says."""

    def __init__(self, seed: int = 0, settings: EntitlementSettings = SETTINGS) -> None:
        self.rings = {each: KeyRing(each) for each in (CHANNEL, "options")}
        self.server = EntitlementServer(
            {"ann": [CHANNEL], "bob": [CHANNEL, "options"]},
            [EQUITIES, OPTIONS],
            self.rings.values(),
            settings,
            DICTIONARY,
        )
        self.clients: dict[int, EntitlementClient] = {}
        self.events: dict[int, list[Event]] = {}
        self.closed: set[int] = set()
        self.chance = random.Random(seed)
        self.now_ns = START

    def connect(self, user: str, password: str = PASSWORD, address: str = "a") -> int:
        """Connect and log in; the connection's id."""
        id = len(self.clients)
        self.clients[id] = client = EntitlementClient(user, password, 10 * SECOND)
        self.events[id] = []
        self.do(self.server.connected(id, address, self.now_ns))
        client.start(self.now_ns)
        self.pump(id)
        return id

    def pump(self, id: int) -> None:
        """Bring a client's bytes to the server, in pieces."""
        data = self.clients[id].data_to_send()
        while data and id not in self.closed:
            cut = self.chance.randint(1, len(data))
            self.do(self.server.received(id, data[:cut], self.now_ns))
            data = data[cut:]

    def do(self, actions: list[Action]) -> None:
        """Carry out the actions of a server as its driver does."""
        for action in actions:
            match action:
                case Send():
                    client = self.clients[action.connection]
                    self.events[action.connection] += client.receive(action.data, self.now_ns)
                case Verify():
                    right = action.password == PASSWORD
                    self.do(self.server.verified(action.connection, right, self.now_ns))
                case Close():
                    self.closed.add(action.connection)
                    self.server.closed(action.connection)

    def until(self, now_ns: int) -> None:
        """Let the time go by, from deadline to deadline."""
        while True:
            ends = [self.server, *self.clients.values()]
            self.now_ns = max(self.now_ns, min(now_ns, *(each.deadline_ns for each in ends)))
            self.do(self.server.tick(self.now_ns))
            for id, client in self.clients.items():
                self.events[id] += client.tick(self.now_ns)
                self.pump(id)
            if self.now_ns >= now_ns:
                return

    def keys(self, id: int) -> list[tuple[str, int]]:
        """Keys that a client was given."""
        return [(e.channel, e.id) for e in self.events[id] if isinstance(e, ChannelKey)]


def test_a_user_is_given_dictionary_channels_and_keys(seed: int) -> None:
    wired = Wired(seed)
    wired.rings["options"].add(key(7, channel="options"))
    wired.rings[CHANNEL].add(key(1))
    id = wired.connect("bob")
    assert wired.events[id] == [
        LoggedOn(),
        DICTIONARY,
        EQUITIES,
        OPTIONS,
        key(1),
        key(7, channel="options"),
    ]
    client = wired.clients[id]
    assert client.dictionary == DICTIONARY
    assert client.channels == {CHANNEL: EQUITIES, "options": OPTIONS}
    assert client.rings["options"].get(7) == key(7, channel="options")


def test_a_user_is_given_nothing_else() -> None:
    wired = Wired()
    wired.rings["options"].add(key(7, channel="options"))
    id = wired.connect("ann")
    assert wired.keys(id) == []
    assert [e.channel for e in wired.events[id] if isinstance(e, Grant)] == [CHANNEL]


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_is_one_logout_with_text(user: str, password: str) -> None:
    wired = Wired()
    id = wired.connect(user, password)
    assert wired.events[id] == [LoggedOut("user or password is wrong")]
    assert id in wired.closed
    assert wired.server.counts == {"wrong_password": 1}
    assert len(wired.server) == 0


def test_who_fails_too_often_is_shut_out_by_address_for_a_while() -> None:
    wired = Wired()
    for _ in range(5):
        wired.connect("ann", "wrong")
    assert wired.events[wired.connect("ann")] == [LoggedOut("too many failed Logons")]
    assert LoggedOn() in wired.events[wired.connect("ann", address="b")]
    wired.now_ns += 61 * SECOND
    assert LoggedOn() in wired.events[wired.connect("ann")]


@pytest.mark.parametrize("all_ask_first", [True, False])
def test_connections_that_were_there_before_are_shut_out_too(all_ask_first: bool) -> None:
    server = EntitlementServer({"ann": []}, [], [])
    for id in range(8):
        server.connected(id, "a", START)
    logon = write(messages.LOGON, 1, [(messages.USER, "ann"), (messages.PASSWORD, "guess")])
    asked: list[Action] = []
    for id in range(8):
        asked += server.received(id, logon, START)
        if not all_ask_first:
            server.verified(id, False, START)
    for id in range(8):
        server.verified(id, id == 7, START)
    assert len(asked) == (8 if all_ask_first else 8 + 3), "a Logout and a Close for three of them"
    assert server.counts == {"wrong_password": 5, "shut_out": 3}


def test_a_key_is_pushed_before_its_time_and_not_earlier() -> None:
    wired = Wired()
    wired.rings[CHANNEL].add(key(1, 0, START + 400 * SECOND))
    id = wired.connect("ann")
    wired.rings[CHANNEL].add(key(2, START + 300 * SECOND))
    wired.until(START + 239 * SECOND)
    assert wired.keys(id) == [(CHANNEL, 1)]
    wired.until(START + 240 * SECOND)
    assert wired.keys(id) == [(CHANNEL, 1), (CHANNEL, 2)]


def test_a_key_whose_end_is_brought_forward_is_given_again() -> None:
    wired = Wired()
    wired.rings[CHANNEL].add(key(1))
    id = wired.connect("ann")
    wired.rings[CHANNEL].add(key(1, 0, START + 100))
    wired.do(wired.server.tick(START))
    assert wired.clients[id].rings[CHANNEL].get(1) == key(1, 0, START + 100)


def test_a_key_that_has_ended_is_not_given() -> None:
    wired = Wired()
    wired.rings[CHANNEL].add(key(1, 0, START))
    id = wired.connect("ann")
    assert wired.keys(id) == []
    assert wired.server.deadline_ns < NEVER


def test_revocation_is_not_giving_the_next_key() -> None:
    wired = Wired()
    ring = wired.rings[CHANNEL]
    ring.add(key(1, 0, START + 200 * SECOND))
    ring.add(key(2, START + 100 * SECOND))
    ann, bob = wired.connect("ann"), wired.connect("bob")
    wired.do(wired.server.entitle("ann", [], wired.now_ns))
    assert wired.events[ann][-1] == Withdrawal(CHANNEL)
    assert CHANNEL not in wired.clients[ann].channels
    wired.until(START + 150 * SECOND)
    assert wired.keys(ann) == [(CHANNEL, 1)]
    assert wired.keys(bob) == [(CHANNEL, 1), (CHANNEL, 2)]
    wired.do(wired.server.entitle("ann", [CHANNEL], wired.now_ns))
    assert wired.keys(ann) == [(CHANNEL, 1), (CHANNEL, 2)]


def test_heartbeats_keep_a_session_up() -> None:
    wired = Wired()
    id = wired.connect("ann")
    wired.until(START + 1000 * SECOND)
    assert wired.clients[id].state is State.LIVE
    assert wired.server.counts == {"logons": 1}


def test_a_silent_client_is_ended_and_a_silent_server_is_noticed() -> None:
    wired = Wired()
    id = wired.connect("ann")
    (*_, said, close) = wired.server.tick(START + 20 * SECOND)
    assert read(said.data).text(58) == "nothing was heard"  # type: ignore[union-attr]
    assert close == Close(id)
    assert wired.clients[id].tick(START + 20 * SECOND) == [LoggedOut("the server was silent")]
    assert wired.clients[id].deadline_ns == NEVER
    assert wired.clients[id].tick(START + 30 * SECOND) == []


def test_a_client_whose_logon_is_not_answered_has_nothing_to_do_until_it_gives_up() -> None:
    client = EntitlementClient("ann", PASSWORD, 10 * SECOND)
    client.start(START)
    assert client.tick(START + 10 * SECOND) == []
    assert client.deadline_ns == START + 20 * SECOND
    assert client.tick(client.deadline_ns) == [LoggedOut("the server was silent")]


def test_who_does_not_log_on_is_ended() -> None:
    wired = Wired()
    assert wired.server.connected(1, "a", START) == []
    assert wired.server.tick(START + 5 * SECOND - 1) == []
    assert wired.server.tick(START + 5 * SECOND)[-1] == Close(1)
    assert wired.server.counts == {"silent": 1}


def test_connections_are_limited() -> None:
    wired = Wired(settings=EntitlementSettings(connections_max=3, user_connections_max=2))
    assert LoggedOn() in wired.events[wired.connect("ann")]
    assert LoggedOn() in wired.events[wired.connect("ann")]
    third = wired.connect("ann")
    assert wired.events[third] == [LoggedOut("too many connections of this user")]
    assert LoggedOn() in wired.events[wired.connect("bob")]
    assert wired.events[wired.connect("bob")] == [LoggedOut("too many connections")]


def test_a_user_logs_out() -> None:
    wired = Wired()
    id = wired.connect("ann")
    wired.clients[id].stop(wired.now_ns)
    wired.clients[id].stop(wired.now_ns)
    wired.pump(id)
    assert (id in wired.closed, wired.server.counts["logouts"]) == (True, 1)


def test_a_test_request_is_answered_with_its_id() -> None:
    wired = Wired()
    id = wired.connect("ann")
    (said,) = wired.server.received(id, write(b"1", 2, [(112, "are you there")]), START)
    assert (read(said.data).type, read(said.data).text(112)) == (b"0", "are you there")  # type: ignore[union-attr]
    (said,) = wired.server.received(id, write(b"1", 3), START)
    assert read(said.data).text(112) == ""  # type: ignore[union-attr]
    wired.clients[id].receive(write(b"1", 4, [(112, "x")]), START)
    assert read(wired.clients[id].data_to_send()).text(112) == "x"


MESSAGES = {
    Input.LOGON: lambda n: write(b"A", n, [(553, "ann"), (554, "x")]),
    Input.HEARTBEAT: lambda n: write(b"0", n),
    Input.TEST: lambda n: write(b"1", n, [(112, "x")]),
    Input.LOGOUT: lambda n: write(b"5", n),
    Input.OTHER: lambda n: write(b"D", n, [(55, "X")]),
}


@pytest.mark.parametrize(
    ("state", "given"),
    list(itertools.product([State.CONNECTED, State.CHECKING, State.LIVE], MESSAGES)),
)
def test_every_message_in_every_state(state: State, given: Input) -> None:
    server = EntitlementServer({"ann": []}, [], [], SETTINGS)
    server.connected(1, "a", START)
    number = 1
    if state is not State.CONNECTED:
        server.received(1, MESSAGES[Input.LOGON](1), START)
        number = 2
    if state is State.LIVE:
        server.verified(1, True, START)
    actions = server.received(1, MESSAGES[given](number), START)
    next_state = TABLE.get((state, given))
    assert (Close(1) in actions) == (next_state in (None, State.ENDED))
    if next_state is None:
        assert server.counts["unexpected"] == 1
    # An ended connection says nothing more.
    if Close(1) in actions:
        assert server.received(1, MESSAGES[Input.HEARTBEAT](number + 1), START) == []
        assert server.verified(1, True, START) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the FIX stream is wrong"),
        (write(b"A", 2, [(553, "ann"), (554, PASSWORD)]), "MsgSeqNum is 2, expected is 1"),
        (encode([(35, "A"), (34, 1), *[(58, "x")] * 70]), "cannot be read"),
        (b"8=FIXT.1.1\x019=%d\x01" % CLIENT_MESSAGE_BYTES_MAX, "the FIX stream is wrong"),
    ],
)
def test_what_is_malformed_ends_with_its_reason(data: bytes, text: str) -> None:
    wired = Wired()
    wired.server.connected(1, "a", START)
    said, close = wired.server.received(1, data, START)
    assert text in read(said.data).text(58)  # type: ignore[union-attr]
    assert close == Close(1)
    assert wired.server.received(1, data, START) == []


def test_what_a_closed_connection_brings_is_passed_over() -> None:
    wired = Wired()
    assert wired.server.received(5, b"x", START) == []
    assert wired.server.verified(5, True, START) == []


WRONG_SERVERS = {
    "no Logon first": [write(b"0", 1)],
    "a wrong number": [write(b"A", 2, [(108, 10)])],
    "no interval": [write(b"A", 1)],
    "no FIX": [b"nonsense" * 10],
    "a key without a channel": [write(b"A", 1, [(108, 10)]), write(b"UK", 2)],
    "a key of a wrong size": [
        write(b"A", 1, [(108, 10)]),
        write(b"UK", 2, [(20002, "x"), (20005, 1), (20006, 0), (20007, 9), (96, b"short")]),
    ],
    "a key id that is none": [
        write(b"A", 1, [(108, 10)]),
        write(b"UK", 2, [(20002, "x"), (20005, 1 << 32), (20006, 0), (20007, 9), (96, bytes(32))]),
    ],
    "another key of the same id": [
        write(b"A", 1, [(108, 10)]),
        *[
            write(
                b"UK",
                n,
                [(20002, "x"), (20005, 1), (20006, 0), (20007, 1 << 62), (96, bytes([n]) * 32)],
            )
            for n in (2, 3)
        ],
    ],
    "a public key that is none": [
        write(b"A", 1, [(108, 10)]),
        write(b"UC", 2, [(20002, "x"), (20004, "zz")]),
    ],
}


@pytest.mark.parametrize("said", WRONG_SERVERS.values(), ids=WRONG_SERVERS.keys())
def test_a_server_that_is_wrong_is_a_peers_fault(said: list[bytes]) -> None:
    client = EntitlementClient("ann", PASSWORD)
    client.start(START)
    *before, wrong = said
    for each in before:
        client.receive(each, START)
    with pytest.raises(PeerError):
        client.receive(wrong, START)


def test_channels_that_are_not_there_cannot_be_granted() -> None:
    with pytest.raises(UsageError, match="no channel nothing"):
        EntitlementServer({"ann": ["nothing"]}, [EQUITIES], [])
    with pytest.raises(UsageError, match="no channel nothing"):
        Wired().server.entitle("ann", ["nothing"], START)


def test_secrets_are_not_shown() -> None:
    assert PASSWORD not in repr(Verify(1, "ann", PASSWORD))
    assert messages.KEY == b"UK"


def test_a_user_who_is_dismissed_is_logged_out_and_cannot_come_back() -> None:
    wired = Wired()
    id, other = wired.connect("ann"), wired.connect("bob")
    wired.do(wired.server.dismiss("ann", wired.now_ns))
    assert wired.events[id][-1] == LoggedOut("the user was dismissed")
    assert wired.server.users == {"bob"}
    assert wired.clients[other].state is State.LIVE
    assert wired.events[wired.connect("ann")] == [LoggedOut("user or password is wrong")]


def test_what_comes_behind_a_logout_is_not_read() -> None:
    wired = Wired()
    id = wired.connect("ann")
    goodbye, more = write(b"5", 2), write(b"1", 3, [(112, b"x")])
    actions = wired.server.received(id, goodbye + more, wired.now_ns)
    assert [type(each) for each in actions] == [Send, Close]
    # A connection that has ended and is not closed yet asks for nothing.
    assert wired.server.received(id, more, wired.now_ns) == []
    assert wired.server.deadline_ns == NEVER


def test_a_connection_without_a_logon_is_waited_for_no_longer_than_said() -> None:
    wired = Wired()
    wired.server.connected(7, "a", START)
    assert wired.server.deadline_ns == START + SETTINGS.logon_ns


def test_keys_that_are_gone_are_forgotten_where_many_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entitlement, "GIVEN_MAX", 2)
    wired = Wired()
    ring = wired.rings[CHANNEL]
    id = wired.connect("ann")
    for number in range(1, 8):
        ring.add(key(number, 0, wired.now_ns + 2 * SECOND))
        wired.now_ns += SECOND
        wired.do(wired.server.tick(wired.now_ns))
        ring.expire(wired.now_ns)
    assert wired.keys(id) == [(CHANNEL, number) for number in range(1, 8)]


@pytest.mark.parametrize("by_ns", [3_600 * SECOND, -3_600 * SECOND], ids=["forward", "back"])
def test_a_clock_that_is_set_ends_no_session(by_ns: int) -> None:
    wired = Wired()
    id = wired.connect("ann")
    wired.until(START + 3 * SECOND)
    wired.now_ns += by_ns
    wired.server.clock_set(by_ns)
    wired.clients[id].clock_set(by_ns)
    wired.until(wired.now_ns + 100 * SECOND)
    assert wired.closed == set()
    assert LoggedOut not in map(type, wired.events[id])


def test_a_wall_clock_that_was_set_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_ns, steady_ns, sets = [START], [0], []
    clocks = SimpleNamespace(time_ns=lambda: wall_ns[0], monotonic_ns=lambda: steady_ns[0])
    monkeypatch.setattr(entitlement_service, "time", clocks)
    clock = entitlement_service.WallClock(sets.append)
    for passed_ns, set_ns in ((5, 0), (5, SECOND), (1, 3_600 * SECOND), (9, -7_200 * SECOND)):
        wall_ns[0] += passed_ns + set_ns
        steady_ns[0] += passed_ns
        assert clock.now_ns() == wall_ns[0]
    assert sets == [3_601 * SECOND, -7_200 * SECOND]
