"""The source paper's whole session, extrapolated from a tenth of it (`make bench-long`).

The session has 81 million packets, 410 million messages and 28 GB. Generated here are 1, 3 and 10
percent of it; all tables of each are made on one warm Spark session of two cores. Time has to grow
no faster than packets do; a straight line through the smallest and the largest gives the whole
session's. The memory of driver, Java and workers is sampled meanwhile.
"""

from typing import Any

from bench.characterise_kit import (
    CORES,
    SESSION_PACKETS,
    Memory,
    day,
    folder,
    job,
    warm_session,
)

SCALES, QUICK_SCALES, WARM_SCALE = (0.01, 0.03, 0.1), (0.001, 0.003, 0.01), 0.001
BYTES = 4_000_000_000
TURNS = 3
#: Of the whole session, extrapolated; of all processes together.
BAR_S, BAR_BYTES = 180.0, 4_000_000_000
#: How much longer a packet of the largest may take than one of the smallest.
GROWTH_MAX = 1.15
SMOKE: dict[str, object] = {
    "QUICK_SCALES": (0.001, 0.002), "TURNS": 1,
    "characterise_kit.WARM_UPS": 1,
}  # fmt: skip


def run(quick: bool = False) -> dict[str, Any]:
    """Measure seconds at each size, the line through them, memory."""
    rows = []
    problems = []
    with folder(0 if quick else BYTES) as root:
        small = root / "small.pcap"
        day(small, WARM_SCALE)
        with warm_session(small) as spark:
            for scale in QUICK_SCALES if quick else SCALES:
                path = root / f"day-{scale:g}.pcap"
                ledger = day(path, scale)
                with Memory() as memory:
                    turns = [job(spark, path) for _ in range(TURNS)]
                done = turns[-1]
                seconds = min(turn.seconds for turn in turns)
                rows.append((scale, ledger["packets"], seconds, memory))
                problems += _differences(scale, done.tables, ledger)
                print(
                    f"  {scale:6.1%}: {ledger['packets']:10,} packets, all tables in"
                    f" {seconds:6.2f} s, {ledger['packets'] / seconds:,.0f} packets/s; {memory}",
                    flush=True,
                )
    return _report(rows, problems)


def _differences(scale: float, tables: dict[str, Any], ledger: dict[str, Any]) -> list[str]:
    """Return what the tables report otherwise than the generator's ledger."""
    figures = dict(tables["figures"].rows)
    wanted = {
        "packets": ledger["packets"],
        "messages": ledger["messages"],
        "payload_bytes": ledger["payload_bytes"],
        "file_bytes": ledger["counted_bytes"],
    }
    repeats = tables["interarrival"].rows[0][2]
    found = [f"{name}" for name, value in wanted.items() if figures[name] != value]
    found += ["repeats"] if repeats != ledger["repeats"]["repeats"] else []
    return [f"at {scale:g} the ledger has other {name}" for name in found]


def _report(rows: list[tuple[float, int, float, Memory]], problems: list[str]) -> dict[str, Any]:
    (_, first, first_s, _), (_, last, last_s, _) = rows[0], rows[-1]
    slope = (last_s - first_s) / (last - first)
    whole_s = last_s + slope * (SESSION_PACKETS - last)
    growth = (last_s / last) / (first_s / first)
    most = max(memory.most for *_, memory in rows)
    print(
        f"  the whole session, {SESSION_PACKETS:,} packets: {whole_s:.0f} s on {CORES} cores by a"
        f" straight line (bar {BAR_S:.0f}); a packet of the largest takes {growth:.2f} of one of"
        f" the smallest (at most {GROWTH_MAX})"
    )
    print(f"  memory: {most / 1e9:.2f} GB at most (bar {BAR_BYTES / 1e9:.0f})")
    if most > BAR_BYTES:
        problems.append(f"driver and workers held {most / 1e9:.2f} GB")
    return {
        "scales": [
            {"scale": scale, "packets": packets, "seconds": seconds, "memory_bytes": memory.most}
            for scale, packets, seconds, memory in rows
        ],
        "whole_session_s": whole_s,
        "growth": growth,
        "memory_bytes": most,
        "ok": whole_s <= BAR_S and growth <= GROWTH_MAX,
        "problems": problems,
    }
