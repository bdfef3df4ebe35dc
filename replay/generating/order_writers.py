"""From actions of an order flow to a feed's messages: a writer for each feed that has one.

A writer is a table: the message that each action becomes, its fields by attribute name. `WRITERS`
names the feeds. Where a feed has no message for an action (a replacement by a new id in PITCH,
MEMOIR and DEEP+), several messages stand for it. TOPS has best quotes alone: its writer keeps the
levels that they come from. Prices of the flow count 1e-4.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from feedhandler.codecs import Feed
from feedhandler.replay.generating import order_flow as flow
from feedhandler.replay.generating.order_flow import Action

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
#: Prices of MEMOIR and ASX count 1e-6, CME's 1e-9; XDP's as the symbol's mapping says, here 1e-4.
_MICRO_PRICE, _CME_PRICE, _XDP_DECIMALS = 100, 100_000, 4
#: Levels of each side that CME sends.
_CME_DEPTH = 10
#: MDUpdateAction, and SecurityTradingStatus: ready to trade, halted.
_NEW, _CHANGED, _GONE = 0, 1, 2
_CME_STATES = {"T": 17, "H": 2}

#: A message: its name, and its fields.
Form = tuple[str, dict[str, Any]]
Write = Callable[[Action, int], list[Form]]


def symbol_of(instrument: int) -> str:
    """Return a name of four letters: AAAB of 1."""
    letters = ""
    for _ in range(4):
        instrument, letter = divmod(instrument, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _split(write: Write, action: Action, midnight_ns: int) -> list[Form]:
    """Write a replacement as a deletion and an addition."""
    gone, new = flow.simple(iter([action]))
    return write(gone, midnight_ns) + write(new, midnight_ns)


def _itch(action: Action, midnight_ns: int) -> list[Form]:
    of = {"stock_locate": action.instrument, "timestamp": action.time_ns - midnight_ns}
    stock, order = {"stock": symbol_of(action.instrument)}, {"order_reference_number": action.order}
    forms: dict[str, Form] = {
        flow.DIRECTORY: ("stock_directory", {
            **stock, "market_category": "Q", "financial_status_indicator": "N",
            "round_lot_size": flow.LOT, "round_lots_only": "N", "issue_classification": "C",
            "authenticity": "P",
        }),
        flow.STATUS: ("stock_trading_action", {**stock, "trading_state": action.state}),
        flow.ADD: ("add_order_no_mpid_attribution", {
            **stock, **order, "buy_sell_indicator": action.side, "shares": action.size,
            "price": action.price,
        }),
        flow.REDUCE: ("order_cancel", {**order, "canceled_shares": action.size}),
        flow.DELETE: ("order_delete", order),
        flow.REPLACE: ("order_replace", {
            "original_order_reference_number": action.order,
            "new_order_reference_number": action.new_order, "shares": action.size,
            "price": action.price,
        }),
        flow.EXECUTE: ("order_executed", {
            **order, "executed_shares": action.size, "match_number": action.trade,
        }),
        flow.TRADE: ("non_cross_trade", {
            **stock, "buy_sell_indicator": "B", "shares": action.size, "price": action.price,
            "match_number": action.trade,
        }),
    }  # fmt: skip
    name, fields = forms[action.does]
    return [(name, {**of, **fields})]


def _asx(action: Action, midnight_ns: int) -> list[Form]:
    """Write ASX's ITCH; a halt has no message, for its state's code is not public."""
    if action.does == flow.REPLACE:
        return _split(_asx, action, midnight_ns)
    of = {
        "nanoseconds": action.time_ns % _SECOND_NS,
        # Local midnight is at most half a day off that of UTC.
        "trade_date": (midnight_ns + _DAY_NS // 2) // _DAY_NS,
        "tradeable_instrument_id": action.instrument,
    }
    order = {"side": action.side, "order_id": action.order}
    size, price = {"quantity": action.size}, action.price * _MICRO_PRICE
    traded = {
        "trade_id": action.trade, "executed_quantity": action.size, "trade_price": price,
    }  # fmt: skip
    if action.does == flow.STATUS:
        return [("order_book_state", {**of, "session_state": "O"})] if action.state == "T" else []
    forms: dict[str, Form] = {
        flow.DIRECTORY: ("future_symbol_directory", {
            "symbol_name": symbol_of(action.instrument), "price_display_decimals": 2,
            "price_fractional_denominator": 1_000_000, "price_minimum_tick": flow.TICK,
            "currency": "AUD", "lot_size_or_face_value": flow.LOT,
        }),
        flow.ADD: ("add_order", {
            **order, **size, "price": price, "order_book_priority": action.order,
        }),
        flow.REDUCE: ("order_volume_cancelled", {**order, **size}),
        flow.DELETE: ("order_deleted", order),
        flow.EXECUTE: ("order_executed", {**order, **traded, "quantity_remaining": action.left}),
        flow.TRADE: ("trade_executed", traded),
    }  # fmt: skip
    name, fields = forms[action.does]
    return [(name, {**of, **fields})]


class _PitchNames(NamedTuple):
    """Names of a PITCH feed's fields."""

    symbol: str = "symbol_extended"
    quantity: str = "quantity"
    price: str = "price"
    canceled: str = "canceled_quantity"
    flags: str = "add_order_flags"
    last: str = "last_timestamp"


_BYX = _PitchNames()
_OPTIONS = _PitchNames(
    "expanded_symbol", "long_quantity", "long_price", "canceled_long_quantity", "add_flags",
    "time_offset",
)  # fmt: skip


def _pitch(names: _PitchNames) -> Write:
    def write(action: Action, midnight_ns: int) -> list[Form]:
        symbol = symbol_of(action.instrument)
        if action.does == flow.DIRECTORY:
            # Of equities symbols need no explanation.
            mapping = {"feed_symbol": symbol, "osi_symbol": symbol, "symbol_condition": "N"}
            return [("symbol_mapping", mapping)] if names is _OPTIONS else []
        if action.does == flow.REPLACE:
            return _split(write, action, midnight_ns)
        of = {"time_offset": (action.time_ns - midnight_ns) % _SECOND_NS}
        named, order = {names.symbol: symbol}, {"order_id": action.order}
        size, price = {names.quantity: action.size}, {names.price: action.price}
        forms: dict[str, Form] = {
            flow.STATUS: ("trading_status", {
                **named, "trading_status": action.state, "reg_sho_action": "0",
            }),
            flow.ADD: ("add_order_expanded", {
                **named, **order, **size, **price, "side_indicator": action.side, names.flags: 1,
                "customer_indicator": "N",
            }),
            flow.REDUCE: ("reduce_size_long", {**order, names.canceled: action.size}),
            flow.DELETE: ("delete_order", order),
            flow.EXECUTE: ("order_executed", {
                **order, "executed_quantity": action.size, "execution_id": action.trade,
            }),
            flow.TRADE: ("trade_expanded", {
                **named, **size, **price, "side_indicator": "B", "execution_id": action.trade,
            }),
        }  # fmt: skip
        name, fields = forms[action.does]
        return [(name, {**of, **fields})]

    return write


def _memoir(action: Action, midnight_ns: int) -> list[Form]:
    if action.does == flow.REPLACE:
        return _split(_memoir, action, midnight_ns)
    of = {"timestamp": action.time_ns, "security_id": action.instrument}
    order, price = {"order_id": action.order}, {"price": action.price * _MICRO_PRICE}
    size, trade = {"quantity": action.size}, {"trade_id": action.trade}
    forms: dict[str, Form] = {
        flow.DIRECTORY: ("instrument_directory", {
            "symbol_name": symbol_of(action.instrument), "round_lot": flow.LOT,
            "mpv": flow.TICK * _MICRO_PRICE,
        }),
        flow.STATUS: ("security_trading_status", {
            "security_trading_status": action.state, "security_trading_status_reason": "X",
        }),
        flow.ADD: ("order_added", {**order, "side": action.side, **size, **price}),
        flow.REDUCE: ("order_reduced", {**order, **size}),
        flow.DELETE: ("order_deleted", order),
        flow.EXECUTE: ("order_executed", {**order, **trade, **size, **price}),
        flow.TRADE: ("trade", {**trade, **size, **price}),
    }  # fmt: skip
    name, fields = forms[action.does]
    return [(name, {**of, **fields})]


def _xdp(pillar: bool) -> Write:
    """Return the writer of XDP: of Pillar's messages, or of those before them."""
    reported = {"printable_flag": 1, **({"trade_cond1": "@"} if pillar else {})}

    def write(action: Action, midnight_ns: int) -> list[Form]:
        second, nanosecond = divmod(action.time_ns, _SECOND_NS)
        of = {"symbol_index": action.instrument}
        order, price = {"order_id": action.order}, {"price": action.price}
        size, trade = {"volume": action.size}, {"trade_id": action.trade}
        if action.does != flow.DIRECTORY:
            of["source_time_ns"] = nanosecond
        side = {"side": action.side}
        forms: dict[str, Form] = {
            flow.DIRECTORY: ("symbol_index_mapping", {
                "symbol_name": symbol_of(action.instrument), "price_scale_code": _XDP_DECIMALS,
                "market_id": 1, "exchange_code": "N", "security_type": "A", "lot_size": flow.LOT,
                "round_lot": "Y", "mpv": flow.TICK, "unit_of_trade": 1,
            }),
            flow.STATUS: ("security_status", {
                "source_time": second, "security_status": "O" if action.state == "T" else "4",
            }),
            flow.ADD: ("add_order", {**order, **price, **size, **side}),
            flow.REDUCE: ("modify_order", {
                **order, **price, "volume": action.left, **(side if pillar else {}),
            }),
            flow.DELETE: ("delete_order", order),
            flow.REPLACE: ("replace_order", {
                **order, "new_order_id": action.new_order, **price, **size,
            }),
            flow.EXECUTE: ("order_execution", {**order, **trade, **price, **size, **reported}),
            flow.TRADE: ("non_displayed_trade", {**trade, **price, **size, **reported}),
        }  # fmt: skip
        name, fields = forms[action.does]
        return [(name, {**of, **fields})]

    return write


def _deep(action: Action, midnight_ns: int) -> list[Form]:
    if action.does == flow.REPLACE:
        return _split(_deep, action, midnight_ns)
    of = {"timestamp": action.time_ns, "symbol": symbol_of(action.instrument)}
    order, size = {"order_id_reference": action.order}, {"size": action.size}
    price, trade = {"price": action.price}, {"trade_id": action.trade}
    forms: dict[str, Form] = {
        flow.DIRECTORY: ("security_directory", {"round_lot_size": flow.LOT, "luld_tier": 1}),
        flow.STATUS: ("trading_status", {
            "trading_status": action.state, "reason": "T1" if action.state == "H" else "",
        }),
        flow.ADD: ("add_order", {
            "order_id": action.order, "side": "8" if action.side == "B" else "5", **size, **price,
        }),
        flow.REDUCE: ("order_modify", {
            **order, "size": action.left, **price, "modify_flags": 1,
        }),
        flow.DELETE: ("order_delete", order),
        flow.EXECUTE: ("order_executed", {**order, **size, **price, **trade}),
        flow.TRADE: ("trade_report", {**size, **price, **trade}),
    }  # fmt: skip
    name, fields = forms[action.does]
    return [(name, {**of, **fields})]


def _deep_levels(action: Action, midnight_ns: int) -> list[Form]:
    """Write levels: DEEP's directory, states and trades are those of DEEP+."""
    if action.does == flow.REPLACE:
        return _split(_deep_levels, action, midnight_ns)
    if action.does in (flow.DIRECTORY, flow.STATUS, flow.TRADE):
        return _deep(action, midnight_ns)
    trade = _deep(action._replace(does=flow.TRADE), midnight_ns)
    side = "buy" if action.side == "B" else "sell"
    level = (f"price_level_update_{side}", {
        "timestamp": action.time_ns, "symbol": symbol_of(action.instrument), "event_flags": 1,
        "size": action.level, "price": action.price,
    })  # fmt: skip
    return [*trade, level] if action.does == flow.EXECUTE else [level]


class _Tops:
    """Write best quotes, one where the best of either side changed, and what DEEP+ writes else.

    A writer of one session: it keeps the size of every level, by instrument, side and price.
    """

    def __init__(self) -> None:
        self._levels: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        self._sent: dict[int, dict[str, int]] = {}

    def __call__(self, action: Action, midnight_ns: int) -> list[Form]:
        if action.does == flow.REPLACE:
            return _split(self, action, midnight_ns)
        if action.does in (flow.DIRECTORY, flow.STATUS, flow.TRADE):
            return _deep(action, midnight_ns)
        levels = self._levels[action.instrument, action.side]
        levels[action.price] = action.level
        if not action.level:
            del levels[action.price]
        written = []
        if action.does == flow.EXECUTE:
            written += _deep(action._replace(does=flow.TRADE), midnight_ns)
        best = self._best(action.instrument)
        if best != self._sent.get(action.instrument):
            self._sent[action.instrument] = best
            of = {"timestamp": action.time_ns, "symbol": symbol_of(action.instrument)}
            written.append(("quote_update", {**of, **best}))
        return written

    def _best(self, instrument: int) -> dict[str, int]:
        """Return both sides of a quote; of a side without orders all is 0."""
        bids, asks = self._levels[instrument, "B"], self._levels[instrument, "S"]
        bid, ask = max(bids, default=0), min(asks, default=0)
        return {
            "bid_price": bid, "bid_size": bids.get(bid, 0),
            "ask_price": ask, "ask_size": asks.get(ask, 0),
        }  # fmt: skip


class _CmeLevels:
    """Write the ten best levels of each side, by price and position, and trades; a definition names
    each instrument.

    As CME does it, a level that a new one moves to the eleventh place goes without a message; once
    it is among the ten again it is a new one.
    """

    def __init__(self) -> None:
        self._levels: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)

    def __call__(self, action: Action, midnight_ns: int) -> list[Form]:
        if action.does == flow.REPLACE:
            return _split(self, action, midnight_ns)
        of, named = {"transact_time": action.time_ns}, {"security_id": action.instrument}
        if action.does == flow.DIRECTORY:
            name = symbol_of(action.instrument)
            return [("instrument_definition_future", {**named, "symbol_name": name})]
        if action.does == flow.STATUS:
            state = _CME_STATES[action.state]
            security = {"security_id_optional": action.instrument, "security_trading_status": state}
            return [("security_status", {**of, **security})]
        written: list[Form] = []
        if action.does in (flow.TRADE, flow.EXECUTE):
            written.append(("incremental_refresh_trade_summary", {**of, "entries": [{
                **named, "md_entry_px_ex": action.price * _CME_PRICE,
                "md_entry_size_short": action.size, "md_update_action": 0,
                "aggressor_side": {"B": 2, "S": 1}.get(action.side, 0),
            }]}))  # fmt: skip
        if action.does != flow.TRADE:
            entries = [{**named, **entry} for entry in self._changes(action)]
            if entries:
                written.append(("incremental_refresh_book", {**of, "entries": entries}))
        return written

    def _changes(self, action: Action) -> Iterator[dict[str, Any]]:
        """Yield the entries with what an action changes in the ten best levels of its side."""
        levels = self._levels[action.instrument, action.side]
        before = self._best(levels, action.side)
        levels[action.price] = action.level
        if not action.level:
            del levels[action.price]
        after = self._best(levels, action.side)
        if action.price in before and not action.level:
            yield self._entry(action, _GONE, action.price, 0, before)
        elif action.price in before:
            yield self._entry(action, _CHANGED, action.price, action.level, after)
        for price in after:
            if price not in before:
                yield self._entry(action, _NEW, price, levels[price], after)

    @staticmethod
    def _best(levels: dict[int, int], side: str) -> list[int]:
        return sorted(levels, reverse=side == "B")[:_CME_DEPTH]

    @staticmethod
    def _entry(
        action: Action, does: int, price: int, size: int, places: list[int]
    ) -> dict[str, Any]:
        return {
            "md_entry_px_optional_ex": price * _CME_PRICE, "md_entry_size_short_optional": size,
            "md_entry_type_book": "0" if action.side == "B" else "1",
            "md_price_level": places.index(price) + 1, "md_update_action": does,
        }  # fmt: skip


def _no_forms(time_ns: int, midnight_ns: int) -> list[Form]:
    return []


def _itch_system_event(code: str) -> Callable[[int, int], list[Form]]:
    def forms(time_ns: int, midnight_ns: int) -> list[Form]:
        return [("system_event", {"timestamp": time_ns - midnight_ns, "event_code": code})]

    return forms


def _deep_system_event(code: str) -> Callable[[int, int], list[Form]]:
    def forms(time_ns: int, midnight_ns: int) -> list[Form]:
        return [("system_event", {"timestamp": time_ns, "system_event": code})]

    return forms


def _pitch_end(names: _PitchNames) -> Callable[[int, int], list[Form]]:
    def forms(time_ns: int, midnight_ns: int) -> list[Form]:
        return [("end_of_session", {names.last: (time_ns - midnight_ns) % _SECOND_NS})]

    return forms


def _pitch_second(time_ns: int, midnight_ns: int) -> list[Form]:
    return [("time", {"time": (time_ns - midnight_ns) // _SECOND_NS})]


def _asx_second(time_ns: int, midnight_ns: int) -> list[Form]:
    return [("seconds", {"second": time_ns // _SECOND_NS})]


def _xdp_second(time_ns: int, midnight_ns: int) -> list[Form]:
    return [("source_time_reference", {"id": 1, "source_time": time_ns // _SECOND_NS})]


class Writer(NamedTuple):
    """Messages of one feed: those of actions, and those that frame them.

    `new` makes what writes the actions of one session. `begin`, `end` and `second` write the
    session's begin and end, and each second in which something happens; `header` are arguments of
    every packet, `last` those of the packets that end a session (none: heartbeats do). `sends`:
    packets have a time of sending; `offset` is the header field with the bytes of messages sent
    before, where there is one.
    """

    new: Callable[[], Write]
    begin: Callable[[int, int], list[Form]] = _no_forms
    end: Callable[[int, int], list[Form]] = _no_forms
    second: Callable[[int, int], list[Form]] = _no_forms
    header: Mapping[str, Any] = MappingProxyType({})
    last: Mapping[str, Any] = MappingProxyType({})
    sends: bool = False
    offset: str = ""

    def messages(self, feed: Feed, written: list[Form]) -> list[bytes]:
        """Encode messages."""
        return [feed.encode_message(name, **fields) for name, fields in written]


def _plain(write: Write) -> Callable[[], Write]:
    """Make a writer that keeps nothing of a session."""
    return lambda: write


#: What a session of MoldUDP64 is called, and how its packets say that it has ended.
_MOLD: dict[str, Any] = {"header": {"session": "0000000001"}, "last": {"count": 65_535}}
_IEX = Writer(
    _plain(_deep), _deep_system_event("O"), _deep_system_event("C"),
    header={"session": 1, "service": 1}, sends=True, offset="stream_offset",
)  # fmt: skip
#: The feeds that send orders, those that send levels, and best quotes: sessions of an order flow.
ORDER_WRITERS = {
    "nasdaq-totalview-itch": Writer(
        _plain(_itch), _itch_system_event("O"), _itch_system_event("C"), **_MOLD
    ),
    "asx-ntp-itch": Writer(_plain(_asx), second=_asx_second, **_MOLD),
    "cboe-byx-pitch": Writer(
        _plain(_pitch(_BYX)), end=_pitch_end(_BYX), second=_pitch_second, header={"service": 1}
    ),
    "cboe-c1-options-pitch": Writer(
        _plain(_pitch(_OPTIONS)), end=_pitch_end(_OPTIONS), second=_pitch_second,
        header={"service": 1},
    ),
    "memx-memoir": Writer(_plain(_memoir), header={"session": 1}, last={"packet_type": 1}),
    "nyse-integrated-pillar": Writer(_plain(_xdp(pillar=True)), second=_xdp_second, sends=True),
    "nyse-integrated-xdp": Writer(_plain(_xdp(pillar=False)), second=_xdp_second, sends=True),
    "iex-deep-plus": _IEX,
}  # fmt: skip
LEVEL_WRITERS = {
    "iex-deep": _IEX._replace(new=_plain(_deep_levels)),
    "cme-mdp3": Writer(_CmeLevels, sends=True),
}
QUOTE_WRITERS = {"iex-tops": _IEX._replace(new=_Tops)}
WRITERS = {**ORDER_WRITERS, **LEVEL_WRITERS, **QUOTE_WRITERS}
