"""A session that is followed has the tables of the job over the same files, whatever happens."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from feedhandler.characterise import following as followings
from feedhandler.characterise import growing as growings
from feedhandler.characterise import report
from feedhandler.characterise.following import Following, batches_here, blob_of
from feedhandler.characterise.growing import news, reach
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.tables import tables_of
from feedhandler.characterise.tally_blobs import packed, unpacked
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import characterise as ops
from feedhandler.ops.following import follow
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support.captures import write_frames
from tests.support.characterise import (
    FEED,
    LINE_A,
    OPENING_NS,
    PORT,
    append,
    frames_in_pieces,
    write_session,
)

UTP = Request("euronext-utp-md")
DEADLINE_S = 60.0
#: How often a driver is killed.
KILLS = int(os.environ.get("FEEDHANDLER_KILLS", "1"))
#: Recordings of a day, of which few are large.
MANY = 260


def comparable_rows(outcome: Outcome) -> list[tuple[str, list[list[Any]]]]:
    """Every table; of the files what does not depend on how they were cut."""
    tables = [(t.name, t.rows) for t in tables_of(outcome, FEED, "UTC")]
    files = tables.pop()[1]
    return [*tables, ("files", [[*row[:6], row[-1]] for row in files])]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three recordings that follow one another, of one session."""
    path = write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=11, seconds=0.3)
    data = path.read_bytes()
    ends = [reach([str(path)], {}, len(data) * part // 3)[str(path)] for part in (1, 2, 3)]
    starts = [24, *ends[:-1]]
    return [data[:24] + data[a:b] for a, b in zip(starts, ends, strict=True)]


def follow_to(folder: Path, state: Path, **asked: bool) -> Following:
    """Take all that is new in the folder."""
    following = Following(state, b"asked")
    for _ in batches_here(following, [str(folder)], UTP, **asked):
        pass
    return following


@pytest.mark.usefixtures("without_figures")
def test_growing_and_rotating_recordings_give_the_job_s_tables_after_any_restart(
    recordings: list[bytes], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    folder, state = tmp_path / "live", tmp_path / "state"
    folder.mkdir()
    for number, data in enumerate(recordings):
        written = 0
        while written < len(data):
            written = min(len(data), written + rng.randrange(1, 60_000))
            # As the gateway's recorder writes it, and as it leaves it.
            (folder / f"lines-{number}.pcap.part").write_bytes(data[:written])
            if rng.random() < 0.7:
                follow_to(folder, state)
        (folder / f"lines-{number}.pcap.part").rename(folder / f"lines-{number}.pcap")
    following = follow_to(folder, state, complete=True)
    whole = characterise([str(folder)], UTP)
    assert comparable_rows(following.outcome([str(folder)], complete=True)) == comparable_rows(
        whole
    ), f"seed {seed}"
    assert following.last > 3


def test_a_recording_that_is_compressed_afterwards_counts_once(
    recordings: list[bytes], tmp_path: Path
) -> None:
    folder, state = tmp_path / "live", tmp_path / "state"
    folder.mkdir()
    first, second = recordings[:2]
    (folder / "a.pcap").write_bytes(first[:50_000])
    follow_to(folder, state)
    (folder / "a.pcap").write_bytes(first)
    (folder / "b.pcap").write_bytes(second[: len(second) // 2])
    # It is compressed before all of it was read; for a moment there are both.
    subprocess.run(["gzip", "-k", str(folder / "a.pcap")], check=True)
    before = Following(state, b"asked").offset
    assert set(reach([str(folder)], before)) == {str(folder / "a.pcap"), str(folder / "b.pcap")}
    (folder / "a.pcap").unlink()
    follow_to(folder, state)
    (folder / "b.pcap").write_bytes(second)
    following = follow_to(folder, state, complete=True)
    assert list(following.offset) == [str(folder / "a.pcap"), str(folder / "b.pcap")]
    found = comparable_rows(following.outcome([str(folder)], complete=True))
    assert found[:-1] == comparable_rows(characterise([str(folder)], UTP))[:-1]
    assert [row[1] for row in found[-1][1]] == ["content", "pcap"]


@pytest.fixture(scope="module")
def in_pieces(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording of packets that come in pieces; of every tenth one the last is missing."""
    path = tmp_path_factory.mktemp("pieces") / "day.pcap"
    return write_frames(path, frames_in_pieces(), step_ns=1_000_000).read_bytes()


def read_slowly(outcome: Outcome) -> tuple[dict[str, int], dict[str, int], int]:
    """What the account of the first file says of pieces."""
    account = outcome.files[0]
    return account.skipped, account.slowly, account.joined


def test_a_datagram_whose_pieces_come_in_two_batches_counts_as_in_the_job(
    in_pieces: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    # Batches of several slices, too.
    monkeypatch.setattr(followings, "SLICE_BYTES_MAX", 3_000)
    folder, state = tmp_path / "live", tmp_path / "state"
    following, written = Following(state, b"asked"), 0
    while written < len(in_pieces):
        written = min(len(in_pieces), written + rng.randrange(1, 12_000))
        _write(folder / "a.pcap", in_pieces[:written])
        following = follow_to(folder, state)
    assert following.last > 3
    live, followed = (following.outcome([str(folder)], complete=over) for over in (False, True))
    whole = characterise([str(folder)], UTP)
    assert comparable_rows(followed) == comparable_rows(whole), f"seed {seed}"
    assert read_slowly(followed) == read_slowly(whole), f"seed {seed}"
    assert whole.files[0].skipped["fragment"] > 6
    assert live.files[0].skipped == {}, "their last pieces may still come"


def test_pieces_wait_for_what_comes_when_the_recording_is_compressed(
    in_pieces: bytes, tmp_path: Path
) -> None:
    folder, state = tmp_path / "live", tmp_path / "state"
    plain = Path(_write(folder / "a.pcap", in_pieces[: len(in_pieces) // 2]))
    assert follow_to(folder, state).waiting(1)
    plain.unlink()
    _write(folder / "a.pcap.gz", gzip.compress(in_pieces))
    followed = follow_to(folder, state, complete=True).outcome([str(folder)], complete=True)
    whole = characterise([str(folder)], UTP)
    assert comparable_rows(followed)[:-1] == comparable_rows(whole)[:-1]
    assert read_slowly(followed) == read_slowly(whole)


def test_recordings_that_were_compressed_are_inflated_once_however_many_they_are(
    recordings: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "one.pcap"
    one.write_bytes(recordings[0][:1_000])
    (part,) = news({}, reach([str(one)], {}), 10**9)
    blob = blob_of(part, UTP)
    names = [str(tmp_path / "live" / f"{number:03}.pcap") for number in range(MANY)]
    following = Following(tmp_path / "state", b"asked")
    following.store(0, [structs.replace(blob, name=name) for name in names])
    content = gzip.compress(one.read_bytes())
    files = [Path(_write(Path(name + ".gz"), content)) for name in names]
    inflated: list[str] = []
    open_content = growings.open_content

    def opened(path: str, position: int) -> Any:
        inflated.append(path)
        return open_content(path, position)

    def look() -> list[str]:
        inflated.clear()
        assert list(batches_here(following, [str(tmp_path / "live")], UTP)) == []
        return inflated

    monkeypatch.setattr(growings, "open_content", opened)
    assert look() == list(map(str, files))
    assert look() == []
    os.utime(files[7], ns=(0, 0))
    assert look() == [str(files[7])]
    files[7].unlink()
    assert look() == []
    files[7].write_bytes(content)
    os.utime(files[7], ns=(0, 0))
    assert look() == [str(files[7])], "nothing is kept of a file that was gone"


def test_a_batch_that_is_done_again_replaces_what_it_was(
    recordings: list[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(recordings[0])
    end = reach([str(path)], {})
    blobs = [blob_of(part, UTP) for part in news({}, end, 40_000)]
    following = Following(tmp_path / "state", b"asked")
    following.store(0, blobs[:3])
    following.store(1, blobs[3:])
    once = comparable_rows(following.outcome([str(path)]))
    following.store(1, blobs[3:])
    assert comparable_rows(following.outcome([str(path)])) == once
    # Done again and never written down before: the one who was killed had not got so far.
    other = Following(tmp_path / "other", b"asked")
    other.store(0, blobs[:3])
    other = Following(tmp_path / "other", b"asked")
    other.store(1, list(reversed(blobs[3:])))
    assert (
        comparable_rows(other.outcome([str(path)]))
        == once
        == comparable_rows(characterise([str(path)], UTP))
    )
    with pytest.raises(UsageError, match="was counted before"):
        other.store(2, blobs[2:3])


def test_recordings_that_grow_side_by_side_are_taken_in_the_order_of_names(
    recordings: list[bytes], tmp_path: Path
) -> None:
    folder, state = tmp_path / "live", tmp_path / "state"
    folder.mkdir()
    for share in (3, 2, 1):
        for name, data in zip("cab", recordings, strict=True):
            (folder / f"{name}.pcap").write_bytes(data[: len(data) // share])
        following = follow_to(folder, state)
    assert comparable_rows(following.outcome([str(folder)])) == comparable_rows(
        characterise([str(folder)], UTP)
    )


def test_batches_of_recordings_side_by_side_are_read_again_once_a_report(
    recordings: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "live"
    read: list[Path] = []
    following, read_blobs = Following(tmp_path / "state", b"asked"), followings.read_blobs

    def reading(path: Path) -> Any:
        read.append(path)
        return read_blobs(path)

    monkeypatch.setattr(followings, "read_blobs", reading)
    for share in (3, 2, 1):
        for name, data in zip("ba", recordings, strict=False):
            _write(folder / f"{name}.pcap", data[: len(data) // share])
            assert len(list(batches_here(following, [str(folder)], UTP))) == 1
    assert not read
    outcome = following.outcome([str(folder)])
    assert len(read) == 6
    assert comparable_rows(outcome) == comparable_rows(characterise([str(folder)], UTP))
    following.outcome([str(folder)])
    assert len(read) == 6


def test_what_is_odd_is_reported_as_by_the_job_and_the_rest_counts(
    recordings: list[bytes], tmp_path: Path
) -> None:
    data = recordings[0]
    damaged = bytearray(data)
    at = reach([_write(tmp_path / "x" / "x.pcap", data)], {}, 30_000).popitem()[1]
    damaged[at + 8 : at + 12] = b"\xff\xff\xff\x7f"
    folder = tmp_path / "live"
    _write(folder / "a-damaged.pcap", bytes(damaged))
    _write(folder / "b-text.pcap", b"this is no capture, but a text of some length")
    _write(folder / "c-cut.pcap", data[:-7])
    _write(folder / "d-empty.pcap", b"")
    _write(folder / "e-cut.pcap", data[: 2 * len(data) // 3])
    following = follow_to(folder, tmp_path / "state")
    live = following.outcome([str(folder)])
    assert live.files[-1].problem == "", "the latest one is being written"
    complete = following.outcome([str(folder)], complete=True)
    assert comparable_rows(complete) == comparable_rows(characterise([str(folder)], UTP))
    assert [bool(each.problem) for each in complete.files] == [True] * 5
    (folder / "c-cut.pcap").unlink()
    gone = following.outcome([str(folder)], complete=True)
    assert (gone.files[2].records, gone.files[2].problem) == (complete.files[2].records, "")
    assert comparable_rows(gone)[:-1] == comparable_rows(complete)[:-1]


def test_a_recording_that_is_no_longer_the_one_that_was_read_is_reported(
    recordings: list[bytes], tmp_path: Path
) -> None:
    folder, state = tmp_path / "live", tmp_path / "state"
    shorter = Path(_write(folder / "a.pcap", recordings[0]))
    grown = Path(_write(folder / "b.pcap.gz", gzip.compress(recordings[1])))
    read = follow_to(folder, state, complete=True).outcome([str(folder)], complete=True)
    assert [each.problem for each in read.files] == ["", ""]
    (end,) = reach([str(shorter)], {}, 30_000).values()
    shorter.write_bytes(recordings[0][:end])
    grown.write_bytes(gzip.compress(recordings[1]) + gzip.compress(recordings[2][24:]))
    again = follow_to(folder, state, complete=True).outcome([str(folder)], complete=True)
    assert [each.records for each in again.files] == [each.records for each in read.files]
    assert "another file took its place" in again.files[0].problem
    assert "it grew after it was read whole" in again.files[1].problem


def _write(path: Path, data: bytes) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def test_a_folder_belongs_to_what_it_was_begun_with(tmp_path: Path) -> None:
    Following(tmp_path / "state", b"one")
    with pytest.raises(UsageError, match="follows something else"):
        Following(tmp_path / "state", b"other")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use"):
        Following(tmp_path / "file", b"one")
    following = Following(tmp_path / "state", b"one")
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(UsageError, match="cannot write to"):
        following.store(0, [])


def test_tallies_survive_packing(tmp_path: Path) -> None:
    path = write_session(tmp_path / "a.pcap", 1, seconds=0.01)
    (part,) = news({}, reach([str(path)], {}), 10**9)
    columns = followings.tally_slice(part, UTP).columns
    again = unpacked(packed(columns))
    assert columns.keys() == again.keys()
    assert all((columns[name] == again[name]).all() for name in columns)


# -- the command ---------------------------------------------------------------------------------


def options(folder: Path, out: Path, **changes: Any) -> ops.Options:
    settled = {"captures": (str(folder),), "feed": UTP.feed, "out": out, "master": "none"}
    return ops.Options(**{**settled, **changes})


def test_once_reads_to_the_end_of_what_is_there_and_says_what_is_odd(
    recordings: list[bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "draw", lambda tables: [])
    folder, out = tmp_path / "live", tmp_path / "out"
    _write(folder / "a.pcap", recordings[0])
    write_session(folder / "b.pcap.gz", 5, seconds=0.02)
    assert follow(options(folder, out, once=True)) == ExitCode.OK
    assert "packets in" in capsys.readouterr().out
    _write(folder / "c.pcap", recordings[1][:-1])
    assert follow(options(folder, out, once=True, as_json=True)) == ExitCode.FOUND
    shown = capsys.readouterr()
    assert "the last record is not whole" in shown.err
    packets = characterise([str(folder)], UTP).digest.totals[:, 0].sum()
    assert json.loads(shown.out) == {"batch": 1, "packets": packets}
    assert json.loads((out / "session.json").read_text())["about"]["followed to batch"] == 1
    assert not list(out.rglob("*.new"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"exact": True}, "counts recordings as they are written"),
        ({"captures": ()}, "nothing to follow"),
        ({"captures": ("s3a://bucket/day",)}, "on this machine"),
        ({"every_ns": 0}, "is no time"),
        ({"captures": ("/nowhere/at/all",)}, "no capture at"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        follow(options(tmp_path, tmp_path / "out", once=True, **changes))


@pytest.mark.usefixtures("without_figures")
def test_a_folder_that_was_empty_at_first_is_followed_later(tmp_path: Path) -> None:
    feed = load_feed("nasdaq-totalview-itch")
    assert not feed.table.service_size, "channels are guessed"
    folder = tmp_path / "live"
    folder.mkdir()
    asked = options(folder, tmp_path / "out", once=True, feed=feed.name)
    with pytest.raises(UsageError, match="no capture at"):
        follow(asked)
    with CaptureWriter(folder / "a.pcap") as writer:
        event = feed.encode_message("system_event", event_code="O")
        packet = feed.encode_packet(session="S", sequence=1, messages=[event])
        writer.write(OPENING_NS, LINE_A, PORT, packet)
    assert follow(asked) == ExitCode.OK


def test_killed_again_and_again_it_ends_with_the_job_s_tables(
    recordings: list[bytes], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    folder, out = tmp_path / "live", tmp_path / "out"
    growing = Path(_write(folder / "a.pcap", recordings[0][:24]))
    command = [sys.executable, "-m", "feedhandler", "characterise", str(folder), "--out", str(out),
               "--feed", UTP.feed, "--master", "none"]  # fmt: skip
    for turn in range(KILLS):
        before = _batches(out)
        process = subprocess.Popen(
            [*command, "--follow", "--every", "1ms"], stdout=subprocess.DEVNULL
        )
        try:
            append(growing, recordings[0], (2 * turn + 1) / (2 * KILLS + 2))
            wait_for_batches(out, before + 1)
            append(growing, recordings[0], (2 * turn + 2) / (2 * KILLS + 2))
            # Killed at any moment: while it counts, writes or draws.
            time.sleep(rng.random() / 10)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    append(growing, recordings[0], 1)
    _write(folder / "b.pcap", recordings[1])
    assert follow(options(folder, out, once=True)) == ExitCode.OK
    expected = {t.name: t for t in tables_of(characterise([str(folder)], UTP), FEED, FEED.zone)}
    found = json.loads((out / "session.json").read_text())
    assert found["about"]["followed to batch"] >= KILLS
    for name, table in found["tables"].items():
        if name != "files":
            assert table["rows"] == expected[name].rows, f"{name}, seed {seed}"


def wait_for_batches(out: Path, count: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while _batches(out) < count:
        assert time.monotonic() < until, "no batch was taken"
        time.sleep(0.005)


def _batches(out: Path) -> int:
    return len(list((out / "_followed").glob("batch-*.tallies")))
