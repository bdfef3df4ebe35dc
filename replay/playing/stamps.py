"""Rewriting of the send times in packet headers when a recording is replayed.

`keep` leaves them as recorded. `shift` moves all of them by one constant, so that the first is the
time at which sending begins: intervals stay as recorded, whatever the pace. `now` gives each packet
the time at which it is due, as if the exchange sent it then. Only times in packet headers change;
those inside messages stay.

Lines A and B carry the same packets, so a packet gets one time on all of them: packets with equal
headers in the recording (service, number, send time) get the time at which the first of them is
due, as long as they come within `REMEMBERED_BATCHES` of it.

Times are in the feed's own units. Where it counts from midnight, that is midnight of its own zone,
and times begin at 0 again past midnight. Datagrams that are no packets of the feed are not changed,
nor are packets whose short header has no send time. Sans-IO.
"""

import enum
from collections import deque
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import Reject
from feedhandler.codecs.times import DAY_NS, UNIT_NS, day_of, day_start_ns
from feedhandler.replay.captures.packet_headers import (
    PacketHeaders,
    having_field,
    write_send_times,
)
from feedhandler.replay.captures.reading import DatagramBatch
from feedhandler.replay.playing.selection import with_headers

#: How many batches a packet's time is remembered for its copies on other lines.
REMEMBERED_BATCHES = 2

#: What mixes the fields of a header into one number (Knuth's multiplier, and others like it).
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)

Array = np.ndarray[Any, Any]


class Stamps(enum.StrEnum):
    """Ways to rewrite send times; see the module's text."""

    KEEP = "keep"
    SHIFT = "shift"
    NOW = "now"


class Stamper:
    """A writer of send times into packets, in place; see the module's text.

    `begin` sets the time (ns since 1970 UTC) of what is due at 0; calling the instance stamps a
    batch. `stamped` counts packets. Raises `UsageError` for a FIX feed, unless send times are kept.
    """

    def __init__(self, feed: Feed, stamps: Stamps) -> None:
        if feed.table.fix and stamps is not Stamps.KEEP:
            raise UsageError(
                "the send times of FIX messages are text, and are not written anew",
                "leave --stamps out, or publish the capture: `feedhandler fixcast publish`",
            )
        self.stamped = 0
        given = feed.description.packet.send_time
        self._feed = feed
        table = feed.table
        #: Where the send time ends in a packet's header.
        self._time_end = table.time_at + table.time_size
        if table.time_ns_at >= 0:
            self._time_end = max(self._time_end, table.time_ns_at + 4)
        self._stamps = stamps
        self._unit_ns = 1 if given.nanoseconds else UNIT_NS[given.unit]
        self._from_midnight = given.since == "midnight" and not given.nanoseconds
        self._start_ns = self._midnight_ns = 0
        self._shift: int | None = None
        self._moved_ns = 0
        # Headers of the latest batches, mixed and sorted, and the times that they were given.
        self._recent: deque[tuple[Array, Array]] = deque(maxlen=REMEMBERED_BATCHES)

    def begin(self, start_ns: int) -> None:
        """Begin a run in which what is due at 0 leaves at `start_ns` (ns since 1970 UTC)."""
        self._start_ns = start_ns
        if self._from_midnight:
            zone = self._feed.zone
            self._midnight_ns = day_start_ns(day_of(start_ns, zone), zone)
        self._shift = None
        self._recent.clear()

    def __call__(self, batch: DatagramBatch, due_ns: Array, late_ns: int = 0) -> None:
        """Stamp the batch's packets, in place.

        `due_ns` (int64, one per datagram): when each leaves, after the start. `late_ns`: the
        delay of everything by pauses so far."""
        if self._stamps is Stamps.KEEP:
            return
        batch = with_headers(batch, self._feed.table)
        assert batch.headers is not None
        table = self._feed.table
        rows = np.flatnonzero(batch.headers.verdict == Reject.FINE)
        if table.short_header:
            rows = rows[having_field(table, batch.data, batch.offset[rows], self._time_end)]
        if not len(rows):
            return
        if self._stamps is Stamps.NOW:
            headers = batch.headers.select(rows)
            due_ns = self._first_due_ns(headers, batch.moved_ns, late_ns + due_ns[rows])
            value = self._units(self._start_ns + due_ns)
        else:
            value = self._shifted(batch.headers.send_time[rows].astype(np.int64), batch.moved_ns)
        if self._from_midnight:
            value = value % (DAY_NS // self._unit_ns)
        write_send_times(table, batch.data, batch.offset[rows], value.astype(np.uint64))
        self.stamped += len(rows)

    def _first_due_ns(self, headers: PacketHeaders, moved_ns: int, due_ns: Array) -> Array:
        """Return for each packet when the first one with an equal header is due (ns)."""
        mixed = (headers.send_time + np.uint64(moved_ns % (1 << 64))) * _MIX[0]
        mixed ^= headers.sequence * _MIX[1]
        mixed ^= (headers.service.astype(np.uint64) << np.uint64(8) | headers.kind) * _MIX[2]
        keys, first, which = np.unique(mixed, return_index=True, return_inverse=True)
        given = due_ns[first]
        for known, times in self._recent:
            index = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            given = np.where(known[index] == keys, times[index], given)
        self._recent.append((keys, given))
        return given[which]

    def _units(self, time_ns: Array) -> Array:
        """Convert times in ns since 1970 UTC to the feed's units."""
        return (time_ns - self._midnight_ns) // self._unit_ns

    def _shifted(self, recorded: Array, moved_ns: int) -> Array:
        """Shift recorded times by the common constant and by the shift of their pass."""
        if self._shift is None:
            first = int(self._units(np.array([self._start_ns], np.int64))[0])
            self._shift = first - int(recorded[0])
            self._moved_ns = moved_ns
        return recorded + self._shift + (moved_ns - self._moved_ns) // self._unit_ns
