"""The engine's interface for owners of a queue: figures, items read and ended, days, groups."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.journal import CancelAnswer, QueueStopped, Status
from feedhandler.journal.engine import Engine
from feedhandler.journal.layout import VERSION
from tests.support.journal import DAY_NS, SMALL
from tests.support.simulated_disk import SimulatedDisk


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now_ns = DAY_NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def engine(tmp_path, disk: SimulatedDisk, clock: Clock) -> Iterator[Engine]:
    engine = Engine(tmp_path, replace(SMALL, day_zone="UTC"), files=disk, clock=clock)
    yield engine
    engine.close()


def test_what_is_put_waits_for_a_flush(engine: Engine) -> None:
    assert engine.put([b"a", b"b"]) == 1
    assert (engine.next_id, engine.visible_end, engine.durable_id) == (3, 1, 0)
    assert engine.waiting_bytes > 2
    assert engine.has_waiting
    assert engine.flush()
    assert (engine.next_id, engine.visible_end, engine.durable_id) == (3, 3, 2)
    assert engine.waiting_bytes == 0
    assert not engine.has_waiting
    assert engine.has_room


def test_a_queue_says_what_it_is(engine: Engine, clock: Clock) -> None:
    assert len(engine.queue_id) == 16
    assert engine.version == VERSION
    assert engine.incarnation == 1
    assert engine.file_bytes == SMALL.blocks * SMALL.block_bytes
    assert engine.damaged == 0
    assert engine.now_ns() == clock.now_ns
    assert engine.put([bytes(engine.item_bytes_max)]) == 1
    with pytest.raises(UsageError, match="holds at most"):
        engine.put([bytes(engine.item_bytes_max + 1)])


def test_items_are_claimed_and_read_by_their_owner(engine: Engine) -> None:
    engine.put([b"a", b"b", b"c"])
    engine.flush()
    claimed = engine.claim(2)
    reader = engine.new_reader()
    assert [(n, reader.content(block, n)) for n, block in claimed] == [(1, b"a"), (2, b"b")]
    assert engine.in_hand(1)
    assert not engine.in_hand(3)
    assert engine.deliver([1]) == ([1], [])
    block = engine.find(1)
    assert block is not None
    assert reader.content(block, 1) == b"a"
    assert engine.read(1) is None
    assert engine.read_many([2, 3], 100) == {2: b"b", 3: b"c"}
    assert engine.at_hand(3) == b"c"
    assert [item.id for item in engine.peek_raw(0, 9)] == [2, 3]
    assert list(engine.walk_blocks(1)) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert list(engine.walk_blocks(3)) == [(3, b"c")]


def test_a_held_item_is_not_cancelled_with_the_others(engine: Engine) -> None:
    engine.put([b"a", b"b"])
    engine.flush()
    engine.hold(1)
    assert engine.cancel_all() == ([2], [])
    assert engine.cancel(1) == (CancelAnswer.DELIVERING, False)
    assert engine.cancel(2) == (CancelAnswer.CANCELLED, False)
    assert engine.release(1) is Status.CANCELLED
    assert engine.cancel(9) == (CancelAnswer.UNKNOWN, False)


def test_an_item_that_does_not_verify_is_spoiled(engine: Engine) -> None:
    engine.put([b"a"])
    engine.flush()
    engine.claim(1)
    engine.spoil(1)
    assert engine.damaged == 1
    assert engine.status(1) is Status.DAMAGED


def test_a_day_begins_once(engine: Engine, clock: Clock) -> None:
    engine.put([b"a", b"b"])
    engine.flush()
    assert engine.begin_day() == 0
    clock.now_ns += DAY_NS
    engine.put([b"c"])
    engine.flush()
    assert engine.begin_day() == 3
    assert engine.since_ns == engine.day_ns == 2 * DAY_NS
    assert engine.begin_day() == 0
    assert engine.day_over() == []
    assert engine.peek(0, 9)[0].id == 1


def test_a_queue_without_days_has_none_begin(tmp_path, disk: SimulatedDisk, clock: Clock) -> None:
    engine = Engine(tmp_path, SMALL, files=disk, clock=clock)
    clock.now_ns += 3 * DAY_NS
    assert engine.begin_day() == 0
    assert engine.day_over() == []
    assert engine.since_ns < clock.now_ns
    engine.close()


def test_a_group_is_checked_without_being_done(engine: Engine) -> None:
    engine.check_commit([b"a"], 3, {b"p": (1, 1)})
    for puts, changes in (([bytes(1 << 20)], 0), ([], 100_000)):
        with pytest.raises(UsageError, match="commit less at once"):
            engine.check_commit(puts, changes)
    assert (engine.next_id, engine.producers()) == (1, {})


def test_a_read_that_fails_stops_the_queue_unless_its_owner_sees_to_it(
    engine: Engine, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put([b"a"])
    engine.flush()

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "pread", fail)
    monkeypatch.setattr(disk, "pread_parts", fail)
    with pytest.raises(OSError, match="Input/output error"):
        engine.peek_raw(0, 1)
    assert engine.stopped is None
    with pytest.raises(QueueStopped):
        engine.peek(0, 1)
    assert engine.stopped is not None
