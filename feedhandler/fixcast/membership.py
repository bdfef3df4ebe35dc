"""When a receiver is a member of a retransmission group that is joined when needed.

A `Membership` is told whether anything is missing, and says whether to be in the group. It joins as
soon as something is missing: requests follow after a random wait, so that the network has that time
to bring the group here before an answer comes; what it misses all the same is asked for again. It
leaves when nothing has been missing for `LINGER_NS`, for losses come in runs.

  standing     something is missing   nothing is missing    the wait is over
  OUT          JOINED                 OUT                   OUT
  JOINED       JOINED                 LINGERING             JOINED
  LINGERING    JOINED                 LINGERING             OUT

Times are integer ns and arguments.
"""

import enum

from feedhandler.retrans.fix.server import NEVER

#: How long a group is kept that brings nothing which is missing: some hundred times the way of an
#: answer, and short beside what a day's retransmissions of others would cost.
LINGER_NS = 2_000_000_000


class Standing(enum.Enum):
    """Is the group joined, and does anything keep it?"""

    OUT = enum.auto()
    JOINED = enum.auto()
    LINGERING = enum.auto()


class Input(enum.Enum):
    """What a membership hears."""

    MISSING = enum.auto()
    WHOLE = enum.auto()
    WAIT_OVER = enum.auto()


TABLE: dict[tuple[Standing, Input], Standing] = {
    (Standing.OUT, Input.MISSING): Standing.JOINED,
    (Standing.OUT, Input.WHOLE): Standing.OUT,
    (Standing.OUT, Input.WAIT_OVER): Standing.OUT,
    (Standing.JOINED, Input.MISSING): Standing.JOINED,
    (Standing.JOINED, Input.WHOLE): Standing.LINGERING,
    (Standing.JOINED, Input.WAIT_OVER): Standing.JOINED,
    (Standing.LINGERING, Input.MISSING): Standing.JOINED,
    (Standing.LINGERING, Input.WHOLE): Standing.LINGERING,
    (Standing.LINGERING, Input.WAIT_OVER): Standing.OUT,
}


class Membership:
    """One group's membership; `joins` counts how often it began."""

    def __init__(self, linger_ns: int = LINGER_NS) -> None:
        self.standing = Standing.OUT
        self.joins = 0
        self.deadline_ns = NEVER
        self._linger_ns = linger_ns

    @property
    def member(self) -> bool:
        """Is the group to be joined?"""
        return self.standing is not Standing.OUT

    def look(self, missing: bool, now_ns: int) -> bool:
        """Something is `missing`, or nothing; is the group to be joined?"""
        if now_ns >= self.deadline_ns and not missing:
            self._go(Input.WAIT_OVER, now_ns)
        self._go(Input.MISSING if missing else Input.WHOLE, now_ns)
        return self.member

    def _go(self, heard: Input, now_ns: int) -> None:
        before, self.standing = self.standing, TABLE[self.standing, heard]
        if before is self.standing:
            return
        self.joins += before is Standing.OUT
        lingers = self.standing is Standing.LINGERING
        self.deadline_ns = now_ns + self._linger_ns if lingers else NEVER
