# What Python code sees of the packet store; the meanings stand in store.py.

from builtins import bytes as Bytes

from typing_extensions import Buffer

PACKET_BYTES_USUAL: int
PACKETS_LEAST: int
SEQUENCE: int
NEXT: int
RUN: int
OFFSET: int
SIZE: int
ENTRY_WORDS: int

class PacketStore:
    bytes_max: int
    packets_max: int
    count: int
    bytes: int
    first: int
    end: int
    evicted: int
    refused: int
    numbering: int
    def __init__(self, bytes_max: int, packets_max: int = ...) -> None: ...
    def append(
        self, sequence: int, next_sequence: int, data: Buffer, start: int, size: int
    ) -> int: ...
    def clear(self) -> int: ...
    def covers(self, first: int, end: int) -> bool: ...
    def packets(self, first: int, end: int) -> list[tuple[int, int, Bytes]]: ...
