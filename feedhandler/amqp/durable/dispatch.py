"""Dispatch of a queue's next message: competing consumers, in the queue's order.

What it is for: messages that were read (`add`) wait here until a consumer has credit; `serve` hands
them out, oldest first, to the consumers in turn, so that each message goes to one of them. What
came back is counted (`tried`), and told to whoever gets it next.

What it promises: no more is taken from the queue than consumers have asked for. Nothing here is
durable: after a restart every message that the queue had then may have been with a consumer, and is
handed out as such. No I/O, no clock.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Protocol

#: Messages whose failed deliveries are remembered; the one that came back first is forgotten.
TRIED_MAX = 1_000_000


class Taker(Protocol):
    """A consumer's link."""

    def ready(self) -> bool:
        """Whether one more message may be handed out now."""
        ...

    def wants(self) -> int:
        """How many messages it has asked for and not got."""
        ...

    def hand_out(self, number: int, content: bytes, first: bool, failures: int) -> None:
        """Send a message; `first`: nobody had it before; `failures`: deliveries that failed."""

    def settle_drain(self) -> None:
        """There is nothing to hand out: unused credit may go back."""


class Dispatch:
    """See the module. Ids below `old_end` were there when the queue was opened."""

    def __init__(self, old_end: int) -> None:
        self._old_end = old_end
        self._takers: deque[Taker] = deque()
        self._ready: deque[tuple[int, bytes]] = deque()
        self._tried: OrderedDict[int, int] = OrderedDict()
        self.handed_out = self.handed_out_again = 0

    # -- consumers --------------------------------------------------------------------------

    @property
    def takers(self) -> int:
        """How many consumers there are."""
        return len(self._takers)

    def everybody(self) -> list[Taker]:
        """Every consumer."""
        return list(self._takers)

    def join(self, taker: Taker) -> None:
        """One consumer more."""
        self._takers.append(taker)

    def leave(self, taker: Taker) -> None:
        """One consumer less; what it had is given back by its queue."""
        self._takers.remove(taker)

    def wanted(self) -> int:
        """How many messages are asked for beyond those that are ready."""
        return sum(taker.wants() for taker in self._takers) - len(self._ready)

    # -- messages ---------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Messages that wait for a consumer's credit."""
        return len(self._ready)

    def add(self, items: Iterable[tuple[int, bytes]]) -> None:
        """Messages, id and content, in the queue's order, behind those that are ready."""
        self._ready.extend(items)

    def serve(self, limit: int) -> int:
        """Hand out up to `limit` messages; how many that were."""
        served = 0
        while served < limit and self._ready:
            taker = self._next()
            if taker is None:
                break
            number, content = self._ready.popleft()
            again = number in self._tried or number < self._old_end
            taker.hand_out(number, content, not again, self._tried.get(number, 0))
            self.handed_out_again += again
            served += 1
        self.handed_out += served
        return served

    def _next(self) -> Taker | None:
        """The consumer whose turn it is, of those that are ready."""
        for _ in range(len(self._takers)):
            taker = self._takers[0]
            self._takers.rotate(-1)
            if taker.ready():
                return taker
        return None

    def withdraw(self) -> list[int]:
        """Nothing is ready any more: the ids of what was."""
        numbers = [number for number, _ in self._ready]
        self._ready.clear()
        return numbers

    def remove(self, number: int) -> bool:
        """A message that is ready is not to be handed out; whether it was there."""
        for place, (each, _) in enumerate(self._ready):
            if each == number:
                del self._ready[place]
                return True
        return False

    # -- what came back ---------------------------------------------------------------------

    def tried(self, number: int, failed: bool) -> int:
        """A message came back; how many of its deliveries have failed."""
        failures = self._tried.get(number, 0) + failed
        self._tried[number] = failures
        if len(self._tried) > TRIED_MAX:
            self._tried.popitem(last=False)
        return failures

    def forget(self, numbers: Iterable[int]) -> None:
        """These messages are over."""
        if self._tried:
            for number in numbers:
                self._tried.pop(number, None)
