"""A process that works on queues with every call on their files witnessed (`journal_calls`).

Each line of its input is a job; it is done in a fork, and how that ended is printed. A job is
producers, consumers and one who cancels, on one queue in one event loop, until there have been so
many operations or the queue stops. Whatever is acknowledged is noted between the calls.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Coroutine
from typing import Any

import uvloop

from feedhandler.codecs.errors import UsageError
from feedhandler.journal import CancelAnswer, PersistentQueue, QueueStopped, Status
from feedhandler.journal.engine import Engine
from tests.support.journal import DAY_NS
from tests.system.journal_calls import SETTINGS, content_of, note, token_of

#: A job that has not ended by then never does.
LIFE_S = 60
#: How often is looked whether the queue is full.
LOOK_S = 1.0
#: What a sync takes: while a slow one is under way segments gather behind it.
SYNC_US = (0, 100, 500, 500)


class Work:
    """See the module."""

    def __init__(self, queue: PersistentQueue, draw: random.Random, operations: int) -> None:
        self.queue = queue
        self.draw = draw
        self.left = operations
        self.token = 1
        self.groups = 0
        #: Consumers, and those of them that wait for a commit.
        self.consumers = self.committing = 0
        self.at_once = draw.choice((1, 2, 8))

    async def all(self) -> None:
        """Until the operations are used up."""
        producers = [self._produce() for _ in range(self.draw.choice((1, 3, 12, 24, 24)))]
        self.consumers = self.draw.choice((1, 3))
        others = [self._consume() for _ in range(self.consumers)] + [self._cancel()]
        tasks = [asyncio.create_task(self._until_stopped(each)) for each in others]
        produced = asyncio.gather(*map(self._until_stopped, producers))
        full = asyncio.create_task(self._full())
        await asyncio.wait((produced, full), return_when=asyncio.FIRST_COMPLETED)
        works = (produced, full, *tasks)
        for work in works:
            work.cancel()
        for ended in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _full(self) -> None:
        """Until the queue is full of what its consumers hold, who all wait for room in it: it stays
        so (docs/journal.md), and nobody goes on. It tries: `stalls` rises, for no block is to be
        had. A queue that hangs otherwise is none of that."""
        before = self.queue.statistics()
        while True:
            await asyncio.sleep(LOOK_S)
            now = self.queue.statistics()
            none_left = (
                now["blocks"] == now["blocks_max"]
                and self.queue.engine._store._next_block() is None
            )
            tries = now["stalls"] > before["stalls"] and now["items"] == before["items"]
            if self.committing == self.consumers and none_left and tries:
                note("full")
                return
            before = now

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except QueueStopped as error:
            self.left = 0
            note("stopped", str(error))

    def _pairs(self, items: Any) -> list[tuple[int, int]]:
        return [(item.id, token_of(item.content)) for item in items]

    async def _produce(self) -> None:
        while self.left > 0:
            self.left -= 1
            count = self.draw.choice((1, 1, 1, 2, 5))
            # As there is room, ids are given as soon as `put` is called.
            first = self.queue.engine.next_id
            pairs = [(first + n, self.token + n) for n in range(count)]
            contents = [content_of(token) for _, token in pairs]
            self.token += count
            note("tried", pairs)
            if count == 1:
                numbers = [await self.queue.put(contents[0])]
            else:
                numbers = list(await self.queue.put_many(contents))
            assert numbers == [number for number, _ in pairs]
            note("put", pairs)

    async def _consume(self) -> None:
        while True:
            items = await self.queue.get_many(self.draw.choice((1, 4, 20)))
            self.left -= 1
            note("had", self._pairs(items))
            done = [item.id for item in items if self.draw.random() < 0.9]
            kept = sorted({item.id for item in items}.difference(done))
            together = self.draw.random() < 0.4
            if together:
                await self._commit(done, kept)
            for number in kept:
                note("released", number)
                await self.queue.release(number)
            if not together:
                note("ask", Status.DELIVERED, done)
                await self.queue.delivered(*done)

    async def _commit(self, done: list[int], kept: list[int]) -> None:
        """These end, those are marked, items and a producer come of it: all or nothing."""
        first = self.queue.engine.next_id
        count = self.draw.choice((1, 1, 3))
        pairs = [(first + n, self.token + n) for n in range(count)]
        self.token += count
        self.groups += 1
        group = self.groups
        marks = [(number, self.queue.mark_of(number) + 1) for number in kept]
        ends = [(number, Status.DELIVERED) for number in done]
        note("group", group, pairs, ends, marks)
        contents = [content_of(token) for _, token in pairs]
        self.committing += 1
        numbers = await self.queue.commit(contents, ends, marks, {b"worker": (0, group)})
        self.committing -= 1
        assert list(numbers) == [number for number, _ in pairs]
        note("committed", group)
        note("put", pairs)

    async def _cancel(self) -> None:
        queue, draw = self.queue, self.draw
        while True:
            for _ in range(draw.randrange(10 * self.at_once)):
                await asyncio.sleep(0)
            end = queue.engine.visible_end
            number = draw.randrange(max(end - 40, 1), end + 2)
            if draw.random() < 0.03:
                # The thread may make more of them visible between this look and the call.
                self._ask("ask all", 0, 1 << 30)
                note("asked all", (await queue.cancel_all())[0])
            elif queue.status(number) is Status.PENDING:
                self._ask("ask", number - 1, 1)
                answer = await queue.cancel(number)
                assert answer in (CancelAnswer.CANCELLED, CancelAnswer.DELIVERING), answer

    def _ask(self, what: str, after: int, limit: int) -> None:
        """These are going to be cancelled."""
        items = self.queue.engine.peek(after, limit)
        note(what, Status.CANCELLED, [item.id for item in items])


async def work(folder: str, seed: int, operations: int) -> None:
    """The job."""
    draw = random.Random(seed)
    began_ns = time.monotonic_ns()
    try:
        async with (
            asyncio.timeout(LIFE_S / 2),
            PersistentQueue.open(
                folder,
                SETTINGS,
                clock=lambda: DAY_NS + time.monotonic_ns() - began_ns,
                on_delivered=lambda number: note("ended", Status.DELIVERED, number),
                on_cancelled=lambda number: note("ended", Status.CANCELLED, number),
            ) as queue,
        ):
            note("opened")
            await Work(queue, draw, operations).all()
            note("figures", queue.statistics())
            if queue.statistics()["stopped"]:
                await refuses(queue)
    except QueueStopped as error:
        note("stopped", str(error))
    except OSError as error:
        note("refused", str(error))
        try:
            Engine(folder, SETTINGS).close()
        except UsageError as locked:
            note("locked", str(locked))
        except OSError:
            pass
    else:
        note("closed")


async def refuses(queue: PersistentQueue) -> None:
    """A queue that has stopped does nothing any more."""
    for call in (queue.put(b"x"), queue.put_many([b"x"]), queue.get(), queue.cancel(1),
                 queue.delivered(1), queue.release(1), queue.commit([b"x"])):  # fmt: skip
        try:
            await call
        except QueueStopped:
            continue
        note("went on")


def do(job: list[Any]) -> None:
    """In the fork."""
    folder, trace, seed, operations, at, how, for_good = job
    signal.alarm(LIFE_S)
    file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    ctypes.CDLL(None).journal_calls_begin(
        folder.encode(), file, ctypes.c_long(at), how, int(for_good),
        ctypes.c_long(random.Random(seed).choice(SYNC_US)),
    )  # fmt: skip
    (uvloop.run if seed % 2 else asyncio.run)(work(folder, seed, operations))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = 1
            try:
                do(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
