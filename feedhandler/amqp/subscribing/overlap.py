"""Two links of one connection while a subscription is changed, joined to one stream.

What it is for: the old link is drained once the node has accepted the new one, so that it comes to
an end even where nothing is sent; then it is detached, and the new one is drained once: after that
no message can come that was handed out already, and the overlap is `over`. `read_links` hands out
what `join` makes of both. For messages that wait in `join` no credit is given back.

What it leaves to others: the joining itself (`join`), whose connection it is (`upstream`).
"""

from collections.abc import Callable

from feedhandler.amqp.subscribing.attachment import Intake
from feedhandler.amqp.subscribing.inbox import Message, singles
from feedhandler.amqp.subscribing.join import Join


class Overlap:
    """The stream of `old`, and from some position of each service on that of `new`.

    `tags`: by service, the tag of what was handed out last. `received` counts what both links have
    brought.
    """

    def __init__(self, old: Intake, new: Intake, tags: dict[int, bytes], grain: str) -> None:
        self.old = old
        self.new = new
        self.tags = dict(tags)
        self.over = False
        self.received = 0
        self._left = False
        self._read_old = self._read_new = 0
        self._batches = grain == "batch"
        self._join = Join({service: int.from_bytes(tag[8:]) for service, tag in tags.items()})

    def accepted(self) -> None:
        """Drain the old link, as the node has accepted the new one."""
        self.old.drain()

    @property
    def waiting(self) -> bool:
        """Return whether `read_links` would do anything."""
        if self.old.link.count or self.new.link.count:
            return True
        return not self.over and (self.new if self._left else self.old).drained

    def read_links(self, read: Callable[[Intake], list[Message]]) -> list[Message]:
        """Read both links by `read`, which empties one, and return the messages to hand out.
        `go_on` must follow."""
        messages: list[Message] = []
        join = self._join
        self._read_old += self.old.link.count
        self._read_new += self.new.link.count
        self.received += self.old.link.count + self.new.link.count
        for message in self._read(self.old, read):
            messages += join.old(message)
        for message in self._read(self.new, read):
            messages += join.new(message)
        if self.old.drained and not join.done:
            messages += join.old_ended()
        for message in messages:
            if message.content != "quality" and message.sequence >> 62 == 0:
                self.tags[message.service] = message.tag
        return messages

    def go_on(self) -> None:
        """Give credit back, and take the next step; the caller has stored what `read_links`
        returned."""
        consumed, self._read_old = self._read_old, 0
        self.old.grant(consumed)
        if not self._join.held:
            consumed, self._read_new = self._read_new, 0
            self.new.grant(consumed)
        if self._join.done and not self._left:
            self._left = True
            self.old.attachment.detach(self.old)
            self.new.drain()
        elif self._left and self.new.drained and not self.new.link.count:
            self.over = True
            self.new.drained = False  # the next change drains it anew

    def _read(self, intake: Intake, read: Callable[[Intake], list[Message]]) -> list[Message]:
        """Read what a link holds; batches are split into packets, for the two links' batches
        differ."""
        if not intake.link.count:
            return []
        messages = read(intake)
        return [x for message in messages for x in singles(message)] if self._batches else messages
