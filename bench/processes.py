"""Samples beside what is measured, rates of work, and a folder in memory."""

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def every(seconds: float, look: Callable[[], object]) -> Iterator[None]:
    """Call `look` every so often, on a thread of its own, while this lasts."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def memory_folder() -> Path:
    """Return a file system in memory if there is one: the disk is not measured."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def passes(work: Callable[[], int], seconds: float) -> dict[str, float]:
    """Run `work` for `seconds`, once at least; median and best of what it did a second."""
    work()
    rates = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not rates:
        began = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - began))
    return {"median_per_s": statistics.median(rates), "best_per_s": max(rates)}


def median_rate(work: Callable[[], int], seconds: float) -> float:
    """Run `work` for `seconds`; the median of what it did a second."""
    return passes(work, seconds)["median_per_s"]
