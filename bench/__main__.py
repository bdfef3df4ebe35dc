"""`make bench`: run every benchmark, print the figures with their bars, write them as JSON.

python -m bench [--quick] [--only NAME ...] [--long] [--soak] [--out FILE]

A bar of speed that is missed is a figure like any other. What must not happen at any speed is a
fault: something lost, doubled where it may not be, memory beyond its bound, a search that found no
rate at all. Each has a line at the end, and the exit code is then 1; it is 0 otherwise.
"""

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

#: Benchmarks in the order they run; each module has `run(quick) -> dict`, with the faults that it
#: found as a list of texts in `problems`.
BENCHMARKS = [
    "codecs",
    "captures",
    "generate",
    "top_speed",
    "pacing",
    "receive",
    "subscribe",
    "gateway",
    "recovery",
    "recorder",
    "journal",
    "journal_checkpoints",
    "routing",
    "node",
    "publish",
    "stall",
]
LONG = [
    "lab",
    "lab_ceiling",
    "pacing_long",
    "replay_memory",
    "memory",
    "outage",
    "stall_long",
    "broker_crash",
    "broker_stall",
    "replay_compressed",
    "characterise",
    "characterise_repeats",
    "characterise_session",
    "capture",
]
SOAK = ["soak"]
DEFAULT_OUT = Path("out/bench.json")


def main() -> int:
    """Run what was asked for; 0 where everything ran without a fault, 1 where there was one."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="short loads: a look, not a figure")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS + LONG + SOAK, metavar="NAME")
    parser.add_argument("--long", action="store_true", help="what needs longer: half an hour")
    parser.add_argument("--soak", action="store_true", help="an hour with a fault a minute")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    names = arguments.only or (SOAK if arguments.soak else LONG if arguments.long else BENCHMARKS)
    found: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "quick": arguments.quick,
    }
    faults = []
    for name in names:
        print(f"{name}:", flush=True)
        module = importlib.import_module(f"bench.bench_{name}")
        figures = found[name] = module.run(arguments.quick)
        faults += [f"{name}: {problem}" for problem in figures.get("problems", ())]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1))
    print(f"written: {arguments.out}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
