"""The memory that clients can make the gateway take, at the very most: every bound, and the sum.

What it promises: each kind of memory whose amount is a client's doing is here once, as the settings
and constants bound it. The gateway's own (code, ring, hold, books, stores of recovery) is not: it
does not go by what clients do. What an item takes in the engine is an estimate, the one by which
the node counts. docs/flow-control.md tells the same in words, and a test holds both together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from feedhandler.amqp import proton
from feedhandler.amqp.durable import dispatch, intake, links, message_ids
from feedhandler.amqp.serving import connection
from feedhandler.amqp.serving.users import SCRYPT_N, SCRYPT_R
from feedhandler.amqp_settings import AmqpConfig
from feedhandler.config import Config
from feedhandler.queue_settings import DurableQueueConfig

#: What a link's address and routes take, estimated.
ADDRESS_BYTES = 256 << 10
#: What a message-id takes beside its entry in the pages, and a message that has failed; estimated.
INDEX_ENTRY_BYTES = 16
TRIED_BYTES = 128
#: What one password's check takes (RFC 7914).
SCRYPT_BYTES = 128 * SCRYPT_N * SCRYPT_R


@dataclass(frozen=True, slots=True)
class Bound:
    """Something that clients can make the gateway keep: `count` of `each` bytes at most."""

    name: str
    count: int
    each: int

    @property
    def most(self) -> int:
        """Bytes at the very most."""
        return self.count * self.each


def memory_bounds(config: Config) -> tuple[Bound, ...]:
    """Every bound that this configuration sets."""
    return (*_of_links(config), *_of_connections(config), *_of_the_node(config))


def _of_links(config: Config) -> Iterator[Bound]:
    amqp, most = config.amqp, config.amqp.max_links
    open_bytes = amqp.batch_max_bytes + config.arbitration.packet_bytes_max
    yield Bound("queues of links", most, amqp.queue_bytes)
    yield Bound("open batches", most * len(config.channels), open_bytes)
    yield Bound("links", most, proton.OWED_LINK_BYTES + ADDRESS_BYTES)
    yield Bound("unsettled", most * amqp.limits.unsettled_per_link, proton.OWED_DELIVERY_BYTES)
    if config.queues:
        yield Bound("answers to requests", most, links.ANSWERS_BYTES_MAX)


def _of_connections(config: Config) -> Iterator[Bound]:
    amqp = config.amqp
    most = amqp.max_connections + amqp.limits.connections_before_login
    sessions = amqp.limits.sessions_per_connection
    received = connection.TURN_BYTES + 2 * amqp.max_frame_bytes
    yield Bound("frames received", most, received)
    yield Bound("frames to send", most, proton.ENCODED_BYTES_MAX + 2 * amqp.max_frame_bytes)
    yield Bound("messages to send", most, _unsent(amqp))
    yield Bound("a message beyond", amqp.max_links, max(amqp.batch_max_bytes, largest_of(config)))
    yield Bound("sessions", most * sessions, proton.OWED_SESSION_BYTES)
    yield Bound("links half closed", most * connection.LINGERING_LINKS_MAX, proton.OWED_LINK_BYTES)


def _unsent(amqp: AmqpConfig) -> int:
    """What one connection's sessions may hold in the engine, where links are spread evenly: each
    session what it may as it begins, and the later ones less."""
    sending = min(-(-amqp.max_links // amqp.max_connections), amqp.limits.sessions_per_connection)
    shares = (proton.CONNECTION_OUTGOING_BYTES_MAX // number for number in range(1, sending + 1))
    least, most = proton.SESSION_OUTGOING_BYTES_MIN, proton.SESSION_OUTGOING_BYTES_MAX
    return sum(max(least, min(most, share)) for share in shares)


def largest_of(config: Config) -> int:
    """Bytes of the largest message that a durable queue takes."""
    return max((each.message_bytes_max for each in config.queues), default=0)


def _of_the_node(config: Config) -> Iterator[Bound]:
    in_part = connection.PARTIAL_MESSAGES * largest_of(config)
    partial = max(connection.PARTIAL_BYTES_TOTAL, in_part)
    yield Bound("messages in part", 1, partial + connection.TURN_BYTES)
    yield Bound("answers not read", 1, connection.OWED_BYTES_TOTAL + connection.OWED_BYTES_MAX)
    yield Bound("history", len(config.channels), config.amqp.history_bytes * 3 // 2)
    yield Bound("passwords", 1, SCRYPT_BYTES)
    for queue in config.queues:
        yield Bound(f"queue {queue.name}", 1, _of_queue(queue))


def _of_queue(queue: DurableQueueConfig) -> int:
    """What messages and requests at a durable queue may take."""
    waiting = intake.OVERFULL * queue.waiting_bytes_max
    index = message_ids.ENTRIES_MAX * (message_ids.ENTRY_BYTES + INDEX_ENTRY_BYTES)
    counts = dispatch.TRIED_MAX * TRIED_BYTES
    return waiting + intake.RECENT_BYTES_MAX + links.REQUESTS_BYTES_MAX + index + counts
