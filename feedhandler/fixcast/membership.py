"""Membership of a receiver in a retransmission group that is joined when needed.

A `Membership` is given whether anything is missing, and decides whether to be in the group. It
joins as soon as something is missing: requests follow after a random wait, which gives the network
time to bring the group here before an answer comes; what it misses all the same is requested again.
It leaves when nothing has been missing for `LINGER_NS`, because losses come in runs.

  standing     something is missing   nothing is missing    the wait is over
  OUT          JOINED                 OUT                   OUT
  JOINED       JOINED                 LINGERING             JOINED
  LINGERING    JOINED                 LINGERING             OUT

Times are integer ns and arguments.
"""

import enum

from feedhandler.retrans.fix.server import NEVER

#: How long the group is kept when nothing is missing: some hundred times an answer's latency, and
#: short compared with receiving other receivers' retransmissions all day.
LINGER_NS = 2_000_000_000


class Standing(enum.Enum):
    """State of a membership: whether the group is joined, and whether anything keeps it."""

    OUT = enum.auto()
    JOINED = enum.auto()
    LINGERING = enum.auto()


class Input(enum.Enum):
    """Inputs of a membership."""

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
    """Membership in one group; `joins` counts how often it began."""

    def __init__(self, linger_ns: int = LINGER_NS) -> None:
        self.standing = Standing.OUT
        self.joins = 0
        self.deadline_ns = NEVER
        self._linger_ns = linger_ns

    @property
    def member(self) -> bool:
        """Whether the group is to be joined."""
        return self.standing is not Standing.OUT

    def update(self, missing: bool, now_ns: int) -> bool:
        """Take whether something is `missing`; return whether the group is to be joined."""
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
