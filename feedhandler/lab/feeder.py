"""Plays a workload onto the lines at a rate, numbers its packets, and accounts for what it sent.

One thread prepares blocks (numpy: numbers into the packets, due times from `replay`'s schedule),
another sends them without the GIL through `replay`'s sender. What is due within a short time leaves
together: the replayer shares the machine with what is measured, and a wake-up for each packet of a
fast run would take half a processor from it. At the source paper's rate each packet still leaves
alone. At a recording's own pace the gaps are the recording's, to the nanosecond that the sender can
keep.

Every line gets every packet. The rate counts all lines together, in bits of Ethernet frames, as the
source paper's 40 Mbps do.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.lab.results import Sent
from feedhandler.lab.workload import Stretch, Workload
from feedhandler.replay.captures.packet_headers import write_sequences
from feedhandler.replay.playing.pace import Pace, PaceKind, Schedule
from feedhandler.replay.playing.plain_block import PlainBlock
from feedhandler.replay.playing.sender import Progress
from feedhandler.replay.playing.sender_lines import MulticastLine, open_lines
from feedhandler.replay.playing.senders import UdpSender

#: Packets due within this time leave together; from `FAST_BPS` on, the longer time.
BURST_NS, FAST_BURST_NS = 100_000, 250_000
FAST_BPS = 150e6
#: The window of the peak rate that a step's account gives.
PEAK_WINDOW_NS = 10_000_000
#: Packets prepared at a time, and such blocks ahead of the sender: a tenth of a second at 400 Mbps.
BLOCK_PACKETS = 2_048
BLOCKS_AHEAD = 4
#: Time from the call to the first packet: the first blocks are prepared by then.
LEAD_NS = 20_000_000

Array = np.ndarray[Any, Any]


class Feeder:
    """A workload with open lines; `play` may be called again, and numbers go on.

    `lines` have a group for each service, by number. Raises `ConfigError` where one cannot be
    opened.
    """

    def __init__(self, workload: Workload, lines: Sequence[MulticastLine]) -> None:
        self.workload = workload
        self.lines = len(lines)
        #: int64: the number that each service's next packet carries.
        self.next_numbers = np.ones(len(workload.services), np.int64)
        self._open = open_lines(lines)
        indexes = {key: index for index, key in enumerate(self._open.channels)}
        #: u16[lines, services]: the destination of each service on each line.
        self._table = self._open.table[:, [indexes[key] for key in workload.services.tolist()]]
        self._sender = UdpSender(self._open.destinations, spin_ns=0)

    def close(self) -> None:
        """Close the sockets."""
        self._open.close()

    def stop(self) -> None:
        """End a running `play`, and all later ones, early; may be called from any thread."""
        self._sender.stop()

    @property
    def sent(self) -> int:
        """Datagrams sent by the running or last `play`."""
        return int(self._sender.progress[Progress.SENT])

    def stretch(
        self, rate_bps: float, warm_up_s: float, duration_s: float, pace: float = 0.0
    ) -> Stretch:
        """Return the packets of a step: those sent in these times at `rate_bps`, or at `pace`.

        `pace` is a multiple of the workload's own pace; 0: play at the rate.
        """
        ends_s = (warm_up_s + duration_s, warm_up_s)
        if pace:
            return Stretch(
                *(self.workload.packets_within_ns(round(s * 1e9 * pace)) for s in ends_s)
            )
        line_bps = rate_bps / self.lines
        return Stretch(*(self.workload.packets_within(round(line_bps * s)) for s in ends_s))

    def play(self, stretch: Stretch, rate_bps: float, pace: float = 0.0) -> Sent:
        """Send a stretch and return its account; blocks until all is sent.

        The account covers the timed part, but its lateness all of the stretch. Raises `OSError`
        where the kernel refuses a datagram, `UsageError` where numbers would outgrow their field
        and the bits above it.
        """
        reached = self.next_numbers + self.workload.numbers_before(stretch.packets)
        table = self.workload.feed.table
        if table.high_size and int(reached.max()) > 1 << table.number_bits():
            raise UsageError(
                f"the sequence numbers outgrow their {table.number_bits()} bits",
                "play for a shorter time, or at a lower rate",
            )
        self._sender.progress[:] = 0
        with ThreadPoolExecutor(1, "prepare") as preparing:
            blocks = self.blocks(stretch, rate_bps, pace)
            ahead = deque(preparing.submit(next, blocks, None) for _ in range(BLOCKS_AHEAD))
            anchor_ns = time.monotonic_ns() + LEAD_NS
            while not self._sender.stopped and (block := ahead.popleft().result()) is not None:
                ahead.append(preparing.submit(next, blocks, None))
                self._sender.send(block, anchor_ns)
        if pace:
            warm_up_ns = round(self.workload.begins_ns(stretch.warm_up) / pace)
            peak_bits = self.workload.peak_bits(round(PEAK_WINDOW_NS * pace), stretch.packets)
            peak_bps = peak_bits * 1e9 / PEAK_WINDOW_NS
        else:
            warm_up_bits = self.workload.bits_in(0, stretch.warm_up) * self.lines
            warm_up_ns = round(warm_up_bits * 1e9 / rate_bps)
            peak_bps = rate_bps / self.lines
        self.next_numbers = reached
        # Where all packets are of the warm-up, it lasts beyond the last one.
        duration_ns = max(0, time.monotonic_ns() - anchor_ns - warm_up_ns)
        return self._account(stretch, duration_ns, peak_bps * self.lines)

    def blocks(self, stretch: Stretch, rate_bps: float, pace: float = 0.0) -> Iterator[PlainBlock]:
        """Yield the stretch as blocks, numbered from the services' next numbers on."""
        workload = self.workload
        if pace:
            schedule, burst_ns = Schedule(Pace(PaceKind.ORIGINAL, pace)), 1
        else:
            schedule = Schedule(Pace(PaceKind.FRAME_BITS, rate_bps / self.lines))
            burst_ns = FAST_BURST_NS if rate_bps >= FAST_BPS else BURST_NS
        done = passes = 0
        while done < stretch.packets:
            for first in range(0, min(len(workload), stretch.packets - done), BLOCK_PACKETS):
                end = min(first + BLOCK_PACKETS, len(workload), first + stretch.packets - done)
                time_ns = workload.ahead_ns[first:end] + passes * workload.pass_ns
                due_ns = schedule.due_ns(time_ns, workload.length[first:end])
                due_ns = due_ns // burst_ns * burst_ns
                yield self._block(first, end, self.next_numbers + passes * workload.span, due_ns)
                done += end - first
            passes += 1

    def _block(self, first: int, end: int, bases: Array, due_ns: Array) -> PlainBlock:
        """Return packets `first` .. `end` - 1 of the workload, numbered, on every line in turn."""
        workload, lines = self.workload, self.lines
        start = int(workload.offset[first])
        data = workload.data[
            start : int(workload.offset[end - 1]) + int(workload.length[end - 1])
        ].copy()
        offsets = workload.offset[first:end] - np.uint32(start)
        slots = workload.slot[first:end]
        numbers = (bases[slots] + workload.ahead[first:end]).astype(np.uint64)
        write_sequences(workload.feed.table, data, offsets, numbers, in_frames=False)
        return PlainBlock(
            data,
            np.repeat(offsets, lines),
            np.repeat(workload.length[first:end], lines),
            np.ascontiguousarray(self._table[:, slots].T).reshape(-1),
            np.repeat(due_ns, lines),
        )

    def _account(self, stretch: Stretch, duration_ns: int, peak_bps: float) -> Sent:
        workload, first, end = self.workload, stretch.warm_up, stretch.packets
        counts = self._sender.progress
        slots = [int(x) for x in workload.packets_by_slot(first, end)]
        return Sent(
            datagrams=(end - first) * self.lines,
            packets=end - first,
            messages=workload.messages_in(first, end),
            payload_bytes=workload.bytes_in(first, end),
            frame_bits=workload.bits_in(first, end) * self.lines,
            duration_ns=duration_ns,
            peak_bps=peak_bps,
            behind=int(counts[Progress.BEHIND]),
            lateness_max_ns=int(counts[Progress.LATENESS_MAX_NS]),
            passes=-(-end // len(workload)),
            services=dict(zip(workload.services.tolist(), slots, strict=True)),
        )
