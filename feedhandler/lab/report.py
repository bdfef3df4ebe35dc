"""The report of a run: tables, figures and one page, made from the results alone.

What it is for: `write` puts everything into a folder; an old run is reported on again with
`read_run` and `write`, after years and on another machine.

    tables.txt, tables.csv, tables.json   the paper's Tables 4 to 7, the paper's figures beside ours
    loads.txt                             bars, losses, bytes, loads and sweeps as text
    figure-08-... .svg                    the paper's figures 8 to 16
    report.html                           all of it on one self-contained page

What it leaves to others: measuring (`results` defines what is read).
"""

import textwrap
from pathlib import Path

from feedhandler import drawing
from feedhandler.lab import report_figures, report_html, report_loads, report_tables
from feedhandler.lab.results import Run

#: Width of a note below a table's title.
NOTE_CHARS = 100
#: The page's note where matplotlib is missing.
NO_FIGURES = "There are no figures: matplotlib is missing (in the checkout: pip install '.[lab]')."


def write(run: Run, out: Path) -> list[Path]:
    """Write the report of `run` into `out`, which is made; return the files written, the page last.

    Raises OSError where a file cannot be written. Without matplotlib all but the figures is
    written, and the page says so.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "tables.txt": report_tables.text(run).encode(),
        "tables.csv": report_tables.as_csv(run).encode(),
        "tables.json": report_tables.as_json(run),
        "loads.txt": loads_text(run).encode(),
    }
    found = []
    for name, content in texts.items():
        path = out / name
        path.write_bytes(content)
        found.append(path)
    drawn = drawing.available()
    figures = report_figures.draw(run, out) if drawn else []
    page = out / "report.html"
    page.write_text(report_html.page(run, figures, "" if drawn else NO_FIGURES), encoding="utf-8")
    return [*found, *(figure.path for figure in figures), page]


def loads_text(run: Run) -> str:
    """Return the tables beside the latencies as text."""
    parts = []
    for table in report_loads.tables(run):
        note = "".join(f"{line}\n" for line in textwrap.wrap(table.note, NOTE_CHARS))
        shown = report_tables.aligned(table.head, table.rows)
        parts.append(f"{table.title}\n{note}\n{shown}")
    return "\n".join(parts)
