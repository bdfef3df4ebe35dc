"""The queue's records: where each field stands, and what becomes of bytes that are not right."""

import struct

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.journal import layout
from feedhandler.journal.layout import (
    PAGE,
    BlockEntry,
    BlockHeader,
    Checkpoint,
    Control,
    Geometry,
    Reading,
    Roll,
    Status,
)
from feedhandler.journal.tombstone_index import TombstoneIndex, pack_record, parse_records, runs_of
from tests.support.journal import of_later_version

QUEUE = bytes(range(16))
GEOMETRY = Geometry(64 << 10)
CONTROL = Control(QUEUE.hex(), 64 << 10, 7, (BlockEntry(1, "block-000001.queue"),))
HEADER = BlockHeader(QUEUE, 3, GEOMETRY, 7)
CHECKPOINT = Checkpoint(
    QUEUE, 3, serial=9, incarnation=4, stamp_ns=11, first_id=100, next_id=105, end=5 * PAGE,
    first_stamp_ns=1, last_stamp_ns=2, last_sequence=77, as_of=77,
    roll=Roll(76, 4, 4 * PAGE, 0xABCD), ordinals=[0, 3], offsets=[3 * PAGE, 4 * PAGE],
    statuses=bytes([0, 1, 2, 3, 0]),
)  # fmt: skip


def flipped(data: bytes, at: int) -> bytes:
    """`data` with one bit of byte `at` flipped."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def test_records_have_the_sizes_that_the_format_document_says() -> None:
    assert layout.CONTROL.size == 20
    assert layout.HEADER.size == 96
    assert layout.CHECKPOINT.size == 136


def test_a_block_is_header_two_checkpoints_data_and_tail() -> None:
    geometry = Geometry(64 << 20)
    first, second = geometry.checkpoints
    assert first == PAGE
    assert second - first == geometry.checkpoint_bytes
    assert geometry.checkpoint_bytes >= 136 + 8 * 16384 + geometry.items_max + 4
    assert geometry.data == second + geometry.checkpoint_bytes
    assert geometry.tail == (64 << 20) - PAGE
    assert geometry.items_max == 524_288


@pytest.mark.parametrize("size", [0, PAGE, (64 << 10) + 1, (1 << 32) + PAGE])
def test_a_block_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 4,096"):
        Geometry(size)


def test_a_control_file_says_what_was_written() -> None:
    data = layout.pack_control(CONTROL)
    assert data[:8] == b"FHQCTRL\0"
    assert layout.parse_control(data + b"more") == (Reading.GOOD, CONTROL)


def test_a_control_file_that_is_not_right_is_not_believed() -> None:
    data = layout.pack_control(CONTROL)
    for at in range(len(data)):
        reading, control = layout.parse_control(flipped(data, at))
        assert control is None, at
        assert reading is (Reading.FOREIGN if at < 8 else Reading.DAMAGED), at
    assert layout.parse_control(data[:10])[0] is Reading.DAMAGED
    assert layout.parse_control(data[:-1])[0] is Reading.DAMAGED
    assert layout.parse_control(b"x" * 30)[0] is Reading.FOREIGN
    assert layout.parse_control(of_later_version(data))[0] is Reading.NEWER


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'{"queue_id":"zz","block_bytes":65536,"created_ns":1,"blocks":[]}',
             b'{"queue_id":"00","block_bytes":1,"created_ns":1,"blocks":[]}'],
)  # fmt: skip
def test_a_control_file_without_sense_is_damaged(body: bytes) -> None:
    head = layout.CONTROL.pack(b"FHQCTRL\0", 1, 1, len(body), 0)[:16]
    data = head + struct.pack("<I", layout.crc32c(body, layout.crc32c(head))) + body
    assert layout.parse_control(data) == (Reading.DAMAGED, None)


@pytest.mark.parametrize("magic", [layout.HEADER_MAGIC, layout.TAIL_MAGIC])
def test_header_and_tail_are_read_back(magic: bytes) -> None:
    page = layout.pack_header(HEADER, magic)
    assert len(page) == PAGE
    assert page[:8] == magic
    assert struct.unpack_from("<I", page, 12) == (3,)
    assert page[16:32] == QUEUE
    assert struct.unpack_from("<7Q", page, 32) == (
        64 << 10, PAGE, 2 * PAGE, PAGE, 3 * PAGE, 15 * PAGE, 7,
    )  # fmt: skip
    assert layout.parse_header(page, QUEUE, 3, magic) == (Reading.GOOD, HEADER)


def test_a_header_that_is_not_right_is_told_apart() -> None:
    page = layout.pack_header(HEADER)
    assert layout.parse_header(bytes(PAGE), QUEUE, 3)[0] is Reading.BLANK
    assert layout.parse_header(page[:50], QUEUE, 3)[0] is Reading.DAMAGED
    assert layout.parse_header(page, QUEUE, 4)[0] is Reading.FOREIGN
    assert layout.parse_header(page, bytes(16), 3)[0] is Reading.FOREIGN
    assert layout.parse_header(page, QUEUE, 3, layout.TAIL_MAGIC)[0] is Reading.DAMAGED
    for at in range(layout.HEADER.size):
        assert layout.parse_header(flipped(page, at), QUEUE, 3)[0] is Reading.DAMAGED, at


def resealed(page: bytes, at: int, value: bytes) -> bytes:
    """A header page with other bytes and the CRC they want."""
    head = page[:at] + value + page[at + len(value) :]
    head = head[: layout.HEADER.size - 4]
    return (head + struct.pack("<I", layout.crc32c(head))).ljust(PAGE, b"\0")


def test_a_header_with_a_good_crc_is_still_held_against_the_geometry() -> None:
    page = layout.pack_header(HEADER)
    assert layout.parse_header(resealed(page, 10, b"\3\0"), QUEUE, 3)[0] is Reading.NEWER
    assert layout.parse_header(resealed(page, 32, bytes(8)), QUEUE, 3)[0] is Reading.DAMAGED
    assert layout.parse_header(resealed(page, 40, bytes(8)), QUEUE, 3)[0] is Reading.DAMAGED
    assert layout.parse_header(resealed(page, 88, bytes(4)), QUEUE, 3)[0] is Reading.DAMAGED


def test_a_checkpoint_is_read_back() -> None:
    data = layout.pack_checkpoint(CHECKPOINT)
    assert len(data) == PAGE
    assert layout.parse_checkpoint(data, QUEUE, 3, GEOMETRY) == (Reading.GOOD, CHECKPOINT)


def test_a_checkpoint_says_by_its_head_how_long_it_is() -> None:
    data = layout.pack_checkpoint(CHECKPOINT)
    assert layout.checkpoint_bytes(data[: layout.CHECKPOINT.size]) == 136 + 2 * 8 + 5 + 4
    assert layout.checkpoint_bytes(b"") == layout.CHECKPOINT.size


def test_a_checkpoint_with_any_bit_flipped_does_not_verify() -> None:
    data = layout.pack_checkpoint(CHECKPOINT)
    used = layout.CHECKPOINT.size + 16 + 5 + 4
    for at in range(used):
        assert layout.parse_checkpoint(flipped(data, at), QUEUE, 3, GEOMETRY)[0] is Reading.DAMAGED


def test_a_checkpoint_that_is_not_ours_or_not_there_is_told_apart() -> None:
    data = layout.pack_checkpoint(CHECKPOINT)
    assert layout.parse_checkpoint(bytes(PAGE), QUEUE, 3, GEOMETRY)[0] is Reading.BLANK
    assert layout.parse_checkpoint(data[:90], QUEUE, 3, GEOMETRY)[0] is Reading.DAMAGED
    assert layout.parse_checkpoint(data, QUEUE, 4, GEOMETRY)[0] is Reading.FOREIGN
    end = layout.CHECKPOINT.size + 16 + 5
    newer = data[:4] + b"\3\0" + data[6:end]
    newer += struct.pack("<I", layout.crc32c(newer))
    assert layout.parse_checkpoint(newer, QUEUE, 3, GEOMETRY)[0] is Reading.NEWER


def test_ended_items_are_runs_of_ids_and_come_back_from_the_file() -> None:
    runs = runs_of(10, bytes([1, 1, 2, 1]))
    assert runs == [(10, 2, 1), (12, 1, 2), (13, 1, 1)]
    data = pack_record(QUEUE, 50, runs) + bytes(PAGE) + pack_record(QUEUE, 60, [(14, 5, 3)])
    assert list(parse_records(data, QUEUE)) == [(50, runs), (60, [(14, 5, 3)])]
    assert list(parse_records(data, bytes(16))) == []
    assert list(parse_records(flipped(data, 60), QUEUE)) == [(60, [(14, 5, 3)])]
    assert list(parse_records(data[:70], QUEUE)) == []


def test_what_ended_before_the_day_is_forgotten_and_the_file_made_shorter() -> None:
    old, new = pack_record(QUEUE, 50, [(10, 2, 1)]), pack_record(QUEUE, 60, [(12, 2, 2)])
    ended = TombstoneIndex(QUEUE)
    assert ended.load(old + new, 55) == new
    assert ended.load(new, 55) is None
    assert len(ended) == 1
    assert ended.status(13) is Status.CANCELLED
    assert ended.status(11) is None
    assert ended.status(14) is None


def test_a_block_recorded_twice_counts_once_and_runs_are_bounded(monkeypatch) -> None:
    ended = TombstoneIndex(QUEUE)
    ended.record(50, [(10, 2, Status.DELIVERED)])
    ended.record(50, [(10, 2, Status.DELIVERED)])
    ended.add(60, [(20, 1, Status.DELIVERED), (21, 1, Status.EXPIRED)])
    assert list(ended.delivered_since(55)) == [20]
    assert list(ended.delivered_since(0)) == [10, 11, 20]
    monkeypatch.setattr("feedhandler.journal.tombstone_index.RUNS_MAX", 2)
    ended.add(70, [(30, 1, Status.DELIVERED)])
    assert ended.status(10) is None
    assert ended.status(30) is Status.DELIVERED
