"""Captures as a stream of UDP datagrams: pcap and pcapng, plain, gzipped or zstd.

`Capture(path)` detects the format by the file's first bytes, not by its name, and raises an error
of one line for other files. `batches()` yields datagrams by the thousand as columns over a chunk
of the file; iterating the capture itself yields them one by one. Memory is bounded by `CHUNK_BYTES`
however large the file is, compressed or not; a batch owns its bytes, so it may be kept.

A capture that was cut short (a recorder killed, a copy interrupted) is read to its last whole
record; `capture.truncation` then says after how many records and at which byte. A capture that
is damaged in the middle raises `PeerError` after the datagrams before the damage.

Frames that the compiled reader puts aside (IPv6, tunnels, other link layers, fragments) are read by
`slow_frames`, with dpkt; their datagrams stand in their places among the others (`BatchMaker`).

Times are integer nanoseconds. `capture.statistics` counts skipped frames by reason, and datagrams
read by `slow_frames`. `pcap` and `pcapng` scan the bytes, `sources` inflates, and
`writer` writes captures.
"""

import dataclasses
import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.captures.frames import (
    RECORD_BYTES_MAX,
    DatagramColumns,
    FrameReader,
    LinkType,
    Skip,
)
from feedhandler.replay.captures.packet_headers import PacketHeaders
from feedhandler.replay.captures.pcap import FILE_HEADER_BYTES, PcapScanner
from feedhandler.replay.captures.pcapng import (
    BLOCK_BYTES_MAX,
    BYTE_ORDERS,
    SECTION_MAGIC,
    PcapngScanner,
)
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES
from feedhandler.replay.captures.sources import ByteSource, open_source, read_up_to, refuse_pipe
from feedhandler.replay.captures.status import Status

if TYPE_CHECKING:
    from feedhandler.replay.captures.slow_frames import SlowFrames

#: Bytes of capture walked at a time: fits a second-level cache, and holds any single record.
CHUNK_BYTES = 1 << 20
#: Datagrams a batch at most; a chunk of very small datagrams becomes two batches.
BATCH_DATAGRAMS_MAX = 8_192

assert max(RECORD_BYTES_MAX + RECORD_HEADER_BYTES, BLOCK_BYTES_MAX) < CHUNK_BYTES

#: Magic number as read little-endian: is the file big-endian, nanoseconds a tick.
_PCAP_MAGICS = {
    0xA1B2C3D4: (False, 1_000),
    0xA1B23C4D: (False, 1),
    0xD4C3B2A1: (True, 1_000),
    0x4D3CB2A1: (True, 1),
}

#: The columns of a `DatagramBatch` that have a row a datagram.
COLUMNS = tuple(DatagramColumns(0).arrays)

Scanner = PcapScanner | PcapngScanner


class Datagram(NamedTuple):
    """One UDP datagram of a capture: when, to which group and port, from whom, what."""

    time_ns: int
    group: str
    port: int
    source: str
    payload: bytes


@functools.lru_cache(maxsize=4_096)
def address_text(address: int) -> str:
    """Format an IPv4 address number as dotted text."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


@dataclasses.dataclass(frozen=True, slots=True)
class DatagramBatch:
    """Some consecutive datagrams of a capture, a numpy array per column over shared bytes.

    `data` u8: the bytes; `offset`, `length` u32: where each payload lies in them; `time_ns`
    int64; `source`, `destination` u32 IPv4 numbers; `source_port`, `destination_port` u16;
    `frame_offset`, `frame_length` u32: the same of the whole frame, as captured; `interface` u16:
    which of the capture's interfaces saw it (pcapng), else 0; `link_type` u16: the frame's
    `LinkType`.

    On the way to a player more may be added: `headers`, the feed's packet headers, a row a
    datagram; `moved_ns`, by how much `time_ns` differs from the recorded times; and `pass_number`,
    counted from 1, of a loop.
    """

    data: np.ndarray[Any, Any]
    time_ns: np.ndarray[Any, Any]
    source: np.ndarray[Any, Any]
    destination: np.ndarray[Any, Any]
    source_port: np.ndarray[Any, Any]
    destination_port: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]
    frame_offset: np.ndarray[Any, Any]
    frame_length: np.ndarray[Any, Any]
    interface: np.ndarray[Any, Any]
    link_type: np.ndarray[Any, Any]
    headers: PacketHeaders | None = None
    moved_ns: int = 0
    pass_number: int = 1

    def __len__(self) -> int:
        return len(self.time_ns)

    def select(self, rows: Any) -> "DatagramBatch":
        """Select datagrams by a mask, an index array or a slice, over the same bytes."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        headers = None if self.headers is None else self.headers.select(rows)
        return dataclasses.replace(self, headers=headers, **columns)

    def payload(self, position: int) -> bytes:
        """Return a copy of the payload of one datagram."""
        start = int(self.offset[position])
        return self.data[start : start + int(self.length[position])].tobytes()

    def datagrams(self) -> Iterator[Datagram]:
        """Yield the batch's datagrams one by one, with copied payloads."""
        data = self.data.data
        columns = (self.time_ns, self.destination, self.destination_port, self.source)
        extents = (self.offset, self.length)
        for time_ns, group, port, source, start, length in zip(
            *(column.tolist() for column in columns + extents), strict=True
        ):
            payload = bytes(data[start : start + length])
            yield Datagram(time_ns, address_text(group), port, address_text(source), payload)


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """Position at which a capture was cut short: after `records` whole records, at byte `offset`.

    `offset` counts the capture's own bytes (before compression); `reason` says what was cut.
    """

    records: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"cut short after {self.records:,} records, at byte {self.offset:,}: {self.reason}"


@dataclasses.dataclass(slots=True)
class CaptureStatistics:
    """Counts of a pass over a capture: whole records, datagrams, and skipped frames by reason.

    `slowly` counts the datagrams read by `slow_frames`, by what the compiled reader does not read;
    `joined` the records that are fragments of complete ones; `stand_ins` maps IPv4 stand-ins to
    IPv6 addresses. Of pcapng also: the packets without a time of their own (`untimed`), and the
    names of the interfaces of the latest section.
    """

    records: int = 0
    datagrams: int = 0
    cut_payloads: int = 0
    slowly: dict[str, int] = dataclasses.field(default_factory=dict)
    joined: int = 0
    stand_ins: dict[str, str] = dataclasses.field(default_factory=dict)
    untimed: int = 0
    interfaces: tuple[str, ...] = ()
    skipped: dict[Skip, int] = dataclasses.field(default_factory=dict)


class Capture:
    """A capture file; see the module's text. Raises `UsageError` or `PeerError` on opening.

    Each call of `batches()` and each iteration is a new pass from the beginning; `statistics`
    and `truncation` are of the latest pass.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.statistics = CaptureStatistics()
        self.truncation: Truncation | None = None
        source, self._header, self.format = self._open()
        source.close()
        self._scanner()
        self._source: ByteSource | None = None

    def __iter__(self) -> Iterator[Datagram]:
        for batch in self.batches():
            yield from batch.datagrams()

    @property
    def share_done(self) -> float:
        """Share of the file that the running pass has read, 0.0 to 1.0."""
        return self._source.share_done() if self._source else 0.0

    def batches(self) -> Iterator[DatagramBatch]:
        """Yield the capture's datagrams in batches, from the beginning.

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
        scanner = self._scanner()
        make = BatchMaker(scanner.frames)
        # What was read to recognise the format: a pcap's header is done with, a pcapng's is its
        # first block's.
        rest = np.frombuffer(self._header if self.format == "pcapng" else b"", np.uint8)
        offset = len(self._header) - len(rest)  # in the capture's bytes, of the chunk's start
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
                batch = make(chunk, columns)
                self._count(scanner, make, len(batch))
                if len(batch):
                    yield batch
                if scanner.status != Status.FULL:
                    break
            if scanner.status == Status.DAMAGED:
                raise PeerError(
                    f"{self.path}: damaged at byte {offset + position:,}, after "
                    f"{scanner.records:,} records: {scanner.damage}",
                    "record or fetch the capture again",
                )
            rest = chunk[position:filled]
            offset += position
        make.finish()
        self._count(scanner, make, 0)
        if len(rest) or source.cut:
            reason = "the file has no end mark" if source.cut else "the last record is not whole"
            self.truncation = Truncation(scanner.records, offset, reason)

    def _count(self, scanner: Scanner, make: "BatchMaker", datagrams: int) -> None:
        statistics = self.statistics
        statistics.records = scanner.records
        statistics.datagrams += datagrams
        statistics.cut_payloads = make.cut_payloads
        statistics.skipped = make.skipped
        statistics.slowly = make.slowly
        statistics.joined = make.joined
        statistics.stand_ins = make.stand_ins
        if isinstance(scanner, PcapngScanner):
            statistics.untimed = scanner.untimed
            statistics.interfaces = tuple(scanner.interfaces)

    def _open(self) -> tuple[ByteSource, bytes, str]:
        """Open the file; return its source, the bytes read already, and the format's name.

        Raises `UsageError` where it cannot be read, `PeerError` where it is too short."""
        refuse_pipe(self.path)
        try:
            source = open_source(self.path)
            header = read_up_to(source, len(SECTION_MAGIC))
        except OSError as error:
            raise UsageError(
                f"cannot read capture {self.path}: {error.strerror}", "check path and rights"
            ) from None
        if header == SECTION_MAGIC:
            return source, header + read_up_to(source, 8), "pcapng"
        header += read_up_to(source, FILE_HEADER_BYTES - len(header))
        if len(header) < FILE_HEADER_BYTES:
            source.close()
            raise PeerError(
                f"{self.path} is not a capture: it ends after {len(header)} bytes",
                "give a pcap or pcapng file, plain, gzipped or zstd",
            )
        return source, header, "pcap"

    def _scanner(self) -> Scanner:
        """Return a scanner of this file. Raises `PeerError` for an unsupported file."""
        if self.format == "pcapng":
            if self._header[8:] not in BYTE_ORDERS:
                raise PeerError(
                    f"{self.path} is not a usable pcapng capture: its byte order is unknown",
                    "record or fetch the capture again",
                )
            return PcapngScanner()
        return pcap_scanner(self._header, str(self.path))


def pcap_scanner(header: bytes, name: str) -> PcapScanner:
    """Return a scanner of the classic capture that begins with these `FILE_HEADER_BYTES`.

    Raises `PeerError`, which calls the file `name`, for no capture or an unsupported link type.
    """
    magic = int.from_bytes(header[:4], "little")
    if magic not in _PCAP_MAGICS:
        raise PeerError(
            f"{name} is not a capture: it begins with {header[:4].hex(' ')}",
            "give a pcap or pcapng file, plain, gzipped or zstd",
        )
    big_endian, tick_ns = _PCAP_MAGICS[magic]
    # The upper half may announce a frame check sequence, which stands behind the frame.
    number = int.from_bytes(header[20:24], "big" if big_endian else "little") & 0xFFFF
    if number not in list(LinkType):
        raise PeerError(
            f"{name}: link type {number} is not understood",
            "Ethernet, raw IP, Linux cooked, loopback and PPP captures are",
        )
    return PcapScanner(big_endian, tick_ns, number)


class BatchMaker:
    """A maker of batches from columns that a scanner filled; it reads the frames put aside, too.

    `frames`: the scanner's. Its properties are counts so far; the fragments of incomplete datagrams
    count as skipped once `finish` has been called. `waiting`: such fragments, from the property of
    that name of the maker of the batches before.
    """

    def __init__(self, frames: FrameReader, waiting: bytes = b"") -> None:
        self._frames = frames
        self._waiting = waiting
        self._slow: "SlowFrames | None" = None

    def __call__(self, chunk: np.ndarray[Any, Any], columns: DatagramColumns) -> DatagramBatch:
        """Return the datagrams in `columns` (perhaps none), over the bytes that were scanned."""
        if columns.limit == columns.capacity:
            arrays = {name: column[: columns.count] for name, column in columns.arrays.items()}
            return DatagramBatch(chunk, **cast(dict[str, Any], arrays))
        slow = self._slow or self._begin()
        data, arrays = slow.read_aside(chunk, columns)
        return DatagramBatch(data, **cast(dict[str, Any], arrays))

    def _begin(self) -> "SlowFrames":
        """Create the slow reader: dpkt takes a while to import, and most captures do without."""
        from feedhandler.replay.captures.slow_frames import SlowFrames

        self._slow = SlowFrames(self._waiting)
        return self._slow

    def finish(self) -> None:
        """Give up incomplete datagrams, at the end of the capture."""
        if self._slow is None and self._waiting:
            self._begin()
        if self._slow is not None:
            self._slow.finish()

    @property
    def waiting(self) -> bytes:
        """The pieces of datagrams that are not whole; empty: none."""
        return self._slow.fragments.waiting if self._slow else self._waiting

    @property
    def skipped(self) -> dict[Skip, int]:
        """Frames that were no datagrams, by reason."""
        found = self._frames.skipped()
        for reason, count in (self._slow.skipped if self._slow else {}).items():
            found[reason] = found.get(reason, 0) + count
        return found

    @property
    def slowly(self) -> dict[str, int]:
        """Datagrams that were read slowly, by what made them slow."""
        return dict(self._slow.slowly) if self._slow else {}

    @property
    def joined(self) -> int:
        """Records that are pieces of datagrams that became whole."""
        return self._slow.fragments.joined if self._slow else 0

    @property
    def cut_payloads(self) -> int:
        """Datagrams that the capture holds in part."""
        return self._frames.cut_payloads + (self._slow.cut_payloads if self._slow else 0)

    @property
    def stand_ins(self) -> dict[str, str]:
        """IPv6 addresses by what stands for them."""
        return dict(self._slow.stand_ins) if self._slow else {}
