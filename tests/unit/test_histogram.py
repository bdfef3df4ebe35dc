"""The latency histogram against exact percentiles, compiled and interpreted."""

from typing import Any

import numpy
import pytest

from feedhandler import histogram
from tests.support.twins import either, twins_of

module = either(twins_of(histogram))
#: One bucket's width relative to its values: 1 in 32, and the last unit.
ERROR = 0.032
SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)


@pytest.mark.parametrize("shape", ["uniform", "lognormal", "two humps", "small"])
def test_percentiles_are_right_within_a_bucket(module: Any, shape: str) -> None:
    seed = 7
    print(f"seed {seed}")
    chance = numpy.random.default_rng(seed)
    values = {
        "uniform": chance.integers(0, 10**7, 5000),
        "lognormal": chance.lognormal(11, 1.5, 5000).astype(numpy.int64),
        "two humps": numpy.concatenate(
            [chance.normal(60_000, 5000, 4000), chance.normal(10**9, 10**7, 1000)]
        ).astype(numpy.int64),
        "small": chance.integers(0, 64, 5000),
    }[shape]
    kept = module.Histogram()
    for value in values.tolist():
        kept.record(value)
    exact = numpy.percentile(values, [100 * share for share in SHARES], method="inverted_cdf")
    for got, want in zip(kept.percentiles(*SHARES), exact.tolist(), strict=True):
        assert want <= got <= want * (1 + ERROR) + 1
    assert kept.count == len(values)
    assert kept.maximum == values.max()


def test_every_value_falls_into_the_bucket_whose_bounds_hold_it(module: Any) -> None:
    edges = [n for power in range(42) for n in (2**power - 1, 2**power, 2**power + 1)]
    for value in sorted({*range(300), *edges}):
        kept = module.Histogram()
        kept.record(value)
        (bucket,) = numpy.flatnonzero(kept.counts()).tolist()
        assert value <= module.UPPER_BOUNDS[bucket]
        assert bucket == 0 or value > module.UPPER_BOUNDS[bucket - 1]


def test_buckets_of_the_fine_scale_are_within_one_percent_and_meet_each_other(module: Any) -> None:
    edges = module.FINE_BOUNDS.tolist()
    assert len(edges) == module.FINE_BUCKETS
    for bucket, edge in enumerate(edges):
        assert module.fine_bucket_of(edge) == bucket
        if bucket:
            assert module.fine_bucket_of(edge - 1) == bucket - 1
            assert bucket < 256 or edge - edges[bucket - 1] <= edges[bucket - 1] / 100
    assert module.fine_bucket_of(2**62) == module.FINE_BUCKETS - 1


def test_values_beyond_both_ends_are_counted_at_the_ends(module: Any) -> None:
    kept = module.Histogram()
    for value in (-5, 2**42, 2**62):
        kept.record(value)
    counts = kept.counts()
    assert counts[0] == 1
    assert counts[-1] == 2
    assert kept.maximum == 2**62


def test_an_empty_histogram_has_zero_percentiles(module: Any) -> None:
    assert module.Histogram().percentiles(0.5, 0.99) == [0, 0]


def test_a_cleared_histogram_starts_afresh(module: Any) -> None:
    kept = module.Histogram()
    kept.record(1000)
    kept.clear()
    assert (kept.count, kept.maximum, int(kept.counts().sum())) == (0, 0, 0)


def test_percentiles_of_the_difference_of_two_snapshots(module: Any) -> None:
    kept = module.Histogram()
    for _ in range(1000):
        kept.record(10)
    before = kept.counts()
    kept.record(50)
    assert module.percentiles_of(kept.counts() - before, 0.5) == [50]
