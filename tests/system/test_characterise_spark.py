"""The data source and the job on Spark: every row, every table, and what is asked for only."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from feedhandler.characterise import lake
from feedhandler.characterise.arbitrated import characterise_arbitrated
from feedhandler.characterise.cluster import SparkRunner, exact_interarrival
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import tables_of
from feedhandler.codecs import load_feed
from feedhandler.ops.pipeline import spark_mapper
from feedhandler.replay.captures.pcap import FILE_HEADER_BYTES
from feedhandler.replay.captures.reading import address_text
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support.channels import NYSE, rows_of, write_rows
from tests.support.characterise import (
    FEED,
    OPENING_NS,
    Independent,
    append,
    table_rows,
    write_session,
)
from tests.support.checkout import CHECKOUT
from tests.support.needs import long_where

#: How often a stream's driver is killed: each time Java comes up anew, which takes ten seconds.
KILLS = int(os.environ.get("FEEDHANDLER_KILLS", "0"))
DEADLINE_S = 300.0
#: Takes a minute and more to decode on two processors.
LONG_BYTES = 1 << 30


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=21, seconds=0.1)


def read(spark: Any, path: Path, **options: str) -> Any:
    reader = spark.read.format("feedhandler").option("feed", "euronext-utp-md")
    return reader.options(slice_bytes="100000", **options).load(str(path))


def test_the_source_gives_every_packet_and_only_what_a_filter_asks_for(
    spark: Any, session: Path
) -> None:
    packets = read(spark, session)
    expected = Independent(session, "euronext-utp-md").packets
    rows = sorted(packets.collect(), key=lambda row: row.ordinal)
    assert [(r.time_ns, r.service, r.sequence, r.payload_bytes, r.file_bytes) for r in rows] == [
        (e.time_ns, e.service, e.number, e.payload_bytes, e.file_bytes) for e in expected
    ]
    assert rows[-1].ordinal >= 1 << 40, "there was one partition"
    middle = OPENING_NS + 50_000_000
    some = packets.where(f"service = 104 and time_ns >= {middle}")
    assert some.count() == sum(e.service == 104 and e.time_ns >= middle for e in expected)


def test_the_job_on_spark_is_the_job_in_this_process_and_the_window_functions(
    spark: Any, session: Path
) -> None:
    progress: list[tuple[int, int]] = []
    runner = SparkRunner(spark, lambda done, total: progress.append((done, total)))
    request = Request("euronext-utp-md")
    there = characterise([str(session)], request, runner, slice_size=100_000)
    here = characterise([str(session)], request)
    assert table_rows(there) == table_rows(here)
    assert there.files[0].slices > 1
    assert progress[-1][0] == progress[-1][1] == session.stat().st_size - FILE_HEADER_BYTES
    exact = exact_interarrival(read(spark, session, rows="messages"))
    digest, found = here.digest, {}
    for (index, code), cell in digest.cells.items():
        channel = digest.channels[index]
        if cell.interarrival.count:
            line = f"{address_text(channel.group)}:{channel.port}"
            found[line, channel.service, str(FEED.type_label(code))] = cell.interarrival
    assert exact.keys() == found.keys()
    for key, histogram in found.items():
        assert exact[key].buckets.tolist() == histogram.buckets.tolist()
        assert exact[key].within_1ms == histogram.within_1ms
        assert exact[key].within_10ms == histogram.within_10ms


def test_the_arbitrated_stream_on_spark_is_the_one_in_this_process(
    spark: Any, session: Path
) -> None:
    asked = ([str(session)], Request(FEED.name))
    mapper = spark_mapper(spark.sparkContext)
    there = characterise_arbitrated(*asked, SparkRunner(spark), mapper, slice_size=200_000)
    here = characterise_arbitrated(*asked)
    assert table_rows(there) == table_rows(here)


def test_channels_that_were_guessed_are_every_workers(spark: Any, tmp_path: Path) -> None:
    asked = ([write_rows(tmp_path / "nyse.pcap", rows_of(loss=0.02))], Request(NYSE.name))
    mapper, runner = spark_mapper(spark.sparkContext), SparkRunner(spark)
    there = characterise(*asked, runner, mapper, slice_size=50_000)
    here = characterise(*asked)
    tables = table_rows(there, NYSE)
    assert tables == table_rows(here, NYSE)
    assert tables[0][0] == "channels"
    assert there.files[0].slices > 2
    there = characterise_arbitrated(*asked, runner, mapper, slice_size=50_000)
    assert table_rows(there, NYSE) == table_rows(characterise_arbitrated(*asked), NYSE)


def test_rows_of_messages_have_the_fields_that_are_asked_for(spark: Any, session: Path) -> None:
    rows = read(
        spark, session, rows="messages", fields="price_raw,order_id", lines="A=239.1.1.1:15000",
        line="239.1.1.1:15000", service="104",
    ).collect()  # fmt: skip
    assert {row.line for row in rows} == {"A"}
    orders = [row for row in rows if row.name == "order_update"]
    assert orders
    assert all(row.order_id is not None and row.price_raw is not None for row in orders)
    assert {row.order_id for row in rows if row.name == "order_book_delimiter"} <= {None}
    assert json.dumps(rows[0].asDict())


def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: Any, session: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    data = session.read_bytes()
    expected = len(Independent(session, "euronext-utp-md").packets)
    counts: list[int] = []

    def write(batch: Any, number: int) -> None:
        target = tmp_path / "out" / f"batch={number}"
        batch.select("sequence", "time_ns").write.mode("overwrite").parquet(str(target))

    for size in (len(data) // 2, len(data)):
        (folder / "a.pcap").write_bytes(data[:size])
        stream = spark.readStream.format("feedhandler").option("feed", "euronext-utp-md")
        query = (
            stream.load(str(folder))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
        counts.append(spark.read.parquet(str(tmp_path / "out")).count())
    assert 0 < counts[0] < counts[1] == expected


def test_the_pipeline_on_spark_makes_the_lake_that_it_makes_without(
    spark: Any, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "slice_bytes", lambda total, workers: 60_000)
    mapper = spark_mapper(spark.sparkContext)
    (there,) = lake.fill_lake([str(session)], FEED.name, tmp_path / "there", mapper, 2)
    (here,) = lake.fill_lake([str(session)], FEED.name, tmp_path / "here")
    assert here.rows == there.rows
    assert here.contents == there.contents
    for folder in ("here", "there"):
        assert len(list((tmp_path / folder).rglob("_tally/*.npz"))) > 1
    files = [path.relative_to(here.folder) for path in Path(here.folder).rglob("*.parquet")]
    assert len(files) > 5
    for path in files:
        assert pq.read_table(Path(here.folder) / path).equals(
            pq.read_table(Path(there.folder) / path)
        )
    outcomes = [lake.outcome_of(tmp_path / each, FEED.name) for each in ("here", "there")]
    tables = [[(t.name, t.rows) for t in tables_of(each, FEED, "UTC")] for each in outcomes]
    assert tables[0] == tables[1]


@pytest.mark.skipif(not KILLS, reason="takes a minute: FEEDHANDLER_KILLS=1 (make crash)")
def test_a_stream_whose_driver_is_killed_ends_with_the_job_s_tables(
    spark: Any, session: Path, tmp_path: Path
) -> None:
    """`spark` is here for its reasons to skip; the drivers are processes of their own."""
    data, folder, out = session.read_bytes(), tmp_path / "live", tmp_path / "out"
    folder.mkdir()
    recording = folder / "lines-1.pcap.part"
    command = [sys.executable, "-m", "feedhandler", "characterise", str(folder), "--out", str(out),
               "--feed", FEED.name, "--master", "local[2]"]  # fmt: skip
    for turn in range(KILLS):
        before = batches(out)
        with (tmp_path / "log").open("ab") as log:
            driver = subprocess.Popen(
                [*command, "--follow", "--every", "1ms"], stdout=log, stderr=log
            )
        try:
            # Some before the stream begins, some while it runs, some that it may never come to.
            for part in (1, 2, 3):
                append(recording, data, (3 * turn + part) / (3 * KILLS + 1))
                wait_until(lambda: part == 3 or batches(out) > before, driver)  # noqa: B023
        finally:
            driver.kill()
            driver.wait()
    append(recording, data, 1)
    recording.rename(folder / "lines-1.pcap")
    subprocess.run([*command, "--once"], check=True, capture_output=True)
    assert batches(out) > KILLS
    expected = tables_of(characterise([str(folder)], Request(FEED.name)), FEED, FEED.zone)
    found = json.loads((out / "session.json").read_text())["tables"]
    for table in expected[:-1]:
        assert found[table.name]["rows"] == table.rows, table.name


def batches(out: Path) -> int:
    return len(list(out.glob("_followed/batch-*.tallies")))


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < until, "nothing has begun"
        time.sleep(0.01)


def write_iex(path: Path, minutes: Counter[int]) -> None:
    """A capture of IEX-TP heartbeats, so many in each minute since 1970."""
    feed = load_feed("iex-deep")
    with CaptureWriter(path) as writer:
        for minute, count in sorted(minutes.items()):
            for number in range(count):
                packet = feed.encode_packet(service=1, sequence=1, count=0, body=b"")
                writer.write((60 * minute + number) * 10**9, "233.215.21.4", 10_378, packet)


@long_where("java", "as long as a second Java")
def test_the_three_lines_of_the_readme_give_a_plot(spark: Any, tmp_path: Path) -> None:
    """As they stand, in a process of their own; `spark` is here for its reasons to skip."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    text = (CHECKOUT / "README.md").read_text()
    (sample,) = re.findall(r"```python\n(from feedhandler import characterise.*?)```", text, re.S)
    _, _, lines = sample.rstrip().split("\n\n")
    assert len(lines.splitlines()) == 3
    minutes = Counter({26_345_000: 3, 26_345_001: 5, 26_345_007: 2})
    write_iex(tmp_path / "day.pcap.gz", minutes)
    tell = "\nprint([[int(y) for y in line.get_ydata()] for line in plt.gca().lines])\n"
    (tmp_path / "plot.py").write_text(sample + tell)
    ours = ("PYSPARK_", "SPARK_LOCAL")
    environment = {name: x for name, x in os.environ.items() if not name.startswith(ours)}
    environment |= {"MPLBACKEND": "agg", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "plot.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.splitlines()[-1] == "[[3, 5, 2]]"


@long_where("java", "as long as a second Java")
def test_a_signal_ends_a_job_on_spark_with_its_java(
    spark: Any, session: Path, tmp_path: Path
) -> None:
    """`spark` is here for its reasons to skip; the job is a process of its own."""
    data, lake_folder = session.read_bytes(), tmp_path / "lake"
    long = tmp_path / "long.pcap"
    with long.open("wb") as file:  # more than is decoded in any time that this takes
        file.write(data[:FILE_HEADER_BYTES])
        for _ in range(LONG_BYTES // len(data)):
            file.write(data[FILE_HEADER_BYTES:])
    command = [sys.executable, "-m", "feedhandler", "pipeline", long.name, "--feed", FEED.name,
               "--lake", "lake", "--master", "local[2]"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            wait_until(lambda: any(lake_folder.glob("_staging-*/type=*")), job)
            java = children(job.pid)
            job.send_signal(signal.SIGINT)
            _, errors = job.communicate(timeout=DEADLINE_S)
        finally:
            job.kill()
    assert job.returncode == ExitCode.INTERRUPTED, errors
    assert errors.splitlines()[-1] == "feedhandler: interrupted"
    assert "Traceback" not in errors
    assert java
    assert not any(map(runs, java))
    assert not list(lake_folder.glob("capture=*"))


def runs(pid: int) -> bool:
    """Return whether a process exists and is no zombie: those have no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    listings = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in listings for word in text.split()]
