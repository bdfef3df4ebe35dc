"""A market's state: what it keeps, that a snapshot says all of it, and that no stream upsets it.

Random tests are parametrized by seed:
`pytest tests/unit/market/test_stream_market.py -k "cut and 3"`.
"""

import random
import re
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

import feedhandler
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import pack_messages
from feedhandler.market.records import Records
from feedhandler.market.stream_market import PROBLEMS, Market
from feedhandler.market.views import BookView
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.instruments import Kind
from feedhandler.replay.generating.packets import ORDERS, QUOTES, SERVICES
from feedhandler.retrans.snapshots import SnapshotCutter
from tests.support.descriptions import built_in, described
from tests.support.market import (
    DAY,
    FEED,
    SYMBOL,
    TWINS,
    UNIT,
    key_of,
    keys,
    order,
    packet,
    queues,
    same_levels,
    session,
)
from tests.support.seeds import drawn

#: The type of order updates, as it goes on the wire.
UPDATE = (230).to_bytes(2, "big")


@pytest.fixture
def make():
    """Makes markets."""
    return TWINS["compiled"]


@pytest.fixture
def market(make):
    return make()


def delimiter(indicator: str) -> bytes:
    return FEED.encode_message(231, retransmission_indicator=indicator)


def digests(market: Any) -> dict[int, str]:
    return {service: market.digest(service) for service in SERVICES}


def fresh_from_snapshot(make: Any, market: Any, service: int) -> Any:
    fresh = make()
    for message in market.snapshot(service):
        fresh.apply_message(message, service)
    return fresh


# -- snapshots say all of the state ---------------------------------------------------------------


@drawn(3)
def test_a_snapshot_at_any_cut_and_the_packets_after_it_lead_to_the_same_state(make, seed):
    draw = random.Random(seed)
    packets = session(seed)
    cut = draw.randrange(len(packets))
    end = draw.randrange(cut, len(packets))
    market = make()
    for outgoing in packets[:cut]:
        market.apply(outgoing.packet)
    restored = {service: fresh_from_snapshot(make, market, service) for service in SERVICES}
    for service in SERVICES:
        assert restored[service].digest(service) == market.digest(service), (seed, cut, service)
    for outgoing in packets[cut:end]:
        market.apply(outgoing.packet)
        restored[outgoing.service].apply(outgoing.packet)
    for service in SERVICES:
        again = restored[service]
        assert again.digest(service) == market.digest(service), (seed, cut, end, service)
        assert not again.problems
        for symbol, number in again.instruments().items():
            if number in again.books:
                assert queues(again.books[number]) == queues(market.books[number]), (seed, symbol)
    assert not market.problems


def test_digests_differ_wherever_states_do(make):
    first, second = order("A", 1), order("A", 2)
    states = [
        [first],
        [first, second],
        [second, first],
        [first, order("A", 2, 101)],
        [first, order("A", 2, volume=11)],
        [first, order("A", 2, side="2")],
        [first, order("A", 2, order_date=DAY - 1)],
        [first, order("A", 2, symbol_index=7)],
        [first, order("A", 2, order_priority_time=90_000_000)],
        [first, FEED.encode_message(140, symbol_index=SYMBOL, quote_number=1)],
        [first, FEED.encode_message(140, symbol_index=SYMBOL, quote_number=2)],
        [first, FEED.encode_message(240, symbol_index=SYMBOL)],
    ]
    seen = set()
    for messages in states:
        market = make()
        market.apply(packet(*messages))
        seen.add(market.digest(ORDERS))
    assert len(seen) == len(states)


def test_digests_are_equal_where_only_the_way_there_differed(make):
    ways = [
        [order("A", 1), order("A", 2, 99)],
        [order("A", 2, 99), order("A", 1)],  # two levels: their order says nothing
        [order("A", 3), order("A", 1), order("M", 2, 99, aggregated_volume=9), order("D", 3)],
        [order("A", 7, symbol_index=9), order("F", 0, symbol_index=9), order("A", 1),
         order("A", 2, 99)],
    ]  # fmt: skip
    seen = set()
    for messages in ways:
        market = make()
        market.apply(packet(*messages))
        seen.add(market.digest(ORDERS))
    assert len(seen) == 1


def test_both_twins_agree_on_every_state():
    compiled, interpreted = (twin() for twin in TWINS.values())
    for number, outgoing in enumerate(session(11)):
        compiled.apply(outgoing.packet)
        interpreted.apply(outgoing.packet)
        if number % 50 == 0:
            assert digests(compiled) == digests(interpreted)
    for service in SERVICES:
        assert compiled.snapshot(service) == interpreted.snapshot(service)


def test_a_snapshot_begins_with_reference_data_between_its_boundaries(market):
    for outgoing in session(3):
        market.apply(outgoing.packet)
    types = [int.from_bytes(message[2:4], "big") for message in market.snapshot(101)]
    assert types[0] == 550
    assert types[1:21] == [553] * 20
    assert types[21] == 551
    assert set(types[22:]) <= {505}


def test_orders_come_as_retransmitted_ones_with_their_levels_figures(make, market):
    for number, volume in enumerate((5, 7, 9), start=1):
        market.apply_message(order("A", number, 100, volume), ORDERS)
    market.apply_message(order("A", 4, 90, 1), ORDERS)
    start, *orders, end = (FEED.decode_message(m) for m in market.snapshot(ORDERS))
    assert (start.retransmission_indicator, end.retransmission_indicator) == ("S", "E")
    assert [o.action_type for o in orders] == ["Y"] * 4
    figures = [(o.order_id, o.aggregated_volume, o.number_orders) for o in orders]
    assert figures == [(1, 5, 1), (2, 12, 2), (3, 21, 3), (4, 1, 1)]


def test_a_levels_figures_stop_at_what_their_fields_hold(market):
    for number in (1, 2):
        market.apply_message(order("A", number, volume=4_000_000_000), ORDERS)
    orders = [FEED.decode_message(message) for message in market.snapshot(ORDERS)[1:-1]]
    assert [o.aggregated_volume for o in orders] == [4_000_000_000, 0xFFFF_FFFF]


def test_priority_survives_a_snapshot(make, market):
    for number in (1, 2, 3):
        market.apply_message(order("A", number), ORDERS)
    market.apply_message(order("M", 1, volume=4), ORDERS)  # shrinks: keeps its priority
    market.apply_message(order("M", 2, volume=40), ORDERS)  # grows: goes to the back
    again = fresh_from_snapshot(make, market, ORDERS)
    assert [key_of(each)[1] for each, _, _ in again.books[SYMBOL].bids.orders] == [1, 3, 2]


@pytest.mark.parametrize("compress", [True, False])
def test_a_refresh_applied_packet_by_packet_replaces_what_was_there(make, market, compress):
    for outgoing in session(5):
        if outgoing.service == ORDERS:
            break
        market.apply(outgoing.packet)
    for number in range(300):
        market.apply_message(order("A", number, 100 + number), ORDERS)
    stale = make()
    stale.apply_message(order("A", 77, 3, symbol_index=5), ORDERS)
    stale.apply_message(FEED.encode_message(140, symbol_index=4, quote_number=1), QUOTES)
    kept = stale.digest(QUOTES)
    cutter = SnapshotCutter(FEED)
    for part in cutter.cut(ORDERS, market.snapshot(ORDERS), 40, 1, 0, compress):
        stale.apply(part)
    assert stale.digest(ORDERS) == market.digest(ORDERS)
    assert stale.digest(QUOTES) == kept, "another service is not concerned"
    assert not stale.problems


# -- books ----------------------------------------------------------------------------------------


@drawn(2)
def test_books_equal_the_generators_own_at_every_moment(make, seed):
    generator = SessionGenerator(FEED, seed, instruments=12)
    market = make()
    shares = [each.symbol for each in generator.instruments if each.kind is Kind.EQUITY]
    compared = 0
    for until in range(0, 180_000_000, 9_000_000):
        for outgoing in generator.step(until):
            market.apply(outgoing.packet)
        if not generator.session.flow.trading:
            continue
        own = make()
        for rows in generator.session.states(ORDERS - SERVICES[0]):
            for row in rows:
                own.apply_message(bytes(row), ORDERS)
        for symbol in shares:
            # Half of the books are kept from the beginning, half are a snapshot's.
            watched = market if symbol % 2 else fresh_from_snapshot(make, market, ORDERS)
            assert queues(watched.books[symbol]) == queues(own.books[symbol]), (seed, until)
            compared += 1
    assert compared > 50
    assert not market.problems


@drawn(2)
def test_books_equal_the_quotes_numbered_the_same(make, seed):
    orders: dict[int, list[Any]] = defaultdict(list)
    quotes: dict[tuple[int, int], list[Any]] = defaultdict(list)
    # The first of each symbol are those sent at the opening: all of them have the number 0.
    for outgoing in session(seed, ms=150):
        for raw, record in _messages(outgoing.packet):
            if outgoing.service == ORDERS and raw[2:4] == UPDATE:
                orders[record.symbol_index].append((record.source_seq_num, raw))
            elif outgoing.service == QUOTES:
                quotes[record.symbol_index, record.source_seq_num].append(record)
    compared = 0
    for symbol, updates in orders.items():
        market = make()
        for index, (number, message) in enumerate(updates):
            market.apply_message(message, ORDERS)
            if index + 1 < len(updates) and updates[index + 1][0] == number:
                continue
            for quote in quotes.get((symbol, number), ()):
                same_levels(market.books[symbol], quote)
                compared += 1
        assert not market.problems
    assert compared > 1000


def _messages(data: bytes) -> list[tuple[bytes, Any]]:
    decoded = FEED.decode_packet(data)
    found, at = [], 16
    for record in decoded.messages:
        size = int.from_bytes(data[at : at + 2], "big") + 2
        found.append((data[at : at + size], record))
        at += size
    return found


def test_a_book_is_a_view_that_stays_through_a_clear(market):
    market.apply_message(order("A", 1), ORDERS)
    book = market.books[SYMBOL]
    assert book.bids.top(1) == [(100 * UNIT, 10, 1)]
    market.clear(ORDERS)
    assert not book.bids.orders
    market.apply_message(order("A", 2, side="S"), ORDERS)
    assert book.asks.top(1) == [(100 * UNIT, 10, 1)]
    market.apply_message(order("F", 0), ORDERS)
    assert not book.asks.orders


def test_the_books_of_a_market_are_a_mapping(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 1, symbol_index=7), ORDERS)
    assert list(market.books) == [str(SYMBOL), "7"]
    assert len(market.books) == 2
    assert isinstance(market.books[7], BookView)
    with pytest.raises(KeyError):
        market.books[8]


def test_an_order_is_known_by_its_date_too(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 1, order_date=DAY - 1), ORDERS)
    assert keys(market) == {(DAY, 1), (DAY - 1, 1)}
    assert not market.problems


# -- orders sent again ----------------------------------------------------------------------------


def test_a_retransmission_of_orders_replaces_the_books_it_names(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 2), ORDERS)
    market.apply_message(order("A", 1, symbol_index=7), ORDERS)
    market.apply(packet(delimiter("S"), order("Y", 2), order("Y", 3), delimiter("E")))
    assert keys(market, SYMBOL) == {(DAY, 2), (DAY, 3)}
    assert keys(market, 7) == {(DAY, 1)}
    assert not market.problems


def test_a_snapshot_in_the_midst_of_a_retransmission_of_orders_goes_on_like_the_stream(
    make, market
):
    def run(market: Any, *messages: bytes) -> None:
        for message in messages:
            market.apply_message(message, ORDERS)

    run(market, order("A", 1), order("A", 1, symbol_index=7), order("A", 2, symbol_index=8))
    run(market, delimiter("S"), order("Y", 5))
    again = fresh_from_snapshot(make, market, ORDERS)
    assert again.digest(ORDERS) == market.digest(ORDERS)
    for one in (market, again):
        run(one, order("Y", 6), order("Y", 9, symbol_index=7), delimiter("E"), order("Y", 4))
        assert keys(one, SYMBOL) == {(DAY, 5), (DAY, 6), (DAY, 4)}
        assert keys(one, 7) == {(DAY, 9)}
        assert keys(one, 8) == {(DAY, 2)}
    assert again.digest(ORDERS) == market.digest(ORDERS)
    run(market, delimiter("S"))
    assert again.digest(ORDERS) != market.digest(ORDERS)
    nearly = fresh_from_snapshot(make, market, ORDERS)
    assert nearly.digest(ORDERS) == market.digest(ORDERS)


# -- what else is kept ----------------------------------------------------------------------------


def test_views_show_the_latest_of_every_kind_by_symbol(market):
    for outgoing in session(2):
        market.apply(outgoing.packet)
    reference, quotes = market.latest("reference_data"), market.latest("quote")
    assert len(reference) == len(market.names) == 20
    symbol, name = next(iter(market.names.items()))
    assert re.fullmatch(r"\w+\.X\w+", name)
    assert reference[name] == reference[symbol]
    assert reference[name].symbol_index == symbol
    quoted = next(iter(quotes))
    assert set(quotes[quoted]) <= set(range(1, 11))
    assert quotes[quoted][1].layout.code == 140
    assert set(market.latest("instrument_state")) <= set(market.names.values())
    assert all(trade.layout.code == 240 for trade in market.latest("trade").values())
    for each, trade in market.latest("trade").items():
        price = trade.price.raw * UNIT // 10**trade.price.scale
        assert market.trades[each][:2] == (price, trade.volume)
    indices = market.latest("index_level")
    assert len(indices) > 0
    assert {value.layout.code for each in indices.values() for value in each.values()} == {546}
    assert set(market.latest("closing_price")) == set(market.latest(247)) != set()
    for view in (market.trades, quotes, reference):
        for absent in (1, "NONE", None):
            with pytest.raises(KeyError):
                view[absent]
    with pytest.raises(UsageError):
        market.latest("poem")


def test_of_a_type_with_parts_every_part_is_kept(make, market):
    for group in ("A1", "B2", "A1"):
        message = FEED.encode_message(516, instrument_group_code=group, class_state=group)
        market.apply_message(message, 101)
    for isin in ("FR0001", "FR0002"):
        market.apply_message(FEED.encode_message(548, symbol_index=9, isin=isin), 107)
    assert set(market.latest("class_state")[None]) == {("A1", ""), ("B2", "")}
    assert list(market.latest("class_state")) == [None]
    assert [part.isin for part in market.latest(548)[9].values()] == ["FR0001", "FR0002"]
    for service in (101, 107):
        again = fresh_from_snapshot(make, market, service)
        assert again.digest(service) == market.digest(service)


def test_a_nameless_reference_message_names_nothing(market):
    market.apply_message(FEED.encode_message(553, symbol_index=9), 101)
    assert 9 not in market.names


def test_reference_data_that_begins_again_has_not_ended(make, market):
    start, end = FEED.encode_message(550, indicator="S"), FEED.encode_message(551, indicator="E")
    market.apply(packet(start, end, service=101))
    whole = market.digest(101)
    market.apply(packet(start, service=101))
    assert market.digest(101) != whole
    again = fresh_from_snapshot(make, market, 101)
    assert again.digest(101) == market.digest(101)
    market.apply(packet(end, service=101))
    assert market.digest(101) == whole
    assert not market.problems


# -- resets, clearing -----------------------------------------------------------------------------


def test_a_sequence_reset_clears_its_service_alone_unless_told_otherwise(make):
    reset = FEED.encode_packet(kind="reset", sequence=1, service=ORDERS)
    for clears in (True, False):
        market = make(clears_on_reset=clears)
        market.apply(packet(order("A", 1)))
        market.apply(packet(FEED.encode_message(140, symbol_index=4), service=QUOTES))
        market.apply(reset)
        market.update(quality("reset"))
        assert (market.digest(ORDERS) == make().digest(ORDERS)) == clears
        assert market.digest(QUOTES) != make().digest(QUOTES)


def test_heartbeats_and_control_packets_change_nothing(market):
    before = market.digest(ORDERS)
    market.apply(FEED.encode_packet(kind="heartbeat", service=ORDERS))
    body = FEED.encode_control(22, source_id="ME")
    market.apply(FEED.encode_packet(kind="control", packet_type=22, service=ORDERS, body=body))
    assert market.digest(ORDERS) == before
    assert not market.problems


# -- what a subscriber hands over -----------------------------------------------------------------


def quality(reason: Any, service: int = ORDERS, **more: Any) -> Any:
    return SimpleNamespace(
        content="quality", body=b"{}", service=service, quality={"reason": reason, **more}
    )


def given(content: str, body: bytes, service: int) -> Any:
    return SimpleNamespace(content=content, body=body, service=service, quality=None)


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_every_grain_of_a_subscription_leads_to_the_same_state(make, grain):
    expected, market = make(), make()
    by_service: dict[int, list[bytes]] = defaultdict(list)
    for outgoing in session(1):
        if outgoing.messages:
            expected.apply(outgoing.packet)
            by_service[outgoing.service].append(outgoing.packet)
    for service, packets in by_service.items():
        if grain == "message":
            packets = [message for data in packets for message, _ in _messages(data)]
        elif grain == "batch":
            packets = [b"".join(packets[at : at + 7]) for at in range(0, len(packets), 7)]
        for body in packets:
            market.update(given(grain, body, service))
    assert digests(market) == digests(expected)
    assert not market.problems


def test_a_snapshot_block_replaces_the_service(make, market):
    market.apply(packet(order("A", 1)))
    before = market.digest(ORDERS)
    market.update(quality("gap"))
    market.update(quality("snapshot-begin", service=QUOTES))
    assert market.digest(ORDERS) == before
    market.update(quality("snapshot-begin", last=4))
    assert market.digest(ORDERS) == make().digest(ORDERS)
    market.update(given("packet", packet(delimiter("S"), order("Y", 2), delimiter("E")), ORDERS))
    market.update(quality("snapshot-end"))
    assert keys(market) == {(DAY, 2)}
    assert not market.problems


def test_books_told_anew_are_no_part_of_orders_that_the_stream_tells_anew(market):
    for message in (order("A", 1), order("A", 1, symbol_index=7), delimiter("S"), order("Y", 5)):
        market.apply_message(message, ORDERS)
    market.update(quality("books-begin", symbols=[SYMBOL, 7], through=[7]))
    for message in (order("Y", 8), order("Y", 9), order("Y", 4, symbol_index=7)):
        market.apply_message(message, ORDERS)
    market.update(quality("books-end"))
    assert keys(market) == {(DAY, 8), (DAY, 9)}
    for message in (order("Y", 6), order("Y", 3, symbol_index=7), delimiter("E")):
        market.apply_message(message, ORDERS)
    assert keys(market) == {(DAY, 8), (DAY, 9), (DAY, 6)}, "it had been through"
    assert keys(market, 7) == {(DAY, 4), (DAY, 3)}, "so it had, as the gateway said"
    assert not market.problems


def test_odd_quality_messages_are_counted_and_change_nothing(market):
    market.apply_message(order("A", 1), ORDERS)
    before = market.digest(ORDERS)
    for number, odd in enumerate((7, None, [["x"]], [{}], {"a": 1}, [None]), 1):
        market.update(quality("books-begin", symbols=odd))
        market.update(quality("books-end"))
        assert market.problems["bad_message"] == number
    market.update(quality("books-begin", symbols=["9" * 40, "nothing"], through=[2**70]))
    market.update(quality(["reset"]))
    assert market.digest(ORDERS) == before


def test_books_told_anew_twice_without_an_end_between_are_told_once(market):
    for message in (order("A", 1), delimiter("S"), order("Y", 5)):
        market.apply_message(message, ORDERS)
    for through in ([], [SYMBOL]):
        market.update(quality("books-begin", symbols=[SYMBOL], through=through))
        market.apply_message(order("Y", 8), ORDERS)
    market.update(quality("books-end"))
    market.apply_message(order("Y", 6), ORDERS)
    assert keys(market) == {(DAY, 8), (DAY, 6)}


def test_records_and_packets_of_one_market_do_not_mix_orders_messages(make, market):
    """A row of the book that a message was kept for goes to an order that came by a record."""
    market.apply_message(order("A", 1, volume=10, order_origin="C"), ORDERS)
    market.apply_message(order("D", 1), ORDERS)
    events = Records(FEED, "mbo")
    message = order("A", 2, volume=7)
    events.apply_message(message, 0, len(message), 230, 0, 0, 1, ORDERS)
    market.update(
        SimpleNamespace(
            content="records", service=ORDERS, records=lambda: events.of("mbo"), symbols={}
        )
    )
    (told,) = map(FEED.decode_message, market.book_messages(SYMBOL))
    assert (told.order_id, told.volume, told.order_origin) == (2, 7, "")


@pytest.mark.parametrize("live", ["A", "M", "D", "trade"])
def test_live_events_between_delimiters_empty_no_book(market, live):
    """Only an order that is sent again begins its book anew."""
    for message in (order("A", 1, symbol_index=7), order("A", 2, symbol_index=7), delimiter("S")):
        market.apply_message(message, ORDERS)
    market.apply_message(order("Y", 5), ORDERS)
    if live == "trade":
        market.apply_message(FEED.encode_message(240, symbol_index=7, price=5), ORDERS)
    else:
        market.apply_message(order(live, 9 if live == "A" else 1, symbol_index=7), ORDERS)
    market.apply_message(delimiter("E"), ORDERS)
    there = {"A": {1, 2, 9}, "M": {1, 2}, "D": {2}, "trade": {1, 2}}[live]
    assert keys(market, 7) == {(DAY, number) for number in there}
    assert not market.problems


def test_the_end_of_a_refresh_leaves_orders_that_the_stream_is_telling_anew(make, market):
    for message in (order("A", 1), order("A", 1, symbol_index=7), delimiter("S"), order("Y", 5)):
        market.apply_message(message, ORDERS)
    again = make()
    cutter = SnapshotCutter(FEED)
    for part in cutter.cut(ORDERS, market.snapshot(ORDERS), 40, 1, 0, False):
        again.apply(part)
    assert again.digest(ORDERS) == market.digest(ORDERS)
    for one in (market, again):
        for message in (order("Y", 6), order("Y", 9, symbol_index=7), delimiter("E")):
            one.apply_message(message, ORDERS)
        assert keys(one) == {(DAY, 5), (DAY, 6)}
        assert keys(one, 7) == {(DAY, 9)}


def test_a_clear_takes_trades_and_states_with_it(market):
    for message in (
        FEED.encode_message(240, symbol_index=7, price=5),
        FEED.encode_message(505, symbol_index=7, instrument_state="H"),
    ):
        market.apply_message(message, 102)
        market.apply_message(message, 103)
    market.apply_message(FEED.encode_message(580), 102)
    assert (set(market.states), set(market.trades)) == ({"7"}, {"7"}), "of 103"
    market.apply(FEED.encode_packet(kind="reset", sequence=1, service=103))
    assert (dict(market.states), dict(market.trades)) == ({}, {})


def test_what_trades_after_a_clear_is_found_by_its_name(market):
    for symbol in (7, 8):
        market.clear(102)
        market.apply_message(FEED.encode_message(240, symbol_index=symbol, price=5), 102)
        assert list(market.trades) == [str(symbol)]


def test_a_clear_of_no_symbol_clears_none(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("F", 0, symbol_index=0), ORDERS)
    assert keys(market) == {(DAY, 1)}
    assert market.problems == {"unnamed": 1}


@pytest.mark.parametrize("action", ["A", "M"])
def test_a_change_that_the_book_refuses_leaves_the_orders_message(make, market, action):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order(action, 1, price_scale_code=40), ORDERS)
    again = fresh_from_snapshot(make, market, ORDERS)
    assert again.digest(ORDERS) == market.digest(ORDERS)
    assert keys(again) == {(DAY, 1)}


def test_a_symbol_may_move_to_another_service_when_its_book_is_empty(market):
    market.apply_message(order("A", 1), ORDERS)
    market.clear(ORDERS)
    market.apply_message(order("A", 5), 105)
    assert (len(market.snapshot(ORDERS)), len(market.snapshot(105))) == (0, 3)
    market.update(quality("snapshot-begin", service=105))
    assert keys(market) == set()


def test_a_name_that_is_told_anew_takes_the_old_ones_place(market):
    for text in ("OLD", "NEW"):
        message = FEED.encode_message(553, symbol_index=SYMBOL, mnemo=text, mic="XPAR")
        market.apply_message(message, 101)
        market.apply_message(order("A", 1), ORDERS)
        assert list(market.books) == [f"{text}.XPAR"]
        assert market.books[f"{text}.XPAR"].bids.orders


def test_messages_of_books_are_none_of_the_latest(market):
    with pytest.raises(UsageError, match="change books"):
        market.latest("order_update")


def test_trades_of_more_instruments_than_the_bound_are_counted(make):
    market = make(messages_max=2)
    for symbol in (1, 2, 3):
        market.apply_message(FEED.encode_message(240, symbol_index=symbol, price=5), 102)
    assert len(market.trades) == 2
    assert market.problems == {"refused": 2}, "the trade, and its message"


def test_a_message_of_unknown_content_is_left_alone(market):
    market.update(given("poem", b"roses", ORDERS))
    assert not market.problems


# -- what does not fit is counted -----------------------------------------------------------------


def test_every_problem_is_counted_by_name_and_nothing_is_raised(market):
    ask, bid = order("A", 1, side="2"), order("A", 2)
    for message, problem in [
        (order("M", 9), "unknown_orders"),
        (order("D", 99), "unknown_orders"),
        (bid, None),
        (bid, None),
        (ask, None),
        (order("M", 1, side="1"), None),
        (order("A", 3, volume=0), "odd"),
        (order("A", 3, price_scale_code=40), "unscaled"),
        (order("A", 4, side="9"), "sideless"),
        (order("F", 0, symbol_index=50), None),
        (delimiter("E"), None),
        (delimiter("?"), None),
        (FEED.encode_message(551), None),
        (FEED.encode_message(581), None),
        (b"\0\x06\x27\x0f1234", "unknown_types"),
        (b"\0\x06\0\x8c1234", "short"),
        (b"\0\x06\0\xe61234", "short"),
        (b"\0\x09\0\x8c1234", "bad_message"),
        (b"\0", "bad_message"),
        (b"", "bad_message"),
    ]:
        before = Counter(market.problems)
        market.apply_message(message, ORDERS)
        assert set(market.problems - before) - {"odd"} == {problem} - {None, "odd"}, message
        assert problem != "odd" or market.problems["odd"] > before["odd"], message
    for data in (b"", b"short", packet(ask)[:-1], packet(ask, count=2), packet(b"xy", flags=17)):
        before = market.problems["bad_packet"]
        market.apply(data)
        assert market.problems["bad_packet"] == before + 1
    before = market.problems["bad_packet"]
    market.update(given("batch", packet(ask) + b"\0\x01", ORDERS))
    market.update(given("batch", packet(ask) + packet(ask)[:-4], ORDERS))
    assert market.problems["bad_packet"] == before
    assert market.problems["bad_message"] == 5
    market.update(SimpleNamespace(content="quality", body=b"", quality=["?"], service=ORDERS))
    assert market.problems["bad_message"] == 6
    assert keys(market) == {(DAY, 1), (DAY, 2), (DAY, 9)}


def test_a_full_market_keeps_what_it_has_and_counts_the_rest(make):
    market = make(orders_max=2, messages_max=1)
    for number in range(4):
        market.apply_message(order("A", number + 1), ORDERS)
    assert market.problems == {"refused": 2}
    market.apply_message(order("M", 1, volume=1), ORDERS)
    market.apply_message(order("A", 1, symbol_index=5), ORDERS)
    assert market.problems == {"refused": 3}
    market.apply_message(FEED.encode_message(140, symbol_index=4, quote_number=1), ORDERS)
    market.apply_message(FEED.encode_message(505, symbol_index=4), ORDERS)
    market.apply_message(FEED.encode_message(140, symbol_index=4, quote_number=1), ORDERS)
    assert market.problems == {"refused": 4}
    market.apply_message(order("D", 1), ORDERS)
    market.apply_message(order("A", 9), ORDERS)
    assert keys(market) == {(DAY, 2), (DAY, 9)}
    market.clear(ORDERS)
    market.apply_message(FEED.encode_message(505, symbol_index=4), ORDERS)
    assert market.problems == {"refused": 4}


def test_only_problems_that_are_documented_are_counted(market):
    feed_problems = set(market.problems)
    for data in (b"", packet(order("A", 1, volume=0)), packet(b"\0\x06\x27\x0f1234")):
        market.apply(data)
    market.apply_message(b"")
    assert feed_problems | set(market.problems) <= set(PROBLEMS)
    assert len(market.problems) == 4


@drawn(2)
def test_mangled_streams_are_survived_and_both_twins_see_the_same(seed):
    draw = random.Random(seed)
    compiled, interpreted = (twin() for twin in TWINS.values())
    for outgoing in session(seed):
        data = bytearray(outgoing.packet)
        fate = draw.random()
        if fate < 0.1:
            continue
        for _ in range(draw.randrange(4) if fate < 0.5 else 0):
            data[draw.randrange(16, len(data)) if len(data) > 16 else 0] = draw.choice(b"\0\1AMDFY")
        if fate > 0.97:
            del data[draw.randrange(len(data)) :]
        compiled.apply(bytes(data))
        interpreted.apply(bytes(data))
    assert compiled.problems == interpreted.problems
    assert compiled.problems["unknown_orders"] > 0
    for service in SERVICES:
        assert compiled.digest(service) == interpreted.digest(service), (seed, service)
        assert compiled.snapshot(service) == interpreted.snapshot(service)
        again = fresh_from_snapshot(TWINS["compiled"], compiled, service)
        assert again.digest(service) == compiled.digest(service), (seed, service)


def test_messages_of_all_types_at_once_survive_a_snapshot_through_packets(make, market):
    room = 1384
    for code, ways in FEED.layouts.items():
        for layout in ways:
            market.apply_message(FEED.encode_message(layout.name), 101)
        assert code in FEED.layouts
    again = make()
    for messages in pack_messages(market.snapshot(101), room):
        again.apply(packet(*messages, service=101))
    assert again.digest(101) == market.digest(101)


def test_a_little_endian_feed_is_kept_alike(tmp_path):
    text = built_in("euronext-utp-md", 'byte_order = "big"', 'byte_order = "little"')
    feed = described(tmp_path, text)
    market, again = (Market(feed, keeps_messages=True) for _ in range(2))
    for number in (1, 2):
        fields = {"symbol_index": SYMBOL, "action_type": "A", "order_id": number, "side": "1"}
        message = feed.encode_message(230, price=100 + number, volume=7, order_date=DAY, **fields)
        market.apply(feed.encode_packet(messages=[message], service=ORDERS))
    market.apply_message(feed.encode_message(240, symbol_index=SYMBOL, price=5), ORDERS)
    assert market.books[SYMBOL].bids.top(1) == [(102 * UNIT, 7, 1)]
    assert market.latest("trade")[SYMBOL].price.raw == 5
    again.apply(feed.encode_packet(messages=market.snapshot(ORDERS), service=ORDERS))
    assert again.digest(ORDERS) == market.digest(ORDERS)
    assert keys(again) == {(DAY, 1), (DAY, 2)}


def test_the_package_offers_the_market():
    assert feedhandler.Market is Market
    assert feedhandler.Market().feed.name == "euronext-utp-md"
