"""Items read back from segments: by parts and whole, by both twins, from good and damaged bytes."""

import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedhandler.journal import reading, scatter
from feedhandler.journal.files import Files
from feedhandler.journal.segments import BlockIdentity, build_segment
from tests.support.simulated_disk import SimulatedDisk
from tests.support.twins import either, twins_of

QUEUE_ID = b"a queue's number"
PATH = "block"

twin, parts = either(twins_of(reading)), either(twins_of(scatter))


class Written:
    """Two segments one behind the other in a file of the simulated disk, as a block knows them."""

    def __init__(self, first: list[bytes], second: list[bytes], marks: int = 0) -> None:
        identity = BlockIdentity(QUEUE_ID, 1, 1)
        statuses = [(1, 1, 1)] * marks
        self.disk = SimulatedDisk()
        self.disk.create(PATH)
        self.contents = [*first, *second]
        at, chain, self.spans = 0, 0, {}
        for sequence, contents in ((1, first), (2, second)):
            first_id = 1 if sequence == 1 else len(first) + 1
            data, chain = build_segment(
                identity, sequence, 7, chain, first_id, contents, statuses, bytearray()
            )
            self.disk.pwrite(PATH, data, at)
            for number in range(first_id, first_id + len(contents)):
                self.spans[number] = (at, at + len(data))
            at += len(data)
        self.length = at
        self.block = SimpleNamespace(
            path=PATH, number=1, incarnation=1, identity=identity, span_of=self.spans.__getitem__
        )

    def expected(self, numbers: list[int]) -> list[tuple[int, bytes]]:
        return [(number, self.contents[number - 1]) for number in numbers]


def pairs(items: list) -> list[tuple[int, bytes]]:
    return [(item.id, item.content) for item in items]


def test_any_items_come_back_however_they_are_asked_for(twin, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        groups = [
            [draw.randbytes(draw.choice((0, 1, 7, 500, 5000))) for _ in range(draw.randint(1, 400))]
            for _ in range(2)
        ]
        written = Written(*groups, marks=draw.choice((0, 3, 2000)))
        reader = twin.SegmentReader(written.disk)
        everything = list(range(1, len(written.contents) + 1))
        for _ in range(8):
            few = draw.choice((1, 3, 20, len(everything)))
            numbers = sorted(draw.sample(everything, min(few, len(everything))))
            assert pairs(reader.items(written.block, numbers)) == written.expected(numbers)
            one = draw.choice(everything)
            assert reader.content(written.block, one) == written.contents[one - 1]


def test_what_is_damaged_costs_what_it_hit(twin) -> None:
    draw = random.Random(5)
    contents = [draw.randbytes(50) for _ in range(20)]
    numbers = list(range(1, 31))
    costs = set()
    for bit in range(0, 8 * 2048, 23):
        written = Written(contents, contents[:10])
        written.disk.decay(PATH, bit)
        found = pairs(twin.SegmentReader(written.disk).items(written.block, numbers))
        lost = [pair for pair in written.expected(numbers) if pair not in found]
        assert len(found) + len(lost) == len(numbers)
        costs.add(len(lost))
        one = [
            number
            for number in numbers
            if twin.SegmentReader(written.disk).content(written.block, number) is not None
        ]
        assert [number for number, _ in found] == one, bit
    assert costs == {0, 1}


def test_of_a_file_that_ends_before_nothing_comes(twin) -> None:
    written = Written([b"x" * 3000] * 10, [b"y"] * 9)
    reader = twin.SegmentReader(written.disk)
    written.disk.cut(PATH, 20_000)
    assert reader.items(written.block, list(range(1, 11))) == []
    assert reader.items(written.block, list(range(11, 20))) == []


def test_parts_of_a_file_are_read_as_they_are_asked_for(parts, tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(100_000)
    path.write_bytes(data)
    file = os.open(path, os.O_RDONLY)
    assert parts.read_parts(file, [10, 0, 1, 70_000], 5) == [
        data[5:15], b"", data[15:16], data[16:70_016],
    ]  # fmt: skip
    assert parts.read_parts(file, [], 5) == []
    assert parts.read_parts(file, [3] * parts.PARTS_MAX, 99_000)[-1] == data[99_765:99_768]
    assert parts.read_parts(file, [50, 51], 99_900) is None
    assert parts.read_parts(file, [1], 200_000) is None
    with pytest.raises(ValueError, match="parts"):
        parts.read_parts(file, [1] * (parts.PARTS_MAX + 1), 0)
    os.close(file)
    with pytest.raises(OSError, match="Bad file"):
        parts.read_parts(file, [1], 0)


def test_real_and_simulated_files_read_the_same_parts(tmp_path: Path) -> None:
    disk, files = SimulatedDisk(), Files()
    path = str(tmp_path / "file")
    for each in (disk, files):
        each.create(path)
        each.pwrite(path, memoryview(b"abcdefgh"), 0)
        assert each.pread_parts(path, [2, 0, 3], 1) == [b"bc", b"", b"def"]
        assert each.pread_parts(path, [2, 6], 1) is None
    files.close()
