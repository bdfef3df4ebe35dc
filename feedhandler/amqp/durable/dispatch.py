"""Dispatch of a queue's next message: competing consumers, in the queue's order.

What it is for: messages that were read (`add`) wait here until a consumer has credit; `serve` hands
them out, oldest first, to the consumers in turn, so that each message goes to one of them. Failed
deliveries are counted (`tried`), and the next consumer of the message gets the count.

A consumer is in the turn while it may have room: one whose turn comes and that has none is left out
of it until it is offered again, behind the others. So what is done does not depend on how many
consumers have no room.

What it promises: no more is taken from the queue than consumers have asked for. Nothing here is
durable: after a restart every message that the queue had then may have been with a consumer, and is
marked as redelivered. No I/O, no clock.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import Consumer

#: Messages whose failed deliveries are remembered; the one that came back first is forgotten.
TRIED_MAX = 1_000_000


class Dispatch:
    """Dispatch of one queue; see the module. Ids below `old_end` were there when the queue was
    opened."""

    def __init__(self, old_end: int) -> None:
        self._old_end = old_end
        self._takers: set["Consumer"] = set()
        #: Those of them that may have room, the next one first.
        self._turn: OrderedDict["Consumer", None] = OrderedDict()
        self._ready: deque[tuple[int, bytes]] = deque()
        self._tried: OrderedDict[int, int] = OrderedDict()
        self.handed_out = self.handed_out_again = 0

    # -- consumers --------------------------------------------------------------------------

    @property
    def takers(self) -> int:
        """Number of consumers."""
        return len(self._takers)

    def join(self, taker: "Consumer") -> None:
        """Add a consumer."""
        self._takers.add(taker)
        self.offer(taker)

    def leave(self, taker: "Consumer") -> None:
        """Remove a consumer; its queue gives back what it had."""
        self._takers.remove(taker)
        self._turn.pop(taker, None)

    def offer(self, taker: "Consumer") -> None:
        """Note that this consumer may have room; in the turn it keeps its place."""
        if taker in self._takers:
            self._turn.setdefault(taker, None)

    def wanted(self, limit: int) -> int:
        """Return how many messages are asked for beyond those that are ready; at most `limit`,
        however many consumers ask."""
        wanted = -len(self._ready)
        without_room: list["Consumer"] = []
        for taker in self._turn:
            if wanted >= limit:
                break
            if wants := taker.wants():
                wanted += wants
            else:
                without_room.append(taker)
        for taker in without_room:
            del self._turn[taker]
        return min(wanted, limit)

    # -- messages ---------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Number of messages that wait for a consumer's credit."""
        return len(self._ready)

    def add(self, items: Iterable[tuple[int, bytes]]) -> None:
        """Add messages, as (id, content), in the queue's order, behind those that are ready."""
        self._ready.extend(items)

    def serve(self, limit: int) -> int:
        """Hand out up to `limit` messages; return how many that were."""
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

    def _next(self) -> "Consumer | None":
        """Return the next consumer in turn that is ready; None where none is."""
        while self._turn:
            taker = next(iter(self._turn))
            if taker.ready():
                self._turn.move_to_end(taker)
                return taker
            del self._turn[taker]
        return None

    def withdraw(self) -> list[int]:
        """Remove all messages that are ready; return their ids."""
        numbers = [number for number, _ in self._ready]
        self._ready.clear()
        return numbers

    def remove(self, number: int) -> bool:
        """Remove a message that is ready; return whether it was there."""
        for index, (each, _) in enumerate(self._ready):
            if each == number:
                del self._ready[index]
                return True
        return False

    # -- what came back ---------------------------------------------------------------------

    def tried(self, number: int, failed: bool) -> int:
        """Record that a message came back; return how many of its deliveries have failed."""
        failures = self._tried.get(number, 0) + failed
        self._tried[number] = failures
        if len(self._tried) > TRIED_MAX:
            self._tried.popitem(last=False)
        return failures

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the failures of messages that have ended."""
        if self._tried:
            for number in numbers:
                self._tried.pop(number, None)
