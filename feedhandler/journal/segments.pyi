import struct
from collections.abc import Buffer, Sequence

HEAD: struct.Struct
STATUS: struct.Struct
ENTRY: struct.Struct
HEAD_BYTES: int
STATUS_BYTES: int
ENTRY_BYTES: int
MAGIC: bytes

class Place:
    block: int
    incarnation: int
    seed: int
    def __init__(self, queue_id: bytes, block: int, incarnation: int) -> None: ...

class Segment:
    incarnation: int
    sequence: int
    stamp_ns: int
    first_id: int
    item_count: int
    status_count: int
    length: int
    table_crc: int
    previous: int
    crc: int
    at: int
    whole: bool
    repaired: bool
    statuses: list[tuple[int, int, int]]
    statuses_lost: int
    spans: list[tuple[int, int]]
    damaged: list[int]

def segment_seed(queue_id: bytes, block: int, incarnation: int) -> int: ...
def segment_bytes(items: int, content_bytes: int, statuses: int) -> int: ...
def build_segment(
    place: Place,
    sequence: int,
    stamp_ns: int,
    previous: int,
    first_id: int,
    contents: Sequence[Buffer],
    statuses: Sequence[tuple[int, int, int]],
    buffer: bytearray,
) -> tuple[memoryview, int]: ...
def parse_segment(data: memoryview, at: int, place: Place) -> Segment | None: ...
def find_segment(data: memoryview, at: int, place: Place, after: int) -> Segment | None: ...
def head_stamp(data: Buffer, place: Place) -> int: ...
def is_newer(data: memoryview, at: int, place: Place) -> bool: ...
def item_seed(seed: int, number: int, size: int) -> int: ...
def item_crc(seed: int, number: int, content: bytes) -> int: ...
def read_table(data: memoryview, place: Place) -> tuple[int, int, int] | None: ...
