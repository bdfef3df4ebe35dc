"""Selection of datagrams of a recording by time, group, port, service and sequence number.

A `Selection` holds the criteria; a `Selector` applies them, batch by batch, as masks over columns,
and counts what it leaves out by the first criterion that failed (`LeftOut`). Group, port and time
are in every capture; service and sequence number need the packet headers, and so the feed.

The window is from `from_ns` (inclusive) to `until_ns` (exclusive). A packet matches a range of
numbers where one of its own is in it; packets without numbers of their own (heartbeats, control
packets) are then left out. Sans-IO.
"""

import dataclasses
import enum
import ipaddress
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import FeedTable
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.replay.captures.packet_headers import PacketHeaders, read_headers
from feedhandler.replay.captures.reading import DatagramBatch

Array = np.ndarray[Any, Any]


class LeftOut(enum.Enum):
    """Reasons why a datagram is not selected, in the order of the checks."""

    BEFORE = "before the window"
    AFTER = "after the window"
    GROUP = "another group"
    PORT = "another port"
    NOT_OF_FEED = "no packet of the feed"
    SERVICE = "another service"
    SEQUENCE = "outside the sequence numbers"


@dataclasses.dataclass(frozen=True)
class Selection:
    """Criteria for datagrams; a criterion that is None or empty matches all.

    `from_ns` and `until_ns` in ns since 1970 UTC; `groups` are (address as a number, port or
    None); `sequences`: the first and the last number, both inclusive.
    """

    from_ns: int | None = None
    until_ns: int | None = None
    groups: tuple[tuple[int, int | None], ...] = ()
    ports: tuple[int, ...] = ()
    services: tuple[int, ...] = ()
    sequences: tuple[int, int] | None = None

    @property
    def needs_feed(self) -> bool:
        """Whether packet headers have to be read for this."""
        return bool(self.services) or self.sequences is not None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()


def parse_group(text: str) -> tuple[int, int | None]:
    """Parse `239.1.1.1` or `239.1.1.1:5001` to (address as a number, port or None).

    Raises `UsageError` where it is neither.
    """
    host, _, port = text.partition(":")
    try:
        address = int(ipaddress.IPv4Address(host))
        number = int(port) if port else None
    except ValueError:
        raise UsageError(f"'{text}' is no group", "give 239.1.1.1 or 239.1.1.1:5001") from None
    if number is not None and not 0 < number < 65_536:
        raise UsageError(f"'{text}': {number} is no port", "give 1 to 65535")
    return address, number


def parse_sequences(text: str) -> tuple[int, int]:
    """Parse `100-200`, `100-` or `100` to the first and the last number, both inclusive.

    Raises `UsageError` where it is none of them.
    """
    first, dash, last = text.partition("-")
    try:
        low = int(first)
        high = int(last) if last else (2**64 - 1 if dash else low)
    except ValueError:
        raise UsageError(f"'{text}' is no range of numbers", "give 100-200, 100- or 100") from None
    if not 0 <= low <= high < 2**64:
        raise UsageError(f"'{text}' is no range of numbers", "the lower number comes first")
    return low, high


class Selector:
    """A filter of batches by a `Selection`; `left_out` counts what is not selected.

    `table`: the feed's. Raises `UsageError` where the selection needs it and it is missing.
    """

    def __init__(self, selection: Selection, table: FeedTable | None = None) -> None:
        if selection.needs_feed and table is None:
            raise UsageError(
                "services and sequence numbers are known only of a feed", "name it with --feed"
            )
        self.selection = selection
        self.left_out: dict[LeftOut, int] = {}
        self._table = table

    def __call__(self, batch: DatagramBatch) -> DatagramBatch:
        """Return the selected rows of the batch, the batch itself where these are all.

        Reads the packet headers where the selection needs them and they were not read yet.
        """
        asked = self.selection
        time_ns = batch.time_ns
        if asked.from_ns is not None:
            batch = self._keep(batch, time_ns >= asked.from_ns, LeftOut.BEFORE)
        if asked.until_ns is not None:
            batch = self._keep(batch, batch.time_ns < asked.until_ns, LeftOut.AFTER)
        if asked.groups:
            batch = self._keep(batch, self._of_groups(batch), LeftOut.GROUP)
        if asked.ports:
            batch = self._keep(batch, np.isin(batch.destination_port, asked.ports), LeftOut.PORT)
        return self._by_feed(batch) if asked.needs_feed else batch

    def _by_feed(self, batch: DatagramBatch) -> DatagramBatch:
        assert self._table is not None
        asked = self.selection
        batch = with_headers(batch, self._table)
        batch = self._keep(batch, _headers(batch).verdict == Reject.FINE, LeftOut.NOT_OF_FEED)
        if asked.services:
            named = np.isin(_headers(batch).service, asked.services)
            batch = self._keep(batch, named, LeftOut.SERVICE)
        if asked.sequences is not None:
            first, last = asked.sequences
            headers = _headers(batch)
            numbered = (headers.kind == PacketKind.DATA) | (headers.kind == PacketKind.RESET)
            after = np.maximum(headers.next_sequence, headers.sequence + np.uint64(1))
            reset = headers.kind == PacketKind.RESET
            after = np.where(reset, headers.sequence + np.uint64(1), after)
            within = (headers.sequence <= np.uint64(last)) & (after > np.uint64(first))
            batch = self._keep(batch, numbered & within, LeftOut.SEQUENCE)
        return batch

    def _of_groups(self, batch: DatagramBatch) -> Array:
        meant = np.zeros(len(batch), bool)
        for group, port in self.selection.groups:
            here = batch.destination == np.uint32(group)
            meant |= here if port is None else here & (batch.destination_port == port)
        return meant

    def _keep(self, batch: DatagramBatch, mask: Array, reason: LeftOut) -> DatagramBatch:
        kept = int(np.count_nonzero(mask))
        if kept == len(mask):
            return batch
        self.left_out[reason] = self.left_out.get(reason, 0) + len(mask) - kept
        return batch.select(mask)


def with_headers(batch: DatagramBatch, table: FeedTable) -> DatagramBatch:
    """Return the batch with its packet headers, read now where they were not read yet."""
    if batch.headers is not None:
        return batch
    headers = read_headers(table, batch.data, batch.offset, batch.length)
    return dataclasses.replace(batch, headers=headers)


def _headers(batch: DatagramBatch) -> PacketHeaders:
    assert batch.headers is not None
    return batch.headers
