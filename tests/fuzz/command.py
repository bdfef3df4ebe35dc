"""The command of a mutator, `python -m tests.fuzz.NAME --count N --seed S`: prints the command that
runs it again, how fast it was, and what of its promise was not kept."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Command:
    """`run` takes how many `units`, the seed and where the last conversation is kept, and answers
    with an outcome that has `report()` and says under the unit's name how many there were; `judge`
    says what was wrong with it, of how many."""

    def __init__(
        self,
        name: str,
        units: str,
        run: Callable[[int, int, Path | None], Any],
        judge: Callable[[Any, int], list[str]],
        count: int = 1_000_000,
        keeps: bool = False,
    ) -> None:
        self._name, self._units, self._run, self._judge = name, units, run, judge
        about = (sys.modules["__main__"].__doc__ or "").split("\n\n")[0]
        self._parser = argparse.ArgumentParser(description=about)
        self._parser.add_argument("--count", type=int, default=count, help=f"{units} to mutate")
        self._parser.add_argument("--seed", type=int, default=None, help="default: from the clock")
        if keeps:
            self._parser.add_argument(
                "--keep", type=Path, default=None, help="file of the last conversation"
            )
        self._parser.set_defaults(keep=None)

    def main(self, arguments: list[str] | None = None) -> int:
        """Run it; the exit code is 1 where something was wrong."""
        options = self._parser.parse_args(arguments)
        seed = time.time_ns() % 2**32 if options.seed is None else options.seed
        print(
            f"python -m tests.fuzz.{self._name} --count {options.count} --seed {seed}", flush=True
        )
        began = time.monotonic()
        outcome = self._run(options.count, seed, options.keep)
        print(outcome.report())
        done = getattr(outcome, self._units)
        print(f"{done / (time.monotonic() - began):,.0f} {self._units}/s")
        wrong = self._judge(outcome, options.count)
        for each in wrong:
            print(each)
        return int(bool(wrong))
