"""Deduplication by a ring of ids: the first copy of each message wins ("Jasper", Appendix A).

Slot `id & (slots - 1)` has the highest id that fell on it. A lower one is a whole ring behind: the
ring is too small for the rate, or copies are overtaken by as much as a ring holds (a second, in the
source). Such a message is dropped and counted (`BEHIND`), because it is unknown whether it came
before.

What the source leaves out: ids begin with 1, because an empty slot holds 0. Numbering begins anew
with a sender that was restarted, so a higher epoch empties the ring, and what still comes of a
lower one is dropped (`OLD`). One thread judges; the kernel's hooks, which run on several
processors, have their own form of this.

`judge` changes nothing, `accept` does: the caller checks a first copy's seal in between, so that a
forged one takes no slot. The ring is an array of words, so that compiled code uses the same one
(`judging.pyx`).
"""

from array import array
from enum import IntEnum

from feedhandler.codecs.errors import UsageError

#: Slots by default: a second of the source's highest rate, 35,000 messages, as a power of two.
SLOTS = 1 << 16
SLOTS_MAX = 1 << 24


class Verdict(IntEnum):
    """Verdict on a copy."""

    FIRST = 0
    DUPLICATE = 1
    BEHIND = 2
    OLD = 3


class Deduplicator:
    """Ring of ids; see the module.

    `slots`: a power of two, at least the messages of a second. `ids`: the ring, always the same
    array. Raises `UsageError` where `slots` is invalid.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        if not 1 <= slots <= SLOTS_MAX or slots & (slots - 1):
            raise UsageError(
                f"a ring of {slots} ids", f"a power of two up to {SLOTS_MAX}, a second's messages"
            )
        self.slots = slots
        self.epoch = 0
        self.ids = array("Q", bytes(8 * slots))

    def judge(self, epoch: int, number: int) -> Verdict:
        """Return the verdict on a copy with this epoch and id."""
        if epoch < self.epoch:
            return Verdict.OLD
        there = self.ids[number & (self.slots - 1)] if epoch == self.epoch else 0
        if there < number:
            return Verdict.FIRST
        return Verdict.DUPLICATE if there == number else Verdict.BEHIND

    def accept(self, epoch: int, number: int) -> None:
        """Take a first copy: later ones are duplicates."""
        if epoch > self.epoch:
            self.restart(epoch)
        self.ids[number & (self.slots - 1)] = number

    def restart(self, epoch: int) -> None:
        """Empty the ring for a sender that began anew."""
        self.epoch = epoch
        self.ids[:] = array("Q", bytes(8 * self.slots))
