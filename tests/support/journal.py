"""A queue on a simulated disk, a script of random operations, and the ledger that judges it.

The ledger knows of every id what was attempted and what was acknowledged, and classifies what is
found after a crash:

    ok            as acknowledged, or as attempted where nothing was acknowledged
    lost          acknowledged, and gone
    resurrected   its end (delivered, cancelled, expired) was acknowledged, and it is pending
    changed       it has an end that was not asked for
    altered       its bytes are not those that were put
    phantom       never attempted
    torn          of a group that was committed some counts and some does not
    twice         an item that was moved is pending where it was, too
    forgotten     a group that was acknowledged does not count
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from unittest.mock import patch

from crc32c import crc32c

from feedhandler.journal.engine import Committed, Engine
from feedhandler.journal.files import carry_out
from feedhandler.journal.layout import MARK_MAX, Status
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import Flush
from tests.support.simulated_disk import SimulatedDisk

FOLDER = "/queue"
QUEUE_ID = bytes(range(16))
SMALL = QueueSettings(
    block_bytes=64 << 10, blocks=2, blocks_max=5, journal_bytes=8 << 10, checkpoint_bytes=16 << 10
)
#: More is taken in while a flush is on its way: an operation ends after so many.
FLUSHES_MAX = 4
DAY_NS = 24 * 3600 * 10**9


@dataclass
class Attempt:
    """A group as it was committed. An item's marks and a producer's sequences count up by one."""

    puts: range
    ends: list[tuple[int, int]]
    marks: list[tuple[int, int]]
    producers: dict[bytes, tuple[int, int]]
    acknowledged: bool = False

    def evidence(self, opened: Opened) -> set[bool]:
        """Return what the group's parts say: True if one counts, False if one does not."""
        store, delivery = opened.store, opened.delivery
        said = {number < store.visible_end for number in self.puts}
        for number, _ in self.ends:
            status = delivery.status(number)
            said.add(status is not Status.PENDING)
        for number, mark in self.marks:
            if delivery.status(number) is Status.PENDING:
                said.add(delivery.mark_of(number) >= mark)
        for producer, (_, sequence) in self.producers.items():
            found = store.producers.latest.get(producer, (0, 0))
            said.add(found[1] >= sequence)
        return said


@dataclass
class Marks:
    """The marks and sequences given last."""

    marks: Counter[int] = field(default_factory=Counter)
    sequences: Counter[bytes] = field(default_factory=Counter)


class Ledger:
    """Record of what was attempted and acknowledged, by id."""

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}
        self.acknowledged = 0
        self.asked: dict[int, set[Status]] = {}
        self.ended: dict[int, Status] = {}
        self.groups: list[Attempt] = []
        self.given = Marks()
        #: Ids that were taken by what was moved.
        self.unnamed: set[int] = set()

    def attempt(self, first: int, contents: list[bytes]) -> None:
        """These items were put."""
        for number, content in enumerate(contents, first):
            self.contents[number] = content
            self.unnamed.discard(number)

    def ask(self, numbers: list[int], status: Status) -> None:
        """This end was asked for."""
        for number in numbers:
            self.asked.setdefault(number, set()).add(status)

    def acknowledge(self, last_id: int) -> None:
        """Everything up to this id was acknowledged."""
        self.acknowledged = max(self.acknowledged, last_id)

    def end(self, numbers: list[int]) -> None:
        """That these have the end that was asked for was acknowledged."""
        for number in numbers:
            (self.ended[number],) = self.asked[number]

    def judge(self, opened: Opened, forgiven: frozenset[int] = frozenset()) -> Counter[str]:
        """Count what became of the ids, by class; those `forgiven` may be damaged."""
        verdicts: Counter[str] = Counter()
        store, delivery = opened.store, opened.delivery
        items = delivery.peek(0, 1 << 30)
        pending = {item.id: item.content for item in items}
        twice = {len(items), sum(block.active for block in store.live)} != {len(pending)}
        verdicts["twice"] += twice
        for number in range(1, max(store.visible_end, self.acknowledged + 1)):
            if number in self.unnamed:
                verdicts["phantom"] += number in pending
                continue
            verdicts[self._verdict(number, delivery.status(number), pending, forgiven)] += 1
        assert list(pending) == sorted(pending)
        for group in self.groups:
            said = group.evidence(opened)
            if len(said) > 1:
                verdicts["torn"] += 1
            elif said == {False} and group.acknowledged:
                verdicts["forgotten"] += 1
            elif said == {True}:
                verdicts["ok"] += 1
        return verdicts

    def go_on(self, opened: Opened) -> None:
        """After a crash: a group that counts now counts for good, others never were."""
        self.unnamed = {number for number in self.unnamed if number < opened.store.visible_end}
        self.groups = [group for group in self.groups if group.evidence(opened) == {True}]
        self.given = Marks()
        for group in self.groups:
            group.acknowledged = True
        for items in opened.delivery.walk():
            for number, mark, _ in items:
                self.given.marks[number] = mark
        for producer, (_, sequence) in opened.store.producers.latest.items():
            self.given.sequences[producer] = sequence

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
    """Return the verdicts that must not be, with their counts."""
    return {name: count for name, count in verdicts.items() if name != "ok" and count}


class Script:
    """Random operations on a queue, written as its owners have it done; the ledger keeps book.

    Each flush goes one of two ways: `Engine.flush`, as a thread does it, or segments behind each
    other, as an event loop and its writing thread do it, here in a drawn order and without threads:
    begin one, begin another behind it, write the first, write the second, hear of the first, ...
    While the disk is busy others go on: more operations, and during growth whole flushes.
    """

    def __init__(
        self, seed: int, disk: SimulatedDisk, settings: QueueSettings = SMALL, now_ns: int = DAY_NS
    ) -> None:
        self.draw = random.Random(seed)
        self.disk = disk
        self.settings = settings
        self.ledger = Ledger()
        self.now_ns = now_ns
        self.operations = 0
        self.weights = [self.draw.choice((1, 3, 8)) for _ in range(8)]
        self._committed: list[tuple[Committed, Attempt]] = []
        #: Whether groups are committed, and items moved.
        self.grouping = True
        #: Ends that were asked for, by the `changes_added` with which they are durable.
        self._asked: deque[tuple[int, list[int]]] = deque()
        self._flushing = self._growing = False

    def open(self) -> Engine:
        """Open the queue."""
        self._asked.clear()
        self._committed.clear()
        self._flushing = self._growing = False
        with patch(f"{Engine.__module__}.Owner"), patch("os.urandom", lambda _: QUEUE_ID):
            self.opened = Engine(FOLDER, self.settings, files=self.disk, clock=lambda: self.now_ns)
        engine = self.opened
        self.parts = Opened(engine._store, engine._delivery, engine.report, engine.expired_at_open)
        self._add = engine.add
        self.disk.meanwhile = self._meanwhile
        return self.opened

    def play(self, operations: int) -> None:
        """So many operations more."""
        end = self.operations + operations
        while self.operations < end:
            self.step()

    def step(self) -> None:
        """One operation, then what waits is written, as far as there is room, or most of it."""
        self._operate()
        for _ in range(FLUSHES_MAX):
            if not self._flush():
                break
        self._grow()

    def _operate(self) -> None:
        self.operations += 1
        self.now_ns += self.draw.randrange(1, 10**9)
        (operation,) = self.draw.choices(
            (
                self._put,
                self._put,
                self._deliver,
                self._cancel,
                self._release,
                self._end,
                self._commit,
                self._move,
            ),
            self.weights,
        )
        operation()

    def _meanwhile(self) -> None:
        """Do what others do while the disk is busy, by chance."""
        if not self._flushing and not self._growing:
            return
        if self.draw.random() < 0.2:
            self._operate()
        if not self._flushing and self.draw.random() < 0.5:
            self._flush()
        elif self.draw.random() < 0.1:
            self._grow()

    # -- the disk ---------------------------------------------------------------------------

    def _grow(self) -> None:
        if not self._growing and self.opened.growth_due:
            self._growing = True
            self.opened.grow()
            self._growing = False

    def _flush(self) -> bool:
        """Write some of what waits; whether there was anything, and room for it."""
        self._flushing = True
        wrote = self._thread() if self.draw.random() < 0.4 else self._event_loop()
        self._flushing = False
        return wrote

    def _thread(self) -> bool:
        wrote = self.opened.flush()
        self._acknowledge()
        return wrote

    def _event_loop(self) -> bool:
        """Segments behind each other until none is on its way."""
        engine, draw = self.opened, self.draw
        first = engine.begin()
        if first is None:
            return False
        self._add = engine.scheduling().add
        ways, written = deque([first]), 0
        while ways:
            chance = draw.random()
            if chance < 0.2 and written:
                self._finish(ways)
                written -= 1
            elif chance < 0.45 and written < len(ways):
                try:
                    carry_out(self.disk, ways[written].steps)
                except OSError as error:
                    for _ in range(written):
                        self._finish(ways)
                    raise engine.stop(error) from error
                written += 1
            elif len(ways) < 2:
                self._operate()
                behind = engine.begin()
                ways += [behind] if behind else []
        self._add = engine.add
        return True

    def _finish(self, ways: deque[Flush]) -> None:
        """The event loop hears that the first one is on the disk."""
        ways.popleft()
        self.opened.finish()
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Tell the ledger what is durable by now, for those who waited."""
        self.ledger.acknowledge(self.opened.durable_id)
        while self._asked and self._asked[0][0] <= self.opened.durable_changes:
            self.ledger.end(self._asked.popleft()[1])
        for committed, group in self._committed:
            if self.opened.has_committed(committed):
                group.acknowledged = True
                self.ledger.end([number for number, _ in group.ends])
        self._committed = [one for one in self._committed if not one[1].acknowledged]

    # -- operations -------------------------------------------------------------------------

    def _ask(self, numbers: list[int], status: Status) -> None:
        """This has been asked for, and waits for the disk."""
        self.ledger.ask(numbers, status)
        self._asked.append((self.parts.store.changes_added, numbers))

    def _put(self) -> None:
        store = self.parts.store
        if store.waiting_bytes > self.settings.journal_bytes:
            return
        largest = self.draw.choice((10, 400, 3000, 3000, 20_000))
        contents = [
            self.draw.randbytes(self.draw.randrange(largest))
            for _ in range(self.draw.choice((1, 1, 4, 12)))
        ]
        self.ledger.attempt(store.next_id, contents)
        self._add(contents)

    def _deliver(self) -> None:
        delivery = self.parts.delivery
        numbers = [item.id for item in delivery.take(self.draw.choice((1, 4, 30)))]
        if self.draw.random() < 0.8:
            delivered, _ = delivery.deliver(numbers)
            self._ask(delivered, Status.DELIVERED)

    def _commit(self) -> None:
        """A group of any of the four, of all sizes."""
        store, delivery, draw = self.parts.store, self.parts.delivery, self.draw
        if not self.grouping or store.waiting_bytes > self.settings.journal_bytes:
            return
        after = max(store.visible_end - draw.randrange(1, 200), 0)
        pending = [item.id for item in delivery.peek(after, 60)]
        draw.shuffle(pending)
        given = self.ledger.given
        count = draw.choice((0, 0, 1, 3))
        ends = [(n, draw.choice((Status.DELIVERED, Status.CANCELLED))) for n in pending[:count]]
        marks = [
            (n, given.marks[n] + 1)
            for n in pending[count : count + draw.choice((0, 0, 1, 3))]
            if given.marks[n] < MARK_MAX
        ]
        names = draw.sample([b"p", b"producer-of-16-b", b"q" * 64], draw.choice((0, 0, 1, 2)))
        producers = {name: (7, given.sequences[name] + 1) for name in names}
        largest = draw.choice((10, 400, 3000))
        contents = [
            draw.randbytes(draw.randrange(largest)) for _ in range(draw.choice((0, 0, 1, 6)))
        ]
        if not (ends or marks or producers or contents):
            return
        first = store.next_id
        self.ledger.attempt(first, contents)
        for number, status in ends:
            self.ledger.ask([number], status)
        group = Attempt(range(first, first + len(contents)), ends, marks, producers)
        self.ledger.groups.append(group)
        given.marks.update([number for number, _ in marks])
        given.sequences.update(names)
        self._committed.append((self.opened.commit(contents, ends, marks, producers), group))

    def _move(self) -> None:
        """Items of some block are written again, whether it is needed or not."""
        store, draw = self.parts.store, self.draw
        if not self.grouping or store.moving or store.waiting_bytes > self.settings.journal_bytes:
            return
        blocks = [block for block in store.live if 0 < block.active < 30]
        if blocks:
            first = store.next_id
            self.parts.delivery.move(draw.choice(blocks), draw.choice((1, 5, 30)), 8 << 10)
            self.ledger.unnamed.update(range(first, store.next_id))

    def _cancel(self) -> None:
        store, delivery = self.parts.store, self.parts.delivery
        number = self.draw.randrange(max(store.visible_end - 60, 1), store.visible_end + 1)
        if number in self.ledger.unnamed:
            return  # the id was never given out: something was moved there
        if delivery.cancel_now(number)[1]:
            self._ask([number], Status.CANCELLED)

    def _release(self) -> None:
        delivery = self.parts.delivery
        for number in sorted(delivery.handed):
            if self.draw.random() < 0.5 and (status := delivery.release(number)):
                self._ask([number], status)

    def _end(self) -> None:
        chance = self.draw.random()
        if chance < 0.2:
            cancelled, _ = self.parts.delivery.cancel_all(0)
            self._ask(cancelled, Status.CANCELLED)
        elif chance < 0.4:
            before = self.now_ns - self.draw.randrange(20 * 10**9)
            self._ask(self.parts.delivery.expire(before), Status.EXPIRED)


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
            self.store.complete_flush()
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
