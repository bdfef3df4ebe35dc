"""`make lab-report`: measure the papers' tables on this machine, and write the page of them.

python -m bench.lab_report [--out docs/measured] [--seconds 15] [--only PART ...]

The parts: the source paper's Tables 4 to 7 and Figures 8 to 16 (`tables`), the loads of the bars
beyond the paper's (`bars`), both through a gateway and clients in C (`ceiling`), and the persistent
queue beside RabbitMQ and SQLite (`queue`). With the default duration all of it takes some fifteen
minutes, on a machine that has nothing else to do. A step that fails is named on the page, and the
others go on. Exit code 0 where everything was measured, 1 where something failed; a load that is
not carried is a result.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import bench_journal, bench_lab_ceiling
from bench.lab_report_page import Measured, fitting, page
from feedhandler import drawing
from feedhandler.lab import machine, report, report_figures, report_tables, thresholds
from feedhandler.lab.laboratory import Laboratory
from feedhandler.lab.plan import EXCHANGES, Plan, StepPlan
from feedhandler.lab.results import Run, Step
from feedhandler.lab.view import View

OUT = Path("docs/measured")
PAGE, TABLES = "README.md", "tables.csv"
SECONDS, WARM_UP_S = 15.0, 2.0
#: Client counts of the paper's tables.
CLIENTS = {"packets": (1, 2, 4, 6, 8, 10), "messages": (1, 2, 3, 4, 5)}
PAPER_BPS = 40e6
#: Messages that RabbitMQ gets of each size, and ours as bytes: a third of the bench's own.
BROKER_MESSAGES, QUEUE_BYTES, QUEUE_PENDING = 10_000, 32 << 20, 1_000_000
#: All figures together: the page is committed, and is to stay below a megabyte.
FIGURES_BYTES_MAX = 900_000
#: Files of a page that was there before.
FIGURES = ("figure-*.svg", "bandwidth.svg")
PARTS = ("tables", "bars", "ceiling", "queue")


def paper_steps(plan: Plan) -> list[StepPlan]:
    """Return the steps of the paper's Tables 4 to 7."""
    return [
        plan.step(scenario, exchange, clients, PAPER_BPS)
        for scenario, counts in CLIENTS.items()
        for exchange in EXCHANGES
        for clients in counts
    ]


def bar_steps(plan: Plan) -> list[StepPlan]:
    """Return the loads of the bars that are beyond the paper's."""
    return [
        plan.step(bar.scenario, "topic", bar.clients, bar.rate_bps)
        for bar in thresholds.THRESHOLDS
        if bar.rate_bps != PAPER_BPS
    ]


def measure_steps(
    steps: Sequence[StepPlan],
    failed: list[tuple[str, str]],
    open_laboratory: Callable[[], Laboratory],
) -> list[Step]:
    """Measure all of them; after one that fails the others go on in a new laboratory. What failed
    is appended to `failed`."""
    found: list[Step] = []
    waiting = list(steps)
    while waiting:
        doing = "opening the laboratory"
        made = open_laboratory()

        async def measure(laboratory: Laboratory = made) -> None:
            nonlocal doing
            async with laboratory:
                while waiting:
                    step = waiting.pop(0)
                    doing = step.title
                    await laboratory.measure(step)
                doing = "closing the laboratory"

        before = len(waiting)
        try:
            asyncio.run(measure())
        except Exception as error:  # whatever it is: the other steps go on, the page shows it
            failed.append((doing, message_of(error)))
            if len(waiting) == before:
                failed += [(step.title, "not tried") for step in waiting]
                waiting.clear()
        found += made.run.steps
    return found


def message_of(error: BaseException) -> str:
    """Format an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def measure(
    parts: Sequence[str] = PARTS,
    seconds: float = SECONDS,
    messages: int = 0,
    queue_bytes: int = QUEUE_BYTES,
    pending: int = QUEUE_PENDING,
) -> Measured:
    """Measure all parts in turn. `messages` of the generated session, 0: all of the replayer's."""
    with tempfile.TemporaryDirectory(prefix="lab-report-") as folder:
        plan = Plan(
            out=Path(folder),
            clients=(max(map(max, CLIENTS.values())),),
            duration_s=seconds,
            warm_up_s=min(WARM_UP_S, seconds),
            generate_messages=messages,
        )
        first = Laboratory(plan, View(quiet=True)).run
        found = Measured(Run(started=first.started, machine=machine.machine()))
        found.run.versions = machine.versions()
        steps = paper_steps(plan) if "tables" in parts else []
        steps += bar_steps(plan) if "bars" in parts else []
        if steps:
            with View() as view:
                view.expect(len(steps))
                found.run.steps = measure_steps(steps, found.failed, lambda: Laboratory(plan, view))
    if "ceiling" in parts:
        found.ceiling = _try(found, "the ceiling in C", lambda: ceiling(seconds, messages))
    if "queue" in parts:
        found.journal = _try(
            found, "the persistent queue", lambda: queue(found, queue_bytes, pending)
        )
    return found


def _try(found: Measured, what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the work's result, or None and why."""
    print(f"{what}:", flush=True)
    try:
        return work()
    except Exception as error:  # as of a step
        found.failed.append((what, message_of(error)))
        return None


def ceiling(seconds: float, messages: int) -> dict[str, Any]:
    """Run one turn of each side."""
    found = bench_lab_ceiling.compare(seconds=seconds, rounds=1, messages=messages)
    bench_lab_ceiling.report(found)
    return found


def queue(found: Measured, total: int, pending: int) -> dict[str, Any]:
    """Measure the persistent queue, beside RabbitMQ where it is installed and answers."""
    peers: dict[int, dict[str, float]] = {}
    try:
        peers = bench_journal.rabbitmq(BROKER_MESSAGES, total)
    except Exception as error:  # not there, or it failed: ours are measured all the same
        found.peer = message_of(error)
    figures = bench_journal.measure(peers, total, 1, pending)
    figures["recovery"]["messages"] = pending
    return figures


def write(found: Measured, out: Path) -> Path:
    """Write page, figures and the latencies as CSV into `out`; what figures there were before is
    replaced. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in FIGURES:
        for old in out.glob(pattern):
            old.unlink()
    paper_run = Run(steps=[step for step in found.run.steps if step.rate_bps == PAPER_BPS])
    if not drawing.available():
        found.figures_note = report.NO_FIGURES
    elif paper_run.steps:
        drawn = report_figures.draw(paper_run, out)
        found.figures, dropped = fitting(drawn, FIGURES_BYTES_MAX)
        for path in dropped:
            path.unlink()
        if dropped:
            found.figures_note = f"Left out for their size: {', '.join(p.stem for p in dropped)}."
    (out / TABLES).write_text(report_tables.as_csv(found.run))
    path = out / PAGE
    path.write_text(page(found), encoding="utf-8")
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Measure and write; 1 where something could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lab_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"the page's folder ({OUT})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each step (15)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    arguments = parser.parse_args(words)
    found = measure(arguments.only, arguments.seconds)
    print(f"written: {write(found, arguments.out)}")
    for what, why in found.failed:
        print(f"not measured: {what}: {why}")
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
