"""Same-symbol interarrival against the plain window function, in one run (`make bench-long`).

Both answer on one warm Spark session for the same capture, of 20 million messages: the job's
mergeable summaries, which shuffle nothing, and `--exact`, a window over each symbol. Their
figures must be the same. The clock runs from the path to the histograms.
"""

import time
from pathlib import Path
from typing import Any

from bench.characterise_kit import FEED, Done, Memory, best, day, folder, job, warm_session
from feedhandler.characterise.cluster import exact_interarrival
from feedhandler.codecs import load_feed
from feedhandler.replay.captures.reading import address_text

#: Of the paper's session, 410 million messages: 20 million, and a look.
SCALE, QUICK_SCALE, WARM_SCALE = 0.05, 0.002, 0.001
BYTES = 1_500_000_000
TURNS = 3
BAR = 10.0
SMOKE: dict[str, object] = {
    "QUICK_SCALE": 0.001, "TURNS": 1, "characterise_kit.WARM_UPS": 1,
}  # fmt: skip


def exact(spark: Any, path: Path) -> tuple[dict[Any, list[int]], float]:
    """Return the window function's buckets, and the seconds that took."""
    began = time.perf_counter()
    reader = spark.read.format("feedhandler").option("feed", FEED).option("rows", "messages")
    found = exact_interarrival(reader.load(str(path)))
    took = time.perf_counter() - began
    return {key: each.buckets.tolist() for key, each in found.items()}, took


def buckets_of(done: Done) -> dict[Any, list[int]]:
    """Return the job's buckets, by the same keys."""
    digest, feed = done.outcome.digest, load_feed(FEED)
    buckets = {}
    for (index, code), cell in digest.cells.items():
        channel = digest.channels[index]
        if cell.interarrival.count:
            line = f"{address_text(channel.group)}:{channel.port}"
            key = (line, channel.service, str(feed.type_label(code)))
            buckets[key] = cell.interarrival.buckets.tolist()
    return buckets


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the ratio, and whether both give the same."""
    with folder(0 if quick else BYTES) as root:
        small, path = root / "small.pcap", root / "day.pcap"
        day(small, WARM_SCALE)
        ledger = day(path, QUICK_SCALE if quick else SCALE)
        with warm_session(small) as spark:
            exact(spark, small)
            done = job(spark, path)
            ours_s = best(TURNS, lambda: job(spark, path).seconds)
            with Memory() as memory:
                window, window_s = exact(spark, path)
    messages = sum(done.outcome.digest.totals[:, 4].tolist())
    ratio = window_s / ours_s
    same = window == buckets_of(done)
    print(
        f"  interarrival of {messages:,} messages: {ours_s:.2f} s, window function"
        f" {window_s:.1f} s: {ratio:.0f} times (bar {BAR:.0f}), results"
        f" {'the same' if same else 'DIFFER'}"
    )
    print(f"  memory of the window function: {memory}")
    return {
        "messages": messages,
        "packets": ledger["packets"],
        "seconds": {"summaries": ours_s, "window function": window_s},
        "ratio": ratio,
        "window_memory_bytes": memory.most,
        "ok": ratio >= BAR,
        "problems": [] if same else ["the window function gives another interarrival"],
    }
