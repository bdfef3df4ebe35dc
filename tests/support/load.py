"""A steady load for tests and benches: prebuilt packets, numbered on the fly, at a fixed rate.

A `LoadGenerator` repeats a set of templates (packets of any feed) and writes the next sequence
number of its channel into each before it is sent, so that a receiver sees one unbroken stream a
channel, on every line alike. The loop is compiled, `Sender.send_load`, and costs little more than
the system calls; numbering blocks of packets here, for `send_block`, would cost a third more, which
benches take from what they measure on the same processors. The rate counts stream datagrams: with
two lines, twice as many go out.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.sender import SPIN_NS, WINDOW_DATAGRAMS, Progress, Sender
from feedhandler.replay.playing.sender_lines import NO_DESTINATION, MulticastLine, open_lines

#: From the call to the first datagram, so that the first is not late already.
START_LEAD_NS = 1_000_000

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadTemplate:
    """One packet to repeat: `step` is how far it advances its channel's sequence number (1 where
    the feed numbers packets, its message count where it numbers messages); `channel` is a key of
    the lines' groups (ignored where they have one group for everything)."""

    payload: bytes
    step: int = 1
    channel: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a run. `behind` datagrams (over all lines counted once) left more than
    `BEHIND_NS` late: a run with a noticeable share of them did not keep its schedule."""

    datagrams: int
    duration_ns: int
    behind: int
    lateness_max_ns: int
    no_buffers: int
    complete: bool


class LoadGenerator:
    """Templates and lines, ready to run; may run several times, the numbers go on.

    `sequence_offset` and `sequence_width` (bytes, 1 to 8) say where in every template the
    sequence number stands. `first_sequence` is the first number of every channel. `spin_ns` is the
    `Sender`'s: 0 where the load shares its processors with what is measured.
    """

    def __init__(
        self,
        templates: Sequence[LoadTemplate],
        lines: Sequence[MulticastLine],
        *,
        sequence_offset: int,
        sequence_width: int = 4,
        byte_order: Literal["big", "little"] = "big",
        first_sequence: int = 1,
        spin_ns: int = SPIN_NS,
    ) -> None:
        if not templates:
            raise UsageError("there is nothing to send", "give at least one template")
        self._sequence_field = (sequence_offset, sequence_width, byte_order == "big")
        self._lines = open_lines(lines)
        try:
            self._table = self._complete_table()
            self._columns = self._lay_out(templates)
            self._sender = Sender(self._lines.destinations, spin_ns=spin_ns)
        except BaseException:
            self._lines.close()
            raise
        self.next_sequences = np.full(self._table.shape[1], first_sequence, np.uint64)
        #: Live counts, see `sender.Progress`; `SENT` counts every line.
        self.progress = self._sender.progress

    def __enter__(self) -> "LoadGenerator":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _complete_table(self) -> Array:
        if (self._lines.table == NO_DESTINATION).any():
            raise UsageError("a line lacks a channel", "give every line every channel")
        return self._lines.table

    def _lay_out(
        self, templates: Sequence[LoadTemplate]
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Slab, offsets, lengths, channels, steps; repeated until no window holds one twice."""
        keys = self._lines.channels
        numbers = {key: number for number, key in enumerate(keys)}
        for template in templates:
            if len(template.payload) < sum(self._sequence_field[:2]):
                raise UsageError(
                    f"a template of {len(template.payload)} bytes has no room for the sequence",
                    "check sequence_offset and sequence_width",
                )
            if keys and template.channel not in numbers:
                raise UsageError(
                    f"a template's channel {template.channel!r} is on no line", "add its groups"
                )
        repeated = list(templates) * -(-WINDOW_DATAGRAMS // len(templates))
        lengths = np.array([len(template.payload) for template in repeated], np.uint32)
        slab = np.frombuffer(b"".join(t.payload for t in repeated), np.uint8).copy()
        offsets = (np.cumsum(lengths) - lengths).astype(np.uint32)
        channels = np.array([numbers.get(t.channel, 0) for t in repeated], np.uint16)
        return slab, offsets, lengths, channels, np.array([t.step for t in repeated], np.uint32)

    def run(self, rate: int, duration_s: float, burst_us: int = 0) -> LoadResult:
        """Send `rate` datagrams a second, to every line, for `duration_s`; blocks without the GIL.

        What is due within `burst_us` leaves together, at its end: one wake-up and one system call a
        line for all of it. Ends early after `stop()`. Raises `OSError` where the kernel refuses a
        datagram.
        """
        count = int(rate * duration_s)
        burst = max(1, rate * burst_us // 1_000_000)
        self.progress[:] = 0
        anchor_ns = time.monotonic_ns() + START_LEAD_NS
        sent = self._sender.send_load(
            *self._columns,
            self._table,
            self.next_sequences,
            *self._sequence_field,
            rate,
            count,
            anchor_ns,
            burst,
        )
        return LoadResult(
            datagrams=sent,
            duration_ns=time.monotonic_ns() - anchor_ns,
            behind=int(self.progress[Progress.BEHIND]),
            lateness_max_ns=int(self.progress[Progress.LATENESS_MAX_NS]),
            no_buffers=int(self.progress[Progress.NO_BUFFERS]),
            complete=sent == count,
        )

    def stop(self) -> None:
        """End the running call, and all later ones, early; from any thread."""
        self._sender.stop()

    def close(self) -> None:
        """Close the sockets."""
        self._lines.close()
