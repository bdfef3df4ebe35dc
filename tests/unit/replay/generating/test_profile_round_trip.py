"""From a capture to a profile and back: what was measured is what is generated.

The captures are of invented profiles, unlike the built-in ones. Tolerances: five standard
deviations of the difference of two binomial counts, and beside it what is promised of a profile.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.measured_profile import profile_of
from feedhandler.characterise.tables import Tables
from feedhandler.replay.generating.profile import Lines, Profile, Repeats, Service, load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture
from tests.support.market_traffic import FEED, MARKET

#: A session's opening is the same in every session: figures of a stretch are those behind it.
OPENING_S = 1.0
STRETCH_S = 10.0
OURS = msgspec.structs.replace(
    MARKET,
    instruments=150,
    rate_mbps=25.0,
    services={
        "101": Service(2_000, 150.0),
        "102": Service(80_000, 72.0),
        "103": Service(250_000, 420.0),
        "104": Service(400_000, 220.0),
        "105": Service(15_000, 140.0),
        "106": Service(200_000, 260.0),
        "107": Service(20_000, 250.0),
        "refresh": Service(30_000, 500.0),
    },
    repeats=Repeats(0.62, 0.76),
    lines=Lines((100, 400), 0.02, 0.01),
)


def tables_of(traffic: Traffic, path: Path, after_s: float = 0.0) -> Tables:
    """Return the tables that a measurement of a generated session gives."""
    write_capture(traffic, path)
    from_ns = traffic.midnight_ns + traffic.settings.start_ns + int(after_s * 1e9)
    outcome = characterise([str(path)], Request("euronext-utp-md", from_ns=from_ns))
    return Tables(outcome, FEED, "Europe/Lisbon")


@pytest.fixture(scope="module")
def stretches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Tables, Tables]:
    """A profile as measured; the session that it was measured of, and one that it makes."""
    folder = tmp_path_factory.mktemp("stretches")
    first = tables_of(
        Traffic(OURS, 3, duration_s=STRETCH_S, feed=FEED), folder / "a.pcap", OPENING_S
    )
    profile = profile_of(first, "ours")
    again = Traffic(profile, 4, duration_s=STRETCH_S, feed=FEED)
    return profile, first, tables_of(again, folder / "b.pcap", OPENING_S)


def services_of(tables: Tables) -> dict[str, dict[str, Any]]:
    table = tables.services()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {row["service"]: row for row in rows}


def test_the_services_come_back_by_packets_and_by_size(
    stretches: tuple[Profile, Tables, Tables],
) -> None:
    _, first, second = stretches
    before, after = services_of(first), services_of(second)
    assert before.keys() == after.keys()
    for name in OURS.services:
        one, other = before[name], after[name]
        tolerance = max(0.01, 5 * (2 / one["packets"]) ** 0.5)
        shares = [row["packets"] / whole["total"]["packets"]
                  for row, whole in ((one, before), (other, after))]  # fmt: skip
        assert shares[1] == pytest.approx(shares[0], rel=tolerance), name
        sizes = [row["payload_bytes"] / row["packets"] for row in (one, other)]
        assert sizes[1] == pytest.approx(sizes[0], rel=tolerance), name


def test_means_repeats_and_rate_come_back(stretches: tuple[Profile, Tables, Tables]) -> None:
    profile, first, second = stretches
    before, after = (dict(tables.prose().rows) for tables in (first, second))
    for name in ("mean_packet_bytes_udp_payload", "mean_message_bytes", "mean_messages_per_packet"):
        assert after[name] == pytest.approx(before[name], rel=0.02), name
    one, other = first.whole_interarrival(), second.whole_interarrival()
    for name in ("within_1ms", "within_10ms"):
        shares = [getattr(each, name) / each.count for each in (one, other)]
        assert shares[1] == pytest.approx(shares[0], abs=0.02), name
    assert profile.rate_mbps == pytest.approx(OURS.rate_mbps, rel=0.02)
    assert profile_of(second, "again").rate_mbps == pytest.approx(profile.rate_mbps, rel=0.02)


def test_the_lines_come_back_with_their_losses_and_skew(
    stretches: tuple[Profile, Tables, Tables],
) -> None:
    profile, _, second = stretches
    again = profile_of(second, "again").lines
    packets = services_of(second)["realtime"]["packets"] / 2
    for found, asked in ((profile.lines, OURS.lines), (again, profile.lines)):
        for mine, theirs in ((found.loss_a, asked.loss_a), (found.loss_b, asked.loss_b)):
            assert mine == pytest.approx(theirs, abs=5 * (2 * theirs / packets) ** 0.5)
        # In a burst line B's copies wait for each other: the least skew is seldom seen.
        assert found.skew_us == pytest.approx(asked.skew_us, abs=40)


def test_a_mornings_shape_and_its_peaks_come_back(tmp_path: Path) -> None:
    day = msgspec.structs.replace(load_profile("euronext-2011-03"), instruments=5_000)
    # Until ten o'clock.
    morning = Traffic(day, 5, scale=0.004, duration_s=17_400.0, feed=FEED)
    first = tables_of(morning, tmp_path / "day.pcap")
    profile = profile_of(first, "ours")
    assert not profile.stationary
    # As far apart at least as they are: no service is idle all the time.
    assert day.heartbeat_s <= profile.heartbeat_s < 2 * day.heartbeat_s
    second = tables_of(Traffic(profile, 6, feed=FEED), tmp_path / "again.pcap")
    before, after = (half_hours(tables) for tables in (first, second))
    # Who has no mark for it tells the opening before the plan begins.
    del before["05:00"]
    for moment, packets in before.items():
        tolerance = 0.03 * packets + 5 * (2 * packets) ** 0.5
        assert abs(after.get(moment, 0) - packets) <= tolerance, moment
    one, other = (dict(tables.seconds()[:2].T.tolist()) for tables in (first, second))
    peaks = sorted(one, key=one.__getitem__)[-10:]
    for peak in peaks:
        assert abs(other.get(peak, 0) - one[peak]) <= 5 * (2 * one[peak]) ** 0.5, peak
    assert {"05:16", "09:33"} <= {second.at[:5] for second in profile.seconds}


def half_hours(tables: Tables) -> dict[str, int]:
    """Packets by half hour of the day."""
    table = tables.minutes()
    found: dict[str, int] = {}
    for row in table.rows:
        values = dict(zip(table.columns, row, strict=True))
        hour, minute = str(row[0])[-5:].split(":")
        name = f"{hour}:{int(minute) // 30 * 30:02d}"
        found[name] = found.get(name, 0) + int(values["packets"])
    return found
