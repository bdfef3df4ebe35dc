"""Scanning and decoding: messages a second, beside dpkt with struct on the same packets.

The load is UTP-MD packets of five messages, order updates (230) and quotes (140) in turn, as they
come from one multicast session. Scanning finds type, symbol, offset, size and number of every
message, in preallocated arrays, many packets a call. The peer reads the same packets, in Ethernet
frames, with dpkt down to the UDP payload and takes the same facts out with struct. Decoding makes
columns of all fields of both types, prices and full times included. The median of many passes
counts.
"""

import random
import struct
from datetime import date
from typing import Any

import dpkt

from bench.processes import passes
from feedhandler.codecs import Feed, feed_table, load_feed, scanner
from feedhandler.codecs.columns import Columns

#: The bars: messages a second scanned, times the peer's rate, messages a second into columns.
SCAN_RATE_MIN = 50_000_000
PEER_RATIO_MIN = 50
COLUMNS_RATE_MIN = 10_000_000

MESSAGES_PER_PACKET = 5
PACKETS = 20_000
#: A call's packets for the columns: a receiver's batch, which stays in the caches.
BATCH_PACKETS = 2_000
DAY = date(2024, 7, 1)
SEED = 1
SMOKE: dict[str, object] = {"PACKETS": 2_000}


def make_packets(feed: Feed, count: int) -> list[bytes]:
    """Return `count` packets of five messages, with changing symbols, prices and times."""
    source = random.Random(SEED)
    packets = []
    for sequence in range(1, count + 1):
        messages = []
        for _ in range(MESSAGES_PER_PACKET):
            common: dict[str, Any] = {
                "symbol_index": source.randrange(10_000, 10_400),
                "source_time": 32_400_000 + sequence,
                "source_time_micro_secs": source.randrange(1_000),
                "price_scale_code": 2,
            }
            price = source.randrange(1_000, 90_000)
            if source.random() < 0.5:
                messages.append(feed.encode_message(230, price=price, side="B", **common))
            else:
                messages.append(
                    feed.encode_message(140, bid_price=price, ask_price=price + 5, **common)
                )
        packets.append(feed.encode_packet(sequence=sequence, service=104, messages=messages))
    return packets


def in_frames(packets: list[bytes]) -> list[bytes]:
    """Return the packets as Ethernet frames."""
    frames = []
    for packet in packets:
        udp = dpkt.udp.UDP(sport=21_000, dport=21_004, data=packet, ulen=8 + len(packet))
        ip = dpkt.ip.IP(src=b"\x0a\0\0\1", dst=b"\xef\1\1\4", p=dpkt.ip.IP_PROTO_UDP, data=udp)
        ip.len = 28 + len(packet)
        frames.append(bytes(dpkt.ethernet.Ethernet(data=ip)))
    return frames


def scan_with_struct(payload: bytes) -> int:
    """Scan type, symbol, offset and size of every message of one packet, with struct."""
    count = payload[15]
    at = 16
    found = []
    for _ in range(count):
        size, kind, symbol = struct.unpack_from(">HHI", payload, at)
        found.append((kind, symbol, at, size + 2))
        at += size + 2
    return len(found)


def scan_with_dpkt(frames: list[bytes]) -> int:
    """Scan the same from whole frames, with dpkt's packet classes above it."""
    return sum(scan_with_struct(dpkt.ethernet.Ethernet(frame).data.data.data) for frame in frames)


def scanning(feed: Feed, packets: list[bytes], seconds: float) -> dict[str, float]:
    """Scan all packets, back to back in memory, in one call a pass."""
    data = b"".join(packets)
    index = feed_table.MessageIndex(MESSAGES_PER_PACKET * len(packets))
    header = feed_table.PacketHeader()

    def work() -> int:
        index.clear()
        assert scanner.scan_packets(feed.table, data, 0, len(data), header, index) == 0
        return index.count

    return passes(work, seconds)


def decoding(feed: Feed, packets: list[bytes], seconds: float) -> dict[str, float]:
    """Scan and decode batch after batch into the columns of both types."""
    batches = [
        b"".join(packets[first : first + BATCH_PACKETS])
        for first in range(0, len(packets), BATCH_PACKETS)
    ]
    indices = []
    for data in batches:
        index = feed_table.MessageIndex(MESSAGES_PER_PACKET * BATCH_PACKETS)
        header = feed_table.PacketHeader()
        assert scanner.scan_packets(feed.table, data, 0, len(data), header, index) == 0
        indices.append(index)
    columns = [Columns(feed, kind, MESSAGES_PER_PACKET * BATCH_PACKETS) for kind in (140, 230)]

    def work() -> int:
        return sum(
            each.decode(data, index, DAY)
            for data, index in zip(batches, indices, strict=True)
            for each in columns
        )

    return passes(work, seconds)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures of this file, JSON-ready; print them as it goes."""
    feed = load_feed("euronext-utp-md")
    seconds = 1.0 if quick else 10.0
    packets = make_packets(feed, PACKETS // 10 if quick else PACKETS)
    frames = in_frames(packets)
    peer = passes(lambda: scan_with_dpkt(frames), seconds)
    alone = passes(lambda: sum(map(scan_with_struct, packets)), min(seconds, 3.0))
    scan = scanning(feed, packets, seconds)
    into_columns = decoding(feed, packets, seconds)
    ratio = scan["median_per_s"] / peer["median_per_s"]
    print(
        f"  scan           {scan['median_per_s'] / 1e6:8.1f} million messages/s"
        f" (bar {SCAN_RATE_MIN / 1e6:.0f}), {ratio:.0f} times dpkt + struct (bar {PEER_RATIO_MIN})"
    )
    print(
        f"  dpkt + struct  {peer['median_per_s'] / 1e6:8.2f} million messages/s;"
        f" struct alone {alone['median_per_s'] / 1e6:.2f}"
    )
    print(
        f"  into columns   {into_columns['median_per_s'] / 1e6:8.1f} million messages/s"
        f" (bar {COLUMNS_RATE_MIN / 1e6:.0f}), all fields of 140 and 230"
    )
    return {
        "scan": {**scan, "bar_per_s": SCAN_RATE_MIN},
        "dpkt_struct": peer,
        "struct_alone": alone,
        "scan_to_dpkt_struct": {"ratio": ratio, "bar": PEER_RATIO_MIN},
        "columns": {**into_columns, "bar_per_s": COLUMNS_RATE_MIN},
    }
