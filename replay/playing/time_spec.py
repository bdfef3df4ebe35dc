"""Times in a recording as a user writes them: full times, times of day, seconds from the start.

`parse_time_spec` reads the text. Times of day and offsets are relative to a recording, so
`TimeSpec.at_ns` takes the time of its first datagram and the time zone of times of day.
Times are integer nanoseconds and never pass through floating point. Sans-IO.
"""

import datetime
import re
import zoneinfo

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import SECOND_NS, day_of

#: Examples of valid times, for error messages.
EXAMPLES = "give 2026-11-20T09:00:00Z, 09:00 or 09:00:00.5 (of the first day), or +90 seconds"

_FROM_START = re.compile(r"\+(\d{1,9})(?:\.(\d{1,9}))?s?")
_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_FULL = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})"
)


def _fraction_ns(digits: str | None) -> int:
    """Convert the digits behind a decimal point of seconds to nanoseconds."""
    return int((digits or "").ljust(9, "0"))


class TimeSpec(Struct, frozen=True):
    """A moment: `ns` after 1970 UTC, after midnight, or after the first datagram, as `since` says
    ("epoch", "midnight" or "start")."""

    since: str
    ns: int
    text: str

    def at_ns(self, start_ns: int, zone: str = "UTC") -> int:
        """Return the moment in ns since 1970 UTC; `start_ns` is the time of the first datagram.

        A time of day is of the day in `zone` (a tz database name) on which the recording began, as
        clocks there show it: on a day on which they change as well.
        """
        if self.since == "start":
            return start_ns + self.ns
        if self.since == "midnight":
            midnight = datetime.datetime.combine(
                day_of(start_ns, zone), datetime.time(), zoneinfo.ZoneInfo(zone)
            )
            seconds, fraction_ns = divmod(self.ns, SECOND_NS)
            return _epoch_ns(midnight + datetime.timedelta(seconds=seconds)) + fraction_ns
        return self.ns


def parse_time_spec(text: str) -> TimeSpec:
    """Parse a moment. Raises `UsageError` with examples where `text` is none."""
    given = text.strip()
    if match := _FROM_START.fullmatch(given):
        return TimeSpec("start", int(match[1]) * SECOND_NS + _fraction_ns(match[2]), text)
    if match := _OF_DAY.fullmatch(given):
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        if hour < 24 and minute < 60 and second < 60:
            seconds = hour * 3_600 + minute * 60 + second
            return TimeSpec("midnight", seconds * SECOND_NS + _fraction_ns(match[4]), text)
    if match := _FULL.fullmatch(given):
        return TimeSpec("epoch", _full_ns(text, match), text)
    raise UsageError(f"'{text}' is no moment", EXAMPLES)


def _full_ns(text: str, match: re.Match[str]) -> int:
    """Convert a full time with its offset (RFC 3339, section 5.6) to ns since 1970 UTC."""
    offset = "+00:00" if match[4] in "Zz" else match[4]
    try:
        moment = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}")
    except ValueError as error:
        raise UsageError(f"'{text}' is no moment: {error}", EXAMPLES) from None
    return _epoch_ns(moment) + _fraction_ns(match[3])


def _epoch_ns(moment: datetime.datetime) -> int:
    """Convert a moment of whole seconds in any zone to ns since 1970 UTC."""
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (since.days * 86_400 + since.seconds) * SECOND_NS


def check_zone(name: str) -> str:
    """Return `name` unchanged. Raises `UsageError` where it is no time zone."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"'{name}' is no time zone", "give UTC or Europe/Paris, say") from None
    return name


def rfc3339_text(time_ns: int) -> str:
    """Format ns since 1970 UTC as RFC 3339 text in UTC, to the nanosecond."""
    seconds, fraction = divmod(time_ns, SECOND_NS)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
