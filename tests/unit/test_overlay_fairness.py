"""The controller of the hold: interpolation, bounds, and that it gives the wanted probability."""

import random
from bisect import bisect_right

import pytest

from feedhandler.overlay.fairness import DECADE_MAX, DECADE_MIN, FairnessController, decade_of
from feedhandler.overlay.wire import QUANTILE_LEVELS

DELAYS = (100, 200, 300, 400, 500, 600)


@pytest.mark.parametrize(
    ("percentile", "hold_ns"),
    [
        (0, 100), (50, 100), (90, 200), (95, 300), (99, 400), (99.9, 500), (99.99, 600),
        (100 - 100 * 10**-1.5, 328), (99.999, 750), (99.9999999, 900),
    ],
)  # fmt: skip
def test_the_hold_is_the_delay_at_the_percentile(percentile: float, hold_ns: int) -> None:
    controller = FairnessController(0, percentile=percentile)
    assert controller.hold_ns == 0
    assert not controller.known
    controller.report(DELAYS)
    assert controller.known
    assert controller.hold_ns == pytest.approx(hold_ns, abs=1)


def test_the_hold_keeps_to_its_bound() -> None:
    controller = FairnessController(0, hold_ns_max=250)
    controller.report(DELAYS)
    assert controller.hold_ns == 250


def test_the_percentile_moves_with_what_was_measured_within_its_range() -> None:
    controller = FairnessController(0.99)
    start = controller.percentile
    controller.observe(0, 0)
    assert controller.percentile == start == pytest.approx(95)
    controller.observe(990, 1_000)
    assert controller.percentile == pytest.approx(start)
    controller.observe(900, 1_000)
    assert controller.percentile > start
    for _ in range(1_000):
        controller.observe(0, 1_000)
    assert decade_of(controller.percentile) == pytest.approx(DECADE_MAX)
    for _ in range(1_000):
        controller.observe(1_000, 1_000)
    assert decade_of(controller.percentile) == pytest.approx(DECADE_MIN)


def test_the_sources_rule_does_not_move() -> None:
    controller = FairnessController(0)
    controller.observe(0, 1_000)
    assert controller.percentile == pytest.approx(95)


@pytest.mark.parametrize("wanted", [-0.1, 1])
def test_a_probability_is_below_one(wanted: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        FairnessController(wanted)


def fair_share(wanted: float, seed: int, receivers: int = 8) -> tuple[float, list[int]]:
    """The share of fair messages, and the holds, of traces with rare spikes at each receiver."""
    dice, controller = random.Random(seed), FairnessController(wanted)
    fair = total = 0
    holds = []
    for interval in range(240):
        columns = [
            sorted(
                round(50_000 + dice.expovariate(1 / 5_000) + 200_000 * (dice.random() < 5e-5))
                for _ in range(500)
            )
            for _ in range(receivers)
        ]
        hold_ns = controller.hold_ns
        if hold_ns and interval >= 80:
            late = sum(500 - bisect_right(each, hold_ns) for each in columns)
            # Spikes and tails of receivers are independent here: late ones seldom coincide.
            fair, total = fair + 500 - min(late, 500), total + 500
            holds.append(hold_ns)
        if hold_ns:
            late = sum(500 - bisect_right(each, hold_ns) for each in columns)
            controller.observe(500 - min(late, 500), 500)
        controller.report(
            [max(each[-(-level * 500 // 10_000) - 1] for each in columns) for level in
             QUANTILE_LEVELS]
        )  # fmt: skip
    return fair / total, holds


def test_the_wanted_probability_is_reached_where_the_95th_percentile_does_not(seed: int) -> None:
    by_rule, rule_holds = fair_share(0, seed)
    assert by_rule < 0.95
    wanted, holds = fair_share(0.99, seed)
    assert wanted == pytest.approx(0.99, abs=0.005)
    median = sorted(holds)[len(holds) // 2]
    assert median <= 1.5 * sorted(rule_holds)[len(rule_holds) // 2]
