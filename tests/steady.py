"""The whole suite again and again: a gate that fails now and then is no gate.

    python -m tests.steady [--runs 20] [--again "make test"] [--beside COMMAND] [--logs FOLDER]

runs `make test` so often, every other time with each processor kept busy by something else: a loop
that counts, or a command of your own, started once a processor and ended by SIGTERM. It stops at
the first run that fails, and prints where that run's log is. Exit code: 0 if all passed, else 1.

Twenty runs take hours. Who stops them (Ctrl-C) and begins again goes on behind the last one that
passed, as long as the commit is the same and nothing of it is changed; a run that fails ends the
row, and the next one begins anew.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.checkout import CHECKOUT

LOGS = CHECKOUT / "build" / "steady"


# Keeps a processor busy for as long as its parent lives.
SPIN = [
    sys.executable,
    "-c",
    "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))",
]


@contextlib.contextmanager
def busy(processors: int, command: list[str]) -> Iterator[None]:
    """Run the command once a processor, for the time of the block."""
    beside = [subprocess.Popen(command, cwd=CHECKOUT) for _ in range(processors)]
    try:
        yield
    finally:
        for each in beside:
            each.terminate()
            each.wait()


def commit() -> str:
    """The commit that is checked out; "" where something of it is changed, or there is none."""
    git = ["git", "-C", str(CHECKOUT)]
    try:
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "" if changed.stdout else head.stdout.decode().strip()


def passed_before(row: Path, of: str) -> int:
    """Return how many runs in a row have passed of this commit."""
    lines = row.read_text().splitlines() if row.exists() else []
    return len(lines) - 1 if of and lines[:1] == [of] else 0


def run(number: int, command: list[str], beside: list[str], logs: Path) -> bool:
    """Run the suite once, beside busy processors every second time; whether it passed."""
    processors = (os.cpu_count() or 1) if number % 2 == 0 else 0
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"run-{number:02}{'-busy' if processors else ''}.log"
    began = time.monotonic()
    with log.open("wb") as file, busy(processors, beside):
        done = subprocess.run(command, cwd=CHECKOUT, stdout=file, stderr=subprocess.STDOUT)
    verdict = "failed" if done.returncode else "passed"
    print(f"run {number}: {verdict} in {time.monotonic() - began:.0f} s: {log}", flush=True)
    return done.returncode == 0


def main(words: list[str] | None = None) -> int:
    """Run until one fails, or all have passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--again", default="make test", help="what a run is")
    parser.add_argument("--beside", help="what keeps a processor busy")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of the runs' logs")
    options = parser.parse_args(words)
    command, row, of = shlex.split(options.again), options.logs / "row", commit()
    beside = shlex.split(options.beside) if options.beside else SPIN
    before = passed_before(row, of)
    options.logs.mkdir(parents=True, exist_ok=True)
    if not before:
        row.write_text(f"{of}\n")
    elif before < options.runs:
        print(f"{before} runs of this commit have passed before; going on", flush=True)
    for number in range(before + 1, options.runs + 1):
        if not run(number, command, beside, options.logs):
            row.unlink()
            return 1
        with row.open("a") as file:
            file.write(f"{number}\n")
    print(f"{options.runs} runs in a row have passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
