"""Base of every queue of the node: a folder with a persistent queue, links, and one way to stop.

What it is for: `StoredQueue` opens and closes the persistent queue and the index of message-ids,
keeps the queue's links, and says by `fault` why it has stopped. The subclasses are the kinds of
queues: first in, first out (`queue.DurableQueue`), and serial per key (`keyed.KeyedDurableQueue`).
Both have what links and management need of a queue.

What it promises: the event loop never waits for the disk. A disk that fails stops the queue:
`fault` says why, every link of it is closed with the reason, nothing more is accepted, and other
queues and clients are not affected.
"""

import abc
import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.index import IndexFile, open_index
from feedhandler.amqp.durable.intake import OVERFULL
from feedhandler.amqp.durable.management import OF_EVERY_QUEUE, STEPS_A_TURN, Reply, Steps
from feedhandler.amqp.durable.message_ids import MessageIds
from feedhandler.amqp.durable.outbox import Outbox
from feedhandler.amqp.durable.sections import message_id
from feedhandler.amqp.durable.transactions import Refusal, Transactions, Work
from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.work_budget import WorkBudget
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.counters import QueueCounter, as_dict, counter_array
from feedhandler.journal import PersistentQueue
from feedhandler.journal.cancels import ForwardPage
from feedhandler.journal.files import Files
from feedhandler.journal.layout import VERSION
from feedhandler.journal.reading import SegmentReader
from feedhandler.keyed.producers import Stamp
from feedhandler.operator_log import log_event

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import QueueEnd

#: Wait before another queue that takes nothing now is tried again; also the interval at which a
#: keyed queue checks whether a day is over.
AGAIN_SECONDS = 1.0
#: Messages of one answer of cancels to forward; further ones take further requests.
FORWARD_PAGE = 256

OnDone = Callable[[str], None]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Forwarding:
    """A page of messages whose cancel is to be forwarded, in order: `id`, `message-id` and `answer`
    (delivered or delivering) of each. All are below `until`; `more`: there are further ones."""

    messages: list[dict[str, Any]]
    until: int
    more: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of cancelling everything: how many were cancelled, how many consumers have (they
    are cancelled if they come back), and the first page of what is to be forwarded."""

    cancelled: int
    delivering: int
    forward: Forwarding


#: Figures of the persistent queue that a snapshot has unchanged.
_FIGURES = (
    "next_id", "blocks", "blocks_free", "blocks_max", "flushes", "journal_bytes", "checkpoints",
    "stalls", "damaged", "recovery_ms", "durability",
)  # fmt: skip


#: Figures of keyed queues; 0 for a queue without keys.
_OF_KEYS = ("keys", "parked", "producers_known", "outbox")


class StoredQueue(abc.ABC):
    """Base of a queue; see the module. `files`: what its folder is read and written by (tests give
    a simulated disk); `options` go to the persistent queue."""

    #: Whether the persistent queue has messages expire at a day's end.
    watches_days = True
    #: Management operations that it takes.
    operations: tuple[str, ...] = OF_EVERY_QUEUE

    def __init__(
        self,
        config: DurableQueueConfig,
        flush: Callable[[], None],
        files: Files | None = None,
        **options: Any,
    ) -> None:
        self.config = config
        self.name = config.name
        self.message_bytes_max = config.message_bytes_max
        #: Bytes of the largest message that its blocks hold, whoever sends it.
        self.room_bytes = config.message_bytes_max
        self.counts = counter_array(QueueCounter, 1)[0]
        self.fault = "it is not open"
        self.links: dict[QueueEnd, None] = {}
        self.closing = False
        self.flush = flush
        #: Management: what is done in a turn, and bytes of requests that wait.
        self.budget: WorkBudget
        self.asked_bytes = 0
        self.store: PersistentQueue
        self.ids: MessageIds
        #: The transactions of its node.
        self.transactions = Transactions()
        #: Files of the queue's folder: the persistent queue's, which closes them, and those beside.
        self._files = files or Files()
        self._options = options
        self._ending = contextlib.AsyncExitStack()
        self._threads = ThreadPoolExecutor(1, f"queue {config.name}")
        self._flushing = self._serving = self._opened = False
        self._loop: asyncio.AbstractEventLoop
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._reader: SegmentReader
        self._index: IndexFile

    # -- open and closed --------------------------------------------------------------------

    async def open(self) -> None:
        """Open the persistent queue. Raises what it raises; `fault` is set then, too."""
        self._loop = asyncio.get_running_loop()
        self.budget = WorkBudget(self._loop.call_soon, STEPS_A_TURN)
        try:
            self.store = await self._ending.enter_async_context(
                PersistentQueue.open(
                    self.config.folder,
                    self.config.settings(),
                    files=self._files,
                    on_expired=self._expired,
                    watch_days=self.watches_days,
                    **self._options,
                )
            )
            engine = self.store.engine
            self.ids, self._index = await asyncio.to_thread(
                open_index, engine, self._files, self._message_in
            )
            self._reader = engine.new_reader()
            self.room_bytes = engine.item_bytes_max - self._overhead()
            self.message_bytes_max = min(self.config.message_bytes_max, self.room_bytes)
            await self._begin()
        except (FeedhandlerError, OSError) as error:
            self.fault = str(error)
            await self._ending.aclose()
            raise
        self.store.on_settled = self._on_settled
        self._opened = True
        self.fault = ""

    def _message_in(self, content: bytes) -> bytes:
        """Return the AMQP message of an item; b"" for none."""
        return content

    def _overhead(self) -> int:
        """Return the bytes that an item has beside its message."""
        return 0

    @abc.abstractmethod
    async def _begin(self) -> None:
        """Set up what this kind of queue needs besides the persistent queue, which is open."""

    @abc.abstractmethod
    def _on_settled(self) -> None:
        """Act on a flush of the persistent queue, or on its stop."""

    def _write_page(self, page: bytes) -> None:
        """Append a page to the file of message-ids, in the queue's thread."""
        self._threads.submit(self._index.append, page)

    def _expired(self, number: int) -> None:
        self.counts[QueueCounter.EXPIRED] += 1

    # -- what each kind does ----------------------------------------------------------------

    intake: Any

    @property
    def accepts_more(self) -> bool:
        """Whether producers may be given credit."""
        return not (self.fault or self.closing) and self.intake.has_room

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether anything is on its way to the disk."""

    @abc.abstractmethod
    def push(self) -> None:
        """Put what producers have sent in this turn."""

    @abc.abstractmethod
    def consumer(self, peer: Peer, link: Any, forget: Callable[[Any], None]) -> Any:
        """Make a consumer's link."""

    @abc.abstractmethod
    def serve(self) -> None:
        """Hand out what may go now, as far as consumers have credit."""

    @abc.abstractmethod
    def cancel(self, number: int, on_done: OnDone, wait: bool = False) -> None:
        """Cancel a message; `on_done` gets the answer, once that is recorded."""

    @abc.abstractmethod
    def cancel_all(self, on_done: Callable[[Cancelled | None], None]) -> None:
        """Cancel everything that is pending; `on_done` is called once that is recorded."""

    def asked(self, operation: str, arguments: dict[str, Any], reply: Reply) -> Steps:
        """Process a request that only this kind of queue takes (listed in `operations`), in
        steps."""
        raise AssertionError(f"{operation} is for another kind of queue")

    @abc.abstractmethod
    def accept_forwarded(self, content: bytes, stamp: Stamp, on_done: Callable[[], None]) -> bool:
        """Put a message that another queue of the node sends, once however often that is tried;
        `on_done` is called once it is durable. Returns False where there is no room now."""

    @abc.abstractmethod
    def send_outbox(self) -> None:
        """Send to other queues as much as they take now."""

    # -- transactions -----------------------------------------------------------------------

    @abc.abstractmethod
    def accepts(self, content: bytes, *, home: bool) -> str:
        """Return why a transaction could not put this message here; "" where it could. `home`: this
        queue commits the transaction."""

    @abc.abstractmethod
    def transact(
        self, work: Work, done: Callable[[], None], lost: Callable[[], None]
    ) -> Refusal | None:
        """Apply a transaction's operations, durably: `done` is called once it is, `lost` where the
        queue stops before. Or do none of it, and return why."""

    def _room_fault(self, outbox: Outbox, work: Work) -> str:
        """Return why there is no room now for a transaction; "" where there is.

        Producers have credit for what may wait for the disk; a transaction may exceed that, for it
        cannot be made to wait.
        """
        if self.store.engine.waiting_bytes > OVERFULL * self.config.waiting_bytes_max:
            return f"too much waits for the disk in queue {self.name}"
        return outbox.fault(work.sent)

    def _format_fault(self) -> str:
        """Return why this queue has no transactions; "" where it has."""
        version = self.store.engine.version
        if version >= VERSION:
            return ""
        return (
            f"queue {self.name} is of the journal's format {version}, without groups: open it anew"
            " when it is empty"
        )

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what waits and close the queue; its links are gone by now."""
        self.closing = True
        self._closing()
        for timer in self._later.values():
            timer.cancel()
        self.fault = self.fault or "it is closed"
        await asyncio.to_thread(self._threads.shutdown)
        with contextlib.suppress(FeedhandlerError):
            await self._ending.aclose()

    @abc.abstractmethod
    def _closing(self) -> None:
        """Stop background work, as the queue begins to close."""

    def stop(self, reason: str) -> None:
        """Stop the queue, whose disk has failed; its links are ended with the reason."""
        if self.fault:
            return
        self.fault = reason
        log_event("queue_stopped", f"queue {self.name}: {reason}", logging.ERROR, queue=self.name)
        for link in list(self.links):
            link.end(conditions.INTERNAL_ERROR, f"queue {self.name} has stopped: {reason}")
        self._stopped()
        self.flush()

    @abc.abstractmethod
    def _stopped(self) -> None:
        """Notify all that wait for something of this queue that it has stopped."""

    def _guard(self, change: Callable[[], Any]) -> tuple[Any, int] | None:
        """Change the persistent queue; return the result and the number of marks to wait for, None
        where it has stopped."""
        try:
            return self.store.change_soon(change)
        except FeedhandlerError as error:
            self.stop(str(error))
            return None

    def _failed(self, error: BaseException) -> None:
        """Stop the queue because reading has failed."""
        reason = error if isinstance(error, OSError) else OSError(str(error))
        self.stop(str(self.store.engine.stop(reason)))

    def in_a_while(self, what: str, do: Callable[[], None]) -> None:
        """Call `do` in `AGAIN_SECONDS`, once however often `what` is asked for meanwhile."""
        if what not in self._later and not (self.fault and self._opened):
            self._later[what] = self._loop.call_later(AGAIN_SECONDS, self._now, what, do)

    def _now(self, what: str, do: Callable[[], None]) -> None:
        del self._later[what]
        if not (self.fault or self.closing):
            do()

    def soon(self, do: Callable[[], None]) -> None:
        """Call `do` in the next turn of the loop, unless the queue has stopped by then."""
        self._loop.call_soon(lambda: None if self.fault else do())

    # -- serving links, and writing to them -------------------------------------------------

    def _serve_soon(self) -> None:
        if not self._serving and self._opened:
            self._serving = True
            self._loop.call_soon(self._serve_on)

    def _serve_on(self) -> None:
        self._serving = False
        if not self.fault:
            self.serve()
            self.flush()

    def flush_soon(self) -> None:
        """Schedule writing to connections, after what else is to be done in this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self.flush()

    # -- what is to be forwarded ------------------------------------------------------------

    def forward(
        self, after: int, until: int | None, on_done: Callable[["Forwarding | None"], None]
    ) -> None:
        """Get a page of the messages above `after` and below `until` (None: all) that were
        delivered today, or that consumers have; `on_done` gets it, None where the queue has
        stopped."""
        engine = self.store.engine
        end = engine.visible_end if until is None else until
        page = partial(engine.forward_page, after, end, FORWARD_PAGE)
        self.in_thread(lambda: self._named(page()), on_done)

    def in_thread(self, work: Callable[[], Found], on_done: Callable[[Found | None], None]) -> None:
        """Call `work`, which reads the disk, in the queue's thread; `on_done` gets the result in
        the event loop, None where it failed."""

        def finish(future: "asyncio.Future[Found]") -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, OSError):
                self._failed(error)
            stopped = self.fault or future.cancelled() or error is not None
            on_done(None if stopped else future.result())
            self.flush()

        if self.fault:
            on_done(None)
            return
        self._loop.run_in_executor(self._threads, work).add_done_callback(finish)

    def _named(self, page: ForwardPage) -> "Forwarding":
        """Add the message-ids to a page, as far as the messages' bytes are still there. Called in
        the queue's thread."""
        find = self.store.engine.find
        messages = []
        for number, delivered in page.items:
            block = find(number)
            content = None if block is None else self._reader.content(block, number)
            name = None if content is None else message_id(self._message_in(content))
            answer = "delivered" if delivered else "delivering"
            messages.append({"id": number, "message-id": name, "answer": answer})
        return Forwarding(messages, page.until, page.more)

    # -- figures ----------------------------------------------------------------------------

    def status_of(self, number: int) -> str:
        """Return a message's status: pending, delivered, cancelled, expired, damaged or unknown."""
        engine = self.store.engine
        if not 1 <= number < engine.visible_end:
            return "unknown"
        status = engine.status(number)
        return "delivered" if status is None else status.name.lower()

    def snapshot(self) -> dict[str, Any]:
        """Return counters and state, for status, statistics and metrics."""
        counts: dict[str, Any] = {
            "name": self.name,
            "state": "stopped" if self.fault else "open",
            "reason": self.fault,
            **as_dict(QueueCounter, self.counts),
        }
        if not self._opened:
            return counts
        figures = self.store.statistics()
        counts |= {
            "depth": figures["pending"],
            "in_hand": figures["handed_out"],
            "waiting_bytes": figures["waiting_bytes"],
            "message_ids": len(self.ids),
            "links": len(self.links),
            **dict.fromkeys(_OF_KEYS, 0),
            **{key: figures[key] for key in _FIGURES},
        }
        return counts
