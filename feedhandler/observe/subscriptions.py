"""Subscriptions: counts by client host and source address, and log lines about links.

Links come and go, and clients choose their names: counted one by one they would make ever more
series. So links of one host with one address are counted together, those that have ended included,
and at most `SUBSCRIPTIONS_MAX` such pairs are kept apart; later ones are `other`.

The node calls it (`link_counts.LinkObserver`) on the event loop; no call returns anything or
blocks.
"""

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy

from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.counters import SubscriptionCounter, as_dict, counter_array
from feedhandler.operator_log import clean, log_event

#: Pairs of host and address that are counted apart.
SUBSCRIPTIONS_MAX = 500
#: A longer address is cut in labels.
ADDRESS_CHARS_MAX = 200
OTHER = ("other", "other")

Labels = tuple[str, str]


class Subscriptions:
    """Counts of every subscription since the start: `rows`."""

    def __init__(self) -> None:
        self._ended: dict[Labels, numpy.ndarray] = {}
        self._highest: dict[Labels, int] = {}
        self._sender_queues: dict[SenderQueue, Labels] = {}
        self._live: dict[Labels, dict[SenderQueue, None]] = {}

    # -- called by the node -----------------------------------------------------------------

    def attached(self, sender_queue: SenderQueue, peer: str, address: str) -> None:
        """Count a link that was accepted; `peer` is the client's host:port."""
        labels = (peer.rpartition(":")[0], clean(address)[:ADDRESS_CHARS_MAX])
        if labels not in self._ended and len(self._ended) >= SUBSCRIPTIONS_MAX:
            labels = OTHER
        if labels not in self._ended:
            self._ended[labels] = counter_array(SubscriptionCounter, 1)[0]
            self._live[labels] = {}
        self._ended[labels][SubscriptionCounter.LINKS] += 1
        self._sender_queues[sender_queue] = labels
        self._live[labels][sender_queue] = None
        text = f"{peer}: link to {address}"
        log_event("link_attached", text, logging.DEBUG, peer=peer, address=address)

    def refused(self, peer: str, address: str, condition: str, reason: str) -> None:
        """Log that a link was refused."""
        which = f"to {address!r}" if address else "without an address"
        log_event(
            "link_refused",
            f"{peer}: link {which} refused: {reason}",
            peer=peer,
            address=address,
            condition=condition,
            reason=reason,
        )

    def unread(self, peer: str, held_bytes: int) -> None:
        """Log that a client was disconnected because it left too much unread or open."""
        log_event(
            "connection_unread",
            f"{peer}: closed: what it did not read or left open took {held_bytes:,} bytes",
            peer=peer,
            held_bytes=held_bytes,
        )

    def login_refused(self, peer: str, user: str, mechanism: str, reason: str) -> None:
        """Log that a client's log-in was refused."""
        who = f" as {user!r}" if user else ""
        log_event(
            "login_refused",
            f"{peer}: log-in{who} refused: {reason}",
            peer=peer,
            user=user,
            mechanism=mechanism,
            reason=reason,
        )

    def faulted(self, peer: str, error: Exception) -> None:
        """Log that a connection was ended by an internal error in handling it."""
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        where = (
            f"{Path(frames[0].filename).name}:{frames[0].lineno}" if frames else "an unknown place"
        )
        reason = f"{type(error).__name__}: {error}"
        log_event(
            "connection_faulted",
            f"{peer}: ended by an internal error at {where}: {reason}; please report it",
            logging.ERROR,
            peer=peer,
            error=reason,
            where=where,
        )

    def overrun(self, sender_queue: SenderQueue, peer: str) -> None:
        """Count a link that is detached because too much waits for it; `ended` follows."""
        labels = self._sender_queues.get(sender_queue, OTHER)
        if labels in self._ended:
            self._ended[labels][SubscriptionCounter.OVERRUN] += 1
        log_event(
            "link_detached",
            f"{peer}: link to {labels[1]} detached: more than "
            f"{sender_queue.queue_bytes_max:,} bytes waited for it",
            peer=peer,
            address=labels[1],
            queue_bytes_max=sender_queue.queue_bytes_max,
        )

    def ended(self, sender_queue: SenderQueue) -> None:
        """Add an ended link's counts to those of its subscription."""
        labels = self._sender_queues.pop(sender_queue, None)
        if labels is not None:
            del self._live[labels][sender_queue]
            _add(self._ended[labels], sender_queue)
            high = max(self._highest.get(labels, 0), sender_queue.queued_bytes_high)
            self._highest[labels] = high

    # -- read by the metrics ----------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Labels, dict[str, float]]]:
        """Yield each subscription: its labels (host, address) and its values by name."""
        for labels in list(self._ended):
            live = list(self._live[labels])
            counts = self._ended[labels].copy()
            for sender_queue in live:
                _add(counts, sender_queue)
            high = max([self._highest.get(labels, 0), *(each.queued_bytes_high for each in live)])
            yield (
                labels,
                {
                    **as_dict(SubscriptionCounter, counts),
                    "links_now": len(live),
                    "queued_bytes": sum(each.queued_bytes for each in live),
                    "queued_bytes_high": high,
                },
            )


def _add(counts: numpy.ndarray, sender_queue: SenderQueue) -> None:
    counts[SubscriptionCounter.SENT] += sender_queue.sent
    counts[SubscriptionCounter.SENT_BYTES] += sender_queue.sent_bytes
    counts[SubscriptionCounter.WAITED] += sender_queue.waited
    counts[SubscriptionCounter.ACCEPTED] += sender_queue.sender.accepted
    counts[SubscriptionCounter.REFUSED] += sender_queue.sender.refused
