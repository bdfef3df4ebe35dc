"""NYSE Integrated Feed XDP at work: real packets against their text decodes, and encoding."""

from decimal import Decimal
from pathlib import Path

import pytest

from feedhandler.codecs import BadPacket, PacketKind, Price, Reject, load_feed
from tests.support.feed_checks import (
    check_against_decode,
    check_header,
    read_decode,
    read_packet,
    reencode,
)
from tests.support.venues import OWN_CAPTURES

FEED = load_feed("nyse-integrated-xdp")
PACKETS = {
    "AddOrderMessage": 100,
    "ImbalanceMessage": 105,
    "OrderExecutionMessage": 103,
    "ReplaceOrderMessage": 104,
    "SecurityStatusMessage": 34,
    "SequenceResetMessage": 1,
    "SourceTimeReferenceMessage": 2,
    "SymbolIndexMappingMessage": 3,
}

#: What the dissector calls the header's fields.
HEADER_NAMES = {
    "Packet Size": "pkt_size",
    "Delivery Flag": "delivery_flag",
    "Message Count": "number_msgs",
    "Sequence Number": "seq_num",
    "Timestamp": "send_time",
    "Nanoseconds": "send_time_ns",
}


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / OWN_CAPTURES["nyse-integrated-xdp"]


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_a_real_packet_decodes_to_what_its_text_decode_says(folder: Path, name: str):
    _, data = read_packet(folder / f"{name}.pcap")
    decode = read_decode(folder / f"{name}.txt")
    assert f"({len(data)} Bytes)" in decode.key
    packet = FEED.decode_packet(data)
    (header,) = decode.find("Packet Header")
    check_header(packet.header, header, HEADER_NAMES)
    nodes = decode.find("Message")
    assert packet.types == [PACKETS[name]]
    for message, node in zip(packet.messages, nodes, strict=True):
        (head,), (body,) = node.find("Message Header"), node.find(" Message")
        assert int(head.values()["messagesize"]) == message.layout.size
        assert head.values()["messagetype"].endswith(f"({PACKETS[name]})")
        check_against_decode(message, body)


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_a_real_packet_encodes_back_to_its_very_bytes(folder: Path, name: str):
    _, data = read_packet(folder / f"{name}.pcap")
    assert reencode(FEED, data) == data


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_send_times_lie_just_before_the_capture_times(folder: Path, name: str):
    captured_ns, data = read_packet(folder / f"{name}.pcap")
    sent_ns = FEED.decode_packet(data).send_time_ns
    assert sent_ns is not None
    assert 0 <= captured_ns - sent_ns < 2_000_000


@pytest.mark.captures
def test_the_real_reset_is_a_message_of_its_own_number(folder: Path):
    packet = FEED.decode_packet(read_packet(folder / "SequenceResetMessage.pcap")[1])
    assert packet.kind == PacketKind.RESET
    assert (packet.sequence, packet.next_sequence, packet.types) == (1, 2, [1])


@pytest.mark.captures
def test_the_real_mapping_names_its_symbol_and_the_scale_of_its_prices(folder: Path):
    packet = FEED.decode_packet(read_packet(folder / "SymbolIndexMappingMessage.pcap")[1])
    (mapping,) = packet.messages
    message = FEED.encode_message(mapping)
    (reference,) = FEED.references.values()
    assert reference.read(message) == (1_169, "ABG")
    assert reference.read_scales(message) == {"reference": 4}
    assert mapping.prev_close_price.decimal == Decimal("50.85")
    assert packet.symbols == [1_169]


@pytest.mark.captures
def test_a_price_has_a_value_once_the_mapping_has_given_its_scale(folder: Path):
    _, data = read_packet(folder / "AddOrderMessage.pcap")
    assert FEED.decode_packet(data).messages[0].price == Price(488_700, None)
    assert FEED.to_dicts(data)[0]["price_raw"] == 488_700
    assert FEED.decode_packet(data, scales={2_511: 4}).messages[0].price.decimal == Decimal("48.87")
    assert FEED.to_dicts(data, scales={2_511: 4})[0]["price"] == 48.87


def test_lengths_of_packets_and_messages_include_themselves():
    message = FEED.encode_message(100)
    assert int.from_bytes(message[:2], "little") == len(message) == 39
    packet = FEED.encode_packet(sequence=3, messages=[message])
    assert int.from_bytes(packet[:2], "little") == len(packet) == 55


def test_sequence_numbers_count_messages():
    messages = [FEED.encode_message(102), FEED.encode_message(112), FEED.encode_message(2)]
    packet = FEED.decode_packet(FEED.encode_packet(sequence=40, messages=messages))
    assert (packet.sequence, packet.next_sequence) == (40, 43)
    assert packet.sequences == [40, 41, 42]


@pytest.mark.parametrize("flags", [10, 11, 13, 15, 17, 18, 19, 20])
def test_every_delivery_flag_of_market_data_is_data(flags: int):
    message = FEED.encode_message(100)
    packet = FEED.decode_packet(FEED.encode_packet(messages=[message], packet_type=flags))
    assert (packet.kind, packet.flags, packet.types) == (PacketKind.DATA, flags, [100])


def test_a_packet_without_messages_is_a_heartbeat_that_tells_no_number():
    for data in [
        FEED.encode_packet(sequence=8, kind="heartbeat"),
        FEED.encode_packet(sequence=8, kind="data"),
    ]:
        packet = FEED.decode_packet(data)
        assert packet.kind == PacketKind.HEARTBEAT
        assert (packet.next_sequence, packet.messages) == (0, [])


def test_unavailable_messages_come_in_a_control_packet():
    message = FEED.encode_message(31, begin_seq_num=5, end_seq_num=9, channel_id=2)
    data = FEED.encode_packet(kind="control", messages=[message])
    packet = FEED.decode_packet(data)
    assert (packet.kind, packet.next_sequence) == (PacketKind.CONTROL, 0)
    assert (packet.control.msg_type, packet.control.begin_seq_num) == (31, 5)
    assert (packet.control.end_seq_num, packet.control.channel_id) == (9, 2)


def test_an_unknown_delivery_flag_is_rejected():
    with pytest.raises(BadPacket) as caught:
        FEED.decode_packet(FEED.encode_packet(packet_type=99))
    assert caught.value.reason == Reject.UNKNOWN_PACKET_TYPE


def test_the_two_refresh_headers_are_told_apart_by_their_size():
    long = FEED.encode_message("refresh_header", current_refresh_pkt=1, last_symbol_seq_num=77)
    short = FEED.encode_message("refresh_header_short", current_refresh_pkt=2)
    packet = FEED.decode_packet(FEED.encode_packet(messages=[long, short], packet_type=18))
    first, second = packet.messages
    assert (first.layout.name, first.last_symbol_seq_num) == ("refresh_header", 77)
    assert (second.layout.name, second.current_refresh_pkt) == ("refresh_header_short", 2)


def test_a_longer_message_of_a_later_version_is_read_by_its_layout():
    message = bytearray(FEED.encode_message(105, symbol_index=6, num_extensions=3) + b"\x01" * 6)
    message[0:2] = (73).to_bytes(2, "little")
    packet = FEED.decode_packet(FEED.encode_packet(messages=[bytes(message)] * 2))
    assert [each.num_extensions for each in packet.messages] == [3, 3]
    assert packet.symbols == [6, 6]


@pytest.mark.parametrize(
    ("sent", "within", "event"),
    [
        (1_506_695_071_763_780_000, 726_504_000, 1_506_695_071_726_504_000),
        (1_506_695_071_763_780_000, 763_780_000, 1_506_695_071_763_780_000),
        (1_506_695_071_000_100_000, 999_900_000, 1_506_695_070_999_900_000),
    ],
)
def test_an_order_happened_in_the_second_before_its_packet_was_sent(
    sent: int, within: int, event: int
):
    message = FEED.encode_message(100, source_time_ns=within)
    packet = FEED.decode_packet(FEED.encode_packet(messages=[message], send_time=sent))
    assert packet.messages[0].event_time_ns == event


def test_messages_that_tell_the_second_have_their_full_time_from_it():
    both = FEED.encode_message(34, source_time=1_504_760_601, source_time_ns=38_886_000)
    second = FEED.encode_message(2, source_time=1_504_092_602)
    packet = FEED.decode_packet(FEED.encode_packet(messages=[both, second]))
    assert packet.messages[0].event_time_ns == 1_504_760_601_038_886_000
    assert packet.messages[1].event_time_ns == 1_504_092_602_000_000_000
