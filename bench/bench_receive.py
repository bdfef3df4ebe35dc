"""Receiving and arbitrating A and B, against a bare C `recvmmsg` loop.

Both sides get the same traffic from the same C sender over loopback multicast: UTP-MD packets of
336 bytes with five messages, each sent to both lines. A rate counts when the kernel dropped
nothing, everything arrived and the sender kept its schedule; the highest such rate is found by
bisection. The receiver has one core, the sender the other.

The bar is 80 % of the C loop's rate. Run alone: `python -m bench --only receive`.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.programs import compiled
from feedhandler.codecs import load_feed
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ports import free_udp_port

GROUPS = ("239.192.78.1", "239.192.78.2")
BUFFER_BYTES = 8 << 20
#: The bar: this part of the bare loop's rate.
BAR = 0.80
#: Unique packets a second between which the highest rate is looked for.
RATE_MIN, RATE_MAX = 20_000, 1_600_000
#: A sender that was behind by more than this part of the run did not keep its schedule.
BEHIND_MAX = 0.02
SECONDS = 10.0
QUICK_SECONDS = 2.0
SMOKE: dict[str, object] = {"RATE_MAX": 22_000, "QUICK_SECONDS": 0.5}
RECEIVE_CPU, SEND_CPU = 0, 1


class Traffic:
    """The compiled C program, and one port."""

    def __init__(self, folder: str) -> None:
        self.program = compiled("receive_ceiling", folder)
        self.port = free_udp_port()

    def send(self, rate: float, seconds: float) -> dict[str, Any]:
        """Send; the sender's own report."""
        command = [self.program, "send", *GROUPS, str(self.port), str(rate), str(seconds),
                   str(SEND_CPU)]  # fmt: skip
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def kept_schedule(self, report: dict[str, Any], seconds: float) -> bool:
        """Return whether the sender was on time, by its report."""
        return report["seconds"] <= seconds * (1 + BEHIND_MAX)


def try_ceiling(traffic: Traffic, rate: float, seconds: float) -> bool:
    """Return whether the bare receive loop takes this rate without loss."""
    expected = 2 * int(rate * seconds)
    command = [traffic.program, "receive", *GROUPS, str(traffic.port), str(expected),
               str(BUFFER_BYTES), str(RECEIVE_CPU)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        report = traffic.send(rate, seconds)
        got = json.loads(receiver.stdout.readline())
    return (
        got["received"] == expected and got["drops"] == 0 and traffic.kept_schedule(report, seconds)
    )


def try_product(traffic: Traffic, rate: float, seconds: float) -> bool:
    """Do receiver and arbiter take this rate?"""
    lines = tuple(
        Line(name, group, traffic.port, "127.0.0.1")
        for name, group in zip("AB", GROUPS, strict=True)
    )
    ring = Ring()
    settings = ArbitrationSettings(silent_us=60_000_000)
    receiver = Receiver(
        load_feed("euronext-utp-md").table, 1, [ChannelPlan(104, lines)], ring,
        settings=settings, receive_buffer_bytes=BUFFER_BYTES, cpu=RECEIVE_CPU,
    )  # fmt: skip
    command = [traffic.program, "send", *GROUPS, str(traffic.port), str(rate), str(seconds),
               str(SEND_CPU)]  # fmt: skip
    receiver.start()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        while sender.poll() is None:
            ring.release(ring.published)
            time.sleep(0.002)
        report = json.loads(sender.stdout.read())
    end = time.monotonic() + 1
    while (
        int(receiver.line_counters[:, LineCounter.PACKETS].sum()) < 2 * report["sent"]
        and time.monotonic() < end
    ):
        ring.release(ring.published)
        time.sleep(0.002)
    receiver.stop()
    drops = int(receiver.line_counters[:, LineCounter.KERNEL_DROPS].sum())
    arrived = int(receiver.line_counters[:, LineCounter.PACKETS].sum())
    channel = receiver.channel_counters[0]
    return (
        receiver.error is None
        and drops == 0
        and arrived == 2 * report["sent"]
        and int(channel[ChannelCounter.PACKETS]) == report["sent"]
        and traffic.kept_schedule(report, seconds)
    )


def highest(attempt: Callable[[float, float], bool], seconds: float, quick: bool) -> float:
    """Return the highest rate that `attempt` takes, 0 if none: coarse with short loads, then
    with full ones."""
    low, high = float(RATE_MIN), float(RATE_MAX)
    short = 0.5 if quick else 1.0
    while high / low > 1.04:
        middle = (low * high) ** 0.5
        if attempt(middle, short) or attempt(middle, short):
            low = middle
        else:
            high = middle
    while not attempt(low, seconds):
        if low <= RATE_MIN:
            return 0.0
        low *= 0.96
    return low


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both, printing as it goes; the figures, the ratio and whether it meets the bar."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        traffic = Traffic(folder)
        ceiling = highest(lambda rate, s: try_ceiling(traffic, rate, s), seconds, quick)
        print(f"  bare recvmmsg loop    {ceiling:11,.0f} unique packets/s, A and B", flush=True)
        product = highest(lambda rate, s: try_product(traffic, rate, s), seconds, quick)
    ratio = product / ceiling if ceiling else 0.0
    sides = (("the bare loop", ceiling), ("receive and arbitrate", product))
    print(
        f"  receive and arbitrate {product:11,.0f} unique packets/s, A and B:"
        f" {ratio:.0%} of the bare loop (bar {BAR:.0%})"
    )
    return {
        "name": "receive and arbitrate A+B, unique packets/s",
        "product": round(product),
        "ceiling": round(ceiling),
        "ratio": round(ratio, 3),
        "bar": BAR,
        "ok": ratio >= BAR,
        "problems": [f"{name}: no rate held" for name, rate in sides if not rate],
    }
