"""Generated traffic has its profile's figures: mix, means, repeats, the day's shape and marks.

Tolerances come from the sample: five standard deviations of a binomial share, and beside it the
1 % that a profile promises where the sample is large enough for that. The generator leans towards
its figures, so it stays well inside.
"""

import json

import msgspec
import numpy as np
import pytest

from feedhandler.replay.generating import flow as generator_flow
from feedhandler.replay.generating.profile import Profile, load_profile, seconds_of
from feedhandler.replay.generating.profile_plan import settings_of
from feedhandler.replay.generating.tape import REALTIME
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_ledger import TrafficLedger
from tests.support.market_traffic import FEED, MARKET

DAY = load_profile("euronext-2011-03")
PAPER_PAYLOAD, PAPER_MESSAGE, PAPER_MESSAGES = 287.53, 53.74, 5.05
SEED = 7
pytestmark = pytest.mark.skipif(
    str(generator_flow.__file__).endswith(".py"),
    reason="a million packets: interpreted, that takes an hour",
)


def ledger_of(traffic: Traffic) -> dict:
    ledger = TrafficLedger(traffic.midnight_ns, traffic.profile.zone)
    for block in traffic.blocks():
        ledger.count(block.data, block.columns)
    return {**ledger.document(traffic.tape, {}), "ledger": ledger, "traffic": traffic}


@pytest.fixture(scope="module")
def stretch() -> dict:
    """A stretch at the paper's rate, without its prelude: (packets, payload, messages) by row."""
    traffic = Traffic(MARKET, SEED, duration_s=10.0, feed=FEED)
    ledger_of(traffic)
    return TrafficLedger.stretch(traffic.tape, traffic.flow.opened) | {"traffic": traffic}


@pytest.fixture(scope="module")
def day() -> dict:
    """A hundredth of the paper's day."""
    return ledger_of(Traffic(DAY, SEED, scale=0.01, feed=FEED))


def share_tolerance(share: float, count: int) -> float:
    """Five standard deviations of a share of `count` packets, relative to the share."""
    return 5 * ((1 - share) / share / count) ** 0.5


def check_mix(profile: Profile, rows: dict, floor: float) -> None:
    packets = sum(rows[name]["packets"] for name in profile.services)
    counted = sum(rows[n]["payload_bytes"] + 58 * rows[n]["packets"] for n in profile.services)
    all_packets = sum(s.packets for s in profile.services.values())
    all_bytes = sum(s.packets * (s.payload_bytes + 58) for s in profile.services.values())
    for name, service in profile.services.items():
        share = service.packets / all_packets
        tolerance = max(floor, share_tolerance(share, packets))
        row = rows[name]
        assert row["packets"] / packets == pytest.approx(share, rel=tolerance), name
        share = service.packets * (service.payload_bytes + 58) / all_bytes
        size = row["payload_bytes"] + 58 * row["packets"]
        assert size / counted == pytest.approx(share, rel=2 * tolerance), name


def check_means(payload: int, packets: int, messages: int) -> None:
    assert payload / packets == pytest.approx(PAPER_PAYLOAD, rel=0.01)
    assert (payload - 16 * packets) / messages == pytest.approx(PAPER_MESSAGE, rel=0.01)
    assert messages / packets == pytest.approx(PAPER_MESSAGES, rel=0.01)


def test_a_stretch_has_table_1s_mix_by_packets_and_by_bytes(stretch: dict) -> None:
    check_mix(MARKET, stretch, 0.01)


def test_a_stretch_has_the_papers_means(stretch: dict) -> None:
    rows = [stretch[name] for name in MARKET.services]
    check_means(
        *(sum(row[key] for row in rows) for key in ("payload_bytes", "packets", "messages"))
    )


@pytest.mark.parametrize("rate_mbps", [10.0, 200.0])
def test_repeats_of_a_symbol_come_in_bursts_at_any_rate(rate_mbps: float) -> None:
    traffic = Traffic(
        MARKET, SEED, rate_mbps=rate_mbps, duration_s=200 / rate_mbps, feed=FEED, refresh=False
    )
    ledger_of(traffic)
    after = traffic.tape.tables["gaps"] - traffic.flow.opened["gaps"]
    edges = after.sum(axis=0).cumsum() / after.sum()
    assert edges[9] == pytest.approx(0.7, abs=0.02)
    assert edges[12] == pytest.approx(0.8, abs=0.02)


def test_a_stretch_keeps_its_rate(stretch: dict) -> None:
    rows = [stretch[name] for name in MARKET.services]
    frames = sum(row["payload_bytes"] + 42 * row["packets"] for row in rows)
    assert 2 * 8 * frames / 10.0 / 1e6 == pytest.approx(40.0, rel=0.01)


def test_nothing_goes_faster_than_the_leased_line() -> None:
    """Twice as much as the line carries: it is full all the time, and no tenth of a second has
    more than fits, but for the frame under way."""
    narrow = msgspec.structs.replace(MARKET, line_mbps=20.0, instruments=100)
    traffic = Traffic(narrow, SEED, duration_s=4.0, feed=FEED, refresh=False)
    times, frames = [], []
    for block in traffic.blocks():
        times.append(block.columns["time_a_ns"])
        frames.append(np.maximum(block.columns["length"].astype(np.int64) + 42, 60))
    slots = (np.concatenate(times) - times[0][0]) // 100_000_000
    bits = np.bincount(slots, 2 * 8 * np.concatenate(frames))
    assert bits.max() <= 20e6 / 10 + 2 * 8 * 1_442
    assert np.median(bits) == pytest.approx(20e6 / 10, rel=0.02)


def test_a_days_line_carries_48_mbit_a_second_times_the_scale(day: dict) -> None:
    assert DAY.line_mbps == 48.0
    assert settings_of(DAY, FEED, SEED, 1.0, None).byte_ps == int(2 * 8e6 / 48)
    ledger = day["ledger"]
    frames = ledger._payload.sum(axis=0, dtype=np.int64) + 42 * ledger._packets.sum(axis=0)
    # What leaves at the very end of a second comes in the next one on line B.
    assert frames.max() * 8 <= 48e6 * 0.01 + 8 * 3 * 1_442
    assert frames.max() * 8 >= 0.95 * 48e6 * 0.01


def test_a_day_has_table_1s_mix_by_packets_and_by_bytes(day: dict) -> None:
    check_mix(DAY, day["services"], 0.01)


def test_a_day_has_the_papers_means_and_total(day: dict) -> None:
    check_means(day["payload_bytes"], day["packets"], day["messages"])
    assert day["packets"] == pytest.approx(812_176, rel=0.01)


def test_symbols_of_a_day_come_back_as_in_figure_6(day: dict) -> None:
    repeats = day["repeats"]
    assert repeats["within_1_ms"] / repeats["repeats"] == pytest.approx(0.7, abs=0.02)
    assert repeats["within_10_ms"] / repeats["repeats"] == pytest.approx(0.8, abs=0.02)


def test_the_peaks_are_the_papers_and_no_other_second_outdoes_them(day: dict) -> None:
    """Tables 2 and 3, a hundredth: five standard deviations of a Poisson count."""
    ledger, offset = day["ledger"], 3600
    packets = ledger._packets.sum(axis=0) * 100
    counted = ledger._counted.sum(axis=0, dtype=np.int64) * 100
    own = {seconds_of(second.at): second for second in DAY.seconds}
    for at, second in own.items():
        tolerance = 5 / (second.packets / 100) ** 0.5
        assert packets[at + offset] == pytest.approx(second.packets, rel=tolerance), second.at
        size = second.packets * (second.payload_bytes + 58)
        assert counted[at + offset] == pytest.approx(size, rel=tolerance), second.at
    mean = day["packets"] * 100 / (seconds_of(DAY.end) - seconds_of(DAY.start))
    highest = packets[seconds_of("09:33:42") + offset]
    assert highest / mean == pytest.approx(10_297 / (81_217_612 / 60_600), rel=0.25)
    others = [s for s in range(86_400) if s - offset not in own]
    assert packets[others].max() < highest


def test_the_day_has_its_marks_in_lisbon_time(day: dict) -> None:
    minutes = day["minutes"]
    rows = np.array([minutes["packets"][name] for name in DAY.services])
    whole = rows.sum(axis=0)
    first = seconds_of(minutes["first"]) // 60

    def at(clock: str) -> int:
        return seconds_of(clock) // 60 - first

    assert whole[at("05:16")] > 5 * whole[at("05:17") : at("06:00")].max()
    assert rows[0, at("05:16")] == rows[0, : at("08:00")].max()
    assert whole[at("08:00")] > 5 * whole[at("07:50")]
    assert whole[at("13:30")] > 1.5 * whole[at("13:20")]
    assert whole[at("16:35")] > whole[at("16:32")]
    assert whole[at("17:30") :].max() < whole[at("12:00")] / 10
    window = whole[at("07:55") : at("10:00")].sum() * 100
    assert window == pytest.approx(20_100_000, rel=0.02)


def test_scale_multiplies_instruments_and_bursts_and_thins_none() -> None:
    """The same stretch at four times the scale: as many messages a packet, packets as close."""
    gaps = []
    for scale in (0.25, 1.0):
        traffic = Traffic(MARKET, SEED, scale=scale, duration_s=4.0, feed=FEED, refresh=False)
        sizes, count = 0, 0
        for block in traffic.blocks():
            sizes += int(block.columns["messages"].sum(dtype=np.int64))
            count += len(block)
        after = traffic.tape.tables["gaps"] - traffic.flow.opened["gaps"]
        gaps.append((sizes / count, after[2:4, :7].sum() / after[2:4].sum(), count))
    assert gaps[1][2] == pytest.approx(4 * gaps[0][2], rel=0.05)
    assert gaps[0][0] == pytest.approx(gaps[1][0], rel=0.05)
    # Repeats within 100 us: those within a packet and a burst.
    assert gaps[0][1] == pytest.approx(gaps[1][1], abs=0.05)


def test_losses_and_skew_are_in_the_ledger() -> None:
    traffic = Traffic(MARKET, SEED, scale=0.1, duration_s=4.0, feed=FEED, loss=(0.1, 0.2))
    ledger = ledger_of(traffic)
    lines, skew = ledger["lines"], ledger["skew"]
    for name, loss in (("lost_a", 0.1), ("lost_b", 0.2), ("lost_both", 0.02)):
        sigma = (loss * (1 - loss) * lines["sent"]) ** 0.5
        assert abs(lines[name] - loss * lines["sent"]) < 5 * sigma
    assert ledger["packets"] == 2 * lines["sent"] - lines["lost_a"] - lines["lost_b"]
    realtime = [row for row in lines["lost_both_first"] if row[0] <= 107]
    assert 0 < len(realtime) <= lines["lost_both"]
    assert 20_000 <= skew["least_ns"] < skew["mean_ns"] < skew["most_ns"]
    kept = lines["sent"] - lines["lost_a"] - lines["lost_b"] + lines["lost_both"]
    assert sum(skew["counts"]) == kept
    ledger.pop("ledger"), ledger.pop("traffic")
    json.dumps(ledger)
    assert sum(row["packets"] for row in ledger["services"].values()) == ledger["packets"]
    assert len(ledger["minutes"]["packets"]) == REALTIME + 1
