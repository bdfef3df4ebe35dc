"""The page of measured tables and figures as Markdown, made of values alone.

`Measured` is what `lab_report` found; `page` writes it down: the source paper's Tables 4 to 7 and
Figures 8 to 16, the bars, the loads that were not carried, the ceiling in C, and the persistent
queue's tables beside its peers. What could not be measured has its reason instead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedhandler.lab import report_loads, report_tables, thresholds
from feedhandler.lab.report_figures import Figure
from feedhandler.lab.results import Run, Step

#: The persistent queue's paper: messages a second over Sun ONE Message Queue's, by message bytes,
#: its Table 1 (accepted) and Table 2 (delivered).
QUEUE_ACCEPTED = {1024: 1.07, 2048: 1.11, 4096: 1.19, 8192: 1.25, 10240: 1.30}
QUEUE_DELIVERED = {1024: 1.00, 2048: 1.00, 4096: 1.01, 8192: 1.02, 10240: 1.02}
#: Deliveries that are older at the median have waited in a queue that grows: what is sent longer
#: will be lost.
BACKLOG_NS = 100_000_000
_DASH = "-"


@dataclass
class Measured:
    """Everything that was measured, and why the rest was not.

    run       the steps of the laboratory
    failed    what could not be measured, and why
    ceiling   as `bench_lab_ceiling.compare` gives it, or None
    journal   as `bench_journal.measure` gives it, or None
    peer      why there is no RabbitMQ beside the queue; empty where there is one
    figures   of the paper's steps, and why some are missing
    """

    run: Run
    failed: list[tuple[str, str]] = field(default_factory=list)
    ceiling: dict[str, Any] | None = None
    journal: dict[str, Any] | None = None
    peer: str = ""
    figures: list[Figure] = field(default_factory=list)
    figures_note: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format headings and rows as a Markdown table, figures to the right."""
    rows = [list(row) for row in rows]
    figures = [
        bool(rows) and all(report_tables.is_figure(row[at]) for row in rows)
        for at in range(len(head))
    ]
    ruled = ["---:" if figure else "---" for figure in figures]
    lines = [_line(head), _line(ruled), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def lost_share(step: Step) -> float:
    """Return the share of deliveries that clients missed, 0 to 1."""
    expected = sum(result.expected for result in step.results)
    return sum(result.lost for result in step.results) / max(1, expected)


def median_ns(step: Step) -> int:
    """Return the median latency."""
    return step.latency.percentiles(0.5)[0]


def page(found: Measured) -> str:
    """Return the whole page."""
    parts = [_head(found), _carried(found), _latencies(found), _loads(found)]
    parts += [_ceiling(found), _queue(found)]
    return "\n".join(part for part in parts if part)


def _head(found: Measured) -> str:
    machine, versions = found.run.machine, found.run.versions
    seconds = sorted({step.duration_s for step in found.run.steps})
    load = machine.get("load_average_before", [0.0])[0]
    lines = [
        "# Measured on one machine\n",
        "Made by `make lab-report`: the source paper's Tables 4 to 7 and Figures 8 to 16 through",
        "the gateway's own node, beside the paper's figures; the same loads through a gateway and",
        "clients in C; and the persistent queue beside RabbitMQ and SQLite. How each is measured:",
        "[lab.md](../lab.md), [lab-report.md](../lab-report.md), [journal.md](../journal.md).\n",
        f"- Begun {found.run.started}; each step "
        + (f"{' or '.join(f'{each:g}' for each in seconds)} s." if seconds else "failed."),
        f"- {machine.get('processors', '?')} processors ({machine.get('processor', 'unknown')}),"
        f" {machine.get('memory_bytes', 0) / 2**30:.0f} GiB, {machine.get('system', 'unknown')};"
        f" load average before {load:.2f}.",
        f"- {', '.join(f'{name} {number}' for name, number in versions.items())}.",
    ]
    text = "\n".join(lines) + "\n"
    if found.failed:
        text += "\n## Not measured\n\n" + table(("What", "Why"), found.failed)
    return text


def _carried(found: Measured) -> str:
    """Return which steps came through, and what the others lost, or how much they were behind."""
    steps = found.run.steps
    if not steps:
        return ""
    beyond = [step for step in steps if step.findings or median_ns(step) > BACKLOG_NS]
    text = f"## What this machine carries\n\n{len(steps) - len(beyond)} of {len(steps)} steps came"
    text += " through without a loss, a duplicate, a reordering or a queue that grew.\n"
    if not beyond:
        return text
    text += "These were not carried; all roles share this machine's processors:\n\n"
    rows = [
        (
            report_loads.step_name(step),
            report_tables.milliseconds(median_ns(step) / 1e6),
            f"{100 * lost_share(step):.3f}",
            f"{sum(result.lost for result in step.results):,}",
            f"{sum(result.expected for result in step.results):,}",
            thresholds.busy(step) or "-",
        )
        for step in beyond
    ]
    head = ("Step", "P50 ms", "Lost %", "Lost", "Of", "Percent of a processor")
    return text + table(head, rows)


def _latencies(found: Measured) -> str:
    """Return Tables 4 to 7, each with its figures."""
    parts = ["## Latency\n"]
    if found.figures_note:
        parts.append(f"{found.figures_note}\n")
    shared = [figure for figure in found.figures if not figure.group]
    parts += [_figure(figure) for figure in shared]
    for group in report_tables.groups(found.run):
        rows = [
            [*report_tables.cells(report_tables.row_of(step)), f"{100 * lost_share(step):.3f}"]
            for step in group.steps
        ]
        parts.append(f"### {report_tables.title(group)}\n")
        parts.append(
            f"Here: {report_tables.MODES[group.mode]}. Paper: the broker alone, seven machines.\n"
        )
        parts.append(table([*report_tables.head(), "Lost % here"], rows))
        parts += [_figure(figure) for figure in found.figures if figure.group == group.slug]
    return "\n".join(parts) if len(parts) > 1 else ""


def _figure(figure: Figure) -> str:
    return f"![{figure.title}]({figure.path.name})\n\n*{figure.title}.* {figure.caption}\n"


def _loads(found: Measured) -> str:
    """Return bars, losses, bytes and loads."""
    parts = []
    for each in report_loads.tables(found.run):
        note = f"{each.note}\n\n" if each.note else ""
        parts.append(f"### {each.title}\n\n{note}{table(each.head, each.rows)}")
    wanted = f"{thresholds.DURATION_S_MIN:g} s"
    short = f"The bars ask for steps of {wanted}; the figures of a shorter one are less certain.\n"
    return "\n".join(["## Bars, bytes, loads\n", short, *parts]) if parts else ""


def _ceiling(found: Measured) -> str:
    """Compare ours with C: a row for each load and side, and the ratio below."""
    if found.ceiling is None:
        return ""
    roles = ("replayer", "gateway", "clients")
    rows = []
    for mbps, one in found.ceiling.items():
        for side, word in (("ours", "ours"), ("c", "C")):
            each = one[side]
            cells = [f"{each[f'{name}_ms']:.3f}" for name in ("p50", "p90", "p99")]
            spent = [f"{each[f'{role}_us']:.2f}" if f"{role}_us" in each else _DASH
                     for role in roles]  # fmt: skip
            rate = f"{each['packets_per_s']:,.0f}"
            lost = f"{each['lost_pct']:.3f}"
            rows.append([mbps, rate, str(one["clients"]), word, *cells, lost, *spent])
        ratio = one["ratio"]
        names = [*(f"{name}_ms" for name in ("p50", "p90", "p99")), "",
                 *(f"{role}_us" for role in roles)]  # fmt: skip
        cells = [f"{ratio[name]:.2f}" if name in ratio else _DASH for name in names]
        rows.append([mbps, _DASH, str(one["clients"]), "ours over C", *cells])
    head = (
        *("Mbps", "Packets/s", "Clients", "Side", "P50 ms", "P90 ms", "P99 ms", "Lost %"),
        *(f"{role.capitalize()} µs" for role in roles),
    )
    return (
        "## Beside C\n\nThe same packets from the same replayer through `bench/lab_ceiling.c`: a"
        " gateway that takes the first copy of\neach packet and writes it to TCP connections, and"
        " clients that read and time. µs: a role's processor time for\none delivery.\n\n"
        + table(head, rows)
    )


def _queue(found: Measured) -> str:
    """Return the persistent queue's tables."""
    if found.journal is None:
        return ""
    parts = [
        "## The persistent queue\n",
        "Messages a second. The paper's queue was set beside Sun ONE Message Queue 3.0.1, whose",
        "figures it does not print: its ratio stands in the first column. Ours are set beside"
        " RabbitMQ 4",
        "(a quorum queue with confirms beside `durable`, a durable classic queue beside `fast`) and"
        " SQLite",
        "(WAL, `synchronous=full`, a transaction for as many messages as a segment holds).\n",
    ]
    if found.peer:
        parts.append(f"No RabbitMQ beside it: {found.peer}.\n")
    sizes = found.journal["sizes"]
    for number, title, suffix, theirs in (
        (1, "accepted", "", QUEUE_ACCEPTED),
        (2, "delivered", "_delivered", QUEUE_DELIVERED),
    ):
        rows = [_queue_row(size, one, suffix, theirs) for size, one in sizes.items()]
        parts.append(f"### Table {number} of the queue's paper. Messages {title}\n")
        parts.append(table(_QUEUE_HEAD, rows))
    recovery = found.journal["recovery"]
    parts.append(
        f"Back after a crash with {recovery['messages']:,} pending messages of 1 KiB: "
        f"{recovery['pending_s']:.3f} s; where 99 % of\nthem had been delivered:"
        f" {recovery['delivered_s']:.3f} s. A cancel by id takes"
        f" {recovery['cancel_us']:.1f} µs before the disk.\n"
    )
    return "\n".join(parts)


_QUEUE_HEAD = (
    *("Bytes", "Paper, over Sun ONE", "Ours, durable", "RabbitMQ quorum", "Ours over it"),
    *("SQLite", "Ours over it", "Ours, fast", "RabbitMQ classic", "Ours over it"),
)


def _queue_row(
    size: int, one: dict[str, float], suffix: str, theirs: dict[int, float]
) -> list[str]:
    def rate(name: str) -> str:
        value = one.get(name + suffix)
        return "not here" if value is None else f"{value:,.0f}"

    def over(ours: str, peer: str) -> str:
        value = one.get(peer + suffix)
        return f"{one[ours + suffix] / value:.2f}" if value else _DASH

    return [
        *(f"{size:,}", f"{theirs[size]:.2f}" if size in theirs else _DASH, rate("durable")),
        *(rate("quorum"), over("durable", "quorum"), rate("sqlite"), over("durable", "sqlite")),
        *(rate("fast"), rate("classic"), over("fast", "classic")),
    ]


def fitting(figures: Sequence[Figure], bytes_max: int) -> tuple[list[Figure], list[Path]]:
    """Choose figures whose files are `bytes_max` together at most; return them and the rest: loads
    of topic exchanges first, which differ least from those of direct ones, then other loads, the
    largest first."""
    kept = list(figures)
    dropped: list[Path] = []

    def worth(figure: Figure) -> tuple[bool, bool, int]:
        over_time = figure.path.name.startswith(("figure-14", "figure-15", "figure-16"))
        topic = "-topic-" in figure.path.name
        return not over_time, not topic, -figure.path.stat().st_size

    while kept and sum(figure.path.stat().st_size for figure in kept) > bytes_max:
        least = min(kept, key=worth)
        kept.remove(least)
        dropped.append(least.path)
    return kept, dropped
