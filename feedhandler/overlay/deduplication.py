"""The first copy of each message wins: a ring of ids ("Jasper", Appendix A).

Slot `id & (slots - 1)` has the highest id that fell on it. A lower one means that it is a whole
ring behind: the ring is too small for the rate, or copies are overtaken by as much as a ring holds
(a second, in the source). Such a message is dropped and counted (`BEHIND`), for nobody knows
whether it came before.

What the source leaves out: ids begin with 1, for an empty slot holds 0. Numbering begins anew with
a sender that was restarted, so a higher epoch empties the ring, and what still comes of a lower one
is dropped (`OLD`). One thread judges; hooks of the kernel, which run on several processors, have
their own form of this.

`judge` changes nothing, `take` does: whoever asks checks a first copy's seal in between, so that
what is forged takes nobody's place. The ring is an array of words, so that compiled code judges by
the same one (`judging.pyx`).
"""

from array import array
from enum import IntEnum

from feedhandler.codecs.errors import UsageError

#: Slots by default: a second of the source's highest rate, 35,000 messages, as a power of two.
SLOTS = 1 << 16
SLOTS_MAX = 1 << 24


class Verdict(IntEnum):
    """What a copy is."""

    FIRST = 0
    DUPLICATE = 1
    BEHIND = 2
    OLD = 3


class Deduplicator:
    """See the module. `slots`: a power of two, at least the messages of a second. `ids`: the ring,
    always the same array. Raises `UsageError`."""

    def __init__(self, slots: int = SLOTS) -> None:
        if not 1 <= slots <= SLOTS_MAX or slots & (slots - 1):
            raise UsageError(
                f"a ring of {slots} ids", f"a power of two up to {SLOTS_MAX}, a second's messages"
            )
        self.slots = slots
        self.epoch = 0
        self.ids = array("Q", bytes(8 * slots))

    def judge(self, epoch: int, number: int) -> Verdict:
        """What a copy with this epoch and id is."""
        if epoch < self.epoch:
            return Verdict.OLD
        there = self.ids[number & (self.slots - 1)] if epoch == self.epoch else 0
        if there < number:
            return Verdict.FIRST
        return Verdict.DUPLICATE if there == number else Verdict.BEHIND

    def take(self, epoch: int, number: int) -> None:
        """A first copy is taken: later ones are duplicates."""
        if epoch > self.epoch:
            self.restart(epoch)
        self.ids[number & (self.slots - 1)] = number

    def restart(self, epoch: int) -> None:
        """A sender has begun anew: its ids begin with 1 again."""
        self.epoch = epoch
        self.ids[:] = array("Q", bytes(8 * self.slots))
