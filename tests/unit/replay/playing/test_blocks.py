"""Blocks: what a sender gets of chunks, with what faults hold back, and a new beginning."""

import dataclasses

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing import blocks as module
from feedhandler.replay.playing.blocks import Block, all_blocks, make_preparer
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.pace import Pace, parse_pace
from feedhandler.replay.playing.sender_lines import MulticastLine, NumberedLines, number_lines
from feedhandler.replay.playing.source import Chunk, chunks_of

A, B = ("239.1.1.1", 5_001), ("239.1.2.1", 5_001)


def chunk(first: int, count: int, line: int | None = None) -> Chunk:
    """Datagrams of four bytes, each its number, a microsecond apart."""
    numbers = np.arange(first, first + count)
    return Chunk(
        numbers.astype(">u4").view(np.uint8),
        (4 * np.arange(count)).astype(np.uint32),
        np.full(count, 4, np.uint32),
        numbers.astype(np.int64) * 1_000,
        np.zeros(count, np.int64),
        None if line is None else np.full(count, line, np.int64),
        0.5,
    )


def sent(block: Block) -> list[tuple[int, int, int]]:
    """(number, destination, due) of each send."""
    buffer_of, offsets, lengths, destinations, due_ns = block.udp_columns()
    assert set(lengths.tolist()) <= {4}
    numbers = [
        int(block.buffers[buffer][offset : offset + 4].view(">u4")[0])
        for buffer, offset in zip(buffer_of.tolist(), offsets.tolist(), strict=True)
    ]
    return list(zip(numbers, destinations.tolist(), due_ns.tolist(), strict=True))


def test_a_block_has_the_sends_of_all_lines_in_the_order_of_their_times() -> None:
    lines = [MulticastLine("A", A), MulticastLine("B", B, faults=LineFaults(delay_us=1))]
    preparer = make_preparer(lines, Pace())
    preparer.begin()
    first = preparer.block(chunk(0, 3))
    assert sent(first) == [(0, 0, 0), (0, 1, 1_000), (1, 0, 1_000), (1, 1, 2_000), (2, 0, 2_000)]
    # What was held back comes with a later block, out of an earlier chunk's bytes.
    second = preparer.block(chunk(3, 1))
    assert sent(second) == [(2, 1, 3_000), (3, 0, 3_000)]
    assert len(second.chunks) == 2
    assert sent(preparer.last_block()) == [(3, 1, 4_000)]
    assert (preparer.datagrams, preparer.unmapped) == (4, 0)
    assert sent(preparer.last_block()) == []


def test_what_is_for_one_line_alone_goes_there_and_what_is_for_none_is_counted() -> None:
    preparer = make_preparer([MulticastLine("A", A), MulticastLine("B", B)], Pace())
    preparer.begin()
    assert [one[1] for one in sent(preparer.block(chunk(0, 2, line=1)))] == [1, 1]
    unmapped = dataclasses.replace(chunk(2, 2), channel=np.array([-1, 0]))
    assert [one[:2] for one in sent(preparer.block(unmapped))] == [(3, 0), (3, 1)]
    assert preparer.unmapped == 1


def test_a_new_beginning_is_due_at_once_and_forgets_what_was_held_back() -> None:
    lines = [MulticastLine("A", A, faults=LineFaults(delay_us=5, reorder=0.5, reorder_distance=3))]
    preparer = make_preparer(lines, parse_pace("1000000pps"), seed=1)
    preparer.begin()
    preparer.block(chunk(0, 10))
    preparer.begin()
    blocks = [preparer.block(chunk(500, 4)), preparer.last_block()]
    found = [one for block in blocks for one in sent(block)]
    assert sorted(number for number, _, _ in found) == [500, 501, 502, 503]
    assert min(due for _, _, due in found) == 5_000


def test_an_empty_chunk_is_an_empty_block() -> None:
    preparer = make_preparer([MulticastLine("A", A)], Pace())
    blocks = list(all_blocks(preparer, [chunk(0, 0)]))
    assert [len(block) for block in blocks] == [0, 0]
    assert blocks[0].udp_columns()[1].dtype == np.uint32


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 100)
    lines = [MulticastLine("A", A, faults=LineFaults(delay_us=1_000, jitter_us=1_000))]
    preparer = make_preparer(lines, Pace())
    preparer.begin()
    preparer.block(chunk(0, 20))
    with pytest.raises(UsageError, match="lower the delay"):
        preparer.block(chunk(20, 20))


def test_delays_want_a_schedule_and_frames_want_a_capture() -> None:
    lines = [MulticastLine("A", A, faults=LineFaults(delay_us=1))]
    with pytest.raises(UsageError, match="no time to delay"):
        make_preparer(lines, parse_pace("max"))
    preparer = make_preparer([MulticastLine("A", A)], Pace())
    preparer.begin()
    (some,) = chunks_of([(0, b"abcd")], None, [], ["A"])
    with pytest.raises(UsageError, match="only captures have frames"):
        preparer.block(some).gather_batch("frame_offset")


def test_destinations_are_numbered_without_opening_anything() -> None:
    lines = [MulticastLine("A", {1: A, 2: B}), MulticastLine("B", {2: A})]
    numbered = number_lines(lines)
    assert isinstance(numbered, NumberedLines)
    assert numbered.destinations == [(0, *A), (0, *B), (1, *A)]
    many = {number: ("239.1.1.1", 1 + number % 60_000) for number in range(65_535)}
    with pytest.raises(UsageError, match="65,535 groups and ports are too many"):
        number_lines([MulticastLine("A", many)])
