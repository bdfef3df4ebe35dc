"""`feedhandler overlay simulate`: the run, and its report on the terminal, in JSON or in a file."""

import importlib
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.simulation import report as simulation
from feedhandler.overlay.simulation.latency import CLOUDS, INTERVAL_MESSAGES
from feedhandler.overlay.simulation.tables import Chart, Report
from feedhandler.overlay.topology import FAN_OUT, Shape, plan_shape

TITLE = "Simulation of the overlay beside its source"


@dataclass(frozen=True)
class Asked:
    """What the command was given. `receivers` 0: the whole report, or one table."""

    receivers: int = 0
    hedge: int = 2
    depth: int = 0
    fan_out: int = FAN_OUT
    cloud: str = "aws"
    iterations: int = 100_000
    messages: int = 6_000
    seed: int = 1
    table: str = ""
    report: Path | None = None
    as_json: bool = False


def simulate(asked: Asked) -> int:
    """Run, and show or write. Raises `UsageError` for shapes that are no tree and unknown names."""
    if asked.cloud not in CLOUDS:
        raise UsageError(f"cloud {asked.cloud}: not known", f"one of {', '.join(CLOUDS)}")
    if asked.report and asked.report.suffix not in (".md", ".html"):
        raise UsageError(
            f"{asked.report}: neither .md nor .html", "name the report so that it ends"
        )
    count = max(3, -(-asked.messages // INTERVAL_MESSAGES))
    wanted = simulation.Wanted(asked.seed, asked.iterations, count)
    if asked.receivers:
        depth = asked.depth or plan_shape(asked.receivers).depth
        shape = Shape(
            depth, asked.fan_out, asked.hedge if depth > 1 else 0, asked.receivers
        ).check()
        found = Report([simulation.table_techniques(shape, wanted, CLOUDS[asked.cloud])])
    else:
        found = simulation.make(wanted, asked.table)
    if asked.report:
        written = page(found) if asked.report.suffix == ".html" else markdown(found)
        asked.report.write_text(written, encoding="utf-8")
    for table in found.tables:
        print(json.dumps(table.record()) if asked.as_json else table.text())
    return 0


def markdown(report: Report) -> str:
    """All tables in Markdown."""
    return "\n".join(table.markdown() for table in report.tables)


def page(report: Report) -> str:
    """Tables and, where figures can be drawn, curves, as one HTML page."""
    from feedhandler import drawing
    from feedhandler.page import page_figure, whole_page

    body = [f"<h1>{escape(TITLE)}</h1>"]
    for table in report.tables:
        body.append(f"<h2>{escape(table.title)}</h2>\n<pre>{escape(table.text())}</pre>")
    if drawing.available():
        for chart in report.charts:
            body.append(
                page_figure(_drawn(chart), chart.title, f"{chart.upwards} by {chart.across}")
            )
    return whole_page(TITLE, "\n".join(body))


def _drawn(chart: Chart) -> str:
    matplotlib: Any = importlib.import_module("matplotlib")
    from matplotlib.figure import Figure

    from feedhandler import drawing

    with matplotlib.rc_context(drawing.STYLE):
        figure: Any = Figure(figsize=drawing.SIZE, layout="constrained")
        drawing.titled(figure, chart.title)
        axis = figure.add_subplot()
        colours = drawing.colours(len(chart.curves))
        for number, (name, (across, upwards)) in enumerate(chart.curves.items()):
            dash = drawing.DASHES[number % len(drawing.DASHES)]
            axis.plot(across, upwards, dash, color=colours[number], label=name)
        axis.set_xlabel(chart.across)
        axis.set_ylabel(chart.upwards)
        axis.legend()
        return drawing.svg_of(figure)
