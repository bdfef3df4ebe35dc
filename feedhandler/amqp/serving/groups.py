"""Links that share one stream: each message goes to one of them (source capability `shared`).

What it is for: several consumers that divide the work of one subscription. To the fan-out a
`Group` is one link; its `Member`s are the links behind it. The group's name is the link name up to
the first `|`, as in shared subscriptions of JMS; it is the same group on every connection of a
user.

What it promises:

* Each message is sent to one member. Where members settle (at least once), what a member had not
  settled as it ended, and what it gave back (released, modified), goes to others, in the order of
  the stream and before anything newer, with a header that counts the deliveries. A message that was
  given back `ATTEMPTS_MAX` times is dropped and counted; a rejected one is not sent again. Members
  that do not settle get each message at most once.
* Messages with one routing key (with `as=message` those of a symbol, else those of a service) go to
  the same member as long as it lives and has credit; so they are in order, but for what is sent
  again. Where it has none, another one gets them. A member that joins or leaves moves only the
  keys that it gets or had.
* Quality messages go to every member, each ahead of the data it concerns that the member gets. A
  member without credit keeps the latest of each service once there are `NOTES_MAX`.
* What waits and what is not settled share the bound `queue_bytes_max`. A group that overruns it is
  over: all members are detached. A group ends with its last member, and what waits with it.

What it leaves to others: thinning (the fan-out), sockets (`connection`).
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.framing import QUALITY_NOTE, Frame
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.routing import AddressError, Subscription
from feedhandler.amqp.sender_queue import QUEUE_ENTRY_BYTES, Peer, SenderQueue

#: Members of one group: choosing one for a new key looks at each of them.
MEMBERS_MAX = 64
#: How often a message may be given back before it is dropped.
ATTEMPTS_MAX = 5
#: Quality messages that may wait for one member before only the latest of each service do.
NOTES_MAX = 64
#: Routing keys whose member is remembered; past it all are computed again.
KEYS_MAX = 1_000_000
#: The header section of a message that is sent again, before the byte that counts the deliveries
#: before this one (AMQP 1.0, 3.2.1: four fields left out, then `delivery-count` as a uint).
HEADER_AGAIN = b"\x00\x53\x70\xc0\x07\x05\x40\x40\x40\x40\x52"


@dataclass(slots=True, eq=False)
class Shared:
    """One message of the group's stream, at `position`.

    `number_at`: offset of its group-sequence; `attempts`: how often it was sent before; `not_to`:
    the member that has given it back. A quality message has its `service`; others -1.
    """

    position: int
    data: bytearray
    key: str
    number_at: int
    service: int = -1
    attempts: int = 0
    not_to: "Member | None" = None

    @property
    def size(self) -> int:
        """Bytes that it counts while it is held."""
        return len(self.data) + QUEUE_ENTRY_BYTES

    def __lt__(self, other: "Shared") -> bool:
        return self.position < other.position


def _shared(frame: Frame, position: int) -> Shared:
    """Copy the finished message of a frame, so that it may wait."""
    template = frame.template
    assert template is not None
    data = bytearray(frame.memory[: frame.used])
    at = template.tag_at
    number = int.from_bytes(data[at + 16 : at + 18], "big")
    service = int.from_bytes(data[at + 6 : at + 8], "big") if number == QUALITY_NOTE else -1
    return Shared(position, data, template.key, template.sequence_at, service)


class Member:
    """One link of a group. Its connection uses it as a sender queue: it counts, drains, may be
    behind."""

    catching = 0

    def __init__(self, group: "Group", peer: Peer, sender: SenderLink, serial: int) -> None:
        self.group = group
        self.peer = peer
        self.sender = sender
        self.serial = serial
        self.subscription = group.subscription
        self.queue_bytes_max = group.queue_bytes_max
        self.unsettled: dict[int, Shared] = {}
        self.notes: deque[Shared] = deque()
        self.behind = self.overrun = False
        self.group_sequence = self.deliveries = 0
        self.sent = self.sent_bytes = self.waited = 0
        self.queued_bytes_high = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes of quality messages that wait for it; data that waits is the group's."""
        return sum(note.size for note in self.notes)

    def has_open_batch(self) -> bool:
        """Return whether packets wait in the group's batch."""
        return self.group.has_open_batch()

    def accepts_more(self) -> bool:
        """Return whether a message given to it now would be sent at once."""
        return not self.notes and self.sender.ready()

    def close_batch(self, stream: int) -> None:
        """Do nothing: batches are the group's."""

    def deliver(self, frame: Frame) -> None:
        """Send a quality message to this link alone."""
        self.send_quality(_shared(frame, self.group.position))

    def send_quality(self, note: Shared) -> None:
        """Send a quality message, or queue it ahead of any later data."""
        if self.accepts_more():
            self.send(note)
            return
        self.waited += 1
        self.notes.append(note)
        if len(self.notes) > NOTES_MAX:
            latest = {each.service: each for each in self.notes}
            self.notes = deque(sorted(latest.values()))
        self.note_backlog(self.group.waits)

    def send(self, message: Shared) -> None:
        """Send a message; the caller has checked `accepts_more`, or it is the next quality message
        that waits."""
        at = message.number_at
        message.data[at : at + 4] = self.group_sequence.to_bytes(4, "big")
        self.group_sequence = (self.group_sequence + 1) & 0xFFFF_FFFF
        data = bytes(message.data)
        if message.attempts:
            data = HEADER_AGAIN + bytes([message.attempts]) + data
        self.sender.send(data, 0, len(data))
        self.deliveries += 1
        if not self.sender.settled:
            self.unsettled[self.deliveries] = message
            if message.service < 0:
                self.group.unsettled_bytes += message.size
        self.sent += 1
        self.sent_bytes += len(data)
        self.peer.schedule_flush()

    def process_outcomes(self) -> None:
        """Process the outcomes that the client has sent; give what it returned to other members."""
        if self.sender.settled:
            return
        link: Any = self.sender
        for number in link.confirmed:
            self._done(number)
        for number, outcome, _ in link.returned:
            message = self._done(number)
            if message is not None and outcome not in (proton.REJECTED, proton.UNTOLD):
                self.group.give_back(message, self)
        if link.confirmed or link.returned:
            link.confirmed.clear()
            link.returned.clear()
            self.group.drain()

    def _done(self, number: int) -> Shared | None:
        """Remove a message that the client has settled; return it, None for a quality message."""
        message = self.unsettled.pop(number, None)
        if message is None or message.service >= 0:
            return None
        self.group.unsettled_bytes -= message.size
        return message

    def drain(self) -> None:
        """Send what waits, as far as its credit allows."""
        while self.notes and self.sender.ready():
            self.send(self.notes.popleft())
        self.group.drain()

    def note_backlog(self, group_waits: bool) -> None:
        """Record at the connection and the link whether anything waits for credit or room."""
        behind = group_waits or bool(self.notes)
        if behind != self.behind:
            self.behind = behind
            self.sender.wants_flow = behind
            self.peer.backlog += 1 if behind else -1


class _AnyMember(SenderLink):
    """The group's link as its sender queue's batches see it: ready where a member is."""

    def __init__(self, group: "Group") -> None:
        self.group = group

    def ready(self) -> bool:
        return not self.group.waiting and any(each.accepts_more() for each in self.group.members)


class _GroupPeer(Peer):
    """The peer of the group's own sender queue, without a connection. Reports that the group has
    overrun."""

    def __init__(self, dirty_peers: list[Any], on_overrun: Callable[[], None]) -> None:
        super().__init__(dirty_peers)
        self.on_overrun = on_overrun

    def attend(self) -> None:
        self.dirty = False
        if self.overruns:
            self.overruns.clear()
            self.on_overrun()


class Group(SenderQueue):
    """Several links that share what `subscription` asks for; see the module."""

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        dirty_peers: list[Any],
        queue_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        peer = _GroupPeer(dirty_peers, self._on_overrun)
        super().__init__(peer, _AnyMember(self), subscription, queue_bytes_max, batch_bytes_max)
        self.name = name
        self.members: list[Member] = []
        self.homes: dict[str, Member] = {}
        self.again: list[Shared] = []
        self.waiting: deque[Shared] = deque()
        self.waiting_bytes = self.unsettled_bytes = 0
        self.position = self.joined = 0
        #: Messages sent again, and messages dropped because they came back too often.
        self.resent = self.abandoned = 0
        self._draining = False

    # -- members ----------------------------------------------------------------------------

    def join(self, peer: Peer, sender: SenderLink) -> Member:
        """Add a link as a member. Raises AddressError where the group has `MEMBERS_MAX`, or is
        over and its members are about to be detached."""
        if self.overrun or len(self.members) >= MEMBERS_MAX:
            full = f"group {self.name!r} has {MEMBERS_MAX} members"
            over = f"more than {self.queue_bytes_max} bytes waited for group {self.name!r}"
            raise AddressError(over if self.overrun else full, conditions.RESOURCE_LIMIT_EXCEEDED)
        self.joined += 1
        member = Member(self, peer, sender, self.joined)
        self.members.append(member)
        self.homes.clear()
        return member

    def leave(self, member: Member) -> None:
        """Remove a member; what it had not settled goes to the others first."""
        self.members.remove(member)
        self.homes.clear()
        for message in member.unsettled.values():
            if message.service < 0:
                self.unsettled_bytes -= message.size
                message.attempts = min(message.attempts + 1, 255)
                self._queue_again(message)
        member.unsettled.clear()
        self.drain()

    def _on_overrun(self) -> None:
        for member in self.members:
            member.overrun = True
            overruns: list[Any] = member.peer.overruns
            overruns.append(member)
            member.peer.schedule_flush()

    # -- what the fan-out brings ------------------------------------------------------------

    def deliver(self, frame: Frame) -> int:
        """Send the finished message to a member, or queue it."""
        if self.overrun:
            return 0
        self.position += 1
        message = _shared(frame, self.position)
        if self.again or self.waiting or not self._give(message):
            self._wait(message)
        return 0

    def _give(self, message: Shared) -> bool:
        """Send a message to its member, a quality message to all; return whether a member took
        it."""
        if message.service >= 0:
            for member in self.members:
                member.send_quality(replace(message, data=message.data[:]))  # their numbers differ
            return True
        chosen = self._choose(message)
        if chosen is None:
            return False
        chosen.send(message)
        return True

    def _choose(self, message: Shared) -> Member | None:
        """Choose the member for a message: its key's own, else one with credit; never the one that
        gave it back, while there is another."""
        home = self.homes.get(message.key)
        if home is None and self.members:
            home = self._home(message.key)
        if home is not None and home is not message.not_to and home.accepts_more():
            return home
        for member in self.members:
            if member is not message.not_to and member.accepts_more():
                return member
        if len(self.members) == 1 and self.members[0].accepts_more():
            return self.members[0]
        return None

    def _home(self, key: str) -> Member:
        """Return a key's own member by rendezvous hashing: the member with the highest draw, so
        that others' coming or going moves no other key."""
        if len(self.homes) >= KEYS_MAX:
            self.homes.clear()
        home = max(self.members, key=lambda member: _draw(key, member.serial))
        self.homes[key] = home
        return home

    # -- what waits -------------------------------------------------------------------------

    def _wait(self, message: Shared) -> None:
        self.waiting.append(message)
        self._hold(message)

    def _hold(self, message: Shared) -> None:
        """Count one more message that waits; past the bound, end the group."""
        self.waiting_bytes += message.size
        if self.waiting_bytes + self.unsettled_bytes > self.queue_bytes_max:
            self.waiting.clear()
            self.again.clear()
            self.waiting_bytes = 0
            self.give_up()
            return
        high = self.waiting_bytes + self.unsettled_bytes
        for member in self.members:
            member.queued_bytes_high = max(member.queued_bytes_high, high)
        self._report_members()

    def give_back(self, message: Shared, member: Member) -> None:
        """Take back a message that a member returned, for another one; drop it after
        `ATTEMPTS_MAX`."""
        message.attempts += 1
        message.not_to = member
        if message.attempts >= ATTEMPTS_MAX:
            self.abandoned += 1
        else:
            self._queue_again(message)

    def _queue_again(self, message: Shared) -> None:
        if not self.overrun:
            self.resent += 1
            insort(self.again, message)
            self._hold(message)

    def flush_due_batches(self) -> int:
        """Close due batches as a sender queue does, and record whether packets wait in one."""
        super().flush_due_batches()
        self._report_members()
        return 0

    def drain(self) -> int:
        """Send what waits, as far as the members' credit allows."""
        if self._draining or self.overrun:
            return 0
        self._draining = True
        try:
            while self.again and self._give(self.again[0]):
                self.waiting_bytes -= self.again.pop(0).size
            while not self.again and self.waiting and self._give(self.waiting[0]):
                self.waiting_bytes -= self.waiting.popleft().size
        finally:
            self._draining = False
        self.flush_due_batches()
        return 0

    @property
    def waits(self) -> bool:
        """Return whether anything waits for a member's credit."""
        return bool(self.again or self.waiting or self.has_open_batch())

    def _report_members(self) -> None:
        for member in self.members:
            member.note_backlog(self.waits)


def _draw(key: str, serial: int) -> bytes:
    return blake2b(f"{serial} {key}".encode(), digest_size=8).digest()


class Groups:
    """The groups of a node, by name, and their counts, those of ended groups included."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._resent = self._abandoned = 0

    @property
    def resent(self) -> int:
        """Messages that were sent again, to another member."""
        return self._resent + sum(group.resent for group in self.groups.values())

    @property
    def abandoned(self) -> int:
        """Messages dropped because they came back too often."""
        return self._abandoned + sum(group.abandoned for group in self.groups.values())

    def find(self, name: str, subscription: Subscription) -> Group | None:
        """Return the group of this name for a link to join; None where the link is the first.

        Raises AddressError where the link's address differs from the group's, or where it asks for
        a snapshot or to resume.
        """
        if subscription.snapshot or subscription.resume:
            raise AddressError("a shared link takes neither snapshot=1 nor from=: it has no start")
        group = self.groups.get(name)
        if group is not None and group.subscription != subscription:
            raise AddressError(f"group {group.name!r} has another address")
        return group

    def add(self, group: Group) -> None:
        """Add a group with its first member."""
        self.groups[group.name] = group

    def remove(self, group: Group) -> None:
        """Remove a group that has lost its last member; keep its counts."""
        if self.groups.pop(group.name, None) is not None:
            self._resent += group.resent
            self._abandoned += group.abandoned


def group_name(user: str, link_name: str) -> str:
    """Return the group's name for a user's link; it begins with the user, so no user joins
    another's group."""
    return f"{user}: {link_name.partition('|')[0]}"
