"""Spark's part of the job: a session, slices tallied by its workers, and the window function.

`spark_session` makes the session that the command uses, or takes the one there is. `SparkRunner` is
a runner for `job.characterise`; the same code from `local[*]` to a cluster. There `ship` gives the
workers this package as it stands here, compiled modules included; they must themselves have what it
imports, and the captures under the same paths. `exact_interarrival` computes the interarrival by a
window over every message: slow, a reference for comparison. Needs pyspark and Java; a missing one
is reported in one line.
"""

import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import shutil
import sys
import tarfile
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from feedhandler.characterise.digest import FineHistogram
from feedhandler.characterise.job import (
    Request,
    SliceRun,
    Tallied,
    merge_runs,
    tally_run,
    tally_slice,
)
from feedhandler.characterise.slices import Slice
from feedhandler.codecs.errors import DISK_FAULTS, UsageError

#: How often progress is polled.
LOOK_S = 0.2
#: Bound of results sent to the driver: the largest session seen has some hundred megabytes.
RESULT_BYTES_MAX = "4g"
#: Tallies up to this size are sent directly: through Spark's block store they take both processors.
DIRECT_BYTES_MAX = "64m"
#: Spark's default of 200 costs more than it gains for what is left after tallying.
SHUFFLE_PARTITIONS = "8"
#: How many digests a worker merges into one, and how many the driver is left with at most.
FAN = 8
#: What of the package workers need: modules, compiled ones, descriptions of feeds, profiles.
SHIPPED = (".py", ".so", ".toml", ".json")
_HINT = "in the checkout: pip install '.[spark]'; and Java 17 or later"


def missing() -> str:
    """Return what Spark lacks on this machine, in words; empty if nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        return "Java was not found"
    return ""


def spark_session(master: str = "local[*]", memory: str = "2g") -> Any:
    """Create a Spark session on `master`, or take the one there is.

    Raises `UsageError` where pyspark or Java is missing, or the master does not answer.
    """
    lack = missing()
    if lack:
        raise UsageError(lack, _HINT)
    from pyspark.sql import SparkSession

    # Workers on this machine run this interpreter; a cluster may be configured otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName("feedhandler characterise")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", memory)
        .config("spark.driver.maxResultSize", RESULT_BYTES_MAX)
        .config("spark.task.maxDirectResultSize", DIRECT_BYTES_MAX)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", SHUFFLE_PARTITIONS)
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.log.level", "ERROR")
    )
    try:
        session = builder.getOrCreate()
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"no Spark session on {master}: {reason[:200]}", _HINT) from None
    ship(session)
    return session


def is_local(context: Any) -> bool:
    """Check whether a Spark context's workers are processes of this machine."""
    return context.master == "local" or str(context.master).startswith("local[")


def ship(spark: Any) -> None:
    """Send this package to the workers of a cluster, so that they run the same code.

    Does nothing where workers are processes of this machine. Workers of another architecture run it
    interpreted.
    """
    context = spark.sparkContext
    if is_local(context):
        return
    folder = tempfile.mkdtemp(prefix="feedhandler-")
    # Spark fetches it from here for as long as the session lasts.
    weakref.finalize(spark, shutil.rmtree, folder, ignore_errors=True)
    package = Path(__file__).resolve().parents[1]
    archive = Path(folder) / "feedhandler.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as packed:
        # A checkout's subpackages may be links.
        for root, _, names in os.walk(package, followlinks=True):
            for name in names:
                if name.endswith(SHIPPED):
                    path = Path(root, name)
                    packed.add(path, str(path.relative_to(package)))
    # Workers look for modules among the files they were sent; the fragment is the folder's name.
    context.addArchive(f"{archive}#{package.name}")


class SparkRunner:
    """A runner that tallies slices on Spark's workers, with `on_progress(done, total)` in bytes."""

    def __init__(self, spark: Any, on_progress: Callable[[int, int], object] | None = None) -> None:
        self._context = spark.sparkContext
        self._on_progress = on_progress

    @property
    def workers(self) -> int:
        """The number of tasks that run at once."""
        return int(self._context.defaultParallelism)

    def __call__(self, slices: Sequence[Slice], request: Request) -> Iterator[Tallied]:
        """Tally the slices; results in order. Raises `UsageError` where Spark failed."""
        if not slices:
            return iter(())
        tasks = self._context.parallelize(list(slices), len(slices))
        with self._watched(slices):
            try:
                found = tasks.map(lambda part: _in_worker(part, request)).collect()
            except Exception as error:
                raise worker_error(error) from None
        return iter(found)

    def merged_runs(self, slices: Sequence[Slice], request: Request) -> list[SliceRun]:
        """Tally slices and merge neighbours in a tree of tasks, in order.

        So the driver is sent a few digests, however many slices there are; slices that continue
        nothing stay separate. Raises `UsageError` as a call does.
        """
        if not slices:
            return []
        count = len(slices)
        tasks = self._context.parallelize(list(enumerate(slices)), count)
        runs = tasks.map(lambda each: (each[0], [_run_in_worker(each[1], request)]))
        while count > FAN:
            count = -(-count // FAN)
            runs = runs.map(lambda each: (each[0] // FAN, each)).groupByKey(count).map(_merged)
        with self._watched(slices):
            try:
                found = runs.collect()
            except Exception as error:
                raise worker_error(error) from None
        return _merged((0, found))[1]

    @contextlib.contextmanager
    def _watched(self, slices: Sequence[Slice]) -> Iterator[None]:
        """Report progress from a thread for as long as the context lasts."""
        if self._on_progress is None:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended, slices), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event, slices: Sequence[Slice]) -> None:
        # Spark reports how many tasks are done, not which: they begin in order, and mostly end so.
        reached = [0, *itertools.accumulate(part.length for part in slices)]
        tracker = self._context.statusTracker()
        most = 0
        assert self._on_progress is not None
        while not ended.wait(LOOK_S):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            # Of the stages that merge, fewer tasks are done than of those that have tallied.
            most = max(most, min(done, len(slices)))
            self._on_progress(reached[most], reached[-1])
        self._on_progress(reached[-1], reached[-1])


def _in_worker(part: Slice, request: Request) -> Tallied:
    """Tally one slice in a worker."""
    tallied = tally_slice(part, request)
    _freeze_imports()
    return tallied


def _run_in_worker(part: Slice, request: Request) -> SliceRun:
    """Tally one slice in a worker, as a run to be merged with others."""
    run = tally_run(part, request)
    _freeze_imports()
    return run


def _merged(group: tuple[int, Iterable[tuple[int, list[SliceRun]]]]) -> tuple[int, list[SliceRun]]:
    """Merge neighbouring runs; Spark brings them in any order."""
    number, members = group
    ordered = sorted(members, key=lambda each: each[0])
    return number, merge_runs(run for _, runs in ordered for run in runs)


def disk_fault_or(function: Callable[[Any], Any], value: Any) -> Any:
    """Return what `function` makes of a value, or the `DiskFault` that prevented it.

    Runs in a worker. A disk fault is returned, not raised: Spark retries a task that raises, which
    frees no disk, and reports it in many lines.
    """
    try:
        return function(value)
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        return DiskFault(error.errno, str(error.filename or ""))


class DiskFault(Struct, frozen=True):
    """A disk that a worker could not write to, as sent to the driver: errno and file."""

    number: int
    path: str

    def error(self) -> OSError:
        """Return the fault as the `OSError` that the worker caught."""
        return OSError(self.number, os.strerror(self.number), self.path or None)


@functools.cache
def _freeze_imports() -> None:
    """Exempt the objects of a worker's imports from garbage collection, once in its life.

    Spark's worker collects garbage after each task; going through those objects each time would
    take longer than starting the next task.
    """
    gc.freeze()


def worker_error(error: Exception) -> UsageError:
    """Make a one-line error of a failed job: a worker's `UsageError`, else Spark's."""
    for line in str(error).splitlines():
        name, found, message = line.partition("UsageError: ")
        if found and "errors." in name:
            return UsageError(message, "workers need the captures under the same paths")
    lines = str(error).splitlines() or [type(error).__name__]
    # The last line of a worker's traceback names the error.
    named = [line for line in lines if line.startswith(("ModuleNotFoundError", "ImportError"))]
    if named:
        return UsageError(
            f"a Spark worker: {named[0][:200]}", "workers need this package installed"
        )
    return UsageError(f"Spark ended the job: {lines[0][:200]}", "see Spark's own log")


def exact_interarrival(messages: Any) -> dict[tuple[str, int, str], FineHistogram]:
    """Compute the interarrival by (line, service, type) through a window over each symbol.

    `messages` is a data frame of the source's rows of messages. Raises `UsageError` where Spark
    failed.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("line", "service", "symbol").orderBy("ordinal")
    since = f.col("time_ns") - f.lag("time_ns").over(order)
    length = f.length(f.bin("since")) - 8
    # The bucket of `histogram.fine_bucket_of`: 128 to each power of two, one each below 256.
    bucket = f.when(f.col("since") < 256, f.col("since")).otherwise(
        f.expr("shiftright(since, cast(length(bin(since)) - 8 as int))") + 128 * length
    )
    rows = (
        messages.where("symbol is not null")
        .withColumn("since", since)
        .where("since is not null")
        .withColumn("bucket", f.when(f.col("since") < 0, -1).otherwise(bucket))
        .groupBy("line", "service", "type", "bucket")
        .agg(
            f.count("*").alias("count"),
            f.sum(f.expr("int(since <= 1000000)")).alias("within_1ms"),
            f.sum(f.expr("int(since <= 10000000)")).alias("within_10ms"),
        )
    )
    try:
        counted = rows.collect()
    except Exception as error:
        raise worker_error(error) from None
    found: dict[tuple[str, int, str], FineHistogram] = {}
    for row in counted:
        histogram = found.setdefault((row.line, row.service, row.type), FineHistogram())
        if row.bucket < 0:
            histogram.backwards += row["count"]
            continue
        index = min(row.bucket, len(histogram.buckets) - 1)
        histogram.buckets[index] += row["count"]
        histogram.within_1ms += row.within_1ms
        histogram.within_10ms += row.within_10ms
    return found
