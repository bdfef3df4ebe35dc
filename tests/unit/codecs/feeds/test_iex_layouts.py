"""IEX DEEP 1.0: the offset of every field, against the tables of the public specifications.

The tables count from the type byte, as the specification does; in a message the two bytes of its
length stand before it.
"""

import pytest

from feedhandler.codecs import load_feed
from tests.support.feed_checks import covers, described, table

FEED = load_feed("iex-deep")
LENGTH_BYTES = 2

HEADER = """0+1 Version  1+1 Reserved  2+2 MessageProtocolID  4+4 ChannelID  8+4 SessionID
    12+2 PayloadLength  14+2 MessageCount  16+8 StreamOffset  24+8 FirstMessageSequenceNumber
    32+8 SendTime"""

PRICE_LEVEL = "1+1 event_flags  2+8 timestamp  10+8 symbol  18+4 size  22+8 price"
TRADE = "1+1 sale_condition_flags  2+8 timestamp  10+8 symbol  18+4 size  22+8 price  30+8 trade_id"

#: Type: size without the length field, fields after the type byte.
MESSAGES = {
    "S": (10, "1+1 system_event  2+8 timestamp"),
    "D": (
        31,
        """1+1 flags  2+8 timestamp  10+8 symbol  18+4 round_lot_size  22+8 adjusted_poc_price
        30+1 luld_tier""",
    ),
    "H": (22, "1+1 trading_status  2+8 timestamp  10+8 symbol  18+4 reason"),
    "I": (18, "1+1 retail_liquidity_indicator  2+8 timestamp  10+8 symbol"),
    "O": (18, "1+1 operational_halt_status  2+8 timestamp  10+8 symbol"),
    "P": (19, "1+1 short_sale_price_test_status  2+8 timestamp  10+8 symbol  18+1 detail"),
    "E": (18, "1+1 security_event  2+8 timestamp  10+8 symbol"),
    "8": (30, PRICE_LEVEL),
    "5": (30, PRICE_LEVEL),
    "T": (38, TRADE),
    "X": (26, "1+1 price_type  2+8 timestamp  10+8 symbol  18+8 official_price"),
    "B": (38, TRADE),
    "A": (
        80,
        """1+1 auction_type  2+8 timestamp  10+8 symbol  18+4 paired_shares  22+8 reference_price
        30+8 indicative_clearing_price  38+4 imbalance_shares  42+1 imbalance_side
        43+1 extension_number  44+4 scheduled_auction_time  48+8 auction_book_clearing_price
        56+8 collar_reference_price  64+8 lower_auction_collar_price
        72+8 upper_auction_collar_price""",
    ),
}


def test_the_header_has_every_field_at_its_offset():
    assert FEED.header.size == 40
    assert described(FEED.header) == table(HEADER)
    assert covers(FEED.header, 0)


def test_exactly_the_messages_of_the_tables_are_described():
    assert set(FEED.message_types) == set(MESSAGES)
    assert FEED.controls == {}


@pytest.mark.parametrize("label", MESSAGES)
def test_every_field_of_a_message_is_at_its_offset(label: str):
    size, fields = MESSAGES[label]
    layout = FEED.layout(label)
    assert layout.size == size + LENGTH_BYTES
    found = [(at - LENGTH_BYTES, width, name) for at, width, name in described(layout)]
    assert found == table(fields)
    assert covers(layout, LENGTH_BYTES + 1)


def test_every_message_but_the_system_event_names_its_symbol_at_the_same_offset():
    for label, (layout,) in FEED.message_types.items():
        if label == "S":
            assert layout.symbol == ""
        else:
            symbol = layout.by_name[layout.symbol]
            assert (symbol.at - LENGTH_BYTES, symbol.size, symbol.kind) == (10, 8, "c")
