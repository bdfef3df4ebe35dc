"""Memory that closed links and connections leave behind, freed in shares.

What it is for: a slow reader leaves megabytes of messages that wait. To free those of a hundred
readers that go at once takes the event loop a second, in which no other client is served.

What it promises: a turn frees what half of its units last for, before anything else is done, and
one more message at most, so that what waits here is freed at the same rate however much others
leave. It is freed in the order in which it came.
"""

from collections import deque
from collections.abc import Callable, Sized
from typing import Any

from feedhandler.amqp.work_budget import WorkBudget

#: Bytes of messages that are freed for one unit, and the least that a message counts for.
BYTES_PER_UNIT = 1 << 17
MESSAGE_BYTES = 1 << 12
#: While more than this waits to be freed, new clients wait: each may leave a megabyte.
LEFTOVERS_MAX = 64
#: Units that it takes to free an object that is no queue: a connection with its engine.
WHOLE_UNITS = 32


class Leftovers:
    """The queue of what is to be freed; see the module."""

    def __init__(self, budget: WorkBudget) -> None:
        self._turns = budget
        self._left: deque[Any] = deque()
        self._due = False

    def __len__(self) -> int:
        return len(self._left)

    def leave(
        self, what: Any, units: int = WHOLE_UNITS, freed: Callable[[], None] = lambda: None
    ) -> None:
        """Free a deque of messages, or any other object at the cost of `units`.

        The caller must hold no other reference to it. `freed` is called once it is gone.
        """
        if isinstance(what, deque) and not what:
            freed()
            return
        self._left.append((what, units, freed))
        if not self._due:
            self._due = True
            self._free()

    def _free(self) -> None:
        while self._left:
            what, units, freed = self._left[0]
            is_queue = isinstance(what, deque)
            if not (self._turns.half_left and self._turns.try_spend(1 if is_queue else units)):
                self._turns.wait_first(self._free)
                return
            if is_queue:
                _free_some(what)
            over = not is_queue or not what
            if over:
                self._left.popleft()
            del what
            if over:
                freed()
        self._due = False


def _free_some(queue: deque[Any]) -> None:
    """Free one unit's worth of messages from the left of the queue."""
    freed = 0
    while queue and freed < BYTES_PER_UNIT:
        message = queue.popleft()
        freed += max(MESSAGE_BYTES, len(message) if isinstance(message, Sized) else 0)
