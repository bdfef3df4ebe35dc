"""The open queue, for asyncio and for threads: waiting, callbacks, owners, disks that fail."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.journal import (
    BlockingQueue,
    CancelAnswer,
    PersistentQueue,
    QueueClosed,
    QueueStopped,
    Status,
)
from feedhandler.journal.owner import owner_of
from tests.support.journal import DAY_NS, SMALL
from tests.support.simulated_disk import Fault, SimulatedDisk

pytestmark = pytest.mark.gateways_loop

PATIENCE_S = 60.0


@pytest.fixture
def ids() -> dict[str, list[int]]:
    """Ids by callback."""
    return {name: [] for name in ("on_delivered", "on_cancelled", "on_expired", "on_forward")}


def callbacks(ids: dict[str, list[int]]) -> dict[str, Callable[[int], None]]:
    """Callbacks that note the ids they are called with."""
    return {name: numbers.append for name, numbers in ids.items()}


async def test_items_are_put_handed_out_and_delivered(tmp_path: Path, ids) -> None:
    async with PersistentQueue.open(tmp_path, SMALL, **callbacks(ids)) as queue:
        assert await queue.put(b"a") == 1
        assert list(await queue.put_many([b"b", b"c"])) == [2, 3]
        assert list(await queue.put_many([])) == []
        assert (await queue.get()).content == b"a"
        assert [item.id async for item in queue.pending()] == [1, 2, 3]
        assert await queue.delivered(1) == 1
        assert await queue.delivered(1) == 0
        assert await queue.cancel(1) is CancelAnswer.DELIVERED
        for _ in range(2):  # reported once
            assert await queue.cancel(2) is CancelAnswer.CANCELLED
        assert await queue.cancel_all() == ([3], [1])
        assert queue.statistics()["pending"] == 0
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        assert [item.id async for item in queue.pending()] == []
        assert queue.engine.status(2) is Status.CANCELLED
    assert ids == {
        "on_delivered": [1], "on_cancelled": [2, 3], "on_expired": [], "on_forward": [1, 1],
    }  # fmt: skip


async def test_many_producers_share_a_sync(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        await queue.put(b"first")
        before = queue.statistics()["flushes"]
        numbers = await asyncio.gather(*(queue.put(b"%d" % n) for n in range(64)))
        assert sorted(numbers) == list(range(2, 66))
        assert queue.statistics()["flushes"] - before <= 3


async def test_consumers_wait_for_items_and_share_them(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        consumers = [asyncio.create_task(queue.get()) for _ in range(3)]
        gone = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        gone.cancel()
        await queue.put_many([b"a", b"b", b"c"])
        got = await asyncio.gather(*consumers)
        assert sorted(item.id for item in got) == [1, 2, 3]
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        await queue.release(2)
        assert (await waiting).id == 2


async def test_a_cancel_of_what_a_consumer_has_is_forwarded_or_done(tmp_path: Path, ids) -> None:
    async with PersistentQueue.open(tmp_path, SMALL, **callbacks(ids)) as queue:
        await queue.put_many([b"a", b"b"])
        await queue.get_many(2)
        assert await queue.cancel(1) is CancelAnswer.DELIVERING
        assert await queue.cancel(2) is CancelAnswer.DELIVERING
        await queue.delivered(1)
        await queue.release(2)
        queue.close_order(1)
        assert await queue.cancel_all() == ([], [])
    assert ids["on_forward"] == [1]
    assert ids["on_cancelled"] == [2]


async def test_items_of_yesterday_expire_when_the_queue_is_opened_and_while_it_is(
    tmp_path: Path, ids
) -> None:
    settings = replace(SMALL, day_zone="UTC")
    now_ns = DAY_NS * 20_000
    options = {"clock": lambda: now_ns, **callbacks(ids)}
    async with PersistentQueue.open(tmp_path, settings, **options) as queue:
        await queue.put(b"a")
        now_ns += DAY_NS
        assert await queue.expire() == [1]
        assert await queue.expire() == []
        await queue.put_many([b"b", b"c"])
        assert (await queue.get()).id == 2
        now_ns += DAY_NS
        assert await queue.expire() == [3]
        await queue.release(2)
        await queue.put(b"d")
    now_ns += DAY_NS
    async with PersistentQueue.open(tmp_path, settings, **options) as queue:
        assert [item.id async for item in queue.pending()] == []
    assert ids["on_expired"] == [1, 3, 2, 4]


async def test_a_full_queue_makes_producers_wait_until_something_is_delivered(
    tmp_path: Path,
) -> None:
    settings = replace(SMALL, blocks_max=2, waiting_bytes_max=20_000)
    async with PersistentQueue.open(tmp_path, settings) as queue:
        producers = [asyncio.create_task(queue.put(bytes(3000))) for _ in range(60)]
        while not queue.statistics()["stalls"]:
            await asyncio.sleep(0)
        assert not all(task.done() for task in producers)
        for _ in range(60):
            await queue.delivered((await queue.get()).id)
        assert sorted(await asyncio.gather(*producers)) == list(range(1, 61))


async def test_a_queue_grows_while_it_takes_items(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        await asyncio.gather(*(queue.put(bytes(3000)) for _ in range(50)))
        assert queue.statistics()["blocks_grown"] >= 1


async def test_a_failed_sync_stops_the_queue_and_fails_all_that_wait(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opening = PersistentQueue.open(tmp_path, SMALL, files=disk)
    queue = await opening.__aenter__()
    await queue.put(b"a")
    consumer = asyncio.create_task(queue.get_many(5))
    await consumer
    consumer = asyncio.create_task(queue.get())
    disk.fault = Fault(disk.calls + 2, "EIO")  # the write goes well, its sync does not
    results = await asyncio.gather(
        *(queue.put(b"%d" % n) for n in range(5)), consumer, return_exceptions=True
    )
    assert all(isinstance(result, QueueStopped) for result in results)
    disk.fault = None
    for call in (queue.put(b"x"), queue.cancel(1), queue.get(), queue.delivered(1)):
        with pytest.raises(QueueStopped, match="Input/output error"):
            await call
    calls = disk.calls
    await opening.__aexit__(None, None, None)
    assert disk.calls == calls
    assert "Input/output error" in queue.statistics()["stopped"]


async def test_a_producer_that_goes_away_and_others_that_wait_for_room_are_served(
    tmp_path: Path,
) -> None:
    settings = replace(SMALL, waiting_bytes_max=1)
    async with PersistentQueue.open(tmp_path, settings) as queue:
        gone = asyncio.create_task(queue.put(b"gone"))
        await asyncio.sleep(0)
        gone.cancel()
        waiting = [queue.put_many([b"a", b"b"]), queue.put(b"c"), queue.put_many([b"d"])]
        await asyncio.gather(*waiting)
        assert len([item async for item in queue.pending()]) == 5


async def test_an_item_that_is_too_large_is_refused_by_itself(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        with pytest.raises(UsageError, match="at most 45,056"):
            await queue.put(bytes(50_000))
        assert await queue.put(b"a") == 1


async def test_a_waiter_is_told_when_the_queue_is_closed(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        consumer = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
    with pytest.raises(QueueClosed):
        await consumer
    with pytest.raises(QueueClosed):
        await queue.put(b"x")


def test_a_queue_has_one_owner_and_the_second_is_told_who(tmp_path: Path) -> None:
    with BlockingQueue(tmp_path, SMALL) as queue:
        assert f"process {os.getpid()} on" in owner_of(str(tmp_path))
        with pytest.raises(UsageError, match=f"open already: process {os.getpid()} on"):
            BlockingQueue(tmp_path, SMALL)
        code = (
            "import sys; from feedhandler.journal import BlockingQueue; BlockingQueue(sys.argv[1])"
        )
        child = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert f"process {os.getpid()} on" in child.stderr
        queue.put(b"still mine")
    assert owner_of(str(tmp_path)) == ""
    assert owner_of(str(tmp_path / "nothing")) == ""
    with BlockingQueue(tmp_path, SMALL) as queue:
        assert queue.get(0).content == b"still mine"


def test_a_folder_that_cannot_be_opened_is_left_unlocked(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"something else entirely")
    for _ in range(2):
        with pytest.raises(Exception, match="another queue"):
            BlockingQueue(tmp_path, SMALL)


def test_a_full_disk_does_not_keep_a_folder_locked(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(OSError, match="no space"):
            BlockingQueue(tmp_path, SMALL)
    BlockingQueue(tmp_path, SMALL).close()


# -- threads ----------------------------------------------------------------------------------


def test_threads_put_get_and_deliver(tmp_path: Path, ids) -> None:
    with BlockingQueue(tmp_path, SMALL) as queue:
        for name, callback in callbacks(ids).items():
            setattr(queue.engine, name, callback)
        got: list[int] = []

        def produce() -> None:
            for n in range(20):
                queue.put(b"%d" % n)

        def consume() -> None:
            for _ in range(40):
                item = queue.get(PATIENCE_S)
                assert item is not None
                queue.delivered(item.id)
                got.append(item.id)

        threads = [threading.Thread(target=work) for work in (produce,) * 4 + (consume,) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(got) == list(range(1, 81))
        assert sorted(ids["on_delivered"]) == sorted(got)
        assert queue.get(0) is None
        assert list(queue.put_many([])) == []


def test_threads_cancel_release_and_look(tmp_path: Path, ids) -> None:
    with BlockingQueue(tmp_path, SMALL) as queue:
        for name, callback in callbacks(ids).items():
            setattr(queue.engine, name, callback)
        queue.put_many([b"a", b"b", b"c"])
        assert queue.get_many(2)[1].id == 2
        assert queue.cancel(2) is CancelAnswer.DELIVERING
        queue.release(1)
        queue.release(2)
        assert queue.cancel(3) is CancelAnswer.CANCELLED
        assert [item.id for item in queue.pending()] == [1]
        assert queue.cancel_all() == ([1], [])
        assert queue.expire() == []
        assert queue.statistics()["pending"] == 0
    assert ids["on_cancelled"] == [2, 3, 1]


def test_a_thread_waits_while_the_queue_is_full_and_a_block_cannot_be_made(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    settings = replace(SMALL, waiting_bytes_max=4000)
    with BlockingQueue(tmp_path, settings, files=disk) as queue:
        create = disk.create
        disk.create = lambda path: (_ for _ in ()).throw(OSError(28, "no space"))  # type: ignore
        threads = [threading.Thread(target=queue.put, args=(bytes(3000),)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            item = queue.get(PATIENCE_S)
            assert item is not None
            queue.delivered(item.id)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert queue.statistics()["growth_failures"] >= 1
        assert queue.statistics()["blocks"] == 2
        disk.create = create  # type: ignore[method-assign]


async def test_a_queue_grows_again_by_itself_once_its_disk_has_room(
    tmp_path: Path, monkeypatch
) -> None:
    logged: list[str] = []
    engine = "feedhandler.journal.engine"
    monkeypatch.setattr(f"{engine}.log_event", lambda event, *_, **__: logged.append(event))
    monkeypatch.setattr(f"{engine}.GROWTH_PAUSE_NS", 1_000_000)
    disk = SimulatedDisk()
    create, failed = disk.create, asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(path: str) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise OSError(28, "no space")

    settings = replace(SMALL, waiting_bytes_max=4000)
    async with PersistentQueue.open(tmp_path, settings, files=disk) as queue:
        disk.create = refuse  # type: ignore[method-assign, assignment]
        puts = [asyncio.ensure_future(queue.put(bytes(3000))) for _ in range(40)]
        for _ in range(2):
            await failed.wait()
            failed.clear()
        assert not all(put.done() for put in puts)
        assert logged == ["queue_cannot_grow"]
        disk.create = create  # type: ignore[method-assign]
        # Nothing is delivered meanwhile: only growing makes room.
        await asyncio.gather(*puts)
    assert logged == ["queue_cannot_grow", "queue_grows"]


def test_a_failed_write_stops_every_thread(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    queue = BlockingQueue(tmp_path, SMALL, files=disk)
    queue.put(b"a")
    disk.fault = Fault(disk.calls + 1, "ENOSPC", for_good=True)
    for call in (lambda: queue.put(b"b"), lambda: queue.get(0), lambda: queue.cancel(1)):
        with pytest.raises(QueueStopped, match="simulated ENOSPC"):
            call()
    queue.close()
    with pytest.raises(QueueStopped):
        queue.put(b"c")
