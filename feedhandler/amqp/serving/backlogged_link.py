"""A subscriber's link that is not given up when it is behind: `full=drop_oldest` or `conflate`.

What it is for: the ordinary `SenderQueue` detaches its link when its queue is full. A
`BackloggedLink` has the queue of a `Backlog` behind it instead. As long as nothing waits it does
what a sender queue does.

What it promises: a subscriber sees no gap in the link's group-sequence whatever was dropped: a
message is numbered as it is sent. Drops are announced by quality messages alone, so a link without
them cannot have this.
"""

import cython
from cython.cimports.feedhandler.amqp.framing import Frame, Template, read_uint
from cython.cimports.feedhandler.amqp.queueing.backlog import Backlog
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage

from feedhandler.amqp.framing import QUALITY_NOTE

_NOTE = cython.declare(cython.uint, QUALITY_NOTE)
#: Numbers of a link wrap here; as a literal it would make Python integers of them.
_WRAPS = cython.declare(cython.longlong, 0xFFFF_FFFF)


@cython.cclass
class BackloggedLink(Backlog):
    """A link whose queue has a policy; see `Backlog`."""

    def deliver(self, frame: Frame) -> cython.int:
        """Send the finished message, or queue it behind what waits."""
        if self.overrun:
            return 0
        if self._may_send():
            template: Template = frame.template
            if read_uint(frame.data, template.tag_at + 16, 2) != _NOTE:
                frame.number(cython.cast(cython.uint, self._number(template.key)))
                self.sender.send(frame.data, 0, frame.used)
                self.sent += 1
                self.sent_bytes += frame.used
                self.peer.mark_dirty()
                return 0
        return Backlog.deliver(self, frame)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _number(self, key: str) -> cython.longlong:
        """Take the next group-sequence of the link, which does not depend on the key."""
        number: cython.longlong = self.group_sequence
        self.group_sequence = (number + 1) & _WRAPS
        return number

    def _dispatch(self, outgoing: OutgoingMessage) -> cython.int:
        """Send a message that has its group-sequence already."""
        return self.sender.send(outgoing.data, 0, len(outgoing.data))

    def _overflow(self) -> None:
        """Drop the oldest messages past the bound; with conflation, give the link up where even the
        conflated backlog is too large."""
        if self.conflation is None:
            Backlog._overflow(self)
        elif not self._squeeze():
            self.overflows += 1
            self.give_up()
