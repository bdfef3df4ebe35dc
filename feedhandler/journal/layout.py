"""On-disk records of a queue other than segments: control file, block header, tail, checkpoint.

What it is for: `docs/journal-format.md` shows the format as a picture; here it stands as `struct`
tables, with the functions that write each record and read it back. Segments are in `segments.py`.
No I/O.

What it promises: no record is used before its CRC32C has been checked, and no count or position
before it has been checked against the block's geometry. A reader classifies each record
(`Reading`): good, blank (all zero: never written), damaged (does not verify), foreign (good, but of
another queue or block), newer (written by a later format).

All numbers are little-endian. The format's version is 2; `compatible` is the oldest reader version
that may still use the file: a later format that only adds raises the version and leaves
`compatible`. A queue of format 1 is read and continued in format 1: its records carry the version
of their queue.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

import msgspec
import numpy as np
from crc32c import crc32c

from feedhandler.codecs.errors import ConfigError

VERSION = 2
#: The oldest format that is still read and continued.
VERSION_MIN = 1
#: Every write starts at a multiple of this: no page that has been synced is ever written again,
#: except those of the two checkpoints, in turn. A disk tears no unit smaller than its own sector,
#: 512 or 4,096 bytes.
PAGE = 4096
#: A block has one item slot in its checkpoint for each so many of its bytes.
BYTES_AN_ITEM = 128
BLOCK_BYTES_MIN = 16 * PAGE
BLOCK_BYTES_MAX = 1 << 32
#: Upper limit on a control file, which is read whole; a longer one is damaged.
CONTROL_BYTES_MAX = 1 << 20

CONTROL = struct.Struct("<8sHHII")
CONTROL_MAGIC = b"FHQCTRL\0"
HEADER = struct.Struct("<8sHHI16sQQQQQQQII")
HEADER_MAGIC = b"FHQBLOCK"
TAIL_MAGIC = b"FHQTAIL\0"
CHECKPOINT = struct.Struct("<4sHH16sIIIIQQQQQQQQQQQII")
CHECKPOINT_MAGIC = b"FHQC"
INDEX_ENTRY_BYTES = 8
CRC_BYTES = 4
#: Flag on a segment's page in a checkpoint's index: the segment holds items that were moved there.
MOVED_FLAG = 1 << 31
#: Status bytes from this value on mean pending, with a mark in the seven lower bits.
MARKED = 0x80
MARK_MAX = 0x7F


class Status(IntEnum):
    """Status of an item; only `PENDING` ever changes."""

    PENDING = 0
    DELIVERED = 1
    CANCELLED = 2
    EXPIRED = 3
    DAMAGED = 4
    #: The item was moved to a newer block, which has its content and its status.
    MOVED = 5


class Reading(Enum):
    """Classification of a record that was read from disk."""

    GOOD = auto()
    BLANK = auto()
    DAMAGED = auto()
    FOREIGN = auto()
    NEWER = auto()


def pages(size: int) -> int:
    """Round `size` bytes up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True, slots=True)
class Geometry:
    """Positions of the parts of a block of `block_bytes`, in bytes from its start.

    `items_max`: how many items one block holds at most, whatever their size. `checkpoint_bytes`:
    space reserved for one checkpoint, enough for as many items and segments as a block can hold.
    `checkpoints`: positions of the two checkpoints. `data`: start of the data area; `tail`: its
    end, where the tail begins. Raises `ConfigError` where `block_bytes` is out of range or no
    multiple of `PAGE`.
    """

    block_bytes: int
    items_max: int = field(init=False)
    checkpoint_bytes: int = field(init=False)
    checkpoints: tuple[int, int] = field(init=False)
    data: int = field(init=False)
    tail: int = field(init=False)

    def __post_init__(self) -> None:
        size = self.block_bytes
        if not BLOCK_BYTES_MIN <= size <= BLOCK_BYTES_MAX or size % PAGE:
            raise ConfigError(
                f"a queue block of {size:,} bytes",
                f"take a multiple of {PAGE:,} from {BLOCK_BYTES_MIN:,} to {BLOCK_BYTES_MAX:,}",
            )
        items_max = size // BYTES_AN_ITEM
        segments_max = size // PAGE
        room = pages(CHECKPOINT.size + INDEX_ENTRY_BYTES * segments_max + items_max + CRC_BYTES)
        for name, value in (
            ("items_max", items_max),
            ("checkpoint_bytes", room),
            ("checkpoints", (PAGE, PAGE + room)),
            ("data", PAGE + 2 * room),
            ("tail", size - PAGE),
        ):
            object.__setattr__(self, name, value)


# -- control file -----------------------------------------------------------------------------


class BlockEntry(msgspec.Struct, frozen=True):
    """A block's entry in the control file; `path` is absolute or relative to the queue's folder."""

    number: int
    path: str


class Control(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of the control file.

    It has the queue's identity, the blocks' size, number and paths, and the queue's format, which
    is left out where it is 1.
    """

    queue_id: str
    block_bytes: int
    created_ns: int
    blocks: tuple[BlockEntry, ...]
    version: int = VERSION_MIN


def pack_control(control: Control) -> bytes:
    """Encode the control file."""
    body = msgspec.json.encode(control)
    version = control.version
    head = CONTROL.pack(CONTROL_MAGIC, version, version, len(body), 0)[:-CRC_BYTES]
    return head + struct.pack("<I", crc32c(body, crc32c(head))) + body


def parse_control(data: bytes) -> tuple[Reading, Control | None]:
    """Decode a control file; the second value is None unless the reading is `GOOD`."""
    if len(data) < CONTROL.size:
        return Reading.DAMAGED, None
    magic, _, compatible, size, crc = CONTROL.unpack_from(data)
    body = data[CONTROL.size : CONTROL.size + size]
    if magic != CONTROL_MAGIC:
        return Reading.FOREIGN, None
    if len(body) != size or crc32c(body, crc32c(data[: CONTROL.size - CRC_BYTES])) != crc:
        return Reading.DAMAGED, None
    if compatible > VERSION:
        return Reading.NEWER, None
    try:
        control = msgspec.json.decode(body, type=Control)
        Geometry(control.block_bytes)
        bytes.fromhex(control.queue_id)
    except (msgspec.MsgspecError, ConfigError, ValueError):
        return Reading.DAMAGED, None
    if not VERSION_MIN <= control.version <= VERSION:
        return Reading.DAMAGED, None
    return Reading.GOOD, control


# -- header and tail --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """A block's description of itself, stored at its start and again at its end."""

    queue_id: bytes
    block: int
    geometry: Geometry
    created_ns: int
    version: int = VERSION


def pack_header(header: BlockHeader, magic: bytes = HEADER_MAGIC) -> bytes:
    """Encode a block's header, or its tail with `TAIL_MAGIC`, as one page."""
    geometry = header.geometry
    head = HEADER.pack(
        magic, header.version, header.version, header.block, header.queue_id, geometry.block_bytes,
        *geometry.checkpoints, geometry.checkpoint_bytes, geometry.data, geometry.tail,
        header.created_ns, geometry.items_max, 0,
    )[:-CRC_BYTES]  # fmt: skip
    return (head + struct.pack("<I", crc32c(head))).ljust(PAGE, b"\0")


def parse_header(
    page: bytes, queue_id: bytes, block: int, magic: bytes = HEADER_MAGIC
) -> tuple[Reading, BlockHeader | None]:
    """Decode the header (or tail) of block `block` of this queue.

    The second value is None unless the reading is `GOOD`.
    """
    if not any(page):
        return Reading.BLANK, None
    if len(page) < HEADER.size:
        return Reading.DAMAGED, None
    found, version, compatible, number, queue, size, *offsets, created_ns, items, crc = (
        HEADER.unpack_from(page)
    )
    if crc32c(page[: HEADER.size - CRC_BYTES]) != crc or found != magic:
        return Reading.DAMAGED, None
    if compatible > VERSION:
        return Reading.NEWER, None
    if queue != queue_id or number != block:
        return Reading.FOREIGN, None
    try:
        geometry = Geometry(size)
    except ConfigError:
        return Reading.DAMAGED, None
    wanted = [*geometry.checkpoints, geometry.checkpoint_bytes, geometry.data, geometry.tail]
    if offsets != wanted or items != geometry.items_max:
        return Reading.DAMAGED, None
    return Reading.GOOD, BlockHeader(queue, number, geometry, created_ns, min(version, VERSION))


# -- checkpoints ------------------------------------------------------------------------------


@dataclass(slots=True)
class Roll:
    """The position from which recovery rolls forward: checkpoints cover everything before it."""

    sequence: int = 0
    incarnation: int = 0
    offset: int = 0
    chain: int = 0


@dataclass(slots=True)
class Checkpoint:
    """State of a block, as far as it was journalled when the checkpoint was written.

    `serial`: the higher of two checkpoints is the later one. `incarnation`: the block's use,
    increasing along the stream; 0: not used yet. `ordinals` and `offsets`: of each segment with
    items, its first item (counted from `first_id`) and its position in bytes. `statuses`: one byte
    an item. `end`: where the block's next segment goes. `last_sequence`: sequence of its last
    segment. `moved`: those of `offsets` whose segments hold items that were moved there. `as_of`
    (in place of `active` in format 2): the low 32 bits of the last segment's sequence when the
    checkpoint was written.
    """

    queue_id: bytes
    block: int
    serial: int = 0
    incarnation: int = 0
    stamp_ns: int = 0
    first_id: int = 1
    next_id: int = 1
    end: int = 0
    first_stamp_ns: int = 0
    last_stamp_ns: int = 0
    last_sequence: int = 0
    active: int = 0
    roll: Roll = field(default_factory=Roll)
    ordinals: Sequence[int] = ()
    offsets: Sequence[int] = ()
    statuses: bytes = b""
    moved: frozenset[int] = frozenset()
    version: int = VERSION
    as_of: int = 0


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as whole pages."""
    c, roll = checkpoint, checkpoint.roll
    head = CHECKPOINT.pack(
        CHECKPOINT_MAGIC, c.version, CHECKPOINT.size, c.queue_id, c.block, len(c.statuses),
        len(c.ordinals), c.as_of if c.version > VERSION_MIN else c.active, c.serial,
        c.incarnation, c.stamp_ns, c.first_id, c.next_id, c.end,
        c.first_stamp_ns, c.last_stamp_ns, c.last_sequence, roll.sequence,
        roll.incarnation, roll.offset // PAGE, roll.chain,
    )  # fmt: skip
    ordinals = np.asarray(c.ordinals, np.uint64).astype("<u4")
    page_numbers = (np.asarray(c.offsets, np.uint64) // PAGE).astype("<u4")
    for at in c.moved and np.flatnonzero(np.isin(c.offsets, list(c.moved))):
        page_numbers[at] |= MOVED_FLAG
    content = b"".join((head, ordinals.tobytes(), page_numbers.tobytes(), c.statuses))
    size = pages(len(content) + CRC_BYTES)
    return (content + struct.pack("<I", crc32c(content))).ljust(size, b"\0")


def checkpoint_bytes(head: bytes) -> int:
    """Return the size in bytes of the checkpoint that begins with `head`, not verified yet."""
    if len(head) < CHECKPOINT.size:
        return CHECKPOINT.size
    fields = CHECKPOINT.unpack_from(head)
    items, segments = fields[5], fields[6]
    return CHECKPOINT.size + INDEX_ENTRY_BYTES * segments + items + CRC_BYTES


def parse_checkpoint(
    data: bytes, queue_id: bytes, block: int, geometry: Geometry
) -> tuple[Reading, Checkpoint | None]:
    """Decode the checkpoint in one of a block's two positions.

    The second value is None unless the reading is `GOOD`.
    """
    if not any(data[: CHECKPOINT.size]):
        return Reading.BLANK, None
    if len(data) < CHECKPOINT.size:
        return Reading.DAMAGED, None
    magic, version, head_bytes, queue, number, items, segments, active, *rest = (
        CHECKPOINT.unpack_from(data)
    )
    index_at = CHECKPOINT.size
    statuses_at = index_at + INDEX_ENTRY_BYTES * segments
    end = statuses_at + items
    if magic != CHECKPOINT_MAGIC or head_bytes != CHECKPOINT.size or end + CRC_BYTES > len(data):
        return Reading.DAMAGED, None
    if crc32c(data[:end]) != int.from_bytes(data[end : end + CRC_BYTES], "little"):
        return Reading.DAMAGED, None
    if version > VERSION:
        return Reading.NEWER, None
    if queue != queue_id or number != block:
        return Reading.FOREIGN, None
    *fields, sequence, incarnation, roll_page, chain = rest
    index = struct.unpack_from(f"<{2 * segments}I", data, index_at)
    pages = index[segments:]
    return Reading.GOOD, Checkpoint(  # type: ignore[call-arg]
        queue, number, *fields, active if version == VERSION_MIN else 0,
        Roll(sequence, incarnation, roll_page * PAGE, chain),
        list(index[:segments]), [(page & ~MOVED_FLAG) * PAGE for page in pages],
        bytes(data[statuses_at:end]),
        frozenset((page & ~MOVED_FLAG) * PAGE for page in pages if page & MOVED_FLAG),
        version, active if version > VERSION_MIN else 0,
    )  # fmt: skip
