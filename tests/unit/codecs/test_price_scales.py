"""Scales of prices that a field of the message tells: numbers, digits, powers of ten, codes."""

from decimal import Decimal
from pathlib import Path

import numpy
import pytest

from feedhandler.codecs import Feed, Price, UsageError
from feedhandler.codecs.columns import Columns
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.kept_books import KeptBooks
from feedhandler.market.stream_market import Market
from tests.support.descriptions import FRAMING, check_refused, described, head
from tests.support.scanners import index_of

BEGIN = head() + FRAMING
ORDERS = """
[[messages]]
type = 1
name = "order"
symbol = "Instrument"
fields = [
    { type = "u32", name = "Instrument" },
    { type = "u32", name = "Number" },
    { type = "c1", name = "Side" },
    { SCALE, name = "PriceScale" },
    { type = "i32", name = "Price", KEY = "PriceScale" },
    { type = "u32", name = "Size" },
]
parts = [{ group = "fills", count = { type = "u8" }, fields = [
    { type = "i32", name = "Price", KEY = "PriceScale" },
] }]

[book]
by = "order"

[[book.rules]]
messages = ["order"]
does = "add"
order = "Number"
side = { field = "Side", buy = ["B"], sell = ["S"] }
price = "Price"
size = "Size"
"""
REFERENCE = """
[reference]
type = 2
index = "Instrument"
name = ["Label"]
scale = "PriceScale"

[[messages]]
type = 2
name = "definition"
symbol = "Instrument"
fields = [
    { type = "u32", name = "Instrument" },
    { type = "c4", name = "Label" },
    { SCALE, name = "PriceScale" },
]

[[messages]]
type = 3
name = "deal"
symbol = "Instrument"
fields = [
    { type = "u32", name = "Instrument" },
    { type = "i32", name = "Price", price = "reference" },
]
"""
LETTERS = 'type = "c1", decimals = { A = 1, B = 2, C = 3, I = 0 }'
HUNDREDS = 'type = "u8", decimals = { 100 = 2, 101 = 1, 255 = 0 }'
#: The scale's type, the key that names it; its value by decimal places; a value that tells none.
SCALES = {
    "number": ('type = "u8"', "price", {0: 0, 1: 1, 2: 2}, 19),
    "digit": ('type = "c1"', "price", {0: "0", 1: "1", 2: "2"}, "x"),
    "exponent": ('type = "i8"', "exponent", {0: 0, 1: -1, 2: -2}, -19),
    "letter": (LETTERS, "price", {0: "I", 1: "A", 2: "B"}, "D"),
    "code": (HUNDREDS, "price", {0: 255, 1: 101, 2: 100}, 102),
    "signed": (HUNDREDS.replace("u8", "i8").replace("255", "-1"), "price", {0: -1, 2: 100}, 102),
}


def feed_of(folder: Path, scale: str, key: str = "price") -> Feed:
    return described(folder, BEGIN + ORDERS.replace("SCALE", scale).replace("KEY", key))


def columns_of(
    feed: Feed, message: bytes, known: ReferenceData | None = None
) -> dict[str, numpy.ndarray]:
    """Return the columns of a packet with this message."""
    data = feed.encode_packet(sequence=1, messages=[message])
    columns = Columns(feed, feed.message_code(message))
    assert columns.decode(data, index_of(feed, data), scales=known and known.all_scales) == 1
    return columns.arrays


@pytest.mark.parametrize("name", SCALES)
def test_a_price_has_the_decimals_that_its_scale_tells_wherever_it_is_read(
    name: str, tmp_path: Path
) -> None:
    scale, key, values, nonsense = SCALES[name]
    feed = feed_of(tmp_path, scale, key)
    for decimals, value in values.items():
        order = {"instrument": 7, "number": 5, "side": "B", "price_scale": value, "size": 3}
        price = Decimal(-1234).scaleb(-decimals)
        message = feed.encode_message(1, **order, price=price, fills=[{"price": price}])
        record = feed.decode_message(message)
        assert record.price == record.fills[0].price == Price(-1234, decimals)
        columns = columns_of(feed, message)
        assert columns["price"][0] == columns["fills_price"][0] == float(price)
        market = Market(feed)
        market.apply_message(message)
        ((found, size, _),) = market.books["7"].bids.top(1)
        assert (found, size) == (int(price.scaleb(9)), 3)
    odd = feed.encode_message(1, **{**order, "price_scale": nonsense}, price=-1234)
    assert feed.decode_message(odd).price == Price(-1234, None)
    assert numpy.isnan(columns_of(feed, odd)["price"][0])
    market = Market(feed)
    market.apply_message(odd)
    assert market.problems["unscaled"] == 1


@pytest.mark.parametrize("name", SCALES)
def test_books_are_written_with_a_scale_that_the_price_fits(name: str, tmp_path: Path) -> None:
    scale, key, values, _ = SCALES[name]
    feed = feed_of(tmp_path, scale, key)
    kept = KeptBooks(feed)
    for number, (decimals, value) in enumerate(values.items(), 1):
        price = Price(-17, decimals)
        order = {"instrument": 7, "number": number, "side": "S", "price_scale": value, "size": 3}
        kept.apply_message(feed.encode_message(1, **order, price=price), 1)
    written = [feed.decode_message(each) for each in kept.book_messages(1, 7)]
    assert {each.number: each.price for each in written} == {
        number: Price(-17, decimals) for number, decimals in enumerate(values, 1)
    }


def test_no_price_is_written_beside_a_scale_that_is_not_given(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, LETTERS)
    with pytest.raises(UsageError, match="no scale is known"):
        feed.encode_message(1, price=Decimal("1.5"))
    assert feed.decode_message(feed.encode_message(1, price=15)).price == Price(15, None)


@pytest.mark.parametrize(
    ("scale", "key", "reason"),
    [
        ('type = "c2", decimals = { A = 1 }', "PriceScale", "one byte"),
        ('type = "c1", decimals = { AB = 1 }', "PriceScale.decimals.AB", "no value of c1"),
        ('type = "u8", decimals = { A = 1 }', "PriceScale.decimals.A", "no value of u8"),
        ('type = "u8", decimals = { 256 = 1 }', "PriceScale.decimals.256", "no value of u8"),
        ('type = "c1", decimals = { A = 19 }', "PriceScale.decimals.A", "19 is not within 0..18"),
    ],
)
def test_codes_that_cannot_be_are_refused(
    tmp_path: Path, scale: str, key: str, reason: str
) -> None:
    text = BEGIN + ORDERS.replace("KEY", "price")
    check_refused(tmp_path, text, "SCALE", scale, key, reason)


@pytest.mark.parametrize(
    ("scale", "value", "decimals"),
    [
        (LETTERS, "B", 2),
        (LETTERS, "D", None),
        (HUNDREDS, 101, 1),
        (HUNDREDS, 102, None),
        ('type = "u16"', 2, 2),
        ('type = "u16"', 300, None),
        ('type = "c2"', "03", 3),
        ('type = "c2"', "x", None),
    ],
)
def test_a_reference_message_tells_decimals_by_codes_too(
    tmp_path: Path, scale: str, value: int | str, decimals: int | None
) -> None:
    feed = described(tmp_path, BEGIN + REFERENCE.replace("SCALE", scale))
    known = ReferenceData(feed)
    known.learn(2, feed.encode_message(2, instrument=7, label="ABCD", price_scale=value))
    deal = feed.encode_message(3, instrument=7, price=1234)
    price = feed.decode_message(deal, known=known).price
    assert price == Price(1234, decimals)
    assert numpy.isnan(columns_of(feed, deal, known)["price"][0]) == (decimals is None)
