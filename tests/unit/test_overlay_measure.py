"""`feedhandler overlay measure`: which techniques are measured, and by what."""

import json

import pytest

from feedhandler.ops.overlay_measure import Wanted, measure
from feedhandler.overlay.measuring import Spikes


def test_cloudex_is_unicast_with_the_rules_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(4, (0,), 40, 400.0, Spikes(), 0.9, seed=1)
    assert measure(wanted, as_json=True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["technique"] for row in rows] == ["unicast", "CloudEx's way", "tree, H = 0"]
    cloudex = rows[1]
    assert cloudex["missing"] == 0
    assert cloudex["latency_p50_us"] == cloudex["rule_latency_p50_us"] > 0
    assert cloudex["window_p99_us"] == cloudex["rule_window_p99_us"]
