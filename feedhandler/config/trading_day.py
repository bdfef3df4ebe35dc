"""`[trading_day]`: which trading day it is, where the feed's description is not to say.

What it is for: everything in a gateway that goes by the day (tags, names of symbols, quotas of
servers, recordings, queues) goes by one `TradingDay`; this is how an operator changes it. A fixed
date is for a replayed session: tags carry it, and names stay, whatever the clock says.
"""

import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.trading_day import TradingDay

#: A date that follows the clock.
AUTO = "auto"
#: A moment that does not come.
NEVER_NS = (1 << 63) - 1


class TradingDayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[trading_day]`: which day it is, for tags, names, quotas, recordings and queues."""

    date: Annotated[
        str,
        Meta(description="auto: it follows the clock; or yyyy-mm-dd, for a replayed session"),
    ] = AUTO
    zone: Annotated[
        str, Meta(description="where trading days begin, as Europe/Paris; empty: the feed's zone")
    ] = ""
    begins_at: Annotated[
        str,
        Meta(
            description="when they begin there, HH:MM; from 12:00 on: the evening before; "
            "empty: as the feed says"
        ),
    ] = ""

    @property
    def fixed(self) -> datetime.date | None:
        """The configured trading day; None where it follows the clock."""
        return None if self.date == AUTO else datetime.date.fromisoformat(self.date)

    def of(self, feed: Feed) -> TradingDay:
        """When the feed's trading days turn, with what is configured."""
        said = feed.trading_day
        return TradingDay(self.zone or said.zone, self.begins_at or said.begins_at)


class DayWatch:
    """The trading day of one gateway, as it turns; `turn` tells it the time.

    today        the trading day
    turns_ns     when it turns next; never where the day is fixed
    trading_day  what says so; quotas and recordings, whose days are the clock's in any case, go by
                 this one as well
    """

    def __init__(self, config: TradingDayConfig, feed: Feed, now_ns: int) -> None:
        self.trading_day = config.of(feed)
        self.today = config.fixed or self.trading_day.of(now_ns)
        self.turns_ns = NEVER_NS if config.fixed else self.trading_day.turns_ns(now_ns)

    def turn(self, now_ns: int) -> bool:
        """Whether the day has turned since the last call; a clock set back turns nothing."""
        if now_ns < self.turns_ns:
            return False
        self.today = self.trading_day.of(now_ns)
        self.turns_ns = self.trading_day.turns_ns(now_ns)
        return True

    def snapshot(self) -> dict[str, Any]:
        """What `status` tells of it."""
        return {
            "day": self.today.isoformat(),
            "zone": self.trading_day.zone,
            "begins_at": self.trading_day.begins_at,
            "turns_ns": self.turns_ns if self.turns_ns < NEVER_NS else None,
        }


def fault_of_day(config: TradingDayConfig) -> tuple[str, str, str] | None:
    """Key, reason and remedy of what is wrong with a `[trading_day]`; None where nothing is."""
    try:
        config.fixed  # noqa: B018 - raises for what is no date
    except ValueError:
        return "date", f"{config.date!r} is no date", "auto, or yyyy-mm-dd"
    try:
        TradingDay(config.zone or "UTC")
    except ConfigError as error:
        return "zone", error.message, error.hint
    try:
        TradingDay("UTC", config.begins_at or "00:00")
    except ConfigError as error:
        return "begins_at", error.message, error.hint
    return None
