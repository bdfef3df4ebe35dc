"""Times as generated messages carry them: dates as numbers, milliseconds and microseconds apart."""

from datetime import date, timedelta

NS_PER_MS = 1_000_000


class MessageTime:
    """An event's time in the several forms that messages carry.

    `milliseconds` and `microseconds` are SourceTime and SourceTimeMicroSecs; dates are yyyymmdd,
    the day before being the trading day before.
    """

    __slots__ = ("date", "microseconds", "milliseconds", "previous_date")

    def __init__(self, day: date) -> None:
        before = day - timedelta(days=3 if day.weekday() == 0 else 1)
        self.date = _yyyymmdd(day)
        self.previous_date = _yyyymmdd(before)
        self.set(0)

    def set(self, ns: int) -> None:
        """Move to `ns` nanoseconds after midnight; past midnight it starts over."""
        self.milliseconds = ns // NS_PER_MS % 86_400_000
        self.microseconds = ns // 1000 % 1000


def clock(ns: int) -> int:
    """Return nanoseconds after midnight as the integer HHMMSSmmm (OrderPriorityTime)."""
    milliseconds = ns // NS_PER_MS % 86_400_000
    seconds = milliseconds // 1000
    hhmmss = seconds // 3600 * 10_000 + seconds // 60 % 60 * 100 + seconds % 60
    return hhmmss * 1000 + milliseconds % 1000


def _yyyymmdd(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day
