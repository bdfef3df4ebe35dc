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
STAMP: int
SKIP: int
COUNT: int
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
    keeping: bool
    held: int
    held_bytes: int
    taken: int
    gone_first: int
    gone_next: int
    def __init__(self, bytes_max: int, packets_max: int = ...) -> None: ...
    def append(
        self,
        sequence: int,
        next_sequence: int,
        data: Buffer,
        start: int,
        size: int,
        received_ns: int = ...,
        skip: int = ...,
        count: int = ...,
    ) -> int: ...
    def append_unsequenced(
        self,
        number: int,
        following: int,
        data: Buffer,
        start: int,
        size: int,
        received_ns: int = ...,
        count: int = ...,
    ) -> int: ...
    def find_unsequenced(self, number: int) -> int: ...
    def clear(self) -> int: ...
    def bytes_of(self, first: int, end: int) -> int: ...
    def entry(self, serial: int) -> int: ...
    def packet(self, serial: int) -> tuple[int, int, Bytes, int, int, int] | None: ...
    def find(self, begin: int, end: int, number: int) -> int: ...
    def covers(self, first: int, end: int) -> bool: ...
    def packets(self, first: int, end: int) -> list[tuple[int, int, Bytes]]: ...
