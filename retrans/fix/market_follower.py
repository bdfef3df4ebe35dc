"""A receiver's books, healed by snapshots.

A `MarketFollower` takes a channel's stream in order, as `fixcast.reception` gives it, and keeps its
books in a `MarketState`. Where messages are missing for good, because the receiver joined late or
no server has them, the books are not known: the follower requests their present state, and holds
the live messages meanwhile. A snapshot as of number n replaces the books where nothing after n is
missing: held messages up to n are dropped, later ones applied. A snapshot older than what is
missing is of no use, and the state is requested again.

  standing     input                        then
  WHOLE        a message, something skipped WHOLE, applied
  WHOLE        a message that it contains   WHOLE, dropped; so is a loss that it contains
  WHOLE        joined late, lost            BROKEN, the state is requested (`Wanted`)
  BROKEN       a message                    BROKEN, held; with no room for it, what is missing grows
  BROKEN       lost                         BROKEN, what is missing grows
  BROKEN       a snapshot behind the loss   WHOLE (`Healed`)
  BROKEN       a snapshot before the loss   BROKEN, requested again (`Wanted`)
  BROKEN       no answer                    BROKEN (`Unhealed`), until `want` is called
  any          a new sequence epoch         WHOLE where it is received from its first number
"""

import enum
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from feedhandler.retrans.fix.market_state import MarketState

#: Most bytes of live messages held while the state is requested: seconds of a busy channel.
HELD_BYTES_MAX = 64 << 20


class Standing(enum.Enum):
    """State of the books: known, or not."""

    WHOLE = enum.auto()
    BROKEN = enum.auto()


class Wanted(NamedTuple):
    """A request for the books' present state, which replaces an earlier one.

    A state as of `least` or later heals.

    `olds` answers in a row were too old: wait longer the more there were.
    """

    least: int
    olds: int


class Healed(NamedTuple):
    """The books are known again: a state as of `as_of`, and the messages up to `number`."""

    as_of: int
    number: int


class Unhealed(NamedTuple):
    """The state could not be had: the books stay unknown."""

    reason: str


Event = Wanted | Healed | Unhealed


class MarketFollower:
    """The books of one channel; `state` can be relied upon while `standing` is WHOLE.

    `states` and `since` are what healed them last: a snapshot for each security, and the live
    messages (number, bytes) after it that had come before.
    """

    def __init__(
        self, state: MarketState | None = None, held_bytes_max: int = HELD_BYTES_MAX
    ) -> None:
        self.state = state or MarketState()
        self.standing = Standing.BROKEN
        self.epoch = 0
        self.number = 0
        self.counts: Counter[str] = Counter()
        self.states: Sequence[bytes] = ()
        self.since: list[tuple[int, bytes]] = []
        self._least = self._olds = 0
        self._asked = False
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max

    # -- the stream ------------------------------------------------------------------------------

    def joined(self, number: int, epoch: int = 0) -> list[Event]:
        """Begin the stream at `number`; with the first of a sequence epoch nothing is missing."""
        self.epoch = epoch or self.epoch
        self._drop_held()
        self.number = number - 1
        self._least = self._olds = 0
        self._asked = False
        self.state.clear(whole=number == 1)
        if number == 1:
            self.standing = Standing.WHOLE
            return []
        return self._break(number - 1)

    def renumbered(self, epoch: int) -> list[Event]:
        """Begin a new sequence epoch at its first number; else `joined` follows."""
        self.epoch = 0
        return self.joined(1, epoch)

    def deliver(self, number: int, data: bytes) -> list[Event]:
        """Apply or hold a message of the stream, in order."""
        self.number = max(number, self.number)
        if self.standing is Standing.WHOLE:
            if number > self.state.number:
                self.state.apply(data, number)
            else:
                self.counts["contained"] += 1
            return []
        self._held.append((number, data))
        self._held_bytes += len(data)
        while self._held_bytes > self._held_bytes_max:
            dropped, old = self._held.popleft()
            self._held_bytes -= len(old)
            self._least = max(self._least, dropped)
            self.counts["not_held"] += 1
        return []

    def skipped(self, last: int) -> None:
        """Record that the publisher left out the numbers up to `last`."""
        self.number = max(last, self.number)
        if self.standing is Standing.WHOLE:
            self.state.number = max(last, self.state.number)

    def lost(self, last: int) -> list[Event]:
        """Record that the numbers up to `last` are missing for good."""
        self.number = max(last, self.number)
        if self.standing is Standing.WHOLE and last <= self.state.number:
            self.counts["contained"] += 1
            return []
        return self._break(last)

    def _break(self, least: int) -> list[Event]:
        self._least = max(self._least, least)
        # What is held before the loss is of no use any more.
        self._drop_held()
        self.standing = Standing.BROKEN
        return [] if self._asked else self.want()

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    # -- snapshots -------------------------------------------------------------------------------

    def want(self) -> list[Event]:
        """Request the state once more, where the books are not known."""
        if self.standing is Standing.WHOLE:
            return []
        self.counts["wanted"] += 1
        self._asked = True
        return [Wanted(self._least, self._olds)]

    def snapshot(self, messages: Sequence[bytes], as_of: int, epoch: int) -> list[Event]:
        """Replace the books by the channel's whole state as of a number.

        `messages` has a snapshot for each security.

        Ignored where the books are known; requested again where it is too old or of another epoch.
        """
        self._asked = False
        if self.standing is Standing.WHOLE:
            return []
        if as_of < self._least or (self.epoch and epoch != self.epoch):
            self.counts["too_old"] += 1
            self._olds += 1
            return self.want()
        self.state.clear()
        for message in messages:
            self.state.apply(message, as_of)
        self.state.number = as_of
        self.states = messages
        self.since = [each for each in self._held if each[0] > as_of]
        for number, data in self.since:
            self.state.apply(data, number)
        self._drop_held()
        self._least = self._olds = 0
        self.standing = Standing.WHOLE
        self.number = max(self.number, as_of)
        self.counts["healed"] += 1
        return [Healed(as_of, self.number)]

    def failed(self, reason: str) -> list[Event]:
        """Report that the state could not be had."""
        self._asked = False
        return [Unhealed(reason)] if self.standing is Standing.BROKEN else []
