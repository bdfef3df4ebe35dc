"""Figures 14 to 16: network, processors and memory of each role over a step's measured part.

A row of panels for each role, a line for each number of clients; a column each for bytes out and
in, or for user and system time. Where the paper gives a role's load it is drawn in red. Samples are
averaged over stretches, so that lines stay lines.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from feedhandler.drawing import PAPER_COLOUR, WIDTH, clients_words, colours, titled
from feedhandler.lab.paper import paper
from feedhandler.lab.report_loads import MB, MIB, rates
from feedhandler.lab.report_tables import Group
from feedhandler.lab.results import Array, Loads

#: Points of a line at most.
POINTS_MAX = 40

_Quantity = Callable[[Loads], Array]

NETWORK: dict[str, _Quantity] = {
    "out, MB/s": lambda loads: rates(loads.t_s, loads.net_out_bytes) / MB,
    "in, MB/s": lambda loads: rates(loads.t_s, loads.net_in_bytes) / MB,
}
PROCESSOR: dict[str, _Quantity] = {
    "user, %": lambda loads: 100 * loads.user_cpu,
    "system, %": lambda loads: 100 * loads.system_cpu,
}
MEMORY: dict[str, _Quantity] = {"resident, MiB": lambda loads: loads.rss_bytes / MIB}


def thinned(t_s: Array, values: Array) -> tuple[Array, Array]:
    """Return means over stretches of equal numbers of samples, at most `POINTS_MAX` of them."""
    stretch = -(-len(t_s) // POINTS_MAX)
    if stretch <= 1:
        return t_s, values
    starts = np.arange(0, len(t_s), stretch)
    sizes = np.diff(np.append(starts, len(t_s)))
    return np.add.reduceat(t_s, starts) / sizes, np.add.reduceat(values, starts) / sizes


def over_time(group: Group, quantities: dict[str, _Quantity], pyplot: Any, title: str) -> Any:
    """Draw one figure: a row of panels for each role, a column for each quantity."""
    roles = list(dict.fromkeys(load.role for step in group.steps for load in step.loads))
    figure, panels = pyplot.subplots(
        len(roles),
        len(quantities),
        figsize=(WIDTH, 1.2 + 1.5 * len(roles)),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    titled(figure, title)
    for row, role in zip(panels, roles, strict=True):
        row[0].set_ylabel(role)
        for axes, (label, quantity) in zip(row, quantities.items(), strict=True):
            _panel(axes, group, role, quantity)
            _draw_paper(axes, group, role, label)
            axes.margins(y=0.08)
            axes.set_ylim(bottom=0)
    for axes, label in zip(panels[0], quantities, strict=True):
        axes.set_title(label)
    for axes in panels[-1]:
        axes.set_xlabel("s")
    figure.legend(*_legend(panels), loc="outside lower center", ncols=3)
    return figure


def _panel(axes: Any, group: Group, role: str, quantity: _Quantity) -> None:
    for step, colour in zip(group.steps, colours(len(group.steps)), strict=True):
        for loads in step.loads:
            if loads.role == role and len(loads.t_s):
                line = thinned(loads.t_s, quantity(loads))
                axes.plot(*line, color=colour, label=clients_words(step.clients))


def _draw_paper(axes: Any, group: Group, role: str, label: str) -> None:
    """Draw the paper's load of this role, where it has one of this quantity."""
    published = paper().loads[group.scenario]
    bands = {"user, %": published.broker_user_pct, "system, %": published.broker_system_pct}
    lines = {
        ("replayer", "out, MB/s"): published.replay_mb_s,
        ("gateway", "in, MB/s"): published.replay_mb_s,
        ("gateway", "out, MB/s"): published.gateway_publish_mb_s,
        ("broker", "in, MB/s"): published.gateway_publish_mb_s,
    }
    if group.broker == "embedded":
        # The node sends to every client; the paper's gateway sent to its broker.
        del lines["gateway", "out, MB/s"]
    if (role, label) in lines:
        axes.axhline(lines[role, label], color=PAPER_COLOUR, lw=1, ls="--", label="paper")
    elif role == "broker" and label in bands:
        axes.axhspan(*bands[label], color=PAPER_COLOUR, alpha=0.16, lw=0, label="paper")


def _legend(panels: Any) -> tuple[list[Any], list[str]]:
    """Return handles and labels of the legend: each label once, the paper's last."""
    found: dict[str, Any] = {}
    for axes in panels.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if "paper" in found:
        found["paper"] = found.pop("paper")
    return list(found.values()), list(found)
