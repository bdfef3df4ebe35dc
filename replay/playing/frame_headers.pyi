from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

HEADERS_BYTES_MAX: int
HEADERS_BYTES: int
LINK_BYTES: dict[int, int]

class Destination(NamedTuple):
    group: str | None = None
    port: int | None = None
    source_mac: bytes | None = None
    source_ip: str | None = None
    source_port: int | None = None
    interface_mac: bytes = ...
    interface_ip: str = "0.0.0.0"

class HeaderChanges:
    @property
    def changes(self) -> np.ndarray[Any, Any]: ...
    @property
    def complete(self) -> np.ndarray[Any, Any]: ...
    def __init__(self, destinations: Sequence[Destination]) -> None: ...
    def make(self, destination: int, room: Any, start: int, payload_length: int) -> int: ...
    def cover(self, destination: int, room: Any, start: int, end: int) -> int: ...
    def apply(
        self,
        destination: int,
        room: Any,
        start: int,
        end: int,
        payload_length: int,
        payload_sum: int,
        made: bool,
    ) -> int: ...

def ones_sum(payload: bytes) -> int: ...
