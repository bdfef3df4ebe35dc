"""Transactions as the node keeps them: what is collected, refused, and done at a discharge."""

from collections.abc import Callable
from typing import Any

import pytest

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.transactions import (
    BYTES_MAX,
    BYTES_TOTAL,
    ENTRY_BYTES,
    MESSAGES_MAX,
    OPEN_MAX,
    Declare,
    Discharge,
    Fate,
    Outcome,
    Refusal,
    Transaction,
    TransactionError,
    Transactions,
    Work,
    read_order,
    read_outcome,
    read_put_state,
    write_accepted,
    write_declared,
)
from feedhandler.amqp.durable.values import (
    encode,
    encoded_list,
)

OWNER = object()


class Queue:
    """A queue that notes its work; `refuses`: why it does none."""

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.log = name, log
        self.fault = ""
        self.misfit = b""
        self.refuses: Refusal | None = None
        self.ends: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def accepts(self, content: bytes, *, home: bool) -> str:
        return "it has no key" if content == self.misfit else ""

    def transact(
        self, work: Work, done: Callable[[], None], lost: Callable[[], None]
    ) -> Refusal | None:
        if self.refuses is None:
            accepted = [number for _, number in work.accepted]
            self.log.append((self.name, accepted, work.put, work.sent))
            self.ends.append((done, lost))
        return self.refuses


class Taker:
    """A consumer that has the messages below 100."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def enlists(self, number: int) -> bool:
        return number < 100

    def committing(self, numbers: list[int]) -> None:
        self.log.append(("committing", numbers))

    def finished(self, numbers: Any) -> None:
        """Said by the queue itself."""

    def rolled_back(self, numbers: list[int], *, failed: bool) -> None:
        self.log.append(("back", numbers, failed))

    def returned(self, numbers: list[int], *, failed: bool) -> None:
        self.log.append(("returned", numbers, failed))


class Rig:
    """One transaction of one owner, two queues, one consumer; and what they were told, in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.all = Transactions()
        self.one, self.two = Queue("one", self.log), Queue("two", self.log)
        self.taker = Taker(self.log)
        self.it: Transaction = self.all.declare(OWNER)

    def say(self, number: int, outcome: Outcome = Outcome.ACCEPTED, queue: Any = None) -> None:
        self.all.answer(self.it, queue or self.one, self.taker, number, outcome)

    def end(self, fail: bool = False) -> None:
        self.all.discharge(self.it, fail, lambda fate, why: self.log.append((fate, why)))


def test_the_home_is_where_messages_are_accepted_and_does_all_at_once() -> None:
    rig = Rig()
    rig.all.put(rig.it, rig.two, b"a")
    rig.all.put(rig.it, rig.one, b"b")
    for number, outcome in ((7, Outcome.ACCEPTED), (8, Outcome.RELEASED), (9, Outcome.FAILED)):
        rig.say(number, outcome)
    rig.end()
    assert rig.log == [("one", [7], [b"b"], [("two", b"a")]), ("committing", [7])]
    assert rig.all.kept_bytes > 0, "until it is durable"
    with pytest.raises(TransactionError, match="has this id"):
        rig.all.find(OWNER, rig.it.id)
    rig.one.ends[0][0]()
    assert rig.log[2:] == [
        ("returned", [8], False),
        ("returned", [9], True),
        (Fate.DONE, ""),
    ]
    assert (rig.all.kept_bytes, rig.all.open, rig.all.committed) == (0, 0, 1)


def test_without_acknowledgements_the_home_is_the_first_queue_that_was_put_to() -> None:
    rig = Rig()
    rig.all.put(rig.it, rig.two, b"a")
    rig.all.put(rig.it, rig.one, b"b")
    rig.end()
    assert rig.log == [("two", [], [b"a"], [("one", b"b")])]
    rig.two.ends[0][1]()
    assert rig.log[1:] == [(Fate.UNCERTAIN, "queue two has stopped")]
    assert rig.all.kept_bytes == 0


def test_a_transaction_of_nothing_is_done_at_once() -> None:
    rig = Rig()
    rig.say(8, Outcome.RELEASED)
    rig.end()
    assert rig.log == [("returned", [8], False), (Fate.DONE, "")]
    assert rig.all.open == 0


def test_a_rollback_gives_back_and_does_nothing_else() -> None:
    rig = Rig()
    rig.all.put(rig.it, rig.two, b"a")
    rig.say(7)
    rig.end(fail=True)
    assert rig.log == [("back", [7], True), (Fate.DONE, "")]
    assert (rig.all.kept_bytes, rig.all.rolled_back) == (0, 1)


@pytest.mark.parametrize("failed", [True, False])
def test_what_its_controller_leaves_open_is_rolled_back(failed: bool) -> None:
    rig = Rig()
    rig.say(7)
    rig.all.abandon(rig.it, failed=failed)
    rig.all.abandon(rig.it, failed=failed)
    assert rig.log == [("back", [7], failed)]
    assert (rig.all.kept_bytes, rig.all.open) == (0, 0)


def stop(rig: Rig) -> None:
    rig.two.fault = "the disk"


def stop_home(rig: Rig) -> None:
    rig.one.fault = "the disk"


def misfit(rig: Rig) -> None:
    rig.two.misfit = b"a"


def full(rig: Rig) -> None:
    rig.one.refuses = Refusal("no room now", failed=False)


@pytest.mark.parametrize(
    ("spoil", "failed", "why"),
    [
        (lambda rig: rig.say(8, queue=rig.two), True, "of one, and not of two too"),
        (lambda rig: rig.say(100), True, "not its consumer's any more"),
        (lambda rig: rig.say(8, Outcome.REFUSED), True, "outside of a transaction"),
        (stop, False, "queue two has stopped: the disk"),
        (stop_home, False, "queue one has stopped: the disk"),
        (misfit, True, "queue two does not take a message of it: it has no key"),
        (full, False, "no room now"),
    ],
)
def test_what_cannot_be_committed_is_rolled_back_and_says_why(
    spoil: Callable[[Rig], None], failed: bool, why: str
) -> None:
    rig = Rig()
    rig.all.put(rig.it, rig.two, b"a")
    rig.say(7)
    spoil(rig)
    rig.end()
    *back, (fate, reason) = rig.log
    assert [each[0] for each in back] == ["back"]
    assert (back[0][1][0], back[0][2]) == (7, failed)
    assert fate is Fate.ROLLED_BACK
    assert why in reason
    assert rig.all.kept_bytes == 0


def fill(rig: Rig) -> None:
    for _ in range(MESSAGES_MAX):
        rig.all.put(rig.it, rig.one, b"")
    assert rig.it.doomed is None


def weigh(rig: Rig) -> None:
    rig.all.put(rig.it, rig.one, bytes(BYTES_MAX - rig.it.kept_bytes - ENTRY_BYTES))


def crowd(rig: Rig) -> None:
    while rig.all.kept_bytes + BYTES_MAX <= BYTES_TOTAL:
        other = rig.all.declare(object())
        rig.all.put(other, rig.one, bytes(BYTES_MAX - 2 * ENTRY_BYTES))
    other = rig.all.declare(object())
    rig.all.put(other, rig.one, bytes(BYTES_TOTAL - rig.all.kept_bytes - ENTRY_BYTES))


@pytest.mark.parametrize(
    ("prepare", "why", "failed"),
    [
        (fill, "at most 4096 messages", True),
        (weigh, "at most 4096 messages", True),
        (crowd, "no room; try again", False),
    ],
)
def test_bounds_are_kept_and_what_is_beyond_dooms_the_transaction(
    prepare: Callable[[Rig], None], why: str, failed: bool
) -> None:
    rig = Rig()
    prepare(rig)
    kept = rig.all.kept_bytes
    with pytest.raises(TransactionError, match=why) as refused:
        rig.all.put(rig.it, rig.one, b"x")
    assert refused.value.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert rig.all.kept_bytes == kept
    assert rig.it.doomed.failed is failed
    if prepare is crowd:
        with pytest.raises(TransactionError, match=why):
            rig.all.declare(OWNER)
    rig.say(7)
    rig.end()
    assert rig.log[0] == ("back", [7], failed), "what is said beyond the bound is given back, too"


def test_a_connection_has_so_many_open_and_names_only_its_own() -> None:
    rig = Rig()
    names = {rig.it.id} | {rig.all.declare(OWNER).id for _ in range(OPEN_MAX - 1)}
    assert len(names) == OPEN_MAX
    with pytest.raises(TransactionError, match="are open on this connection"):
        rig.all.declare(OWNER)
    other = rig.all.declare(object())
    with pytest.raises(TransactionError) as refused:
        rig.all.find(OWNER, other.id)
    assert refused.value.condition == conditions.TRANSACTION_UNKNOWN_ID
    assert rig.all.find(OWNER, rig.it.id) is rig.it
    rig.end(fail=True)
    assert rig.all.declare(OWNER).id not in names


def value(code: bytes, *fields: bytes) -> bytes:
    """A message whose body is a described list."""
    return b"\x00\x53\x77\x00" + code + encoded_list(list(fields))


DISCHARGE, NAME = b"\x53\x32", encode(b"name")


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        (b"\x00\x53\x77\x00\x53\x31\x45", Declare()),
        (value(b"\x80" + bytes(7) + b"\x31", b"\x40"), Declare()),
        (value(b"\xa3\x11amqp:declare:list"), Declare()),
        (value(DISCHARGE, NAME), Discharge(b"name", False)),
        (value(DISCHARGE, NAME, b"\x40"), Discharge(b"name", False)),
        (value(DISCHARGE, NAME, b"\x41"), Discharge(b"name", True)),
        (value(b"\xa3\x13amqp:discharge:list", NAME, b"\x56\x01"), Discharge(b"name", True)),
        (value(b"\x53\x31", NAME), conditions.NOT_IMPLEMENTED),
        (value(DISCHARGE), conditions.DECODE_ERROR),
        (value(DISCHARGE, encode("name")), conditions.DECODE_ERROR),
        (value(DISCHARGE, NAME, encode("true")), conditions.DECODE_ERROR),
        (value(b"\x53\x33", NAME), conditions.DECODE_ERROR),
        (value(b"\x41", NAME), conditions.DECODE_ERROR),
        (value(b"\x40", NAME), conditions.DECODE_ERROR),
        (b"\x00\x53\x77\x40", conditions.DECODE_ERROR),
        (b"\x00\x53\x77\x00\x53\x31", conditions.DECODE_ERROR),
        (b"\x00\x53\x77\x00\x53\x31\xa1\x01x", conditions.DECODE_ERROR),
        (b"\x00\x53\x75\xa0\x00", conditions.DECODE_ERROR),
        (b"", conditions.DECODE_ERROR),
    ],
)
def test_orders_are_read_or_refused(data: bytes, meant: Any) -> None:
    if isinstance(meant, str):
        with pytest.raises(TransactionError) as refused:
            read_order(data)
        assert refused.value.condition == meant
    else:
        assert read_order(data) == meant


ACCEPTED, MODIFIED = b"\x00\x53\x24\x45", b"\x00\x53\x27"


@pytest.mark.parametrize(
    ("outcome", "meant"),
    [
        (ACCEPTED, Outcome.ACCEPTED),
        (b"\x00\xa3\x12amqp:accepted:list\x45", Outcome.ACCEPTED),
        (b"\x00\x53\x26\x45", Outcome.RELEASED),
        (MODIFIED + b"\x45", Outcome.RELEASED),
        (MODIFIED + encoded_list([b"\x41"]), Outcome.FAILED),
        (MODIFIED + encoded_list([b"\x41", b"\x41"]), Outcome.REFUSED),
        (b"\x00\x53\x25\x45", Outcome.REFUSED),
        (b"\x00\x53\x34\x45", Outcome.REFUSED),
        (b"\x40", None),
        (b"\x41", None),
        (b"\x00\x53\x24\x41", None),
    ],
)
def test_outcomes_are_read_or_refused(outcome: bytes, meant: Outcome | None) -> None:
    state = bytes(encoded_list([NAME, outcome]))
    if meant is None:
        with pytest.raises(TransactionError):
            read_outcome(state)
    else:
        assert read_outcome(state) == (b"name", meant)


@pytest.mark.parametrize("state", [b"", b"\x45", b"\x40", b"\xc0\x02\x01\x40", b"\xc0\x09\x01\xa0"])
def test_a_state_without_a_transaction_is_refused(state: bytes) -> None:
    for read in (read_put_state, read_outcome):
        with pytest.raises(TransactionError):
            read(state)


def test_what_is_written_is_read() -> None:
    assert read_outcome(write_accepted(b"name")) == (b"name", Outcome.ACCEPTED)
    for written in (write_accepted, write_declared):
        assert read_put_state(written(b"name")) == b"name"
