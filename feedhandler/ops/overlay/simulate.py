"""`feedhandler overlay simulate`: the source's tables and figures, simulated."""

from collections.abc import Sequence
from pathlib import Path

from feedhandler.codecs.errors import UsageError, unwritable
from feedhandler.overlay import report
from feedhandler.overlay.experiment import Experiment
from feedhandler.overlay.simulation.experiments import Setting, experiments, run
from feedhandler.overlay.tree import default_shape
from feedhandler.terminal.console import ExitCode, print_json, stdout_console
from feedhandler.terminal.fitted import FittedTable

#: Suffixes of a report's file, which choose its form.
FORMS = (".html", ".md")


def simulate(
    setting: Setting, names: Sequence[str], report_path: Path | None, as_json: bool
) -> int:
    """Run experiments, print each as it is done, and write the report."""
    known = experiments(setting)
    for name in names:
        if name not in known:
            raise UsageError(f"no experiment {name}", f"there are {', '.join(known)}")
    check_report(report_path)
    default_shape(setting.receivers, setting.hedging)  # complains before the work begins
    found = []
    for experiment in run(setting, tuple(names)):
        found.append(experiment)
        if as_json:
            print_json(
                {"name": experiment.name, "title": experiment.title, "columns": experiment.head,
                 "rows": experiment.rows, "note": experiment.note}
            )  # fmt: skip
        else:
            print_experiment(experiment)
    if report_path is not None:
        about = (
            f"{setting.receivers:,} receivers, {setting.messages:,} messages, seed {setting.seed};"
            " the model's constants were fitted to the source's Tables 1, 3 and 4"
        )
        write_report(found, "Overlay multicast, simulated", about, report_path)
    return ExitCode.OK


def check_report(path: Path | None) -> None:
    """Raise `UsageError` for a name that `write_report` will not take, before the work begins."""
    if path is not None and path.suffix not in FORMS:
        raise UsageError(f"{path}: a report is a page", f"end its name in {FORMS[0]}")


def print_experiment(experiment: Experiment) -> None:
    """Print an experiment's table, with its note."""
    console = stdout_console()
    table = FittedTable(experiment.head[:1], experiment.head[1:])
    table.title, table.title_justify = f"{experiment.name}: {experiment.title}", "left"
    for row in experiment.rows:
        table.add_row(*row)
    console.print(table)
    if experiment.note:
        console.print(experiment.note, style="dim")
    console.print()


def write_report(found: Sequence[Experiment], title: str, about: str, path: Path) -> None:
    """Write experiments as a page, or as tables in Markdown, by the suffix of `path`.

    Raises `UsageError`, `HostFault`.
    """
    html = path.suffix == ".html"
    text = report.page(found, title, about) if html else report.markdown(found)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None
