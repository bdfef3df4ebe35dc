"""The paper's Tables 4 to 7 from a run, with the paper's figures beside ours.

What it is for: steps that differ only in the number of clients make one table (`Group`); a table is
rows of plain figures (`Row`), which `text`, `as_csv` and `as_json` print. Loads, bandwidth and bars
are tables too (`report_loads`), which `aligned` prints as text.

What it promises: latencies are milliseconds here, as in the paper. What the paper has not measured
stays empty. A table says how latency was measured, because the paper's figures are of the broker
alone.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from feedhandler.lab.paper import PaperRow, PaperTable, paper
from feedhandler.lab.results import Latency, Run, Step

#: Quantities that the paper and we have, and those that only we have.
SHARED = ("mean", "min", "max", "p50", "p90")
OURS = ("p99", "p999")
HEADS = {"mean": "Mean", "min": "Min", "max": "Max", "p50": "P50", "p90": "P90"}
HEADS |= {"p99": "P99", "p999": "P99.9"}

#: How latency was measured, by mode; for a heading.
MODES = {
    "direct": "from the gateway's kernel receive stamp to the client's read",
    "paper": "the broker alone too, in the paper's way: control datagrams, one stamping process",
}
#: The names of the figures' owners in headings.
PAPER, HERE = "paper", "here"


class Group(Struct, frozen=True):
    """Steps that differ only in the number of clients, fewest first."""

    scenario: str
    exchange: str
    broker: str
    mode: str
    rate_bps: float
    steps: tuple[Step, ...]

    @property
    def table(self) -> PaperTable:
        """The paper's table of the same experiment."""
        return paper().table(self.scenario, self.exchange)

    @property
    def number(self) -> int:
        """The number of the paper's table, 4 to 7."""
        return self.table.number

    @property
    def name(self) -> str:
        """The name for people: `Packets, direct exchange`."""
        return f"{self.scenario.capitalize()}, {self.exchange} exchange"

    @property
    def setting(self) -> str:
        """The rest of the setting for people: broker and load."""
        return f"{self.broker}, {self.steps[0].load}"

    @property
    def slug(self) -> str:
        """The name for files."""
        speed = f"{self.rate_bps / 1e6:g}mbps"
        step = self.steps[0]
        if step.pace or step.symbols:
            speed = re.sub(r"[^0-9a-z.]+", "-", step.load)
        words = (self.scenario, self.exchange, self.broker, speed)
        return "-".join((*words, self.mode) if self.mode != "direct" else words)


class Row(Struct, frozen=True, kw_only=True):
    """The figures for one number of clients: milliseconds and counts.

    `paper` is the paper's row, if it has one.
    """

    clients: int
    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p99: float
    p999: float
    measured: int
    lost: int
    duplicated: int
    reordered: int
    paper: PaperRow | None


def groups(run: Run) -> list[Group]:
    """Group the run's steps into tables, in the paper's order; leave out trials of a sweep."""
    found: dict[tuple[str, str, str, str, float, float, str], list[Step]] = {}
    for step in run.steps:
        if step.trial:
            continue
        key = (
            *(step.scenario, step.exchange, step.broker, step.mode),
            *(step.rate_bps, step.pace, step.symbols),
        )
        found.setdefault(key, []).append(step)
    made = [
        Group(*key[:5], tuple(sorted(steps, key=lambda step: step.clients)))
        for key, steps in found.items()
    ]
    return sorted(made, key=lambda group: (group.number, group.rate_bps, group.broker, group.mode))


def row_of(step: Step) -> Row:
    """Return a step as a row of its table."""
    latency: Latency = step.latency
    p50, p90, p99, p999 = (each / 1e6 for each in latency.percentiles(0.5, 0.9, 0.99, 0.999))
    return Row(
        clients=step.clients,
        mean=latency.mean_ns / 1e6,
        min=latency.min_ns / 1e6,
        max=latency.max_ns / 1e6,
        p50=p50,
        p90=p90,
        p99=p99,
        p999=p999,
        measured=latency.count,
        lost=sum(result.lost for result in step.results),
        duplicated=sum(result.duplicated for result in step.results),
        reordered=sum(result.reordered for result in step.results),
        # The paper's clients took everything, at a steady rate.
        paper=None
        if step.pace or step.symbols
        else paper().table(step.scenario, step.exchange).row(step.clients),
    )


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out columns of text: words to the left, figures to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    figures = [all(map(is_figure, column[1:])) for column in columns]
    made = []
    for line in lines:
        cells = [
            cell.rjust(width) if figure else cell.ljust(width)
            for cell, width, figure in zip(line, widths, figures, strict=True)
        ]
        made.append("  ".join(cells).rstrip())
    made.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(made) + "\n"


def is_figure(cell: str) -> bool:
    """Return whether a cell is a figure, or one of the words that stand for a figure."""
    return cell[:1].isdigit() or cell in ("-", "none", "no loss")


def milliseconds(value: float | None) -> str:
    """Format milliseconds to the microsecond, as the paper prints them; None as a dash."""
    return "-" if value is None else f"{value:.3f}"


def head() -> list[str]:
    """Return the headings of a latency table."""
    shared = [f"{HEADS[each]} {who}" for each in SHARED for who in (PAPER, HERE)]
    return ["Clients", *shared, *(f"{HEADS[each]} {HERE}" for each in OURS)]


def cells(row: Row) -> list[str]:
    """Return a row's cells in the order of the headings."""
    shared = [
        milliseconds(None if whose is None else getattr(whose, each))
        for each in SHARED
        for whose in (row.paper, row)
    ]
    return [str(row.clients), *shared, *(milliseconds(getattr(row, each)) for each in OURS)]


def title(group: Group) -> str:
    """Return the title of a group's table."""
    return f"Table {group.number}. {group.name}: latency in ms ({group.setting})"


def text(run: Run) -> str:
    """Return all latency tables as text."""
    parts = []
    for group in groups(run):
        rows = [cells(row_of(step)) for step in group.steps]
        how = f"here: {MODES[group.mode]}; paper: the broker alone"
        parts.append(f"{title(group)}\n{how}\n\n{aligned(head(), rows)}")
    return "\n".join(parts)


_CSV_HEAD = (
    *("table", "scenario", "exchange", "broker", "mode", "rate_mbps", "clients"),
    *(f"{whose}{each}_ms" for each in SHARED for whose in ("paper_", "")),
    *(f"{each}_ms" for each in OURS),
    *("measured", "lost", "duplicated", "reordered", "pace", "symbols"),
)


def as_csv(run: Run) -> str:
    """Return all latency tables as one CSV, a line for each step."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for group in groups(run):
        about = (group.number, group.scenario, group.exchange, group.broker, group.mode)
        load = (f"{group.steps[0].pace:g}", group.steps[0].symbols)
        for row in map(row_of, group.steps):
            shared = [
                "" if whose is None else f"{getattr(whose, each):.6g}"
                for each in SHARED
                for whose in (row.paper, row)
            ]
            own = [f"{getattr(row, each):.6g}" for each in OURS]
            counts = (row.measured, row.lost, row.duplicated, row.reordered)
            rate = f"{group.rate_bps / 1e6:g}"
            writer.writerow([*about, rate, row.clients, *shared, *own, *counts, *load])
    return out.getvalue()


def as_json(run: Run) -> bytes:
    """Return all latency tables as JSON: a list, each with its rows."""
    tables = [
        {
            "table": group.number,
            "scenario": group.scenario,
            "exchange": group.exchange,
            "broker": group.broker,
            "mode": group.mode,
            "rate_mbps": group.rate_bps / 1e6,
            "pace": group.steps[0].pace,
            "symbols": group.steps[0].symbols,
            "unit": "ms",
            "paper": paper().source,
            "rows": [row_of(step) for step in group.steps],
        }
        for group in groups(run)
    ]
    return msgspec.json.format(msgspec.json.encode(tables), indent=1) + b"\n"
