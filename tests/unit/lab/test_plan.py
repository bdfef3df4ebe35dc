"""A laboratory run as it is asked for, and the bars it is held against."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.histogram import Histogram
from feedhandler.lab import plan, results, thresholds
from feedhandler.lab.laboratory import findings_of
from feedhandler.lab.plan import Bound, Plan
from feedhandler.lab.results import ClientResult, Loads, Step
from tests.support.report import latency_of


def test_a_run_is_every_scenario_exchange_and_client_count_in_turn() -> None:
    asked = Plan(
        out=Path("x"), scenarios=plan.SCENARIOS, exchanges=plan.EXCHANGES, clients=(1, 5),
        rate_bps=2e8, duration_s=9.0,
    )  # fmt: skip
    steps = list(asked.steps())
    assert [(s.scenario, s.exchange, s.clients) for s in steps[:3]] == [
        ("packets", "direct", 1), ("packets", "direct", 5), ("packets", "topic", 1),
    ]  # fmt: skip
    assert len(steps) == 8
    assert {s.grain for s in steps if s.scenario == "messages"} == {"message"}
    assert {(s.rate_bps, s.duration_s) for s in steps} == {(2e8, 9.0)}
    assert steps[0].title == "packets direct, 1 clients, 200 Mbps"


def test_direct_names_each_service_and_topic_has_one_pattern() -> None:
    assert plan.patterns("direct", "euronext", [101, 107]) == "euronext.101,euronext.107"
    assert plan.patterns("topic", "euronext", [101, 107]) == "euronext.#"


@pytest.mark.parametrize(
    ("text", "found"), [("60s", 60.0), ("500ms", 0.5), ("10min", 600.0), ("2", 2.0), ("1h", 3600)]
)
def test_durations(text: str, found: float) -> None:
    assert plan.check_duration(plan.parse_duration(text)) == found


@pytest.mark.parametrize("text", ["", "soon", "-1s", "10 days"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no duration"):
        plan.parse_duration(text)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1e6])
def test_a_step_that_tells_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="a step of"):
        plan.check_duration(seconds)


def test_client_counts() -> None:
    assert plan.parse_clients("1,2,10") == (1, 2, 10)
    for text in ("", "x", "1,,2", "0", "65"):
        with pytest.raises(UsageError, match="client"):
            plan.parse_clients(text)


def test_rates_are_bits_of_frames() -> None:
    assert plan.parse_rate("40mbps") == 40e6
    for text in ("5000pps", "2x", "max", "40mbps-payload", "fast"):
        with pytest.raises(UsageError):
            plan.parse_rate(text)


def test_a_captures_own_pace_is_times_of_it() -> None:
    assert [plan.parse_own_pace(text) for text in ("original", "1x", "10x")] == [1.0, 1.0, 10.0]
    with pytest.raises(UsageError, match="original pace"):
        plan.parse_own_pace("40mbps")


def test_what_clients_want_is_said_in_turn() -> None:
    assert plan.parse_symbols("100, 5%,ALL") == ("100", "5%", "all")
    assert plan.parse_symbols("all") == ()
    for text in ("", "0", "1001", "0%", "101%", "many", "1,,2"):
        with pytest.raises(UsageError, match="no number of symbols"):
            plan.parse_symbols(text)
    wanted = [plan.symbols_wanted(word, 60) for word in ("10", "100", "5%", "0.1%", "all")]
    assert wanted == [10, 60, 3, 1, 0]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("p90=1ms", Bound("p90", 0.9, 1_000_000)),
        ("p99.9=500us", Bound("p99.9", 0.999, 500_000)),
        ("max=0.1s", Bound("max", 1.0, 100_000_000)),
    ],
)
def test_bounds(text: str, bound: Bound) -> None:
    assert plan.parse_bound(text) == bound


@pytest.mark.parametrize("text", ["p90", "p91=1ms", "p90=1", "p90=ms", "p90=1ms;"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no bound"):
        plan.parse_bound(text)


def test_a_bound_is_shown_in_milliseconds() -> None:
    assert str(plan.parse_bound("p50=300us")) == "p50=0.3ms"


# -- bars -------------------------------------------------------------------------------------


def step_of(
    latency_ns: int, *, clients: int = 10, rate_bps: float = 40e6, lost: int = 0,
    duration_s: float = 60.0, broker: str = "embedded",
) -> Step:  # fmt: skip
    histogram = Histogram()
    histogram.record(latency_ns)
    step = Step(
        scenario="packets", exchange="topic", clients=clients, rate_bps=rate_bps, broker=broker,
        duration_s=duration_s, latency=latency_of(histogram),
        results=[ClientResult(number=0, lost=lost)],
        findings=["client 1: lost"] if lost else [],
    )  # fmt: skip
    step.verdicts = thresholds.judge(step)
    return step


def test_a_step_that_is_of_a_bar_has_a_verdict_for_loss_and_each_percentile() -> None:
    assert [(v.quantity, v.met) for v in step_of(250_000).verdicts] == [
        ("loss", True), ("p50", True), ("p90", True),
    ]  # fmt: skip
    assert [(v.quantity, v.met) for v in step_of(450_000, lost=3).verdicts] == [
        ("loss", False), ("p50", False), ("p90", True),
    ]  # fmt: skip


def test_a_bar_about_loss_has_no_latency() -> None:
    (verdict,) = step_of(10**9, clients=4, rate_bps=400e6).verdicts
    assert (verdict.quantity, verdict.met) == ("loss", True)


def test_where_no_delivery_was_timed_no_bound_is_met() -> None:
    step = step_of(1)
    step.latency = results.Latency()
    step.verdicts = thresholds.judge(step)
    assert [v.met for v in step.verdicts] == [True, False, False]
    assert thresholds.lines(step)[1].endswith("missed: p50: no delivery was timed")


@pytest.mark.parametrize("other", [{"clients": 9}, {"rate_bps": 41e6}, {"broker": "artemis"}])
def test_other_steps_are_of_no_bar(other: dict[str, float]) -> None:
    assert step_of(1, **other).verdicts == []  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"pace": 1.0}, {"symbols": "100"}])
def test_steps_at_another_pace_or_of_some_symbols_are_of_no_bar(other: dict[str, Any]) -> None:
    step = Step(scenario="packets", exchange="topic", clients=10, rate_bps=40e6, **other)
    assert thresholds.judge(step) == []


def test_verdicts_are_shown_a_line_each_with_figure_bar_and_ratio() -> None:
    lines = thresholds.lines(step_of(450_000, lost=3, duration_s=5.0))
    assert lines[0] == (
        "bar packets to 10 at 40 Mbps: missed: 3 lost, doubled or out of order "
        "(of 5 s: the bar asks for 60)"
    )
    assert "missed: p50 0.450 ms, bar 0.3 ms, 1.50 of it" in lines[1]
    assert "met: p90 0.450 ms, bar 0.6 ms, 0.75 of it" in lines[2]
    assert thresholds.lines(step_of(1))[0].endswith(": met: no loss")


def test_where_a_bar_is_missed_the_roles_time_is_shown() -> None:
    step = step_of(450_000)
    share = np.array([0.2, 0.4])
    step.loads = [
        Loads(role="gateway", t_s=np.array([1.0, 2.0]), user_cpu=share, system_cpu=share),
        Loads(
            role="clients", processes=2, t_s=np.array([1.0]), user_cpu=share, system_cpu=share * 2
        ),
        Loads(role="broker"),
    ]  # fmt: skip
    line = "percent of one processor: gateway 60, clients 2 x 45; all 150"
    assert thresholds.lines(step)[-1] == line
    step.verdicts = step.verdicts[:1]
    assert len(thresholds.lines(step)) == 1


def test_clients_that_found_the_same_share_a_line() -> None:
    bad = {"expected": 1000, "lost": 3, "findings": ["a", "b", "c", "d"]}
    found = findings_of(
        [
            ClientResult(number=0, **bad),
            ClientResult(number=1, expected=1000),
            ClientResult(number=2, **bad),
            ClientResult(number=3, expected=1000, duplicated=1, reordered=2, announced_lost=4),
        ]
    )
    assert found == [
        "clients 1, 3: 3 lost of 1,000 (a; b; c)",
        "client 4: 1 twice or never sent, 2 out of order, 4 announced lost of 1,000",
    ]
