"""A proxy: forwards first copies unchanged, merges what its children report (sections 5 and 6)."""

from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.delays import Aggregator
from feedhandler.overlay.last_hop import LAST_HOP_NS_MAX, VALID_NS, LongestHop
from feedhandler.overlay.node import Node, NodeSettings, Outcome
from feedhandler.overlay.topology import Member, Role, Topology
from feedhandler.overlay.wire import Kind, Report, encode_last_hop, encode_report


class Proxy(Node):
    """A proxy's member core."""

    role = Role.PROXY

    def __init__(
        self,
        topology: Topology,
        name: str,
        epoch: int,
        now_ns: int,
        settings: NodeSettings | None = None,
        clock: OverlayClock | None = None,
    ) -> None:
        super().__init__(topology, name, epoch, now_ns, settings, clock)
        self._aggregator = Aggregator(self.settings.delays, self.counts)
        self._below = LongestHop()
        self._longest = (0, 0, -VALID_NS)

    def _replaced(self, names: list[str]) -> None:
        for name in names:
            self._aggregator.forget(name)

    def _reported(self, name: str, receiver: int, report: object) -> None:
        assert isinstance(report, Report)
        self._aggregator.add(name, receiver, report)

    def _last_hop(self, member: Member, latency_ns: int, receivers: int, now_ns: int) -> None:
        if member.layer > self.member.layer:
            self._below.add(member.name, latency_ns, receivers, now_ns)
        else:
            self._longest = min(latency_ns, LAST_HOP_NS_MAX), receivers, now_ns

    def _interval(self, now_ns: int, outcome: Outcome) -> None:
        report, apart = self._aggregator.merge()
        if apart:
            outcome.events.append(apart)
        if report is not None:
            sealed = self._sealed(Kind.REPORT, encode_report(report), self.clock.time_ns(now_ns))
            outcome.sends.append((self._upstream(), sealed))
        latency_ns, receivers = self._below.longest(now_ns)
        if receivers:
            told = self._sealed(Kind.LAST_HOP, encode_last_hop(latency_ns, receivers), now_ns)
            outcome.sends.append((self._upstream(), told))
        latency_ns, receivers, heard_ns = self._longest
        if now_ns - heard_ns <= VALID_NS:
            payload = encode_last_hop(latency_ns, receivers)
            for address in self.targets:
                outcome.sends.append((address, self._sealed(Kind.LAST_HOP, payload, now_ns)))
