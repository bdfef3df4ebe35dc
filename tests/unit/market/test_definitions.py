"""Definitions of instruments: what directory messages tell, as databento's library reads it."""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import databento_dbn
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import load_feed
from feedhandler.codecs.book_rules import Term
from feedhandler.codecs.dbn import DEFINITION_CODES
from feedhandler.codecs.definition_builder import KEYS
from feedhandler.codecs.fix_feed import type_code
from feedhandler.codecs.loader import list_feeds
from feedhandler.market import fix_normaliser as fix_compiled
from feedhandler.market import normaliser as compiled
from feedhandler.market.definitions import Raw, read_term
from feedhandler.market.records import Records
from tests.support.descriptions import EXAMPLE, written
from tests.support.fix_messages import sealed
from tests.support.refusal import refusal
from tests.support.venues import FOLDERS, packets

NANO = 10**9
Values = Mapping[str, Any]
#: What is of the record, not of the message.
OWN = {"publisher_id", "ts_event", "ts_recv", "raw_instrument_id", "instrument_id", "rtype"}


def read(bodies: bytes) -> list[dict[str, Any]]:
    """What the library reads in definitions that is not undefined, without the record's own."""
    nothing = databento_dbn.InstrumentDefMsg(
        0, 0, 0, 0, 2**63 - 1, 2**63 - 1, "", "", "",
        databento_dbn.InstrumentClass.STOCK, databento_dbn.SecurityUpdateAction.ADD,
    )  # fmt: skip
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(bodies)
    names = [name for name in databento_dbn.InstrumentDefMsg._ordered_fields if name not in OWN]
    found = []
    for message in decoder.decode():
        told = {name: getattr(message, name) for name in names}
        if str(told["instrument_class"]).strip("\0") == "":
            del told["instrument_class"]
        found.append(
            {
                name: getattr(value, "value", value)
                for name, value in told.items()
                if name == "instrument_class" or value != getattr(nothing, name)
            }
        )
    return found


def defined(name: str, *messages: tuple[str, Values]) -> list[dict[str, Any]]:
    """The definitions of encoded messages."""
    feed = load_feed(name)
    records = Records(feed, "definition")
    twin = load_interpreted(compiled.__name__).Normaliser(feed)
    twin.keeps_terms = records.normaliser.keeps_terms
    for number, (layout, values) in enumerate(messages):
        message, code = feed.encode_message(layout, **values), feed.layout(layout).code
        records.apply_message(message, 0, len(message), code, 1, 1, number, 1)
        twin.message(message, 0, len(message), code, 1, 1, number, 1)
    if len(messages) == 1:
        normaliser = compiled.Normaliser(feed)
        normaliser.keeps_terms = True
        normaliser.message(message, 0, len(message), code, 1, 1, 0, 1)
        assert normaliser.terms == twin.terms, "as interpreted"
    return read(records.of("definition").tobytes())


def at_ns(year: int, month: int, day: int) -> int:
    moment = datetime.datetime(year, month, day, tzinfo=datetime.UTC)
    return int(moment.timestamp()) * NANO


MONTH = {
    f"maturity_month_year_{part}": value
    for part, value in (("year", 2026), ("month", 12), ("day", 18), ("week", 3))
}
MATURITY = {"maturity_year": 2026, "maturity_month": 12, "maturity_day": 18, "maturity_week": 3}
CME = {
    "security_id": 7, "symbol_name": "ESZ6", "security_exchange": "XCME", "security_group": "ES",
    "asset": "ES", "security_type": "FUT", "cfi_code": "FFIXSX", "currency": "USD",
    "security_update_action": "M", "user_defined_instrument": "Y", **MONTH,
    "display_factor_ex": 10_000_000, "high_limit_price_ex": 6 * NANO, "low_limit_price_ex": -5,
    "unit_of_measure": "IPNT", "min_trade_vol": 1, "max_trade_vol": 3000, "appl_id": 310,
    "market_segment_id": 64, "main_fraction": 8, "sub_fraction": 4, "price_display_format": 2,
    "events": [{"event_type": 5, "event_time": 11}, {"event_type": 7, "event_time": 22}],
    "feed_types": [
        {"md_feed_type": "GBI", "market_depth": 2}, {"md_feed_type": "GBX", "market_depth": 10},
    ],
    "attributes": [{"inst_attrib_value": 3}],
}  # fmt: skip
OF_CME = {
    "raw_symbol": "ESZ6", "exchange": "XCME", "group": "ES", "asset": "ES", "security_type": "FUT",
    "cfi": "FFIXSX", "currency": "USD", "security_update_action": "M",
    "user_defined_instrument": "Y", **MATURITY,
    "display_factor": 10_000_000, "high_limit_price": 6 * NANO, "low_limit_price": -5,
    "unit_of_measure": "IPNT", "min_trade_vol": 1, "max_trade_vol": 3000, "appl_id": 310,
    "market_segment_id": 64, "main_fraction": 8, "sub_fraction": 4, "price_display_format": 2,
    "activation": 11, "expiration": 22, "market_depth": 10, "inst_attrib_value": 3,
}  # fmt: skip
#: Feed, message, its values, and what the definition tells of it.
CASES: list[tuple[str, str, Values, Values]] = [
    (
        "cme-mdp3",
        "instrument_definition_future",
        CME | {
            "underlying_product": 5, "settl_currency": "EUR", "min_price_increment": NANO // 4,
            "min_price_increment_amount_ex": 12_500_000_000, "max_price_variation_ex": 12 * NANO,
            "unit_of_measure_qty_ex": 50 * NANO, "contract_multiplier": 31,
            "contract_multiplier_unit": 1, "original_contract_size": 9, "decay_quantity": 4,
            "decay_start_date": 20_000, "flow_schedule_type": 2,
        },
        OF_CME | {
            "instrument_class": "F", "underlying_product": 5, "settl_currency": "EUR",
            "min_price_increment": NANO // 4, "min_price_increment_amount": 12_500_000_000,
            "max_price_variation": 12 * NANO, "unit_of_measure_qty": 50 * NANO,
            "contract_multiplier": 31, "contract_multiplier_unit": 1, "original_contract_size": 9,
            "decay_quantity": 4, "decay_start_date": 20_000, "flow_schedule_type": 2,
        },
    ),
    (
        "cme-mdp3",
        "instrument_definition_option",
        CME | {
            "put_or_call": 1, "strike_price_ex": 5_000 * NANO, "strike_currency": "USD",
            "min_price_increment_optional": NANO // 20, "tick_rule": 3, "underlying_product": 5,
            "settl_currency": "EUR", "min_price_increment_amount_ex": 25 * NANO,
            "unit_of_measure_qty_ex": 50 * NANO,
            "underlyings": [
                {"underlying_security_id": 8, "underlying_symbol": "ESH7"},
                {"underlying_security_id": 9, "underlying_symbol": "ESM7"},
            ],
        },
        OF_CME | {
            "instrument_class": "C", "strike_price": 5_000 * NANO, "strike_price_currency": "USD",
            "min_price_increment": NANO // 20, "tick_rule": 3, "underlying_product": 5,
            "settl_currency": "EUR", "min_price_increment_amount": 25 * NANO,
            "unit_of_measure_qty": 50 * NANO, "underlying": "ESH7", "underlying_id": 8,
        },
    ),
    (
        "cme-mdp3",
        "instrument_definition_spread",
        CME | {
            "security_sub_type": "SP", "min_price_increment_optional": NANO // 20, "tick_rule": 3,
            "price_ratio_ex": 2 * NANO, "max_price_variation_ex": NANO,
            "underlying_product_optional": 5,
        },
        OF_CME | {
            "secsubtype": "SP", "min_price_increment": NANO // 20, "tick_rule": 3,
            "price_ratio": 2 * NANO, "max_price_variation": NANO, "underlying_product": 5,
        },
    ),
    (
        "b3-umdf",
        "security_definition",
        {
            "security_id": 7, "security_exchange": "BVMF", "security_group": "1A",
            "symbol_name": "PETRA1", "security_update_action": "D", "asset": "PETR",
            "cfi_code": "OPASPS", "put_or_call": 0, "currency": "BRL", "settl_currency": "BRL",
            "strike_currency": "BRL", "security_strategy_type": "VC", "strike_price": 255_000,
            "min_price_increment_optional": 1_000_000, "contract_multiplier": 200_000_000,
            "min_lot_size": 100, "min_trade_vol": 100, "max_order_qty": 9_000,
            "market_segment_id": 81, "maturity_date": 20_440, **MONTH,
            "underlyings": [{"underlying_security_id": 8, "underlying_symbol": "PETR4"}],
        },
        {
            "exchange": "BVMF", "group": "1A", "security_update_action": "D", "asset": "PETR",
            "cfi": "OPASPS", "instrument_class": "P", "currency": "BRL", "settl_currency": "BRL",
            "strike_price_currency": "BRL", "secsubtype": "VC", "strike_price": 25_500_000_000,
            "min_price_increment": 10_000_000, "unit_of_measure_qty": 2 * NANO,
            "contract_multiplier": 2, "min_lot_size": 100, "min_trade_vol": 100,
            "max_trade_vol": 9_000,
            "market_segment_id": 81, "expiration": 20_440 * 86_400 * NANO, **MATURITY,
            "underlying": "PETR4", "raw_symbol": "7",
        },
    ),
    (
        "asx-ntp-itch",
        "future_symbol_directory",
        {
            "tradeable_instrument_id": 5, "exchange": "XSFE", "instrument": "AP",
            "cfi_code": "FFICSX", "expiry_year": 2026, "expiry_month": 12,
            "price_minimum_tick": 1_000_000, "last_trading_date": 1_797_000_000,
            "currency": "AUD", "block_lot_size": 200,
        },
        {
            "raw_symbol": "5", "instrument_class": "F", "exchange": "XSFE", "asset": "AP",
            "cfi": "FFICSX", "maturity_year": 2026, "maturity_month": 12,
            "min_price_increment": NANO, "expiration": 1_797_000_000 * NANO, "currency": "AUD",
            "min_lot_size_block": 200,
        },
    ),
    (
        "asx-ntp-itch",
        "options_symbol_directory",
        {
            "tradeable_instrument_id": 5, "option_type": "P", "strike": 7_250_500_000,
            "underlying_tradeable_instrument_id": 4, "expiry_year": 2026, "expiry_month": 6,
            "price_minimum_tick": 500_000, "exchange": "XSFE", "instrument": "AP",
            "cfi_code": "OPEFCS", "last_trading_date": 1_797_000_000, "currency": "AUD",
            "block_lot_size": 100,
        },
        {
            "raw_symbol": "5", "instrument_class": "P", "strike_price": 7_250_500_000_000,
            "underlying_id": 4, "min_price_increment": NANO // 2, "exchange": "XSFE",
            "asset": "AP", "cfi": "OPEFCS", "maturity_year": 2026, "maturity_month": 6,
            "expiration": 1_797_000_000 * NANO, "currency": "AUD", "min_lot_size_block": 100,
        },
    ),
    *(
        (
            "asx-ntp-itch",
            layout,
            {"tradeable_instrument_id": 5, "price_minimum_tick": 10_000, "cfi_code": "MCMXXX"},
            {"raw_symbol": "5", "min_price_increment": NANO // 100, "cfi": "MCMXXX"},
        )
        for layout in ("combination_symbol_directory", "bundles_symbol_directory")
    ),
    (
        "cboe-c1-options-pitch",
        "symbol_mapping",
        {"feed_symbol": "00aBcD", "osi_symbol": "SPXW  261218P05432500"},
        {
            "raw_symbol": "00aBcD", "underlying": "SPXW", "expiration": at_ns(2026, 12, 18),
            "instrument_class": "P", "strike_price": 5_432_500_000_000,
        },
    ),
    (
        "euronext-utp-md",
        "reference_data",
        {
            "symbol_index": 4, "mic": "XPAR", "instrument_group_code": "P0A", "cfi": "ESVUFN",
            "trading_currency": "EUR", "underlying_isin_code": "FR0000000001",
            "fix_price_tick": 5, "fix_price_tick_scale_code": 3, "lot_size": 1_000,
            "lot_size_scale_code": 1, "strike_price": 105, "strike_scale_code": 1,
            "strike_currency": "USD",
        },
        {
            "raw_symbol": "4", "exchange": "XPAR", "group": "P0A", "cfi": "ESVUFN",
            "currency": "EUR", "underlying": "FR0000000001", "min_price_increment": 5_000_000,
            "min_lot_size_round_lot": 100, "strike_price": 10_500_000_000,
            "strike_price_currency": "USD",
        },
    ),
    (
        "ice-impact",
        "new_expiry",
        {
            "market_id": 3, "order_price_denominator": "3", "deal_price_denominator": "2",
            "increment_price": 5, "min_qty": 2, "mic_code": "NDEX", "currency": "EUR",
            "unit_of_measure": "MW", "maturity_year": 2026, "maturity_month": 12,
            "maturity_day": 31,
        },
        {
            "raw_symbol": "3", "market_depth": 5, "min_price_increment": 5_000_000,
            "min_lot_size": 2, "exchange": "NDEX", "currency": "EUR", "unit_of_measure": "MW",
            "maturity_year": 2026, "maturity_month": 12, "maturity_day": 31,
        },
    ),
    (
        "ice-impact",
        "new_options_market_definition",
        {
            "market_id": 3, "underlying_market_id": 2, "option_type": "C", "strike_price": 2_475,
            "num_decimals_strike_price": "2", "min_qty": 2, "currency": "GBP",
            "options_expiration_year": 2026, "options_expiration_month": 11,
            "options_expiration_day": 25, "unit_of_measure": "MW",
            "order_price_denominator": "3", "deal_price_denominator": "2",
        },
        {
            "raw_symbol": "3", "market_depth": 1, "underlying_id": 2, "instrument_class": "C",
            "strike_price": 24_750_000_000, "min_lot_size": 2, "unit_of_measure": "MW",
            "expiration": at_ns(2026, 11, 25), "currency": "GBP",
        },
    ),
    (
        "ice-impact",
        "new_futures_strategy_definition",
        {
            "market_id": 3, "order_price_denominator": "2", "increment_price": 25, "min_qty": 1,
            "legs": [], "terms": None,
        },
        {
            "raw_symbol": "3", "market_depth": 5, "instrument_class": "S", "min_lot_size": 1,
            "min_price_increment": NANO // 4,
        },
    ),
    (
        "ice-impact",
        "new_options_strategy_definition",
        {
            "market_id": 3, "underlying_market_id": 2, "order_price_denominator": "3",
            "increment_price": 5, "min_qty": 1, "legs": [], "hedges": [], "terms": None,
        },
        {
            "raw_symbol": "3", "market_depth": 1, "underlying_id": 2, "min_lot_size": 1,
            "min_price_increment": 5_000_000,
        },
    ),
    *(
        (
            name,
            "security_directory",
            {"symbol": "AAAB", "round_lot_size": 40},
            {"raw_symbol": "AAAB", "min_lot_size_round_lot": 40},
        )
        for name in ("iex-deep", "iex-deep-plus", "iex-tops")
    ),
    *(
        (
            name,
            "symbol_reference_data",
            {"security_symbol": "AAAB", "round_lot_size": 40},
            {"raw_symbol": "AAAB", "min_lot_size_round_lot": 40},
        )
        for name in ("siac-cqs", "siac-cts")
    ),
    (
        "memx-memoir",
        "instrument_directory",
        {"security_id": 3, "round_lot": 40, "mpv": 10_000},
        {"raw_symbol": "3", "min_lot_size_round_lot": 40, "min_price_increment": NANO // 100},
    ),
    (
        "miax-onyx-tom",
        "simple_instrument_definition",
        {
            "instrument_id": 3, "underlying_asset": "HRSW", "product_group_code": "HRW",
            "exchange": "XMGE", "instrument_type": "F", "maturity_month_year": 202_612,
            "currency": "U", "settlement_currency": "U", "match_algorithm": "P",
            "minimum_size": 1, "maximum_size": 999, "tick": 2_500_000, "unit_of_measure": "Bu",
            "unit_of_measure_quantity": 5_000, "high_limit_price": 7 * NANO,
            "low_limit_price": 5 * NANO,
        },
        {
            "raw_symbol": "3", "asset": "HRSW", "group": "HRW", "exchange": "XMGE",
            "instrument_class": "F", "maturity_year": 2026, "maturity_month": 12,
            "currency": "USD", "settl_currency": "USD", "match_algorithm": "F",
            "min_trade_vol": 1, "max_trade_vol": 999, "min_price_increment": 2_500_000,
            "unit_of_measure": "Bu", "unit_of_measure_qty": 5_000 * NANO,
            "high_limit_price": 7 * NANO, "low_limit_price": 5 * NANO,
        },
    ),
    (
        "nasdaq-totalview-itch",
        "stock_directory",
        {
            "stock_locate": 3, "stock": "AAAB", "round_lot_size": 40, "market_category": "G",
            "issue_classification": "B",
        },
        {
            "raw_symbol": "3", "min_lot_size_round_lot": 40, "exchange": "XNAS",
            "instrument_class": "B",
        },
    ),
    *(
        (
            name,
            "symbol_index_mapping",
            {
                "symbol_index": 3, "symbol_name": "AAAB", "exchange_code": "P",
                "security_type": "O", "lot_size": 40, "mpv": 100, "price_scale_code": 4,
            },
            {
                "raw_symbol": "3", "exchange": "ARCX", "instrument_class": "I",
                "min_lot_size_round_lot": 40, "min_price_increment": NANO // 100,
            },
        )
        for name in ("nyse-integrated-xdp", "nyse-integrated-pillar")
    ),
    *(
        (
            "otc-link-ats",
            layout,
            {
                "security_id": 3, "security_type": "BOND",
                "maturity_date_milli": 1_797_000_000_000, "security_detail": "", "issuer": "",
            },
            {
                "raw_symbol": "3", "security_type": "BOND",
                "expiration": 1_797_000_000 * NANO,
            },
        )
        for layout in ("extended_security", "extended_security_no_cusip")
    ),
]  # fmt: skip
#: Feeds of which no message tells more of an instrument than its name.
NAMELESS = {"cboe-byx-pitch", "eurex-eobi", "fix-marketdata", "nyse-openbook-ultra"}


@pytest.mark.parametrize(("name", "layout", "values", "expected"), CASES)
def test_a_definition_has_what_the_message_tells(
    name: str, layout: str, values: Values, expected: Values
) -> None:
    (found,) = defined(name, (layout, values))
    assert found == expected


def terms_of(name: str) -> dict[str, set[str]]:
    """The keys that a feed's messages tell, by message."""
    book = load_feed(name).book
    rules = [] if book is None else [(x.name, rule) for x in book.messages for rule in x.rules]
    found: dict[str, set[str]] = {}
    for layout, rule in rules:
        if rule.terms:
            found.setdefault(layout, set()).update(term.name for term in rule.terms)
    return found


def test_of_each_built_in_feed_these_tests_have_all_that_it_tells() -> None:
    tested: dict[tuple[str, str], set[str]] = {}
    for name, layout, _, expected in CASES:
        told = {"maturity" if key.startswith("maturity_") else key for key in expected}
        tested.setdefault((name, layout), set()).update(told)
    known = set()
    for name in list_feeds():
        assert bool(terms_of(name)) == (name not in NAMELESS), name
        for layout, keys in terms_of(name).items():
            known |= keys
            assert tested.pop((name, layout)) - {"raw_symbol"} == keys - {"raw_symbol"}, layout
    assert not tested
    assert known == {*KEYS, "market_depth"}, "each key is told by some feed"


def test_words_for_characters_are_those_of_the_library() -> None:
    kinds = {
        "instrument_class": databento_dbn.InstrumentClass,
        "match_algorithm": databento_dbn.MatchAlgorithm,
        "security_update_action": databento_dbn.SecurityUpdateAction,
        "user_defined_instrument": databento_dbn.UserDefinedInstrument,
    }
    assert {
        name: {word.upper(): text for word, text in words.items()}
        for name, words in DEFINITION_CODES.items()
    } == {
        name: {each.name: each.value for each in kind.variants() if each.value not in (" ", "~")}
        for name, kind in kinds.items()
    }


#: Feed, message and values that tell nothing, or not all: what is left of the definition.
LITTLE: list[tuple[str, str, Values, Values]] = [
    ("cme-mdp3", "instrument_definition_option", {"security_id": 7, "put_or_call": 2,
     "min_price_increment_optional": None, "strike_price_ex": None}, {}),
    ("b3-umdf", "security_definition", {"contract_multiplier": 20_000_000,
     "min_price_increment_optional": -(2**63)}, {"unit_of_measure_qty": 200_000_000}),
    ("b3-umdf", "security_definition", {"maturity_date": 2_932_896, "max_order_qty": 2**33}, {}),
    ("euronext-utp-md", "reference_data", {"symbol_index": 4, "lot_size": 15,
     "lot_size_scale_code": 1}, {}),
    ("ice-impact", "new_options_market_definition", {"market_id": 3, "currency": "Dollar/lots",
     "options_expiration_year": 2026, "options_expiration_month": 13,
     "options_expiration_day": 1, "num_decimals_strike_price": " "}, {}),
    ("cboe-c1-options-pitch", "symbol_mapping", {"feed_symbol": "00aBcD",
     "osi_symbol": "SPXW  261318X0543x500"}, {"underlying": "SPXW"}),
    ("miax-onyx-tom", "simple_instrument_definition", {"instrument_id": 3, "currency": "E",
     "maturity_month_year": 20_261_218, "instrument_type": "O"}, {}),
    ("asx-ntp-itch", "future_symbol_directory", {"tradeable_instrument_id": 5,
     "expiry_year": 2026, "expiry_month": 0}, {"instrument_class": "F"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layout", "values", "expected"), LITTLE)
def test_what_means_nothing_stays_undefined(
    name: str, layout: str, values: Values, expected: Values
) -> None:
    (found,) = defined(name, (layout, values))
    told = {key: value for key, value in found.items() if value}
    assert told == expected | {
        key: told[key] for key in ("raw_symbol", "market_depth") if key in told
    }


def test_a_definition_that_comes_again_has_the_new_values_alone() -> None:
    first = {"security_id": 3, "round_lot": 40, "mpv": 10_000}
    again = {"security_id": 3, "round_lot": 100, "mpv": 5_000}
    found = defined(
        "memx-memoir", *(("instrument_directory", each) for each in (first, again, again))
    )
    assert [each["min_lot_size_round_lot"] for each in found] == [40, 100, 100]
    extended = {"security_id": 3, "security_type": "BOND", "security_detail": "", "issuer": ""}
    found = defined(
        "otc-link-ats", ("extended_security_no_cusip", extended), ("security", {"security_id": 3})
    )
    assert [each.get("security_type") for each in found] == ["BOND", None]


OPTION = (
    "55=AB|48=7|167=OPT|201=1|200=202612|541=20261218|202=12.5|15=USD|207=XOPT|1151=G|"
    "969=0.05|561=10|562=1|1140=500|231=100|461=OCASPS|996=Shrs|1147=100|1149=20|1148=0.5|"
    "980=M|947=USD|120=USD|762=X|311=ABU|1146=5|1143=1.25|311=OTHER"
)
OF_OPTION = {
    "raw_symbol": "AB", "security_type": "OPT", "instrument_class": "C", "maturity_year": 2026,
    "maturity_month": 12, "expiration": at_ns(2026, 12, 18), "strike_price": 12_500_000_000,
    "currency": "USD", "exchange": "XOPT", "group": "G", "min_price_increment": 50_000_000,
    "min_lot_size_round_lot": 10, "min_trade_vol": 1, "max_trade_vol": 500,
    "contract_multiplier": 100, "cfi": "OCASPS", "unit_of_measure": "Shrs",
    "unit_of_measure_qty": 100 * NANO, "high_limit_price": 20 * NANO,
    "low_limit_price": NANO // 2, "security_update_action": "M", "strike_price_currency": "USD",
    "settl_currency": "USD", "secsubtype": "X", "underlying": "ABU",
    "min_price_increment_amount": 5 * NANO, "max_price_variation": 1_250_000_000,
}  # fmt: skip
FUTURE = "55=CD|167=FUT|200=20261218|541=20261399|202=x|561=1.5|980=Q"
OF_FUTURE = {
    "raw_symbol": "CD", "security_type": "FUT", "instrument_class": "F", "maturity_year": 2026,
    "maturity_month": 12, "maturity_day": 18,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("d", f"964=1|{OPTION}", [OF_OPTION]),
        ("BP", FUTURE, [OF_FUTURE]),
        ("y", f"893=Y|146=2|{OPTION}|{FUTURE}", [OF_OPTION, OF_FUTURE]),
        ("BK", f"146=1|{FUTURE}", [OF_FUTURE]),
        (
            "d",
            "55=EF|200=202612w2",
            [{"raw_symbol": "EF", "maturity_year": 2026, "maturity_month": 12, "maturity_week": 2}],
        ),
        ("d", "55=EF|167=OPT|200=2026", [{"raw_symbol": "EF", "security_type": "OPT"}]),
        ("d", f"55=EF|200=202612{'9' * 20}|541={'9' * 20}", [{"raw_symbol": "EF"}]),
        ("d", f"55=EF|200=202612{'9' * 5_000}|541={'9' * 5_000}", [{"raw_symbol": "EF"}]),
        ("y", "893=Y", []),
        ("d", "167=FUT", []),
    ],
)
def test_definitions_in_fix_have_what_its_tags_tell(
    kind: str, body: str, expected: list[Values]
) -> None:
    feed = load_feed("fix-marketdata")
    message = sealed(f"35={kind}|49=X|56=Y|34=1|52=20261201-10:00:00.000|{body}|".encode())
    records, market = Records(feed, "definition"), Records(feed, "mbo")
    for each in (records, market):
        each.apply_message(message, 0, len(message), type_code(kind), 1, 1, 1, 1)
    assert read(records.of("definition").tobytes()) == expected
    assert not market.normaliser.named, "nobody asks"
    twin = load_interpreted(fix_compiled.__name__).FixNormaliser(feed)
    twin.keeps_terms = True
    twin.message(message, 0, len(message), type_code(kind), 1, 1, 1, 1)
    assert len(twin.terms) == len(expected)


@pytest.mark.parametrize(
    ("term", "raw", "expected"),
    [
        (Term("asset", "text"), None, {}),
        (Term("asset", "text"), b"AB\0CD  ", {"asset": b"AB"}),
        (Term("asset", "text"), b"\xe9t\xe9", {}),
        (Term("asset", "text"), b"ELEVEN CHAR", {}),
        (Term("instrument_class", "code", codes={1: "C"}), None, {}),
        (Term("min_lot_size", "integer"), None, {}),
        (Term("min_lot_size", "integer"), b"00100", {"min_lot_size": 100}),
        (Term("min_lot_size", "integer"), 2**31 - 1, {}),
        (Term("min_lot_size", "whole"), NANO // 2, {}),
        (Term("expiration", "moment", unit_ns=NANO), None, {}),
        (Term("expiration", "moment", unit_ns=NANO), 2**40, {}),
        (Term("expiration", "yyyymmdd"), 0, {}),
        (Term("expiration", "yyyymmdd"), b"        ", {}),
        (Term("expiration", "yyyymmdd"), 2**64 - 1, {}),
        (Term("min_lot_size", "integer"), b"1" * 5_000, {}),
        (Term("expiration", "yyyymmdd"), b"20261218", {"expiration": at_ns(2026, 12, 18)}),
        (Term("expiration", "yyyymmdd"), 19_691_231, {}),
    ],
)
def test_a_value_that_has_no_place_tells_nothing(term: Term, raw: Raw, expected: Values) -> None:
    assert read_term(term, (raw,)) == expected


RULE = """
[book]
by = "level"

[[book.rules]]
messages = ["levels"]
does = "level"
group = "points"
side = "buy"
price = "Price"
size = "Volume"

[[book.rules]]
messages = ["instrument"]
does = "directory"

[book.rules.definition]
"""


#: With fields that few terms can be told by.
WIDE = EXAMPLE.replace("size = 20", "size = 37", 1).replace(
    '{ at = 17, type = "x3" },',
    '{ at = 17, type = "x3" },\n    { at = 20, type = "f64", name = "Real" },\n'
    '    { at = 28, type = "c9", name = "Long" },',
    1,
)


@pytest.mark.parametrize(
    ("line", "key", "reason"),
    [
        ('min_price_incremant = "Scale"', "min_price_incremant", "mean min_price_increment?"),
        ('min_lot_size = "Scales"', "min_lot_size", "'instrument' has no field 'Scales'; did you"),
        ("min_lot_size = { }", "min_lot_size", "needs field"),
        ("expiration = { }", "expiration", "needs field, or year"),
        ('expiration = "Index"', "expiration", "form: yyyymmdd, yymmdd, s, ms, us, ns or days"),
        ('maturity = { field = "Index", form = "s" }', "maturity", "needs form: yyyymmdd, yymmdd"),
        ('maturity = { year = "Index" }', "maturity", "needs month"),
        ('expiration = { year = "Index", month = "Index" }', "expiration", "needs day"),
        ('min_lot_size = { field = "Index", form = "s" }', "min_lot_size.form", "means nothing of"),
        ('currency = { field = "Ticker", scale = 2 }', "currency.scale", "means nothing of cur"),
        ('currency = "Index"', "currency", "'Index' is no text: say with codes what it means"),
        ('currency = { field = "Index", codes = { EURO = [1] } }', "currency.codes", "no text of"),
        ('currency = { field = "Index", codes = { EUR = [1], USD = [1] } }', "currency.codes",
         "1 means two things"),
        ('currency = { field = "Index", codes = { EUR = ["A"] } }', "currency.codes", "no value"),
        ('currency = { field = "Index", codes = { EUR = [] } }', "currency.codes", "no value"),
        ('instrument_class = "stok"', "instrument_class", "is not 'stok'; did you mean stock?"),
        ('instrument_class = { field = "Index" }', "instrument_class", "needs codes: which values"),
        ('min_lot_size = { field = "Index", scale = 19 }', "min_lot_size.scale", "within 0..18"),
        ('min_lot_size = { field = "Index", scale = "Ticker" }', "min_lot_size.scale",
         "'Ticker' is no field of one byte"),
        ('strike_price = { field = "Ticker", scale = "Scale" }', "strike_price.scale", "of digits"),
        ('asset = { field = "Index", at = 1, size = 1 }', "asset", "no text, of which at and size"),
        ('asset = { field = "Ticker", at = 1 }', "asset", "at and size are not within the"),
        ('match_algorithm = "lifo-x-y"', "match_algorithm", "'lifo-x-y', but fifo, configurable"),
        ('exchange = { field = "Ticker", at = 0, size = 3, codes = { XPAR = ["PARIS"] } }',
         "exchange.codes", "'PARIS' is no text of at most 3"),
        ('strike_price = { field = "Scale", scale = "Scal" }', "strike_price.scale", "mean Scale?"),
        ('min_lot_size = { field = "Real" }', "min_lot_size", "'Real' is floating point, which"),
        ('currency = { field = "Long", codes = { EUR = ["A"] } }', "currency", "more than 8 bytes"),
        ('asset = { field = "Ticker", none = [1] }', "asset", "1 is no text of at most"),
        ('min_lot_size = { field = "Index", scal = 2 }', "min_lot_size.scal", "mean scale?"),
        ('expiration = { field = "Index", form = "yymmd" }', "expiration.form", "mean yymmdd?"),
        ("min_lot_size = 3", "min_lot_size", "wants the name of a field, or a table"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_its_place(
    tmp_path: Path, line: str, key: str, reason: str
) -> None:
    path = written(tmp_path, WIDE + RULE + line + "\n")
    found = refusal(load_feed, path)
    number = (WIDE + RULE + line).count("\n") + 1
    assert f"{path}:{number}: book.rules[1].definition.{key}: " in found
    assert reason in found


def whole(text: str) -> int:
    return int(text)


def scaled(decimals: int) -> Callable[[str], int]:
    """Of an integer that the dissector shows without its decimals."""
    return lambda text: int(text) * 10 ** (9 - decimals)


def decimal(text: str) -> int:
    """Of a price that the dissector shows with its decimals; 0: none."""
    return 0 if "nan" in text else int(Decimal(text) * NANO)


def seconds(text: str) -> int:
    return int(text) * NANO


#: By feed, the dissector's messages, and of each the keys of a definition: the field that tells
#: one, and how. Zero and blank stand for what is undefined.
ASX = {
    "min_price_increment": ("priceminimumtick", scaled(6)), "cfi": ("cficode", str),
}  # fmt: skip
ASX_CONTRACT = ASX | {
    "exchange": ("exchange", str), "asset": ("instrument", str), "currency": ("currency", str),
    "expiration": ("lasttradingdate", seconds), "maturity_year": ("expiryyear", whole),
    "maturity_month": ("expirymonth", whole), "min_lot_size_block": ("blocklotsize", whole),
}  # fmt: skip
SHOWN: dict[str, dict[str, Mapping[str, tuple[str, Callable[[str], Any]]]]] = {
    "asx-ntp-itch": {
        "futuresymboldirectorymessage": ASX_CONTRACT
        | {"instrument_class": ("cficode", lambda text: text[0])},
        "optionssymboldirectorymessage": ASX_CONTRACT
        | {
            "instrument_class": ("optiontype", str),
            "strike_price": ("strike", scaled(4)),  # two are taken off already
            "underlying_id": ("underlyingtradeableinstrumentid", whole),
        },
        "combinationsymboldirectorymessage": ASX,
    },
    "b3-umdf": {
        "securitydefinitionmessage": {
            "security_update_action": ("securityupdateaction", str),
            "exchange": ("securityexchange", str), "group": ("securitygroup", str),
            "asset": ("asset", str), "cfi": ("cficode", str), "currency": ("currency", str),
            "settl_currency": ("settlcurrency", str), "secsubtype": ("securitystrategytype", str),
            "strike_price_currency": ("strikecurrency", str),
            "strike_price": ("strikeprice", decimal),
            "min_price_increment": ("minpriceincrementoptional", decimal),
            "unit_of_measure_qty": ("contractmultiplier", decimal),
            "contract_multiplier": ("contractmultiplier", whole),
            "min_lot_size": ("minlotsize", whole), "max_trade_vol": ("maxorderqty", whole),
            "min_trade_vol": ("mintradevol", whole),
            "market_segment_id": ("marketsegmentid", whole), "maturity_year": ("year", whole),
            "maturity_month": ("month", whole), "maturity_day": ("day", whole),
            "maturity_week": ("week", whole), "underlying": ("underlyingsymbol", str),
        },
    },
    "iex-deep-plus": {
        "securitydirectorymessage": {"min_lot_size_round_lot": ("roundlotsize", whole)},
    },
    "otc-link-ats": {"securitymessage": {}},
    "siac-cqs": {
        "symbolreferencedatamessage": {"min_lot_size_round_lot": ("roundlotsize", whole)},
    },
    "siac-cts": {
        "symbolreferencedatamessage": {"min_lot_size_round_lot": ("roundlotsize", whole)},
    },
}  # fmt: skip


def dissected(name: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each directory message that the dissector shows, with its fields' values."""
    for line in (folder / "decoded.jsonl").read_text().splitlines():
        fields = json.loads(line)["fields"]
        for index, (path, at, size, *_) in enumerate(fields):
            layout = path.rpartition(".")[2]
            if layout not in SHOWN[name]:
                continue
            shown: dict[str, str] = {}
            for leaf, begin, _, *rest in fields[index + 1 :]:
                if len(rest) > 1 and at <= begin < at + size:
                    shown.setdefault(leaf.rpartition(".")[2], rest[1])
            yield layout, shown


@pytest.mark.parametrize("name", SHOWN)
def test_definitions_of_real_packets_are_what_an_independent_dissector_shows(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    assert feed.book is not None
    directory = {
        each.code for each in feed.book.messages for rule in each.rules if rule.does == "directory"
    }
    records = Records(feed, "definition")
    for payload, _ in packets(venues / FOLDERS[name]):
        for begin, _, index in feed.scanned(payload):
            for i in range(index.count):
                if index.types[i] in directory:
                    at, size = begin + index.offsets[i], index.sizes[i]
                    records.apply_message(payload, at, size, index.types[i], 1, 1, i, 1)
    ours = read(records.of("definition").tobytes())
    theirs = list(dissected(name, venues / FOLDERS[name]))
    assert {layout for layout, _ in theirs} == SHOWN[name].keys()
    for found, (layout, shown) in zip(ours, theirs, strict=True):
        wanted = {key: of(shown[field]) for key, (field, of) in SHOWN[name][layout].items()}
        told = {key: value for key, value in found.items() if key != "raw_symbol" and value}
        assert told == {key: value for key, value in wanted.items() if value}
