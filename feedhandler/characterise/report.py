"""The job's results as files: JSON, CSV, Parquet, SVG and one HTML page.

`write` makes all of them in one folder; a file that exists is replaced atomically, so that a
concurrent reader gets the old one or the new one. The page opens from disk: pictures inlined, no
script, no network; every text of the captures is escaped.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from feedhandler.characterise.figures import Figure, draw
from feedhandler.characterise.tables import Table, cell_text, heading_of
from feedhandler.codecs.errors import unwritable
from feedhandler.drawing import available
from feedhandler.page import page_figure, page_section, page_table, verdict_box, whole_page
from feedhandler.replacing import replacing
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES

#: Rows of a table that the page shows; all are in its CSV and Parquet file.
PAGE_ROWS = 60
#: The row of the table of gaps for numbers that came on no line.
ALL_LINES = "all lines"
#: Tables that are figures on the page, and files beside it.
LONG_TABLES = ("minutes", "minutes_by_service", "interarrival_distribution")


def write(tables: Sequence[Table], about: Mapping[str, Any], out: Path) -> list[Path]:
    """Write all files to `out`, which is made where it is missing; return their paths.

    `about` is what was asked, by name. Raises as `unwritable` says where they cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        by_name = {table.name: table for table in tables}
        figures = draw(by_name)
        written = [_write_json(tables, about, out / "session.json")]
        for table in tables:
            written.append(_write_csv(table, out / f"{table.name}.csv"))
            written.append(_write_parquet(table, out / f"{table.name}.parquet"))
        for figure in figures:
            path = out / f"{figure.name}.svg"
            with replacing(path) as beside:
                beside.write_text(figure.svg, encoding="utf-8")
            written.append(path)
        page_path = out / "report.html"
        with replacing(page_path) as beside:
            beside.write_text(page(tables, figures, about), encoding="utf-8")
    except OSError as error:
        raise unwritable(f"to {out}", error, "check --out") from None
    return [*written, page_path]


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
    with replacing(path) as beside:
        beside.write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def _write_csv(table: Table, path: Path) -> Path:
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return path


def _write_parquet(table: Table, path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for index, name in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        if any(isinstance(value, float) for value in values):
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array(values) if values else pa.nulls(0, pa.string())
    with replacing(path) as beside:
        pq.write_table(pa.table(columns), beside)
    return path


def page(tables: Sequence[Table], figures: Sequence[Figure], about: Mapping[str, Any]) -> str:
    """Make the whole HTML page."""
    named = {table.name: table for table in tables}
    subtitle = " · ".join(f"{name} {value}" for name, value in about.items() if value)
    without = "" if available() else "<p class='soft'>No figures: matplotlib is not installed.</p>"
    parts = [
        f"<h1>Trading session{escape(_day(named['minutes'], str(about.get('zone', ''))))}</h1>\n"
        f"<p class='soft'>{escape(subtitle)}</p>",
        _verdict(named),
        _odd_files(named["files"]),
        _cards(named),
        without,
        *(_figure(figure) for figure in figures),
        *(_section(table) for table in tables if table.name not in LONG_TABLES),
    ]
    body = "\n".join(part for part in parts if part)
    return whole_page("Trading session", body)


def _day(minutes: Table, zone: str) -> str:
    """Return the dates of what was counted, and for one date its minutes in the zone."""
    if not minutes.rows:
        return ""
    (first, _, begin), (last, _, end) = (
        str(minutes.rows[index][0]).partition(" ") for index in (0, -1)
    )
    words = f" of {first}, {begin} to {end}" if first == last else f", {first} to {last}"
    return f"{words} {zone}".rstrip()


def verdict(named: Mapping[str, Table]) -> tuple[bool, str]:
    """Judge whether the captures are whole, and say it in a sentence with losses and peak."""
    gaps, files = named["gaps"], named["files"]
    odd = [row for row in files.rows if row[files.columns.index("problem")]]
    rows = [dict(zip(gaps.columns, row, strict=True)) for row in gaps.rows]
    alone = {row["service"] for row in rows} - {
        row["service"] for row in rows if row["line"] == ALL_LINES
    }
    lost = [row for row in rows if row["line"] == ALL_LINES or row["service"] in alone]
    missing, numbers = (sum(row[name] for row in lost) for name in ("missing", "numbers"))
    lacking = [row for row in rows if row["missing"] and row["line"] != ALL_LINES]
    if not rows:
        words = "No numbers were counted"
    elif missing:
        words = f"Lost: {missing:,} numbers ({missing / (missing + numbers):.3%}) came on no line"
    elif lacking:
        worst = max(lacking, key=lambda row: row["missing"])
        who = "1 line lacks" if len(lacking) == 1 else f"{len(lacking)} lines lack"
        words = (
            f"Nothing lost: what {who} came on another; most on "
            f"{worst['service']}/{worst['line']} ({worst['missing']:,}, {worst['missing_pct']} %)"
        )
    else:
        words = "Whole: no line lacks a number"
    if odd:
        words += f"; {len(odd)} of {len(files.rows)} files are odd"
    peak = f"{peak_mbps(named):,.1f} Mbit/s in the busiest second"
    return bool(rows) and not missing and not odd, f"{words}; {peak}."


def peak_mbps(named: Mapping[str, Table]) -> float:
    """Return the most captured within one second, in Mbit/s of Ethernet frames.

    It is of all lines together; all rates are in these units.
    """
    seconds = named["byte_peaks"]
    columns = [seconds.columns.index(name) for name in ("file_bytes", "packets")]
    rows = [[row[index] for index in columns] for row in seconds.rows]
    most = max((on_file - RECORD_HEADER_BYTES * packets for on_file, packets in rows), default=0)
    return float(most) * 8 / 1e6


def _verdict(named: Mapping[str, Table]) -> str:
    good, words = verdict(named)
    return verdict_box(good, escape(words))


def _odd_files(files: Table) -> str:
    """List the files that had problems, as HTML."""
    index = files.columns.index("problem")
    odd = [row for row in files.rows if row[index]]
    if not odd:
        return ""
    items = "".join(f"<li>{escape(str(row[0]))}: {escape(row[index])}</li>" for row in odd)
    return (
        f"<div class='odd'><strong>{len(odd)} of {len(files.rows)} files are odd</strong>; what "
        f"was read of them counts.<ul>{items}</ul></div>"
    )


def _cards(named: Mapping[str, Table]) -> str:
    """Show the key figures as HTML cards."""
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
        f"<div><strong>{cell_text(name, value)}</strong>{escape(name)}</div>"
        for name, value in shown.items()
    )
    return f"<div class='cards'>{cards}</div>"


def _figure(figure: Figure) -> str:
    return page_figure(figure.svg, figure.title, f"{figure.title}. {figure.caption}")


def _section(table: Table) -> str:
    if not table.rows:
        return ""
    classes = [
        "words" if any(isinstance(row[index], str) for row in table.rows) else ""
        for index in range(len(table.columns))
    ]
    rows = (map(cell_text, table.columns, row) for row in table.rows[:PAGE_ROWS])
    hidden = len(table.rows) - PAGE_ROWS
    more = f" {hidden:,} more rows are in {table.name}.csv." if hidden > 0 else ""
    shown = page_table(map(heading_of, table.columns), rows, classes)
    note = f"<p class='soft'>{escape(table.note)}{more}</p>"
    return page_section(table.name, table.title, f"{shown}\n{note}")
