"""Senders of a player's blocks: UDP sockets, or packet sockets for raw frames.

`UdpSender` or `frames.RawSender` takes blocks in turn and sends each datagram when it is due. It
can be stopped, paused, and made to drop the block that is being sent, all from any thread
(`sender_loop`). A `Transport` opens a line's socket, and makes the sender.
"""

import dataclasses
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from feedhandler.replay.playing.frame_lines import interface_of, open_frame_socket
from feedhandler.replay.playing.sender import Sender
from feedhandler.replay.playing.sender_lines import OpenLines, open_multicast_sender

if TYPE_CHECKING:
    from feedhandler.replay.playing.blocks import Block
    from feedhandler.replay.playing.frames import RawSender
    from feedhandler.replay.playing.plain_block import PlainBlock

#: A player's own longest spin (`sender_loop.SPIN_NS`): exact before sparing. At more than a
#: thousand packets a second it never sleeps. On a virtual machine at 15,000 a second, 1.2 % were
#: more than 5 us late with it, 2.7 % with 50 us.
PLAYER_SPIN_NS = 1_000_000


class UdpSender(Sender):
    """Blocks through UDP sockets."""

    def send(self, block: "Block | PlainBlock", anchor_ns: int) -> int:
        """Send the block, each datagram at `anchor_ns + shift_ns + due_ns` of the monotonic clock;
        return how many were sent: fewer than all only after a stop or a drop."""
        return self.send_block(block.buffers, *block.udp_columns(), anchor_ns)


class Transport(NamedTuple):
    """Transport of blocks: `open_socket` takes a line's interface, `make_sender` the open lines."""

    open_socket: Callable[[str], socket.socket]
    make_sender: Callable[[OpenLines], "UdpSender | RawSender"]


def udp(spin_ns: int = PLAYER_SPIN_NS) -> Transport:
    """Return a transport by UDP sockets: the kernel makes the headers."""
    return Transport(
        open_multicast_sender, lambda lines: UdpSender(lines.destinations, spin_ns=spin_ns)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FrameSettings:
    """Sender fields of raw frames, None: what the captured frames say; and whether they go
    past the interface's queue (`frame_lines.open_frame_socket`)."""

    source_mac: bytes | None = None
    source_ip: str | None = None
    bypass_queue: bool = False


def raw(settings: FrameSettings = FrameSettings(), spin_ns: int = PLAYER_SPIN_NS) -> Transport:
    """Return a transport of Ethernet frames, past the kernel's UDP and IP."""

    def open_socket(interface: str) -> socket.socket:
        return open_frame_socket(interface_of(interface), settings.bypass_queue)

    def make_sender(lines: OpenLines) -> "RawSender":
        # Compiled against modules that may run interpreted elsewhere: only where it is asked for.
        from feedhandler.replay.playing.frames import raw_sender

        return raw_sender(lines, settings.source_mac, settings.source_ip, spin_ns)

    return Transport(open_socket, make_sender)
