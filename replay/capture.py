"""Captures as a stream of UDP datagrams: pcap, plain or gzipped, and pcapng through dpkt.

`Capture(path)` looks at the file's first bytes, not at its name, and refuses what is no capture
with one clear line. `batches()` yields datagrams by the thousand as columns over a chunk of the
file; iterating the capture itself yields them one by one. Memory is bounded by `CHUNK_BYTES`
however large the file is, plain or gzipped; a batch owns its bytes, so it may be kept.

A capture that was cut short (a recorder killed, a copy interrupted) is read to its last whole
record; `capture.truncation` then says after how many records and at which byte. A capture that
is damaged in the middle raises `PeerError` after the datagrams before the damage.

Times are integer nanoseconds. What was skipped and why stands in `capture.statistics`.
The walk over the bytes is `feedhandler.replay.pcap`'s, writing is `capture_writer`'s.
"""

import dataclasses
import functools
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.pcap import (
    FILE_HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    DatagramColumns,
    LinkType,
    PcapScanner,
    Skip,
    Status,
)

#: Bytes of capture walked at a time: fits a second-level cache, and holds any single record.
CHUNK_BYTES = 1 << 20
#: Datagrams a batch at most; a chunk of very small datagrams becomes two batches.
BATCH_DATAGRAMS_MAX = 8_192
#: Compressed bytes read at a time.
GZIP_READ_BYTES = 1 << 17

assert CHUNK_BYTES > RECORD_BYTES_MAX + RECORD_HEADER_BYTES

#: Magic number as read little-endian: is the file big-endian, nanoseconds a tick.
_PCAP_MAGICS = {
    0xA1B2C3D4: (False, 1_000),
    0xA1B23C4D: (False, 1),
    0xD4C3B2A1: (True, 1_000),
    0x4D3CB2A1: (True, 1),
}
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
_GZIP_MAGIC = b"\x1f\x8b"


class Datagram(NamedTuple):
    """One UDP datagram of a capture: when, to which group and port, from whom, what."""

    time_ns: int
    group: str
    port: int
    source: str
    payload: bytes


@functools.lru_cache(maxsize=4_096)
def address_text(address: int) -> str:
    """An IPv4 address number as dotted text."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


@dataclasses.dataclass(frozen=True, slots=True)
class DatagramBatch:
    """Some consecutive datagrams of a capture, a numpy array per column over shared bytes.

    `data` u8: the bytes; `offset`, `length` u32: where each payload lies in them; `time_ns`
    int64; `source`, `destination` u32 IPv4 numbers; `source_port`, `destination_port` u16.
    """

    data: np.ndarray[Any, Any]
    time_ns: np.ndarray[Any, Any]
    source: np.ndarray[Any, Any]
    destination: np.ndarray[Any, Any]
    source_port: np.ndarray[Any, Any]
    destination_port: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.time_ns)

    def payload(self, position: int) -> bytes:
        """The payload of one datagram, copied."""
        start = int(self.offset[position])
        return self.data[start : start + int(self.length[position])].tobytes()

    def datagrams(self) -> Iterator[Datagram]:
        """The batch's datagrams one by one."""
        data = self.data.data
        columns = (self.time_ns, self.destination, self.destination_port, self.source)
        places = (self.offset, self.length)
        for time_ns, group, port, source, start, length in zip(
            *(column.tolist() for column in columns + places), strict=True
        ):
            payload = bytes(data[start : start + length])
            yield Datagram(time_ns, address_text(group), port, address_text(source), payload)


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """Where a capture was cut short: after `records` whole records, at byte `offset`.

    `offset` counts the capture's own bytes (before compression); `reason` says what was cut.
    """

    records: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"cut short after {self.records:,} records, at byte {self.offset:,}: {self.reason}"


@dataclasses.dataclass(slots=True)
class CaptureStatistics:
    """What a pass over a capture met: whole records, datagrams, and what was no datagram."""

    records: int = 0
    datagrams: int = 0
    cut_payloads: int = 0
    skipped: dict[Skip, int] = dataclasses.field(default_factory=dict)


class ByteSource(Protocol):
    """A file or what looks like one; `cut` says that it ended before its own end mark."""

    cut: bool

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        ...

    def share_done(self) -> float:
        """How much of the file has been read, 0.0 to 1.0."""
        ...

    def close(self) -> None:
        """Let the file go."""
        ...


class PlainSource:
    """An ordinary file."""

    cut = False

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._read = 0

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        got = self._file.readinto(buffer) or 0
        self._read += got
        return got

    def share_done(self) -> float:
        """How much of the file has been read, 0.0 to 1.0."""
        return min(1.0, self._read / self._size) if self._size else 1.0

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class GzipSource:
    """A gzipped file, inflated piece by piece; several members in a row are one stream.

    A missing end mark sets `cut` instead of raising, so that all that was written before an
    interruption can be read. Raises `PeerError` where the compressed bytes are damaged.
    """

    def __init__(self, path: Path) -> None:
        self.cut = False
        self._path = path
        self._file = PlainSource(path)
        self._pending = b""
        self._inflater = zlib.decompressobj(wbits=31)
        self._ended = False

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        while not self._ended:
            piece = self._inflate(len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)
        return 0

    def _inflate(self, bytes_max: int) -> bytes:
        """At most `bytes_max` inflated bytes; none where more input has to be looked at."""
        if self._inflater.eof:
            return self._next_member()
        if not self._pending:
            self._pending = self._read()
            if not self._pending:
                # Some bytes may still wait inside the inflater.
                rest = self._inflater.decompress(b"", bytes_max)
                self.cut = not self._inflater.eof
                self._ended = not rest
                return rest
        try:
            piece = self._inflater.decompress(self._pending, bytes_max)
        except zlib.error as error:
            raise PeerError(
                f"{self._path}: the gzip stream is damaged: {error}", "fetch the file again"
            ) from None
        self._pending = self._inflater.unconsumed_tail
        return piece

    def _next_member(self) -> bytes:
        self._pending = self._inflater.unused_data.lstrip(b"\0") or self._read().lstrip(b"\0")
        if self._pending.startswith(_GZIP_MAGIC[:1]):
            self._inflater = zlib.decompressobj(wbits=31)
        else:
            self._ended = True  # what follows the last member is ignored, as gzip does
        return b""

    def _read(self) -> bytes:
        block = bytearray(GZIP_READ_BYTES)
        return bytes(block[: self._file.readinto(memoryview(block))])

    def share_done(self) -> float:
        """How much of the compressed file has been read, 0.0 to 1.0."""
        return self._file.share_done()

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Capture:
    """A capture file; see the module's text. Raises `UsageError` or `PeerError` on opening.

    Each call of `batches()` and each iteration is a new pass from the beginning; `statistics`
    and `truncation` tell of the latest pass.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.statistics = CaptureStatistics()
        self.truncation: Truncation | None = None
        source, self._header, self.format = self._open()
        source.close()
        self.big_endian, self.tick_ns, self.link_type = self._parse_header()
        self._source: ByteSource | None = None

    def __iter__(self) -> Iterator[Datagram]:
        for batch in self.batches():
            yield from batch.datagrams()

    @property
    def share_done(self) -> float:
        """How much of the file the running pass has read, 0.0 to 1.0."""
        return self._source.share_done() if self._source else 0.0

    def batches(self) -> Iterator[DatagramBatch]:
        """The capture's datagrams in batches, from the beginning.

        Raises `PeerError` at a record that claims an impossible length, after all before it.
        """
        self.statistics = CaptureStatistics()
        self.truncation = None
        source, _, _ = self._open()
        self._source = source
        try:
            yield from self._walk(source)
        finally:
            source.close()

    def _walk(self, source: ByteSource) -> Iterator[DatagramBatch]:
        scanner = PcapScanner(self.big_endian, self.tick_ns, int(self.link_type))
        rest: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        offset = FILE_HEADER_BYTES  # in the capture's bytes, of the chunk's start
        while True:
            chunk = np.empty(CHUNK_BYTES, np.uint8)
            chunk[: len(rest)] = rest
            filled = len(rest) + source.readinto(chunk.data[len(rest) :])
            if filled == len(rest):
                break
            position = 0
            while True:
                columns = DatagramColumns(BATCH_DATAGRAMS_MAX)
                position = scanner.scan(chunk.data, position, filled, columns)
                self._count(scanner, columns.count)
                if columns.count:
                    yield _batch(chunk, columns)
                if scanner.status != Status.FULL:
                    break
            if scanner.status == Status.DAMAGED:
                raise PeerError(
                    f"{self.path}: damaged at byte {offset + position:,}, after "
                    f"{scanner.records:,} records: a record claims more than "
                    f"{RECORD_BYTES_MAX:,} bytes",
                    "record or fetch the capture again",
                )
            rest = chunk[position:filled]
            offset += position
        if len(rest) or source.cut:
            reason = "the file has no end mark" if source.cut else "the last record is not whole"
            self.truncation = Truncation(scanner.records, offset, reason)

    def _count(self, scanner: PcapScanner, datagrams: int) -> None:
        statistics = self.statistics
        statistics.records = scanner.records
        statistics.datagrams += datagrams
        statistics.cut_payloads = scanner.cut_payloads
        statistics.skipped = scanner.skipped()

    def _open(self) -> tuple[ByteSource, bytes, str]:
        """The file's bytes behind the pcap header, that header, and the format's name."""
        try:
            source, magic = self._open_bytes()
        except OSError as error:
            raise UsageError(
                f"cannot read capture {self.path}: {error.strerror}", "check path and rights"
            ) from None
        if magic.startswith(_PCAPNG_MAGIC):
            source.close()
            # dpkt takes a while to import, and most captures do without.
            from feedhandler.replay.capture_pcapng import PcapngSource

            source = PcapngSource(self.path, self._reopen)
            return source, _read_up_to(source, FILE_HEADER_BYTES), "pcapng"
        header = magic + _read_up_to(source, FILE_HEADER_BYTES - len(magic))
        if len(header) < FILE_HEADER_BYTES:
            source.close()
            raise PeerError(
                f"{self.path} is not a capture: it ends after {len(header)} bytes",
                "give a pcap or pcapng file, plain or gzipped",
            )
        return source, header, "pcap"

    def _open_bytes(self) -> tuple[ByteSource, bytes]:
        """The file's bytes and the first four of them, taken from the source already."""
        source = self._reopen()
        return source, _read_up_to(source, 4)

    def _reopen(self) -> ByteSource:
        """The file from its beginning, inflated where it is gzipped."""
        with self.path.open("rb") as file:
            gzipped = file.read(2) == _GZIP_MAGIC
        return GzipSource(self.path) if gzipped else PlainSource(self.path)

    def _parse_header(self) -> tuple[bool, int, LinkType]:
        """Byte order, nanoseconds a tick and link type. Raises `PeerError`."""
        magic = int.from_bytes(self._header[:4], "little")
        if magic not in _PCAP_MAGICS:
            raise PeerError(
                f"{self.path} is not a capture: it begins with {self._header[:4].hex(' ')}",
                "give a pcap or pcapng file, plain or gzipped",
            )
        big_endian, tick_ns = _PCAP_MAGICS[magic]
        # The upper half may tell of a frame check sequence; captures keep it behind the frame.
        number = int.from_bytes(self._header[20:24], "big" if big_endian else "little") & 0xFFFF
        if number not in list(LinkType):
            raise PeerError(
                f"{self.path}: link type {number} is not understood",
                "Ethernet, raw IPv4 and Linux cooked captures are",
            )
        return big_endian, tick_ns, LinkType(number)


def _batch(chunk: np.ndarray[Any, Any], columns: DatagramColumns) -> DatagramBatch:
    arrays = columns.arrays
    return DatagramBatch(
        chunk, **{name: column[: columns.count] for name, column in arrays.items()}
    )


def _read_up_to(source: ByteSource, size: int) -> bytes:
    """`size` bytes, or what there is before the end."""
    block = bytearray(size)
    filled = 0
    while filled < size:
        got = source.readinto(memoryview(block)[filled:])
        if not got:
            break
        filled += got
    return bytes(block[:filled])
