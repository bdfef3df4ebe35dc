"""The clients of lines by TCP: states, refusals, times, any pieces, mutated bytes, reconnection."""

import random
import struct

import pytest

from feedhandler.codecs import load_feed, soupbin
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_header
from feedhandler.codecs.soupbin import Login, LoginAccepted
from feedhandler.ingest.lines import TcpServer
from feedhandler.ingest.tcp.clients import client_of
from feedhandler.ingest.tcp.length import LengthClient
from feedhandler.ingest.tcp.soupbin import FIRST, HEADER, NUMBER_MAX, SoupBinClient, State
from feedhandler.ingest.tcp.stream import Joined, StreamClient, StreamEvent
from feedhandler.retrans.events import Broken
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.settings import RecoverySettings
from tests.support.line_answers import chunks, mutated
from tests.support.tcp_lines import PASSWORD, SESSION, USER, SoupSession

FEED = load_feed("nasdaq-totalview-itch")
TIMES = RecoverySettings(heartbeat_us=1_000_000, dead_us=5_000_000)
SECOND = 1_000_000_000
BYTES_MAX = 200


def soup(number: int = FIRST, session: str = "", bytes_max: int = BYTES_MAX) -> SoupBinClient:
    return SoupBinClient(TIMES, Login(USER, PASSWORD, session, number), bytes_max)


def following(number: int = FIRST, session: str = SESSION) -> SoupBinClient:
    """A client that is logged in."""
    client = soup()
    client.connected(0)
    client.data_to_send()
    client.feed(LoginAccepted(session, number).encode(), 0)
    assert client.up
    return client


def message(number: int) -> bytes:
    """Message `number` of a session: of a length of its own."""
    return b"A%d" % number + bytes(number % 50)


def sequenced(*numbers: int) -> bytes:
    return b"".join(soupbin.packet(soupbin.SEQUENCED, message(number)) for number in numbers)


class Reader:
    """Reads packets as the channel does: the messages by number, each once; what was reported."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], bytes] = {}
        self.heartbeats: list[int] = []
        self.ends: list[int] = []
        self.sizes: list[int] = []
        self.reported: list[str] = []
        self.reason = ""

    def receive(self, events: list[StreamEvent]) -> "Reader":
        for index, event in enumerate(events):
            if isinstance(event, Broken):
                assert index == len(events) - 1, "the last event of a connection"
                self.reason = event.reason
            elif isinstance(event, Joined):
                self.reported.append(event.text)
            else:
                self._packet(event)
        return self

    def _packet(self, packet: bytes) -> None:
        session, first, count = HEADER.unpack_from(packet)
        at = HEADER.size
        self.sizes.append(len(packet))
        if count in (0, 0xFFFF):
            assert len(packet) == at
            (self.ends if count else self.heartbeats).append(first)
            return
        for number in range(first, first + count):
            (size,) = struct.unpack_from(">H", packet, at)
            key = (session.decode().strip(), number)
            assert key not in self.messages, f"{number} comes twice"
            self.messages[key] = packet[at + 2 : at + 2 + size]
            at += 2 + size
        assert at == len(packet)


def whole(last: int, first: int = 1, session: str = SESSION) -> dict[tuple[str, int], bytes]:
    return {(session, number): message(number) for number in range(first, last + 1)}


# -- SoupBinTCP ---------------------------------------------------------------------------------


def test_messages_become_packets_that_the_feeds_scanner_reads() -> None:
    client, reader = following(7), Reader()
    events = client.feed(sequenced(*range(7, 60)), 1)
    reader.receive(events)
    assert reader.messages == whole(59, 7)
    assert max(reader.sizes) <= BYTES_MAX
    assert len(events) > 5
    for packet in events:
        header = PacketHeader()
        assert isinstance(packet, bytes)
        assert parse_header(FEED.table, packet, 0, len(packet), header) == 0
    assert client.counts["messages"] == 53
    assert client.counts["packets"] == len(events)


def test_a_session_is_written_as_packets_have_it() -> None:
    client = following(session="AB")
    (packet,) = client.feed(sequenced(1), 0)
    assert isinstance(packet, bytes)
    assert packet[:10] == b"AB        "


def test_a_message_that_fits_no_packet_and_an_empty_one_stand_alone() -> None:
    client, reader = following(), Reader()
    bodies = [b"one", bytes(BYTES_MAX), b"two", b"", b"three"]
    events = client.feed(b"".join(soupbin.packet(soupbin.SEQUENCED, body) for body in bodies), 0)
    reader.receive(events)
    assert list(reader.messages.values()) == bodies
    assert len(events) == len(bodies), "each has a packet of its own"


@pytest.mark.parametrize(
    ("number", "session"), [(0, ""), (1, ""), (5, "S")], ids=["latest", "first", "session"]
)
def test_the_first_login_asks_for_what_is_configured(number: int, session: str) -> None:
    client = soup(number, session)
    client.connected(0)
    assert client.data_to_send() == Login(USER, PASSWORD, session, number).encode()
    assert (client.state, client.up) == (State.LOGIN, False)


@pytest.mark.parametrize(
    ("state", "sent", "reason", "count", "hopeless"),
    [
        (State.LOGIN, soupbin.packet(b"J", b"A"), "not authorized", "refused", True),
        (State.LOGIN, soupbin.packet(b"J", b"S"), "no such session", "refused", True),
        (State.LOGIN, soupbin.packet(b"J", b"?"), "reason b'?'", "refused", True),
        (State.LOGIN, soupbin.packet(b"J"), "reason b''", "refused", True),
        (State.LOGIN, sequenced(1), "type b'S' in LOGIN", "malformed", False),
        (State.LOGIN, soupbin.packet(b"Z"), "type b'Z' in LOGIN", "malformed", False),
        (State.LOGIN, soupbin.packet(b"A", b"short"), "cut short", "malformed", False),
        (State.LOGIN, soupbin.packet(b"A", b"S" * 10 + b"x" * 20), "number", "malformed", False),
        (State.LOGIN, LoginAccepted("S", 0).encode(), "from number 0", "malformed", False),
        (State.LOGIN, LoginAccepted("S", NUMBER_MAX + 1).encode(), "from", "malformed", False),
        (State.FOLLOWING, LoginAccepted("S", 1).encode(), "in FOLLOWING", "malformed", False),
        (State.FOLLOWING, soupbin.packet(b"J", b"A"), "in FOLLOWING", "malformed", False),
        (State.FOLLOWING, soupbin.packet(b"Z"), "ended session", "ended", True),
        (State.FOLLOWING, soupbin.packet(b"L"), "a packet of type b'L'", "malformed", False),
        (State.FOLLOWING, b"\0\0", "a packet without a type", "malformed", False),
    ],
)
def test_what_ends_a_connection_is_reported_and_counted(
    state: State, sent: bytes, reason: str, count: str, hopeless: bool
) -> None:
    client = following() if state is State.FOLLOWING else soup()
    if state is State.LOGIN:
        client.connected(0)
    reader = Reader().receive(client.feed(sent, 1))
    assert reason in reader.reason
    assert "\n" not in reader.reason
    assert (client.counts[count], client.is_hopeless, client.up) == (1, hopeless, False)
    assert client.state is State.OVER
    assert client.feed(sequenced(1, 2), 2) == client.tick(100 * SECOND) == []
    assert client.deadline_ns == NEVER_NS
    client.disconnected(3)
    assert client.state is State.CLOSED


def test_messages_before_a_fault_are_not_lost() -> None:
    client, reader = following(), Reader()
    reader.receive(client.feed(sequenced(1, 2) + b"\0\0" + sequenced(3), 0))
    assert (reader.messages, bool(reader.reason)) == (whole(2), True)


def test_heartbeats_go_both_ways_and_tell_the_next_number() -> None:
    client, reader = following(), Reader()
    reader.receive(client.feed(sequenced(1, 2) + soupbin.packet(b"H") + soupbin.packet(b"H"), 0))
    assert reader.heartbeats == [3], "one for what came together"
    reader.receive(client.feed(soupbin.packet(b"+", b"text") + soupbin.packet(b"U", b"x"), 0))
    assert (client.counts["heartbeats"], client.counts["ignored"]) == (2, 2)
    assert client.deadline_ns == SECOND
    assert client.tick(SECOND - 1) == []
    assert client.data_to_send() == b""
    assert client.tick(SECOND) == []
    assert client.data_to_send() == soupbin.packet(soupbin.CLIENT_HEARTBEAT)
    assert client.deadline_ns == 2 * SECOND


def test_a_silent_server_is_given_up_and_so_is_one_that_does_not_answer_the_login() -> None:
    client = following()
    client.feed(soupbin.packet(b"H"), 4 * SECOND)
    assert client.tick(8 * SECOND) == []
    (broken,) = client.tick(9 * SECOND)
    assert broken == Broken("the server was silent for 5000 ms")
    assert (client.counts["silent"], client.state) == (1, State.OVER)
    client = soup()
    client.connected(0)
    client.feed(soupbin.packet(b"H"), 4 * SECOND)
    assert Reader().receive(client.tick(5 * SECOND)).reason, "heartbeats are no answer"


def test_half_a_packet_is_no_sign_of_life() -> None:
    client = following()
    client.feed(sequenced(1)[:2], 4 * SECOND)
    assert Reader().receive(client.tick(5 * SECOND)).reason


def test_the_end_of_a_session_is_reported_and_the_next_one_is_followed_from_its_beginning() -> None:
    client, reader = following(), Reader()
    reader.receive(client.feed(sequenced(1, 2) + soupbin.packet(b"Z"), 0))
    assert (reader.messages, reader.ends) == (whole(2), [3])
    client.disconnected(1)
    client.connected(2)
    assert client.data_to_send() == Login(USER, PASSWORD, SESSION, 3).encode()
    reader.receive(client.feed(soupbin.packet(b"J", b"S"), 3))
    assert not client.is_hopeless, "another session is asked for at once"
    client.disconnected(4)
    client.connected(5)
    assert client.data_to_send() == Login(USER, PASSWORD, "", 1).encode()
    reader.receive(client.feed(LoginAccepted("NEXT", 1).encode() + sequenced(1, 2), 6))
    assert reader.messages == whole(2) | whole(2, session="NEXT")


def test_a_server_that_answers_with_another_session_is_asked_for_all_of_it() -> None:
    client = following()
    client.feed(sequenced(1, 2), 0)
    client.disconnected(1)
    client.connected(2)
    client.data_to_send()
    reader = Reader().receive(client.feed(LoginAccepted("NEXT", 3).encode() + sequenced(3), 3))
    assert "is in session 'NEXT' now" in reader.reason
    assert not reader.messages
    client.disconnected(4)
    client.connected(5)
    assert client.data_to_send() == Login(USER, PASSWORD, "", 1).encode()


def test_leaving_is_a_logout() -> None:
    client = soup()
    client.leave()
    assert client.data_to_send() == b""
    client = following()
    client.leave()
    assert client.data_to_send() == soupbin.packet(soupbin.LOGOUT_REQUEST)


def test_credentials_that_do_not_fit_are_refused_without_being_shown() -> None:
    with pytest.raises(UsageError) as caught:
        SoupBinClient(TIMES, Login("u", "much too long a password"), BYTES_MAX)
    assert "much" not in str(caught.value)
    server = TcpServer("h", 1, "soupbin", "u", "hidden")
    assert "hidden" not in repr(server)


@pytest.mark.random
def test_any_pieces_give_the_same_messages(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        count = draw.randrange(1, 60)
        client, reader = soup(), Reader()
        client.connected(0)
        data = LoginAccepted(SESSION, 1).encode() + sequenced(*range(1, count + 1))
        for piece in chunks(data, draw):
            reader.receive(client.feed(piece, 1))
        assert (reader.messages, reader.reason) == (whole(count), "")


@pytest.mark.random
def test_reconnection_at_every_third_byte_gives_each_message_once(seed: int) -> None:
    draw = random.Random(seed)
    messages = [message(number) for number in range(1, 41)]
    size = len(sequenced(*range(1, 41)))
    for cut in range(0, size, 3):
        client, reader = soup(), Reader()
        at = cut
        for _ in range(3):
            server = SoupSession(messages)
            client.connected(0)
            sent = server.feed(client.data_to_send())
            for piece in chunks(sent[:at], draw):
                reader.receive(client.feed(piece, 0))
            client.disconnected(0)
            at = draw.randrange(size)
        client.connected(0)
        server = SoupSession(messages)
        reader.receive(client.feed(server.feed(client.data_to_send()), 0))
        assert reader.messages == whole(40), cut
        assert not reader.reason


@pytest.mark.random
def test_mutated_bytes_never_do_more_than_end_the_connection(seed: int) -> None:
    draw = random.Random(seed)
    data = LoginAccepted(SESSION, 1).encode() + sequenced(*range(1, 30))
    data += soupbin.packet(b"H") + soupbin.packet(b"Z")
    ended = 0
    for _ in range(2_000):
        client = soup()
        client.connected(0)
        broken = False
        for piece in chunks(mutated(data, draw), draw):
            events = client.feed(piece, 1)
            assert not (broken and events)
            for event in events:
                broken |= isinstance(event, Broken)
                if isinstance(event, bytes):
                    assert len(event) <= HEADER.size + 2 + soupbin.PAYLOAD_BYTES_MAX
        ended += broken
        client.disconnected(2)
    assert ended > 100


# -- packets behind their lengths ---------------------------------------------------------------


def behind_length(packet: bytes, order: str = "big") -> bytes:
    return len(packet).to_bytes(2, "big" if order == "big" else "little") + packet


@pytest.mark.parametrize(("framing", "order"), [("length", "big"), ("length-little", "little")])
@pytest.mark.random
def test_packets_come_as_they_are_however_the_stream_is_cut(
    framing: str, order: str, seed: int
) -> None:
    draw = random.Random(seed)
    packets = [draw.randbytes(draw.randrange(1, BYTES_MAX + 1)) for _ in range(300)]
    server = TcpServer("h", 1, framing)  # type: ignore[arg-type]
    client = client_of(server, TIMES, BYTES_MAX)
    client.connected(0)
    events: list[StreamEvent] = []
    for piece in chunks(b"".join(behind_length(each, order) for each in packets), draw):
        events += client.feed(piece, 0)
    assert isinstance(events[0], Joined)
    assert events[1:] == packets
    assert (client.counts["packets"], client.up) == (300, True)


def length() -> LengthClient:
    client = LengthClient(TIMES, BYTES_MAX)
    client.connected(0)
    return client


def test_an_empty_packet_is_a_sign_of_life_and_silence_ends_the_connection() -> None:
    client = length()
    assert isinstance(client.feed(b"\0\0", 4 * SECOND)[0], Joined)
    assert (client.counts["heartbeats"], client.deadline_ns) == (1, 9 * SECOND)
    assert client.tick(9 * SECOND - 1) == []
    assert client.tick(9 * SECOND) == [Broken("the server was silent for 5000 ms")]
    assert client.data_to_send() == b""


def test_a_length_that_cannot_be_ends_the_connection_behind_the_packets_before() -> None:
    client = length()
    events = client.feed(behind_length(b"one") + struct.pack(">H", BYTES_MAX + 1) + b"two", 0)
    assert events[1] == b"one"
    assert isinstance(events[-1], Broken)
    assert (client.counts["malformed"], len(events)) == (1, 3)
    assert client.feed(behind_length(b"two"), 1) == []


def test_a_new_connection_begins_at_the_beginning_of_a_packet() -> None:
    client = length()
    client.feed(behind_length(b"one")[:-1], 0)
    client.disconnected(1)
    assert client.feed(b"\0\1x", 1) == []
    client.connected(2)
    assert client.feed(behind_length(b"two"), 3)[1:] == [b"two"]


@pytest.mark.random
def test_mutated_lengths_give_no_packet_beyond_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    data = b"".join(behind_length(message(number)) for number in range(1, 60))
    for _ in range(500):
        client: StreamClient = length()
        for piece in chunks(mutated(data, draw), draw):
            for event in client.feed(piece, 0):
                assert not isinstance(event, bytes) or len(event) <= BYTES_MAX
