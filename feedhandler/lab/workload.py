"""The replayer's workload: packets in memory, and what each client must get of them.

A `Workload` is one pass: the data packets of a capture (each once, whichever line it was recorded
on) or of a generated session, as columns over one buffer. It is played in a loop, numbered without
a gap from pass to pass and from step to step. So a run may be longer than the workload, no disk is
read while it plays, and every number is known beforehand (`expect`). Of a capture it keeps the gaps
between packets, too, for playing at the capture's own pace.

Control packets, heartbeats and resets are left out; what a recording lacks closes up, because
packets are numbered anew. Sizes, contents, order and mix of services stay. No I/O: the caller reads
the packets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import DATA, FINE
from feedhandler.codecs.scanner import parse_header
from feedhandler.replay.playing.pace import FRAME_BYTES_MIN, FRAME_OVERHEAD_BYTES

#: Payload bytes of a workload: longer runs loop. Two minutes at the source paper's rate of 20 Mbps
#: a line, and small enough for a laboratory's machine.
WORKLOAD_BYTES_MAX = 256 << 20

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """Messages that one step brings to a client.

    Of each service the first number, how many numbers, the first that is timed (int64 each);
    `counts` u16 of each number, services one behind the other: packets or messages.
    """

    services: Array
    bases: Array
    sizes: Array
    timed_from: Array
    counts: Array

    @property
    def total(self) -> int:
        """AMQP messages that each client must get."""
        return int(self.counts.sum(dtype=np.int64))


@dataclass(frozen=True)
class Stretch:
    """Packets that one step plays: the first `packets` of the looped workload.

    The first `warm_up` of them are not timed.
    """

    packets: int
    warm_up: int


class Workload:
    """One pass of packets. Raises `UsageError` where there is none.

    data      u8: the payloads one behind the other
    offset, length   u32: where each lies
    slot      int64: place in `services` (ascending service numbers)
    count     u16: its messages
    step      int64: how far it advances its service's numbers
    ahead_ns  int64: how long after the first packet it was recorded; 0 where not known
    pass_ns   how long a pass takes at that pace: a mean gap follows its last packet
    repeated  packets of the source that were copies, or older than one before
    """

    def __init__(
        self,
        feed: Feed,
        payloads: Sequence[bytes],
        services: Any,
        counts: Any,
        repeated: int = 0,
        times_ns: Any = None,
    ) -> None:
        if not payloads:
            raise UsageError(
                f"no data packet of {feed.name} to replay", "is the capture of this --feed?"
            )
        self.feed = feed
        self.repeated = repeated
        self.data = np.frombuffer(bytearray(b"".join(payloads)), np.uint8)
        self.length = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        self.offset = (np.cumsum(self.length, dtype=np.int64) - self.length).astype(np.uint32)
        self.services, self.slot = np.unique(np.asarray(services, np.int64), return_inverse=True)
        self.count = np.asarray(counts, np.uint16)
        by_message = feed.table.counts_messages
        self.step = self.count.astype(np.int64) if by_message else np.ones(len(self), np.int64)
        self._number()
        self._time(np.zeros(len(self), np.int64) if times_ns is None else times_ns)

    def __len__(self) -> int:
        return len(self.length)

    def _number(self) -> None:
        """Set each packet's number within a pass: how far it lies ahead of its service's first."""
        #: int64: numbers of its service before it; of each service, numbers in one pass.
        self.ahead = np.zeros(len(self), np.int64)
        self.span = np.zeros(len(self.services), np.int64)
        for slot in range(len(self.services)):
            mine = np.flatnonzero(self.slot == slot)
            steps = self.step[mine]
            self.ahead[mine] = np.cumsum(steps) - steps
            self.span[slot] = steps.sum()
        frames = np.maximum(self.length.astype(np.int64) + FRAME_OVERHEAD_BYTES, FRAME_BYTES_MIN)
        #: int64: bits of Ethernet frames before each packet, on one line; and of a whole pass.
        self.bits_before = (np.cumsum(frames) - frames) * 8
        self.pass_bits = int(frames.sum()) * 8

    def _time(self, times_ns: Any) -> None:
        """Keep the gaps as they were recorded; 0 where the source's time goes back."""
        times = np.asarray(times_ns, np.int64)
        self.ahead_ns = np.cumsum(np.maximum(np.diff(times, prepend=times[:1]), 0))
        self.pass_ns = int(self.ahead_ns[-1]) + int(self.ahead_ns[-1]) // max(1, len(self) - 1)

    @property
    def timed(self) -> bool:
        """Whether it is known when the packets were recorded."""
        return self.pass_ns > 0

    @property
    def recorded_bps(self) -> float:
        """Mean bits of Ethernet frames a second on one line, as recorded; 0 where not known."""
        return self.pass_bits * 1e9 / self.pass_ns if self.timed else 0.0

    def packets_within_ns(self, time_ns: int) -> int:
        """Count the packets that begin before `time_ns` of the recording's time have passed."""
        passes, rest = divmod(time_ns, self.pass_ns)
        return passes * len(self) + int(np.searchsorted(self.ahead_ns, rest))

    def begins_ns(self, packet: int) -> int:
        """Return when a step's packet (from 0) begins, in ns of the recording's time."""
        passes, rest = divmod(packet, len(self))
        return passes * self.pass_ns + int(self.ahead_ns[rest])

    def peak_bits(self, window_ns: int, packets: int) -> int:
        """Return the most bits of frames on one line that begin within one window of `window_ns`.

        In the recording's time, among a step's first `packets`; windows stand side by side.
        """
        bits = np.diff(self.bits_before, append=self.pass_bits)[:packets]
        windows = self.ahead_ns[:packets] // window_ns
        begins = np.flatnonzero(np.diff(windows, prepend=-1))
        return int(np.add.reduceat(bits, begins).max())

    def packets_within(self, bits: int) -> int:
        """Count the packets that begin before `bits` of frames on one line have been sent."""
        passes, rest = divmod(bits, self.pass_bits)
        return passes * len(self) + int(np.searchsorted(self.bits_before, rest))

    def numbers_before(self, packets: int) -> Array:
        """Return for each service how many numbers the first `packets` of a step use (int64)."""
        passes, rest = divmod(packets, len(self))
        broken = np.zeros_like(self.span)
        np.add.at(broken, self.slot[:rest], self.step[:rest])
        found: Array = passes * self.span + broken
        return found

    def expect(
        self, stretch: Stretch, bases: Array, messages: bool, wanted: Array | None = None
    ) -> Expected:
        """Return what clients get of a stretch whose services begin at `bases`.

        `messages`: each market message is an AMQP message of its own. `wanted`, for clients that do
        not want everything: of each packet, how many of its messages.
        """
        sizes = self.numbers_before(stretch.packets)
        counts = self.count if wanted is None else wanted
        brought = counts if messages else np.minimum(counts, 1)
        parts = []
        for slot, size in enumerate(sizes.tolist()):
            mine = self.slot == slot
            one_pass = np.zeros(int(self.span[slot]), np.uint16)
            one_pass[self.ahead[mine]] = brought[mine]
            parts.append(np.resize(one_pass, size))
        timed_from = bases + self.numbers_before(stretch.warm_up)
        return Expected(self.services, bases, sizes, timed_from, np.concatenate(parts))

    def messages_in(self, first: int, end: int) -> int:
        """Count the market messages of a step's packets `first` .. `end` - 1."""
        return self._sum_before(self.count, end) - self._sum_before(self.count, first)

    def bytes_in(self, first: int, end: int) -> int:
        """Count the payload bytes of a step's packets `first` .. `end` - 1."""
        return self._sum_before(self.length, end) - self._sum_before(self.length, first)

    def bits_in(self, first: int, end: int) -> int:
        """Count Ethernet frames' bits of a step's packets `first` .. `end` - 1, on one line."""
        ends = [
            passes * self.pass_bits + int(self.bits_before[rest])
            for passes, rest in (divmod(end, len(self)), divmod(first, len(self)))
        ]
        return ends[0] - ends[1]

    def packets_by_slot(self, first: int, end: int) -> Array:
        """Count a step's packets `first` .. `end` - 1 by service (int64)."""
        return self._slots_before(end) - self._slots_before(first)

    def _slots_before(self, packets: int) -> Array:
        passes, rest = divmod(packets, len(self))
        counts = [
            np.bincount(part, minlength=len(self.services))
            for part in (self.slot, self.slot[:rest])
        ]
        return passes * counts[0] + counts[1]

    def _sum_before(self, column: Array, packets: int) -> int:
        passes, rest = divmod(packets, len(self))
        return passes * int(column.sum(dtype=np.int64)) + int(column[:rest].sum(dtype=np.int64))

    def describe(self) -> dict[str, Any]:
        """Describe the workload, for the record and for people."""
        messages = int(self.count.sum(dtype=np.int64))
        packets = np.bincount(self.slot, minlength=len(self.services)).tolist()
        return {
            "packets": len(self),
            "messages": messages,
            "mean_packet_bytes": round(float(self.length.mean()), 2),
            "mean_messages_a_packet": round(messages / len(self), 2),
            "packets_by_service": dict(zip(self.services.tolist(), packets, strict=True)),
            "repeated_left_out": self.repeated,
            "recorded_seconds": round(self.pass_ns / 1e9, 6),
            "recorded_line_mbps": round(self.recorded_bps / 1e6, 6),
        }


def workload_of(
    feed: Feed, packets: Iterable[tuple[int, bytes]], bytes_max: int = WORKLOAD_BYTES_MAX
) -> Workload:
    """Make a workload of the data packets among `packets` (time in ns, and bytes of each).

    Keeps the first copy of each, until `bytes_max` are reached. Raises `UsageError` where there is
    no data packet.
    """
    header = PacketHeader()
    payloads: list[bytes] = []
    times_ns: list[int] = []
    services: list[int] = []
    counts: list[int] = []
    reached: dict[tuple[int, int], int] = {}
    used = repeated = 0
    for time_ns, packet in packets:
        if parse_header(feed.table, packet, 0, len(packet), header) != FINE:
            continue
        if header.kind != DATA or not header.count:
            continue
        stream = (header.service, header.session)
        if header.sequence < reached.get(stream, 0):
            repeated += 1
            continue
        reached[stream] = header.next_sequence
        used += len(packet)
        if used > bytes_max:
            break
        payloads.append(packet)
        times_ns.append(time_ns)
        services.append(header.service)
        counts.append(header.count)
    return Workload(feed, payloads, services, counts, repeated, times_ns)
