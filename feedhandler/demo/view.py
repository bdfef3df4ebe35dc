"""The demo's live table: each service's traffic, from two snapshots of the statistics bus.

The gateway publishes snapshots: counters since its start. `Rates` turns a sequence of them into
rows; `LiveView` redraws a table on a terminal, `PlainView` prints a line now and then.
"""

import time
from typing import Any

from msgspec import Struct, structs
from rich.live import Live
from rich.table import Table

from feedhandler.terminal.console import stdout_console
from feedhandler.terminal.fitted import FittedTable

#: A plain line this often, where stdout is no terminal.
PLAIN_INTERVAL_S = 5.0
#: A snapshot's name of the line on which retransmitted packets come in.
RECOVERED = "R"


class Row(Struct, frozen=True):
    """One service, at one moment; rates are since the snapshot before.

    `recovered` packets came from the retransmission server; `gaps` ranges were announced lost,
    whether a snapshot has made them good since or not.
    """

    service: int
    packets_per_second: float
    messages_per_second: float
    p50_ns: int
    p99_ns: int
    from_a: int
    from_b: int
    recovered: int
    duplicates: int
    gaps: int


class Rates:
    """A converter of snapshots into rows.

    Once `frozen`, rates and latencies stay as they were, while counters go on.
    """

    def __init__(self) -> None:
        self.frozen = False
        self._before: dict[int, tuple[int, int, int]] = {}
        self._latest: dict[int, Row] = {}

    def rows(self, snapshot: dict[str, Any]) -> list[Row]:
        """Return one row for each service, in the snapshot's order."""
        now_ns = int(snapshot["time_ns"])
        return [self._row(now_ns, channel) for channel in snapshot["channels"]]

    def _row(self, now_ns: int, channel: dict[str, Any]) -> Row:
        service, packets, messages = (channel[key] for key in ("service", "packets", "messages"))
        lines, latency = channel["lines"], channel["latency_ns"]
        counters = {
            "from_a": lines.get("A", {}).get("won", 0),
            "from_b": lines.get("B", {}).get("won", 0),
            "recovered": lines.get(RECOVERED, {}).get("won", 0),
            "duplicates": sum(line["duplicates"] for line in lines.values()),
            "gaps": channel["gaps"],
        }
        if self.frozen and service in self._latest:
            return structs.replace(self._latest[service], **counters)
        now = (now_ns, packets, messages)
        then_ns, packets_then, messages_then = self._before.get(service, now)
        self._before[service] = now
        seconds = (now_ns - then_ns) / 1e9 or 1.0
        self._latest[service] = Row(
            service=service,
            packets_per_second=(packets - packets_then) / seconds,
            messages_per_second=(messages - messages_then) / seconds,
            p50_ns=latency["p50"],
            p99_ns=latency["p99"],
            **counters,
        )
        return self._latest[service]


def make_view(is_terminal: bool) -> "LiveView | PlainView":
    """Make a live table on a terminal, else plain lines."""
    return LiveView() if is_terminal else PlainView()


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        self._live = Live(console=stdout_console(), auto_refresh=False)
        self._live.start()

    def show(self, rows: list[Row]) -> None:
        """Redraw the table."""
        self._live.update(table(rows), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self._live.stop()


class PlainView:
    """The rows as plain lines every few seconds, where nothing can be redrawn."""

    def __init__(self, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._due = time.monotonic() + interval_s
        self._rows: list[Row] = []

    def show(self, rows: list[Row]) -> None:
        """Print the rows when the interval has passed."""
        self._rows = rows
        if time.monotonic() >= self._due:
            self._due += self._interval_s
            self._print()

    def close(self) -> None:
        """Print nothing more: the summary follows."""

    def _print(self) -> None:
        for row in self._rows:
            print(
                f"service {row.service}: {row.packets_per_second:,.0f} packets/s, "
                f"{row.messages_per_second:,.0f} messages/s, {row.from_a:,} from A, "
                f"{row.from_b:,} from B, {row.recovered:,} recovered, "
                f"{row.duplicates:,} duplicates, {row.gaps:,} gaps, "
                f"latency p50 {milliseconds(row.p50_ns)} p99 {milliseconds(row.p99_ns)}",
                flush=True,
            )


def table(rows: list[Row]) -> Table:
    """Lay out the rows as a table, with a sum below."""
    # All of it fits into a terminal of eighty columns.
    made = FittedTable(
        (),
        (
            *("service", "packet/s", "message/s", "from A", "from B", "recovered", "doubles"),
            *("gaps", "p50 ms", "p99 ms"),
        ),
        drop_first=("doubles", "message/s", "from B", "from A"),
    )
    for row in rows:
        made.add_row(
            str(row.service),
            f"{row.packets_per_second:,.0f}",
            f"{row.messages_per_second:,.0f}",
            *(f"{n:,}" for n in (row.from_a, row.from_b, row.recovered, row.duplicates, row.gaps)),
            f"{row.p50_ns / 1e6:.2f}",
            f"{row.p99_ns / 1e6:.2f}",
        )
    made.add_section()
    made.add_row(
        "all",
        f"{sum(row.packets_per_second for row in rows):,.0f}",
        f"{sum(row.messages_per_second for row in rows):,.0f}",
        *(
            f"{sum(getattr(row, name) for row in rows):,}"
            for name in ("from_a", "from_b", "recovered", "duplicates", "gaps")
        ),
        "",
        "",
        style="bold",
    )
    return made


def milliseconds(ns: float) -> str:
    """Format nanoseconds as `0.24 ms`."""
    return f"{ns / 1e6:,.2f} ms"
