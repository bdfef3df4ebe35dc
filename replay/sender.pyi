import enum
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

SPIN_NS: int
POLL_NS: int
WINDOW_DATAGRAMS: int
BEHIND_NS: int
DESTINATIONS_MAX: int
SOCKETS_MAX: int
NO_BUFFER_WAIT_NS: int
JOINED_BYTES_MAX: int

Array = np.ndarray[Any, Any]

class Progress(enum.IntEnum):
    SENT = 0
    BYTES = 1
    BEHIND = 2
    LATENESS_MAX_NS = 3
    LATENESS_SUM_NS = 4
    WOULD_BLOCK = 5
    NO_BUFFERS = 6
    SYSTEM_CALLS = 7

class Sender:
    def __init__(
        self,
        destinations: Sequence[tuple[socket.socket, str, int]],
        join: bool = True,
        spin_ns: int = ...,
    ) -> None: ...
    @property
    def progress(self) -> Array: ...
    @property
    def sent_by_destination(self) -> Array: ...
    @property
    def stopped(self) -> bool: ...
    def stop(self) -> None: ...
    def send_block(
        self,
        buffers: list[Any],
        buffer_of: Array,
        offsets: Array,
        lengths: Array,
        destinations: Array,
        due_ns: Array,
        anchor_ns: int,
    ) -> int: ...
    def send_load(
        self,
        slab: Array,
        offsets: Array,
        lengths: Array,
        channels: Array,
        steps: Array,
        destinations: Array,
        next_sequences: Array,
        sequence_offset: int,
        sequence_width: int,
        big_endian: bool,
        rate: int,
        count: int,
        anchor_ns: int,
        burst: int = 1,
    ) -> int: ...
