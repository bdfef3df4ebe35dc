"""Experiments as one page, and as markdown: tables, and distributions where the source draws them.

matplotlib is imported where it is used; without it a page has its tables.
"""

import importlib
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy

from feedhandler.drawing import DASHES, SIZE, STYLE, available, colours, svg_of, titled
from feedhandler.overlay.simulation.experiments import Experiment
from feedhandler.page import page_figure, whole_page

#: Points of a curve, and the share of it that is drawn, as the source does.
POINTS = 200
SHOWN = (0.01, 0.99)


def page(found: Sequence[Experiment], about: str) -> str:
    """The whole page, HTML. `about` says what was simulated."""
    without = "" if available() else "<p class='soft'>No figures: matplotlib is not installed.</p>"
    parts = [
        "<h1>Overlay multicast, simulated</h1>",
        f"<p class='soft'>{escape(about)}. Times in µs.</p>",
        without,
        *map(_section, found),
    ]
    return whole_page("Overlay multicast, simulated", "\n".join(filter(None, parts)))


def _section(experiment: Experiment) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in experiment.head)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in experiment.rows
    )
    drawn = _figure(experiment) if experiment.curves and available() else ""
    return (
        f"<section>\n<h2>{escape(experiment.name)}</h2>\n<p>{escape(experiment.title)}</p>\n"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
        f"</div>\n<p class='soft'>{escape(experiment.note)}</p>\n{drawn}</section>"
    )


def _figure(experiment: Experiment) -> str:
    """Cumulative distributions, one curve each."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    shares = numpy.linspace(*SHOWN, POINTS)
    with matplotlib.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=SIZE, layout="constrained")
        for place, ((name, values), colour) in enumerate(
            zip(experiment.curves.items(), colours(len(experiment.curves)), strict=True)
        ):
            dashes = DASHES[place % len(DASHES)]
            axis.plot(numpy.quantile(values, shares), shares, dashes, color=colour, label=name)
        axis.set_xlabel("hops" if experiment.name == "Figure 5" else "µs")
        axis.set_ylabel("share of messages")
        axis.legend()
        titled(figure, f"{experiment.name}: {experiment.title}")
        drawn = svg_of(figure)
        pyplot.close(figure)
    return page_figure(drawn, experiment.title, "Cumulative distributions, 1st to 99th percentile.")


def markdown(found: Sequence[Experiment]) -> str:
    """The tables as a page of docs/ has them."""
    parts = []
    for experiment in found:
        lines = [experiment.head, ("---",) * len(experiment.head), *experiment.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = f"\n\n{experiment.note[:1].upper()}{experiment.note[1:]}." if experiment.note else ""
        parts.append(f"### {experiment.name}\n\n{experiment.title}.\n\n{table}{note}\n")
    return "\n".join(parts)
