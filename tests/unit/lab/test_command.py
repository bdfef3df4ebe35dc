"""`feedhandler lab` as it is typed, and what it shows."""

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from feedhandler.cli import app as cli
from feedhandler.histogram import Histogram
from feedhandler.lab import commands as lab
from feedhandler.lab import thresholds, view
from feedhandler.lab.plan import Plan
from feedhandler.lab.results import ClientResult, Sent, Step, Sweep, Trial
from feedhandler.terminal.console import run_guarded
from tests.support.report import latency_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that a typed command comes to."""
    plans: list[Plan] = []

    def run(plan: Plan) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(lab, "run", run)
    return plans


def typed(*words: str) -> int:
    return run_guarded(lambda: cli.chosen(["lab", *words])())


def test_the_command_of_the_paper(asked: list[Plan]) -> None:
    words = (
        "--scenario messages --exchange topic --clients 1,2,3,4,5 --broker embedded "
        "--rate 40mbps --duration 60s --generate --out out/lab"
    )
    assert typed(*words.split()) == 0
    (plan,) = asked
    assert (plan.scenarios, plan.exchanges, plan.clients) == (
        ("messages",),
        ("topic",),
        (1, 2, 3, 4, 5),
    )
    assert (plan.rate_bps, plan.duration_s, plan.out) == (40e6, 60.0, Path("out/lab"))


def test_both_is_each_in_turn(asked: list[Plan]) -> None:
    assert typed("--out", "x", "--scenario", "both", "--exchange", "both") == 0
    assert asked[0].scenarios == ("packets", "messages")
    assert asked[0].exchanges == ("direct", "topic")
    assert asked[0].clients == (1, 2, 4, 6, 8, 10)


def test_a_sweep_has_a_bound(asked: list[Plan]) -> None:
    assert typed("--out", "x", "--sweep", "rate", "--bound", "p99=2ms") == 0
    assert (asked[0].sweep, str(asked[0].bound)) == ("rate", "p99=2ms")
    assert typed("--out", "x") == 0
    assert (asked[1].sweep, asked[1].bound) == ("", None)


def test_a_capture_at_its_own_pace_for_clients_of_some_symbols(asked: list[Plan]) -> None:
    words = "--out x --capture day.pcap --pace original --symbols 100,5%,all"
    assert typed(*words.split()) == 0
    assert (asked[0].pace, asked[0].symbols) == (1.0, ("100", "5%", "all"))
    assert next(asked[0].steps()).title.endswith("original pace, symbols 100,5%,all")
    assert typed("--out", "x") == 0
    assert (asked[1].pace, asked[1].symbols) == (0.0, ())


@pytest.mark.parametrize(
    "words",
    [
        "--pace 40mbps", "--symbols none",
        "--rate fast", "--clients 0", "--duration 0s", "--duration soon",
        "--sweep rate --bound p90", "--generate --capture x.pcap",
        "--scenario packages", "--seed -1", "--warm-up x",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line_and_exit_code_2(
    asked: list[Plan], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("--out", "x", *words.split()) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("feedhandler: ")
    assert errors.count("\n") == 1
    assert asked == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"captures": (Path("no/such.pcap"),)}, "no/such.pcap"),
        ({"feed": "iex-deep"}, "cannot be generated"),
        ({"feed": "no-feed"}, "no-feed"),
        ({"out": Path(__file__)}, "is no folder"),
        ({"sweep": "rate"}, "without a bound"),
        ({"pace": 1.0}, "--pace without a capture"),
        ({"symbols": ("5%",), "broker": "qpid"}, "--symbols with a broker"),
        ({"symbols": ("5%",), "mode": "paper"}, "--symbols in the paper's mode"),
    ],
)
def test_what_cannot_be_is_refused_before_any_role_is_started(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(**({"out": tmp_path} | changes))
    assert run_guarded(lambda: lab.run(plan)) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there_yet_is_no_reason_to_refuse(tmp_path: Path) -> None:
    lab._refuse_early(Plan(out=tmp_path / "new"))


def step_of(latency_ns: int) -> Step:
    histogram = Histogram()
    histogram.record(latency_ns)
    step = Step(
        scenario="packets", exchange="direct", clients=10, rate_bps=40e6, duration_s=60.0,
        sent=Sent(frame_bits=40_000_000, duration_ns=10**9),
        latency=latency_of(histogram), results=[ClientResult(number=0)],
    )  # fmt: skip
    step.verdicts = thresholds.judge(step)
    return step


def test_each_step_has_a_line_and_its_bars_below(capsys: pytest.CaptureFixture[str]) -> None:
    shown = view.View()
    for latency_ns in (250_000, 2_500_000_000):
        shown.end(step_of(latency_ns))
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.replace(" ms", "").split() == [
        "scenario", "exchange", "clients", "Mbps", "mean", "min", "p50", "p90", "p99", "p99.9",
        "max",
    ]  # fmt: skip
    assert first.split() == ["packets", "direct", "10", "40.0", *["0.250"] * 7]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_gets_fewer_figures_and_whole_ones(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(view, "stdout_console", lambda: Console(width=width))
    view.View().end(step_of(1_234_000_000))
    heading, *rows = capsys.readouterr().out.splitlines()
    left_out = rows.pop(0) if rows[0].startswith("(no room for ") else ""
    assert bool(left_out) == (width < 96)
    assert len(heading) == len(rows[0]) <= width
    names, figures = re.findall(r"\S+(?: ms)?", heading), rows[0].split()
    assert len(names) == len(figures)
    assert {figure for name, figure in zip(names, figures, strict=True) if " ms" in name} == {
        "1234.000"
    }


def test_every_figure_stands_apart_from_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    view.View().end(step_of(2_500_000_000))
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[4:] == ["2500.000"] * 7


def test_a_sweep_is_printed_trial_by_trial_and_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = view.View()
    shown.report_trial(Trial(value=1, found_ns=1, held=True))
    shown.report_trial(Trial(value=2, found_ns=9, held=False, why="p90 is 9 ms"))
    shown.report_sweep(Sweep(quantity="clients", bound="p90=1ms", held=1, failed=2))
    shown.report_sweep(Sweep(quantity="rate", bound="p90=1ms", failed=40e6))
    assert capsys.readouterr().out.splitlines() == [
        "  kept",
        "  left: p90 is 9 ms",
        "sweep packets direct, p90=1ms: kept at 1 clients, left at 2 clients",
        "sweep packets direct, p90=1ms: kept at none tried, left at 40.0 Mbps",
    ]


def test_a_quiet_view_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = view.View(quiet=True)
    shown.end(step_of(1))
    shown.report_trial(Trial(value=1, found_ns=1, held=True))
    shown.report_sweep(Sweep(quantity="rate", bound="p90=1ms"))
    shown.show(0.5, [{"p50_ns": 1, "p90_ns": 2}])
    assert capsys.readouterr().out == ""
