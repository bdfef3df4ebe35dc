"""A capture with the bytes of a real feed in it, for benches to which compression matters.

A second of a generated session, again and again at later times: a compressor that looks back some
hundred kilobytes does not notice.
"""

import gzip
import struct
from pathlib import Path

import numpy as np
import pyarrow

from feedhandler.codecs import load_feed
from feedhandler.replay.captures.records import (
    FRAME_BYTES_MIN,
    file_header,
    frame_headers,
    record_header,
)
from feedhandler.replay.generating.generator import SessionGenerator

SECOND_NS = 1_000_000_000
START_S = 1_795_168_800
#: Lines A and B of the seven services, as the simulated exchange sends them.
GROUP_BASE, PORT_BASE = 100, 30_000


def one_second(messages_per_s: float) -> tuple[bytearray, list[int], int]:
    """Read a session's first second; return its records, where each begins, and its datagrams."""
    generator = SessionGenerator(load_feed("euronext-utp-md"), 1, messages_per_s=messages_per_s)
    records, starts = bytearray(), []
    for packet in generator.packets(SECOND_NS):
        for line, lag_ns in ((1, 0), (2, 3_000)):
            port = PORT_BASE + 1_000 * (line - 1) + packet.service
            group = f"239.101.{line}.{packet.service - GROUP_BASE}"
            frame = frame_headers(group, port, "10.0.0.1", 10_000, len(packet.packet))
            frame = (frame + packet.packet).ljust(FRAME_BYTES_MIN, b"\0")
            fraction = min(packet.due_ns + lag_ns, SECOND_NS - 1)
            starts.append(len(records))
            records += record_header(START_S * SECOND_NS + fraction, len(frame)) + frame
    return records, starts, len(starts)


def write_session(path: Path, seconds: int, messages_per_s: float = 100_000.0) -> int:
    """Write a plain capture of so many seconds at `path`; return how many datagrams it has."""
    records, starts, count = one_second(messages_per_s)
    data = np.frombuffer(records, np.uint8)
    stamps = np.array(starts)[:, None] + np.arange(4)
    with path.open("wb") as file:
        file.write(file_header())
        for second in range(seconds):
            moved = np.frombuffer(struct.pack("<I", START_S + second), np.uint8)
            data[stamps] = moved
            file.write(data.data)
    return count * seconds


def compressed(path: Path) -> dict[str, Path]:
    """Compress the capture at `path` by gzip and zstd beside it, as their tools write them."""
    content = path.read_bytes()
    gz, zst = path.with_name(path.name + ".gz"), path.with_name(path.name + ".zst")
    gz.write_bytes(gzip.compress(content, 6))
    with (
        pyarrow.OSFile(str(zst), "wb") as file,
        pyarrow.CompressedOutputStream(file, "zstd") as stream,
    ):
        stream.write(content)
    return {"gzip": gz, "zstd": zst}
