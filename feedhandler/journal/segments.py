"""Segments: built from a journal of items and status changes, and read back.

What it is for: everything that is journalled goes to disk as segments, each written by one write
and made durable by one sync. A segment is whole pages:

    header 64 B | status records, 24 B each | item table, 16 B each | contents | 0.. | trailer 64 B

The header has its own CRC32C, and one over status records and table. All CRCs start from a seed
derived from the queue, the block and the block's use, so that nothing of another queue or an
earlier use verifies, whatever bytes producers put into items. `previous` is the CRC of the
preceding header, which makes a chain. The trailer repeats the header. Each item has its own CRC
over its content, seeded with its id and length; each status record has one too. So a damaged byte
costs only the record it is in: `parse_segment` reads what still verifies and reports what does not.

A segment of version 2 counts only as a whole: where it is the last one and not `sound`, it was an
interrupted write, and nothing in it counts. It may hold kinds of records that version 1 does not
have: marks, producers' states, moves. A moved item is listed and checksummed under its own id,
which its record names: without that record it does not verify. A segment that needs none of these
is written in version 1.

Compiled; the interpreted twin gives the same bytes. No I/O.
"""

import struct
from typing import TYPE_CHECKING

import cython
from crc32c import crc32c

from feedhandler.codecs.visibility import Public, Readonly

if TYPE_CHECKING:
    from typing_extensions import Buffer

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.feedhandler.journal.crc import crc_of, crc_ready
    from cython.cimports.libc.string import memcpy, memset

MAGIC = b"FHQS"
SEGMENT_VERSION = 2
#: Version of a segment whose records are valid independently of each other.
SEGMENT_PLAIN = 1
HEAD: struct.Struct = struct.Struct("<4sHHQQQQIIIIII")
HEAD_BYTES = 64
STATUS: struct.Struct = struct.Struct("<QIHHII")
STATUS_BYTES = 24
ENTRY: struct.Struct = struct.Struct("<IIII")
CRC = struct.Struct("<I")
ENTRY_BYTES = 16
PAGE_BYTES = 4096
#: The highest status a record may carry in version 1 (`layout.Status`).
STATUS_MAX = 4
#: Statuses that version 2 adds: pending, with the mark in the seven lower bits.
MARK_MIN, MARK_LAST = 0x80, 0xFF
#: Other kinds of records, by the low byte of the status; the bits above it belong to the kind.
PRODUCER, MOVE = 0x10, 0x11
#: Flag of a move that came too late: the item had ended.
LATE = 0x8000
_MASK = 0xFFFFFFFF
# Typed in C: literals would turn the expressions they are used in into Python integers.
_LOW = cython.declare(cython.ulonglong, _MASK)
#: Knuth's multiplier, the golden ratio's fraction of 2**32.
_SPREAD = cython.declare(cython.ulonglong, 0x9E3779B1)
_FAST = cython.declare(cython.bint, crc_ready() if cython.compiled else False)


def segment_seed(queue_id: bytes, block: int, incarnation: int) -> int:
    """Return the seed of the CRCs of a block's segments, for this use of the block."""
    return crc32c(struct.pack("<16sIQ", queue_id, block, incarnation))


def segment_bytes(items: int, content_bytes: int, statuses: int) -> int:
    """Return the size of a segment, in bytes, rounded up to whole pages."""
    size = 2 * HEAD_BYTES + STATUS_BYTES * statuses + ENTRY_BYTES * items + content_bytes
    return -(-size // PAGE_BYTES) * PAGE_BYTES


@cython.ccall
@cython.exceptval(check=False)
def item_seed(
    seed: cython.ulonglong, number: cython.ulonglong, size: cython.ulonglong
) -> cython.ulonglong:
    """Return the seed of item `number`'s CRC; Knuth's multiplicative hash spreads the ids."""
    return (seed + (number & _LOW) * _SPREAD + size) & _LOW


@cython.ccall
def item_crc(seed: cython.ulonglong, number: cython.ulonglong, content: bytes) -> cython.ulonglong:
    """Return the CRC32C of item `number`, seeded with its id and size."""
    size: cython.Py_ssize_t = len(content)
    start: cython.ulonglong = item_seed(seed, number, size)
    if cython.compiled and _FAST:
        return crc_of(
            cython.cast(cython.p_uchar, PyBytes_AS_STRING(content)),
            size,
            cython.cast(cython.uint, start),
        )
    return crc32c(content, start)


@cython.cclass
class BlockIdentity:
    """The block into which segments are written: its number, its use, and the seed of its CRCs."""

    block: Readonly[object]
    incarnation: Readonly[object]
    seed: Readonly[cython.ulonglong]

    def __init__(self, queue_id: bytes, block: int, incarnation: int) -> None:
        self.block: int = block
        self.incarnation: int = incarnation
        self.seed = segment_seed(queue_id, block, incarnation)


@cython.cclass
class Segment:
    """A segment as it was read.

    `crc`: CRC of its header, which the next segment has as `previous`. `whole`: status records and
    table verify together. `repaired`: the header does not verify, the trailer does. `statuses`:
    (first id, count, status) of each record that verifies, or the three fields of a record of
    another kind; `statuses_lost`: how many do not verify. `spans`: (start, end) of each item's
    content in the parsed data; `damaged`: ordinals of the items that do not verify.
    """

    version: Readonly[object]
    incarnation: Readonly[object]
    sequence: Readonly[object]
    stamp_ns: Readonly[object]
    first_id: Readonly[object]
    item_count: Readonly[cython.Py_ssize_t]
    status_count: Readonly[cython.Py_ssize_t]
    length: Readonly[cython.Py_ssize_t]
    table_crc: Readonly[object]
    previous: Readonly[object]
    crc: Readonly[object]
    at: Readonly[cython.Py_ssize_t]
    whole: Public[cython.bint]
    repaired: Public[cython.bint]
    statuses: Readonly[list]
    statuses_lost: Public[cython.Py_ssize_t]
    spans: Readonly[list]
    damaged: Readonly[list]

    def __init__(self, head: tuple, at: int) -> None:
        self.version: int
        self.incarnation: int
        self.sequence: int
        self.stamp_ns: int
        self.first_id: int
        self.previous: int
        self.table_crc: int
        self.crc: int
        _, self.version, _, self.incarnation, self.sequence, self.stamp_ns, self.first_id = head[:7]
        self.item_count, self.status_count, self.length = head[7:10]
        self.previous, self.table_crc, self.crc = head[10:]
        self.at = at
        self.whole = True
        self.repaired = False
        self.statuses: list[tuple[int, int, int]] = []
        self.statuses_lost = 0
        self.spans: list[tuple[int, int]] = []
        self.damaged: list[int] = []

    def is_sound(self) -> bool:
        """Return whether everything in it verifies; the trailer may stand in for the header."""
        return self.whole and not self.damaged and not self.statuses_lost


def build_segment(
    identity: BlockIdentity,
    sequence: int,
    stamp_ns: int,
    previous: int,
    first_id: int,
    contents: list["Buffer"],
    statuses: list,
    buffer: bytearray,
    version: int = SEGMENT_PLAIN,
) -> tuple[memoryview, int]:
    """Encode a segment and return its bytes and its header's CRC.

    `statuses`: (first id, count, status) each, or the three fields of a record of another kind. The
    bytes are a view of `buffer` where that is long enough, valid until the buffer is used again:
    fresh memory for each segment costs more than filling it.
    """
    count: cython.Py_ssize_t = len(contents)
    total: cython.Py_ssize_t = 0
    for content in contents:
        total += len(content)
    length: cython.Py_ssize_t = segment_bytes(count, total, len(statuses))
    data = buffer if len(buffer) >= length else bytearray(length)
    whole = memoryview(data)
    view: cython.uchar[::1] = whole
    seed: cython.ulonglong = identity.seed
    at: cython.Py_ssize_t = HEAD_BYTES
    for status_first, status_count, status in statuses:
        STATUS.pack_into(data, at, status_first, status_count, status, 0, sequence & _MASK, 0)
        crc = _sum(view, whole, at, at + STATUS_BYTES - 4, seed)
        CRC.pack_into(data, at + STATUS_BYTES - 4, crc)
        at += STATUS_BYTES
    table_end: cython.Py_ssize_t = at + count * ENTRY_BYTES
    end: cython.Py_ssize_t = table_end + total
    _put_items(whole, view, at, seed, first_id, contents, _moved_in(statuses, version))
    trailer: cython.Py_ssize_t = length - HEAD_BYTES
    if cython.compiled and end < trailer <= view.shape[0]:
        memset(cython.address(view[end]), 0, trailer - end)
    else:
        data[end:trailer] = bytes(trailer - end)
    HEAD.pack_into(
        data, 0, MAGIC, version, HEAD_BYTES, identity.incarnation, sequence, stamp_ns,
        first_id, count, len(statuses), length, previous,
        _sum(view, whole, HEAD_BYTES, table_end, seed), 0,
    )  # fmt: skip
    crc = _sum(view, whole, 0, HEAD_BYTES - 4, seed)
    CRC.pack_into(data, HEAD_BYTES - 4, crc)
    data[trailer:length] = data[:HEAD_BYTES]
    return whole[:length], crc


@cython.cfunc
def _sum(
    view: cython.uchar[::1],
    whole: memoryview,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    seed: cython.ulonglong,
) -> cython.ulonglong:
    """Return the CRC of a non-empty range of a segment's bytes."""
    if cython.compiled and _FAST and 0 <= begin < end <= view.shape[0]:
        return crc_of(cython.address(view[begin]), end - begin, cython.cast(cython.uint, seed))
    return crc32c(whole[begin:end], seed)


@cython.cfunc
def _moved_in(statuses: list, version: cython.int) -> dict:
    """Return the ids of the items that were moved there, by their ordinals in the segment."""
    moved: dict = {}
    if version != SEGMENT_PLAIN:
        for first, count, status in statuses:
            if status & 0xFF == MOVE:
                moved[count] = first
    return moved


@cython.cfunc
def _put_items(
    whole: memoryview,
    view: cython.uchar[::1],
    table: cython.Py_ssize_t,
    seed: cython.ulonglong,
    first_id: cython.ulonglong,
    contents: list,
    moved: dict,
) -> cython.bint:
    """Write the item table and the contents behind the status records."""
    at: cython.Py_ssize_t = table + len(contents) * ENTRY_BYTES
    limit: cython.Py_ssize_t = view.shape[0]
    entries: cython.uint[::1] = whole[table:at].cast("I")
    entry: cython.Py_ssize_t = 0
    ordinal: cython.ulonglong
    some: cython.bint = len(moved) > 0
    for ordinal, content in enumerate(contents):
        number: cython.ulonglong = first_id + ordinal
        if some and ordinal in moved:
            number = moved[ordinal]
        size: cython.Py_ssize_t = len(content)
        entries[entry] = at
        entries[entry + 1] = size
        entries[entry + 3] = number & _LOW
        if cython.compiled and _FAST and type(content) is bytes and 0 < size <= limit - at:
            memcpy(
                cython.address(view[at]),
                cython.cast(cython.p_uchar, PyBytes_AS_STRING(content)),
                size,
            )
            start: cython.uint = item_seed(seed, number, size)
            entries[entry + 2] = crc_of(cython.address(view[at]), size, start)
        else:
            # Through a view: assigning to a bytearray would copy the content once more.
            whole[at : at + size] = content
            entries[entry + 2] = crc32c(content, item_seed(seed, number, size))
        entry += 4
        at += size
    return True


def parse_segment(data: memoryview, at: int, identity: BlockIdentity) -> Segment | None:
    """Parse the segment at `at` of `data`, or return None where there is none.

    `data` ends where the block's data do. Where the header does not verify, the trailer is searched
    for. Where status records and table do not verify as a whole, each record is checked by its own
    CRC.
    """
    head = _head(data, at, at, identity)
    if head is not None:
        return _filled(data, Segment(head, at), identity)
    head = _trailing(data, at, identity)
    if head is None:
        return None
    segment = _filled(data, Segment(head, at), identity)
    segment.repaired = True
    return segment


def read_table(data: memoryview, identity: BlockIdentity) -> tuple[int, int, int] | None:
    """Locate the item table of the segment at the beginning of `data`, which may end within it.

    Returns the first item's id, the number of items and the table's position in `data`; None where
    header, status records and table do not verify together, or are incomplete.
    """
    if len(data) < HEAD_BYTES or data[:4] != MAGIC:
        return None
    head = HEAD.unpack_from(data, 0)
    if head[1] > SEGMENT_VERSION or crc32c(data[: HEAD_BYTES - 4], identity.seed) != head[12]:
        return None
    table: cython.Py_ssize_t = HEAD_BYTES + head[8] * STATUS_BYTES
    end: cython.Py_ssize_t = table + head[7] * ENTRY_BYTES
    if end > len(data) or crc32c(data[HEAD_BYTES:end], identity.seed) != head[11]:
        return None
    return head[6], head[7], table


@cython.cfunc
def _head(
    data: memoryview, at: cython.Py_ssize_t, start: cython.Py_ssize_t, identity: BlockIdentity
):
    """Return the header at `at` of a segment that starts at `start`; None where none verifies."""
    end: cython.Py_ssize_t = len(data)
    if at + HEAD_BYTES > end or data[at : at + 4] != MAGIC:
        return None
    head = HEAD.unpack_from(data, at)
    if crc32c(data[at : at + HEAD_BYTES - 4], identity.seed) != head[12]:
        return None
    return head if head[1] <= SEGMENT_VERSION and start + head[9] <= end else None


@cython.cfunc
def _trailing(data: memoryview, at: cython.Py_ssize_t, identity: BlockIdentity):
    """Return the trailer of the segment at `at` whose header does not verify; None: no segment.

    The search ends at a later segment of the same use.
    """
    end: cython.Py_ssize_t = at + PAGE_BYTES
    while end <= len(data):
        head = _head(data, end - HEAD_BYTES, at, identity)
        if head is not None:
            return head if at + head[9] == end else None
        if _head(data, end, end, identity) is not None:
            return None
        end += PAGE_BYTES
    return None


@cython.cfunc
def _is_known(status: cython.uint, version: cython.uint) -> cython.bint:
    """Return whether a record of this version may have that status."""
    if status <= STATUS_MAX:
        return True
    if version == SEGMENT_PLAIN:
        return False
    if MARK_MIN <= status <= MARK_LAST:
        return True
    return status & 0xFF in (PRODUCER, MOVE)


@cython.cfunc
def _filled(data: memoryview, segment: Segment, identity: BlockIdentity) -> Segment:
    """Read status records and items into `segment`, and return it."""
    seed: cython.ulonglong = identity.seed
    at: cython.Py_ssize_t = segment.at + HEAD_BYTES
    for _ in range(segment.status_count):
        first, count, status, _, low, crc = STATUS.unpack_from(data, at)
        good = crc32c(data[at : at + STATUS_BYTES - 4], seed) == crc
        if good and _is_known(status, segment.version) and low == segment.sequence & _MASK:
            segment.statuses.append((first, count, status))
        else:
            segment.statuses_lost += 1
        at += STATUS_BYTES
    table: cython.Py_ssize_t = at + segment.item_count * ENTRY_BYTES
    head_crc = crc32c(data[segment.at + HEAD_BYTES : table], seed)
    segment.whole = head_crc == segment.table_crc
    start: cython.Py_ssize_t = segment.at
    limit: cython.Py_ssize_t = start + segment.length - HEAD_BYTES
    first_id: cython.ulonglong = segment.first_id
    ordinal: cython.Py_ssize_t
    moved: dict = _moved_in(segment.statuses, segment.version)
    some: cython.bint = len(moved) > 0
    good: cython.bint
    entries: cython.const[cython.uint][::1] = data[at:table].cast("I")
    view: cython.const[cython.uchar][::1] = data
    spans: list = segment.spans
    for ordinal in range(segment.item_count):
        number: cython.ulonglong = first_id + cython.cast(cython.ulonglong, ordinal)
        if some and ordinal in moved:
            number = moved[ordinal]
        begin: cython.Py_ssize_t = start + entries[4 * ordinal]
        size: cython.Py_ssize_t = entries[4 * ordinal + 1]
        good = begin + size <= limit and entries[4 * ordinal + 3] == (number & _LOW)
        if good:
            if cython.compiled and _FAST and size:
                found: cython.ulonglong = crc_of(
                    cython.address(view[begin]),
                    size,
                    cython.cast(cython.uint, item_seed(seed, number, size)),
                )
            else:
                found = crc32c(data[begin : begin + size], item_seed(seed, number, size))
            good = found == entries[4 * ordinal + 2]
        if good:
            spans.append((begin, begin + size))
        else:
            segment.damaged.append(ordinal)
            spans.append((0, 0))
    return segment


def head_stamp(data: bytes, identity: BlockIdentity) -> int:
    """Return when the segment of this header was sealed, ns since 1970; -1: it does not verify."""
    if len(data) < HEAD_BYTES or data[:4] != MAGIC:
        return -1
    head = HEAD.unpack_from(data, 0)
    good = crc32c(data[: HEAD_BYTES - 4], identity.seed) == head[12]
    return head[5] if good else -1


def is_newer(data: memoryview, at: int, identity: BlockIdentity) -> bool:
    """Return whether the header at `at` verifies and is of a later version than this code reads."""
    if at + HEAD_BYTES > len(data) or data[at : at + 4] != MAGIC:
        return False
    head = HEAD.unpack_from(data, at)
    good = crc32c(data[at : at + HEAD_BYTES - 4], identity.seed) == head[12]
    return good and head[1] > SEGMENT_VERSION


def find_segment(data: memoryview, at: int, identity: BlockIdentity, after: int) -> Segment | None:
    """Return the next segment from `at` on whose sequence is above `after`; tries each page."""
    position: cython.Py_ssize_t = at
    while position + HEAD_BYTES <= len(data):
        if _head(data, position, position, identity) is not None:
            segment = parse_segment(data, position, identity)
            if segment is not None and segment.sequence > after:
                return segment
        position += PAGE_BYTES
    return None
