"""A run on the terminal: a bar with step, rate, latency so far and time left; a line a step."""

from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from feedhandler.lab import thresholds
from feedhandler.lab.plan import StepPlan
from feedhandler.lab.results import Step, Sweep, Trial
from feedhandler.terminal.console import stderr_console, stdout_console
from feedhandler.terminal.fitted import kept

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
#: Columns of a step's line: width, and rank: the highest is dropped first on a narrow terminal.
_COLUMNS = {
    "scenario": (9, 1),
    "exchange": (8, 2),
    "clients": (7, 0),
    "Mbps": (6, 4),
    "mean ms": (8, 5),
    "min ms": (8, 7),
    "p50 ms": (8, 0),
    "p90 ms": (8, 2),
    "p99 ms": (8, 1),
    "p99.9 ms": (8, 6),
    "max ms": (8, 3),
}
#: How many of them are words.
_WORDS = 2


class View:
    """The display of a run.

    The bar goes to stderr where that is a terminal; `quiet` leaves the steps' lines out.
    """

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
        self._kept: list[int] = []

    def __enter__(self) -> "View":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def expect(self, steps: int) -> None:
        """Set how many steps are to come in all; 0 where that is not known."""
        self._steps = steps

    def report(self, what: str) -> None:
        """Show what is being done between steps."""
        self._bar.update(self._task, description=what, detail="")

    def begin(self, plan: StepPlan) -> None:
        """Show that a step begins."""
        self._done += 1
        of = f"{self._done}/{self._steps} " if self._steps else f"{self._done} "
        self._bar.reset(self._task, description=f"{of}{plan.title}", detail="")

    def show(self, share: float, clients: list[dict[str, Any]]) -> None:
        """Show the step's progress, and the worst latencies of any client."""
        detail = ""
        if clients:
            p50, p90 = (max(client[name] for client in clients) for name in ("p50_ns", "p90_ns"))
            detail = f"p50 {p50 / 1e6:.3f} p90 {p90 / 1e6:.3f} ms"
        self._bar.update(self._task, completed=share, detail=detail)

    def end(self, step: Step) -> None:
        """Print a step's line and its bars."""
        if self._quiet:
            return
        if not self._headed:
            self._headed = True
            widths, ranks = zip(*_COLUMNS.values(), strict=True)
            self._kept = kept(ranks, widths, stdout_console().width)
            print(self._line(*_COLUMNS))
            if gone := [name for at, name in enumerate(_COLUMNS) if at not in self._kept]:
                print(f"(no room for {', '.join(gone)})")
        latency = step.latency
        found = [latency.mean_ns, latency.min_ns, *latency.percentiles(*_SHARES.values())]
        figures = (f"{value / 1e6:.3f}" for value in (*found, latency.max_ns))
        load = (f"{step.clients}", f"{step.sent.rate_bps / 1e6:.1f}")
        print(self._line(step.scenario, step.exchange, *load, *figures), flush=True)
        for line in thresholds.lines(step):
            print(f"  {line}", flush=True)

    def _line(self, *cells: str) -> str:
        """Lay out the cells of the columns that fit, aligned in all lines."""
        widths = [width for width, _ in _COLUMNS.values()]
        return " ".join(
            f"{cells[at]:<{widths[at]}}" if at < _WORDS else f"{cells[at]:>{widths[at]}}"
            for at in self._kept
        )

    def report_trial(self, trial: Trial) -> None:
        """Print whether a sweep's trial kept the bound, or why not."""
        if not self._quiet:
            print(f"  {'kept' if trial.held else 'left: ' + trial.why}", flush=True)

    def report_sweep(self, sweep: Sweep) -> None:
        """Print a sweep's outcome."""
        if not self._quiet:
            print(sweep_line(sweep), flush=True)


def sweep_line(sweep: Sweep) -> str:
    """Return a sweep's outcome in one line."""

    def shown(value: float | None) -> str:
        if value is None:
            return "none tried"
        return f"{value / 1e6:.1f} Mbps" if sweep.quantity == "rate" else f"{value:.0f} clients"

    where = f"{sweep.scenario} {sweep.exchange}, {sweep.bound}"
    return f"sweep {where}: kept at {shown(sweep.held)}, left at {shown(sweep.failed)}"
