"""Links' counters, and the interface of those that observe links."""

from typing import Protocol

import numpy

from feedhandler.amqp import conditions
from feedhandler.amqp.queueing.backlog import Backlog
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.counters import NodeCounter

#: Refusals of links that have a counter of their own, beside the one of all.
REFUSALS = {
    conditions.RESOURCE_LIMIT_EXCEEDED: NodeCounter.LINKS_LIMITED,
    conditions.UNAUTHORIZED_ACCESS: NodeCounter.LINKS_UNENTITLED,
    conditions.INVALID_FIELD: NodeCounter.LINKS_INVALID,
    conditions.NOT_FOUND: NodeCounter.LINKS_NOT_FOUND,
    conditions.NOT_IMPLEMENTED: NodeCounter.LINKS_UNSUPPORTED,
    conditions.NOT_ALLOWED: NodeCounter.LINKS_NOT_ALLOWED,
}


class LinkObserver(Protocol):
    """Observer of links and log-ins; `peer` is the client's host:port."""

    def attached(self, sender_queue: SenderQueue, peer: str, address: str) -> None:
        """Note a link that a client has attached to an address."""

    def refused(self, peer: str, address: str, condition: str, reason: str) -> None:
        """Note a link that was refused, with the condition and the reason that the client gets."""

    def overrun(self, sender_queue: SenderQueue, peer: str) -> None:
        """Note that a link ends because its client did not keep up."""

    def ended(self, sender_queue: SenderQueue) -> None:
        """Note that a link has ended."""

    def unread(self, peer: str, held_bytes: int) -> None:
        """Note a connection that ends because its client does not read what is held for it."""

    def login_refused(self, peer: str, user: str, mechanism: str, reason: str) -> None:
        """Note a log-in that was refused."""

    def faulted(self, peer: str, error: Exception) -> None:
        """Note an error of ours that ended a connection."""


def add_sender_queue(counts: numpy.ndarray, sender_queue: SenderQueue) -> None:
    """Add what one link has counted to the node's counters."""
    counts[NodeCounter.SENT] += sender_queue.sent
    counts[NodeCounter.SENT_BYTES] += sender_queue.sent_bytes
    counts[NodeCounter.WAITED] += sender_queue.waited
    counts[NodeCounter.ACCEPTED] += sender_queue.sender.accepted
    counts[NodeCounter.REFUSED] += sender_queue.sender.refused
    if isinstance(sender_queue, Backlog):
        now_ns = sender_queue.clock()
        counts[NodeCounter.DROPPED] += sender_queue.dropped
        counts[NodeCounter.DROPPED_BYTES] += sender_queue.dropped_bytes
        counts[NodeCounter.OVERFLOWS] += sender_queue.overflows
        counts[NodeCounter.CONFLATED] += sender_queue.conflated
        counts[NodeCounter.CONFLATED_BYTES] += sender_queue.conflated_bytes
        counts[NodeCounter.BOOKS] += sender_queue.books_sent
        counts[NodeCounter.BEHIND_US] += sender_queue.behind_time.total_ns(now_ns) // 1000
        counts[NodeCounter.FULL_US] += sender_queue.full_time.total_ns(now_ns) // 1000
    else:  # links of levels conflate, too; their module is loaded where there are any
        counts[NodeCounter.CONFLATED] += getattr(sender_queue, "conflated", 0)
