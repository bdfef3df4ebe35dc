"""A receiver: takes first copies, holds and releases them, measures and reports delays."""

from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.delays import DelayWindow, LateIds
from feedhandler.overlay.last_hop import LastHop
from feedhandler.overlay.node import Node, NodeSettings, Outcome
from feedhandler.overlay.release import ReleaseQueue, ReleaseSettings
from feedhandler.overlay.topology import Member, Role, Topology
from feedhandler.overlay.wire import (
    Header,
    Kind,
    Report,
    encode_last_hop,
    encode_report,
)


class Receiver(Node):
    """A receiver's member core: models 1 and 2 as it is, model 3 with `last_hop` observed."""

    role = Role.RECEIVER

    def __init__(
        self,
        topology: Topology,
        name: str,
        epoch: int,
        now_ns: int,
        settings: NodeSettings | None = None,
        clock: OverlayClock | None = None,
        release: ReleaseSettings | None = None,
    ) -> None:
        super().__init__(topology, name, epoch, now_ns, settings, clock)
        self.queue = ReleaseQueue(release or ReleaseSettings(), self.clock, self.counts)
        self.last_hop = LastHop()
        self._window = DelayWindow(self.member.index)
        self._late = LateIds()

    @property
    def deadline_ns(self) -> int:
        """The local time at which `tick` has something to do."""
        return min(super().deadline_ns, self.queue.deadline_ns)

    def tick(self, now_ns: int) -> Outcome:
        """Do what is due: release messages, announce gaps, report."""
        outcome = super().tick(now_ns)
        self._release(now_ns, outcome)
        return outcome

    def _taken(self, header: Header, datagram: bytes, now_ns: int) -> Outcome:
        outcome = Outcome([], [])
        if header.epoch > self.queue.epoch:
            joins = header.id if header.kind is Kind.DATA else header.id + 1
            self.queue.begin(header.epoch, joins)
            self._late.begin(self.queue.expected)
        if header.kind is Kind.HEARTBEAT:
            self.queue.told(header.id, now_ns)
        else:
            late = self.queue.add(header.id, datagram, header.deadline_ns, now_ns)
            if self.clock.known:
                self._window.add(self.clock.time_ns(now_ns) - header.sent_ns)
                if late:
                    self._late.add(header.id)
        self._release(now_ns, outcome)
        return outcome

    def _release(self, now_ns: int, outcome: Outcome) -> None:
        if now_ns >= self.queue.deadline_ns:
            outcome.events.extend(self.queue.tick(now_ns))

    def _last_hop(self, member: Member, latency_ns: int, receivers: int, now_ns: int) -> None:
        self.last_hop.longest(latency_ns, now_ns)

    def _interval(self, now_ns: int, outcome: Outcome) -> None:
        self.queue.extra_ns = self.last_hop.extra_ns(now_ns)
        if self.last_hop.own_ns:
            payload = encode_last_hop(self.last_hop.own_ns, 1)
            told = self._sealed(Kind.LAST_HOP, payload, now_ns)
            outcome.sends.append((self._upstream(), told))
        quantiles_ns = self._window.take()
        if not quantiles_ns:
            return
        report = Report(1, quantiles_ns, *self._late.take(self.queue.expected))
        sealed = self._sealed(Kind.REPORT, encode_report(report), self.clock.time_ns(now_ns))
        outcome.sends.append((self._upstream(), sealed))
