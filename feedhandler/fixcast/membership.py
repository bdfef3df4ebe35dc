"""Membership of a receiver in a retransmission group that is joined when needed.

A `Membership` is given whether anything is missing, and decides whether to be in the group. It
joins as soon as something is missing: requests follow after a random wait, which gives the network
time to bring the group here before an answer comes; what it misses all the same is requested again.
It leaves when nothing has been missing for `LINGER_NS`, because losses come in runs.

Times are integer ns and arguments.
"""

from feedhandler.retrans.fix.server import NEVER

#: How long the group is kept when nothing is missing: some hundred times an answer's latency, and
#: short compared with receiving other receivers' retransmissions all day.
LINGER_NS = 2_000_000_000


class Membership:
    """Membership in one group.

    member       whether the group is to be joined
    joins        how often it began
    deadline_ns  when the group is left if nothing is missing until then
    """

    def __init__(self, linger_ns: int = LINGER_NS) -> None:
        self.member = False
        self.joins = 0
        self.deadline_ns = NEVER
        self._linger_ns = linger_ns

    def update(self, missing: bool, now_ns: int) -> bool:
        """Take whether something is `missing`; return whether the group is to be joined."""
        if missing:
            self.joins += not self.member
            self.member, self.deadline_ns = True, NEVER
        elif now_ns >= self.deadline_ns:
            self.member, self.deadline_ns = False, NEVER
        elif self.member and self.deadline_ns == NEVER:
            self.deadline_ns = now_ns + self._linger_ns
        return self.member
