"""Workers at a queue: `async with keyed.consume(url, queue, handler, workers=8)`.

What it is for: as many messages at a time as there are workers, each with one call of the handler:
a coroutine, a function in a thread, or one in a process. What the handler returns from without an
error is done; one that raises has failed, and the message comes again, to any worker; `Reject`
rejects it for good. A handler that returns an `Output`, or several, has these put into queues of
the node: together with the end of its message, or not at all. Of a queue whose
consumers may have several messages of a key (`run`), workers begin one at a time of each key, in
order; where one fails, those behind it go back with it.

What it promises: a message is acknowledged after its work. Where the connection is lost, so are the
messages in hand: they come again, and the outcomes of their handlers do not count (`stale`). So an
effect outside of the node must use the message's `token`, or its `fence`.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from feedhandler.amqp import proton
from feedhandler.amqp.client import Ended
from feedhandler.amqp.durable.values import SectionError
from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import parse_endpoint
from feedhandler.amqp.working.connection import KeptConnection, QueueConnection, Taker
from feedhandler.amqp.working.message_order import MessageOrder, OrderedMessage
from feedhandler.amqp.working.messages import Message, read
from feedhandler.amqp.working.transactions import Committed, Committer, Output, outputs_of
from feedhandler.codecs.errors import UsageError

_log = logging.getLogger(__name__)
WORKERS_MAX = 10_000
PREFETCH_MAX = 100_000

Handler = Callable[[Message], Any]


class Reject(Exception):
    """Raised by a handler to reject its message for good, whichever worker gets it; the text says
    why."""


class _Held(NamedTuple):
    """A message that a connection has brought."""

    taker: Taker
    number: int
    message: Message


class Consumption(KeptConnection):
    """Work on a queue's messages; see the module; made by `consume`. `done`, `failed`, `rejected`
    and `stale` count messages."""

    def __init__(
        self,
        identity: Identity,
        queue: str,
        handler: Handler,
        workers: int,
        prefetch: int,
        processes: bool,
        reconnect: bool,
    ) -> None:
        super().__init__(identity, reconnect)
        self.done = self.failed = self.rejected = self.stale = 0
        self._queue = queue
        self._handler = handler
        self._credit = workers + prefetch
        self._idle = workers
        self._order: MessageOrder[_Held] = MessageOrder(self._credit)
        self._pool: Executor | None = None
        if processes:
            self._pool = ProcessPoolExecutor(workers)
        elif not is_coroutine(handler):
            self._pool = ThreadPoolExecutor(workers, f"worker of {queue}")
        self._committer: Committer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._freed: dict[Taker, int] = {}
        self._ended: asyncio.Future[None]

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().create_future()
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no more messages, wait until those in hand are done, and close the connection."""
        self._leaving = True
        self._keeper.cancel()
        for held in self._order.drop():
            self._settle(held.taker, held.number, proton.RELEASED)
        await asyncio.gather(self._keeper, *self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._flush()
            await self._connection.close()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.shutdown)
        if not self._ended.done():
            self._ended.set_result(None)

    async def wait(self) -> None:
        """Work until that ends for good. Raises `PeerError` where the node refuses us, or is lost
        without `reconnect`."""
        await asyncio.shield(self._ended)

    # -- kept attached ----------------------------------------------------------------------

    async def _open(self, connection: QueueConnection) -> None:
        await connection.taker(self._queue, self._credit, self._on_messages)

    def _lost(self) -> None:
        self._freed.clear()
        self._order = MessageOrder(self._credit)  # what it brought comes again

    def _end(self, error: Ended) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # retrieved: no error is logged if unawaited

    # -- messages ---------------------------------------------------------------------------

    def _on_messages(self, taker: Taker, came: list[tuple[int, bytes | None]]) -> None:
        for number, data in came:
            if self._leaving:
                taker.settle(number, proton.RELEASED)
                continue
            try:
                message = read(data or b"")
            except SectionError as error:
                self._settle(taker, number, proton.REJECTED, str(error))
            else:
                held = _Held(taker, number, message)
                if not self._order.add(held, message.fence, message.after):
                    self._settle(taker, number, proton.RELEASED)
        self._begin_work()

    def _begin_work(self) -> None:
        """Give a message to each worker that has none."""
        while self._idle and (ordered := self._order.begin()) is not None:
            self._idle -= 1
            task = ordered.item.taker.connection.loop.create_task(self._work(self._order, ordered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, order: MessageOrder[_Held], ordered: OrderedMessage[_Held]) -> None:
        taker, number, message = ordered.item
        outcome, reason = proton.ACCEPTED, ""
        try:
            if self._pool is not None:
                loop = taker.connection.loop
                result = await loop.run_in_executor(self._pool, self._handler, message)
            else:
                result = await self._handler(message)
            if outputs := outputs_of(result):
                outcome = await self._commit(taker, number, outputs)
        except Reject as error:
            outcome, reason = proton.REJECTED, str(error)
        except asyncio.CancelledError:
            outcome = proton.RELEASED
        except Exception as error:  # whatever the handler's fault is: the message comes again
            outcome = proton.MODIFIED
            _log.warning("queue %s: the handler failed: %r", self._queue, error)
        self._settle(taker, number, outcome, reason)
        for held in order.end(ordered, outcome != proton.ACCEPTED):
            self._settle(held.taker, held.number, proton.RELEASED)
        self._idle += 1
        self._begin_work()

    async def _commit(self, taker: Taker, number: int, outputs: list[Output]) -> int:
        """Put the handler's outputs, together with the end of its message; return that message's
        outcome."""
        connection = taker.connection
        if self._committer is None or self._committer.connection is not connection:
            self._committer = Committer(connection)
        committed, reason = await self._committer.commit(taker, number, outputs)
        if committed is Committed.DONE:
            return proton.ACCEPTED
        _log.warning("queue %s: the handler's outputs are not taken: %s", self._queue, reason)
        if committed is Committed.REFUSED:
            return proton.MODIFIED
        self.stale += not taker.over
        return proton.RELEASED

    def _settle(self, taker: Taker, number: int, outcome: int, reason: str = "") -> None:
        if taker.over:
            self.stale += 1
            return
        self.done += outcome == proton.ACCEPTED
        self.failed += outcome == proton.MODIFIED
        self.rejected += outcome == proton.REJECTED
        taker.settle(number, outcome, reason)
        if not self._freed:
            taker.connection.loop.call_soon(self._flush)
        self._freed[taker] = self._freed.get(taker, 0) + 1

    def _flush(self) -> None:
        """Write the outcomes of this turn, and grant as much credit."""
        freed, self._freed = self._freed, {}
        for taker, credit in freed.items():
            if not self._leaving:
                taker.flow(credit)
            taker.connection.work()


def is_coroutine(handler: Handler) -> bool:
    """Return whether calling the handler returns a coroutine; it may be a callable object."""
    call = getattr(handler, "__call__", handler)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def consume(
    url: str,
    queue: str,
    handler: Callable[[Message], Awaitable[Any]] | Handler,
    *,
    workers: int = 1,
    prefetch: int = 0,
    processes: bool = False,
    login: Login | None = None,
    reconnect: bool = True,
) -> Consumption:
    """Work on a queue's messages, `workers` at a time; see the module.

    `prefetch`: so many more wait here, and a worker that is done need not wait for its message's
    end to be durable: for handlers that take a few milliseconds or less, as many as there are
    workers; other clients do not get those messages. `processes`: the handler is called in
    processes, and must be picklable. What it returns (`Output`s) is put together with its message's
    end. Raises `UsageError`; entering it raises `PeerError`.
    """
    if not 1 <= workers <= WORKERS_MAX:
        raise UsageError(f"workers = {workers}", f"take 1 to {WORKERS_MAX:,}")
    if not 0 <= prefetch <= PREFETCH_MAX:
        raise UsageError(f"prefetch = {prefetch}", f"take 0 to {PREFETCH_MAX:,}")
    if processes and is_coroutine(handler):
        raise UsageError("a coroutine is called in this process", "a function, or no processes")
    identity = Identity(parse_endpoint(url), login)
    return Consumption(identity, queue, handler, workers, prefetch, processes, reconnect)
