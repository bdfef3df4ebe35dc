# What Python code sees of the boundaries; the meanings stand in boundaries.py.

from typing_extensions import Buffer

CHAIN: int
SECONDS_APART_MAX: int

def find_boundary(
    data: Buffer, start: int, end: int, big_endian: bool, ticks: int, second: int
) -> int: ...
def walk(data: Buffer, start: int, end: int, big_endian: bool) -> int: ...
