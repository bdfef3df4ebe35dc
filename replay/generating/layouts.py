"""Offsets of the fields that the generator patches, and messages with all else filled in.

The compiled markets keep whole messages and change a few fields of them. `offsets` looks up
those fields in the feed's description; `templates` makes a message an instrument, with what never
changes in it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.instruments import Instrument

#: Patched fields of order updates (230), quotes (140), trades (240), price updates (241), index
#: values (546), states (505), reference data (553), in the order in which the markets number them.
ORDER_FIELDS = (
    "SourceTime", "SourceSeqNum", "Price", "AggregatedVolume", "Volume", "OrderID",
    "SourceTimeMicroSecs", "NumberOrders", "Side", "ActionType", "OrderDate", "OrderPriorityTime",
    "OrderPriorityMicroSecs",
)  # fmt: skip
QUOTE_FIELDS = (
    "SourceSeqNum", "SourceTime", "AskPrice", "AskSize", "BidPrice", "BidSize", "NumberAskOrders",
    "NumberBidOrders", "SourceTimeMicroSecs",
)  # fmt: skip
TRADE_FIELDS = (
    "SourceTime", "TradeIDNumber", "SourceSeqNum", "Price", "Volume", "CumulativeQuantity",
    "HighestPrice", "LowestPrice", "VariationLastPrice", "SourceTimeMicroSecs", "TickDirection",
    "OpeningTradeIndicator",
)  # fmt: skip
UPDATE_FIELDS = (
    "SourceTime", "SourceSeqNum", "Price", "HighestPrice", "LowestPrice", "VariationLastPrice",
    "SourceTimeMicroSecs",
)  # fmt: skip
INDEX_FIELDS = (
    "SourceTime", "IndexLevel", "SessionHigh", "SessionLow", "VarFromPrevDay",
    "SourceTimeMicroSecs",
)  # fmt: skip
STATE_FIELDS = (
    "SourceSeqNum", "SourceTime", "SourceTimeMicroSecs", "StartTimeHalting",
    "ProgrammedOpeningTime", "OrderEntryRejection", "InstrumentState", "HaltReason",
    "ActionAffectingState",
)  # fmt: skip
REFERENCE_FIELDS = ("SourceSeqNum", "SourceTime", "SourceTimeMicroSecs")


def offsets(feed: Feed, type: int, names: Sequence[str]) -> memoryview:
    """Return the offsets of the named fields in messages of the type (int32).

    Raises `UsageError` where the feed has no such field."""
    positions = {field.wire: field.at for field in feed.layout(type).fields}
    missing = [name for name in names if name not in positions]
    if missing:
        raise UsageError(
            f"{feed.name}: message {type} has no field {missing[0]}", "generate euronext-utp-md"
        )
    return memoryview(numpy.array([positions[name] for name in names], numpy.intc))


def templates(
    feed: Feed,
    type: int,
    instruments: Sequence[Instrument],
    fields: Callable[[Instrument], dict[str, Any]],
    repeat: int = 1,
) -> numpy.ndarray:
    """Return messages of the type, `repeat` an instrument, concatenated (uint8), with the fields
    that `fields` gives, by their specification names."""
    names = {field.wire: field.name for field in feed.layout(type).fields}
    whole = [
        feed.encode_message(type, **{names[wire]: v for wire, v in fields(instrument).items()})
        * repeat
        for instrument in instruments
    ]
    return numpy.frombuffer(b"".join(whole), numpy.uint8).copy()


def share_messages(
    feed: Feed, shares: Sequence[Instrument], date: int, counts: tuple[int, int, int]
) -> dict[str, numpy.ndarray]:
    """Return every message that the shares' books will ever patch, by its purpose. `counts`: their
    SystemID, orders and quotes a share."""
    system, slots, depth = counts

    def scaled(share: Instrument, **fields: Any) -> dict[str, Any]:
        scale = {"PriceScaleCode": share.price_scale}
        return {"SymbolIndex": share.symbol, "SystemID": system, **scale, **fields}

    quotes = templates(feed, 140, shares, scaled, depth)
    level_at = offsets(feed, 140, ("QuoteNumber",))[0]
    rows = quotes.reshape(-1, depth, feed.layout(140).size)
    rows[:, :, level_at] = numpy.arange(1, depth + 1, dtype=numpy.uint8)
    return {
        "orders": templates(
            feed, 230, shares, lambda s: scaled(s, OrderType="2", OrderPriorityDate=date), slots
        ),
        "quotes": quotes,
        "trades": templates(feed, 240, shares, lambda s: scaled(s, VariationScaleCode=2)),
        "updates": templates(
            feed, 241, shares, lambda s: scaled(s, VariationScaleCode=2, TypeOfPrice="00")
        ),
    }
