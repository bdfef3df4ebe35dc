"""NYSE Integrated Feed XDP 2.1.g: the offset of every field, by the public definition's tables.

Offsets count from the message's size field, which is part of the message's size.
"""

import pytest

from feedhandler.codecs import load_feed
from tests.support.feed_checks import covers, described, every_layout, table

FEED = load_feed("nyse-integrated-xdp")

HEADER = """0+2 PktSize  2+1 DeliveryFlag  3+1 NumberMsgs  4+4 SeqNum  8+4 SendTime
    12+4 SendTimeNS"""

#: Layout: message type, whole size, fields.
MESSAGES = {
    "sequence_reset": (
        1,
        14,
        "4+4 source_time  8+4 source_time_ns  12+1 product_id  13+1 channel_id",
    ),
    "source_time_reference": (
        2,
        16,
        "4+4 id  8+4 symbol_seq_num  12+4 source_time",
    ),
    "symbol_index_mapping": (
        3,
        44,
        """4+4 symbol_index  8+11 symbol  19+1 reserved_1  20+2 market_id  22+1 system_id
        23+1 exchange_code  24+1 price_scale_code  25+1 security_type  26+2 lot_size
        28+4 prev_close_price  32+4 prev_close_volume  36+1 price_resolution  37+1 round_lot
        38+2 mpv  40+2 unit_of_trade  42+2 reserved_2""",
    ),
    "retransmission_request": (
        10,
        24,
        "4+4 begin_seq_num  8+4 end_seq_num  12+10 source_id  22+1 product_id  23+1 channel_id",
    ),
    "request_response": (
        11,
        29,
        """4+4 request_seq_num  8+4 begin_seq_num  12+4 end_seq_num  16+10 source_id
        26+1 product_id  27+1 channel_id  28+1 status""",
    ),
    "heartbeat_response": (
        12,
        14,
        "4+10 source_id",
    ),
    "symbol_index_mapping_request": (
        13,
        21,
        """4+4 symbol_index  8+10 source_id  18+1 product_id  19+1 channel_id
        20+1 retransmit_method""",
    ),
    "refresh_request": (
        15,
        20,
        "4+4 symbol_index  8+10 source_id  18+1 product_id  19+1 channel_id",
    ),
    "message_unavailable": (
        31,
        14,
        "4+4 begin_seq_num  8+4 end_seq_num  12+1 product_id  13+1 channel_id",
    ),
    "symbol_clear": (
        32,
        20,
        "4+4 source_time  8+4 source_time_ns  12+4 symbol_index  16+4 next_source_seq_num",
    ),
    "security_status": (
        34,
        46,
        """4+4 source_time  8+4 source_time_ns  12+4 symbol_index  16+4 symbol_seq_num
        20+1 security_status  21+1 halt_condition  22+4 reserved_4  26+4 price_1  30+4 price_2
        34+1 ssr_triggering_exchange_id  35+4 ssr_triggering_volume  39+4 time  43+1 ssr_state
        44+1 market_state  45+1 session_state""",
    ),
    "refresh_header": (
        35,
        16,
        """4+2 current_refresh_pkt  6+2 total_refresh_pkts  8+4 last_seq_num
        12+4 last_symbol_seq_num""",
    ),
    "refresh_header_short": (35, 8, "4+2 current_refresh_pkt  6+2 total_refresh_pkts"),
    "add_order": (
        100,
        39,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+8 order_id  24+4 price
        28+4 volume  32+1 side  33+5 firm_id  38+1 num_parity_splits""",
    ),
    "modify_order": (
        101,
        35,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+8 order_id  24+4 price
        28+4 volume  32+1 position_change  33+1 prev_price_parity_splits
        34+1 new_price_parity_splits""",
    ),
    "replace_order": (
        104,
        42,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+8 order_id
        24+8 new_order_id  32+4 price  36+4 volume  40+1 prev_price_parity_splits
        41+1 new_price_parity_splits""",
    ),
    "delete_order": (
        102,
        25,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+8 order_id
        24+1 num_parity_splits""",
    ),
    "trade_cancel": (
        112,
        20,
        "4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+4 trade_id",
    ),
    "cross_trade": (
        111,
        29,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+4 cross_id  20+4 price
        24+4 volume  28+1 cross_type""",
    ),
    "cross_correction": (
        113,
        24,
        "4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+4 cross_id  20+4 volume",
    ),
    "retail_price_improvement": (
        114,
        17,
        "4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+1 rpi_indicator",
    ),
    "add_order_refresh": (
        106,
        43,
        """4+4 source_time  8+4 source_time_ns  12+4 symbol_index  16+4 symbol_seq_num
        20+8 order_id  28+4 price  32+4 volume  36+1 side  37+5 firm_id  42+1 num_parity_splits""",
    ),
    "imbalance": (
        105,
        67,
        """4+4 source_time  8+4 source_time_ns  12+4 symbol_index  16+4 symbol_seq_num
        20+4 reference_price  24+4 paired_qty  28+4 total_imbalance_qty  32+4 market_imbalance_qty
        36+2 auction_time  38+1 auction_type  39+1 imbalance_side
        40+4 continuous_book_clearing_price  44+4 closing_only_clearing_price  48+4 ssr_filing_price
        52+4 indicative_match_price  56+4 upper_collar  60+4 lower_collar  64+1 auction_status
        65+1 freeze_status  66+1 num_extensions""",
    ),
    "order_execution": (
        103,
        42,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+8 order_id  24+4 trade_id
        28+4 price  32+4 volume  36+1 printable_flag  37+1 num_parity_splits  38+4 db_exec_id""",
    ),
    "non_displayed_trade": (
        110,
        33,
        """4+4 source_time_ns  8+4 symbol_index  12+4 symbol_seq_num  16+4 trade_id  20+4 price
        24+4 volume  28+1 printable_flag  29+4 db_exec_id""",
    ),
    "stock_summary": (
        223,
        36,
        """4+4 source_time  8+4 source_time_ns  12+4 symbol_index  16+4 high_price  20+4 low_price
        24+4 open  28+4 close  32+4 total_volume""",
    ),
}


def test_the_header_has_every_field_at_its_offset():
    assert FEED.header.size == 16
    assert described(FEED.header) == table(HEADER)
    assert covers(FEED.header, 0)


def test_exactly_the_messages_of_the_tables_are_described():
    assert {(each.name, each.code) for each in every_layout(FEED)} == {
        (name, code) for name, (code, _, _) in MESSAGES.items()
    }


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_of_a_message_is_at_its_offset(name: str):
    _, size, fields = MESSAGES[name]
    layout = FEED.layout(name)
    assert layout.size == size
    assert described(layout) == table(fields)
    assert covers(layout, 4)


def test_the_packet_of_unavailable_messages_holds_one_message_of_that_type():
    control = FEED.controls[21]
    assert control.size == 14
    assert described(control)[:2] == table("0+2 MsgSize  2+2 MsgType")
    assert described(control)[2:] == described(FEED.layout("message_unavailable"))
