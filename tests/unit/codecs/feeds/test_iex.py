"""IEX DEEP at work: a real capture against an independent decode with dpkt and struct."""

import gzip
import struct
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import dpkt
import pytest

from feedhandler.codecs import BadPacket, PacketKind, Price, Reject, load_feed
from feedhandler.codecs.feed_table import MessageIndex, PacketHeader
from feedhandler.codecs.scanner import parse_header, scan_messages
from tests.support.feed_checks import reencode
from tests.support.venues import OWN_CAPTURES

FEED = load_feed("iex-deep")

#: The independent decode: header, and messages by type, as the specifications lay them out.
HEADER = struct.Struct("<BxHIIHHqqq")
BODIES = {
    "S": struct.Struct("<ccq"),
    "D": struct.Struct("<cBq8sIqB"),
    "H": struct.Struct("<ccq8s4s"),
    "I": struct.Struct("<ccq8s"),
    "O": struct.Struct("<ccq8s"),
    "P": struct.Struct("<cBq8sc"),
    "8": struct.Struct("<cBq8sIq"),
    "5": struct.Struct("<cBq8sIq"),
    "T": struct.Struct("<cBq8sIqq"),
}
COUNTS = {"S": 2, "D": 3, "H": 11_311, "I": 11_309, "O": 11_317, "P": 11_594}
COUNTS |= {"8": 1_526, "5": 1_226, "T": 37}


@pytest.fixture(scope="module")
def datagrams(captures: Path) -> list[bytes]:
    """The UDP payloads of the real capture."""
    with gzip.open(captures / OWN_CAPTURES["iex-deep"]) as file:
        frames = [frame for _, frame in dpkt.pcap.Reader(file)]
    return [bytes(dpkt.ethernet.Ethernet(frame).data.data.data) for frame in frames]


def independent(data: bytes) -> Iterator[tuple[str, list[Any]]]:
    """(type, values) of each message in a datagram, text stripped."""
    at = HEADER.size
    while at < len(data):
        (size,) = struct.unpack_from("<H", data, at)
        message = data[at + 2 : at + 2 + size]
        label = chr(message[0])
        values = BODIES[label].unpack(message)[1:]
        yield label, [_text(value) if isinstance(value, bytes) else value for value in values]
        at += 2 + size


def _text(value: bytes) -> str:
    return value.decode() if len(value) == 1 else value.decode().rstrip(" ")


def own(record: Any) -> list[Any]:
    """The same values from our record."""
    return [
        value.raw if isinstance(value, Price) else value
        for value in (getattr(record, each.name) for each in record.layout.named)
    ]


@pytest.mark.captures
def test_every_message_of_the_capture_is_the_one_that_an_independent_decode_finds(
    datagrams: list[bytes],
):
    counts: Counter[int | str] = Counter()
    symbols: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for data in datagrams:
        packet = FEED.decode_packet(data)
        messages = list(independent(data))
        assert packet.types == [label for label, _ in messages]
        assert [own(record) for record in packet.messages] == [values for _, values in messages]
        counts.update(packet.types)
        symbols.update(FEED.symbol_name(symbol) or "" for symbol in packet.symbols)
        expected.update("" if label == "S" else values[2] for label, values in messages)
    assert counts == COUNTS
    assert counts.total() == 48_325
    assert symbols == expected


@pytest.mark.captures
def test_the_capture_has_no_gap_and_its_heartbeats_tell_the_next_number(datagrams: list[bytes]):
    header, index = PacketHeader(), MessageIndex()
    expected, heartbeats, messages = None, 0, 0
    for data in datagrams:
        assert parse_header(FEED.table, data, 0, len(data), header) == Reject.FINE
        assert scan_messages(FEED.table, data, 0, header, index) == Reject.FINE
        assert (header.session, header.service) == (1_286_602_752, 1)
        assert expected in (None, header.sequence)
        expected = header.next_sequence
        heartbeats += header.kind == PacketKind.HEARTBEAT
        messages += index.count
        assert (index.unknown, index.short) == (0, 0)
    assert (len(datagrams), heartbeats, messages) == (5_000, 1_264, 48_325)
    assert expected == 48_325 + 1


@pytest.mark.captures
def test_header_fields_are_those_of_an_independent_decode(datagrams: list[bytes]):
    sent = 0
    for data in datagrams[:500]:
        packet = FEED.decode_packet(data)
        assert tuple(packet.header.values()) == HEADER.unpack_from(data)
        assert packet.send_time_ns == packet.header["send_time"]
        assert packet.header["stream_offset"] == sent
        sent += packet.header["payload_length"]


@pytest.mark.captures
def test_datagrams_of_the_capture_encode_back_to_their_very_bytes(
    datagrams: list[bytes],
):
    for data in datagrams[::8]:
        assert reencode(FEED, data) == data


@pytest.mark.captures
def test_events_of_the_capture_happened_before_they_were_sent(datagrams: list[bytes]):
    for data in datagrams[::8]:
        packet = FEED.decode_packet(data)
        assert packet.send_time_ns is not None
        for record in packet.messages:
            assert record.event_time_ns == record.timestamp <= packet.send_time_ns


def test_lengths_leave_out_the_header_and_themselves():
    message = FEED.encode_message("8", symbol="ZIEXT", size=9700, price="99.05")
    assert int.from_bytes(message[:2], "little") == len(message) - 2 == 30
    data = FEED.encode_packet(sequence=1, messages=[message])
    assert HEADER.unpack_from(data)[4] == len(data) - 40 == 32


def test_a_price_is_in_ten_thousandths_and_text_is_padded_with_blanks():
    message = FEED.encode_message("8", symbol="ZIEXT", size=9700, price="99.05")
    assert message[2:] == struct.pack("<cBq8sIq", b"8", 0, 0, b"ZIEXT   ", 9700, 990_500)
    record = FEED.decode_message(message)
    assert record.price.decimal == Decimal("99.05")
    assert record.symbol == "ZIEXT"


def test_numbers_count_messages_and_a_heartbeat_carries_the_next():
    message = FEED.encode_message("O", symbol="A")
    first = FEED.decode_packet(FEED.encode_packet(sequence=1, messages=[message] * 3, session=9))
    heartbeat = FEED.decode_packet(FEED.encode_packet(sequence=4, session=9))
    assert (first.kind, first.next_sequence, first.sequences) == (PacketKind.DATA, 4, [1, 2, 3])
    assert (heartbeat.kind, heartbeat.next_sequence) == (PacketKind.HEARTBEAT, 4)
    assert first.session == heartbeat.session == 9


@pytest.mark.parametrize("header", [{"version": 2}, {"message_protocol_id": 0x8003}])
def test_another_version_or_protocol_is_rejected(header: dict[str, int]):
    with pytest.raises(BadPacket) as caught:
        FEED.decode_packet(FEED.encode_packet(header=header))
    assert caught.value.reason == Reject.WRONG_CONSTANT


def test_symbols_are_words_of_routing_keys():
    message = FEED.encode_message("O", symbol="BRK.B")
    system = FEED.encode_message("S", system_event="O")
    packet = FEED.decode_packet(FEED.encode_packet(messages=[message, system]))
    assert [FEED.symbol_name(symbol) for symbol in packet.symbols] == ["BRK.B", None]
    assert [FEED.symbol_text(symbol) for symbol in packet.symbols] == ["BRK_B", "-"]


def test_an_auction_has_the_time_it_is_scheduled_for():
    message = FEED.encode_message(
        "A", symbol="ZIEXT", reference_price="185.00", scheduled_auction_time=1_696_276_800
    )
    assert len(message) == 82
    record = FEED.decode_message(message)
    assert record.auction_time_ns == 1_696_276_800 * 10**9
    assert float(record.reference_price) == 185.0
