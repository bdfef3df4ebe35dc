"""What the job found, as files: JSON, CSV, Parquet, PNG and one HTML page.

`write` makes all of them in one folder; a file that is there already is replaced at once, so that
who reads it meanwhile reads the old one or the new one. The page opens from disk: pictures inlined,
no script, no network; every text of the captures is escaped.
"""

import base64
import contextlib
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from feedhandler.characterise.figures import Figure, available, draw
from feedhandler.characterise.tables import Table
from feedhandler.codecs.errors import UsageError

#: Rows of a table that the page shows; all are in its CSV and Parquet file.
PAGE_ROWS = 60
#: Tables that are figures on the page, and files beside it.
LONG_TABLES = ("minutes", "minutes_by_service", "interarrival_distribution")

_STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --band: #f6f8fa; --mark: #b3424a; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.3rem 0 .6rem; border-bottom: 1px solid var(--line); }
.soft, figcaption { color: var(--soft); font-size: .88rem; }
.odd { margin: 1rem 0; padding: .7rem 1rem; background: #faf0f0;
       border-left: 4px solid var(--mark); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th.words, td.words { text-align: left; overflow-wrap: anywhere; }
thead th { background: var(--band); }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.cards div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem; }
.cards strong { display: block; font-size: 1.25rem; }
figure { margin: 1rem 0 1.75rem; }
figure img { max-width: 100%; height: auto; border: 1px solid var(--line); }
"""


def write(tables: Sequence[Table], about: Mapping[str, Any], out: Path) -> list[Path]:
    """Write everything to `out`, which is made where it is missing; `about` is what was asked, by
    name. Answers with the files. Raises `UsageError` where they cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        by_name = {table.name: table for table in tables}
        figures = draw(by_name)
        written = [_write_json(tables, about, out / "session.json")]
        for table in tables:
            written.append(_write_csv(table, out / f"{table.name}.csv"))
            written.append(_write_parquet(table, out / f"{table.name}.parquet"))
        for figure in figures:
            path = out / f"{figure.name}.png"
            with _replacing(path) as beside:
                beside.write_bytes(figure.png)
            written.append(path)
        page_path = out / "report.html"
        with _replacing(page_path) as beside:
            beside.write_text(page(tables, figures, about), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}", "check --out") from None
    return [*written, page_path]


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside, which then takes the place of `path`."""
    beside = path.with_name(f"{path.name}.new")
    yield beside
    beside.replace(path)


def _write_json(tables: Sequence[Table], about: Mapping[str, Any], path: Path) -> Path:
    whole = {
        "about": dict(about),
        "tables": {
            table.name: {
                "title": table.title,
                "note": table.note,
                "columns": table.columns,
                "rows": table.rows,
            }
            for table in tables
        },
    }
    with _replacing(path) as beside:
        beside.write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def _write_csv(table: Table, path: Path) -> Path:
    with _replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return path


def _write_parquet(table: Table, path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for place, name in enumerate(table.columns):
        values = [row[place] for row in table.rows]
        if any(isinstance(value, float) for value in values):
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values) if values else pa.nulls(0, pa.string())
    with _replacing(path) as beside:
        pq.write_table(pa.table(columns), beside)
    return path


def page(tables: Sequence[Table], figures: Sequence[Figure], about: Mapping[str, Any]) -> str:
    """The whole page."""
    named = {table.name: table for table in tables}
    told = " · ".join(f"{name} {value}" for name, value in about.items() if value)
    without = "" if available() else "<p class='soft'>No figures: matplotlib is not installed.</p>"
    parts = [
        f"<h1>Trading session</h1>\n<p class='soft'>{escape(told)}</p>",
        _odd_files(named["files"]),
        _cards(named),
        without,
        *(_figure(figure) for figure in figures),
        *(_section(table) for table in tables if table.name not in LONG_TABLES),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>Trading session</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _odd_files(files: Table) -> str:
    """The files with which something was wrong."""
    place = files.columns.index("problem")
    odd = [row for row in files.rows if row[place]]
    if not odd:
        return ""
    items = "".join(f"<li>{escape(str(row[0]))}: {escape(row[place])}</li>" for row in odd)
    return (
        f"<div class='odd'><strong>{len(odd)} of {len(files.rows)} files are odd</strong>; what "
        f"was read of them counts.<ul>{items}</ul></div>"
    )


def _cards(named: Mapping[str, Table]) -> str:
    """The figures that a reader looks for first."""
    figures = dict(named["figures"].rows)
    shown = {
        "packets": figures["packets"],
        "messages": figures["messages"],
        "bytes a packet (UDP payload)": figures["mean_packet_bytes_udp_payload"],
        "bytes a message": figures["mean_message_bytes"],
        "messages a packet": figures["mean_messages_per_packet"],
        "% received again": figures["received_again_pct"],
        "% refresh packets": figures["refresh_packets_pct"],
    }
    interarrival = named["interarrival"]
    if interarrival.rows:
        whole = dict(zip(interarrival.columns, interarrival.rows[0], strict=True))
        shown["% of repeats within 1 ms"] = whole["within_1_ms_pct"]
        shown["% of repeats within 10 ms"] = whole["within_10_ms_pct"]
    cards = "".join(
        f"<div><strong>{_text(value)}</strong>{escape(name)}</div>" for name, value in shown.items()
    )
    return f"<div class='cards'>{cards}</div>"


def _figure(figure: Figure) -> str:
    source = base64.b64encode(figure.png).decode("ascii")
    return (
        f"<figure><img alt='{escape(figure.title)}' src='data:image/png;base64,{source}'>"
        f"<figcaption>{escape(figure.title)}. {escape(figure.caption)}</figcaption></figure>"
    )


def _section(table: Table) -> str:
    if not table.rows:
        return ""
    words = [any(isinstance(row[place], str) for row in table.rows) for place in _places(table)]
    heads = _cells("th", [name.replace("_", " ") for name in table.columns], words)
    lines = "\n".join(
        f"<tr>{_cells('td', map(_text, row), words)}</tr>" for row in table.rows[:PAGE_ROWS]
    )
    hidden = len(table.rows) - PAGE_ROWS
    more = f" {hidden:,} more rows are in {table.name}.csv." if hidden > 0 else ""
    return (
        f"<section id='{table.name}'>\n<h2>{escape(table.title)}</h2>\n"
        f"<div class='scroll'><table><thead><tr>{heads}</tr></thead>\n"
        f"<tbody>{lines}</tbody></table></div>\n"
        f"<p class='soft'>{escape(table.note)}{more}</p>\n</section>"
    )


def _places(table: Table) -> range:
    return range(len(table.columns))


def _cells(tag: str, texts: Any, words: Sequence[bool]) -> str:
    return "".join(
        f"<{tag} class='words'>{escape(text)}</{tag}>" if word else f"<{tag}>{escape(text)}</{tag}>"
        for text, word in zip(texts, words, strict=True)
    )


def _text(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
