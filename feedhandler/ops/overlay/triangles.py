"""`feedhandler overlay measure --triangles`: delays of all pairs of hosts, by windows."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.toml_text import read_text
from feedhandler.ops.overlay.simulate import check_report, print_experiment, write_report
from feedhandler.overlay.experiment import Experiment, percent, us
from feedhandler.overlay.mesh import GAIN_US, PairWindow, Windows, windows_of
from feedhandler.overlay.meshing import Mesh, opened, opened_here
from feedhandler.overlay.topology_file import read_topology
from feedhandler.terminal.console import ExitCode, complain, print_json, signal_handlers
from feedhandler.terminal.outputs import refuse_input

#: Pairs in the table: those whose delay varies most, and the one in the middle.
PAIRS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Probing:
    """Settings of probing. `seconds` 0: until stopped; `rate`: probes a second of each pair."""

    seconds: float
    rate: float


def triangles_here(hosts: int, probing: Probing, report: Path | None, as_json: bool) -> int:
    """Probe between hosts that are all on this machine, and print the result of the windows."""
    if hosts < 3:
        raise UsageError(f"{hosts} hosts make no triangle", "--hosts 3 or more")
    check_report(report)
    rows: list[PairWindow] = []
    with opened_here(hosts, probing.rate) as mesh:
        _run(mesh, probing, rows.append)
    about = (
        f"{hosts} hosts on one machine's loopback, {probing.rate:g} probes a second of each pair"
    )
    return _report(rows, about, report, as_json)


def triangles_member(topology: Path, name: str, probing: Probing) -> int:
    """Run one host of a mesh on several machines: print each pair's window as a JSON line."""
    read = read_topology(topology)
    with opened(read, name, probing.rate) as mesh:
        me = mesh.hosts[0].me
        complain(f"{name} is at {me.address[0]}:{me.address[1]}")

        def output(row: PairWindow) -> None:
            print_json(asdict(row))
            sys.stdout.flush()  # before a host is killed, what it measured is out

        _run(mesh, probing, output)
    return ExitCode.OK


def _run(mesh: Mesh, probing: Probing, output: Callable[[PairWindow], None]) -> None:
    # Where a signal ends it, what was measured by then is printed.
    stopped: list[int] = []
    with signal_handlers(lambda number, _: stopped.append(number)):
        mesh.run(probing.seconds, lambda: bool(stopped), output)
    dropped = sum(sum(host.counts.values()) - host.counts["taken"] for host in mesh.hosts)
    if dropped or mesh.unsent:
        complain(f"{dropped:,} datagrams dropped, {mesh.unsent:,} probes not sent")


def triangles_read(files: Sequence[Path], report: Path | None, as_json: bool) -> int:
    """Merge what the hosts of a mesh have printed, and print the result."""
    check_report(report)
    if report is not None:
        refuse_input(report, *files)
    rows = [row for path in files for row in _rows_of(path)]
    hosts = {each.target for each in rows}
    return _report(rows, f"{len(hosts)} hosts, {len(files)} files", report, as_json)


def _rows_of(path: Path) -> list[PairWindow]:
    rows = []
    for number, line in enumerate(read_text(path, "give JSON lines").splitlines(), 1):
        try:
            rows.append(PairWindow(**json.loads(line)))
        except (ValueError, TypeError):
            raise ConfigError(
                f"{path}, line {number}: no window of a pair of hosts",
                "give what `overlay measure --triangles --member` printed",
            ) from None
    return rows


def _report(rows: Sequence[PairWindow], about: str, report: Path | None, as_json: bool) -> int:
    if not rows:
        raise UsageError("no window of any pair", "measure for two seconds or longer")
    windows = windows_of(rows)
    found = [violations_of(windows), variance_of(windows)]
    if as_json:
        for row in json_rows(windows):
            print_json(row)
    else:
        for each in found:
            print_experiment(each)
    if report is not None:
        write_report(found, "Delays between hosts", about, report)
    return ExitCode.OK


def json_rows(windows: Windows) -> list[dict[str, float | None]]:
    """Return a row for each window: pairs, those that a third host would help, the most gained."""
    found = []
    for number, p50, gains in zip(windows.numbers, windows.p50, windows.gains(), strict=True):
        most = float(numpy.nanmax(gains, initial=-numpy.inf))
        found.append(
            {
                "window": number, "pairs": int((~numpy.isnan(p50)).sum()),
                "violations": int((gains >= GAIN_US).sum()),
                "most_us": most if numpy.isfinite(most) else None,
                "p50_us": float(numpy.nanmedian(p50)),
            }
        )  # fmt: skip
    return found


def violations_of(windows: Windows) -> Experiment:
    """Make Figures 1 and 13: how often a way through a third host would have been quicker."""
    gains = windows.gains()
    judged = int((~numpy.isnan(gains)).sum())
    better = gains >= GAIN_US
    counts = better.sum(axis=(1, 2))
    most = float(numpy.nanmax(gains, initial=-numpy.inf))
    lasting = better.sum(axis=0).max() / len(windows.numbers)
    rows = [
        (f"{len(windows.numbers):,}", f"{len(windows.pairs()):,}", f"{int(better.sum()):,}",
         percent(float(better.sum() / judged)) if judged else "", f"{int((counts > 0).sum()):,}",
         us(max(most, 0.0)) if numpy.isfinite(most) else "", percent(float(lasting)))
    ]  # fmt: skip
    return Experiment(
        "Triangles", "Violations of the triangle inequality",
        ("windows", "pairs", "violations", "of all", "windows with any", "most gained",
         "windows of the worst pair"),
        rows,
        f"a violation: the way through a third host would have been {GAIN_US:.0f} us shorter or"
        " more, by the medians of a window",
        over_time={"violations": counts.astype(float)}, unit="violations",
    )  # fmt: skip


def variance_of(windows: Windows) -> Experiment:
    """Make Figure 2: how the delay of a pair of hosts varies from window to window."""
    pairs = windows.pairs()
    delays = [windows.p50[:, a, b] for a, b in pairs]
    spread = [(numpy.nanmax(delay) - numpy.nanmin(delay), numpy.nanmax(delay)) for delay in delays]
    order = sorted(range(len(pairs)), key=spread.__getitem__, reverse=True)
    shown = list(dict.fromkeys([*order[: PAIRS_SHOWN - 1], order[len(order) // 2]]))
    rows, over_time = [], {}
    for at in shown:
        a, b = pairs[at]
        p50, p99 = windows.p50[:, a, b], windows.p99[:, a, b]
        rows.append(
            (f"{windows.hosts[a]} to {windows.hosts[b]}", us(float(numpy.nanmin(p50))),
             us(float(numpy.nanmedian(p50))), us(float(numpy.nanmax(p50))),
             us(float(numpy.nanmedian(p99))), us(float(numpy.nanmax(p99))))
        )  # fmt: skip
        if at == shown[0]:
            over_time = {f"{rows[0][0]}, p50": p50, "p99": p99}
    return Experiment(
        "Variance", "Delay one way, by windows",
        ("pair", "lowest p50", "middle", "highest", "middle p99", "highest"), rows,
        "the pairs that vary most, and the one in the middle; a difference of two hosts' clocks"
        " shifts their delays, but makes no violation",
        over_time=over_time,
    )  # fmt: skip
