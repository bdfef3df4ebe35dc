"""`feedhandler feeds check`: a description held against a capture."""

from pathlib import Path

from feedhandler.codecs.fit import Fit, Misfit, hex_dump
from feedhandler.ops.captures import complain_if_cut, open_capture, tell_reading
from feedhandler.ops.console import ExitCode, complain, print_json, progress, stdout_console
from feedhandler.ops.feeds import open_feed
from feedhandler.ops.fitted import FittedTable

#: Packets between two updates of the progress bar.
PROGRESS_PACKETS = 2_000


def run(description: str, path: Path, limit: int, as_json: bool) -> int:
    """Check; `FOUND` where something does not fit, or the capture is cut short."""
    feed = open_feed(description)
    capture = open_capture(path)
    fit = Fit(feed)
    with progress(f"reading {path.name}", total=1.0) as advance:
        for number, datagram in enumerate(capture):
            if limit and number == limit:
                break
            if number % PROGRESS_PACKETS == 0:
                advance(completed=capture.share_done)
            fit.examine(datagram.payload)
    tell_reading(capture)
    if not fit.packets:
        complain(f"{path}: no packets", "datagrams of UDP, or segments that hold whole packets")
        return ExitCode.FOUND
    if as_json:
        print_json(_told(fit))
    else:
        _print(fit)
    return ExitCode.FOUND if complain_if_cut(capture) or fit.counts else ExitCode.OK


def _print(fit: Fit) -> None:
    console = stdout_console()
    print_line = console.print
    for misfit in fit.misfits:
        print_line(f"{misfit.kind} ({fit.counts[misfit.kind]:,} times), first:", markup=False)
        print_line(f"  {misfit}", markup=False)
        for line in hex_dump(misfit.payload, misfit.at):
            print_line(f"  {line}", markup=False)
        print_line()
    table = FittedTable(("type", "name", "messages", "bytes", "with bytes behind"))
    for use in sorted(fit.types.values(), key=lambda each: -each.count):
        sizes = f"{use.least}" if use.least == use.greatest else f"{use.least} to {use.greatest}"
        table.add_row(
            str(use.label), use.name or "(unknown)", f"{use.count:,}", sizes,
            f"{use.beyond:,}" if use.beyond else "-",
        )  # fmt: skip
    print_line(table)
    for field, values in fit.unknown.items():
        told = ", ".join(f"{value} ({count:,})" for value, count in values.most_common())
        print_line(f"values of {field} without a meaning: {told}", markup=False)
    unused = [f"{layout.label} {layout.name}" for layout in fit.unused()]
    if unused:
        print_line(f"messages that no packet had: {', '.join(unused)}", markup=False)
    print_line(f"{fit.fitting:,} of {fit.packets:,} packets fit {fit.feed.name}", markup=False)


def _told(fit: Fit) -> dict[str, object]:
    return {
        "feed": fit.feed.name,
        "packets": fit.packets,
        "fitting": fit.fitting,
        "misfits": [
            {"kind": each.kind, "count": fit.counts[each.kind], **_place(each)}
            for each in fit.misfits
        ],
        "types": [
            {"type": use.label, "name": use.name, "count": use.count, "least_bytes": use.least,
             "greatest_bytes": use.greatest, "with_bytes_behind": use.beyond}
            for use in fit.types.values()
        ],
        "unknown_values": {field: dict(values) for field, values in fit.unknown.items()},
        "unused": [layout.name for layout in fit.unused()],
    }  # fmt: skip


def _place(misfit: Misfit) -> dict[str, object]:
    return {
        "packet": misfit.packet, "message": misfit.message, "type": misfit.type, "at": misfit.at,
        "field": misfit.field, "found": misfit.found, "expected": misfit.expected,
        "bytes": misfit.payload.hex(),
    }  # fmt: skip
