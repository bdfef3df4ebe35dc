"""Groups that count only together, marks, producers' states, and items that are moved forward."""

import asyncio
import contextlib
import random
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.journal import BlockingQueue, PersistentQueue, Status, producer_states
from feedhandler.journal.engine import Engine
from feedhandler.journal.files import carry_out
from feedhandler.journal.layout import CONTROL, VERSION_MIN, parse_control
from feedhandler.journal.opening import open_store
from feedhandler.journal.producer_states import NAMES
from feedhandler.journal.segments import MOVE, parse_segment
from feedhandler.journal.store import creation
from feedhandler.journal.verify import verify
from feedhandler.keyed import settings
from feedhandler.keyed.producers import OWN, Producers, Stamp, Standing
from feedhandler.ops.queue import list_items, stat
from tests.support.journal import DAY_NS, FOLDER, QUEUE_ID, SMALL, Queue
from tests.support.simulated_disk import SimulatedDisk

PRODUCER = b"producer"


@pytest.fixture
def queue() -> Queue:
    return Queue()


def commit(queue: Queue, puts=(), ends=(), marks=(), producers=None) -> range:
    """Commit a group and flush; its items' ids."""
    group, _ = queue.delivery.commit(list(puts), ends, marks, producers)
    queue.flush()
    return range(group.first_id, group.end_id)


def pending(queue: Queue) -> list[tuple[int, int, bytes]]:
    """Everything pending."""
    return [item for items in queue.delivery.walk() for item in items]


def test_a_group_survives_with_all_of_its_parts(tmp_path: Path) -> None:
    with BlockingQueue(tmp_path, SMALL) as queue:
        queue.put_many([b"a", b"b", b"c"])
        numbers = queue.commit([b"x", b"y"], [(1, Status.DELIVERED)], [(2, 5)], {PRODUCER: (3, 9)})
        assert numbers == range(4, 6)
        queue.mark(3, 127)
    with BlockingQueue(tmp_path, SMALL) as queue:
        found = [item for items in queue.walk() for item in items]
        assert found == [(2, 5, b"b"), (3, 127, b"c"), (4, 0, b"x"), (5, 0, b"y")]
        assert queue.status(1) is Status.DELIVERED
        assert queue.producers() == {PRODUCER: (3, 9)}
        assert queue.producer(b"other") is None


async def test_an_event_loop_commits_as_threads_do(tmp_path: Path) -> None:
    delivered: list[int] = []
    async with PersistentQueue.open(tmp_path, SMALL, on_delivered=delivered.append) as queue:
        await queue.put_many([b"a", b"b"])
        await asyncio.gather(
            queue.commit([b"x"], [(1, Status.DELIVERED)]),
            queue.commit(marks=[(2, 1)], producers={PRODUCER: (0, 1)}),
            queue.mark(2, 2),
        )
        assert (queue.mark_of(2), queue.producer(PRODUCER)) == (2, (0, 1))
        assert [item for items in queue.walk() for item in items][-1] == (3, 0, b"x")
        assert queue.engine._store.counts.groups == 3
        assert queue.statistics()["flushes"] < 5
    assert delivered == [1]


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"ends": [(1, 1), (99, 1)]}, "item 99 is not pending"),
        ({"ends": [(1, 1)], "marks": [(1, 3)]}, "twice"),
        ({"ends": [(1, Status.PENDING)]}, "cannot end"),
        ({"marks": [(1, 128)]}, "a mark of 128"),
        ({"producers": {b"p" * 65: (0, 0)}}, "id of 65 bytes"),
        ({"producers": {b"p": (0, 1 << 64)}}, "64 bits"),
        ({"puts": [bytes(30_000)] * 2}, "a segment of this queue takes"),
    ],
)
def test_a_group_that_cannot_be_is_refused_and_nothing_is_done(
    queue: Queue, group, reason: str
) -> None:
    queue.put(b"a")
    with pytest.raises(UsageError, match=reason):
        commit(queue, **group)
    assert pending(queue) == [(1, 0, b"a")]
    assert not queue.store.has_waiting


def test_groups_of_several_callers_share_one_write(queue: Queue) -> None:
    queue.put(b"a", b"b", b"c")
    for number in (1, 2, 3):
        queue.delivery.commit([b"x"], [(number, Status.DELIVERED)])
    assert queue.flush() == 1


def test_what_was_committed_later_counts_later_where_a_segment_is_full(queue: Queue) -> None:
    queue.put(b"a")
    queue.store._changes_max = 2
    for mark in (1, 2, 3):
        queue.delivery.commit([], [], [(1, mark)])
    queue.delivery.commit([b"x"], [], [(1, 9)])
    assert queue.flush() == 2
    queue.open()
    assert pending(queue) == [(1, 9, b"a"), (2, 0, b"x")]


def test_a_plain_put_is_a_segment_of_version_1_and_a_group_one_of_2(queue: Queue) -> None:
    block = queue.store.live[-1]
    for act, version in ((queue.put, 1), (lambda _: commit(queue, [b"b"]), 2)):
        at = block.end
        act(b"a")
        assert struct.unpack_from("<H", queue.disk.pread(block.path, 64, at), 4) == (version,)


def test_a_reader_of_format_1_refuses_a_new_queue(queue: Queue) -> None:
    control = queue.disk.pread(f"{FOLDER}/control", 1 << 20, 0)
    assert CONTROL.unpack_from(control)[1:3] == (2, 2)


def test_a_flipped_bit_in_the_last_group_costs_the_group_and_is_reported(queue: Queue) -> None:
    queue.put(b"a", b"b")
    block = queue.store.live[-1]
    at = block.end
    commit(queue, [b"x" * 100], [(1, Status.DELIVERED)], [(2, 7)], {PRODUCER: (1, 1)})
    queue.disk.decay(block.path, 8 * (at + 250))
    assert "nothing of it counts" in verify(queue.disk, FOLDER).problems[0]
    queue.open()
    assert pending(queue) == [(1, 0, b"a"), (2, 0, b"b")]
    assert not queue.store.producers.latest


def test_a_damaged_group_with_others_behind_it_costs_what_is_damaged(queue: Queue) -> None:
    queue.put(b"a", b"b")
    block = queue.store.live[-1]
    at = block.end
    commit(queue, [b"x" * 100, b"y"], [(1, Status.DELIVERED)], [(2, 7)])
    queue.put(b"z")
    queue.disk.decay(block.path, 8 * (at + 64 + 2 * 24 + 2 * 16))
    queue.open()
    assert pending(queue) == [(2, 7, b"b"), (4, 0, b"y"), (5, 0, b"z")]
    assert queue.delivery.status(3) is Status.DAMAGED


# -- producers --------------------------------------------------------------------------------


def recycled(queue: Queue, blocks: int) -> None:
    """Put and deliver until so many blocks were used anew."""
    until = queue.store.counts.blocks_reused + blocks
    while queue.store.counts.blocks_reused < until:
        queue.put(bytes(3000))
        queue.end(*queue.take())


@pytest.mark.parametrize("name", [None, *NAMES])
def test_producers_outlive_their_blocks_and_a_snapshot_that_decays(queue: Queue, name) -> None:
    for sequence in range(1, 6):
        commit(queue, [b"x"], producers={PRODUCER: (1, sequence), b"q%d" % sequence: (0, 1)})
        recycled(queue, 2)
    known = dict(queue.store.producers.latest)
    if name:
        queue.disk.decay(f"{FOLDER}/{name}", 800)
        assert name in str(verify(queue.disk, FOLDER).problems)
    queue.open()
    assert queue.store.producers.latest == known
    assert known[PRODUCER] == (1, 5)


def test_of_too_many_producers_the_longest_idle_are_forgotten(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr("feedhandler.journal.producer_states.PRODUCERS_MAX", 3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        commit(queue, producers={name: (0, 1)})
    for _ in range(2):
        assert set(queue.store.producers.latest) == {b"c", b"a", b"d"}
        queue.open()
    assert queue.store.producers.forgotten >= 1


def test_producers_come_back_from_a_crash_longest_idle_first(queue: Queue) -> None:
    for name in (b"a", b"b", b"c"):
        commit(queue, producers={name: (0, 1)})
    queue.open()  # writes a snapshot
    commit(queue, producers={b"a": (0, 2)})
    queue.open()
    assert list(queue.store.producers.latest) == [b"b", b"c", b"a"]


def test_what_queues_have_sent_is_never_forgotten(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr("feedhandler.journal.producer_states.PRODUCERS_MAX", 2)
    own = OWN + b"queue"
    commit(queue, producers={own: (0, 1)})
    for number in range(9):
        commit(queue, producers={b"%d" % number: (0, 1)})
    for _ in range(2):
        assert set(queue.store.producers.latest) == {own, b"8"}
        queue.open()
    known = Producers(2, [(own, (0, 1))])
    for number in range(9):
        known.advance(Stamp(b"%d" % number, 0, 1))
    assert known.judge(Stamp(own, 0, 1, skips=True)) is Standing.REPEATED
    assert len(known) == 2


def test_a_keyed_queue_knows_no_more_producers_than_its_journal_keeps() -> None:
    assert settings.PRODUCERS_MAX == producer_states.PRODUCERS_MAX


# -- where no block has room ------------------------------------------------------------------


def test_ends_that_count_together_do_so_where_no_block_has_room() -> None:
    queue = Queue(replace(SMALL, blocks_max=2))
    queue.fill()
    block = queue.store.live[-1]
    while block.has_room(4096, 0):  # status changes alone still have room
        queue.end(*queue.take(1))
    ids = [item.id for item in queue.delivery.peek(0, 100)]
    first, last = ids[0], ids[-1]
    assert block.holds(last)
    assert not block.holds(first)
    group, _ = queue.delivery.commit([], [(first, Status.DELIVERED), (last, Status.CANCELLED)])
    assert group.first_id == group.end_id
    draw = random.Random(1)
    seen = set()

    def cut(_: str) -> None:
        for _ in range(8):
            disk = queue.disk.after_power_cut(draw)
            found = open_store(disk, FOLDER, queue.settings, QUEUE_ID, DAY_NS).delivery
            seen.add((found.status(first), found.status(last)))

    queue.disk.before_call = cut
    flush = queue.store.seal(DAY_NS)
    assert flush is not None
    assert not flush.length
    carry_out(queue.disk, flush.steps)
    queue.store.complete_flush()
    assert seen == {
        (Status.PENDING, Status.PENDING), (Status.DELIVERED, Status.CANCELLED),
    }  # fmt: skip


# -- moving -----------------------------------------------------------------------------------


@pytest.fixture
def bounded() -> Engine:
    with patch("feedhandler.journal.engine.Owner"), patch("os.urandom", lambda _: QUEUE_ID):
        settings = replace(SMALL, blocks_max=3)
        return Engine(FOLDER, settings, files=SimulatedDisk(), clock=lambda: DAY_NS)


def pass_through(engine: Engine, keep: frozenset[int], count: int, *, move: bool) -> bool:
    """Put and deliver many items, but for those to keep; whether there was room for all."""
    for _ in range(count):
        engine.add([bytes(3000)])
        if move:
            engine.move_some()
        while engine.flush():
            pass
        if engine.growth_due:
            engine.grow()
        if engine.has_waiting and not engine.flush():
            return False
        items = engine.take(10)
        engine.deliver([item.id for item in items if item.id not in keep])
    return True


@pytest.mark.parametrize("move", [True, False])
def test_items_without_an_end_keep_no_block_where_they_are_moved(bounded, move: bool) -> None:
    engine = bounded
    engine.add([b"kept"] + [bytes(3000)] * 12 + [b"kept too"] + [bytes(3000)] * 14 + [b"third"])
    while engine.flush():
        pass
    keep = frozenset({1, 14, 29})
    assert pass_through(engine, keep, 300, move=move) is move
    if not move:
        return
    assert engine._store.counts.moved > 5
    for number in keep:
        engine.release(number)
    assert [engine.take(1)[0].content for _ in keep] == [b"kept", b"kept too", b"third"]
    assert engine.cancel(14)[0].name == "DELIVERING"
    engine.deliver([1, 14])
    assert engine.status(14) is Status.DELIVERED
    engine.release(29)
    assert engine.cancel(29)[0].name == "CANCELLED"
    assert engine.status(29) is Status.CANCELLED


def test_what_is_moved_is_handed_out_in_its_turn(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.put(b"c")
    assert queue.take(1) == [1]
    block = queue.store.live[-1]
    queue.delivery.move(block, 2, 1 << 20)
    queue.flush()
    queue.put(b"e")
    assert [(item.id, item.content) for item in queue.delivery.peek(0, 10)] == [
        (1, b"a"), (2, b"b"), (3, b"c"), (6, b"e"),
    ]  # fmt: skip
    assert queue.take(10) == [2, 3, 6]
    assert queue.delivery.status(4) is None
    assert queue.delivery.deliver([4]) == ([], [])
    with pytest.raises(UsageError, match="item 4 is not pending"):
        commit(queue, marks=[(4, 1)])
    queue.open()
    assert queue.take(10) == [1, 2, 3, 6]


def test_a_walk_over_the_blocks_meets_what_was_moved_by_its_own_id_alone(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.put(b"c")
    queue.delivery.move(queue.store.live[-1], 2, 1 << 20)
    queue.flush()
    queue.put(b"e")
    for _ in range(2):
        met = [(1, b"a"), (2, b"b"), (3, b"c"), (4, None), (5, None), (6, b"e")]
        assert list(queue.delivery.walk_blocks(1)) == met
        queue.open()


def test_the_end_of_what_was_moved_outlives_the_block_that_it_was_moved_to() -> None:
    queue = Queue(replace(SMALL, blocks=3))
    queue.put(b"moved", b"stays")
    assert queue.take(2) == [1, 2]
    first = queue.store.live[-1]
    while queue.store.live[-1] is first:
        queue.put(bytes(3000))
        queue.end(*queue.take())
    queue.delivery.move(first, 1, 1 << 20)
    queue.flush()
    second = queue.store.live[-1]
    queue.delivery.release(1)
    queue.delivery.cancel(1)
    queue.flush()
    use = second.incarnation
    while second.incarnation == use:
        queue.put(bytes(3000))
        queue.end(*queue.take())
    assert first in queue.store.live
    for _ in range(3):
        assert queue.delivery.status(1) is Status.CANCELLED
        assert queue.delivery.cancel(1).name == "CANCELLED"
        assert queue.delivery.status(2) is Status.PENDING
        queue.open()


def test_what_ends_while_it_is_moved_has_ended(queue: Queue) -> None:
    queue.put(b"a", b"b", b"c")
    block = queue.store.live[-1]
    queue.delivery.move(block, 3, 1 << 20)
    queue.delivery.deliver([1])  # before the segment is made
    flush = queue.store.seal(DAY_NS)
    queue.delivery.deliver([2])  # while it is on its way
    queue.delivery.commit([], [], [(3, 9)])
    carry_out(queue.disk, flush.steps)
    queue.store.complete_flush()
    queue.flush()
    for _ in range(2):
        assert pending(queue) == [(3, 9, b"c")]
        assert queue.delivery.status(1) is queue.delivery.status(2) is Status.DELIVERED
        queue.open()


def test_a_moved_item_has_the_marks_of_the_groups_up_to_its_segment(queue: Queue) -> None:
    """A group behind the segment may never be on the disk: its mark is in its own record only."""
    queue.put(b"a", b"b")
    queue.delivery.commit([], [], [(1, 5)])
    ahead = queue.store.seal(DAY_NS)  # on its way, and the move behind it
    queue.delivery.move(queue.store.live[-1], 2, 1 << 20)
    queue.delivery.commit([bytes(2 * SMALL.journal_bytes)], [], [(1, 6), (2, 7)])
    behind = queue.store.prepare(DAY_NS)
    for flush in (ahead, behind):
        carry_out(queue.disk, flush.steps)
        queue.store.complete_flush()
        queue.store.go_on()
    write = behind.steps[-1]
    segment = parse_segment(memoryview(write.data), 0, queue.store.live[-1].identity)
    assert segment.statuses == [(1, 0, MOVE | 5 << 8), (2, 1, MOVE)]
    queue.flush()
    for _ in range(2):
        assert [(number, mark) for number, mark, _ in pending(queue)][:2] == [(1, 6), (2, 7)]
        queue.open()


def test_who_read_an_item_where_it_stood_no_more_has_not_damaged_it(queue: Queue) -> None:
    queue.put(b"a", b"b")
    ((number, block),) = queue.delivery.claim(1)
    queue.delivery.move(block, 1, 1)
    queue.flush()
    queue.delivery.spoil(number)
    assert queue.take(1) == [number]
    queue.disk.decay(block.path, 8 * (block.span_of(3)[0] + 64 + 24 + 16))
    queue.delivery.spoil(number)
    assert queue.delivery.status(number) is Status.DAMAGED


def test_many_items_are_read_as_each_of_them_is(queue: Queue) -> None:
    for number in range(40):
        queue.put(*(b"%d of %d" % (each, number) + bytes(each * 50) for each in range(12)))
    first = queue.store.live[0]
    queue.delivery.move(first, 3, 1 << 20)
    queue.end(5, 17, 18, 60)
    numbers = [n for n in range(1, 480) if n % 7 != 3]
    each = {number: queue.delivery.read(number) for number in numbers}
    assert None in each.values()
    assert queue.delivery.read_many(numbers, 1 << 30) == each
    queue.delivery.read_many([7], 1000)  # its segment is at hand then, and nothing else
    assert queue.delivery.at_hand(9) == queue.delivery.read(9)
    assert queue.delivery.at_hand(5) is queue.delivery.at_hand(400) is None
    some = queue.delivery.read_many(numbers, 1000)
    assert 0 < len(some) < len(each)
    assert some == {number: each[number] for number in numbers[: len(some)]}
    assert queue.delivery.read_many([], 1000) == {}


def test_what_was_moved_is_listed_and_counted_once(tmp_path: Path, capsys) -> None:
    with BlockingQueue(tmp_path, SMALL) as queue:
        queue.put_many([b"first", b"second"])
        queue.mark(1, 4)
        queue.engine._delivery.move(queue.engine._store.live[-1], 1, 1)
        queue.put(b"third")
    assert list_items(tmp_path, 10, False) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        "first", "second", "third",
    ]  # fmt: skip
    assert stat(tmp_path, False) == 0
    figures = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (figures["pending"], figures["marked"], figures["format"]) == ("3", "1", "2")


# -- format 1 ---------------------------------------------------------------------------------


def of_format_1(disk: SimulatedDisk) -> Queue:
    """A queue as the first format has it."""
    steps, _ = creation(FOLDER, SMALL, QUEUE_ID, DAY_NS, VERSION_MIN)
    carry_out(disk, steps)
    disk_queue = Queue.__new__(Queue)
    disk_queue.disk, disk_queue.settings, disk_queue.now_ns = disk, SMALL, DAY_NS
    store, delivery = _open_old(disk)
    disk_queue.store, disk_queue.delivery = store, delivery
    return disk_queue


def _open_old(disk: SimulatedDisk):
    """Opened without being made anew, as while it holds something."""
    with patch("feedhandler.journal.opening.VERSION", VERSION_MIN):
        opened = open_store(disk, FOLDER, SMALL, QUEUE_ID, DAY_NS)
    return opened.store, opened.delivery


def version_of(disk: SimulatedDisk) -> int:
    """The format of the queue on a disk."""
    control = parse_control(disk.pread(f"{FOLDER}/control", 1 << 20, 0))[1]
    return control.version


def test_a_queue_of_format_1_goes_on_and_is_made_anew_once_it_is_empty() -> None:
    disk = SimulatedDisk()
    queue = of_format_1(disk)
    queue.put(b"a", b"b")
    queue.open()
    recycled_ids = queue.put(b"c")
    assert version_of(disk) == 1
    with pytest.raises(UsageError, match="format 1") as refused:
        queue.delivery.commit([b"x"])
    assert "empty it" in refused.value.hint
    assert queue.delivery.cancel(1).name == "CANCELLED"
    queue.end(*queue.take())
    queue.open()
    assert version_of(disk) == 2
    assert commit(queue, [b"x"], producers={PRODUCER: (0, 1)})[0] > recycled_ids[0]
    assert queue.delivery.status(1) is Status.CANCELLED
    assert not verify(disk, FOLDER).problems


def test_a_power_cut_while_it_is_made_anew_leaves_a_queue() -> None:
    disk = SimulatedDisk()
    queue = of_format_1(disk)
    queue.end(*queue.put(b"a"))
    draw = random.Random(2)

    def cut(_: str) -> None:
        for _ in range(4):
            found = Queue(disk=disk.after_power_cut(draw))
            assert found.delivery.status(1) is Status.DELIVERED
            assert found.put(b"b") == [2]

    disk.before_call = cut
    with contextlib.suppress(AttributeError):
        queue.open()
    assert version_of(disk) == 2


# -- threads ----------------------------------------------------------------------------------


def test_threads_commit_while_items_are_moved_and_each_effect_is_there_once(tmp_path) -> None:
    inputs, consumers = 60, 3
    with BlockingQueue(tmp_path, replace(SMALL, blocks_max=30)) as queue:
        stop = threading.Event()

        def produce() -> None:
            for number in range(inputs):
                queue.put(b"in %d" % number + bytes(300))

        def consume(name: bytes) -> None:
            while not stop.is_set():
                item = queue.get(0.05)
                if item is None or item.content.startswith(b"out"):
                    continue
                queue.mark(item.id, 1)
                done = (item.id, Status.DELIVERED)
                queue.commit([b"out" + item.content], [done], producers={name: (0, item.id)})

        def move() -> None:
            store = queue.engine._store
            while not stop.is_set():
                block = store.live[0]
                if block.active and not store.moving:
                    queue.engine._delivery.move(block, 20, 1 << 14)
                queue.put(b"out of use")

        work = [threading.Thread(target=produce), threading.Thread(target=move)]
        work += [threading.Thread(target=consume, args=(b"c%d" % n,)) for n in range(consumers)]
        for thread in work:
            thread.start()
        wanted = sorted(b"outin %d" % number + bytes(300) for number in range(inputs))
        deadline = time.monotonic() + 60
        while queue.engine.damaged == 0 and time.monotonic() < deadline:
            found = sorted(item[2] for items in queue.walk() for item in items)
            if [one for one in found if one.startswith(b"outin")] == wanted:
                break
        stop.set()
        for thread in work:
            thread.join(30)
        assert queue.engine._store.counts.moved
        assert not queue.engine.damaged
    with BlockingQueue(tmp_path, SMALL) as queue:
        found = sorted(item[2] for items in queue.walk() for item in items)
        assert [one for one in found if not one.startswith(b"out of")] == wanted
