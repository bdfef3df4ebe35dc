"""Cutting snapshots: what comes out can be read back, and keeps every bound of the wire."""

import random
import zlib

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.kinds import PacketKind
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.packets import ORDERS, SERVICES
from feedhandler.retrans.snapshots import (
    INFLATED_BODY_MAX,
    MESSAGES_MAX,
    PACKET_BYTES_MAX,
    PacketFramer,
    SnapshotCutter,
)
from tests.support.market import FEED, order, session
from tests.support.seeds import drawn


def messages_of(packets: list[bytes]) -> list[bytes]:
    """The messages of refresh packets, one behind the other."""
    found = []
    for data in packets:
        body = zlib.decompress(data[16:]) if data[14] == 17 else data[16:]
        while body:
            size = int.from_bytes(body[:2], "big") + 2
            found.append(body[:size])
            body = body[size:]
    return found


def check(packets: list[bytes], messages: list[bytes], last: int, first: int) -> None:
    """Every promise of a cut refresh."""
    start, *between, end = messages_of(packets)
    assert between == list(messages)
    assert FEED.decode_message(start).layout.code == 580
    assert FEED.decode_message(end).layout.code == 581
    assert FEED.decode_message(start).last_seq_num == last
    assert FEED.decode_message(end).last_seq_num == last
    for index, data in enumerate(packets):
        packet = FEED.decode_packet(data)
        assert packet.kind == PacketKind.DATA
        assert (packet.sequence, packet.service) == (first + index, ORDERS)
        assert 1 <= len(packet.messages) <= MESSAGES_MAX
        assert len(data) <= PACKET_BYTES_MAX
        if data[14] == 17:
            assert len(zlib.decompress(data[16:])) <= INFLATED_BODY_MAX


@pytest.mark.parametrize("compress", [True, False])
@drawn(3)
def test_messages_of_any_size_and_likeness_come_back_as_they_were(seed, compress):
    draw = random.Random(seed)
    messages = []
    for _ in range(draw.choice((0, 1, 30, 900))):
        size = draw.choice((4, 20, 62, 454, 959, 1200))
        filler = draw.randbytes(size) if draw.random() < 0.5 else bytes(size)
        messages.append((size + 2).to_bytes(2, "big") + b"\x27\x10" + filler)
    packets = SnapshotCutter(FEED).cut(ORDERS, messages, 4_000_000_000, 7, 123, compress)
    check(packets, messages, 4_000_000_000, 7)


@pytest.mark.parametrize("level", [1, 6])
def test_a_real_services_snapshot_is_cut_closely(level):
    market = Market(FEED, keeps_messages=True)
    for outgoing in session(4, instruments=60)[:-150]:
        market.apply(outgoing.packet)
    cutter = SnapshotCutter(FEED, level)
    for service in SERVICES:
        snapshot = market.snapshot(service)
        packets = cutter.cut(service, snapshot, 9, 1, 0)
        assert messages_of(packets)[1:-1] == snapshot
        if len(packets) > 5:
            mean = sum(map(len, packets[:-1])) / (len(packets) - 1)
            assert mean > 0.8 * PACKET_BYTES_MAX, "packets are filled, or there are needlessly many"
        assert len({packet[8:12] for packet in packets}) == 1


def test_what_compresses_well_is_bounded_by_count_and_inflated_size():
    zeros = [(1300).to_bytes(2, "big") + b"\x27\x10" + bytes(1298)] * 400
    packets = SnapshotCutter(FEED).cut(ORDERS, zeros, 1, 1, 0)
    check(packets, zeros, 1, 1)
    alike = [order("Y", 1)] * 2000
    packets = SnapshotCutter(FEED).cut(ORDERS, alike, 1, 1, 0)
    check(packets, alike, 1, 1)
    assert len(packets) < 15


def test_an_empty_service_is_one_packet_of_start_and_end():
    (packet,) = SnapshotCutter(FEED).cut(ORDERS, [], 12, 3, 1000)
    assert packet[15] == 2
    assert FEED.decode_packet(packet).send_time == 1000


@pytest.mark.parametrize("compress", [True, False])
def test_a_message_that_fits_nowhere_is_the_callers_error(compress):
    long = (1500).to_bytes(2, "big") + b"\x27\x10" + random.Random(1).randbytes(1498)
    with pytest.raises(UsageError, match="1502 bytes"):
        SnapshotCutter(FEED).cut(ORDERS, [long], 1, 1, 0, compress)


def test_a_feed_without_refresh_cuts_no_snapshots():
    with pytest.raises(UsageError, match="no refresh"):
        SnapshotCutter(load_feed("iex-deep"))


def test_a_framed_packet_is_what_the_feed_would_encode():
    messages = [order("A", 1), order("A", 2)]
    framed = PacketFramer(FEED, 104, 5_000, 1).packet(77, b"".join(messages), 2)
    assert framed == FEED.encode_packet(
        sequence=77, messages=messages, service=104, send_time=5_000, flags=1
    )
