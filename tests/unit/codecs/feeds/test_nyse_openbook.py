"""NYSE OpenBook Ultra at work: real packets against their text decodes, and encoding."""

import random
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from feedhandler.codecs import BadPacket, PacketKind, Reject, load_feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import check_messages, parse_header
from tests.support.feed_checks import (
    check_against_decode,
    check_header,
    read_decode,
    read_packet,
    reencode,
)
from tests.support.scanners import index_of
from tests.support.venues import OWN_CAPTURES

FEED = load_feed("nyse-openbook-ultra")
DAY = date(2017, 9, 11)
PACKETS = ["DeltaUpdateMessage", "FullUpdateMessage", "HeartbeatMessage"]
PACKETS += ["SequenceNumberResetMessage"]

#: What the dissector calls the header's fields.
HEADER_NAMES = {
    "Packet Size": "msg_size",
    "Message Type": "msg_type",
    "Sequence Number": "msg_seq_num",
    "Timestamp": "send_time",
    "Retransmission Flag": "retrans_flag",
    "Message Count": "num_body_entries",
    "Link Flag": "link_flag",
}


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / OWN_CAPTURES["nyse-openbook-ultra"]


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_a_real_packet_decodes_to_what_its_text_decode_says(folder: Path, name: str):
    _, data = read_packet(folder / f"{name}.pcap")
    decode = read_decode(folder / f"{name}.txt")
    assert f"({len(data)} Bytes)" in decode.key
    packet = FEED.decode_packet(data, DAY)
    (header,) = decode.find("Packet Header")
    check_header(packet.header, header, HEADER_NAMES)
    values = header.values()
    product = next(each for each in FEED.header.named if each.name == "product_id")
    assert product.values[str(packet.header["product_id"])].lower() == values["productid"].lower()
    bodies = [node for group in decode.find("Update Messages") for node in group.nodes]
    assert len(packet.messages) == len(bodies)
    for message, body in zip(packet.messages, bodies, strict=True):
        check_against_decode(message, body, ["updatesize", "deltasize"])
        points = body.find("Price Point")
        assert len(message.price_points) == len(points)
        for element, point in zip(message.price_points, points, strict=True):
            check_against_decode(element, point)


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_a_real_packet_encodes_back_to_its_very_bytes(folder: Path, name: str):
    _, data = read_packet(folder / f"{name}.pcap")
    assert reencode(FEED, data) == data


@pytest.mark.captures
@pytest.mark.parametrize("name", PACKETS)
def test_send_times_lie_just_before_the_capture_times(folder: Path, name: str):
    captured_ns, data = read_packet(folder / f"{name}.pcap")
    sent_ns = FEED.decode_packet(data, DAY).send_time_ns
    assert sent_ns is not None
    assert 0 <= captured_ns - sent_ns < 2_000_000


@pytest.mark.captures
def test_the_real_deltas_have_times_prices_and_numbers_of_their_symbol(folder: Path):
    captured_ns, data = read_packet(folder / "DeltaUpdateMessage.pcap")
    packet = FEED.decode_packet(data, DAY)
    assert (packet.sequence, packet.next_sequence) == (499_977, 499_978)
    assert packet.types == [231] * 21
    assert packet.symbols == [44_936] * 21
    assert packet.sequences == [499_977] * 21
    assert [message.source_seq_num for message in packet.messages] == list(range(16_177, 16_198))
    first = packet.messages[0]
    assert first.price_points[0].price_numerator.decimal == Decimal("171.6")
    assert 0 < captured_ns - first.event_time_ns < 100_000_000


@pytest.mark.captures
def test_a_full_update_names_its_symbol_and_the_scale_of_its_prices(folder: Path):
    _, data = read_packet(folder / "FullUpdateMessage.pcap")
    index = index_of(FEED, data)
    (reference,) = FEED.references.values()
    for i, symbol in enumerate([(9_053, "BSAC"), (40_767, "BSMX")]):
        message = data[index.offsets[i] : index.offsets[i] + index.sizes[i]]
        assert reference.read(message) == symbol
        assert reference.read_scales(message) == {"reference": 4}
        assert index.symbols[i] == symbol[0]


@pytest.mark.captures
def test_the_real_heartbeat_and_reset_say_what_comes_next(folder: Path):
    heartbeat = FEED.decode_packet(read_packet(folder / "HeartbeatMessage.pcap")[1])
    assert heartbeat.kind == PacketKind.HEARTBEAT
    assert (heartbeat.sequence, heartbeat.next_sequence) == (0, 0)
    reset = FEED.decode_packet(read_packet(folder / "SequenceNumberResetMessage.pcap")[1])
    assert reset.kind == PacketKind.RESET
    assert (reset.sequence, reset.next_sequence) == (1, 2)


def test_the_length_leaves_out_its_own_two_bytes_and_a_message_size_includes_them():
    message = FEED.encode_message(231, price_points=[{"volume": 5}])
    assert int.from_bytes(message[:2], "big") == len(message) == 48
    packet = FEED.encode_packet(sequence=3, messages=[message], packet_type=231)
    assert int.from_bytes(packet[:2], "big") == len(packet) - 2 == 62


def test_price_points_take_their_scale_from_the_message_around_them():
    message = FEED.encode_message(
        230, price_scale_code=2, price_points=[{"price_numerator": "17.05", "side": "B"}]
    )
    record = FEED.decode_message(message, type=230)
    assert (record.price_points[0].price_numerator.raw, record.price_points[0].side) == (1705, "B")
    assert str(record.price_points[0].price_numerator) == "17.05"


def test_a_packet_of_unknown_type_or_with_a_wrong_count_is_rejected():
    message = FEED.encode_message(231)
    for packet_type, count, reason in [
        (232, 1, Reject.UNKNOWN_PACKET_TYPE),
        (231, 2, Reject.COUNT_MISMATCH),
        (231, 0, Reject.COUNT_MISMATCH),
        (10, 1, Reject.CONTROL_SHORT),
    ]:
        data = FEED.encode_packet(messages=[message], packet_type=packet_type, count=count)
        with pytest.raises(BadPacket) as caught:
            FEED.decode_packet(data)
        assert caught.value.reason == reason


def test_a_little_endian_packet_is_rejected_not_misread():
    data = bytearray(FEED.encode_packet(messages=[FEED.encode_message(231)], packet_type=231))
    data[0:2] = data[1::-1]
    with pytest.raises(BadPacket):
        FEED.decode_packet(bytes(data))


def test_cutting_or_lengthening_a_packet_anywhere_is_noticed():
    rng = random.Random(231)
    points = [{"volume": rng.randrange(1 << 32)} for _ in range(3)]
    message = FEED.encode_message(231, price_points=points)
    data = FEED.encode_packet(sequence=9, messages=[message, message], packet_type=231)
    header = PacketHeader()
    for size in [*range(len(data)), len(data) + 1]:
        cut = (data + b"\0")[:size]
        assert parse_header(FEED.table, cut, 0, size, header) != Reject.FINE
        if size >= 16:
            patched = (size - 2).to_bytes(2, "big") + cut[2:]
            assert parse_header(FEED.table, patched, 0, size, header) == Reject.FINE
            assert check_messages(FEED.table, patched, 0, header) != Reject.FINE
