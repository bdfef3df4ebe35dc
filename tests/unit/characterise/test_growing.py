"""Captures that are being written are read to their last whole record, each record once."""

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedhandler.characterise.following import Following
from feedhandler.characterise.growing import Offset, news, reach
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.reading import SliceReader
from feedhandler.codecs.errors import UsageError
from feedhandler.ops.following import _storing
from feedhandler.replay.captures.reading import Capture
from tests.support.captures import pieces_of, write_frames
from tests.support.characterise import FEED, Independent, table_rows, write_session

pyspark = pytest.importorskip("pyspark")

from feedhandler.characterise.source import (  # noqa: E402
    FeedhandlerStreamReader,
    blob_of_row,
    understand,
)


def payloads(start: Offset, end: Offset, size: int) -> list[bytes]:
    return [
        each.payload
        for part in news(start, end, size)
        for batch in SliceReader(part).batches()
        for each in batch.datagrams()
    ]


def test_whatever_is_written_when_each_record_comes_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = write_session(tmp_path / "whole", 4, seconds=0.1).read_bytes()
    expected = [each.payload for each in Capture(tmp_path / "whole")]
    folder = tmp_path / "live"
    folder.mkdir()
    growing, found, offset, written = folder / "a.pcap", [], Offset(), 0
    while written < len(whole):
        written = min(len(whole), written + rng.randrange(1, 20_000))
        growing.write_bytes(whole[:written])
        latest = reach((str(folder),), offset)
        assert latest.get(str(growing), 0) <= written
        found += payloads(offset, latest, rng.randrange(500, 9_000))
        assert reach((str(folder),), latest) == latest
        offset = latest
    assert found == expected, f"seed {seed}"


def test_compressed_recordings_come_once_a_later_one_follows(tmp_path: Path) -> None:
    first = write_session(tmp_path / "a.pcap.gz", 1, seconds=0.02)
    paths = (str(tmp_path),)
    assert reach(paths, {}) == {}
    second = write_session(tmp_path / "b.pcap", 2, seconds=0.02)
    (tmp_path / "c.pcap").write_bytes(b"\xd4\xc3")  # its header is being written
    offset = reach(paths, {})
    assert offset == {str(first): first.stat().st_size, str(second): second.stat().st_size}
    expected = [each.payload for path in (first, second) for each in Capture(path)]
    assert payloads({}, offset, 10**6) == expected
    assert payloads(offset, offset, 10**6) == []


def test_a_folder_that_is_not_there_yet_has_nothing_and_a_file_that_went_is_reported(
    tmp_path: Path,
) -> None:
    assert reach((str(tmp_path / "later"),), {"x": 7}) == {"x": 7}
    with pytest.raises(UsageError, match="cannot read"):
        news({}, {str(tmp_path / "gone.pcap"): 100}, 10**6)


def test_the_stream_reader_gives_the_rows_of_a_batch_and_the_same_ones_again(
    tmp_path: Path,
) -> None:
    path = write_session(tmp_path / "a.pcap", 4, seconds=0.05)
    asked = understand({"feed": "euronext-utp-md", "path": str(tmp_path), "slice_bytes": "20000"})
    reader = FeedhandlerStreamReader(asked)
    start, end = reader.initialOffset(), reader.latestOffset()
    batches = []
    for _ in range(2):
        parts = reader.partitions(start, end)
        assert len(parts) > 1
        batches.append([row for p in parts for b in reader.read(p) for row in b.to_pylist()])
    assert batches[0] == batches[1]
    assert len(batches[0]) == len(Independent(path, "euronext-utp-md").packets)
    reader.commit(end)


def test_a_query_for_what_is_there_now_ends_there_in_steps_that_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedhandler.characterise.source.STEP_BYTES_MAX", 20_000)
    path = write_session(tmp_path / "a.pcap", 4, seconds=0.05)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    asked = understand({"feed": "euronext-utp-md", "path": str(tmp_path), "rows": "tallies"})
    reader = FeedhandlerStreamReader(asked)
    reader.prepareForTriggerAvailableNow()
    offsets = [reader.initialOffset()]
    while not offsets[1:] or offsets[-1] != offsets[-2]:
        offsets.append(reader.latestOffset(offsets[-1]))
        path.write_bytes(data)
    whole = reach((str(path),), {})[str(path)]
    assert len(data) // 2 - 2_000 < offsets[-1][str(path)] <= len(data) // 2 < whole
    assert len(offsets) > 4
    blobs = [
        blob_of_row(SimpleNamespace(**row))
        for start, end in itertools.pairwise(offsets)
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert [each.start for each in blobs][1:] == [each.report.ended for each in blobs][:-1]
    packets = sum(each.columns["totals"][:, 0].sum() for each in blobs)
    halved = tmp_path / "half.pcap"
    halved.write_bytes(data[: offsets[-1][str(path)]])
    assert packets == len(Independent(halved, "euronext-utp-md").packets)


def test_pieces_of_a_datagram_that_workers_read_apart_are_put_together(tmp_path: Path) -> None:
    """A worker does not have the pieces that wait before its slice."""
    frames = []
    for number in range(20):
        messages = [FEED.encode_message(230, symbol_index=each) for each in range(40)]
        packet = FEED.encode_packet(service=3, sequence=number + 1, messages=messages)
        frames += pieces_of(packet, 296, number)
    path = write_frames(tmp_path / "a.pcap", frames, step_ns=1_000_000)
    data = path.read_bytes()
    options = {"feed": FEED.name, "path": str(path), "rows": "tallies", "slice_bytes": "2000"}
    reader = FeedhandlerStreamReader(understand(options))
    request = Request(FEED.name)
    following = Following(tmp_path / "state", b"asked")
    session = SimpleNamespace(following=following, request=request, report_batch=lambda: None)
    store = _storing(session, [])  # type: ignore[arg-type]

    offset = reader.initialOffset()
    for number, written in enumerate((len(data) // 2, len(data))):
        path.write_bytes(data[:written])
        start, offset = offset, reader.latestOffset(offset)
        parts = reader.partitions(start, offset)
        assert len(parts) > 5
        rows = [
            SimpleNamespace(**row)
            for part in reversed(parts)
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        for _ in range(2):  # it is done again after a failure
            store(SimpleNamespace(collect=lambda rows=rows: rows), number)
    outcome, whole = following.outcome([str(path)]), characterise([str(path)], request)
    assert whole.files[0].datagrams == 20
    assert outcome.files[0].datagrams == 20
    assert table_rows(outcome) == table_rows(whole)
