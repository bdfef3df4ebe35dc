"""Real packets of other venues, with what an independent dissector made of them.

A folder of a feed holds `packets.pcap` and `decoded.jsonl`: a line a packet, whose `fields` are
`[name, offset, size, hex, shown]`; structures have no shown value. Offsets count from the first
byte behind the UDP or TCP header.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dpkt

#: Feed to the folder with its packets.
FOLDERS = {
    "asx-ntp-itch": "asx-ntp-itch-1.05",
    "b3-umdf": "b3-umdf-sbe-1.8",
    "cboe-byx-pitch": "cboe-byx-pitch-2.41",
    "cboe-c1-options-pitch": "cboe-c1-options-pitch-2.39",
    "cme-mdp3": "cme-mdp3-sbe-1.9",
    "eurex-eobi": "eurex-eobi-6.0",
    "ice-impact": "ice-impact-1.1.33",
    "iex-deep-plus": "iex-deep-plus-1.0",
    "iex-tops": "iex-tops-1.6",
    "memx-memoir": "memx-memoir-1.3",
    "miax-onyx-tom": "miax-onyx-tom-1.0",
    "nasdaq-totalview-itch": "nasdaq-totalview-itch-5.0",
    "nyse-integrated-pillar": "nyse-integrated-pillar-2.5",
    "otc-link-ats": "otc-link-ats-4.3",
    "siac-cqs": "siac-cqs-2.10",
    "siac-cts": "siac-cts-2.11",
}

#: Feeds with real packets of their own, beside the folder of those: a file or a folder of captures.
OWN_CAPTURES = {
    "iex-deep": "iex/deep-2023-10-02.pcap.gz",
    "nyse-integrated-xdp": "nyse/integrated-xdp-2.1",
    "nyse-openbook-ultra": "nyse/openbook-ultra-2.1.b",
}

#: Bytes that mean nothing, which descriptions may leave without a name.
FILLER = re.compile(
    r"(first|second|third)?(padding|pad|reserved|filler|unused|blockpad|offset\d+padding).*"
)


class Shown(NamedTuple):
    """A field as the dissector shows it; `name` without the protocol's prefix."""

    name: str
    at: int
    size: int
    data: bytes
    value: str


def packets(folder: Path) -> Iterator[tuple[bytes, list[Shown]]]:
    """Yield the payload of each packet of a feed's folder, and its leaves."""
    with (folder / "packets.pcap").open("rb") as file:
        payloads = [_payload(frame) for _, frame in dpkt.pcap.UniversalReader(file)]
    lines = (folder / "decoded.jsonl").read_text().splitlines()
    assert len(lines) == len(payloads) > 0
    for payload, line in zip(payloads, lines, strict=True):
        yield payload, list(_leaves(json.loads(line)["fields"]))


def _payload(frame: bytes) -> bytes:
    packet: Any = dpkt.ethernet.Ethernet(frame)
    while not isinstance(packet, dpkt.udp.UDP | dpkt.tcp.TCP):
        packet = packet.data
    return bytes(packet.data)


def _leaves(fields: list[list[Any]]) -> Iterator[Shown]:
    for name, at, size, *rest in fields:
        if len(rest) < 2:
            continue
        data = bytes.fromhex(rest[0]) if len(rest[0]) == 2 * size else b""
        yield Shown(name.rpartition(".")[2], at, size, data, rest[1])


def plain(name: str) -> str:
    """Return a field's name as the dissector writes it: `Opened.StockLocate` as `stocklocate`."""
    return re.sub("[^a-z0-9]", "", name.rpartition(".")[2].lower())
