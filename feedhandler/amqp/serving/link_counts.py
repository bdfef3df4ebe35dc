"""Links' counters, and the interface of those that observe links."""

from typing import Protocol

import numpy

from feedhandler.amqp.outlet import Outlet
from feedhandler.amqp.queueing.backlog import Backlog
from feedhandler.counters import NodeCounter

#: Refusals of links that have a counter of their own, beside the one of all.
REFUSALS = {
    "amqp:resource-limit-exceeded": NodeCounter.LINKS_LIMITED,
    "amqp:unauthorized-access": NodeCounter.LINKS_UNENTITLED,
    "amqp:invalid-field": NodeCounter.LINKS_INVALID,
    "amqp:not-found": NodeCounter.LINKS_NOT_FOUND,
    "amqp:not-implemented": NodeCounter.LINKS_UNSUPPORTED,
    "amqp:not-allowed": NodeCounter.LINKS_NOT_ALLOWED,
}


class LinkObserver(Protocol):
    """Observer of links and log-ins; `peer` is the client's host:port."""

    def attached(self, outlet: Outlet, peer: str, address: str) -> None: ...
    def refused(self, peer: str, address: str, condition: str, reason: str) -> None: ...
    def overrun(self, outlet: Outlet, peer: str) -> None: ...
    def ended(self, outlet: Outlet) -> None: ...
    def unread(self, peer: str, held_bytes: int) -> None: ...
    def login_refused(self, peer: str, user: str, mechanism: str, reason: str) -> None: ...
    def faulted(self, peer: str, error: Exception) -> None: ...


def add_outlet(counts: numpy.ndarray, outlet: Outlet) -> None:
    """Add what one link has counted to the node's counters."""
    counts[NodeCounter.SENT] += outlet.sent
    counts[NodeCounter.SENT_BYTES] += outlet.sent_bytes
    counts[NodeCounter.WAITED] += outlet.waited
    counts[NodeCounter.ACCEPTED] += outlet.sender.accepted
    counts[NodeCounter.REFUSED] += outlet.sender.refused
    if isinstance(outlet, Backlog):
        now_ns = outlet.clock()
        counts[NodeCounter.DROPPED] += outlet.dropped
        counts[NodeCounter.DROPPED_BYTES] += outlet.dropped_bytes
        counts[NodeCounter.OVERFLOWS] += outlet.overflows
        counts[NodeCounter.CONFLATED] += outlet.conflated
        counts[NodeCounter.CONFLATED_BYTES] += outlet.conflated_bytes
        counts[NodeCounter.BOOKS] += outlet.books_sent
        counts[NodeCounter.BEHIND_US] += outlet.behind_time.total_ns(now_ns) // 1000
        counts[NodeCounter.FULL_US] += outlet.full_time.total_ns(now_ns) // 1000
