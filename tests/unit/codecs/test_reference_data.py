"""Names of symbols, from each type of message that tells them."""

import math

import pytest

from feedhandler.codecs import Feed, ReferenceData, list_feeds, load_feed
from feedhandler.codecs.columns import Columns
from feedhandler.ops import subscribe
from tests.support.amqp import Rig
from tests.support.descriptions import FRAMING, described, head
from tests.support.scanners import index_of

CME = load_feed("cme-mdp3")
ICE = load_feed("ice-impact")
SEVERAL = [name for name in list_feeds() if len(load_feed(name).references) > 1]
#: Definitions of a market of ICE, and what they tell of its prices.
DEFINED = {
    "R": {"order_price_denominator": "2", "deal_price_denominator": "4"},
    "9": {"order_price_denominator": "2"},
}


def named(feed: Feed, code: int, symbol: int, name: str) -> bytes:
    """A message of a type that names symbols."""
    reference = feed.references[code]
    fields = {reference.index.name: symbol, reference.name[0].name: name}
    return feed.encode_message(feed.type_label(code), **fields)


def packet_of_names(feed: Feed) -> tuple[bytes, dict[int, str]]:
    """A packet with a message of each type that names symbols, and the names."""
    names = {9 + index: f"N{index}" for index in range(len(feed.references))}
    messages = [
        named(feed, code, *each) for code, each in zip(feed.references, names.items(), strict=True)
    ]
    return feed.encode_packet(sequence=1, messages=messages), names


def test_the_feeds_whose_symbols_several_messages_name() -> None:
    assert SEVERAL == ["asx-ntp-itch", "b3-umdf", "cme-mdp3", "ice-impact", "otc-link-ats"]
    assert CME.references.keys() == {54, 55, 56, 27, 41, 29}


@pytest.mark.parametrize("name", SEVERAL)
def test_names_are_learnt_from_each_type(name: str) -> None:
    feed = load_feed(name)
    packet, names = packet_of_names(feed)
    known = ReferenceData(feed)
    feed.decode_packet(packet, known=known)
    assert known.names == names

    index = index_of(feed, packet)
    known = ReferenceData(feed)
    known.learn_packet(packet, 0, index)
    assert known.names == names
    known = ReferenceData(feed)
    known.learn_columns(packet, index.arrays())
    assert known.names == names


def test_of_two_names_of_a_symbol_the_later_one_holds_whatever_their_types() -> None:
    for codes in ((54, 55), (55, 54)):
        messages = [named(CME, code, 7, f"N{code}") for code in codes]
        packet = CME.encode_packet(sequence=1, messages=messages)
        known = ReferenceData(CME)
        known.learn_columns(packet, index_of(CME, packet).arrays())
        assert known.names == {7: f"N{codes[1]}"}


@pytest.mark.parametrize("code", CME.references)
def test_a_subscription_by_name_gets_what_any_of_the_messages_named(code: int) -> None:
    rig = Rig(feed=CME)
    _, link = rig.attach("cme.104.ESZ6_C6000?as=message")
    messages = [named(CME, code, symbol, name) for symbol, name in ((5, "ESZ6 C6000"), (6, "X"))]
    rig.put(CME.encode_packet(sequence=1, messages=messages), 1, 2)
    rig.pump()
    assert rig.names == {5: "ESZ6_C6000", 6: "X"}
    (sent,) = link.data
    assert (sent.key, sent.body) == ("cme.104.ESZ6_C6000", messages[0])


def test_all_reference_messages_are_asked_for_where_prices_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert subscribe.reference_types(("46",), "cme.#", CME) == ()
    monkeypatch.setattr(CME, "needs_reference_scales", True)
    more = subscribe.reference_types(("46", "55"), "cme.#", CME)
    assert more == ("54", "56", "27", "41", "29")


def ice_trade() -> list[bytes]:
    """An order of 1234 and a trade at 56789, in market 5."""
    return [
        ICE.encode_message("add_or_modify_order", market_id=5, side="1", price=1234),
        ICE.encode_message("trade", market_id=5, price=56789),
    ]


@pytest.mark.parametrize(
    ("label", "prices"), [("R", [12.34, 5.6789]), ("9", [12.34, None]), (None, [None, None])]
)
def test_prices_have_the_scale_of_their_use_as_far_as_it_was_given(
    label: str | None, prices: list[float | None]
) -> None:
    known = ReferenceData(ICE)
    if label:
        ICE.decode_message(ICE.encode_message(label, market_id=5, **DEFINED[label]), known=known)
    packet = ICE.encode_packet(sequence=1, messages=ice_trade())
    decoded = ICE.decode_packet(packet, known=known).messages
    alone = [ICE.decode_message(message, known=known) for message in ice_trade()]
    for found in (decoded, alone):
        assert [float(each.price) if each.price.known else None for each in found] == prices
        assert [each.price.raw for each in found] == [1234, 56789]

    index = index_of(ICE, packet)
    for message_type, price in zip(("E", "G"), prices, strict=True):
        columns = Columns(ICE, message_type)
        assert columns.decode(packet, index, scales=known.all_scales) == 1
        (value,) = columns.arrays["price"].tolist()
        assert value == price or (price is None and math.isnan(value))


def test_a_scale_that_is_no_digit_is_not_learnt() -> None:
    known = ReferenceData(ICE)
    known.learn(ord("R"), ICE.encode_message("R", market_id=5, order_price_denominator="x"))
    assert known.scales_of(5) == {"reference.orders": None, "reference.deals": None}


ELEMENTS = """
[reference]
type = 1
index = "Symbol"
name = ["Title"]
scale = "Decimals"

[[messages]]
type = 1
name = "definition"
symbol = "Symbol"
fields = [{ SYMBOL, name = "Symbol" }, { type = "c4", name = "Title" },
    { type = "u8", name = "Decimals" }]

[[messages]]
type = 2
name = "updates"
symbol = "entries.Symbol"
fields = [{ type = "u8", name = "Kind" }]
parts = [{ group = "entries", count = { type = "u8" }, fields = [
    { SYMBOL, name = "Symbol" }, { type = "i32", name = "Price", price = "reference" },
] }]
"""


@pytest.mark.parametrize(
    ("symbol", "names"),
    [('type = "u32"', (7, 9)), ('type = "u16"', (7, 9)),
     ('type = "c6"', ("AB", "CD")), ('type = "c12"', ("ABCDEFGHIJ", "CD"))],
)  # fmt: skip
def test_each_element_has_the_scale_of_the_symbol_it_names(tmp_path, symbol, names) -> None:
    feed = described(tmp_path, head() + FRAMING + ELEMENTS.replace("SYMBOL", symbol))
    definitions = [
        feed.encode_message("definition", symbol=name, title="T", decimals=decimals)
        for name, decimals in zip(names, (2, 4), strict=True)
    ]
    entries = [{"symbol": name, "price": 150_000} for name in (*names, names[0])]
    update = feed.encode_message("updates", entries=entries)
    packet = feed.encode_packet(sequence=1, messages=[*definitions, update])
    known = ReferenceData(feed)
    decoded = feed.decode_packet(packet, known=known).messages[-1]
    assert [str(each.price.decimal) for each in decoded.entries] == [
        "1500.00",
        "15.0000",
        "1500.00",
    ]
    alone = feed.decode_message(update, known=known)
    assert alone == decoded
    assert feed.encode_message(decoded) == update, "its prices have their integers"


@pytest.mark.parametrize(("field", "pad"), [("nul", "space"), ("space", "nul")])
def test_symbols_that_are_padded_unlike_the_feeds_are_one(tmp_path, field: str, pad: str) -> None:
    """Fields of different sizes and paddings name one symbol."""
    text = ELEMENTS
    for size in (5, 11):
        text = text.replace("SYMBOL", f'type = "c{size}", pad = "{field}"', 1)
    feed = described(tmp_path, head("big", f'pad = "{pad}"') + FRAMING + text)
    messages = [
        feed.encode_message("definition", symbol="AB", title="T", decimals=2),
        feed.encode_message("updates", entries=[{"symbol": "AB", "price": 150}]),
    ]
    packet = feed.encode_packet(sequence=1, messages=messages)
    decoded = feed.decode_packet(packet, known=ReferenceData(feed))
    assert len(set(decoded.symbols)) == 1
    assert feed.symbol_name(decoded.symbols[0]) == "AB"
    assert str(decoded.messages[1].entries[0].price.decimal) == "1.50"
