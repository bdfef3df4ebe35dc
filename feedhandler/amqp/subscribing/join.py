"""A changed subscription: the old link's stream and the new link's, joined by service.

What it is for: both links are attached to the same gateway for a while, and so what both want comes
twice. `Join` hands out the old link's messages up to a position, the new link's from there on:

    OLD       the old link's are handed out, the new link's wait
    CATCHING  the new link's are dropped until they are past what was handed out already
    NEW       the new link's are handed out

The new link's first message of a service shows where it begins. As soon as the old link has come
that far, or has nothing more to send (`old_ended`), the service changes over. What both want comes
once and without a gap; what only the new link wants begins at that position, what only the old one
wanted ends there. A snapshot block of the old link is handed out whole before that.
A message outside the sequence has no position: until the service is NEW, those of the new link's
are dropped that the old link has brought.

No I/O. The caller drains the old link, so that it comes to an end even where nothing is sent.
"""

from collections import deque
from enum import Enum, auto
from typing import Any

import msgspec

_BLOCK_BEGIN = "snapshot-begin"
#: Reasons of quality messages behind which the numbers begin at a lower one.
_ANEW = ("reset", "withdrawn")
_BLOCK_REASONS = (_BLOCK_BEGIN, "snapshot-end", "snapshot", "no snapshot")
#: A position: (how many epochs have begun, sequence number << 16 | message number).
Position = tuple[int, int]
#: Tags of the old link's latest messages outside the sequence that are remembered of each service.
ASIDE_MAX = 1_024
#: A message number that stands for the whole packet.
WHOLE = 0xFFFF


class Phase(Enum):
    """State of a service during the change of links; the module says what each means."""

    OLD = auto()
    CATCHING = auto()
    NEW = auto()


class _Side:
    """Progress of one link in one service."""

    def __init__(self) -> None:
        self.epoch = 0
        self.last = -1

    def position_of(self, message: Any) -> Position:
        """Return the position of a packet or message; a number that falls back begins a new
        epoch."""
        position = message.sequence << 16 | message.number
        if position < self.last:
            self.epoch += 1
        self.last = position
        return self.epoch, position

    def renumber(self) -> None:
        """Begin a new epoch, as a quality message has announced."""
        self.epoch += 1
        self.last = -1


class _Service:
    def __init__(self, asked_at: int) -> None:
        self.phase = Phase.OLD
        #: What the old link had reached when the new one was asked for.
        self.asked_at = asked_at
        self.reached: Position = (0, asked_at)
        self.begins: Position | None = None
        self.old = _Side()
        self.new = _Side()
        self.held: deque[Any] = deque()
        self.aside: deque[bytes] = deque(maxlen=ASIDE_MAX)
        #: Whether the link that is handed out is in the middle of a snapshot block.
        self.in_block = False


class Join:
    """The joined stream of the old and the new link.

    `reached`: by service, `sequence number << 16 | message number` of what the old link brought
    last before the new one was asked for. `held` counts messages of the new link that wait.
    """

    def __init__(self, reached: dict[int, int]) -> None:
        self.done = False
        self.held = 0
        self._services = {number: _Service(position) for number, position in reached.items()}

    def _service(self, number: int) -> _Service:
        service = self._services.get(number)
        if service is None:
            service = self._services[number] = _Service(-1)
        return service

    # -- the old link -----------------------------------------------------------------------

    def old(self, message: Any) -> list[Any]:
        """Process a message of the old link; return the messages to hand out."""
        service = self._service(message.service)
        if service.phase is not Phase.OLD:
            return []
        if message.content == "quality":
            return [message, *self._old_quality(service, _reason(message))]
        if message.sequence >> 62:
            if not message.sequence >> 63:
                service.aside.append(message.tag)
            return [message]
        position = service.old.position_of(message)
        if service.begins is not None and position >= service.begins:
            return self._change_over(service)
        service.reached = max(service.reached, position)
        return [message, *self._look(service)]

    def _old_quality(self, service: _Service, reason: str) -> list[Any]:
        """Process a quality message of the old link; return the messages to hand out behind it."""
        if reason in _ANEW:
            service.old.renumber()
            service.reached = (service.old.epoch, -1)
        elif reason in _BLOCK_REASONS:
            service.in_block = reason == _BLOCK_BEGIN
        return self._look(service)

    def old_ended(self) -> list[Any]:
        """End the old link, which has sent all that it had; return what the new one has sent
        since."""
        self.done = True
        found: list[Any] = []
        for service in self._services.values():
            if service.phase is Phase.OLD:
                found += self._change_over(service)
        return found

    # -- the new link -----------------------------------------------------------------------

    def new(self, message: Any) -> list[Any]:
        """Process a message of the new link; return the messages to hand out."""
        service = self._service(message.service)
        if self.done and service.phase is Phase.OLD:
            service.phase = Phase.CATCHING
        if service.phase is not Phase.OLD:
            return self._hand_out(service, message)
        service.held.append(message)
        self.held += 1
        if service.begins is None:
            self._begin(service, message)
            return self._look(service)
        return []

    def _begin(self, service: _Service, message: Any) -> None:
        """Find from the new link's first message of a service where it begins."""
        if message.sequence >> 62 == 1:
            return
        following = message.sequence
        if message.content == "quality":
            following = msgspec.json.decode(message.body, type=dict).get("next")
            if following is None:  # the node has received nothing yet: wait for the next message
                return
        # A number that the old link had passed before it was asked for is one of a new epoch.
        epoch = int(0 < following <= service.asked_at >> 16)
        service.new.epoch = epoch
        service.begins = (epoch, following << 16)

    def _look(self, service: _Service) -> list[Any]:
        """Change over where the old link has come far enough; return the messages to hand out."""
        if service.begins is None or service.in_block:
            return []
        epoch, begins = service.begins
        return self._change_over(service) if service.reached >= (epoch, begins - 1) else []

    def _change_over(self, service: _Service) -> list[Any]:
        """Switch a service to the new link; return the messages of it that waited."""
        service.phase = Phase.CATCHING
        service.in_block = False
        self.held -= len(service.held)
        found: list[Any] = []
        while service.held:
            found += self._hand_out(service, service.held.popleft())
        return found

    def _hand_out(self, service: _Service, message: Any) -> list[Any]:
        """Filter a message of the new link after the change-over."""
        if service.phase is Phase.NEW:
            return [message]
        if message.content == "quality":
            return self._hand_out_quality(service, message)
        if message.sequence >> 63:
            return [message] if service.in_block else []
        if message.sequence >> 62:
            return [] if message.tag in service.aside else [message]
        if service.new.position_of(message) <= service.reached:
            return []
        service.phase = Phase.NEW
        return [message]

    def _hand_out_quality(self, service: _Service, message: Any) -> list[Any]:
        """Filter a quality message while the new link catches up: the old one has brought it, too,
        unless it is of a snapshot block, behind which the new link's stream goes on."""
        quality = msgspec.json.decode(message.body, type=dict)
        reason = quality["reason"]
        if reason in _ANEW:
            service.new.renumber()
            if (service.new.epoch, -1) <= service.reached:
                return []
            service.phase = Phase.NEW
            return [message]
        if reason in _BLOCK_REASONS:
            service.in_block = reason == _BLOCK_BEGIN
            if reason == "snapshot-end" and quality.get("next"):
                service.reached = (service.new.epoch, (quality["next"] << 16) - 1)
            return [message]
        following = (service.new.epoch, (quality.get("next") or 0) << 16)
        return [message] if following > service.reached else []


def _reason(message: Any) -> str:
    return str(msgspec.json.decode(message.body, type=dict)["reason"])
