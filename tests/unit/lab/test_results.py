"""A laboratory run as values: distributions merge, files hold everything."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.errors import PeerError
from feedhandler.histogram import Histogram
from feedhandler.lab import results
from feedhandler.lab.results import (
    ClientResult,
    Latency,
    Loads,
    Run,
    Sent,
    Step,
    Sweep,
    Trial,
    Verdict,
)
from tests.support.report import latency_of


def distribution(*values: int) -> Latency:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return latency_of(histogram)


@pytest.fixture
def run() -> Run:
    trial = Trial(value=4e7, found_ns=10, held=True)
    one, two = distribution(100_000, 300_000), distribution(50_000)
    step = Step(
        scenario="packets", exchange="topic", clients=2, rate_bps=4e7, duration_s=1.0,
        sent=Sent(packets=3, duration_ns=10**9, frame_bits=1000, services={104: 3}),
        results=[ClientResult(number=0, latency=one), ClientResult(number=1, latency=two)],
        latency=results.merged([one, two]),
        loads=[Loads(role="gateway", t_s=np.array([0.5, 1.0]), user_cpu=np.array([0.1, 0.2]))],
        verdicts=[Verdict(bar="paper", quantity="p50", found_ns=1, bound_ns=2, met=True)],
        findings=["client 1 lost 3"],
    )  # fmt: skip
    return Run(
        started="2026-11-21T10:00:00",
        seeds={"generator": 7},
        steps=[step],
        sweeps=[
            Sweep(
                quantity="rate",
                bound="p90=1ms",
                trials=[trial],
                held=4e7,
            )
        ],
    )


def test_a_distribution_knows_mean_and_extremes_exactly() -> None:
    found = distribution(100_003, 300_001)
    assert (found.count, found.min_ns, found.max_ns) == (2, 100_003, 300_001)
    assert found.mean_ns == 200_002
    assert found.percentiles(0.99) == [300_001]


def test_an_empty_distribution_is_all_zero() -> None:
    assert (Latency().mean_ns, Latency().percentiles(0.5)) == (0.0, [0])
    bounds, shares = Latency().cumulative()
    assert len(bounds) == len(shares) == 0


def test_merged_is_what_one_histogram_of_all_would_be() -> None:
    parts = [distribution(5, 70), Latency(), distribution(1_000_000)]
    whole, expected = results.merged(parts), distribution(5, 70, 1_000_000)
    assert (whole.buckets == expected.buckets).all()
    assert (whole.count, whole.sum_ns, whole.min_ns, whole.max_ns) == (3, 1_000_075, 5, 1_000_000)


def test_the_cumulative_distribution_ends_at_one() -> None:
    bounds, shares = distribution(10, 20, 20, 50_000).cumulative()
    assert shares.tolist() == [0.25, 0.75, 1.0]
    assert bounds[0] == 10
    assert bounds[-1] >= 50_000


def test_a_run_is_read_as_it_was_written(run: Run, tmp_path: Path) -> None:
    path = results.write_run(run, tmp_path / "out")
    assert path == tmp_path / "out" / "run.json"
    again = results.read_run(tmp_path / "out")
    assert again.seeds == run.seeds
    assert again.sweeps == run.sweeps
    (step,), (before,) = again.steps, run.steps
    assert step.sent == before.sent
    assert step.verdicts == before.verdicts
    assert step.latency.mean_ns == before.latency.mean_ns
    assert (step.results[1].latency.buckets == before.results[1].latency.buckets).all()
    assert step.loads[0].t_s.tolist() == [0.5, 1.0]
    assert step.loads[0].rss_bytes.tolist() == []


def test_findings_are_named_with_their_step(run: Run) -> None:
    assert run.findings == ["packets to 2, topic: client 1 lost 3"]


def test_the_rate_is_of_frames_and_zero_before_anything_was_sent() -> None:
    assert Sent(frame_bits=1000, duration_ns=10**9).rate_bps == 1000
    assert Sent().rate_bps == 0


@pytest.mark.parametrize(
    ("now", "damaged", "said"),
    [('"format": 1', '"format": 9', "is of format 9"), ('"packets"', '"flags"', "holds no run")],
)
def test_what_is_no_run_is_reported(
    run: Run, tmp_path: Path, now: str, damaged: str, said: str
) -> None:
    path = results.write_run(run, tmp_path)
    text = path.read_text()
    assert now in text
    path.write_text(text.replace(now, damaged))
    with pytest.raises(PeerError, match=said):
        results.read_run(tmp_path)


def test_only_arrays_are_kept_beside(run: Run, tmp_path: Path) -> None:
    path = results.write_run(run, tmp_path)
    path.write_text(path.read_text().replace('"2026-11-21T10:00:00"', '{"npz": "x"}'))
    with pytest.raises(PeerError):
        results.read_run(tmp_path)


@pytest.mark.parametrize(
    "module", [None, load_interpreted("feedhandler.histogram")], ids=["compiled", "interpreted"]
)
def test_a_histogram_keeps_sum_and_extremes(module: ModuleType | None) -> None:
    histogram = (module.Histogram if module else Histogram)()
    for value in (500, 7, 90_000):
        histogram.record(value)
    assert (histogram.total, histogram.minimum, histogram.maximum) == (90_507, 7, 90_000)
    histogram.clear()
    histogram.record(3)
    assert (histogram.total, histogram.minimum, histogram.maximum) == (3, 3, 3)
