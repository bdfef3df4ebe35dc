"""Common part of the members: control datagrams with neighbours, admission, liveness, topology.

A member is driven by verbs, each with the local monotonic time: `receive` takes a datagram and its
source's address, `tick` does what is due at `deadline_ns` (read it again after each verb), `adopt`
takes another version of the topology, `wall` the wall clock where chrony or PTP keeps it. They
answer with an `Outcome`: datagrams to send and events; nothing calls back. A member whose clock is
neither given by `wall` nor asked for (`probe_ns`) takes the local time for the overlay's.

A child says HELLO to all of its sources, twice a second, and each one answers WELCOME; probes and
reports go to its parent or, while that is silent, to the next source that is not.
"""

from typing import NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.admission import Admission
from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import Counts
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.deduplication import Deduplicator, Verdict
from feedhandler.overlay.delays import DelaySettings, SetApart
from feedhandler.overlay.liveness import Change, Liveness, State
from feedhandler.overlay.release import Deliver, Gap, NewEpoch
from feedhandler.overlay.topology import Address, Member, Role, Topology
from feedhandler.overlay.wire import (
    PROBE_PAYLOAD,
    TREE_KINDS,
    Header,
    Kind,
    WireError,
    encode,
    encode_probe_answer,
    encode_version,
    payload_of,
    read_header,
    read_last_hop,
    read_probe_answer,
    read_report,
    read_version,
)


class NodeSettings(NamedTuple):
    """Intervals in ns, and the rate that de-duplication is sized for.

    probe_ns   0: the clock is given (chrony, PTP), nobody is asked for the time
    """

    messages_per_second: int = 1 << 16
    hello_ns: int = 500_000_000
    probe_ns: int = 0
    report_ns: int = 100_000_000
    heartbeat_ns: int = 100_000_000
    delays: DelaySettings = DelaySettings()


class ClockStepped(NamedTuple):
    """The overlay's clock, as this member knows it, has stepped."""

    step_ns: int


class OtherTopology(NamedTuple):
    """A neighbour has another version of the topology."""

    name: str
    version: int


Event = Deliver | Gap | NewEpoch | Change | SetApart | ClockStepped | OtherTopology
Send = tuple[Address, bytes]


class Outcome(NamedTuple):
    """Datagrams to send, in this order, and what has happened."""

    sends: list[Send]
    events: list[Event]


#: Answer to what was refused or needs nothing done. Not to be added to.
NOTHING = Outcome([], [])
_VERDICT_COUNTERS = {
    Verdict.DUPLICATE: C.DUPLICATES,
    Verdict.VIOLATION: C.VIOLATIONS,
    Verdict.STALE: C.OLD_EPOCH,
}


class Node:
    """One member. `epoch` is its start in ns, higher than that of any start before."""

    role: Role

    def __init__(
        self,
        topology: Topology,
        name: str,
        epoch: int,
        now_ns: int,
        settings: NodeSettings | None = None,
        clock: OverlayClock | None = None,
    ) -> None:
        self.settings = settings or NodeSettings()
        self.clock = clock or OverlayClock()
        self.counts = Counts()
        self.name, self.epoch = name, epoch
        self._topology, self.member = topology, topology.member(name)
        if self.member.role is not self.role or not self.member.key:
            raise UsageError(
                f"member {name} is a {self.member.role}, or its key is not in the file",
                f"give a {self.role}'s name and the file that has its key",
            )
        self.admission = Admission(topology, name)
        self.liveness = Liveness(self._neighbours(), now_ns)
        self.deduplicator = Deduplicator(self.settings.messages_per_second)
        self._control_id = 0
        self._heartbeat = (0, 0)
        self._hello_ns = self._probe_ns = self._report_ns = now_ns
        self.targets: list[Address] = []
        self._choose_targets()

    def _neighbours(self) -> list[str]:
        topology = self._topology
        near = (*topology.sources(self.member), *topology.children(self.member))
        return list(dict.fromkeys(each.name for each in near))

    def _choose_targets(self) -> None:
        """Addresses that data goes to: the children that are not gone."""
        children = self.admission.children
        self.targets = [a for a, each in children.items() if not self.liveness.is_gone(each.name)]

    # -- topology ----------------------------------------------------------------------------------

    def adopt(self, topology: Topology, now_ns: int) -> None:
        """Take a higher version of the topology, at once.

        Raises `UsageError` for one that is not higher, of another tree or shape, or in which this
        member itself is another one: that is the new process's to take.
        """
        old = self._topology
        if topology.version <= old.version:
            raise UsageError(
                f"topology version {topology.version}, where {old.version} is in use",
                "a change has a higher version",
            )
        own = topology.member(self.name)
        if (topology.tree, topology.shape, own) != (old.tree, old.shape, self.member):
            raise UsageError(
                f"topology version {topology.version} is of another tree, shape or {self.name}",
                "a running member takes the replacement of others only",
            )
        names = self._neighbours()
        anew = [each for each in names if topology.by_name.get(each) != old.by_name[each]]
        self._topology = topology
        self.admission.adopt(topology, self.name)
        self.liveness.adopt(self._neighbours(), now_ns, anew)
        self._replaced(anew)
        self._choose_targets()

    def _replaced(self, names: list[str]) -> None:
        """Forget what neighbours have said that are others now."""

    # -- driven ------------------------------------------------------------------------------------

    def receive(self, datagram: bytes, source: Address, now_ns: int) -> Outcome:
        """Take a datagram; what is refused is counted, and nothing else comes of it."""
        try:
            header = read_header(datagram)
        except WireError:
            self.counts.add(C.MALFORMED)
            return NOTHING
        if header.kind in TREE_KINDS:
            return self._receive_tree(header, datagram, source, now_ns)
        admitted = self.admission.control(header, datagram, source)
        if isinstance(admitted, C):
            self.counts.add(admitted)
            return NOTHING
        outcome = Outcome([], [])
        outcome.events.extend(self.liveness.heard(admitted.name, now_ns))
        if outcome.events:
            self._choose_targets()
        try:
            self._control(header, payload_of(datagram), admitted, now_ns, outcome)
        except WireError:
            self.counts.add(C.WRONG_PAYLOAD)
        return outcome

    @property
    def deadline_ns(self) -> int:
        """The local time at which `tick` has something to do."""
        return min(self.liveness.deadline_ns, self._report_ns, self._next_upward_ns())

    def _next_upward_ns(self) -> int:
        if not self.admission.sources:
            return self._report_ns
        return min(self._hello_ns, self._probe_ns) if self.settings.probe_ns else self._hello_ns

    def tick(self, now_ns: int) -> Outcome:
        """Do what is due."""
        outcome = Outcome([], [])
        changes = self.liveness.tick(now_ns) if now_ns >= self.liveness.deadline_ns else []
        if changes:
            outcome.events.extend(changes)
            self._choose_targets()
        if self.admission.sources:
            self._tick_upward(now_ns, outcome)
        if now_ns >= self._report_ns:
            self._report_ns = now_ns + self.settings.report_ns
            self._interval(now_ns, outcome)
        return outcome

    def _tick_upward(self, now_ns: int, outcome: Outcome) -> None:
        if now_ns >= self._hello_ns:
            self._hello_ns = now_ns + self.settings.hello_ns
            payload = encode_version(self._topology.version)
            for address in self.admission.sources:
                outcome.sends.append((address, self._sealed(Kind.HELLO, payload, now_ns)))
        if self.settings.probe_ns and now_ns >= self._probe_ns:
            self._probe_ns = now_ns + self.settings.probe_ns
            probe = self._sealed(Kind.PROBE, PROBE_PAYLOAD, now_ns)
            outcome.sends.append((self._upstream(), probe))

    def _interval(self, now_ns: int, outcome: Outcome) -> None:
        """Report, at the end of each interval."""

    def _upstream(self) -> Address:
        """The first source that is not silent, or the parent."""
        sources = self.admission.sources
        good = (State.NEW, State.ALIVE)
        for address, each in sources.items():
            if self.liveness.state(each.name) in good:
                return address
        return next(iter(sources))

    def _sealed(self, kind: Kind, payload: bytes, sent_ns: int) -> bytes:
        """A control datagram."""
        self._control_id += 1
        return encode(
            kind, self._topology.tree, self.epoch, self._control_id, sent_ns, 0, payload,
            self.member.key,
        )  # fmt: skip

    # -- what comes --------------------------------------------------------------------------------

    def _receive_tree(
        self, header: Header, datagram: bytes, source: Address, now_ns: int
    ) -> Outcome:
        """Judge data and heartbeats: a copy before its seal, as copies are what mostly comes."""
        refused = self.admission.check_source(header, source) or self._is_copy(header)
        if refused is None:
            refused = self.admission.check_seal(datagram)
        if refused is not None:
            self.counts.add(refused)
            return NOTHING
        known = self.deduplicator.epoch
        if header.kind is Kind.DATA:
            self.deduplicator.accept(header.epoch, header.id)
            self.counts.add(C.ACCEPTED)
        else:
            self._heartbeat = header.epoch, header.sent_ns
            if header.epoch > known:
                self.deduplicator.begin(header.epoch)
        if header.epoch > known > 0:
            self.counts.add(C.NEW_EPOCHS)
        return self._taken(header, datagram, now_ns)

    def _is_copy(self, header: Header) -> C | None:
        if header.kind is Kind.DATA:
            return _VERDICT_COUNTERS.get(self.deduplicator.judge(header.epoch, header.id))
        if header.epoch < self.deduplicator.epoch:
            return C.OLD_EPOCH
        return C.REPLAYED if (header.epoch, header.sent_ns) <= self._heartbeat else None

    def _taken(self, header: Header, datagram: bytes, now_ns: int) -> Outcome:
        """Go on with the first copy of a message or heartbeat: forward it, unchanged."""
        return Outcome(self._forward(datagram), [])

    def _forward(self, datagram: bytes) -> list[Send]:
        unserved = len(self.admission.children) - len(self.targets)
        self.counts.add(C.SENT, len(self.targets))
        self.counts.add(C.UNSERVED, unserved)
        return [(address, datagram) for address in self.targets]

    def _control(
        self,
        header: Header,
        payload: memoryview,
        member: Member,
        now_ns: int,
        outcome: Outcome,
    ) -> None:
        """Act on an admitted control datagram. Raises `WireError` for a wrong payload."""
        kind = header.kind
        if kind in (Kind.HELLO, Kind.WELCOME):
            version = read_version(payload)
            if version != self._topology.version:
                outcome.events.append(OtherTopology(member.name, version))
            if kind is Kind.HELLO:
                answer = encode_version(self._topology.version)
                welcome = self._sealed(Kind.WELCOME, answer, self.clock.time_ns(now_ns))
                outcome.sends.append((member.address, welcome))
        elif kind is Kind.PROBE:
            if len(payload) != len(PROBE_PAYLOAD):
                raise WireError("a probe of another size")
            if self.clock.known:
                time_ns = self.clock.time_ns(now_ns)
                answer = encode_probe_answer(header.sent_ns, time_ns)
                sealed = self._sealed(Kind.PROBE_ANSWER, answer, time_ns)
                outcome.sends.append((member.address, sealed))
        elif kind is Kind.PROBE_ANSWER:
            times = read_probe_answer(payload)
            # A given clock is nobody's to change; nor is a probe's time from before the start.
            if self.settings.probe_ns:
                step_ns = self.clock.answer(*times, header.sent_ns, now_ns)
                if step_ns:
                    self.stepped(step_ns, outcome)
        elif kind is Kind.REPORT:
            report = read_report(payload)
            receiver = member.index if member.role is Role.RECEIVER else -1
            self._reported(member.name, receiver, report)
        else:
            self._last_hop(member, *read_last_hop(payload), now_ns)

    def stepped(self, step_ns: int, outcome: Outcome) -> None:
        """Count and tell a step of the clock."""
        self.counts.add(C.CLOCK_STEPS)
        outcome.events.append(ClockStepped(step_ns))

    def wall(self, now_ns: int, wall_ns: int) -> Outcome:
        """Take the wall clock, where chrony or PTP keeps it; call it every second or so."""
        outcome = Outcome([], [])
        if step_ns := self.clock.wall(now_ns, wall_ns):
            self.stepped(step_ns, outcome)
        return outcome

    def _reported(self, name: str, receiver: int, report: object) -> None:
        """A child's report."""

    def _last_hop(self, member: Member, latency_ns: int, receivers: int, now_ns: int) -> None:
        """A neighbour's word on last hops."""
