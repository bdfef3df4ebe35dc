# What Python code sees of the record writer; the meanings stand in traffic_frames.py.

from collections.abc import Sequence
from typing import Any

RECORD_HEADER: int
HEADERS: int
FRAME_MIN: int

class RecordWriter:
    def __init__(
        self, destinations: Sequence[tuple[str, int]], source: str = ..., source_port: int = ...
    ) -> None: ...
    def write(
        self, data: Any, time_ns: Any, destination: Any, offset: Any, length: Any, out: Any
    ) -> int: ...
