"""`make bench`: run every benchmark, print the figures with their bars, write them as JSON.

python -m bench [--quick] [--only NAME ...] [--long] [--soak] [--out FILE]
"""

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

#: Benchmarks in the order they run; each module has `run(quick) -> dict`.
BENCHMARKS = [
    "codecs",
    "captures",
    "receive",
    "subscribe",
    "gateway",
    "recovery",
    "recorder",
    "routing",
    "node",
    "publish",
    "stall",
]
LONG = ["memory", "outage", "stall_long", "broker_crash", "broker_stall"]
SOAK = ["soak"]
DEFAULT_OUT = Path("out/bench.json")


def main() -> int:
    """Run what was asked for; 0 where everything ran."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
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
    for name in names:
        print(f"{name}:", flush=True)
        module = importlib.import_module(f"bench.bench_{name}")
        found[name] = module.run(arguments.quick)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1))
    print(f"written: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
