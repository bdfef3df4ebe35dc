"""Messages on their way from producers to the disk: gathered, put, accepted once durable.

What it is for: `offer` takes a producer's message, `push` puts all offered messages into the
persistent queue, `confirm` notifies producers of durable messages and adds the message-ids to the
index. Contents stay in memory for a while (`RecentContents`), so that a message that is consumed
soon need not be read from the disk.

What it promises: messages are put in the order in which they were offered. Producers get so much
credit that all messages in flight fit `waiting_bytes_max`; while that much waits for the disk they
get none, and are notified (`settled`) when there is room again.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.message_ids import MessageIds
from feedhandler.amqp.durable.sections import id_of, look
from feedhandler.amqp.durable.values import SectionError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.journal import PersistentQueue, Status
from feedhandler.journal.engine import Committed
from feedhandler.journal.groups import ProducerState
from feedhandler.keyed.producers import Stamp

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import Producer

#: The sender of a message, which is notified by its own number that it is durable.
Source: TypeAlias = "Producer | Arrival"

#: Contents that are kept in memory from being put to being handed out.
RECENT_BYTES_MAX = 4 << 20
#: Producers' credit is computed from the sizes of what they sent before: where these grow suddenly,
#: more may wait than the bound, but not more than so many times the bound.
OVERFULL = 2
#: What each message costs beside its bytes while it waits.
ENTRY_BYTES = 100


class Arrival:
    """Source of a message that did not come on a producer's link; `on_done` is called once it is
    durable."""

    def __init__(self, on_done: Callable[[], object] = lambda: None) -> None:
        self._on_done = on_done

    def accepted(self, number: int) -> None:
        """Note that the message is durable."""
        self._on_done()

    def settled(self) -> None:
        """Do nothing: no more is to come."""


class RecentContents:
    """Contents by id, up to a bound. When it is full, later contents are not kept: messages are
    consumed in the order in which they came."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}
        self._bytes = 0

    def keep(self, number: int, content: bytes) -> bool:
        """Keep a content; return False where there is no room for it."""
        if self._bytes + len(content) > RECENT_BYTES_MAX:
            return False
        self._contents[number] = content
        self._bytes += len(content) + ENTRY_BYTES
        return True

    def pop(self, number: int) -> bytes | None:
        """Remove and return a content; None where it is not kept."""
        content = self._contents.pop(number, None)
        if content is not None:
            self._bytes -= len(content) + ENTRY_BYTES
        return content

    def clear(self) -> None:
        """Remove all contents."""
        self._contents.clear()
        self._bytes = 0


class BaseIntake(ABC):
    """Base of the intakes of all kinds of queues: producers' credit, recent contents, the index.

    `on_page` gets each page of the index, to be written.
    """

    #: How many messages more may come, whatever their size.
    free = 1 << 62

    def __init__(
        self,
        config: DurableQueueConfig,
        store: PersistentQueue,
        ids: MessageIds,
        on_page: Callable[[bytes], object],
    ) -> None:
        self.producers = 0
        #: Credit that producers have and have not used.
        self.granted = 0
        #: Messages that are durable.
        self.confirmed = 0
        self.recent = RecentContents()
        self._config = config
        self._store = store
        self._ids = ids
        self._on_page = on_page
        self._block = store.engine.incarnation
        self._without_room: dict["Producer", None] = {}

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether producers may be given credit."""

    def window(self, message_bytes: float) -> int:
        """Return how many messages of about this size a producer may have in flight, 1 at least."""
        each = (message_bytes + ENTRY_BYTES) * max(self.producers, 1)
        return min(self._config.credit, max(int(self._config.waiting_bytes_max / each), 1))

    def wait_for_room(self, source: "Producer") -> None:
        """Register `source` to be notified by `settled` when there is room again."""
        self._without_room[source] = None

    def notify_of_room(self) -> None:
        """Notify the producers that wait for room, if there is room again."""
        if self._without_room and self.has_room:
            waiting, self._without_room = self._without_room, {}
            for source in waiting:
                source.settled()

    def _write_page(self) -> None:
        """Write a full page of the index, before the blocks of its messages can be used
        anew."""
        engine = self._store.engine
        if self._ids.page_due or self._block != engine.incarnation:
            self._block = engine.incarnation
            page = self._ids.full_page(engine.now_ns())
            if page:
                self._on_page(page)

    def stop(self) -> None:
        """Stop granting credit; drop the contents that are kept."""
        self._without_room.clear()
        self.recent.clear()


class Intake(BaseIntake):
    """The intake of one queue; see the module."""

    def __init__(
        self,
        config: DurableQueueConfig,
        store: PersistentQueue,
        ids: MessageIds,
        on_page: Callable[[bytes], object],
    ) -> None:
        super().__init__(config, store, ids, on_page)
        #: Bytes of messages that wait, and bytes that were put.
        self.waiting_bytes = self.put_bytes = 0
        self._waiting: list[tuple[Source, int, bytes, bytes]] = []
        self._flying: deque[tuple[int, int, list[tuple[Source, int, bytes]]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether messages have come that are not durable yet."""
        return bool(self._waiting or self._flying)

    @property
    def has_room(self) -> bool:
        """Whether producers may be given credit."""
        return not self._waiting and self._store.engine.has_room

    @property
    def overfull(self) -> bool:
        """Whether so much waits that even messages for which credit was given are rejected."""
        return self.waiting_bytes > OVERFULL * self._config.waiting_bytes_max

    def offer(self, source: "Producer", number: int, content: bytes) -> bool:
        """Take a producer's message, for the next `push`; return False where it was refused as no
        AMQP message."""
        try:
            found = look(content)
        except SectionError as error:
            source.refused(number, conditions.DECODE_ERROR, f"no AMQP message: {error}")
            return False
        self.add(source, number, content, found.message_id)
        return True

    def add(self, source: Source, number: int, content: bytes, message_id: bytes) -> None:
        """Add a message, for the next `push`."""
        self._waiting.append((source, number, content, message_id))
        self.waiting_bytes += len(content) + ENTRY_BYTES

    def push(self) -> None:
        """Put what was offered, unless too much waits for the disk already. Raises
        `QueueStopped`."""
        if not self._waiting or not self._store.engine.has_room:
            return
        batch, self._waiting = self._waiting, []
        self.waiting_bytes = 0
        contents = [content for _, _, content, _ in batch]
        first = self._store.put_soon(contents)
        for number, content in enumerate(contents, first):
            if not self.recent.keep(number, content):
                break
        self.put_bytes += sum(map(len, contents))
        flying = [(source, number, message_id) for source, number, _, message_id in batch]
        self._flying.append((first, first + len(batch) - 1, flying))

    def confirm(self, durable_id: int) -> None:
        """Notify the producers of messages up to this id, which are durable; write a full page of
        the index."""
        sources: dict[Source, None] = {}
        while self._flying and self._flying[0][1] <= durable_id:
            first, _, batch = self._flying.popleft()
            for index, (source, number, message_id) in enumerate(batch):
                self._ids.add(first + index, message_id)
                source.accepted(number)
                sources[source] = None
            self.confirmed += len(batch)
        self._write_page()
        for source in sources:
            source.settled()

    def accept_forwarded(self, source: Source, content: bytes, stamp: Stamp) -> None:
        """Put a message that another queue sends, and its stamp with it. Raises `QueueStopped`."""
        self.push()
        producers = {stamp.producer: (stamp.epoch, stamp.sequence)}
        first = self._store.commit_soon([content], producers=producers).first_id
        self.recent.keep(first, content)
        self.put_bytes += len(content)
        self._flying.append((first, first, [(source, 0, id_of(content))]))

    def commit(
        self,
        contents: Sequence[bytes],
        outbox: Sequence[bytes],
        ended: Sequence[int],
        producers: Mapping[bytes, ProducerState],
    ) -> Committed:
        """Put messages, then outbox entries, and end others as delivered, as one group: all or
        nothing.

        Raises `QueueStopped`, and `UsageError` where the group is not possible: then nothing was
        done.
        """
        ends = [(number, Status.DELIVERED) for number in ended]
        committed = self._store.commit_soon([*contents, *outbox], ends, (), producers)
        first, last = committed.first_id, committed.first_id + len(contents) - 1
        for number, content in enumerate(contents, first):
            if not self.recent.keep(number, content):
                break
        self.put_bytes += sum(map(len, contents))
        if contents:
            names = [id_of(content) for content in contents]
            self._flying.append((first, last, [(_TRANSACTION, 0, name) for name in names]))
        return committed


#: Source of a transaction's messages: it is answered as a whole.
_TRANSACTION = Arrival()
