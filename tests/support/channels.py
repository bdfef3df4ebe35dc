"""Captures of a feed whose packets name no service: channels on groups and ports of their own."""

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from feedhandler.codecs import load_feed
from feedhandler.replay.captures.writer import CaptureWriter

NYSE = load_feed("nyse-integrated-xdp")
START_NS = 1_700_000_000 * 10**9
#: Two channels, their lines in no order of addresses.
A1, B1 = ("233.75.215.1", 50_001), ("233.75.215.65", 50_001)
A2, B2 = ("233.75.215.2", 50_002), ("233.75.215.66", 50_002)
LINES = {A1: 1, B1: 1, A2: 2, B2: 2}
UNKNOWN_TYPE = 999
Row = tuple[int, tuple[str, int], bytes]


def message(symbol: int, number: int) -> bytes:
    """An order's cancellation (type 102), or one without a description."""
    if number % 50 == 0:
        return struct.pack("<HHI", 8, UNKNOWN_TYPE, number)
    layout = NYSE.layouts[102][0]
    body = bytearray(layout.size)
    struct.pack_into("<HH", body, 0, layout.size, 102)
    struct.pack_into("<I", body, layout.by_name[layout.symbol].at, symbol)
    struct.pack_into("<I", body, layout.size - 4, number)
    return bytes(body)


def rows_of(
    lines: Mapping[tuple[str, int], int] = LINES, packets: int = 400, loss: float = 0.0
) -> list[Row]:
    """Packets of each channel on its lines, in order of time; all channels count from 1."""
    draw = random.Random(7)
    rows: list[Row] = []
    for channel in sorted(set(lines.values())):
        number = 1
        for index in range(packets):
            messages = [message(10 * channel + n % 3, number + n) for n in range(index % 4 + 1)]
            packet = NYSE.encode_packet(sequence=number, messages=messages)
            number += len(messages)
            at_ns = START_NS + index * 1_000_000 + channel * 10_000
            for nth, line in enumerate(each for each, its in lines.items() if its == channel):
                if draw.random() >= loss:
                    rows.append((at_ns + nth * 5_000, line, packet))
    return sorted(rows, key=lambda row: row[0])


def write_rows(path: Path, rows: Sequence[Row]) -> str:
    with CaptureWriter(path) as writer:
        for at_ns, line, packet in rows:
            writer.write(at_ns, *line, packet)
    return str(path)
