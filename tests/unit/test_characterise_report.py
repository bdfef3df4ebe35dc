"""The command without Spark: what it writes, prints and complains about."""

import csv
import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from characterise_kit import write_session

from feedhandler.characterise import figures, report
from feedhandler.characterise.cluster import spark_session, told_by_worker
from feedhandler.characterise.tables import Table
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import characterise as ops
from feedhandler.ops.console import ExitCode


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


class Page(HTMLParser):
    """What a page refers to, and whether its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_written_in_every_form(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "here"
    assert ops.run(options(session, out)) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "Traffic by service (Table 1)" in shown
    assert "begin with report.html" in shown
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
    pngs = {path.stem for path in out.glob("*.png")}
    assert {"packets_a_minute", "bytes_by_service", "interarrival"} <= pngs
    page = Page((out / "report.html").read_text())
    assert page.sources
    assert all(each.startswith("data:image/png;base64,") for each in page.sources)
    assert not page.open


def test_odd_files_are_told_in_one_line_each_and_in_the_report(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd <&>.pcap").write_text("no capture at all, whatever its name may say")
    asked = options(session, tmp_path / "out", captures=(str(session), str(tmp_path)))
    assert ops.run(asked) == ExitCode.FOUND
    complaint = capsys.readouterr().err
    assert complaint.count("is not a capture") == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1 of 2 files are odd" in page
    assert "odd &lt;&amp;&gt;.pcap" in page
    assert not Page(page).open


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
    told = {each["table"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [row[0] for row in told["services"]["rows"]] == ["realtime", "104", "refresh", "total"]
    assert told["interarrival"]["rows"] == []


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


def test_a_folder_that_cannot_be_written_is_told(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        report.write([Table("files", "Files", [], [])], {}, tmp_path / "file")


def test_without_matplotlib_the_report_has_its_tables(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (figures, report):
        monkeypatch.setattr(module, "available", lambda: False)
    assert ops.run(options(session, tmp_path)) == ExitCode.OK
    assert "matplotlib is not installed" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob("*.png"))


def test_what_a_worker_complains_about_is_told_in_one_line() -> None:
    text = "job aborted\n  File x\nfeedhandler.codecs.errors.UsageError: cannot read a.pcap: gone\n"
    told = told_by_worker(RuntimeError(text))
    assert told.message == "cannot read a.pcap: gone"
    assert told_by_worker(RuntimeError("lost an executor\nat x")).message == (
        "Spark ended the job: lost an executor"
    )
    missing = told_by_worker(RuntimeError("in worker:\nModuleNotFoundError: No module named 'x'"))
    assert missing.message == "a Spark worker: ModuleNotFoundError: No module named 'x'"
    assert "RuntimeError" in told_by_worker(RuntimeError()).message


def test_without_java_or_pyspark_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=r"Java was not found|pyspark is not installed"):
        spark_session()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match="pyspark is not installed"):
        spark_session()
