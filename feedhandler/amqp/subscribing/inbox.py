"""Received AMQP messages as Python objects, and as batches of packets for the columns.

What it is for: the subscriber's hot path. One call turns everything that one read brought into
`Message` objects, or gathers the packets' bytes for a `Batch`; both check that the link's
group-sequence has no gap. A malformed message or a gap ends the stream there: the messages before
it are returned, and `failure` says what is wrong.

What it leaves to others: sockets and credit (`subscriber`), what the bytes mean (the codecs, called
only when a `Message` is asked for records).
"""

import datetime
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import cython
import msgspec
import numpy
from cython.cimports.feedhandler.amqp.framing import Reader, read_uint
from cython.cimports.feedhandler.amqp.proton import ReceiverLink
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.scanner import frame_length, parse_header

if cython.compiled:
    from cython.cimports.libc.string import memcpy


from feedhandler.amqp import framing
from feedhandler.codecs.dbn import SCHEMAS, decode_records
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.feed import split_packets
from feedhandler.codecs.feed_table import NO_SEND_TIME
from feedhandler.codecs.loader import list_feeds, load_feed
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.codecs.visibility import Readonly

_TAG_BYTES = cython.declare(cython.Py_ssize_t, framing.TAG_BYTES)
_QUALITY_BYTES = framing.CONTENT_QUALITY.encode()
_QUALITY_SIZE = cython.declare(cython.Py_ssize_t, len(_QUALITY_BYTES))
_WHOLE = cython.declare(cython.int, framing.WHOLE_PACKET)
#: All bits of a tag's sequence but the highest, which marks a snapshot block's.
_LOW_BITS = cython.declare(cython.ulonglong, (1 << 63) - 1)
#: The message number of quality messages, which have no position in the stream.
_NOTE = cython.declare(cython.uint, framing.QUALITY_NOTE)
#: Numbers of a link wrap here; as a literal it would make Python integers of them.
_WRAPS = cython.declare(cython.longlong, 0xFFFF_FFFF)
#: Services whose last position is kept in arrays, by the low bits of their numbers; where two share
#: a slot, the less recently read one is kept in a dict.
SLOTS = 256
#: Arrays of `Inbox.collect`, each with one value a body.
PARTS = 7
_NOWHERE = cython.declare(cython.ulonglong, (1 << 64) - 1)


@cython.cfunc
def _slice(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> bytes:
    """Copy `data[start : start + size]` to bytes. Raises IndexError where it is outside."""
    if start < 0 or size < 0 or start + size > len(data):
        raise IndexError("slice outside the buffer")
    if size == 0:
        return b""
    if cython.compiled:
        return cython.cast(cython.p_char, cython.address(data[start]))[:size]
    return bytes(data[start : start + size])


@cython.cfunc
def _move(
    target: bytearray,
    at: cython.Py_ssize_t,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Copy `data[start : start + size]` into `target`. Raises IndexError where either is too
    short."""
    if at < 0 or start < 0 or size < 0 or at + size > len(target) or start + size > len(data):
        raise IndexError("copy outside the buffer")
    if size == 0:
        return 0
    if cython.compiled:
        memcpy(cython.cast(cython.p_char, target) + at, cython.address(data[start]), size)
    else:
        target[at : at + size] = data[start : start + size]
    return 0


@cython.cclass
class Message:
    """One received AMQP message.

    key             routing key (the message's subject)
    body            the exchange's bytes: a packet, packets one after another, or one message
    content         "packet", "batch", "message", "records" or "quality"
    tag             18 bytes: day, feed, service, sequence, message number
    day             trading day, yyyymmdd
    service         service number
    sequence        the packet's sequence number (also as `seq`); of a snapshot's packets the number
                    that their tag has instead: above any live one, ascending; of packets outside
                    the sequence one that distinguishes them, above any live one, too
    number          the message's index in its packet, from 0; 0xFFFF for a whole packet, 0xFFFE
                    for a quality message
    received_ns     the gateway's kernel receive stamp, ns since 1970; 0 unless asked `stamp`
    send_time       of a single message, its packet's send time, as in the header; `NO_SEND_TIME`
                    where the feed's times do not need it
    group_sequence  consecutive per link
    """

    key: Readonly[str]
    body: Readonly[bytes]
    tag: Readonly[bytes]
    content: Readonly[str]
    day: Readonly[cython.uint]
    feed_number: Readonly[cython.uint]
    service: Readonly[cython.uint]
    sequence: Readonly[cython.ulonglong]
    number: Readonly[cython.int]
    received_ns: Readonly[cython.longlong]
    send_time: Readonly[cython.ulonglong]
    group_sequence: Readonly[cython.longlong]
    feed: Readonly[object]
    references: Readonly[dict]

    @property
    def seq(self) -> int:
        """Sequence number of the packet."""
        return self.sequence

    @property
    def quality(self) -> dict[str, Any] | None:
        """Decoded quality message, None for all other content. Raises PeerError where it is no JSON
        object."""
        if self.content != "quality":
            return None
        try:
            return msgspec.json.decode(self.body, type=dict)
        except msgspec.DecodeError as error:
            raise PeerError(f"a quality message is no JSON object: {error}") from None

    @property
    def snapshot(self) -> bool:
        """Whether it is part of a snapshot block, between the quality messages `snapshot-begin` and
        `snapshot-end`, and so no live message."""
        return self.sequence >> 63 != 0

    @property
    def unsequenced(self) -> bool:
        """Whether its packet stands outside the feed's sequence: then `sequence` is no sequence
        number, and only distinguishes the packet from others."""
        return self.sequence >> 62 == 1

    @property
    def type(self) -> int | str:
        """Type of the market message as the feed writes it, for `message` content. Raises
        UsageError for other content."""
        return self._one()[0]

    @property
    def symbol(self) -> str:
        """Last word of the routing key, for `message` content: the symbol, or "-"."""
        return self.key.rpartition(".")[2] if self.content == "message" else ""

    @property
    def own_sequence(self) -> int:
        """Own number of the market message where the feed counts messages, else the packet's."""
        if self.content == "message" and not self.unsequenced and feed_of(self).counts_messages:
            return self.sequence + self.number
        return self.sequence

    def record(self) -> Any:
        """Decode the market message, for `message` content. Raises UsageError for other content."""
        return self._one()[1]

    def packets(self) -> list[Any]:
        """Decode the packets of a `packet` or `batch` body. Raises UsageError for other content."""
        if self.content not in ("packet", "batch"):
            raise UsageError(f"a {self.content} body holds no packets")
        feed, known = feed_of(self), self.reference_data
        return [
            feed.decode_packet(data, self.date, known=known)
            for data in split_packets(feed, self.body)
        ]

    def records(self) -> Any:
        """Decode every market message in the body, whatever the content; normalised records as a
        numpy array of the dtype that `codecs.dbn` has for them."""
        if self.content == "records":
            return self._read_records().records
        if self.content == "message":
            return [self.record()]
        return [record for packet in self.packets() for record in packet.messages]

    @property
    def symbols(self) -> Mapping[int, str]:
        """The symbols of instruments by instrument id, as far as this subscription has sent them:
        normalised records have the ids only. A view, which grows as more arrive."""
        self._read_records()
        return MappingProxyType(self._instruments())

    def _instruments(self) -> dict[int, str]:
        return self.references.setdefault((self.feed_number, self.service), {})

    def _read_records(self) -> Any:
        """Decode normalised records, and learn the symbols that come between them. Raises
        UsageError for other content, PeerError where they cannot be read."""
        if self.content != "records":
            raise UsageError(f"a {self.content} body holds no normalised records")
        try:
            read = decode_records(self.body)
        except ValueError as error:
            raise PeerError(f"normalised records cannot be read: {error}") from None
        self._instruments().update(read.symbols)
        return read

    @property
    def reference_data(self) -> ReferenceData:
        """What this subscription's decoded messages have said of the feed's symbols."""
        return reference_data_of(feed_of(self), self.references)

    @property
    def date(self) -> datetime.date | None:
        """Trading day of the tag; None where it has none."""
        return day_of(self.day)

    def _one(self) -> tuple[int | str, Any]:
        """Decode type and record of a `message` body. Raises UsageError for other content."""
        if self.content != "message":
            raise UsageError(
                f"a {self.content} body is not one market message", "use records(), or as=message"
            )
        feed = feed_of(self)
        table = feed.table
        if table.fix:
            message = feed.decode_message(self.body)
            return message.type, message
        if table.type_in_packet:
            packet = feed.decode_packet(self.body, self.date, known=self.reference_data)
            return packet.types[0], packet.messages[0]
        index = slice(table.message_type_at, table.message_type_at + table.message_type_size)
        code = int.from_bytes(self.body[index], feed.byte_order)
        send_time = None if self.send_time == NO_SEND_TIME else self.send_time
        record = feed.decode_message(
            self.body, day=self.date, send_time=send_time, known=self.reference_data
        )
        return feed.type_label(code), record

    def __repr__(self) -> str:
        return f"<{self.content} {self.key} {self.sequence}.{self.number} {len(self.body)} bytes>"


def day_of(number: int) -> datetime.date | None:
    """Convert a tag's trading day (yyyymmdd) to a date; None where it is no date."""
    try:
        return datetime.date(number // 10_000, number // 100 % 100, number % 100)
    except ValueError:
        return None


def feed_of(message: Message) -> Any:
    """Return the feed a message belongs to: the subscriber's own choice, or the built-in one by
    number.

    Raises UsageError where no built-in feed has the number.
    """
    return message.feed if message.feed is not None else built_in_feed(message.feed_number)


@functools.cache
def built_in_feed(number: int) -> Any:
    """Load the built-in feed whose tags carry `number`. Raises UsageError where there is none."""
    for name in list_feeds():
        feed = load_feed(name)
        if feed.number == number:
            return feed
    raise UsageError(
        f"no built-in feed has the number {number}", "give the description: subscribe(feed=...)"
    )


def reference_data_of(feed: Any, references: dict[Any, Any]) -> ReferenceData:
    """Return what is known of a feed's symbols; adds an empty entry to `references` where it has
    none."""
    known = references.get(feed.number)
    if known is None:
        known = references[feed.number] = ReferenceData(feed)
    return known


def _tag(prefix: int, sequence: int, number: int) -> bytes:
    return prefix.to_bytes(8) + sequence.to_bytes(8) + number.to_bytes(2)


def rewritten(message: Message, body: bytes) -> Message:
    """Copy a message with another body."""
    other: Message = Message.__new__(Message)
    other.key, other.body, other.tag = message.key, body, message.tag
    other.content, other.feed = message.content, message.feed
    other.day, other.feed_number, other.service = message.day, message.feed_number, message.service
    other.sequence, other.number = message.sequence, message.number
    other.received_ns, other.group_sequence = message.received_ns, message.group_sequence
    other.send_time, other.references = message.send_time, message.references
    return other


def trimmed(message: Message, after: int) -> Message:
    """Copy a batch without its packets with a sequence number of `after` or less."""
    table = feed_of(message).table
    header = PacketHeader()
    at = 0
    size = len(message.body)
    while at < size:
        length = frame_length(table, message.body, at, size - at)
        if length <= 0 or parse_header(table, message.body, at, length, header) != 0:
            break
        if header.sequence > after:
            break
        at += length
    other: Message = rewritten(message, message.body[at:])
    other.sequence = header.sequence
    other.tag = message.tag[:8] + int(header.sequence).to_bytes(8) + message.tag[16:]
    return other


def singles(message: Message) -> list[Message]:
    """Split a batch into batches of one packet each; return any other message, and a batch that
    cannot be split, unchanged."""
    if message.content != "batch":
        return [message]
    table = feed_of(message).table
    header = PacketHeader()
    found: list = []
    at = 0
    size = len(message.body)
    while at < size:
        length = frame_length(table, message.body, at, size - at)
        if length <= 0 or length > size - at:
            return [message]
        if parse_header(table, message.body, at, length, header) != 0:
            return [message]
        one: Message = rewritten(message, message.body[at : at + length])
        if message.sequence >> 62 == 0:
            one.sequence = header.sequence
            one.tag = message.tag[:8] + int(header.sequence).to_bytes(8) + message.tag[16:]
        found.append(one)
        at += length
    return found


def last_sequence(message: Message) -> int:
    """Return the sequence number of the last packet in a batch; of its first one where the body is
    no batch of the feed."""
    table = feed_of(message).table
    header = PacketHeader()
    at = last = 0
    size = len(message.body)
    while at < size:
        length = frame_length(table, message.body, at, size - at)
        if length <= 0 or length > size - at:
            return int(message.sequence)
        last = at
        at += length
    if parse_header(table, message.body, last, size - last, header) != 0:
        return int(message.sequence)
    return int(header.sequence)


def _record_layout(schema: str) -> tuple[int, int]:
    """Return a record's size, and the offset of its packet's number; (0, 0) where it has none."""
    dtype = SCHEMAS[schema].records if schema else None
    if dtype is None or "sequence" not in (dtype.names or ()):
        return 0, 0
    return dtype.itemsize, dtype.fields["sequence"][1]


@cython.cclass
class Inbox:
    """Reader of the messages that a receiving link gathered.

    `feed` overrides the tag's feed number. `batches`: the bodies are batches of packets; `schema`:
    they are normalised records of it (`codecs.dbn.SCHEMAS`). Not
    `numbered`: group-sequences are not the link's (from a broker, each key has its own) and are not
    checked. `references`: what decoded messages say of symbols, by feed number (of normalised
    records by feed number and service), shared with the other inboxes of a subscription.

    `notes` counts the quality messages among what was read; `last_tags` returns, by service, the
    position up to which the stream was read.
    """

    references: Readonly[dict]
    reader: Reader
    feed: Readonly[object]
    expected: Readonly[cython.longlong]
    messages: Readonly[cython.ulonglong]
    malformed: Readonly[cython.ulonglong]
    bodies: Readonly[bytearray]
    parts: Readonly[bytearray]
    day: Readonly[cython.uint]
    feed_number: Readonly[cython.uint]
    service: Readonly[cython.uint]
    snapshot: Readonly[cython.bint]
    failure: Readonly[object]
    last_content: bytes
    last_content_text: str
    notes: Readonly[cython.Py_ssize_t]
    whole_batches: cython.bint
    record_bytes: cython.Py_ssize_t
    record_sequence_at: cython.Py_ssize_t
    numbered: cython.bint
    table: FeedTable
    header: PacketHeader
    prefixes: cython.ulonglong[::1]
    sequences: cython.ulonglong[::1]
    numbers: cython.uint[::1]
    moved: dict

    def __init__(
        self,
        feed: Any = None,
        batches: bool = False,
        numbered: bool = True,
        references: dict[Any, Any] | None = None,
        schema: str = "",
    ) -> None:
        self.references: dict[Any, Any] = {} if references is None else references
        self.numbered = numbered
        self.reader = Reader()
        self.feed = feed
        self.notes = 0
        self.whole_batches = batches
        self.record_bytes, self.record_sequence_at = _record_layout(schema)
        self.table = None
        self.header = PacketHeader()
        self.prefixes = memoryview(numpy.full(SLOTS, _NOWHERE, numpy.uint64))
        self.sequences = memoryview(numpy.zeros(SLOTS, numpy.uint64))
        self.numbers = memoryview(numpy.zeros(SLOTS, numpy.uint32))
        self.moved = {}
        self.expected = -1
        self.messages = 0
        self.malformed = 0
        self.bodies = bytearray()
        self.parts = bytearray()
        self.day = 0
        self.feed_number = 0
        self.service = 0
        self.snapshot = False
        self.failure: PeerError | None = None
        self.last_content = b""
        self.last_content_text = ""

    def begin(self) -> None:
        """Begin to read a new link: its group-sequence starts anew, the last positions stay."""
        self.expected = -1
        self.failure = None

    def last_tags(self) -> dict[int, bytes]:
        """Return by service the tag of the last packet or message of the sequence that was read."""
        found: dict = {}
        slot: cython.Py_ssize_t
        for prefix, (sequence, number) in self.moved.items():
            found[prefix & 0xFFFF] = _tag(prefix, sequence, number)
        for slot in range(SLOTS):
            if self.prefixes[slot] != _NOWHERE:
                prefix = self.prefixes[slot]
                found[prefix & 0xFFFF] = _tag(prefix, self.sequences[slot], self.numbers[slot])
        return found

    def _remember(self, data: cython.const_uchar[::1]) -> cython.int:
        """Record this message's tag as the last one of its service; unless the tag is a snapshot
        block's, or of a packet outside the sequence, which have no position in it."""
        at: cython.Py_ssize_t = self.reader.tag_at
        if self.reader.tag_size != _TAG_BYTES or data[at + 8] >= 0x40:
            return 0
        number: cython.uint = read_uint(data, at + 16, 2)
        if number == _NOTE:
            return 0
        prefix: cython.ulonglong = read_uint(data, at, 8)
        sequence: cython.ulonglong = read_uint(data, at + 8, 8)
        slot: cython.Py_ssize_t = prefix & (SLOTS - 1)
        if self.prefixes[slot] != prefix:
            self._assign_slot(slot, prefix)
        if self.whole_batches:
            sequence = self._last_in_batch(data) or sequence
        elif self.record_sequence_at > 0:
            sequence = self._last_of_records(data, sequence)
        self.sequences[slot] = sequence
        self.numbers[slot] = number
        return 0

    def _assign_slot(self, slot: cython.Py_ssize_t, prefix: cython.ulonglong) -> cython.int:
        """Assign a slot of the arrays to another service, or to another day of the same."""
        before: cython.ulonglong = self.prefixes[slot]
        if before != _NOWHERE and before & 0xFFFF != prefix & 0xFFFF:
            self.moved[before] = (self.sequences[slot], self.numbers[slot])
        for known in list(self.moved):
            if known & 0xFFFF == prefix & 0xFFFF:
                del self.moved[known]
        self.prefixes[slot] = prefix
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _last_in_batch(self, data: cython.const_uchar[::1]) -> cython.ulonglong:
        """Return the sequence number of the last packet in a batch; 0 where the body is no
        batch."""
        at: cython.Py_ssize_t = self.reader.body_at
        end: cython.Py_ssize_t = at + self.reader.body_size
        last: cython.Py_ssize_t = at
        if self.table is None:
            number = read_uint(data, self.reader.tag_at + 4, 2)
            self.table = (self.feed or built_in_feed(number)).table
        while at < end:
            size: cython.Py_ssize_t = frame_length(self.table, data, at, end - at)
            if size <= 0 or size > end - at:
                return 0
            last = at
            at += size
        if parse_header(self.table, data, last, end - last, self.header) != 0:
            return 0
        return self.header.sequence

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _last_of_records(
        self, data: cython.const_uchar[::1], first: cython.ulonglong
    ) -> cython.ulonglong:
        """Return the sequence number of the last record, of which it has the lower 32 bits; `first`
        is the message's."""
        at: cython.Py_ssize_t = self.reader.body_at + self.reader.body_size - self.record_bytes
        low: cython.ulonglong = 0
        index: cython.Py_ssize_t
        if at < self.reader.body_at or data[at] * 4 != self.record_bytes:
            return first
        for index in range(3, -1, -1):
            low = low << 8 | data[at + self.record_sequence_at + index]
        low = (low - first) & 0xFFFF_FFFF
        return first + low if low < 0x8000_0000 else first

    def read(
        self, data: cython.const_uchar[::1], bounds: cython.longlong[::1], count: int
    ) -> list[Message]:
        """Parse the `count` messages at `data[bounds[i] : bounds[i + 1]]` (int64 bounds).

        Returns only those before the first that is malformed or leaves a gap in the group-sequence:
        then `failure` is set.
        """
        found: list = []
        i: cython.Py_ssize_t
        total: cython.Py_ssize_t = count
        for i in range(total):
            if not self._parse(data, bounds[i], bounds[i + 1]) or not self._in_sequence():
                break
            found.append(self._message(data))
            self._remember(data)
            if self._is_quality(data):
                self.notes += 1
        self.messages += len(found)
        return found

    def _parse(
        self, data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Parse a message into `reader`; return False, with `failure` set, where it is
        malformed."""
        if self.reader.parse(data, start, end):
            return True
        self.malformed += 1
        return self._fail("a message is no AMQP message with one data section")

    def _fail(self, why: str) -> cython.bint:
        """Record why the stream ends here. Returns False."""
        self.failure = PeerError(why)
        return False

    def collect(
        self, link: ReceiverLink, first: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Copy the bodies of a link's messages `first` .. `end` - 1, until a quality message, or
        where a snapshot block begins or ends (`snapshot` says whether they are in one).

        Returns how many were taken. `bodies` holds their bytes; `parts` (native int64) is seven
        arrays of `end - first` one behind the other: each body's start in `bodies`, size, receive
        stamp (0 for none), sequence (without the bit that marks a snapshot's), message number,
        service, and the bits of the send time (`NO_SEND_TIME` for none).

        Fails as `read` does. Raises IndexError for messages that the link does not hold.
        """
        data: cython.const_uchar[::1] = link.arena
        reader: Reader = self.reader
        width: cython.Py_ssize_t = end - first
        row: cython.Py_ssize_t = 0
        used: cython.Py_ssize_t = 0
        self.parts = bytearray(8 * PARTS * width)
        if cython.compiled:
            bounds: cython.p_longlong = cython.cast(
                cython.p_longlong, cython.cast(cython.p_char, link.bounds)
            )
            parts: cython.p_longlong = cython.cast(
                cython.p_longlong, cython.cast(cython.p_char, self.parts)
            )
        else:
            bounds = memoryview(link.bounds).cast("q")
            parts = memoryview(self.parts).cast("q")
        if first < 0 or end > link.count:
            raise IndexError("messages that the link does not hold")
        self.bodies = bytearray(bounds[end] - bounds[first])
        while row < width:
            if not self._parse(data, bounds[first + row], bounds[first + row + 1]):
                break
            if self._is_quality(data):
                break
            in_block: cython.bint = self._in_block(data)
            if row == 0:
                self.snapshot = in_block
            if in_block != self.snapshot or not self._in_sequence():
                break
            _move(self.bodies, used, data, reader.body_at, reader.body_size)
            parts[row] = used
            parts[width + row] = reader.body_size
            parts[2 * width + row] = reader.received_ns
            if cython.compiled:
                parts[6 * width + row] = cython.cast(cython.longlong, reader.send_time)
            else:  # as C's cast has it; a memory view refuses what is too large
                parts[6 * width + row] = (reader.send_time ^ 1 << 63) - (1 << 63)
            if reader.tag_size == _TAG_BYTES:
                parts[3 * width + row] = read_uint(data, reader.tag_at + 8, 8) & _LOW_BITS
                parts[4 * width + row] = read_uint(data, reader.tag_at + 16, 2)
                parts[5 * width + row] = read_uint(data, reader.tag_at + 6, 2)
                if row == 0:
                    self._identify(data)
                self._remember(data)
            used += reader.body_size
            row += 1
        self.messages += row
        del self.bodies[used:]
        return row

    def _identify(self, data: cython.const_uchar[::1]) -> cython.int:
        """Set day, feed and service from the tag of the message in `reader`."""
        at: cython.Py_ssize_t = self.reader.tag_at
        self.day = cython.cast(cython.uint, read_uint(data, at, 4))
        self.feed_number = read_uint(data, at + 4, 2)
        self.service = cython.cast(cython.uint, read_uint(data, at + 6, 2))
        return 0

    def _is_quality(self, data: cython.const_uchar[::1]) -> cython.bint:
        """Return whether the message in `reader` is a quality message."""
        i: cython.Py_ssize_t
        if self.reader.content_size != _QUALITY_SIZE:
            return False
        content: cython.const_uchar[::1] = _QUALITY_BYTES
        # The content types differ in their last letters, so look from there.
        for i in range(_QUALITY_SIZE - 1, -1, -1):
            if data[self.reader.content_at + i] != content[i]:
                return False
        return True

    def _in_block(self, data: cython.const_uchar[::1]) -> cython.bint:
        """Return whether the message in `reader` is part of a snapshot block."""
        if self.reader.tag_size != _TAG_BYTES:
            return False
        return data[self.reader.tag_at + 8] >= 0x80

    def quality_at(
        self, data: cython.const_uchar[::1], bounds: cython.longlong[::1], index: cython.Py_ssize_t
    ) -> Message | None:
        """Read message `index` where it is a quality message, else return None. Fails as `read`
        does."""
        if not self._parse(data, bounds[index], bounds[index + 1]):
            return None
        if not self._is_quality(data) or not self._in_sequence():
            return None
        self.messages += 1
        self.notes += 1
        return self._message(data)

    def _in_sequence(self) -> cython.bint:
        """Check that this message follows the last one; a message from a broker may carry no
        number."""
        if not self.numbered:
            return True
        got: cython.longlong = self.reader.group_sequence
        fits: cython.bint = got < 0 or self.expected < 0 or got == self.expected
        if got >= 0:
            self.expected = (got + 1) & _WRAPS
        return fits or self._fail(
            f"the link's group-sequence jumped to {got}: "
            "messages were lost between node and subscriber"
        )

    @cython.cfunc
    def _content(self, data: cython.const_uchar[::1]) -> str:
        """Return the short name of the message's content type."""
        content: bytes = _slice(data, self.reader.content_at, self.reader.content_size)
        if content != self.last_content:
            self.last_content = content
            text = content.decode("ascii", "replace").rpartition(".")[2]
            self.last_content_text = text.partition("+")[0]
        return self.last_content_text

    @cython.cfunc
    def _message(self, data: cython.const_uchar[::1]) -> Message:
        """Build a `Message` of the message in `reader`."""
        message: Message = Message.__new__(Message)
        reader: Reader = self.reader
        at: cython.Py_ssize_t = reader.tag_at
        message.content = self._content(data) if reader.content_at >= 0 else ""
        message.key = (
            _slice(data, reader.subject_at, reader.subject_size).decode("utf-8", "replace")
            if reader.subject_at >= 0
            else ""
        )
        message.body = _slice(data, reader.body_at, reader.body_size)
        message.feed = self.feed
        message.received_ns = reader.received_ns
        message.send_time = reader.send_time
        message.references = self.references
        message.group_sequence = reader.group_sequence
        if reader.tag_size == _TAG_BYTES:
            message.tag = _slice(data, at, _TAG_BYTES)
            message.day = cython.cast(cython.uint, read_uint(data, at, 4))
            message.feed_number = read_uint(data, at + 4, 2)
            message.service = cython.cast(cython.uint, read_uint(data, at + 6, 2))
            message.sequence = read_uint(data, at + 8, 8)
            message.number = cython.cast(cython.int, read_uint(data, at + 16, 2))
        else:
            message.tag = b""
            message.day = message.feed_number = message.service = 0
            message.sequence = 0
            message.number = _WHOLE
        return message
