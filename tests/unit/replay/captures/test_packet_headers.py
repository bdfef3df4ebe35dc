"""Packet headers of many datagrams at once: compiled and interpreted, held against the codec."""

import random
from types import ModuleType

import numpy as np
import pytest

from feedhandler.codecs import BadPacket, Feed, Packet, load_feed
from feedhandler.codecs.kinds import Reject
from feedhandler.replay.captures import packet_headers as compiled
from tests.support.feeds import BINARY_FEEDS
from tests.support.twins import either, twins_of

twin = either(twins_of(compiled))
FEEDS = [load_feed(name) for name in BINARY_FEEDS]


def laid_out(payloads: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Payloads behind eight bytes each, as behind a UDP header."""
    data = np.frombuffer(b"".join(b"\xff" * 8 + each for each in payloads), np.uint8).copy()
    length = np.array([len(each) for each in payloads], np.uint32)
    offset = (np.cumsum(length + 8) - length).astype(np.uint32)
    return data, offset, length


def _has_heartbeats(feed: Feed) -> bool:
    kind = feed.description.packet.kind
    return kind is not None and bool(kind.heartbeat)


def some_packets(feed: Feed, seed: int) -> list[bytes]:
    """Good packets of every kind, with bytes changed here and there."""
    source = random.Random(seed)
    made = []
    for number in range(200):
        kind = source.choice(["data", "data", "data", "heartbeat"])
        packet = bytearray(
            feed.encode_packet(
                kind=kind if _has_heartbeats(feed) else "data",
                sequence=source.getrandbits(30),
                send_time=source.getrandbits(29) * (10**9 if feed.name.startswith("iex") else 1),
                service=number % 7 if feed.description.packet.service else 0,
            )
        )
        if source.random() < 0.2:
            packet[source.randrange(len(packet))] ^= 1 << source.randrange(8)
        made.append(bytes(packet[: source.choice([len(packet), len(packet), 3])]))
    return made


def decoded(feed: Feed, payload: bytes) -> tuple[Packet | None, Reject]:
    try:
        return feed.decode_packet(payload), Reject.FINE
    except BadPacket as error:
        return None, error.reason


@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.name)
def test_headers_are_what_the_codec_reads(twin: ModuleType, feed: Feed) -> None:
    print("seed 7")
    payloads = some_packets(feed, 7)
    data, offset, length = laid_out(payloads)
    headers = twin.read_headers(feed.table, data, offset, length)
    assert len(headers) == len(payloads)
    fine = 0
    for row, payload in enumerate(payloads):
        packet, reason = decoded(feed, payload)
        if packet is None:
            # The headers are looked at only: what is wrong behind them is not seen here.
            assert headers.verdict[row] in (reason, Reject.FINE)
            continue
        fine += 1
        assert headers.verdict[row] == Reject.FINE
        assert headers.kind[row] == packet.kind
        assert headers.service[row] == packet.service
        assert headers.sequence[row] == packet.sequence
        assert headers.next_sequence[row] == packet.next_sequence
        assert headers.send_time[row] == packet.send_time
    assert fine > 50


@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.name)
def test_written_numbers_and_times_are_read_back_and_nothing_else_changes(
    twin: ModuleType, feed: Feed
) -> None:
    payloads = [feed.encode_packet(sequence=number, send_time=number) for number in range(1, 50)]
    data, offset, length = laid_out(payloads)
    rows = np.arange(0, 49, 2)
    twin.write_sequences(feed.table, data, offset[rows], (rows + 1_000).astype(np.uint64))
    twin.write_send_times(feed.table, data, offset[rows], (rows + 2_000_000_007).astype(np.uint64))
    headers = twin.read_headers(feed.table, data, offset, length)
    assert headers.sequence[rows].tolist() == (rows + 1_000).tolist()
    expected = (rows + 2_000_000_007) * bool(feed.table.time_size)
    assert headers.send_time[rows].tolist() == expected.tolist()
    for number in range(1, 49, 2):
        start = int(offset[number])
        assert data[start - 8 : start + int(length[number])].tobytes() == (
            b"\xff" * 8 + payloads[number]
        )
    wanted = feed.encode_packet(sequence=1_000, send_time=2_000_000_007)
    assert data[: 8 + len(wanted)].tobytes() == b"\xff" * 6 + b"\0\0" + wanted


def test_columns_of_different_lengths_are_refused_and_what_lies_outside_is_cut(
    twin: ModuleType,
) -> None:
    feed = FEEDS[0]
    data = np.zeros(10, np.uint8)
    with pytest.raises(IndexError):
        twin.read_headers(feed.table, data, np.zeros(2, np.uint32), np.zeros(1, np.uint32))
    headers = twin.read_headers(
        feed.table, data, np.array([5], np.uint32), np.array([50], np.uint32)
    )
    assert headers.verdict.tolist() == [Reject.TRUNCATED]


def test_a_payload_at_the_very_beginning_has_no_checksum_before_it(twin: ModuleType) -> None:
    feed = load_feed("euronext-utp-md")
    data = np.frombuffer(feed.encode_packet(sequence=1), np.uint8).copy()
    start = np.zeros(1, np.uint32)
    twin.write_sequences(feed.table, data, start, np.array([9], np.uint64))
    assert feed.decode_packet(data.tobytes()).sequence == 9
