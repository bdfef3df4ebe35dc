"""NYSE OpenBook Ultra: the offset of every field, against the tables of the public definitions.

Market data and the reset by 2.1.b, the other control packets by 2.1.k. Offsets count from the
message's size field, those of control packets from the end of the packet header.
"""

import pytest

from feedhandler.codecs import load_feed
from tests.support.feed_checks import covers, described, table

FEED = load_feed("nyse-openbook-ultra")

HEADER = """0+2 MsgSize  2+2 MsgType  4+4 MsgSeqNum  8+4 SendTime  12+1 ProductID  13+1 RetransFlag
    14+1 NumBodyEntries  15+1 LinkFlag"""

#: Message type: size without price points, fields, the fields of a price point.
MESSAGES = {
    230: (
        34,
        """2+4 symbol_index  6+4 source_time  10+2 source_time_micro_secs  12+4 symbol_seq_num
        16+1 source_session_id  17+11 symbol  28+1 price_scale_code  29+1 quote_condition
        30+1 trading_status  31+1 reserved_1  32+2 mpv""",
        "0+4 price_numerator  4+4 volume  8+2 num_orders  10+1 side  11+1 reserved_1",
    ),
    231: (
        20,
        """2+4 symbol_index  6+4 source_time  10+2 source_time_micro_secs  12+4 source_seq_num
        16+1 source_session_id  17+1 quote_condition  18+1 trading_status  19+1 price_scale_code""",
        """0+4 price_numerator  4+4 volume  8+4 chg_qty  12+2 num_orders  14+1 side
        15+1 reason_code  16+4 link_id_1  20+4 link_id_2  24+4 link_id_3""",
    ),
}
POINT_BYTES = {230: 12, 231: 28}

CONTROLS = {
    1: (4, "0+4 next_seq_number"),
    2: (0, ""),
    5: (8, "0+4 begin_seq_num  4+4 end_seq_num"),
    10: (28, "0+4 source_seq_num  4+20 source_id  24+1 status  25+1 reject_reason  26+2 filler_2"),
    20: (28, "0+4 begin_seq_num  4+4 end_seq_num  8+20 source_id"),
    22: (36, "0+16 symbol  16+20 source_id"),
    24: (20, "0+20 source_id"),
    27: (26, "0+20 source_id  20+4 symbol_index  24+2 msg_type"),
    34: (24, "0+20 source_id  20+4 symbol_index"),
    35: (16, "0+11 symbol  11+1 filler_1  12+4 symbol_index"),
}


def test_the_header_has_every_field_at_its_offset():
    assert FEED.header.size == 16
    assert described(FEED.header) == table(HEADER)
    assert covers(FEED.header, 0)


def test_exactly_the_messages_and_controls_of_the_tables_are_described():
    assert set(FEED.message_types) == set(MESSAGES)
    assert set(FEED.controls) == set(CONTROLS)


@pytest.mark.parametrize("code", MESSAGES)
def test_every_field_of_a_message_is_at_its_offset(code: int):
    size, fields, point = MESSAGES[code]
    layout = FEED.layout(code)
    assert layout.size == size
    assert described(layout) == table(fields)
    assert covers(layout, 2)
    assert layout.group is not None
    assert (layout.size, layout.group.size) == (size, POINT_BYTES[code])
    assert described(layout.group) == table(point)
    assert covers(layout.group, 0)


@pytest.mark.parametrize("code", CONTROLS)
def test_every_field_of_a_control_packet_is_at_its_offset(code: int):
    size, fields = CONTROLS[code]
    layout = FEED.controls[code]
    assert layout.size == size
    assert described(layout) == table(fields)
    assert covers(layout, 0)
