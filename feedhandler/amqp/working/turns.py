"""Order of work among a client's messages: none begins before those that it comes after.

What it is for: a queue with `run` above 1 gives one client several messages of a key, and a client
with several workers would begin them all. Each such message names those that it comes after, by
their fences: `Turns` begins it once these have ended. Where one fails, those after it go back with
it, so that it is tried again before them; also those that are still in flight, for the queue does
not know of the failure yet. No I/O; no step looks at all messages that wait.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turn(Generic[Item]):
    """A message, by its fence (0: it has none, and nothing comes after it). `before` counts those
    that it waits for; `behind` are those that wait for it; `dropped`: it is not worked on."""

    __slots__ = ("before", "behind", "dropped", "fence", "item")

    def __init__(self, item: Item, fence: int) -> None:
        self.item = item
        self.fence = fence
        self.before = 0
        self.behind: list[Turn[Item]] = []
        self.dropped = False


class Turns(Generic[Item]):
    """The messages of one connection; see the module. At most `credit` messages are in flight at a
    time."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._came = 0
        self._held: dict[int, Turn[Item]] = {}
        self._ready: deque[Turn[Item]] = deque()
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
        turn = Turn(item, fence)
        for other in after:
            if other in self._failed:
                self._drop(turn)
                return False
            earlier = self._held.get(other)
            if earlier is not None:
                earlier.behind.append(turn)
                turn.before += 1
        if fence:
            self._held[fence] = turn
        if not turn.before:
            self._ready.append(turn)
        return True

    def begin(self) -> Turn[Item] | None:
        """Begin the next message that may be worked on; None where there is none."""
        return self._ready.popleft() if self._ready else None

    def end(self, turn: Turn[Item], failed: bool = False) -> list[Item]:
        """End a message that was begun. `failed`: return the messages after it, which go back, in
        the order in which they came."""
        if failed:
            return [each.item for each in self._drop_all(turn)]
        self._held.pop(turn.fence, None)
        for each in turn.behind:
            each.before -= 1
            if not each.before and not each.dropped:
                self._ready.append(each)
        return []

    def _drop_all(self, failed: Turn[Item]) -> list[Turn[Item]]:
        found, open_ = [], [failed]
        while open_:
            turn = open_.pop()
            self._held.pop(turn.fence, None)
            self._drop(turn)
            for each in turn.behind:
                if not each.dropped:
                    each.dropped = True
                    found.append(each)
                    open_.append(each)
        return sorted(found, key=lambda turn: turn.fence)

    def _drop(self, turn: Turn[Item]) -> None:
        turn.dropped = True
        if turn.fence:
            self._failed.add(turn.fence)
            self._failures.append((turn.fence, self._came))

    def drop(self) -> list[Item]:
        """Begin no more messages; return those that have come and have not begun, in order."""
        # A message that waits for another is behind one that has begun, or is ready.
        left = [*self._ready]
        self._ready.clear()
        for turn in self._held.values():
            if turn.before and not turn.dropped:
                left.append(turn)
        for turn in left:
            turn.dropped = True
            self._held.pop(turn.fence, None)
        return [turn.item for turn in sorted(left, key=lambda turn: turn.fence)]
