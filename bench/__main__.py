"""`make bench`: run every benchmark, print the figures with their bars, write them as JSON.

python -m bench [--quick | --smoke] [--only NAME ...] [--long] [--soak] [--out FILE]
python -m bench --against COMMIT [--turns 5] [--quick] [--only NAME ...]

A bar of speed that is missed is a figure like any other. What must not happen at any speed is a
fault: something lost, doubled where it may not be, memory beyond its bound, a search that found no
rate at all, an exception, a bench that does not end. Each has a line at the end, and the exit code
is then 1; it is 0 otherwise.

`--smoke` runs every bench there is, the long ones too, with loads so small that their figures say
nothing: what is looked for is faults. Each bench declares what is smaller then in its `SMOKE`, a
table of its constants and their values (`bench_gateway.STEPS_MAX`: one of another bench that it
uses); one without that table is a fault itself.

`--against` runs each bench here and in another commit's tree, in turns: see `bench/against.py`. It
exits with 2 where there is no such commit.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import against

#: Benchmarks in the order they run; each module has `run(quick) -> dict`, with the faults that it
#: found as a list of texts in `problems`.
BENCHMARKS = [
    "codecs",
    "venue_codecs",
    "fix_codec",
    "books",
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
    "keyed_core",
    "fixcast_keys",
    "fixcast_publish",
    "fixcast_receive",
    "routing",
    "node",
    "overlay",
    "overlay_rate",
    "publish",
    "stall",
]
LONG = [
    "keyed_peers",
    "keyed_amqp",
    "keyed_start",
    "lab",
    "lab_ceiling",
    "pacing_long",
    "replay_memory",
    "memory",
    "fixcast_memory",
    "overlay_hooks",
    "overlay_aeron",
    "overlay_memory",
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
#: Benchmarks that run beside the others with tiny loads, each list in a process of its own: those
#: without sockets, and those that wait for brokers and disks most of the time.
BESIDE = (
    [
        "codecs",
        "venue_codecs",
        "fix_codec",
        "books",
        "captures",
        "generate",
        "journal",
        "journal_checkpoints",
        "fixcast_keys",
        "routing",
        "replay_memory",
        "replay_compressed",
        "characterise",
        "characterise_repeats",
        "characterise_session",
    ],
    ["broker_crash", "broker_stall", "node", "keyed_peers", "keyed_amqp", "keyed_start"],
)
DEFAULT_OUT = Path("out/bench.json")
#: A bench with a tiny load that runs longer hangs: five times what the longest takes beside others.
SMOKE_SECONDS_MAX = 300
#: Of an exception's trace: the location, for who mends it.
TRACE_LINES = 3


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in what takes longer; 0: never."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _shrink(module: ModuleType) -> None:
    """Give a bench's constants the values of its `SMOKE`."""
    table = getattr(module, "SMOKE", None)
    if table is None:
        raise LookupError("declares no load for --smoke: a table SMOKE of its constants")
    for name, value in table.items():
        other, _, constant = name.rpartition(".")
        owner = importlib.import_module(f"bench.{other}") if other else module
        if not hasattr(owner, constant):
            raise LookupError(f"SMOKE names {name}, which the bench does not have")
        setattr(owner, constant, value)


def run_one(name: str, quick: bool, smoke: bool) -> dict[str, Any]:
    """Return one bench's figures; whatever ends it early stands among its `problems`."""
    began = time.monotonic()
    try:
        module = importlib.import_module(f"bench.bench_{name}")
        if smoke:
            _shrink(module)
        with _within(SMOKE_SECONDS_MAX if smoke else 0):
            figures: dict[str, Any] = module.run(quick or smoke)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-TRACE_LINES:])
        print(where, file=sys.stderr, end="")
        figures = {"problems": [f"{type(error).__name__}: {error}"]}
    if smoke:
        print(f"  {time.monotonic() - began:.1f} s", flush=True)
    return figures


def run_beside(names: list[str], out: Path) -> dict[str, Any]:
    """Run these with tiny loads; each list of `BESIDE` in a process of its own,
    whose figures stand beside `out`, and whose output comes at the end."""
    here = [name for name in names if not any(name in others for others in BESIDE)]
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(_beside(others, out.with_suffix(f".{number}.json")))
            for number, others in enumerate(BESIDE)
        ]
        found = run_here(here, quick=True, smoke=True)
        for part in parts:
            found |= part()
    return found


@contextlib.contextmanager
def _beside(names: list[str], out: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run these with tiny loads in a process that ends with the context; give what waits for their
    figures."""
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench", "--smoke", "--only", *names, "--out", str(out)]

    def figures() -> dict[str, Any]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(SMOKE_SECONDS_MAX * len(names))
        theirs = json.loads(out.read_text()) if out.exists() else {}
        lost = {"problems": ["it did not come to its end"]}
        return {name: theirs.get(name, lost) for name in names}

    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield figures
        finally:
            running.kill()
            running.wait()
            output.seek(0)
            print(output.read().decode(errors="replace"), end="", flush=True)


def run_here(names: list[str], quick: bool, smoke: bool) -> dict[str, Any]:
    """Return the figures of each of these, one after the other."""
    found = {}
    for name in names:
        print(f"{name}:", flush=True)
        found[name] = run_one(name, quick, smoke)
    return found


def main() -> int:
    """Run what was asked for; 0 where everything ran without a fault, 1 where there was one."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    loads = parser.add_mutually_exclusive_group()
    loads.add_argument("--quick", action="store_true", help="short loads: a look, not a figure")
    loads.add_argument("--smoke", action="store_true", help="tiny loads, every bench: faults only")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS + LONG + SOAK, metavar="NAME")
    parser.add_argument("--long", action="store_true", help="what needs longer: half an hour")
    parser.add_argument("--soak", action="store_true", help="an hour with a fault a minute")
    parser.add_argument("--against", metavar="COMMIT", help="this tree and that commit, in turns")
    parser.add_argument("--turns", type=int, default=against.DEFAULT_TURNS, help="for --against")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    every = BENCHMARKS + LONG + SOAK
    chosen = SOAK if arguments.soak else LONG if arguments.long else BENCHMARKS
    names = arguments.only or (every if arguments.smoke else chosen)
    found: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "quick": arguments.quick or arguments.smoke,
    }
    faults = []
    if arguments.against:
        try:
            commit = against.commit_of(arguments.against)
        except LookupError as error:
            parser.error(str(error))
        found |= against.run(commit, names, arguments.turns, arguments.quick)
        faults, names = found.pop("problems"), []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.smoke and not arguments.only:
        figures = run_beside(names, arguments.out)
    else:
        figures = run_here(names, arguments.quick, arguments.smoke)
    for name, of_one in figures.items():
        faults += [f"{name}: {problem}" for problem in of_one.get("problems", ())]
    found |= figures
    arguments.out.write_text(json.dumps(found, indent=1))
    print(f"written: {arguments.out}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
