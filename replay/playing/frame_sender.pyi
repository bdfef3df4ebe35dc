import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.sender_loop import SendLoop

Array = np.ndarray[Any, Any]

class FrameSender(SendLoop):
    def __init__(
        self,
        sockets: Sequence[socket.socket],
        destinations: Sequence[Destination],
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
        frame_offsets: Array | None = None,
        frame_lengths: Array | None = None,
        link_types: Array | None = None,
    ) -> int: ...

def payload_sum(payload: Any) -> int: ...
