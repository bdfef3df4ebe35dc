"""Order of work among a client's messages: none begins before those that it comes after.

What it is for: a queue with `run` above 1 gives one client several messages of a key, and a client
with several workers would begin them all. Each such message names those that it comes after, by
their fences: `MessageOrder` begins it once these have ended. Where one fails, those after it go
back with it, so that it is tried again before them; also those that are still in flight, for the
queue does not know of the failure yet. No I/O; no step looks at all messages that wait.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class OrderedMessage(Generic[Item]):
    """A message, by its fence (0: it has none, and nothing comes after it). `before` counts those
    that it waits for; `behind` are those that wait for it; `dropped`: it is not worked on."""

    __slots__ = ("before", "behind", "dropped", "fence", "item")

    def __init__(self, item: Item, fence: int) -> None:
        self.item = item
        self.fence = fence
        self.before = 0
        self.behind: list[OrderedMessage[Item]] = []
        self.dropped = False


class MessageOrder(Generic[Item]):
    """The messages of one connection; see the module. At most `credit` messages are in flight at a
    time."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._came = 0
        self._held: dict[int, OrderedMessage[Item]] = {}
        self._ready: deque[OrderedMessage[Item]] = deque()
        # Fences that failed, and how many messages had come then: once the queue knows of a
        # failure, no message that it sends comes after that fence.
        self._failed: set[int] = set()
        self._failures: deque[tuple[int, int]] = deque()

    def add(self, item: Item, fence: int, after: Iterable[int] = ()) -> bool:
        """Add a message that has come; return False where it comes after one that has failed, and
        goes back."""
        self._came += 1
        while self._failures and self._came - self._failures[0][1] > self._credit:
            self._failed.remove(self._failures.popleft()[0])
        ordered = OrderedMessage(item, fence)
        for other in after:
            if other in self._failed:
                self._drop(ordered)
                return False
            earlier = self._held.get(other)
            if earlier is not None:
                earlier.behind.append(ordered)
                ordered.before += 1
        if fence:
            self._held[fence] = ordered
        if not ordered.before:
            self._ready.append(ordered)
        return True

    def begin(self) -> OrderedMessage[Item] | None:
        """Begin the next message that may be worked on; None where there is none."""
        return self._ready.popleft() if self._ready else None

    def end(self, ordered: OrderedMessage[Item], failed: bool = False) -> list[Item]:
        """End a message that was begun. `failed`: return the messages after it, which go back, in
        the order in which they came."""
        if failed:
            return [each.item for each in self._drop_all(ordered)]
        self._held.pop(ordered.fence, None)
        for each in ordered.behind:
            each.before -= 1
            if not each.before and not each.dropped:
                self._ready.append(each)
        return []

    def _drop_all(self, failed: OrderedMessage[Item]) -> list[OrderedMessage[Item]]:
        found, open_ = [], [failed]
        while open_:
            ordered = open_.pop()
            self._held.pop(ordered.fence, None)
            self._drop(ordered)
            for each in ordered.behind:
                if not each.dropped:
                    each.dropped = True
                    found.append(each)
                    open_.append(each)
        return sorted(found, key=lambda ordered: ordered.fence)

    def _drop(self, ordered: OrderedMessage[Item]) -> None:
        ordered.dropped = True
        if ordered.fence:
            self._failed.add(ordered.fence)
            self._failures.append((ordered.fence, self._came))

    def drop(self) -> list[Item]:
        """Begin no more messages; return those that have come and have not begun, in order."""
        # A message that waits for another is behind one that has begun, or is ready.
        left = [*self._ready]
        self._ready.clear()
        for ordered in self._held.values():
            if ordered.before and not ordered.dropped:
                left.append(ordered)
        for ordered in left:
            ordered.dropped = True
            self._held.pop(ordered.fence, None)
        return [ordered.item for ordered in sorted(left, key=lambda ordered: ordered.fence)]
