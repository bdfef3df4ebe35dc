"""Captures cut anywhere give what they give whole; what is odd in one file stays with that file."""

import gzip
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from feedhandler.characterise import boundaries, ranges
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.files import find_captures, look_at
from feedhandler.characterise.interarrival import Interarrival
from feedhandler.characterise.job import Request, characterise, count_batch
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import (
    CaptureFile,
    Slice,
    cut_for_tallying,
    cut_into_slices,
    slice_bytes,
)
from feedhandler.characterise.tables import tables_of
from feedhandler.characterise.tally import TOTALS, Tally
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.histogram import FINE_BUCKETS
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.captures import PcapngBytes
from tests.support.characterise import (
    FEED,
    LINE_A,
    LINE_B,
    OPENING_NS,
    PORT,
    TWIN,
    table_rows,
    write_session,
)

UTP = Request("euronext-utp-md")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=5, seconds=0.3)


@pytest.mark.parametrize("size", [5_000, 33_333])
def test_a_capture_cut_into_slices_gives_what_it_gives_whole(session: Path, size: int) -> None:
    whole = characterise([str(session)], UTP)
    parts = characterise([str(session)], UTP, slice_size=size)
    assert parts.files[0].slices == -(-(session.stat().st_size - 24) // size)
    assert table_rows(parts) == table_rows(whole)
    assert parts.files[0].records == whole.files[0].records


def test_every_datagram_lies_in_one_slice(session: Path, seed: int) -> None:
    rng = random.Random(seed)
    everything = [each.payload for each in Capture(session)]
    for _ in range(5):
        size = rng.randrange(100, 60_000)
        found: list[bytes] = []
        for part in cut_into_slices([look_at(str(session))], size):
            for batch in SliceReader(part).batches():
                found += [each.payload for each in batch.datagrams()]
        assert found == everything, f"seed {seed}, slices of {size} bytes"


def decoy(records: int, second: int) -> bytes:
    """Bytes that look like records of a capture, one after the other."""
    one = second.to_bytes(4, "little") + (7).to_bytes(4, "little") + (40).to_bytes(4, "little") * 2
    return (one + bytes(40)) * records


def test_payloads_that_look_like_records_are_not_taken_for_records(tmp_path: Path) -> None:
    path = tmp_path / "decoys.pcap"
    packet = FEED.encode_packet(sequence=1, service=104, send_time=1)
    with CaptureWriter(path) as writer:
        for number in range(400):
            payload = decoy(20, OPENING_NS // 10**9) if number % 3 else packet
            writer.write(OPENING_NS + number * 1_000, LINE_A, PORT, payload)
    whole = characterise([str(path)], UTP)
    for size in (3_333,):
        parts = characterise([str(path)], UTP, slice_size=size)
        assert parts.files[0].read_again > 0
        assert table_rows(parts) == table_rows(whole)
        assert parts.files[0].datagrams == 400


def test_a_record_longer_than_a_slice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with CaptureWriter(path) as writer:
        for number in range(20):
            writer.write(OPENING_NS + number, LINE_A, PORT, bytes(5_000))
    parts = characterise([str(path)], UTP, slice_size=700)
    assert parts.files[0].datagrams == 20
    assert table_rows(parts) == table_rows(characterise([str(path)], UTP))


@pytest.mark.parametrize("size", [None, 3_000])
def test_behind_a_damaged_record_nothing_counts_however_it_is_cut(
    session: Path, tmp_path: Path, size: int | None
) -> None:
    data = bytearray(session.read_bytes())
    sizes = [int(s) + 16 for b in Capture(session).batches() for s in b.frame_length]
    at = 24 + sum(sizes[:100])
    data[at + 8 : at + 12] = b"\xff\xff\xff\x7f"
    (tmp_path / "damaged.pcap").write_bytes(data)
    outcome = characterise([str(tmp_path / "damaged.pcap")], UTP, slice_size=size)
    (file,) = outcome.files
    assert (file.records, file.problem.partition(":")[0]) == (100, f"damaged at byte {at:,}")


def damaged(data: bytes) -> bytes:
    """A stretch in the middle is another one."""
    middle = len(data) // 2
    return data[:middle] + b"\xff" * 5_000 + data[middle + 5_000 :]


@pytest.mark.parametrize("size", [None, 20_000])
def test_odd_files_are_named_and_the_rest_counts(
    session: Path, tmp_path: Path, size: int | None
) -> None:
    data = session.read_bytes()
    (tmp_path / "a-good.pcap").write_bytes(data)
    (tmp_path / "b-cut.pcap").write_bytes(data[:-7])
    (tmp_path / "c-empty.pcap").write_bytes(b"")
    (tmp_path / "d-header.pcap").write_bytes(data[:24])
    (tmp_path / "e-text.pcap").write_text("this is no capture, but a text of some length")
    (tmp_path / "f-link.pcap").write_bytes(data[:20] + b"\x69\0\0\0" + data[24:])
    (tmp_path / "g-cut.pcap.gz").write_bytes(gzip.compress(data)[:-3_000])
    other = PcapngBytes().section().interface(link=1).interface(link=105)
    other.packet(b"no ethernet", 1, 1)
    (tmp_path / "h-mixed.pcapng").write_bytes(other.raw())
    # Damaged in the middle: what inflates before it counts.
    (tmp_path / "i-damaged.pcap.gz").write_bytes(damaged(gzip.compress(data)))
    zipped = pa.compress(data, "zstd", asbytes=True)
    (tmp_path / "j-damaged.pcap.zst").write_bytes(damaged(zipped))
    (tmp_path / "k-cut.pcapng").write_bytes(other.raw()[:-9])
    (tmp_path / "l-damaged.pcapng").write_bytes(other.raw() + b"\6\0\0\0\xff\xff\xff\x7f" * 9)
    (tmp_path / "m-zeros.pcap").write_bytes(bytes(5_000))
    (tmp_path / "notes.txt").write_text("not asked for")
    outcome = characterise([str(tmp_path)], UTP, slice_size=size)
    problems = {Path(each.path).name: each.problem for each in outcome.files}
    whole = len(list(Capture(session)))
    records = {Path(each.path).name: each.records for each in outcome.files}
    assert list(problems) == sorted(problems)
    assert len(problems) == 13
    assert problems["a-good.pcap"] == problems["d-header.pcap"] == problems["h-mixed.pcapng"] == ""
    assert "the last record is not whole" in problems["b-cut.pcap"]
    assert "it ends after 0 bytes" in problems["c-empty.pcap"]
    assert "is not a capture" in problems["e-text.pcap"]
    assert "link type 105" in problems["f-link.pcap"]
    assert "cut short" in problems["g-cut.pcap.gz"]
    assert (records["a-good.pcap"], records["b-cut.pcap"]) == (whole, whole - 1)
    assert 0 < records["g-cut.pcap.gz"] < whole
    # Damaged bits may still inflate, to what is no record.
    assert "damaged" in problems["i-damaged.pcap.gz"]
    assert "the zstd stream is damaged" in problems["j-damaged.pcap.zst"]
    assert "cut short" in problems["k-cut.pcapng"]
    assert "damaged at byte" in problems["l-damaged.pcapng"]
    assert "is not a capture" in problems["m-zeros.pcap"]
    assert 0 < records["i-damaged.pcap.gz"] < whole
    assert records["j-damaged.pcap.zst"] < whole
    accounts = {Path(each.path).name: each for each in outcome.files}
    assert accounts["h-mixed.pcapng"].skipped == {"other link": 1}
    counted = sum(each.datagrams for each in outcome.files)
    foreign = int(outcome.digest.foreign.sum())
    assert int(outcome.digest.totals[:, 0].sum()) + foreign == counted


def test_nothing_readable_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "text.pcap").write_text("short")
    with pytest.raises(UsageError, match="not a capture"):
        characterise([str(tmp_path / "text.pcap")], UTP)
    for path in ("nothing.pcap", "none-*.pcap"):
        with pytest.raises(UsageError, match="no capture at"):
            find_captures([str(tmp_path / path)])
    with pytest.raises(UsageError, match="cannot read"):
        look_at(str(tmp_path / "gone.pcap"))
    with pytest.raises(PeerError, match="ends after 5 bytes"):
        look_at(str(tmp_path / "text.pcap"))


def test_patterns_and_folders_are_taken_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.pcap", "a.pcap.gz", "c.pcapng", "d.txt"):
        (tmp_path / name).write_bytes(b"")
    found = [Path(each).name for each in find_captures([str(tmp_path)])]
    assert found == ["a.pcap.gz", "b.pcap", "c.pcapng"]
    assert [Path(p).name for p in find_captures([f"{tmp_path}/[bd].*"])] == ["b.pcap", "d.txt"]
    twice = find_captures([str(tmp_path / "b.pcap"), str(tmp_path)])
    assert [Path(each).name for each in twice] == ["b.pcap", "a.pcap.gz", "c.pcapng"]


def test_captures_are_found_by_paths_that_mean_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "odd [1]"
    (folder / "day").mkdir(parents=True)
    expected = str(folder / "day" / "a.pcap")
    Path(expected).touch()
    monkeypatch.chdir(folder)
    for path in ("day/a.pcap", "./day/a.pcap", "day", "day/*.pcap", f"file://{expected}",
                 f"file://localhost{expected}"):  # fmt: skip
        assert find_captures([path]) == [expected], path
    for path in ("file://elsewhere/day/a.pcap", "file://a.pcap"):
        with pytest.raises(UsageError, match="no local file"):
            find_captures([path])


def test_remote_captures_keep_the_name_of_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalFileSystem()
    asked = []

    def from_uri(uri: str) -> tuple[object, str]:
        asked.append(uri)
        return local, ""

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=from_uri))
    (tmp_path / "a.pcap").touch()
    for path in (f"{tmp_path}", f"{tmp_path}/a.pcap", f"{tmp_path}/*.pcap"):
        found = find_captures([f"hdfs://name:8020{path}"])
        assert found == [f"hdfs://name:8020{tmp_path}/a.pcap"]
        assert find_captures(found) == found
    with pytest.raises(UsageError, match="no capture at hdfs://name:8020/none"):
        find_captures(["hdfs://name:8020/none"])
    assert set(asked) == {"hdfs://name:8020"}


def test_window_service_and_line_choose_what_is_counted(session: Path) -> None:
    middle = OPENING_NS + 150_000_000
    asked = Request(
        "euronext-utp-md",
        from_ns=middle,
        until_ns=middle + 50_000_000,
        services=(104,),
        groups=((0xEF010101, PORT),),
    )
    digest = characterise([str(session)], asked, slice_size=9_000).digest
    (channel,) = digest.channels
    assert (channel.service, channel.group) == (104, 0xEF010101)
    first, last = (digest.totals[0, TOTALS.index(name)] for name in ("first_ns", "last_ns"))
    assert middle <= first <= last < middle + 50_000_000


def test_packets_alone_are_counted_without_their_messages(session: Path) -> None:
    plain = characterise([str(session)], Request("euronext-utp-md", messages=False)).digest
    full = characterise([str(session)], UTP).digest
    assert not plain.cells
    assert np.array_equal(plain.totals[:, :4], full.totals[:, :4])


def test_slices_suit_the_workers() -> None:
    assert slice_bytes(100, 2) == 8 << 20
    assert slice_bytes(1 << 30, 4) == 1 << 26
    assert slice_bytes(1 << 40, 4) == 256 << 20
    gzipped = CaptureFile("x.gz", "gzip", 10)
    assert cut_into_slices([gzipped], 3) == [Slice(gzipped, 0, 0, 10)]


def plain(path: str, size: int) -> CaptureFile:
    return CaptureFile(path, "pcap", size, b"h" * 24)


def mebibytes(slices: Sequence[Slice]) -> list[float]:
    return [round(part.length / (1 << 20)) for part in slices]


def test_slices_that_are_only_tallied_are_each_a_workers_share_of_what_is_left() -> None:
    slices = cut_for_tallying([plain("a", (1_000 << 20) + 24)], 2)
    assert mebibytes(slices) == [500, 250, 125, 64, 61]
    assert [part.start for part in slices] == [24, *(part.end for part in slices[:-1])]
    assert [part.exact for part in slices] == [True] + [False] * 4
    assert mebibytes(cut_for_tallying([plain("a", 5_000 << 20)], 1)) == [2_048, 2_048, 904]
    assert mebibytes(cut_for_tallying([plain("a", 20 << 20)], 2)) == [10, 8, 2]
    assert max(mebibytes(cut_for_tallying([plain("a", 1_000 << 20)], 10))) == 100


def test_no_slice_spans_two_files_and_what_cannot_be_cut_stays_whole() -> None:
    gzipped = CaptureFile("b.gz", "gzip", 10)
    files = [plain("a", 300 << 20), gzipped, plain("c", 24), plain("d", 100 << 20)]
    slices = cut_for_tallying(files, 2)
    assert [part.number for part in slices] == list(range(len(slices)))
    assert [part.file.path for part in slices] == ["a", "a", "b.gz", "c", "d", "d"]
    assert mebibytes(slices) == [200, 100, 0, 0, 50, 50]
    assert slices[2] == Slice(gzipped, 2, 0, 10)
    assert slices[3] == Slice(files[2], 3, 24, 24)


# -- the compiled modules and their interpreted twins --------------------------------------------


def columns_of(tally: Any, path: Path) -> dict[str, np.ndarray]:
    for batch in Capture(path).batches():
        count_batch(tally, batch)
    return tally.columns()  # type: ignore[no-any-return]


def test_compiled_and_interpreted_tallies_agree(tmp_path: Path) -> None:
    path = write_session(tmp_path / "short.pcap", seed=3, seconds=0.02)
    compiled = columns_of(Tally(FEED.table), path)
    twin = columns_of(TWIN.tally.Tally(TWIN.table), path)
    assert compiled.keys() == twin.keys()
    for name, column in compiled.items():
        assert np.array_equal(column, twin[name]), name


def test_compiled_and_interpreted_boundaries_agree(session: Path) -> None:
    file = look_at(str(session))
    data = session.read_bytes()[:8_000]
    for start in range(24, 3_000, 101):
        asked = (data, start, 4_000, file.big_endian, file.ticks, file.second)
        assert boundaries.find_boundary(*asked) == TWIN.boundaries.find_boundary(*asked)
    walked = boundaries.walk(data, 24, 5_000, False)
    assert walked == TWIN.boundaries.walk(data, 24, 5_000, False) >= 5_000
    for module in (boundaries, TWIN.boundaries):
        assert module.find_boundary(bytes(500), 0, 500, False, 10**9, 0) == -1
        with pytest.raises(IndexError):
            module.walk(data, 0, len(data) + 1, False)
        with pytest.raises(IndexError):
            module.find_boundary(data, -1, 10, False, 10**9, 0)


Messages = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 3_000_000)), max_size=60
)


@given(messages=Messages, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_stretches_put_together_are_the_window_function_of_the_whole(
    messages: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    """Times may go back, stretches may be empty; a type is a symbol's own number here."""
    last: dict[tuple[int, int], int] = {}
    expected: list[int] = []
    for channel, symbol, at_ns in messages:
        if (channel, symbol) in last:
            expected.append(at_ns - last[channel, symbol])
        last[channel, symbol] = at_ns
    digest = Digest()
    bounds = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
    for start, end in itertools.pairwise(bounds):
        digest.add(_stretch(messages[start:end]))
    found = [cell.interarrival for cell in digest.cells.values()]
    assert sum(each.count for each in found) == sum(since >= 0 for since in expected)
    assert sum(each.backwards for each in found) == sum(since < 0 for since in expected)
    assert sum(each.within_1ms for each in found) == sum(0 <= s <= 10**6 for s in expected)
    whole = Interarrival()
    for channel, symbol, at_ns in messages:
        whole.note(0, channel, symbol, at_ns)
    buckets = sum((each.buckets for each in found), np.zeros(FINE_BUCKETS, np.int64))
    assert np.array_equal(buckets, np.asarray(whole.buckets)[0])


def _stretch(messages: list[tuple[int, int, int]]) -> dict[str, np.ndarray]:
    """Return the columns of a tally that has counted these messages, a packet each."""
    tally = Tally(FEED.table)
    data, starts, rows = b"", [], []
    for channel, symbol, at_ns in messages:
        message = FEED.encode_message("trade_cancel", symbol_index=symbol)
        packet = FEED.encode_packet(sequence=0, service=104, messages=[message])
        starts.append((len(data), len(packet)))
        rows.append((at_ns, channel))
        data += packet
    columns = np.array(starts, np.uint32).reshape(-1, 2).T.copy()
    times = np.array([row[0] for row in rows], np.int64)
    groups = np.array([row[1] for row in rows], np.uint32)
    ports = np.zeros(len(rows), np.uint16)
    tally.count(
        np.frombuffer(data, np.uint8), columns[0], columns[1], columns[1], times, groups, ports
    )
    return tally.columns()


def test_many_symbols_find_their_rows_again() -> None:
    for module in (Interarrival, TWIN.interarrival.Interarrival):
        table = module()
        for turn in range(2):
            for symbol in range(3_000):
                table.note(symbol % 20, symbol % 3, symbol * 2**40, turn * 1_000)
        assert table.rows == 3_000
        assert sum(table.columns()["counts"].tolist()) == 6_000
        assert int(table.histograms()["count"].sum()) == 3_000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=20))
def test_ranges_are_sets(given_ranges: list[tuple[int, int]]) -> None:
    rows = [(first, first + size) for first, size in given_ranges if size]
    numbers = {number for first, after in rows for number in range(first, after)}
    made = ranges.normal(np.array(rows, np.int64).reshape(-1, 2))
    assert {n for first, after in made.tolist() for n in range(first, after)} == numbers
    assert ranges.count(made) == len(numbers)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(made))
    missing = [n for n in range(40) if n not in numbers]
    assert ranges.gaps(made, 0, 40) == sum(n - 1 not in missing for n in missing)


def test_copies_on_either_side_of_a_cut_are_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.pcap"
    with CaptureWriter(path) as writer:
        for number in range(1, 200):
            packet = FEED.encode_packet(sequence=number, service=104, send_time=1)
            for late, group in enumerate((LINE_A, LINE_B)):
                writer.write(OPENING_NS + number * 10_000 + late * 500, group, PORT, packet)
    outcome = characterise([str(path)], UTP, slice_size=150)
    assert outcome.files[0].slices > 150
    skew = next(each for each in tables_of(outcome, FEED, "UTC") if each.name == "skew")
    assert skew.rows[0][:5] == [104, "A", "B", 199, 500]


def test_copies_far_apart_are_pairs_wherever_the_capture_is_cut(tmp_path: Path) -> None:
    """A line recorded behind the other one, as of two recorders whose files are put together."""
    path = tmp_path / "behind.pcap"
    with CaptureWriter(path) as writer:
        for late, group in enumerate((LINE_A, LINE_B)):
            for number in range(1, 9_001):
                packet = FEED.encode_packet(sequence=number, service=104, send_time=1)
                writer.write(OPENING_NS + number * 1_000 + late * 500, group, PORT, packet)
    found = []
    for size in (None, 300_000, 700_000):
        outcome = characterise([str(path)], UTP, slice_size=size)
        skew = next(each for each in tables_of(outcome, FEED, "UTC") if each.name == "skew")
        found.append(skew.rows)
    assert found[0] == found[1] == found[2]
    assert [row[:5] for row in found[0]] == [[104, "A", "B", 9_000, 500]]
