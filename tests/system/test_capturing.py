"""Capturing from real sockets: every datagram in the file or in the account, and whole files."""

import errno
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.ingest.lines import Line
from feedhandler.ingest.ring import CAPACITY_MIN
from feedhandler.recording import capture as module
from feedhandler.recording.capture import Account, Capturing, Settings
from feedhandler.recording.recorder import BUFFER_BYTES, DiskFile
from feedhandler.recording.rotation import ROTATE_BYTES_MIN, Rotation
from feedhandler.recording.sinks import CompressedFile
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.gateway_here import multicast_sender

PATIENCE_S = 60.0
SEED = int(os.environ.get("FEEDHANDLER_SEED", "20261121"))
RERUN = f"FEEDHANDLER_SEED={SEED} pytest tests/system/test_capturing.py"
GROUPS = [free_addresses.group(), free_addresses.group()]


@pytest.fixture
def lines() -> tuple[Line, Line]:
    """Two lines that no other process sends to."""
    port = free_addresses.port()
    return Line("A", GROUPS[0], port, "lo"), Line("B", GROUPS[1], port, "127.0.0.1")


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with multicast_sender() as made:
        yield made


def payloads_of(count: int) -> list[bytes]:
    random_source = random.Random(SEED)
    return [random_source.randbytes(random_source.randrange(1, 1_400)) for _ in range(count)]


def until(capturing: Capturing, what: Any) -> None:
    """Wait until `what` is true of the account."""
    for _ in range(round(PATIENCE_S * 200)):
        if what(capturing.account()):
            return
        capturing.wait(0.005)
    raise AssertionError(f"never came to that: {capturing.account()}")


def ended(capturing: Capturing) -> Account:
    assert capturing.wait(PATIENCE_S)
    account = capturing.close()
    accounted = account.written + account.ring_drops + account.unwritten + account.left
    assert account.received == accounted
    return account


def by_line(path: Path) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {group: [] for group in GROUPS}
    for datagram in Capture(path):
        found[datagram.group].append(datagram.payload)
    return found


@pytest.mark.parametrize("suffix", [".pcap", ".pcapng", ".pcap.gz", ".pcapng.zst"])
def test_capture_replay_and_capture_give_equal_payloads_in_order(
    suffix: str, tmp_path: Path, lines: tuple[Line, Line]
) -> None:
    print(f"seed {SEED}: {RERUN}")
    items = [
        (number * 1_000, payload, "AB"[number % 2])
        for number, payload in enumerate(payloads_of(2_000))
    ]
    source: Any = items
    targets = [MulticastLine(line.name, (line.group, line.port)) for line in lines]
    for name in ("first", "second"):
        path = tmp_path / (name + suffix)
        capturing = Capturing(Settings(lines=lines, path=path))
        capturing.start()
        Player(source, targets, pace=Pace(PaceKind.PACKETS, 20_000)).run()
        until(capturing, lambda account: account.received >= len(items))
        capturing.stop()
        account = ended(capturing)
        assert (account.written, account.lost, account.reason) == (len(items), 0, "signal")
        assert account.size_bytes == path.stat().st_size
        capture = Capture(path)
        stamps = [datagram.time_ns for datagram in capture if datagram.group == GROUPS[0]]
        assert stamps == sorted(stamps)
        assert account.began_ns <= stamps[0] <= stamps[-1] <= account.ended_ns
        assert capture.truncation is None
        assert by_line(path) == {
            group: [payload for _, payload, line in items if line == name]
            for group, name in zip(GROUPS, "AB", strict=True)
        }
        source = capture
        targets = [
            MulticastLine(
                "recorded", {(line.group, line.port): (line.group, line.port) for line in lines}
            )
        ]


def test_what_the_kernel_drops_is_reported_even_behind_the_last_datagram_that_came(
    tmp_path: Path, lines: tuple[Line, Line], sender: socket.socket
) -> None:
    # Joined, but not read yet.
    path = tmp_path / "x.pcapng"
    capturing = Capturing(Settings(lines=lines, path=path, receive_buffer_bytes=4_096))
    for _ in range(200):
        sender.sendto(bytes(1_000), (lines[0].group, lines[0].port))
    until(capturing, lambda account: account.lines[0].kernel_drops > 150)
    account = capturing.account()
    assert account.lines[1].kernel_drops == 0
    capturing.start()
    until(capturing, lambda now: now.received + now.kernel_drops == 200)
    capturing.stop()
    after = ended(capturing)
    assert after.lost == after.kernel_drops == account.kernel_drops
    drops = after.kernel_drops.to_bytes(8, "little")
    assert path.read_bytes().count(b"\x05\0\x08\0" + drops) == 1


def test_the_account_is_exact_where_the_ring_is_too_small(
    tmp_path: Path,
    lines: tuple[Line, Line],
    sender: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 3600.0)
    turn = Capturing._turn
    monkeypatch.setattr(Capturing, "_turn", lambda self: self._stopping.is_set() and turn(self))
    path = tmp_path / "x.pcap"
    capturing = Capturing(Settings(lines=lines, path=path, ring_bytes=CAPACITY_MIN))
    capturing.start()
    count = CAPACITY_MIN // 1_000 + 50
    for _ in range(count):
        sender.sendto(bytes(1_000), (lines[1].group, lines[1].port))
    until(capturing, lambda account: account.received + account.kernel_drops == count)
    capturing.stop()
    account = ended(capturing)
    assert account.ring_drops > 0
    assert account.written == len(list(Capture(path))) == account.received - account.ring_drops
    assert account.lost == account.ring_drops + account.kernel_drops


def test_a_count_ends_it_to_the_packet(
    tmp_path: Path, lines: tuple[Line, Line], sender: socket.socket
) -> None:
    path = tmp_path / "x.pcap.gz"
    capturing = Capturing(Settings(lines=lines, path=path, packets_max=70))
    capturing.start()
    for number in range(100):
        sender.sendto(bytes([number]), (lines[0].group, lines[0].port))
    account = ended(capturing)
    assert account.reason == "count"
    assert [datagram.payload[0] for datagram in Capture(path)] == list(range(70))
    assert (account.written, account.lost) == (70, 0)


def test_what_comes_behind_the_end_is_neither_received_nor_lost(
    tmp_path: Path, lines: tuple[Line, Line], sender: socket.socket
) -> None:
    where = (lines[0].group, lines[0].port)
    path = tmp_path / "x.pcap"
    capturing = Capturing(
        Settings(lines=lines, path=path, packets_max=1, receive_buffer_bytes=4_096)
    )
    capturing.start()
    sender.sendto(b"one", where)
    assert capturing.wait(PATIENCE_S)
    for _ in range(200):
        sender.sendto(bytes(1_000), where)
    account = ended(capturing)
    assert (account.received, account.written, account.lost) == (1, 1, 0)


@pytest.mark.parametrize(("duration_ns", "reason"), [(1, "duration"), (0, "signal")])
def test_packets_that_come_faster_than_the_disk_takes_them_do_not_hold_the_end_back(
    tmp_path: Path,
    lines: tuple[Line, Line],
    monkeypatch: pytest.MonkeyPatch,
    duration_ns: int,
    reason: str,
) -> None:
    capturing = Capturing(Settings(lines=lines, path=tmp_path / "x.pcap", duration_ns=duration_ns))
    turns = itertools.count()

    def behind(files: Any, now_ns: int) -> bool:
        assert next(turns) < 100_000, "the end is not heeded"
        return capturing._receiver.running

    monkeypatch.setattr(capturing._series, "write_some", behind)
    if reason == "signal":
        capturing.stop()
    capturing.start()
    assert ended(capturing).reason == reason


def test_a_duration_ends_it_and_an_empty_capture_is_a_capture(
    tmp_path: Path, lines: tuple[Line, Line]
) -> None:
    for suffix in (".pcap", ".pcapng.gz"):
        path = tmp_path / ("empty" + suffix)
        capturing = Capturing(Settings(lines=lines, path=path, duration_ns=30_000_000))
        capturing.start()
        account = ended(capturing)
        assert account.reason == "duration"
        assert account.ended_ns - account.began_ns >= 30_000_000
        assert list(Capture(path)) == []


def test_files_rotate_at_a_size_and_together_hold_everything(
    tmp_path: Path, lines: tuple[Line, Line], sender: socket.socket
) -> None:
    rotation = Rotation(size_bytes=ROTATE_BYTES_MIN)
    capturing = Capturing(Settings(lines=lines, path=tmp_path / "day.pcapng", rotation=rotation))
    capturing.start()
    payloads = [number.to_bytes(2, "big") * 690 for number in range(2_000)]
    for number, payload in enumerate(payloads):
        sender.sendto(payload, (lines[0].group, lines[0].port))
        if number % 100 == 99:
            until(capturing, lambda account: account.received > number)  # noqa: B023
    capturing.stop()
    account = ended(capturing)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in account.files] == [path.name for path in files]
    assert len(files) == 3
    assert max(path.stat().st_size for path in files) <= ROTATE_BYTES_MIN + 1_024  # statistics
    read = [[datagram.payload for datagram in Capture(path)] for path in files]
    assert [len(part) for part in read] == [file.packets for file in account.files]
    assert list(itertools.chain(*read)) == payloads
    assert account.written == len(payloads)


@pytest.mark.parametrize("suffix", [".pcap", ".pcap.zst"])
def test_a_full_disk_ends_it_with_a_whole_file_and_the_account(
    suffix: str,
    tmp_path: Path,
    lines: tuple[Line, Line],
    sender: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = DiskFile.write

    def write(self: DiskFile, data: bytes | memoryview) -> None:
        if self.size_bytes + len(data) > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(self, data)

    monkeypatch.setattr(DiskFile, "write", write)
    path = tmp_path / ("x" + suffix)
    capturing = Capturing(Settings(lines=lines, path=path))
    capturing.start()
    for payload in payloads_of(400):
        sender.sendto(payload, (lines[0].group, lines[0].port))
        capturing.wait(0.0002)
    account = ended(capturing)
    assert account.reason == "fault"
    assert account.fault == "no space left on device"
    capture = Capture(path)
    assert account.written == len(list(capture)) == account.files[0].packets
    assert capture.truncation is None
    assert account.unwritten > 0
    assert account.size_bytes == path.stat().st_size <= 100_000


def test_what_waits_in_the_ring_when_a_write_fails_is_lost(
    tmp_path: Path,
    lines: tuple[Line, Line],
    sender: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, full = DiskFile.write, threading.Event()

    def write(self: DiskFile, data: bytes | memoryview) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        written(self, data)

    turn = Capturing._turn
    monkeypatch.setattr(Capturing, "_turn", lambda self: full.is_set() and turn(self))
    monkeypatch.setattr(DiskFile, "write", write)
    capturing = Capturing(Settings(lines=lines, path=tmp_path / "x.pcap"))
    capturing.start()
    # More than is laid out at a time.
    count = 2 * BUFFER_BYTES // 1_000
    for _ in range(count):
        sender.sendto(bytes(1_000), (lines[0].group, lines[0].port))
    until(capturing, lambda account: account.received + account.kernel_drops == count)
    full.set()
    account = ended(capturing)
    assert (account.written, account.left) == (0, 0)
    assert account.lost == count


def test_what_cannot_be_begun_is_reported_in_one_line(
    tmp_path: Path, lines: tuple[Line, Line]
) -> None:
    taken = tmp_path / "taken.pcap"
    taken.write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    for path, reason in (
        (taken, "is there already"),
        (tmp_path / "folder", "is no file"),
        (Path("/dev/null"), "is no file"),
        (tmp_path / "nowhere" / "x.pcap", "no such folder"),
        (tmp_path / "taken.pcap" / "x.pcap", "not a directory"),
    ):
        with pytest.raises(UsageError, match=reason):
            Capturing(Settings(lines=lines, path=path)).start()
    assert taken.read_bytes() == b"precious"
    with pytest.raises(ConfigError, match="no such interface"):
        Capturing(Settings(lines=(Line("A", GROUPS[0], 5_000, "eth99"),), path=taken))
    capturing = Capturing(Settings(lines=lines, path=taken, overwrite=True))
    capturing.start()
    capturing.stop()
    assert ended(capturing).written == 0
    assert list(Capture(taken)) == []


def test_a_compressed_file_is_whole_after_every_block(tmp_path: Path) -> None:
    path = tmp_path / "x"
    file = CompressedFile(path, lambda data: b"[" + bytes(data[:1]) + b"]")
    file.write(bytes(1 << 19))
    assert (file.held_bytes, file.size_bytes) == (1 << 19, 0)
    file.write(bytes(1 << 19))
    assert (file.held_bytes, file.size_bytes) == (0, 3)
    file.write(b"rest")
    file.close()
    assert path.read_bytes() == b"[\0][r]"


# -- the command --------------------------------------------------------------------------------


def begun(*words: str) -> "subprocess.Popen[str]":
    """The command, once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "feedhandler", "capture", *words],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "listening" in process.stderr.readline()
    return process


def test_a_signal_ends_the_command_with_a_whole_file_and_the_account(
    tmp_path: Path, lines: tuple[Line, Line], sender: socket.socket
) -> None:
    path = tmp_path / "day.pcap"
    a, b = lines
    with begun(
        *("--line", f"A={a.group}:{a.port}@lo", "--group", f"{b.group}:{b.port}"),
        *("--out", str(path), "--json"),
    ) as process:
        for value in range(50):
            sender.sendto(bytes([value]), (a.group, a.port))
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors == ""
    account = json.loads(output)
    read = [datagram.payload[0] for datagram in Capture(path)]
    assert read == list(range(len(read)))
    assert account["written"] == len(read)
    assert account["lost"] == 0
    assert [line["name"] for line in account["lines"]] == [f"{b.group}:{b.port}", "A"]
    beside = msgspec.json.decode(Path(f"{path}.json").read_bytes(), type=Account)
    assert (beside.written, beside.reason) == (len(read), "signal")
