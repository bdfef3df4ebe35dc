"""What a player sends its blocks through: the verbs of a sender, and the one for UDP.

A `BlockSender` takes blocks in turn and sends each datagram when it is due. It can be stopped,
paused, and told to drop the block that is being sent, all from any thread (`sender_loop`).
"""

from typing import Any, Protocol

import numpy as np

from feedhandler.replay.player_blocks import Block
from feedhandler.replay.sender import SPIN_NS, Sender
from feedhandler.replay.sender_lines import OpenLines


class BlockSender(Protocol):
    """A sender of blocks; what the verbs mean stands in `sender_loop`."""

    @property
    def progress(self) -> np.ndarray[Any, Any]: ...
    @property
    def sent_by_destination(self) -> np.ndarray[Any, Any]: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def shift_ns(self) -> int: ...
    def stop(self) -> None: ...
    def drop(self) -> None: ...
    def take(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def send(self, block: Block, anchor_ns: int) -> int:
        """Send the block, each datagram at `anchor_ns + shift_ns + due_ns` of the monotonic clock;
        answers with how many were sent: fewer than all only after a stop or a drop."""
        ...


class UdpSender(Sender):
    """Blocks through UDP sockets."""

    def send(self, block: Block, anchor_ns: int) -> int:
        """As `BlockSender.send` says."""
        return self.send_block(block.buffers, *block.udp_columns(), anchor_ns)


def udp_sender(lines: OpenLines, spin_ns: int = SPIN_NS) -> BlockSender:
    """A sender through the sockets of `lines`."""
    return UdpSender(lines.destinations, spin_ns=spin_ns)
