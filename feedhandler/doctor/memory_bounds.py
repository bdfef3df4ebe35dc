"""The most memory that clients can make the gateway use: every bound, and the sum.

What it promises: each kind of memory whose amount depends on clients is here once, as the settings
and constants bound it. The gateway's own (code, ring, hold, books, stores of recovery) is not: it
does not depend on clients. What an item takes in the engine is an estimate, the one by which the
node counts. docs/flow-control.md says the same in words, and a test compares the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from feedhandler.amqp import proton
from feedhandler.amqp.durable import (
    dispatch,
    intake,
    links,
    message_ids,
    outbox,
    transactions,
)
from feedhandler.amqp.durable.queue import READ_BYTES_MAX
from feedhandler.amqp.routing import PATTERNS_MAX
from feedhandler.amqp.serving import connection
from feedhandler.amqp.users import SCRYPT_N, SCRYPT_R
from feedhandler.config import Config
from feedhandler.config.amqp import AmqpConfig
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.keyed.definition import Definition

#: Memory of each, with Python's objects: measured, and rounded up.
CONNECTION_BYTES = 32 << 10
LINK_BYTES = 8 << 10
PATTERN_BYTES = 512
UNSETTLED_BYTES = 2 << 10
#: A message-id beside its entry in the index's pages; a message whose failures are counted.
NEWEST_ID_BYTES = 16
TRIED_BYTES = 128
#: Memory of one password's check (RFC 7914).
SCRYPT_BYTES = 128 * SCRYPT_N * SCRYPT_R


@dataclass(frozen=True, slots=True)
class Bound:
    """One kind of memory that clients can make the gateway use: `count` of `each` bytes at most."""

    name: str
    count: int
    each: int

    @property
    def most(self) -> int:
        """The most bytes that it can take."""
        return self.count * self.each


def memory_bounds(config: Config) -> tuple[Bound, ...]:
    """Return every bound that this configuration sets."""
    return (*_of_links(config), *_of_connections(config), *_of_the_node(config))


def _of_links(config: Config) -> Iterator[Bound]:
    amqp, most = config.amqp, config.amqp.max_links
    open_bytes = amqp.batch_max_bytes + config.arbitration.packet_bytes_max
    yield Bound("queues of links", most, amqp.queue_bytes)
    yield Bound("open batches", most * len(config.channels), open_bytes)
    yield Bound("a message beyond", most, max(amqp.batch_max_bytes, _largest(config)))
    yield Bound("unsettled messages", most * amqp.limits.unsettled_per_link, UNSETTLED_BYTES)
    yield Bound("links", most, LINK_BYTES + PATTERNS_MAX * PATTERN_BYTES)
    if config.queues:
        yield Bound("answers to requests", most, links.ANSWERS_BYTES_MAX)


def _of_connections(config: Config) -> Iterator[Bound]:
    amqp = config.amqp
    most = amqp.max_connections + amqp.limits.connections_before_login
    framed = connection.TURN_BYTES + proton.ENCODED_BYTES_MAX + 4 * amqp.max_frame_bytes
    yield Bound("connections", most, CONNECTION_BYTES + framed)
    yield Bound("messages to send", most, _unsent(amqp))


def _unsent(amqp: AmqpConfig) -> int:
    """Return the bytes that one connection's sessions may hold in the engine.

    Links are taken to be spread evenly: each session may hold its share as it begins, and later
    ones less.
    """
    sending = min(-(-amqp.max_links // amqp.max_connections), amqp.limits.sessions_per_connection)
    shares = (proton.CONNECTION_OUTGOING_BYTES_MAX // number for number in range(1, sending + 1))
    least, most = proton.SESSION_OUTGOING_BYTES_MIN, proton.SESSION_OUTGOING_BYTES_MAX
    return sum(max(least, min(most, share)) for share in shares)


def _largest(config: Config) -> int:
    """Return the bytes of the largest message that a durable queue takes."""
    return max((queue.message_bytes_max for queue in config.queues), default=0)


def _of_the_node(config: Config) -> Iterator[Bound]:
    in_part = connection.PARTIAL_MESSAGES * _largest(config)
    partial = max(connection.PARTIAL_BYTES_TOTAL, in_part)
    yield Bound("messages in part", 1, partial + connection.TURN_BYTES)
    yield Bound("answers not read", 1, connection.OWED_BYTES_TOTAL + connection.OWED_BYTES_MAX)
    yield Bound("sessions and links half closed", connection.KEPT_TOTAL, connection.KEPT_BYTES)
    yield Bound("history", len(config.channels), config.amqp.history_bytes * 3 // 2)
    yield Bound("passwords", 1, SCRYPT_BYTES)
    if config.queues:
        yield Bound("transactions", 1, transactions.BYTES_TOTAL)
    for queue in config.queues:
        yield Bound(f"queue {queue.name}", 1, _of_queue(queue))


#: Memory in a keyed queue of a message, each of its keys' entries, a key, and a producer.
MESSAGE_BYTES, KEY_SLOT_BYTES, KEY_BYTES, PRODUCER_BYTES = 28, 12, 40, 300


def _of_queue(queue: DurableQueueConfig) -> int:
    """Return the bytes that messages and requests at a durable queue may take."""
    waiting = intake.OVERFULL * queue.waiting_bytes_max + intake.RECENT_BYTES_MAX
    read = READ_BYTES_MAX + queue.message_bytes_max
    index = message_ids.ENTRIES_MAX * (message_ids.ENTRY_BYTES + NEWEST_ID_BYTES)
    counts = dispatch.TRIED_MAX * TRIED_BYTES
    # A transaction is taken whole, or waits; messages for other queues wait until those take them.
    sent = outbox.OUTBOX_BYTES_MAX + 2 * transactions.BYTES_MAX
    return waiting + read + links.REQUESTS_BYTES_MAX + index + counts + sent + _of_keys(queue.key)


def _of_keys(key: Definition | None) -> int:
    """Return the bytes that a keyed queue keeps of messages, keys and producers; else 0."""
    if key is None:
        return 0
    key_slots = key.structure().key_slots
    each = MESSAGE_BYTES + key_slots * KEY_SLOT_BYTES
    keys = key.keys_max or key_slots * key.messages_max
    return each * key.messages_max + KEY_BYTES * keys + PRODUCER_BYTES * key.producers_max
