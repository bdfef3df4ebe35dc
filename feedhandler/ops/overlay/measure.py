"""`feedhandler overlay measure`: techniques side by side on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.fairness import HoldController
from feedhandler.overlay.holding import Delays, Held, hold_and_release
from feedhandler.overlay.io_uring import refusal
from feedhandler.overlay.measuring import Spikes, Technique, opened
from feedhandler.overlay.tree import Shape, default_shape
from feedhandler.terminal.console import ExitCode, complain, print_json, stdout_console
from feedhandler.terminal.fitted import FittedTable

#: Intervals of the deadlines' estimate in all messages.
INTERVALS = 10
_RING_REMEDY = "see the sysctl kernel.io_uring_disabled, and the seccomp profile of a container"


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a measurement.

    `hedging`: a tree for each; or `shapes`: one for each depth and fan-out, without hedging.
    """

    receivers: int
    hedging: Sequence[int]
    messages: int
    rate: float
    spikes: Spikes
    fair: float
    seed: int
    shapes: Sequence[tuple[int, int]] = ()


def measure(options: Options, as_json: bool) -> int:
    """Measure and print; `FOUND` where a receiver never got a message.

    Where io_uring is refused, a line reports it in place of its row. Raises `UsageError`.
    """
    if options.messages < 2 * INTERVALS:
        raise UsageError(f"{options.messages} messages", f"at least {2 * INTERVALS}")
    direct = Shape(options.receivers, 1, 1)
    techniques = [Technique("unicast", direct)]
    if reason := refusal():
        complain(f"unicast by io_uring is left out: {reason}", _RING_REMEDY)
    else:
        techniques.append(Technique("unicast, io_uring", direct, by_ring=True))
    techniques.append(Technique("CloudEx's way", direct, by_rule=True))
    if options.shapes:
        trees = [Shape(options.receivers, depth, fan_out) for depth, fan_out in options.shapes]
        techniques += [Technique(f"tree, {each.depth}x{each.fan_out}", each) for each in trees]
    else:
        trees = [default_shape(options.receivers, hedging) for hedging in options.hedging]
        techniques += [Technique(f"tree, H = {each.hedging}", each) for each in trees]
    with opened(techniques, options.messages, options.spikes, options.seed) as measurement:
        measurement.run(options.rate)
        found = measurement.delays()
        missing = [tree.missing for tree in measurement.trees]
    rows = [
        {**_figures(delays, lost, options.fair, technique.by_rule), **_shape(technique)}
        for delays, lost, technique in zip(found, missing, techniques, strict=True)
    ]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        _print(rows)
    return ExitCode.FOUND if any(missing) else ExitCode.OK


def _figures(found: Delays, missing: int, fair: float, by_rule: bool) -> dict[str, object]:
    """Return a technique's figures, us: as it is, with the rule's deadlines, with the controller's.

    `by_rule`: the figures "as it is" are those with the rule's deadlines.
    """
    interval = max(len(found.delays) // INTERVALS, 1)
    rule = hold_and_release(found, "rule", interval=interval)
    held = hold_and_release(found, "held", 0, HoldController(fair), interval)
    shown = rule if by_rule else found
    return {
        "technique": found.name,
        "missing": missing,
        "latency_p50_us": _at(shown.overall, 0.5),
        "latency_p99_us": _at(shown.overall, 0.99),
        "window_p50_us": _at(shown.windows, 0.5),
        "window_p99_us": _at(shown.windows, 0.99),
        **_deadlines("rule", rule),
        **_deadlines("held", held),
    }


def _shape(technique: Technique) -> dict[str, object]:
    """Return the fields of a technique that `overlay plan --measured` reads."""
    shape = technique.shape
    return {"receivers": shape.receivers, "depth": shape.depth, "fan_out": shape.fan_out,
            "hedging": shape.hedging, "deadlines": technique.by_rule}  # fmt: skip


def _deadlines(name: str, held: Held) -> dict[str, object]:
    return {
        f"{name}_fair": held.fair,
        f"{name}_latency_p50_us": _at(held.overall, 0.5),
        f"{name}_window_p99_us": _at(held.windows, 0.99),
        f"{name}_hold_us": float(held.held.mean()),
    }


def _at(values: numpy.ndarray, quantile: float) -> float:
    return float(numpy.quantile(values, quantile)) if len(values) else float("nan")


def _print(rows: Sequence[dict[str, object]]) -> None:
    names = {
        "latency_p50_us": "p50", "latency_p99_us": "p99", "window_p50_us": "window p50",
        "window_p99_us": "p99", "rule_fair": "rule: fair", "rule_latency_p50_us": "p50",
        "held_fair": "controlled: fair", "held_latency_p50_us": "p50", "held_hold_us": "hold",
        "missing": "missing",
    }  # fmt: skip
    table = FittedTable(["technique"], names.values())
    for row in rows:
        cells = []
        for name in names:
            value = row[name]
            if name.endswith("_fair"):
                cells.append(f"{float(str(value)):.1%}")
            else:
                cells.append(f"{float(str(value)):,.0f}")
        table.add_row(str(row["technique"]), *cells)
    console = stdout_console()
    console.print(table)
    console.print(
        "µs to the last receiver, all on one machine: a tree's hosts are not parallel here",
        style="dim",
    )
