"""Memory of a replay: a capture of 1 GB, sent flat out (`make bench-long`).

Anonymous memory (RssAnon) of `feedhandler replay` is sampled to the end: pages of the file that the
kernel keeps are no matter, what the process holds for itself is. The bar is 300 MB: for UDP, for
two lines of which B holds back what it sends later, and for raw frames with other headers, of which
there are no figures without root.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.replay_kit import BASE_NS, GROUP, PORT, account_of, ours
from feedhandler.replay.captures.records import file_header, frame_headers
from tests.support.veth import NoNamespace, namespace

BAR_BYTES = 300_000_000
CAPTURE_BYTES, QUICK_CAPTURE_BYTES = 1_000_000_000, 100_000_000
PAYLOAD_BYTES = 288
SAMPLE_SECONDS = 0.02
#: Written at a time.
BLOCK_RECORDS = 1 << 16
SMOKE: dict[str, object] = {"QUICK_CAPTURE_BYTES": 8_000_000}


def write_large(path: Path, size: int) -> int:
    """Write a nanosecond pcap of about `size` bytes, packets of one length; return how many."""
    head = frame_headers(GROUP, PORT, "10.0.0.1", 1_000, PAYLOAD_BYTES)
    record = np.zeros(16 + len(head) + PAYLOAD_BYTES, np.uint8)
    record[8:16] = np.array([len(record) - 16] * 2, "<u4").view(np.uint8)
    record[16 : 16 + len(head)] = np.frombuffer(head, np.uint8)
    count = size // len(record)
    block = np.tile(record, (BLOCK_RECORDS, 1))
    with path.open("wb", buffering=0) as file:
        file.write(file_header())
        for first in range(0, count, BLOCK_RECORDS):
            numbers = np.arange(first, min(count, first + BLOCK_RECORDS), dtype=np.int64)
            times = BASE_NS + numbers * 10_000
            part = block[: len(numbers)]
            part[:, 0:4] = (times // 10**9).astype("<u4")[:, None].view(np.uint8)
            part[:, 4:8] = (times % 10**9).astype("<u4")[:, None].view(np.uint8)
            part[:, 58:62] = numbers.astype(">u4")[:, None].view(np.uint8)
            file.write(part.tobytes())
    return count


def anonymous_bytes(pid: int) -> int:
    """Return RssAnon of a process; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1_024 if found else 0


def measure(command: list[str], count: int) -> dict[str, Any]:
    """Return the most that the command held, and its rate."""
    most = 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        try:
            while process.poll() is None:
                most = max(most, anonymous_bytes(process.pid))
                time.sleep(SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        account = account_of(output.read())
    sent = [line["sent"] for line in account["lines"]]
    return {
        "anonymous_bytes_max": most,
        "packets_per_second": round(sum(sent) * 1e9 / account["duration_ns"]),
        "whole": process.returncode == 0 and set(sent) == {count},
        "ok": most < BAR_BYTES,
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure each way of replaying it, printed as it goes."""
    figures: dict[str, Any] = {"bar_bytes": BAR_BYTES, "problems": []}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.pcap"
        count = write_large(path, QUICK_CAPTURE_BYTES if quick else CAPTURE_BYTES)
        replay = [sys.executable, "-m", "feedhandler", "replay", str(path), "--json"]
        two_lines = ("--line-a", f"{GROUP}:{PORT}", "--line-b", f"239.1.1.2:{PORT}")
        ways = {
            "UDP": [*replay, "--as-recorded", "--speed", "flat"],
            "UDP, two lines, B 100 ms behind": [
                *replay, *two_lines, "--delay-b-us", "100000", "--speed", "100kpps",
            ],
        }  # fmt: skip
        for title, command in ways.items():
            _report(figures, title, measure(command, count), path.stat().st_size)
        try:
            with namespace():
                raw = ours(path, "--speed", "flat", "--source-ip", "10.9.9.9")
                _report(figures, "raw frames, headers changed", measure(raw, count), 0)
        except NoNamespace as reason:
            print(f"  no figures of raw frames: {reason}")
    return figures


def _report(figures: dict[str, Any], title: str, found: dict[str, Any], size: int) -> None:
    figures[title] = found
    of = f" of {size / 1e9:.1f} GB" if size else ""
    print(
        f"  {title}{of}: {found['anonymous_bytes_max'] / 1e6:.0f} MB anonymous at most (bar"
        f" {BAR_BYTES / 1e6:.0f}): {'ok' if found['ok'] else 'MISSED'};"
        f" {found['packets_per_second']:,} packets/s",
        flush=True,
    )
    if not found["whole"]:
        figures["problems"].append(f"{title}: not everything was sent")
