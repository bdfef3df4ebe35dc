"""A block of generated datagrams, for senders that play no capture."""

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainBlock:
    """Datagrams in sending order, in one buffer: generated ones, not recorded.
    `data` u8 is the block's own, the rest is as in `blocks.Block`."""

    data: Array
    offsets: Array
    lengths: Array
    destinations: Array
    due_ns: Array

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def buffers(self) -> list[Array]:
        """The bytes, u8."""
        return [self.data]

    def udp_columns(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return the arguments of `Sender.send_block` behind the buffers."""
        which = np.zeros(len(self), np.uint32)
        return which, self.offsets, self.lengths, self.destinations, self.due_ns
