"""Deletions of several orders or levels at once, and books of a bounded depth."""

from pathlib import Path

import pytest

from tests.support.descriptions import MOLDUDP64, SIDE, check_refused, described, head
from tests.support.normalised import NORMALISERS, NormalisedRecords
from tests.support.twins import either

twin = either(NORMALISERS)

HEAD = (
    head("big", MOLDUDP64)
    + """
[[messages]]
type = "E"
name = "entry"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u64", name = "OrderID" }, { type = "u32", name = "Size" },
    { type = "i32", name = "Price", price = 2 }, { type = "u8", name = "Place" }]

[[messages]]
type = "R"
name = "range"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "u8", name = "Action" }, { type = "u8", name = "Place" }]

[[messages]]
type = "D"
name = "defined"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "u8", name = "Depth", null = 0 }]
"""
)
RANGES = f"""
[[book.rules]]
messages = ["range"]
does = "delete_through"
when = [{{ field = "Action", in = [3] }}]
{SIDE}position = "Place"

[[book.rules]]
messages = ["range"]
does = "delete_from"
when = [{{ field = "Action", in = [4] }}]
{SIDE}position = "Place"
"""
RULE = f'\n[[book.rules]]\nmessages = ["entry"]\n{SIDE}price = "Price"\nsize = "Size"\n'
LEVELS = HEAD + '[book]\nby = "level"\n' + RULE + 'does = "level"\n' + RANGES
ORDERS = HEAD + '[book]\nby = "order"\n' + RULE + 'does = "add"\norder = "OrderID"\n' + RANGES
PLACES = (
    HEAD + '[book]\nby = "level"\n' + RULE + 'does = "level_insert"\nposition = "Place"\n' + RANGES
)
DEPTH = '\n[[book.rules]]\nmessages = ["defined"]\ndoes = "directory"\ndepth = "Depth"\n'


class Book(NormalisedRecords):
    """Records of one book's messages."""

    def entry(self, side: str, price: int, size: int = 1, order: int = 0, place: int = 1) -> str:
        return self("entry", book=5, side=side, price=price, size=size, order_id=order, place=place)

    def through(self, side: str, place: int) -> str:
        return self("range", book=5, side=side, action=3, place=place)

    def onward(self, side: str, place: int) -> str:
        return self("range", book=5, side=side, action=4, place=place)


@pytest.mark.parametrize("text", [LEVELS, PLACES], ids=["by price", "by position"])
def test_levels_go_from_the_best_and_to_the_last(twin, tmp_path: Path, text: str) -> None:
    book = Book(twin, described(tmp_path, text))
    for place, price in enumerate((400, 300, 200, 100), 1):
        book.entry("B", price, place=place)
        book.entry("S", 900 - price, place=place)
    book("entry", book=6, side="B", price=350, size=1, order_id=0, place=1)
    assert sorted(book.through("B", 2).split(" | ")) == ["C B 0 1@3", "C B 0 1@4"]
    assert book.onward("B", 2) == "C B 0 1@1"
    assert book.onward("B", 2) == ""
    assert sorted(book.onward("S", 3).split(" | ")) == ["C A 0 1@7", "C A 0 1@8"]
    assert sorted(book.through("S", 9).split(" | ")) == ["C A 0 1@5", "C A 0 1@6"]
    assert book.through("B", 0) == book.through("?", 1) == ""
    assert (book.normaliser.unknown_orders, book.normaliser.sideless) == (1, 1)
    assert book.through("B", 1) == "C B 0 1@2"


def test_orders_of_one_price_go_by_their_ids(twin, tmp_path: Path) -> None:
    book = Book(twin, described(tmp_path, ORDERS))
    for order, price in ((9, 100), (7, 200), (8, 200), (3, 300), (1, 100)):
        book.entry("B", price, size=order, order=order)
    book.entry("S", 400, order=2)
    assert book.through("B", 2) == "C B 3 3@3 | C B 7 7@2"
    assert book.onward("B", 3) == "C B 9 9@1"
    assert book.through("B", 9) == "C B 8 8@2 | C B 1 1@1"
    assert book.onward("S", 1) == "C A 2 1@4"
    assert book.normaliser.orders.count == 0


def test_a_level_that_moves_beyond_the_depth_goes(twin, tmp_path: Path) -> None:
    text = LEVELS.replace('by = "level"', 'by = "level"\ndepth = 3') + DEPTH
    book = Book(twin, described(tmp_path, text))
    for price in (100, 200, 300):
        assert book.entry("B", price) == f"A B 0 1@{price / 100:g}"
    assert book.entry("B", 250) == "A B 0 1@2.5 | C B 0 1@1"
    assert book.entry("B", 50) == "A B 0 1@0.5 | C B 0 1@0.5"
    assert book.entry("B", 300, size=0) == "C B 0 1@3"
    assert book.entry("B", 100) == "A B 0 1@1"
    assert book("defined", book=5, depth=2) == "C B 0 1@1"
    assert book("defined", book=5, depth=None) == ""
    assert book.entry("S", 500) == "A A 0 1@5"
    assert book.entry("S", 600) == "A A 0 1@6"
    assert book.entry("S", 550) == "A A 0 1@5.5 | C A 0 1@6"
    assert book.entry("B", 260) == "A B 0 1@2.6 | C B 0 1@2"
    for price in (-300, -200, -100):
        book("entry", book=6, side="S", price=price, size=1, order_id=0, place=1)
    worst = book("entry", book=6, side="S", price=-250, size=1, order_id=0, place=1)
    assert worst == "A A 0 1@-2.5 | C A 0 1@-1"
    book.normaliser.empty(3, 1)
    assert [book.entry("B", price) for price in (100, 200)] == ["A B 0 1@1", "A B 0 1@2"]
    assert book.normaliser.unknown_orders == 0


def test_levels_by_position_have_the_tables_depth(twin, tmp_path: Path) -> None:
    text = PLACES.replace('by = "level"', 'by = "level"\ndepth = 2')
    book = Book(twin, described(tmp_path, text))
    for price in (100, 200):
        book.entry("B", price)
    assert book.entry("B", 300) == "C B 0 1@1 | A B 0 1@3"


def test_a_depth_told_after_levels_counts_them(twin, tmp_path: Path) -> None:
    book = Book(twin, described(tmp_path, LEVELS + DEPTH))
    for price in (100, 200, 300):
        book.entry("B", price)
    book("entry", book=6, side="B", price=50, size=1, order_id=0, place=1)
    assert book("defined", book=5, depth=2) == "C B 0 1@1"
    assert book.entry("B", 250) == "A B 0 1@2.5 | C B 0 1@2"
    assert book.entry("B", 250, size=0) == "C B 0 1@2.5"
    assert book("defined", book=5, depth=1) == ""


def test_cmes_books_have_the_depth_of_their_definition(twin) -> None:
    book = NormalisedRecords(twin, "cme-mdp3")
    feeds = [
        {"md_feed_type": "GBI", "market_depth": 2}, {"md_feed_type": "GBX", "market_depth": 3},
    ]  # fmt: skip
    assert book("instrument_definition_option", security_id=5, feed_types=feeds) == ""
    assert [each[0] for each in book.normaliser.named] == [5]

    def change(action: int, price: int | None, level: int, size: int = 1) -> str:
        entry = {
            "md_entry_px_optional_ex": price, "md_entry_size_short_optional": size,
            "security_id": 5, "md_price_level": level, "md_update_action": action,
            "md_entry_type_book": "0",
        }  # fmt: skip
        return book("incremental_refresh_book", entries=[entry])

    unit = 10**9
    for price in (5, 4, 3):
        change(0, price * unit, 1)
    assert change(0, 6 * unit, 1) == "A B 0 1@6 | C B 0 1@3"
    assert change(3, None, 2) == "C B 0 1@6 | C B 0 1@5"
    assert change(0, 3 * unit, 2) == "A B 0 1@3"
    assert change(4, None, 1) == "C B 0 1@4 | C B 0 1@3"
    book("security_status", security_id_optional=5, security_trading_status=17)
    assert [(each[0], each[1]) for each in book.normaliser.statuses] == [(5, 1)]
    book("security_status", security_id_optional=None, security_trading_status=2)
    assert book.normaliser.statuses == []


def test_b3s_orders_go_in_mass(twin) -> None:
    book = NormalisedRecords(twin, "b3-umdf")
    for order, price in ((7, 200), (8, 200), (9, 100)):
        book(
            "order_mbo", security_id=5, md_update_action=0, md_entry_type="0",
            md_corporate_offset_price_optional=price, md_entry_size_quantity=order,
            secondary_order_id=order,
        )  # fmt: skip
    gone = book(
        "mass_delete_orders_mbo", security_id=5, md_update_action=3, md_entry_type="0",
        md_entry_position_no=2,
    )  # fmt: skip
    assert [each.rsplit("@", 1)[0] for each in gone.split(" | ")] == ["C B 7 7", "C B 8 8"]


@pytest.mark.parametrize(
    ("text", "old", "new", "key", "reason"),
    [
        (LEVELS, 'by = "level"', 'by = "level"\ndepth = 256', "depth", "no depth of 1 to 255"),
        (ORDERS, 'by = "order"', 'by = "order"\ndepth = 9', "depth", "no rule is about levels"),
        (LEVELS + DEPTH, 'depth = "Depth"', 'depth = "Deph"', "rules[3].depth", "mean Depth?"),
        (LEVELS, 'position = "Place"', "", "rules[1]", "delete_through needs position"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, text: str, old: str, new: str, key: str, reason: str
) -> None:
    check_refused(tmp_path, text, old, new, f"book.{key}", reason)
