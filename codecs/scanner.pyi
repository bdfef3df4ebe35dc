# What Python code sees of the scanner; the meanings stand in scanner.py.

from typing import Any

import numpy
from typing_extensions import Buffer

DATA: int
HEARTBEAT: int
RESET: int
CONTROL: int
UNSEQUENCED: int
UNKNOWN_KIND: int

FINE: int
TRUNCATED: int
LENGTH_MISMATCH: int
COUNT_MISMATCH: int
MESSAGE_SHORT: int
MESSAGE_OVERRUN: int
UNKNOWN_PACKET_TYPE: int
WRONG_CONSTANT: int
CONTROL_SHORT: int
COMPRESSED: int
INDEX_FULL: int

NO_SYMBOL: int
NO_SEND_TIME: int
REJECT_COUNT: int
CONSTANTS_MAX: int
SLOTS_MAX: int
INDEX_CAPACITY: int

class FeedTable:
    big_endian: bool
    counts_messages: bool
    heartbeat_when_empty: bool
    type_in_packet: bool
    sets_aside: bool
    unsequenced: int
    header_size: int
    heartbeat_adds: int
    length_at: int
    length_size: int
    length_add: int
    kind_at: int
    kind_size: int
    type_at: int
    type_size: int
    sequence_at: int
    sequence_size: int
    session_at: int
    session_size: int
    service_at: int
    service_size: int
    flags_at: int
    flags_size: int
    count_at: int
    count_size: int
    time_at: int
    time_size: int
    time_ns_at: int
    reset_at: int
    reset_size: int
    constant_count: int
    message_header_size: int
    message_length_at: int
    message_length_size: int
    message_length_add: int
    message_type_at: int
    message_type_size: int
    slot_count: int
    no_symbol: int
    def set_constant(self, at: int, size: int, value: int) -> None: ...
    def set_kind(self, value: int, kind: int) -> None: ...
    def set_control(self, packet_type: int, body_size: int) -> None: ...
    def set_compressed(self, flags: int) -> None: ...
    def is_compressed(self, flags: int) -> bool: ...
    def set_known_flags(self, flags: list[int]) -> None: ...
    def knows_flags(self, flags: int) -> bool: ...
    def set_type(
        self,
        message_type: int,
        symbol_at: int,
        symbol_size: int,
        symbol_is_text: bool,
        least_size: int,
    ) -> None: ...

class PacketHeader:
    sequence: int
    next_sequence: int
    session: int
    send_time: int
    service: int
    length: int
    body: int
    packet_type: int
    kind: int
    flags: int
    count: int
    unknown: int
    short: int

class MessageIndex:
    types: memoryview
    symbols: memoryview
    offsets: memoryview
    sizes: memoryview
    sequences: memoryview
    firsts: memoryview
    services: memoryview
    send_times: memoryview
    count: int
    packets: int
    capacity: int
    unknown: int
    short: int
    def __init__(self, capacity: int = ...) -> None: ...
    def clear(self) -> None: ...
    def arrays(self) -> dict[str, numpy.ndarray[Any, Any]]: ...

def frame_length(table: FeedTable, data: Buffer, start: int, size: int) -> int: ...
def parse_header(
    table: FeedTable, data: Buffer, start: int, size: int, out: PacketHeader
) -> int: ...
def check_messages(table: FeedTable, data: Buffer, start: int, header: PacketHeader) -> int: ...
def scan_messages(
    table: FeedTable, data: Buffer, start: int, header: PacketHeader, out: MessageIndex
) -> int: ...
def scan_packets(
    table: FeedTable,
    data: Buffer,
    start: int,
    size: int,
    header: PacketHeader,
    out: MessageIndex,
) -> int: ...
def scan_datagrams(
    table: FeedTable,
    data: Buffer,
    starts: Buffer,
    sizes: Buffer,
    header: PacketHeader,
    out: MessageIndex,
    rejects: Buffer,
) -> int: ...
def patch_header(table: FeedTable, data: Buffer, start: int, length: int, count: int) -> int: ...
