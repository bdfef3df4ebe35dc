"""Unconfirmed messages of a broker, in order, with their bytes.

What it is for: the engine forgets what it sent when a connection breaks, so the gateway keeps its
own record. An `UnsettledMap` numbers each message as it is sent first, keeps it until the broker
confirms it, and decides what to send again: everything unconfirmed, in order, after a lost
connection; one message, after a wait, where the broker gave it back.

Only `accepted` is success. `VERDICTS` says what every outcome leads to:

    accepted       the broker has it: forget it
    released       not taken, and may be sent again (RabbitMQ 4: no queue is bound for it)
    modified       the same
    rejected       refused as it is now (RabbitMQ 4: a queue is full or not to be had): the same
    untold         settled without an outcome: unknown, so it is sent again
    undeliverable  modified, "undeliverable here": refused for good

A message that comes back is tried `TRIES_MAX` times in all, and then abandoned: the caller has to
announce that. Messages that came back keep their slot in the window while they wait; they may take
no more than one in `RETURNED_SHARE` of the slots, and the next to come back is abandoned at once,
so that messages that are refused cannot stop the others. A message that is sent again comes behind
what was sent after it.

No I/O; time comes as an argument.
"""

import heapq
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

import cython
from cython.cimports.feedhandler.amqp.framing import Template
from cython.cimports.feedhandler.histogram import Histogram

from feedhandler.amqp.framing import BODY_HEAD
from feedhandler.codecs.visibility import Public, Readonly

#: How often one message is sent at most, lost connections not counted.
TRIES_MAX = 5
#: One slot of the window in so many may be taken by a message that came back and waits.
RETURNED_SHARE = 4
#: `OutgoingMessage.number_at` of a quality message that is encoded already.
WHOLE = -1
_WHOLE = cython.declare(cython.Py_ssize_t, WHOLE)


class Outcome(Enum):
    """The outcome of a message at a broker."""

    ACCEPTED = auto()
    RELEASED = auto()
    MODIFIED = auto()
    REJECTED = auto()
    UNTOLD = auto()
    UNDELIVERABLE = auto()


class Verdict(Enum):
    """Treatment of a message by its outcome."""

    CONFIRM = auto()
    RETRY = auto()
    ABANDON = auto()


VERDICTS: dict[Outcome, Verdict] = {
    Outcome.ACCEPTED: Verdict.CONFIRM,
    Outcome.RELEASED: Verdict.RETRY,
    Outcome.MODIFIED: Verdict.RETRY,
    Outcome.REJECTED: Verdict.RETRY,
    Outcome.UNTOLD: Verdict.RETRY,
    Outcome.UNDELIVERABLE: Verdict.ABANDON,
}


@cython.cclass
class OutgoingMessage:
    """One message on its way to a broker.

    `data`: the encoded message, or of a quality message that is not sent yet its body. `service`,
    `sequence`: as in its tag. `following`: the number after what it holds; no more than `sequence`
    where it holds no numbers. `block`: it belongs to a snapshot block. `reason`: of a quality
    message, why it was sent; "" for all others. `key`: its subject. `sent_ns`, `tried_ns`: when it
    was sent first, and last. `tries`: how often it was sent and came back. `number_at`: offset of
    the group-sequence of a message that is numbered only as it is sent; 0 of one that has its
    number, `WHOLE` of a quality message that is encoded already. `template`: what the message was
    framed with, where that is still known.

    Where the queue spills to disk (`spill`): `came_ns`: when it came, ns since 1970. `item`: its id
    in the journal; 0 while it has none. `ended`: it was confirmed or given up. `spilled`: it is on
    its way to the disk, and to be freed once it is there.
    """

    data: Readonly[bytes]
    service: Readonly[cython.uint]
    sequence: Public[cython.ulonglong]
    following: Public[cython.ulonglong]
    block: Readonly[cython.bint]
    reason: Readonly[str]
    key: Readonly[str]
    sent_ns: Readonly[cython.longlong]
    tried_ns: Public[cython.longlong]
    tries: Public[cython.int]
    number_at: Public[cython.Py_ssize_t]
    template: Public[object]
    came_ns: Public[cython.longlong]
    item: Public[cython.ulonglong]
    ended: Public[cython.bint]
    spilled: Public[cython.bint]

    def __init__(
        self,
        data: bytes,
        service: int,
        sequence: int,
        following: int,
        block: bool = False,
        reason: str = "",
        key: str = "",
    ) -> None:
        self.data = data
        self.service = service
        self.sequence = sequence
        self.following = following
        self.block = block
        self.reason = reason
        self.key = key
        self.sent_ns = self.tried_ns = 0
        self.tries = 0
        self.number_at = 0
        self.template: Template | None = None
        self.came_ns = self.item = 0
        self.ended = self.spilled = False

    @property
    def is_whole(self) -> bool:
        """Whether this is a quality message that is encoded already, as its receiver sees it."""
        return self.number_at == _WHOLE

    @property
    def body(self) -> bytes:
        """The body of a quality message: JSON."""
        if self.number_at != _WHOLE:
            return self.data
        # JSON has not these bytes.
        return self.data[self.data.rfind(BODY_HEAD) + len(BODY_HEAD) + 4 :]

    @cython.ccall
    def cut(self, data: bytes) -> "OutgoingMessage":
        """Copy the message with other bytes."""
        other: OutgoingMessage = OutgoingMessage(
            data, self.service, self.sequence, self.following, self.block, self.reason, self.key
        )
        other.number_at = self.number_at
        other.template = self.template
        return other


@cython.cclass
class UnsettledMap:
    """At most `messages_max` messages and `bytes_max` bytes that are not confirmed.

    `retry_ns(tries)` is how long a message waits that came back for the `tries`-th time. `latency`
    records how long messages took to be confirmed, in ns, from when they were sent first.
    """

    messages_max: Readonly[cython.Py_ssize_t]
    bytes_max: Readonly[cython.Py_ssize_t]
    returned_max: Readonly[cython.Py_ssize_t]
    bytes: Readonly[cython.Py_ssize_t]
    retry_ns: object
    held: Readonly[dict]
    number: cython.ulonglong
    again: Readonly[object]
    waiting: Readonly[list]
    confirmed: Readonly[cython.ulonglong]
    resent: Readonly[cython.ulonglong]
    counts: Readonly[dict]
    latency: Readonly[Histogram]

    def __init__(self, messages_max: int, bytes_max: int, retry_ns: Callable[[int], int]) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.retry_ns = retry_ns
        self.returned_max = max(1, messages_max // RETURNED_SHARE)
        self.held: dict[int, OutgoingMessage] = {}
        self.bytes = 0
        self.number = 0
        self.again: deque[int] = deque()
        self.waiting: list[tuple[int, int]] = []
        self.confirmed = 0
        self.resent = 0
        self.latency = Histogram()
        self.counts: dict[Outcome, int] = {
            outcome: 0 for outcome in Outcome if outcome != Outcome.ACCEPTED
        }

    def room(self, size: cython.Py_ssize_t) -> cython.bint:
        """Return whether a new message of `size` bytes may be sent."""
        return len(self.held) < self.messages_max and self.bytes + size <= self.bytes_max

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def add(self, outgoing: OutgoingMessage, now_ns: cython.longlong) -> cython.ulonglong:
        """Add a message that is about to be sent; return its number. The caller has checked
        `room`."""
        self.number += 1
        outgoing.sent_ns = outgoing.tried_ns = now_ns
        self.held[self.number] = outgoing
        self.bytes += len(outgoing.data)
        return self.number

    def confirm(self, number: cython.ulonglong, now_ns: cython.longlong) -> cython.bint:
        """Remove a message that is confirmed; return False for a number that is not in the
        window."""
        outgoing: OutgoingMessage = self.held.pop(number, None)
        if outgoing is None:
            return False
        self.bytes -= len(outgoing.data)
        self.confirmed += 1
        self.latency.record(now_ns - outgoing.sent_ns)
        return True

    def come_back(self, number: int, outcome: Outcome, now_ns: int) -> OutgoingMessage | None:
        """Process an outcome that is no success: return the message where it is abandoned, None
        where it waits to be sent again."""
        outgoing: OutgoingMessage = self.held.get(number)
        if outgoing is None:
            return None
        self.counts[outcome] += 1
        outgoing.tries += 1
        if (
            VERDICTS[outcome] is Verdict.ABANDON
            or outgoing.tries >= TRIES_MAX
            or len(self.waiting) >= self.returned_max
        ):
            del self.held[number]
            self.bytes -= len(outgoing.data)
            return outgoing
        outgoing.tried_ns = now_ns
        heapq.heappush(self.waiting, (now_ns + self.retry_ns(outgoing.tries), number))
        return None

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest unconfirmed message was sent last, or came back; None without any, and
        where it has still to be sent again."""
        outgoing: OutgoingMessage
        for number, outgoing in self.held.items():
            return None if self.again and self.again[0] == number else outgoing.tried_ns
        return None

    def lost(self) -> int:
        """Schedule all unconfirmed messages to be sent again, in order, after a lost connection;
        return how many."""
        self.waiting.clear()
        self.again = deque(self.held)
        return len(self.again)

    def due(self, now_ns: int) -> bool:
        """Schedule messages that have waited long enough; return whether any are to be sent
        again."""
        while self.waiting and self.waiting[0][0] <= now_ns:
            self.again.append(heapq.heappop(self.waiting)[1])
        return bool(self.again)

    @property
    def deadline_ns(self) -> int | None:
        """When the next message that waits is to be sent again; None where none waits."""
        return self.waiting[0][0] if self.waiting else None

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def next_again(self) -> cython.ulonglong:
        """Take the number of the next message to send again; 0 where there is none."""
        if not self.again:
            return 0
        self.resent += 1
        return self.again.popleft()
