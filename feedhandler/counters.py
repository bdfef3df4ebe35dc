"""Every counter of the product: its name, its one-line meaning, and its array column.

A scope (a line, a channel) is one enumeration; a member's value is the column that the compiled
core increments in a numpy array of unsigned 64-bit integers, one row per line or channel. The
metrics, the console view and the documentation are made from these enumerations and from nothing
else.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


class Counter(IntEnum):
    """A column of a counter array, with its meaning."""

    meaning: str

    def __new__(cls, column: int, meaning: str = "") -> "Counter":
        member = int.__new__(cls, column)
        member._value_ = column
        member.meaning = meaning
        return member


class LineCounter(Counter):
    """One line: one socket on one multicast group."""

    PACKETS = 0, "datagrams received"
    BYTES = 1, "bytes received"
    WON = 2, "packets published from this line: its copy came first"
    DUPLICATES = 3, "packets that had been seen before"
    LATE = 4, "packets that came after their range had been announced lost; never published"
    STALE = 5, "packets of an earlier sequence epoch, an earlier session, or from before the start"
    HEARTBEATS = 6, "heartbeats"
    CONTROL = (
        7,
        "packets that say nothing of the stream: time beacons, requests and answers; ignored",
    )
    QUARANTINED = 8, "packets that jumped beyond the window and wait for confirmation"
    HELD = 9, "packets held because an earlier one was missing"
    REFUSED = 10, "packets given up because neither ring nor hold had room"
    FOREIGN_SOURCE = 11, "datagrams from another sender than the configured one"
    UNCONFIGURED_SERVICE = 12, "packets of a service that no channel is configured for"
    OVERSIZE = 13, "datagrams longer than packet_bytes_max"
    KERNEL_DROPS = 14, "datagrams the kernel dropped because the socket's buffer was full"
    SILENCES = 15, "times the line fell silent"
    MISMATCHES = 16, "packets whose message bytes differ from the other line's copy"
    TRUNCATED = 17, "rejected: fewer bytes than the packet header needs"
    LENGTH_MISMATCH = 18, "rejected: the header's length differs from the datagram's size"
    COUNT_MISMATCH = 19, "rejected: the packet does not end after the number of messages it names"
    MESSAGE_SHORT = 20, "rejected: a message's size is too small for its own header"
    MESSAGE_OVERRUN = 21, "rejected: a message reaches past the packet's end"
    UNKNOWN_PACKET_TYPE = 22, "rejected: a packet type the feed's description does not know"
    WRONG_CONSTANT = 23, "rejected: a constant header field has another value"
    CONTROL_SHORT = 24, "rejected: a control packet's body is shorter than its layout"
    COMPRESSED = 25, "rejected: a compressed body, which has no place on a live line"
    INDEX_FULL = 26, "rejected: more messages than an index has room for"
    CHECKSUM = 27, "rejected: a message's checksum is not the sum of its bytes"
    MALFORMED = 28, "rejected: a field of a message's envelope or header is wrong or missing"
    UNKNOWN_FLAGS = 29, "packets with a delivery flag the description does not know; passed on"
    UNKNOWN_TYPES = 30, "messages of types the description does not know, in packets that were new"
    SHORT_MESSAGES = 31, "messages shorter than their layout, in packets that were new; passed on"


class ChannelCounter(Counter):
    """One channel: one space of sequence numbers."""

    PACKETS = 0, "packets published"
    MESSAGES = 1, "messages published"
    BYTES = 2, "bytes published"
    GAPS = 3, "ranges announced lost on every line"
    LOST = 4, "sequence numbers in those ranges (packets or messages, as the feed counts)"
    STARTS = 5, "times the stream was joined"
    RESETS = 6, "new sequence epochs by the feed's sequence reset packet"
    SESSIONS = 7, "new sequence epochs by a new session id"
    RESYNCS = 8, "times one line alone convinced the channel to go on somewhere else"
    JUMPS = 9, "jumps beyond the window that were confirmed"
    MISMATCHES = 10, "packets whose message bytes differ between the lines"
    HOLD_HIGH = 11, "most packets held at once"
    HOLD_FULL = 12, "times the earliest gap was announced early because the hold was full"
    RING_FULL = 13, "times a record had to wait because the ring had no room"
    EVICTED = 14, "quarantined packets pushed out by later ones"
    MISSING = 15, "sequence numbers that the lines did not bring in time and recovery was asked for"
    UNSEQUENCED = (
        16,
        "packets outside the sequence that were published, each as its first copy came",
    )
    UNSEQUENCED_FORGOTTEN = (
        17,
        "fingerprints of such packets that gave way to later ones while copies could still come",
    )
    CONTRADICTED = (
        18,
        "packets dropped as forged: another came with their number, or their line went on below",
    )
    WITHDRAWN = (
        19,
        "sequence numbers announced lost and taken back, because a line went on with them",
    )
    SKIPPED = 20, "sequence numbers that the publisher said no message carries"


#: Counters that hold a highest value and must not be summed.
HIGH_WATER = frozenset({ChannelCounter.HOLD_HIGH})


def counter_array(scope: type[Counter], rows: int) -> "numpy.ndarray":
    """Allocate zeroed counters: uint64, shape (rows, columns of `scope`)."""
    import numpy

    return numpy.zeros((rows, len(scope)), numpy.uint64)


def as_dict(scope: type[Counter], row: "numpy.ndarray") -> dict[str, int]:
    """Convert one row to a dictionary, by name in lower case (`{"packets": 12, ...}`)."""
    return {member.name.lower(): int(row[member]) for member in scope}


class NodeCounter(Counter):
    """The embedded AMQP node and its fan-out."""

    CONNECTIONS_OPENED = 0, "connections accepted"
    CONNECTIONS_REFUSED = (
        1,
        "connections not taken because there were too many, or no descriptor was left",
    )
    CONNECTIONS_FAILED = 2, "connections that broke off, broke the protocol, or fell silent"
    LINKS_OPENED = 3, "links accepted"
    LINKS_REFUSED = 4, "links refused, for whatever reason; those below say which"
    LINKS_OVERRUN = 5, "links detached because too much waited for them"
    ROUTE_LOOKUPS = 6, "symbols looked up in the routing cache"
    ROUTE_HITS = 7, "look-ups that the cache could answer"
    ROUTE_RESETS = 8, "times the cache was emptied because it knew too many symbols"
    QUALITY_MESSAGES = 9, "quality messages sent"
    SENT = 10, "AMQP messages sent on all links"
    SENT_BYTES = 11, "bytes of those messages"
    WAITED = 12, "messages that had to wait for credit or for the connection"
    ACCEPTED = 13, "messages that subscribers accepted, on links that are not pre-settled"
    REFUSED = 14, "messages that subscribers rejected, released or modified"
    RESUMED = 15, "services with which links went on behind their tag, nothing left out"
    RESUMED_LATE = (
        16,
        "services of which not all behind a link's tag could be had; announced as lost",
    )
    OVERTAKEN = (
        17,
        "times the history gave way before a resuming link had read it; announced as lost",
    )
    HISTORY_SENT_BYTES = 18, "bytes of packets read in the history for links that resume"
    SHARED_AGAIN = 19, "messages of groups that went to another member: not settled, or given back"
    SHARED_ABANDONED = 20, "messages of groups dropped because they came back too often"
    LOGINS = 21, "clients that logged in, anonymous ones included"
    LOGINS_REFUSED = 22, "log-ins refused: a wrong password or certificate, or no log-in at all"
    LOGINS_LATE = 23, "connections closed because they took too long to log in and open"
    LOGINS_SHUT = 24, "connections closed unheard: too many log-ins of their address had failed"
    TLS_FAILED = 25, "TLS handshakes and connections that failed"
    CONNECTIONS_LIMITED = 26, "connections closed: too many of their user or address"
    LINKS_LIMITED = 27, "links refused by a limit: too many, or asked for too quickly"
    LINKS_UNENTITLED = 28, "links refused because nothing of their pattern is the user's"
    LINKS_NARROWED = 29, "links accepted that get less than their pattern: the user's part of it"
    DROPPED = 30, "messages dropped on links that drop the oldest; announced as lost"
    DROPPED_BYTES = 31, "bytes of those messages"
    OVERFLOWS = 32, "times the queue of a link became full that is not detached for it"
    CONFLATED = 33, "messages, and levels, that newer ones or a book replaced while they waited"
    CONFLATED_BYTES = 34, "bytes of those messages"
    BOOKS = 35, "books sent anew in place of orders that waited"
    BEHIND_US = 36, "microseconds that such links were behind, added up"
    FULL_US = 37, "microseconds that such links were behind with a queue that had become full"
    CONNECTIONS_FAULTED = 38, "connections ended by an error of the gateway's own in handling them"
    LINKS_OVER_CREDIT = 39, "links detached because their client sent messages beyond its credit"
    LINKS_PARTIAL = 40, "links detached because messages sent in part took too much memory"
    CONNECTIONS_UNREAD = (
        41,
        "connections closed: what they did not read or left open took too much",
    )
    LINKS_INVALID = 42, "links refused because their address cannot be read, or lacks something"
    LINKS_NOT_FOUND = 43, "links refused because nothing has their address"
    LINKS_UNSUPPORTED = (
        44,
        "links refused because they ask for what there is not: browsing, filters",
    )
    LINKS_NOT_ALLOWED = 45, "links refused because the node takes no messages there"
    LOGINS_DEFERRED = 46, "log-ins deferred: too many waited, or had failed there"
    CONNECTIONS_CROWDED = 47, "connections closed before their log-in: others needed the place"
    TRANSACTIONS_COMMITTED = 48, "transactions at durable queues of which all was done"
    TRANSACTIONS_ROLLED_BACK = (
        49,
        "transactions of which nothing was done: asked for, refused, or left open by their client",
    )


class DestinationCounter(Counter):
    """One broker that is published to."""

    SENT = 0, "AMQP messages sent, each once"
    SENT_BYTES = 1, "bytes of those messages"
    CONFIRMED = 2, "messages that the broker has accepted"
    RESENT = 3, "messages sent again: unconfirmed when a connection broke, or given back"
    RELEASED = 4, "times a message came back released: nothing is there to take it"
    REJECTED = 5, "times a message came back rejected"
    MODIFIED = 6, "times a message came back modified"
    UNTOLD = 7, "times a message was settled without an outcome"
    ABANDONED = 8, "messages given up because they came back too often; announced as lost"
    WAITED = 9, "messages that had to wait for the broker"
    DROPPED = 10, "messages dropped because too much waited; announced as lost"
    DROPPED_BYTES = 11, "bytes of those messages"
    OVERFLOWS = 12, "times the queue became full"
    CONNECTS = 13, "times the link was there"
    FAILURES = 14, "connections that broke, and tries that failed"
    DETACHED = 15, "times the link was closed because too much waited, by when_full = detach"
    CONFLATED = 16, "market messages that newer ones or a book replaced while they waited"
    CONFLATED_BYTES = 17, "bytes of those messages"
    BOOKS = 18, "books sent anew in place of orders that waited"
    DISCONNECTED_SECONDS = 19, "time without a link that takes messages"
    BEHIND_SECONDS = 20, "time in which messages waited for the broker"
    FULL_SECONDS = 21, "time in which too much waited, and messages were dropped"
    JOURNALLED = 22, "messages written to the journal, by when_full = journal"
    SPILLED = 23, "messages that were in the journal only, since the broker was behind"
    DRAINED = 24, "messages read back from the journal"
    RECOVERED = 25, "messages of the run before that were in the journal at the start"
    JOURNAL_LATE = 26, "messages that took more than a second to get into the journal"
    JOURNAL_DAMAGED = 27, "messages in the journal whose bytes do not verify; lost"
    JOURNAL_FAULTS = 28, "times the journal's disk failed; from then on all waits in memory"
    SPILLING_SECONDS = 29, "time in which messages were in the journal only"


class QueueCounter(Counter):
    """One durable queue of the node."""

    PUT = 0, "messages that producers sent and that are durable"
    PUT_BYTES = 1, "bytes of messages that were put"
    REFUSED = 2, "messages rejected as they came: too large, no AMQP message, or the queue full"
    FULL = 3, "of those, messages rejected because too much waited for the disk"
    HANDED_OUT = 4, "messages sent to consumers, each time"
    HANDED_OUT_AGAIN = 5, "of those, messages that may have been with a consumer before"
    DELIVERED = 6, "messages that consumers have accepted; that is recorded"
    RETURNED = 7, "messages that came back: released, modified, or their consumer was gone"
    DEAD = 8, "messages that were rejected, or came back too often"
    CANCELLED = 9, "messages that were cancelled while they were pending, or when they came back"
    CANCELS_LATE = 10, "cancel requests for messages that a consumer has or had, or that expired"
    CANCELS_UNKNOWN = 11, "cancel requests for ids that no message has, or that are damaged"
    EXPIRED = 12, "messages whose trading day ended before they were delivered"
    REQUESTS = 13, "management requests"
    REPEATED = 14, "messages that producers sent again: accepted, and not stored again"
    MISFITS = 15, "messages that were not of the structure, or had no key"
    TIMEOUTS = 16, "messages that consumers had too long: given to the next one"
    STALE = 17, "outcomes of consumers that had been given up: they do not count"


class RecorderCounter(Counter):
    """One series of recordings: what the lines received, or what was published."""

    PACKETS = 0, "packets written to files"
    BYTES = 1, "bytes of those, with the headers that a capture has before each"
    DROPPED = 2, "packets that reached no file: the disk did not keep up, or recording had stopped"
    UNWRITABLE = 3, "packets too long for a UDP datagram, which a capture cannot hold"
    FILES = 4, "files begun"
    DELETED = 5, "oldest files deleted to make room"


class SubscriptionCounter(Counter):
    """All links of one client host with one source address, those that have ended included."""

    SENT = 0, "AMQP messages sent"
    SENT_BYTES = 1, "bytes of those messages"
    WAITED = 2, "messages that had to wait for credit or for the connection"
    ACCEPTED = 3, "messages that were accepted, on links that are not pre-settled"
    REFUSED = 4, "messages that were rejected, released or modified"
    LINKS = 5, "links accepted"
    OVERRUN = 6, "links detached because too much waited for them"


class WebCounter(Counter):
    """The HTTP endpoint of metrics and health."""

    CONNECTIONS = 0, "connections taken"
    PUSHED_OUT = 1, "connections cut off, slowest first, because there were too many"
    REQUESTS = 2, "requests answered, whatever the answer"
    BAD_REQUESTS = 3, "of those, refused: no HTTP, too long, another method or path"
    TIMED_OUT = 4, "connections that did not ask, or did not take the answer, in time"
    SCRAPES = 5, "times the metrics were gathered"


class ReceiverCounter(Counter):
    """The receive thread and its ring."""

    RING_WAITS = 0, "times that lines were not read because the ring was full"


#: Gauges by scope: values that may fall, by name with their meaning.
GAUGES: dict[str, dict[str, str]] = {
    "gateway": {
        "live": "1: live, 0: not",
        "ready": "1: ready, 0: not",
    },
    "channel": {
        "next_sequence": "the sequence number expected next",
        "lost_ranges": "ranges announced lost in this sequence epoch",
        "lost_numbers": "sequence numbers in them",
        "unhealed_ranges": "ranges announced lost that no snapshot has made good yet",
        "requested_ranges": "ranges that are being asked for",
        "closed": "1: the stream waits for its first snapshot, 0: it does not",
        "latency_max_seconds": "longest time from the kernel's receive stamp to the write",
        "links": "links that get all of the service, or some of it",
        "store_bytes": "bytes of published packets kept for the catch-up after a snapshot",
        "history_bytes": "bytes of packets, quality messages and blocks kept for links that resume",
    },
    "server": {
        "up": "1: connected, or not connected as nothing is wanted; 0: not",
        "paused": "1: not asked any more today (`feedhandler control resume-requests`), 0: asked",
        "secondary": "1: the secondary server is asked, 0: the primary, or the only one",
    },
    "tcp_line": {
        "up": "1: connected, and logged in where that is needed, 0: not",
    },
    "node": {
        "connections": "connections open now",
        "links": "links attached now",
        "queued_bytes": "bytes that wait in the links' queues now",
    },
    "destination": {
        "up": "1: connected and attached, 0: not",
        "unconfirmed": "messages sent and not confirmed yet",
        "unconfirmed_bytes": "bytes of those",
        "queued": "messages that wait in memory to be sent",
        "queued_bytes": "bytes of those, with what keeping them costs",
        "journal_backlog": "messages that wait in the journal only",
        "journal_bytes": "bytes of the journal's files",
        "oldest_seconds": "age of the oldest unconfirmed message, where there is a journal",
    },
    "queue": {
        "up": "1: open, 0: stopped",
        "depth": "messages that are not delivered",
        "in_hand": "of those, messages that consumers have, or are about to get",
        "waiting_bytes": "bytes that wait for the disk",
        "message_ids": "message-ids that are known",
        "consumers": "consumers attached now",
        "links": "links attached now: producers, consumers, management",
        "next_id": "the id that the next message gets",
        "blocks": "blocks the queue has",
        "blocks_free": "blocks that can be used anew",
        "blocks_max": "blocks it may have",
        "flushes": "writes since it was opened, a sync each where it is durable",
        "journal_bytes": "bytes of those",
        "checkpoints": "checkpoints written since",
        "stalls": "times that messages had to wait for a free block",
        "damaged": "messages whose bytes did not verify",
        "recovery_ms": "how long it took to open",
        "keys": "keys that messages have",
        "parked": "messages that failed too often, and hold their keys",
        "producers_known": "producers whose sequence numbers are known",
        "outbox": "messages on their way to other queues",
    },
    "subscription": {
        "links_now": "links attached now",
        "queued_bytes": "bytes that wait in their queues now",
        "queued_bytes_high": "most bytes that waited in one of their queues",
    },
    "receiver": {
        "ring_bytes": "size of the ring between receive thread and event loop",
        "ring_used_bytes": "bytes of it that wait for the event loop",
        "ring_high_bytes": "most bytes that waited",
    },
    "recorder": {
        "recording": "1: recording, 0: stopped by itself, ended, or not begun",
        "directory_bytes": "bytes of all recordings in the folder",
        "recovered": "files of earlier runs that were found unfinished at the start, and kept",
    },
    "web": {"gather_seconds": "how long the metrics before these took to gather"},
}

#: States of a broker's connection, by state machine.
DESTINATION_STATES: dict[str, str] = {"connection": "where the connection to the broker stands"}

#: States of a channel, by state machine: 1 for the current state, 0 for the others.
STATES: dict[str, str] = {
    "quality": "the state last announced to subscribers",
    "arbitration": "where arbitration of the lines stands",
    "recovery": "where recovery stands",
}

#: Time from the kernel's receive stamp to the write, of each packet that some link got.
LATENCY = "from the kernel's receive stamp of a packet to the write of what it became"
#: Time that a broker takes to confirm, of each message that it did confirm.
CONFIRM = "from a message's first being sent to a broker to its being confirmed"
#: Stages of the event loop that are timed, once a hand-over.
STAGES: dict[str, str] = {
    "route": "from the ring through routing, framing and the AMQP engine",
    "write": "from the engine to the sockets",
    "lag": "how much later than due the event loop comes to a timer",
}

#: What the gateway's core counts of recovery, beside `retrans.manager.COUNTS`: key and meaning.
RECOVERY_IO_COUNTS: dict[str, str] = {
    "disconnects": "connections to servers that were lost or could not be made",
    "untold": "lines for the operator that were not written: written already, or too many",
    "inlet_full": "packets and words for the receive thread that found no room; asked for again",
}

#: Counters of an overlay's member. Members have those of their role, those that are 0 included.
OVERLAY_COUNTS: dict[str, str] = {
    "first": "first copies of messages and heartbeats: taken",
    "duplicate": "further copies: dropped",
    "behind": "copies dropped because they are a whole ring behind: it is too small",
    "old": "copies dropped because their sender was restarted since",
    "stranger": "datagrams dropped: from a sender that is not allowed",
    "seal": "datagrams dropped: another seal than their sender's",
    "stale": "datagrams dropped: a recording of a sender before",
    "number": "reports, probes and answers dropped: numbered as one before",
    "tree": "datagrams dropped: of another tree",
    "short": "datagrams dropped: shorter than a header",
    "magic": "datagrams dropped: none of the overlay's",
    "version": "datagrams dropped: of another version",
    "kind": "datagrams dropped: of no known kind",
    "length": "datagrams dropped: another length than they say",
    "content": "reports, probes and answers dropped: what they say cannot be",
    "echo": "datagrams dropped: from the isolated process, and no answer to a probe",
    "forwarded": "datagrams that a proxy was to send on",
    "sent": "messages that the sender has numbered",
    "intervals": "intervals by whose reports the sender has set its hold",
    "useless": "reports that came too late, or again",
    "delivered": "messages that a receiver has handed on",
    "late": "messages that came after their deadline",
    "passed": "messages dropped because they came after their gap was reported",
    "missing": "messages that a receiver never had",
    "overfull": "messages dropped because too many were held",
    "echoes": "answers of the isolated process to probes of the last hop",
    "unrelayed": "messages that the kernel did not take for the address that they go on to",
    "clock_steps": "steps of a clock that were noticed",
    "datagrams_sent": "datagrams that the kernel took",
    "datagrams_received": "datagrams that came",
    "not_taken": "datagrams that the kernel refused",
    "oversize": "datagrams dropped: longer than any of the overlay's",
    "kernel_drops": "datagrams dropped for want of room in the receive buffer",
    "waits": "times that a line's messages waited for the gateway's receive thread",
}

#: Gauges of an overlay's member, which may fall again.
OVERLAY_GAUGES: dict[str, str] = {
    "topology_version": "version of the topology in force",
    "hold_seconds": "how far ahead of sending deadlines lie: the sender's",
    "held": "messages that a receiver holds now",
    "last_hop_seconds": "how long a message takes to the isolated process; 0: not known",
    "longest_hop_seconds": "the longest last hop of all receivers; 0: not known",
    "extra_hold_seconds": "what a receiver holds besides, for its last hop is shorter",
    "set_apart": "children whose reports do not count: delays beyond the bound, or a clock is off",
    "silent_seconds": "time since something of the sender's came",
    "clock_offset_seconds": "what is added to the own clock to have the sender's",
    "clock_error_seconds": "by how much that may be wrong",
}

#: Counters of a line that comes by TCP, beside those that every line has.
TCP_LINE_COUNTS: dict[str, str] = {
    "connections": "connections made",
    "logins": "logins that the server accepted (SoupBinTCP)",
    "bytes": "bytes that came",
    "messages": "sequenced messages (SoupBinTCP)",
    "packets": "packets of the feed, heartbeats included, made of what came",
    "heartbeats": "the server's signs of life",
    "heartbeats_sent": "heartbeats sent (SoupBinTCP)",
    "ignored": "unsequenced and debug packets: ignored (SoupBinTCP)",
    "refused": "logins that the server refused, or had no such session for (SoupBinTCP)",
    "ended": "sessions that the server ended (SoupBinTCP)",
    "malformed": "connections given up because of bytes that cannot be",
    "silent": "connections given up because nothing came in time",
    "disconnects": "connections lost or given up; attempts that fail in a row count once",
    "waits": "times that packets waited for the gateway's receive thread",
}

#: Counters of the books of which normalised records are made; they count what did not fit.
BOOK_COUNTS: dict[str, str] = {
    "unknown_orders": "messages about orders that no message had added",
    "short": "messages too short for their layout, or (FIX) that cannot be read",
    "sideless": "orders and levels that say no side",
    "unscaled": "prices whose scale is not known: their records have none",
    "clamped": "sizes beyond 32 bits: given as the greatest",
    "unnamed": "messages about symbols beyond the bound",
    "refused": "orders, levels and books beyond the bounds",
}
BOOK_GAUGES: dict[str, str] = {
    "instruments": "instruments that have a book",
    "orders": "orders in them",
    "levels": "price levels in them",
    "book_bytes": "bytes that the books take",
}
