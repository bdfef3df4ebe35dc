"""Options, slices and rows of the Spark source, without a Spark session."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from feedhandler.characterise import planning
from feedhandler.characterise.files import look_at
from feedhandler.characterise.job import Request
from feedhandler.characterise.planning import exact_slices
from feedhandler.characterise.rows import RowMaker
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.captures import write_frames
from tests.support.characterise import (
    FEED,
    LINE_A,
    OPENING_NS,
    PORT,
    Independent,
    Seen,
    frames_in_pieces,
    write_session,
)

pyspark = pytest.importorskip("pyspark")

from pyspark.sql.datasource import (  # noqa: E402
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    LessThan,
)

from feedhandler.characterise.source import (  # noqa: E402
    FeedhandlerReader,
    FeedhandlerSource,
    FeedhandlerStreamReader,
    SlicePartition,
    narrowed,
    open_files,
    understand,
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=8, seconds=0.1)


def rows_of(path: Path, **options: str) -> list[dict[str, object]]:
    reader = FeedhandlerReader(
        understand({"feed": "euronext-utp-md", "path": str(path), "slice_bytes": "7000", **options})
    )
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += batch.to_pylist()
    return found


def test_planned_slices_begin_where_records_begin(session: Path) -> None:
    edges = {24}
    at = 24
    for batch in Capture(session).batches():
        for size in batch.frame_length.tolist():
            at += 16 + size
            edges.add(at)
    for size in (300, 5_000, 10**9):
        slices = exact_slices([look_at(str(session))], size)
        assert [part.number for part in slices] == list(range(len(slices)))
        assert slices[0].start == 24
        assert {part.start for part in slices} <= edges
        ends = [part.end for part in slices]
        assert ends[:-1] == [part.start for part in slices[1:]]
        assert ends[-1] == at


def test_rows_of_packets_and_messages_are_those_of_an_independent_reading(session: Path) -> None:
    expected = Independent(session, "euronext-utp-md").packets
    packets = rows_of(session)
    assert [(row["time_ns"], row["sequence"], row["kind"], row["messages"]) for row in packets] == [
        (each.time_ns, each.number, each.kind, each.count) for each in expected
    ]
    ordinals = [row["ordinal"] for row in packets]
    assert ordinals == sorted(set(ordinals))
    assert sum(bool(row["refresh"]) for row in packets) == sum(e.line[0][2] == 3 for e in expected)
    messages = rows_of(session, rows="messages")
    assert [
        (row["time_ns"], row["sequence"], row["type"], row["symbol"], row["message_bytes"])
        for row in messages
    ] == [
        (each.time_ns, each.number, str(code), None if symbol is None else str(symbol), size)
        for each in expected
        for code, symbol, size in each.messages
    ]
    assert messages[0]["number"] == 0


MIDDLE = OPENING_NS + 50_000_000


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"from": str(MIDDLE)}, lambda each: each.time_ns >= MIDDLE),
        ({"from": "2011-03-15T08:00:00.05Z"}, lambda each: each.time_ns >= MIDDLE),
        ({"until": str(MIDDLE)}, lambda each: each.time_ns < MIDDLE),
        ({"service": "103, 104"}, lambda each: each.service in (103, 104)),
        ({"line": f"{LINE_A}:{PORT}"}, lambda each: each.line[0][2] == 1),
        (
            {"line": f"{LINE_A}:{PORT}", "service": "104", "until": str(MIDDLE)},
            lambda each: each.line[0][2] == 1 and each.service == 104 and each.time_ns < MIDDLE,
        ),
    ],
)
@pytest.mark.parametrize("rows", ["packets", "messages"])
def test_window_service_and_line_leave_out_the_rest(
    session: Path, rows: str, options: dict[str, str], meant: Callable[[Seen], bool]
) -> None:
    expected = [each for each in Independent(session, "euronext-utp-md").packets if meant(each)]
    times = [each.time_ns for each in expected]
    if rows == "messages":
        times = [each.time_ns for each in expected for _ in each.messages]
    assert times
    assert [row["time_ns"] for row in rows_of(session, rows=rows, **options)] == times


def test_a_folder_a_pattern_and_a_list_are_the_same_captures(session: Path, tmp_path: Path) -> None:
    for name in ("b.pcap", "a.pcap"):
        (tmp_path / name).write_bytes(session.read_bytes())
    (tmp_path / "notes.txt").write_text("no capture, and not asked for")
    many = [str(tmp_path / name) for name in ("a.pcap", "b.pcap")]
    listed = rows_of(Path("x"), paths=json.dumps(many))
    assert {row["file"] for row in listed} == set(many)
    assert rows_of(tmp_path) == rows_of(tmp_path / "*.pcap") == listed
    ordinals = [row["ordinal"] for row in listed]
    assert ordinals == sorted(set(ordinals))


@pytest.mark.parametrize("rows", ["packets", "messages"])
@pytest.mark.parametrize("before", [planning.PIECES_BYTES_MAX, 8_000])
def test_a_datagram_whose_pieces_lie_in_two_partitions_is_a_row_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, before: int
) -> None:
    """Of every tenth the last piece is missing. Pieces are looked for a little before a slice."""
    monkeypatch.setattr(planning, "PIECES_BYTES_MAX", before)
    path = write_frames(tmp_path / "day.pcap", frames_in_pieces(), step_ns=1_000_000)
    options = {"feed": FEED.name, "path": str(path), "rows": rows, "slice_bytes": "2000"}
    whole = rows_of(path, rows=rows, slice_bytes="1000000")
    packets = {number + 1 for number in range(60) if number % 10 != 9}
    assert {row["sequence"] for row in whole} == packets
    parts = rows_of(path, rows=rows, slice_bytes="2000")
    numbers = [row["ordinal"] for row in parts]
    assert numbers == sorted(set(numbers))
    assert _without_ordinals(parts) == _without_ordinals(whole)
    reader = FeedhandlerStreamReader(understand(options))
    data, streamed = path.read_bytes(), []
    start = reader.initialOffset()
    for written in (len(data) // 2, len(data)):
        path.write_bytes(data[:written])
        end = reader.latestOffset(start)
        for part in reader.partitions(start, end):
            streamed += [row for batch in reader.read(part) for row in batch.to_pylist()]
        start = end
    assert _without_ordinals(streamed) == _without_ordinals(whole)


def _without_ordinals(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "ordinal"} for row in rows]


def test_fields_are_decoded_and_bad_packets_left_out(tmp_path: Path) -> None:
    order = FEED.encode_message("order_update", symbol_index=7, price=1234, order_id=99)
    reference = FEED.encode_message("trade_cancel", symbol_index=8)
    broken = FEED.encode_packet(service=104, sequence=2, messages=[order], count=2)
    path = tmp_path / "few.pcap"
    with CaptureWriter(path) as writer:
        for number, packet in enumerate(
            [
                FEED.encode_packet(service=104, sequence=1, messages=[order, reference]),
                broken,
                FEED.encode_packet(service=104, sequence=3, messages=[reference, order]),
                FEED.encode_packet(kind="heartbeat", service=104),
            ]
        ):
            writer.write(OPENING_NS + number, LINE_A, PORT, packet)
    rows = rows_of(path, rows="messages", fields="price_raw,order_id,original_trade_id_number")
    decoded = [(row["sequence"], row["number"], row["order_id"], row["price_raw"]) for row in rows]
    assert decoded == [(1, 0, 99, 1234), (1, 1, None, None), (3, 0, None, None), (3, 1, 99, 1234)]
    assert [row["original_trade_id_number"] for row in rows] == [None, 0, 0, None]
    assert len(rows_of(path)) == 4


def test_iex_rows_have_symbols_as_text(captures: Path) -> None:
    reader = FeedhandlerReader(
        understand(
            {
                "feed": "iex-deep",
                "path": str(captures / "iex" / "*.gz"),
                "rows": "messages",
                "fields": "price",
            }
        )
    )
    (partition,) = reader.partitions()
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert len(rows) == 48_325
    trade = next(row for row in rows if row["type"] == "T")
    assert isinstance(trade["symbol"], str)
    assert trade["price"] > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "no feed is given"),
        ({"feed": "iex-deep", "rows": "books"}, "rows: 'books'"),
        ({"feed": "iex-deep", "from": "09:00"}, "no full time"),
        ({"feed": "iex-deep", "from": "--5"}, "is no moment"),
        ({"feed": "iex-deep", "service": "one"}, "is no number"),
        ({"feed": "iex-deep", "service": "²"}, "is no number"),
        ({"feed": "iex-deep", "lines": "A=239.1.1.1"}, "names no port"),
        ({"feed": "iex-deep", "line": "nowhere"}, "is no group"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        understand(options)


def test_fields_that_no_message_has_are_refused() -> None:
    with pytest.raises(UsageError, match="has a field 'colour'"):
        RowMaker(load_feed("iex-deep"), messages=True, fields=["colour"])
    with pytest.raises(UsageError, match="has a field 'price'"):
        RowMaker(load_feed("iex-deep"), fields=["price"])


def test_odd_files_are_refused_or_passed_over(session: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.pcap").write_text("nothing of that kind at all, but longer than a header")
    options = {"feed": "iex-deep", "paths": f'["{session}", "{tmp_path}"]'}
    with pytest.raises(UsageError, match="is not a capture"):
        open_files(understand(options))
    assert len(open_files(understand({**options, "odd": "skip"}))) == 1


def test_filters_narrow_what_is_read_and_stay_spark_s() -> None:
    asked = understand({"feed": "iex-deep", "path": "x", "lines": "A=239.1.1.1:15000"})
    reader = FeedhandlerReader(asked)
    filters: list[Filter] = [
        GreaterThanOrEqual(("time_ns",), 5),
        LessThan(("time_ns",), 50),
        EqualTo(("service",), 104),
        EqualTo(("line",), "A"),
        EqualTo(("sequence",), 9),
    ]
    assert list(reader.pushFilters(filters)) == filters
    assert (reader.asked.request.from_ns, reader.asked.request.until_ns) == (5, 51)
    assert reader.asked.request.services == (104,)
    assert reader.asked.request.groups == ((0xEF010101, 15_000),)
    plain = Request("iex-deep")
    assert narrowed(plain, In(("service",), (1, 2))).services == (1, 2)
    assert narrowed(plain, EqualTo(("line",), "239.1.1.1:7")).groups == ((0xEF010101, 7),)
    assert narrowed(plain, EqualTo(("line",), "A")).groups == ()
    assert narrowed(reader.asked.request, EqualTo(("time_ns",), 7)).until_ns == 8


def test_the_schema_is_that_of_the_rows() -> None:
    source = FeedhandlerSource(
        {"feed": "iex-deep", "rows": "messages", "fields": "price", "path": ""}
    )
    assert source.schema().fieldNames()[-1] == "price"
    assert FeedhandlerSource.name() == "feedhandler"
    assert isinstance(source.reader(source.schema()), FeedhandlerReader)
    assert issubclass(SlicePartition, pyspark.sql.datasource.InputPartition)
