"""Normalised records in the lake: those of `decode --as`, for each capture, whole or not at all."""

import datetime
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedhandler.characterise import lake_files
from feedhandler.characterise.lake import fill_lake
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.capture_records import CaptureRecords
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.characterise import write_session
from tests.support.commands import run_here
from tests.support.descriptions import EXAMPLE, written

UTP, ITCH = "euronext-utp-md", "nasdaq-totalview-itch"
LINES = [("239.1.1.1", 4001), ("239.1.2.1", 5001)]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=31, seconds=0.1)


def read(lake: Path, schema: str) -> pa.Table:
    """All rows of a schema, in the order of days and files."""
    paths = sorted(lake.glob(f"capture=*/records={schema}/day=*/*.parquet"))
    return pa.concat_tables([pq.ParquetFile(path).read() for path in paths])


def decoded(path: Path, feed: str, schema: str) -> tuple[numpy.ndarray[Any, Any], dict[int, str]]:
    """The records that `decode --as` makes, and the names."""
    source = CaptureRecords(load_feed(feed), schema)
    for each in Capture(path):
        source.add(each.payload, each.time_ns, (each.group, each.port))
    return source.pop()[0], source.names()


def assert_same(table: pa.Table, records: numpy.ndarray[Any, Any], names: dict[int, str]) -> None:
    """Fail unless the rows are the records, field by field, and the symbols their names."""
    assert table.num_rows == len(records) > 0
    kept = [name for name in records.dtype.names or () if name != "length"]
    assert table.column_names == [*kept, "symbol"]
    for name in kept:
        column = records[name]
        wanted = column.astype("U1") if column.dtype.kind == "S" else column
        assert table[name].to_pylist() == wanted.tolist(), name
    instruments = records["instrument_id"].tolist()
    assert table["symbol"].to_pylist() == [names.get(each) for each in instruments]


@pytest.mark.parametrize("schema", ["mbo", "bbo"])
def test_the_rows_are_the_records_that_decode_makes(
    session: Path, tmp_path: Path, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "GROUP_ROWS", 100)
    (written,) = fill_lake([str(session)], UTP, tmp_path, records=[schema])
    records, names = decoded(session, UTP, schema)
    assert written.records == {schema: len(records)}
    assert_same(read(tmp_path, schema), records, names)


def test_a_capture_that_is_there_already_gets_its_records_once(
    session: Path, tmp_path: Path
) -> None:
    fill_lake([str(session)], UTP, tmp_path)
    (more,) = fill_lake([str(session)], UTP, tmp_path, records=["mbo", "mbo"])
    assert not more.new
    assert [*more.records] == ["mbo"]
    (again,) = fill_lake([str(session)], UTP, tmp_path, records=["trades", "mbo"])
    assert [*again.records] == ["trades"]
    assert_same(read(tmp_path, "mbo"), *decoded(session, UTP, "mbo"))
    assert not list(tmp_path.glob("_staging*"))


def test_an_interrupted_run_leaves_nothing_that_is_read(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CaptureRecords, "names", lambda self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            fill_lake([str(session)], UTP, tmp_path, records=["mbo"])
    assert not list(tmp_path.glob("capture=*/records=*"))
    fill_lake([str(session)], UTP, tmp_path, records=["mbo"])
    assert_same(read(tmp_path, "mbo"), *decoded(session, UTP, "mbo"))
    assert not list(tmp_path.glob("_staging*"))


def test_days_are_the_exchanges_each_in_a_folder(tmp_path: Path) -> None:
    feed = load_feed(UTP)
    begin = datetime.datetime(2011, 3, 15, 10, tzinfo=datetime.UTC)
    with CaptureWriter(tmp_path / "two.pcap") as writer:
        for number in (1, 2):
            order = feed.encode_message(
                "order_update", symbol_index=7, order_id=number, side="B", action_type="A",
                price=100 + number, volume=5, price_scale_code=2,
            )  # fmt: skip
            at_ns = int((begin + datetime.timedelta(days=number - 1)).timestamp()) * 10**9
            packet = feed.encode_packet(service=104, sequence=number, messages=[order])
            writer.write(at_ns, *LINES[0], packet)
    fill_lake([str(tmp_path / "two.pcap")], UTP, tmp_path / "lake", records=["mbo"])
    folders = sorted(each.name for each in (tmp_path / "lake").glob("capture=*/records=mbo/*"))
    assert folders == ["day=2011-03-15", "day=2011-03-16"]
    table = read(tmp_path / "lake", "mbo")
    assert table["sequence"].to_pylist() == [1, 2]
    assert table["price"].to_pylist() == [1_010_000_000, 1_020_000_000]
    assert table["symbol"].to_pylist() == [None, None]


def test_messages_lie_in_their_own_day_where_times_go_back_over_midnight(tmp_path: Path) -> None:
    feed = load_feed(UTP)
    with CaptureWriter(tmp_path / "back.pcap") as writer:
        for number, day in enumerate((15, 16, 15), 1):
            order = feed.encode_message("order_update", symbol_index=7, order_id=number)
            at = datetime.datetime(2011, 3, day, 10, tzinfo=datetime.UTC)
            packet = feed.encode_packet(service=104, sequence=number, messages=[order])
            writer.write(int(at.timestamp()) * 10**9, *LINES[0], packet)
    fill_lake([str(tmp_path / "back.pcap")], UTP, tmp_path / "lake")
    found = {
        path.parts[-3]: pq.ParquetFile(path).read()["sequence"].to_pylist()
        for path in (tmp_path / "lake").glob("capture=*/type=order_update/day=*/*/*.parquet")
    }
    assert found == {"day=2011-03-15": [1, 3], "day=2011-03-16": [2]}


def test_channels_that_packets_do_not_name_are_told_apart_by_their_lines(tmp_path: Path) -> None:
    """Two channels with the same numbers: none is a copy of the other."""
    path = tmp_path / "itch.pcap"
    feed = load_feed(ITCH)
    with CaptureWriter(path) as writer:
        for number in range(1, 60):
            for channel in (1, 2):
                order = feed.encode_message(
                    "add_order_no_mpid_attribution", stock_locate=channel, timestamp=5_000 * number,
                    order_reference_number=number * 10 + channel, buy_sell_indicator="B",
                    shares=100 * channel, stock=f"STOCK{channel}", price=10_000 * number,
                )  # fmt: skip
                named = feed.encode_message(
                    "stock_directory", stock_locate=channel, stock=f"STOCK{channel}"
                )
                packet = feed.encode_packet(
                    sequence=number, messages=[order if number > 1 else named]
                )
                for line in (1, 2):
                    at_ns = 1_770_000_000_000_000_000 + 1_000_000 * number + 1_000 * line
                    writer.write(at_ns, f"239.1.{line}.{channel}", 4000, packet)
    fill_lake([str(path)], ITCH, tmp_path / "lake", records=["mbo"])
    table = read(tmp_path / "lake", "mbo")
    assert table.num_rows == 2 * 58
    assert sorted(set(table["symbol"].to_pylist())) == ["STOCK1", "STOCK2"]
    assert not any(flags & 4 for flags in table["flags"].to_pylist()), "a loss that was none"


def test_the_command_says_what_is_new_and_refuses_what_a_feed_has_not(
    session: Path, tmp_path: Path
) -> None:
    words = ["--feed", UTP, "--lake", str(tmp_path / "lake"), "--master", "none"]
    done = run_here("pipeline", str(session), *words, "--records", "mbo", "--records", "trades")
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    count = len(decoded(session, UTP, "mbo")[0])
    assert f"  {count:,} records mbo" in lines
    with pytest.raises(UsageError, match="order"):
        fill_lake(
            [str(session)], str(written(tmp_path, EXAMPLE)), tmp_path / "other", records=["mbo"]
        )
    with pytest.raises(UsageError, match="no records 'candles'"):
        fill_lake([str(session)], UTP, tmp_path / "other", records=["candles"])
    assert not (tmp_path / "other").exists()
