"""The player with raw frames, over a veth pair: what a line gets, and how failures are reported."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.cli import app as cli
from feedhandler.codecs.errors import ConfigError
from feedhandler.replay.captures.frames import LinkType
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.records import frame_headers, multicast_mac
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.frame_lines import look_at
from feedhandler.replay.playing.frames import SOURCE_IP_DEFAULT
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.replay.playing.senders import FrameSettings, raw
from feedhandler.terminal.console import ExitCode, run_guarded
from tests.support.captures import PcapngBytes
from tests.support.frames import PATIENCE_S, FrameReceiver, namespace
from tests.support.replay import joined
from tests.support.veth import FAR, NEAR, ip, wait_for_link

GENTLE = Pace(PaceKind.PACKETS, 20_000)
LATE_NS = 3_600 * 10**9
RECORDED = ("233.9.9.9", 9_009)


@pytest.fixture
def far() -> Iterator[FrameReceiver]:
    """A receiver at the far end of a veth pair in a namespace of the test's own."""
    with namespace(), FrameReceiver() as receiver:
        yield receiver


def recorded(
    folder: Path, sizes: list[int], tags: tuple[int, ...] = ()
) -> tuple[Path, list[bytes]]:
    """A capture with datagrams of these sizes, and its frames."""
    path = folder / "recorded.pcap"
    frames = []
    with CaptureWriter(path) as writer:
        for number, size in enumerate(sizes):
            payload = bytes([number % 251]) * size
            headers = frame_headers(*RECORDED, "10.1.2.3", 1_000 + number, size, tags)
            frames.append((headers + payload).ljust(60, b"\0"))
            writer.write_frame(number * 1_000, headers + payload)
    return path, frames


def test_a_recording_goes_out_frame_by_frame_as_it_was(far: FrameReceiver, tmp_path: Path) -> None:
    path, frames = recorded(tmp_path, [*range(300), 1_400], (100,))
    line = MulticastLine("recorded", {RECORDED: RECORDED}, NEAR)
    result = Player(Capture(path), [line], pace=GENTLE, transport=raw()).run()
    assert far.frames(301) == frames
    assert (result.complete, result.lines[0].sent, result.too_long) == (True, 301, 0)
    assert result.payload_bytes == sum(range(300)) + 1_400


def test_two_lines_get_the_same_frames_with_their_own_headers(
    far: FrameReceiver, tmp_path: Path
) -> None:
    path, frames = recorded(tmp_path, [100] * 200)
    mac = bytes.fromhex("02aabbccddee")
    lines = [
        MulticastLine(name, (f"239.1.1.{number}", 5_000 + number), NEAR)
        for number, name in enumerate("AB")
    ]
    transport = raw(FrameSettings(mac, "172.16.0.1", bypass_queue=True))
    Player(Capture(path), lines, pace=GENTLE, transport=transport).run()
    arrived = far.frames(400)
    for number in (0, 1):
        head = multicast_mac(f"239.1.1.{number}") + mac
        mine = [got for got in arrived if got.startswith(head)]
        assert len(mine) == 200
        for position, (frame, got) in enumerate(zip(frames, mine, strict=True)):
            source = ("172.16.0.1", 1_000 + position)
            made = frame_headers(f"239.1.1.{number}", 5_000 + number, *source, 100)
            assert got == head + made[12:] + frame[42:]


def test_datagrams_of_no_capture_become_frames_of_the_interface(far: FrameReceiver) -> None:
    line = MulticastLine("A", ("239.1.1.9", 5_009), NEAR)
    Player([(0, b"one"), (1, b"")], [line], transport=raw()).run()
    for got, payload in zip(far.frames(2), (b"one", b""), strict=True):
        assert got[:12] == multicast_mac("239.1.1.9") + look_at(NEAR).mac
        assert socket.inet_ntoa(got[26:30]) == SOURCE_IP_DEFAULT
        assert struct.unpack_from(">HHH", got, 34) == (5_009, 5_009, 8 + len(payload))
        assert got[42 : 42 + len(payload)] == payload
    ip("address", "add", "10.9.9.9/24", "dev", NEAR)
    Player([(0, b"two")], [line], transport=raw()).run()
    assert socket.inet_ntoa(far.frames(1)[0][26:30]) == "10.9.9.9"


def test_a_capture_of_several_link_layers_goes_out_as_ethernet(
    far: FrameReceiver, tmp_path: Path
) -> None:
    datagram = frame_headers(*RECORDED, "10.1.2.3", 77, 30)[14:] + bytes(30)
    made = PcapngBytes().section().interface().interface(LinkType.RAW)
    made.interface(LinkType.LINUX_COOKED)
    ethernet = multicast_mac(RECORDED[0]) + bytes.fromhex("020102030405") + b"\x08\x00"
    made.packet(ethernet + datagram, 1, 0).packet(datagram, 2, 1)
    made.packet(bytes(14) + b"\x08\x00" + datagram, 3, 2)
    path = tmp_path / "mixed.pcapng"
    path.write_bytes(bytes(made.data))
    line = MulticastLine("recorded", {RECORDED: RECORDED}, NEAR)
    Player(Capture(path), [line], transport=raw()).run()
    first, *others = far.frames(3)
    assert first == ethernet + datagram
    ours = multicast_mac(RECORDED[0]) + look_at(NEAR).mac + b"\x08\x00"
    assert others == [ours + datagram] * 2


def test_frames_that_the_interface_does_not_take_are_reported_at_the_end(
    far: FrameReceiver, tmp_path: Path
) -> None:
    path, frames = recorded(tmp_path, [100, 1_473, 100])
    line = MulticastLine("A", RECORDED, NEAR)
    result = Player(Capture(path), [line], transport=raw()).run()
    assert far.frames(2) == [frames[0], frames[2]]
    assert (result.complete, result.too_long, result.lines[0].sent) == (True, 1, 2)


@pytest.mark.parametrize(
    ("interface", "complaint"), [("nowhere0", "no such interface"), ("down0", "it is down")]
)
def test_an_interface_that_cannot_be_used_is_reported_before_anything_is_sent(
    far: FrameReceiver, interface: str, complaint: str
) -> None:
    ip("link", "add", "down0", "type", "veth", "peer", "name", "down1")
    with pytest.raises(ConfigError, match=complaint):
        Player([], [MulticastLine("A", RECORDED, interface)], transport=raw())


def test_an_interface_that_goes_down_ends_the_run_and_is_named(far: FrameReceiver) -> None:
    due = [(0, b"once"), *((100_000_000 * number, b"later") for number in range(1, 500))]
    player = Player(due, [MulticastLine("A", RECORDED, NEAR)], transport=raw())
    player.start()
    far.frames(1)
    ip("link", "set", NEAR, "down")
    assert player.wait(PATIENCE_S)
    with pytest.raises(OSError, match=r"near0': it is down \(ip link set near0 up\)"):
        player.result()


def test_a_raw_player_pauses_goes_on_and_stops(far: FrameReceiver) -> None:
    player = Player(
        [(0, b"once"), (LATE_NS, b"never")], [MulticastLine("A", RECORDED, NEAR)], transport=raw()
    )
    player.start()
    far.frames(1)
    player.stop()
    assert player.wait(PATIENCE_S)
    assert player.result().lines[0].sent == 1


def test_receivers_of_this_host_hear_frames_on_loopback(far: FrameReceiver) -> None:
    with joined("239.3.3.3") as receiver:
        endpoint = ("239.3.3.3", receiver.getsockname()[1])
        Player([(0, b"heard")], [MulticastLine("A", endpoint)], transport=raw()).run()
        assert receiver.recv(100) == b"heard"
    wait_for_link(True)
    assert look_at(FAR).is_up


def command(*words: str) -> int:
    """`feedhandler replay` with these words; its exit code."""
    return run_guarded(lambda: cli.chosen(["replay", *words])())


def test_the_command_sends_raw_frames_with_the_headers_that_are_given(
    far: FrameReceiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, frames = recorded(tmp_path, [50, 51])
    raw_as_recorded = (str(path), "--as-recorded", "--raw", "--interface", NEAR)
    assert command(*raw_as_recorded) == ExitCode.OK
    assert far.frames(2) == frames
    changes = ("--source-mac", "02:11:22:33:44:55", "--source-ip", "172.16.5.5", "--bypass-queue")
    assert command(*raw_as_recorded, *changes) == ExitCode.OK
    for number, got in enumerate(far.frames(2)):
        made = frame_headers(*RECORDED, "172.16.5.5", 1_000 + number, 50 + number)
        assert got[:42] == made[:6] + bytes.fromhex("021122334455") + made[12:]
    assert "2 sent, 0 dropped" in capsys.readouterr().out


def test_the_command_finds_frames_that_are_too_long(
    far: FrameReceiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded(tmp_path, [50, 1_473])
    words = (str(path), "--line-a", "239.1.1.1:5001", "--raw", "--interface", NEAR)
    assert command(*words) == ExitCode.FOUND
    captured = capsys.readouterr()
    assert "line A: 1 sent, 0 dropped" in captured.out
    assert captured.err == (
        "feedhandler: 1 frames were longer than the interface takes, and not sent "
        "(ip link set near0 mtu 9000)\n"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--raw", "--interface", "nowhere0"), "'nowhere0': no such interface"),
        (("--raw", "--source-mac", "02:11"), "'02:11' is no MAC address"),
        (("--raw", "--source-ip", "1.2.3"), "'1.2.3' is no IPv4 address"),
    ],
)
def test_the_command_tells_in_one_line_what_cannot_be(
    far: FrameReceiver,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    complaint: str,
) -> None:
    path, _ = recorded(tmp_path, [50])
    assert command(str(path), "--as-recorded", *words) == ExitCode.USAGE
    errors = capsys.readouterr().err
    assert complaint in errors
    assert errors.count("\n") == 1
