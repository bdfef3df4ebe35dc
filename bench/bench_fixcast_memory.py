"""Memory of FIX over multicast: 100 million messages published and received (`make bench-long`).

The publisher is a process of its own (`fixcast_load`), its token bucket the limit; the gateway's
receive thread takes both lines here, and its ring is emptied as fast as it fills. A third part is
the model receiver behind `feedhandler fixcast receive`, given a twentieth of it by hand. Of each,
what the process has in memory after a tenth of the messages (the model: a fifth) is compared with
what it has at the end: by then every store has been filled and written round.

The bar: 4 MB of growth, for pools of the allocator. More is a fault, where all messages were sent.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.fixcast_load import Load, as_json, book_updates
from feedhandler.codecs import load_feed
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.fixcast.datagrams import Packer
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import Deliver, ReceptionSettings
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support.processes import resident_bytes

GROUPS = ("239.192.82.1", "239.192.82.2")
PORT = 31_982
MESSAGES, QUICK_MESSAGES = 100_000_000, 2_000_000
#: The model is Python: it gets one message in so many. Its table of copies is a dictionary of
#: 65,536 entries that finds its last size within a million.
MODEL_SHARE, MODEL_SETTLED = 20, 1_000_000
#: Of the bucket: some 400,000 messages a second, which both processors keep up with.
RATE_BYTES_S, BURST_BYTES = 110_000_000, 64 << 10
BUFFER_BYTES = 16 << 20
BAR_BYTES = 4_000_000
#: Looks at the memory, the first after a tenth.
LOOKS = 10
#: After so long without anything the publisher has ended.
QUIET_SECONDS = 3.0
SMOKE: dict[str, object] = {"QUICK_MESSAGES": 40_000}


def _received(load: Load) -> tuple[dict[str, Any], dict[str, int]]:
    """Publish the load, receive it; what the publisher says, and what came of it here."""
    lines = tuple(
        Line(name, group, load.port, "127.0.0.1") for name, group in zip("AB", GROUPS, strict=True)
    )
    ring = Ring()
    receiver = Receiver(
        load_feed("fix-marketdata").table, 1, [ChannelPlan(1, lines)], ring,
        settings=ArbitrationSettings(silent_us=60_000_000), receive_buffer_bytes=BUFFER_BYTES,
    )  # fmt: skip
    channel = receiver.channel_counters[0]
    memory: list[int] = []
    receiver.start()
    try:
        with tempfile.TemporaryFile("w+") as given:
            given.write(as_json(load))
            given.seek(0)
            publisher = subprocess.Popen(
                [sys.executable, "-m", "bench.fixcast_load"], stdin=given,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        ended = 0.0
        while not ended or time.monotonic() < ended:
            ring.release(ring.published)
            time.sleep(0.001)
            seen = int(channel[ChannelCounter.MESSAGES]) + int(channel[ChannelCounter.LOST])
            if seen * LOOKS // load.count > len(memory):
                memory.append(resident_bytes())
            if not ended and publisher.poll() is not None:
                ended = time.monotonic() + QUIET_SECONDS
        assert publisher.stdout is not None
        said = json.loads(publisher.stdout.read())
    finally:
        receiver.stop()
    memory.append(resident_bytes())
    return said, {
        "messages": int(channel[ChannelCounter.MESSAGES]),
        "lost": int(channel[ChannelCounter.LOST]),
        "kernel_drops": int(receiver.line_counters[:, LineCounter.KERNEL_DROPS].sum()),
        "first_bytes": memory[0],
        "growth_bytes": memory[-1] - memory[0],
    }


def _by_the_model(count: int) -> dict[str, int]:
    """Give the model receiver so many messages on both lines."""
    receiver = ChannelReceiver("c", b"c", ReceptionSettings(), None, 1, 0)
    stamper = Header(sender=b"PUB", target=b"c").stamper(7)
    given, packer = book_updates(2_000, seed=1), Packer(1)
    memory: list[int] = []
    delivered = number = 0
    while number < count:
        number += 1
        message = stamper.stamped(given[number % len(given)], number)
        assert message is not None
        for datagram in packer.add(message, 0):
            for line in (0, 1):
                events = receiver.datagram(datagram, line, number * 1000)
                delivered += sum(isinstance(event, Deliver) for event in events)
        settled = number >= min(MODEL_SETTLED, count)
        if settled and number * LOOKS // count > len(memory):
            memory.append(resident_bytes())
    for datagram in packer.flush():
        events = receiver.datagram(datagram, 0, number * 1000)
        delivered += sum(isinstance(event, Deliver) for event in events)
    return {
        "delivered": delivered,
        "first_bytes": memory[0],
        "growth_bytes": memory[-1] - memory[0],
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all three, printing as it goes."""
    count = QUICK_MESSAGES if quick else MESSAGES
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "updates.fix")
        file.write_bytes(b"".join(book_updates(10_000, seed=1)))
        load = Load(str(file), count, GROUPS, PORT, RATE_BYTES_S, BURST_BYTES, 1_000_000)
        said, received = _received(load)
    memory = said["memory"]
    found: dict[str, dict[str, Any]] = {
        "publisher": {
            "first_bytes": memory[0], "growth_bytes": memory[-1] - memory[0],
            "per_s": round(count / said["seconds"]),
        },
        "receiver": received,
        "model": _by_the_model(count // MODEL_SHARE),
    }  # fmt: skip
    if said["counts"].get("messages") != count:
        problems.append(f"{said['counts'].get('messages')} of {count} messages were published")
    if not received["kernel_drops"] and received["messages"] != count:
        problems.append(f"{received['messages']} of {count} messages were received")
    if found["model"]["delivered"] != count // MODEL_SHARE:
        problems.append(f"the model delivered {found['model']['delivered']} messages")
    for name, figures in found.items():
        growth = figures["growth_bytes"]
        print(
            f"  {name}: {figures['first_bytes'] / 1e6:.1f} MB after a tenth, {growth / 1e6:+.2f} MB"
            f" at the end (bar {BAR_BYTES / 1e6:.0f} MB)"
        )
        # A short run ends before the stores are full.
        if not quick and growth > BAR_BYTES:
            problems.append(f"memory of the {name} grew by {growth / 1e6:.2f} MB")
    return {**found, "messages_sent": count, "bar_bytes": BAR_BYTES, "problems": problems}
