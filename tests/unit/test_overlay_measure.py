"""`feedhandler overlay measure`: which techniques are measured, and by what."""

import json
from typing import Any

import pytest

from feedhandler.ops import overlay_measure
from feedhandler.ops.overlay_measure import Wanted, measure
from feedhandler.overlay.io_uring import refusal
from feedhandler.overlay.measuring import Spikes
from tests.support.needs import absent

WANTED = Wanted(4, (0,), 40, 400.0, Spikes(), 0.9, seed=1)


def measured(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    """The rows, and what was told besides."""
    assert measure(WANTED, as_json=True) == 0
    told = capsys.readouterr()
    return [json.loads(line) for line in told.out.splitlines()], told.err


def test_cloudex_is_unicast_with_the_rules_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = measured(capsys)
    (cloudex,) = [row for row in rows if row["technique"] == "CloudEx's way"]
    assert cloudex["missing"] == 0
    assert cloudex["latency_p50_us"] == cloudex["rule_latency_p50_us"] > 0
    assert cloudex["window_p99_us"] == cloudex["rule_window_p99_us"]


def test_unicast_by_io_uring_stands_beside_unicast(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := refusal():
        absent("io_uring", f"io_uring is refused: {reason}")
    rows, told = measured(capsys)
    names = ["unicast", "unicast, io_uring", "CloudEx's way", "tree, H = 0"]
    assert [row["technique"] for row in rows] == names
    assert rows[1]["missing"] == 0
    assert rows[1]["latency_p50_us"] > 0
    assert told == ""


def test_where_io_uring_is_refused_a_line_stands_for_its_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_measure, "refusal", lambda: "Operation not permitted")
    rows, told = measured(capsys)
    assert [row["technique"] for row in rows] == ["unicast", "CloudEx's way", "tree, H = 0"]
    (line,) = told.splitlines()
    assert "unicast by io_uring is left out: Operation not permitted (" in line
    assert "kernel.io_uring_disabled" in line
