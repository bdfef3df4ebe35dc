"""One line dead for a minute while the other loses 5 % (`make bench-long`): nothing may be lost.

Lines A and B, then line B alone with every twentieth number missing, then both again. What line B
lost comes from a retransmission server. The bars: no packet lost; subscribers are notified of a gap
within 100 ms of the packet that showed it, and that all is well within a second of the healing.
"""

import asyncio
import threading
import time
from typing import Any

import feedhandler
from bench.rig import SEQUENCE_OFFSET, SERVICE, Rig, templates
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support.load import LoadGenerator

RATE = 7_100
BEFORE_SECONDS, DEAD_SECONDS, AFTER_SECONDS = 3.0, 60.0, 5.0
QUICK_DEAD_SECONDS = 5.0
LOST_EVERY = 20
#: Bars.
NOTICE_MS, HEALED_MS = 100.0, 1000.0
PATIENCE_SECONDS = 30.0
SMOKE: dict[str, object] = {"QUICK_DEAD_SECONDS": 1.0}


class Listener(threading.Thread):
    """A subscriber that notes when it was notified of what."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        #: Of each quality message: when it came, its state, its reason.
        self.notices: list[tuple[int, str, str]] = []
        #: From the stamp of the packet behind a gap to the word that it is missing.
        self.delays_ns: list[int] = []
        self.packets = 0
        self.lost = 0
        self.attached = threading.Event()
        self.leave = threading.Event()

    def run(self) -> None:
        asyncio.run(self._receive())

    async def _receive(self) -> None:
        announced_ns = 0
        async with feedhandler.subscribe(self.url, f"euronext.{SERVICE}", stamp=True) as messages:
            self.attached.set()
            async for message in messages:
                quality = message.quality
                if quality is None:
                    self.packets += 1
                    if announced_ns and message.body[14] == 0:
                        # The first packet of a line behind the gap that was announced.
                        self.delays_ns.append(announced_ns - message.received_ns)
                        announced_ns = 0
                    if self.leave.is_set():
                        return
                    continue
                now = time.time_ns()
                self.notices.append((now, quality["state"], quality["reason"]))
                if quality["reason"] == "missing":
                    announced_ns = announced_ns or now
                self.lost += (
                    sum(b - a + 1 for a, b in quality["lost"])
                    if (quality["reason"] == "gap")
                    else 0
                )


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the outage: what was lost, how soon it was announced, how soon it was over."""
    dead_seconds = QUICK_DEAD_SECONDS if quick else DEAD_SECONDS
    with Rig("packet", 1, lost_every=LOST_EVERY) as rig:
        host, port = rig.config.amqp.address
        listener = Listener(f"amqp://{host}:{port}")
        listener.start()
        listener.attached.wait(PATIENCE_SECONDS)
        lines = rig.config.channels[0].lines
        both = [MulticastLine(line.name, (line.group, line.port)) for line in lines]
        with (
            LoadGenerator(templates(), both, sequence_offset=SEQUENCE_OFFSET) as whole,
            LoadGenerator(
                templates(LOST_EVERY), both[1:], sequence_offset=SEQUENCE_OFFSET
            ) as alone,
        ):
            whole.run(RATE, BEFORE_SECONDS)
            alone.next_sequences[:] = whole.next_sequences
            alone.run(RATE, dead_seconds)
            whole.next_sequences[:] = alone.next_sequences
            healed_ns = time.time_ns()
            whole.run(RATE, AFTER_SECONDS)
            after = rig.settled()
            listener.leave.set()
            whole.run(RATE, 0.1)
            listener.join(PATIENCE_SECONDS)
            sent = int(whole.next_sequences[0]) - 1
    channel = after["channels"][0]
    bad = [at for at, state, _ in listener.notices if state != "OK" and at > healed_ns]
    well = [at for at, state, _ in listener.notices if state == "OK" and at > max(bad, default=0)]
    well_ms = max(0, (min(well, default=healed_ns) - healed_ns) / 1e6)
    gap_wait_ns = rig.config.arbitration.gap_wait_us * 1000
    notice_ms = max(listener.delays_ns, default=0) / 1e6
    problems, missed = [], []
    if channel["lost"] or listener.lost:
        problems.append(f"{channel['lost']} packets lost")
    if notice_ms > NOTICE_MS:
        missed.append(f"announced after {notice_ms:.0f} ms")
    if well_ms > HEALED_MS:
        missed.append(f"well after {well_ms:.0f} ms")
    if not listener.delays_ns:
        problems.append("no gap was announced")
    print(
        f"  line A dead for {dead_seconds:.0f} s, 5 % lost on B: {sent:,} packets,"
        f" {after['recovery']['retransmitted']:,} retransmitted, {channel['lost']} lost;"
        f" gaps announced within {notice_ms:.1f} ms (bar {NOTICE_MS:.0f};"
        f" {gap_wait_ns / 1e6:.0f} of it wait for"
        f" the other line), all well {well_ms:.0f} ms after healing (bar {HEALED_MS:.0f}): "
        + ("; ".join(missed + problems) or "as it should be")
    )
    return {
        "packets": sent, "retransmitted": after["recovery"]["retransmitted"],
        "lost": channel["lost"], "notice_ms": notice_ms, "well_ms": well_ms,
        "gaps": len(listener.delays_ns), "missed": missed, "problems": problems,
    }  # fmt: skip
