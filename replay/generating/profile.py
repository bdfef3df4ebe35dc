"""Session profiles: the shape of a session, as a JSON file that a generator can follow.

A profile gives the packets of each service and their mean size, the packets of each minute, seconds
with a size of their own, how soon symbols come back, and what the lines do. The built-in ones are
`market`, a stationary stretch with the source paper's means and mix, and `euronext-2011-03`, the
paper's whole session (its Tables 1 to 3 and Figure 6; the minutes between its marks are drawn after
its description, for its figures are not to be had as numbers).

`load_profile` reads and checks one. A fault is reported in one line, with its key.
docs/generating.md explains every field.
"""

import os
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta, Struct

from feedhandler.codecs.errors import ConfigError
from feedhandler.replay.captures.records import PAYLOAD_BYTES_MAX
from feedhandler.replay.generating.instruments import INSTRUMENTS_MAX
from feedhandler.replay.generating.packets import SERVICES

#: Where the built-in profiles lie, and the largest file that is read as one.
FOLDER = Path(__file__).parent / "profiles"
PROFILE_BYTES_MAX = 1 << 22
REFRESH = "refresh"
FEED_NAME = "euronext-utp-md"
#: Bounds of what a service's mean body may be: one short message, a full packet.
BODY_BYTES_MIN, BODY_BYTES_MAX = 52.0, 1_300.0
#: Others: orders are longer, and trades with their price updates make packets of a fixed kind.
BODY_BOUNDS = {"102": (44.0, 64.0), "104": (64.0, BODY_BYTES_MAX), "105": (108.0, 152.0)}
#: A capture counts seconds from 1970 in 32 bits, which end in the year behind these.
YEARS = range(1970, 2106)

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
#: Two seconds at most: a tape counts a skew in nanoseconds of 31 bits.
Skew = Annotated[int, Meta(ge=0, le=2_000_000)]


class Service(Struct, frozen=True, forbid_unknown_fields=True):
    """A service, or all refreshes: packets of the session, all lines, and their mean payload.
    `messages` is a refresh packet's mean; elsewhere it follows from the payload."""

    packets: Annotated[int, Meta(ge=0, le=10_000_000_000)]
    payload_bytes: Positive
    messages: Annotated[float, Meta(ge=0)] = 0.0


class Second(Struct, frozen=True, forbid_unknown_fields=True):
    """A second with a size of its own: packets on all lines, and their mean payload."""

    at: str
    packets: Annotated[int, Meta(gt=0, le=1_000_000_000)]
    payload_bytes: Positive
    #: Books are sent again in this second: its packets are those.
    books: bool = False


class Minute(Struct, frozen=True, forbid_unknown_fields=True):
    """A point of the day's shape: packets a minute from here on, in a straight line to the next."""

    at: str
    packets: Annotated[float, Meta(ge=0, le=1_000_000_000)]


class Lines(Struct, frozen=True, forbid_unknown_fields=True):
    """The two lines: B's copy comes `skew_us[0]` to `skew_us[1]` microseconds after A's."""

    skew_us: tuple[Skew, Skew] = (20, 180)
    loss_a: Share = 0.0
    loss_b: Share = 0.0


class Repeats(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of messages whose symbol repeats on the service's first line within 1 ms and within
    10 ms."""

    within_1_ms: Share
    within_10_ms: Share


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A session profile; docs/generating.md lists the fields. Times are `HH:MM[:SS]` in `zone`."""

    name: str
    about: str = ""
    feed: str = FEED_NAME
    zone: str = "Europe/Lisbon"
    day: str = "2011-03-15"
    start: str
    end: str
    instruments: Annotated[int, Meta(ge=8, le=INSTRUMENTS_MAX)]
    services: dict[str, Service]
    repeats: Repeats
    lines: Lines = Lines()
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=2 * 86_400)] = 1.0
    #: The leased line that carries everything, in bits of Ethernet frames; 0: as fast as can be.
    line_mbps: Annotated[float, Meta(ge=0)] = 0.0
    #: A stationary stretch: this rate, and nothing of the day's shape.
    rate_mbps: Annotated[float, Meta(ge=0)] = 0.0
    minutes: list[Minute] = []
    seconds: list[Second] = []
    #: When reference data is sent.
    reference_at: str | None = None

    @property
    def stationary(self) -> bool:
        """Return whether it is a stretch at one rate instead of a day."""
        return self.rate_mbps > 0


def built_in() -> list[str]:
    """Return the names of the built-in profiles."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Load the built-in profile of this name, or the one in this file.

    Raises `ConfigError` for a file that is not there or is no profile.
    """
    path = FOLDER / f"{name}.json" if str(name) in built_in() else Path(name)
    try:
        with path.open("rb") as file:
            data = file.read(PROFILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"no profile '{name}': {error.strerror}",
            f"the built-in ones are {', '.join(built_in())}; else give a file",
        ) from None
    if len(data) > PROFILE_BYTES_MAX:
        raise ConfigError(f"profile {path} has over {PROFILE_BYTES_MAX:,} bytes", "is it one?")
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"profile {path}: {error}", "docs/generating.md lists the fields"
        ) from None
    check_profile(profile, str(path))
    return profile


def check_profile(profile: Profile, where: str) -> None:
    """Check a profile's fields. Raises `ConfigError` where they contradict one another."""
    for complaint in _complaints(profile):
        raise ConfigError(f"profile {where}: {complaint}", "docs/generating.md lists the fields")


def seconds_of(text: str) -> int:
    """Parse `HH:MM[:SS]` to seconds after midnight. Raises `ValueError`."""
    moment = time.fromisoformat(text)
    return moment.hour * 3600 + moment.minute * 60 + moment.second


def _complaints(profile: Profile) -> Iterator[str]:
    yield from _odd_times(profile)
    if profile.feed != FEED_NAME:
        yield f"feed {profile.feed}: sessions are generated of {FEED_NAME} alone"
    known = {*map(str, SERVICES), REFRESH}
    for name, service in profile.services.items():
        if name not in known:
            yield f"service {name} is not 101 to 107 or refresh"
        low, high = BODY_BOUNDS.get(name, (BODY_BYTES_MIN, BODY_BYTES_MAX))
        if service.packets and not low <= service.payload_bytes - 16 <= high:
            yield (
                f"service {name} has {service.payload_bytes:g} bytes a packet, "
                f"possible are {low + 16:g} to {high + 16:g}"
            )
    for second in profile.seconds:
        if second.payload_bytes > PAYLOAD_BYTES_MAX:
            yield (
                f"second {second.at} has {second.payload_bytes:g} bytes a packet, "
                f"possible are up to {PAYLOAD_BYTES_MAX:,}"
            )
    for name in ("103", "104", "106"):
        if name not in profile.services or not profile.services[name].packets:
            yield f"service {name} has no packets: shares and warrants are what a market is made of"
    if profile.repeats.within_1_ms > profile.repeats.within_10_ms:
        yield "fewer repeats within 10 ms than within 1 ms"
    if not profile.stationary and not any(minute.packets for minute in profile.minutes):
        yield "neither rate_mbps nor minutes with packets"
    if profile.lines.skew_us[0] > profile.lines.skew_us[1]:
        yield "skew_us is (least, most)"


def _odd_times(profile: Profile) -> Iterator[str]:
    try:
        ZoneInfo(profile.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield f"there is no time zone {profile.zone}"
        return
    try:
        day = date.fromisoformat(profile.day)
        start, end = seconds_of(profile.start), seconds_of(profile.end)
        minutes = [seconds_of(minute.at) for minute in profile.minutes]
        times = [seconds_of(second.at) for second in profile.seconds]
        if profile.reference_at is not None:
            times.append(seconds_of(profile.reference_at))
    except ValueError as error:
        yield f"{error}"
        return
    if day.year not in YEARS:
        yield f"day {profile.day} is not in {YEARS[0]} to {YEARS[-1]}, whose times a capture holds"
    if start >= end:
        yield f"it starts at {profile.start} and ends at {profile.end}"
    if minutes != sorted(set(minutes)):
        yield "the minutes are not in order"
    if len(set(times)) != len(times):
        yield "a second stands there twice"
    if any(not start <= time < end for time in times):
        yield f"a second is outside {profile.start} to {profile.end}"
