"""A run as one HTML page that opens from disk: pictures inlined, no network, no script.

What it is for: what a person reads first. Whether the run counts, which bars were met, the paper's
tables beside ours, the figures, loads and bytes, and all that is needed to repeat the run.

What it promises: every text of the run is escaped; the page refers to nothing outside itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from feedhandler.lab import report_loads, report_tables
from feedhandler.lab.paper import paper
from feedhandler.lab.report_figures import Figure
from feedhandler.lab.report_loads import Table
from feedhandler.lab.report_tables import HEADS, HERE, OURS, PAPER, SHARED, Group
from feedhandler.lab.results import Run
from feedhandler.page import (
    page_figure,
    page_section,
    page_table,
    scrolled,
    verdict_box,
    whole_page,
)

#: Findings of a failed run that are shown; the others are in the run's own file.
FINDINGS_MAX = 20


def page(run: Run, figures: Sequence[Figure], without_figures: str = "") -> str:
    """Return the whole page; `without_figures` says why there are none."""
    groups = report_tables.groups(run)
    parts = [
        f"<h1>Latency laboratory</h1>\n<p class='soft'>{escape(_subtitle(run))}</p>",
        _verdict(run),
        _contents(),
        page_section("bars", "Against the bars", _bars(run)),
        page_section("latency", "Latency", _latency(groups, figures, without_figures)),
        page_section("bandwidth", "Bandwidth and losses", _bytes(run, figures)),
        page_section("loads", "Loads of each role", _loads(groups, figures)),
        page_section("method", "How it was measured", _method(run)),
        page_section("setup", "The run", _setup(run)),
    ]
    body = "\n".join(part for part in parts if part)
    return whole_page(f"Latency laboratory, {run.started}", body)


def _subtitle(run: Run) -> str:
    brokers = sorted({step.broker for step in run.steps})
    processor = str(run.machine.get("processor", ""))
    words = [run.started, ", ".join(brokers), processor, run.versions.get("feedhandler", "")]
    return " · ".join(filter(None, words))


def _verdict(run: Run) -> str:
    """Return the verdict: whether the run counts, or its findings."""
    findings = run.findings
    if not findings:
        return verdict_box(
            True, "<strong>Complete.</strong> No client lost, doubled or reordered anything."
        )
    shown = "".join(f"<li>{escape(finding)}</li>" for finding in findings[:FINDINGS_MAX])
    more = len(findings) - FINDINGS_MAX
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    return verdict_box(False, f"<strong>Failed.</strong><ul>{shown}{rest}</ul>")


def _contents() -> str:
    names = ("bars", "latency", "bandwidth", "loads", "method", "setup")
    return "<nav>" + "".join(f"<a href='#{name}'>{name}</a>" for name in names) + "</nav>"


# -- tables -----------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: words left-aligned, the paper's columns marked."""
    classes = [
        _css_class(name, all(map(report_tables.is_figure, column)))
        for name, *column in zip(head, *rows, strict=True)
    ]
    return page_table(head, rows, classes)


def _css_class(name: str, is_figure: bool) -> str:
    """Return the CSS class of a column's cells."""
    return "paper" if name.endswith(PAPER) else "figure" if is_figure else "words"


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _latency_table(group: Group) -> str:
    """Return a latency table as in the paper, each quantity with the paper's column and ours."""
    shared = "".join(f"<th colspan='2'>{HEADS[each]}</th>" for each in SHARED)
    ours = "".join(f"<th>{HEADS[each]}</th>" for each in OURS)
    pairs = f"<th class='paper'>{PAPER}</th><th>{HERE}</th>" * len(SHARED)
    head = (
        f"<tr><th rowspan='2'>Clients</th>{shared}{ours}</tr>"
        f"<tr>{pairs}{f'<th>{HERE}</th>' * len(OURS)}</tr>"
    )
    lines = []
    for step in group.steps:
        cells = report_tables.cells(report_tables.row_of(step))
        tagged = [
            f"<td class='paper'>{cell}</td>"
            if index % 2 and index < 1 + 2 * len(SHARED)
            else f"<td>{cell}</td>"
            for index, cell in enumerate(cells)
        ]
        lines.append(f"<tr>{''.join(tagged)}</tr>")
    return scrolled(f"<thead>{head}</thead>\n<tbody>{_joined(lines)}</tbody>")


def _table_html(table: Table, titled: bool = True) -> str:
    """Return a table with its title and its note; an empty string where it has no rows."""
    if not table.rows:
        return ""
    title = f"<h3>{escape(table.title)}</h3>" if titled else ""
    note = f"<p class='soft'>{escape(table.note)}</p>" if table.note else ""
    return f"{title}\n{_table(table.head, table.rows)}\n{note}"


# -- sections ---------------------------------------------------------------------------------


def _figure(figure: Figure) -> str:
    return page_figure(figure.path.read_text("utf-8"), figure.title, figure.caption)


def _named(figures: Sequence[Figure], prefix: str) -> str:
    return _joined(_figure(figure) for figure in figures if figure.path.stem.startswith(prefix))


def _bars(run: Run) -> str:
    table = report_loads.bars_table(run)
    if not table.rows:
        return "<p>None of the steps is one that a bar is set for.</p>"
    return _table_html(table, titled=False)


def _latency(groups: Sequence[Group], figures: Sequence[Figure], without: str) -> str:
    parts = [f"<p>{escape(without)}</p>"] if without else []
    for scenario, number in (("packets", "08"), ("messages", "11")):
        of_scenario = [group for group in groups if group.scenario == scenario]
        if not of_scenario:
            continue
        parts.append(_named(figures, f"figure-{number}-"))
        for group in of_scenario:
            parts.append(f"<h3>{escape(report_tables.title(group))}</h3>")
            how = report_tables.MODES[group.mode]
            parts.append(f"<p class='soft'>Here: {escape(how)}. Paper: the broker alone.</p>")
            parts.append(_latency_table(group))
            parts.extend(
                _figure(figure)
                for figure in figures
                if figure.group == group.slug and figure.path.stem[7:9] in ("09", "10", "12", "13")
            )
    return _joined(parts)


def _bytes(run: Run, figures: Sequence[Figure]) -> str:
    parts = [_table_html(report_loads.bandwidth_table(run)), _named(figures, "bandwidth")]
    parts.append(_table_html(report_loads.loss_table(run)))
    parts.append(_table_html(report_loads.sweeps_table(run)))
    parts.append(_named(figures, "sweep"))
    return _joined(part for part in parts if part)


def _loads(groups: Sequence[Group], figures: Sequence[Figure]) -> str:
    parts = []
    for group in groups:
        parts.append(_table_html(report_loads.loads_table(group)))
        parts.extend(
            _figure(figure)
            for figure in figures
            if figure.group == group.slug and figure.path.stem[7:9] in ("14", "15", "16")
        )
    return _joined(part for part in parts if part)


def _method(run: Run) -> str:
    """Return the section that says what the figures are, in words."""
    modes = {step.mode for step in run.steps}
    setting = paper().setting
    parts = [
        f"<p>The paper replayed {setting.packets / 1e6:g} million packets at "
        f"{setting.rate_mbps:g} Mbps to a gateway, a broker and its clients, on seven machines; "
        "here every role is a process of one machine. Each client subscribes to everything: "
        "through a direct exchange by one binding a service, through a topic exchange by a "
        "pattern.</p>"
    ]
    if "direct" in modes:
        parts.append(
            "<p>Direct mode: the kernel stamps each datagram as the gateway receives it, the "
            "stamp travels with the message, and the client compares it with the time at which "
            "it has read the message; one clock, every delivery of every client. So gateway, "
            "broker and client are in it, where the paper's figures have the broker alone.</p>"
        )
    if "paper" in modes:
        parts.append(
            "<p>The paper's mode: for every packet with an odd sequence number (of messages: for "
            "every odd message of such a packet) the gateway sends a control datagram as it "
            "publishes, and one control client as it receives; the kernel stamps both as they "
            "reach one process. The difference is the broker alone.</p>"
        )
    parts.append(
        "<p class='soft'>Mean, minimum and maximum are exact; percentiles come from a histogram of "
        f"logarithmic buckets and are within 3 percent. Source of the paper's figures: "
        f"{escape(paper().source)}.</p>"
    )
    return _joined(parts)


def _setup(run: Run) -> str:
    parts = []
    tables: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("Machine", run.machine),
        ("Versions", run.versions),
        ("Seeds", run.seeds),
        ("Configuration", run.configuration),
    )
    for title, values in tables:
        if values:
            lines = (
                f"<tr><td>{escape(name)}</td><td class='text'>{escape(value)}</td></tr>"
                for name, value in flattened(values)
            )
            parts.append(f"<h3>{title}</h3>{scrolled(f'<tbody>{_joined(lines)}</tbody>')}")
    return _joined(parts)


def flattened(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a tree of values as pairs of dotted name and text, in its own order."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        name_in_full = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found.extend(flattened(value, f"{name_in_full}."))
        elif isinstance(value, list | tuple):
            found.append((name_in_full, ", ".join(str(each) for each in value)))
        else:
            found.append((name_in_full, str(value)))
    return found
