"""The server's side of SASL: every input in every state, whole and a byte at a time."""

import random
import struct

import pytest

from feedhandler.amqp.serving.sasl import (
    AMQP_HEADER,
    FRAME_BYTES_MAX,
    REST_BYTES_MAX,
    SASL_HEADER,
    Credentials,
    SaslServer,
    State,
)
from tests.support.amqp_wire import LIST0, LIST8, LIST32, Value, frame_bytes

ALL = ("EXTERNAL", "PLAIN", "ANONYMOUS")
OUTCOME_OK = bytes.fromhex("00000010 02010000 005344 c003 0150 00")
OUTCOME_AUTH = bytes.fromhex("00000010 02010000 005344 c003 0150 01")
CHALLENGE = bytes.fromhex("00000010 02010000 005342 c003 01a0 00")


def frame(descriptor: int, *fields: bytes | None, wide: bool = False) -> bytes:
    """A SASL frame with these fields, symbols or binaries as it makes no difference."""
    binary = 0xB0 if wide else 0xA0
    values = [Value(0x40 if each is None else binary, each) for each in fields]
    named = Value(0x80 if wide else 0x53, descriptor)
    listed = Value(LIST32 if wide else LIST8 if fields else LIST0, values, named)
    return frame_bytes(listed.encode(), kind=1)


def init(mechanism: str, response: bytes | None = None, wide: bool = False) -> bytes:
    return frame(0x41, mechanism.encode(), response, b"host", wide=wide)


def server(*mechanisms: str, bare: bool = False) -> SaslServer:
    return SaslServer(lambda: mechanisms or ALL, bare)


def at(state: State) -> SaslServer:
    """A server in this state."""
    found = server()
    if state is not State.HEADER:
        found.receive(SASL_HEADER)
    if state is State.RESPONSE:
        found.receive(init("PLAIN"))
    elif state in (State.ASKED, State.DONE):
        found.receive(init("PLAIN", b"\0ann\0secret"))
    if state is State.DONE:
        found.decide(True)
    if state is State.FAILED:
        found.receive(b"\0" * 8)
    assert found.state is state
    found.data_to_send()
    return found


def fed(login: SaslServer, data: bytes, step: int) -> SaslServer:
    for index in range(0, len(data), step):
        login.receive(data[index : index + step])
    return login


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("wide", [False, True], ids=["short", "wide"])
@pytest.mark.parametrize(
    ("mechanism", "response", "asked"),
    [
        ("PLAIN", b"\0ann\0secret", Credentials("PLAIN", "ann", "secret")),
        ("PLAIN", b"ann\0ann\0", Credentials("PLAIN", "ann", "")),
        ("PLAIN", "\0jürgen\0geheim".encode(), Credentials("PLAIN", "jürgen", "geheim")),
        ("EXTERNAL", b"", Credentials("EXTERNAL")),
        ("EXTERNAL", None, Credentials("EXTERNAL")),
        ("EXTERNAL", b"desk-7", Credentials("EXTERNAL", "desk-7")),
        ("ANONYMOUS", b"whoever", Credentials("ANONYMOUS")),
        ("ANONYMOUS", None, Credentials("ANONYMOUS")),
    ],
)
def test_a_client_says_who_it_is_in_pieces_of_any_size(
    mechanism: str, response: bytes | None, asked: Credentials, wide: bool, step: int
) -> None:
    behind = AMQP_HEADER + b"open"
    login = fed(server(), SASL_HEADER + init(mechanism, response, wide) + behind, step)
    assert login.state is State.ASKED
    assert login.asked == asked
    offered = login.data_to_send()
    assert offered.startswith(SASL_HEADER)
    assert all(name.encode() in offered for name in ALL)
    login.decide(True)
    assert login.state is State.DONE
    assert login.over
    assert login.data_to_send() == OUTCOME_OK
    assert login.rest() == behind
    login.receive(b"more")
    assert login.rest() == b"more"
    assert login.rest() == b""


def test_proton_reads_what_is_offered_and_the_outcome() -> None:
    import proton

    client = proton.Transport()
    client.sasl().allowed_mechs("PLAIN")
    client.sasl().allow_insecure_mechs = True
    connection = proton.Connection()
    connection.user, connection.password = "ann", "secret"
    client.bind(connection)
    connection.open()
    login = server()

    def move() -> None:
        while (pending := client.pending()) > 0:
            login.receive(client.peek(pending))
            client.pop(pending)
        if data := login.data_to_send():
            client.push(data)

    for _ in range(3):
        move()
    assert login.asked == Credentials("PLAIN", "ann", "secret")
    login.decide(True)
    move()
    move()
    assert client.sasl().outcome == proton.SASL.OK
    assert login.rest().startswith(AMQP_HEADER)


def test_a_password_that_is_not_sent_at_once_is_asked_for() -> None:
    login = at(State.INIT)
    login.receive(init("PLAIN"))
    assert login.data_to_send() == CHALLENGE
    login.receive(frame(0x43, b"\0ann\0secret"))
    assert login.asked == Credentials("PLAIN", "ann", "secret")


@pytest.mark.parametrize("fields", [(), (None,)], ids=["no field", "null"])
def test_an_empty_response_is_none(fields: tuple[None, ...]) -> None:
    login = at(State.RESPONSE)
    login.receive(frame(0x43, *fields))
    assert login.state is State.FAILED
    assert login.data_to_send() == OUTCOME_AUTH


def test_a_refusal_says_nothing_of_why() -> None:
    login = at(State.ASKED)
    login.decide(False, "the user is not there")
    assert login.state is State.FAILED
    assert login.data_to_send() == OUTCOME_AUTH
    assert login.reason == "the user is not there"
    assert login.asked is None
    login.receive(AMQP_HEADER)
    assert login.rest() == b""


@pytest.mark.parametrize("state", [each for each in State if each is not State.ASKED])
def test_no_decision_is_taken_without_a_request(state: State) -> None:
    login = at(state)
    login.decide(True)
    assert login.state is state
    assert login.data_to_send() == b""


def test_a_client_without_sasl_comes_in_where_no_login_is_required() -> None:
    login = server(bare=True)
    login.receive(AMQP_HEADER + b"open")
    assert login.state is State.DONE
    assert login.asked == Credentials("ANONYMOUS")
    assert login.data_to_send() == b""
    assert login.rest() == AMQP_HEADER + b"open"


def test_a_client_without_sasl_is_told_that_it_is_wanted() -> None:
    login = server()
    login.receive(AMQP_HEADER)
    assert login.state is State.FAILED
    assert login.data_to_send() == SASL_HEADER


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "not AMQP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "begins with TLS"),
        (b"AMQP\x00\x00\x09\x01", "another version"),
        (b"AMQP\x02\x01\x00\x00", "another version"),
        (bytes(8), "not AMQP"),
    ],
)
def test_a_stranger_is_told_what_is_spoken_here(data: bytes, words: str) -> None:
    for step in (1, 8):
        login = fed(server(bare=True), data, step)
        assert login.state is State.FAILED
        assert words in login.reason or step == 1
        assert login.data_to_send() == SASL_HEADER


@pytest.mark.parametrize(
    "data",
    [
        init("SCRAM-SHA-256", b"n,,n=ann"),
        init("PLAIN", b"ann"),
        init("PLAIN", b"\0ann"),
        init("PLAIN", b"\0ann\0a\0b"),
        init("PLAIN", b"\0\0secret"),
        init("PLAIN", b"bob\0ann\0secret"),
        init("PLAIN", b"\0ann\0\xff"),
        init("EXTERNAL", b"\xff"),
        frame(0x41),
        frame(0x41, None),
    ],
)
def test_a_wrong_response_is_refused(data: bytes) -> None:
    login = at(State.INIT)
    login.receive(data)
    assert login.state is State.FAILED
    assert login.data_to_send() == OUTCOME_AUTH
    assert "secret" not in login.reason


def long_field(size: int, have: int) -> bytes:
    listed = b"\x00\x53\x41\xc0\x10\x01\xa0" + bytes([size]) + b"x" * have
    return struct.pack(">IBBH", 8 + len(listed), 2, 1, 0) + listed


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 8,
        struct.pack(">IBBH", FRAME_BYTES_MAX + 1, 2, 1, 0),
        struct.pack(">IBBH", 20, 2, 0, 0),
        struct.pack(">IBBH", 20, 1, 1, 0),
        struct.pack(">IBBH", 20, 6, 1, 0),
        frame(0x43, b"response"),
        frame(0x44, b"\0"),
        struct.pack(">IBBH", 8, 2, 1, 0),
        struct.pack(">IBBH", 11, 2, 1, 0) + b"\x00\x53\x41",
        struct.pack(">IBBH", 12, 2, 1, 0) + b"\x00\x53\x41\x40",
        struct.pack(">IBBH", 13, 2, 1, 0) + b"\x00\x53\x41\xd0\x00",
        struct.pack(">IBBH", 14, 2, 1, 0) + b"\x00\x53\x41\xc0\x01\x01",
        struct.pack(">IBBH", 15, 2, 1, 0) + b"\x00\x53\x41\xc0\x02\x01\x70",
        long_field(9, 3),
    ],
)
def test_what_is_no_frame_that_is_due_ends_it(data: bytes) -> None:
    for step in (1, 10_000):
        login = fed(at(State.INIT), data, step)
        assert login.state is State.FAILED
        assert login.over


def test_what_is_sent_ahead_of_the_outcome_has_a_bound() -> None:
    login = at(State.ASKED)
    login.receive(bytes(REST_BYTES_MAX))
    assert login.state is State.ASKED
    login.receive(b"\0")
    assert login.state is State.FAILED
    login = at(State.INIT)
    login.receive(init("PLAIN", b"\0ann\0secret") + bytes(REST_BYTES_MAX + 1))
    assert login.state is State.FAILED
    assert login.asked is None


def test_a_password_is_in_no_text() -> None:
    login = at(State.ASKED)
    assert login.asked is not None
    assert "secret" not in repr(login.asked)
    assert "secret" not in str(login.asked)


def test_damaged_log_ins_end_in_a_state_and_stay_bounded(seed: int) -> None:
    chance = random.Random(seed)
    good = SASL_HEADER + init("PLAIN") + frame(0x43, b"\0ann\0secret") + AMQP_HEADER
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        login = fed(server(bare=True), bytes(data), chance.choice((1, 3, 100)))
        login.decide(chance.random() < 0.5, "no")
        assert len(login.data_to_send()) < 200
        assert len(login.rest()) <= len(data)
