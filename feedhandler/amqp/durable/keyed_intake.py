"""Messages that producers send to a keyed queue, on their way to the disk."""

import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.intake import OVERFULL, BaseIntake
from feedhandler.amqp.durable.keyed_sections import Read, read_message
from feedhandler.amqp.durable.message_ids import MessageIds
from feedhandler.amqp.durable.values import SectionError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.journal import PersistentQueue
from feedhandler.keyed.definition import Definition
from feedhandler.keyed.producers import Stamp, Standing
from feedhandler.keyed.queue import FULL_OF_KEY, FULL_OF_MESSAGES, Outcome

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import Producer
    from feedhandler.keyed.journal_store import JournalStore
    from feedhandler.keyed.queue import KeyedQueue


#: Condition for a message whose stamp does not follow; by NEXT the message itself is at fault.
CONDITIONS = {
    Standing.NEXT: conditions.PRECONDITION_FAILED,
    Standing.GAP: "feedhandler:sequence-gap",
    Standing.REPLACED: "feedhandler:producer-replaced",
}


class KeyedIntake(BaseIntake):
    """The intake of one keyed queue."""

    def __init__(
        self,
        config: DurableQueueConfig,
        definition: Definition,
        store: PersistentQueue,
        core: "KeyedQueue",
        journal_store: "JournalStore",
        ids: MessageIds,
        on_page: Callable[[bytes], object],
    ) -> None:
        super().__init__(config, store, ids, on_page)
        self._format = definition.format
        self._core = core
        self._journal_store = journal_store
        self._to_settle: dict["Producer", None] = {}
        self._names: deque[tuple[int, bytes]] = deque()

    @property
    def put_bytes(self) -> int:
        """Bytes that were put."""
        return self._journal_store.put_bytes

    @property
    def overfull(self) -> bool:
        """Whether so much waits that even messages for which credit was given are rejected."""
        waiting = self._store.engine.waiting_bytes + self._journal_store.gathered_bytes
        return waiting > OVERFULL * self._config.waiting_bytes_max

    @property
    def free(self) -> int:  # type: ignore[override]
        """How many messages more may come."""
        return self._core.room - self.granted

    @property
    def has_room(self) -> bool:
        """Whether producers may be given credit."""
        return self._store.engine.has_room and self.free > 0

    def offer(self, source: "Producer", number: int, content: bytes) -> bool:
        """Take a producer's message; return False where it was refused."""
        try:
            read = read_message(content, self._format)
        except SectionError as error:
            source.refused(number, conditions.DECODE_ERROR, f"no AMQP message: {error}")
            return False
        answer = self._core.put(content, read.stamp, read.material)
        if answer.outcome is Outcome.FULL:
            source.refused(number, conditions.RESOURCE_LIMIT_EXCEEDED, answer.reason, again=True)
            return False
        if answer.outcome is Outcome.REJECTED:
            full = answer.reason in (FULL_OF_MESSAGES, FULL_OF_KEY)
            condition = conditions.RESOURCE_LIMIT_EXCEEDED if full else CONDITIONS[answer.standing]
            source.refused(number, condition, answer.reason)
            return False
        self._added(answer.number, content, read)
        reason = answer.reason if answer.outcome is Outcome.NOTED else ""
        self._journal_store.when_durable(functools.partial(self._confirm, source, number, reason))
        return True

    def put(self, content: bytes, read: Read) -> None:
        """Take a message of a transaction, which was checked by `KeyedQueue.refusal`."""
        answer = self._core.put(content, read.stamp, read.material)
        assert answer.outcome in (Outcome.STORING, Outcome.REPEATED), answer.reason
        self._added(answer.number, content, read)
        self._journal_store.when_durable(self._count)

    def accept_forwarded(self, content: bytes, stamp: Stamp, on_done: Callable[[], None]) -> bool:
        """Take a message that another queue sends; return False where there is no room now.

        One without a key goes to the queue of dead messages: the sending queue has checked that,
        but this queue may have been created anew since.
        """
        try:
            read = read_message(content, self._format)
            answer = self._core.put_sent(content, stamp, read.material)
        except SectionError as error:
            self._core.divert_sent(content, stamp, f"no AMQP message: {error}")
        else:
            if answer.outcome is Outcome.FULL:
                return False
            self._added(answer.number, content, read)
        self._journal_store.when_durable(self._count)
        self._journal_store.when_durable(on_done)
        return True

    def _count(self) -> None:
        self.confirmed += 1

    def _added(self, number: int, content: bytes, read: Read) -> None:
        if number:
            self.recent.keep(number, content)
            self._names.append((number, read.look.message_id))

    def _confirm(self, source: "Producer", number: int, reason: str) -> None:
        if reason:
            source.refused_late(number, conditions.PRECONDITION_FAILED, reason)
        else:
            self.confirmed += 1
            source.accepted(number)
        self._to_settle[source] = None

    def confirm(self, durable_id: int) -> None:
        """Add message-ids up to `durable_id` to the index, and notify producers that all outcomes
        are given."""
        while self._names and self._names[0][0] <= durable_id:
            self._ids.add(*self._names.popleft())
        self._write_page()
        sources, self._to_settle = self._to_settle, {}
        for source in sources:
            source.settled()
