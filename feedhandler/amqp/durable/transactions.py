"""Transactions (AMQP 1.0, part 4): what each has collected, and how a discharge applies it.

What it is for: a controller declares a transaction and discharges it; what is put meanwhile, and
what consumers say of messages, waits here. A discharge hands all of it to one queue, the *home*,
whose journal makes it count as a whole or not at all: the queue whose messages were accepted, else
the first that was put to. What was put to others goes there through the home's outbox.

    operation            at a commit                            at a rollback
    put                  in its queue                           forgotten
    accepted             ended, in one with what was put        with its consumer still; or, where
                                                                that has settled it, given again
    released, modified   given back, once the rest is durable   the same

What it promises: no operation of a transaction is ignored. What it cannot do is refused with a
reason, and a transaction that was refused anything is *doomed*: it can only be rolled back, and the
first reason is given again at its discharge. What all of them keep is bounded. A discharge is
checked before anything of it is done: `StoredQueue.transact` does all, or returns why it
does nothing.

No I/O, no engine, no time. `coordinator.py` is the link that controllers speak on.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.values import (
    VALUE,
    SectionError,
    decode,
    encode,
    encoded_list,
    fields_of,
    sections,
    skip,
)

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import Consumer
    from feedhandler.amqp.durable.stored import StoredQueue

#: Transactions that one connection may have open.
OPEN_MAX = 64
#: Messages that one transaction may put or settle; bytes that it may put, with `ENTRY_BYTES` for
#: each of these: it has to fit one group of its home's journal besides, which is looked at as it is
#: discharged. Bytes of all transactions of a node.
MESSAGES_MAX = 4096
BYTES_MAX = 8 << 20
BYTES_TOTAL = 64 << 20
#: Overhead in bytes of each message of a transaction, and of each transaction.
ENTRY_BYTES = 256

NOT_HELD = "a message that it settles is not its consumer's any more"

DECLARE, DISCHARGE = 0x31, 0x32
_ORDERS = {b"amqp:declare:list": DECLARE, b"amqp:discharge:list": DISCHARGE}
_OUTCOMES = {
    b"amqp:accepted:list": 0x24,
    b"amqp:rejected:list": 0x25,
    b"amqp:released:list": 0x26,
    b"amqp:modified:list": 0x27,
}


class TransactionError(Exception):
    """A refusal to a transaction or its controller: the condition, and the reason."""

    def __init__(self, condition: str, reason: str) -> None:
        super().__init__(reason)
        self.condition = condition
        self.reason = reason


class Outcome(Enum):
    """A consumer's outcome for a message in a transaction."""

    ACCEPTED = auto()
    RELEASED = auto()
    FAILED = auto()
    REFUSED = auto()  # rejected: not supported in a transaction, which is doomed


class Fate(Enum):
    """The result of a discharge."""

    DONE = auto()  # committed and durable; or rolled back, as was asked
    ROLLED_BACK = auto()  # a commit was asked: nothing of it was done
    UNCERTAIN = auto()  # the home has stopped before it could say


class Refusal(NamedTuple):
    """Reason why a home refuses a transaction. `failed`: the transaction itself is the cause, and
    would fail again; else there is no room, or something has stopped."""

    reason: str
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """Effects of a transaction at its home: messages that were `accepted` there, those that are
    `put` there, those that are `sent` to other queues, by name."""

    accepted: "list[tuple[Consumer, int]]"
    put: list[bytes]
    sent: list[tuple[str, bytes]]


class _Answer(NamedTuple):
    taker: "Consumer"
    number: int
    outcome: Outcome


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that was declared; `owner` is the connection whose links may name it."""

    id: bytes
    owner: object
    put: "list[tuple[StoredQueue, bytes]]" = field(default_factory=list)
    answers: list[_Answer] = field(default_factory=list)
    #: The queue whose messages were accepted.
    acknowledged: "StoredQueue | None" = None
    kept_bytes: int = 0
    doomed: Refusal | None = None

    @property
    def home(self) -> "StoredQueue | None":
        """The queue whose journal commits it; None where there is nothing to commit."""
        return self.acknowledged or (self.put[0][0] if self.put else None)

    def doom(self, reason: str, *, failed: bool = True) -> None:
        """Allow only a rollback from here on; the first reason is kept."""
        self.doomed = self.doomed or Refusal(reason, failed)


class Transactions:
    """All transactions of a node; see the module."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self.committed = self.rolled_back = 0
        self._open: dict[bytes, Transaction] = {}
        self._count: dict[object, int] = {}
        self._ids = itertools.count(1)

    @property
    def open(self) -> int:
        """Number of open transactions."""
        return len(self._open)

    # -- what is collected ------------------------------------------------------------------

    def declare(self, owner: object) -> Transaction:
        """Begin a transaction. Raises `TransactionError` at the bounds."""
        if self._count.get(owner, 0) >= OPEN_MAX:
            raise TransactionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"{OPEN_MAX} transactions are open on this connection",
            )
        if self.kept_bytes + ENTRY_BYTES > BYTES_TOTAL:
            raise TransactionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "the node's transactions have no room; try again later",
            )
        transaction = Transaction(next(self._ids).to_bytes(8, "big"), owner)
        self._open[transaction.id] = transaction
        self._count[owner] = self._count.get(owner, 0) + 1
        self._keep(transaction, ENTRY_BYTES)
        return transaction

    def find(self, owner: object, name: bytes) -> Transaction:
        """Return the owner's open transaction with this id. Raises `TransactionError`."""
        found = self._open.get(name)
        if found is None or found.owner is not owner:
            raise TransactionError(
                conditions.TRANSACTION_UNKNOWN_ID, "no transaction of this connection has this id"
            )
        return found

    def put(self, transaction: Transaction, queue: "StoredQueue", content: bytes) -> None:
        """Add a message to put into a queue. Raises `TransactionError` at the bounds; the
        transaction is doomed then."""
        self._room(transaction, len(content))
        transaction.put.append((queue, content))

    def answer(
        self,
        transaction: Transaction,
        queue: "StoredQueue",
        taker: "Consumer",
        number: int,
        outcome: Outcome,
    ) -> None:
        """Add a consumer's outcome for a message of `queue`. An invalid one dooms the transaction,
        as there is no earlier answer than its discharge."""
        transaction.answers.append(_Answer(taker, number, outcome))
        try:
            self._room(transaction, 0)
        except TransactionError:
            return
        if outcome is Outcome.REFUSED:
            transaction.doom("a message that is no good is rejected outside of a transaction")
        if outcome is not Outcome.ACCEPTED:
            return
        home = transaction.acknowledged = transaction.acknowledged or queue
        if home is not queue:
            transaction.doom(
                "messages of one queue may be accepted in a transaction:"
                f" of {home.name}, and not of {queue.name} too"
            )

    def _room(self, transaction: Transaction, more_bytes: int) -> None:
        """Count one message more. Raises `TransactionError` and dooms the transaction at the
        bounds."""
        more_bytes += ENTRY_BYTES
        count = len(transaction.put) + len(transaction.answers)
        reason = ""
        if count >= MESSAGES_MAX or transaction.kept_bytes + more_bytes > BYTES_MAX:
            reason = f"a transaction has at most {MESSAGES_MAX} messages and {BYTES_MAX} bytes"
            transaction.doom(reason)
        elif self.kept_bytes + more_bytes > BYTES_TOTAL:
            reason = "the node's transactions have no room; try again later"
            transaction.doom(reason, failed=False)
        if reason:
            raise TransactionError(conditions.RESOURCE_LIMIT_EXCEEDED, reason)
        self._keep(transaction, more_bytes)

    def _keep(self, transaction: Transaction, more_bytes: int) -> None:
        transaction.kept_bytes += more_bytes
        self.kept_bytes += more_bytes

    # -- the end ----------------------------------------------------------------------------

    def discharge(
        self, transaction: Transaction, fail: bool, on_done: Callable[[Fate, str], None]
    ) -> None:
        """End a transaction; `on_done` gets the result, once that is durable, and why it was not
        committed."""
        self._close(transaction)
        if fail:
            self._roll_back(transaction, failed=True)
            on_done(Fate.DONE, "")
            return
        refusal = transaction.doomed or self._commit(transaction, on_done)
        if refusal is not None:
            self._roll_back(transaction, failed=refusal.failed)
            on_done(Fate.ROLLED_BACK, refusal.reason)

    def abandon(self, transaction: Transaction, *, failed: bool) -> None:
        """Roll back a transaction whose controller is gone. `failed`: without a goodbye."""
        if transaction.id in self._open:
            self._close(transaction)
            self._roll_back(transaction, failed=failed)

    def _close(self, transaction: Transaction) -> None:
        """Remove the transaction from those that can be named."""
        owner = transaction.owner
        del self._open[transaction.id]
        self._count[owner] -= 1
        if not self._count[owner]:
            del self._count[owner]

    def _commit(
        self, transaction: Transaction, on_done: Callable[[Fate, str], None]
    ) -> Refusal | None:
        """Commit in the home queue; return why it cannot, None where it does."""
        refusal = self._fault(transaction)
        if refusal is not None:
            return refusal
        home = transaction.home
        accepted = [
            (answer.taker, answer.number)
            for answer in transaction.answers
            if answer.outcome is Outcome.ACCEPTED
        ]

        def done() -> None:
            self.committed += 1
            self._over(transaction)
            for outcome in (Outcome.RELEASED, Outcome.FAILED):
                for taker, numbers in _by_taker(transaction, (outcome,)):
                    taker.returned(numbers, failed=outcome is Outcome.FAILED)
            on_done(Fate.DONE, "")

        def lost() -> None:
            self._over(transaction)
            on_done(Fate.UNCERTAIN, f"queue {home.name} has stopped" if home else "")

        if home is None:
            done()
            return None
        own = [content for queue, content in transaction.put if queue is home]
        sent = [(queue.name, content) for queue, content in transaction.put if queue is not home]
        refusal = home.transact(Work(accepted, own, sent), done, lost)
        if refusal is None:
            for taker, numbers in _by_taker(transaction, (Outcome.ACCEPTED,)):
                taker.committing(numbers)
        return refusal

    @staticmethod
    def _fault(transaction: Transaction) -> Refusal | None:
        """Return why it cannot be committed, as far as this can be checked here."""
        for answer in transaction.answers:
            if not answer.taker.enlists(answer.number):
                return Refusal(NOT_HELD)
        home = transaction.home
        for queue, content in transaction.put:
            if queue.fault:
                return Refusal(f"queue {queue.name} has stopped: {queue.fault}", failed=False)
            reason = queue.accepts(content, home=queue is home)
            if reason:
                return Refusal(f"queue {queue.name} does not take a message of it: {reason}")
        if home is not None and home.fault:
            return Refusal(f"queue {home.name} has stopped: {home.fault}", failed=False)
        return None

    def _roll_back(self, transaction: Transaction, *, failed: bool) -> None:
        self.rolled_back += 1
        self._over(transaction)
        for taker, numbers in _by_taker(transaction, Outcome):
            taker.rolled_back(numbers, failed=failed)

    def _over(self, transaction: Transaction) -> None:
        """Drop what the transaction keeps."""
        self.kept_bytes -= transaction.kept_bytes
        transaction.kept_bytes = 0
        transaction.put.clear()


def _by_taker(
    transaction: Transaction, outcomes: Iterable[Outcome]
) -> "list[tuple[Consumer, list[int]]]":
    """Return the numbers of messages with these outcomes, by consumer."""
    wanted = set(outcomes)
    found: dict[Consumer, list[int]] = {}
    for answer in transaction.answers:
        if answer.outcome in wanted:
            found.setdefault(answer.taker, []).append(answer.number)
    return list(found.items())


# -- what is on the wire ------------------------------------------------------------------------


class Declare(NamedTuple):
    """A controller's request to begin a transaction."""


class Discharge(NamedTuple):
    """A controller's request to end a transaction; `fail`: by a rollback."""

    name: bytes
    fail: bool


def read_order(data: bytes) -> Declare | Discharge:
    """Parse a controller's request (4.5.2, 4.5.3). Raises `TransactionError`."""
    try:
        found = [(value, end) for code, _, value, end in sections(data) if code == VALUE]
        if len(found) != 1:
            raise SectionError("no amqp-value")
        code, fields = _described(data, *found[0], _ORDERS)
        values = [decode(each, 0)[0] for each in fields]
    except SectionError as error:
        raise TransactionError(
            conditions.DECODE_ERROR, f"neither a declare nor a discharge: {error}"
        ) from None
    if code == DECLARE:
        if any(value is not None for value in values):
            raise TransactionError(
                conditions.NOT_IMPLEMENTED, "this node has no part in global transactions"
            )
        return Declare()
    if code != DISCHARGE or not values or not isinstance(values[0], bytes):
        raise TransactionError(
            conditions.DECODE_ERROR, "neither a declare nor a discharge of a txn-id"
        )
    fail = values[1] if len(values) > 1 else False
    if not (fail is None or isinstance(fail, bool)):
        raise TransactionError(
            conditions.DECODE_ERROR, "a discharge whose fail is neither true nor false"
        )
    return Discharge(values[0], bool(fail))


def read_put_state(fields: bytes) -> bytes:
    """Parse the txn-id of a message that is put in a transaction (4.5.8). Raises
    `TransactionError`."""
    return _state(fields)[0]


def read_outcome(fields: bytes) -> tuple[bytes, Outcome]:
    """Parse a consumer's transactional state: the txn-id, and the outcome. Raises
    `TransactionError`."""
    name, outcome = _state(fields)
    if outcome is None:
        raise TransactionError(conditions.DECODE_ERROR, "a transactional state without an outcome")
    code, values = outcome
    if code == _OUTCOMES[b"amqp:accepted:list"]:
        return name, Outcome.ACCEPTED
    if code == _OUTCOMES[b"amqp:released:list"]:
        return name, Outcome.RELEASED
    flags = [decode(value, 0)[0] for value in values[:2]] + [None, None]
    if code != _OUTCOMES[b"amqp:modified:list"] or flags[1]:
        return name, Outcome.REFUSED
    return name, Outcome.FAILED if flags[0] else Outcome.RELEASED


def _state(fields: bytes) -> tuple[bytes, tuple[int, list[bytes]] | None]:
    """Parse a transactional state: the txn-id, and the outcome as (code, fields), if any. Raises
    `TransactionError`."""
    try:
        values = fields_of(fields, 0, skip(fields, 0))
        name = decode(values[0], 0)[0] if values else None
        if not isinstance(name, bytes):
            raise SectionError("no txn-id")
        outcome = None
        if len(values) > 1 and values[1] != b"\x40":
            outcome = _described(values[1], 0, len(values[1]), _OUTCOMES)
    except SectionError as error:
        reason = f"a transactional state that cannot be read: {error}"
        raise TransactionError(conditions.DECODE_ERROR, reason) from None
    return name, outcome


def _described(data: bytes, at: int, end: int, names: dict[bytes, int]) -> tuple[int, list[bytes]]:
    """Parse a described list: the descriptor's code, and the fields. Raises `SectionError`."""
    if at >= end or data[at] != 0:
        raise SectionError("no described value")
    value = skip(data, at + 1)
    descriptor = decode(data, at + 1)[0]
    if isinstance(descriptor, str):
        descriptor = names.get(descriptor.encode(), 0)
    if isinstance(descriptor, bool) or not isinstance(descriptor, int):
        raise SectionError("no descriptor")
    return descriptor, fields_of(data, value, end)


def write_declared(name: bytes) -> bytes:
    """Encode the fields of a declared state (4.5.5)."""
    return bytes(encoded_list([encode(name)]))


def write_accepted(name: bytes) -> bytes:
    """Encode the fields of the state with which a message that is put in a transaction is
    answered."""
    return bytes(encoded_list([encode(name), b"\x00\x53\x24\x45"]))
