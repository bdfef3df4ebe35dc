"""The lake: each capture once, whole or not at all, and tables from it as from the captures."""

import fcntl
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from feedhandler.characterise import lake as lakes
from feedhandler.characterise import lake_files, lake_identity
from feedhandler.characterise.files import look_at
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.lake import contents_table, fill_lake, outcome_of
from feedhandler.characterise.lake_identity import look, quick_identity
from feedhandler.characterise.lake_rows import MessageTables, decimals
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import CaptureFile, whole
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import characterise as ops
from feedhandler.ops import pipeline
from feedhandler.replay.captures.records import frame_headers
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support import characterise as support
from tests.support.captures import write_frames
from tests.support.characterise import (
    FEED,
    LINE_A,
    OPENING_NS,
    PORT,
    Independent,
    refresh_packet,
    table_rows,
    write_session,
)

UTP = "euronext-utp-md"
#: How often the command is killed.
KILLS = int(os.environ.get("FEEDHANDLER_KILLS", "1"))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=31, seconds=0.1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices of small captures, several row groups of a slice."""
    monkeypatch.setattr(lakes, "slice_bytes", lambda total, workers: 100_000)
    monkeypatch.setattr(lake_files, "GROUP_ROWS", 200)


def rows_of(lake: Path, layout: str) -> list[dict[str, object]]:
    folders = sorted(lake.glob(f"capture=*/type={layout}"))
    found = []
    for folder in folders:
        found += ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["time_ns"], row["line"], row["number"]))


def files_of(lake: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(lake)): path.read_bytes() for path in lake.rglob("*") if path.is_file()
    }


def filled(lake: Path, *captures: Path, **more: Any) -> int:
    """The exit code of the command."""
    paths = tuple(map(str, captures))
    return pipeline.run(
        pipeline.Options(captures=paths, feed=UTP, lake=lake, master="none", **more)
    )


def test_one_process_at_a_time_fills_a_lake(session: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "_staging-1").mkdir(parents=True)
    other = os.open(lake, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process fills the lake"):
        fill_lake([str(session)], UTP, lake)
    assert [each.name for each in lake.iterdir()] == ["_staging-1"]
    os.close(other)
    (written,) = fill_lake([str(session)], UTP, lake)
    assert [str(each) for each in lake.iterdir()] == [written.folder]


def test_every_message_is_in_the_table_of_its_type(session: Path, tmp_path: Path) -> None:
    (written,) = fill_lake([str(session)], UTP, tmp_path)
    expected = Independent(session, UTP).packets
    messages = [(e.time_ns, e.number, *m, False) for e in expected for m in e.messages]
    messages += [(e.time_ns, e.number, *m, True) for e in expected for m in e.inflated]
    names = {layout.code: layout.name for ways in FEED.layouts.values() for layout in ways}
    assert written.new
    assert written.rows == len(messages)
    found = 0
    for code, name in names.items():
        rows = rows_of(tmp_path, name)
        found += len(rows)
        mine = sorted((m[0], m[1], str(m[3]), m[5]) for m in messages if m[2] == code)
        if len({layout.name for layout in FEED.layouts[code]}) == 1:
            got = [(r["time_ns"], r["sequence"], str(r["symbol"]), r["refresh"]) for r in rows]
            assert sorted(got) == mine, name
    assert found == len(messages) == written.contents.in_tables
    assert written.contents.refresh_packets == sum(bool(e.inflated) for e in expected) > 0
    assert written.contents.lost == written.contents.raw == 0
    quotes = rows_of(tmp_path, "quote")
    assert {row["service"] for row in quotes} <= {103, 106}
    assert {str(row["day"]) for row in quotes} == {"2011-03-15"}
    assert len(list(tmp_path.rglob("slice-*"))) == 0


@pytest.mark.usefixtures("without_figures")
def test_tables_from_the_lake_are_those_from_the_captures(session: Path, tmp_path: Path) -> None:
    fill_lake([str(session)], UTP, tmp_path / "lake")
    there = outcome_of(tmp_path / "lake", UTP)
    assert table_rows(there) == table_rows(characterise([str(session)], Request(UTP)))
    asked = ops.Options(captures=(), lake=tmp_path / "lake", feed=UTP, out=tmp_path / "out")
    assert ops.run(asked) == 0
    assert (tmp_path / "out" / "report.html").exists()


def test_a_second_run_changes_nothing(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert filled(tmp_path / "lake", session) == 0
    before = files_of(tmp_path / "lake")
    # The same capture under another name is the same capture.
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(session.read_bytes())
    assert filled(tmp_path / "lake", session, copy) == 0
    assert files_of(tmp_path / "lake") == before
    assert capsys.readouterr().out.count("was there already") == 2


def test_an_interrupted_run_leaves_nothing_to_be_seen_and_the_next_makes_it_whole(
    session: Path, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stopping(function, values):  # type: ignore[no-untyped-def]
        yield function(values[0])
        raise Stopped

    with pytest.raises(Stopped):
        fill_lake([str(session)], UTP, tmp_path, stopping)
    assert not list(tmp_path.glob("capture=*"))
    assert list(tmp_path.glob("_staging-*"))
    with pytest.raises(UsageError, match="no capture of euronext-utp-md in the lake"):
        outcome_of(tmp_path, UTP)
    fill_lake([str(session)], UTP, tmp_path)
    assert not list(tmp_path.glob("_staging-*"))
    assert outcome_of(tmp_path, UTP).files[0].records > 0


def test_columns_have_real_types(captures: Path, tmp_path: Path) -> None:
    path = str(captures / "iex" / "deep-2023-10-02.pcap.gz")
    (written,) = fill_lake([path], "iex-deep", tmp_path)
    assert written.rows == 48_325
    (trade,) = tmp_path.glob("capture=*/type=trade_report/day=2023-10-02/service=1/*.parquet")
    table = pq.read_table(trade)
    assert str(table.schema.field("price").type) == "decimal128(19, 4)"
    assert str(table.schema.field("symbol").type) == "string"
    assert str(table.schema.field("event_time_ns").type) == "int64"
    row = table.to_pylist()[0]
    assert isinstance(row["price"], Decimal)
    assert 0 < row["price"] < 100_000
    assert load_feed("iex-deep").layout("trade_report").by_name["price"].price == 4


def test_prices_with_the_message_s_own_scale_stay_integers_beside_it(tmp_path: Path) -> None:
    order = FEED.encode_message("order_update", symbol_index=7, price=1234, price_scale_code=2)
    with CaptureWriter(tmp_path / "one.pcap") as writer:
        for number, at_ns in enumerate((OPENING_NS, OPENING_NS + 86_400 * 10**9)):
            packet = FEED.encode_packet(service=104, sequence=number + 1, messages=[order])
            writer.write(at_ns, LINE_A, PORT, packet)
    fill_lake([str(tmp_path / "one.pcap")], UTP, tmp_path / "lake")
    rows = rows_of(tmp_path / "lake", "order_update")
    assert [str(row["day"]) for row in rows] == ["2011-03-15", "2011-03-16"]
    assert [(row["price"], row["price_scale_code"]) for row in rows] == [(1234, 2), (1234, 2)]


def test_prices_without_a_value_are_null(tmp_path: Path) -> None:
    feed = load_feed("b3-umdf")
    messages = [
        feed.encode_message("price_band", security_id=1, low_limit_price=price)
        for price in (12_500, None)
    ]
    with CaptureWriter(tmp_path / "one.pcap") as writer:
        packet = feed.encode_packet(service=1, sequence=1, messages=messages)
        writer.write(OPENING_NS, LINE_A, PORT, packet)
    fill_lake([str(tmp_path / "one.pcap")], feed.name, tmp_path / "lake")
    rows = rows_of(tmp_path / "lake", "price_band")
    assert [row["low_limit_price"] for row in rows] == [Decimal("1.25"), None]


@pytest.fixture
def clocked(tmp_path: Path) -> Path:
    """Write two seconds: the clock, an order's end, and much else."""
    feed = load_feed("cboe-byx-pitch")
    assert feed.clock is not None
    clock = feed.layouts[feed.clock.code][0].name
    with CaptureWriter(tmp_path / "clocked.pcap") as writer:
        for number in range(200):
            message = feed.encode_message("reduce_size_short")
            if number % 100 == 0:
                message = feed.encode_message(clock, time=36_000 + number // 100)
            elif number % 100 == 50:
                message = feed.encode_message("delete_order", time_offset=5)
            packet = feed.encode_packet(sequence=number + 1, service=1, messages=[message])
            writer.write(OPENING_NS + number, LINE_A, PORT, packet)
    return tmp_path / "clocked.pcap"


def test_times_since_a_clock_message_are_known_wherever_slices_end(
    clocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "slice_bytes", lambda total, workers: 4_000)
    fill_lake([str(clocked)], "cboe-byx-pitch", tmp_path / "lake")
    first, second = (row["event_time_ns"] for row in rows_of(tmp_path / "lake", "delete_order"))
    assert second == first + 10**9


def test_times_since_a_clock_message_are_known_wherever_batches_end(clocked: Path) -> None:
    (batch,) = SliceReader(whole(look_at(str(clocked)))).batches()
    tables = MessageTables(load_feed("cboe-byx-pitch"))
    found = []
    for begin in range(0, 200, 20):
        for partition, rows in tables.batches(batch.select(numpy.arange(begin, begin + 20))):
            if partition.layout == "delete_order":
                found += rows.column("event_time_ns").to_pylist()
    first, second = found
    assert second == first + 10**9


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("i8", -(2**63), Decimal("-92233720368547758.08")),
        ("u8", 2**63, Decimal("92233720368547758.08")),
        ("u8", 10**19 - 1, Decimal("99999999999999999.99")),
        ("u8", 10**19, None),
        ("u8", 2**64 - 1, None),
        ("u4", 2**32 - 1, Decimal("42949672.95")),
    ],
)
def test_the_greatest_prices_keep_their_sign(kind: str, raw: int, expected: Any) -> None:
    made = decimals(numpy.array([raw, 150], kind), 2)
    assert made.to_pylist() == [expected, Decimal("1.50")]


def test_files_are_put_together_up_to_their_bound(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "FILE_ROWS_MAX", 300)
    (written,) = fill_lake([str(session)], UTP, tmp_path)
    parts = list(tmp_path.rglob("*.parquet"))
    files = [pq.ParquetFile(path).metadata for path in parts]
    assert sum(each.num_rows for each in files) == written.rows
    assert all(each.num_rows <= 300 or each.num_row_groups == 1 for each in files)
    assert any(path.name == "part-1.parquet" for path in parts)


def test_odd_files_are_reported_and_the_rest_is_taken(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "a.pcap").write_bytes(session.read_bytes()[:-5])
    (folder / "b.pcap").write_text("not a capture, though it says so in its name")
    zipped = bytearray(gzip.compress(session.read_bytes()))
    zipped[len(zipped) // 2 : len(zipped) // 2 + 64] = bytes(64)
    (folder / "c.pcap.gz").write_bytes(zipped)
    (folder / "d.pcap").write_bytes(b"")
    assert filled(tmp_path / "lake", folder, as_json=True) == 1
    captured = capsys.readouterr()
    written = [json.loads(line) for line in captured.out.splitlines()]
    assert [bool(each["folder"]) for each in written] == [True, True, False, False]
    assert 0 < written[1]["rows"] < written[0]["rows"]
    assert "c.pcap.gz" in captured.err
    # The tables from the lake name it again.
    named = {
        Path(each.path).name: each.problem for each in outcome_of(tmp_path / "lake", UTP).files
    }
    assert all(named[name] for name in ("a.pcap", "c.pcap.gz"))
    assert "the last record is not whole" in captured.err
    assert "is not a capture" in captured.err
    assert filled(tmp_path / "lake", folder / "a.pcap") == 1
    again = capsys.readouterr()
    assert "was there already" in again.out
    assert "the last record is not whole" in again.err


def test_datagrams_that_were_recorded_in_part_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = load_feed(UTP)
    packet = feed.encode_packet(service=104, sequence=1, messages=[feed.encode_message(230)])
    frame = frame_headers(LINE_A, PORT, "10.0.0.1", 9, len(packet)) + packet
    path = write_frames(tmp_path / "snapped.pcap", [frame[:-5], frame])
    assert filled(tmp_path / "lake", path) == 0
    shown = capsys.readouterr()
    assert "1 rows in" in shown.out
    assert "snapped.pcap: datagrams of which only the beginning was recorded: 1" in shown.err


def test_what_cannot_be_is_refused(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        fill_lake([str(session)], UTP, tmp_path / "file")
    with pytest.raises(UsageError, match="nothing to characterise"):
        ops.run(ops.Options(captures=(), feed=UTP, out=tmp_path))


def test_captures_are_told_apart_by_content_and_feed(session: Path, tmp_path: Path) -> None:
    file = look_at(str(session))
    other = tmp_path / "other.pcap"
    other.write_bytes(session.read_bytes()[:-1] + b"\x7f")
    names = {look(file, UTP).name, look(file, "iex-deep").name, look(look_at(str(other)), UTP).name}
    assert len(names) == 3
    assert quick_identity(file, UTP) == look(file, UTP).name


@pytest.mark.parametrize("size", [10, 1_000, 70_000])
def test_a_compressed_capture_is_the_one_that_it_holds(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(lake_identity, "IDENTITY_BYTES", size)
    data = session.read_bytes()
    (tmp_path / "day.pcap.gz").write_bytes(gzip.compress(data))
    sizes = [5, 900, 50_000, 80_000, len(data), len(data) + 1]
    plain = look(look_at(str(session)), UTP, sizes)
    zipped = look(look_at(str(tmp_path / "day.pcap.gz")), UTP, sizes)
    assert plain == zipped
    assert plain.size == len(data)
    for prefix, name in plain.at.items():
        (tmp_path / "part.pcap").write_bytes(data[:prefix])
        part = look(CaptureFile(str(tmp_path / "part.pcap"), "pcap", prefix), UTP)
        assert (part.name, part.begins) == (name, data[: min(512, prefix, size)].hex())


def test_a_recording_that_grew_and_was_compressed_is_in_the_lake_once(
    session: Path, tmp_path: Path
) -> None:
    data, lake, folder = session.read_bytes(), tmp_path / "lake", tmp_path / "recordings"
    folder.mkdir()
    whole = table_rows(characterise([str(session)], Request(UTP)))
    for written in (len(data) // 2, len(data) // 2, len(data)):
        (folder / "a.pcap").write_bytes(data[:written])
        fill_lake([str(folder)], UTP, lake)
        assert len(list(lake.iterdir())) == 1
    before = files_of(lake)
    assert table_rows(outcome_of(lake, UTP)) == whole
    (folder / "a.pcap").unlink()
    (folder / "a.pcap.gz").write_bytes(gzip.compress(data))
    for _ in range(2):
        (done,) = fill_lake([str(folder)], UTP, lake)
        assert not done.new
    changed = {name for name, content in files_of(lake).items() if content != before[name]}
    assert {Path(name).name for name in changed} == {"_about.json"}, "it has another name now"
    # A part of it is not known by its bytes, and reported.
    (folder / "b.pcap").write_bytes(data[: len(data) // 3])
    assert "is it a part of that?" in fill_lake([str(folder / "b.pcap")], UTP, lake)[0].problem


@pytest.mark.usefixtures("without_figures")
def test_what_no_table_can_hold_is_kept_as_bytes_or_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown types, messages too short for theirs, and packets that cannot be read."""
    order = FEED.encode_message("order_update", symbol_index=7, price=1234, price_scale_code=2)
    unknown, short = _message(999, b"what is this?"), _message(230, b"too short")
    body = order + unknown + short
    packet = FEED.encode_packet(service=104, sequence=1, body=body, count=3)
    broken = FEED.encode_packet(service=104, sequence=2, body=order, count=2)
    fine_refresh = refresh_packet(packet)
    bad_refresh = FEED.encode_packet(service=104, flags=17, body=b"no zlib", count=4, sequence=3)
    with CaptureWriter(tmp_path / "odd.pcap") as writer:
        for number, each in enumerate((packet, broken, fine_refresh, bad_refresh)):
            writer.write(OPENING_NS + number, LINE_A, PORT, each)
    assert filled(tmp_path / "lake", tmp_path / "odd.pcap") == 0
    shown = capsys.readouterr().out
    assert "4 messages of unknown types or too short: as bytes, type=unknown" in shown
    assert "6 messages in no table: 1 compressed packets not inflated, 1 packets not whole" in shown
    rows = rows_of(tmp_path / "lake", "unknown")
    assert [(row["type"], row["body"], row["refresh"], row["number"]) for row in rows] == [
        (kind, message, refresh, number)
        for refresh in (False, True)
        for kind, message, number in (("999", unknown, 1), ("230", short, 2))
    ]
    assert [row["refresh"] for row in rows_of(tmp_path / "lake", "order_update")] == [False, True]
    table = contents_table(tmp_path / "lake", UTP)
    (contents,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    del contents["file"]
    assert contents == {
        "rows": 6,
        "messages": 12,
        "in_tables": 2,
        "raw": 4,
        "refresh_packets": 1,
        "not_inflated": 1,
        "not_whole": 1,
        "in_no_table": 6,
    }
    out = tmp_path / "out"
    assert ops.run(ops.Options(captures=(), lake=tmp_path / "lake", feed=UTP, out=out)) == 0
    assert "of packets whose messages are not whole" in (out / "report.html").read_text()


def _message(code: int, body: bytes) -> bytes:
    return (len(body) + 2).to_bytes(2, "big") + code.to_bytes(2, "big") + body


def test_work_that_is_done_again_after_a_worker_died_loses_nothing(
    session: Path, tmp_path: Path
) -> None:
    def unlucky(function: Any, values: Sequence[Any]) -> Iterator[Any]:
        """Each call is made twice, as Spark does where the first answer is lost."""
        for value in values:
            function(value)
            yield function(value)

    (once,) = fill_lake([str(session)], UTP, tmp_path / "once")
    (again,) = fill_lake([str(session)], UTP, tmp_path / "again", unlucky)
    assert again.rows == once.rows
    tables = [path.name for path in Path(once.folder).glob("type=*")]
    for name in tables:
        layout = name.partition("=")[2]
        assert rows_of(tmp_path / "again", layout) == rows_of(tmp_path / "once", layout)
    assert not list(tmp_path.rglob("slice-*"))


def test_killed_at_any_moment_it_leaves_whole_captures_and_the_next_run_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.undo()  # the command cuts as it does
    rng = random.Random(seed)
    folder, lake = tmp_path / "captures", tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        write_session(folder / f"{number}.pcap", number, seconds=0.05)
    command = [sys.executable, "-m", "feedhandler", "pipeline", str(folder), "--lake", str(lake),
               "--feed", UTP, "--master", "none"]  # fmt: skip
    fill_lake([str(folder)], UTP, tmp_path / "whole")
    expected = tree_of(tmp_path / "whole")
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while process.poll() is None and not list(lake.glob("_staging-*")):
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(rng.random() / 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = tree_of(lake)
        for name in {name.split("/")[0] for name in found if name.startswith("capture=")}:
            mine = {each for each in found if each.startswith(name)}
            assert mine == {each for each in expected if each.startswith(name)}, f"seed {seed}"
    assert filled(lake, folder) == 0
    assert tree_of(lake) == expected
    there, whole = outcome_of(lake, UTP), outcome_of(tmp_path / "whole", UTP)
    assert table_rows(there) == table_rows(whole)


def tree_of(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()}


def test_a_lake_that_cannot_be_read_is_reported(session: Path, tmp_path: Path) -> None:
    (written,) = fill_lake([str(session)], UTP, tmp_path)
    (Path(written.folder) / "_about.json").write_text("{}")
    with pytest.raises(UsageError, match="has no readable account of its capture"):
        outcome_of(tmp_path, UTP)


@pytest.mark.parametrize(
    "chosen",
    [
        {"window": ("2026-11-20T09:00:00Z", None)},
        {"services": (104,)},
        {"lines": ("239.1.1.1:5001",)},
        {"packets_only": True},
        {"exact": True},
        {"captures": ("day.pcap",)},
    ],
)
def test_a_part_of_a_lake_is_refused_and_not_taken_for_the_whole(tmp_path, chosen):
    options = ops.Options(
        **{"captures": (), "feed": "euronext-utp-md", "out": tmp_path, "lake": tmp_path, **chosen}
    )
    with pytest.raises(UsageError, match="a lake is read as it is"):
        ops.run(options)


def test_captures_are_in_the_order_of_their_first_packets_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_session(tmp_path / "z.pcap", seed=5, seconds=0.02)
    monkeypatch.setattr(support, "OPENING_NS", OPENING_NS + 10**9)
    second = write_session(tmp_path / "a.pcap", seed=6, seconds=0.02)
    fill_lake([str(second), str(first)], UTP, tmp_path / "lake")
    there = outcome_of(tmp_path / "lake", UTP)
    assert [Path(account.path).name for account in there.files] == ["z.pcap", "a.pcap"]
    here = characterise([str(first), str(second)], Request(UTP))
    assert table_rows(there) == table_rows(here)
