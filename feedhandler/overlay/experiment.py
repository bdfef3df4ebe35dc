"""An experiment's table and figures, simulated or measured, and how values are written in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table, `head` and `rows` of text, with the values of its figures.

    `curves`: by name, for distributions; `over_time`: by name, a value for each window one after
    the other (NaN: none).
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    curves: dict[str, numpy.ndarray] = field(default_factory=dict)
    over_time: dict[str, numpy.ndarray] = field(default_factory=dict)
    #: Unit of the figures.
    unit: str = "µs"


def us(value: float) -> str:
    """Format a time in us, for a table."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Format a share as percent."""
    return f"{100 * share:.1f} %"


def median(values: numpy.ndarray) -> float:
    """Return the median as a plain number."""
    return float(numpy.median(values))


def at(values: numpy.ndarray, quantile: float) -> float:
    """Return a quantile as a plain number."""
    return float(numpy.quantile(values, quantile))
