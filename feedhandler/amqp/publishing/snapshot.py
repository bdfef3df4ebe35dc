"""State and counters of one destination, for statistics and metrics.

What it is for: the one module that knows which of a destination's parts counts what. A destination
without a journal has the journal's values too, and they are 0. No I/O.
"""

import time
from typing import TYPE_CHECKING, Any

from feedhandler.amqp.queueing.unsettled_map import Outcome
from feedhandler.counters import DestinationCounter

if TYPE_CHECKING:
    from feedhandler.amqp.publishing.publisher import Publisher

#: The journal's values where there is no journal.
_NO_JOURNAL: dict[str, Any] = {
    "journal": "",
    "journal_backlog": 0,
    "journal_bytes": 0,
    "oldest_seconds": 0.0,
}


def counts_of(publisher: "Publisher", now_ns: int) -> dict[DestinationCounter, float]:
    """Return every counter; `now_ns` is of the clock by which waits are measured."""
    destination, unsettled = publisher.destination, publisher.destination.unsettled
    runner = publisher.spill_runner
    return {
        **dict.fromkeys(DestinationCounter, 0),
        DestinationCounter.SENT: destination.sent,
        DestinationCounter.SENT_BYTES: destination.sent_bytes,
        DestinationCounter.CONFIRMED: unsettled.confirmed,
        DestinationCounter.RESENT: unsettled.resent,
        DestinationCounter.RELEASED: unsettled.counts[Outcome.RELEASED],
        DestinationCounter.REJECTED: unsettled.counts[Outcome.REJECTED],
        DestinationCounter.MODIFIED: unsettled.counts[Outcome.MODIFIED]
        + unsettled.counts[Outcome.UNDELIVERABLE],
        DestinationCounter.UNTOLD: unsettled.counts[Outcome.UNTOLD],
        DestinationCounter.ABANDONED: destination.abandoned,
        DestinationCounter.WAITED: destination.waited,
        DestinationCounter.DROPPED: destination.dropped,
        DestinationCounter.DROPPED_BYTES: destination.dropped_bytes,
        DestinationCounter.OVERFLOWS: destination.overflows,
        DestinationCounter.CONNECTS: publisher.connects,
        DestinationCounter.FAILURES: publisher.failures,
        DestinationCounter.DETACHED: publisher.detached,
        DestinationCounter.CONFLATED: destination.conflated,
        DestinationCounter.CONFLATED_BYTES: destination.conflated_bytes,
        DestinationCounter.BOOKS: destination.books_sent,
        DestinationCounter.DISCONNECTED_SECONDS: publisher.down_time.total_ns(now_ns) / 1e9,
        DestinationCounter.BEHIND_SECONDS: destination.behind_time.total_ns(now_ns) / 1e9,
        DestinationCounter.FULL_SECONDS: destination.full_time.total_ns(now_ns) / 1e9,
        **({} if runner is None else runner.counts(now_ns)),
    }


def snapshot_of(publisher: "Publisher") -> dict[str, Any]:
    """Return state and counters by name."""
    destination, unsettled = publisher.destination, publisher.destination.unsettled
    p50, p90, p99 = unsettled.latency.percentiles(0.5, 0.9, 0.99)
    runner = publisher.spill_runner
    return {
        "name": publisher.config.name,
        "to": publisher.broker_address.shown,
        "kind": publisher.kind,
        "broker": publisher.broker,
        "state": publisher.state.value,
        "reason": "" if publisher.state.value == "UP" else publisher.reason,
        "unconfirmed": len(unsettled.held),
        "unconfirmed_bytes": unsettled.bytes,
        "queued": len(destination.queue),
        "queued_bytes": destination.queued_bytes,
        **(_NO_JOURNAL if runner is None else runner.snapshot()),
        "confirm_ns": {"p50": p50, "p90": p90, "p99": p99, "max": unsettled.latency.maximum},
        **{
            counter.name.lower(): value
            for counter, value in counts_of(publisher, time.monotonic_ns()).items()
        },
    }
