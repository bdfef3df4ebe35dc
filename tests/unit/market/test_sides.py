"""Sides of books: ids of their own, two orders of one message, quotes that come side by side."""

from pathlib import Path

import pytest

from feedhandler.market.book_writer import BookWriter
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.stream_market import Market
from tests.support.descriptions import MOLDUDP64, SIDE, check_refused, described, head
from tests.support.normalised import NORMALISERS, NormalisedRecords
from tests.support.refusal import refusal
from tests.support.twins import either

twin = either(NORMALISERS)

HEAD = head("big", MOLDUDP64)
ORDERS = (
    HEAD
    + """
[[messages]]
type = "A"
name = "added"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }, { type = "u32", name = "Size" },
    { type = "u32", name = "Price", price = 2 }]

[[messages]]
type = "E"
name = "executed"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }, { type = "u32", name = "Size" }]

[[messages]]
type = "X"
name = "reduced"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }, { type = "u32", name = "Size" }]

[[messages]]
type = "U"
name = "replaced"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }, { type = "u64", name = "NewID" },
    { type = "u32", name = "Size" }, { type = "u32", name = "Price", price = 2 }]

[[messages]]
type = "D"
name = "deleted"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }]

[book]
by = "order"
order_ids = "per_side"

"""
    + f"""[[book.rules]]
messages = ["added"]
does = "add"
order = "OrderID"
{SIDE}price = "Price"
size = "Size"

[[book.rules]]
messages = ["executed"]
does = "execute"
order = "OrderID"
{SIDE}size = "Size"

[[book.rules]]
messages = ["reduced"]
does = "reduce"
order = "OrderID"
{SIDE}size = "Size"

[[book.rules]]
messages = ["replaced"]
does = "replace"
order = "OrderID"
new_order = "NewID"
{SIDE}price = "Price"
size = "Size"

[[book.rules]]
messages = ["deleted"]
does = "delete"
order = "OrderID"
{SIDE}"""
)
SELL = 1 << 63


def test_orders_of_one_id_on_both_sides_are_two_orders(twin, tmp_path: Path) -> None:
    records = NormalisedRecords(twin, described(tmp_path, ORDERS))
    own, other = {"book": 5, "side": "B", "order_id": 77}, {"book": 5, "side": "S", "order_id": 77}
    assert records("added", **own, size=10, price=100) == "A B 77 10@1"
    assert records("added", **other, size=20, price=200) == f"A A {77 | SELL} 20@2"
    assert records("executed", **other, size=5) == (
        f"T B 0 5@2 | F A {77 | SELL} 5@2 | C A {77 | SELL} 5@2"
    )
    assert records("reduced", **own, size=4) == "C B 77 4@1"
    assert records("replaced", **other, new_id=78, size=3, price=300) == (
        f"C A {77 | SELL} 15@2 | A A {78 | SELL} 3@3"
    )
    assert records("deleted", **own) == "C B 77 6@1"
    assert records("deleted", **own) == "", "the sell order of that id is another"
    assert records("deleted", **{**other, "order_id": 78}) == f"C A {78 | SELL} 3@3"
    assert records.normaliser.unknown_orders == 1
    assert records("added", book=5, side="?", order_id=1, size=1, price=1) == ""
    assert records.normaliser.sideless == 1


def test_the_books_messages_have_the_exchanges_ids(twin, tmp_path: Path) -> None:
    feed = described(tmp_path, ORDERS)
    records = NormalisedRecords(twin, feed)
    book = DepthBook()
    for side, price in (("B", 100), ("S", 200)):
        said = {"book": 5, "side": side, "order_id": 77, "size": 10, "price": price}
        book.apply(records.of("added", **said))
    written = [feed.decode_message(each) for each in BookWriter(feed).messages(book, 5, 5)]
    assert [(each.side, each.order_id) for each in written] == [("B", 77), ("S", 77)]


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        (SIDE + 'size = "Size"\n\n[[book.rules]]\nmessages = ["reduced"]',
         'size = "Size"\n\n[[book.rules]]\nmessages = ["reduced"]',
         "rules[1]", "execute needs side: ids are per side"),
        ('name = "deleted"\nsymbol = "Book"\n', 'name = "deleted"\n',
         "rules[4]", "delete needs a message with a symbol"),
    ],
)  # fmt: skip
def test_ids_per_side_need_side_and_symbol(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    check_refused(tmp_path, ORDERS, old, new, f"book.{key}", reason)


QUOTES = (
    HEAD
    + """
[[messages]]
type = "Q"
name = "both"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "u64", name = "BidID" },
    { type = "u64", name = "AskID" }, { type = "u32", name = "BidPrice", price = 2 },
    { type = "u32", name = "BidSize" }, { type = "u32", name = "AskPrice", price = 2 },
    { type = "u32", name = "AskSize" }]

[[messages]]
type = "S"
name = "one"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u32", name = "Price", price = 2 }, { type = "u32", name = "Size" }]

[book]
by = "order"
"""
)
TWO_ORDERS = """
[[book.rules]]
messages = ["both"]
does = "add"
order = "BidID"
side = "buy"
price = "BidPrice"
size = "BidSize"
also = true

[[book.rules]]
messages = ["both"]
does = "add"
order = "AskID"
side = "sell"
price = "AskPrice"
size = "AskSize"
"""
ONE_SIDE = f"""
[[book.rules]]
messages = ["one"]
does = "quote_side"
{SIDE}price = "Price"
size = "Size"
"""
TWO_SIDES = """
[[book.rules]]
messages = ["both"]
does = "quote"
bid = { price = "BidPrice", size = "BidSize" }
ask = { price = "AskPrice", size = "AskSize" }
"""
BOTH = {"book": 5, "bid_id": 7, "ask_id": 8, "bid_price": 100, "bid_size": 1, "ask_price": 200,
        "ask_size": 2}  # fmt: skip


def test_one_message_brings_two_orders(twin, tmp_path: Path) -> None:
    records = NormalisedRecords(twin, described(tmp_path, QUOTES + TWO_ORDERS))
    assert records("both", **BOTH) == "A B 7 1@1 | A A 8 2@2"
    assert records("both", **{**BOTH, "ask_size": 3}) == "M B 7 1@1 | M A 8 3@2"


def test_without_also_a_second_rule_never_fires(tmp_path: Path) -> None:
    text = (QUOTES + TWO_ORDERS).replace("also = true\n", "")
    assert "never fires for 'both'" in refusal(described, tmp_path, text)


@pytest.mark.parametrize("rules", [ONE_SIDE, TWO_SIDES + ONE_SIDE])
def test_a_quote_begins_with_the_side_that_comes_first(
    twin,
    tmp_path: Path,
    rules: str,
) -> None:
    records = NormalisedRecords(twin, described(tmp_path, QUOTES + rules))
    assert records("one", book=5, side="S", price=200, size=2) == "A A 2 2@2"
    assert records("one", book=6, side="B", price=50, size=9) == "A B 1 9@0.5"
    assert records("one", book=5, side="B", price=100, size=1) == "A B 1 1@1"
    assert records("one", book=5, side="S", price=200, size=3) == "M A 2 3@2"
    assert records("one", book=5, side="B", price=0, size=0) == "C B 1 1@1"
    assert records("one", book=5, side="B", price=100, size=4) == "A B 1 4@1"
    if rules != ONE_SIDE:
        assert records("both", **BOTH) == "M B 1 1@1 | M A 2 2@2"
    assert records.normaliser.unknown_orders == 0


def test_a_side_that_names_no_symbol_needs_the_quotes_id(tmp_path: Path) -> None:
    text = (QUOTES + ONE_SIDE).replace('name = "one"\nsymbol = "Book"\n', 'name = "one"\n')
    assert "quote_side needs of: 'one' names no symbol" in refusal(described, tmp_path, text)


def test_all_rules_of_quotes_find_them_alike(tmp_path: Path) -> None:
    text = QUOTES + TWO_SIDES + ONE_SIDE.replace("price =", 'of = "Size"\nprice =')
    assert "other rules find the quote by its of" in refusal(described, tmp_path, text)


@pytest.mark.parametrize("missing", ["order_update", "order_book_delimiter"])
def test_a_message_that_utp_md_has_by_that_name_makes_no_market_of_utp_md(
    tmp_path: Path, missing: str
) -> None:
    """`order_update` and the like are names that any feed may have."""
    feed = described(tmp_path, ORDERS.replace('name = "added"', f'name = "{missing}"').replace(
        'messages = ["added"]', f'messages = ["{missing}"]'
    ))  # fmt: skip
    assert type(Market(feed)) is Market
