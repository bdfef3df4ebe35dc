"""Books written as messages: of every feed that has them, random books, and what does not fit."""

import random
from pathlib import Path
from typing import Any

import numpy
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import MBO
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.loader import list_feeds
from feedhandler.market.book_writer import BookWriter, moment_of
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.kept_books import KeptBooks
from feedhandler.market.stream_market import Market
from tests.support.descriptions import EXAMPLE, described

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
    for index in range(count):
        side = chance.choice([b"B", b"A"])
        middle = 100 if side == b"A" else 80
        record = records[index]
        record["instrument_id"], record["side"], record["action"] = 1, side, b"A"
        record["order_id"] = 0 if by_level else 1000 + index
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
def test_a_reader_that_applies_a_written_book_has_it(name: str, seed: int) -> None:
    feed = load_feed(name)
    assert feed.book is not None
    writer, market = BookWriter(feed), Market(feed)
    book = random_book(random.Random(seed), feed.book.by == "level")
    symbol = int.from_bytes(b"AB      ", "big") if feed.symbols_are_text else 1
    if feed.needs_reference_scales:
        code, reference = next(iter(feed.references.items()))
        fields = {reference.index.name: symbol}
        for field in reference.scales.values():
            fields[field.name] = str(DECIMALS) if field.kind == "c" else DECIMALS
        market.apply_message(feed.encode_message(feed.type_label(code), **fields))
    for message in writer.messages(
        book, 1, symbol, scales=dict.fromkeys(feed.scale_names, DECIMALS)
    ):
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
    writer, messages = BookWriter(feed), []
    for text in (b"AB      ", b"ABCDEFGH"):
        book = random_book(random.Random(1), by_level=False, count=1)
        messages += writer.messages(book, 1, int.from_bytes(text, "big"))
    long, expanded = map(feed.decode_message, messages)
    assert [type(each).__name__ for each in (long, expanded)] == [
        "AddOrderLong", "AddOrderExpanded",
    ]  # fmt: skip
    assert (long.symbol, expanded.symbol_extended) == ("AB", "ABCDEFGH")
    book = DepthBook()
    book.apply(_fine_price())
    assert writer.messages(book, 1, int.from_bytes(b"AB      ", "big")) == []
    assert writer.unwritten == 1


def _fine_price() -> Any:
    """An order whose price has more decimals than PITCH's messages."""
    record = numpy.zeros(1, MBO)
    record["instrument_id"], record["side"], record["action"] = 1, b"B", b"A"
    record["order_id"], record["price"], record["size"] = 1, 1, 1
    return record


def test_an_order_is_told_by_its_own_message_with_what_is_left_of_it() -> None:
    feed = load_feed("nasdaq-totalview-itch")
    kept = KeptBooks(feed)
    kept.apply_message(
        feed.encode_message(
            "add_order_with_mpid_attribution", stock_locate=5, order_reference_number=9,
            buy_sell_indicator="S", shares=3, price=20_000, attribution="MPID", timestamp=77,
        ),
        1,
    )  # fmt: skip
    kept.apply_message(
        feed.encode_message(
            "order_cancel", stock_locate=5, order_reference_number=9, canceled_shares=1,
            timestamp=99,
        ),
        1,
    )  # fmt: skip
    (added,) = (feed.decode_message(message) for message in kept.book_messages(1, 5))
    assert type(added).__name__ == "AddOrderWithMpidAttribution"
    assert (added.shares, added.attribution, added.timestamp) == (2, "MPID", 77)
    kept.clear(1)
    assert kept.book_messages(1, 5) == []


def test_the_symbols_name_and_the_latest_time_are_written_where_the_message_has_their_fields() -> (
    None
):
    feed = load_feed("nasdaq-totalview-itch")
    kept = KeptBooks(feed)
    kept.apply_message(feed.encode_message("stock_directory", stock_locate=5, stock="ZVZZT"), 1)
    kept.apply_message(
        feed.encode_message(
            "add_order_no_mpid_attribution", stock_locate=5, order_reference_number=8,
            buy_sell_indicator="S", shares=3, price=20_000, timestamp=70,
        ),
        1,
    )  # fmt: skip
    kept.apply_message(
        feed.encode_message(
            "order_replace", stock_locate=5, original_order_reference_number=8,
            new_order_reference_number=9, shares=3, price=20_000, timestamp=77,
        ),
        1,
    )  # fmt: skip
    (added,) = (feed.decode_message(message) for message in kept.book_messages(1, 5))
    assert type(added).__name__ == "AddOrderNoMpidAttribution"
    assert (added.stock_locate, added.stock, added.shares) == (5, "ZVZZT", 3)
    assert (added.order_reference_number, added.timestamp) == (9, 77), "of the latest message"
    kept.clear(1)
    assert kept.book_messages(1, 5) == kept.book_messages(2, 5) == []


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


#: An order in many forms: its id in two parts, its side in a bit, a price with its scale, a null.
FORMS = """
[[messages]]
type = 9
name = "odd"
symbol = "Small"
fields = [
    { at = 4, type = "u8", name = "Small" },
    { at = 5, type = "u8", name = "Day" },
    { at = 6, type = "u16", name = "Number" },
    { at = 8, type = "u8", name = "Flags", bits = { Live = 0, Sell = 1 } },
    { at = 9, type = "c1", name = "Scale" },
    { at = 10, type = "i16", name = "Price", price = "Scale", null = -32768 },
    { at = 12, type = "u16", name = "Size", price = 2 },
]

[[messages]]
type = 10
name = "bids"
symbol = "Index"
fields = [
    { at = 4, type = "u32", name = "Index" },
    { at = 8, type = "u8", name = "Day" },
    { at = 9, type = "u32", name = "Number" },
    { at = 13, type = "u8", name = "Side" },
    { at = 14, type = "i64", name = "Price", price = 9 },
    { at = 22, type = "u32", name = "Size" },
]

[[messages]]
type = 11
name = "scaled"
symbol = "Index"
fields = [
    { at = 4, type = "u32", name = "Index" },
    { at = 8, type = "u32", name = "Number" },
    { at = 12, type = "u8", name = "Scale" },
    { at = 13, type = "i64", name = "Price", price = 9 },
    { at = 21, type = "u32", name = "Size", price = "Scale" },
]

[book]
by = "order"

[[book.rules]]
messages = ["odd"]
does = "add"
order = ["Day", "Number"]
when = [{ field = "Live", in = [1] }]
side = { field = "Sell", buy = [0], sell = [1] }
price = "Price"
size = "Size"

[[book.rules]]
messages = ["bids"]
does = "add"
order = ["Day", "Number"]
when = [{ field = "Side", in = [1, 3] }]
side = { field = "Side", buy = [1], sell = [2] }
price = "Price"
size = "Size"

[[book.rules]]
messages = ["scaled"]
does = "add"
order = "Number"
side = "sell"
price = "Price"
size = "Size"
"""


def written(tmp_path: Path, symbol: int, *orders: tuple[int, bytes, int, int]) -> Any:
    """The messages of orders (id, side, price, size) of a symbol, and how many are not written."""
    feed = described(tmp_path, EXAMPLE + FORMS)
    writer, book = BookWriter(feed), DepthBook()
    records = numpy.zeros(len(orders), MBO)
    records["instrument_id"], records["action"] = 1, b"A"
    for index, (order, side, price, size) in enumerate(orders):
        record = records[index]
        record["order_id"], record["side"] = order, side
        record["price"], record["size"] = price, size
    book.apply(records)
    messages = [feed.decode_message(each) for each in writer.messages(book, 1, symbol)]
    return messages, writer.unwritten


@pytest.mark.parametrize("price", [-3_270_000_000, -1_000_000_000, 5_000_000_000, 320_000_000])
def test_parts_bits_scales_and_negative_prices_are_written(tmp_path: Path, price: int) -> None:
    for side in (b"B", b"A"):
        ((added,), unwritten) = written(tmp_path, 5, (0x07_1234, side, price, 9))
        assert unwritten == 0
        assert type(added).__name__ == "Odd"
        assert (added.small, added.day, added.number) == (5, 7, 0x1234)
        assert (added.live, added.sell) == (1, int(side == b"A"))
        assert int(added.price.raw * 10 ** (9 - int(added.scale))) == price
        assert added.size.raw == 900


@pytest.mark.parametrize(
    ("symbol", "order", "price", "size"),
    [
        (256, 1, 1_000_000_000, 9),  # the symbol
        (5, 0x1_00_0000, 1_000_000_000, 9),  # the order
        (5, 1, -32_768_000_000_000, 9),  # the price, which would be the null value
        (5, 1, 1, 655),  # the price, of nine decimals, fits
        (5, 1, 1_234_567_891, 9),  # the price's integer
        (5, 1, 1_000_000_000, 656),  # the size
    ],
)
def test_what_one_message_cannot_hold_another_does_of_its_side(
    tmp_path: Path, symbol: int, order: int, price: int, size: int
) -> None:
    name = "Odd" if price == 1 else "Bids"
    ((added,), unwritten) = written(tmp_path, symbol, (order, b"B", price, size))
    assert (type(added).__name__, unwritten) == (name, 0)
    messages, unwritten = written(tmp_path, symbol, (order, b"A", price, size))
    assert (len(messages), unwritten) == ((1, 0) if price == 1 else (0, 1))


def test_orders_gone_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedhandler.market.kept_books.GONE_ORDERS", 4)
    feed = load_feed("cboe-byx-pitch")
    kept = KeptBooks(feed)
    for order in range(1, 11):
        add = {"side_indicator": "B", "price": 10_000, "quantity": 1, "symbol": "AB"}
        kept.apply_message(feed.encode_message("add_order_long", order_id=order, **add), 1)
        kept.apply_message(feed.encode_message("delete_order", order_id=order), 1)
    known = [order for order in range(1, 11) if kept.symbol_of_order(1, order) is not None]
    assert known == [5, 6, 7, 8, 9, 10]


def test_of_a_service_of_which_nothing_came_nothing_is_known() -> None:
    kept = KeptBooks(load_feed("nyse-integrated-pillar"))
    assert kept.orders_of(1, 7) == 0
    assert kept.book_messages(1, 7) == []
    assert not kept.prices_known(1, 7)
    assert KeptBooks(load_feed("memx-memoir")).prices_known(1, 7)
    kept.apply(b"no packet", 1)
    kept.clear(2)
    assert kept.book_messages(1, 7) == []


def test_prices_whose_scale_is_not_known_are_not_written() -> None:
    writer = BookWriter(load_feed("nyse-integrated-pillar"))
    assert writer.messages(random_book(random.Random(1), False, 7), 1, 1) == []
    assert writer.unwritten == 7


def test_where_messages_tell_no_time_none_is_written(tmp_path: Path) -> None:
    feed = described(tmp_path, EXAMPLE + FORMS)
    assert feed.book is not None
    order = {"index": 4, "day": 0, "number": 2, "side": 1, "price": 7, "size": 8}
    message = feed.encode_message("bids", **order)
    rules = next(each for each in feed.book.messages if each.name == "bids")
    assert moment_of(message, rules) is None
    kept = KeptBooks(feed)
    kept.apply_message(message, 1)
    assert kept.book_messages(1, 4) == [message]
