"""A feed's convenient side: packets, records, prices, times, names, and clear errors."""

import zlib
from datetime import date
from decimal import Decimal

import msgspec
import pytest

from feedhandler.codecs import (
    BadPacket,
    PacketKind,
    Price,
    Reject,
    UnknownMessage,
    UsageError,
    feed_table,
    key_word,
    load_feed,
    pack_messages,
)
from feedhandler.codecs.times import SECOND_NS, DecodeContext, day_of, day_start_ns, time_reader
from tests.support.unsequenced import setting_aside

UTP = load_feed("euronext-utp-md")
IEX = load_feed("iex-deep")
OPENBOOK = load_feed("nyse-openbook-ultra")
SUMMER = date(2024, 7, 1)
WINTER = date(2024, 1, 15)


# -- packets and JSON ------------------------------------------------------------------------------


def test_a_packet_becomes_json_ready_objects_with_full_times_and_scaled_prices():
    message = UTP.encode_message(
        230, symbol_index=7, price=1050, price_scale_code=2, side="B", source_time=3_600_000
    )
    data = UTP.encode_packet(sequence=5, service=104, messages=[message])
    (plain,) = UTP.to_dicts(data, SUMMER, names={7: "AIRF.XPAR"})
    assert (plain["seq"], plain["type"], plain["name"]) == (5, 230, "order_update")
    assert (plain["symbol"], plain["service"]) == ("AIRF.XPAR", 104)
    assert (plain["price"], plain["side"]) == (10.5, "B")
    # 01:00 in Paris in summer is 23:00 UTC of the day before.
    assert plain["event_time_ns"] == 1_719_788_400 * SECOND_NS - 3600 * SECOND_NS + 3600 * SECOND_NS
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain


def test_without_a_day_times_since_midnight_are_unknown():
    message = UTP.encode_message(230, source_time=5)
    packet = UTP.decode_packet(UTP.encode_packet(messages=[message], send_time=5))
    assert packet.send_time_ns is None
    assert packet.messages[0].event_time_ns is None
    assert packet.messages[0].source_time == 5


def test_header_fields_are_given_by_name():
    packet = UTP.decode_packet(
        UTP.encode_packet(sequence=5, service=104, send_time=3_600_000), WINTER
    )
    assert packet.header["packet_seq_num"] == 5
    assert packet.header["service_id"] == 104
    assert packet.send_time_ns == day_start_ns(WINTER, "Europe/Paris") + 3600 * SECOND_NS


def test_heartbeats_and_resets_become_one_object_each():
    (heartbeat,) = UTP.to_dicts(UTP.encode_packet(kind="heartbeat", sequence=4, service=101))
    assert (heartbeat["type"], heartbeat["seq"], heartbeat["symbol"]) == ("heartbeat", 4, None)
    (reset,) = UTP.to_dicts(UTP.encode_packet(kind="reset", sequence=1))
    assert (reset["type"], reset["next_seq_number"]) == ("reset", 2)


def test_messages_that_cannot_be_decoded_are_shown_as_bytes():
    short = bytes.fromhex("000600e600000007")
    unknown = bytes.fromhex("000203e7")
    packet = UTP.decode_packet(UTP.encode_packet(messages=[short, unknown]))
    assert packet.messages == [
        UnknownMessage(230, short, "shorter than its layout"),
        UnknownMessage(999, unknown, "unknown message type"),
    ]
    plain = UTP.to_dicts(UTP.encode_packet(messages=[unknown]))
    assert plain[0]["data"] == unknown.hex()


def test_a_bad_packet_raises_with_its_reason():
    data = UTP.encode_packet(messages=[UTP.encode_message(551)], count=2)
    with pytest.raises(BadPacket) as caught:
        UTP.decode_packet(data)
    assert caught.value.reason == Reject.COUNT_MISMATCH
    with pytest.raises(BadPacket, match="fewer bytes"):
        UTP.decode_packet(b"")


def compressed_packet(body: bytes, count: int) -> bytes:
    return UTP.encode_packet(sequence=3, flags=17, count=count, body=zlib.compress(body))


def test_a_compressed_packet_is_inflated():
    messages = [UTP.encode_message(140, symbol_index=i) for i in range(3)]
    packet = UTP.decode_packet(compressed_packet(b"".join(messages), 3))
    assert [message.symbol_index for message in packet.messages] == [0, 1, 2]
    assert packet.flags == 17


def test_a_compressed_body_is_bounded_and_must_be_a_stream():
    with pytest.raises(BadPacket, match="inflated packet"):
        UTP.decode_packet(compressed_packet(bytes(1_000_000), 3))
    with pytest.raises(BadPacket, match="compressed packet"):
        UTP.decode_packet(UTP.encode_packet(flags=17, count=1, body=b"no stream"))


def test_a_group_of_elements_decodes_to_records_with_scaled_prices():
    message = OPENBOOK.encode_message(
        230,
        symbol_index=9053,
        price_scale_code=4,
        price_points=[{"price_numerator": Decimal("171.6"), "volume": 5}],
    )
    packet = OPENBOOK.decode_packet(OPENBOOK.encode_packet(messages=[message], packet_type=230))
    (record,) = packet.messages
    (point,) = record.price_points
    assert (point.price_numerator, point.volume) == (Price(1_716_000, 4), 5)
    assert record.to_dict()["price_points"][0]["price_numerator"] == 171.6


# -- symbols and types -----------------------------------------------------------------------------


def test_symbols_become_words_of_routing_keys():
    assert UTP.symbol_text(10616) == "10616"
    assert UTP.symbol_text(feed_table.NO_SYMBOL) == "-"
    assert UTP.symbol_name(feed_table.NO_SYMBOL) is None
    symbol = int.from_bytes(b"BRK.B   ", "big")
    assert IEX.symbol_name(symbol) == "BRK.B"
    assert IEX.symbol_text(symbol) == "BRK_B"
    assert IEX.symbol_text(int.from_bytes(b"        ", "big")) == "-"


def test_no_symbol_holds_what_addresses_reserve():
    assert key_word("AIRF") == "AIRF"
    assert key_word("A.B*C#D,E?F&G H-I=") == "A_B_C_D_E_F_G_H-I="
    for text in (b"AB#CD   ", b"*       ", b"A,B?C&D "):
        word = IEX.symbol_text(int.from_bytes(text, "big"))
        assert len(word) == len(text.strip())
        assert not set(word) & set(".,*#?& ")


def test_message_types_are_numbers_or_characters():
    assert UTP.type_label(230) == 230
    assert UTP.type_code("230") == UTP.type_code(230) == 230
    assert IEX.type_label(ord("P")) == "P"
    assert IEX.type_code("8") == ord("8")
    assert IEX.type_label(ord("~")) == "~"
    assert UTP.type_code("00230") == 230
    for label in ("P", "\xb2", "65536", "9" * 5_000):
        with pytest.raises(UsageError, match="no message type"):
            UTP.type_code(label)


def test_describe_tells_a_feed_in_a_nutshell():
    plain = UTP.describe()
    assert plain["name"] == "euronext-utp-md"
    assert (plain["messages"], plain["layouts"], plain["controls"]) == (23, 24, 7)
    assert plain["byte_order"] == "big"


# -- encoding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("price", [1050, Price(1050, 2), Decimal("10.5"), 10.5, "10.50"])
def test_a_price_may_be_given_in_any_exact_form(price):
    data = UTP.encode_message(230, price=price, price_scale_code=2)
    assert UTP.decode_message(data).price == Price(1050, 2)


def test_a_price_is_never_rounded():
    with pytest.raises(UsageError, match="more than 2 decimals"):
        UTP.encode_message(230, price=Decimal("10.505"), price_scale_code=2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"colour": 1}, "has no field colour"),
        ({"volume": -1}, "volume = -1"),
        ({"volume": 2**32}, "volume = 4294967296"),
        ({"side": "BS"}, "longer than 1 bytes"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields, reason):
    with pytest.raises(UsageError, match=reason):
        UTP.encode_message(230, **fields)


def test_what_a_feed_does_not_have_is_refused_by_name():
    with pytest.raises(UsageError, match="no message type 999"):
        UTP.encode_message(999)
    with pytest.raises(UsageError, match="no control packet 99"):
        UTP.encode_control(99)
    with pytest.raises(UsageError, match="at least 36 bytes"):
        UTP.layout(530, 20)
    with pytest.raises(UsageError, match="do not carry their type"):
        OPENBOOK.decode_message(b"\0\0\0\0")


def test_full_times_of_a_record_are_left_out_of_its_bytes():
    data = UTP.encode_message(230, source_time=5)
    record = UTP.decode_message(data, day=SUMMER)
    assert record.event_time_ns is not None
    assert UTP.encode_message(record) == data


def test_messages_are_cut_into_runs_that_fit_a_packet():
    runs = pack_messages([b"a" * 40, b"b" * 60, b"c", b"d" * 200, b"e"], 100)
    assert [[len(message) for message in run] for run in runs] == [[40, 60], [1], [200], [1]]
    assert [len(run) for run in pack_messages([b"x"] * 256, 1000)] == [255, 1]
    assert pack_messages([], 100) == []


# -- prices and times ------------------------------------------------------------------------------


def test_a_price_is_exact():
    price = Price(123_456_789, 4)
    assert price.decimal == Decimal("12345.6789")
    assert float(price) == 12345.6789
    assert str(price) == "12345.6789"


def test_a_price_whose_scale_is_unknown_has_no_value_yet():
    price = Price(5, None)
    assert not price.known
    assert str(price) == "5 (scale unknown)"
    with pytest.raises(UsageError, match="scale of price 5"):
        float(price)


@pytest.mark.parametrize(
    ("day", "hours"), [(SUMMER, 2), (WINTER, 1), (date(2024, 3, 31), 1), (date(2024, 10, 27), 2)]
)
def test_midnight_follows_the_zones_offset_at_midnight(day, hours):
    utc_midnight = (day - date(1970, 1, 1)).days * 86_400
    assert day_start_ns(day, "Europe/Paris") == (utc_midnight - hours * 3600) * SECOND_NS


def test_a_moment_belongs_to_the_day_of_its_zone():
    just_before_midnight_utc = (day_start_ns(SUMMER, "UTC")) - 1
    assert day_of(just_before_midnight_utc, "Europe/Paris") == SUMMER
    assert day_of(just_before_midnight_utc, "UTC") == date(2024, 6, 30)


def test_a_time_within_the_second_lies_before_the_packet_was_sent():
    reader = time_reader("send_second", [(0, 1)])
    sent = 10 * SECOND_NS + 500
    assert reader([400], DecodeContext(None, sent)) == 10 * SECOND_NS + 400
    assert reader([501], DecodeContext(None, sent)) == 9 * SECOND_NS + 501
    assert reader([400], DecodeContext(None, None)) is None


def test_iex_times_need_no_day():
    stamp = 1_696_249_800_123_456_789
    message = IEX.encode_message("8", timestamp=stamp, symbol="A")
    packet = IEX.decode_packet(IEX.encode_packet(sequence=1, messages=[message], send_time=stamp))
    assert packet.send_time_ns == stamp
    assert packet.kind == PacketKind.DATA
    assert stamp in packet.messages[0].to_dict().values()


def test_a_packet_outside_the_sequence_is_encoded_and_decoded_as_one() -> None:
    feed = setting_aside("iex-deep")
    made = feed.encode_packet(kind="unsequenced", messages=[feed.encode_message("S")] * 2)
    packet = feed.decode_packet(made)
    assert (packet.kind, packet.sequence, packet.sequences) == (PacketKind.UNSEQUENCED, 0, [0, 0])
    assert [(row["seq"], row["unsequenced"]) for row in feed.to_dicts(made)] == [(0, True)] * 2
    assert feed.describe()["unsequenced"] == 0
    plain = load_feed("iex-deep")
    assert "unsequenced" not in plain.to_dicts(made)[0]
    with pytest.raises(UsageError, match="sets no sequence number aside"):
        plain.encode_packet(kind="unsequenced")


def test_packets_that_are_walked_at_once_do_not_share_what_they_are_scanned_with() -> None:
    packets = [IEX.encode_packet(sequence=each, messages=[]) for each in (3, 4)]
    one, other = IEX.scanned(packets[0]), IEX.scanned(packets[1])
    (_, first, _), (_, second, _) = next(one), next(other)
    assert IEX.decode_packet(packets[0]).sequence == 3
    assert (first.sequence, second.sequence) == (3, 4)
    assert [*one, *other] == []
    (_, third, _) = next(IEX.scanned(packets[1]))
    assert third in (first, second)  # lent again: none is made for each packet
