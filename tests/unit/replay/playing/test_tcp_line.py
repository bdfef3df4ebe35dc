"""A line by TCP out of datagrams: what of them is sent, and each client's session."""

from typing import Any

import pytest
import typer

from feedhandler.codecs import load_feed, soupbin
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.soupbin import Login, LoginAccepted
from feedhandler.ingest.tcp.length import LengthClient
from feedhandler.ingest.tcp.soupbin import SoupBinClient
from feedhandler.replay.playing.tcp_line import LengthFollower, TcpFrames, TcpLineServer
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.terminal.arguments import TcpAddress, tcp_address
from tests.support.commands import run_here

ITCH, UTP = load_feed("nasdaq-totalview-itch"), load_feed("euronext-utp-md")
SESSION, MS = "MARKET0001", 1_000_000


def message(number: int) -> bytes:
    """A message with its MoldUDP64 length in front."""
    return ITCH.encode_message("system_event", timestamp=number)


def packet(first: int, count: int) -> bytes:
    messages = [message(number) for number in range(first, first + count)]
    return ITCH.encode_packet(sequence=first, messages=messages, session=SESSION)


def served(framing: str, *packets: bytes, **settings: int) -> TcpLineServer:
    frames = TcpFrames(ITCH, framing)
    server = TcpLineServer(frames, framing, ServerSettings(**settings))
    for each in packets:
        server.publish(frames.of(each))
    return server


def test_each_message_is_sent_once_whichever_lines_the_capture_has() -> None:
    frames = TcpFrames(ITCH, "soupbin")
    beat = ITCH.encode_packet(sequence=7, session=SESSION, count=0)
    sent = [
        each
        for data in (packet(5, 2), packet(5, 2), beat, b"x", packet(7, 1), packet(6, 1))
        for each in frames.of(data)
    ]
    assert sent == [soupbin.packet(b"S", message(number)[2:]) for number in (5, 6, 7)]
    assert (frames.session, frames.first, frames.lacking) == (SESSION, 5, 0)
    frames.of(packet(10, 1))
    assert frames.lacking == 2


@pytest.mark.parametrize(("framing", "order"), [("length", "big"), ("length-little", "little")])
def test_packets_stand_behind_their_lengths_and_one_service_is_sent(
    framing: str, order: Any
) -> None:
    frames = TcpFrames(UTP, framing)
    mine, other = (
        UTP.encode_packet(sequence=1, service=service, messages=[UTP.encode_message(230)])
        for service in (101, 102)
    )
    assert [frames.of(each) for each in (mine, other)] == [
        [len(mine).to_bytes(2, order) + mine], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("login", "number"),
    [
        (Login(number=1), 5), (Login(number=6, session=SESSION), 6), (Login(number=0), 8),
        (Login(number=99), 9),
    ],
)  # fmt: skip
def test_a_login_gets_what_it_asks_for_and_all_that_follows(login: Login, number: int) -> None:
    server = served("soupbin", packet(5, 4))
    session = server.session("c", 0)
    assert not server.followed
    assert session.feed(login.encode(), 0) == LoginAccepted(SESSION, number).encode()
    server.publish(server.frames.of(packet(9, 1)))
    assert server.followed
    assert session.deadline_ns == 0
    assert session.tick(0) == b"".join(
        soupbin.packet(b"S", message(each)[2:]) for each in range(number, 10)
    )
    assert session.deadline_ns == 1_000 * MS
    assert session.tick(1_000 * MS) == soupbin.packet(soupbin.SERVER_HEARTBEAT)


def test_another_session_is_refused_and_what_no_client_says_ends_the_connection() -> None:
    server = served("soupbin", packet(5, 1))
    session = server.session("c", 0)
    refused = soupbin.packet(soupbin.LOGIN_REJECTED, soupbin.NO_SESSION)
    assert session.feed(Login(session="OTHER").encode(), 0) == refused
    assert session.closed
    for wrong, counted in (
        (soupbin.packet(soupbin.UNSEQUENCED), "wrong_direction"), (b"\0\1Q", "bad_packet"),
        (soupbin.packet(soupbin.LOGIN_REQUEST), "badly_formed"),
        (soupbin.packet(soupbin.LOGOUT_REQUEST), "logouts"),
    ):  # fmt: skip
        session = server.session("c", 0)
        session.feed(wrong, 0)
        assert session.closed
        assert server.counts[counted] == 1
    assert not server.sessions


def test_chunks_are_bounded_and_a_client_without_login_is_not_waited_for() -> None:
    server = served("soupbin", packet(1, 200), chunk_bytes=2_048, dead_us=2_000_000)
    session, mute = server.session("c", 0), server.session("d", 0)
    session.feed(Login().encode(), 0)
    said = b""
    while session.waiting:
        chunk = session.tick(0)
        assert len(chunk) < 2_100
        said += chunk
    assert said.count(b"S") >= 200
    mute.tick(2_000 * MS)
    assert server.counts["clients_silent"] == 1


def test_the_clients_of_a_gateway_read_what_is_served() -> None:
    server = served("soupbin", packet(5, 300))
    client = SoupBinClient(RecoverySettings(), Login("ME", "X", "", 1), 1_400)
    client.connected(0)
    session = server.session("c", 0)
    said = session.feed(client.data_to_send(), 0)
    while session.waiting:
        said += session.tick(0)
    packets = [each for each in client.feed(said, 0) if isinstance(each, bytes)]
    assert [m for each in packets for m in ITCH.messages_of(each)] == [
        message(number) for number in range(5, 305)
    ]
    server = served("length", packet(5, 3))
    listener = LengthClient(RecoverySettings(), 1_400, "big")
    listener.connected(0)
    follower = server.session("c", 0)
    assert isinstance(follower, LengthFollower)
    assert follower.feed(b"hello", 0) == b""
    assert follower.tick(999 * MS) == b""
    assert follower.tick(1_000 * MS) == bytes(2)
    server.publish(server.frames.of(packet(8, 2)))
    events = listener.feed(follower.tick(1_001 * MS), 0)
    assert [each for each in events if isinstance(each, bytes)] == [packet(8, 2)]
    assert not follower.closed
    follower.end()
    assert not server.sessions


def test_what_is_no_line_by_tcp_is_refused_with_a_remedy() -> None:
    assert tcp_address("length:[::1]:7001") == TcpAddress("length", "::1", 7001)
    for wrong in ("127.0.0.1:7001", "soup:127.0.0.1:7001", "soupbin:127.0.0.1", "soupbin"):
        with pytest.raises(typer.BadParameter, match="such as soupbin"):
            tcp_address(wrong)
    with pytest.raises(UsageError):
        TcpFrames(UTP, "soupbin")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "name it with --feed"),
        (["--feed", ITCH.name, "--line-a", "239.1.1.1:5001"], "says where to send"),
        (["--feed", ITCH.name, "--dry-run"], "says where to send"),
        (["--feed", ITCH.name, "--loss", "1%"], "TCP loses nothing"),
        (["--feed", ITCH.name, "--loop", "0"], "give --loop a number"),
    ],
)
def test_options_of_other_replays_are_refused(options: list[str], reason: str) -> None:
    done = run_here("replay", "x.pcap", "--tcp", "soupbin:127.0.0.1:7001", *options)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.replace("│", " ").split())
