"""Spilling to disk while a broker does not keep up, and reading back in order: the logic.

What it is for: with `when_full = "journal"` every message that comes is put into a journal, in
groups, until the broker has confirmed it; so a gateway that is killed finds what was unconfirmed
when it starts again. As long as the broker keeps up that is all, and messages go from memory. Once
too much waits in memory, a new message is freed as soon as the journal has it, and read back when
there is room again. So the stream has three parts, in this order:

    front        in memory: sent and unconfirmed, or next to be sent
    on the disk  known by their count alone
    unwritten    in memory again: not in the journal yet

The state says where the newest message goes, and whether anything is read back:

    MEMORY    front is all there is; what comes joins it
    SPILLING  front is full: what comes joins what is unwritten, and then is on the disk only
    DRAINING  the same, but front has room, and what is on the disk is read back into it
    FAILED    the disk failed: all is in memory from now on, and the destination drops its oldest

`TABLE` has the transitions; the inputs are:

    FOUND    the journal holds messages of the run before
    CROWDED  front is full: for a message that comes, or for what would be read back
    ROOM     half of front's bound is free again
    LEVEL    nothing is on the disk alone any more, and front has room for what is unwritten
    FAULT    a write, a sync or a read failed

Disk I/O is the caller's: `next_job` says what to do there, `done` takes the result. One job at a
time. A job reads first and then writes, so that it reads nothing that front still has.

What it promises: order; unwritten messages, with those that ended before they were written, never
take more than their share of the bound (`bounds_of`): where the disk does not keep up, or the
journal is full, new messages are refused (`Where.NOWHERE`), and accepted again once half of that
has gone. No I/O; time comes as an argument.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain

import msgspec

from feedhandler.amqp.publishing.spill_items import pack_item, parse_item
from feedhandler.amqp.queueing.loss_tracker import BLOCK_REASONS, EPOCH_REASONS, GAP, OVERFLOW
from feedhandler.amqp.queueing.stopwatch import Stopwatch
from feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from feedhandler.amqp.sender_queue import QUEUE_ENTRY_BYTES
from feedhandler.retrans.ranges import RangeSet

#: Bytes that one job writes or reads at most, or an eighth of `queue_bytes` where that is less.
JOB_BYTES_MAX = 1 << 20
#: Messages that one job writes at most: it holds the interpreter lock meanwhile.
JOB_ITEMS_MAX = 4096
#: Interval at which a journal without room is tried again.
STALL_NS = 50_000_000
#: A message that takes longer than this to be in the journal is late: the disk does not keep up.
LATE_NS = 1_000_000_000


class State(Enum):
    """The destination of messages; the module says what each state means."""

    MEMORY = auto()
    SPILLING = auto()
    DRAINING = auto()
    FAILED = auto()


class Input(Enum):
    """An event that may change the state; the module says what each means."""

    FOUND = auto()
    CROWDED = auto()
    ROOM = auto()
    LEVEL = auto()
    FAULT = auto()


_MEMORY, _SPILLING, _DRAINING, _FAILED = State
#: The next state; the inputs of a row are in the order of `Input`.
TABLE: dict[State, dict[Input, State]] = {
    state: dict(zip(Input, row, strict=True))
    for state, row in {
        #           FOUND      CROWDED    ROOM       LEVEL    FAULT
        _MEMORY:   (_DRAINING, _SPILLING, _MEMORY,   _MEMORY, _FAILED),
        _SPILLING: (_SPILLING, _SPILLING, _DRAINING, _MEMORY, _FAILED),
        _DRAINING: (_DRAINING, _SPILLING, _DRAINING, _MEMORY, _FAILED),
        _FAILED:   (_FAILED,   _FAILED,   _FAILED,   _FAILED, _FAILED),
    }.items()
}  # fmt: skip


class Where(Enum):
    """The destination of a new message."""

    FRONT = auto()
    DISK = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds in bytes.

    `front`: sent and unconfirmed, or next; `unwritten`: beside it, on the way to the disk; `slack`:
    of messages that ended before they were written; `job`: in one job.
    """

    front: int
    unwritten: int
    slack: int
    job: int


def bounds_of(queue_bytes: int) -> Bounds:
    """Return the shares of `queue_bytes`. Together, with the bytes that a job writes, and messages
    of it that end meanwhile, they do not exceed it."""
    eighth = queue_bytes // 8
    return Bounds(3 * eighth, 2 * eighth, eighth, min(eighth, JOB_BYTES_MAX))


@dataclass(slots=True)
class Job:
    """Work on the journal, in this order: read up to `read_bytes` of messages with ids above
    `after`; mark `ended` as delivered and `given_up` as cancelled; write `contents`, the items of
    `messages`.

    `since_ns`: when the first of that came.
    """

    messages: list[OutgoingMessage] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    after: int = 0
    read_bytes: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class Result:
    """The result of a job.

    `items`: (id, content) of what was read; `exhausted`: there is no more. `first_id`: of what was
    written; `durable_id`: ids up to it are durably in the journal. `error`: why it failed; what was
    read before that is valid.
    """

    items: list[tuple[int, bytes]] = field(default_factory=list)
    exhausted: bool = False
    first_id: int = 0
    durable_id: int = 0
    error: str = ""


@dataclass(slots=True)
class DiskOnly:
    """What of a service is on the disk only, and was written there in this run.

    `messages`: how many; `epochs`: those with which a sequence epoch began, the last of which is
    `epoch_began`. Of that epoch: `packets`, by number; `told`: losses that quality messages
    announce; `blocks`: how many messages of snapshot blocks.
    """

    messages: int = 0
    epochs: int = 0
    epoch_began: bytes = b""
    packets: RangeSet = field(default_factory=lambda: RangeSet(only_grows=True))
    told: RangeSet = field(default_factory=lambda: RangeSet(only_grows=True))
    blocks: int = 0


class SpillQueue:
    """The spill logic of one destination; see the module.

    `wait_ns`: how long messages gather before they are written together. `on_disk`: messages that
    are on the disk only; `disk_only`: by service, those that were written there in this run.
    """

    def __init__(self, bounds: Bounds, wait_ns: int) -> None:
        self.bounds = bounds
        self.wait_ns = wait_ns
        self.state = State.MEMORY
        self.hurry = False
        self.refusing = False
        self.stalled = False
        self.on_disk = 0
        self.in_flight: Job | None = None
        self.disk_only: dict[int, DiskOnly] = {}
        self.written = self.spilled = self.drained = self.found = self.late = self.damaged = 0
        #: Messages of the run before that are to be read back yet.
        self._older = 0
        self.spill_time = Stopwatch()
        self._cursor = 0
        self._unwritten: deque[OutgoingMessage] = deque()
        self._unwritten_bytes = 0
        self._only_bytes = 0
        self._compact_at = bounds.slack
        self._writing: deque[OutgoingMessage] = deque()
        self._writing_id = 0
        self._ended: list[int] = []
        self._given_up: list[int] = []
        self._since_ns: int | None = None
        self._retry_ns = 0

    # -- what is known ----------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Return whether the disk has failed."""
        return self.state is State.FAILED

    @property
    def level(self) -> bool:
        """Return whether new messages go from memory."""
        return self.state in (State.MEMORY, State.FAILED)

    @property
    def settled(self) -> bool:
        """Return whether all is in the journal that has to be."""
        return self.failed or (self._since_ns is None and self.in_flight is None)

    @property
    def unwritten(self) -> int:
        """Number of unconfirmed messages that are not in the journal yet."""
        flying = self.in_flight.messages if self.in_flight else ()
        return sum(not p.ended for p in chain(self._writing, flying, self._unwritten))

    @property
    def extra_bytes(self) -> int:
        """Bytes held beside front: on the way to the disk, or ended and not freed yet."""
        flying = self.in_flight.messages if self.in_flight else ()
        held = chain(self._writing, flying, self._unwritten)
        return sum(_cost(outgoing) for outgoing in held if outgoing.spilled or outgoing.ended)

    @property
    def due_ns(self) -> int | None:
        """Return when the next job is due, if nothing else happens; None where none is."""
        if self.in_flight is not None or self._since_ns is None or self.failed:
            return None
        if self.stalled:
            return self._retry_ns
        return self._since_ns + (0 if self.hurry else self.wait_ns)

    # -- messages that come and go ------------------------------------------------------------

    def find(self, count: int, now_ns: int) -> None:
        """Record that the journal holds `count` messages of the run before, which come first."""
        self.found = self._older = self.on_disk = count
        if count:
            self._step(Input.FOUND, now_ns)

    def admit(self, size: int, front_bytes: int) -> Where:
        """Decide where a message of `size` bytes goes, with `front_bytes` in front."""
        if self.failed or (self.state is State.MEMORY and front_bytes + size <= self.bounds.front):
            return Where.FRONT
        bound = self.bounds.unwritten // (2 if self.refusing else 1)
        size += QUEUE_ENTRY_BYTES
        self.refusing = self._only_bytes > 0 and self._only_bytes + size > bound
        return Where.NOWHERE if self.refusing else Where.DISK

    def add(self, outgoing: OutgoingMessage, where: Where, now_ns: int) -> None:
        """Add a message to what is to be written; `where` is what `admit` returned for it."""
        if self.failed:
            return
        size = _cost(outgoing)
        if where is Where.DISK:
            if self.state is State.MEMORY:
                self._step(Input.CROWDED, now_ns)
            outgoing.spilled = True
            self._only_bytes += size
            self.spilled += 1
        self._unwritten.append(outgoing)
        self._unwritten_bytes += size
        if self._since_ns is None:
            self._since_ns = now_ns
        if self._unwritten_bytes > self._compact_at:
            self._compact()

    def end(self, outgoing: OutgoingMessage, now_ns: int, *, given_up: bool = False) -> None:
        """Record that a message is confirmed or given up: the journal need not keep it."""
        outgoing.ended = True
        if outgoing.item and not self.failed:
            (self._given_up if given_up else self._ended).append(outgoing.item)
            if self._since_ns is None:
                self._since_ns = now_ns

    def _widen_hole(self, outgoing: OutgoingMessage) -> None:
        """Record that a message is on the disk only from now on."""
        missed = self.disk_only.setdefault(outgoing.service, DiskOnly())
        missed.messages += 1
        if outgoing.reason in EPOCH_REASONS:
            # Numbers begin anew: what was lost before no longer matters.
            missed.epochs += 1
            missed.epoch_began = outgoing.body
            missed.packets.clear()
            missed.told.clear()
            missed.blocks = 0
            return
        missed.blocks += _is_of_block(outgoing)
        for first, last in _packets_of(outgoing):
            missed.packets.add(first, last)
        for first, last in _losses_told(outgoing):
            missed.told.add(first, last)

    def _narrow_hole(self, outgoing: OutgoingMessage) -> None:
        """Record that a message was read back from the disk."""
        missed = self.disk_only.get(outgoing.service)
        if missed is None:
            return
        missed.messages -= 1
        if outgoing.reason in EPOCH_REASONS:
            missed.epochs -= 1
        elif not missed.epochs:  # else it is of an epoch before
            missed.blocks -= _is_of_block(outgoing)
            for first, last in _packets_of(outgoing):
                missed.packets.discard(first, last)
            for first, last in _losses_told(outgoing):
                missed.told.discard(first, last)

    def _compact(self) -> None:
        """Drop messages that ended before they were written."""
        self._unwritten = deque(outgoing for outgoing in self._unwritten if not outgoing.ended)
        self._unwritten_bytes = sum(map(_cost, self._unwritten))
        self._compact_at = self._unwritten_bytes + self.bounds.slack

    # -- states -----------------------------------------------------------------------------

    def _step(self, what: Input, now_ns: int) -> None:
        self.state = TABLE[self.state][what]
        self.spill_time.set(not self.level, now_ns)

    def poll(self, front_bytes: int, now_ns: int) -> list[OutgoingMessage]:
        """Update the state by how full front is; return the messages that join it now, in order."""
        if self.level:
            return []
        bounds = self.bounds
        if self.state is State.SPILLING:
            if front_bytes > bounds.front // 2:
                return []
            self._step(Input.ROOM, now_ns)
        if not self.on_disk:
            if front_bytes + self._only_bytes <= bounds.front:
                return self._become_level(now_ns)
        elif front_bytes + bounds.job > bounds.front:
            self._step(Input.CROWDED, now_ns)
        return []

    def _become_level(self, now_ns: int) -> list[OutgoingMessage]:
        """Return to MEMORY: messages that were to be on the disk only stay in memory after all."""
        self._step(Input.LEVEL, now_ns)
        self.disk_only.clear()
        return self._keep()

    def _keep(self) -> list[OutgoingMessage]:
        """Return every message that is not on the disk yet and was to be forgotten there; it is not
        any more."""
        flying = self.in_flight.messages if self.in_flight else ()
        kept = [p for p in chain(self._writing, flying, self._unwritten) if p.spilled]
        for outgoing in kept:
            outgoing.spilled = False
        self._only_bytes = 0
        self.refusing = False
        return kept

    # -- the disk ---------------------------------------------------------------------------

    def next_job(self, now_ns: int, front_bytes: int) -> Job | None:
        """Return the work to do at the journal now; None where there is none or a job is under
        way."""
        if self.in_flight is not None or self.failed:
            return None
        reading = (
            self.state is State.DRAINING
            and self.on_disk > 0
            and front_bytes + self.bounds.job <= self.bounds.front
        )
        due_ns = self.due_ns
        if not reading and (due_ns is None or now_ns < due_ns):
            return None
        job = Job(since_ns=now_ns if self._since_ns is None else self._since_ns)
        if reading:
            job.after, job.read_bytes = self._cursor, self.bounds.job
        job.ended, self._ended = self._ended, []
        job.given_up, self._given_up = self._given_up, []
        if not self._writing:
            self._fill(job)
        if not self._unwritten and not self._writing:
            self._since_ns = None
        self.in_flight = job
        return job

    def _fill(self, job: Job) -> None:
        """Take what is to be written, up to a job's bounds; messages that have ended are left
        out."""
        size = 0
        while self._unwritten and len(job.messages) < JOB_ITEMS_MAX:
            outgoing = self._unwritten[0]
            cost = _cost(outgoing)
            if job.messages and size + cost > self.bounds.job:
                break
            self._unwritten.popleft()
            self._unwritten_bytes -= cost
            if outgoing.ended:
                continue
            size += cost
            job.messages.append(outgoing)
            job.contents.append(pack_item(outgoing))
        self._compact_at = self._unwritten_bytes + self.bounds.slack

    def done(self, result: Result, now_ns: int, front_bytes: int) -> list[OutgoingMessage]:
        """Process the result of the job; return the messages that join front by that, in order."""
        job = self.in_flight
        assert job is not None
        found = self._read_back(job, result)
        self.in_flight = None
        if job.messages:
            self._writing.extend(job.messages)
            self._writing_id = result.first_id
        if result.error:
            return found + self._fail(now_ns)
        found += self.poll(front_bytes + sum(map(_cost, found)), now_ns)
        self._settle(result.durable_id, now_ns)
        if now_ns - job.since_ns > LATE_NS:
            self.late += len(job.messages)
        return found

    def _read_back(self, job: Job, result: Result) -> list[OutgoingMessage]:
        found = []
        for number, content in result.items:
            self._cursor = number
            outgoing = parse_item(content)
            older, self._older = self._older > 0, max(self._older - 1, 0)
            if outgoing is None:
                self.damaged += 1
                self._given_up.append(number)
                continue
            if not older:
                self._narrow_hole(outgoing)
            outgoing.item = number
            found.append(outgoing)
        self.drained += len(found)
        if job.read_bytes:
            self.on_disk = 0 if result.exhausted else max(self.on_disk - len(result.items), 0)
        return found

    def _settle(self, durable_id: int, now_ns: int) -> None:
        """Record that messages with ids up to `durable_id` are in the journal."""
        while self._writing and self._writing_id <= durable_id:
            outgoing = self._writing.popleft()
            self.written += 1
            if outgoing.spilled:
                self._only_bytes -= _cost(outgoing)
                self.on_disk += 1
                self._widen_hole(outgoing)
            else:
                outgoing.item = self._cursor = self._writing_id
                if outgoing.ended:
                    self._ended.append(outgoing.item)
            self._writing_id += 1
        self.stalled = bool(self._writing)
        if self.stalled:
            self._retry_ns = now_ns + STALL_NS
        if self._since_ns is None and (self.stalled or self._ended or self._given_up):
            self._since_ns = now_ns

    def _fail(self, now_ns: int) -> list[OutgoingMessage]:
        """Switch to FAILED; return the messages that are not on the disk alone, which go from
        memory."""
        kept = self._keep()
        for outgoing in kept:
            if outgoing.reason in EPOCH_REASONS:
                # Numbers begin anew: what was lost before no longer matters.
                self.disk_only.pop(outgoing.service, None)
        self._step(Input.FAULT, now_ns)
        for each in (self._writing, self._unwritten, self._ended, self._given_up):
            each.clear()
        self._unwritten_bytes = 0
        self._since_ns = None
        self.stalled = False
        return kept


def _packets_of(outgoing: OutgoingMessage) -> list[tuple[int, int]]:
    """Return the range of a message's packets, by number; none where they have no numbers."""
    if outgoing.block or outgoing.reason or outgoing.following <= outgoing.sequence:
        return []
    return [(outgoing.sequence, outgoing.following - 1)]


def _losses_told(outgoing: OutgoingMessage) -> list[tuple[int, int]]:
    """Return the ranges that a message announces as lost."""
    if outgoing.reason not in (GAP, OVERFLOW):
        return []
    lost: list[tuple[int, int]] = msgspec.json.decode(outgoing.body)["lost"]
    return lost


def _is_of_block(outgoing: OutgoingMessage) -> bool:
    return outgoing.block or outgoing.reason in BLOCK_REASONS


def _cost(outgoing: OutgoingMessage) -> int:
    """Return the bytes that keeping a message takes."""
    return len(outgoing.data) + QUEUE_ENTRY_BYTES
