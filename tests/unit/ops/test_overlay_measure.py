"""`feedhandler overlay measure`: which techniques are measured, and by what."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from feedhandler.ops.overlay import measure as overlay_measure
from feedhandler.ops.overlay.measure import Options, measure
from feedhandler.overlay.io_uring import refusal
from feedhandler.overlay.measuring import Spikes
from feedhandler.overlay.tree import Costs, Shape, best_shape
from tests.support.commands import run_here
from tests.support.needs import absent

WANTED = Options(4, (0, 1), 40, 400.0, Spikes(), 0.9, seed=1)


def measured(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    """The rows, and what was printed besides."""
    assert measure(WANTED, as_json=True) == 0
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_cloudex_is_unicast_with_the_rules_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = measured(capsys)
    assert {row["missing"] for row in rows} == {0}
    (cloudex,) = [row for row in rows if row["technique"] == "CloudEx's way"]
    for row in rows:
        if row is not cloudex:  # a message in time everywhere has a window of 0
            assert 0 < row["window_p50_us"] <= row["latency_p99_us"]
            assert row["held_latency_p50_us"] >= row["latency_p50_us"]
    assert cloudex["latency_p50_us"] == cloudex["rule_latency_p50_us"] > 0
    assert cloudex["window_p99_us"] == cloudex["rule_window_p99_us"]


def test_the_last_hop_is_measured_to_an_echo_as_it_comes_and_pinned(tmp_path: Path) -> None:
    report = tmp_path / "hop.html"
    words = ["--seconds", "1", "--rate", "100", "--json", "--report", str(report)]
    done = run_here("overlay", "measure", "--last-hop", *words)
    if len(os.sched_getaffinity(0)) < 2:
        assert (done.returncode, "one processor only" in done.stderr) == (2, True)
        return
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["ends"] for row in rows] == ["as it comes", "pinned, busy"]
    for row in rows:
        assert 0 < row["answered"] <= 100
        assert 0 < row["lowest_us"] <= row["p50_us"] <= row["p90_us"] <= row["p99_us"]
        assert row["window_p90_lowest_us"] <= row["window_p90_highest_us"]
    assert "Round trip to an isolated process" in report.read_text()


def test_an_echo_that_does_not_answer_is_reported_in_one_line() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        there = "{}:{}".format(*silent.getsockname())
        words = ["--seconds", "1", "--rate", "50", "--echo", there]
        done = run_here("overlay", "measure", "--last-hop", *words)
    assert done.returncode == 3
    assert f"no answer from {there}" in done.stderr


def test_unicast_by_io_uring_stands_beside_unicast(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := refusal():
        absent("io_uring", f"io_uring is refused: {reason}")
    rows, errors = measured(capsys)
    names = ["unicast", "unicast, io_uring", "CloudEx's way", "tree, H = 0", "tree, H = 1"]
    assert [row["technique"] for row in rows] == names
    assert rows[1]["missing"] == 0
    assert rows[1]["latency_p50_us"] > 0
    assert errors == ""


def test_where_io_uring_is_refused_a_line_stands_for_its_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_measure, "refusal", lambda: "Operation not permitted")
    rows, errors = measured(capsys)
    names = ["unicast", "CloudEx's way", "tree, H = 0", "tree, H = 1"]
    assert [row["technique"] for row in rows] == names
    (line,) = errors.splitlines()
    assert "unicast by io_uring is left out: Operation not permitted (" in line
    assert "kernel.io_uring_disabled" in line


def test_the_cheapest_shape_follows_from_what_trees_measured(tmp_path: Path) -> None:
    words = ["--receivers", "6", "--messages", "20", "--rate", "200", "--spikes", "1%", "--json"]
    shapes = ["--shape", "1x1", "--shape", "2x2", "--shape", "2x6"]
    done = run_here("overlay", "measure", *words, *shapes)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["technique"] for row in rows[-3:]] == ["tree, 1x1", "tree, 2x2", "tree, 2x6"]
    # The same rows, with latencies of a known model: 30 us a hop, 2.7 us a child.
    measured, plan = tmp_path / "measured.jsonl", tmp_path / "tree.toml"
    for row in rows:
        shape = Shape(row["receivers"], row["depth"], row["fan_out"])
        row["latency_p50_us"] = 1e6 if row["deadlines"] else shape.cost(Costs())
    measured.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--receivers", "100", "--hedging", "0", "--measured", str(measured), "--json"]
    done = run_here("overlay", "plan", str(plan), *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["level_us"] == pytest.approx(30)
    assert result["child_us"] == pytest.approx(2.7)
    best = best_shape(100, Costs())
    assert (result["depth"], result["fan_out"]) == (best.depth, best.fan_out)


ROW = '{"receivers": 9, "depth": %d, "fan_out": %d, "hedging": 0, "latency_p50_us": %d}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROW % (1, 1, 10) + "{}\n", "line 2: Object missing required field"),
        (ROW % (0, 1, 10), "line 1: depth 0"),
        (ROW % (1, 1, 10), "do not show what a hop costs"),
        (ROW % (1, 1, 900) + ROW % (2, 3, 10) + ROW % (2, 9, 5), "measure more messages"),
    ],
)
def test_measurements_that_do_not_serve_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "measured.jsonl"
    path.write_text(text)
    done = run_here("overlay", "plan", str(tmp_path / "tree.toml"), "--measured", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
