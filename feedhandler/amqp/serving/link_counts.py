"""What a link has counted, added to the node's counters: as it ends, or as these are read."""

import numpy

from feedhandler.amqp.outlet import Outlet
from feedhandler.amqp.queueing.backlog import Backlog
from feedhandler.counters import NodeCounter


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
