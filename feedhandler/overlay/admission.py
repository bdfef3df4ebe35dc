"""Admission of datagrams: sources, children, seals, and nothing twice.

A member knows from the topology who may send to it. What the sender sends (data, heartbeats,
notices) comes from its sources only, reports and probes from its children, answers from its parent.
Datagrams from elsewhere are dropped by their address, before anything is computed; no request makes
a member send anything to a new address, so a forged address makes no member an amplifier. Reports,
probes and answers are sealed with the sending member's key and numbered: one that was seen is not
taken again. What the sender sends is sealed with the tree's key; whether a copy is the first is
decided before its seal is checked, because most copies are not.

A sender's epoch is accepted only from fresh datagrams: an old recording cannot make a member that
was just started believe in a sender that is gone.
"""

from collections import Counter

from feedhandler.overlay.deduplication import SLOTS, Deduplicator, Verdict
from feedhandler.overlay.topology import Address, Member, Topology
from feedhandler.overlay.wire import Fault, Head, Kind, is_sealed, read

#: A new epoch's datagram may be this old, or this far ahead, for the skew of clocks.
FRESH_NS = 10_000_000_000
#: Kinds that the tree's sender sends to all: copies of data are recognised by id, those of others
#: by the time of sending.
FROM_SENDER = (Kind.DATA, Kind.HEARTBEAT, Kind.NOTICE)
_OF_CHILDREN = (Kind.REPORT, Kind.PROBE)


class Admission:
    """Admission of one member's datagrams.

    `counts`: dropped datagrams by `Fault` name, copies by `Verdict` name.
    """

    def __init__(self, topology: Topology, name: str, slots: int = SLOTS) -> None:
        self.copies = Deduplicator(slots)
        self.counts: Counter[str] = Counter()
        self._sent_ns = {int(Kind.HEARTBEAT): 0, int(Kind.NOTICE): 0}
        self._seen: dict[str, tuple[int, int]] = {}
        self._key_of: dict[str, bytes] = {}
        self.change(topology, name)

    def change(self, topology: Topology, name: str) -> None:
        """Take another version of the topology."""
        me = topology.member(name)
        self.topology, self.me = topology, me
        sources = topology.sources(me)
        self._sources = {source.address: source for source in sources}
        self._children = {each.address: each for each in topology.children(me)}
        self._parent = sources[0] if sources else None
        known = {member.name: member.key for member in topology.members}
        self._seen = {
            who: last for who, last in self._seen.items() if self._key_of.get(who) == known.get(who)
        }
        self._key_of = known

    def admit(self, datagram: bytes, address: Address, now_ns: int) -> tuple[Head, Member] | None:
        """Return a datagram's header and its sender; None where it is dropped, which is counted.

        Of the tree sender's datagrams only first copies are admitted. `now_ns`: its time as known
        here.
        """
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
            self.copies.accept(head.epoch, head.id)
        else:
            self._sent_ns[head.kind] = head.sent_ns
        self.counts["first"] += 1
        return head, member

    def drop(self, fault: Fault) -> None:
        """Count a datagram that turned out to be faulty later."""
        self.counts[fault.name.lower()] += 1

    def _dropped(self, fault: Fault) -> tuple[Head, Member] | None:
        self.drop(fault)
        return None
