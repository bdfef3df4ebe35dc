"""AMQP 1.0 messages as bytes: written from a template, read without objects.

What it is for: every message the gateway sends has the same sections in the same order, so the
constant part is built once a routing key (`Template`) and a message is that part copied, a few
fixed-width numbers patched in, and the exchange's own bytes behind it (`Frame`). `Reader` finds
the same parts in a received message, of ours or of a broker that re-encoded it.

Sections, in AMQP's order (AMQP 1.0, part 3): message annotations (only where a receive stamp was
asked for, or a message goes without the packet header that its times need), properties (message-id,
subject, content-type, group-sequence), one data section.

What it leaves to others: what goes into a body, and which links get it (`fanout`).
"""

import cython

from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-not-found]

#: Tag: trading day u32, feed u16, service u16, sequence u64, message number u16, big-endian.
TAG_BYTES = 18
#: The message number that stands for the whole packet.
WHOLE_PACKET = 0xFFFF
#: The message number of a quality message: it stands before a packet and must not look like it.
#: No packet has that many messages: neither its count field nor a datagram has room for them.
QUALITY_NOTE = 0xFFFE

#: Tags of a snapshot block's packets: this bit, the snapshot's LastSeqNum above `BLOCK_SHIFT`, and
#: below it the packet's index in the block. No live packet has so high a number. Of a LastSeqNum
#: the lower 39 bits are there (`BLOCK_LAST_MASK`): one of FIX may be longer.
SNAPSHOT_BIT = 1 << 63
BLOCK_SHIFT = 24
BLOCK_LAST_MASK = (1 << 39) - 1


def is_unsequenced(sequence: int) -> bool:
    """Return whether a tag's sequence is that of a packet outside the feed's sequence: the upper
    two bits are 01 then (`UNSEQUENCED_BIT`); they are 00 for a number, 10 or 11 for a snapshot
    block's."""
    return sequence >> 62 == 1


CONTENT_PACKET = "application/vnd.feedhandler.packet"
CONTENT_BATCH = "application/vnd.feedhandler.batch"
CONTENT_MESSAGE = "application/vnd.feedhandler.message"
#: Normalised records (DBN) of one schema, and the symbols of their instruments.
CONTENT_RECORDS = "application/vnd.feedhandler.records"
CONTENT_QUALITY = "application/vnd.feedhandler.quality+json"

#: Message annotation with the kernel's receive stamp, ns since 1970, for links with `stamp=1`.
RECEIVED_ANNOTATION = b"x-opt-received-ns"

#: Message annotation with the send time of the packet that a single message was in, as its header
#: has it, where the feed gives times of messages only within that second.
SEND_TIME_ANNOTATION = b"x-opt-send-time"

# Descriptors of the sections (AMQP 1.0, 3.2) and constructors of values (1.6), as used here.
_ANNOTATIONS = cython.declare(cython.int, 0x72)
_PROPERTIES = cython.declare(cython.int, 0x73)
_DATA = cython.declare(cython.int, 0x75)
#: What a data section of any size begins with; its size follows, 32 bits.
BODY_HEAD = b"\x00\x53\x75\xb0"
#: Nesting deeper than any sensible annotation: beyond it a message counts as malformed.
_DEPTH_MAX = cython.declare(cython.int, 16)
_RECEIVED_SIZE = cython.declare(cython.Py_ssize_t, 17)
_SEND_TIME_SIZE = cython.declare(cython.Py_ssize_t, 15)
#: `Reader.send_time` of a message without one (`feed_table.NO_SEND_TIME`).
_NO_SEND_TIME = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)


def _symbol(value: bytes) -> bytes:
    return b"\xa3" + bytes([len(value)]) + value


def _string(value: bytes) -> bytes:
    if len(value) < 256:
        return b"\xa1" + bytes([len(value)]) + value
    return b"\xb1" + len(value).to_bytes(4, "big") + value


def _section(descriptor: int, constructor: int, count: int, content: bytes) -> bytes:
    """Encode a described list (0xd0) or map (0xd1) with 32-bit size and count."""
    return (
        bytes([0x00, 0x53, descriptor, constructor])
        + (len(content) + 4).to_bytes(4, "big")
        + count.to_bytes(4, "big")
        + content
    )


def annotations_section(pairs: bytes, count: int) -> bytes:
    """Encode a section of message annotations; `pairs` are `count` encoded values, keys and values
    in turn."""
    return _section(0x72, 0xD1, count, pairs)


def stamp_section(pairs: bytes = b"", count: int = 0) -> bytes:
    """Encode the annotations with the receive stamp behind the pairs; the section's last eight
    bytes are the stamp."""
    stamp = _symbol(RECEIVED_ANNOTATION) + b"\x81" + bytes(8)
    return annotations_section(pairs + stamp, count + 2)


@cython.cclass
class Template:
    """The constant bytes of every message with one routing key and kind of body.

    `key`: the subject. `content`: the content-type. `prefix`: the first 8 bytes of the tag (day,
    feed, service). `stamped`: with room for the receive stamp; `timed`: for the send time.
    """

    size: Readonly[cython.Py_ssize_t]
    tag_at: Readonly[cython.Py_ssize_t]
    stamp_at: Readonly[cython.Py_ssize_t]
    sent_at: Readonly[cython.Py_ssize_t]
    sequence_at: Readonly[cython.Py_ssize_t]
    view: cython.const_uchar[::1]
    key: Readonly[str]
    content: Readonly[str]
    head: Readonly[bytes]

    def __init__(
        self, key: str, content: str, prefix: bytes, stamped: bool = False, timed: bool = False
    ) -> None:
        if len(prefix) != 8:
            raise ValueError("a tag starts with day u32, feed u16, service u16")
        self.key = key
        self.content = content
        annotations = b""
        self.stamp_at = self.sent_at = -1
        pairs = _symbol(SEND_TIME_ANNOTATION) + b"\x80" + bytes(8) if timed else b""
        if timed:
            annotations = annotations_section(pairs, 2)
            self.sent_at = len(annotations) - 8
        if stamped:
            annotations = stamp_section(pairs, 2 if timed else 0)
            self.stamp_at = len(annotations) - 8
        before_tag = b"\xa0" + bytes([TAG_BYTES])
        properties = (
            before_tag
            + prefix
            + bytes(10)  # message-id
            + b"\x40\x40"  # user-id, to
            + _string(key.encode())  # subject
            + b"\x40\x40"  # reply-to, correlation-id
            + _symbol(content.encode())  # content-type
            + b"\x40\x40\x40\x40"  # content-encoding, expiry, creation time, group-id
            + b"\x70"
            + bytes(4)  # group-sequence
        )
        section = _section(0x73, 0xD0, 12, properties)
        self.head = annotations + section + BODY_HEAD + bytes(4)
        self.view = self.head
        self.size = len(self.head)
        self.tag_at = len(annotations) + 12 + len(before_tag)
        self.sequence_at = len(annotations) + len(section) - 4


@cython.cclass
class Frame:
    """One message being written, in memory that is reused.

    `begin`, any number of `append`, `finish`; then `data[:used]` is the message, valid until the
    next `begin`. `number` gives the finished message another group-sequence, for the next link that
    takes the same one.
    """

    memory: Readonly[object]
    data: cython.uchar[::1]
    template: Readonly[Template]
    used: Readonly[cython.Py_ssize_t]
    body_at: cython.Py_ssize_t
    sequence_at: cython.Py_ssize_t

    def __init__(self, capacity: int) -> None:
        self.memory: bytearray = bytearray(capacity)
        self.data = self.memory
        self.template: Template | None = None
        self.used = 0

    def room(self) -> cython.Py_ssize_t:
        """Return the bytes that still fit."""
        return len(self.data) - self.used

    def begin(
        self,
        template: Template,
        sequence: cython.ulonglong,
        number: cython.uint,
        received_ns: cython.longlong,
    ) -> cython.int:
        """Start a message: its identity, and the receive stamp (ns) where the template has one.
        Raises IndexError where the memory is too small."""
        copy(self.data, 0, template.view, 0, template.size)
        write_uint(self.data, template.tag_at + 8, 8, sequence)
        write_uint(self.data, template.tag_at + 16, 2, number)
        if template.stamp_at >= 0:
            write_uint(self.data, template.stamp_at, 8, received_ns)
        self.template = template
        self.sequence_at = template.sequence_at
        self.body_at = template.size
        self.used = template.size
        return 0

    def set_send_time(self, send_time: cython.ulonglong) -> cython.int:
        """Write the packet's send time, where the template has room for it."""
        if self.template.sent_at >= 0:
            write_uint(self.data, self.template.sent_at, 8, send_time)
        return 0

    def append(
        self, source: cython.const_uchar[::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Add `source[start : start + size]` to the body. Raises IndexError outside either
        buffer."""
        copy(self.data, self.used, source, start, size)
        self.used += size
        return 0

    def finish(self, group_sequence: cython.uint) -> cython.int:
        """Write the body's size and the group-sequence."""
        write_uint(self.data, self.body_at - 4, 4, self.used - self.body_at)
        write_uint(self.data, self.sequence_at, 4, group_sequence)
        return 0

    def number(self, group_sequence: cython.uint) -> cython.int:
        """Patch the group-sequence of the finished message."""
        write_uint(self.data, self.sequence_at, 4, group_sequence)
        return 0

    @cython.ccall
    def snapshot(self) -> bytes:
        """Return a copy of the finished message."""
        if cython.compiled:
            return cython.cast(cython.p_char, cython.address(self.data[0]))[: self.used]
        return bytes(self.data[: self.used])


@cython.cclass
class Reader:
    """Offsets of the parts of a received message; -1 where a part is absent."""

    tag_at: Readonly[cython.Py_ssize_t]
    tag_size: Readonly[cython.Py_ssize_t]
    subject_at: Readonly[cython.Py_ssize_t]
    subject_size: Readonly[cython.Py_ssize_t]
    content_at: Readonly[cython.Py_ssize_t]
    content_size: Readonly[cython.Py_ssize_t]
    body_at: Readonly[cython.Py_ssize_t]
    body_size: Readonly[cython.Py_ssize_t]
    group_sequence: Readonly[cython.longlong]
    received_ns: Readonly[cython.longlong]
    send_time: Readonly[cython.ulonglong]

    def parse(
        self, data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Find the parts of `data[start:end]`; return False where it is no AMQP message with a data
        section."""
        at: cython.Py_ssize_t = start
        self.tag_at = self.subject_at = self.content_at = self.body_at = -1
        self.tag_size = self.subject_size = self.content_size = self.body_size = 0
        self.group_sequence = -1
        self.received_ns = 0
        self.send_time = _NO_SEND_TIME
        while at < end:
            # A section is a described value: 0x00, its descriptor as a ulong, the value.
            if end - at < 4 or data[at] != 0x00:
                return False
            if data[at + 1] == 0x53:
                descriptor: cython.int = data[at + 2]
                value: cython.Py_ssize_t = at + 3
            elif data[at + 1] == 0x80 and end - at > 11:
                descriptor = data[at + 9]
                value = at + 10
            else:
                return False
            after: cython.Py_ssize_t = value_end(data, value, end, 0)
            if after < 0:
                return False
            if descriptor == _DATA:
                if data[value] == 0xA0:
                    width: cython.int = 1
                elif data[value] == 0xB0:
                    width = 4
                else:
                    return False
                self.body_at = value + 1 + width
                self.body_size = after - self.body_at
            elif descriptor == _PROPERTIES:
                if not self._properties(data, value, after):
                    return False
            elif descriptor == _ANNOTATIONS and not self._annotations(data, value, after):
                return False
            at = after
        return self.body_at >= 0

    def _properties(
        self, data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Find message-id, subject, content-type and group-sequence in the list at `at`; return
        False where it is malformed."""
        field: cython.Py_ssize_t
        code: cython.int = data[at]
        if code == 0x45:
            return True
        if code == 0xC0:
            count: cython.Py_ssize_t = data[at + 2]
            at += 3
        elif code == 0xD0:
            count = read_uint(data, at + 5, 4)
            at += 9
        else:
            return False
        for field in range(count):
            # The three forms that our own node writes are read in place, all others by the rule.
            if at >= end:
                return False
            code = data[at]
            if code == 0x40:
                at += 1
                continue
            if code >> 4 == 0xA and at + 2 <= end:
                after: cython.Py_ssize_t = at + 2 + data[at + 1]
                if after > end:
                    return False
            else:
                after = value_end(data, at, end, 0)
                if after < 0:
                    return False
            head: cython.Py_ssize_t = 2 if code >> 4 == 0xA else 5
            if code >> 4 == 0xA or code >> 4 == 0xB:
                if field == 0:
                    self.tag_at = at + head
                    self.tag_size = after - self.tag_at
                elif field == 3:
                    self.subject_at = at + head
                    self.subject_size = after - self.subject_at
                elif field == 6:
                    self.content_at = at + head
                    self.content_size = after - self.content_at
            elif field == 11:
                if code == 0x70:
                    self.group_sequence = read_uint(data, at + 1, 4)
                elif code == 0x52:
                    self.group_sequence = data[at + 1]
                elif code == 0x43:
                    self.group_sequence = 0
            at = after
        return True

    def _annotations(
        self, data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Read receive stamp and send time from the map at `at`, and skip every other key; return
        False where it is malformed."""
        _pair: cython.Py_ssize_t
        if data[at] == 0xC1:
            count: cython.Py_ssize_t = data[at + 2]
            at += 3
        elif data[at] == 0xD1:
            count = read_uint(data, at + 5, 4)
            at += 9
        else:
            return False
        for _pair in range(count // 2):
            value: cython.Py_ssize_t = value_end(data, at, end, 0)
            if value < 0:
                return False
            after: cython.Py_ssize_t = value_end(data, value, end, 0)
            if after < 0:
                return False
            if (
                value - at == 2 + _SEND_TIME_SIZE
                and data[at] == 0xA3
                and data[value] == 0x80
                and _is_key(data, at + 2, SEND_TIME_ANNOTATION)
            ):
                self.send_time = read_uint(data, value + 1, 8)
            if (
                value - at == 2 + _RECEIVED_SIZE
                and data[at] == 0xA3
                and data[value] == 0x81
                and _is_key(data, at + 2, RECEIVED_ANNOTATION)
            ):
                self.received_ns = cython.cast(cython.longlong, read_uint(data, value + 1, 8))
                if not cython.compiled and self.received_ns >= 1 << 63:
                    self.received_ns -= 1 << 64  # C's cast has made it signed
            at = after
        return True


@cython.cfunc
def _is_key(data: cython.const_uchar[::1], at: cython.Py_ssize_t, name: bytes) -> cython.bint:
    """Return whether the symbol at `at`, which is as long as `name`, is that name."""
    i: cython.Py_ssize_t
    key: cython.const_uchar[::1] = name
    for i in range(len(key)):  # noqa: SIM110 - a plain C loop when compiled
        if data[at + i] != key[i]:
            return False
    return True


def value_end(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Return where the encoded value at `at` ends, or -1 where it runs over `end` (AMQP 1.0,
    1.6)."""
    if at >= end or depth > _DEPTH_MAX:
        return -1
    code: cython.int = data[at]
    if code == 0:
        after: cython.Py_ssize_t = value_end(data, at + 1, end, depth + 1)
        return -1 if after < 0 else value_end(data, after, end, depth + 1)
    group: cython.int = code >> 4
    if group < 4:
        return -1
    if group == 4:
        after = at + 1
    elif group <= 9:
        after = at + 1 + (1 << (group - 5))
    elif group & 1 == 0:  # 0xA, 0xC, 0xE: a size of one byte
        if at + 2 > end:
            return -1
        size: cython.Py_ssize_t = data[at + 1]
        # A compound's size counts its own count field: one without room for it lies.
        if group > 0xA and size < 1:
            return -1
        after = at + 2 + size
    else:
        if at + 5 > end:
            return -1
        size = read_uint(data, at + 1, 4)
        if group > 0xB and size < 4:
            return -1
        after = at + 5 + size
    return after if after <= end else -1


@cython.ccall
def read_uint(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, size: cython.int
) -> cython.ulonglong:
    """Read a big-endian unsigned integer of `size` bytes."""
    value: cython.ulonglong = 0
    i: cython.int
    for i in range(size):
        value = (value << 8) | data[at + i]
    return value


def write_uint(
    data: cython.uchar[::1], at: cython.Py_ssize_t, size: cython.int, value: cython.ulonglong
) -> cython.int:
    """Write `value` as `size` big-endian bytes."""
    i: cython.int
    for i in range(size):
        data[at + size - 1 - i] = value & 0xFF
        value >>= 8
    return 0


def copy(
    target: cython.uchar[::1],
    at: cython.Py_ssize_t,
    source: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Copy `size` bytes. Raises IndexError where either side is too short."""
    if at < 0 or start < 0 or size < 0 or at + size > len(target) or start + size > len(source):
        raise IndexError("copy outside the buffer")
    if size == 0:
        return 0
    if cython.compiled:
        memcpy(cython.address(target[at]), cython.address(source[start]), size)
    else:
        target[at : at + size] = source[start : start + size]
    return 0
