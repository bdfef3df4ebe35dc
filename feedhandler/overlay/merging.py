"""Messages of several trees in one order, where the overlay numbers what it carries.

Tree `t` of T trees carries every T-th message: its id `i` is message `(i - 1) * T + t` of the
channel, from 0. `place_of` gives the sender the tree of a message, `TreeMerger` restores the order
at a receiver from what its T members deliver, each in its own order and with gaps announced. A
message waits for those before it, of which each comes or is announced lost by its own tree, so
that nothing here waits for time.

All trees restart together, with one epoch: a sender process owns them all. What a tree still
delivers of an older epoch is dropped once another one has begun the next.
"""

from collections import deque
from typing import NamedTuple

from feedhandler.overlay.release import Deliver, Gap, NewEpoch

#: Messages that wait for another tree's: what `ReleaseSettings.messages_max` bounds in one tree,
#: of all of them together. Beyond, the tree that is waited for is passed over.
WAITING_MAX = 65_536


class Merged(NamedTuple):
    """Message `number` of the channel, from 0 in each epoch."""

    number: int
    delivered: Deliver


class MergedGap(NamedTuple):
    """Messages `first` to `last` of the channel are lost."""

    epoch: int
    first: int
    last: int


class MergedEpoch(NamedTuple):
    """The senders have restarted: numbers go on at `first`."""

    epoch: int
    first: int


MergedEvent = Merged | MergedGap | MergedEpoch


def place_of(number: int, trees: int) -> tuple[int, int]:
    """Tree and id of a message, by its number from 0."""
    return number % trees, number // trees + 1


class TreeMerger:
    """The order of a channel over `trees` trees."""

    def __init__(self, trees: int, waiting_max: int = WAITING_MAX) -> None:
        self.epoch = 0
        #: The next number in order.
        self.expected = 0
        #: Messages given up as too many others waited for them.
        self.passed_over = 0
        self._trees, self._waiting_max = trees, waiting_max
        self._joined: dict[int, int] = {}
        self._waiting: list[deque[Deliver | Gap]] = [deque() for _ in range(trees)]
        self._held = 0

    def take(self, tree: int, event: Deliver | Gap | NewEpoch) -> list[MergedEvent]:
        """Take what a tree's receiver has said; answers with what is next in order."""
        if isinstance(event, NewEpoch):
            return self._begin(tree, event)
        if event.epoch != self.epoch or tree not in self._joined:
            return []
        self._waiting[tree].append(event)
        self._held += isinstance(event, Deliver)
        merged = self._in_order()
        while self._held > self._waiting_max:
            merged.append(self._pass_over())
            merged += self._in_order()
        return merged

    def _begin(self, tree: int, event: NewEpoch) -> list[MergedEvent]:
        """A tree has joined or restarted. The channel begins with the latest of the trees' first
        messages, as those before it are not complete; after a restart that is the first one."""
        if event.epoch < self.epoch:
            return []
        if event.epoch > self.epoch:
            self.epoch, self._joined, self._held = event.epoch, {}, 0
            self._waiting = [deque() for _ in range(self._trees)]
        self._joined[tree] = (event.first - 1) * self._trees + tree
        if len(self._joined) < self._trees:
            return []
        self.expected = max(0, *(each - self._trees + 1 for each in self._joined.values()))
        return [MergedEpoch(self.epoch, self.expected), *self._in_order()]

    def _in_order(self) -> list[MergedEvent]:
        merged: list[MergedEvent] = []
        if len(self._joined) < self._trees:
            return merged
        while (found := self._next()) is not None:
            merged.append(found)
        return merged

    def _next(self) -> MergedEvent | None:
        """Message `expected`, or the run from there that is lost; None while a tree is to say."""
        tree = self.expected % self._trees
        known = self._known_from(tree)
        if known is None:
            return None
        if known > self.expected:
            return self._lost_until(min(self._known_or_next(each) for each in range(self._trees)))
        head = self._waiting[tree].popleft()
        assert isinstance(head, Deliver)
        self._held -= 1
        self.expected += 1
        return Merged(known, head)

    def _lost_until(self, end: int) -> MergedGap:
        gap = MergedGap(self.epoch, self.expected, end - 1)
        self.expected = end
        return gap

    def _known_or_next(self, tree: int) -> int:
        """Number up to which all that a tree carries is lost, from `expected` on."""
        known = self._known_from(tree)
        return self._number_next(tree) if known is None else known

    def _number_next(self, tree: int) -> int:
        return self.expected + (tree - self.expected) % self._trees

    def _known_from(self, tree: int) -> int | None:
        """The number of the next message of a tree, from `expected` on, that is not lost: what it
        has delivered, or what follows its gap. None where it has said nothing of the next one."""
        _, id = place_of(self._number_next(tree), self._trees)
        waiting = self._waiting[tree]
        while waiting:
            head = waiting[0]
            if isinstance(head, Deliver):
                if head.id >= id:
                    return (head.id - 1) * self._trees + tree
                self._held -= 1
            elif head.last >= id:
                return head.last * self._trees + tree
            waiting.popleft()
        return None

    def _pass_over(self) -> MergedGap:
        self.passed_over += 1
        return self._lost_until(self.expected + 1)
