"""The sender: numbers messages, dates them, and sends them to layer 0 in rotating order.

The deadline is the overlay's time plus the hold that `FairnessController` gives for what has been
reported (section 6). Deadlines never go back within an epoch, whether the hold falls or the clock
steps back. After a step back by more than a hold can be, later messages would all wait for the old
clock's deadlines: then the sender begins another epoch, as if it had been restarted.

No child of layer 0 is the last one to be sent to every time: message `id` begins with child
`id mod F`.
"""

from typing import NamedTuple

from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.delays import Aggregator, FairTally
from feedhandler.overlay.fairness import FairnessController
from feedhandler.overlay.last_hop import LongestHop
from feedhandler.overlay.node import Node, NodeSettings, Outcome, Send
from feedhandler.overlay.topology import Address, Member, Role, Topology
from feedhandler.overlay.wire import Header, Kind, Report, encode, encode_last_hop


class SenderSettings(NamedTuple):
    """Deadlines.

    hold          messages are dated; else they are delivered as they come
    wanted        wanted probability of perfect fairness; 0: the source's rule, the 95th percentile
    hold_ns_max   the longest hold, and what a liar can move a deadline by at most
    """

    hold: bool = True
    wanted: float = 0.99
    hold_ns_max: int = 20_000_000


class Sender(Node):
    """The sender's member core."""

    role = Role.SENDER

    def __init__(
        self,
        topology: Topology,
        epoch: int,
        now_ns: int,
        settings: NodeSettings | None = None,
        clock: OverlayClock | None = None,
        sending: SenderSettings | None = None,
    ) -> None:
        name = next(each.name for each in topology.members if each.role is Role.SENDER)
        super().__init__(topology, name, epoch, now_ns, settings, clock)
        self.sending = sending or SenderSettings()
        self.controller = FairnessController(self.sending.wanted, self.sending.hold_ns_max)
        #: Receivers that the last reports spoke for, and those set apart.
        self.heard_receivers = 0
        self.outliers: tuple[int, ...] = ()
        self.id = 0
        self._aggregator = Aggregator(self.settings.delays, self.counts)
        self._tally = FairTally()
        self._below = LongestHop()
        self._last_deadline_ns = self._last_heartbeat_ns = 0
        self._heartbeat_ns = now_ns

    def send(self, payload: bytes, now_ns: int) -> list[Send]:
        """Datagrams of a message, one for each child. Raises `WireError` for one too long."""
        time_ns = self.clock.time_ns(now_ns)
        deadline_ns = self._date(time_ns)
        datagram = encode(
            Kind.DATA, self._topology.tree, self.epoch, self.id + 1, time_ns, deadline_ns, payload,
            self._topology.key,
        )  # fmt: skip
        self.id += 1
        self._last_deadline_ns = deadline_ns
        return self._rotated(self._forward(datagram))

    def _rotated(self, sends: list[Send]) -> list[Send]:
        begin = self.id % (len(sends) or 1)
        return sends[begin:] + sends[:begin]

    def _date(self, time_ns: int) -> int:
        hold_ns = self.controller.hold_ns
        if not (self.sending.hold and hold_ns and self.clock.known):
            return self._last_deadline_ns
        if self._last_deadline_ns - time_ns > self.sending.hold_ns_max:
            self.restart(time_ns)
        return max(self._last_deadline_ns, time_ns + hold_ns)

    def restart(self, time_ns: int) -> None:
        """Begin another epoch: ids from 1, deadlines anew."""
        self.epoch = max(self.epoch + 1, time_ns)
        self.id = self._last_deadline_ns = self._last_heartbeat_ns = 0
        self._tally.begin()

    @property
    def deadline_ns(self) -> int:
        """The local time at which `tick` has something to do."""
        return min(super().deadline_ns, self._heartbeat_ns)

    def tick(self, now_ns: int) -> Outcome:
        """Do what is due: heartbeats, and deadlines from what was reported."""
        outcome = super().tick(now_ns)
        if now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self.settings.heartbeat_ns
            sent_ns = max(self.clock.time_ns(now_ns), self._last_heartbeat_ns + 1)
            self._last_heartbeat_ns = sent_ns
            heartbeat = encode(
                Kind.HEARTBEAT, self._topology.tree, self.epoch, self.id, sent_ns, 0, b"",
                self._topology.key,
            )  # fmt: skip
            outcome.sends.extend((address, heartbeat) for address in self.targets)
        return outcome

    def _receive_tree(
        self, header: Header, datagram: bytes, source: Address, now_ns: int
    ) -> Outcome:
        self.counts.add(C.STRANGERS)
        return Outcome([], [])

    def _replaced(self, names: list[str]) -> None:
        for name in names:
            self._aggregator.forget(name)

    def _reported(self, name: str, receiver: int, report: object) -> None:
        assert isinstance(report, Report)
        self._aggregator.add(name, receiver, report)

    def _last_hop(self, member: Member, latency_ns: int, receivers: int, now_ns: int) -> None:
        self._below.add(member.name, latency_ns, receivers, now_ns)

    def _interval(self, now_ns: int, outcome: Outcome) -> None:
        report, apart = self._aggregator.merge()
        if apart:
            outcome.events.append(apart)
        if report is not None:
            self.heard_receivers, self.outliers = report.receivers, report.outliers
            self.controller.report(report.quantiles_ns)
            self._tally.add(report)
        self.controller.observe(*self._tally.settle())
        latency_ns, receivers = self._below.longest(now_ns)
        if receivers:
            payload = encode_last_hop(latency_ns, receivers)
            for address in self.targets:
                outcome.sends.append((address, self._sealed(Kind.LAST_HOP, payload, now_ns)))
