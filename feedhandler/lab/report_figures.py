"""Figures 8 to 16 of the paper, drawn from a run, as SVG files.

What it is for: 8 and 11, latency by the number of clients; 9, 10, 12 and 13, the cumulative
distributions with their tails; 14 to 16, network, processors and memory of each role over time;
bytes on the wire by subscription grain; and sweeps.

What it promises: nothing but the run is read, nothing is shown on a screen (Agg), the same run
gives the same pictures. The paper's curves are not known, so its table rows are drawn as points.

matplotlib is an extra (`lab`): `drawing.available` returns whether it is installed.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from feedhandler.drawing import (
    DASHES,
    GREY,
    PAPER_COLOUR,
    SIZE,
    STYLE,
    TALL,
    WIDTH,
    clients_words,
    colours,
    logarithmic,
    svg_of,
    titled,
)
from feedhandler.lab.paper import paper
from feedhandler.lab.report_loads import MB, step_name
from feedhandler.lab.report_over_time import MEMORY, NETWORK, PROCESSOR, over_time
from feedhandler.lab.report_tables import Group, groups, row_of
from feedhandler.lab.results import Run, Sweep

#: A distribution's tail is drawn down to this share.
TAIL_SHARE = 1e-6


class Figure(Struct, frozen=True):
    """One SVG file, with its title and a caption for the reader."""

    path: Path
    title: str
    caption: str
    group: str = ""


def draw(run: Run, folder: Path) -> list[Figure]:
    """Draw all figures of a run into `folder`, which exists. Raises OSError."""
    import matplotlib

    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figures: list[Figure] = []
    with pyplot.rc_context(STYLE):
        for name, title, caption, group, make in _plans(run):
            figure = make(pyplot, title)
            path = folder / f"{name}.svg"
            # No time and no version in the file: the same run, the same bytes.
            path.write_text(svg_of(figure), encoding="utf-8")
            pyplot.close(figure)
            figures.append(Figure(path, title, caption, group))
    return figures


_Plan = tuple[str, str, str, str, Callable[[Any, str], Any]]


def _plans(run: Run) -> Iterator[_Plan]:
    """Yield name, title, caption, group and painter of each figure, in the paper's order."""
    made = groups(run)
    for scenario, number in (("packets", 8), ("messages", 11)):
        of_scenario = [each for each in made if each.scenario == scenario and _measured(each)]
        if of_scenario:
            yield _latency_plan(of_scenario, scenario, number)
        yield from (_distribution_plan(each) for each in of_scenario)
    for group in made:
        if any(len(loads.t_s) for step in group.steps for loads in step.loads):
            yield from _loads_plans(group)
    with_traffic = [group for group in made if group.steps[-1].traffic]
    if with_traffic:
        yield (
            "bandwidth",
            "What a client's subscription takes on the wire",
            "The protocol's own bytes included. The mark is the paper's client.",
            "",
            partial(_bandwidth, with_traffic),
        )
    for index, sweep in enumerate(run.sweeps):
        if sweep.trials:
            yield (
                f"sweep-{index + 1}",
                f"Sweep of the {_swept(sweep.quantity)}: {sweep.scenario}, {sweep.exchange}",
                f"Each trial; filled: kept {sweep.bound} without a loss, hollow: did not.",
                "",
                partial(_sweep, sweep),
            )


def _measured(group: Group) -> bool:
    return any(step.latency.count for step in group.steps)


def _swept(quantity: str) -> str:
    return {"rate": "rate", "clients": "number of clients"}[quantity]


# -- latency ----------------------------------------------------------------------------------


def _latency_plan(made: list[Group], scenario: str, number: int) -> _Plan:
    return (
        f"figure-{number:02}-{scenario}-latencies",
        f"Figure {number}. {scenario.capitalize()}: latency by the number of clients",
        "Lines: this run. Points in red: the paper's tables, the broker alone.",
        "",
        partial(_latencies, made),
    )


def _latencies(made: list[Group], pyplot: Any, title: str) -> Any:
    """Draw percentiles by the number of clients, a panel for each group."""
    size = (WIDTH, 1.1 + 2.6 * len(made))
    figure, panels = pyplot.subplots(
        len(made), 1, figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    titled(figure, title)
    for axes, group in zip(panels.flat, made, strict=False):
        _percentiles(axes, group)
    for row in panels:
        row[0].set_ylabel("latency, ms")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _percentiles(axes: Any, group: Group) -> None:
    """Draw our percentiles as lines, the paper's as points."""
    shown = (("p50", "o", "-"), ("p90", "s", "--"), ("p99", "^", "-."), ("p999", "v", ":"))
    rows = [row_of(step) for step in group.steps if step.latency.count]
    clients = [row.clients for row in rows]
    for (name, marker, dash), colour in zip(shown, colours(len(shown)), strict=True):
        values = [getattr(row, name) for row in rows]
        label = "p99.9" if name == "p999" else name
        axes.plot(clients, values, dash, marker=marker, color=colour, label=label, markersize=5)
    for name, marker in (("p50", "o"), ("p90", "s")):
        theirs = [(row.clients, getattr(row, name)) for row in group.table.rows]
        look = {"color": PAPER_COLOUR, "fillstyle": "none", "markersize": 6}
        axes.plot(*zip(*theirs, strict=True), marker, label=f"{name}, paper", **look)
    how = "" if group.mode == "direct" else ", paper's mode"
    axes.set(title=f"{group.exchange} exchange, {group.setting}{how}", xlabel="clients")
    axes.set_yscale("log")
    logarithmic(axes.yaxis, fine=True)
    axes.set_xticks(sorted({*clients, *(row.clients for row in group.table.rows)}))


_DISTRIBUTIONS = {4: 9, 5: 10, 6: 12, 7: 13}


def _distribution_plan(group: Group) -> _Plan:
    number = _DISTRIBUTIONS[group.number]
    return (
        f"figure-{number:02}-{group.slug}",
        f"Figure {number}. {group.name}: cumulative distribution ({group.setting})",
        "Above: the share of deliveries at or below each latency. Below: the share above it, the "
        "tail. The diamonds are the medians and 90th percentiles of the paper's table.",
        group.slug,
        partial(_distribution, group),
    )


def _distribution(group: Group, pyplot: Any, title: str) -> Any:
    """Draw the cumulative distribution and the tail of each number of clients."""
    figure, (body, tail) = pyplot.subplots(2, 1, figsize=TALL, layout="constrained")
    titled(figure, title)
    steps = [step for step in group.steps if step.latency.count]
    for index, (step, colour) in enumerate(zip(steps, colours(len(steps)), strict=True)):
        bounds, shares = step.latency.cumulative()
        bounds = bounds.clip(max=step.latency.max_ns) / 1e6
        look = {"color": colour, "ls": DASHES[index % len(DASHES)]}
        label = clients_words(step.clients)
        body.step(bounds, 100 * shares, where="post", label=label, **look)
        above = 1 - shares
        seen = above > TAIL_SHARE / 10
        tail.step(bounds[seen], above[seen], where="post", **look)
        row = group.table.row(step.clients)
        if row is not None:
            style = {"color": colour, "fillstyle": "none", "markersize": 6, "ls": "", "marker": "D"}
            body.plot([row.p50, row.p90], [50, 90], **style)
            tail.plot([row.p50, row.p90], [0.5, 0.1], **style)
    body.plot([], [], "D", color=GREY, fillstyle="none", markersize=6, label="paper: p50, p90")
    body.set(xscale="log", xlabel="latency, ms", ylabel="deliveries, %", ylim=(0, 101))
    tail.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="share of deliveries above")
    few = max((step.latency.count for step in steps), default=1)
    tail.set_ylim(bottom=max(TAIL_SHARE, 0.5 / few), top=1.3)
    for axes in (body, tail):
        logarithmic(axes.xaxis)
    figure.legend(*body.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# -- loads ------------------------------------------------------------------------------------


def _loads_plans(group: Group) -> Iterator[_Plan]:
    slug, name = group.slug, f"{group.name} ({group.setting})"
    published = paper().loads[group.scenario]
    cores = paper().setting.broker_processors
    yield (
        f"figure-14-{slug}",
        f"Figure 14. Network: {name}",
        "Bytes a second through each role's sockets. In red the paper's: replayer "
        f"{published.replay_mb_s:g}, gateway {published.gateway_publish_mb_s:g} MB/s; one of its "
        f"clients took {published.client_mb_s:g} MB/s, here all clients' are together.",
        slug,
        partial(over_time, group, NETWORK),
    )
    yield (
        f"figure-15-{slug}",
        f"Figure 15. Processors: {name}",
        "Share of one processor, all processes of a role together. In red, where there is a "
        f"broker, the paper's broker: percent of all {cores} processors of its machine.",
        slug,
        partial(over_time, group, PROCESSOR),
    )
    yield (
        f"figure-16-{slug}",
        f"Figure 16. Memory: {name}",
        "Resident memory of each role, all its processes together; the paper prints no figures.",
        slug,
        partial(over_time, group, MEMORY),
    )


# -- bytes and sweeps -------------------------------------------------------------------------


def _bandwidth(made: list[Group], pyplot: Any, title: str) -> Any:
    """Draw what one client takes as bars, with the paper's mark."""
    rows = []
    for group in made:
        step = group.steps[-1]
        for each in step.traffic:
            if each.where == "client" and step.sent.duration_ns:
                taken = each.bytes_in / step.clients / (step.sent.duration_ns / 1e9) / MB
                rows.append((step, taken))
    size = (WIDTH, 1.5 + 0.34 * max(1, len(rows)))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    titled(figure, title)
    shades = dict(zip(("packets", "messages"), colours(3), strict=False))
    for index, (step, value) in enumerate(rows):
        axes.barh(index, value, color=shades[step.scenario], height=0.6)
        axes.text(0, index, f"  {value:.2f}", va="center", fontsize=8, color="white")
        theirs = paper().loads[step.scenario].client_mb_s
        label = "" if index else "paper"
        look = {"color": PAPER_COLOUR, "fillstyle": "none", "markersize": 6, "label": label}
        axes.plot([theirs], [index], "D", **look)
    axes.set_yticks(range(len(rows)), [step_name(step) for step, _ in rows])
    axes.set(xlabel="MB/s that one client takes", xlim=(0, None))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _sweep(sweep: Sweep, pyplot: Any, title: str) -> Any:
    """Draw a sweep's trials, its bound, and the highest value that kept it."""
    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    titled(figure, title)
    scale = 1e6 if sweep.quantity == "rate" else 1
    for held, style, label in ((True, "full", "kept"), (False, "none", "left")):
        trials = [trial for trial in sweep.trials if trial.held == held]
        values = [trial.value / scale for trial in trials]
        found = [trial.found_ns / 1e6 for trial in trials]
        axes.plot(values, found, "o", color=colours(2)[0], fillstyle=style, label=label)
    bound_ms = bound_in_ms(sweep.bound)
    if bound_ms is not None:
        axes.axhline(bound_ms, color=PAPER_COLOUR, lw=1, label="bound")
    if sweep.held is not None:
        axes.axvline(sweep.held / scale, color=GREY, lw=0.8, ls="--", label="highest that kept it")
    unit = "rate, Mbps" if sweep.quantity == "rate" else "clients"
    axes.set(yscale="log", xlabel=unit, ylabel=f"{sweep.bound.partition('=')[0]}, ms")
    logarithmic(axes.yaxis, fine=True)
    axes.legend()
    return figure


def bound_in_ms(bound: str) -> float | None:
    """Return the milliseconds of a bound such as `p90=1ms`; None where the text is no bound."""
    text = bound.partition("=")[2]
    for unit, factor in (("ms", 1.0), ("us", 1e-3), ("ns", 1e-6), ("s", 1e3)):
        if text.endswith(unit):
            try:
                return float(text.removesuffix(unit)) * factor
            except ValueError:
                return None
    return None
