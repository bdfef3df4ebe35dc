"""The recorder on a real folder: what the taps took can be read, and replayed, afterwards."""

import errno
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dpkt
import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.config.recording import FILE_BYTES_MIN, RecordConfig
from feedhandler.ingest.lines import Line
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.recording import recorder as recorder_module
from feedhandler.recording.files import RecordingFiles
from feedhandler.recording.recorder import DiskFolder, Recorder
from feedhandler.replay.captures.reading import Capture, Datagram

PATIENCE_S = 60.0
START_NS = 1_795_168_800_000_000_000
UTC = TradingDay("UTC")
LINES = [
    Line("104/A", "239.101.1.4", 30104, "127.0.0.1"),
    Line("104/B", "239.101.2.4", 31104, "127.0.0.1", "10.9.8.7"),
]


def settings(folder: Path, **changes: Any) -> RecordConfig:
    base = {"dir": str(folder), "what": "both", "disk_free_min_share": 0.0, "ring_bytes": 1 << 18}
    return RecordConfig(**{**base, **changes})


def eventually(fact: Callable[[], Any]) -> None:
    """Wait until `fact()` is true."""
    end = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.002)


def datagrams(count: int, seed: int = 3, size_max: int = 1400) -> Iterator[tuple[int, Datagram]]:
    """Line numbers and datagrams."""
    draw = random.Random(seed)
    for number in range(count):
        line = draw.randrange(2)
        where = LINES[line]
        payload = draw.randbytes(draw.randrange(size_max))
        source = where.source or "0.0.0.0"
        yield line, Datagram(START_NS + number, where.group, where.port, source, payload)


class Tapper:
    """A producer of one of the recorder's taps, as the receive thread and the fan-out are."""

    def __init__(self, recorder: Recorder, series: str = "lines") -> None:
        ring = recorder.tap(series)
        assert ring is not None
        self.ring: Ring = ring
        self.dropped = 0
        recorder.count_refused(series, lambda: self.dropped)

    def packet(self, line: int, time_ns: int, payload: bytes) -> bool:
        fits = self.ring.put(RecordKind.PACKET, line=line, received_ns=time_ns, payload=payload)
        self.ring.publish()
        return fits


def fill(tap: Tapper, items: list[tuple[int, Datagram]], patient: bool = True) -> list[Datagram]:
    """Put everything into the tap, waiting for room where `patient`; what was offered."""
    offered = []
    for line, one in items:
        while not tap.packet(line, one.time_ns, one.payload):
            if not patient:
                tap.dropped += 1
                break
            threading.Event().wait(0.001)
        offered.append(one)
    return offered


def recorded(folder: Path, series: str) -> list[Datagram]:
    """Return the datagrams in a series' closed files, in the order of their names."""
    return [one for path in sorted(folder.glob(f"{series}-*.pcap")) for one in Capture(path)]


def counts(recorder: Recorder, series: str = "lines") -> dict[str, Any]:
    return dict(recorder.snapshot()["series"][series])


def test_what_the_taps_took_is_read_back_by_ourselves_and_by_dpkt(tmp_path: Path) -> None:
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    taken = fill(Tapper(recorder), list(datagrams(3_000)))
    Tapper(recorder, "published").packet(1, START_NS, b"published")
    assert recorder.stop()
    assert recorded(tmp_path, "lines") == taken
    group, port = LINES[0].group, LINES[0].port
    assert recorded(tmp_path, "published") == [
        Datagram(START_NS, group, port, "0.0.0.0", b"published")
    ]
    (path,) = tmp_path.glob("lines-*.pcap")
    with path.open("rb") as file:
        reader = dpkt.pcap.Reader(file)
        assert reader.datalink() == dpkt.pcap.DLT_EN10MB
        frames = [dpkt.ethernet.Ethernet(frame) for _, frame in reader]
    assert [frame.data.data.data for frame in frames] == [one.payload for one in taken]
    snapshot = recorder.snapshot()
    assert (snapshot["state"], snapshot["reason"]) == ("ended", "")
    size = sum(path.stat().st_size for path in tmp_path.glob("*.pcap"))
    assert snapshot["bytes"] == size
    lines = counts(recorder)
    assert lines["packets"] == len(taken)
    assert lines["dropped"] == 0
    assert (lines["files"], lines["deleted"], lines["file"]) == (1, 0, "")


def test_the_file_being_written_is_a_part_that_can_be_read_already(tmp_path: Path) -> None:
    recorder = Recorder(settings(tmp_path, what="lines"), LINES, [], UTC)
    assert recorder.tap("published") is None
    recorder.start()
    taken = fill(Tapper(recorder), list(datagrams(100)))
    eventually(lambda: counts(recorder)["packets"] == 100)
    (path,) = tmp_path.glob("lines-*")
    assert path.name == counts(recorder)["file"] + ".part"
    assert list(Capture(path)) == taken
    assert recorder.stop()
    assert [each.name for each in tmp_path.glob("lines-*")] == [path.name.removesuffix(".part")]


def test_files_rotate_by_size_and_lose_nothing(tmp_path: Path) -> None:
    chosen = settings(tmp_path, what="lines", file_bytes=FILE_BYTES_MIN, ring_bytes=1 << 22)
    recorder = Recorder(chosen, LINES, [], UTC)
    recorder.start()
    taken = fill(Tapper(recorder), list(datagrams(6_000)))
    assert recorder.stop()
    files = sorted(tmp_path.glob("lines-*.pcap"))
    assert len(files) == counts(recorder)["files"] > 3
    assert all(path.stat().st_size <= FILE_BYTES_MIN for path in files)
    assert all(path.stat().st_size > FILE_BYTES_MIN - 1_500 for path in files[:-1])
    assert recorded(tmp_path, "lines") == taken


def test_files_rotate_by_age(tmp_path: Path) -> None:
    now = [START_NS]
    chosen = settings(tmp_path, what="lines", file_seconds=60)
    recorder = Recorder(chosen, LINES, [], UTC, clock_ns=lambda: now[0])
    recorder.start()
    first = fill(Tapper(recorder), list(datagrams(10)))
    eventually(lambda: counts(recorder)["packets"] == 10)
    now[0] += 60_000_000_000
    eventually(lambda: list(tmp_path.glob("*.pcap")))
    second = fill(Tapper(recorder), list(datagrams(5, seed=4)))
    assert recorder.stop()
    assert [path.name for path in sorted(tmp_path.glob("*.pcap"))] == [
        "lines-20261120-20261120-100000-000001.pcap",
        "lines-20261120-20261120-100100-000002.pcap",
    ]
    assert recorded(tmp_path, "lines") == first + second


class HeldFile(recorder_module.DiskFile):
    """A disk that does not answer until it is `released`."""

    released = threading.Event()
    reached = threading.Event()

    def write(self, data: bytes | memoryview) -> None:
        self.reached.set()
        assert self.released.wait(PATIENCE_S)
        super().write(data)


def test_a_slow_disk_makes_the_tap_drop_and_count_and_never_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "DiskFile", HeldFile)
    HeldFile.released.clear()
    HeldFile.reached.clear()
    recorder = Recorder(settings(tmp_path, what="lines"), LINES, [], UTC)
    tap = Tapper(recorder)
    recorder.start()
    items = list(datagrams(2_000))
    fill(tap, items[:1])
    assert HeldFile.reached.wait(PATIENCE_S)
    fill(tap, items[1:], patient=False)
    assert tap.dropped > 1_000
    assert counts(recorder)["dropped"] == tap.dropped
    HeldFile.released.set()
    assert recorder.stop()
    got = recorded(tmp_path, "lines")
    offered = iter([one for _, one in items])
    assert all(one in offered for one in got), "whole and in order"
    assert len(got) + tap.dropped == len(items)
    assert counts(recorder)["dropped"] == tap.dropped


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failing_disk_ends_recording_with_a_readable_file_and_everything_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    writes = os.write
    broken = threading.Event()

    def half_a_write(fd: int, data: Any) -> int:
        if broken.is_set() and threading.current_thread().name == "recorder":
            if len(data) > 100:
                return writes(fd, data[: len(data) - 100])
            raise OSError(code, os.strerror(code))
        return writes(fd, data)

    monkeypatch.setattr(recorder_module.os, "write", half_a_write)
    reasons: list[str] = []
    recorder = Recorder(settings(tmp_path, what="lines"), LINES, [], UTC, on_stop=reasons.append)
    recorder.start()
    items = list(datagrams(300, size_max=500))
    before = fill(Tapper(recorder), items[:100])
    eventually(lambda: counts(recorder)["packets"] == 100)
    broken.set()
    fill(Tapper(recorder), items[100:200], patient=False)
    eventually(lambda: reasons)
    fill(Tapper(recorder), items[200:], patient=False)
    assert recorder.snapshot()["state"] == "stopped"
    assert reasons == [recorder.snapshot()["reason"]]
    assert "disk is full" in reasons[0] or os.strerror(code).lower() in reasons[0]
    (path,) = tmp_path.glob("lines-*.pcap")
    capture = Capture(path)
    assert list(capture) == before
    assert capture.truncation is None, "half a record was taken back"
    eventually(lambda: counts(recorder)["dropped"] == 200)
    assert recorder.stop()
    assert recorder.snapshot()["state"] == "stopped"


def test_at_the_total_recording_stops_and_the_files_stay(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path,
        what="lines",
        file_bytes=FILE_BYTES_MIN,
        total_bytes=4 * FILE_BYTES_MIN,
        ring_bytes=1 << 23,
    )
    recorder = Recorder(chosen, LINES, [], UTC)
    recorder.start()
    items = list(datagrams(8_000))
    fill(Tapper(recorder), items, patient=False)
    eventually(lambda: recorder.state == "stopped")
    assert "record.total_bytes" in recorder.reason
    got = recorded(tmp_path, "lines")
    assert got
    assert got == [one for _, one in items[: len(got)]]
    assert counts(recorder)["packets"] == len(got)
    eventually(lambda: len(got) + counts(recorder)["dropped"] == len(items))
    assert recorder.stop()


def test_the_oldest_give_way_and_the_newest_stay(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path,
        what="lines",
        when_full="delete-oldest",
        file_bytes=FILE_BYTES_MIN,
        total_bytes=4 * FILE_BYTES_MIN,
    )
    recorder = Recorder(chosen, LINES, [], UTC)
    recorder.start()
    taken = fill(Tapper(recorder), list(datagrams(12_000)))
    assert recorder.stop()
    assert recorder.snapshot()["state"] == "ended"
    got = recorded(tmp_path, "lines")
    assert got == taken[-len(got) :]
    assert counts(recorder)["deleted"] > 3
    assert sum(path.stat().st_size for path in tmp_path.glob("*.pcap")) <= 4 * FILE_BYTES_MIN


def record_until_killed(folder: str, ready: Any) -> None:
    """A process that fills its tap until it is killed."""
    recorder = Recorder(settings(Path(folder), what="lines"), LINES, [], UTC)
    tap = Tapper(recorder)
    recorder.start()
    for line, one in datagrams(1_000_000):
        tap.packet(line, one.time_ns, one.payload)
        if counts(recorder)["packets"] > 200:
            ready.set()


def test_a_process_killed_while_recording_leaves_a_file_that_its_successor_keeps(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=record_until_killed, args=(str(tmp_path), ready))
    process.start()
    try:
        assert ready.wait(PATIENCE_S)
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    (part,) = tmp_path.glob("*.part")
    left = list(Capture(part))
    assert len(left) > 200
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    assert recorder.snapshot()["recovered"] == 1
    assert recorded(tmp_path, "lines") == left
    assert recorder.stop()
    assert recorder.snapshot()["state"] == "ended"


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Recorder(settings(folder, **changes), LINES, LINES[:1], UTC).start()
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def test_a_folder_that_cannot_be_used_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no such folder (mkdir -p" in refusal(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    assert "not a folder" in refusal(tmp_path / "file")
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    assert "another gateway records there" in refusal(tmp_path)
    recorder.stop()
    assert "less than record.disk_free_min_share" in refusal(tmp_path, disk_free_min_share=1.0)

    def denied(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(recorder_module.os, "open", denied)
    assert "permission denied" in refusal(tmp_path)


def test_a_folder_that_cannot_be_listed_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: DiskFolder) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DiskFolder, "unfinished", failing)
    assert "input/output error (check the disk)" in refusal(tmp_path)
    monkeypatch.undo()
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    assert recorder.snapshot()["state"] == "ready"
    recorder.start()
    assert recorder.stop()


def test_a_recorder_that_was_never_started_has_nothing_to_end(tmp_path: Path) -> None:
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    assert recorder.stop()
    snapshot = recorder.snapshot()
    assert (snapshot["state"], snapshot["bytes"]) == ("ready", 0)
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in (
        "notes.txt",
        "lines-2.pcap",
        "lines-20261120-20261120-100000-000001.pcap.gz",
        "x.part",
    ):
        (tmp_path / name).write_text("mine")
    recorder = Recorder(settings(tmp_path, when_full="delete-oldest"), LINES, LINES[:1], UTC)
    recorder.start()
    assert recorder.snapshot()["bytes"] == 0
    recorder.stop()
    assert len([path for path in tmp_path.iterdir() if path.read_bytes() == b"mine"]) == 4


def test_a_series_that_is_always_behind_leaves_the_other_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    turns = itertools.count()

    def behind(files: RecordingFiles, now_ns: int) -> bool:
        assert next(turns) < 100_000, "the other series has no turn"
        return counts(recorder, "published")["packets"] == 0

    monkeypatch.setattr(recorder._series["lines"], "write_some", behind)
    Tapper(recorder, "published").packet(0, START_NS, b"published")
    recorder.start()
    assert recorder.stop()
    assert recorder.snapshot()["state"] == "ended"
    assert [one.payload for one in recorded(tmp_path, "published")] == [b"published"]


def test_an_error_of_ours_ends_recording_and_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: RecordingFiles, now_ns: int) -> None:
        raise RuntimeError("pretended")

    monkeypatch.setattr(RecordingFiles, "tick", failing)
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    eventually(lambda: recorder.state == "stopped")
    assert recorder.reason == "internal error: RuntimeError: pretended"
    assert recorder.stop()


def test_a_file_that_cannot_be_closed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    fill(Tapper(recorder), list(datagrams(3)))
    eventually(lambda: counts(recorder)["packets"] == 3)

    def failing(self: DiskFolder, name: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DiskFolder, "finish", failing)
    assert recorder.stop()
    assert recorder.state == "stopped"
    assert "closing a file failed" in recorder.reason


def test_a_disk_that_never_answers_does_not_hold_the_end_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "DiskFile", HeldFile)
    monkeypatch.setattr(recorder_module, "STOP_SECONDS", 0.01)
    HeldFile.released.clear()
    HeldFile.reached.clear()
    recorder = Recorder(settings(tmp_path), LINES, LINES[:1], UTC)
    recorder.start()
    fill(Tapper(recorder), list(datagrams(1)))
    assert HeldFile.reached.wait(PATIENCE_S)
    assert not recorder.stop()
    HeldFile.released.set()
    eventually(lambda: recorder.state == "ended")
