"""UTP-MD messages for the session generator, packed fast.

Encoding a message by field names, as `Feed.encode_message` does, costs more than making up its
contents. So this module turns the layouts of the feed description once into `struct` packers that
take just the fields a generator sets, in wire order; every other field is zero, and text is
padded as the description says. A test holds each packer equal to `Feed.encode_message`.

`Wire` has one method a message type. It knows nothing of books or time beyond what it is handed:
`MessageTime` splits an event's time into what the messages carry.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Protocol

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.instruments import Instrument, Kind
from feedhandler.replay.state.book import Order

NS_PER_MS = 1_000_000

_LIMIT_ORDER = b"2"
_PERCENT_SCALE = 2
_TYPE_OF_INSTRUMENT = {Kind.EQUITY: 1, Kind.WARRANT: 9, Kind.INDEX: 7}
_CFI = {Kind.EQUITY: b"ESVUFR", Kind.WARRANT: b"RWSTCA", Kind.INDEX: b"TIEXXX"}


class Figures(Protocol):
    """The day's figures of something that trades, as the trade messages report them."""

    instrument: Instrument
    last: int
    high: int
    low: int
    traded: int
    trades: int


class MessageTime:
    """An event's time in the several forms that messages carry.

    `ns` counts from midnight, exchange time; `milliseconds`, `microseconds` are SourceTime and
    SourceTimeMicroSecs; dates are yyyymmdd.
    """

    __slots__ = ("date", "microseconds", "milliseconds", "ns", "previous_date")

    def __init__(self, day: date) -> None:
        before = day - timedelta(days=3 if day.weekday() == 0 else 1)
        self.date = _yyyymmdd(day)
        self.previous_date = _yyyymmdd(before)
        self.set(0)

    def set(self, ns: int) -> None:
        """Move to `ns` nanoseconds after midnight; past midnight it starts over."""
        self.ns = ns
        self.milliseconds = ns // NS_PER_MS % 86_400_000
        self.microseconds = ns // 1000 % 1000


class Wire:
    """Packers for the messages of one UTP-MD feed description."""

    def __init__(self, feed: Feed) -> None:
        self._order = packer(feed, 230, (
            "SymbolIndex", "SourceTime", "SourceSeqNum", "Price", "AggregatedVolume", "Volume",
            "OrderID", "SystemID", "SourceTimeMicroSecs", "NumberOrders", "Side", "OrderType",
            "ActionType", "PriceScaleCode", "OrderDate", "OrderPriorityDate", "OrderPriorityTime",
            "OrderPriorityMicroSecs",
        ))  # fmt: skip
        self._quote = packer(feed, 140, (
            "SymbolIndex", "SourceSeqNum", "SourceTime", "AskPrice", "AskSize", "BidPrice",
            "BidSize", "SystemID", "NumberAskOrders", "NumberBidOrders", "SourceTimeMicroSecs",
            "QuoteNumber", "PriceScaleCode",
        ))  # fmt: skip
        self._trade = packer(feed, 240, (
            "SymbolIndex", "SourceTime", "TradeIDNumber", "SourceSeqNum", "Price", "Volume",
            "CumulativeQuantity", "HighestPrice", "LowestPrice", "VariationLastPrice", "SystemID",
            "SourceTimeMicroSecs", "TickDirection", "OpeningTradeIndicator",
            "VariationScaleCode", "PriceScaleCode",
        ))  # fmt: skip
        self._price_update = packer(feed, 241, (
            "SymbolIndex", "SourceTime", "SourceSeqNum", "Price", "HighestPrice", "LowestPrice",
            "VariationLastPrice", "SystemID", "SourceTimeMicroSecs", "TypeOfPrice",
            "PriceScaleCode", "VariationScaleCode",
        ))  # fmt: skip
        self._closing_price = packer(feed, 247, (
            "SymbolIndex", "SourceTime", "SourceSeqNum", "Price", "SystemID",
            "SourceTimeMicroSecs", "PriceScaleCode",
        ))  # fmt: skip
        self._state = packer(feed, 505, (
            "SymbolIndex", "SourceSeqNum", "SourceTime", "SystemID", "SourceTimeMicroSecs",
            "StartDateHalting", "StartTimeHalting", "ProgrammedOpeningTime", "OrderEntryRejection",
            "InstrumentState", "InstrumentTradingStatus", "HaltReason", "ActionAffectingState",
        ))  # fmt: skip
        self._index = packer(feed, 546, (
            "SymbolIndex", "SourceTime", "IndexLevel", "SessionHigh", "SessionLow",
            "PctOfCapitalisation", "VarFromPrevDay", "SystemID", "SourceTimeMicroSecs",
            "NumOfSecurities", "IndexCode", "TypeOfLevel", "IndexLevelScaleCode", "PctScaleCode",
            "VarScaleCode",
        ))  # fmt: skip
        self._reference = packer(feed, 553, (
            "SymbolIndex", "SourceSeqNum", "SourceTime", "LastAdjPrice", "SystemID", "FixPriceTick",
            "SourceTimeMicroSecs", "StockExchangeCode", "TypeOfInstrument", "EventDate",
            "InstrumentName", "PeriodIndicator", "IssuingCountryCode", "TradingCurrency",
            "InstrumentGroupCode", "InstrumentCategory", "InstrumentCode", "MIC",
            "UnderlyingISINCode", "CFI", "LotSize", "LastAdjPriceScaleCode",
            "FixPriceTickScaleCode", "Mnemo",
        ))  # fmt: skip
        self.start_reference = packer(feed, 550, ("Indicator",))(b"S")
        self.end_reference = packer(feed, 551, ("Indicator",))(b"E")

    def order(
        self, instrument: Instrument, order: Order, side: bytes, action: bytes, volume: int,
        level_volume: int, level_orders: int, number: int, system: int, time: MessageTime,
    ) -> bytes:  # fmt: skip
        """230: `volume` is what the order has left; the level's figures are those after it.

        `order.key` is (order date, order number), its priority time nanoseconds after midnight.
        """
        key: tuple[int, int] = order.key  # type: ignore[assignment]
        priority_ns = order.priority_ns
        return self._order(
            instrument.symbol, time.milliseconds, number, order.price, level_volume, volume,
            key[1], system, time.microseconds, level_orders, side, _LIMIT_ORDER, action,
            instrument.price_scale, key[0], time.date, clock(priority_ns),
            priority_ns // 1000 % 1000,
        )  # fmt: skip

    def quote(
        self, instrument: Instrument, level: int, bid: tuple[int, int, int],
        ask: tuple[int, int, int], number: int, system: int, time: MessageTime,
    ) -> bytes:  # fmt: skip
        """140: one level, 1 the best; bid and ask are (price, volume, orders)."""
        return self._quote(
            instrument.symbol, number, time.milliseconds, ask[0], ask[1], bid[0], bid[1], system,
            ask[2], bid[2], time.microseconds, level, instrument.price_scale,
        )  # fmt: skip

    def trade(
        self, figures: Figures, volume: int, direction: bytes, number: int, system: int,
        time: MessageTime,
    ) -> bytes:  # fmt: skip
        """240: a trade at `figures.last`; the day's figures include it already."""
        instrument = figures.instrument
        return self._trade(
            instrument.symbol, time.milliseconds, figures.trades, number, figures.last, volume,
            figures.traded, figures.high, figures.low, variation(figures), system,
            time.microseconds, direction, b"1" if figures.trades == 1 else b"0",
            _PERCENT_SCALE, instrument.price_scale,
        )  # fmt: skip

    def price_update(self, figures: Figures, number: int, system: int, time: MessageTime) -> bytes:
        """241: the last price moved. The variation is unsigned on the wire: two's complement."""
        instrument = figures.instrument
        return self._price_update(
            instrument.symbol, time.milliseconds, number, figures.last, figures.high, figures.low,
            variation(figures) & 0xFFFF_FFFF, system, time.microseconds, b"00",
            instrument.price_scale, _PERCENT_SCALE,
        )  # fmt: skip

    def clear(self, instrument: Instrument, number: int, system: int, time: MessageTime) -> bytes:
        """230 with ActionType F: the instrument's book is cleared."""
        return self._order(
            instrument.symbol, time.milliseconds, number, 0, 0, 0, 0, system, time.microseconds, 0,
            b" ", b" ", b"F", instrument.price_scale, 0, time.date, clock(time.ns),
            time.microseconds,
        )  # fmt: skip

    def closing_price(
        self, instrument: Instrument, price: int, number: int, system: int, time: MessageTime
    ) -> bytes:
        """247: the price of the day's last trade."""
        return self._closing_price(
            instrument.symbol, time.milliseconds, number, price, system, time.microseconds,
            instrument.price_scale,
        )  # fmt: skip

    def state(
        self, instrument: Instrument, halted: bool, reopening_ns: int, number: int, system: int,
        time: MessageTime,
    ) -> bytes:  # fmt: skip
        """505: the instrument is halted (order entry forbidden) or trades again."""
        return self._state(
            instrument.symbol, number, time.milliseconds, system, time.microseconds,
            b"%08d" % time.date, b"%06d" % (clock(time.ns) // 1000),
            b"%06d" % (clock(reopening_ns) // 1000), b"Y" if halted else b"N",
            b"H" if halted else b" ", b" ", b"M" if halted else b" ", b"Y" if halted else b"Z",
        )  # fmt: skip

    def index(
        self, instrument: Instrument, level: int, high: int, low: int, securities: int,
        system: int, time: MessageTime,
    ) -> bytes:  # fmt: skip
        """546: an index value; it has no SourceSeqNum."""
        change = (level - instrument.opening_price) * 10_000 // instrument.opening_price
        return self._index(
            instrument.symbol, time.milliseconds, level, high, low, 10_000, change & 0xFFFF_FFFF,
            system, time.microseconds, securities, b"R", b"0", instrument.price_scale,
            _PERCENT_SCALE, _PERCENT_SCALE,
        )  # fmt: skip

    def reference(
        self, instrument: Instrument, number: int, system: int, time: MessageTime
    ) -> bytes:
        """553: what the instrument is called and how its prices are to be read."""
        scale, kind = instrument.price_scale, instrument.kind
        return self._reference(
            instrument.symbol, number, time.milliseconds, instrument.opening_price, system,
            instrument.tick, time.microseconds, 25, _TYPE_OF_INSTRUMENT[kind],
            b"%08d" % time.date, instrument.name.encode(), b"M", instrument.isin[:2].encode(),
            b"EUR", kind.value[:2].upper().encode(), b"1", instrument.isin.encode(),
            instrument.mic.encode(), instrument.underlying_isin.encode(), _CFI[kind], 1, scale,
            scale, instrument.mnemo.encode(),
        )  # fmt: skip


def packer(feed: Feed, type: int, names: Sequence[str]) -> Callable[..., bytes]:
    """A function from the values of the named fields, in that order, to the whole message.

    `names` are the specification's and stand in wire order; every field not named is zero.
    Integers are given as they go on the wire, text as bytes, NUL-padded to the field. Raises
    `UsageError` where the description has no such layout, field or order, or pads with anything
    but NUL.
    """
    layout = feed.layout(type)
    blank = feed.encode_message(type)
    places = {field.wire: field for field in layout.fields if field.kind != "x"}
    unknown = [name for name in names if name not in places]
    if unknown:
        raise UsageError(f"{layout.name} has no field {unknown[0]}", "see the feed's description")
    chosen = [places[name] for name in names]
    start = min(field.at for field in layout.fields)
    codes = [">" if layout.byte_order == "big" else "<", f"{start}s"]
    at = start
    for field in chosen:
        if field.at < at:
            raise UsageError(f"{layout.name}: {field.wire} is out of order", "name in wire order")
        codes.append(f"{field.at - at}x{field.code}")
        at = field.at + field.size
    codes.append(f"{layout.size - at}x")
    if any(blank[start:]):
        raise UsageError(f"{layout.name}: blank fields are not zero", "pad text with NUL")
    return partial(struct.Struct("".join(codes)).pack, blank[:start])


def variation(figures: Figures) -> int:
    """The last price against the previous close, in hundredths of a percent."""
    before = figures.instrument.opening_price
    return (figures.last - before) * 10_000 // before


def clock(ns: int) -> int:
    """Nanoseconds after midnight as the integer HHMMSSmmm (OrderPriorityTime)."""
    milliseconds = ns // NS_PER_MS % 86_400_000
    seconds = milliseconds // 1000
    hhmmss = seconds // 3600 * 10_000 + seconds // 60 % 60 * 100 + seconds % 60
    return hhmmss * 1000 + milliseconds % 1000


def _yyyymmdd(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day
