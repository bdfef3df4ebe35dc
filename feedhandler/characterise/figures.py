"""The paper's figures 2 to 6 of a session, and two of ours, as SVG: drawn from the tables alone.

matplotlib is imported where it is used; without it `draw` returns an empty list and a report has
its tables only. Times of day are those of the tables, in their zone.
"""

import datetime
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from feedhandler.characterise.tables import Table
from feedhandler.drawing import PAPER_COLOUR, SIZE, STYLE, available, svg_of, titled

#: Symbols that the figure of the busiest shows.
BARS = 15
#: Colours of services that colour-blind readers can distinguish (Okabe and Ito).
SERVICE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
                   "#8c8c8c")  # fmt: skip
#: Minutes up to which those without packets are drawn: beyond, a line spans them.
MINUTES_MAX = 20_000
#: Ticks of the times between messages, in milliseconds; as many as have room beside one another.
TICKS_MS = {1e-4: "0", 1e-2: "10 µs", 1.0: "1 ms", 1e2: "100 ms", 1e4: "10 s", 1e6: "1,000 s",
            1e8: "100,000 s"}  # fmt: skip


class Figure(Struct, frozen=True):
    """A picture: its name as a file, its title, what it shows, and the SVG."""

    name: str
    title: str
    caption: str
    svg: str


def draw(tables: Mapping[str, Table]) -> list[Figure]:
    """Draw the figures whose tables have rows, in the paper's order; none without matplotlib."""
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
        Figure(name, title, caption, _svg(title, table, paint))
        for name, title, caption, table, paint in wanted
        if table.rows
    ]


def _svg(title: str, table: Table, paint: Callable[[Any, Table], None]) -> str:
    """Draw one picture with one panel."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=SIZE, layout="constrained")
        paint(figure.add_subplot(), table)
        titled(figure, title)
        return svg_of(figure)


def _column(table: Table, name: str) -> list[Any]:
    index = table.columns.index(name)
    return [row[index] for row in table.rows]


def _minutes_axis(axis: Any, table: Table) -> None:
    """Format the axes: times of day below, thousands with commas at the side."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=8)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    axis.set_xlabel(table.note.rstrip("."))
    _thousands(axis.yaxis)


def _filled(minutes: list[str], counts: list[int]) -> tuple[list[datetime.datetime], list[int]]:
    """Return every minute from the first to the last with its count: 0 where nothing came."""
    found = dict(zip(map(datetime.datetime.fromisoformat, minutes), counts, strict=True))
    first, last = min(found), max(found)
    number = int((last - first).total_seconds()) // 60 + 1
    if number > MINUTES_MAX:
        return list(found), list(found.values())
    times = [first + datetime.timedelta(minutes=index) for index in range(number + 1)]
    return times, [found.get(time, 0) for time in times]


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda value, position: f"{value:,.0f}")


def _a_minute(what: str) -> str:
    """Return the label of the axis of a count."""
    return {"file_bytes": "bytes / minute"}.get(what, f"{what} / minute")


def _minutes(axis: Any, table: Table, what: str) -> None:
    times, counts = _filled(_column(table, "minute"), _column(table, what))
    axis.fill_between(times, counts, step="post", color=SERVICE_COLOURS[0], linewidth=0)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(_a_minute(what))
    _minutes_axis(axis, table)


def _by_service(axis: Any, table: Table, what: str) -> None:
    services = list(dict.fromkeys(_column(table, "service")))
    index = table.columns.index(what)
    for number, service in enumerate(services):
        rows = [row for row in table.rows if row[1] == service]
        times = [datetime.datetime.fromisoformat(row[0]) for row in rows]
        axis.plot(
            times,
            [row[index] for row in rows],
            color=SERVICE_COLOURS[number % len(SERVICE_COLOURS)],
            label=service,
            marker="." if len(rows) == 1 else "",
            linewidth=0.9,
            clip_on=len(rows) > 1,
        )
    times = [datetime.datetime.fromisoformat(text) for text in _column(table, "minute")]
    if min(times) == max(times):
        # All is in one minute: matplotlib would show the years around a single moment.
        axis.set_xlim(times[0], times[0] + datetime.timedelta(minutes=1))
    axis.set_yscale("log")
    axis.set_ylabel(_a_minute(what))
    _minutes_axis(axis, table)
    axis.figure.legend(title="service", loc="outside lower center", ncols=4)


def _cumulative(axis: Any, table: Table) -> None:
    # A logarithmic axis has no 0: messages of the same packet are drawn at its left edge.
    times = [max(each / 1e6, 1e-4) for each in _column(table, "from_ns")]
    shares = _column(table, "share_up_to_here")
    axis.step(times, shares, where="post", color=SERVICE_COLOURS[0])
    axis.set_xscale("log")
    ticks = {at: words for at, words in TICKS_MS.items() if at <= 10 * times[-1]}
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.minorticks_off()
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("time since the same symbol's message before")
    axis.set_ylabel("share of repeats")
    for limit_ms, side, away in ((1.0, "right", (-6, 7)), (10.0, "left", (6, -15))):
        reached = max((s for t, s in zip(times, shares, strict=True) if t <= limit_ms), default=0.0)
        axis.axvline(limit_ms, color=PAPER_COLOUR, linewidth=0.8, linestyle="--")
        words = f"{100 * reached:.1f} % within {limit_ms:g} ms"
        axis.annotate(
            words,
            (limit_ms, reached),
            xytext=away,
            textcoords="offset points",
            horizontalalignment=side,
        )


def _symbols(axis: Any, table: Table) -> None:
    rows = table.rows[:BARS]
    names = [f"{row[1]} ({row[0]})" for row in rows]
    axis.bar(range(len(rows)), [row[2] for row in rows], color=SERVICE_COLOURS[0])
    axis.set_xticks(range(len(rows)), names, rotation=60, ha="right", fontsize=7.5)
    axis.set_xlabel("symbol (service)")
    axis.set_ylabel("messages")
    axis.grid(visible=False, axis="x")
    _thousands(axis.yaxis)
