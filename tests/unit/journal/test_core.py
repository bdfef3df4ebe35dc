"""The queue's logic on a disk of its own: order, ends, expiry, blocks used anew, room."""

import errno
import random
from dataclasses import replace

import pytest
from crc32c import crc32c

from feedhandler.codecs.errors import ConfigError, PeerError, UsageError
from feedhandler.journal import recovery
from feedhandler.journal.cancels import CancelAnswer
from feedhandler.journal.files import Create, Files, Write, WriteThrough, carry_out
from feedhandler.journal.layout import Roll, Status
from feedhandler.journal.opening import open_store
from feedhandler.journal.recovery import recover
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.verify import verify
from tests.support.journal import DAY_NS, FOLDER, QUEUE_ID, SMALL, Queue, of_later_version
from tests.support.simulated_disk import Fault, SimulatedDisk

HOUR_NS = 3600 * 10**9


@pytest.fixture
def queue() -> Queue:
    """An empty one."""
    return Queue()


def test_items_come_in_order_with_their_bytes_each_to_one_consumer(queue: Queue) -> None:
    assert queue.put(b"a", b"", b"c") == [1, 2, 3]
    assert [(item.id, item.content) for item in queue.delivery.take(2)] == [(1, b"a"), (2, b"")]
    assert queue.take() == [3]
    assert queue.take() == []


def test_what_is_not_written_yet_is_not_handed_out(queue: Queue) -> None:
    queue.store.add([b"a"])
    assert queue.take() == []
    assert queue.delivery.cancel(1) is CancelAnswer.UNKNOWN
    queue.flush()
    assert queue.take() == [1]


def test_what_was_handed_out_and_not_delivered_comes_again_after_recovery(queue: Queue) -> None:
    queue.put(b"a", b"b")
    assert queue.take() == [1, 2]
    queue.end(1)
    queue.open()
    assert queue.take() == [2]


def test_a_released_item_is_next(queue: Queue) -> None:
    queue.put(b"a", b"b", b"c")
    queue.take(2)
    assert not queue.delivery.release(1)
    assert not queue.delivery.release(1)
    assert queue.take() == [1, 3]


def test_a_pending_item_is_cancelled_and_never_handed_out(queue: Queue) -> None:
    queue.put(b"a", b"b")
    assert queue.delivery.cancel(1) is CancelAnswer.CANCELLED
    assert queue.delivery.cancel(1) is CancelAnswer.CANCELLED
    queue.flush()
    queue.open()
    assert queue.take() == [2]
    assert queue.delivery.status(1) is Status.CANCELLED


@pytest.mark.parametrize("number", [0, -1, 2, 1 << 70])
def test_an_id_that_no_item_had_is_unknown(queue: Queue, number: int) -> None:
    queue.put(b"a")
    assert queue.delivery.cancel(number) is CancelAnswer.UNKNOWN


def test_a_cancel_of_what_a_consumer_has_waits_for_the_consumer(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.take()
    assert queue.delivery.cancel(1) is CancelAnswer.DELIVERING
    assert queue.delivery.cancel(2) is CancelAnswer.DELIVERING
    assert queue.delivery.deliver([1]) == ([1], [1])
    assert queue.delivery.release(2) is Status.CANCELLED
    assert queue.delivery.cancel(1) is CancelAnswer.DELIVERED
    assert queue.delivery.status(2) is Status.CANCELLED
    assert queue.delivery.deliver([1, 2, 99]) == ([], [])


def test_a_released_item_that_was_cancelled_since_is_not_handed_out(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.take(1)
    queue.delivery.release(1)
    queue.delivery.cancel(1)
    assert queue.take() == [2]


def test_cancelling_all_tells_what_is_to_be_forwarded(queue: Queue) -> None:
    queue.put(b"a", b"b", b"c", b"d", b"e")
    queue.take(3)
    queue.end(1, 2)
    queue.delivery.close_order(2)
    assert queue.delivery.cancel_all(0) == ([4, 5], [1])
    assert queue.delivery.deliver([3]) == ([3], [3])
    assert queue.delivery.cancel_all(DAY_NS + 1) == ([], [])


def test_ids_of_blocks_used_anew_are_still_known(queue: Queue) -> None:
    cancelled = queue.put(b"first")[0]
    queue.delivery.cancel(cancelled)
    while not queue.store.counts.blocks_reused:
        queue.put(bytes(3000))
        queue.end(*queue.take())
    assert queue.delivery.find(1) is None
    for _ in range(2):
        assert queue.delivery.cancel(cancelled) is CancelAnswer.CANCELLED
        assert queue.delivery.cancel(2) is CancelAnswer.DELIVERED
        assert 2 in queue.delivery.cancel_all(0)[1]
        assert 1 not in queue.delivery.cancel_all(0)[1]
        queue.flush()
        queue.open()


def test_an_id_older_than_anything_known_was_delivered(queue: Queue) -> None:
    while not queue.store.counts.blocks_reused:
        queue.put(bytes(3000))
        queue.end(*queue.take())
    queue.now_ns += 2 * DAY_NS
    queue.open()
    assert len(queue.store.tombstones) == 0
    assert queue.delivery.status(1) is None
    assert queue.delivery.cancel(1) is CancelAnswer.DELIVERED


def test_yesterdays_items_expire_at_recovery_and_are_not_handed_out() -> None:
    queue = Queue(replace(SMALL, day_zone="UTC"))
    queue.put(b"a")
    queue.put(b"b")
    queue.now_ns += DAY_NS
    queue.open()
    assert queue.expired == [1, 2]
    assert queue.put(b"c") == [3]
    assert queue.take() == [3]
    assert queue.delivery.cancel(1) is CancelAnswer.EXPIRED
    queue.open()
    assert queue.expired == []


def test_only_what_came_before_expires_within_a_block(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.now_ns += HOUR_NS
    queue.put(b"c")
    queue.take(1)
    assert queue.delivery.expire(DAY_NS + 1) == [2]
    assert queue.delivery.expire(DAY_NS) == []
    assert queue.delivery.first_since(DAY_NS + 2 * HOUR_NS) == 4
    assert queue.delivery.first_since(DAY_NS + 1) == 3


def test_what_a_consumer_gives_back_after_its_day_has_expired(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.take(1)
    queue.now_ns += HOUR_NS
    queue.put(b"c")
    assert queue.delivery.expire(DAY_NS + 1) == [2]
    assert queue.delivery.release(1) is Status.EXPIRED
    assert queue.delivery.release(1) is Status.PENDING
    assert queue.take() == [3]
    assert queue.delivery.release(3) is Status.PENDING
    assert queue.take() == [3]


def test_of_a_segment_whose_stamp_decayed_the_one_behind_it_says_when_it_came(
    queue: Queue,
) -> None:
    for content in (b"a", b"b", b"c", b"d"):
        queue.put(content)
        queue.now_ns += HOUR_NS
    block = queue.store.live[-1]
    second = block.offsets[1]
    carry_out(queue.disk, [Write(block.path, second + 24, bytes(8))])
    assert queue.delivery.first_since(DAY_NS + HOUR_NS) == 2
    assert queue.delivery.first_since(DAY_NS + HOUR_NS + 1) == 2
    assert queue.delivery.first_since(DAY_NS + 2 * HOUR_NS + 1) == 4
    carry_out(queue.disk, [Write(block.path, block.offsets[2], bytes(64))])
    assert queue.delivery.first_since(DAY_NS + 1) == 2
    assert queue.delivery.first_since(DAY_NS + 3 * HOUR_NS + 1) == 5


def test_trading_days_end_where_and_when_the_settings_say() -> None:
    settings = QueueSettings(day_zone="Europe/Paris", day_end="17:40")
    noon = 1_793_358_000 * 10**9  # 2026-10-30 11:00 UTC, 12:00 in Paris
    began = settings.day_began_ns(noon)
    assert (noon - began) // 10**9 == 18 * 3600 + 20 * 60
    assert settings.day_began_ns(noon + 6 * HOUR_NS) == began + DAY_NS
    assert QueueSettings().day_began_ns(noon) == 0


def test_an_item_larger_than_a_block_is_refused_and_the_limit_named(queue: Queue) -> None:
    limit = queue.store.geometry.tail - queue.store.geometry.data - 4096
    with pytest.raises(UsageError, match=f"at most {limit:,}"):
        queue.put(b"a", bytes(limit + 1))
    queue.put(b"a")
    queue.delivery.cancel(1)
    assert queue.put(bytes(limit)) == [2]
    assert len(queue.delivery.take(1)[0].content) == limit


def test_blocks_without_pending_items_are_used_anew(queue: Queue) -> None:
    for _ in range(100):
        queue.put(bytes(3000))
        queue.end(*queue.take())
    assert len(queue.store.blocks) == 2
    assert queue.store.counts.blocks_reused > 5
    assert not verify(queue.disk, FOLDER).problems


def test_a_full_queue_holds_items_back_and_still_takes_ends(queue: Queue) -> None:
    numbers = queue.fill()
    assert queue.flush() == 0
    assert queue.store.counts.stalls
    while queue.delivery._store.live[-1].has_room(4096, 0):
        queue.delivery.cancel(numbers.pop())
        queue.flush()
    left = len(numbers)
    queue.end(*queue.take(3))  # no block has room: checkpoints say it
    queue.open()
    assert len(queue.take()) == left - 4  # one waited in memory and was never acknowledged
    queue.delivery.deliver(range(1, 1000))
    assert queue.flush()


def test_the_queue_grows_to_its_bound(queue: Queue) -> None:
    assert not queue.store.wants_block
    while len(queue.store.blocks) < SMALL.blocks_max:
        queue.put(bytes(3000))
        if queue.store.wants_block:
            queue.grow()
    numbers = queue.fill()
    assert not queue.store.wants_block
    queue.open()
    assert queue.take(1000) == list(range(1, numbers[-1]))


def test_a_block_that_could_not_be_made_changes_nothing(queue: Queue) -> None:
    while not queue.store.wants_block:
        queue.put(bytes(3000))
    growth = queue.store.grow(queue.now_ns)
    assert not queue.store.wants_block
    queue.disk.fault = Fault(queue.disk.calls + 2, "ENOSPC")
    with pytest.raises(OSError, match="ENOSPC"):
        carry_out(queue.disk, growth.steps)
    queue.disk.fault = None
    queue.store.grown(growth, made=False)
    assert queue.store.wants_block
    queue.open()
    assert len(queue.store.blocks) == 2
    while not queue.store.wants_block:
        queue.put(bytes(3000))
    queue.grow()
    queue.open()
    assert len(queue.store.blocks) == 3


def test_blocks_are_spread_over_the_paths_in_turn() -> None:
    queue = Queue(replace(SMALL, blocks=3, paths=("/disk1", "/disk2")))
    assert [block.path for block in queue.store.blocks] == [
        "/disk1/block-000001.queue", "/disk2/block-000002.queue", "/disk1/block-000003.queue",
    ]  # fmt: skip


def test_many_small_items_and_changes_take_several_segments(queue: Queue) -> None:
    numbers = queue.put(*[b"x"] * 900)
    assert queue.store.counts.flushes == 2
    for number in numbers[::2]:
        queue.delivery.cancel(number)
    queue.flush()
    queue.open()
    assert queue.take(1000) == numbers[1::2]


def test_small_blocks_opened_with_settings_for_large_ones_still_take_everything() -> None:
    queue = Queue()
    queue.settings = QueueSettings()
    queue.open()
    queue.put(*[bytes(3000)] * 20)
    for number in range(1, 21, 2):
        queue.delivery.cancel(number)
    queue.flush()
    queue.open()
    assert queue.take() == list(range(2, 21, 2))


def test_changes_of_consecutive_items_are_one_record(queue: Queue) -> None:
    queue.put(*[b"x"] * 50)
    queue.delivery.deliver(range(1, 51))
    assert queue.store.changes_added == 1


def test_looking_takes_nothing(queue: Queue) -> None:
    queue.put(b"a", b"b", b"c")
    queue.take(1)
    queue.delivery.cancel(2)
    assert [item.id for item in queue.delivery.peek(0, 10)] == [1, 3]
    assert [item.id for item in queue.delivery.peek(1, 1)] == [3]
    assert queue.take() == [3]


def test_while_a_segment_is_on_its_way_the_next_one_is_made_where_enough_waits(
    queue: Queue,
) -> None:
    store = queue.store
    store.add([b"a"])
    assert not store.prepare(DAY_NS)
    first = store.seal(DAY_NS)
    assert not store.prepare(DAY_NS)  # nothing waits
    store.add([b"b" * 3000] * 3)
    assert store.prepare(DAY_NS)
    store.add([b"c" * 3000] * 3)
    assert not store.prepare(DAY_NS)  # one at a time
    assert store.visible_end == 1
    carry_out(queue.disk, first.steps)
    store.complete_flush()
    assert store.visible_end == 2
    assert store.has_waiting
    assert queue.flush() == 3
    assert store.counts.prepared == 1
    queue.open()
    assert queue.take() == list(range(1, 8))
    assert not verify(queue.disk, FOLDER).problems


def test_no_segment_is_made_ahead_where_checkpoints_or_another_block_come_first(
    queue: Queue,
) -> None:
    store = queue.store
    while store.live[-1].has_room(3 * 4096, 3):
        queue.put(bytes(3000))
    store.add([b"a"])
    store.seal(DAY_NS)
    store.add([bytes(3000)] * 3)
    assert not store.prepare(DAY_NS)
    store.in_flight = None
    queue.open()
    queue.store._since_checkpoint = SMALL.checkpoint_bytes
    queue.store.add([b"a"])
    queue.store.seal(DAY_NS)
    queue.store.add([bytes(3000)] * 3)
    assert not queue.store.prepare(DAY_NS)


def test_what_is_on_the_disk_by_a_write_through_is_only_those_bytes() -> None:
    disk = SimulatedDisk()
    carry_out(disk, [Create("/a", 4096), Write("/a", 0, b"x"), WriteThrough("/a", 2048, b"y")])
    draw = random.Random(1)
    found = [disk.after_power_cut(draw).pread("/a", 4096, 0) for _ in range(50)]
    assert {data[2048:2049] for data in found} == {b"y"}
    assert len({data[:1] for data in found}) > 1


def test_a_file_system_that_cannot_write_through_by_a_flag_is_synced(tmp_path, monkeypatch) -> None:
    files = Files()
    path = str(tmp_path / "file")
    carry_out(files, [Create(path, 4096), WriteThrough(path, 0, b"flag")])
    calls = []

    def refused(*_: object) -> int:
        calls.append("pwritev")
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr("os.pwritev", refused)
    for text in (b"a", b"b"):
        carry_out(files, [WriteThrough(path, 1, text)])
    assert calls == ["pwritev"]
    assert files.pread(path, 4, 0) == b"fbag"
    files._flag = 1

    def failed(*_: object) -> int:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr("os.pwritev", failed)
    with pytest.raises(OSError, match="no"):
        carry_out(files, [WriteThrough(path, 1, b"c")])
    files.close()


def hit(queue: Queue, number: int, *, bit: int = 0) -> None:
    """Flip a bit of an item's content on disk."""
    block = queue.delivery.find(number)
    offset, _ = block.span_of(number)
    content = queue.disk.pread(block.path, 4096, offset).index(b"needle")
    queue.disk.decay(block.path, 8 * (offset + content) + bit)


def test_an_item_that_decayed_is_reported_and_not_handed_out(queue: Queue) -> None:
    queue.put(b"a", b"needle", b"c")
    hit(queue, 2)
    assert queue.take() == [1, 3]
    assert queue.delivery.damaged == 1
    assert queue.delivery.status(2) is Status.DAMAGED
    assert queue.delivery.cancel(2) is CancelAnswer.DAMAGED
    assert [item.id for item in queue.delivery.peek(0, 9)] == [1, 3]
    assert any("items 2 are damaged" in text for text in verify(queue.disk, FOLDER).problems)


def test_items_of_a_segment_that_is_destroyed_under_an_open_queue_are_not_handed_out(
    queue: Queue,
) -> None:
    at = queue.store.live[-1].end
    queue.put(b"a", b"b")
    queue.put(b"c")
    carry_out(queue.disk, [Write(queue.store.live[-1].path, at, b"\xff" * 4096)])
    assert queue.take() == [3]
    assert queue.delivery.damaged == 2


def test_a_segment_that_is_gone_costs_its_items_and_is_reported(queue: Queue) -> None:
    queue.put(b"a")
    block = queue.store.live[-1]
    at = block.end
    queue.put(b"b", b"c")
    queue.put(b"d")
    carry_out(queue.disk, [Write(block.path, at, b"\xff" * 4096)])
    queue.open()
    assert queue.take() == [1, 4]
    assert queue.report.segments_lost == 1
    assert queue.report.items_damaged == 2
    assert [queue.delivery.status(n) for n in (2, 3)] == [Status.DAMAGED] * 2
    assert any("no segment verifies" in text for text in verify(queue.disk, FOLDER).problems)


def test_a_segment_of_elsewhere_does_not_follow(queue: Queue) -> None:
    queue.put(b"a")
    queue.store.chain ^= 1
    queue.put(b"b")
    assert any("does not follow" in text for text in recover(queue.disk, FOLDER).report.problems)
    assert any("does not follow" in text for text in verify(queue.disk, FOLDER).problems)


def test_a_block_without_checkpoints_is_read_from_its_segments(queue: Queue) -> None:
    for _ in range(6):
        queue.put(b"a" * 3000)
    block = queue.store.live[-1]
    for offset in block.geometry.checkpoints:
        carry_out(queue.disk, [Write(block.path, offset, b"\xff" * 200)])
    queue.open()
    assert queue.take() == [1, 2, 3, 4, 5, 6]
    assert any("all segments are read" in text for text in queue.report.problems)


def test_a_header_that_decayed_is_reported_and_the_queue_opens(queue: Queue) -> None:
    queue.put(b"a")
    for offset, name in ((0, "header"), (queue.store.geometry.tail, "tail")):
        queue.disk.decay(queue.store.live[-1].path, 8 * offset + 100)
        queue.open()
        assert any(f"its {name} is damaged" in text for text in queue.report.problems)
    assert queue.take() == [1]


def test_files_that_are_not_the_queues_are_refused(queue: Queue) -> None:
    first, second = (block.path for block in queue.store.blocks)
    kept = queue.disk.pread(first, 64 << 10, 0)
    carry_out(queue.disk, [Write(first, 0, queue.disk.pread(second, 64 << 10, 0))])
    with pytest.raises(PeerError, match="belongs to another queue"):
        queue.open()
    carry_out(queue.disk, [Write(first, 0, kept)])
    queue.disk.create(first)
    with pytest.raises(PeerError, match="shorter than"):
        queue.open()
    queue.disk.remove(first)
    with pytest.raises(PeerError, match="is missing"):
        queue.open()


def test_a_control_file_that_is_not_there_or_not_right_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="no queue here"):
        recover(SimulatedDisk(), FOLDER)
    path = f"{FOLDER}/control"
    control = queue.disk.pread(path, 4096, 0)
    queue.disk.decay(path, 8 * 30)
    with pytest.raises(PeerError, match="is damaged"):
        queue.open()
    carry_out(queue.disk, [Write(path, 0, of_later_version(control))])
    with pytest.raises(PeerError, match="later version"):
        queue.open()


@pytest.mark.parametrize(
    "wrong",
    [
        {"durability": "perhaps"},
        {"blocks": 1},
        {"blocks": 9, "blocks_max": 8},
        {"journal_bytes": 100},
        {"journal_bytes": 1 << 40},
        {"checkpoint_bytes": -1},
        {"day_zone": "Nowhere/Else"},
        {"day_zone": "UTC", "day_end": "25 o'clock"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        QueueSettings(**wrong)


def test_real_files_do_what_the_simulated_do(tmp_path) -> None:
    folder = str(tmp_path / "queue")
    files = Files()
    opened = open_store(files, folder, SMALL, QUEUE_ID, DAY_NS)
    opened.store.add([b"a", b"b"])
    carry_out(files, opened.store.seal(DAY_NS).steps)
    opened.store.complete_flush()
    files.close()
    again = Files(read_only=True)
    assert recover(again, folder).next_id == 3
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        carry_out(again, [Write(folder + "/control", 0, b"x")])
    assert caught.value.errno == errno.EBADF
    again.close()
    files.create(folder + "/other")
    files.remove(folder + "/other")
    assert not files.exists(folder + "/other")
    files.close()


def test_a_checkpoint_of_another_block_is_refused(queue: Queue) -> None:
    first, second = queue.store.blocks
    at = first.geometry.checkpoints[0]
    carry_out(queue.disk, [Write(first.path, at, queue.disk.pread(second.path, 4096, at))])
    with pytest.raises(PeerError, match="belongs to another queue"):
        queue.open()


def test_a_segment_that_a_later_version_wrote_is_refused_and_not_cut_off(queue: Queue) -> None:
    queue.put(b"a")
    block = queue.store.live[-1]
    at = block.end
    queue.put(b"b")
    head = bytearray(queue.disk.pread(block.path, 60, at))
    head[4] = 3
    later = bytes(head) + crc32c(bytes(head), block.identity.seed).to_bytes(4, "little")
    carry_out(queue.disk, [Write(block.path, at, later), Write(block.path, block.end - 64, later)])
    calls = queue.disk.calls
    with pytest.raises(PeerError, match="later version"):
        queue.open()
    assert queue.disk.calls == calls


def test_the_file_of_ended_items_is_made_anew_when_it_has_grown(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr("feedhandler.journal.store.ENDED_BYTES_MAX", 5 * 4096)
    path = f"{FOLDER}/ended"
    for turn in range(150):
        number = queue.put(bytes(3000))[0]
        if turn % 3:
            queue.delivery.cancel(number)
        queue.end(*queue.take())
        assert queue.disk.size(path) <= 5 * 4096
    known = [queue.delivery.status(number) for number in range(1, 151)]
    assert queue.store.counts.blocks_reused > 8
    assert known == [Status.CANCELLED if n % 3 else Status.DELIVERED for n in range(150)]
    queue.open()
    assert [queue.delivery.status(number) for number in range(1, 151)] == known
    queue.now_ns += 2 * DAY_NS
    while queue.delivery.status(1):
        queue.end(*queue.put(bytes(3000)))
    assert queue.delivery.cancel(1) is CancelAnswer.DELIVERED


def test_ends_that_a_crash_took_back_are_not_what_is_remembered_of_an_item(queue: Queue) -> None:
    store = queue.store
    while len(store.live) < 2 or store.live[-1].has_room(4096, 1):
        queue.put(bytes(3000))
    first = store.live[0]
    numbers = range(first.first_id, first.next_id)
    queue.delivery.deliver(numbers)
    store.add([bytes(3000)])
    sealed = store.seal(queue.now_ns)
    carry_out(queue.disk, sealed.steps[:2])  # of the file `ended`; then the power goes
    assert sealed.steps[0].path.endswith("ended")
    queue.open()
    assert {queue.delivery.status(number) for number in numbers} == {Status.PENDING}
    cancelled, forward = queue.delivery.cancel_all(0)
    assert set(numbers) <= set(cancelled)
    assert forward == []
    while queue.delivery.find(numbers[0]) is not None:
        queue.end(*queue.put(bytes(3000)))
    for _ in range(2):
        assert {queue.delivery.status(number) for number in numbers} == {Status.CANCELLED}
        queue.open()


def test_a_page_of_ended_items_that_does_not_verify_is_reported_once_and_taken_away(
    queue: Queue,
) -> None:
    while queue.store.counts.blocks_reused < 2:
        queue.end(*queue.put(bytes(3000)))
    queue.disk.decay(f"{FOLDER}/ended", 8 * 70)
    assert any("1 page(s) do not verify" in text for text in verify(queue.disk, FOLDER).problems)
    queue.open()
    assert any("1 page(s) do not verify" in text for text in queue.report.problems)
    assert queue.delivery.status(1) is None
    assert not verify(queue.disk, FOLDER).problems
    queue.open()
    assert not queue.report.problems


def test_orders_known_to_be_done_with_are_bounded(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr("feedhandler.journal.delivery.CLOSED_MAX", 4)
    queue.end(*queue.put(*[b"x"] * 8))
    for number in range(1, 6):
        queue.delivery.close_order(number)
    assert queue.delivery.cancel_all(0) == ([], [1, 2, 6, 7, 8])


def test_items_of_several_segments_one_of_them_damaged_come_in_order(queue: Queue) -> None:
    for contents in ([b"a", b"b"], [b"c", b"needle", b"d"], [b"e", b"f"]):
        queue.put(*contents)
    hit(queue, 4)
    assert [item.content for item in queue.delivery.peek(0, 99)] == [
        b"a", b"b", b"c", b"d", b"e", b"f",
    ]  # fmt: skip
    assert queue.delivery.status(4) is Status.DAMAGED
    assert [item.content for item in queue.delivery.take(5)] == [b"a", b"b", b"c", b"d", b"e"]


def test_what_the_newest_checkpoint_knows_counts_where_no_segment_is_left(queue: Queue) -> None:
    queue.put(b"a")
    found = recover(queue.disk, FOLDER)
    newest = Roll(99, 1, 0, 7)
    found.live = []
    recovery._roll_forward(queue.disk, found, newest)
    assert (found.sequence, found.chain) == (99, 7)


def test_many_changes_and_a_large_item_do_not_share_a_segment(queue: Queue) -> None:
    queue.put(*[b""] * 480)
    for number in range(1, 480, 2):
        queue.delivery.cancel(number)
    limit = queue.store.geometry.tail - queue.store.geometry.data - 4096
    before = queue.store.counts.flushes
    assert queue.put(bytes(limit)) == [481]
    assert queue.store.counts.flushes == before + 2


def test_a_queue_without_its_file_of_ended_items_gets_another(queue: Queue) -> None:
    queue.put(b"a")
    queue.disk.remove(f"{FOLDER}/ended")
    queue.open()
    assert queue.take() == [1]


def test_checkpoints_follow_many_changes_whatever_their_bytes(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr("feedhandler.journal.store.CHANGES_CHECKPOINT", 10)
    queue.put(*[b""] * 40)
    before = queue.store.counts.rounds
    for number in range(1, 40, 2):
        queue.delivery.cancel(number)
    queue.flush()
    queue.put(b"")
    assert queue.store.counts.rounds == before + 1


def test_a_block_that_is_used_anew_without_ever_holding_an_item_leaves_no_record() -> None:
    queue = Queue()
    queue.put(b"a")
    queue.store.settings = replace(SMALL, blocks_max=2)
    while len(queue.store.live) < 2:
        queue.put(bytes(3000))
    empty = queue.store.live[0]
    empty.statuses.clear()
    empty.active = 0
    before = queue.store.ended_end
    while queue.store.live[0] is empty:
        queue.put(bytes(3000))
    assert queue.store.ended_end == before


def test_verify_tells_of_headers_trailers_heads_fill_and_status_records(queue: Queue) -> None:
    queue.put(b"a", b"b")
    queue.delivery.cancel(1)
    queue.put(b"c")
    block = queue.store.live[-1]
    start = block.geometry.data
    for at, text in (
        (5, "its header does not verify"),
        (4096 - 10, "header and trailer differ"),
        (4096 - 100, "fill is not zero"),
        (64 + 9, "its head does not verify"),
        (4096 + 64 + 3, "1 status record"),
    ):
        disk = queue.disk.copy()
        disk.decay(block.path, 8 * (start + at))
        assert any(text in line for line in verify(disk, FOLDER).problems), text
    queue.open()
    disk = queue.disk.copy()
    carry_out(disk, [Write(block.path, start + 4096, b"\xff" * 4096)])
    assert any("no segment verifies" in line for line in verify(disk, FOLDER).problems)
