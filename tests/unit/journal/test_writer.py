"""The writing thread, what waits for it, and who."""

import asyncio
import errno
import os
import select
import threading
from pathlib import Path

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.journal import (
    CancelAnswer,
    PersistentQueue,
    QueueStopped,
    commit_scheduler,
    pending_batch,
    writer,
)
from feedhandler.journal.engine import Engine
from feedhandler.journal.files import Sync
from feedhandler.journal.store import Flush, Store
from tests.support.journal import DAY_NS, SMALL
from tests.support.simulated_disk import Fault, SimulatedDisk

PATIENCE_S = 60.0


def until(thread, count: int) -> None:
    """Wait until so much is done, or it has failed."""
    while thread.done() < count and not thread.error_number and thread.failure is None:
        assert select.select([thread.event_fd], [], [], PATIENCE_S)[0]
        thread.clear_wakeup()


@pytest.mark.parametrize("through", [True, False])
def test_segments_are_written_in_the_order_in_which_they_were_handed_over(
    tmp_path: Path, through: bool
) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    thread = writer.Writer()
    thread.write(file, b"a" * 8192, 0, through)
    thread.write(file, memoryview(bytearray(b"b" * 100)), 4096, through)
    until(thread, 2)
    seen: list[bytes] = []
    thread.call(lambda: seen.append(os.pread(file, 1 << 20, 4090)))
    thread.write(file, b"c", 0, through)
    thread.end()
    assert thread.done() == 4
    assert seen == [b"a" * 6 + b"b" * 100 + b"a" * 3996]
    assert os.pread(file, 2, 0) == b"ca"
    thread.clear_wakeup()
    thread.clear_wakeup()  # nothing more: it does not wait
    thread.close()
    os.close(file)


def test_after_a_write_that_failed_nothing_is_done_any_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"-")
    good, bad = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    thread = writer.Writer()
    gate = threading.Event()
    thread.call(lambda: gate.wait(PATIENCE_S))
    thread.write(bad, b"x", 0, True)
    thread.write(good, b"y", 0, True)
    gate.set()
    until(thread, 3)
    assert thread.error_number == errno.EBADF
    thread.end()
    assert thread.done() == 1
    assert path.read_bytes() == b"-"
    thread.close()
    os.close(good)
    os.close(bad)


def test_what_belongs_together_is_confirmed_when_all_of_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    thread = writer.Writer()
    thread.write(file, b"one", 0, False, True)
    thread.sync(file, True)
    assert thread.write(file, b"two", 3, True) == 3
    until(thread, 3)
    assert path.read_bytes() == b"onetwo"
    # A sync that fails is the end of everything, as a write that does.
    thread.sync(thread.event_fd)
    thread.write(file, b"three", 6, False)
    until(thread, 5)
    assert thread.error_number == errno.EINVAL
    thread.end()
    assert thread.done() == 3
    assert path.read_bytes() == b"onetwo"
    thread.close()
    os.close(file)


def test_after_a_call_that_failed_nothing_is_done_any_more() -> None:
    for error in (ValueError("no"), OSError(errno.EIO, "no")):
        thread = writer.Writer()

        def fail(error: Exception = error) -> None:
            raise error

        thread.call(fail)
        until(thread, 1)
        assert (thread.failure, thread.error_number) in ((error, 0), (None, errno.EIO))
        thread.end()
        assert thread.done() == 0
        thread.close()


def test_no_more_is_handed_over_than_there_are_slots_for() -> None:
    thread = writer.Writer()
    gate = threading.Event()
    for number in range(writer.RING_ENTRIES):
        assert thread.call(gate.wait) == number + 1
    assert thread.room() == -1
    with pytest.raises(AssertionError):
        thread.call(gate.wait)
    gate.set()
    until(thread, writer.RING_ENTRIES)
    assert thread.room() == writer.RING_ENTRIES - 1
    thread.end()
    thread.close()


def test_the_twin_syncs_where_a_file_system_cannot_write_through_by_a_flag(
    tmp_path: Path, monkeypatch
) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    real, calls = os.pwritev, []

    def pwritev(file: int, parts: list, at: int, flag: int) -> int:
        calls.append(flag)
        if flag:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(file, [parts[0][:3]], at)

    monkeypatch.setattr("os.pwritev", pwritev)
    thread = load_interpreted(writer.__name__).Writer()
    thread.write(file, b"abcde", 0, True)
    until(thread, 1)
    thread.end()
    thread.close()
    assert calls == [os.RWF_DSYNC, 0, 0]
    assert os.pread(file, 9, 0) == b"abcde"
    os.close(file)


def test_what_waits_goes_in_the_order_in_which_it_came() -> None:
    held = pending_batch.PendingBatch(5)
    assert held.put(b"one") == 5
    assert held.put_all([b"two", b"three"]) == 6
    assert (held.next_id, held.content_bytes) == (8, 11 + 3 * 16)
    assert held.batch(1000, 10) == (3, 11)
    assert held.batch(1000, 2) == (2, 6)
    assert held.batch(38, 10) == (2, 6)
    assert held.batch(37, 10) == (1, 3)
    assert held.batch(1, 10) == (1, 3)
    assert held.pop(2, 6) == [b"one", b"two"]
    assert held.pop(1, 5) == [b"three"]
    assert (held.contents, held.content_bytes) == ([], 0)


def test_status_changes_that_follow_each_other_are_one() -> None:
    held = pending_batch.PendingBatch(1)
    for first, count, status in ((1, 2, 1), (3, 1, 1), (4, 1, 2), (6, 1, 2)):
        held.record(first, count, status)
    assert held.changes == [(1, 3, 1), (4, 1, 2), (6, 1, 2)]
    assert held.changes_added == 3
    assert held.pop_changes(2) == [(1, 3, 1), (4, 1, 2)]
    assert held.changes == [(6, 1, 2)]


async def test_producers_are_served_by_halves_and_items_come_back(tmp_path: Path) -> None:
    async def produce(opened: PersistentQueue, name: int) -> list[int]:
        return [await opened.put(b"%d %d" % (name, n)) for n in range(10)]

    async with PersistentQueue.open(tmp_path, SMALL) as opened:
        numbers = await asyncio.gather(*(produce(opened, name) for name in range(32)))
        assert all(own == sorted(own) for own in numbers)
        assert sorted(number for own in numbers for number in own) == list(range(1, 321))
        assert opened.statistics()["flushes_prepared"]
        assert list(await opened.put_many([b"a", bytearray(b"b"), b""])) == [321, 322, 323]
        assert list(await opened.put_many([])) == []
        assert opened.put_soon([b"soon"]) == 324
        items = await opened.get_many(400)
        while len(items) < 324:
            items += await opened.get_many(400)
        assert [item.id for item in items] == list(range(1, 325))
        assert [item.content for item in items[-4:]] == [b"a", b"b", b"", b"soon"]
        assert await opened.delivered(*range(1, 320)) == 319
        assert await opened.cancel(1) is CancelAnswer.DELIVERED
    engine = Engine(tmp_path, SMALL)
    assert [item.content for item in engine.peek(0, 9)][-3:] == [b"b", b"", b"soon"]
    engine.close()


async def test_a_real_disk_that_fails_stops_the_queue(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL, clock=lambda: DAY_NS) as opened:
        await opened.put(b"good")
        path = opened.engine._store.live[-1].path
        opened.engine._files._forget(path)
        opened.engine._files._open[path] = os.open(path, os.O_RDONLY)
        results = await asyncio.gather(
            *(opened.put(b"%d" % n) for n in range(20)), return_exceptions=True
        )
        assert {type(result) for result in results} == {QueueStopped}
        with pytest.raises(QueueStopped, match="Bad file descriptor"):
            await opened.put(b"x")
    engine = Engine(tmp_path, SMALL)
    assert [item.content for item in engine.peek(0, 9)] == [b"good"]
    engine.close()


@pytest.mark.parametrize("call", [1, 2, 3, 4])
async def test_what_is_behind_a_segment_that_failed_is_neither_written_nor_acknowledged(
    tmp_path: Path, call: int
) -> None:
    """A write and a sync each: the first segment's are calls 1 and 2, the next one's 3 and 4."""
    disk, gate = SimulatedDisk(), threading.Event()
    async with PersistentQueue.open(tmp_path, SMALL, files=disk) as opened:
        calls = disk.calls
        disk.before_call = lambda _: gate.wait(PATIENCE_S)
        disk.fault = Fault(calls + call)
        first = asyncio.ensure_future(opened.put(b"first"))
        while opened.engine._store.in_flight is None:
            await asyncio.sleep(0)
        behind = [asyncio.ensure_future(opened.put(bytes(3000))) for _ in range(3)]
        while not opened.statistics()["flushes_prepared"]:
            await asyncio.sleep(0)
        late = asyncio.ensure_future(opened.put(b"late"))
        gate.set()
        results = await asyncio.gather(first, *behind, late, return_exceptions=True)
        assert (results[0] == 1) is (call > 2)
        assert all(isinstance(result, QueueStopped) for result in results[call > 2 :])
    assert disk.calls == calls + call
    disk.fault = None
    engine = Engine(tmp_path, SMALL, files=disk)
    found = [item.content for item in engine.peek(0, 9)]
    assert found == [b"first", bytes(3000), bytes(3000)][: (0, 1, 1, 3)[call - 1]]
    engine.close()


def test_close_raises_where_the_last_segment_failed(tmp_path: Path) -> None:
    disk, gate = SimulatedDisk(), threading.Event()

    async def work() -> None:
        async with PersistentQueue.open(tmp_path, SMALL, files=disk) as opened:
            disk.before_call = lambda _: gate.wait(PATIENCE_S)
            disk.fault = Fault(disk.calls + 1)
            opened.put_soon([b"no caller waits for it"])
            while opened.engine._store.in_flight is None:
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(gate.set)  # once it is being closed

    with pytest.raises(QueueStopped, match="Input/output error"):
        asyncio.run(work())


async def test_changes_that_a_checkpoint_has_already_are_confirmed_where_no_block_has_room(
    tmp_path: Path, monkeypatch
) -> None:
    """Then there is nothing to write, and who waits is told all the same."""
    async with asyncio.timeout(PATIENCE_S), PersistentQueue.open(tmp_path, SMALL) as opened:
        await opened.put(b"a")
        store = opened.engine._store
        with monkeypatch.context() as patch:
            patch.setattr(Store, "_fits", lambda *_: False)
            patch.setattr(Store, "_begin_block", lambda *_: False)
            telling = asyncio.ensure_future(opened.cancel(1))
            await asyncio.sleep(0)
            while any(store.live[-1].uncovered):
                store._checkpoint(store.live[-1], [])
            assert await telling is CancelAnswer.CANCELLED


async def test_behind_as_much_as_the_thread_takes_there_is_room_for_a_segment_and_the_end(
    tmp_path: Path, monkeypatch
) -> None:
    gate, sync = threading.Event(), os.fdatasync

    def gated(file: int) -> None:  # of the twin only: the compiled thread does not ask for it
        assert gate.wait(PATIENCE_S)
        sync(file)

    async with PersistentQueue.open(tmp_path, SMALL) as opened:
        engine = opened.engine
        path = engine._store.live[-1].path
        ways = [
            Flush([Sync(path)] * (writer.RING_ENTRIES - 1), 0, 0),
            Flush([Sync(path)], 0, 0),
        ]
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", gated)
            patch.setattr(engine, "begin", lambda: ways.pop(0) if ways else None)
            patch.setattr(engine, "finish", lambda: None)
            opened.put_soon([bytes(3000)] * 3)
            assert not ways
            asyncio.get_running_loop().call_soon(gate.set)
            await opened._close()
        opened._close = lambda: asyncio.sleep(0)


async def test_a_file_that_cannot_be_opened_stops_the_queue(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as opened:
        path = opened.engine._store.live[-1].path
        opened.engine._files._forget(path)
        os.rename(path, path + ".gone")
        with pytest.raises(QueueStopped, match="No such file"):
            await opened.put(b"x")
        os.rename(path + ".gone", path)


async def test_what_goes_wrong_in_the_thread_is_not_kept_quiet(tmp_path: Path) -> None:
    errors: list[object] = []
    disk = SimulatedDisk()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(context["exception"])
    )
    async with PersistentQueue.open(tmp_path, SMALL, files=disk) as opened:
        disk.before_call = lambda _: 1 // 0
        with pytest.raises(QueueStopped, match="ZeroDivisionError"):
            await opened.put(b"x")
    assert isinstance(errors[0], ZeroDivisionError)


async def test_checkpoints_and_new_blocks_go_to_a_real_disk_without_the_interpreter(
    tmp_path: Path, monkeypatch
) -> None:
    """Only what the file of ended items needs, once it has grown too long, is a call."""
    called: list[object] = []
    async with PersistentQueue.open(tmp_path, SMALL) as opened:
        monkeypatch.setattr(
            commit_scheduler, "carry_out", lambda files, steps: called.append(steps)
        )
        number = 0
        while opened.statistics()["blocks_reused"] < 2:
            number = await opened.put(bytes(3000))
            assert await opened.delivered(number) == 1
        assert opened.statistics()["checkpoints"] > 4
        assert await opened.put(b"last") == number + 1
    assert called == []
    engine = Engine(tmp_path, SMALL)
    assert [item.content for item in engine.peek(0, 9)] == [b"last"]
    engine.close()
