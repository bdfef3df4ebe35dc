"""Paired comparison of two trees' figures."""

import subprocess
import sys

import pytest

from bench import against


def test_a_ratio_above_one_is_better_whichever_way_the_figure_counts() -> None:
    here = {
        "market": {"packets_per_s": 220.0, "sync_s": 0.5},
        "latency": {"p99": 2.0},
        "rate_at_loss": 90,
    }
    there = {
        "market": {"packets_per_s": 200.0, "sync_s": 1.0},
        "latency": {"p99": 1.0},
        "rate_at_loss": 60,
    }
    compared, others = against.compare([(here, there)])
    assert {each.name: each.ratio for each in compared} == pytest.approx(
        {"market / packets_per_s": 1.1, "market / sync_s": 2.0, "latency / p99": 0.5,
         "rate_at_loss": 1.5}
    )  # fmt: skip
    assert {each.name: each.verdict for each in compared} == {
        "market / packets_per_s": "faster", "market / sync_s": "faster", "latency / p99": "slower",
        "rate_at_loss": "faster",
    }  # fmt: skip
    assert others == []


def test_the_verdict_is_the_median_of_the_turns_own_ratios() -> None:
    turns = [({"a_second": ours}, {"a_second": theirs}) for ours, theirs in
             [(100, 100), (52, 50), (10, 40)]]  # fmt: skip
    ((only,), _) = against.compare(turns)
    assert only.ratios == pytest.approx((1.0, 1.04, 0.25))
    assert (only.ratio, only.verdict) == (1.0, "same")


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"copies": 3}, {"copies": 3}),  # nothing in the name says which way it counts
        ({"new_per_s": 3.0}, {"old_per_s": 3.0}),
        ({"per_s": 0.0, "x_per_s": 0}, {"x_per_s": 1.0}),
        ({"excess_ms": -0.5}, {"excess_ms": 0.3}),  # no ratio says which is better
    ],
)
def test_what_cannot_be_compared_is_named(here: dict[str, float], there: dict[str, float]) -> None:
    compared, others = against.compare([(here, there)])
    assert not compared
    assert set(others) == here.keys() | there.keys()


def test_bars_switches_and_texts_are_no_figures() -> None:
    found = {
        "bar_per_s": 5, "objects_bar": 7, "rate_bar": 1, "ok": True, "problems": ["x"],
        "runs": [1, 2], "left_out": "no broker", "objects_a_second": 9,
    }  # fmt: skip
    assert dict(against.figures_of(found)) == {"objects_a_second": 9.0}


def test_an_unknown_commit_is_one_line_and_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--against", "no-such-commit", "--only", "codecs"],
        capture_output=True, text=True, cwd=against.CHECKOUT,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no commit no-such-commit" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
