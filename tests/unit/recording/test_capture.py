"""The account of `feedhandler capture` at its end, and its exit code."""

import json
import queue
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.ops import capture
from feedhandler.recording.capture import Account, LineAccount, Settings
from feedhandler.recording.rotation import Rotation, WrittenFile
from feedhandler.terminal.arguments import CaptureLine, LineAddress
from feedhandler.terminal.console import run_guarded

LINE = LineAccount("A", "239.1.1.1", 5_001, "lo", None, 16 << 20, 16 << 20, 1_000, 344_000, 0, 0)
ACCOUNT = Account(
    path="day.pcap", format="pcap", began_ns=10**18, ended_ns=10**18 + 2 * 10**9, reason="signal",
    fault="", received=1_000, written=1_000, kernel_drops=0, ring_drops=0, unwritten=0, left=0,
    size_bytes=402_024, lines=(LINE,), files=(WrittenFile("day.pcap", 10**18, 1_000, 402_024),),
)  # fmt: skip


def account(**changes: Any) -> Account:
    return msgspec.structs.replace(ACCOUNT, **changes)


class Ended:
    """A capture that has ended before it began."""

    reported = ACCOUNT

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ended = threading.Event()

    def start(self) -> None:
        self.ended.set()

    def stop(self) -> None:
        pass

    def wait(self, _timeout_s: float) -> bool:
        return True

    def account(self) -> Account:
        return self.reported

    def close(self) -> Account:
        return self.reported


def run(
    result: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[int, Path]:
    monkeypatch.setattr(Ended, "reported", result)
    monkeypatch.setattr(capture, "Capturing", Ended)
    out = tmp_path / "day.pcap"
    lines = (CaptureLine(LineAddress("239.1.1.1", 5_001)),)
    options = capture.Options(lines=lines, out=out, **changes)
    return run_guarded(lambda: capture.run(options)), Path(f"{out}.json")


@pytest.mark.parametrize(
    ("deleted", "text"),
    [
        ([False], "day-1.pcap"),
        ([False, False], "2 files"),
        ([True, True, False, False], "2 files (2 older ones deleted)"),
        ([True, False], "day-2.pcap (1 older ones deleted)"),
    ],
)
def test_the_files_of_a_rotation_are_named_or_counted_without_deleted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    deleted: list[bool], text: str,
) -> None:  # fmt: skip
    files = tuple(
        WrittenFile(f"day-{number}.pcap", 10**18, 10, 10, gone)
        for number, gone in enumerate(deleted, 1)
    )
    run(account(path=str(tmp_path / "day.pcap"), files=files), tmp_path, monkeypatch)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith(f"(500/s) to {text}, 402.0 kB".replace("day", f"{tmp_path}/day"))


def test_a_capture_without_loss_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, beside = run(ACCOUNT, tmp_path, monkeypatch)
    assert code == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "capture: 1,000 packets in 2.00 s (500/s) to day.pcap, 402.0 kB",
        "  A: 1,000 received, 0 dropped by the kernel; receive buffer 16,777,216 of 16,777,216 "
        "bytes",
        "  nothing lost",
    ]
    assert captured.err == "capture: listening to 239.1.1.1:5001\n"
    assert msgspec.json.decode(beside.read_bytes(), type=Account) == ACCOUNT


def test_losses_of_every_kind_are_reported_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = msgspec.structs.replace(LINE, kernel_drops=7, cut=1, receive_buffer_bytes=212_992)
    lossy = account(
        lines=(line,), kernel_drops=7, ring_drops=3, written=992, left=5, reason="count",
        files=(WrittenFile("a", 1), WrittenFile("b", 2)),
    )  # fmt: skip
    assert run(lossy, tmp_path, monkeypatch)[0] == 1
    captured = capsys.readouterr()
    assert "to 2 files" in captured.out
    assert "7 dropped by the kernel, 1 cut; receive buffer 212,992 of 16,777,216" in captured.out
    assert "  not written: 3 (the disk was too slow)\n" in captured.out
    assert "  5 more came while it ended\n" in captured.out
    assert captured.out.endswith("  lost: 10\n")
    assert "asked for receive buffers of 16,777,216 bytes and got 212,992" in captured.err
    assert "net.core.rmem_max" in captured.err


def test_a_fault_is_one_line_behind_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = account(reason="fault", fault="no space left on device", written=900, unwritten=100)
    code, beside = run(full, tmp_path, monkeypatch, as_json=True)
    assert code == 70
    captured = capsys.readouterr()
    assert json.loads(captured.out)["lost"] == 100
    assert captured.err.splitlines()[1:] == [
        "feedhandler: no space left on device (the files hold 900 packets and are whole)"
    ]
    assert beside.exists()


def test_an_account_that_cannot_be_written_is_reported_and_printed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture, "replacing", save)
    assert run(ACCOUNT, tmp_path, monkeypatch)[0] == 0
    captured = capsys.readouterr()
    assert "nothing lost" in captured.out
    assert "cannot write" in captured.err


def test_an_older_captures_account_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "day.pcap.json").write_text("precious")
    code, beside = run(ACCOUNT, tmp_path, monkeypatch)
    assert (code, beside.read_text()) == (2, "precious")
    assert "is there already" in capsys.readouterr().err
    assert run(ACCOUNT, tmp_path, monkeypatch, overwrite=True)[0] == 0


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, None),
        ({"count": 4_000}, 0.25),
        ({"duration_ns": 4 * 10**9}, 0.5),
        ({"count": 4_000, "duration_ns": 4 * 10**9}, 0.5),
        ({"count": 10}, 1.0),
    ],
)
def test_how_far_it_is_counts_from_the_nearer_end(
    changes: dict[str, int], share: float | None
) -> None:
    options = capture.Options(lines=(), out=Path("x"), **changes)  # type: ignore[arg-type]
    assert capture._share_done(ACCOUNT, options) == share


def test_the_line_tells_packets_rate_drops_and_size() -> None:
    text = capture._progress_text(account(kernel_drops=2, ring_drops=1), 12_345.6)
    assert text == "0:02  1,000 packets  12,346/s  3 dropped  402.0 kB"


def test_files_that_are_kept_want_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ACCOUNT, tmp_path, monkeypatch, rotation=Rotation(keep=2))[0] == 2
    assert "one file only" in capsys.readouterr().err


def test_a_signal_at_any_moment_of_the_watch_is_heard() -> None:
    """Among them those at which the watch holds the lock of what it waits for."""
    stopping: capture.Stopping = queue.SimpleQueue()
    watching = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: stopping.put(None))
    try:
        for turn in range(500):
            after = threading.Timer(
                1e-6 * (turn % 200), signal.pthread_kill, (watching, signal.SIGUSR1)
            )
            after.start()
            while not capture._is_stopped(stopping):
                pass
            after.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopping.empty()
