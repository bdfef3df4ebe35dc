"""The packets table of a large capture against its ceiling and its peer (`make bench-long`).

- The ceiling: the compiled reader alone, which only goes through the same slices, in as many
  processes as Spark has workers.
- The peer: a PySpark job that feeds rows which dpkt has parsed, on a part of the capture.

Jobs run in one warm session, in turn; the clock runs from the path to the tables.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpkt

from bench.characterise_kit import (
    CORES,
    Memory,
    Readers,
    best,
    day,
    folder,
    job,
    warm_session,
)
from feedhandler.characterise.files import look_at
from feedhandler.characterise.planning import exact_slices

#: Of the paper's session: 6 GB, and a look.
SCALE, QUICK_SCALE, WARM_SCALE = 0.216, 0.01, 0.001
BYTES = 6_000_000_000
TURNS = 5
#: What dpkt is given, in bytes a worker: some 100,000 packets, a few seconds.
DPKT_BYTES = 35_000_000
BAR_READER, BAR_DPKT = 0.5, 10.0
ROW = "service int, line string, time_ns bigint, payload_bytes int, file_bytes int"
SMOKE: dict[str, object] = {
    "QUICK_SCALE": 0.001, "TURNS": 1, "DPKT_BYTES": 300_000,
    "characterise_kit.WARM_UPS": 1,
}  # fmt: skip


def dpkt_rows(path: str) -> Iterator[tuple[int, str, int, int, int]]:
    """Yield a row a packet, as dpkt and the standard library have it."""
    with open(path, "rb") as file:
        for time_s, frame in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(frame).data
            payload = ip.data.data
            line = f"{socket.inet_ntoa(ip.dst)}:{ip.data.dport}"
            service = int.from_bytes(payload[12:14], "big")
            yield service, line, int(time_s * 10**9), len(payload), len(frame) + 16


def parts(path: Path) -> tuple[list[str], int]:
    """Cut captures out of the large one's beginning, one a worker; return them and their bytes."""
    made = []
    slices = exact_slices([look_at(str(path))], DPKT_BYTES)[:CORES]
    with path.open("rb") as file:
        for part in slices:
            file.seek(part.start)
            target = path.with_name(f"part-{part.number}.pcap")
            target.write_bytes(part.file.header + file.read(part.end - part.start))
            made.append(str(target))
    return made, sum(Path(each).stat().st_size for each in made)


def with_dpkt(spark: Any, paths: list[str]) -> tuple[dict[int, int], float]:
    """Return packets by service, and the seconds that took."""
    began = time.perf_counter()
    rows = spark.sparkContext.parallelize(paths, len(paths)).flatMap(dpkt_rows)
    frame = spark.createDataFrame(rows, ROW, verifySchema=False)
    totals = (
        frame.groupBy("service", "line")
        .agg({"*": "count", "payload_bytes": "sum", "file_bytes": "sum"})
        .collect()
    )
    found: dict[int, int] = {}
    for row in totals:
        found[row.service] = found.get(row.service, 0) + row["count(1)"]
    return found, time.perf_counter() - began


def run(quick: bool = False) -> dict[str, Any]:
    """Measure rates and their ratios."""
    with folder(0 if quick else BYTES) as root, Readers() as readers:
        small, path = root / "small.pcap", root / "day.pcap"
        day(small, WARM_SCALE)
        ledger = day(path, QUICK_SCALE if quick else SCALE)
        with warm_session(small) as spark:
            cut, _ = parts(path)
            turns = [
                (readers.seconds(path), job(spark, path, messages=False).seconds)
                for _ in range(TURNS)
            ]
            reader_s, packets_s = map(min, zip(*turns, strict=True))
            with Memory() as memory:  # not in what is timed: looking takes time, too
                job(spark, path, messages=False)
            done = job(spark, path)
            dpkt_s = best(TURNS, lambda: with_dpkt(spark, cut)[1])
            by_service, _ = with_dpkt(spark, cut)
            dpkt_packets = sum(by_service.values())
    return judged(ledger, done.tables, memory, {
        "compiled reader": ledger["packets"] / reader_s,
        "packets table": ledger["packets"] / packets_s,
        "all tables": ledger["packets"] / done.seconds,
        "dpkt's rows": dpkt_packets / dpkt_s,
    })  # fmt: skip


def judged(
    ledger: dict[str, Any], tables: dict[str, Any], memory: Memory, rates: dict[str, float]
) -> dict[str, Any]:
    """Print the rates and judge them; return the figures."""
    reader = rates["compiled reader"]
    for name, rate in rates.items():
        print(f"  {name:16} {rate:12,.0f} packets/s on {CORES} cores, {rate / reader:.0%}")
    ratios = {
        "of_reader": rates["packets table"] / reader,
        "times_dpkt": rates["packets table"] / rates["dpkt's rows"],
    }
    print(
        f"  packets table: {ratios['of_reader']:.0%} of the reader (bar {BAR_READER:.0%}),"
        f" {ratios['times_dpkt']:.0f} times dpkt's rows (bar {BAR_DPKT:.0f})"
    )
    print(f"  memory meanwhile: {memory}")
    ok = ratios["of_reader"] >= BAR_READER and ratios["times_dpkt"] >= BAR_DPKT
    total = {row[0]: row[1] for row in tables["services"].rows}["total"]
    return {
        "packets": ledger["packets"],
        "rates": rates,
        "ratios": ratios,
        "memory_bytes": memory.most,
        "ok": ok,
        "problems": []
        if total == ledger["packets"]
        else [f"{total:,} packets were counted, {ledger['packets']:,} generated"],
    }
