"""The fault of a rejected packet is reported by message, field and value."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedhandler.codecs import BadPacket, Reject, load_feed
from feedhandler.codecs.bad_packet import INFLATED_SIZE_MAX
from feedhandler.codecs.explain import explain
from tests.fuzz.scanner_fuzz import Mutator
from tests.support.feeds import BINARY_FEEDS, FIX_REASONS

UTP, IEX, PDP = (load_feed(n) for n in ("euronext-utp-md", "iex-deep", "nyse-openbook-ultra"))
TRADE = UTP.encode_message(240, symbol_index=5)
STATUS = IEX.encode_message("H", symbol="ZVZZT")


def utp(*messages: bytes, **header: object) -> bytes:
    """A UTP-MD packet."""
    return UTP.encode_packet(messages=messages, **{"flags": 0, **header})  # type: ignore[arg-type]


def patched(data: bytes, at: int, value: int, size: int = 2) -> bytes:
    """Big-endian bytes in another's place."""
    return data[:at] + value.to_bytes(size, "big") + data[at + size :]


FAULTS = [
    (UTP, b"junk", "packet at byte 0: 4 bytes, wanted a header of 16 bytes"),
    (UTP, patched(utp(kind="reset")[:-3], 0, 17),
     "NextSeqNumber at byte 16: a reset of 17 bytes, wanted 20 bytes to hold it"),
    (UTP, utp(TRADE) + b"x", "PacketLength at byte 0: 80, wanted 81, for a datagram of 81 bytes"),
    (IEX, IEX.encode_packet(messages=[STATUS])[:-1],
     "PayloadLength at byte 12: 24, wanted 23, for a datagram of 63 bytes"),
    (IEX, IEX.encode_packet(messages=[STATUS], header={"message_protocol_id": 0x8003}),
     "MessageProtocolID at byte 2: 32771 (0x8003), wanted 32772 (0x8004)"),
    (IEX, IEX.encode_packet(header={"version": 2}), "Version at byte 0: 2, wanted 1"),
    (UTP, utp(TRADE, packet_type=7),
     "PacketType at byte 2: 7, wanted one of 1, 2, 10, 20, 22, 23, 24, 501"),
    (UTP, utp(TRADE, TRADE, count=3),
     "NumberMsgEntries at byte 15: 3, wanted 2: the packet ends behind them"),
    (UTP, utp(TRADE, TRADE, count=1), "NumberMsgEntries at byte 15: 1, wanted more: behind them 64 "
     "bytes are left, from byte 80 on"),
    (UTP, utp(TRADE, patched(TRADE, 0, 1)), "message 2 of type 240, length at byte 80: 3 bytes, "
     "wanted at least the 4 bytes of its own header"),
    (UTP, utp(TRADE, patched(TRADE, 0, 63)), "message 2 of type 240, length at byte 80: 65 bytes, "
     "wanted at most the 64 that are left of the packet"),
    (UTP, utp(TRADE, b"ab"), "message 2, header at byte 80: 2 bytes, wanted the 4 of a message's"),
    (UTP, utp(TRADE, flags=17), "compressed body at byte 16: 64 bytes that zlib cannot inflate, "
     "wanted a zlib stream"),
    (UTP, utp(zlib.compress(bytes(INFLATED_SIZE_MAX + 1)), flags=17), "compressed body at byte 16: "
     "more than 65519 bytes when inflated"),
    (UTP, utp(zlib.compress(TRADE + b"a"), flags=17), "NumberMsgEntries at byte 15: 1, wanted m"),
    (UTP, utp(kind="control", body=b"short", packet_type=20),
     "body of control packet 20 (retransmission_request) at byte 16: 5 bytes, wanted 28 bytes"),
    (PDP, PDP.encode_packet(messages=[PDP.encode_message(231)], count=2),
     "NumBodyEntries at byte 14: 2, wanted 1: the packet ends behind them"),
]  # fmt: skip


@pytest.mark.parametrize(("feed", "data", "reason"), FAULTS, ids=[row[2][:40] for row in FAULTS])
def test_a_rejected_packet_is_explained_by_field_found_and_wanted(feed, data, reason):
    with pytest.raises(BadPacket) as caught:
        feed.decode_packet(data)
    fault = explain(feed, data)
    assert str(fault).startswith(reason)
    assert fault.reason == caught.value.reason
    assert str(fault) in caught.value.message


def test_of_several_packets_the_first_bad_one_is_explained():
    feed = load_feed("miax-onyx-tom")
    good = feed.encode_packet(messages=[feed.encode_message(3)])
    type_at = next(field.at for field in feed.header.named if field.name == "packet_type")
    bad = patched(good, type_at, 99, 1)
    assert explain(feed, good + good) is None
    fault = explain(feed, good + bad + good)
    assert (fault.reason, fault.at) == (Reject.UNKNOWN_PACKET_TYPE, len(good) + type_at)
    with pytest.raises(BadPacket, match=f"PacketType at byte {fault.at}: 99, wanted one of 0, 1"):
        feed.decode_packet(good + bad)
    cut = explain(feed, good + good[:-1])
    assert (cut.reason, cut.what) == (Reject.LENGTH_MISMATCH, "PacketLength")


def test_the_fault_is_searched_for_once_and_only_when_the_text_is_asked_for():
    asked = []
    error = BadPacket(Reject.TRUNCATED, find=lambda: asked.append(1) or "Count at byte 3: 0")
    assert error.reason == Reject.TRUNCATED
    assert not asked
    assert str(error).endswith(": Count at byte 3: 0 (the sender's bytes are at fault)")
    assert str(error).count("Count") == len(asked) == 1


def test_an_error_has_the_bytes_that_were_bad_whatever_their_buffer_holds_later():
    buffer = bytearray(utp(TRADE) + b"x")
    with pytest.raises(BadPacket) as caught:
        list(UTP.scanned(buffer))
    buffer[:] = bytes(len(buffer))
    assert "PacketLength at byte 0: 80, wanted 81" in str(caught.value)


def test_nothing_is_wrong_with_a_packet_that_is_none_of_these():
    assert explain(UTP, utp(TRADE)) is None
    assert explain(UTP, utp(zlib.compress(TRADE), flags=17)) is None


def test_every_reason_of_a_rejected_packet_is_tried_here():
    tried = {explain(feed, data).reason for feed, data, _ in FAULTS}
    assert tried == set(Reject) - {Reject.FINE, Reject.INDEX_FULL} - FIX_REASONS


@given(name=st.sampled_from(BINARY_FEEDS), data=st.data())
def test_any_bytes_are_explained_exactly_where_they_are_rejected(name, data):
    feed = load_feed(name)
    ways = [layout for each in feed.layouts.values() for layout in each]
    message = feed.encode_message(data.draw(st.sampled_from(ways)).name)
    packet = bytearray(feed.encode_packet(messages=[message] * 2))
    for _ in range(data.draw(st.integers(0, 3))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    rejected = None
    try:
        feed.decode_packet(bytes(packet))
    except BadPacket as error:
        rejected = error.reason
    fault = explain(feed, bytes(packet))
    assert (fault and fault.reason) == rejected
    assert fault is None or str(fault)


@pytest.mark.parametrize("name", BINARY_FEEDS)
def test_the_error_of_a_mutated_packet_has_a_text(name: str, seed: int) -> None:
    feed, draw, rejected = load_feed(name), random.Random(seed), 0
    packets = Mutator(feed, seed).packets
    for _ in range(300):
        data = bytearray(draw.choice(packets))
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(min(len(data), 40))] = draw.choice([0, 1, 2, 8, 100, 255])
        data = data[: draw.choice([len(data), draw.randrange(len(data) + 1)])]
        data += bytes(draw.choice([0, 0, 3]))
        texts: list[str] = []
        try:
            feed.decode_packet(bytes(data))
        except BadPacket as error:
            texts.append(str(error))
        rejected += len(texts)
        assert all(texts)
    assert rejected > 20
