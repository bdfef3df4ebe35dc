import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedhandler.replay.playing.progress import Progress as Progress
from feedhandler.replay.playing.sender_loop import BEHIND_NS as BEHIND_NS
from feedhandler.replay.playing.sender_loop import POLL_NS as POLL_NS
from feedhandler.replay.playing.sender_loop import SPIN_NS as SPIN_NS
from feedhandler.replay.playing.sender_loop import SendLoop

WINDOW_DATAGRAMS: int

Array = np.ndarray[Any, Any]

class Sender(SendLoop):
    def __init__(
        self,
        destinations: Sequence[tuple[socket.socket, str, int]],
        join: bool = True,
        *,
        spin_ns: int = ...,
    ) -> None: ...
    @property
    def sent_by_destination(self) -> Array: ...
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
