"""`feedhandler capture` beside a replay of 14 groups at 200,000 packets a second, by format.

The replay runs in a process of its own. The bar is that nothing is lost; what rate the sender
reached on this machine, beside the capture, is printed with it, and the capture's processor time.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.session_file import GROUP_BASE, PORT_BASE, write_session
from feedhandler.ingest.lines import Line
from feedhandler.recording.capture import Account, Capturing, Settings

RATE = 200_000
SECONDS, QUICK_SECONDS = 40, 10
SUFFIXES = (".pcap", ".pcapng", ".pcap.zst", ".pcap.gz")
#: How long what was sent may take to be read.
DRAIN_S = 1.0
SMOKE: dict[str, object] = {"QUICK_SECONDS": 1}


def lines() -> tuple[Line, ...]:
    """Return lines A and B of the seven services of the session file."""
    return tuple(
        Line(
            f"{name}{service}",
            f"239.101.{number}.{service - GROUP_BASE}",
            PORT_BASE + 1_000 * (number - 1) + service,
            "127.0.0.1",
        )
        for number, name in ((1, "A"), (2, "B"))
        for service in range(101, 108)
    )


def captured(session: Path, path: Path) -> tuple[Account, float]:
    """Capture one replay; return its account, and the processor seconds it took."""
    capturing = Capturing(Settings(lines=lines(), path=path))
    before = time.process_time()
    capturing.start()
    words = ["replay", str(session), "--as-recorded", "--speed", f"{RATE}pps", "--json"]
    subprocess.run(
        [sys.executable, "-m", "feedhandler", *words], check=True, stdout=subprocess.DEVNULL
    )
    capturing.wait(DRAIN_S)
    capturing.stop()
    capturing.wait(30)
    return capturing.close(), time.process_time() - before


def sent_rate(path: Path, account: Account) -> float:
    """Return packets a second between the first stamp and the last one."""
    from feedhandler.replay.captures.reading import Capture

    first, last = 1 << 63, 0
    for batch in Capture(path).batches():
        first, last = min(first, int(batch.time_ns.min())), max(last, int(batch.time_ns.max()))
    return account.written / (last - first) * 1e9 if last > first else 0.0


def run(quick: bool = False) -> dict[str, Any]:
    """Return what was captured and lost, by the file's suffix, and the problems found."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "session.pcap"
        count = write_session(session, QUICK_SECONDS if quick else SECONDS)
        for suffix in SUFFIXES:
            path = Path(folder) / ("captured" + suffix)
            account, spent_s = captured(session, path)
            rate = sent_rate(path, account)
            found[suffix] = {
                "sent": count,
                "written": account.written,
                "kernel_drops": account.kernel_drops,
                "ring_drops": account.ring_drops,
                "sent_per_second": round(rate),
                "us_a_packet": spent_s / max(1, account.received) * 1e6,
                "bytes": account.size_bytes,
            }
            print(
                f"  {suffix:10} {account.written:,} of {count:,} at {rate:,.0f}/s, lost"
                f" {account.lost:,} (bar 0), {spent_s / max(1, account.received) * 1e6:.2f} us a"
                " packet"
            )
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    problems = [
        f"{suffix}: {each['sent'] - each['written'] - each['kernel_drops']} not accounted for"
        for suffix, each in found.items()
        if each["written"] + each["kernel_drops"] + each["ring_drops"] != each["sent"]
    ]
    return {"formats": found, "problems": problems}
