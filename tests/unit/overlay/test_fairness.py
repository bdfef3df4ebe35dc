"""The hold that deadlines lie ahead by: quantiles on a ladder, and who picks the rung."""

import numpy
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.fairness import LADDER, RULE, HoldController, hold_at
from feedhandler.overlay.holding import Delays, hold_and_release

RUNGS = [float(10 * index) for index in range(len(LADDER))]


@pytest.mark.parametrize("index", range(len(LADDER)))
def test_a_rung_gives_its_own_delay(index: int) -> None:
    assert hold_at(LADDER[index], RUNGS) == pytest.approx(RUNGS[index])


def test_between_rungs_the_hold_rises_and_beyond_the_ends_it_stays() -> None:
    found = [hold_at(quantile, RUNGS) for quantile in numpy.linspace(0.4, 0.99999, 500)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (RUNGS[0], RUNGS[-1])


@pytest.mark.parametrize("wanted", [0.4, 0.9999])
def test_a_probability_that_cannot_be_had_is_refused(wanted: float) -> None:
    with pytest.raises(UsageError, match="it goes from"):
        HoldController(wanted)


def test_an_interval_without_messages_changes_nothing() -> None:
    controller = HoldController(0.99)
    controller.observe(0, 0)
    assert controller.quantile == pytest.approx(RULE)


@pytest.mark.parametrize(("late", "rises"), [(500, True), (0, False)])
def test_it_goes_up_where_too_many_are_late_and_down_where_too_few(late: int, rises: bool) -> None:
    controller = HoldController(0.99, start=0.995)
    controller.observe(1_000, late)
    assert (controller.quantile > 0.995) == rises


@pytest.mark.random
def test_the_rule_passes_no_more_than_95_percent_and_the_controller_what_is_wanted(
    seed: int,
) -> None:
    rng = numpy.random.default_rng(seed)
    delays = rng.gamma(4, 10, (60_000, 40)).astype(numpy.float32) + rng.exponential(8, 40)
    found = Delays("any", delays.astype(numpy.float32))
    rule = hold_and_release(found, "rule", interval=2_000)
    assert rule.fair < 0.96
    held = hold_and_release(found, "held", 0, HoldController(0.99), 2_000)
    settled = (held.delays[20_000:].max(axis=1) <= held.holds[20_000:]).mean()
    assert settled > 0.985
