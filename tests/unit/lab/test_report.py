"""The report of a laboratory run: its files, its figures, its one page."""

import re
from pathlib import Path

import numpy
import pytest

from feedhandler import drawing
from feedhandler.lab import report, report_figures, report_html
from feedhandler.lab.report_figures import bound_in_ms
from feedhandler.lab.report_over_time import POINTS_MAX, thinned
from feedhandler.lab.results import Run, read_run, write_run
from tests.support import report as report_kit
from tests.support.pages import Page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The report of a run of packets, to ten clients at most, before two brokers."""
    steps = [report_kit.step(5, clients) for clients in (1, 10)]
    steps.append(report_kit.step(5, 2, broker="rabbitmq-3"))
    out = tmp_path_factory.mktemp("report")
    return out, report.write(report_kit.run(5, *steps, sweep=True), out)


def test_every_figure_of_the_scenario_is_drawn(written: tuple[Path, list[Path]]) -> None:
    out, paths = written
    assert sorted(paths) == sorted(out.iterdir()), "what is written is named"
    names = {path.name for path in paths}
    for broker in ("embedded", "rabbitmq-3"):
        for number in ("09", "14", "15", "16"):
            assert f"figure-{number}-packets-direct-{broker}-40mbps.svg" in names
    assert {"figure-08-packets-latencies.svg", "bandwidth.svg", "sweep-1.svg"} < names
    assert all(path.read_text().startswith("<svg ") for path in paths if path.suffix == ".svg")


def test_the_page_needs_nothing_but_itself(written: tuple[Path, list[Path]]) -> None:
    _, paths = written
    assert paths[-1].name == "report.html"
    page = Page(paths[-1].read_text(encoding="utf-8"))
    assert page.open == [], "every tag is closed"
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    drawn = [path for path in paths if path.suffix == ".svg"]
    assert page.tags.count("figure") == len(drawn), "each figure stands on the page, once"
    assert page.tags.count("svg") == len(drawn)
    for reference in page.references:
        assert reference.startswith("#")
    style = paths[-1].read_text(encoding="utf-8").partition("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style


def test_the_page_says_everything_that_the_run_has(written: tuple[Path, list[Path]]) -> None:
    text = Page(written[1][-1].read_text(encoding="utf-8")).text
    for words in (
        *("Complete.", "Table 4. Packets, direct exchange", "3.119", "missed by"),
        *("kernel stamps each datagram", "Queue limit", "500 MiB", "a <fast> one"),
        *("gateway.hold_packets", "generator", "python", "1, 2, 4", "Sweeps"),
    ):
        assert words in text, words


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Draw only figures whose names begin so."""
    plans = report_figures._plans
    monkeypatch.setattr(
        report_figures, "_plans", lambda run: [p for p in plans(run) if p[0].startswith(names)]
    )


def test_the_same_run_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "figure-11", "figure-13")
    run = report_kit.run(9, report_kit.step(9, 2, "messages", "topic", mode="paper"))
    write_run(run, tmp_path / "kept")
    first = report.write(run, tmp_path / "one")
    second = report.write(read_run(tmp_path / "kept"), tmp_path / "two")
    assert [path.name for path in first] == [path.name for path in second]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    assert "figure-13-messages-topic-embedded-40mbps-paper.svg" in {each.name for each in first}
    text = Page(first[-1].read_text()).text
    assert "every odd message of such a packet" in text


def test_a_failed_run_says_so_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    step = report_kit.step(2, 1, lost=7)
    step.findings += [f"finding {number} <b>" for number in range(30)]
    text = report_html.page(report_kit.run(2, step), [])
    assert re.search(r"Failed\..*client 1 lost 7 packets", text)
    assert text.index("Failed.") < text.index("Table 4")
    assert "<b>" not in text
    assert "and 11 more" in text


def test_without_matplotlib_all_but_the_figures_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "available", lambda: False)
    paths = report.write(report_kit.run(2, report_kit.step(2, 1)), tmp_path)
    assert [path.suffix for path in paths] == [".txt", ".csv", ".json", ".txt", ".html"]
    page = paths[-1].read_text()
    assert "pip install" in page
    assert "<img" not in page


def test_a_run_that_measured_nothing_has_a_report_all_the_same(tmp_path: Path) -> None:
    assert report.write(Run(), tmp_path)[-1].exists()
    step = report_kit.step(2, 1)
    step.latency = type(step.latency)()
    step.loads, step.traffic, step.verdicts = [], [], []
    paths = report.write(report_kit.run(2, step), tmp_path)
    assert not [path for path in paths if path.suffix == ".svg"]
    assert "None of the steps is one that a bar is set for." in paths[-1].read_text()


def test_many_samples_become_few_points_of_the_same_mean() -> None:
    t_s = numpy.arange(1000.0)
    few_t_s, few = thinned(t_s, 2 * t_s)
    assert len(few) == POINTS_MAX
    assert few.mean() == pytest.approx(2 * t_s.mean())
    assert few_t_s[0] == pytest.approx(12.0)
    assert len(thinned(t_s[:10], t_s[:10])[1]) == 10


@pytest.mark.parametrize(
    ("bound", "expected"),
    [("p90=1ms", 1.0), ("p50=250us", 0.25), ("max=2s", 2000.0), ("p99=500ns", 5e-4)],
)
def test_a_bound_is_read_for_its_line(bound: str, expected: float) -> None:
    assert bound_in_ms(bound) == pytest.approx(expected)


@pytest.mark.parametrize("bound", ["p90=", "p90=ms", "loss", "p90=1 hour"])
def test_what_is_no_bound_has_no_line(bound: str) -> None:
    assert bound_in_ms(bound) is None
