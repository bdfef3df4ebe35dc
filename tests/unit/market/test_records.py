"""Normalised records of captures, with DBN's own library as the judge."""

import io
import json
import zlib
from datetime import date
from pathlib import Path
from typing import Any

import databento_dbn
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from feedhandler.cli.app import ExchangedFeed, RecordForm, RecordSchema, chosen
from feedhandler.cli.generate import GeneratedFeed
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import FLAG_LAST, MBO, SCHEMAS, UNDEFINED_PRICE, encode_metadata
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import day_start_ns
from feedhandler.market.capture_records import CaptureRecords
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.records import Records
from feedhandler.ops import decode_records
from feedhandler.ops.decode_records import FORMS
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.order_writers import WRITERS
from feedhandler.terminal.console import ExitCode, run_guarded
from tests.support.commands import run_here
from tests.support.descriptions import EXAMPLE, written

ITCH = "nasdaq-totalview-itch"
#: Stands for a description without [book].
BOOKLESS = "bookless.toml"
TYPES = {
    "mbo": databento_dbn.MBOMsg,
    "trades": databento_dbn.TradeMsg,
    "bbo": databento_dbn.MBP1Msg,
    "mbp10": databento_dbn.MBP10Msg,
    "status": databento_dbn.StatusMsg,
    "definition": databento_dbn.InstrumentDefMsg,
}


def main(words: list[str]) -> int:
    """Run the command and return its exit code."""
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
    book, rows = DepthBook(), iter(levels)
    checked = begins = 0
    for index, last in enumerate(events["flags"] & FLAG_LAST):
        if not last:
            continue
        event, begins = events[begins : index + 1], index + 1
        instrument = int(event[0]["instrument_id"])
        before = [book.levels(instrument, side) for side in (0, 1)]
        for part in event:
            if part["action"] == b"T":
                assert levels_of(next(rows)) == before
        book.apply(event)
        after = [book.levels(instrument, side) for side in (0, 1)]
        if after != before:
            assert levels_of(next(rows)) == after
            checked += 1
    assert checked > 100
    assert next(rows, None) is None


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
        assert set(table["symbol"].to_pylist()) == {f"AAA{letter}" for letter in "BCDEF"}


def test_tables_of_definitions_have_whole_texts(session: Path, tmp_path: Path) -> None:
    for form in ("csv", "parquet"):
        decoded(session, tmp_path / form, "definition", form)
    text = pyarrow.csv.read_csv(tmp_path / "csv")
    for table in (text, pyarrow.parquet.read_table(tmp_path / "parquet")):
        assert table["raw_symbol"].to_pylist() == table["symbol"].to_pylist()
        assert len(set(table["raw_symbol"].to_pylist())) == 5
        assert set(table["instrument_class"].to_pylist()) <= {"K", "B"}


def test_copies_of_the_other_line_are_passed_over(session: Path, tmp_path: Path) -> None:
    decoded(session, tmp_path / "dbn", "mbo", "dbn")
    ours = records_of(tmp_path / "dbn", "mbo")
    added = ours["order_id"][ours["action"] == b"A"]
    assert len(set(added.tolist())) == len(added)
    assert not (ours["flags"] & 4).any()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--feed", BOOKLESS, "--as", "mbo"], "has no order books"),
        (["--feed", ITCH, "--as", "mbo", "--limit", "5"], "leave out --service"),
        (["--feed", ITCH, "--as", "mbo", "--json"], "--control and --json"),
        (["--feed", ITCH, "--format", "parquet"], "name a file: --out FILE"),
        (["--feed", ITCH, "--out", "day.txt"], "name records: --as mbo"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    session: Path,
    words: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bookless = str(written(tmp_path, EXAMPLE))
    words = [bookless if word == BOOKLESS else word for word in words]
    assert main(["decode", str(session), *words]) == 2
    assert reason in capsys.readouterr().err


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown records"):
        Records(load_feed(ITCH), "ohlcv")


def test_metadata_are_a_multiple_of_eight_bytes_and_read_back() -> None:
    for count in range(4):
        names = {number: f"S{number}" for number in range(1, count + 1)}
        made = encode_metadata("XNAS.ITCH", SCHEMAS["mbo"], 1, 2, names)
        assert len(made) % 8 == 0
        read = databento_dbn.Metadata.decode(made)
        assert (read.dataset, read.start, read.end, read.symbols) == (
            "XNAS.ITCH", 1, 2, list(names.values()),
        )  # fmt: skip


def test_a_files_time_begins_with_its_earliest_record_and_ends_behind_its_latest(
    tmp_path: Path,
) -> None:
    """The end is exclusive. Datagrams of two captured lines may be out of order."""
    feed, path, out = load_feed("euronext-utp-md"), tmp_path / "day.pcap", tmp_path / "day.dbn"
    midnight_ns = day_start_ns(date(2026, 11, 20), "UTC")
    times = [midnight_ns - 1, midnight_ns - 2, midnight_ns - 1]
    with CaptureWriter(path) as writer:
        for number, time_ns in enumerate(times, 1):
            order = feed.encode_message(
                230, symbol_index=7, action_type="A", side="B", price=100, volume=1,
                order_id=number, price_scale_code=2,
            )  # fmt: skip
            packet = feed.encode_packet(sequence=number, service=104, messages=[order])
            writer.write(time_ns, "239.1.1.1", 5_001, packet)
    assert main(["decode", str(path), "--as", "mbo", "--format", "dbn", "--out", str(out)]) == 0
    read = databento_dbn.Metadata.decode(out.read_bytes())
    assert (read.start, read.end) == (min(times), max(times) + 1)
    made = encode_metadata("XPAR", SCHEMAS["mbo"], read.start, read.end, {7: "MILL"})
    [mapping] = databento_dbn.Metadata.decode(made).mappings["MILL"]
    assert (mapping["start_date"], mapping["end_date"]) == (date(2026, 11, 19), date(2026, 11, 20))


def test_a_file_that_is_there_is_kept_unless_told_otherwise(session: Path, tmp_path: Path) -> None:
    out = tmp_path / "day.csv"
    out.write_text("kept")
    words = ["decode", str(session), "--feed", ITCH, "--as", "trades", "--out", str(out)]
    assert main(words) == 2
    assert out.read_text() == "kept"
    assert main([*words, "--overwrite"]) == 0
    assert "ts_event" in out.read_text()


def test_names_are_cut_between_characters_and_may_be_those_of_several_instruments() -> None:
    names = {1: "TWICE", 2: "x" * 69 + "\u00e9", 3: "TWICE"}
    made = encode_metadata("XNAS.ITCH", SCHEMAS["mbo"], 1, 2, names)
    read = databento_dbn.Metadata.decode(made)
    assert read.symbols == ["TWICE", "x" * 69]
    assert [each["symbol"] for each in read.mappings["TWICE"]] == ["1", "3"]


def test_the_library_finds_the_names_on_every_day_of_a_file() -> None:
    """Its days are those of UTC: on a morning in Sydney that of the day before."""
    first_ns = day_start_ns(date(2026, 11, 20), "UTC") + 84_600 * 10**9
    records = np.zeros(3, MBO)
    records["length"], records["rtype"] = MBO.itemsize // 4, SCHEMAS["mbo"].rtype
    records["instrument_id"], records["action"], records["side"] = 7, b"A", b"B"
    records["ts_recv"] = first_ns + np.array([0, 1, 24]) * 3_600 * 10**9
    end_ns = int(records["ts_recv"][-1]) + 1
    made = encode_metadata("XASX", SCHEMAS["mbo"], first_ns, end_ns, {7: "BHP"})
    out = io.BytesIO()
    encoding, plain = databento_dbn.Encoding.JSON, databento_dbn.Compression.NONE
    transcoder = databento_dbn.Transcoder(out, encoding, plain)
    transcoder.write(made + records.tobytes())
    transcoder.flush()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["symbol"] for line in lines] == ["BHP"] * 3


def event(action: str, instrument: int, order_id: int, price: int, last: bool) -> Any:
    made = np.zeros(1, MBO)
    made["action"], made["side"] = action.encode(), b"N" if action == "R" else b"B"
    made["instrument_id"], made["order_id"] = instrument, order_id
    made["price"], made["size"], made["flags"] = price, 10, FLAG_LAST if last else 0
    return made


def test_parts_of_several_instruments_in_one_message_are_kept_apart() -> None:
    records = Records(load_feed(ITCH), "bbo")
    parts = [event("A", 1, 1, 100, False), event("A", 2, 2, 200, True), event("A", 1, 3, 99, True)]
    records.apply(np.concatenate(parts))
    bbo = records.of("bbo")
    assert bbo[["instrument_id", "bid_px_00"]].tolist() == [(2, 200), (1, 100)]


def test_a_clear_of_all_books_tells_each_that_was_not_empty() -> None:
    records = Records(load_feed(ITCH), "bbo")
    adds = [event("A", number, number, 100 + number, True) for number in (1, 2)]
    records.apply(np.concatenate([*adds, event("A", 3, 3, 50, True), event("C", 3, 3, 50, True)]))
    records.clear()
    records.apply(event("R", 0, 0, 0, True))
    bbo = records.of("bbo")
    assert bbo[["instrument_id", "bid_px_00"]].tolist() == [
        (1, UNDEFINED_PRICE), (2, UNDEFINED_PRICE),
    ]  # fmt: skip


def datagram(payload: bytes, port: int = 1) -> Any:
    return payload, 1 << 60, ("239.0.0.1", port)


class Line:
    """Datagrams of UTP-MD's line of a service, as a capture has them."""

    def __init__(self, source: CaptureRecords, port: int) -> None:
        self.source, self.port = source, port
        self.feed = load_feed("euronext-utp-md")

    def send(self, sequence: int, service: int = 1, kind: str = "data") -> bool:
        """Hand one datagram on; whether it says that books may be wrong."""
        message = self.feed.encode_message("end_reference_data")
        packet = self.feed.encode_packet(
            sequence=sequence, service=service, kind=kind,
            messages=[message] if kind == "data" else (),
        )  # fmt: skip
        self.source.add(*datagram(packet, self.port))
        return bool(self.source.records.normaliser.maybe_bad)


def test_a_loss_concerns_its_own_service_until_its_numbers_begin_anew() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    line = Line(source, 1)
    assert [line.send(1), line.send(3), line.send(1, service=2)] == [False, True, False]
    assert not line.send(1, service=2, kind="reset")
    assert line.send(4)
    assert not line.send(1, kind="reset")
    assert not line.send(2)
    assert (source.rejected, source.copies) == (0, 0)


def test_the_other_lines_reset_is_a_copy() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    first, second = Line(source, 1), Line(source, 2)
    first.send(1, kind="reset")
    assert not any([first.send(2), first.send(3), second.send(1, kind="reset")])
    assert not any([second.send(2), second.send(3), first.send(4)])
    assert (source.rejected, source.copies) == (0, 3)


def test_a_reset_behind_packets_empties_the_books_once() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    first, second = Line(source, 1), Line(source, 2)
    first.send(1, kind="reset")
    second.send(1, kind="reset")
    assert len(source.pop()[0]) == 0, "there were no books yet"
    first.send(2)
    first.send(1, kind="reset")
    second.send(1, kind="reset")
    (cleared,) = source.pop()
    assert [(each["action"], each["instrument_id"]) for each in cleared] == [(b"R", 0)]


def test_a_further_session_empties_the_books_once() -> None:
    feed = load_feed(ITCH)
    source = CaptureRecords(feed, "mbo")
    packets = [
        feed.encode_packet(
            session=session, sequence=1, messages=[feed.encode_message("system_event")]
        )
        for session in ("MONDAY", "TUESDAY")
    ]
    for packet, ports in zip(packets, ((1, 2), (1, 2, 1)), strict=True):
        for port in ports:
            source.add(*datagram(packet, port), 7)
    source.add(*datagram(packets[0], 2), 7)  # a late one of the session before
    (cleared,) = source.pop()
    assert [(each["action"], each["instrument_id"]) for each in cleared] == [(b"R", 0)]
    assert (source.packets, source.copies) == (6, 4)


def test_lines_with_sessions_of_their_own_keep_their_books() -> None:
    feed = load_feed(ITCH)
    source = CaptureRecords(feed, "mbo")
    for sequence in (1, 2):
        for port, session in enumerate(("ONE", "TWO"), 1):
            message = feed.encode_message("system_event")
            packet = feed.encode_packet(session=session, sequence=sequence, messages=[message])
            source.add(*datagram(packet, port))
    assert len(source.pop()[0]) == 0
    assert (source.packets, source.copies) == (4, 0)


def compressed(sequence: int) -> bytes:
    """A packet of UTP-MD with a compressed body."""
    feed = load_feed("euronext-utp-md")
    packet = feed.encode_packet(
        sequence=sequence, service=1, messages=[feed.encode_message("end_reference_data")]
    )
    size = feed.table.header_size
    made = bytearray(packet[:size] + zlib.compress(packet[size:]))
    made[14] = 17
    made[:2] = len(made).to_bytes(2, "big")
    return bytes(made)


def test_packets_of_refresh_lines_are_passed_over() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    live, refresh = Line(source, 1), Line(source, 2)
    assert not any([live.send(1, kind="reset"), refresh.send(1, kind="reset"), live.send(2)])
    for sequence in (2, 3, 500):
        source.add(*datagram(compressed(sequence), 2))
    assert not any([refresh.send(1, kind="reset"), live.send(3)])
    assert not live.send(4)
    assert (source.rejected, source.copies, source.refreshes) == (0, 1, 4)
    assert len(source.pop()[0]) == 0, "no book is emptied"


def test_compressed_packets_of_a_live_line_count_as_all_others() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    live = Line(source, 1)
    live.send(1)
    source.add(*datagram(compressed(2)))
    assert not live.send(3)
    source.add(*datagram(compressed(3)))
    source.add(*datagram(compressed(4)[:-3]))
    assert (source.packets, source.copies, source.refreshes, source.rejected) == (4, 1, 0, 1)


def test_a_generated_capture_with_refresh_lines_fits_and_has_records(tmp_path: Path) -> None:
    path = str(tmp_path / "day.pcap")
    words = ["--duration", "1s", "--seed", "7", "--rate", "20mbps"]
    assert run_here("generate", "--out", path, *words).returncode == 0
    done = run_here("decode", path, "--as", "mbo", "--out", str(tmp_path / "day.csv"))
    assert done.returncode == 0, done
    assert "packets of refresh lines were passed over" in done.stderr
    report = json.loads(run_here("feeds", "check", "euronext-utp-md", path, "--json").stdout)
    assert report["fitting"] == report["packets"] > 0
    assert "start_refresh" in {each["name"] for each in report["types"]}


def test_numbers_that_fall_far_back_without_a_reset_are_counted() -> None:
    source = CaptureRecords(load_feed("euronext-utp-md"), "mbo")
    first, second = Line(source, 1), Line(source, 2)
    for sequence in (1, 5_000, 4_500):
        first.send(sequence)
        second.send(sequence)
    assert source.fallen_back == 0, "a line may be reordered"
    first.send(1)
    first.send(2)
    assert (source.fallen_back, source.copies) == (1, 6)
    first.send(1, kind="reset")
    first.send(2)
    assert source.fallen_back == 1


def test_times_since_midnight_are_of_the_day_that_is_given() -> None:
    feed, day = load_feed(ITCH), date(2026, 11, 20)
    source = CaptureRecords(feed, "mbo", day=day)
    added = feed.encode_message("add_order_no_mpid_attribution", stock_locate=1, timestamp=5000,
                                order_reference_number=1, buy_sell_indicator="B", shares=1,
                                stock="AAAA", price=1)  # fmt: skip
    source.add(*datagram(feed.encode_packet(sequence=1, messages=[added])))
    ((record,),) = source.pop()
    assert record["ts_event"] == day_start_ns(day, feed.zone) + 5000


def test_packets_of_one_datagram_are_read_where_each_begins() -> None:
    feed = load_feed("miax-onyx-tom")
    sold = [feed.encode_message("last_sale", instrument_id=7, price=price, size=3)
            for price in (100, 200)]  # fmt: skip
    packets = [feed.encode_packet(sequence=at, messages=[each]) for at, each in enumerate(sold, 1)]
    source = CaptureRecords(feed, "trades")
    source.add(*datagram(b"".join(packets)))
    (found,) = source.pop()
    assert found["sequence"].tolist() == [1, 2]
    assert found["price"][1] == 2 * found["price"][0] > 0


def test_records_that_are_not_written_to_their_end_leave_no_file(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(kept: Any, file: Any, *_: Any) -> None:
        file.write(b"the half of it")
        raise KeyboardInterrupt

    monkeypatch.setitem(decode_records._FORMS, "csv", interrupted)  # type: ignore[misc]
    out = tmp_path / "day.csv"
    words = ["decode", str(session), "--feed", ITCH, "--as", "mbo", "--format", "csv"]
    assert main([*words, "--out", str(out)]) == ExitCode.INTERRUPTED
    assert not out.exists()


def test_the_commands_offer_what_there_is() -> None:
    assert [*RecordSchema] == [*SCHEMAS]
    assert [*RecordForm] == [*FORMS]
    assert set(WRITERS) == {*ExchangedFeed} - {"euronext", "fix"}
    assert set(WRITERS) == {*GeneratedFeed} - {"euronext-utp-md"}


def utp_order(symbol: int, action: str, volume: int) -> bytes:
    return load_feed("euronext-utp-md").encode_message(
        "order_update", symbol_index=symbol, order_id=9, side="B", action_type=action, price=100,
        volume=volume, price_scale_code=2,
    )  # fmt: skip


def test_a_service_that_begins_anew_leaves_the_orders_of_others() -> None:
    feed = load_feed("euronext-utp-md")
    records = Records(feed, "mbo")

    def apply(service: int, message: bytes) -> None:
        records.apply_message(
            message, 0, len(message), feed.message_code(message), 1, 1, 1, service
        )

    for service, symbol in ((1, 5), (2, 6)):
        apply(service, utp_order(symbol, "A", 10))
    records.empty(1, 1)
    apply(2, utp_order(6, "D", 0))
    assert records.normaliser.unknown_orders == 0
    assert records.of("mbo")[-1][["action", "instrument_id", "size"]].tolist() == (b"C", 6, 10)
    assert not records.book.order_count
    apply(1, utp_order(5, "A", 4))
    assert records.of("mbo")[-1]["action"] == b"A", "known no more"
