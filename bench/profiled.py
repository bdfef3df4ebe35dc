"""One load in a process of its own, for `bench.profiles`: what it took, and where.

    python -m bench.profiled LOAD [--part SHARE]

Prints one JSON line: the processor's seconds of the load, and where `FEEDHANDLER_PURE=1` makes it
run interpreted, the seconds of each file. Preparing it counts for neither.

A timer of the processor time that is used sends `SIGPROF`, and each thread's processor time since
the sample before belongs to the innermost frame that it has then. A call into C is part of who
calls. The handler runs at the next call or jump back, so a function may be blamed for what its
neighbour did just before: shares are right within some percent of themselves, not to the digit.
Places are files of the product, `elsewhere` (libraries that the product has called), and
`Cython/Shadow.py`: interpreted declarations, which compiled code does not have. What the load
itself does (`bench` and `tests`, with what they call) counts for nothing.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CHECKOUT = f"{Path(__file__).resolve().parent.parent}/"
#: Of processor time; the kernel's clock may be coarser.
INTERVAL_S = 0.004
LOADS_OWN = ("bench/", "tests/")
DECLARATIONS = "Cython/Shadow.py"
ELSEWHERE = "elsewhere"


def place_of(files: Iterator[str]) -> str:
    """Return the place that a sample belongs to; "" for the load's own.

    `files` are those of a stack's frames, the innermost first.
    """
    innermost = next(files, "")
    if innermost.endswith(DECLARATIONS):
        return DECLARATIONS
    found, environment = innermost, f"{CHECKOUT}.venv/"
    while not found.startswith(CHECKOUT) or found.startswith(environment):
        found = next(files, CHECKOUT + LOADS_OWN[0])
    if found.startswith(tuple(CHECKOUT + folder for folder in LOADS_OWN)):
        return ""
    return found.removeprefix(CHECKOUT) if found == innermost else ELSEWHERE


def files_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the files of a stack's frames."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


class Sampler:
    """The processor time of each place, while the context of `sampling` lasts."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()
        self._used: dict[int, float] = {}

    def sample(self, _: int, frame: FrameType | None) -> None:
        """Add what each thread used since the sample before; `frame` is the main thread's."""
        frames: dict[int, FrameType | None] = {**sys._current_frames()}
        frames[threading.main_thread().ident or 0] = frame
        for thread, its in frames.items():
            used = time.clock_gettime(time.pthread_getcpuclockid(thread))
            self.seconds[place_of(files_of(its))] += max(used - self._used.get(thread, 0.0), 0.0)
            self._used[thread] = used

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample until the end of the block."""
        self.sample(0, sys._getframe())
        self.seconds.clear()
        before = signal.signal(signal.SIGPROF, self.sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            del self.seconds[""]


def measure(work: Callable[[], object]) -> dict[str, object]:
    """Run it; its seconds of the processor, and those of each place where it runs interpreted."""
    sampler = Sampler()
    began = time.process_time()
    if os.environ.get("FEEDHANDLER_PURE"):
        with sampler.sampling():
            work()
    else:
        work()
    return {"seconds": time.process_time() - began, "places": sampler.seconds}


def main() -> int:
    """Measure the load that the arguments name."""
    from bench.profile_loads import LOADS

    parser = argparse.ArgumentParser(prog="python -m bench.profiled", description="one load")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--part", type=float, default=1.0, help="of the load's usual size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedhandler-profiles-") as folder:
        work = LOADS[arguments.load](arguments.part, Path(folder))
        print(json.dumps(measure(work)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
