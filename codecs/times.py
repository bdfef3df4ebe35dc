"""Conversion of wire times to integer nanoseconds since 1970 UTC.

Feeds count from midnight in the exchange's own zone, from 1970, or only within the second in which
the packet was sent. A time since midnight needs the trading day; without one it stays unknown
(None). On a day with a change of clocks, wire times are taken as time elapsed since midnight.

Days here are calendar days; `trading_day` says which trading day a moment belongs to.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
UNIT_NS = {"s": SECOND_NS, "ms": 1_000_000, "us": 1_000, "ns": 1}

_EPOCH = date(1970, 1, 1)


@lru_cache(maxsize=1024)
def day_start_ns(day: date, zone: str) -> int:
    """Return the ns since 1970 UTC at which `day` begins in `zone` (a tz database name)."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    offset = midnight.utcoffset() or timedelta(0)
    days = (day - _EPOCH).days
    return (days * 86_400 - int(offset.total_seconds())) * SECOND_NS


def day_of(time_ns: int, zone: str) -> date:
    """Return the calendar day in `zone` that `time_ns`, in ns since 1970, belongs to."""
    return datetime.fromtimestamp(time_ns // SECOND_NS, ZoneInfo(zone)).date()


class Midnights(NamedTuple):
    """The midnights, in ns since 1970, that wire times of one trading day count from.

    A time of `begins_ns` after midnight or more counts from `late_ns`, an earlier one from
    `early_ns`.
    """

    begins_ns: int
    early_ns: int
    late_ns: int

    def moment_ns(self, since_ns: int) -> int:
        """Return the moment that is `since_ns` after midnight, in ns since 1970."""
        return since_ns + (self.late_ns if since_ns >= self.begins_ns else self.early_ns)


class DecodeContext:
    """Inputs of decoding beside the message's bytes, and a callback for what it notices.

    For times: the midnights, the packet's send time, and the moment that the last clock message
    gave. For prices: `scales_of` returns the scales of the symbol that a field of an element names,
    by its bytes. `note_short`, where it is set, is called for each element that has fewer bytes
    than are described: with its group's name, its offset, its size, and the described one.
    """

    __slots__ = ("clock_ns", "midnights", "note_short", "scales_of", "send_ns")

    def __init__(self, midnights: Midnights | None = None, send_ns: int | None = None) -> None:
        self.midnights = midnights
        self.send_ns = send_ns
        self.clock_ns: int | None = None
        self.scales_of: Callable[[Any, bytes], Mapping[str, int | None]] | None = None
        self.note_short: Callable[[str, int, int, int], None] | None = None


#: Turns a message's raw values and a context into a full time, or None where it cannot be known.
TimeReader = Callable[[Sequence[int], DecodeContext], int | None]


def time_reader(
    since: str, parts: Sequence[tuple[int, int]], nulls: Sequence[tuple[int, int]] = ()
) -> TimeReader:
    """Return a reader that adds up `parts` and counts the sum from the moment `since`.

    `parts` are pairs of (position among the raw values, ns a unit); `since` is `midnight`, `epoch`,
    `clock` or `send_second`. For `send_second` the parts are less than a second and belong to the
    last moment at or before the packet's send time that has them, so the event lies within the
    second before it was sent. `nulls` are pairs of (position, the value that means no time).
    """

    def total(values: Sequence[int]) -> int:
        return sum(values[position] * unit for position, unit in parts)

    def from_midnight(values: Sequence[int], context: DecodeContext) -> int | None:
        midnights = context.midnights
        return None if midnights is None else midnights.moment_ns(total(values))

    def from_epoch(values: Sequence[int], context: DecodeContext) -> int | None:
        return total(values)

    def from_send_second(values: Sequence[int], context: DecodeContext) -> int | None:
        sent = context.send_ns
        if sent is None:
            return None
        within = total(values)
        second = sent - sent % SECOND_NS
        return second + within if within <= sent % SECOND_NS else second + within - SECOND_NS

    def from_clock(values: Sequence[int], context: DecodeContext) -> int | None:
        return None if context.clock_ns is None else context.clock_ns + total(values)

    reader: TimeReader = {
        "midnight": from_midnight,
        "epoch": from_epoch,
        "clock": from_clock,
        "send_second": from_send_second,
    }[since]
    if not nulls:
        return reader

    def unless_null(values: Sequence[int], context: DecodeContext) -> int | None:
        if any(values[position] == null for position, null in nulls):
            return None
        return reader(values, context)

    return unless_null
