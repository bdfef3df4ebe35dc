"""`feedhandler overlay measure`: which techniques are measured, and by what."""

import json
import os
import socket
from pathlib import Path

import pytest

from feedhandler.ops.overlay_measure import Wanted, measure
from feedhandler.overlay.measuring import Spikes
from tests.support.commands import run_here


def test_cloudex_is_unicast_with_the_rules_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(4, (0,), 40, 400.0, Spikes(), 0.9, seed=1)
    assert measure(wanted, as_json=True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["technique"] for row in rows] == ["unicast", "CloudEx's way", "tree, H = 0"]
    cloudex = rows[1]
    assert cloudex["missing"] == 0
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


def test_an_echo_that_does_not_answer_is_told_in_one_line() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        there = "{}:{}".format(*silent.getsockname())
        words = ["--seconds", "1", "--rate", "50", "--echo", there]
        done = run_here("overlay", "measure", "--last-hop", *words)
    assert done.returncode == 3
    assert f"no answer from {there}" in done.stderr
