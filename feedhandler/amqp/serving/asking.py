"""Checks of what a link asks for: its address, what the node does not offer, bounds.

Every refusal is an `AddressError`, with the condition and the text that the client gets.
"""

import time
from typing import TYPE_CHECKING, Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.routing import AddressError, Subscription, parse_address
from feedhandler.amqp.users import admit
from feedhandler.counters import NodeCounter

if TYPE_CHECKING:
    from feedhandler.amqp.serving.connection import NodeConnection

#: Room in the frame that answers an attach for all that is neither the link's name nor its address.
ANSWER_BYTES = 256


def asked_for(connection: "NodeConnection", link: Any) -> Subscription:
    """Parse and admit what the link asks for. Raises AddressError where it cannot have that."""
    node = connection.node
    if link.coordinator:
        raise AddressError(
            "a coordinator of transactions sends nothing",
            conditions.NOT_IMPLEMENTED,
        )
    if link.dynamic:
        raise AddressError(
            "this node has no temporary queues or topics", conditions.NOT_IMPLEMENTED
        )
    if isinstance(link, proton.ReceiverLink):
        raise AddressError(
            "no messages are taken here, only at queue.NAME, where there is such a queue",
            conditions.NOT_ALLOWED,
        )
    check_limits(connection, link, link.source_address)
    asked = parse_address(
        link.source_address,
        node.message_type,
        node.snapshots,
        node.history,
        node.policies,
        node.fanout.records is not None,
    )
    assert connection.user is not None
    subscription, narrowed = admit(connection.user, asked)
    node.counts[NodeCounter.LINKS_NARROWED] += narrowed
    return subscription


def check_limits(connection: "NodeConnection", link: Any, addresses: str) -> None:
    """Check the bounds on links. Raises AddressError where one more is too many, where links are
    attached too quickly, or where the answer would not fit into a frame."""
    node = connection.node
    links_max = node.gate.limits.links_per_connection
    if node.links >= node.settings.max_links or 0 < links_max <= connection.links:
        raise AddressError("too many links", conditions.RESOURCE_LIMIT_EXCEEDED)
    if not connection.attaches.try_acquire(time.monotonic_ns()):
        raise AddressError("links are asked for too quickly", conditions.RESOURCE_LIMIT_EXCEEDED)
    frame_bytes = connection.engine.remote_max_frame_bytes
    if frame_bytes and len(f"{link.name}{addresses}") + ANSWER_BYTES > frame_bytes:
        # The answer repeats both, and an attach cannot be sent in parts.
        raise AddressError(f"frames of {frame_bytes} bytes have no room for the address")
