"""pcapng captures, opened through dpkt and handed on as the bytes of a classic pcap.

So that everything behind the file's bytes is one path, the packets that dpkt yields are put into
nanosecond pcap records. The limits are dpkt's: only the first interface's description counts
(its resolution and link type are taken for every packet, and A cannot be told from B by
interface), simple packet blocks and further sections are ignored, and times pass through a
double: exact for resolutions down to a microsecond, within 240 ns for finer ones. Classic pcap
has none of these limits; `editcap -F nsecpcap` turns one into the other.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpkt

from feedhandler.codecs.errors import PeerError
from feedhandler.replay.pcap import RECORD_BYTES_MAX

if TYPE_CHECKING:
    from feedhandler.replay.capture import ByteSource

_NANOSECOND_MAGIC = 0xA1B23C4D
#: Type and length of a block, which dpkt reads first: the one place where a file may end.
_BLOCK_HEADER_BYTES = 8
_MICROSECOND_DIVISOR = 1_000_000


class _Readable:
    """The `read` and `name` that dpkt wants, over a byte source.

    `short` says that the bytes ended inside a block, which dpkt takes for the end of the file.
    """

    def __init__(self, source: "ByteSource", name: str) -> None:
        self.name = name
        self.short = False
        self._source = source

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer at the end. A negative size is dpkt meeting a lying length."""
        if not 0 <= size <= 2 * RECORD_BYTES_MAX:
            raise ValueError(f"a block claims {size + 8} bytes")
        block = bytearray(size)
        filled = 0
        while filled < size:
            got = self._source.readinto(memoryview(block)[filled:])
            if not got:
                break
            filled += got
        if filled < size and (filled or size != _BLOCK_HEADER_BYTES):
            self.short = True
        return bytes(block[:filled])


class PcapngSource:
    """A pcapng file as the bytes of a little-endian nanosecond pcap.

    `reopen` gives the file's (inflated) bytes from the beginning. A file that ends inside a block
    sets `cut`. Raises `PeerError` for a file that dpkt cannot make sense of.
    """

    def __init__(self, path: Path, reopen: Callable[[], "ByteSource"]) -> None:
        self.cut = False
        self._path = path
        self._source = reopen()
        try:
            self._readable = _Readable(self._source, str(path))
            self._reader = dpkt.pcapng.Reader(self._readable)
        except (dpkt.Error, ValueError, IndexError, struct.error) as error:
            self._source.close()
            raise PeerError(
                f"{path} is not a usable pcapng capture: {str(error) or type(error).__name__}",
                "convert it with editcap -F nsecpcap",
            ) from None
        self._records = iter(self._reader)
        header = struct.pack(
            "<IHHiIII", _NANOSECOND_MAGIC, 2, 4, 0, 0, RECORD_BYTES_MAX, self._reader.datalink()
        )
        self._pending = memoryview(header)

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        filled = 0
        while filled < len(buffer):
            if not self._pending:
                self._pending = memoryview(self._next_record())
                if not self._pending:
                    break
            size = min(len(buffer) - filled, len(self._pending))
            buffer[filled : filled + size] = self._pending[:size]
            self._pending = self._pending[size:]
            filled += size
        return filled

    def _next_record(self) -> bytes:
        """The next packet as a pcap record; nothing at the end."""
        try:
            seconds, packet = next(self._records)
        except StopIteration:
            self.cut = self._source.cut or self._readable.short
            return b""
        except (dpkt.NeedData, struct.error):
            self.cut = True
            return b""
        except (dpkt.Error, ValueError, IndexError) as error:
            raise PeerError(
                f"{self._path}: damaged: {str(error) or type(error).__name__}",
                "record or fetch the capture again",
            ) from None
        time_ns = self._nanoseconds(seconds)
        whole, fraction = divmod(time_ns, 1_000_000_000)
        return struct.pack("<IIII", whole, fraction, len(packet), len(packet)) + packet

    def _nanoseconds(self, seconds: Any) -> int:
        """dpkt's seconds as integer nanoseconds, exact where the file counts microseconds."""
        if getattr(self._reader, "_divisor", 0) == _MICROSECOND_DIVISOR:
            return round(seconds * _MICROSECOND_DIVISOR) * 1_000
        return round(seconds * 1_000_000_000)

    def share_done(self) -> float:
        """How much of the file has been read, 0.0 to 1.0."""
        return self._source.share_done()

    def close(self) -> None:
        """Let the file go."""
        self._source.close()
