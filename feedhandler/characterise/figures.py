"""The paper's figures 2 to 6 of a session, and two of ours, as PNG: drawn from the tables alone.

matplotlib is imported where it is used; without it `draw` answers with nothing and a report has its
tables. Times of day are those of the tables, in their zone.
"""

import datetime
import importlib
import importlib.util
import io
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from feedhandler.characterise.tables import Table
from feedhandler.lab.report_style import DPI, STYLE, WIDE, colours, logarithmic, titled

#: Minutes beyond which a figure's axis has days.
DAY_MINUTES = 1_440
#: Symbols that the figure of the busiest shows.
BARS = 25


class Figure(Struct, frozen=True):
    """A picture: its name as a file, its title, what it shows, and the PNG."""

    name: str
    title: str
    caption: str
    png: bytes


def available() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(tables: Mapping[str, Table]) -> list[Figure]:
    """The figures that the tables have something for, in the order of the paper."""
    if not available():
        return []
    minutes, by_service = tables["minutes"], tables["minutes_by_service"]
    wanted: list[tuple[str, str, str, Table, Callable[[Any, Table], None]]] = [
        ("packets_a_minute", "Packets a minute (Figure 2)", "All lines together.", minutes,
         lambda axis, table: _minutes(axis, table, "packets")),
        ("bytes_a_minute", "Bytes a minute (Figure 3)", "As a capture file has them.", minutes,
         lambda axis, table: _minutes(axis, table, "file_bytes")),
        ("packets_by_service", "Packets a minute by service (Figure 4)", "All lines of a service.",
         by_service, lambda axis, table: _by_service(axis, table, "packets")),
        ("bytes_by_service", "Bytes a minute by service (Figure 5)", "As a capture file has them.",
         by_service, lambda axis, table: _by_service(axis, table, "file_bytes")),
        ("interarrival", "Same-symbol interarrival (Figure 6)",
         "Empirical cumulative distribution, on the first line of each service.",
         tables["interarrival_distribution"], _cumulative),
        ("symbols", f"The busiest {BARS} symbols", "Messages on first lines.",
         tables["symbols"], _symbols),
    ]  # fmt: skip
    return [
        Figure(name, title, caption, _png(title, table, paint))
        for name, title, caption, table, paint in wanted
        if table.rows
    ]


def _png(title: str, table: Table, paint: Callable[[Any, Table], None]) -> bytes:
    """One picture with one panel."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=WIDE, dpi=DPI, layout="constrained")
        paint(figure.add_subplot(), table)
        titled(figure, title)
        target = io.BytesIO()
        figure.savefig(target, format="png")
    return target.getvalue()


def _column(table: Table, name: str) -> list[Any]:
    place = table.columns.index(name)
    return [row[place] for row in table.rows]


def _times(axis: Any, minutes: list[str]) -> list[datetime.datetime]:
    """The minutes for an axis, whose ticks are times of day."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return [datetime.datetime.fromisoformat(each) for each in minutes]


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda value, place: f"{value:,.0f}")


def _minutes(axis: Any, table: Table, what: str) -> None:
    times = _times(axis, _column(table, "minute"))
    axis.vlines(times, 0, _column(table, what), color=colours(1)[0], linewidth=0.9)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(f"{what.replace('_', ' ')} / minute")
    _thousands(axis.yaxis)


def _by_service(axis: Any, table: Table, what: str) -> None:
    services = list(dict.fromkeys(_column(table, "service")))
    place = table.columns.index(what)
    for service, colour in zip(services, colours(len(services)), strict=True):
        rows = [row for row in table.rows if row[1] == service]
        times = _times(axis, [row[0] for row in rows])
        shape = "." if len(rows) == 1 else ""
        counts = [row[place] for row in rows]
        axis.plot(times, counts, color=colour, label=service, marker=shape, linewidth=1)
    axis.set_yscale("log")
    axis.set_ylabel(f"{what.replace('_', ' ')} / minute")
    _thousands(axis.yaxis)
    axis.legend(ncols=4, loc="best")


def _cumulative(axis: Any, table: Table) -> None:
    # A logarithmic axis has no 0: what came in the same packet stands at its left edge.
    times = [max(each / 1e6, 1e-4) for each in _column(table, "from_ns")]
    shares = _column(table, "share_up_to_here")
    axis.step(times, shares, where="post", color=colours(1)[0])
    axis.set_xscale("log")
    logarithmic(axis.xaxis)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("milliseconds since the symbol's message before (0 at the left edge)")
    axis.set_ylabel("share of repeats")
    for mark in (1.0, 10.0):
        reached = max((s for t, s in zip(times, shares, strict=True) if t <= mark), default=0.0)
        axis.axvline(mark, color="#b3424a", linewidth=0.8, linestyle="--")
        words = f"{100 * reached:.1f} % within {mark:g} ms"
        axis.annotate(words, (mark, reached), xytext=(6, -14), textcoords="offset points")


def _symbols(axis: Any, table: Table) -> None:
    rows = table.rows[:BARS]
    names = [f"{row[1]}" for row in rows]
    axis.bar(range(len(rows)), [row[2] for row in rows], color=colours(1)[0])
    axis.set_xticks(range(len(rows)), names, rotation=60, ha="right", fontsize=7.5)
    axis.set_ylabel("messages")
    _thousands(axis.yaxis)
