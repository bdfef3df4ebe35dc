"""Normalised records of captures, with DBN's own library as the judge."""

from pathlib import Path

import databento_dbn
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from feedhandler.cli.app import chosen
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import FLAG_LAST, SCHEMAS, UNDEFINED_PRICE, encode_metadata
from feedhandler.codecs.errors import UsageError
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.records import Records
from feedhandler.ops.console import run_guarded

ITCH = "nasdaq-totalview-itch"
TYPES = {
    "mbo": databento_dbn.MBOMsg,
    "trades": databento_dbn.TradeMsg,
    "bbo": databento_dbn.MBP1Msg,
    "mbp10": databento_dbn.MBP10Msg,
}


def main(words: list[str]) -> int:
    """What the command ends with."""
    return run_guarded(lambda: chosen(words)())


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some seconds of orders, on two lines."""
    path = tmp_path_factory.mktemp("session") / "day.pcap"
    words = ["generate", "--out", str(path), "--feed", ITCH, "--seed", "5", "--duration", "5s",
             "--instruments", "5", "--messages-per-s", "300"]  # fmt: skip
    assert main(words) == 0
    return path


def decoded(session: Path, out: Path, schema: str, form: str) -> None:
    words = ["decode", str(session), "--feed", ITCH, "--as", schema, "--format", form]
    assert main([*words, "--out", str(out)]) == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_records_are_laid_out_as_dbn_has_them(schema: str) -> None:
    ours, theirs = SCHEMAS[schema].records, np.dtype(TYPES[schema]._dtypes)
    assert ours.itemsize == theirs.itemsize
    assert [(name, *ours.fields[name]) for name in ours.names] == [
        (name, *theirs.fields[name]) for name in theirs.names
    ]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_library_reads_what_decode_writes(session: Path, tmp_path: Path, schema: str) -> None:
    out = tmp_path / "day.dbn"
    decoded(session, out, schema, "dbn")
    decoder = databento_dbn.DBNDecoder()
    decoder.write(out.read_bytes())
    metadata, *records = decoder.decode()
    assert metadata.dataset == ITCH[:15]
    assert str(metadata.schema) == {"bbo": "mbp-1", "mbp10": "mbp-10"}.get(schema, schema)
    assert len(metadata.symbols) == len(metadata.mappings) == 5
    assert records
    assert {type(each) for each in records} == {TYPES[schema]}
    whole = out.read_bytes()
    ours = np.frombuffer(whole[-len(records) * SCHEMAS[schema].records.itemsize :],
                         SCHEMAS[schema].records)  # fmt: skip
    assert b"".join(bytes(each) for each in records) == ours.tobytes()
    assert [each.ts_event for each in records] == ours["ts_event"].tolist()


def test_levels_are_those_of_a_book_kept_by_the_events(session: Path, tmp_path: Path) -> None:
    for schema in ("mbo", "mbp10"):
        decoded(session, tmp_path / schema, schema, "dbn")
    events, levels = (records_of(tmp_path / schema, schema) for schema in ("mbo", "mbp10"))
    book, told = DepthBook(), iter(levels)
    checked = begins = 0
    for place, last in enumerate(events["flags"] & FLAG_LAST):
        if not last:
            continue
        event, begins = events[begins : place + 1], place + 1
        instrument = int(event[0]["instrument_id"])
        before = [book.levels(instrument, side) for side in (0, 1)]
        for part in event:
            if part["action"] == b"T":
                assert levels_of(next(told)) == before
        book.apply(event)
        after = [book.levels(instrument, side) for side in (0, 1)]
        if after != before:
            assert levels_of(next(told)) == after
            checked += 1
    assert checked > 100
    assert next(told, None) is None


def records_of(path: Path, schema: str) -> np.ndarray:
    data = path.read_bytes()
    return np.frombuffer(data[8 + int.from_bytes(data[4:8], "little") :], SCHEMAS[schema].records)


def levels_of(record: np.void) -> list[list[tuple[int, int, int]]]:
    return [
        [
            tuple(int(record[f"{side}_{what}_{depth:02}"]) for what in ("px", "sz", "ct"))
            for depth in range(10)
            if record[f"{side}_px_{depth:02}"] != UNDEFINED_PRICE
        ]
        for side in ("bid", "ask")
    ]


def test_tables_hold_what_dbn_does(session: Path, tmp_path: Path) -> None:
    for form in ("dbn", "csv", "arrow", "parquet"):
        decoded(session, tmp_path / form, "mbo", form)
    ours = records_of(tmp_path / "dbn", "mbo")
    tables = [
        pyarrow.csv.read_csv(tmp_path / "csv"),
        pyarrow.ipc.open_stream(tmp_path / "arrow").read_all(),
        pyarrow.parquet.read_table(tmp_path / "parquet"),
    ]
    for table in tables:
        assert table["order_id"].to_pylist() == ours["order_id"].tolist()
        assert table["price"].to_pylist() == ours["price"].tolist()
        assert table["action"].to_pylist() == [each.decode() for each in ours["action"]]


def test_copies_of_the_other_line_are_passed_over(session: Path, tmp_path: Path) -> None:
    decoded(session, tmp_path / "dbn", "mbo", "dbn")
    ours = records_of(tmp_path / "dbn", "mbo")
    added = ours["order_id"][ours["action"] == b"A"]
    assert len(set(added.tolist())) == len(added)
    assert not (ours["flags"] & 4).any()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--feed", "fix-marketdata", "--as", "mbo"], "has no order books"),
        (["--feed", ITCH, "--as", "mbo", "--limit", "5"], "leave out --service"),
        (["--feed", ITCH, "--format", "parquet"], "name a file: --out FILE"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    session: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", str(session), *words]) == 2
    assert told in capsys.readouterr().err


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown records"):
        Records(load_feed(ITCH), "ohlcv")


def test_metadata_are_a_multiple_of_eight_bytes_and_read_back() -> None:
    from datetime import date

    for count in range(4):
        names = {number: f"S{number}" for number in range(1, count + 1)}
        made = encode_metadata("XNAS.ITCH", SCHEMAS["mbo"], 1, 2, names, date(2026, 11, 20))
        assert len(made) % 8 == 0
        read = databento_dbn.Metadata.decode(made)
        assert (read.dataset, read.start, read.end, read.symbols) == (
            "XNAS.ITCH", 1, 2, list(names.values()),
        )  # fmt: skip
