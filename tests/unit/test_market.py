"""A market's state: what it keeps, that a snapshot says all of it, and that no stream upsets it.

Random tests are parametrized by seed: `pytest tests/unit/test_market.py -k "cut and 3"`.
"""

import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import pack_messages
from feedhandler.codecs.scanner import NO_SYMBOL
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.instruments import Kind
from feedhandler.replay.generating.packets import ORDERS, QUOTES, SERVICES
from feedhandler.replay.state.book import BUY, SELL, Book
from feedhandler.replay.state.market_problems import PROBLEMS
from feedhandler.retrans.snapshots import SnapshotCutter
from tests.support.market import DAY, FEED, SYMBOL, TWINS, order, packet, queues, session
from tests.support.seeds import drawn

#: The type of order updates, as it goes on the wire.
UPDATE = (230).to_bytes(2, "big")


@pytest.fixture
def make():
    """Makes markets."""
    return TWINS["compiled"].Market


@pytest.fixture
def market(make):
    return make(FEED)


def delimiter(indicator: str) -> bytes:
    return FEED.encode_message(231, retransmission_indicator=indicator)


def digests(market: Any) -> dict[int, str]:
    return {service: market.digest(service) for service in SERVICES}


def fresh_from_snapshot(make: Any, market: Any, service: int) -> Any:
    fresh = make(FEED)
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
    market = make(FEED)
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
        for symbol, book in again.books.items():
            assert queues(book) == queues(market.book(symbol)), (seed, cut, end, symbol)
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
        market = make(FEED)
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
        market = make(FEED)
        market.apply(packet(*messages))
        seen.add(market.digest(ORDERS))
    assert len(seen) == 1


def test_both_twins_agree_on_every_state():
    compiled, interpreted = (twin.Market(FEED) for twin in TWINS.values())
    for number, outgoing in enumerate(session(11)):
        compiled.apply(outgoing.packet)
        interpreted.apply(outgoing.packet)
        if number % 50 == 0:
            assert digests(compiled) == digests(interpreted)
    for service in SERVICES:
        assert compiled.snapshot(service) == interpreted.snapshot(service)


def test_a_snapshot_begins_with_reference_data_between_its_marks(market):
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
    level = again.book(SYMBOL).bids.best()
    assert [key[1] for key in level.orders] == [1, 3, 2]


@pytest.mark.parametrize("compress", [True, False])
def test_a_refresh_applied_packet_by_packet_replaces_what_was_there(make, market, compress):
    for outgoing in session(5):
        if outgoing.service == ORDERS:
            break
        market.apply(outgoing.packet)
    for number in range(300):
        market.apply_message(order("A", number, 100 + number), ORDERS)
    stale = make(FEED)
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
    market = make(FEED)
    shares = [each.symbol for each in generator.instruments if each.kind is Kind.EQUITY]
    compared = 0
    for until in range(0, 180_000_000, 9_000_000):
        for outgoing in generator.step(until):
            market.apply(outgoing.packet)
        if not generator.session.flow.trading:
            continue
        own = make(FEED)
        for rows in generator.session.states(ORDERS - SERVICES[0]):
            for row in rows:
                own.apply_message(bytes(row), ORDERS)
        for symbol in shares:
            # Half of the books are watched from the beginning, half built just now.
            watched = market if symbol % 2 else fresh_from_snapshot(make, market, ORDERS)
            assert queues(watched.book(symbol)) == queues(own.book(symbol)), (seed, until)
            compared += 1
    assert compared > 50
    assert not market.problems


@drawn(2)
def test_books_equal_the_quotes_numbered_the_same(make, seed):
    orders: dict[int, list[Any]] = defaultdict(list)
    quotes: dict[tuple[int, int], list[Any]] = defaultdict(list)
    # The first of each symbol are those sent at the opening: all of them have the number 0.
    for outgoing in session(seed):
        for raw, record in _messages(outgoing.packet):
            if outgoing.service == ORDERS and raw[2:4] == UPDATE:
                orders[record.symbol_index].append((record.source_seq_num, raw))
            elif outgoing.service == QUOTES:
                quotes[record.symbol_index, record.source_seq_num].append(record)
    compared = 0
    for symbol, updates in orders.items():
        market = make(FEED)
        book = market.book(symbol)
        for index, (number, message) in enumerate(updates):
            market.apply_message(message, ORDERS)
            if index + 1 < len(updates) and updates[index + 1][0] == number:
                continue
            for quote in quotes.get((symbol, number), ()):
                assert book.row(BUY, quote.quote_number) == _row(quote, "bid"), (symbol, number)
                assert book.row(SELL, quote.quote_number) == _row(quote, "ask"), (symbol, number)
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


def _row(quote: Any, side: str) -> tuple[int, int, int]:
    return (
        getattr(quote, f"{side}_price").raw,
        getattr(quote, f"{side}_size"),
        getattr(quote, f"number_{side}_orders"),
    )


def test_a_book_can_be_watched_before_its_first_order_and_through_a_clear(market):
    book = market.book(SYMBOL)
    market.apply_message(order("A", 1), ORDERS)
    assert book.row(BUY, 1) == (100, 10, 1)
    market.clear(ORDERS)
    assert not book.by_key
    market.apply_message(order("A", 2, side="S"), ORDERS)
    assert book.row(SELL, 1) == (100, 10, 1)
    assert market.books[SYMBOL] is book
    market.apply_message(order("F", 0), ORDERS)
    assert not book.by_key


def test_the_books_of_a_market_are_a_mapping(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 1, symbol_index=7), ORDERS)
    assert list(market.books) == [SYMBOL, 7]
    assert len(market.books) == 2
    assert isinstance(market.books[7], Book)
    with pytest.raises(KeyError):
        market.books[8]


def test_an_order_is_known_by_its_date_too(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 1, order_date=DAY - 1), ORDERS)
    assert set(market.book(SYMBOL).by_key) == {(DAY, 1), (DAY - 1, 1)}
    assert not market.problems


# -- orders sent again ----------------------------------------------------------------------------


def test_a_retransmission_of_orders_replaces_the_books_it_names(market):
    market.apply_message(order("A", 1), ORDERS)
    market.apply_message(order("A", 2), ORDERS)
    market.apply_message(order("A", 1, symbol_index=7), ORDERS)
    market.apply(packet(delimiter("S"), order("Y", 2), order("Y", 3), delimiter("E")))
    assert set(market.book(SYMBOL).by_key) == {(DAY, 2), (DAY, 3)}
    assert set(market.book(7).by_key) == {(DAY, 1)}
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
        assert set(one.book(SYMBOL).by_key) == {(DAY, 5), (DAY, 6), (DAY, 4)}
        assert set(one.book(7).by_key) == {(DAY, 9)}
        assert set(one.book(8).by_key) == {(DAY, 2)}
    assert again.digest(ORDERS) == market.digest(ORDERS)
    run(market, delimiter("S"))
    assert again.digest(ORDERS) != market.digest(ORDERS)
    nearly = fresh_from_snapshot(make, market, ORDERS)
    assert nearly.digest(ORDERS) == market.digest(ORDERS)


# -- what else is kept ----------------------------------------------------------------------------


def test_views_show_the_latest_of_every_kind_by_symbol(market):
    for outgoing in session(2):
        market.apply(outgoing.packet)
    assert len(market.reference) == len(market.names) == 20
    symbol = next(iter(market.states))
    assert market.states[symbol].layout.code == 505
    assert re.fullmatch(r"\w+\.X\w+", market.names[symbol])
    assert market.reference[symbol].symbol_index == symbol
    assert set(market.quotes[symbol]) <= set(range(1, 11))
    assert market.quotes[symbol][1].layout.code == 140
    assert all(trade.layout.code == 240 for trade in market.trades.values())
    assert len(market.indices) > 0
    assert all(value.layout.code == 546 for value in market.indices.values())
    assert set(market.latest("closing_price")) == set(market.latest(247)) != set()
    for view in (market.trades, market.names, market.quotes):
        with pytest.raises(KeyError):
            view[1]


def test_of_a_type_with_parts_every_part_is_kept(make, market):
    for group in ("A1", "B2", "A1"):
        message = FEED.encode_message(516, instrument_group_code=group, class_state=group)
        market.apply_message(message, 101)
    for isin in ("FR0001", "FR0002"):
        market.apply_message(FEED.encode_message(548, symbol_index=9, isin=isin), 107)
    assert len(market.latest("class_state")[NO_SYMBOL]) == 2
    assert [part.isin for part in market.latest(548)[9].values()] == ["FR0001", "FR0002"]
    for service in (101, 107):
        again = fresh_from_snapshot(make, market, service)
        assert again.digest(service) == market.digest(service)


def test_a_nameless_reference_message_names_nothing(market):
    market.apply_message(FEED.encode_message(553, symbol_index=9), 101)
    with pytest.raises(KeyError):
        market.names[9]


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
        market = make(FEED, clears_on_reset=clears)
        market.apply(packet(order("A", 1)))
        market.apply(packet(FEED.encode_message(140, symbol_index=4), service=QUOTES))
        market.apply(reset)
        market.update(quality("reset"))
        assert (market.digest(ORDERS) == make(FEED).digest(ORDERS)) == clears
        assert market.digest(QUOTES) != make(FEED).digest(QUOTES)


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
    expected, market = make(FEED), make(FEED)
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


def test_a_snapshot_block_replaces_the_service_and_its_580_does_not(make, market):
    market.apply(packet(order("A", 1)))
    before = market.digest(ORDERS)
    market.update(given("packet", packet(FEED.encode_message(580, last_seq_num=4)), ORDERS))
    assert market.digest(ORDERS) == before, "only the quality message begins a snapshot"
    market.update(quality("gap"))
    market.update(quality("snapshot-begin", service=QUOTES))
    assert market.digest(ORDERS) == before
    market.update(quality("snapshot-begin", last=4))
    assert market.digest(ORDERS) == make(FEED).digest(ORDERS)
    market.update(given("packet", packet(delimiter("S"), order("Y", 2), delimiter("E")), ORDERS))
    market.update(quality("snapshot-end"))
    assert set(market.book(SYMBOL).by_key) == {(DAY, 2)}
    assert not market.problems


def test_a_message_of_unknown_content_is_left_alone(market):
    market.update(given("poem", b"roses", ORDERS))
    assert not market.problems


# -- what does not fit is counted -----------------------------------------------------------------


def test_every_problem_is_counted_by_name_and_nothing_is_raised(market):
    ask, bid = order("A", 1, side="2"), order("A", 2)
    for message, problem in [
        (order("M", 9), "unknown_order"),
        (order("D", 99), "unknown_order"),
        (bid, None),
        (bid, "known_order"),
        (ask, None),
        (order("M", 1, side="1"), "changed_side"),
        (order("A", 3, volume=0), "no_volume"),
        (order("M", 2, volume=0), "no_volume"),
        (order("A", 3, side="9"), "odd_side"),
        (order("Q", 3), "odd_action"),
        (order("F", 0, symbol_index=50), None),
        (delimiter("E"), "odd_delimiter"),
        (delimiter("S"), None),
        (delimiter("?"), "odd_delimiter"),
        (delimiter("E"), None),
        (FEED.encode_message(551), "end_without_start"),
        (FEED.encode_message(581), None),
        (b"\0\x06\x27\x0f1234", "unknown_type"),
        (b"\0\x06\0\x8c1234", "short_message"),
        (b"\0\x06\0\xe61234", "short_message"),
        (b"\0\x09\0\x8c1234", "bad_message"),
        (b"\0", "bad_message"),
        (b"", "bad_message"),
    ]:
        before = Counter(market.problems)
        market.apply_message(message, ORDERS)
        assert list(market.problems - before) == ([problem] if problem else []), message
    for data in (b"", b"short", packet(ask)[:-1], packet(ask, count=2), packet(b"xy", flags=17)):
        before = market.problems["bad_packet"]
        market.apply(data)
        assert market.problems["bad_packet"] == before + 1
    before = market.problems["bad_packet"]
    market.update(given("batch", packet(ask) + b"\0\x01", ORDERS))
    market.update(given("batch", packet(ask) + packet(ask)[:-4], ORDERS))
    assert market.problems["bad_packet"] == before + 2
    market.update(SimpleNamespace(content="quality", quality=[], service=ORDERS))
    assert set(market.book(SYMBOL).by_key) == {(DAY, 1), (DAY, 2), (DAY, 9)}


def test_a_full_market_keeps_what_it_has_and_counts_the_rest(make):
    market = make(FEED, entries_max=3)
    for number in range(4):  # the symbol's own entry is the third
        market.apply_message(order("A", number), ORDERS)
    assert market.problems == {"full": 2}
    market.apply_message(order("M", 0, volume=1), ORDERS)
    market.apply_message(order("A", 1, symbol_index=5), ORDERS)
    market.apply_message(FEED.encode_message(140, symbol_index=4, quote_number=1), ORDERS)
    market.apply_message(FEED.encode_message(505, symbol_index=4), ORDERS)
    assert market.problems == {"full": 5}
    market.apply_message(order("D", 0), ORDERS)
    market.apply_message(FEED.encode_message(505, symbol_index=4), ORDERS)
    assert market.problems == {"full": 5}
    market.clear(ORDERS)
    market.apply_message(order("A", 1, symbol_index=5), ORDERS)
    assert market.problems == {"full": 5}


def test_every_problem_that_the_market_counts_is_documented():
    source = Path(TWINS["interpreted"].__file__).read_text()
    counted = set(re.findall(r'self\.problems\["(\w+)"', source)) | {"odd_side"}
    assert counted == set(PROBLEMS)


@drawn(2)
def test_mangled_streams_are_survived_and_both_twins_see_the_same(seed):
    draw = random.Random(seed)
    compiled, interpreted = (twin.Market(FEED) for twin in TWINS.values())
    watched = [10_000 + draw.randrange(24) for _ in range(4)]
    for market in (compiled, interpreted):
        for symbol in watched:
            market.book(symbol)
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
    assert compiled.problems["unknown_order"] > 0
    for service in SERVICES:
        assert compiled.digest(service) == interpreted.digest(service), (seed, service)
        again = fresh_from_snapshot(TWINS["compiled"].Market, compiled, service)
        assert again.digest(service) == compiled.digest(service), (seed, service)
    for symbol in watched:
        again = fresh_from_snapshot(TWINS["compiled"].Market, compiled, ORDERS)
        assert queues(compiled.book(symbol)) == queues(again.book(symbol)), (seed, symbol)


def test_messages_of_all_types_at_once_survive_a_snapshot_through_packets(make, market):
    room = 1384
    for code, ways in FEED.layouts.items():
        for layout in ways:
            market.apply_message(FEED.encode_message(layout.name), 101)
        assert code in FEED.layouts
    again = make(FEED)
    for messages in pack_messages(market.snapshot(101), room):
        again.apply(packet(*messages, service=101))
    assert again.digest(101) == market.digest(101)


def variant(folder: Path, old: str, new: str) -> Any:
    """The feed with something else in its description."""
    source = Path(feedhandler.codecs.__path__[0]) / "feeds" / "euronext-utp-md.toml"
    text = source.read_text()
    assert old in text
    (folder / "variant.toml").write_text(text.replace(old, new))
    return load_feed(folder / "variant.toml")


def test_a_little_endian_feed_is_kept_alike(make, tmp_path):
    feed = variant(tmp_path, 'byte_order = "big"', 'byte_order = "little"')
    market, again = make(feed), make(feed)
    for number in (1, 2):
        fields = {"symbol_index": SYMBOL, "action_type": "A", "order_id": number, "side": "1"}
        message = feed.encode_message(230, price=100 + number, volume=7, order_date=DAY, **fields)
        market.apply(feed.encode_packet(messages=[message], service=ORDERS))
    market.apply_message(feed.encode_message(240, symbol_index=SYMBOL, price=5), ORDERS)
    assert market.book(SYMBOL).row(BUY, 1) == (102, 7, 1)
    assert market.trades[SYMBOL].price.raw == 5
    again.apply(feed.encode_packet(messages=market.snapshot(ORDERS), service=ORDERS))
    assert again.digest(ORDERS) == market.digest(ORDERS)
    assert set(again.book(SYMBOL).by_key) == {(DAY, 1), (DAY, 2)}


def test_feeds_that_a_market_cannot_read_are_refused(make, tmp_path):
    old = '{ at = 48, type = "u32", name = "OrderDate"'
    with pytest.raises(UsageError, match="OrderDate has 2 bytes"):
        make(variant(tmp_path, old, old.replace("u32", "u16")))
    with pytest.raises(UsageError):
        make(load_feed("iex-deep"))


def test_the_package_offers_market_and_book():
    assert type(feedhandler.Market()) is TWINS["compiled"].Market
    assert feedhandler.Book is Book
    assert feedhandler.Market().feed.name == "euronext-utp-md"
