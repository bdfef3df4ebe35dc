"""Messages on their way from one queue of the node to another: put there once, then ended here.

What it is for: a message that is to go to another queue (a dead one, one that a transaction has
put) is an item of this queue's journal first (`feedhandler.keyed.envelope.OutboxEntry`), and
counts as sent as soon as it is durable here. `Outbox` puts it into the other queue, with this
queue's id and the item's number as its stamp, so that it is put there once however often that is
repeated; then the item ends.

Those for one queue go in order. A queue that takes nothing now, or has stopped, is tried again a
little later, and delays no other: each has its own share of messages on their way, and of bytes
that wait.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedhandler.amqp.durable.keyed_sections import with_reason
from feedhandler.counters import QueueCounter
from feedhandler.keyed.envelope import OutboxEntry
from feedhandler.keyed.producers import OWN, Stamp
from feedhandler.operator_log import log_event

if TYPE_CHECKING:
    from feedhandler.amqp.durable.stored import StoredQueue

#: Messages that are on their way to another queue at a time.
IN_FLIGHT_MAX = 64
#: Bytes of messages that may wait for another queue where a transaction adds more, with what each
#: costs beside its message.
OUTBOX_BYTES_MAX = 16 << 20
ENTRY_BYTES = 256
#: Prefix of a queue's producer id when it sends to others.
SENDER = OWN + b"queue:"


@dataclass(slots=True)
class _Target:
    """The entries for one queue, in order: those that wait, and those on their way to it.

    `kept_bytes`: what they all cost.
    """

    waiting: deque[tuple[int, OutboxEntry]] = field(default_factory=deque)
    out: dict[int, OutboxEntry] = field(default_factory=dict)
    kept_bytes: int = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.out)

    def take_back(self) -> None:
        """Have those that are on their way wait again."""
        self.waiting.extendleft(reversed(self.out.items()))
        self.out.clear()


class Outbox:
    """The messages that one queue sends to others; see the module.

    `arrived` is called with each that is durable where it was sent.
    """

    def __init__(
        self,
        queue: "StoredQueue",
        find: "Callable[[str], StoredQueue | None]",
        arrived: Callable[[int, OutboxEntry], None],
    ) -> None:
        self._queue = queue
        self._find = find
        self._ended = arrived
        self._sender = SENDER + queue.store.engine.queue_id
        self._targets: dict[str, _Target] = {}
        self._asked = False

    def __len__(self) -> int:
        return sum(map(len, self._targets.values()))

    @property
    def kept_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(target.kept_bytes for target in self._targets.values())

    def fault(self, messages: Iterable[tuple[str, bytes]]) -> str:
        """Return why these (queue, message) may not be sent, too; "" where they may."""
        more_bytes: Counter[str] = Counter()
        for name, message in messages:
            more_bytes[name] += _cost(message)
        full = [name for name, more in more_bytes.items() if self._is_full(name, more)]
        if not full:
            return ""
        return f"too much waits in queue {self._queue.name} to be sent to {', '.join(full)}"

    def _is_full(self, name: str, more_bytes: int) -> bool:
        target = self._targets.get(name)
        kept_bytes = target.kept_bytes if target is not None else 0
        return kept_bytes + more_bytes > OUTBOX_BYTES_MAX

    def add(self, entries: Iterable[tuple[int, OutboxEntry]]) -> None:
        """Add entries that are durable here, in the order of their numbers."""
        for number, entry in entries:
            target = self._targets.setdefault(entry.queue, _Target())
            target.waiting.append((number, entry))
            target.kept_bytes += _cost(entry.message)

    def send(self) -> None:
        """Send to the other queues as much as they take now."""
        for name, target in list(self._targets.items()):
            queue = self._find(name)
            if queue is None or queue.fault:
                # It never says what has arrived of those.
                target.take_back()
                self._queue.in_a_while("outbox", self.send)
            elif not self._fill(target, queue):
                self._queue.in_a_while("outbox", self.send)
            if not target:
                del self._targets[name]

    def _fill(self, target: _Target, queue: "StoredQueue") -> bool:
        """Send a queue what waits for it, as far as so many may be on their way; return False where
        it takes no more now."""
        while target.waiting and len(target.out) < IN_FLIGHT_MAX and not self._queue.fault:
            number, entry = target.waiting[0]
            content = entry.message
            if entry.reason:
                content = with_reason(content, self._queue.name, entry.reason)
            if len(content) > queue.room_bytes:
                target.waiting.popleft()
                self._cancel(target, number, entry, len(content))
                continue
            stamp = Stamp(self._sender, 0, number, skips=True)
            target.out[number] = entry
            if not queue.accept_forwarded(
                content, stamp, functools.partial(self._arrived, target, number)
            ):
                del target.out[number]
                return False
            target.waiting.popleft()
        return True

    def _cancel(self, target: _Target, number: int, entry: OutboxEntry, size: int) -> None:
        """End an entry that no block of the other queue can hold: that queue would stop at it."""
        queue = self._queue
        queue.counts[QueueCounter.DEAD] += 1
        text = f"queue {queue.name}: {size} bytes are too many for queue {entry.queue}: cancelled"
        log_event("queue_dead", text, queue=queue.name)
        self._over(target, number, entry._replace(reason=""))

    def _arrived(self, target: _Target, number: int) -> None:
        """End an entry that is durable where it was sent, unless it has been taken back."""
        entry = target.out.pop(number, None)
        if entry is not None:
            self._over(target, number, entry)

    def _over(self, target: _Target, number: int, entry: OutboxEntry) -> None:
        target.kept_bytes -= _cost(entry.message)
        if not self._queue.fault:
            self._ended(number, entry)
            if not self._asked:
                self._asked = True
                self._queue.soon(self._send_on)

    def _send_on(self) -> None:
        self._asked = False
        self.send()


def _cost(message: bytes) -> int:
    return len(message) + ENTRY_BYTES
