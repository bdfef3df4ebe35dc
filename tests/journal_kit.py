"""A queue on a simulated disk, a script of random operations, and the ledger that judges it.

The ledger knows of every id what was attempted and what was acknowledged, and classifies what is
found after a crash:

    ok            as acknowledged, or as attempted where nothing was acknowledged
    lost          acknowledged, and gone
    resurrected   its end (delivered, cancelled, expired) was acknowledged, and it is pending
    changed       it has an end that nobody asked for
    altered       its bytes are not those that were put
    phantom       never attempted
"""

import random
from collections import Counter

from crc32c import crc32c

from feedhandler.journal.files import carry_out
from feedhandler.journal.layout import Status
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.simulated import SimulatedDisk

FOLDER = "/queue"
QUEUE_ID = bytes(range(16))
SMALL = QueueSettings(
    block_bytes=64 << 10, blocks=2, blocks_max=5, journal_bytes=8 << 10, checkpoint_bytes=16 << 10
)
DAY_NS = 24 * 3600 * 10**9


class Ledger:
    """What was attempted and acknowledged, by id."""

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}
        self.acknowledged = 0
        self.asked: dict[int, set[Status]] = {}
        self.ended: dict[int, Status] = {}

    def attempt(self, first: int, contents: list[bytes]) -> None:
        """These items were put."""
        for number, content in enumerate(contents, first):
            self.contents[number] = content

    def ask(self, numbers: list[int], status: Status) -> None:
        """This end was asked for."""
        for number in numbers:
            self.asked.setdefault(number, set()).add(status)

    def acknowledge(self, next_id: int) -> None:
        """Everything that was attempted so far is acknowledged; ids below `next_id` exist."""
        self.acknowledged = max(self.acknowledged, next_id - 1)
        for number, statuses in self.asked.items():
            if number not in self.ended:
                (self.ended[number],) = statuses

    def judge(self, opened: Opened, forgiven: frozenset[int] = frozenset()) -> Counter[str]:
        """What became of every id, by class; `forgiven` may be damaged."""
        verdicts: Counter[str] = Counter()
        store, delivery = opened.store, opened.delivery
        pending = {item.id: item.content for item in delivery.look(0, 1 << 30)}
        for number in range(1, max(store.visible_end, self.acknowledged + 1)):
            verdicts[self._verdict(number, delivery.status(number), pending, forgiven)] += 1
        assert list(pending) == sorted(pending)
        return verdicts

    def _verdict(
        self,
        number: int,
        status: Status | None,
        pending: dict[int, bytes],
        forgiven: frozenset[int],
    ) -> str:
        acknowledged = number <= self.acknowledged
        if number not in self.contents:
            return "phantom"
        if number in pending:
            if pending[number] != self.contents[number]:
                return "altered"
            return "resurrected" if number in self.ended else "ok"
        if number in self.ended:
            return "ok" if status in (self.ended[number], None) else "changed"
        if status is None:
            return "lost" if acknowledged and number not in self.asked else "ok"
        if status is Status.DAMAGED:
            return "lost" if acknowledged and number not in forgiven else "ok"
        return "ok" if status in self.asked.get(number, ()) else "changed"


def wrong(verdicts: Counter[str]) -> dict[str, int]:
    """What must not be."""
    return {name: count for name, count in verdicts.items() if name != "ok" and count}


class Script:
    """Random operations on a queue, each made durable before the next; the ledger keeps book."""

    def __init__(
        self, seed: int, disk: SimulatedDisk, settings: QueueSettings = SMALL, now_ns: int = DAY_NS
    ) -> None:
        self.draw = random.Random(seed)
        self.disk = disk
        self.settings = settings
        self.ledger = Ledger()
        self.now_ns = now_ns
        self.opened: Opened | None = None
        self.weights = [self.draw.choice((1, 3, 8)) for _ in range(6)]

    def open(self) -> Opened:
        """Open the queue."""
        self.opened = open_store(self.disk, FOLDER, self.settings, QUEUE_ID, self.now_ns)
        return self.opened

    def step(self) -> None:
        """One operation, then what waits is written."""
        self.now_ns += self.draw.randrange(1, 10**9)
        (operation,) = self.draw.choices(
            (self._put, self._put, self._deliver, self._cancel, self._release, self._end),
            self.weights,
        )
        operation()
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        opened = self.opened
        assert opened is not None
        store = opened.store
        while (flush := store.seal(self.now_ns)) is not None:
            if self.draw.random() < 0.7:
                store.prepare(self.now_ns)
            carry_out(self.disk, flush.steps)
            store.settle()
            if not store.has_waiting:
                self.ledger.acknowledge(flush.next_id)
        if store.wants_block:
            growth = store.grow(self.now_ns)
            carry_out(self.disk, growth.steps)
            store.grown(growth)

    def _put(self) -> None:
        store = self.opened.store
        if store.waiting_bytes > self.settings.journal_bytes:
            return
        largest = self.draw.choice((10, 400, 3000, 3000, 20_000))
        contents = [
            self.draw.randbytes(self.draw.randrange(largest))
            for _ in range(self.draw.choice((1, 1, 4, 12)))
        ]
        self.ledger.attempt(store.next_id, contents)
        store.add(contents)

    def _deliver(self) -> None:
        delivery = self.opened.delivery
        numbers = [item.id for item in delivery.take(self.draw.choice((1, 4, 30)))]
        if self.draw.random() < 0.8:
            delivered, _ = delivery.deliver(numbers)
            self.ledger.ask(delivered, Status.DELIVERED)

    def _cancel(self) -> None:
        store, delivery = self.opened.store, self.opened.delivery
        number = self.draw.randrange(max(store.visible_end - 60, 1), store.visible_end + 1)
        if delivery.status(number) is Status.PENDING and number not in delivery.handed:
            self.ledger.ask([number], Status.CANCELLED)
        delivery.cancel(number)

    def _release(self) -> None:
        delivery = self.opened.delivery
        for number in sorted(delivery.handed):
            if self.draw.random() < 0.5 and (status := delivery.release(number)):
                self.ledger.ask([number], status)

    def _end(self) -> None:
        chance = self.draw.random()
        if chance < 0.2:
            cancelled, _ = self.opened.delivery.cancel_all(0)
            self.ledger.ask(cancelled, Status.CANCELLED)
        elif chance < 0.4:
            before = self.now_ns - self.draw.randrange(20 * 10**9)
            self.ledger.ask(self.opened.delivery.expire(before), Status.EXPIRED)


def of_later_version(control: bytes) -> bytes:
    """A control file as a later format writes it that no reader of today may use."""
    head = control[:10] + b"\xff\xff" + control[12:16]
    return head + crc32c(control[20:], crc32c(head)).to_bytes(4, "little") + control[20:]


class Queue:
    """A queue driven by hand."""

    def __init__(self, settings: QueueSettings = SMALL, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.settings = settings
        self.now_ns = DAY_NS
        self.open()

    def open(self) -> None:
        """Open it (again)."""
        opened = open_store(self.disk, FOLDER, self.settings, QUEUE_ID, self.now_ns)
        self.store, self.delivery, self.report = opened.store, opened.delivery, opened.report
        self.expired = opened.expired

    def put(self, *contents: bytes) -> list[int]:
        """Put items and flush."""
        self.store.check_sizes(list(contents))
        first = self.store.add(list(contents))
        self.flush()
        return list(range(first, first + len(contents)))

    def flush(self) -> int:
        """Write what waits; how many segments that took."""
        count = 0
        while (flush := self.store.seal(self.now_ns)) is not None:
            carry_out(self.disk, flush.steps)
            self.store.settle()
            count += 1
        return count

    def grow(self) -> None:
        """One more block."""
        growth = self.store.grow(self.now_ns)
        carry_out(self.disk, growth.steps)
        self.store.grown(growth)

    def take(self, limit: int = 100) -> list[int]:
        """Ids handed out."""
        return [item.id for item in self.delivery.take(limit)]

    def end(self, *numbers: int) -> None:
        """Deliver and flush."""
        self.delivery.deliver(numbers)
        self.flush()

    def fill(self) -> list[int]:
        """Put items until no block has room."""
        numbers = []
        while not self.store.has_waiting:
            numbers += self.put(bytes(3000))
        return numbers
