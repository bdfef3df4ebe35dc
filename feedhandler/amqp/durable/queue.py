"""One durable queue of the node: producers in, the persistent queue in between, consumers out.

What it is for: what producers send is put into the persistent queue in order, many messages a sync;
each is accepted once it is durable. Consumers get what is pending, as far as they have credit
(`dispatch`); what they accept is recorded, what they do not goes to the next one. `cancel` ends a
message that no consumer has.

What it promises: the event loop never waits for the disk: the persistent queue's thread writes, a
thread of this queue's own reads what is not in memory any more. What waits for the disk is bounded:
producers get no more credit while the bound is reached. A disk that fails stops the queue: `fault`
says why, every link of it is closed with the reason, nothing more is accepted, and other queues and
clients are not affected.

Links call in from their connections' turns; `flush` has connections written to that something was
added to outside of their own turns.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from feedhandler.amqp.durable.dispatch import Dispatch
from feedhandler.amqp.durable.intake import Arrival, Intake
from feedhandler.amqp.durable.links import Consumer, Forget
from feedhandler.amqp.durable.outbox import Outbox
from feedhandler.amqp.durable.sections import id_of, look
from feedhandler.amqp.durable.stored import (
    FORWARD_PAGE,
    Cancelled,
    Forwarding,
    OnDone,
    StoredQueue,
)
from feedhandler.amqp.durable.transactions import Refusal, Work
from feedhandler.amqp.durable.values import (
    SectionError,
)
from feedhandler.amqp.sender_queue import Peer
from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.counters import QueueCounter
from feedhandler.journal import CancelAnswer, Status
from feedhandler.journal.block import Block
from feedhandler.journal.engine import Committed
from feedhandler.journal.layout import VERSION
from feedhandler.keyed.envelope import OutboxEntry, outbox_entry_in, wrap_outbox_entry
from feedhandler.keyed.kept import read_definition
from feedhandler.keyed.producers import Stamp
from feedhandler.operator_log import log_event

#: Messages that are read, or handed out, before the loop serves other clients.
SHARE = 256
#: Messages that are read together as the queue is opened.
LOOK = 16
#: Bytes that are read from the disk at a time, beside one message.
READ_BYTES_MAX = 8 << 20
#: Producer name, which no client can have, under which the journal keeps the range of numbers that
#: may be entries of the outbox.
OUTBOX = b"\x00outbox"


class DurableQueue(StoredQueue):
    """A first-in, first-out queue; see the module. `options`: as of `StoredQueue`."""

    def __init__(
        self,
        config: DurableQueueConfig,
        flush: Callable[[], None],
        find: Callable[[str], StoredQueue | None],
        **options: Any,
    ) -> None:
        super().__init__(config, flush, **options)
        self._find = find
        self.intake: Intake
        self.dispatch: Dispatch
        self._recording: deque[tuple[int, Callable[[], None]]] = deque()
        self._fates: dict[int, list[OnDone]] = {}
        self._reading: set[int] = set()
        #: Messages that are claimed at a time: fewer where they are large.
        self._share = SHARE
        #: Consumers whose client wants unused credit back once nothing can be handed out.
        self._draining: dict[Consumer, None] = {}
        self._reread = False
        self._after_reading: list[Callable[[], None]] = []
        self._more = True
        self._seen_end = self._day_ns = 0
        self._moving: set[asyncio.Task[None]] = set()
        #: Messages on their way to other queues, and their numbers, ascending: no consumer gets
        #: them.
        self._outbox: Outbox
        self._outbox_numbers: OrderedDict[int, None] = OrderedDict()
        self._committing: deque[_Commit] = deque()

    # -- open and closed --------------------------------------------------------------------

    async def _begin(self) -> None:
        engine = self.store.engine
        if read_definition(self._files, engine.folder) is not None:
            raise UsageError(
                f"{engine.folder}: a queue with keys, and one without is asked for",
                "another folder, or say its [queue.key]",
            )
        self.dispatch = Dispatch(engine.visible_end)
        self._seen_end, self._day_ns = engine.visible_end, engine.day_ns
        self.intake = Intake(self.config, self.store, self.ids, self._write_page)
        self._outbox = Outbox(self, self._find, self._arrived)
        self._hold_in_outbox(await asyncio.to_thread(self._outbox_left))

    def send_outbox(self) -> None:
        """Send to other queues as much as they take now."""
        self._outbox.send()

    def _closing(self) -> None:
        for task in list(self._moving):
            task.cancel()

    def _stopped(self) -> None:
        self.intake.stop()
        committing, self._committing = self._committing, deque()
        for each in committing:
            each.lost()
        for on_done in [each for several in self._fates.values() for each in several]:
            on_done("stopped")
        self._fates.clear()

    # -- producing --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether messages have come that are not durable yet, or outcomes not recorded."""
        if self.fault:
            return False
        return self.intake.busy or bool(self._recording or self._committing)

    def push(self) -> None:
        """Put what was offered to the intake."""
        if self.fault:
            return
        try:
            self.intake.push()
        except FeedhandlerError as error:
            self.stop(str(error))

    def accept_forwarded(self, content: bytes, stamp: Stamp, on_done: Callable[[], None]) -> bool:
        """Put a message that another queue sends; see `StoredQueue`."""
        if self.fault or not self.intake.has_room:
            return False
        arrival = Arrival(on_done)
        known = self.store.producer(stamp.producer)
        if known is not None and known[1] >= stamp.sequence:
            on_done()  # it came before this queue was opened
            return True
        try:
            if self.store.engine.version < VERSION:
                self.intake.add(arrival, 0, content, id_of(content))
                self.intake.push()
            else:
                self.intake.accept_forwarded(arrival, content, stamp)
        except FeedhandlerError as error:
            self.stop(str(error))
        return True

    # -- after a flush ----------------------------------------------------------------------

    def _on_settled(self) -> None:
        """Act on a flush of the persistent queue, or on its stop."""
        if self.fault:
            return
        engine = self.store.engine
        self.intake.confirm(engine.durable_id)
        self._recorded(engine.durable_changes)
        while self._committing and engine.has_committed(self._committing[0].committed):
            self._committed(self._committing.popleft())
        if engine.stopped is not None:
            self.stop(str(engine.stopped))
            return
        self.push()
        if not self.closing:
            self.intake.notify_of_room()
        if engine.visible_end > self._seen_end:
            self._seen_end = engine.visible_end
            self._more = True
        self.serve()
        self.flush()

    def _when(self, changes: int, then: Callable[[], None]) -> None:
        """Call `then` once `changes` status changes are durable."""
        if self.store.engine.durable_changes >= changes:
            then()
        else:
            self._recording.append((changes, then))

    def _recorded(self, durable_changes: int) -> None:
        while self._recording and self._recording[0][0] <= durable_changes:
            self._recording.popleft()[1]()

    # -- handing out ------------------------------------------------------------------------

    def consumer(self, peer: Peer, link: Any, forget: Forget) -> Consumer:
        """Make a consumer's link."""
        return Consumer(peer, link, forget, self)

    def join(self, taker: Consumer) -> None:
        """Add a consumer; it is served when it has credit."""
        self.dispatch.join(taker)

    def leave(self, taker: Consumer, numbers: list[int], *, failed: bool) -> None:
        """Remove a consumer: what it had goes to the others.

        `failed`: it did not say goodbye. A consumer that did had merely fetched these ahead:
        clients do so by the thousand, and to count that as a failure would declare messages dead
        that no consumer has processed.
        """
        self.dispatch.leave(taker)
        self._draining.pop(taker, None)
        if not self.fault and numbers:
            self.give_back(numbers, failed=failed)

    def offer(self, taker: Consumer) -> None:
        """Note that this consumer may have room for one more message."""
        self.dispatch.offer(taker)

    def drain(self, taker: Consumer) -> None:
        """Return this consumer's unused credit once nothing can be handed out."""
        if not taker.over:
            self._draining[taker] = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing that could be handed out."""
        return not (self._more or self._reading or self.dispatch.ready)

    def serve(self) -> None:
        """Hand out what is pending, as far as consumers have credit."""
        dispatch, left = self.dispatch, SHARE
        if not self.fault and self.store.engine.day_ns != self._day_ns:
            # What is ready was yesterday's: the persistent queue has it expire.
            self._day_ns = self.store.engine.day_ns
            self.intake.recent.clear()
            self._withdraw([])
        while not self.fault:
            left -= dispatch.serve(left)
            more = self._more and not self._reading
            wanted = dispatch.wanted(self._share) if more else 0
            if left <= 0 and (wanted > 0 or dispatch.ready):
                self._serve_soon()
                break
            if wanted <= 0:
                self._answer_drains()
                break
            self._claim(wanted)

    def _answer_drains(self) -> None:
        """Return unused credit to consumers that drain it, where nothing can be handed out."""
        if self._draining and self.idle:
            draining, self._draining = self._draining, {}
            for taker in draining:
                taker.settle_drain()

    def _claim(self, limit: int) -> None:
        """Claim the next messages from the persistent queue; read those that are not in memory, in
        the thread."""
        done = self._guard(lambda: self.store.engine.claim(limit))
        if done is None:
            return
        claimed: list[tuple[int, Block]] = done[0]
        self._more = len(claimed) == limit
        if self._outbox_numbers:
            claimed = [each for each in claimed if each[0] not in self._outbox_numbers]
        take = self.intake.recent.pop
        items = [(number, take(number)) for number, _ in claimed]
        if all(content is not None for _, content in items):
            self.dispatch.add(items)  # type: ignore[arg-type]
            return
        self._reading = {number for number, _ in claimed}
        blocks = [block for _, block in claimed]
        future = self._loop.run_in_executor(self._threads, self._read, items, blocks)
        future.add_done_callback(self._on_read)

    def _read(
        self, items: list[tuple[int, bytes | None]], blocks: list[Block]
    ) -> list[tuple[int, bytes | None]]:
        """Read the contents that are missing, as many as there is room for; None for those that do
        not verify. Called in the queue's thread."""
        contents: list[tuple[int, bytes | None]] = []
        size = 0
        for (number, content), block in zip(items, blocks, strict=True):
            if size >= READ_BYTES_MAX:
                break
            content = self._reader.content(block, number) if content is None else content
            contents.append((number, content))
            size += len(content or b"")
        return contents

    def _on_read(self, future: "asyncio.Future[list[tuple[int, bytes | None]]]") -> None:
        """Hand out contents that were read, unless something older came back meanwhile."""
        numbers, self._reading = self._reading, set()
        if self.fault or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._failed(error)
            return
        items = future.result()
        for number, content in items:
            if content is None:
                self._spoiled(number)
        whole = [(number, content) for number, content in items if content is not None]
        unread = sorted(numbers - {number for number, _ in items})
        self._share = max(1, len(items)) if unread else min(2 * self._share, SHARE)
        if self._reread:
            self._reread = False
            self._withdraw([number for number, _ in whole] + unread)
        else:
            self.dispatch.add(whole)
            self._release(unread)  # there was no room for them
        later, self._after_reading = self._after_reading, []
        for action in later:
            action()
        assert numbers
        self.serve()
        self.flush()

    def _spoiled(self, number: int) -> None:
        if not self.store.engine.in_hand(number):
            return  # cancelled while it was read, and its block may have been used anew
        self._guard(lambda: self.store.engine.spoil(number))
        text = f"queue {self.name}: message {number} does not verify"
        log_event("queue_damaged", text, logging.ERROR)

    # -- outcomes of messages ---------------------------------------------------------------

    def deliver(self, holder: Consumer, numbers: list[int]) -> None:
        """Record that a consumer has accepted these; `holder.finished` is called once that is
        durable."""
        done = self._guard(lambda: self.store.engine.deliver(numbers))
        if done is None:
            return
        (delivered, forward), changes = done
        self.counts[QueueCounter.DELIVERED] += len(delivered)
        self.dispatch.forget(numbers)

        def recorded() -> None:
            holder.finished(numbers)
            for number in forward:
                self._report_fate(number, "delivered")

        self._when(changes, recorded)

    def give_back(self, numbers: list[int], *, failed: bool) -> None:
        """Return messages that were not delivered, to be handed out again in order; `failed`
        counts, and too many failures make a message dead."""
        most = self.config.redeliveries_max
        self.counts[QueueCounter.RETURNED] += len(numbers)
        back = []
        for number in numbers:
            failures = self.dispatch.tried(number, failed and not self.closing)
            if most and failures > most:
                self.bury(None, [number], f"came back {failures} times")
            else:
                back.append(number)
        if back:
            self._withdraw(back)

    def _withdraw(self, numbers: list[int]) -> None:
        """Release these, and what is ready, to the persistent queue, which knows the order."""
        self._reread = self._reread or bool(self._reading)
        self._release(sorted(numbers + self.dispatch.withdraw()))
        self._serve_soon()

    def _release(self, numbers: list[int]) -> None:
        """Release messages to the persistent queue: they are the next ones."""
        release = self.store.engine.release
        done = self._guard(lambda: [(number, release(number)) for number in numbers])
        self._more = True
        if done is None:
            return
        for number, status in done[0]:
            if status is not Status.PENDING:
                self.dispatch.forget([number])
                self._when(done[1], self._fate_reporter(number, status))

    def _fate_reporter(self, number: int, status: Status) -> Callable[[], None]:
        """Return what to call once this message's status is recorded."""

        def on_recorded() -> None:
            if status is Status.CANCELLED:
                self.counts[QueueCounter.CANCELLED] += 1
            elif status is Status.EXPIRED:
                self._expired(number)
            self._report_fate(number, status.name.lower())

        return on_recorded

    def _report_fate(self, number: int, answer: str) -> None:
        for on_done in self._fates.pop(number, ()):
            on_done(answer)

    # -- transactions -----------------------------------------------------------------------

    def accepts(self, content: bytes, *, home: bool) -> str:
        """Return why a transaction could not put this message; see `StoredQueue`."""
        try:
            look(content)
        except SectionError as error:
            return f"no AMQP message: {error}"
        return self._format_fault()

    def transact(
        self, work: Work, done: Callable[[], None], lost: Callable[[], None]
    ) -> Refusal | None:
        """Apply all operations of a transaction as one group of the journal; see `StoredQueue`."""
        if fault := self._format_fault():
            return Refusal(fault)
        if fault := self._room_fault(self._outbox, work):
            return Refusal(fault, failed=False)
        self.push()
        entries = [OutboxEntry(name, "", content) for name, content in work.sent]
        first = self.store.engine.next_id + len(work.put)
        numbers = range(first, first + len(entries))
        ended = [number for _, number in work.accepted]
        # Where to look for the outbox when the queue is opened again.
        low = next(iter(self._outbox_numbers), first) if entries else 0
        state = {OUTBOX: (low, numbers.stop)} if entries else {}
        try:
            committed = self.intake.commit(
                work.put, [wrap_outbox_entry(entry) for entry in entries], ended, state
            )
        except UsageError as error:
            return Refusal(f"queue {self.name}: {error.message}")
        except FeedhandlerError as error:
            self.stop(str(error))
            return Refusal(f"queue {self.name} has stopped: {error.message}", failed=False)
        assert committed.end_id == numbers.stop, "ids are the intake's alone"
        self._outbox_numbers.update(dict.fromkeys(numbers))
        commit = _Commit(committed, work, list(zip(numbers, entries, strict=True)), done, lost)
        self._committing.append(commit)
        return None

    def _committed(self, commit: "_Commit") -> None:
        """Complete a transaction, which is durable."""
        ended = [number for _, number in commit.work.accepted]
        self.counts[QueueCounter.DELIVERED] += len(ended)
        self.dispatch.forget(ended)
        for taker, number in commit.work.accepted:
            taker.finished([number])
        for number in commit.committed.forward:
            self._report_fate(number, "delivered")
        self._hold_in_outbox(commit.outbox)
        commit.done()
        self._outbox.send()

    def _hold_in_outbox(self, entries: list[tuple[int, OutboxEntry]]) -> None:
        """Hold entries, which are durable here, until they are durable where they go."""
        for number, _ in entries:
            self._outbox_numbers[number] = None
            self.store.engine.hold(number)
        self._outbox.add(entries)

    def _outbox_left(self) -> list[tuple[int, OutboxEntry]]:
        """Find the messages that were on their way to other queues; called in a thread as the queue
        is opened. Raises `OSError`."""
        after, end = self.store.producer(OUTBOX) or (1, 1)
        after -= 1
        entries: list[tuple[int, OutboxEntry]] = []
        while after + 1 < end:
            items = self.store.engine.peek(after, LOOK)
            after = items[-1].id if items else end
            read = ((item.id, outbox_entry_in(item.content)) for item in items if item.id < end)
            entries += [(number, entry) for number, entry in read if entry is not None]
        return entries

    def _arrived(self, number: int, entry: OutboxEntry) -> None:
        """End an outbox entry, which is durable where it was sent."""
        done = self._guard(lambda: self.store.engine.deliver([number]))
        if done is not None:
            self._when(done[1], lambda: self._outbox_numbers.pop(number, None))

    # -- dead messages ----------------------------------------------------------------------

    def bury(self, holder: Consumer | None, numbers: list[int], why: str) -> None:
        """Move dead messages to the queue of dead messages, or cancel them where there is none."""
        self.counts[QueueCounter.DEAD] += len(numbers)
        dead = self._find(self.config.dead)
        if dead is None:
            where = "cancelled"
        elif dead.fault:
            where = f"kept, for queue {dead.name} has stopped"
        else:
            where = f"moved to queue {dead.name}"
        for number in numbers:
            text = f"queue {self.name}: message {number} {why}: {where}"
            log_event("queue_dead", text, queue=self.name, message=number)
        if dead is None:
            self._end(holder, numbers)
            return
        assert isinstance(dead, DurableQueue)  # by the configuration's rules
        task = self._loop.create_task(self._move(dead, holder, numbers))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    def _end(self, holder: Consumer | None, numbers: list[int]) -> None:
        """Cancel messages that are in hand."""
        engine = self.store.engine

        def end() -> None:
            for number in numbers:
                engine.cancel(number)
                engine.release(number)

        done = self._guard(end)
        if done is None:
            return
        self.dispatch.forget(numbers)

        def recorded() -> None:
            if holder is not None:
                holder.finished(numbers)
            for number in numbers:
                self._report_fate(number, "cancelled")

        self._when(done[1], recorded)

    async def _move(
        self, dead: "DurableQueue", holder: Consumer | None, numbers: list[int]
    ) -> None:
        """Put messages into the queue of dead messages, durably; then end them here.

        Where that queue has stopped they stay, in hand, and come again at the next start.
        """
        for number in numbers:
            block = self.store.engine.find(number)
            if block is None:
                continue
            read = self._loop.run_in_executor(self._threads, self._reader.content, block, number)
            try:
                content = await read
            except OSError as error:
                self._failed(error)
                return
            if dead.fault:
                return
            if content is not None and len(content) > dead.room_bytes:
                size = f"{len(content)} bytes are too many for queue {dead.name}"
                text = f"queue {self.name}: message {number}: {size}: cancelled"
                log_event("queue_dead", text, queue=self.name, message=number)
            elif content is not None:
                moved = asyncio.Event()
                dead.intake.add(Arrival(moved.set), 0, content, id_of(content))
                dead.push()
                await moved.wait()
            self._end(holder, [number])
            self.flush()

    # -- cancelling -------------------------------------------------------------------------

    def cancel(self, number: int, on_done: OnDone, wait: bool = False) -> None:
        """Cancel a message; `on_done` gets the answer, once that is recorded.

        It is `cancelled`, `delivered`, `delivering` (a consumer has it), `expired`, `damaged`,
        `unknown` or `stopped`. `wait`: in place of `delivering`, the final status once there is
        one.
        """
        if number in self._reading:
            self._after_reading.append(lambda: self.cancel(number, on_done, wait))
            return
        engine = self.store.engine
        mine = self.dispatch.remove(number)

        def change() -> tuple[CancelAnswer, bool]:
            if mine:
                engine.release(number)
            return engine.cancel(number)

        done = self._guard(change)
        if done is None:
            on_done("stopped")
            return
        (answer, changed), changes = done
        self.intake.recent.pop(number)
        self.counts[_CANCEL_COUNTS[answer]] += changed or answer is not CancelAnswer.CANCELLED
        if answer is CancelAnswer.DELIVERING and wait:
            self._fates.setdefault(number, []).append(on_done)
            return
        self._when(changes, lambda: on_done(answer.name.lower()))

    def cancel_all(self, on_done: Callable[["Cancelled | None"], None]) -> None:
        """Cancel everything that is pending now, with every block of the queue locked: no message
        is put, taken or delivered meanwhile.

        `on_done` is called once that is recorded, with None where the queue has stopped.
        """
        engine = self.store.engine
        # What no consumer has yet is pending, though it is on its way to one.
        self._withdraw(sorted(self._reading))
        done = self._guard(lambda: engine.cancel_all_by_page(FORWARD_PAGE))
        if done is None:
            on_done(None)
            return
        (numbers, in_hand, page), changes = done
        for number in numbers:
            self.intake.recent.pop(number)
        self.dispatch.forget(numbers)
        self.counts[QueueCounter.CANCELLED] += len(numbers)
        self.counts[QueueCounter.CANCELS_LATE] += len(in_hand)

        def answer(forward: "Forwarding | None") -> None:
            on_done(None if forward is None else Cancelled(len(numbers), len(in_hand), forward))

        self._when(changes, lambda: self.in_thread(lambda: self._named(page), answer))

    # -- figures ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return counters and state, for status, statistics and metrics."""
        figures = super().snapshot()
        if not self._opened:
            return figures
        return figures | {
            "put": self.intake.confirmed,
            "put_bytes": self.intake.put_bytes,
            "handed_out": self.dispatch.handed_out,
            "handed_out_again": self.dispatch.handed_out_again,
            "waiting_bytes": figures["waiting_bytes"] + self.intake.waiting_bytes,
            "consumers": self.dispatch.takers,
            "outbox": len(self._outbox),
        }


class _Commit(NamedTuple):
    """A transaction on its way to the disk."""

    committed: Committed
    work: Work
    outbox: list[tuple[int, OutboxEntry]]
    done: Callable[[], None]
    lost: Callable[[], None]


#: Which counter counts each answer to a cancel request.
_CANCEL_COUNTS = {
    CancelAnswer.CANCELLED: QueueCounter.CANCELLED,
    CancelAnswer.DELIVERED: QueueCounter.CANCELS_LATE,
    CancelAnswer.DELIVERING: QueueCounter.CANCELS_LATE,
    CancelAnswer.EXPIRED: QueueCounter.CANCELS_LATE,
    CancelAnswer.DAMAGED: QueueCounter.CANCELS_UNKNOWN,
    CancelAnswer.UNKNOWN: QueueCounter.CANCELS_UNKNOWN,
}
