"""A run on the terminal: a bar with step, rate, latency so far and time left; a line a step."""

import time
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from feedhandler.lab import bars
from feedhandler.lab.plan import StepPlan
from feedhandler.lab.results import Step, Sweep, Trial
from feedhandler.ops.console import stderr_console

#: Columns of a step's line, in milliseconds.
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class View:
    """Where a run is shown. The bar goes to stderr where that is a terminal; `quiet` leaves the
    steps' lines out."""

    def __init__(self, quiet: bool = False) -> None:
        console = stderr_console()
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, detail="")
        self._steps = 0
        self._done = 0
        self._headed = False
        self._began_s = 0.0

    def __enter__(self) -> "View":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def expect(self, steps: int) -> None:
        """So many steps are to come in all; 0 where nobody knows."""
        self._steps = steps

    def tell(self, what: str) -> None:
        """What is being done between steps."""
        self._bar.update(self._task, description=what, detail="")

    def begin(self, plan: StepPlan) -> None:
        """A step begins."""
        self._done += 1
        self._began_s = time.monotonic()
        of = f"{self._done}/{self._steps} " if self._steps else f"{self._done} "
        self._bar.reset(self._task, description=f"{of}{plan.title}", detail="")

    def show(self, share: float, clients: list[dict[str, Any]]) -> None:
        """How far the step is, and what the slowest client has seen."""
        detail = ""
        if clients:
            p50, p90 = (max(each[name] for each in clients) for name in ("p50_ns", "p90_ns"))
            detail = f"p50 {p50 / 1e6:.3f} p90 {p90 / 1e6:.3f} ms"
        self._bar.update(self._task, completed=share, detail=detail)

    def end(self, step: Step) -> None:
        """A step's line, its findings, its bars."""
        if self._quiet:
            return
        if not self._headed:
            self._headed = True
            titles = "".join(f" {name:>8}" for name in ("mean", "min", *_SHARES, "max"))
            print(f"{'scenario':<9} {'exchange':<8} {'clients':>7} {'Mbps':>6}{titles}  ms")
        latency = step.latency
        found = [latency.mean_ns, latency.min_ns, *latency.percentiles(*_SHARES.values())]
        figures = "".join(f" {value / 1e6:8.3f}" for value in (*found, latency.max_ns))
        reached = step.sent.rate_bps / 1e6
        print(
            f"{step.scenario:<9} {step.exchange:<8} {step.clients:>7} {reached:>6.1f}{figures}",
            flush=True,
        )
        for line in bars.lines(step):
            print(f"  {line}", flush=True)

    def tell_trial(self, trial: Trial) -> None:
        """What a sweep's trial means."""
        if not self._quiet:
            print(f"  {'kept' if trial.held else 'left: ' + trial.why}", flush=True)

    def tell_sweep(self, sweep: Sweep) -> None:
        """What a sweep found."""
        if not self._quiet:
            print(sweep_line(sweep), flush=True)


def sweep_line(sweep: Sweep) -> str:
    """A sweep's outcome in one line."""

    def shown(value: float | None) -> str:
        if value is None:
            return "none tried"
        return f"{value / 1e6:.1f} Mbps" if sweep.quantity == "rate" else f"{value:.0f} clients"

    where = f"{sweep.scenario} {sweep.exchange}, {sweep.bound}"
    return f"sweep {where}: kept at {shown(sweep.held)}, left at {shown(sweep.failed)}"
