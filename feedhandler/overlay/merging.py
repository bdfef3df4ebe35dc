"""Several trees as one: a sender numbers over them in turn, receivers merge them by number.

With hedging a proxy sends each message 1 + H times as often as it has children. H more trees with
the same sender and the same receivers compensate for that ("Jasper", section 5.3): each carries
every (1 + H)-th message, so that a proxy sends as much as it would without hedging. Message `id`
goes by tree number (id - 1) % T of the T trees, in the order in which they are given.

Ids and deadlines are one sequence over all trees (`members.SharedSequence`), so a receiver has one
order and one hold for all of them: what one tree brings waits for what the other has not brought
yet, as in one tree, and a gap is reported whichever tree it is in. Copies, seals, reports and holds
are separate for each tree. All have one epoch, the sender's.

A member has one address in all trees, and a datagram carries its tree's number.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from feedhandler.codecs.errors import ConfigError
from feedhandler.overlay.fairness import HoldController
from feedhandler.overlay.last_hop import LastHop
from feedhandler.overlay.members import Receiver, Sender, Sends, SharedSequence, soonest
from feedhandler.overlay.release import Event, Gap, Release
from feedhandler.overlay.topology import Address, Topology
from feedhandler.overlay.wire import TREE_AT

#: Upper limit on trees: more than 1 + `tree.HEDGING_MAX` gain nothing.
TREES_MAX = 9


def check_trees(topologies: Sequence[Topology]) -> None:
    """Check that trees have one sender and the same receivers. Raises `ConfigError`."""
    first = topologies[0]
    if len(topologies) > TREES_MAX:
        raise ConfigError(f"{len(topologies)} trees", f"at most {TREES_MAX}")
    ends = _ends(first)
    seen: dict[int, int] = {}
    for index, topology in enumerate(topologies):
        if topology.tree in seen:
            raise ConfigError(
                f"two topologies of tree {topology.tree}", "each tree has a number of its own"
            )
        seen[topology.tree] = index
        for name, address in _ends(topology).items():
            if ends.get(name) != address:
                raise ConfigError(
                    f"tree {topology.tree} has {name} at {address[0]}:{address[1]}, and tree"
                    f" {first.tree} has not",
                    "trees to be merged have one sender and one set of receivers:"
                    " `overlay plan --beside`",
                )
        if len(_ends(topology)) != len(ends):
            raise ConfigError(
                f"tree {topology.tree} has fewer receivers than tree {first.tree}",
                "trees to be merged have one set of receivers: `overlay plan --beside`",
            )


def _ends(topology: Topology) -> dict[str, Address]:
    return {member.name: member.address for member in topology.members if member.role != "proxy"}


_Each = TypeVar("_Each", Sender, Receiver)


class _Trees(Generic[_Each]):
    """A member of several trees, with one object for each."""

    def __init__(self, members: Sequence[_Each]) -> None:
        self.members: Sequence[_Each] = members
        self._by_tree: dict[int, _Each] = {member.topology.tree: member for member in members}

    @property
    def counts(self) -> Counter[str]:
        """Counts of all trees, added up."""
        return sum((member.counts for member in self.members), Counter())

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; 0: no deadline."""
        return soonest(*(member.deadline_ns for member in self.members))

    def receive(self, datagram: bytes, address: Address, now_ns: int) -> Sends:
        """Pass a datagram to its tree's member; the first counts those of unknown trees."""
        tree = int.from_bytes(datagram[TREE_AT : TREE_AT + 2], "little")
        member = self._by_tree.get(tree, self.members[0])
        return member.receive(datagram, address, now_ns)

    def tick(self, now_ns: int) -> Sends:
        """Do what is due; return what is to be sent."""
        return [each for member in self.members for each in member.tick(now_ns)]

    def change(self, topology: Topology) -> str:
        """Take another version of one of the topologies; return why not, or ""."""
        member = self._by_tree.get(topology.tree)
        return "it is another tree" if member is None else member.change(topology)


class MergedSender(_Trees[Sender]):
    """One sender of several trees, whose `members` share one `SharedSequence` and the epoch."""

    @property
    def last_id(self) -> int:
        """The id of the last message."""
        return self.members[0].last_id

    def send(self, payload: bytes, now_ns: int) -> Sends:
        """Send a message by the tree whose turn it is. Raises `ValueError` where it is too long."""
        return self.members[self.last_id % len(self.members)].send(payload, now_ns)

    def beat(self, now_ns: int) -> Sends:
        """Return a heartbeat for each tree."""
        return [each for sender in self.members for each in sender.beat(now_ns)]


class MergedReceiver(_Trees[Receiver]):
    """One receiver in several trees; all but the first of `members` are `beside` the first."""

    @property
    def holding(self) -> Release:
        """Held messages of all trees."""
        return self.members[0].holding

    @property
    def last_hop(self) -> LastHop:
        """The last hop, to the isolated process."""
        return self.members[0].last_hop

    @property
    def release_ns(self) -> int:
        """When `release` must be called; 0: no deadline."""
        return self.members[0].release_ns

    def senders_time(self, now_ns: int) -> int:
        """Convert a time of the own clock to the sender's clock."""
        return self.members[0].senders_time(now_ns)

    def receive(self, datagram: bytes, address: Address, now_ns: int) -> Sends:
        """Handle a datagram; the isolated process's answers go to the first tree's receiver."""
        if address == self.members[0].echo:
            return self.members[0].receive(datagram, address, now_ns)
        return super().receive(datagram, address, now_ns)

    def release(self, now_ns: int) -> list[Event]:
        """Return the events that may be delivered now, in order over all trees."""
        found = self.holding.release(self.senders_time(now_ns))
        for event in found:
            if isinstance(event, Gap):
                self._missed(event)
        return found

    def _missed(self, gap: Gap) -> None:
        """Record each tree's share of a gap, to be reported up that tree."""
        count = len(self.members)
        for turn, receiver in enumerate(self.members):
            first = gap.first + (turn + 1 - gap.first) % count
            if first <= gap.last:
                receiver.missed(first, gap.last, count)


def receiver_of(
    topologies: Sequence[Topology], name: str, epoch: int, **settings: Any
) -> Receiver | MergedReceiver:
    """Make a receiver in one tree or in several; `settings` are `Receiver`'s.

    Of several trees only the first one probes the clock.
    """
    first = Receiver(topologies[0], name, epoch, **settings)
    if len(topologies) == 1:
        return first
    first.holding.start_wait_ns = first.holding.gap_wait_ns
    kept = {key: settings[key] for key in ("slots", "interval_ns", "extra_hold_ns")
            if key in settings}  # fmt: skip
    others = [Receiver(topology, name, epoch, beside=first, **kept) for topology in topologies[1:]]
    return MergedReceiver([first, *others])


def sender_of(
    topologies: Sequence[Topology],
    epoch: int,
    controller: Callable[[], HoldController | None] = lambda: None,
    **settings: Any,
) -> Sender | MergedSender:
    """Make a sender of one tree or of several.

    `controller` makes each tree's own, `settings` are `Sender`'s.
    """
    sequence = SharedSequence()
    senders = [
        Sender(topology, epoch, controller=controller(), sequence=sequence, **settings)
        for topology in topologies
    ]
    return senders[0] if len(senders) == 1 else MergedSender(senders)
