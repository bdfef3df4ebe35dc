"""Choice of the consumer that gets the next message: the one with the fewest in hand, of those with
room.

A message that goes to a consumer with others in hand waits for these, and its key with it, although
an idle consumer could begin at once. So the idle ones come first, and among equals the one that has
waited longest.

A consumer is listed here while it may have room. A caller that takes one out and finds that it has
none leaves it out; it is offered again when it gets credit, ends a message, or its connection has
room. So what a turn costs does not depend on how many consumers are busy.

No I/O.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

Consumer = TypeVar("Consumer")
#: Levels of messages in hand; consumers with more are equals.
LEVELS = 64


class Rota(Generic[Consumer]):
    """The consumers that may have room; see the module."""

    def __init__(self) -> None:
        self._levels: list[OrderedDict[Consumer, None]] = [OrderedDict() for _ in range(LEVELS)]
        self._level_of: dict[Consumer, int] = {}

    def __len__(self) -> int:
        """Return how many consumers may have room."""
        return len(self._level_of)

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._level_of

    def offer(self, consumer: Consumer, in_hand: int) -> None:
        """List a consumer with `in_hand` messages; it keeps its position where it is listed at that
        level already."""
        level = min(in_hand, LEVELS - 1)
        if self._level_of.get(consumer) != level:
            self.remove(consumer)
            self._level_of[consumer] = level
            self._levels[level][consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer, if it is listed."""
        level = self._level_of.pop(consumer, None)
        if level is not None:
            del self._levels[level][consumer]

    def next(self) -> Consumer | None:
        """Remove and return the next consumer; None where none has room."""
        if self._level_of:
            for level in self._levels:
                if level:
                    consumer, _ = level.popitem(last=False)
                    del self._level_of[consumer]
                    return consumer
        return None
