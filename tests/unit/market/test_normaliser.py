"""Messages of every feed with a `[book]` as normalised order events: DBN's MBO records."""

from datetime import date
from pathlib import Path
from random import Random

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import BadPacket, UsageError, feed_table, load_feed, scanner
from feedhandler.codecs.dbn import (
    FLAG_LAST,
    FLAG_MAYBE_BAD_BOOK,
    FLAG_SNAPSHOT,
    MBO,
    UNDEFINED_TIME,
)
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.loader import list_feeds
from feedhandler.market import normaliser as compiled
from feedhandler.market.order_table import OrderTable
from feedhandler.market.wire_rules import STATES
from tests.support.descriptions import EXAMPLE, described
from tests.support.normalised import CHANNEL, NORMALISERS, SENT_NS, NormalisedRecords, shown
from tests.support.twins import either
from tests.support.venues import packets
from tests.unit.codecs.feeds.test_venues import FOLDERS, FOREIGN

FEEDS = [name for name in list_feeds() if load_feed(name).book is not None]
twin = either(NORMALISERS)


def test_an_itch_order_lives_from_its_addition_to_its_end(twin):
    records = NormalisedRecords(twin, "nasdaq-totalview-itch")
    of = {"stock_locate": 5, "timestamp": 1}
    add = {"order_reference_number": 77, "buy_sell_indicator": "B", "shares": 100, "price": 123400}
    assert records("add_order_no_mpid_attribution", **of, **add) == "A B 77 100@12.34"
    executed = records("order_executed", **of, order_reference_number=77, executed_shares=30)
    assert executed == "T A 0 30@12.34 | F B 77 30@12.34 | C B 77 30@12.34"
    at_price = records(
        "order_executed_with_price", **of, order_reference_number=77, executed_shares=10,
        printable="Y", execution_price=125000,
    )  # fmt: skip
    assert at_price == "T A 0 10@12.5 | F B 77 10@12.5 | C B 77 10@12.34"
    reduced = records("order_cancel", **of, order_reference_number=77, canceled_shares=20)
    assert reduced == "C B 77 20@12.34"
    replaced = records(
        "order_replace", **of, original_order_reference_number=77, new_order_reference_number=78,
        shares=50, price=120000,
    )  # fmt: skip
    assert replaced == "C B 77 40@12.34 | A B 78 50@12"
    assert records("order_delete", **of, order_reference_number=78) == "C B 78 50@12"
    assert records("order_delete", **of, order_reference_number=78) == ""
    assert records.normaliser.unknown_orders == 1
    trade = {"buy_sell_indicator": "B", "shares": 9, "price": 10000}
    assert records("non_cross_trade", **of, **trade) == "T N 0 9@1"
    assert records("cross_trade", **of, cross_shares=2**33, cross_price=10000).startswith(
        f"T N 0 {2**32 - 2}@1"
    )
    assert records.normaliser.clamped == 1


def test_a_record_has_all_that_dbn_wants(twin):
    records = NormalisedRecords(twin, "nasdaq-totalview-itch")
    records.normaliser.set_day(date(2023, 11, 14))
    record = records.of(
        "add_order_no_mpid_attribution", stock_locate=5, timestamp=36_000_000_000_007,
        order_reference_number=77, buy_sell_indicator="S", shares=100, price=123400,
    )[0]  # fmt: skip
    ten_in_new_york_ns = 1_699_974_000_000_000_000
    assert record.dtype == MBO
    assert tuple(record) == (
        14, 0xA0, records.feed.number, 5, ten_in_new_york_ns + 7, 77, 12_340_000_000, 100,
        FLAG_LAST, CHANNEL, b"A", b"A", SENT_NS + 5000, 5000, 7,
    )  # fmt: skip


def test_a_trading_status_stands_beside_the_records(twin):
    records = NormalisedRecords(twin, "nasdaq-totalview-itch")
    assert records("stock_trading_action", stock_locate=5, trading_state="P") == ""
    ((instrument, state, _),) = records.normaliser.statuses
    assert (instrument, STATES[state]) == (5, "halted")


def test_pitch_orders_are_found_by_their_id_alone(twin):
    records = NormalisedRecords(twin, "cboe-byx-pitch")
    order = {"order_id": 9, "side_indicator": "S"}
    add = records.of("add_order_short", **order, quantity_short=5, symbol="ABC", price_short=150)
    assert shown(add[0]) == "A A 9 5@1.5"
    assert int(add[0]["instrument_id"]) == 1
    long = {**order, "order_id": 10, "quantity": 70, "price": 20000, "symbol": "XYZ"}
    assert int(records.of("add_order_long", **long)[0]["instrument_id"]) == 2
    executed = records.of("order_executed", order_id=9, executed_quantity=2)
    assert [int(each["instrument_id"]) for each in executed] == [1, 1, 1]
    assert " | ".join(map(shown, executed)) == "T B 0 2@1.5 | F A 9 2@1.5 | C A 9 2@1.5"
    at_price = records(
        "order_executed_at_price_size", order_id=10, executed_quantity=20, remaining_quantity=40,
        price=21000,
    )  # fmt: skip
    assert at_price == "T B 0 20@2.1 | F A 10 20@2.1 | C A 10 30@2"
    assert records("modify_order_short", order_id=9, quantity_short=7, price_short=160) == (
        "M A 9 7@1.6"
    )
    assert records("reduce_size_short", order_id=9, canceled_quantity_short=3) == "C A 9 3@1.6"
    assert records("unit_clear") == "R N 0 0@-"
    assert records("delete_order", order_id=9) == ""


def test_an_order_whose_id_comes_again_elsewhere_leaves_the_book_that_it_was_in(twin):
    """Its end was lost."""
    records = NormalisedRecords(twin, "cboe-byx-pitch")
    order = {"order_id": 9, "side_indicator": "S", "quantity_short": 5, "price_short": 150}
    records("add_order_short", **order, symbol="ABC")
    again = records.of("add_order_short", **order, symbol="XYZ")
    assert " | ".join(map(shown, again)) == "C A 9 5@1.5 | A A 9 5@1.5"
    assert [int(each["instrument_id"]) for each in again] == [1, 2]
    assert all(each["flags"] & FLAG_LAST for each in again)


def test_pitch_times_count_from_the_clock_of_the_unit(twin):
    records = NormalisedRecords(twin, "cboe-byx-pitch")
    records.normaliser.set_day(date(2023, 11, 14))
    add = {"order_id": 9, "side_indicator": "S", "symbol": "A", "time_offset": 12}
    assert int(records.of("add_order_short", **add)[0]["ts_event"]) == SENT_NS
    assert records("time", time=36_000) == ""
    add["order_id"] = 10
    assert int(records.of("add_order_short", **add)[0]["ts_event"]) == (1_699_974_000_000_000_012)


@pytest.mark.parametrize("name", ["nyse-integrated-xdp", "nyse-integrated-pillar"])
def test_xdp_prices_have_the_scale_that_reference_data_gave(twin, name):
    records = NormalisedRecords(twin, name)
    add = {"symbol_index": 8, "order_id": 4, "price": 12345, "volume": 10, "side": "B"}
    assert records("add_order", **add) == "A B 4 10@-"
    assert records.normaliser.unscaled == 1
    records("symbol_index_mapping", symbol_index=8, symbol_name="ABC", price_scale_code=2)
    add["order_id"] = 5
    assert records("add_order", **add) == "A B 5 10@123.45"
    assert (
        records("modify_order", symbol_index=8, order_id=5, price=12300, volume=4) == "M B 5 4@123"
    )
    execution = {"symbol_index": 8, "order_id": 5, "price": 12300, "volume": 1}
    assert records("order_execution", **execution) == "T A 0 1@123 | F B 5 1@123 | C B 5 1@123"
    replaced = records(
        "replace_order", symbol_index=8, order_id=5, new_order_id=6, price=12200, volume=9
    )
    assert replaced == "C B 5 3@123 | A B 6 9@122"
    refresh = records.of("add_order_refresh", **{**add, "order_id": 7})
    assert int(refresh[0]["flags"]) == FLAG_LAST | FLAG_SNAPSHOT
    assert records("symbol_clear", symbol_index=8) == "R N 0 0@-"
    assert records("delete_order", symbol_index=8, order_id=6) == ""
    trade = {"symbol_index": 8, "price": 12300, "volume": 6}
    assert records("non_displayed_trade", **trade) == "T N 0 6@123"


def test_ice_orders_and_deals_have_scales_of_their_own(twin):
    records = NormalisedRecords(twin, "ice-impact")
    order = {"market_id": 5, "order_id": 7, "side": "1", "price": 1234, "quantity": 10}
    assert records("add_or_modify_order", **order) == "A B 7 10@-"
    denominators = {"order_price_denominator": "2", "deal_price_denominator": "4"}
    assert records("new_expiry", market_id=5, **denominators) == ""
    assert records("add_or_modify_order", **order) == "M B 7 10@12.34"
    assert records("add_or_modify_order", **{**order, "quantity": 4}) == "M B 7 4@12.34"
    trade = {"market_id": 5, "price": 123400, "quantity": 6, "aggressor_side": "2"}
    assert records("trade", **trade) == "T A 0 6@12.34"
    assert records("delete_order", market_id=5, order_id=7) == "C B 7 4@12.34"
    assert records("market_snapshot", market_id=5) == "R N 0 0@-"
    (snapshot,) = records.of("market_snapshot_order", **order)
    assert shown(snapshot) == "A B 7 10@12.34"
    assert int(snapshot["flags"]) == FLAG_LAST | FLAG_SNAPSHOT
    assert records("market_state_change", market_id=5, trading_status="O") == ""
    assert [each[:2] for each in records.normaliser.statuses] == [(5, STATES.index("trading"))]
    assert records("add_price_level", market_id=5, side="1", price=1234, quantity=1) == ""


def test_memoir_executions_have_their_own_price(twin):
    records = NormalisedRecords(twin, "memx-memoir")
    of = {"security_id": 2, "order_id": 3}
    assert records("order_added", **of, side="S", quantity=8, price=1_500_000) == "A A 3 8@1.5"
    assert records("order_reduced", **of, quantity=2) == "C A 3 2@1.5"
    executed = records("order_executed", **of, quantity=1, price=1_600_000)
    assert executed == "T B 0 1@1.6 | F A 3 1@1.6 | C A 3 1@1.5"
    assert records("trade", security_id=2, quantity=4, price=1_000_000) == "T N 0 4@1"
    assert records("order_deleted", **of) == "C A 3 5@1.5"
    assert records("clear_book", security_id=2) == "R N 0 0@-"


def test_utp_actions_stand_in_one_message_and_orders_repeat_by_day(twin):
    records = NormalisedRecords(twin, "euronext-utp-md")
    order = {
        "symbol_index": 1, "order_id": 6, "order_date": 20231114, "price": 1050, "volume": 10,
        "side": "1", "price_scale_code": 2,
    }  # fmt: skip
    key = 20231114 << 32 | 6
    assert records("order_update", **order, action_type="A") == f"A B {key} 10@10.5"
    assert records("order_update", **{**order, "order_date": 20231113}, action_type="D") == ""
    changed = {**order, "volume": 3}
    assert records("order_update", **changed, action_type="M") == f"M B {key} 3@10.5"
    assert records("order_update", **order, action_type="D") == f"C B {key} 3@10.5"
    assert records("order_update", **order, action_type="?") == ""
    assert records("order_update", **order, action_type="F") == "R N 0 0@-"
    trade = {"symbol_index": 1, "price": 100, "volume": 5, "price_scale_code": 0}
    assert records("trade", **trade) == "T N 0 5@100"


def test_orders_that_are_sent_again_clear_each_book_once(twin):
    records = NormalisedRecords(twin, "euronext-utp-md")
    order = {"order_date": 1, "price": 10, "volume": 10, "side": "B", "action_type": "Y"}
    records("order_update", symbol_index=1, order_id=1, **order)
    assert records("order_book_delimiter", retransmission_indicator="S") == ""
    again = records.of("order_update", symbol_index=1, order_id=2, **order)
    assert " | ".join(map(shown, again)) == f"R N 0 0@- | A B {1 << 32 | 2} 10@10"
    assert [int(each["flags"]) for each in again] == [FLAG_SNAPSHOT, FLAG_SNAPSHOT | FLAG_LAST]
    more = records("order_update", symbol_index=1, order_id=3, **order)
    assert more == f"A B {1 << 32 | 3} 10@10"
    records("order_book_delimiter", retransmission_indicator="E")
    deleted = {**order, "action_type": "D"}
    assert records("order_update", symbol_index=1, order_id=1, **deleted) == ""
    assert records("order_update", symbol_index=1, order_id=2, **deleted).startswith("C B")
    assert records("start_refresh") == "R N 0 0@-"
    assert records("order_update", symbol_index=1, order_id=3, **deleted) == ""


def test_price_levels_have_no_order_id(twin):
    records = NormalisedRecords(twin, "iex-deep")
    level = {"symbol": "ABC", "price": 100_000}
    assert records("price_level_update_buy", **level, size=5) == "A B 0 5@10"
    assert records("price_level_update_sell", **level, size=4) == "A A 0 4@10"
    assert records("price_level_update_buy", **level, size=8) == "M B 0 8@10"
    assert records("price_level_update_buy", **level, size=0) == "C B 0 8@10"
    assert records("price_level_update_buy", **level, size=0) == ""
    assert records("trade_report", **level, size=2) == "T N 0 2@10"


def test_a_quote_is_an_order_for_each_side(twin):
    records = NormalisedRecords(twin, "iex-tops")
    quote = {"symbol": "ABC", "bid_size": 5, "bid_price": 10_000, "ask_price": 20_000}
    assert records("quote_update", **quote, ask_size=7) == "A B 1 5@1 | A A 2 7@2"
    assert records("quote_update", **quote, ask_size=7) == ""
    assert records("quote_update", **{**quote, "bid_price": 11_000}, ask_size=7) == "M B 1 5@1.1"
    assert records("quote_update", symbol="ABC") == "C B 1 5@1.1 | C A 2 7@2"


def test_quotes_of_several_exchanges_stand_side_by_side(twin):
    records = NormalisedRecords(twin, "siac-cqs")
    quote = {"security_symbol": "ABC", "bid_price_short": 100, "bid_size_short": 3}
    ids = [(ord(each) << 1) + 1 for each in "NP"]
    assert records("short_quote", participant_id="N", **quote) == f"A B {ids[0]} 3@1"
    assert records("short_quote", participant_id="P", **quote) == f"A B {ids[1]} 3@1"
    long = {"security_symbol": "ABC", "participant_id": "N"}
    assert records("long_quote", **long) == f"C B {ids[0]} 3@1"


def test_each_element_of_a_group_is_an_event(twin):
    records = NormalisedRecords(twin, "nyse-openbook-ultra")
    points = [
        {"price_numerator": 100, "volume": 5, "num_orders": 1, "side": "B"},
        {"price_numerator": 110, "volume": 6, "num_orders": 1, "side": "S"},
    ]
    full = records.of("full_update", symbol_index=3, price_scale_code=1, price_points=points)
    assert " | ".join(map(shown, full)) == "R N 0 0@- | A B 0 5@10 | A A 0 6@11"
    assert [int(each["flags"]) for each in full] == [FLAG_SNAPSHOT] * 2 + [
        FLAG_SNAPSHOT | FLAG_LAST
    ]
    points = [{"price_numerator": 100, "volume": 0, "side": "B"}]
    delta = records("delta_update", symbol_index=3, price_scale_code=1, price_points=points)
    assert delta == "C B 0 5@10"


def entry(security: int, price: int | None, size: int | None, action: int, kind: str) -> dict:
    return {
        "md_entry_px_optional_ex": price, "md_entry_size_short_optional": size,
        "security_id": security, "md_update_action": action, "md_entry_type_book": kind,
    }  # fmt: skip


def test_several_instruments_in_a_message_have_a_last_record_each(twin):
    records = NormalisedRecords(twin, "cme-mdp3")
    entries = [
        entry(1, 10 * 10**9, 5, 0, "0"), entry(2, 20 * 10**9, 6, 0, "1"),
        entry(1, 9 * 10**9, 4, 0, "0"), entry(1, 9 * 10**9, 4, 0, "E"),
    ]  # fmt: skip
    found = records.of("incremental_refresh_book", entries=entries, transact_time=99)
    assert " | ".join(map(shown, found)) == "A B 0 5@10 | A A 0 6@20 | A B 0 4@9"
    assert [int(each["instrument_id"]) for each in found] == [1, 2, 1]
    assert [int(each["flags"]) for each in found] == [0, FLAG_LAST, FLAG_LAST]
    assert {int(each["ts_event"]) for each in found} == {99}
    changes = [entry(1, 10 * 10**9, 8, 1, "0"), entry(1, 9 * 10**9, None, 2, "0")]
    changed = records("incremental_refresh_book", entries=changes)
    assert changed == "M B 0 8@10 | C B 0 4@9"
    reset = [entry(1, None, None, 0, "J")]
    assert records("incremental_refresh_book", entries=reset) == "R N 0 0@-"
    trade = [
        {"md_entry_px_ex": 10**9, "md_entry_size_short": 3, "security_id": 1, "aggressor_side": 2,
         "md_update_action": 0}
    ]  # fmt: skip
    assert records("incremental_refresh_trade_summary", entries=trade) == "T A 0 3@1"
    assert records("channel_reset") == "R N 0 0@-"


def test_b3_orders_come_and_go(twin):
    records = NormalisedRecords(twin, "b3-umdf")
    order = {
        "security_id": 2**40, "secondary_order_id": 5, "md_entry_type": "1",
        "md_corporate_offset_price_optional": 15_000, "md_entry_size_quantity": 9,
    }  # fmt: skip
    add = records.of("order_mbo", **order, md_update_action=0)
    assert shown(add[0]) == "A A 5 9@1.5"
    assert int(add[0]["instrument_id"]) == 1
    changed = {**order, "md_entry_size_quantity": 7}
    assert records("order_mbo", **changed, md_update_action=1) == "M A 5 7@1.5"
    gone = {"security_id": 2**40, "secondary_order_id": 5, "md_entry_type": "1"}
    assert records("delete_order_mbo", **gone) == "C A 5 7@1.5"


def test_eurex_orders_are_named_by_their_priority(twin):
    records = NormalisedRecords(twin, "eurex-eobi")
    price = 10**9
    order = {"security_id": 8, "display_qty": 4, "side": 1, "price": price}
    assert records("order_add", **order, trd_reg_ts_time_priority=50) == "A B 50 4@10"
    moved = records(
        "order_modify", **order, trd_reg_ts_prev_time_priority=50, trd_reg_ts_time_priority=51
    )
    assert moved == "C B 50 4@10 | A B 51 4@10"
    fill = {"security_id": 8, "last_qty": 4, "last_px": price, "trd_reg_ts_time_priority": 51}
    assert records("full_order_execution", **fill) == "T A 0 4@10 | F B 51 4@10 | C B 51 4@10"
    assert records("order_delete", **order, trd_reg_ts_time_priority=51) == ""


def test_asx_executions_tell_what_is_left(twin):
    records = NormalisedRecords(twin, "asx-ntp-itch")
    of = {"tradeable_instrument_id": 4, "order_id": 2, "side": "B"}
    assert records("add_order", **of, quantity=10, price=2_000_000) == "A B 2 10@2"
    executed = records(
        "order_executed", **of, executed_quantity=3, quantity_remaining=7, trade_price=2_000_000
    )
    assert executed == "T A 0 3@2 | F B 2 3@2 | C B 2 3@2"
    assert records("order_volume_cancelled", **of, quantity=2) == "C B 2 2@2"
    assert records("order_deleted", **of) == "C B 2 5@2"


def test_a_service_that_is_not_whole_is_marked_in_each_record(twin):
    records = NormalisedRecords(twin, "memx-memoir")
    records.normaliser.maybe_bad = True
    record = records.of("trade", security_id=2, quantity=4, price=1_000_000)[0]
    assert int(record["flags"]) == FLAG_LAST | FLAG_MAYBE_BAD_BOOK


def test_messages_append_until_the_records_are_begun_anew(twin):
    feed = load_feed("memx-memoir")
    normaliser = twin.Normaliser(feed, room=2)
    for number in range(1, 6):
        message = feed.encode_message("order_added", security_id=1, order_id=number, side="B")
        code = feed.layout("order_added").code
        normaliser.message(message, 0, len(message), code, SENT_NS, UNDEFINED_TIME, number, CHANNEL)
    assert [int(each) for each in normaliser.records["order_id"]] == [1, 2, 3, 4, 5]
    assert {int(each) for each in normaliser.records["ts_recv"]} == {SENT_NS}
    normaliser.clear()
    assert len(normaliser.records) == 0


def test_an_order_beyond_the_bound_is_counted_and_not_known(twin):
    feed = load_feed("memx-memoir")
    orders = OrderTable(10)
    normaliser = twin.Normaliser(feed, orders)
    code = feed.layout("order_added").code
    for number in range(1, 1001):
        message = feed.encode_message("order_added", security_id=1, order_id=number, side="B")
        assert normaliser.message(message, 0, len(message), code, 0, 0, 0, 0) == 1
    assert orders.count == 768
    assert orders.refused == 232


def test_a_feed_without_books_has_no_normaliser(twin, tmp_path):
    with pytest.raises(UsageError, match="no order books"):
        twin.Normaliser(described(tmp_path, EXAMPLE))


def mutated(random: Random, message: bytes) -> bytes:
    """The message as it is, with other bytes, or cut off."""
    kind = random.randrange(4)
    if kind == 0:
        return message[: random.randrange(len(message) + 1)]
    changed = bytearray(message)
    for _ in range(kind):
        changed[random.randrange(len(changed))] = random.choice((0, 32, 65, 66, 255))
    return bytes(changed)


def soup(feed: Feed, random: Random) -> list[tuple[int, bytes]]:
    """Types and bytes of messages with random contents, small so that orders meet again."""
    found = []
    for layout in (each for ways in feed.layouts.values() for each in ways):
        size = layout.size + random.choice((0, 0, 1, 40, 90))
        data = bytes(random.choice((0, 0, 0, 1, 2, 65, 66, 83, 255)) for _ in range(size))
        begin = feed.encode_message(layout.name)[: feed.table.message_header_size]
        found.append((layout.code, mutated(random, begin + data[len(begin) :])))
        if random.random() < 0.5:
            found.append((layout.code, feed.encode_message(layout.name)))
    random.shuffle(found)
    return found


@pytest.mark.parametrize("name", FEEDS)
def test_whatever_comes_both_twins_say_the_same_and_never_raise(name: str, seed: int) -> None:
    feed = load_feed(name)
    one = compiled.Normaliser(feed)
    other = load_interpreted("feedhandler.market.normaliser").Normaliser(feed)
    random = Random(seed)
    for _ in range(15):
        for code, message in soup(feed, random):
            sent_ns, channel = random.choice((0, SENT_NS, UNDEFINED_TIME)), random.randrange(3)
            for each in (one, other):
                each.clear()
                each.message(message, 0, len(message), code, sent_ns, SENT_NS, 1, channel)
            assert one.records.tobytes() == other.records.tobytes(), (code, message.hex())
    for counter in ("unknown_orders", "unscaled", "clamped", "short", "sideless", "unnamed"):
        assert getattr(one, counter) == getattr(other, counter), counter


@pytest.mark.parametrize("name", sorted(set(FEEDS) & set(FOLDERS)))
def test_real_packets_of_venues_are_normalised(name: str, venues: Path) -> None:
    feed = load_feed(name)
    normaliser = compiled.Normaliser(feed)
    header, index = feed_table.PacketHeader(), feed_table.MessageIndex()
    total = 0
    for number, (payload, _) in enumerate(packets(venues / FOLDERS[name]), 1):
        if number in FOREIGN.get(name, {}):
            with pytest.raises(BadPacket):
                feed.decode_packet(payload)
            continue
        index.clear()
        scanner.scan_packets(feed.table, payload, 0, len(payload), header, index)
        for i in range(index.count):
            total += 1
            normaliser.message(
                payload, index.offsets[i], index.sizes[i], index.types[i],
                SENT_NS, SENT_NS, 0, 0,
            )  # fmt: skip
    assert total > 0
    assert normaliser.unnamed == normaliser.short == 0
