"""Fast dispatch from a link to a subscriber's callback, in one compiled call.

What it is for: a reader that is woken for every message, as one of live market data is, spends more
on getting from the socket to its callback than on the message. `FastDispatch.dispatch` hands over
what one read has brought, without checking anything that stays the same from read to read.

What it leaves to others: quality messages, borders of snapshot blocks and malformed messages. It
stops before them and returns False, and `Subscriber` goes on from there.
"""

from collections.abc import Callable
from typing import Any

import cython
from cython.cimports.feedhandler.amqp.proton import ReceiverLink
from cython.cimports.feedhandler.amqp.subscribing.columns import Batch
from cython.cimports.feedhandler.amqp.subscribing.inbox import Inbox

from feedhandler.codecs.visibility import Readonly


@cython.cclass
class FastDispatch:
    """Dispatch of what `link` brings to `callback`; `intake` gives credit back for it. The other
    arguments are those of a `Batch`.

        link, callback   what it was made for; another link or callback needs another one
        batch, filled    after `dispatch` returned False: the messages that it could hand over
    """

    link: Readonly[ReceiverLink]
    callback: Readonly[object]
    batch: Readonly[Batch]
    filled: Readonly[cython.Py_ssize_t]
    inbox: Inbox
    intake: object
    feed: object
    grain: str
    workspace: object
    consumed: cython.Py_ssize_t
    granted_at: cython.Py_ssize_t

    def __init__(
        self,
        intake: Any,
        callback: Callable[[Batch], object],
        feed: Any,
        grain: str,
        workspace: Any,
    ) -> None:
        self.intake = intake
        self.link = intake.link
        self.inbox = intake.inbox
        self.callback = callback
        self.feed = feed
        self.grain = grain
        self.workspace = workspace
        self.granted_at = max(1, (intake.credit + 1) // 2)
        self.consumed = self.filled = 0
        self.batch: Batch | None = None

    def dispatch(self) -> cython.bint:
        """Hand over all that the link holds. Returns False, having handed over nothing, where
        `Subscriber` must: then `filled` of its messages are in `batch`."""
        link: ReceiverLink = self.link
        count: cython.Py_ssize_t = link.count
        batch: Batch = Batch(self.feed, self.grain, None, self.workspace)
        filled: cython.Py_ssize_t = batch.fill(self.inbox, link, 0, count)
        if filled != count:
            self.batch, self.filled = batch, filled
            return False
        link.clear()
        self.callback(batch)
        self.consumed += count
        if self.consumed >= self.granted_at:
            self.return_credit()
        return True

    def return_credit(self) -> cython.int:
        """Give credit back for all that was handed over."""
        consumed: cython.Py_ssize_t = self.consumed
        self.consumed = 0
        self.intake.grant(consumed)
        return 0
