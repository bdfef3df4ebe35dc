"""What becomes of the send times in packet headers when a recording is played later.

`keep` leaves them as recorded. `shift` moves all of them by one whole amount, so that the first is
the moment at which sending begins: distances stay as recorded, whatever the pace. `now` gives each
packet the time at which it is due, as if the exchange sent it then. Moved are the times of packet
headers; those inside messages stay.

Times are in the feed's own units: where it counts from midnight, from that of its own zone, and
past midnight they begin at 0 again. What is no packet of the feed stays as it is. Sans-IO.
"""

import enum
from typing import Any

import numpy as np

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import Reject
from feedhandler.codecs.times import DAY_NS, UNIT_NS, day_of, day_start_ns
from feedhandler.replay.capture import DatagramBatch
from feedhandler.replay.packet_headers import write_send_times
from feedhandler.replay.selection import with_headers

Array = np.ndarray[Any, Any]


class Stamps(enum.StrEnum):
    """What becomes of send times."""

    KEEP = "keep"
    SHIFT = "shift"
    NOW = "now"


class Stamper:
    """Writes send times into packets, in place; see the module's text.

    `begin` tells when (ns since 1970 UTC) what is due at 0 leaves; calling the instance stamps a
    batch. `stamped` counts packets.
    """

    def __init__(self, feed: Feed, stamps: Stamps) -> None:
        self.stamped = 0
        given = feed.description.packet.send_time
        self._feed = feed
        self._stamps = stamps
        self._unit_ns = 1 if given.nanoseconds else UNIT_NS[given.unit]
        self._from_midnight = given.since == "midnight" and not given.nanoseconds
        self._start_ns = self._midnight_ns = 0
        self._shift: int | None = None
        self._moved_ns = 0

    def begin(self, start_ns: int) -> None:
        """What is due at 0 leaves at `start_ns`."""
        self._start_ns = start_ns
        if self._from_midnight:
            zone = self._feed.zone
            self._midnight_ns = day_start_ns(day_of(start_ns, zone), zone)
        self._shift = None

    def __call__(self, batch: DatagramBatch, due_ns: Array, late_ns: int = 0) -> None:
        """Stamp the batch's packets. `due_ns` int64, a row a datagram: when each leaves after the
        start; `late_ns`: how much later than that everything leaves by now (pauses)."""
        if self._stamps is Stamps.KEEP:
            return
        batch = with_headers(batch, self._feed.table)
        assert batch.headers is not None
        rows = np.flatnonzero(batch.headers.verdict == Reject.FINE)
        if not len(rows):
            return
        if self._stamps is Stamps.NOW:
            value = self._units(self._start_ns + late_ns + due_ns[rows])
        else:
            value = self._shifted(batch.headers.send_time[rows].astype(np.int64), batch.moved_ns)
        if self._from_midnight:
            value = value % (DAY_NS // self._unit_ns)
        write_send_times(self._feed.table, batch.data, batch.offset[rows], value.astype(np.uint64))
        self.stamped += len(rows)

    def _units(self, time_ns: Array) -> Array:
        """Times since 1970 in the units that the feed counts."""
        return (time_ns - self._midnight_ns) // self._unit_ns

    def _shifted(self, recorded: Array, moved_ns: int) -> Array:
        """Recorded times moved by the one amount, and as their pass is moved."""
        if self._shift is None:
            first = int(self._units(np.array([self._start_ns], np.int64))[0])
            self._shift = first - int(recorded[0])
            self._moved_ns = moved_ns
        return recorded + self._shift + (moved_ns - self._moved_ns) // self._unit_ns
