"""The lake: each capture once, whole or not at all, and tables from it as from the captures."""

import json
from decimal import Decimal
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from characterise_kit import FEED, LINE_A, OPENING_NS, PORT, Independent, write_session

from feedhandler.characterise import lake as lakes
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.lake import fill_lake, identity_of, outcome_of
from feedhandler.characterise.tables import tables_of
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import characterise as ops
from feedhandler.ops import pipeline
from feedhandler.replay.captures.capture_writer import CaptureWriter

UTP = "euronext-utp-md"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=31, seconds=0.1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices of small captures, several row groups of a slice."""
    monkeypatch.setattr(lakes, "slice_bytes", lambda total, workers: 60_000)
    monkeypatch.setattr(lakes, "GROUP_ROWS", 200)


def rows_of(lake: Path, layout: str) -> list[dict[str, object]]:
    folders = sorted(lake.glob(f"capture=*/type={layout}"))
    found = []
    for folder in folders:
        found += ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["time_ns"], row["line"], row["number"]))


def files_of(lake: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(lake)): path.read_bytes() for path in lake.rglob("*") if path.is_file()
    }


def test_every_message_is_in_the_table_of_its_type(session: Path, tmp_path: Path) -> None:
    (written,) = fill_lake([str(session)], UTP, tmp_path)
    expected = Independent(session, UTP).packets
    messages = [(e.time_ns, e.number, *m) for e in expected for m in e.messages]
    names = {layout.code: layout.name for ways in FEED.layouts.values() for layout in ways}
    assert written.new
    assert written.rows == len(messages)
    found = 0
    for code, name in names.items():
        rows = rows_of(tmp_path, name)
        found += len(rows)
        mine = sorted((m[0], m[1], str(m[3])) for m in messages if m[2] == code)
        if len({layout.name for layout in FEED.layouts[code]}) == 1:
            got = sorted((row["time_ns"], row["sequence"], str(row["symbol"])) for row in rows)
            assert got == mine, name
    assert found == len(messages)
    quotes = rows_of(tmp_path, "quote")
    assert {row["service"] for row in quotes} <= {103, 106}
    assert {str(row["day"]) for row in quotes} == {"2011-03-15"}
    assert len(list(tmp_path.rglob("slice-*"))) == 0


def test_tables_from_the_lake_are_those_from_the_captures(session: Path, tmp_path: Path) -> None:
    fill_lake([str(session)], UTP, tmp_path / "lake")
    there = tables_of(outcome_of(tmp_path / "lake", UTP), FEED, "UTC")
    here = tables_of(characterise([str(session)], Request(UTP)), FEED, "UTC")
    assert [(t.name, t.rows) for t in there[:-1]] == [(t.name, t.rows) for t in here[:-1]]
    asked = ops.Options(captures=(), lake=tmp_path / "lake", feed=UTP, out=tmp_path / "out")
    assert ops.run(asked) == 0
    assert (tmp_path / "out" / "report.html").exists()


def test_a_second_run_changes_nothing(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pipeline.Options(
        captures=(str(session),), feed=UTP, lake=tmp_path / "lake", master="none"
    )
    assert pipeline.run(asked) == 0
    before = files_of(tmp_path / "lake")
    # The same capture under another name is the same capture.
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(session.read_bytes())
    again = pipeline.Options(
        captures=(str(session), str(copy)), feed=UTP, lake=tmp_path / "lake", master="none"
    )
    assert pipeline.run(again) == 0
    assert files_of(tmp_path / "lake") == before
    assert capsys.readouterr().out.count("was there already") == 2


def test_an_interrupted_run_leaves_nothing_to_be_seen_and_the_next_makes_it_whole(
    session: Path, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stopping(function, values):  # type: ignore[no-untyped-def]
        yield function(values[0])
        raise Stopped

    with pytest.raises(Stopped):
        fill_lake([str(session)], UTP, tmp_path, stopping)
    assert not list(tmp_path.glob("capture=*"))
    assert list(tmp_path.glob("_staging-*"))
    with pytest.raises(UsageError, match="no capture of euronext-utp-md in the lake"):
        outcome_of(tmp_path, UTP)
    fill_lake([str(session)], UTP, tmp_path)
    assert not list(tmp_path.glob("_staging-*"))
    assert outcome_of(tmp_path, UTP).files[0].records > 0


def test_columns_have_real_types(captures: Path, tmp_path: Path) -> None:
    path = str(captures / "iex" / "deep-2023-10-02.pcap.gz")
    (written,) = fill_lake([path], "iex-deep", tmp_path)
    assert written.rows == 48_325
    (trade,) = tmp_path.glob("capture=*/type=trade_report/day=2023-10-02/service=1/*.parquet")
    table = pq.read_table(trade)
    assert str(table.schema.field("price").type) == "decimal128(19, 4)"
    assert str(table.schema.field("symbol").type) == "string"
    assert str(table.schema.field("event_time_ns").type) == "int64"
    row = table.to_pylist()[0]
    assert isinstance(row["price"], Decimal)
    assert 0 < row["price"] < 100_000
    assert load_feed("iex-deep").layout("trade_report").by_name["price"].price == 4


def test_prices_with_the_message_s_own_scale_stay_integers_beside_it(tmp_path: Path) -> None:
    order = FEED.encode_message("order_update", symbol_index=7, price=1234, price_scale_code=2)
    with CaptureWriter(tmp_path / "one.pcap") as writer:
        for number, at_ns in enumerate((OPENING_NS, OPENING_NS + 86_400 * 10**9)):
            packet = FEED.encode_packet(service=104, sequence=number + 1, messages=[order])
            writer.write(at_ns, LINE_A, PORT, packet)
    fill_lake([str(tmp_path / "one.pcap")], UTP, tmp_path / "lake")
    rows = rows_of(tmp_path / "lake", "order_update")
    assert [str(row["day"]) for row in rows] == ["2011-03-15", "2011-03-16"]
    assert [(row["price"], row["price_scale_code"]) for row in rows] == [(1234, 2), (1234, 2)]


def test_files_are_put_together_up_to_their_bound(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "FILE_ROWS_MAX", 300)
    (written,) = fill_lake([str(session)], UTP, tmp_path)
    parts = list(tmp_path.rglob("*.parquet"))
    files = [pq.ParquetFile(path).metadata for path in parts]
    assert sum(each.num_rows for each in files) == written.rows
    assert all(each.num_rows <= 300 or each.num_row_groups == 1 for each in files)
    assert any(path.name == "part-1.parquet" for path in parts)


def test_odd_files_are_told_and_the_rest_is_taken(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "a.pcap").write_bytes(session.read_bytes()[:-5])
    (folder / "b.pcap").write_text("not a capture, though it says so in its name")
    asked = pipeline.Options(
        captures=(str(folder),), feed=UTP, lake=tmp_path / "lake", master="none", as_json=True
    )
    assert pipeline.run(asked) == 1
    told = capsys.readouterr()
    written = [json.loads(line) for line in told.out.splitlines()]
    assert [bool(each["folder"]) for each in written] == [True, False]
    assert "the last record is not whole" in told.err
    assert "is not a capture" in told.err


def test_what_cannot_be_is_refused(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        fill_lake([str(session)], UTP, tmp_path / "file")
    both = ops.Options(captures=("x",), lake=tmp_path, feed=UTP, out=tmp_path)
    with pytest.raises(UsageError, match="a lake is read as it is"):
        ops.run(both)
    with pytest.raises(UsageError, match="nothing to characterise"):
        ops.run(ops.Options(captures=(), feed=UTP, out=tmp_path))


def test_captures_are_told_apart_by_content_and_feed(session: Path, tmp_path: Path) -> None:
    from feedhandler.characterise.files import look_at

    file = look_at(str(session))
    other = tmp_path / "other.pcap"
    other.write_bytes(session.read_bytes()[:-1] + b"\x7f")
    names = {identity_of(file, UTP), identity_of(file, "iex-deep")}
    names.add(identity_of(look_at(str(other)), UTP))
    assert len(names) == 3


@pytest.mark.parametrize(
    "chosen",
    [
        {"window": ("2026-11-20T09:00:00Z", None)},
        {"services": (104,)},
        {"lines": ("239.1.1.1:5001",)},
        {"packets_only": True},
        {"exact": True},
        {"captures": ("day.pcap",)},
    ],
)
def test_a_part_of_a_lake_is_refused_and_not_taken_for_the_whole(tmp_path, chosen):
    options = ops.Options(
        **{"captures": (), "feed": "euronext-utp-md", "out": tmp_path, "lake": tmp_path, **chosen}
    )
    with pytest.raises(UsageError, match="a lake is read as it is"):
        ops.run(options)
