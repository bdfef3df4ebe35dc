"""Shared by tests of captures: both forms of the walks, a pcapng writer that can do it all, and
frames of datagrams in pieces.

The writer is the tests' own, so that a capture can hold what recorders seldom write: several
sections of either byte order, interfaces of any resolution, blocks of every kind.
"""

import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from feedhandler._compiled import load_interpreted
from feedhandler.replay.captures import frames, pcap, pcapng
from feedhandler.replay.captures.records import file_header, record_header

SECOND = 10**9
START_NS = 1_700_000_000 * SECOND
GROUP, SOURCE = "239.1.1.1", "10.0.0.1"


def _interpreted() -> SimpleNamespace:
    """The Python files of the walks, together with that of the frames."""
    twin = load_interpreted("feedhandler.replay.captures.frames")
    shared = {
        name: getattr(twin, name)
        for name in ("DatagramColumns", "FrameReader", "read_u16", "read_u32")
    }
    scanners = {}
    for name, scanner in (("pcap", "PcapScanner"), ("pcapng", "PcapngScanner")):
        module = load_interpreted(f"feedhandler.replay.captures.{name}")
        vars(module).update({key: value for key, value in shared.items() if key in vars(module)})
        scanners[scanner] = getattr(module, scanner)
    return SimpleNamespace(**shared, **scanners)


TWINS = {
    "compiled": SimpleNamespace(
        DatagramColumns=frames.DatagramColumns,
        PcapScanner=pcap.PcapScanner,
        PcapngScanner=pcapng.PcapngScanner,
    ),
    "interpreted": _interpreted(),
}


class PcapngBytes:
    """A pcapng file in the making; `order` is that of the section begun last."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.order = "<"

    def _block(self, kind: int, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        size = struct.pack(self.order + "I", 12 + len(body))
        self.data += struct.pack(self.order + "I", kind) + size + body + size

    def _options(self, options: dict[int, bytes]) -> bytes:
        made = b""
        for code, value in options.items():
            head = struct.pack(self.order + "HH", code, len(value))
            made += head + value + bytes(-len(value) % 4)
        return made + bytes(4 if options else 0)

    def section(self, order: str = "<") -> "PcapngBytes":
        """A new section: its interfaces are counted from 0 again."""
        self.order = order
        self._block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
        return self

    def interface(
        self,
        link: int = 1,
        resolution: int | None = None,
        offset: int | None = None,
        name: str = "",
        snap: int = 0,
    ) -> "PcapngBytes":
        """An interface; `resolution` as if_tsresol has it, `offset` in seconds."""
        options: dict[int, bytes] = {}
        if name:
            options[2] = name.encode()
        if resolution is not None:
            options[9] = bytes([resolution])
        if offset is not None:
            options[14] = struct.pack(self.order + "q", offset)
        body = struct.pack(self.order + "HHI", link, 0, snap)
        self._block(1, body + self._options(options))
        return self

    def packet(self, frame: bytes, ticks: int, interface: int = 0) -> "PcapngBytes":
        """An enhanced packet block."""
        head = struct.pack(
            self.order + "IIIII",
            interface, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame),
        )  # fmt: skip
        self._block(6, head + frame + bytes(-len(frame) % 4) + self._options({1: b"seen"}))
        return self

    def old_packet(self, frame: bytes, ticks: int, interface: int = 0) -> "PcapngBytes":
        """The obsolete packet block."""
        head = struct.pack(
            self.order + "HHIIII",
            interface, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame),
        )  # fmt: skip
        self._block(2, head + frame)
        return self

    def simple(self, frame: bytes, original: int | None = None) -> "PcapngBytes":
        """A simple packet block: no time, interface 0."""
        size = len(frame) if original is None else original
        self._block(3, struct.pack(self.order + "I", size) + frame)
        return self

    def other(self, kind: int = 5, body: bytes = b"statistics") -> "PcapngBytes":
        """A block that holds no packet."""
        self._block(kind, body)
        return self

    def raw(self, **fields: Any) -> bytes:
        """Everything so far."""
        return bytes(self.data)


def write_frames(path: Path, frames: Sequence[bytes], link: int = 1, step_ns: int = SECOND) -> Path:
    """A classic capture with these frames, a `step_ns` apart."""
    data = file_header(link_type=link)
    for number, frame in enumerate(frames):
        data += record_header(START_NS + number * step_ns, len(frame)) + frame
    path.write_bytes(data)
    return path


def pieces_of(payload: bytes, size: int, number: int = 1) -> list[bytes]:
    """The frames of a datagram in pieces of `size` bytes."""
    whole = struct.pack(">HHHH", 9, 7_001, 8 + len(payload), 0) + payload
    made = []
    for at in range(0, len(whole), size):
        data = whole[at : at + size]
        more = at + size < len(whole)
        head = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, 20 + len(data), number, more << 13 | at // 8, 3, 17, 0,
            socket.inet_aton(SOURCE), socket.inet_aton(GROUP),
        )  # fmt: skip
        made.append(bytes(12) + struct.pack(">H", 0x0800) + head + data)
    return made
