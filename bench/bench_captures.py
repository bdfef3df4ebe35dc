"""Capture reading: datagrams a second down to the UDP payload, beside dpkt on the same file.

The file is written first, with the sizes of a multicast session (an Ethernet frame of about
400 bytes in the mean), and read several times; the best pass counts for both readers, so that
neither pays for a cold page cache. Also measured: the gzipped file, the iterator of `Datagram`
objects, and plain reading of the bytes as the ceiling.
"""

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpkt

from feedhandler.replay.captures.reading import CHUNK_BYTES, Capture
from feedhandler.replay.captures.writer import CaptureWriter

#: The bars: datagrams a second, and times dpkt's rate.
RATE_MIN = 2_000_000
DPKT_RATIO_MIN = 10
SEED = 1
SMOKE: dict[str, object] = {}


def write_session(path: Path, count: int) -> None:
    """Write a capture of `count` datagrams: seven groups, 40 to 1,400 bytes, mostly small."""
    random_source = random.Random(SEED)
    block = random_source.randbytes(1_400)
    time_ns = 1_700_000_000 * 10**9
    with CaptureWriter(path) as writer:
        for _ in range(count):
            time_ns += random_source.randrange(280_000)
            size = min(1_400, 40 + int(random_source.expovariate(1 / 330)))
            service = random_source.randrange(7)
            writer.write(time_ns, f"239.1.1.{service}", 21_000 + service, block[:size])


def read_columns(path: Path) -> int:
    return sum(len(batch) for batch in Capture(path).batches())


def read_objects(path: Path) -> int:
    return sum(1 for _ in Capture(path))


def read_with_dpkt(path: Path) -> int:
    """Read by dpkt's packet classes down to the payload, as its documentation does it."""
    count = 0
    with path.open("rb") as file:
        for _, frame in dpkt.pcap.Reader(file):
            udp = dpkt.ethernet.Ethernet(frame).data.data
            count += isinstance(udp, dpkt.udp.UDP) and len(udp.data) >= 0
    return count


def read_bytes(path: Path) -> int:
    """Read nothing but the bytes: the ceiling. Returns 0, it counts no datagrams."""
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return 0


def best_rate(read: Callable[[Path], int], path: Path, count: int, passes: int) -> float:
    """Return datagrams a second of the best of `passes`."""
    best_s = float("inf")
    for _ in range(passes):
        started = time.perf_counter()
        got = read(path)
        best_s = min(best_s, time.perf_counter() - started)
        assert got in (0, count), f"{read.__name__} read {got} of {count}"
    return count / best_s


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures, printed as well; `ok` says whether both bars hold."""
    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        plain, zipped = Path(folder) / "session.pcap", Path(folder) / "session.pcap.gz"
        write_session(plain, count)
        write_session(zipped, count // 5)
        columns = best_rate(read_columns, plain, count, 5)
        dpkt_rate = best_rate(read_with_dpkt, plain, count, 1 if not quick else 2)
        bare = best_rate(read_bytes, plain, count, 5)
        columns_gzip = best_rate(read_columns, zipped, count // 5, 3)
        objects = best_rate(read_objects, plain, count, 2)
        size = plain.stat().st_size
    print(
        f"  columns        {columns / 1e6:8.2f} million datagrams/s (bar {RATE_MIN / 1e6:.0f}),"
        f" {columns / dpkt_rate:.0f} times dpkt (bar {DPKT_RATIO_MIN}),"
        f" {columns / bare:.0%} of bare reading"
    )
    print(f"  dpkt           {dpkt_rate / 1e6:8.2f} million datagrams/s")
    print(f"  from gzip      {columns_gzip / 1e6:8.2f} million datagrams/s")
    print(f"  as objects     {objects / 1e6:8.2f} million datagrams/s")
    return {
        "datagrams": count,
        "bytes": size,
        "columns_per_second": round(columns),
        "columns_gzip_per_second": round(columns_gzip),
        "objects_per_second": round(objects),
        "dpkt_per_second": round(dpkt_rate),
        "times_dpkt": round(columns / dpkt_rate, 1),
        "share_of_bare_reading": round(columns / bare, 3),
        "bar_per_second": RATE_MIN,
        "bar_times_dpkt": DPKT_RATIO_MIN,
        "ok": columns >= RATE_MIN and columns >= DPKT_RATIO_MIN * dpkt_rate,
    }
