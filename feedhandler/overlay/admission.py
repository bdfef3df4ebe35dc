"""What a member takes from whom: sources, children, seals, and nothing twice.

A member knows from the topology who may send to it. What the sender says (data, heartbeats,
notices) comes from its sources only, reports and probes from its children, answers from its parent.
What comes from elsewhere is dropped by its address, before anything is computed; nobody can ask to
be sent anything, so a forged address makes no member an amplifier. Reports, probes and answers are
sealed with the key of who sends them and numbered: one that was seen is not taken again. What the
sender says is sealed with the tree's key; whether a copy is the first is asked before its seal is
checked, for most copies are not.

A sender's epoch is taken up only from what is fresh: with an old recording nobody makes a member
that was just started believe in a sender that is gone.
"""

from collections import Counter

from feedhandler.overlay.deduplication import SLOTS, Deduplicator, Verdict
from feedhandler.overlay.topology import Address, Member, Topology
from feedhandler.overlay.wire import Fault, Head, Kind, is_sealed, read

#: A new epoch's datagram may be this old, or this far ahead: beyond, clocks are no help.
FRESH_NS = 10_000_000_000
#: What the tree's sender says to all: data are told apart by id, the others by when they were sent.
FROM_SENDER = (Kind.DATA, Kind.HEARTBEAT, Kind.NOTICE)
_OF_CHILDREN = (Kind.REPORT, Kind.PROBE)


class Admission:
    """One member's. `counts`: dropped datagrams by `Fault` name, copies by `Verdict` name."""

    def __init__(self, topology: Topology, name: str, slots: int = SLOTS) -> None:
        self.copies = Deduplicator(slots)
        self.counts: Counter[str] = Counter()
        self._sent_ns = {int(Kind.HEARTBEAT): 0, int(Kind.NOTICE): 0}
        self._seen: dict[str, tuple[int, int]] = {}
        self._key_of: dict[str, bytes] = {}
        self.change(topology, name)

    def change(self, topology: Topology, name: str) -> None:
        """Another version of the topology is in force."""
        me = topology.member(name)
        self.topology, self.me = topology, me
        sources = topology.sources(me)
        self._sources = {each.address: each for each in sources}
        self._children = {each.address: each for each in topology.children(me)}
        self._parent = sources[0] if sources else None
        known = {each.name: each.key for each in topology.members}
        self._seen = {
            who: last for who, last in self._seen.items() if self._key_of.get(who) == known.get(who)
        }
        self._key_of = known

    def admit(self, datagram: bytes, address: Address, now_ns: int) -> tuple[Head, Member] | None:
        """A datagram's header and who sent it; None for what is dropped, which is counted. Of what
        the sender says first copies are admitted only. `now_ns`: its time as known here."""
        head = read(datagram)
        if isinstance(head, Fault):
            return self._dropped(head)
        if head.tree != self.topology.tree:
            return self._dropped(Fault.TREE)
        if head.kind in FROM_SENDER:
            return self._admit_copy(datagram, head, address, now_ns)
        if head.kind in _OF_CHILDREN:
            member = self._children.get(address)
        else:
            member = self._parent if self._parent and self._parent.address == address else None
        if member is None:
            return self._dropped(Fault.STRANGER)
        if (head.epoch, head.id) <= self._seen.get(member.name, (0, 0)):
            return self._dropped(Fault.NUMBER)
        if not is_sealed(datagram, member.key):
            return self._dropped(Fault.SEAL)
        self._seen[member.name] = head.epoch, head.id
        return head, member

    def _admit_copy(
        self, datagram: bytes, head: Head, address: Address, now_ns: int
    ) -> tuple[Head, Member] | None:
        member = self._sources.get(address)
        if member is None:
            return self._dropped(Fault.STRANGER)
        if head.kind == Kind.DATA:
            verdict = self.copies.judge(head.epoch, head.id)
        elif head.epoch < self.copies.epoch:
            verdict = Verdict.OLD
        elif head.epoch == self.copies.epoch and head.sent_ns <= self._sent_ns[head.kind]:
            verdict = Verdict.DUPLICATE
        else:
            verdict = Verdict.FIRST
        if verdict is not Verdict.FIRST:
            self.counts[verdict.name.lower()] += 1
            return None
        if not is_sealed(datagram, self.topology.key):
            return self._dropped(Fault.SEAL)
        if head.epoch > self.copies.epoch:
            if abs(now_ns - head.sent_ns) > FRESH_NS:
                return self._dropped(Fault.STALE)
            self._sent_ns = dict.fromkeys(self._sent_ns, 0)
            self.copies.restart(head.epoch)
        if head.kind == Kind.DATA:
            self.copies.take(head.epoch, head.id)
        else:
            self._sent_ns[head.kind] = head.sent_ns
        self.counts["first"] += 1
        return head, member

    def drop(self, fault: Fault) -> None:
        """Count what turned out to be no good later."""
        self.counts[fault.name.lower()] += 1

    def _dropped(self, fault: Fault) -> tuple[Head, Member] | None:
        self.drop(fault)
        return None
