"""The data source and the job on Spark: every row, every table, and what is asked for only."""

import json
from pathlib import Path
from typing import Any

import pytest
from characterise_kit import FEED, OPENING_NS, Independent, write_session

from feedhandler.characterise.cluster import SparkRunner, exact_interarrival
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import tables_of
from feedhandler.replay.captures.capture import address_text


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
    told: list[tuple[int, int]] = []
    runner = SparkRunner(spark, lambda done, total: told.append((done, total)))
    request = Request("euronext-utp-md")
    there = characterise([str(session)], request, runner, slice_size=100_000)
    here = characterise([str(session)], request)
    tables = [[(t.name, t.rows) for t in tables_of(o, FEED, "UTC")[:-1]] for o in (there, here)]
    assert tables[0] == tables[1]
    assert told[-1][0] == told[-1][1] == there.files[0].slices > 1
    exact = exact_interarrival(read(spark, session, rows="messages"))
    digest, found = here.digest, {}
    for (place, code), cell in digest.cells.items():
        channel = digest.channels[place]
        if cell.interarrival.count:
            line = f"{address_text(channel.group)}:{channel.port}"
            found[line, channel.service, str(FEED.type_label(code))] = cell.interarrival
    assert exact.keys() == found.keys()
    for key, histogram in found.items():
        assert exact[key].buckets.tolist() == histogram.buckets.tolist()
        assert exact[key].within_1ms == histogram.within_1ms
        assert exact[key].within_10ms == histogram.within_10ms


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

    def take(batch: Any, number: int) -> None:
        target = tmp_path / "out" / f"batch={number}"
        batch.select("sequence", "time_ns").write.mode("overwrite").parquet(str(target))

    for size in (len(data) // 2, len(data)):
        (folder / "a.pcap").write_bytes(data[:size])
        stream = spark.readStream.format("feedhandler").option("feed", "euronext-utp-md")
        query = (
            stream.load(str(folder))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        counts.append(spark.read.parquet(str(tmp_path / "out")).count())
    assert 0 < counts[0] < counts[1] == expected
