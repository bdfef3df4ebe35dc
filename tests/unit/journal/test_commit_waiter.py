"""Waiting for a commit: any task is woken, once and in order."""

import asyncio
import contextvars
import gc
from pathlib import Path
from typing import Any

import pytest

from feedhandler.journal import PersistentQueue
from feedhandler.journal.commit_waiter import CommitWaiters
from tests.support.journal import SMALL

pytestmark = pytest.mark.gateways_loop

PATIENCE_S = 60.0
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


@pytest.fixture(params=[asyncio.Task, asyncio.tasks._PyTask], ids=["task", "task in Python"])
def kind(request):
    """Return the class of task that drives coroutines."""
    return request.param


async def called(function, *arguments) -> None:
    """Have the event loop call that, outside of any task."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def call() -> None:
        try:
            function(*arguments)
            over.set_result(None)
        except BaseException as error:  # or a loop that ends would be the test's
            over.set_exception(RuntimeError(repr(error)))

    loop.call_soon(call)
    await over


async def waiting(loop, kind, line, log: list[Any], targets: range) -> list[asyncio.Task[None]]:
    """Tasks that wait for these, and note what came of it."""

    async def wait(target: int) -> None:
        NAME.set(f"task {target}")
        one = line.add(target)
        assert one.target == target
        try:
            await one
        except BaseException as error:
            log.append((target, error.args))
            raise
        log.append((target, NAME.get()))

    tasks = [kind(wait(target), loop=loop) for target in targets]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("at_once", [True, False])
async def test_those_are_woken_whose_turn_has_come_with_their_own_context(kind, at_once) -> None:
    loop, line, log = asyncio.get_running_loop(), CommitWaiters(), []
    tasks = await waiting(loop, kind, line, log, range(6))
    behind: list[Any] = []
    await called(lambda: (line.complete(3, None, at_once), behind.extend(log)))
    assert behind == ([(n, f"task {n}") for n in range(4)] if at_once else [])
    await asyncio.wait(tasks[:4])
    assert log == [(n, f"task {n}") for n in range(4)]
    assert NAME.get() == "nobody"
    await called(line.complete, 4, OSError("the disk"), at_once)
    await asyncio.wait(tasks)
    assert log[4:] == [(4, "task 4"), (5, ("the disk",))]
    with pytest.raises(OSError, match="the disk"):
        await tasks[5]
    await called(line.complete, 9, None, at_once)


async def test_a_task_that_is_cancelled_waits_no_more_and_the_others_do(kind) -> None:
    loop, line, log = asyncio.get_running_loop(), CommitWaiters(), []
    tasks = await waiting(loop, kind, line, log, range(3))
    tasks[1].cancel("never mind")
    await asyncio.wait(tasks[1:2])
    assert tasks[1].cancelled()
    assert log == [(1, ("never mind",))]
    await called(line.complete, 2, None, True)
    assert log[1:] == [(0, "task 0"), (2, "task 2")]
    # A task that was woken, and is cancelled before it has had its turn.
    (late,) = await waiting(loop, kind, line, log, range(3, 4))
    await called(line.complete, 3, None, False)
    late.cancel()
    await asyncio.wait([late])
    assert late.done()


async def test_what_ends_event_loops_passes_and_no_waiter_is_forgotten(kind) -> None:
    loop, line, log = asyncio.get_running_loop(), CommitWaiters(), []

    async def leave() -> None:
        await line.add(1)
        raise SystemExit(3)

    first = await waiting(loop, kind, line, log, range(1))
    leaving = kind(leave(), loop=loop)
    await asyncio.sleep(0)
    last = await waiting(loop, kind, line, log, range(2, 3))
    with pytest.raises(RuntimeError, match="SystemExit"):
        await called(line.complete, 2, None, True)
    assert log == [(0, "task 0")]
    await called(line.complete, 2, None, True)
    await asyncio.wait(first + last)
    assert log == [(0, "task 0"), (2, "task 2")]
    assert isinstance(leaving.exception(), SystemExit)


async def test_who_comes_again_within_his_turn_waits_for_the_next() -> None:
    line, log = CommitWaiters(), []

    async def wait() -> None:
        for target in range(1, 4):
            await line.add(target)
            log.append(target)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    for target in range(1, 4):
        await called(line.complete, target, None, True)
        assert log[-1] == target
    await task


async def test_a_long_line_that_is_given_up_takes_no_stack() -> None:
    line = CommitWaiters()
    for target in range(300_000):
        line.add(target)
    del line
    gc.collect()


async def test_putting_is_an_awaitable_like_any_other(tmp_path: Path) -> None:
    async with PersistentQueue.open(tmp_path, SMALL) as queue:
        assert await queue.put(b"1") == 1
        assert await asyncio.wait_for(queue.put(b"2"), PATIENCE_S) == 2
        assert await asyncio.shield(queue.put(b"3")) == 3
        assert await asyncio.create_task(queue.put(b"4")) == 4
        both = await asyncio.gather(queue.put(b"5"), queue.put_many([b"6", b"7"]))
        assert both == [5, range(6, 8)]
        async with asyncio.TaskGroup() as group:
            eighth = group.create_task(queue.put(b"8"))
        assert eighth.result() == 8
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await queue.put(b"9")
        assert [item.id async for item in queue.pending()][:8] == list(range(1, 9))


async def test_a_producer_may_close_the_queue_it_puts_into(tmp_path: Path) -> None:
    opening = PersistentQueue.open(tmp_path, SMALL)
    queue = await opening.__aenter__()
    done = []

    async def produce(last: bool) -> None:
        done.append(await queue.put(b"x"))
        if last:
            await opening.__aexit__(None, None, None)

    await asyncio.gather(*(produce(n == 3) for n in range(9)))
    assert sorted(done) == list(range(1, 10))
