"""Moments of a recording as a user writes them: full times, times of day, seconds from the start.

`parse_moment` reads the text; what it means is known only beside a recording, so a `Moment` is
asked with the time of the recording's first datagram and the zone that times of day are meant in.
Times are integer nanoseconds, and nothing on the way is a floating-point number. Sans-IO.
"""

import datetime
import re
import zoneinfo

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import SECOND_NS, day_of, day_start_ns

#: How a moment may be written, for whoever wrote something else.
EXAMPLES = "give 2026-11-20T09:00:00Z, 09:00 or 09:00:00.5 (of the first day), or +90 seconds"

_FROM_START = re.compile(r"\+(\d{1,9})(?:\.(\d{1,9}))?s?")
_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_FULL = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})"
)


def _fraction_ns(digits: str | None) -> int:
    """The digits behind a decimal point as nanoseconds."""
    return int((digits or "").ljust(9, "0"))


class Moment(Struct, frozen=True):
    """A moment: `ns` after 1970 UTC, after midnight, or after the first datagram, as `since` says
    ("epoch", "midnight" or "start")."""

    since: str
    ns: int
    text: str

    def at_ns(self, start_ns: int, zone: str = "UTC") -> int:
        """Nanoseconds since 1970 UTC, for a recording whose first datagram is of `start_ns`.

        A time of day is one of the day in `zone` (a tz database name) that the recording began in.
        """
        if self.since == "start":
            return start_ns + self.ns
        if self.since == "midnight":
            return day_start_ns(day_of(start_ns, zone), zone) + self.ns
        return self.ns


def parse_moment(text: str) -> Moment:
    """The moment that `text` names. Raises `UsageError` with examples."""
    given = text.strip()
    if match := _FROM_START.fullmatch(given):
        return Moment("start", int(match[1]) * SECOND_NS + _fraction_ns(match[2]), text)
    if match := _OF_DAY.fullmatch(given):
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        if hour < 24 and minute < 60 and second < 60:
            seconds = hour * 3_600 + minute * 60 + second
            return Moment("midnight", seconds * SECOND_NS + _fraction_ns(match[4]), text)
    if match := _FULL.fullmatch(given):
        return Moment("epoch", _full_ns(text, match), text)
    raise UsageError(f"'{text}' is no moment", EXAMPLES)


def _full_ns(text: str, match: re.Match[str]) -> int:
    """Nanoseconds since 1970 of a full time with its offset (RFC 3339, section 5.6)."""
    offset = "+00:00" if match[4] in "Zz" else match[4]
    try:
        moment = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}")
    except ValueError as error:
        raise UsageError(f"'{text}' is no moment: {error}", EXAMPLES) from None
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_NS + _fraction_ns(match[3])


def check_zone(name: str) -> str:
    """`name`, where it is a time zone. Raises `UsageError`."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"'{name}' is no time zone", "give UTC or Europe/Paris, say") from None
    return name


def moment_text(time_ns: int) -> str:
    """A time as RFC 3339 text in UTC, to the nanosecond."""
    seconds, fraction = divmod(time_ns, SECOND_NS)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
