"""`[trading_day]`: the trading day, where it differs from the feed's description.

Everything in a gateway that depends on the day (tags, names of symbols, quotas of servers,
recordings, queues) follows one `TradingDay`, which an operator changes by these settings. A fixed
date is for a replayed session: tags carry it, and names are kept, whatever the clock says.
"""

import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.toml_text import WrongKey
from feedhandler.codecs.trading_day import TradingDay

#: The value of `date` that follows the clock.
AUTO = "auto"
#: A time that never comes.
NEVER_NS = (1 << 63) - 1


class TradingDayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[trading_day]`: the trading day of tags, names, quotas, recordings and queues."""

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
        """Make the feed's `TradingDay` with the configured changes."""
        said = feed.trading_day
        return TradingDay(self.zone or said.zone, self.begins_at or said.begins_at)


class DayWatch:
    """The trading day of one gateway, as it turns; `turn` takes the time.

    today        the trading day
    turns_ns     when it turns next; never where the day is fixed
    trading_day  the rule; quotas and recordings, whose days always follow the clock, use it, too
    """

    def __init__(self, config: TradingDayConfig, feed: Feed, now_ns: int) -> None:
        self.trading_day = config.of(feed)
        self.today = config.fixed or self.trading_day.of(now_ns)
        self.turns_ns = NEVER_NS if config.fixed else self.trading_day.turns_ns(now_ns)

    def turn(self, now_ns: int) -> bool:
        """Return whether the day has turned since the last call; a clock set back turns nothing."""
        if now_ns < self.turns_ns:
            return False
        self.today = self.trading_day.of(now_ns)
        self.turns_ns = self.trading_day.turns_ns(now_ns)
        return True

    def snapshot(self) -> dict[str, Any]:
        """Return the trading day's part of `status`."""
        return {
            "day": self.today.isoformat(),
            "zone": self.trading_day.zone,
            "begins_at": self.trading_day.begins_at,
            "turns_ns": self.turns_ns if self.turns_ns < NEVER_NS else None,
        }


def check_day(config: TradingDayConfig) -> None:
    """Check a `[trading_day]`. Raises `WrongKey`."""
    try:
        config.fixed  # noqa: B018 - raises for what is no date
    except ValueError:
        raise WrongKey(("date",), f"{config.date!r} is no date", "auto, or yyyy-mm-dd") from None
    try:
        TradingDay(config.zone or "UTC")
    except ConfigError as error:
        raise WrongKey(("zone",), error.message, error.hint) from None
    try:
        TradingDay("UTC", config.begins_at or "00:00")
    except ConfigError as error:
        raise WrongKey(("begins_at",), error.message, error.hint) from None
