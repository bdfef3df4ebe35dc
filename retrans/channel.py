"""The recovery state of one channel, and what follows from that alone."""

from dataclasses import dataclass, field
from typing import Any

from feedhandler.retrans.io import RecoveryChannel
from feedhandler.retrans.protocol import NEVER_NS as NEVER
from feedhandler.retrans.quality import QualityState
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.refresh import Snapshot
from feedhandler.retrans.snapshot_forms import Assembler
from feedhandler.retrans.store import PacketStore

#: How often a closed stream's store and a snapshot ahead of its stream are looked at.
LOOK_NS = 2_000_000


@dataclass(slots=True)
class Channel:
    """State of one channel in the recovery manager.

    `early` is a snapshot that was sent before the stream was joined: everything below `base` is in
    it. `before` is what was sent before the stream was joined in mid-day, `closed_serial` the
    serial of the first packet that the store got from then on, `deferred` is the same as `before`
    while it is not asked for yet, since reference data comes first. `pending` is a snapshot ahead
    of its stream, worth waiting for until `pending_until_ns`. `unreported`: subscribers know that
    something is missing, but not of the latest ranges. `report_recovered_ns`: when they are to be
    notified that nothing is missing any more. Until `young_until_ns` a snapshot may still be one of
    the sequence epoch before. `waiting`: links that attached with snapshot=1 and get nothing before
    their snapshot.
    """

    #: The channel's position in the configuration.
    index: int
    plan: RecoveryChannel
    recovery: Recovery
    quality: QualityState
    store: PacketStore | None = None
    #: Snapshots come on refresh lines and over TCP, each numbered by itself.
    assemblers: tuple[Assembler, ...] = ()
    epoch: int = 0
    #: The latest refresh request's id; all others are retransmissions'.
    refresh_id: int = 0
    #: That of the one accepted last, of which a snapshot may still come; 0 for none.
    accepted_id: int = 0
    joined: bool = False
    closed: bool = False
    base: int = 0
    early: Snapshot | None = None
    before: tuple[int, int] = (0, 0)
    closed_serial: int = 0
    deferred: tuple[int, int] | None = None
    latest: Snapshot | None = None
    pending: Snapshot | None = None
    pending_until_ns: int = NEVER
    unreported: bool = False
    report_recovered_ns: int = NEVER
    young_until_ns: int = 0
    waiting: list[Any] = field(default_factory=list)

    def following(self, published: int) -> int:
        """Return the number after the stream's last packet, which may be stored only."""
        if self.closed and self.store is not None:
            return max(published, self.store.end)
        return published

    def lost(self) -> list[tuple[int, int]]:
        """Return the ranges that a snapshot must heal, requested or not."""
        return self.recovery.lost_ranges or ([self.deferred] if self.deferred else [])

    @property
    def awaits_snapshot(self) -> bool:
        """Whether a snapshot is of use now: something is lost, closed, or not joined, or a link
        waits."""
        early = not (self.joined or self.base)
        return bool(self.lost() or self.waiting or self.closed or early)

    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges that are missing now, for subscribers."""
        # Packets that no server has are missing as well, until arbitration has announced it.
        missing = [*self.recovery.missing_ranges, *self.recovery.abandoned_ranges]
        return [*missing, self.before] if self.closed else missing

    def deadline_ns(self, now_ns: int) -> int:
        """Return when something of this channel is due, ns."""
        deadline = min(self.recovery.deadline_ns, self.report_recovered_ns)
        for assembler in self.assemblers:
            deadline = min(deadline, assembler.deadline_ns)
        if self.closed or self.pending is not None:
            deadline = min(deadline, now_ns + LOOK_NS)
        return deadline

    def void(self) -> None:
        """Forget the old sequence epoch: a new one begins."""
        self.deferred = self.latest = self.pending = self.early = None
        self.unreported, self.report_recovered_ns = False, NEVER
        self.base = self.accepted_id = 0
