"""The command without Spark: what it writes, prints and complains about."""

import csv
import errno
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from feedhandler import drawing
from feedhandler.characterise import figures, report
from feedhandler.characterise.cluster import spark_session, worker_error
from feedhandler.characterise.figures import Figure
from feedhandler.characterise.report import verdict
from feedhandler.characterise.tables import Table
from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.ops import characterise as ops
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support.characterise import write_session
from tests.support.pages import Page


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=2, seconds=0.1)


def options(session: Path, out: Path, **changes: object) -> ops.Options:
    settled = {
        "captures": (str(session),),
        "feed": "euronext-utp-md",
        "out": out,
        "zone": "Europe/Lisbon",
        "master": "none",
        **changes,
    }
    return ops.Options(**settled)  # type: ignore[arg-type]


def test_the_report_is_written_in_every_form(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "here"
    assert ops.run(options(session, out)) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "Traffic by service (Table 1)" in shown
    assert "begin with report.html" in shown
    assert re.search(r"Mbit/s in the busiest second\.$", shown, re.MULTILINE)
    whole = json.loads((out / "session.json").read_text())
    assert whole["about"]["feed"] == "euronext-utp-md"
    for name, table in whole["tables"].items():
        with (out / f"{name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == table["columns"]
        assert len(rows) == len(table["rows"]) + 1
        parquet = pq.read_table(out / f"{name}.parquet")
        assert parquet.column_names == table["columns"]
        assert [list(row.values()) for row in parquet.to_pylist()] == table["rows"]
    svgs = {path.stem for path in out.glob("*.svg")}
    assert {"packets_a_minute", "bytes_by_service", "interarrival"} <= svgs
    text = (out / "report.html").read_text()
    page = Page(text)
    assert not page.references, "nothing is fetched"
    assert text.count("<svg ") == len(svgs)
    assert not page.open


def test_the_head_tells_date_loss_peak_and_a_verdict() -> None:
    def named(gaps: list[list[object]], problem: str = "") -> dict[str, Table]:
        columns = ["service", "line", "numbers", "gaps", "missing", "missing_pct"]
        return {
            "gaps": Table("gaps", "", columns, gaps),
            "files": Table("files", "", ["file", "problem"], [["a.pcap", problem]]),
            "byte_peaks": _peaks([1_000, 1_266_000], [10, 1_250_170]),
        }

    whole = [[101, "A", 100, 0, 0, 0.0], [101, "B", 100, 0, 0, 0.0]]
    both = [101, "all lines", 100, 0, 0, 0.0]
    good, words = verdict(named([*whole, both]))
    assert (good, words) == (
        True,
        "Whole: no line lacks a number; 10.0 Mbit/s in the busiest second.",
    )
    good, words = verdict(named([[101, "A", 98, 1, 2, 2.0], whole[1], both]))
    assert good
    assert "Nothing lost: what 1 line lacks came on another; most on 101/A (2, 2.0 %)" in words
    good, words = verdict(named([*whole, [101, "all lines", 90, 1, 10, 10.0]]))
    assert not good
    assert words.startswith("Lost: 10 numbers (10.000%) came on no line")
    good, words = verdict(named([[7, "A", 90, 1, 10, 10.0]]))
    assert not good
    assert "Lost: 10 numbers" in words
    assert not verdict(named([*whole, both], "is cut"))[0]
    page_text = report.page(*_page_of("2011-03-15 09:30", "2011-03-15 17:00"))
    assert "Trading session of 2011-03-15, 09:30 to 17:00 Europe/Paris</h1>" in page_text


def _peaks(*rows: list[object]) -> Table:
    """The fullest seconds: packets and bytes as a capture file has them, 16 beside each frame."""
    return Table("byte_peaks", "", ["time", "packets", "file_bytes"], [["t", *row] for row in rows])


def test_ticks_stand_beside_one_another() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(
        figsize=drawing.SIZE, layout="constrained"
    )
    axis = figure.add_subplot()
    columns = ["from_ns", "repeats", "share_up_to_here"]
    rows = [[10**power, 1, power / 14] for power in range(15)]
    figures._cumulative(axis, Table("interarrival_distribution", "", columns, rows))
    figure.draw_without_rendering()
    shown = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
    assert len(shown) > 4
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(shown))


def _page_of(first: str, last: str) -> tuple[list[Table], list[Figure], dict[str, object]]:
    figures = ("packets", "messages", "mean_packet_bytes_udp_payload", "mean_message_bytes")
    figures += ("mean_messages_per_packet", "received_again_pct", "refresh_packets_pct")
    tables = [
        Table("minutes", "Minutes", ["minute", "packets"], [[first, 1], [last, 1]]),
        Table("figures", "Figures", ["figure", "value"], [[name, 1] for name in figures]),
        Table("interarrival", "", ["service"], []),
        Table("gaps", "", ["service", "line", "numbers", "missing", "missing_pct"], []),
        Table("files", "Files", ["file", "problem"], [["a", ""]]),
        _peaks(),
    ]
    return tables, [], {"zone": "Europe/Paris"}


@pytest.mark.usefixtures("without_figures")
def test_odd_files_are_reported_in_one_line_each_and_in_the_report(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd <&>.pcap").write_text("no capture at all, whatever its name may say")
    asked = options(session, tmp_path / "out", captures=(str(session), str(tmp_path)))
    assert ops.run(asked) == ExitCode.FOUND
    complaint = capsys.readouterr().err
    assert complaint.count("is not a capture") == complaint.count("odd <&>.pcap") == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1 of 2 files are odd" in page
    assert "odd &lt;&amp;&gt;.pcap" in page
    assert not Page(page).open


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(("fault", "stays"), [(errno.EACCES, True), (errno.ENOSPC, False)])
def test_a_profile_that_may_not_be_written_stays(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, stays: bool
) -> None:
    profile = tmp_path / "ours.json"
    profile.write_bytes(b"precious")
    write_bytes = Path.write_bytes

    def refused(path: Path, data: bytes) -> int:
        if path == profile:
            raise OSError(fault, os.strerror(fault))
        return write_bytes(path, data)

    monkeypatch.setattr(ops, "profile_of", lambda *_: {})
    monkeypatch.setattr(Path, "write_bytes", refused)
    with pytest.raises(FeedhandlerError, match="cannot write"):
        ops.run(options(session, tmp_path / "out", profile=profile))
    assert profile.exists() is stays


@pytest.mark.usefixtures("without_figures")
def test_datagrams_of_other_feeds_are_reported_in_one_line(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CaptureWriter(tmp_path / "other.pcap") as writer:
        for _ in range(1_000):
            writer.write(0, "239.9.9.9", 9, b"of another feed")
    captures = (str(session), str(tmp_path / "other.pcap"))
    assert ops.run(options(session, tmp_path / "out", captures=captures)) == ExitCode.OK
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "datagrams are no" in each)
    # The session has a few itself.
    assert re.match(r"feedhandler: 1,00\d datagrams are no euronext-utp-md packets \(", line)


@pytest.mark.usefixtures("without_figures")
def test_json_gives_an_object_a_table(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = options(
        session,
        tmp_path,
        as_json=True,
        packets_only=True,
        services=(104,),
        lines=("239.1.1.1:15000",),
        window=("2011-03-15T08:00:00Z", "2011-03-15T09:00:00+00:00"),
    )
    assert ops.run(asked) == ExitCode.OK
    tables = {each["table"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [row[0] for row in tables["services"]["rows"]] == ["realtime", "104", "refresh", "total"]
    assert tables["interarrival"]["rows"] == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"zone": "Atlantis"}, "is no time zone"),
        ({"exact": True}, "the window function is Spark's"),
        ({"window": ("+3", None)}, "is no full time"),
        ({"captures": ("/nowhere/at.pcap",)}, "no capture at"),
    ],
)
def test_what_cannot_be_done_is_refused(
    session: Path, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        ops.run(options(session, tmp_path, **changes))


def test_a_folder_that_cannot_be_written_is_reported(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        report.write([Table("files", "Files", [], [])], {}, tmp_path / "file")


@pytest.mark.usefixtures("without_figures")
def test_without_matplotlib_the_report_has_its_tables(session: Path, tmp_path: Path) -> None:
    assert ops.run(options(session, tmp_path)) == ExitCode.OK
    assert "matplotlib is not installed" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob("*.svg"))


def test_what_a_worker_complains_about_is_reported_in_one_line() -> None:
    text = "job aborted\n  File x\nfeedhandler.codecs.errors.UsageError: cannot read a.pcap: gone\n"
    error = worker_error(RuntimeError(text))
    assert error.message == "cannot read a.pcap: gone"
    assert worker_error(RuntimeError("lost an executor\nat x")).message == (
        "Spark ended the job: lost an executor"
    )
    missing = worker_error(RuntimeError("in worker:\nModuleNotFoundError: No module named 'x'"))
    assert missing.message == "a Spark worker: ModuleNotFoundError: No module named 'x'"
    assert "RuntimeError" in worker_error(RuntimeError()).message


def test_without_java_or_pyspark_the_remedy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=r"Java was not found|pyspark is not installed"):
        spark_session()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match="pyspark is not installed"):
        spark_session()


def test_a_figure_of_one_minute_shows_times_of_that_minute() -> None:
    table = Table(
        "minutes_by_service", "By service", ["minute", "service", "packets", "file_bytes"],
        [["2012-03-05 09:00", service, 10, 1_000] for service in ("101", "102")], "Time of day.",
    )  # fmt: skip
    empty = Table("", "", [], [], "")
    tables = dict.fromkeys(("minutes", "interarrival_distribution", "symbols"), empty)
    for figure in figures.draw({**tables, "minutes_by_service": table}):
        assert not re.search(r">20\d\d<", figure.svg)
        assert ">09:00<" in figure.svg
