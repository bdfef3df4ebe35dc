"""Which datagrams of a recording are meant: by time, group, port, service and numbers.

A `Selection` is what was asked; a `Selector` applies it, batch after batch, as masks over columns,
and counts what it leaves out by the first reason that held (`LeftOut`). Group, port and time stand
in every capture; service and numbers are the feed's, so whoever asks for them names the feed.

Window: from `from_ns` on, before `until_ns`. Numbers: a packet is meant where one of its own lies
in the range; what has no number of its own (heartbeats, control packets) is then left out. Sans-IO.
"""

import dataclasses
import enum
import ipaddress
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.scanner import FeedTable
from feedhandler.replay.captures.packet_headers import PacketHeaders, read_headers
from feedhandler.replay.captures.reading import DatagramBatch

Array = np.ndarray[Any, Any]


class LeftOut(enum.Enum):
    """Why a datagram is not among the chosen, in the order in which it is asked."""

    BEFORE = "before the window"
    AFTER = "after the window"
    GROUP = "another group"
    PORT = "another port"
    NOT_OF_FEED = "no packet of the feed"
    SERVICE = "another service"
    SEQUENCE = "outside the sequence numbers"


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is meant; each part None or empty where anything goes.

    `from_ns` and `until_ns` in ns since 1970 UTC; `groups` are (address as a number, port or
    None); `ports`, `services`; `sequences`: the first and the last number, both meant.
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
    """`239.1.1.1` or `239.1.1.1:5001` as (address as a number, port or None)."""
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
    """`100-200`, `100-` or `100` as the first and the last number."""
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
    """Applies a selection to one batch after the other; `left_out` counts what is not meant.

    `table`: the feed's, where the selection needs one. Raises `UsageError` where it is missing.
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
        """What is meant of the batch: the batch itself where that is all of it.

        Reads the packet headers where they are asked for and not there yet.
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
        return batch.take(mask)


def with_headers(batch: DatagramBatch, table: FeedTable) -> DatagramBatch:
    """The batch with its feed's packet headers, read where they are not there yet."""
    if batch.headers is not None:
        return batch
    headers = read_headers(table, batch.data, batch.offset, batch.length)
    return dataclasses.replace(batch, headers=headers)


def _headers(batch: DatagramBatch) -> PacketHeaders:
    assert batch.headers is not None
    return batch.headers
