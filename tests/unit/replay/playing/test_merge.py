"""Recordings merged by time: in order, complete, and in bounded memory. Seeds are printed."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.reading import Capture, DatagramBatch
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing import merge as module
from feedhandler.replay.playing.merge import DISORDER_NS, Merger, join_batches
from feedhandler.replay.playing.pipeline import Pipeline, first_time_ns
from feedhandler.replay.playing.selection import Selection, with_headers
from tests.support.seeds import drawn

UTP = load_feed("euronext-utp-md")
GROUP = ("239.1.1.1", 5_001)


def recorded(path: Path, times: list[int], size: int = 30) -> Capture:
    """One datagram at each time; its payload names file and index."""
    with CaptureWriter(path) as writer:
        for index, at_ns in enumerate(times):
            text = f"{path.name} {index} {at_ns}".encode()
            writer.write(at_ns, *GROUP, text.ljust(size, b"."))
    return Capture(path)


def merged(captures: list[Capture], **options: object) -> tuple[list[int], list[str]]:
    pipeline = Pipeline(captures, merge=True, **options)  # type: ignore[arg-type]
    times, names = [], []
    for batch in pipeline.batches():
        for one in batch.datagrams():
            times.append(one.time_ns)
            names.append(one.payload.decode().rstrip("."))
    return times, names


@drawn(3)
def test_a_merge_is_the_sorted_whole_whatever_the_recordings_by_seed(
    tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)
    captures, everything = [], []
    for number in range(source.randrange(1, 5)):
        now, times = source.randrange(10**9), []
        for _ in range(source.choice([0, 1, 50, 4_000, 12_000])):
            now += source.choice([0, 1_000, 200_000, 30_000_000])
            # Out of order, but within the bound.
            times.append(now - source.choice([0, 0, 0, DISORDER_NS // 2]))
        path = tmp_path / str(number)
        captures.append(recorded(path, times, size=source.choice([30, 900])))
        everything += [(at, number, f"{number} {index} {at}") for index, at in enumerate(times)]
    everything.sort(key=lambda one: (one[0], one[1]))
    times, names = merged(captures)
    assert names == [one[2] for one in everything]
    assert times == [one[0] for one in everything]


def test_recordings_that_do_not_touch_wait_for_each_other_in_little_memory(
    tmp_path: Path,
) -> None:
    morning = recorded(tmp_path / "a", list(range(0, 30_000 * 10**6, 10**6)), size=1_000)
    evening = recorded(tmp_path / "b", list(range(10**14, 10**14 + 3 * 10**10, 10**6)), size=1_000)
    merger = Merger([evening.batches(), morning.batches()])
    count = sum(len(batch) for batch in merger)
    assert count == 60_000
    assert (merger.late, merger.hurried) == (0, 0)
    assert merger.held_bytes_most < 6 << 20


def test_what_stands_too_far_out_of_order_is_counted_and_kept(tmp_path: Path) -> None:
    times = [number * 10**6 for number in range(9_000)]
    times[8_500] = 5
    first = recorded(tmp_path / "a", times)
    second = recorded(tmp_path / "b", [number * 10**6 + 1 for number in range(9_000)])
    pipeline = Pipeline([first, second], merge=True)
    found = [at for batch in pipeline.batches() for at in batch.time_ns.tolist()]
    assert len(found) == 18_000
    assert pipeline.late == 1
    assert pipeline.share_done == 1.0
    late = found.index(5)
    assert late > 8_000
    assert found[:late] == sorted(found[:late])


def test_where_memory_is_short_the_wait_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 3 << 20)
    # A microsecond apart: ten megabytes lie within the time that is waited.
    one = recorded(tmp_path / "a", list(range(0, 10_000_000, 1_000)), size=1_000)
    two = recorded(tmp_path / "b", list(range(500, 10_000_500, 1_000)), size=1_000)
    merger = Merger([one.batches(), two.batches()])
    times = np.concatenate([batch.time_ns for batch in merger])
    assert times.tolist() == list(range(0, 10_000_000, 500))
    assert merger.hurried > 0
    assert merger.held_bytes_most < 8 << 20


def test_equal_times_leave_in_the_order_of_the_recordings(tmp_path: Path) -> None:
    one, two = recorded(tmp_path / "a", [7, 7]), recorded(tmp_path / "b", [7, 7])
    assert merged([two, one])[1] == ["b 0 7", "b 1 7", "a 0 7", "a 1 7"]


def test_there_is_a_bound_to_what_is_merged() -> None:
    none: Iterator[DatagramBatch] = iter(())
    with pytest.raises(UsageError, match="65 captures are too many"):
        Merger([none] * 65)
    assert list(Merger([none])) == []
    assert list(Merger([])) == []


def test_empty_batches_are_passed_over(tmp_path: Path) -> None:
    batch = next(recorded(tmp_path / "a", [1, 2]).batches())
    merger = Merger([iter([batch.select(slice(0)), batch, batch.select(slice(0))])])
    assert [len(each) for each in merger] == [2]


def test_parts_are_chosen_before_they_are_merged_and_headers_stay(tmp_path: Path) -> None:
    captures = []
    for number in range(2):
        path = tmp_path / str(number)
        with CaptureWriter(path) as writer:
            for index in range(10):
                packet = UTP.encode_packet(sequence=index, service=101 + index % 2)
                writer.write(10**9 + index * 10 + number, *GROUP, packet)
        captures.append(Capture(path))
    assert first_time_ns(captures) == 10**9
    selection = Selection(services=(101,), until_ns=10**9 + 50)
    pipeline = Pipeline(captures, merge=True, selection=selection, feed=UTP, passes=2)
    times, numbers, payloads = [], [], []
    for batch in pipeline.batches():
        assert batch.headers is not None
        times += (batch.time_ns - 10**9).tolist()
        numbers += batch.headers.sequence.tolist()
        payloads += [one.payload for one in batch.datagrams()]
    assert times == [0, 1, 20, 21, 40, 41, 49, 50, 69, 70, 89, 90]
    assert numbers == [0, 0, 2, 2, 4, 4, 5, 5, 7, 7, 9, 9]
    assert [UTP.decode_packet(payload).sequence for payload in payloads] == numbers


def test_joined_batches_have_headers_only_where_all_have_them(tmp_path: Path) -> None:
    batch = next(recorded(tmp_path / "a", [1, 2]).batches())
    with_them = with_headers(batch, UTP.table)
    assert join_batches([batch]) is batch
    assert join_batches([batch, with_them]).headers is None
    joined = join_batches([with_them, with_them])
    assert joined.headers is not None
    assert len(joined.headers) == len(joined) == 4
    assert [one.payload for one in joined.datagrams()] == [
        one.payload for one in batch.datagrams()
    ] * 2
    frame = joined.data[joined.frame_offset[3] :][: joined.frame_length[3]].tobytes()
    assert frame == batch.data[batch.frame_offset[1] :][: batch.frame_length[1]].tobytes()
