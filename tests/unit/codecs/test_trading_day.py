"""The trading day: which one it is, when it turns, and what turns with it."""

import asyncio
import struct
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy
import pytest

from feedhandler.codecs import list_feeds, load_feed
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.codecs.trading_day import TradingDay, day_number
from feedhandler.config import loopback_config, parse_config
from feedhandler.config.trading_day import DayWatch, TradingDayConfig
from feedhandler.gateway import Gateway
from feedhandler.journal import QueueSettings
from feedhandler.ops.status import _headline
from tests.support.descriptions import described

PARIS = TradingDay("Europe/Paris")
EVENING = TradingDay("America/New_York", "18:00")
MORNING = TradingDay("America/New_York", "06:00")


def at(text: str, zone: str, fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.timestamp()) * 10**9


@pytest.mark.parametrize(
    ("day", "moment", "fold", "expected", "turns"),
    [
        (PARIS, "2026-11-20T00:00", 0, "2026-11-20", "2026-11-21T00:00"),
        (PARIS, "2026-11-20T23:59", 0, "2026-11-20", "2026-11-21T00:00"),
        (EVENING, "2026-11-20T17:59", 0, "2026-11-20", "2026-11-20T18:00"),
        (EVENING, "2026-11-20T18:00", 0, "2026-11-21", "2026-11-21T18:00"),
        (EVENING, "2026-12-31T23:00", 0, "2027-01-01", "2027-01-01T18:00"),
        (MORNING, "2026-11-20T05:59", 0, "2026-11-19", "2026-11-20T06:00"),
        (MORNING, "2026-11-20T06:00", 0, "2026-11-20", "2026-11-21T06:00"),
        # Clocks are put forward (a day of 23 hours), and back (25 hours, 01:30 comes twice).
        (EVENING, "2026-03-07T19:00", 0, "2026-03-08", "2026-03-08T18:00"),
        (EVENING, "2026-11-01T01:30", 1, "2026-11-01", "2026-11-01T18:00"),
        (TradingDay("America/New_York", "01:30"), "2026-11-01T01:30", 1, "2026-11-01",
         "2026-11-02T01:30"),
        (TradingDay("America/New_York", "01:30"), "2026-11-01T01:29", 0, "2026-10-31",
         "2026-11-01T01:30"),
        # 02:30 does not exist that night.
        (TradingDay("America/New_York", "02:30"), "2026-03-08T01:59", 0, "2026-03-07",
         "2026-03-08T03:30"),
        (TradingDay("America/New_York", "02:30"), "2026-03-08T03:30", 0, "2026-03-08",
         "2026-03-09T02:30"),
    ],
)  # fmt: skip
def test_a_moment_has_its_trading_day_and_the_day_its_end(
    day: TradingDay, moment: str, fold: int, expected: str, turns: str
) -> None:
    now_ns = at(moment, day.zone, fold)
    assert day.of(now_ns) == date.fromisoformat(expected)
    assert day.turns_ns(now_ns) == at(turns, day.zone)
    assert day.since_ns(now_ns) <= now_ns < day.turns_ns(now_ns)


@pytest.mark.parametrize("day", [PARIS, EVENING, MORNING, TradingDay("America/New_York", "02:30")])
def test_days_of_a_year_follow_each_other_without_a_gap(day: TradingDay) -> None:
    now_ns = at("2026-01-01T12:00", day.zone)
    for _ in range(366):
        turns_ns = day.turns_ns(now_ns)
        before, after = day.of(turns_ns - 1), day.of(turns_ns)
        assert (after - before).days == 1
        assert day.of(now_ns) == before
        now_ns = turns_ns


@pytest.mark.parametrize(
    ("zone", "begins_at"), [("Nowhere", "00:00"), ("UTC", "24:00"), ("UTC", "6:00")]
)
def test_what_is_no_zone_or_no_time_is_refused(zone: str, begins_at: str) -> None:
    with pytest.raises(ConfigError):
        TradingDay(zone, begins_at)


def test_built_in_feeds_have_the_exchanges_zone() -> None:
    zones = {name: load_feed(name).trading_day.zone for name in list_feeds()}
    elsewhere = {
        "asx-ntp-itch": "Australia/Sydney", "b3-umdf": "America/Sao_Paulo",
        "cme-mdp3": "America/Chicago", "miax-onyx-tom": "America/Chicago",
        "eurex-eobi": "Europe/Berlin", "euronext-utp-md": "Europe/Paris", "fix-marketdata": "UTC",
    }  # fmt: skip
    assert {name: zone for name, zone in zones.items() if zone != "America/New_York"} == elsewhere


def test_wire_times_of_an_evening_session_are_of_the_evening_before(tmp_path: Path) -> None:
    text = (FEEDS_FOLDER / "nyse-openbook-ultra.toml").read_text()
    feed = described(tmp_path, 'day_begins_at = "18:00"\n' + text)
    friday = date(2026, 11, 20)
    for hour, moment in ((19, "2026-11-19T19:00"), (9, "2026-11-20T09:00")):
        packet = feed.decode_packet(
            feed.encode_packet(kind="heartbeat", send_time=hour * 3_600_000), friday
        )
        assert packet.send_time_ns == at(moment, feed.zone)


def test_what_is_configured_goes_before_what_the_feed_says() -> None:
    feed = load_feed("iex-deep")
    assert TradingDayConfig().of(feed) == TradingDay("America/New_York")
    assert TradingDayConfig(zone="UTC", begins_at="17:00").of(feed) == TradingDay("UTC", "17:00")


def test_a_fixed_day_never_turns_and_a_clock_set_back_turns_nothing() -> None:
    feed = load_feed("iex-deep")
    noon = at("2026-11-20T12:00", feed.zone)
    fixed = DayWatch(TradingDayConfig(date="2023-10-02"), feed, noon)
    assert not fixed.turn(noon + 10**18)
    assert fixed.today == date(2023, 10, 2)
    watch = DayWatch(TradingDayConfig(begins_at="18:00"), feed, noon)
    assert not watch.turn(watch.turns_ns - 1)
    assert watch.turn(at("2026-11-20T20:00", feed.zone))
    assert watch.today == date(2026, 11, 21)
    assert not watch.turn(noon)
    assert watch.today == date(2026, 11, 21)


def test_the_gateways_tags_and_names_turn_with_the_day() -> None:
    config = loopback_config(services=(101, 104))
    gateway = Gateway(config)
    gateway.core.day = DayWatch(
        TradingDayConfig(begins_at="18:00"), gateway.feed, at("2026-11-20T12:00", "Europe/Paris")
    )
    gateway.core.names[7] = "ABC"
    assert gateway.core.alias_of(7) == "ABC"
    gateway.look_at_day(gateway.core.day.turns_ns - 1)
    assert gateway.core.alias_of(7) == "ABC"
    gateway.look_at_day(gateway.core.day.turns_ns)
    assert gateway.core.alias_of(7) is None
    for each in gateway.streams:
        assert each.prefix == struct.pack(">IHH", 20261121, gateway.feed.number, each.service)
    trading_day = gateway.snapshot()["trading_day"]
    assert (trading_day["day"], trading_day["begins_at"]) == ("2026-11-21", "18:00")
    assert "trading day 2026-11-21 until 2026-11-21 18:00 Europe/Paris" in _headline(
        {"trading_day": trading_day}
    )


async def test_a_running_gateway_sees_by_itself_that_the_day_has_turned() -> None:
    async def turned(gateway: Gateway) -> None:
        while gateway.core.names:
            await asyncio.sleep(0)

    gateway = Gateway(loopback_config())
    gateway.core.names[7] = "ABC"
    gateway.core.day.turns_ns = 0
    following = asyncio.create_task(gateway._follow_days())
    await asyncio.wait_for(turned(gateway), 30)
    following.cancel()


def test_a_persistent_queues_day_is_over_the_second_time_it_is_twenty_to_two() -> None:
    settings = QueueSettings(day_zone="America/New_York", day_end="01:50")
    now_ns = at("2026-11-01T01:40", "America/New_York", fold=1)
    assert now_ns - settings.day_began_ns(now_ns) == 50 * 60 * 10**9


def test_a_configuration_has_a_trading_day() -> None:
    config = parse_config(
        '[trading_day]\nzone = "Europe/Lisbon"\nbegins_at = "17:30"\n'
        "[[channel]]\nservice = 1\n"
        '[[channel.line]]\nname = "A"\ngroup = "239.1.1.1"\nport = 5001\n'
    )
    assert config.trading_day.of(load_feed("iex-deep")) == TradingDay("Europe/Lisbon", "17:30")


def test_a_column_of_wire_times_is_as_single_ones() -> None:
    from feedhandler.codecs.columns import _moments

    midnights = EVENING.midnights(date(2026, 11, 20), "America/New_York")
    hours = [0, 9, 17, 18, 23]
    since = numpy.array([hour * 3_600 * 10**9 for hour in hours])
    assert _moments(midnights, since).tolist() == [midnights.moment_ns(int(t)) for t in since]
    assert day_number(date(2026, 11, 20)) == 20261120
