"""Repair: control file, headers and tails are made anew from what verifies, and nothing else is."""

import pytest

from feedhandler.codecs.errors import PeerError
from feedhandler.journal.files import Create, Write, carry_out
from feedhandler.journal.repair import repair
from tests.support.journal import FOLDER, Queue, of_later_version


@pytest.fixture
def queue() -> Queue:
    """An empty one."""
    return Queue()


def repaired(queue: Queue, *more: tuple[str, int]) -> list[str]:
    """Run `repair` on the queue's own blocks and others; return a line for each thing done."""
    blocks = [(block.path, 64 << 10) for block in queue.store.blocks]
    return repair(queue.disk, FOLDER, [*blocks, *more])


def test_repair_leaves_what_is_right_alone(queue: Queue) -> None:
    calls = queue.disk.calls
    assert repaired(queue) == []
    assert queue.disk.calls == calls


def test_repair_passes_over_what_is_no_block_or_is_missing(queue: Queue) -> None:
    carry_out(queue.disk, [Create("/queue/block-9.queue", 100)])
    queue.disk.remove(queue.store.blocks[1].path)
    assert repaired(queue) == []
    queue.disk.remove(f"{FOLDER}/control")
    found = [(queue.store.blocks[0].path, 64 << 10), ("/queue/block-9.queue", 100)]
    assert repair(queue.disk, FOLDER, found) == ["control file made from 1 blocks"]


def test_repair_takes_a_block_by_its_tail_and_not_if_it_was_cut(queue: Queue) -> None:
    queue.disk.remove(f"{FOLDER}/control")
    first, second = (block.path for block in queue.store.blocks)
    queue.disk.decay(first, 8 * 20)
    found = [(first, 64 << 10), (second, 8192)]
    assert repair(queue.disk, FOLDER, found) == [
        "control file made from 1 blocks", f"{first}: header written again",
    ]  # fmt: skip


def test_repair_does_not_touch_foreign_blocks_or_what_a_later_version_wrote(queue: Queue) -> None:
    first, second = (block.path for block in queue.store.blocks)
    carry_out(queue.disk, [Write(first, 0, queue.disk.pread(second, 4096, 0))])
    assert repaired(queue) == []
    control = queue.disk.pread(f"{FOLDER}/control", 4096, 0)
    carry_out(queue.disk, [Write(f"{FOLDER}/control", 0, of_later_version(control))])
    with pytest.raises(PeerError, match="later version"):
        repaired(queue)
