"""The page of measured tables: whatever failed is named on it, and the rest is there."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from bench import bench_journal, bench_lab_ceiling, lab_report
from bench.lab_report_page import Measured, fitting, page, table
from feedhandler.lab import report_figures
from feedhandler.lab.laboratory import Laboratory
from feedhandler.lab.plan import Plan, StepPlan
from feedhandler.lab.report_figures import Figure
from feedhandler.lab.results import Run, Step
from tests.support import report

SIDE = {"p50_ms": 0.2, "p90_ms": 0.4, "p99_ms": 1.0, "lost_pct": 0.0, "packets_per_s": 7100.0}
CEILING = {
    "40": {
        "clients": 10,
        "ours": {**SIDE, "gateway_us": 5.0},
        "c": {**SIDE, "p50_ms": 0.1, "gateway_us": 2.5},
        "ratio": {"p50_ms": 2.0, "gateway_us": 2.0},
    }
}
QUEUE = {
    name: 90.0 for each in ("durable", "sqlite", "fast") for name in (each, f"{each}_delivered")
}
JOURNAL = {
    "sizes": {1024: QUEUE, 10240: QUEUE | {"quorum": 45.0, "quorum_delivered": 30.0}},
    "recovery": {"pending_s": 1.5, "delivered_s": 0.1, "cancel_us": 7.0, "messages": 1000},
}


def row_of(text: str, *cells: str) -> list[str]:
    """The cells of the first row of any table that begins with these."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {' | '.join(cells)} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_papers_tables_stand_beside_ours_with_what_was_lost(seed: int) -> None:
    steps = [report.step(seed, 1), report.step(seed, 10, "messages", "topic", lost=2151)]
    text = page(Measured(report.run(seed, *steps)))
    assert "### Table 4. Packets, direct exchange" in text
    assert row_of(text, "1", "0.786")[-1] == "0.000"
    assert "1 of 2 steps came through" in text
    lost = row_of(text, "messages, topic, 10 clients, embedded, 40 Mbps")
    assert lost[2:5] == ["0.010", "2,151", "21,510,000"]
    assert "## Beside C" not in text
    assert "## The persistent queue" not in text


def test_a_queue_that_grew_is_a_load_that_was_not_carried(seed: int) -> None:
    step = report.step(seed, 1)
    step.latency = report.latency(random.Random(seed), 400_000)
    assert "0 of 1 steps came through" in page(Measured(report.run(seed, step)))


def test_what_failed_is_reported_and_a_peer_that_is_not_here(seed: int) -> None:
    text = page(
        Measured(
            Run(), failed=[("packets direct", "gateway ended | 9")], ceiling=CEILING,
            journal=JOURNAL, peer="no RabbitMQ 4 at /x",
        )
    )  # fmt: skip
    assert row_of(text, "packets direct") == ["packets direct", "gateway ended / 9"]
    assert "No RabbitMQ beside it: no RabbitMQ 4 at /x." in text
    assert row_of(text, "1,024")[1:5] == ["1.07", "90", "not here", "-"]
    assert row_of(text, "10,240")[1:5] == ["1.30", "90", "45", "2.00"]
    assert "1,000 pending messages" in text
    ratio = row_of(text, "40", "-", "10", "ours over C")
    assert (ratio[4], ratio[-2:]) == ("2.00", ["2.00", "-"])


def test_every_row_of_a_table_has_a_cell_for_each_heading(seed: int) -> None:
    found = Measured(report.paper_like(seed), ceiling=CEILING, journal=JOURNAL)
    widths: list[set[int]] = [set()]
    for line in page(found).splitlines():
        if line.startswith("|"):
            widths[-1].add(line.count("|"))
        elif widths[-1]:
            widths.append(set())
    assert len(widths) > 10
    assert all(len(each) <= 1 for each in widths)
    assert table(("a", "b"), []).splitlines()[1].count("|") == 3


def test_figures_that_would_make_the_page_too_large_are_left_out(tmp_path: Path) -> None:
    names = ("figure-14-packets-direct-x", "figure-14-packets-topic-x", "figure-09-packets-topic-x")
    figures = [Figure(tmp_path / f"{name}.svg", name, "") for name in names]
    for figure in figures:
        figure.path.write_bytes(bytes(100))
    kept, dropped = fitting(figures, 250)
    assert [path.stem for path in dropped] == ["figure-14-packets-topic-x"]
    kept, dropped = fitting(figures, 150)
    assert [figure.title for figure in kept] == ["figure-09-packets-topic-x"]


class Broken(Laboratory):
    """A laboratory of which some steps fail, or which cannot be opened; `order` is how it went."""

    failing: Sequence[str] = ()
    opens = True
    order: list[str]

    async def __aenter__(self) -> Self:
        if not self.opens:
            raise OSError("no room")
        return self

    async def measure(self, plan: StepPlan, trial: bool = False) -> Step:
        self.order.append(plan.title)
        if plan.title in self.failing:
            raise RuntimeError("a role\ndied")
        step = Step(scenario=plan.scenario, exchange=plan.exchange, clients=plan.clients)
        self.run.steps.append(step)
        return step


def opened(folder: Path, **changes: Any) -> Broken:
    made = Broken(Plan(out=folder), lab_report.View(quiet=True))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_after_a_step_that_fails_the_others_go_on(tmp_path: Path) -> None:
    steps = list(Plan(out=tmp_path, clients=(1, 2, 4)).steps())
    failed: list[tuple[str, str]] = []
    order: list[str] = []
    found = lab_report.measure_steps(
        steps, failed, lambda: opened(tmp_path, failing=[steps[1].title], order=order)
    )
    assert [step.clients for step in found] == [1, 4]
    assert failed == [(steps[1].title, "a role died")]
    assert order == [step.title for step in steps]


def test_a_laboratory_that_cannot_be_opened_is_tried_once(tmp_path: Path) -> None:
    steps = list(Plan(out=tmp_path, clients=(1, 2)).steps())
    failed: list[tuple[str, str]] = []
    assert lab_report.measure_steps(steps, failed, lambda: opened(tmp_path, opens=False)) == []
    assert failed == [
        ("opening the laboratory", "no room"),
        *((step.title, "not tried") for step in steps),
    ]


def test_the_steps_are_those_of_the_papers_tables_and_of_the_bars_beyond(tmp_path: Path) -> None:
    plan = Plan(out=tmp_path)
    paper = lab_report.paper_steps(plan)
    assert len(paper) == 2 * (6 + 5)
    assert {step.rate_bps for step in paper} == {40e6}
    assert [(s.scenario, s.clients, s.rate_bps) for s in lab_report.bar_steps(plan)] == [
        ("packets", 10, 200e6), ("messages", 5, 200e6), ("packets", 4, 400e6),
    ]  # fmt: skip


def test_a_page_replaces_the_one_before_and_its_parts_fail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("no C compiler (cc)")

    monkeypatch.setattr(bench_lab_ceiling, "compare", absent)
    monkeypatch.setattr(bench_journal, "rabbitmq", absent)
    monkeypatch.setattr(bench_journal, "measure", lambda *_: {**JOURNAL, "recovery": {
        "pending_s": 1.0, "delivered_s": 1.0, "cancel_us": 1.0}})  # fmt: skip
    (tmp_path / "figure-99-old.svg").write_text("")
    words = ["--out", str(tmp_path), "--only", "ceiling", "queue"]
    assert lab_report.main(words) == 1
    assert "not measured: the ceiling in C: no C compiler (cc)" in capsys.readouterr().out
    text = (tmp_path / lab_report.PAGE).read_text()
    assert "no C compiler" in text
    assert "## The persistent queue" in text
    assert not list(tmp_path.glob("figure-*"))


def test_the_figures_are_beside_the_page_that_names_them(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    plans, drawn = report_figures._plans, ("figure-08", "figure-09", "figure-16", "bandwidth")
    monkeypatch.setattr(
        report_figures, "_plans", lambda run: [p for p in plans(run) if p[0].startswith(drawn)]
    )
    found = Measured(report.run(seed, report.step(seed, 10)))
    path = lab_report.write(found, tmp_path)
    named = set(re.findall(r"\]\((figure[^)]*|bandwidth[^)]*)\)", path.read_text()))
    assert named == {each.name for pattern in lab_report.FIGURES for each in tmp_path.glob(pattern)}
    assert {name[:9] for name in named} >= {"figure-08", "figure-09", "figure-16"}
