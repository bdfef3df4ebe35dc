"""Characterisation against its ceiling and its peers, in one process and in one run.

- The packets table against the compiled reader alone, which only walks through the same file.
- The same against a reader that parses each packet with dpkt, on a part of the file.
- Interarrival of messages against the compiled reader, and how time grows from a tenth to all.

The figures are processor seconds of one core: what Spark's workers do side by side.
"""

import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpkt

from feedhandler.characterise.job import Request, characterise
from feedhandler.replay.captures.capture import Capture
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture

SECONDS, QUICK_SECONDS = 200, 20
#: What dpkt is given: as much as it does in a few seconds.
DPKT_PACKETS = 100_000
BAR_READER, BAR_DPKT = 0.5, 10.0
FEED = "euronext-utp-md"


def cost(work: Callable[[], object]) -> float:
    """Processor seconds of the best of three."""
    found = []
    for _ in range(3):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def through(path: Path) -> int:
    """The compiled reader alone."""
    return sum(len(batch) for batch in Capture(path).batches())


def with_dpkt(path: Path, packets: int) -> Counter[int]:
    """Packets by service, as a row at a time would have it."""
    services: Counter[int] = Counter()
    with path.open("rb") as file:
        for number, (_, frame) in enumerate(dpkt.pcap.Reader(file)):
            if number == packets:
                break
            ip = dpkt.ethernet.Ethernet(frame).data
            service = struct.unpack_from(">H", ip.data.data, 12)[0]
            services[service] += 1
            socket.inet_ntoa(ip.dst)
    return services


def job(path: Path, messages: bool) -> None:
    """The job in this process."""
    characterise([str(path)], Request(FEED, messages=messages))


def run(quick: bool = False) -> dict[str, Any]:
    """Rates and their ratios."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        path, tenth = Path(folder) / "day.pcap", Path(folder) / "tenth.pcap"
        for target, duration in ((path, seconds), (tenth, seconds / 10)):
            write_capture(Traffic(load_profile("market"), 7, duration_s=duration), target)
        count, small = through(path), through(tenth)
        reader = count / cost(lambda: through(path))
        packets = count / cost(lambda: job(path, messages=False))
        messages = count / cost(lambda: job(path, messages=True))
        messages_of_tenth = small / cost(lambda: job(tenth, messages=True))
        part = min(count, DPKT_PACKETS)
        slow = part / cost(lambda: with_dpkt(path, part))
    rates = {
        "compiled reader": reader,
        "packets table": packets,
        "all tables": messages,
        "all tables, a tenth": messages_of_tenth,
        "dpkt": slow,
    }
    for name, rate in rates.items():
        print(f"  {name:20} {rate:12,.0f} packets/s, {rate / reader:.0%} of the reader")
    ratios = {"of_reader": packets / reader, "times_dpkt": packets / slow}
    print(f"  packets table: {ratios['times_dpkt']:.0f} times dpkt (bar {BAR_DPKT:.0f})")
    ok = ratios["of_reader"] >= BAR_READER and ratios["times_dpkt"] >= BAR_DPKT
    return {"packets": count, "rates": rates, "ratios": ratios, "ok": ok}


if __name__ == "__main__":
    run(quick=True)
