"""The trading day: which one a moment belongs to, and when it turns into the next.

A `TradingDay` serves everything that needs a day: the tags of messages, the names of symbols,
quotas of requests, expiry, names of recordings, partitions of the lake. It is a zone and the time
of day at which trading days begin there; a feed's description has both, and a configuration may
override them.

A time before noon is one of the day itself: with 06:00, what comes at 02:00 still belongs to the
day before. A time from noon on is one of the evening before: with 18:00, what comes at 20:00
already belongs to the next day. There is no calendar of holidays: each calendar day has a trading
day.

Promises: days follow each other without a gap, and each has one beginning, whatever the clocks do:
where they are put forward over that time it begins as much later, where they are put back it begins
at the first of the two. No I/O, no clock: the time is an argument, in ns since 1970.

Wire times that count from midnight count from the calendar's midnight, also in the evening before
(`midnights`).
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.times import SECOND_NS, Midnights, day_of, day_start_ns

#: From this time of day on, `begins_at` means the evening before.
_NOON = time(12)
_ONE_DAY = timedelta(days=1)
_MINUTE_NS = 60 * SECOND_NS


@dataclass(frozen=True, slots=True)
class TradingDay:
    """The trading days of a zone; see the module.

    `zone`: a name of the tz database; `begins_at`: HH:MM there. Raises `ConfigError` where either
    is wrong.
    """

    zone: str
    begins_at: str = "00:00"

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"zone = {self.zone!r}: not in the tz database", 'take one as "Europe/Paris"'
            ) from None
        try:
            at = datetime.strptime(self.begins_at, "%H:%M").time()
        except ValueError:
            at = None
        if at is None or self.begins_at != f"{at:%H:%M}":
            raise ConfigError(f"{self.begins_at!r} is no time of day", 'take one as "17:40"')

    def of(self, now_ns: int) -> date:
        """Return the trading day that `now_ns` belongs to."""
        day = day_of(now_ns, self.zone)
        if now_ns < self.began_ns(day):
            return day - _ONE_DAY
        return day + _ONE_DAY if now_ns >= self.began_ns(day + _ONE_DAY) else day

    def began_ns(self, day: date) -> int:
        """Return when a trading day begins, in ns since 1970."""
        return _began_ns(day, self.zone, self.begins_at)

    def since_ns(self, now_ns: int) -> int:
        """Return when the trading day of `now_ns` began, in ns since 1970."""
        return self.began_ns(self.of(now_ns))

    def turns_ns(self, now_ns: int) -> int:
        """Return when the trading day of `now_ns` ends; always later than `now_ns`."""
        return self.began_ns(self.of(now_ns) + _ONE_DAY)

    def midnights(self, day: date, zone: str) -> Midnights:
        """Return the midnights in `zone` that wire times of a trading day count from."""
        at = time.fromisoformat(self.begins_at)
        early = day if at >= _NOON else day + _ONE_DAY
        return Midnights(
            (at.hour * 60 + at.minute) * _MINUTE_NS,
            day_start_ns(early, zone),
            day_start_ns(early - _ONE_DAY, zone),
        )


@lru_cache(maxsize=1024)
def _began_ns(day: date, zone: str, begins_at: str) -> int:
    at = time.fromisoformat(begins_at)
    local = datetime.combine(day - _ONE_DAY if at >= _NOON else day, at, ZoneInfo(zone))
    since = local.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_NS


def day_number(day: date) -> int:
    """Return a trading day as tags and file names write it: the number yyyymmdd."""
    return day.year * 10_000 + day.month * 100 + day.day
