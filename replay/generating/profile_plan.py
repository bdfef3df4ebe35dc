"""From a profile to a plan: counts and sizes of packets over time, for a `Flow` to follow.

A plan counts the packets of one line in thousandths, at the end of every slot. A stationary stretch
is a straight line. A day follows the profile's minutes, some seconds busier than others and within
a second some tenths, seconds with a size of their own exactly, and comes to the profile's total.
Drawn unevenness is bounded so that no second outdoes the profile's peaks or the leased line.

Everything is computed in whole numbers, so that a plan is the same on every machine.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.prng import Prng
from feedhandler.replay.generating.profile import REFRESH, Profile, Service, seconds_of

Array = np.ndarray[Any, Any]

LINES = 2
#: Ethernet, IPv4 and UDP headers; a packet's own header; bytes of an order, of a quote.
FRAME_HEADERS, HEADER, ORDER_BYTES, QUOTE_BYTES = 42, 16, 64, 52
#: A day's slots.
SLOT_NS = 100_000_000
SLOTS_PER_S = 1_000_000_000 // SLOT_NS
#: How uneven a day is, drawn: seconds of a minute and slots of a second weigh so many in 1024.
SECOND_WEIGHTS, SLOT_WEIGHTS = (640, 768), (384, 1280)
#: Usual seconds stay below so many percent of the least of the profile's peaks.
PEAK_PERCENT = 92
#: Until books are sent, what is sent takes at most this share of the line.
PRELUDE_PERCENT = 80
#: A debt is evened out over so many packets, or over this share of the session.
HORIZON_PACKETS, HORIZON_SHARE = 2_000, 0.005
#: Bounds of what can be asked for.
SCALE_MIN, SCALE_MAX = 0.001, 100.0
RATE_MBPS_MAX = 100_000.0
#: An endless session goes through a plan of so many seconds again and again; its opening takes no
#: longer than at this many packets a second.
ROUND_S, OPENING_PACKETS_PER_S = 60.0, 4_000.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`packets` (int64, a row more than slots): thousandths of packets planned before each slot;
    `bodies` (uint16): mean bytes of messages in the slot's packets, 0 for the usual; `republished`
    (uint8): whether the slot sends books again."""

    slot_ns: int
    packets: Array
    bodies: Array
    republished: Array

    @property
    def duration_ns(self) -> int:
        """From the plan's beginning to its end."""
        return self.slot_ns * len(self.bodies)


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Settings of a `Flow`, in its units; times are nanoseconds after midnight, exchange time.
    `second_bytes` bounds the frames of a second, both lines together; 0 does not.
    `shares_ppm` are of packets, by channel and then all refreshes; `means` of a packet's messages
    in 1024ths: bytes for 101, 102 and 105, messages for the others."""

    plan: Plan
    start_ns: int
    names_ns: int
    books_ns: int
    stationary: bool
    prelude_byte_ps: int
    byte_ps: int
    second_bytes: int
    shares_ppm: list[int]
    means: list[int]
    refresh_body: float
    refresh_messages: float
    near_ppm: int
    mid_ppm: int
    usual_body: int
    horizon: int
    heartbeat_ns: int
    instruments: int
    #: Whether the session goes through its plan again and again, until it is closed.
    endless: bool = False


def settings_of(
    profile: Profile, feed: Feed, seed: int, scale: float, duration_s: float | None
) -> FlowSettings:
    """Compute the settings of a profile, with its rates times `scale`.

    `duration_s` is the length of a stationary stretch, or bounds a day's. Raises `UsageError` for
    a scale or rate out of bounds."""
    if not SCALE_MIN <= scale <= SCALE_MAX:
        raise UsageError(f"a scale of {scale:g}", f"use {SCALE_MIN:g} to {SCALE_MAX:g}")
    rate_mbps = profile.rate_mbps * scale
    if rate_mbps > RATE_MBPS_MAX:
        raise UsageError(f"a rate of {rate_mbps:g} Mbit/s", f"use up to {RATE_MBPS_MAX:g}")
    start_ns = _exchange_ns(profile, feed)
    mean = mean_payload(profile)
    if profile.stationary:
        per_s = rate_mbps * 125_000 / (mean + FRAME_HEADERS) / LINES
        plan = _stationary(per_s, duration_s or _length_s(profile))
        prelude_mbps = rate_mbps
    else:
        plan = _day(profile, scale, seed, duration_s)
        prelude_mbps = (profile.line_mbps or 1_000.0) * scale * PRELUDE_PERCENT / 100
    total = sum(service.packets for service in profile.services.values())
    names = [*map(str, SERVICES), REFRESH]
    services = [profile.services.get(name, Service(0, 0.1)) for name in names]
    second = 1_000_000_000
    begin = seconds_of(profile.start)
    books = min((seconds_of(s.at) for s in profile.seconds if s.books), default=begin)
    line = profile.line_mbps * max(scale, 1.0)
    return FlowSettings(
        plan=plan,
        start_ns=start_ns,
        names_ns=start_ns + (seconds_of(profile.reference_at or profile.start) - begin) * second,
        books_ns=start_ns + (books - begin) * second,
        stationary=profile.stationary,
        prelude_byte_ps=int(8_000_000 * LINES / prelude_mbps),
        byte_ps=int(8_000_000 * LINES / line) if line else 0,
        second_bytes=int(profile.line_mbps * scale * 125_000),
        shares_ppm=[round(service.packets * 1_000_000 / total) for service in services],
        means=[_mean(name, service) for name, service in zip(names, services, strict=True)],
        refresh_body=services[-1].payload_bytes - HEADER,
        refresh_messages=services[-1].messages,
        near_ppm=round(profile.repeats.within_1_ms * 1_000_000),
        mid_ppm=round((profile.repeats.within_10_ms - profile.repeats.within_1_ms) * 1_000_000),
        usual_body=round(mean) - HEADER,
        horizon=max(HORIZON_PACKETS, int(plan.packets[-1] // 1000 * HORIZON_SHARE)),
        heartbeat_ns=int(profile.heartbeat_s * second),
        instruments=max(8, round(profile.instruments * scale)),
    )


def endless_of(
    profile: Profile,
    feed: Feed,
    *,
    packets_per_s: float,
    instruments: int,
    heartbeat_ns: int,
    start_ns: int,
) -> FlowSettings:
    """Compute endless settings of a stationary profile, at another rate (packets on one line).

    The session begins `start_ns` after midnight and has no refreshes. Its opening goes at that
    rate or at `OPENING_PACKETS_PER_S`, whichever is more."""
    settings = settings_of(profile, feed, 0, 1.0, ROUND_S)
    packet_ps = 1_000_000_000_000 / max(packets_per_s, OPENING_PACKETS_PER_S)
    return replace(
        settings,
        plan=_stationary(packets_per_s, ROUND_S),
        start_ns=start_ns,
        names_ns=start_ns,
        books_ns=start_ns,
        prelude_byte_ps=int(packet_ps / mean_payload(profile)),
        shares_ppm=[*settings.shares_ppm[:-1], 0],
        horizon=HORIZON_PACKETS,
        heartbeat_ns=heartbeat_ns,
        instruments=instruments,
        endless=True,
    )


def mean_payload(profile: Profile) -> float:
    """Return the mean UDP payload of all packets, in bytes."""
    services = profile.services.values()
    total = sum(service.packets for service in services)
    return sum(service.packets * service.payload_bytes for service in services) / total


def midnight_ns(profile: Profile, feed: Feed) -> int:
    """Return the trading day's midnight, exchange time, in ns since 1970 UTC."""
    day = date.fromisoformat(profile.day)
    moment = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(feed.zone))
    return int(moment.timestamp()) * 1_000_000_000


def _exchange_ns(profile: Profile, feed: Feed) -> int:
    """Return the session's start in ns after midnight, exchange time."""
    day = date.fromisoformat(profile.day)
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(profile.zone))
    start = midnight + timedelta(seconds=seconds_of(profile.start))
    return int(start.timestamp()) * 1_000_000_000 - midnight_ns(profile, feed)


def _length_s(profile: Profile) -> float:
    return seconds_of(profile.end) - seconds_of(profile.start)


def _mean(name: str, service: Service) -> int:
    """Convert a service's mean payload to the flow's unit."""
    body = service.payload_bytes - HEADER
    if name in ("101", "102", "105", REFRESH):
        return max(0, round(body * 1024))
    return max(1024, round(body * 1024 / (ORDER_BYTES if name == "104" else QUOTE_BYTES)))


def _stationary(per_s: float, duration_s: float) -> Plan:
    """Make a plan of a constant rate: `per_s` packets a second on one line."""
    slots = max(1, round(duration_s * SLOTS_PER_S))
    packets = np.array([int(per_s * 1000 * i / SLOTS_PER_S) for i in range(slots + 1)], np.int64)
    return Plan(SLOT_NS, packets, np.zeros(slots, np.uint16), np.zeros(slots, np.uint8))


def _day(profile: Profile, scale: float, seed: int, duration_s: float | None) -> Plan:
    begin, end = seconds_of(profile.start), seconds_of(profile.end)
    length = end - begin
    prng = Prng(seed * 2 + 1)
    total = sum(service.packets for service in profile.services.values())
    own = {seconds_of(second.at) - begin: second for second in profile.seconds}
    weights = _second_weights(profile, begin, length, prng)
    first = max((at for at, second in own.items() if second.books), default=-1)
    # Nothing happens before the books are known.
    weights[: first + 1] = 0
    weights[list(own)] = 0
    rest = total - sum(second.packets for second in own.values())
    # Thousandths of packets of one line, a second.
    seconds = _shared(weights, int(rest * 1000 * scale / LINES), _most(profile, scale))
    bodies = np.zeros(length, np.uint16)
    republished = np.zeros(length, np.uint8)
    for at, second in own.items():
        seconds[at] = int(second.packets * 1000 * scale / LINES)
        bodies[at] = max(1, round(second.payload_bytes) - HEADER)
        republished[at] = second.books
    if duration_s is not None:
        length = max(1, min(length, int(duration_s)))
    return Plan(
        SLOT_NS, _cumulative(seconds[:length], prng),
        np.repeat(bodies[:length], SLOTS_PER_S), np.repeat(republished[:length], SLOTS_PER_S),
    )  # fmt: skip


def _second_weights(profile: Profile, begin: int, length: int, prng: Prng) -> Array:
    """Interpolate the profile's minutes to weights of seconds, with random variation."""
    ats = [seconds_of(minute.at) for minute in profile.minutes]
    heights = [int(minute.packets * 16) for minute in profile.minutes]
    low, spread = SECOND_WEIGHTS
    weights = np.zeros(length, np.int64)
    for at in range(length):
        now = begin + at
        index = bisect_right(ats, now) - 1
        height = heights[max(index, 0)]
        if 0 <= index < len(ats) - 1:
            rise = (heights[index + 1] - height) * (now - ats[index])
            height += rise // (ats[index + 1] - ats[index])
        weights[at] = height * (low + prng.below(spread))
    return weights


def _most(profile: Profile, scale: float) -> int:
    """Return the limit of a usual second, below the least peak and the line rate.

    In thousandths of packets of one line."""
    peaks = sorted(second.packets for second in profile.seconds if not second.books)[-10:]
    most = [peak * PEAK_PERCENT / 100 for peak in peaks[:1]]
    if profile.line_mbps:
        frame = mean_payload(profile) + FRAME_HEADERS
        most.append(profile.line_mbps * 125_000 / frame * PEAK_PERCENT / 100)
    return int(min(most) * 1000 * scale / LINES) if most else 1 << 60


def _shared(weights: Array, total: int, most: int) -> Array:
    """Share `total` out by weight, at most `most` each: what is cut goes to the rest."""
    shares = np.zeros(len(weights), np.int64)
    open_ = weights > 0
    left = total
    for _ in range(20):
        sum_ = int(weights[open_].sum())
        if left <= 0 or sum_ == 0:
            break
        more = [weight * left // sum_ for weight in weights[open_].tolist()]
        if not any(more):
            break
        shares[open_] = np.minimum(shares[open_] + more, most)
        left = total - int(shares.sum())
        open_ &= shares < most
    return shares


def _cumulative(seconds: Array, prng: Prng) -> Array:
    """Split each second's packets into tenths, with random variation, and add all up from 0."""
    low, spread = SLOT_WEIGHTS
    drawn = [low + prng.below(spread) for _ in range(len(seconds) * SLOTS_PER_S)]
    weights = np.cumsum(np.array(drawn, np.int64).reshape(-1, SLOTS_PER_S), axis=1)
    within = seconds[:, None] * weights // weights[:, -1:]
    before = np.cumsum(seconds) - seconds
    return np.concatenate([np.zeros(1, np.int64), (before[:, None] + within).ravel()])
