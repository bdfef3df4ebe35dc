"""Experiments as one page, and as markdown: tables, and distributions where the source has figures.

matplotlib is imported where it is used; without it a page has only its tables.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy

from feedhandler.drawing import DASHES, SIZE, STYLE, available, colours, svg_of, titled
from feedhandler.overlay.experiment import Experiment
from feedhandler.page import page_figure, whole_page

#: Points of a curve, and the quantiles between which it is drawn, as in the source.
POINTS = 200
SHOWN = (0.01, 0.99)


def page(found: Sequence[Experiment], title: str, about: str) -> str:
    """Return the whole page, HTML. `about` says what was simulated, or measured."""
    without = "" if available() else "<p class='soft'>No figures: matplotlib is not installed.</p>"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='soft'>{escape(about)}. Times in µs.</p>",
        without,
        *map(_section, found),
    ]
    return whole_page(title, "\n".join(filter(None, parts)))


def _section(experiment: Experiment) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in experiment.head)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in experiment.rows
    )
    drawn = "".join(_figures(experiment)) if available() else ""
    return (
        f"<section>\n<h2>{escape(experiment.name)}</h2>\n<p>{escape(experiment.title)}</p>\n"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
        f"</div>\n<p class='soft'>{escape(experiment.note)}</p>\n{drawn}</section>"
    )


def _figures(experiment: Experiment) -> Iterator[str]:
    title = experiment.title
    if experiment.curves:
        said = "Cumulative distributions, 1st to 99th percentile."
        yield page_figure(_drawn(experiment, experiment.curves, _distribution), title, said)
    if experiment.over_time:
        said = "Window by window, from the first one on."
        yield page_figure(_drawn(experiment, experiment.over_time, _line), title, said)


def _distribution(axis: Any, values: numpy.ndarray, **style: Any) -> None:
    shares = numpy.linspace(*SHOWN, POINTS)
    axis.plot(numpy.quantile(values, shares), shares, style.pop("dashes"), **style)
    axis.set_ylabel("share of messages")


def _line(axis: Any, values: numpy.ndarray, **style: Any) -> None:
    axis.plot(numpy.arange(len(values)), values, style.pop("dashes"), **style)
    axis.set_xlabel("window")


def _drawn(
    experiment: Experiment, values: Mapping[str, numpy.ndarray], draw: Callable[..., None]
) -> str:
    """Draw a figure as SVG, one curve for each name."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    with matplotlib.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=SIZE, layout="constrained")
        for index, ((name, each), colour) in enumerate(
            zip(values.items(), colours(len(values)), strict=True)
        ):
            draw(axis, each, dashes=DASHES[index % len(DASHES)], color=colour, label=name)
        if draw is _distribution:
            axis.set_xlabel(experiment.unit)
        else:
            axis.set_ylabel(experiment.unit)
            axis.set_ylim(bottom=0)  # after drawing, which sets the upper limit
        axis.legend()
        titled(figure, f"{experiment.name}: {experiment.title}")
        drawn = svg_of(figure)
        pyplot.close(figure)
    return drawn


def markdown(found: Sequence[Experiment]) -> str:
    """Return the tables as a page of docs/ has them."""
    parts = []
    for experiment in found:
        lines = [experiment.head, ("---",) * len(experiment.head), *experiment.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = f"\n\n{experiment.note[:1].upper()}{experiment.note[1:]}." if experiment.note else ""
        parts.append(f"### {experiment.name}\n\n{experiment.title}.\n\n{table}{note}\n")
    return "\n".join(parts)
