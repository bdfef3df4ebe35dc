"""The whole suite again and again: a gate that fails now and then is no gate.

    python -m tests.steady [--runs 20] [--again "make test"] [--logs build/steady]

runs `make test` so often, every other time with each processor kept busy by something else. It
stops at the first run that fails, and prints where that run's log is. Exit code: 0 if all passed,
else 1.
"""

import argparse
import contextlib
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LOGS = CHECKOUT / "build" / "steady"


def spin(parent: int) -> None:
    """Keep a processor busy for as long as the parent lives."""
    while os.getppid() == parent:
        sum(range(100_000))


@contextlib.contextmanager
def busy(processors: int) -> Iterator[None]:
    """Keep so many processors busy for the time of the block."""
    spinning = [
        multiprocessing.Process(target=spin, args=(os.getpid(),), daemon=True)
        for _ in range(processors)
    ]
    for each in spinning:
        each.start()
    try:
        yield
    finally:
        for each in spinning:
            each.terminate()
            each.join()


def run(number: int, command: list[str], logs: Path) -> bool:
    """Run the suite once, beside busy processors every second time; whether it passed."""
    processors = (os.cpu_count() or 1) if number % 2 == 0 else 0
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"run-{number:02}{'-busy' if processors else ''}.log"
    began = time.monotonic()
    with log.open("wb") as file, busy(processors):
        done = subprocess.run(command, cwd=CHECKOUT, stdout=file, stderr=subprocess.STDOUT)
    verdict = "failed" if done.returncode else "passed"
    print(f"run {number}: {verdict} in {time.monotonic() - began:.0f} s: {log}", flush=True)
    return done.returncode == 0


def main(words: list[str] | None = None) -> int:
    """Run until one fails, or all have passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--again", default="make test", help="what a run is")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of the runs' logs")
    options = parser.parse_args(words)
    command, numbers = shlex.split(options.again), range(1, options.runs + 1)
    return int(not all(run(number, command, options.logs) for number in numbers))


if __name__ == "__main__":
    sys.exit(main())
