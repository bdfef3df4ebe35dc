"""A session profile made from measurements, so that a day like the measured one can be generated.

`profile_of` makes a profile (`replay.generating`) from the digest's tables: totals, shape and
shares, no content of the capture. A capture of a few minutes gives a stationary stretch at its mean
rate, a longer one the day's shape by the minute with its peak seconds. The generator makes UTP-MD
sessions, so the feed must be UTP-MD. No I/O.
"""

import datetime

import numpy as np

from feedhandler.characterise.tables import Line, Tables, quantiles_ns, summed_minutes
from feedhandler.characterise.tally import TOTALS
from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import SECOND_NS
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES
from feedhandler.replay.generating.instruments import INSTRUMENTS_MAX
from feedhandler.replay.generating.profile import (
    BODY_BOUNDS,
    BODY_BYTES_MAX,
    BODY_BYTES_MIN,
    REFRESH,
    Lines,
    Minute,
    Profile,
    Repeats,
    Second,
    Service,
    check_profile,
)

#: What can be generated.
FEED = "euronext-utp-md"
HEADER_BYTES = 16
#: Captures shorter than this are profiled as a stationary stretch.
STRETCH_MINUTES = 10
#: Peak seconds that get a size of their own, by packets and by bytes.
PEAK_SECONDS = 10
#: Quantiles of the measured skew that bound a profile's: a line does not overtake itself, so few
#: are near the least, and the generator itself adds the few that come much later.
SKEW_QUANTILES = (0.01, 0.95)
#: The least number of instruments of a session.
INSTRUMENTS_MIN = 8

#: The least time between heartbeats that a profile may have.
HEARTBEAT_S_MIN = 0.01

_PACKETS, _PAYLOAD = TOTALS.index("packets"), TOTALS.index("payload_bytes")
_HEARTBEATS = TOTALS.index("heartbeats")


def profile_of(tables: Tables, name: str) -> Profile:
    """Make the profile of what the tables say.

    Raises `UsageError` for another feed and for captures without packets or past midnight,
    `ConfigError` where the generator cannot make such a session.
    """
    refuse_other_feeds(tables.feed)
    if not tables.buckets.shape[1]:
        raise UsageError("nothing of the feed was read", "a profile needs packets")
    first_ns, last_ns = (int(tables.buckets[0, index]) * 1_000_000 for index in (0, -1))
    start, end = _moment(tables, first_ns), _moment(tables, last_ns)
    stretch = last_ns - first_ns < STRETCH_MINUTES * 60 * SECOND_NS
    if end.date() != start.date():
        raise UsageError("the capture goes past midnight", "give --until, and profile a day")
    end += datetime.timedelta(seconds=1)
    profile = Profile(
        name=name,
        about="Measured by `feedhandler characterise`.",
        zone=tables.zone_name,
        day=f"{start:%Y-%m-%d}",
        start=f"{start:%H:%M:%S}",
        end=f"{end:%H:%M:%S}" if end.date() == start.date() else "23:59:59",
        instruments=_instruments(tables),
        services=_services(tables),
        repeats=_repeats(tables),
        lines=_lines(tables),
        heartbeat_s=_heartbeat_s(tables, last_ns - first_ns),
        rate_mbps=_rate_mbps(tables, last_ns - first_ns) if stretch else 0.0,
        minutes=[] if stretch else _minutes(tables),
        seconds=[] if stretch else _seconds(tables),
    )
    check_profile(profile, name)
    return profile


def refuse_other_feeds(feed: Feed) -> None:
    """Raise `UsageError` for a feed that has no profiles."""
    if feed.name != FEED:
        raise UsageError(f"sessions of {feed.name} cannot be generated", f"profiles are of {FEED}")


def _moment(tables: Tables, time_ns: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ns // SECOND_NS, tables.zone)


def _instruments(tables: Tables) -> int:
    """Count the symbols on first lines, within what the generator can make."""
    count = len({symbol for _, _, symbol in tables.busiest()})
    return min(max(count, INSTRUMENTS_MIN), INSTRUMENTS_MAX)


def _services(tables: Tables) -> dict[str, Service]:
    """Return each service's packets and mean payload, within what the generator can make."""
    channels: dict[str, list[int]] = {}
    for line in tables.lines:
        channels.setdefault(str(line.service), []).append(line.channel_index)
    if tables.refresh_indexes:
        channels[REFRESH] = sorted(tables.refresh_indexes)
    made = {}
    for name, mine in channels.items():
        totals = tables.digest.totals[mine].sum(axis=0)
        low, high = BODY_BOUNDS.get(name, (BODY_BYTES_MIN, BODY_BYTES_MAX))
        body = float(totals[_PAYLOAD]) / float(totals[_PACKETS]) - HEADER_BYTES
        payload = round(min(max(body, low), high) + HEADER_BYTES, 4)
        made[name] = Service(int(totals[_PACKETS]), payload)
    return made


def _repeats(tables: Tables) -> Repeats:
    whole = tables.whole_interarrival()
    count = max(1, whole.count)
    return Repeats(round(whole.within_1ms / count, 4), round(whole.within_10ms / count, 4))


def _lines(tables: Tables) -> Lines:
    """Return B's delay after A, and each line's share of losses."""
    letters: dict[int, Line] = {line.channel_index: line for line in tables.lines}
    low, high, weight = 0.0, 0.0, 0
    for (first, later), each in tables.digest.pairs.items():
        sides = [letters[index].letter for index in (first, later) if index in letters]
        if sides == ["A", "B"] and each.count:
            early, late = quantiles_ns(each, SKEW_QUANTILES)
            low, high = low + early * each.count, high + late * each.count
            weight += each.count
    missing = {"A": [0, 0], "B": [0, 0]}
    for _, letter, numbers, _, lacking, _ in tables.gaps().rows:
        if letter in missing:
            missing[letter][0] += lacking
            missing[letter][1] += lacking + numbers
    losses = {
        letter: round(lacking / whole, 6) if whole else 0.0
        for letter, (lacking, whole) in missing.items()
    }
    if not weight:
        return Lines(loss_a=losses["A"], loss_b=losses["B"])
    skew_us = (int(low / weight / 1_000), int(high / weight / 1_000))
    return Lines(skew_us, losses["A"], losses["B"])


def _heartbeat_s(tables: Tables, duration_ns: int) -> float:
    """Estimate the time between heartbeats in s.

    The service with the most was idle nearly all the time, so its heartbeats show the interval;
    where there are none, the interval is longer than the capture.
    """
    counts = tables.digest.totals[:, _HEARTBEATS]
    most = max((int(counts[line.channel_index]) for line in tables.lines), default=0)
    return max(
        HEARTBEAT_S_MIN, round(duration_ns / 1e9 / most if most else duration_ns / 1e9 + 1, 3)
    )


def _rate_mbps(tables: Tables, duration_ns: int) -> float:
    """Return the mean rate in Mbit/s of Ethernet frames, of all channels together."""
    packets, _, on_file = tables.buckets[1:].sum(axis=1).tolist()
    frames = on_file - RECORD_HEADER_BYTES * packets
    return round(frames * 8_000 / max(1_000_000, duration_ns), 3)


def _minutes(tables: Tables) -> list[Minute]:
    """Return each minute's packets, 0 where none came, at its first second and at its last.

    So an opening begins where it did.
    """
    whole = summed_minutes(list(tables.digest.minutes().values()))
    counts = dict(zip(whole[0].tolist(), whole[1].tolist(), strict=True))
    return [
        Minute(
            f"{_moment(tables, minute * 60 * SECOND_NS):%H:%M}:{second}",
            float(counts.get(minute, 0)),
        )
        for minute in range(min(counts), max(counts) + 1)
        for second in ("00", "59")
    ]


def _seconds(tables: Tables) -> list[Second]:
    """Return the fullest seconds by packets and by bytes, in order of time."""
    seconds = tables.seconds()
    chosen: set[int] = set()
    for column in (1, 3):
        chosen.update(np.argsort(-seconds[column], kind="stable")[:PEAK_SECONDS].tolist())
    return [
        Second(
            f"{_moment(tables, int(seconds[0, index]) * SECOND_NS):%H:%M:%S}",
            int(seconds[1, index]),
            round(float(seconds[2, index]) / float(seconds[1, index]), 3),
        )
        for index in sorted(chosen)
    ]
