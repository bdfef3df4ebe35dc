"""Messages on their way to other queues: each goes once, in order, and no queue delays another."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from feedhandler.amqp.durable.outbox import ENTRY_BYTES, IN_FLIGHT_MAX, OUTBOX_BYTES_MAX, Outbox
from feedhandler.keyed.envelope import OutboxEntry
from feedhandler.keyed.producers import Stamp
from tests.support.turns import Loop

MANY = 3 * IN_FLIGHT_MAX


class Target:
    """A queue that takes so many messages (`room`); all are durable once `settle` says so."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.fault = ""
        self.room, self.room_bytes = room, 100
        self.got: list[int] = []
        self.waits: list[Callable[[], None]] = []

    def accept_forwarded(self, content: bytes, stamp: Stamp, on_done: Callable[[], None]) -> bool:
        if self.fault or not self.room:
            return False
        self.room -= 1
        self.got.append(stamp.sequence)
        self.waits.append(on_done)
        return True

    def settle(self) -> None:
        """Everything that it has is durable."""
        waits, self.waits = self.waits, []
        for on_done in waits:
            on_done()


class Rig:
    """The outbox of a queue, with entries of these targets in turn."""

    def __init__(self, **targets: Target) -> None:
        self.targets = targets
        self.loop = Loop()
        self.later: dict[str, Callable[[], None]] = {}
        self.ended: list[int] = []
        home: Any = SimpleNamespace(
            name="home", fault="", soon=self.loop.call_soon, in_a_while=self.later.__setitem__,
            store=SimpleNamespace(engine=SimpleNamespace(queue_id=b"id")), counts=[0] * 20,
        )  # fmt: skip
        find: Any = self.targets.get
        self.outbox = Outbox(home, find, lambda number, entry: self.ended.append(number))
        names = list(targets)
        entries = [OutboxEntry(names[each % len(names)], "", b"x") for each in range(MANY)]
        self.outbox.add(enumerate(entries, 1))
        self.numbers = {
            name: list(range(at, MANY + 1, len(names))) for at, name in enumerate(names, 1)
        }
        self.outbox.send()

    def settle(self, name: str) -> None:
        """All that a target takes is durable there, until nothing more comes."""
        while self.targets[name].waits:
            self.targets[name].settle()
            self.loop.turn()

    def retry(self) -> None:
        """What is to be tried again a little later is tried now."""
        later = dict(self.later)
        self.later.clear()
        for do in later.values():
            do()


def test_a_queue_that_is_slow_has_so_many_on_their_way_and_the_others_have_theirs() -> None:
    rig = Rig(slow=Target(), quick=Target())
    slow, quick = rig.targets["slow"], rig.targets["quick"]
    rig.settle("quick")
    assert quick.got == rig.ended == rig.numbers["quick"]
    assert slow.got == rig.numbers["slow"][:IN_FLIGHT_MAX]
    assert (len(rig.outbox), rig.later) == (len(rig.numbers["slow"]), {})
    rig.settle("slow")
    assert slow.got == rig.numbers["slow"]
    assert (len(rig.outbox), rig.outbox.kept_bytes) == (0, 0)


def test_a_queue_that_stops_gets_nothing_and_gives_back_what_was_on_its_way() -> None:
    rig = Rig(bad=Target(), good=Target())
    bad, good = rig.targets["bad"], rig.targets["good"]
    sent, numbers = bad.got.copy(), rig.numbers["bad"]
    assert sent == numbers[:IN_FLIGHT_MAX]
    bad.fault = "its disk failed"
    rig.settle("good")
    assert good.got == rig.ended == rig.numbers["good"]
    assert (bad.got, len(rig.outbox)) == (sent, len(numbers))
    rig.retry()
    assert (bad.got, list(rig.later)) == (sent, ["outbox"])
    # A word of it that comes late ends nothing: what was on its way waits again, in order.
    bad.settle()
    assert (rig.ended, len(rig.outbox)) == (good.got, len(numbers))
    rig.targets["bad"] = again = Target()
    rig.retry()
    rig.settle("bad")
    assert again.got == numbers
    assert sorted(rig.ended) == list(range(1, MANY + 1))
    assert (len(rig.outbox), rig.outbox.kept_bytes) == (0, 0)


def test_a_queue_that_is_full_is_tried_again_and_named_where_too_much_waits() -> None:
    rig = Rig(full=Target(room=5), quick=Target())
    full = rig.targets["full"]
    assert (full.got, list(rig.later)) == (rig.numbers["full"][:5], ["outbox"])
    rig.settle("quick")
    rig.settle("full")
    more = OUTBOX_BYTES_MAX - rig.outbox.kept_bytes - ENTRY_BYTES
    assert rig.outbox.fault([("full", bytes(more))]) == ""
    too_much = [("quick", b"x"), ("full", bytes(more + 1))]
    assert rig.outbox.fault(too_much) == "too much waits in queue home to be sent to full"
    # What waits for it takes no room from what is for others.
    assert rig.outbox.fault([("quick", bytes(OUTBOX_BYTES_MAX - ENTRY_BYTES))]) == ""
    full.room = MANY
    rig.retry()
    rig.settle("full")
    assert full.got == rig.numbers["full"]


def test_what_no_block_of_the_other_queue_holds_is_ended_and_the_next_goes_on() -> None:
    rig = Rig(one=Target())
    rig.settle("one")
    rig.outbox.add([(900, OutboxEntry("one", "", bytes(101))), (901, OutboxEntry("one", "", b"x"))])
    rig.outbox.send()
    rig.settle("one")
    assert rig.targets["one"].got == [*range(1, MANY + 1), 901]
    assert rig.ended == [*range(1, MANY + 1), 900, 901]
    assert (len(rig.outbox), rig.outbox.kept_bytes) == (0, 0)
