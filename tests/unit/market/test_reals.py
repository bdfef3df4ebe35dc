"""Books of feeds whose numbers are those of programming languages: floating point prices and sizes,
sizes of less than a whole unit, signed times."""

import math
from pathlib import Path

import pytest

from feedhandler.codecs.columns import Columns
from feedhandler.market.book_writer import BookWriter
from feedhandler.market.depth_book import DepthBook
from tests.support.descriptions import MOLDUDP64, check_refused, described, head
from tests.support.normalised import NORMALISERS, NormalisedRecords
from tests.support.scanners import index_of
from tests.support.twins import either

twin = either(NORMALISERS)

LEVELS = (
    head("little", MOLDUDP64)
    + """
[[messages]]
type = "L"
name = "level"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "c1", name = "Side" },
    { type = "f64", name = "Price" }, { type = "f64", name = "Amount" }]

[[messages]]
type = "T"
name = "trade"
symbol = "Book"
fields = [{ type = "u32", name = "Book" }, { type = "f32", name = "Price" },
    { type = "u64", name = "Amount", price = 8 }]

[book]
by = "level"
size_decimals = 4

[[book.rules]]
messages = ["level"]
does = "level"
side = { field = "Side", buy = ["B"], sell = ["S"] }
price = "Price"
size = "Amount"

[[book.rules]]
messages = ["trade"]
does = "trade"
price = "Price"
size = "Amount"
"""
)


def test_prices_are_read_to_the_nearest_1e_9_and_sizes_cut(twin, tmp_path: Path) -> None:
    records = NormalisedRecords(twin, described(tmp_path, LEVELS))

    def level(price: float | None, amount: float | None) -> str:
        return records("level", book=5, side="B", price=price, amount=amount)

    assert level(0.1, 0.29) == "A B 0 2900@0.1"
    assert (
        int(records.of("level", book=5, side="B", price=0.3, amount=1)["price"][0]) == 300_000_000
    )
    assert level(-0.5, 1e-4) == "A B 0 1@-0.5"
    assert level(0.1, 0.00019) == "M B 0 1@0.1"
    assert level(0.1, 0) == "C B 0 1@0.1"
    assert level(0.1, None) == ""
    assert level(0.3, 1e9).startswith("M B 0 4294967294@")
    assert records.normaliser.clamped == 1
    assert level(None, 1) == ""
    assert records.normaliser.unscaled == 0
    level(math.inf, 1)
    assert records.normaliser.unscaled == 1


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_size_is_the_one_that_was_meant_and_is_written_again(
    twin,
    tmp_path: Path,
    kind: str,
) -> None:
    text = LEVELS.replace('"f64", name = "Amount"', f'"{kind}", name = "Amount"')
    feed = described(tmp_path, text.replace("size_decimals = 4", "size_decimals = 2"))
    records, book = NormalisedRecords(twin, feed), DepthBook()
    for units in range(1, 2_000):
        level = records.of("level", book=5, side="B", price=units, amount=units / 100)
        assert int(level["size"][0]) == units
        if units % 100 == 7:
            book.apply(level.copy())
    writer = BookWriter(feed)
    messages = writer.messages(book, 5, 5)
    assert [round(feed.decode_message(each).amount * 100) for each in messages] == [
        *range(1_907, 0, -100)
    ]
    assert writer.unwritten == 0


def test_integers_have_the_records_units_too(twin, tmp_path: Path) -> None:
    records = NormalisedRecords(twin, described(tmp_path, LEVELS))
    assert records("trade", book=5, price=2.5, amount=150_000_000) == "T N 0 15000@2.5"
    whole = described(tmp_path, LEVELS.replace(", price = 8", ""))
    records = NormalisedRecords(twin, whole)
    assert records("trade", book=5, price=2.5, amount=3) == "T N 0 30000@2.5"
    assert records("trade", book=5, price=2.5, amount=1 << 40) == "T N 0 4294967294@2.5"


def test_the_books_messages_say_the_same_again(twin, tmp_path: Path) -> None:
    feed = described(tmp_path, LEVELS)
    records, book = NormalisedRecords(twin, feed), DepthBook()
    for side, price, amount in (("B", 0.1, 2.9), ("B", 12345.678901234, 0.0001), ("S", 3.5, 7)):
        book.apply(records.of("level", book=5, side=side, price=price, amount=amount))
    writer = BookWriter(feed)
    written = [feed.decode_message(each) for each in writer.messages(book, 5, 5)]
    assert [(each.side, each.price, each.amount) for each in written] == [
        ("B", 12345.678901234, 0.0001), ("B", 0.1, 2.9), ("S", 3.5, 7),
    ]  # fmt: skip
    assert writer.unwritten == 0


def test_a_signed_time_is_the_events(twin, tmp_path: Path) -> None:
    told = LEVELS.replace(
        '{ type = "f64", name = "Amount" }]',
        '{ type = "f64", name = "Amount" }, { type = "i64", name = "MadeAt" }]',
    ).replace("size_decimals = 4", 'event_time = "made_ns"')
    rule = '[[times]]\nname = "made_ns"\nsince = "epoch"\nmicroseconds = "MadeAt"\n'
    feed = described(tmp_path, told + rule)
    said = {"book": 5, "side": "B", "price": 1.5, "amount": 1, "made_at": 1_700_000_000_000_000}
    (record,) = NormalisedRecords(twin, feed).of("level", **said)
    assert record["ts_event"] == 1_700_000_000_000_000_000
    packet = feed.encode_packet(sequence=1, messages=[feed.encode_message("level", **said)])
    assert feed.decode_packet(packet).messages[0].made_ns == 1_700_000_000_000_000_000
    columns = Columns(feed, "level")
    assert columns.decode(packet, index_of(feed, packet)) == 1
    assert columns.arrays["made_ns"].tolist() == [1_700_000_000_000_000_000]


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("size_decimals = 4", "size_decimals = 10", "size_decimals", "is not within 0..9"),
        ("size_decimals = 4", "size_decimals = -1", "size_decimals", "is not within 0..9"),
        ('field = "Side"', 'field = "Price"', "rules[0].side", "'Price' is floating point"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    check_refused(tmp_path, LEVELS, old, new, f"book.{key}", reason)
