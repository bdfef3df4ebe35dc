"""`feedhandler feeds check`: a description held against a capture."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from feedhandler.codecs import load_feed
from feedhandler.codecs.fit import Fit, Misfit, hex_dump
from feedhandler.codecs.layouts import Layout
from feedhandler.terminal.captures import ReadablePart, open_capture, report_reading
from feedhandler.terminal.console import ExitCode, complain, print_json, progress, stdout_console
from feedhandler.terminal.feed_guess import fitting_feed
from feedhandler.terminal.fitted import FittedTable

#: Kinds of misfits that are printed.
KINDS_SHOWN_MAX = 8
#: Packets that are tried with other feeds where most do not fit this one.
TRIED_MAX = 20
_NUMBER = re.compile(r"\b\d+\b")


def run(description: str, path: Path, limit: int, as_json: bool) -> int:
    """Check; `FOUND` where something does not fit, or the capture is cut short or damaged."""
    feed = load_feed(description)
    capture = open_capture(path)
    fit = Fit(feed)
    tried: list[bytes] = []
    with progress(f"reading {path.name}", total=1.0) as advance:
        read = ReadablePart(capture, advance)
        for number, datagram in enumerate(read):
            if limit and number == limit:
                break
            stream = (datagram.group, datagram.port, datagram.source)
            fit.examine(datagram.payload, datagram.time_ns, stream)
            if number < TRIED_MAX:
                tried.append(datagram.payload)
    report_reading(capture)
    flawed = read.complain_of_rest()
    if not fit.packets:
        complain(f"{path}: no packets", "datagrams of UDP, or segments that hold whole packets")
        return ExitCode.FOUND
    if as_json:
        print_json(_as_json(fit))
    else:
        _print(fit)
    other = fitting_feed(tried) if fit.fitting <= fit.packets // 2 else ""
    if other and other != feed.name:
        complain(f"{path}: most packets do not fit {feed.name}", f"they fit {other}")
    return ExitCode.FOUND if flawed or fit.counts else ExitCode.OK


def _print(fit: Fit) -> None:
    console = stdout_console()
    kinds = list(_kinds(fit))
    for kind, first, count in kinds[:KINDS_SHOWN_MAX]:
        console.print(f"{kind}: {count:,}, the first:", markup=False, style="bold")
        console.print(f"  {_printable(str(first))}", markup=False, soft_wrap=True)
        for line in hex_dump(first.payload, first.at):
            console.print(f"  {line}", markup=False)
        console.print()
    if len(kinds) > KINDS_SHOWN_MAX:
        console.print(f"and {len(kinds) - KINDS_SHOWN_MAX} other kinds of misfits (see --json)\n")
    if fit.types:
        console.print(_types(fit))
        console.print()
    for field, values in fit.unknown.items():
        counted = ", ".join(f"{value} ({count:,})" for value, count in values.most_common())
        text = f"values of {field} without a meaning: {_printable(counted)}"
        console.print(text, markup=False, soft_wrap=True)
    for what, unused in (
        ("messages that no packet had", map(_labelled, fit.unused())),
        ("control packets that never came", map(_labelled, fit.unused_controls())),
        ("groups and parts that no message had", fit.unused_parts()),
    ):
        if listed := ", ".join(unused):
            console.print(f"{what}: {listed}", markup=False, soft_wrap=True)
    text = f"{fit.fitting:,} of {fit.packets:,} packets fit {fit.feed.name}"
    console.print(text, markup=False, style="bold")
    for doubt in fit.doubts.found():
        console.print(_printable(str(doubt)), markup=False, soft_wrap=True)


def _labelled(layout: Layout) -> str:
    return f"{layout.label} {layout.name}"


def _printable(text: str) -> str:
    """Return text from the wire with dots for what a terminal would obey."""
    return "".join(each if each.isprintable() else "." for each in text)


def _types(fit: Fit) -> FittedTable:
    """Tabulate the message types that came, the most frequent first."""
    table = FittedTable(("type", "name"), ("messages", "bytes", "not read to their end"))
    for use in sorted(fit.types.values(), key=lambda each: -each.count):
        sizes = f"{use.least}" if use.least == use.greatest else f"{use.least} to {use.greatest}"
        table.add_row(
            str(use.label), use.name or "(unknown)", f"{use.count:,}", sizes,
            f"{use.beyond:,}" if use.beyond else "-",
        )  # fmt: skip
    return table


def _kinds(fit: Fit) -> Iterator[tuple[str, Misfit, int]]:
    """Yield each kind of misfit, the first and how many; kinds that differ by a number as one.

    A message that ends inside its third element does not differ from one that ends in its fourth.
    """
    counts: Counter[str] = Counter()
    firsts: dict[str, Misfit] = {}
    for misfit in fit.misfits:
        kind = _NUMBER.sub("N", misfit.kind).replace("_", " ")
        firsts.setdefault(kind, misfit)
        counts[kind] += fit.counts[misfit.kind]
    for kind, first in firsts.items():
        yield kind, first, counts[kind]


def _as_json(fit: Fit) -> dict[str, object]:
    return {
        "feed": fit.feed.name,
        "packets": fit.packets,
        "fitting": fit.fitting,
        "misfits": [
            {"kind": misfit.kind, "count": fit.counts[misfit.kind], **_details(misfit)}
            for misfit in fit.misfits
        ],
        "types": [
            {"type": use.label, "name": use.name, "count": use.count, "least_bytes": use.least,
             "greatest_bytes": use.greatest, "with_bytes_behind": use.beyond}
            for use in fit.types.values()
        ],
        "unknown_values": {field: dict(values) for field, values in fit.unknown.items()},
        "unused": [layout.name for layout in fit.unused()],
        "unused_controls": [layout.name for layout in fit.unused_controls()],
        "unused_parts": fit.unused_parts(),
        "doubts": [msgspec.to_builtins(doubt) for doubt in fit.doubts.found()],
    }  # fmt: skip


def _details(misfit: Misfit) -> dict[str, object]:
    return {
        "packet": misfit.packet, "message": misfit.message, "type": misfit.type, "at": misfit.at,
        "field": misfit.field, "found": misfit.found, "expected": misfit.expected,
        "bytes": misfit.payload.hex(),
    }  # fmt: skip
