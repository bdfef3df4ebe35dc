"""De-duplication with a buffer of fixed length (Appendix A), and what the appendix leaves out.

The buffer has N slots, the smallest power of two that is no less than the message rate; id `i`
belongs to slot `i & (N - 1)`, which holds the highest id that it has had. A lower one there is
accepted, the same one is a duplicate, a higher one is a violation: messages a second apart have
changed places. Beside that:

- Ids begin with 1, as an empty slot holds 0.
- An id of N or more behind the highest is a violation even where its slot is lower, which is where
  the message in between was lost: the slot would forget that, and accept further copies.
- A restarted sender has a higher epoch: the buffer begins anew. A lower epoch is stale.
- `judge` changes nothing and `accept` does, so that a forged message, whose seal is verified in
  between, occupies no slot.

One writer: a member's loop owns its buffer. Two processors at one slot are the kernel hook's case.
"""

import enum
from array import array

#: Slots at most: 16 million messages a second, 128 MiB.
SLOTS_MAX = 1 << 24
#: The least rate that is planned for: below it a burst passes a whole buffer.
SLOTS_MIN = 1 << 6


class Verdict(enum.IntEnum):
    """Outcomes for one copy of a message."""

    ACCEPTED = 0
    DUPLICATE = 1
    VIOLATION = 2  #: too far behind to tell
    STALE = 3  #: of a lower epoch
    NEW_EPOCH = 4  #: accepted, and the first of a higher epoch


def slots_for(messages_per_second: int) -> int:
    """The number of slots for a rate, within `SLOTS_MIN` and `SLOTS_MAX`."""
    return min(SLOTS_MAX, max(SLOTS_MIN, 1 << max(0, messages_per_second - 1).bit_length()))


class Deduplicator:
    """The buffer of one member."""

    def __init__(self, messages_per_second: int) -> None:
        self.slots = slots_for(messages_per_second)
        self.epoch = 0
        self.top = 0  #: the highest id of the epoch
        self._mask = self.slots - 1
        self._buffer = array("Q", bytes(8 * self.slots))

    def judge(self, epoch: int, id: int) -> Verdict:
        """The verdict on a copy; `id` is 1 or more. Changes nothing."""
        if epoch != self.epoch:
            return Verdict.NEW_EPOCH if epoch > self.epoch else Verdict.STALE
        held = self._buffer[id & self._mask]
        if held == id:
            return Verdict.DUPLICATE
        if held > id or id + self.slots <= self.top:
            return Verdict.VIOLATION
        return Verdict.ACCEPTED

    def accept(self, epoch: int, id: int) -> None:
        """Keep what `judge` answered ACCEPTED or NEW_EPOCH to."""
        if epoch != self.epoch:
            self.begin(epoch)
        self._buffer[id & self._mask] = id
        self.top = max(self.top, id)

    def begin(self, epoch: int) -> None:
        """Follow a higher epoch, of which no message has come yet."""
        self.epoch, self.top = epoch, 0
        self._buffer = array("Q", bytes(8 * self.slots))
