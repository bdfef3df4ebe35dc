"""Captures, a warm Spark session and a look at memory, for the benchmarks of the characterisation.

Both cores work in all that is compared here: Spark's two workers in ours and in the peers, two
processes in the compiled reader. Clocks run over the work alone: sessions and workers are started,
imports done and captures in the kernel's cache before.
"""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.processes import every
from feedhandler.characterise import register
from feedhandler.characterise.cluster import SparkRunner, spark_session
from feedhandler.characterise.files import look_at
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.planning import exact_slices
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import Slice, slice_bytes
from feedhandler.characterise.tables import Table, Tables
from feedhandler.codecs import load_feed
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture
from tests.support.processes import resident_bytes

FEED, PROFILE, ZONE = "euronext-utp-md", "euronext-2011-03", "Europe/Lisbon"
#: The source paper's session.
SESSION_PACKETS = 81_217_612
SEED = 7
CORES = 2
SAMPLE_S = 0.05
#: What a worker's first task waits for: the interpreter, its imports, Java's first compilations.
WARM_UPS = 3


@contextlib.contextmanager
def folder(bytes_wanted: int) -> Iterator[Path]:
    """Make a folder for captures of so many bytes, removed afterwards; the disk must have room."""
    with tempfile.TemporaryDirectory(prefix="feedhandler-bench-") as name:
        room = os.statvfs(name)
        free = room.f_bavail * room.f_frsize
        if free < 1.2 * bytes_wanted:
            raise SystemExit(
                f"{name}: {free / 1e9:.0f} GB are free, {1.2 * bytes_wanted / 1e9:.0f} GB are"
                " needed; TMPDIR names another folder"
            )
        yield Path(name)


def day(target: Path, scale: float) -> dict[str, Any]:
    """Generate the paper's session at a scale; its ledger."""
    began = time.perf_counter()
    ledger = write_capture(Traffic(load_profile(PROFILE), SEED, scale=scale), target)
    took = time.perf_counter() - began
    # On the disk before anything is timed, which the kernel would else do meanwhile.
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    print(
        f"  made: {PROFILE} at {scale:g}, {ledger['packets']:,} packets, {ledger['messages']:,}"
        f" messages, {target.stat().st_size / 1e9:.2f} GB, in {took:.0f} s",
        flush=True,
    )
    return ledger


@contextlib.contextmanager
def warm_session(sample: Path) -> Iterator[Any]:
    """Yield a Spark session on two cores whose workers have run a small job already."""
    spark = spark_session(f"local[{CORES}]")
    try:
        register(spark)
        for _ in range(WARM_UPS):
            job(spark, sample)
        yield spark
    finally:
        spark.stop()


class Done(NamedTuple):
    """A job's outcome, its tables by name, and what it took in seconds."""

    outcome: Outcome
    tables: dict[str, Table]
    seconds: float


def job(spark: Any, path: Path, *, messages: bool = True) -> Done:
    """Run the job on Spark, from the path to all tables; without messages, to the packets table."""
    began = time.perf_counter()
    runner = SparkRunner(spark)
    request = Request(FEED, messages=messages)
    outcome = characterise([str(path)], request, runner, workers=runner.workers)
    whole = Tables(outcome, load_feed(FEED), ZONE)
    tables = {each.name: each for each in (whole.all() if messages else [whole.services()])}
    return Done(outcome, tables, time.perf_counter() - began)


def best(times: int, work: Callable[[], float]) -> float:
    """Return the shortest of some turns: other load on the machine only adds."""
    return min(work() for _ in range(times))


class Readers:
    """Two processes that go through captures with the compiled reader alone. Made before Spark's
    session, so that they share nothing with it."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(CORES)

    def __enter__(self) -> "Readers":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def seconds(self, path: Path) -> float:
        """Return how long all of a capture takes them, in slices as the job has them."""
        file = look_at(str(path))
        slices = exact_slices([file], slice_bytes(file.size, CORES))
        began = time.perf_counter()
        self._pool.map(_read, slices, chunksize=1)
        return time.perf_counter() - began


def _read(part: Slice) -> int:
    """Go through a slice as `Capture` goes through a file: batches that may be kept."""
    return sum(len(batch) for batch in SliceReader(part).batches())


class Memory(contextlib.ExitStack):
    """Resident memory of this process and of all that came of it, sampled while it lasts.

    `most`: the largest sum, in bytes; `by_command`: each kind of process, at that moment. Pages
    that processes share count for each of them: the sum is more than what is really held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.by_command: dict[str, int] = {}

    def __enter__(self) -> "Memory":
        self.enter_context(every(SAMPLE_S, self._sample))
        return super().__enter__()

    def _sample(self) -> None:
        now = resident(os.getpid())
        if sum(now.values()) > self.most:
            self.most, self.by_command = sum(now.values()), now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in self.by_command.items())
        return f"{self.most / 1e9:.2f} GB at most ({parts})"


def resident(root: int) -> dict[str, int]:
    """Return resident bytes by kind of process: the driver, Java, and Python's workers."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # pid (comm) state ppid ...: a command may hold spaces and brackets.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    mine = {root}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    found: dict[str, int] = {}
    for pid in mine:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            kind = "driver" if pid == root else "java" if name == "java" else "workers"
            found[kind] = found.get(kind, 0) + resident_bytes(pid)
    return found
