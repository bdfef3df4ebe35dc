"""A keyed queue of the node: serial per key, parallel across keys, each message with one effect.

What it is for: `KeyedDurableQueue` puts together the queue's rules (`feedhandler.keyed.queue`), its
store (`feedhandler.keyed.journal_store`) and its links. What links ask for in a turn is committed
as one group, and is answered once it is durable. A message's number on a consumer's link is its
delivery's fence.

What it promises: as every queue of the node (`stored`): the loop never waits for the disk. What a
consumer gets has been read in the queue's thread, unless it is in memory still. A consumer that is
gone, or has held a message longer than the queue allows, holds nothing any more: outcomes that it
sends then are counted as stale, and answered by a release.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from feedhandler.amqp.durable.keyed_intake import KeyedIntake
from feedhandler.amqp.durable.keyed_links import KeyedConsumer
from feedhandler.amqp.durable.keyed_management import OPERATIONS, KeyedManagement
from feedhandler.amqp.durable.keyed_sections import Read, read_message
from feedhandler.amqp.durable.links import Forget
from feedhandler.amqp.durable.management import Reply, Steps
from feedhandler.amqp.durable.outbox import Outbox
from feedhandler.amqp.durable.stored import FORWARD_PAGE, Cancelled, Forwarding, OnDone, StoredQueue
from feedhandler.amqp.durable.transactions import NOT_HELD, Refusal, Work
from feedhandler.amqp.durable.values import SectionError
from feedhandler.amqp.sender_queue import Peer
from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.counters import QueueCounter
from feedhandler.keyed.envelope import OutboxEntry, message_in, overhead, wrap, wrap_outbox_entry
from feedhandler.keyed.journal_store import JournalStore
from feedhandler.keyed.kept import Opened, open_definition, read_definition
from feedhandler.keyed.producers import Stamp
from feedhandler.keyed.queue import FULL_OF_KEY, FULL_OF_MESSAGES, Delivery, KeyedQueue
from feedhandler.keyed.rota import Rota
from feedhandler.keyed.settings import NEVER
from feedhandler.keyed.structure import DIGEST_BYTES, Misfit
from feedhandler.operator_log import log_event

#: Messages that are handed out before the loop serves other clients.
SHARE = 256
#: Bytes that are read from the disk at a time, beside one message.
READ_BYTES_MAX = 8 << 20


class KeyedDurableQueue(StoredQueue):
    """A keyed queue; see the module. `find` finds another queue of the node by name, to send to."""

    watches_days = False
    operations = (*StoredQueue.operations, *OPERATIONS)

    def __init__(
        self,
        config: DurableQueueConfig,
        flush: Callable[[], None],
        find: Callable[[str], StoredQueue | None],
        **options: Any,
    ) -> None:
        super().__init__(config, flush, **options)
        assert config.key is not None
        self.definition = config.key
        self.core: KeyedQueue
        self.journal_store: JournalStore
        self.intake: KeyedIntake
        self._find = find
        self._management = KeyedManagement(self)
        self._opening: Opened
        self._outbox: Outbox
        self._token = ""
        self._at_hand: Callable[[int], bytes | None]
        self._rota: Rota[KeyedConsumer] = Rota()
        #: Those of them that may have messages of a run, and were not looked at since.
        self._asking: dict[KeyedConsumer, None] = {}
        #: Consumers whose client wants unused credit back once nothing can be handed out.
        self._draining: dict[KeyedConsumer, None] = {}
        self._numbers: dict[KeyedConsumer, int] = {}
        self._taker_of: dict[int, KeyedConsumer] = {}
        self._joined = 0
        self._to_read: list[tuple[int, Delivery]] = []
        #: Deliveries that wait to be read; what comes after one is not handed out before it.
        self._unread: set[int] = set()
        self._reading = self._pushing = False
        self._committing: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.handed_out = self.handed_out_again = 0

    # -- open and closed --------------------------------------------------------------------

    async def _begin(self) -> None:
        engine = self.store.engine
        try:
            await asyncio.to_thread(self._restore)
        except FeedhandlerError as error:
            raise UsageError(error.message, error.hint) from None
        self._token, self._at_hand = engine.queue_id.hex(), engine.at_hand
        self.intake = KeyedIntake(
            self.config, self.definition, self.store, self.core, self.journal_store, self.ids,
            self._write_page,
        )  # fmt: skip
        # A message that is dropped frees its content in memory.
        self.journal_store.on_dropped = self.intake.recent.pop
        if engine.day_ns:
            self.in_a_while("day", self._watch_day)
        self._outbox = Outbox(self, self._find, self._arrived)

    def _restore(self) -> None:
        """Restore what the queue holds, and its producers; called in a thread before the queue is
        used. Raises `UsageError`."""
        engine = self.store.engine
        if read_definition(self._files, engine.folder) is None and engine.next_id > 1:
            raise UsageError(
                f"{engine.folder}: a queue without keys, and one with keys is asked for",
                "another folder, or leave out [queue.key]",
            )
        opening = open_definition(self._files, engine.folder, self.definition)
        self.journal_store = JournalStore(self.store, self.config.dead, self._read_one, self._lost)
        self.core = KeyedQueue(
            self.definition.structure(),
            self.definition.settings(self.config.redeliveries_max),
            self.journal_store,
            opening.openings,
            engine.producers().items(),
            opening.secret,
        )
        self.journal_store.restore(self.core)
        self.core.on_ready = self._serve_soon

    def _message_in(self, content: bytes) -> bytes:
        return message_in(content)

    def _overhead(self) -> int:
        return overhead(self.definition.structure().key_slots)

    def _closing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stopped(self) -> None:
        self._closing()
        self.intake.stop()
        committing, self._committing = self._committing, []
        for lost in committing:
            lost()

    # -- producing --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Return whether anything is on its way to the disk."""
        return not self.fault and self.journal_store.busy

    def push(self) -> None:
        """Commit what was asked for in this turn."""
        if self.fault:
            return
        try:
            self.journal_store.push()
        except FeedhandlerError as error:
            self.stop(str(error))

    def accept_forwarded(self, content: bytes, stamp: Stamp, on_done: Callable[[], None]) -> bool:
        """Put a message that another queue sends; see `StoredQueue`."""
        # Room for which producers have credit counts as free: a producer that never uses its credit
        # would hold this up.
        if self.fault or not self.store.engine.has_room:
            return False
        if not self.intake.accept_forwarded(content, stamp, on_done):
            return False
        self.push_soon()
        return True

    # -- transactions -----------------------------------------------------------------------

    def accepts(self, content: bytes, *, home: bool) -> str:
        """Return why a transaction could not put this message; see `StoredQueue`."""
        if fault := self._format_fault():
            return fault
        try:
            read = read_message(content, self.definition.format)
            self.core.structure.keys(read.material)
        except SectionError as error:
            return f"no AMQP message: {error}"
        except Misfit as misfit:
            return str(misfit)
        if read.stamp is not None and not home:
            return (
                "a producer's sequence number counts where the transaction's messages are accepted,"
                " or first put: put it by itself"
            )
        return ""

    def transact(
        self, work: Work, done: Callable[[], None], lost: Callable[[], None]
    ) -> Refusal | None:
        """Apply all operations of a transaction as one group of the journal; see `StoredQueue`."""
        takers = ((cast(KeyedConsumer, taker), fence) for taker, fence in work.accepted)
        mine = [(taker, self._numbers.get(taker, 0), fence) for taker, fence in takers]
        if not all(self.core.holds(number, fence) for _, number, fence in mine):
            return Refusal(NOT_HELD)
        puts = [read_message(content, self.definition.format) for content in work.put]
        refusal = self._no_room(work, puts)
        if refusal is not None:
            return refusal
        self.push()
        if self.fault:
            return Refusal(f"queue {self.name} has stopped: {self.fault}", failed=False)

        def durable() -> None:
            self._committing.remove(lost)
            for taker, _, fence in mine:
                self._delivered(taker, [fence])
            done()

        with self.journal_store.unit():
            for _, number, fence in mine:
                self.core.acknowledge(number, fence)
            for content, read in zip(work.put, puts, strict=True):
                self.intake.put(content, read)
            for name, content in work.sent:
                self.journal_store.send(OutboxEntry(name, "", content))
        self._committing.append(lost)
        self.journal_store.when_durable(durable)
        self.push()
        return None

    def _no_room(self, work: Work, puts: list[Read]) -> Refusal | None:
        """Return why not all of a transaction can be taken now; None where it can."""
        if fault := self._room_fault(self._outbox, work):
            return Refusal(fault, failed=False)
        refusal = self.core.refusal([(read.stamp, read.material) for read in puts])
        if refusal:
            full = refusal in (FULL_OF_MESSAGES, FULL_OF_KEY)
            return Refusal(f"queue {self.name}: {refusal}", failed=not full)
        keys = bytes(DIGEST_BYTES * self.core.structure.key_slots)
        items = [wrap(each, keys) for each in work.put]
        items += [wrap_outbox_entry(OutboxEntry(name, "", each)) for name, each in work.sent]
        stamps = {read.stamp.producer: (0, 0) for read in puts if read.stamp is not None}
        try:
            self.store.engine.check_commit(items, len(work.accepted), stamps)
        except UsageError as error:
            return Refusal(f"queue {self.name}: {error.message}")
        return None

    # -- after a flush ----------------------------------------------------------------------

    def _on_settled(self) -> None:
        """Act on a flush of the persistent queue, or on its stop."""
        if self.fault:
            return
        engine = self.store.engine
        for on_done in self.journal_store.settled():
            on_done()
        self.intake.confirm(engine.durable_id)
        if engine.stopped is not None:
            self.stop(str(engine.stopped))
            return
        self.push()
        if not self.journal_store.busy:
            self._move_on()
        if not self.closing:
            self.intake.notify_of_room()
        self.send_outbox()
        self.serve()
        self.flush()

    def _move_on(self) -> None:
        """Move messages that are not taken out of old blocks, where blocks are short."""
        try:
            self.journal_store.move_some()
        except FeedhandlerError as error:
            self.stop(str(error))

    # -- handing out ------------------------------------------------------------------------

    def consumer(self, peer: Peer, link: Any, forget: Forget) -> KeyedConsumer:
        """Make a consumer's link."""
        return KeyedConsumer(peer, link, forget, self)

    def join(self, taker: KeyedConsumer) -> None:
        """Add a consumer; it is served when it has credit."""
        self._joined += 1
        self._numbers[taker] = self._joined
        self._taker_of[self._joined] = taker
        self.offer(taker)

    def leave(self, taker: KeyedConsumer, fences: list[int], *, failed: bool) -> None:
        """Remove a consumer: what it had goes to the others."""
        self._rota.remove(taker)
        self._asking.pop(taker, None)
        self._draining.pop(taker, None)
        number = self._numbers.pop(taker)
        del self._taker_of[number]
        if not self.fault:
            held = sum(self.core.holds(number, fence) for fence in fences)
            self.counts[QueueCounter.RETURNED] += held
            self.core.gone(number, failed and not self.closing)
            self.push_soon()

    @property
    def idle(self) -> bool:
        """Return whether there is nothing that could be handed out."""
        return not (self.core.open_to_all or self._reading or self._to_read)

    def offer(self, taker: KeyedConsumer) -> None:
        """Note that this consumer may have room for one more message."""
        if taker in self._numbers:
            self._rota.offer(taker, taker.in_hand)
            if self.definition.run > 1:
                self._asking[taker] = None

    def drain(self, taker: KeyedConsumer) -> None:
        """Return this consumer's unused credit once nothing can be handed out."""
        if taker in self._numbers:
            self._draining[taker] = None

    def serve(self) -> None:
        """Hand out what may go, as far as consumers have credit."""
        left = SHARE - self._serve_share()
        if self._to_read and not self._reading:
            self._read_some()
        self._watch_time()
        if not left:
            self._serve_soon()
        elif self.idle and self._draining:
            draining, self._draining = self._draining, {}
            for taker in draining:
                taker.settle_drain()

    def _serve_share(self) -> int:
        """Hand out at most `SHARE` messages; return how many that were."""
        given, now_ns = 0, time.monotonic_ns()
        while given < SHARE and not self.fault:
            found = self._next(now_ns)
            if found is None:
                break
            given += 1
            self._give(*found)
            self.offer(found[0])
        return given

    def _next(self, now_ns: int) -> tuple[KeyedConsumer, Delivery] | None:
        """Return the next consumer and its message; None where no consumer with room may have
        any."""
        core, rota = self.core, self._rota
        while core.open_to_all and (taker := rota.next()) is not None:
            if taker.ready() and (delivery := core.take(self._numbers[taker], now_ns)):
                return taker, delivery
        return self._next_of_a_run(now_ns) if self.definition.run > 1 else None

    def _next_of_a_run(self, now_ns: int) -> tuple[KeyedConsumer, Delivery] | None:
        """Return the next message that only one consumer may have, of the consumers that have
        room."""
        for number in self.core.followed():
            if (taker := self._taker_of.get(number)) is not None:
                self._asking[taker] = None
        for taker in list(self._asking):
            number = self._numbers.get(taker, 0)
            if taker not in self._rota or not taker.ready():
                self._rota.remove(taker)
            elif delivery := self.core.take(number, now_ns):
                self._rota.remove(taker)
                return taker, delivery
            elif self.core.follows(number):
                continue  # until it is durable
            del self._asking[taker]
        return None

    def _give(self, taker: KeyedConsumer, delivery: Delivery) -> None:
        content = self.intake.recent.pop(delivery.number)
        if not self._unread.isdisjoint(delivery.after):
            content = None  # it would overtake one that is being read
        elif content is None and not self._reading:
            item = self._at_hand(delivery.number)
            content = None if item is None else message_in(item)
        if content is not None:
            self._hand_out(taker, delivery, content)
        else:
            taker.reserve(1)
            self._unread.add(delivery.fence)
            self._to_read.append((self._numbers[taker], delivery))

    def _hand_out(self, taker: KeyedConsumer, delivery: Delivery, content: bytes) -> None:
        self.handed_out += 1
        self.handed_out_again += delivery.tries > 0
        taker.hand_out_keyed(content, delivery)

    def who(self, consumer: int) -> str:
        """Return a consumer's name, for display; "" where it is gone."""
        taker = self._taker_of.get(consumer)
        return "" if taker is None else taker.name

    def token(self, number: int) -> str:
        """Return a message's token, unique among all queues of all nodes."""
        return f"{self._token}-{number}"

    def push_soon(self) -> None:
        """Schedule a commit of what was asked for outside of a link's turn."""
        if not self._pushing:
            self._pushing = True
            self._loop.call_soon(self._push_now)

    def _push_now(self) -> None:
        self._pushing = False
        self.push()

    # -- what is not in memory any more -----------------------------------------------------

    def _read_some(self) -> None:
        asked, self._to_read = self._to_read, []
        self._reading = True
        future = self._loop.run_in_executor(self._threads, self._read, asked)
        future.add_done_callback(functools.partial(self._on_read, asked))

    def _read(self, asked: list[tuple[int, Delivery]]) -> dict[int, bytes | None]:
        """Read contents, as many as there is room for; None for those that do not verify. Called in
        the queue's thread."""
        numbers = sorted(delivery.number for _, delivery in asked)
        found = self.store.engine.read_many(numbers, READ_BYTES_MAX)
        return {
            number: None if content is None else message_in(content)
            for number, content in found.items()
        }

    def _on_read(
        self, asked: list[tuple[int, Delivery]], future: "asyncio.Future[dict[int, bytes | None]]"
    ) -> None:
        self._reading = False
        if self.fault or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._failed(error)
            return
        found = future.result()
        left = [each for each in asked if each[1].number not in found]
        self._to_read = left + self._to_read
        for consumer, delivery in asked:
            if delivery.number not in found:
                continue
            content = found[delivery.number]
            self._unread.remove(delivery.fence)
            taker = self._taker_of.get(consumer)
            if taker is not None:
                taker.reserve(-1)
                self.offer(taker)
            if not self.core.holds(consumer, delivery.fence):
                continue  # given up meanwhile
            if content is None:
                text = f"queue {self.name}: message {delivery.number} does not verify"
                log_event("queue_damaged", text, logging.ERROR)
                self.core.acknowledge(consumer, delivery.fence)
            elif taker is not None:
                self._hand_out(taker, delivery, content)
        self.push()
        self.serve()
        self.flush()

    def _read_one(self, number: int, then: Callable[[bytes | None], None]) -> None:
        """Read a message that is to be sent elsewhere; `then` is called on the loop, with None
        where it does not verify."""

        def done(future: "asyncio.Future[bytes | None]") -> None:
            if self.fault or future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._failed(error)
                return
            content = future.result()
            then(None if content is None else message_in(content))
            self.push()

        read = functools.partial(self.store.engine.read, number)
        self._loop.run_in_executor(self._threads, read).add_done_callback(done)

    # -- outcomes of messages ---------------------------------------------------------------

    def deliver(self, taker: KeyedConsumer, fences: list[int]) -> None:
        """Acknowledge deliveries; once that is durable the consumer is notified. Stale ones are
        released."""
        number = self._numbers.get(taker, 0)
        mine = [fence for fence in fences if self.core.acknowledge(number, fence)]
        self._stale(taker, set(fences).difference(mine))
        if mine:
            self.journal_store.when_durable(functools.partial(self._delivered, taker, mine))
            self.push_soon()

    def _delivered(self, taker: KeyedConsumer, fences: list[int]) -> None:
        self.counts[QueueCounter.DELIVERED] += len(fences)
        taker.finished(fences)

    def _stale(self, taker: KeyedConsumer, fences: set[int]) -> None:
        if fences:
            taker.disowned(fences)

    def give_back(self, taker: KeyedConsumer, fences: list[int], *, failed: bool) -> None:
        """Return deliveries to their positions, for the next consumer; `failed` counts against the
        message."""
        number = self._numbers.get(taker, 0)
        for fence in fences:
            self.counts[QueueCounter.RETURNED] += self.core.give_back(number, fence, failed)
        taker.finished(fences)
        self.push_soon()

    def refuse(self, taker: KeyedConsumer, fences: list[int], why: str) -> None:
        """Reject deliveries, for the reason `why`."""
        number = self._numbers.get(taker, 0)
        mine = [fence for fence in fences if self.core.refuse(number, fence, why)]
        self._stale(taker, set(fences).difference(mine))
        self.journal_store.when_durable(functools.partial(taker.finished, mine))
        self.push_soon()

    def _lost(self, number: int, reason: str) -> None:
        self.counts[QueueCounter.DEAD] += 1
        which = f"message {number}" if number else "a message"
        text = f"queue {self.name}: {which}: {reason}: cancelled"
        log_event("queue_dead", text, queue=self.name, message=number)

    def _watch_time(self) -> None:
        """Set the timer for the next delivery that a consumer holds for too long."""
        deadline_ns = self.core.deadline_ns
        if self._timer is not None or deadline_ns == NEVER or self.fault:
            return
        seconds = max(deadline_ns - time.monotonic_ns(), 0) / 1e9
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.fault:
            self.core.tick(time.monotonic_ns())
            self.push()
            self._watch_time()

    # -- other queues -----------------------------------------------------------------------

    def send_outbox(self) -> None:
        """Send the outbox to other queues, in order; each ends here once it is durable there."""
        entries = self.journal_store.outbox
        if entries:
            self._outbox.add(entries)
            entries.clear()
        self._outbox.send()

    def _arrived(self, number: int, entry: OutboxEntry) -> None:
        if entry.reason:
            self.counts[QueueCounter.DEAD] += 1
            text = f"queue {self.name}: a message {entry.reason}: moved to queue {entry.queue}"
            log_event("queue_dead", text, queue=self.name)
        self.journal_store.arrived(number)
        self.push_soon()

    # -- cancelling -------------------------------------------------------------------------

    def cancel(self, number: int, on_done: OnDone, wait: bool = False) -> None:
        """Cancel a message; `on_done` gets the answer once it is recorded; see `DurableQueue`."""
        status = self.status_of(number)
        if status != "pending":
            late = status in ("delivered", "expired")
            counter = QueueCounter.CANCELS_LATE if late else QueueCounter.CANCELS_UNKNOWN
            self.counts[counter] += status != "cancelled"
            on_done(status)
        elif self.core.cancel(number):
            self.intake.recent.pop(number)
            self.journal_store.when_durable(functools.partial(self._cancelled, on_done))
            self.push_soon()
        else:
            self.counts[QueueCounter.CANCELS_LATE] += 1
            on_done("delivering")

    def _cancelled(self, on_done: OnDone) -> None:
        self.counts[QueueCounter.CANCELLED] += 1
        on_done("cancelled")

    def asked(self, operation: str, arguments: dict[str, Any], reply: Reply) -> Steps:
        """Process a request of keyed queues' management, in steps."""
        return self._management.do(operation, arguments, reply)

    def cancel_all(self, on_done: Callable[[Cancelled | None], None]) -> None:
        """Cancel everything that no consumer has; `on_done` is called once that is recorded."""
        cancelled: list[int] = []
        engine = self.store.engine
        end = engine.visible_end

        def done() -> None:
            if self.fault:
                on_done(None)
                return
            self.journal_store.when_durable(recorded)
            self.push_soon()

        def recorded() -> None:
            self.counts[QueueCounter.CANCELLED] += sum(cancelled)
            page = functools.partial(engine.forward_page, 0, end, FORWARD_PAGE)
            self.in_thread(lambda: self._named(page()), answer)

        def answer(forward: Forwarding | None) -> None:
            if forward is None:
                on_done(None)
            else:
                on_done(Cancelled(sum(cancelled), self.core.in_hand, forward))

        self._end_share(self.core.cancel_all(), cancelled.append, done)

    def _end_share(
        self, shares: Iterator[list[int]], note: Callable[[int], None], done: Callable[[], None]
    ) -> None:
        """Process one share of ended messages, and schedule the next one for the next turn of the
        loop."""
        if self.fault:
            done()
            return
        ended = next(shares, None)
        if ended is None:
            done()
            return
        note(len(ended))
        for number in ended:
            self.intake.recent.pop(number)
        self.push()
        self._loop.call_soon(self._end_share, shares, note, done)

    # -- the day's end ----------------------------------------------------------------------

    def _watch_day(self) -> None:
        """Expire what is left of an ended trading day, a share each turn."""
        if first := self.store.engine.begin_day():
            self._expire(first)
        self.in_a_while("day", self._watch_day)

    def _expire(self, before: int) -> None:
        # Counted by `_expired`, once that is durable.
        self._end_share(self.core.expire(before), lambda _count: None, lambda: None)

    # -- figures ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return counters and state, for status, statistics and metrics."""
        figures = super().snapshot()
        if not self._opened:
            return figures
        core = self.core
        return figures | {
            "put": self.intake.confirmed,
            "put_bytes": self.intake.put_bytes,
            "handed_out": self.handed_out,
            "handed_out_again": self.handed_out_again,
            "in_hand": core.in_hand,
            "consumers": len(self._numbers),
            "keys": core.dispatch.keys.count,
            "parked": core.dispatch.parked,
            "repeated": core.repeated,
            "misfits": core.misfits,
            "timeouts": core.timeouts,
            "stale": core.stale,
            "producers_known": len(core.producers),
            "outbox": len(self.journal_store.outbox) + len(self._outbox),
        }
