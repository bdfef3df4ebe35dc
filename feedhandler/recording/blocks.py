"""The parts of a capture file around its records: headers, and pcapng's statistics of losses.

A pcap file has nothing but a header; a pcapng file begins with a section header and one interface
description block a line, and ends with one interface statistics block a line, where Wireshark and
`capinfos` look for drops. (IETF draft-ietf-opsawg-pcapng, sections 4.1, 4.2 and 4.6.) Sans-IO.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct

from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, LinkType

_SECTION, _INTERFACE, _STATISTICS = 0x0A0D0D0A, 1, 5
#: Options of the blocks, by their block's name in the draft.
_SHB_USERAPPL = 4
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL = 2, 3, 9
_ISB_STARTTIME, _ISB_ENDTIME = 2, 3
_ISB_IFRECV, _ISB_IFDROP, _ISB_OSDROP, _ISB_USRDELIV = 4, 5, 7, 8
#: Times count nanoseconds: ten to the power of minus nine.
_NANOSECONDS = b"\x09"


class LineStatistics(Struct, frozen=True):
    """One line's statistics: packets received, and packets that the kernel dropped."""

    received: int
    kernel_drops: int


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value.ljust((len(value) + 3) // 4 * 4, b"\0")


def _block(kind: int, body: bytes, options: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a block with its length at both ends; empty options are left out."""
    body += b"".join(_option(code, value) for code, value in options if value) + bytes(4)
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def section(application: str, interfaces: Sequence[tuple[str, str]]) -> bytes:
    """Encode the beginning of a pcapng file; `interfaces` are (name, description) of each line."""
    # Byte order, version 1.0, and a section of unknown length.
    made = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    made = _block(_SECTION, made, [(_SHB_USERAPPL, application.encode())])
    for name, description in interfaces:
        body = struct.pack("<HHI", LinkType.ETHERNET, 0, RECORD_BYTES_MAX)
        options = [
            (_IF_NAME, name.encode()),
            (_IF_DESCRIPTION, description.encode()),
            (_IF_TSRESOL, _NANOSECONDS),
        ]
        made += _block(_INTERFACE, body, options)
    return made


def statistics(lines: Sequence[LineStatistics], began_ns: int, now_ns: int) -> bytes:
    """Encode the end of a pcapng file: packets received and lost since the capture began."""
    made = b""
    for number, line in enumerate(lines):
        counts = (
            (_ISB_IFRECV, line.received + line.kernel_drops),
            (_ISB_IFDROP, line.kernel_drops),
            (_ISB_OSDROP, line.kernel_drops),
            (_ISB_USRDELIV, line.received),
        )
        options = [(_ISB_STARTTIME, _time(began_ns)), (_ISB_ENDTIME, _time(now_ns))]
        options += [(code, struct.pack("<Q", count)) for code, count in counts]
        made += _block(_STATISTICS, struct.pack("<I", number) + _time(now_ns), options)
    return made


def _time(time_ns: int) -> bytes:
    """Encode a time in ns as pcapng does: the upper half first."""
    return struct.pack("<II", time_ns >> 32, time_ns & 0xFFFF_FFFF)
