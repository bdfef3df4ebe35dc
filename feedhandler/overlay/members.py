"""The members of a tree, without sockets: the sender, proxies, receivers.

Datagrams and the time of the member's own clock are passed in, and each method returns what is to
be sent: `Sends`, pairs of a datagram and the addresses that it goes to. `deadline_ns` is when
`tick` must be called next, by the own clock; 0: no deadline. Counters are in `counts`.

The receiver's output is `Event`s, returned by `release`: messages in the order of their ids, none
before its deadline, and gaps where some never came.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from feedhandler.overlay.admission import FROM_SENDER, Admission
from feedhandler.overlay.clocks import OffsetEstimator, sample_of
from feedhandler.overlay.deduplication import SLOTS
from feedhandler.overlay.delays import (
    BOUND_NS,
    INTERVAL_NS,
    DelayRecord,
    Report,
    ReportGatherer,
    decode_report,
)
from feedhandler.overlay.fairness import RULE, HoldController, hold_at
from feedhandler.overlay.last_hop import PROBE_NS as LAST_HOP_PROBE_NS
from feedhandler.overlay.last_hop import LastHop
from feedhandler.overlay.release import Event, Gap, Release
from feedhandler.overlay.topology import Address, Member, Topology
from feedhandler.overlay.wire import Fault, Head, Kind, encode, payload_of

Sends = list[tuple[bytes, tuple[Address, ...]]]
#: A sender without messages sends a heartbeat after this long.
HEARTBEAT_NS = 100_000_000
#: Interval at which a member probes its parent's clock, where nothing else synchronises clocks.
PROBE_NS = 250_000_000
#: How early a report may come before its interval's end, as clocks differ: by one part in so many.
EARLY_PART = 16
_TIMES_BYTES = 24
_HOP_BYTES = 8


class _Member:
    """A member in the version of the topology that is in force; numbers and seals what it sends."""

    def __init__(self, topology: Topology, name: str, epoch: int, slots: int) -> None:
        self.admission = Admission(topology, name, slots)
        self.counts: Counter[str] = self.admission.counts
        self.epoch = epoch
        self._number = 0

    @property
    def topology(self) -> Topology:
        """The version in force."""
        return self.admission.topology

    @property
    def me(self) -> Member:
        """The member itself."""
        return self.admission.me

    def change(self, topology: Topology) -> str:
        """Take another version of the topology; return why not, or ""."""
        reason = topology.succeeds(self.topology, self.me.name)
        if not reason:
            self.admission.change(topology, self.me.name)
            self._changed()
        return reason

    def _changed(self) -> None:
        """Handle a new topology in force; subclasses override it."""

    def senders_time(self, now_ns: int) -> int:
        """Convert a time of the own clock to the sender's clock."""
        return now_ns

    def _sealed(self, kind: Kind, payload: bytes, to: Address, now_ns: int) -> Sends:
        self._number += 1
        head = Head(kind, self.topology.tree, self.epoch, self._number, now_ns)
        return [(encode(head, payload, self.me.key), (to,))]

    def _time_answer(self, head: Head, child: Member, senders_ns: int, now_ns: int) -> Sends:
        """Answer a child's probe with the sender's time as known here."""
        times = (head.sent_ns, senders_ns, senders_ns)
        payload = b"".join(each.to_bytes(8, "little") for each in times)
        return self._sealed(Kind.ANSWER, payload, child.address, now_ns)


class _Parent(_Member):
    """A member that has children: knows whom it sends to, and gathers reports."""

    _bound_ns: int
    _interval_ns: int

    def change(self, topology: Topology) -> str:
        """Take another version of the topology; return why not, or ""."""
        before = self.reports
        reason = super().change(topology)
        if self.reports is not before:
            self.reports.succeed(before)
        return reason

    def _changed(self) -> None:
        me = self.me
        self.targets = tuple(each.address for each in self.topology.targets(me))
        children = [each.name for each in self.topology.children(me)]
        self.reports = ReportGatherer(children, bound_ns=self._bound_ns)

    def _gathered(self, child: Member, datagram: bytes, now_ns: int) -> bool:
        """Take a child's report; return whether it is one.

        None is of an interval that is still to end: gathered, it would end those before it. The
        child is set apart then, because its clock or the own one is off.
        """
        report = decode_report(payload_of(datagram))
        if report is None:
            self.admission.drop(Fault.CONTENT)
            return False
        early_ns = self.senders_time(now_ns) + self._interval_ns // EARLY_PART
        if (report.interval + 1) * self._interval_ns > early_ns:
            self.admission.drop(Fault.CONTENT)
            self.reports.apart.add(child.name)
            return False
        self.reports.add(child.name, report, now_ns)
        return True


class _Child(_Member):
    """A member that has a parent, and knows the sender's time."""

    def __init__(
        self, topology: Topology, name: str, epoch: int, slots: int, follows_clock: bool
    ) -> None:
        super().__init__(topology, name, epoch, slots)
        self.clock = OffsetEstimator()
        #: When something from the sender came last, by the own clock; initially the start.
        self.heard_ns = epoch
        self._follows_clock = follows_clock
        self._probe_ns = 0

    @property
    def parent(self) -> Member:
        """The member that it reports to."""
        return self.topology.sources(self.me)[0]

    def senders_time(self, now_ns: int) -> int:
        """Convert a time of the own clock to the sender's clock."""
        return now_ns + self.clock.offset_ns

    def _probe(self, now_ns: int) -> Sends:
        # Also when the clock was set back: probes are what notices that.
        if not self._follows_clock or now_ns < self._probe_ns <= now_ns + PROBE_NS:
            return []
        self._probe_ns = now_ns + PROBE_NS
        return self._sealed(Kind.PROBE, b"", self.parent.address, now_ns)

    def _answer(self, head: Head, child: Member, now_ns: int) -> Sends:
        """Answer a child's probe, once the sender's time is known here."""
        if self._follows_clock and not self.clock.known:
            return []
        return self._time_answer(head, child, self.senders_time(now_ns), now_ns)

    def _process_answer(self, payload: bytes, now_ns: int) -> None:
        if len(payload) != _TIMES_BYTES:
            self.admission.drop(Fault.CONTENT)
            return
        times = [int.from_bytes(payload[at : at + 8], "little") for at in (0, 8, 16)]
        sample = sample_of(*times, now_ns)  # type: ignore[call-arg]
        if sample is None:
            self.admission.drop(Fault.CONTENT)
        else:
            self.clock.add(sample)


class Proxy(_Child, _Parent):
    """A proxy: forwards first copies to its children and those that it hedges for, gathers reports.

    `follows_clock`: it probes its parent for the sender's time; else the own clock is the sender's.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        epoch: int,
        slots: int = SLOTS,
        follows_clock: bool = False,
        bound_ns: int = BOUND_NS,
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        super().__init__(topology, name, epoch, slots, follows_clock)
        self._bound_ns, self._interval_ns = bound_ns, interval_ns
        self._changed()

    def receive(self, datagram: bytes, address: Address, now_ns: int) -> Sends:
        """Handle a datagram; return what is to be sent."""
        admitted = self.admission.admit(datagram, address, self.senders_time(now_ns))
        if admitted is None:
            return []
        head, member = admitted
        if head.kind in FROM_SENDER:
            self.heard_ns = now_ns
            self.counts["forwarded"] += len(self.targets)
            return [(datagram, self.targets)]
        if head.kind == Kind.PROBE:
            return self._answer(head, member, now_ns)
        if head.kind == Kind.ANSWER:
            self._process_answer(payload_of(datagram), now_ns)
            return []
        return self._report(now_ns) if self._gathered(member, datagram, now_ns) else []

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; see the module."""
        return soonest(self.reports.deadline_ns, self._probe_ns if self._follows_clock else 0)

    def tick(self, now_ns: int) -> Sends:
        """Do what is due; return what is to be sent."""
        return self._report(now_ns) + self._probe(now_ns)

    def _report(self, now_ns: int) -> Sends:
        report = self.reports.due(now_ns)
        if report is None:
            return []
        return self._sealed(Kind.REPORT, report.encoded(), self.parent.address, now_ns)


class Receiver(_Child):
    """A receiver: holds and releases messages, and reports their delays.

    `gap_wait_ns`: how long after its deadline a message waits for a missing one before it.

    In model 3 messages go on to an isolated process. `echo` is an address from which that process
    returns whatever is sent there: the last hop is measured and reported, and messages are held
    longer by the difference to the longest one (`last_hop`). `extra_hold_ns`, if given, is held
    instead.

    `beside` is the same receiver in another tree of the same sender (`merging`), with which this
    one shares the clock, the last hop and the held messages.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        epoch: int,
        slots: int = SLOTS,
        follows_clock: bool = False,
        gap_wait_ns: int = 2_000_000,
        interval_ns: int = INTERVAL_NS,
        extra_hold_ns: int | None = None,
        echo: Address | None = None,
        beside: "Receiver | None" = None,
    ) -> None:
        super().__init__(topology, name, epoch, slots, follows_clock)
        if beside is None:
            self.holding = Release(gap_wait_ns, extra_hold_ns or 0)
            self.last_hop = LastHop(self.me.key)
        else:
            self.clock = beside.clock
            self.holding, self.last_hop = beside.holding, beside.last_hop
        self.echo = echo
        self._given = extra_hold_ns is not None
        self._delays = DelayRecord(interval_ns)

    def receive(self, datagram: bytes, address: Address, now_ns: int) -> Sends:
        """Handle a datagram; return what is to be sent. Call `release` afterwards."""
        if address == self.echo:
            self._answered(datagram, now_ns)
            return []
        here = self.senders_time(now_ns)
        admitted = self.admission.admit(datagram, address, here)
        if admitted is None:
            return []
        head, _ = admitted
        if head.kind == Kind.ANSWER:
            self._process_answer(payload_of(datagram), now_ns)
            return []
        self.heard_ns = now_ns
        if head.kind == Kind.HEARTBEAT:
            self.holding.heard(head.epoch, head.id, here)
            return []
        if head.kind == Kind.NOTICE:
            self._process_notice(payload_of(datagram), now_ns)
            return []
        late = self.holding.put(head, payload_of(datagram), here)
        return self._reported(
            self._delays.add(head.id, head.sent_ns, here - head.sent_ns, late), now_ns
        )

    def _answered(self, datagram: bytes, now_ns: int) -> None:
        if self.last_hop.answered(datagram, now_ns):
            self.counts["echoes"] += 1
            self._adjust(now_ns)
        else:
            self.admission.drop(Fault.ECHO)

    def _process_notice(self, payload: bytes, now_ns: int) -> None:
        if len(payload) != _HOP_BYTES:
            self.admission.drop(Fault.CONTENT)
            return
        self.last_hop.longest_ns = int.from_bytes(payload, "little")
        self._adjust(now_ns)

    def _adjust(self, now_ns: int) -> None:
        """Set the extra hold: the difference of the own last hop to the longest."""
        if not self._given:
            self.holding.extra_hold_ns = self.last_hop.extra_ns(now_ns)

    def release(self, now_ns: int) -> list[Event]:
        """Return the events that may be delivered now, in order."""
        found = self.holding.release(self.senders_time(now_ns))
        for event in found:
            if isinstance(event, Gap):
                self.missed(event.first, event.last)
        return found

    def missed(self, first: int, last: int, step: int = 1) -> None:
        """Record that messages were given up: `first`, and every `step`-th up to `last`."""
        self._delays.missed(first, last, step)

    @property
    def release_ns(self) -> int:
        """When `release` must be called, by the own clock; 0: no deadline."""
        at = self.holding.deadline_ns
        # What is due at once is due at 1 by the sender's clock, which may be ahead of the own one.
        return max(at - self.clock.offset_ns, 1) if at else 0

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; see the module."""
        ends = self._delays.ends_ns
        ends = ends - self.clock.offset_ns + self._delays.interval_ns // 8 if ends else 0
        probe = self._probe_ns if self._follows_clock else 0
        return soonest(ends, probe, self.last_hop.probe_ns if self.echo else 0)

    def tick(self, now_ns: int) -> Sends:
        """Do what is due; return what is to be sent."""
        ends = self._delays.ends_ns
        report = None
        if ends and self.senders_time(now_ns) >= ends + self._delays.interval_ns // 8:
            report = self._delays.close()
        return self._reported(report, now_ns) + self._probe(now_ns) + self._probe_last_hop(now_ns)

    def _probe_last_hop(self, now_ns: int) -> Sends:
        # Also when the clock was set back, so that this does not stop the probes.
        last_hop = self.last_hop
        if self.echo is None or now_ns < last_hop.probe_ns <= now_ns + LAST_HOP_PROBE_NS:
            return []
        self._adjust(now_ns)
        return [(last_hop.probe(now_ns), (self.echo,))]

    def _reported(self, report: Report | None, now_ns: int) -> Sends:
        if report is None:
            return []
        report = replace(report, last_hop_ns=self.last_hop.own_ns(now_ns))
        return self._sealed(Kind.REPORT, report.encoded(), self.parent.address, now_ns)


class SharedSequence:
    """Ids and deadlines that a sender has given, in one tree or in several (`merging`)."""

    def __init__(self) -> None:
        self.last_id = 0
        self.deadline_ns = 0
        #: When the last message was sent; 0: none was.
        self.sent_ns = 0


class Sender(_Parent):
    """A sender: numbers messages, gives them deadlines, gathers reports.

    `controller` sets the hold for a wanted probability of fairness; without one the hold is the
    `quantile` of the source's rule. `held`: whether there are deadlines at all; `rotate`: each
    message begins with another child; `sequence`: shared with the sender's other trees.
    """

    def __init__(
        self,
        topology: Topology,
        epoch: int,
        held: bool = True,
        controller: HoldController | None = None,
        quantile: float = RULE,
        rotate: bool = False,
        bound_ns: int = BOUND_NS,
        sequence: SharedSequence | None = None,
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        super().__init__(topology, topology.members[0].name, epoch, 1)
        self.sequence = sequence or SharedSequence()
        self.controller = controller
        self.held, self.quantile, self.rotate = held, quantile, rotate
        self.hold_ns = 0
        #: The longest last hop that receivers have reported.
        self.longest_hop_ns = 0
        self._bound_ns, self._interval_ns = bound_ns, interval_ns
        self._beat_ns = 0
        self._turn = 0
        self._changed()

    @property
    def last_id(self) -> int:
        """The id of the last message, in any of the sender's trees."""
        return self.sequence.last_id

    def send(self, payload: bytes, now_ns: int) -> Sends:
        """Assign a message its id, and return its datagram. Raises `ValueError` where it is too
        long."""
        deadline = 0
        if self.held and self.hold_ns:
            # Deadlines never go back, whatever the hold or the clock does.
            deadline = max(self.sequence.deadline_ns, now_ns + self.hold_ns)
        number = self.last_id + 1
        head = Head(Kind.DATA, self.topology.tree, self.epoch, number, now_ns, deadline)
        datagram = encode(head, payload, self.topology.key)
        self.sequence.last_id = number
        self.sequence.deadline_ns = max(self.sequence.deadline_ns, deadline)
        self.sequence.sent_ns = now_ns
        self.counts["sent"] += 1
        return [(datagram, self._turned())]

    def _turned(self) -> tuple[Address, ...]:
        if not self.rotate:
            return self.targets
        self._turn += 1
        first = self._turn % len(self.targets)
        return self.targets[first:] + self.targets[:first]

    def receive(self, datagram: bytes, address: Address, now_ns: int) -> Sends:
        """Handle a report or a probe; return what is to be sent."""
        admitted = self.admission.admit(datagram, address, now_ns)
        if admitted is None:
            return []
        head, member = admitted
        if head.kind == Kind.PROBE:
            return self._time_answer(head, member, now_ns, now_ns)
        return self._adjust(now_ns) if self._gathered(member, datagram, now_ns) else []

    def _adjust(self, now_ns: int) -> Sends:
        """Set the hold by the merged reports; return the notice to receivers, if any."""
        report = self.reports.due(now_ns)
        if report is None:
            return []
        self.counts["intervals"] += 1
        rungs = [float(rung) for rung in report.rungs]
        if self.controller is not None:
            if self.hold_ns:
                self.controller.observe(report.messages, report.late_count)
            self.hold_ns = int(self.controller.hold(rungs))
        else:
            self.hold_ns = int(hold_at(self.quantile, rungs))
        if not (report.last_hop_ns or self.longest_hop_ns):
            return []
        self.longest_hop_ns = report.last_hop_ns
        head = Head(Kind.NOTICE, self.topology.tree, self.epoch, self.last_id, now_ns)
        hop = self.longest_hop_ns.to_bytes(_HOP_BYTES, "little")
        return [(encode(head, hop, self.topology.key), self.targets)]

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; see the module."""
        spoke_ns = self._spoke_ns
        return soonest(self.reports.deadline_ns, spoke_ns + HEARTBEAT_NS if spoke_ns else 0)

    @property
    def _spoke_ns(self) -> int:
        """When receivers were last sent the last id; 0: never.

        Messages of all trees count: a heartbeat soon after a message in another tree would have
        receivers miss that message while it is in flight.
        """
        return max(self.sequence.sent_ns, self._beat_ns)

    def tick(self, now_ns: int) -> Sends:
        """Do what is due; return what is to be sent."""
        report = self._adjust(now_ns)
        if self._spoke_ns and 0 <= now_ns - self._spoke_ns < HEARTBEAT_NS:
            return report
        return report + self.beat(now_ns)

    def beat(self, now_ns: int) -> Sends:
        """Return a heartbeat, which carries the last id."""
        self._beat_ns = now_ns
        head = Head(Kind.HEARTBEAT, self.topology.tree, self.epoch, self.last_id, now_ns)
        return [(encode(head, b"", self.topology.key), self.targets)]


def soonest(*times_ns: int) -> int:
    """Return the earliest of some times, where 0 means none."""
    found: Iterable[int] = (each for each in times_ns if each)
    return min(found, default=0)
