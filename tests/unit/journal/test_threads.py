"""Threads on one queue: what each of them locks, and that every item has just one end."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from feedhandler.journal import BlockingQueue, CancelAnswer, Item, QueueStopped, Status
from feedhandler.journal.block import Block
from feedhandler.journal.files import Files, carry_out
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.reading import SegmentReader
from feedhandler.journal.store import BlocksNeeded
from tests.support.journal import DAY_NS, FOLDER, QUEUE_ID, SMALL
from tests.support.simulated_disk import SimulatedDisk

PATIENCE_S = 60.0


class Noted:
    """A lock that notes when it is taken, and may do something just before."""

    def __init__(self, name: int, taken: list[int]) -> None:
        self.name = name
        self.taken = taken
        self.before: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if self.before is not None:
            before, self.before = self.before, None
            before()
        self.taken.append(self.name)

    def __exit__(self, *_: object) -> None:
        pass


def flush(opened: Opened, disk: SimulatedDisk) -> None:
    """Write what waits."""
    while (sealed := opened.store.seal(DAY_NS)) is not None:
        carry_out(disk, sealed.steps)
        opened.store.complete_flush()


@pytest.fixture
def three() -> tuple[Opened, SimulatedDisk, list[int]]:
    """A queue of three blocks in use, 12 items in each of the first two, and what is locked."""
    disk = SimulatedDisk()
    opened = open_store(disk, FOLDER, replace(SMALL, blocks=3), QUEUE_ID, DAY_NS)
    while len(opened.store.live) < 3:
        opened.store.add([bytes(3000)])
        flush(opened, disk)
    taken: list[int] = []
    for block in opened.store.live:
        block.lock = Noted(block.number, taken)
    return opened, disk, taken


def test_a_cancel_locks_the_block_of_its_id_only(three) -> None:
    opened, _, taken = three
    for block in opened.store.live:
        taken.clear()
        assert opened.delivery.cancel(block.first_id) is CancelAnswer.CANCELLED
        assert taken == [block.number]


def test_what_is_delivered_given_back_or_asked_locks_its_block_only(three) -> None:
    opened, _, taken = three
    second = opened.store.live[1]
    opened.delivery.take(second.first_id + 1)
    taken.clear()
    opened.delivery.release(second.first_id)
    opened.delivery.deliver([second.first_id + 1, second.first_id])
    assert opened.delivery.status(second.first_id) is Status.DELIVERED
    assert set(taken) == {second.number}


@pytest.mark.parametrize(
    ("ask", "arguments"),
    [
        ("cancel_all", (0,)),
        ("cancel_all_by_page", (0, 10)),
        ("forward_page", (0, 0, 10, 10)),
        ("expire", (0,)),
    ],
)
def test_what_concerns_everything_locks_every_block_in_the_order_of_numbers(
    three, ask, arguments
) -> None:
    opened, _, taken = three
    getattr(opened.delivery, ask)(*arguments)
    assert taken[:3] == [1, 2, 3]


def test_a_segment_for_which_the_newest_block_has_room_locks_none(three) -> None:
    opened, disk, taken = three
    opened.store.add([b"a"])
    sealed = opened.store.seal(DAY_NS, alone=False)
    carry_out(disk, sealed.steps)
    opened.store.complete_flush()
    assert taken == []
    opened.store.add([bytes(30_000)])
    flush(opened, disk)
    opened.store.add([bytes(30_000)])
    with pytest.raises(BlocksNeeded):
        opened.store.seal(DAY_NS, alone=False)


def test_who_locks_all_blocks_begins_again_when_their_order_changed_meanwhile(three) -> None:
    opened, disk, _ = three
    first = opened.store.live[0]
    first.lock.before = lambda: used_anew(opened, disk, first)
    with opened.store.everything() as live:
        assert live is opened.store.live
        assert live[-1] is first


def used_anew(opened: Opened, disk: SimulatedDisk, block: Block) -> None:
    """Deliver what a block holds, and go on until it is used anew."""
    opened.delivery.deliver(range(block.first_id, block.next_id))
    incarnation = block.incarnation
    while block.incarnation == incarnation:
        opened.store.add([bytes(3000)])
        flush(opened, disk)


def test_a_block_that_is_used_anew_just_before_it_is_locked_is_not_mistaken(three) -> None:
    opened, disk, _ = three
    first = opened.store.live[0]
    number = first.first_id
    first.lock.before = lambda: used_anew(opened, disk, first)
    assert opened.delivery.cancel(number) is CancelAnswer.DELIVERED
    assert first.first_id > number


def test_consumers_keep_the_order_when_a_block_is_used_anew_under_their_hands(three) -> None:
    opened, disk, _ = three
    first, second = opened.store.live[:2]
    first.lock.before = lambda: used_anew(opened, disk, first)
    assert opened.delivery.take(1)[0].id == second.first_id


def test_what_ends_between_taking_and_reading_is_not_handed_out(three) -> None:
    opened, disk, _ = three
    first = opened.store.live[0]
    reader = opened.delivery._reader

    class Ended:
        def items(self, block: Block, numbers: list[int]) -> list[Item]:
            opened.delivery._reader = reader
            used_anew(opened, disk, first)
            return reader.items(block, numbers)

    opened.delivery._reader = Ended()
    second = opened.store.live[1].first_id
    assert [item.id for item in opened.delivery.take(3)] == [second, second + 1, second + 2]
    assert opened.delivery.damaged == 0


def cancel_all_by_page(queue: BlockingQueue) -> None:
    """Whatever others do meanwhile, each item is cancelled, with a consumer, or delivered."""
    cancelled, in_hand, page = queue.engine.cancel_all_by_page(1 << 40)
    queue.engine.call_back(queue.engine.on_cancelled, cancelled)
    forward = [number for number, delivered in page.items if delivered]
    ids = sorted([*cancelled, *in_hand, *forward])
    assert ids == sorted(set(ids))
    assert [number for number, _ in page.items] == sorted([*in_hand, *forward])


def test_threads_that_put_consume_and_cancel_give_every_item_one_end(
    tmp_path: Path, seed: int
) -> None:
    ids: dict[str, list[int]] = {"delivered": [], "cancelled": []}
    errors: list[BaseException] = []
    producing = [True] * 3
    contents: dict[int, bytes] = {}
    settings = replace(SMALL, waiting_bytes_max=20_000)
    queue = BlockingQueue(tmp_path, settings)
    queue.engine.on_delivered = ids["delivered"].append
    queue.engine.on_cancelled = ids["cancelled"].append

    def produce(draw: random.Random, turn: int) -> None:
        for _ in range(60):
            items = [draw.randbytes(draw.randrange(2000)) for _ in range(draw.randrange(1, 8))]
            contents.update(zip(queue.put_many(items), items, strict=True))
        producing[turn] = False

    def consume(draw: random.Random, _: int) -> None:
        while any(producing) or queue.statistics()["pending"]:
            items = queue.get_many(draw.randrange(1, 20), 0.01)
            keep = [item for item in items if draw.random() < 0.8]
            for item in items:
                if item not in keep:
                    queue.release(item.id)
            queue.delivered(*(item.id for item in keep))

    def cancel(draw: random.Random, _: int) -> None:
        while any(producing):
            number = draw.randrange(1, queue.engine.visible_end + 2)
            queue.cancel(number)
            queue.status(number)
            if draw.random() < 0.02:
                queue.cancel_all()
            if draw.random() < 0.02:
                cancel_all_by_page(queue)
            if draw.random() < 0.05:
                seen = [item.id for item in queue.pending()]
                assert seen == sorted(seen)

    def guarded(work: Callable[[random.Random, int], None], turn: int) -> None:
        try:
            work(random.Random(seed + turn), turn)
        except BaseException as error:
            errors.append(error)
            producing[:] = [False] * 3

    with queue:
        threads = [
            threading.Thread(target=guarded, args=(work, turn))
            for turn, work in enumerate(
                (produce, produce, produce, consume, consume, cancel, cancel)
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not errors, f"seed {seed}: {errors}"
        assert queue.statistics()["damaged"] == 0
        assert queue.statistics()["blocks_reused"]
    ends = Counter(ids["delivered"] + ids["cancelled"])
    assert ends.keys() == contents.keys(), f"seed {seed}"
    assert set(ends.values()) == {1}, f"seed {seed}"
    with BlockingQueue(tmp_path, settings) as again:
        assert again.statistics()["pending"] == 0
        for name, numbers in ids.items():
            known = {again.status(number) for number in numbers}
            assert known <= {Status[name.upper()]}, f"seed {seed}"


class Unreadable(Files):
    """Files that can be written, and from some moment on not read."""

    failing = False

    def pread(self, path: str, count: int, offset: int) -> bytes:
        if self.failing:
            raise OSError(5, "Input/output error")
        return super().pread(path, count, offset)


def test_a_disk_that_cannot_be_read_stops_the_queue_and_says_so(tmp_path: Path) -> None:
    files = Unreadable()
    with BlockingQueue(tmp_path, SMALL, files=files) as queue:
        queue.put(b"a")
        files.failing = True
        for call in (queue.get, lambda: queue.put(b"b"), lambda: list(queue.pending())):
            with pytest.raises(QueueStopped, match="Input/output error"):
                call()
        files.failing = False
    with BlockingQueue(tmp_path, SMALL) as queue:
        assert queue.get(0).content == b"a"


def test_a_waiter_is_told_when_another_thread_finds_the_disk_unreadable(tmp_path: Path) -> None:
    files = Unreadable()
    errors: list[str] = []
    with BlockingQueue(tmp_path, SMALL, files=files) as queue:
        queue.put(b"a")
        assert queue.get().id == 1

        def consume() -> None:
            try:
                queue.get(PATIENCE_S)
            except QueueStopped as error:
                errors.append(str(error))

        consumer = threading.Thread(target=consume)
        consumer.start()
        files.failing = True
        queue.engine._delivery._looker = SegmentReader(files)
        with pytest.raises(QueueStopped):
            list(queue.pending())
        consumer.join(PATIENCE_S)
        assert len(errors) == 1
        assert "Input/output error" in errors[0]
