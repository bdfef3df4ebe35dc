"""Admission of datagrams: known neighbours, valid seals, nothing twice.

Data and heartbeats come from a member's sources only, under the tree's key; control datagrams from
a neighbour's own address under its own key, with a rising id in a rising epoch. Whatever is refused
is counted and neither forwarded nor answered, so that a stranger, who may have forged the source
address, makes nobody send. A replaced member's key and address are refused from the moment that the
new topology is adopted.

A member that restarts has forgotten what it has heard: a recorded control datagram passes once, and
moves nothing but what its next true successor puts right.
"""

from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.topology import Address, Member, Topology
from feedhandler.overlay.wire import Header, Kind, is_sealed

#: Kinds that a child sends to a source, and those that a source sends to a child.
UPWARD = frozenset({Kind.REPORT, Kind.PROBE, Kind.HELLO, Kind.LAST_HOP})
DOWNWARD = frozenset({Kind.PROBE_ANSWER, Kind.WELCOME, Kind.LAST_HOP})


class Admission:
    """Neighbours of one member, and the last control datagram of each."""

    def __init__(self, topology: Topology, name: str) -> None:
        self._last: dict[tuple[str, bytes], tuple[int, int]] = {}
        self.adopt(topology, name)

    def adopt(self, topology: Topology, name: str) -> None:
        """Take another version; neighbours that stay keep their counters."""
        member = topology.member(name)
        self.topology = topology
        self.sources = {each.address: each for each in topology.sources(member)}
        self.children = {each.address: each for each in topology.children(member)}
        near = {(each.name, each.key) for each in (*self.sources.values(), *self.children.values())}
        self._last = {who: last for who, last in self._last.items() if who in near}

    def check_source(self, header: Header, source: Address) -> C | None:
        """Refuse data and heartbeats of other trees and from others than the sources."""
        if header.tree != self.topology.tree:
            return C.OTHER_TREE
        return None if source in self.sources else C.STRANGERS

    def check_seal(self, datagram: bytes) -> C | None:
        """Refuse data and heartbeats that the tree's key did not seal."""
        return None if is_sealed(self.topology.key, datagram) else C.FORGED

    def control(self, header: Header, datagram: bytes, source: Address) -> "Member | C":
        """The neighbour that sent a control datagram, or the counter of why it is refused."""
        if header.tree != self.topology.tree:
            return C.OTHER_TREE
        member = self.children.get(source) if header.kind in UPWARD else None
        if member is None and header.kind in DOWNWARD:
            member = self.sources.get(source)
        if member is None:
            return C.STRANGERS
        if not member.key or not is_sealed(member.key, datagram):
            return C.FORGED
        who, now = (member.name, member.key), (header.epoch, header.id)
        if now <= self._last.get(who, (0, 0)):
            return C.REPLAYED
        self._last[who] = now
        return member
