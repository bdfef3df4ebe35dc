"""Books written as messages: of every feed that has them, random books, and what does not fit."""

import random
from typing import Any

import numpy
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import MBO
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.loader import list_feeds
from feedhandler.market.book_messages import BookWriter, KeptBooks
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.venue_market import VenueMarket

#: Decimal places of prices where reference data tells them.
DECIMALS = 4


def writers() -> list[str]:
    """The feeds whose books can be written."""
    found = []
    for name in list_feeds():
        try:
            BookWriter(load_feed(name))
        except UsageError:
            continue
        found.append(name)
    return found


def random_book(chance: random.Random, by_level: bool, count: int = 60) -> DepthBook:
    """Orders, or levels, of instrument 1; prices of two decimals, sizes of two bytes."""
    records = numpy.zeros(count, MBO)
    for place in range(count):
        side = chance.choice([b"B", b"A"])
        middle = 100 if side == b"A" else 80
        record = records[place]
        record["instrument_id"], record["side"], record["action"] = 1, side, b"A"
        record["order_id"] = 0 if by_level else 1000 + place
        record["price"] = (middle * 100 + chance.randrange(40)) * 10_000_000
        record["size"] = chance.randrange(1, 60_000)
    book = DepthBook()
    book.apply(records)
    return book


def test_symbols_are_found_by_their_names() -> None:
    text, index = load_feed("cboe-byx-pitch"), load_feed("memx-memoir")
    for feed, name in ((text, "AB"), (text, "ABCDEFGH"), (index, "77")):
        assert {feed.symbol_name(each) for each in feed.symbols_named(name)} == {name}
    assert text.symbols_named("ABCDEFGHI") == ()
    assert index.symbols_named("AB") == ()


@pytest.mark.parametrize("by_level", [False, True])
def test_entries_are_counted(by_level: bool, seed: int) -> None:
    book = random_book(random.Random(seed), by_level)
    sides = [book.levels(1, side, 1000) for side in (0, 1)]
    levels = sum(map(len, sides))
    assert book.entries_of(1) == (levels if by_level else 60)
    assert book.entries_of(2) == 0


@pytest.mark.parametrize("name", writers())
def test_whoever_applies_a_written_book_has_it(name: str, seed: int) -> None:
    feed = load_feed(name)
    assert feed.book is not None
    writer, market = BookWriter(feed), VenueMarket(feed)
    book = random_book(random.Random(seed), feed.book.by == "level")
    symbol = int.from_bytes(b"AB      ", "big") if feed.symbols_are_text else 1
    if feed.needs_reference_scales:
        code = feed.reference.code
        fields = {"symbol_index": symbol, "price_scale_code": DECIMALS}
        market.apply_message(feed.encode_message(code, **fields))
    for message in writer.messages(book, 1, symbol, decimals=DECIMALS):
        assert feed.decode_message(message)
        market.apply_message(message)
    assert writer.unwritten == 0
    assert not market.problems
    (written,) = market.books.values()
    for side in (0, 1):
        read = (written.bids, written.asks)[side]
        assert read.orders == book.orders(1, side)
        assert read.top(1000) == book.levels(1, side, 1000)


def test_a_message_that_cannot_hold_an_order_is_passed_over_and_none_is_counted() -> None:
    feed = load_feed("cboe-byx-pitch")
    kept = KeptBooks(feed)
    fields = {"order_id": 1, "side_indicator": "B", "price": 10_000}
    for order, symbol, quantity in ((1, "AB", 5), (2, "ABCDEFGH", 100_000)):
        fields.update(order_id=order, symbol_extended=symbol, quantity=quantity)
        kept.apply_message(feed.encode_message("add_order_expanded", **fields), 1)
    told = [feed.decode_message(message) for message in kept.all_messages(1)]
    assert [type(each).__name__ for each in told] == ["AddOrderLong", "AddOrderExpanded"]
    assert (told[0].symbol, told[1].symbol_extended) == ("AB", "ABCDEFGH")
    book = DepthBook()
    book.apply(_fine_price())
    writer = BookWriter(feed)
    assert writer.messages(book, 1, int.from_bytes(b"AB      ", "big")) == []
    assert writer.unwritten == 1


def _fine_price() -> Any:
    """An order whose price has more decimals than PITCH's messages."""
    record = numpy.zeros(1, MBO)
    record["instrument_id"], record["side"], record["action"] = 1, b"B", b"A"
    record["order_id"], record["price"], record["size"] = 1, 1, 1
    return record


def test_the_symbols_name_and_the_latest_time_are_told_where_the_message_has_their_fields() -> None:
    feed = load_feed("nasdaq-totalview-itch")
    kept = KeptBooks(feed)
    kept.apply_message(feed.encode_message("stock_directory", stock_locate=5, stock="ZVZZT"), 1)
    kept.apply_message(
        feed.encode_message(
            "add_order_with_mpid_attribution", stock_locate=5, order_reference_number=9,
            buy_sell_indicator="S", shares=3, price=20_000, attribution="MPID", timestamp=77,
        ),
        1,
    )  # fmt: skip
    (told,) = (feed.decode_message(message) for message in kept.all_messages(1))
    assert type(told).__name__ == "AddOrderNoMpidAttribution"
    assert (told.stock_locate, told.stock, told.shares) == (5, "ZVZZT", 3)
    assert told.timestamp == 77, "the latest message's"
    kept.clear(1)
    assert kept.all_messages(1) == []
    assert kept.all_messages(2) == []


def test_an_order_is_known_by_its_symbol_for_a_while_after_it_went() -> None:
    feed = load_feed("cboe-byx-pitch")
    kept = KeptBooks(feed)
    add = feed.encode_message(
        "add_order_long", order_id=7, side_indicator="B", price=10_000, quantity=1, symbol="AB"
    )
    symbol = feed.symbols_named("AB")
    assert kept.symbol_of_order(1, 7) is None
    kept.apply_message(add, 1)
    assert kept.symbol_of_order(1, 7) in symbol
    kept.apply_message(feed.encode_message("delete_order", order_id=7), 1)
    assert kept.orders_of(1, symbol[1]) == 0
    assert kept.symbol_of_order(1, 7) in symbol
    assert kept.symbol_of_order(1, 8) is None
    assert kept.symbol_of_order(2, 7) is None
