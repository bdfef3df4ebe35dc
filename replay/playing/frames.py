"""The sender of a player's blocks as raw frames; `senders.raw` makes it.

Frames of captures leave with the group and port of their line and with the given source addresses;
other payloads get headers with the interface's addresses.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any

from feedhandler.replay.playing.blocks import Block
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.frame_lines import FrameInterface, explain, interface_of, look_at
from feedhandler.replay.playing.frame_sender import FrameSender
from feedhandler.replay.playing.sender_lines import OpenLines

#: The source address of frames that are made here, where the interface has none that receivers
#: would take: reserved for examples (RFC 5737).
SOURCE_IP_DEFAULT = "192.0.2.1"


class RawSender(FrameSender):
    """Blocks as frames: the capture's own, with the lines' groups and ports; payloads that were in
    no capture get headers. `interfaces` names what it sends through."""

    interfaces: Sequence[str] = ()

    def send(self, block: Block, anchor_ns: int) -> int:
        """Send as `UdpSender.send` does. Raises `OSError` with the interface and the reason."""
        frames: tuple[Any, ...] = ()
        if block.chunks and all(chunk.batch is not None for chunk in block.chunks):
            names = ("frame_offset", "frame_length", "link_type")
            frames = tuple(block.gather_batch(name) for name in names)
        try:
            return self.send_block(block.buffers, *block.udp_columns(), anchor_ns, *frames)
        except OSError as error:
            troubles = [explain(name, error) for name in dict.fromkeys(self.interfaces)]
            text = "; ".join(f"{trouble.message} ({trouble.hint})" for trouble in troubles)
            raise OSError(error.errno, text) from None


def raw_sender(
    lines: OpenLines, source_mac: bytes | None, source_ip: str | None, spin_ns: int
) -> RawSender:
    """Create a sender through the packet sockets of `lines`, which stay the caller's."""
    states = [look_at(interface_of(interface)) for interface in lines.interfaces]
    destinations = [
        Destination(
            group,
            port,
            source_mac,
            source_ip,
            interface_mac=states[line].mac,
            interface_ip=_source_ip(states[line]),
        )
        for line, (_, group, port) in zip(
            lines.line_of_destination(), lines.destinations, strict=True
        )
    ]
    sockets = [sock for sock, _, _ in lines.destinations]
    sender = RawSender(sockets, destinations, spin_ns=spin_ns)
    sender.interfaces = [state.name for state in states]
    return sender


def _source_ip(state: FrameInterface) -> str:
    """Return the interface's address, or a default: receivers drop frames from 127.0.0.1."""
    address = ipaddress.IPv4Address(state.address)
    usable = not address.is_loopback and not address.is_unspecified
    return state.address if usable else SOURCE_IP_DEFAULT
