"""Ledgers: an exchange's list of every message it sent, a subscriber's of every one it got.

A ledger is a file of fixed records, written as the session goes and read back as one numpy array;
`ledger_check` holds one against the other. A message is known by where it travelled (service,
packet sequence number, its index in the packet) and by a 64-bit BLAKE2 hash of its bytes, so a
ledger proves content without keeping it. Beside messages a subscriber records announcements: where
its stream starts, which ranges are declared lost, and up to which number a snapshot has recovered
them. The snapshot's own messages are no deliveries and are not written.

A packet that reaches a subscriber may have been thinned to the messages it asked for, so its
messages are numbered by their index in what was delivered (`PACKED`); a message delivered alone
carries its index in the exchange's packet (`MESSAGE`), as everything sent does. FIX messages carry
their own numbers wherever they are: each is a `MESSAGE` under its number, at index 0. Their
packets name no service, so it is given with them.

Records are appended in the order of events, `BUFFER_RECORDS` at a time. A ledger that was cut
short (the writer was killed) reads up to its last whole record.
"""

import struct
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import ConfigError, PeerError, UsageError
from feedhandler.codecs.feed_table import NO_SYMBOL, MessageIndex, PacketHeader
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.scanner import parse_header, parse_next, scan_messages

#: One record; see `RecordKind` for what the fields mean in each kind.
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("symbol", "<u8"),
        ("hash", "<u8"),
        ("service", "<u2"),
        ("number", "<u2"),
        ("type", "<u2"),
        ("kind", "u1"),
        ("reserved", "u1"),
    ]
)
#: Records kept in memory before they are written: 128 KiB.
BUFFER_RECORDS = 4096

_MAGIC, _VERSION = b"FHLEDGER", 1
_FILE_HEADER = struct.Struct("<8sHH20s")
_PACK = struct.Struct("<QQ8sHHHBx").pack
_NO_HASH = bytes(8)

Records = NDArray[Any]


class RecordKind(IntEnum):
    """Kinds of records."""

    MESSAGE = 0
    """a message; `number` is its index in the packet that the exchange sent"""
    PACKED = 1
    """a message out of a delivered packet; `number` is its index in that"""
    LOST = 2
    """`sequence` to `symbol`, both included, were announced to the subscriber as lost"""
    START = 3
    """the subscriber was notified that the service's stream begins at `sequence`"""
    REFRESHED = 4
    """the subscriber got a snapshot of the service's state after `sequence`"""
    WITHDRAWN = 5
    """the subscriber was notified that `sequence` to `symbol`, both included, are not lost after
    all, and may come behind later ones"""


class Ledger(NamedTuple):
    """A ledger read back: the key of its feed, and its records (`RECORD`) in order."""

    feed: str
    records: Records


class LedgerWriter:
    """A writer of one ledger; not thread-safe.

    Raises `ConfigError` where the file cannot be written.
    """

    def __init__(self, path: Path, feed: Feed) -> None:
        self.path = path
        self.messages = 0
        self._table = feed.table
        self._header = PacketHeader()
        self._index = MessageIndex()
        self._records: list[bytes] = []
        try:
            # Unbuffered: the records are gathered here, and each gathering is one write.
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115
            self._file.write(
                _FILE_HEADER.pack(_MAGIC, _VERSION, RECORD.itemsize, feed.key.encode())
            )
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written: {error.strerror}", "give another file for the ledger"
            ) from None

    def sent(self, packet: bytes, service: int = 0) -> int:
        """Record the messages of a packet that the exchange sends; return their number.

        `service` is used where packets name none (FIX). Control packets have no messages. Raises
        `PeerError` for what the feed's scanner rejects.
        """
        if self._table.fix:
            return self._runs(packet, service)
        return self._packet(packet, RecordKind.MESSAGE)

    def received_packet(self, packet: bytes, service: int = 0) -> int:
        """Record the messages of a packet as delivered, thinned or not; return their number.

        Raises `PeerError` for what the feed's scanner rejects.
        """
        if self._table.fix:
            return self._runs(packet, service)
        return self._packet(packet, RecordKind.PACKED)

    def received_message(
        self, service: int, sequence: int, number: int, message: bytes, symbol: int = NO_SYMBOL,
        type: int = 0,
    ) -> None:  # fmt: skip
        """Record a message delivered alone; `number` is its index in the exchange's packet."""
        digest = blake2b(message, digest_size=8).digest()
        self._append(_PACK(sequence, symbol, digest, service, number, type, RecordKind.MESSAGE))
        self.messages += 1

    def lost(self, service: int, first: int, last: int) -> None:
        """Record a declared loss, both ends inclusive. Raises `UsageError` for an empty range."""
        self._append_range(service, first, last, RecordKind.LOST)

    def withdrawn(self, service: int, first: int, last: int) -> None:
        """Record that a declared loss was withdrawn. Raises `UsageError` for an empty range."""
        self._append_range(service, first, last, RecordKind.WITHDRAWN)

    def _append_range(self, service: int, first: int, last: int, kind: RecordKind) -> None:
        if first > last:
            raise UsageError(f"the range {first} to {last} is empty", "give the lower end first")
        self._append(_PACK(first, last, _NO_HASH, service, 0, 0, kind))

    def start(self, service: int, sequence: int) -> None:
        """Record the announcement that the service's stream begins at `sequence`."""
        self._append(_PACK(sequence, 0, _NO_HASH, service, 0, 0, RecordKind.START))

    def refreshed(self, service: int, last: int) -> None:
        """Record a received snapshot: the service's state after `last`."""
        self._append(_PACK(last, 0, _NO_HASH, service, 0, 0, RecordKind.REFRESHED))

    def flush(self) -> None:
        """Write the buffered records to the file."""
        rest = memoryview(b"".join(self._records))
        self._records.clear()
        while rest:
            # A disk that is nearly full takes a part, and says so only the next time.
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Write the rest and close; closing twice does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _packet(self, packet: bytes, kind: RecordKind) -> int:
        header, index = self._header, self._index
        verdict = parse_header(self._table, packet, 0, len(packet), header)
        if not verdict and header.kind == PacketKind.DATA:
            verdict = scan_messages(self._table, packet, 0, header, index)
        elif not verdict:
            return 0
        if verdict:
            raise _no_packet(verdict)
        sequence, service, count = header.sequence, header.service, index.count
        offsets, sizes = index.offsets, index.sizes
        symbols, types = index.symbols, index.types
        for number in range(count):
            at = offsets[number]
            digest = blake2b(packet[at : at + sizes[number]], digest_size=8).digest()
            self._records.append(
                _PACK(sequence, symbols[number], digest, service, number, types[number], kind)
            )
        self.messages += count
        if len(self._records) >= BUFFER_RECORDS:
            self.flush()
        return count

    def _runs(self, packet: bytes, service: int) -> int:
        """Record the application messages of FIX bytes, run by run; return their number."""
        header, index, at, count = self._header, self._index, 0, 0
        while at < len(packet):
            verdict = parse_next(self._table, packet, at, len(packet) - at, header)
            if not verdict and header.kind == PacketKind.DATA:
                verdict = scan_messages(self._table, packet, at, header, index)
                for i in range(0 if verdict else index.count):
                    begin, size = at + index.offsets[i], index.sizes[i]
                    self.received_message(
                        service, header.sequence + i, 0, packet[begin : begin + size],
                        index.symbols[i], index.types[i],
                    )  # fmt: skip
                    count += 1
            if verdict:
                raise _no_packet(verdict)
            at += header.length
        return count

    def _append(self, record: bytes) -> None:
        self._records.append(record)
        if len(self._records) >= BUFFER_RECORDS:
            self.flush()


def _no_packet(verdict: int) -> PeerError:
    return PeerError(f"not a packet: {Reject(verdict).name}", "is this the right feed?")


def read_ledger(path: Path) -> Ledger:
    """Read a ledger. Raises `UsageError` for a file that is none or cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", "name a ledger that a run has written"
        ) from None
    hint = "name a ledger that this version has written"
    if len(data) < _FILE_HEADER.size or not data.startswith(_MAGIC):
        raise UsageError(f"{path}: not a ledger", hint)
    _, version, size, key = _FILE_HEADER.unpack_from(data)
    if (version, size) != (_VERSION, RECORD.itemsize):
        raise UsageError(f"{path}: a ledger of version {version}", hint)
    whole = (len(data) - _FILE_HEADER.size) // RECORD.itemsize
    records = np.frombuffer(data, RECORD, whole, _FILE_HEADER.size)
    return Ledger(key.rstrip(b"\0").decode("ascii", "replace"), records)
