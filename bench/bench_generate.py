"""Generating: packets a second of a profile's traffic, as datagrams and written as a capture.

Packets are counted on both lines, as a capture has them. The ceiling is the same capture's bytes,
ready made, written to the same folder; the peer makes the same frames packet by packet, with dpkt.
"""

import os
import time
from pathlib import Path
from typing import Any

import dpkt

from bench.processes import memory_folder
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture

#: The bar: packets a second, generated and written.
RATE_MIN = 300_000
#: The stretch at the source paper's rate: seconds of it, and a part of its day.
SECONDS, QUICK_SECONDS = 60.0, 10.0
DAY_SCALE, QUICK_DAY_SCALE = 0.03, 0.01
PEER_PACKETS = 20_000
SEED = 7
SMOKE: dict[str, object] = {"QUICK_SECONDS": 1.0}


def written(traffic: Traffic, path: Path) -> dict[str, Any]:
    """Generate, write and count; the clock runs from the first block to the closed file."""
    begun = time.perf_counter()
    document = write_capture(traffic, path)
    seconds = time.perf_counter() - begun
    return {
        "packets": document["packets"],
        "seconds": seconds,
        "packets_per_s": document["packets"] / seconds,
        "mean_payload_bytes": document["mean_payload_bytes"],
        "mean_message_bytes": document["mean_message_bytes"],
        "mean_messages": document["mean_messages"],
    }


def ceiling(path: Path, packets: int) -> float:
    """Return packets a second of copying the capture's bytes to another file."""
    data = path.read_bytes()
    copy = path.with_suffix(".copy")
    begun = time.perf_counter()
    copy.write_bytes(data)
    seconds = time.perf_counter() - begun
    copy.unlink()
    return packets / seconds


def peer(path: Path) -> float:
    """Return packets a second of making the same frames with dpkt, from payloads that are there."""
    made = []
    with path.open("rb") as file:
        for moment, frame in dpkt.pcap.Reader(file):
            made.append((moment, bytes(dpkt.ethernet.Ethernet(frame).data.data.data)))
            if len(made) == PEER_PACKETS:
                break
    copy = path.with_suffix(".dpkt")
    begun = time.perf_counter()
    with copy.open("wb") as file:
        writer = dpkt.pcap.Writer(file, nano=True)
        for moment, payload in made:
            udp = dpkt.udp.UDP(sport=10_000, dport=30_104, data=payload)
            udp.ulen = len(udp)
            ip = dpkt.ip.IP(src=b"\x0a\0\0\1", dst=b"\xef\x65\1\4", p=17, ttl=1, data=udp)
            ip.len = len(ip)
            writer.writepkt(dpkt.ethernet.Ethernet(data=ip), moment)
    seconds = time.perf_counter() - begun
    copy.unlink()
    return len(made) / seconds


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both built-in profiles, and the peers to compare them with."""
    path = memory_folder() / f"generated-{os.getpid()}.pcap"
    try:
        market = Traffic(
            load_profile("market"), SEED, duration_s=QUICK_SECONDS if quick else SECONDS
        )
        stretch = written(market, path)
        most, least = ceiling(path, stretch["packets"]), peer(path)
        day = written(
            Traffic(
                load_profile("euronext-2011-03"),
                SEED,
                scale=QUICK_DAY_SCALE if quick else DAY_SCALE,
            ),
            path,
        )
    finally:
        for left in path.parent.glob(path.stem + "*"):
            left.unlink()
    for name, figures in (("market", stretch), ("day", day)):
        print(
            f"  {name:8}{figures['packets_per_s'] / 1e3:8.0f} thousand packets/s written"
            f" (bar {RATE_MIN / 1e3:.0f}); payload {figures['mean_payload_bytes']:.2f},"
            f" message {figures['mean_message_bytes']:.2f},"
            f" {figures['mean_messages']:.2f} messages a packet"
        )
    print(
        f"  copying the file {most / 1e3:.0f}, dpkt {least / 1e3:.0f} thousand packets/s:"
        f" {stretch['packets_per_s'] / most:.2f} of the ceiling,"
        f" {stretch['packets_per_s'] / least:.0f} times dpkt"
    )
    return {
        "market": {**stretch, "bar_per_s": RATE_MIN},
        "day": {**day, "bar_per_s": RATE_MIN},
        "copy_packets_per_s": most,
        "dpkt_packets_per_s": least,
    }
