"""`feedhandler status`: the state that a running gateway reports, over its control socket.

Tables: each channel's state with the ranges under way, each line's counters, and each broker that
is published to; below them the gateway's other counters that are not zero. On a terminal the
channels' states are coloured; in a pipe the same tables are plain text, one row a line. The exit
code says whether all is well: see `verdict`.
"""

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.kinds import Reject
from feedhandler.config import load_config
from feedhandler.rpc import ENDPOINT_DEFAULT, ask
from feedhandler.terminal.console import ExitCode, print_json, stdout_console
from feedhandler.terminal.fitted import FittedTable

#: Ranges shown of each kind, before the number of others.
RANGES_MAX = 4
#: Qualities and recovery states, and a recorder's state, that are not well.
UNWELL = frozenset({"STALE", "SILENT"})
RECORDER_UNWELL = "stopped"
#: The state of a destination that is well.
PUBLISHING = "UP"
#: Shown beside the recovery state of a stream that is held back until a snapshot comes.
CLOSED = "closed"

#: A destination's columns: the rest is in `--json` and in the metrics.
_DESTINATION_COUNTERS = (
    "confirmed",
    "unconfirmed",
    "queued",
    "resent",
    "abandoned",
    "dropped",
    "failures",
)
#: The state of a durable queue that is well; its columns.
OPEN = "open"
_QUEUE_COUNTERS = (
    "depth",
    "in_hand",
    "put",
    "delivered",
    "returned",
    "cancelled",
    "dead",
    "expired",
    "refused",
    "consumers",
    "keys",
    "parked",
    "stale",
)
#: Counters of a destination's journal, in a line of its own.
_JOURNAL_COUNTERS = (
    "journal_backlog",
    "journal_bytes",
    "journalled",
    "spilled",
    "drained",
    "recovered",
    "journal_late",
    "journal_damaged",
    "journal_faults",
)
_STYLES = {
    "open": "green",
    "stopped": "bold red",
    "OK": "green",
    "UP": "green",
    "WAITING": "bold red",
    "IN_SYNC": "green",
    "REFRESHED": "green",
    "RECOVERING": "yellow",
    "SUSPECTING": "yellow",
    "REQUESTING": "yellow",
    "REFRESHING": "yellow",
    "STALE": "bold red",
    "SILENT": "bold red",
}
_REJECTS = tuple(reason.name.lower() for reason in Reject if reason)
_LINE_COUNTERS = ("packets", "first", "duplicates", "late", "held", "kernel_drops")


class Options(Struct, frozen=True, kw_only=True):
    """The gateway to ask (an endpoint or a TOML file), how often, and how to show it."""

    gateway: str | None = None
    watch: bool = False
    interval_s: float = 1.0
    timeout_s: float = 2.0
    as_json: bool = False


def run(options: Options) -> int:
    """Ask and show, once or until interrupted; return `verdict`'s exit code."""
    endpoint = endpoint_of(options.gateway)

    def fetch() -> dict[str, Any]:
        return dict(ask(endpoint, "status", options.timeout_s))

    if options.watch:
        return _watch(fetch, options)
    snapshot = fetch()
    if options.as_json:
        print_json(snapshot)
    else:
        stdout_console().print(render(snapshot))
    return verdict(snapshot)


def endpoint_of(gateway: str | None) -> str:
    """Return an endpoint as it is, a configuration file's `control.bind`, or the default for None.

    Raises `ConfigError` where `control.bind` is empty.
    """
    if gateway is None:
        return ENDPOINT_DEFAULT
    if "://" in gateway:
        return gateway
    bind = load_config(Path(gateway)).control.bind
    if not bind:
        raise ConfigError(
            f"{gateway}: control.bind is empty: its gateway cannot be asked",
            f'[control] bind = "{ENDPOINT_DEFAULT}"',
        )
    return bind


def verdict(snapshot: Mapping[str, Any]) -> int:
    """Return `FOUND` where a part of the gateway is not well, else `OK`.

    That is a channel that is stale, silent or closed, a broker that is not published to, a durable
    queue or recording that has stopped. What is being recovered, and a channel that waits for its
    first packet, is in order. A closed one has packets that no subscriber gets before the snapshot
    comes.
    """
    for channel in snapshot.get("channels", ()):
        recovery = channel.get("recovery", {})
        if {channel.get("quality"), recovery.get("state")} & UNWELL or recovery.get("closed"):
            return ExitCode.FOUND
    if any(each.get("state") != PUBLISHING for each in snapshot.get("destinations", ())):
        return ExitCode.FOUND
    if any(each.get("state") != OPEN for each in snapshot.get("queues", ())):
        return ExitCode.FOUND
    if snapshot.get("recorder", {}).get("state") == RECORDER_UNWELL:
        return ExitCode.FOUND
    return ExitCode.OK


def _watch(fetch: Callable[[], dict[str, Any]], options: Options) -> int:
    """Show the status again and again, until interrupted; a gateway that goes away raises."""
    if options.as_json or not sys.stdout.isatty():
        while True:
            snapshot = fetch()
            if options.as_json:
                print_json(snapshot)
            else:
                stdout_console().print(render(snapshot), "")
            sys.stdout.flush()
            time.sleep(options.interval_s)
    with Live(console=stdout_console(), auto_refresh=False, screen=True) as live:
        while True:
            live.update(render(fetch()), refresh=True)
            time.sleep(options.interval_s)


# -- what is shown ---------------------------------------------------------------------------


def render(snapshot: Mapping[str, Any]) -> RenderableType:
    """Render one snapshot; leave out what it does not hold."""
    channels = snapshot.get("channels", [])
    parts: list[RenderableType] = [
        Text(_headline(snapshot)),
        "",
        channel_table(channels),
        "",
        line_table(channels),
    ]
    if destinations := snapshot.get("destinations", []):
        parts += ["", destination_table(destinations)]
    if queues := snapshot.get("queues", []):
        parts += ["", queue_table(queues)]
    if lines := list(_counter_lines(snapshot)):
        parts += ["", *(Text(line) for line in lines)]
    return Group(*parts)


def _headline(snapshot: Mapping[str, Any]) -> str:
    """Format `gateway: euronext-utp-md, 7 channels, 2026-11-20 10:00:00 UTC`."""
    at = datetime.datetime.fromtimestamp(snapshot.get("time_ns", 0) // 10**9, datetime.UTC)
    return (
        f"{snapshot.get('name', '?')}: {snapshot.get('feed', '?')}, "
        f"{len(snapshot.get('channels', ()))} channels, {at:%Y-%m-%d %H:%M:%S} UTC"
        f"{_day(snapshot.get('trading_day'))}"
    )


def _day(day: Mapping[str, Any] | None) -> str:
    """Format the trading day, and when the next one begins."""
    if day is None:
        return ""
    if day["turns_ns"] is None:
        return f", trading day {day['day']} (fixed)"
    turns = datetime.datetime.fromtimestamp(day["turns_ns"] / 1e9, ZoneInfo(day["zone"]))
    return f", trading day {day['day']} until {turns:%Y-%m-%d %H:%M} {day['zone']}"


def channel_table(channels: Iterable[Mapping[str, Any]]) -> Table:
    """Tabulate the channels: states, next number, and ranges under way."""
    made = FittedTable(
        ("service", "quality", "recovery"),
        ("next", "packets", "messages", "gaps", "lost", "p50", "p99"),
        drop_first=("messages", "packets", "p50", "next"),
    )
    made.add_column("asked for", overflow="fold")
    made.add_column("not healed", overflow="fold")
    for channel in channels:
        recovery = channel.get("recovery", {})
        latency = channel.get("latency_ns", {})
        made.add_row(
            str(channel.get("service", "?")),
            _state(channel.get("quality")),
            _state(recovery.get("state"), CLOSED if recovery.get("closed") else ""),
            *(_number(channel.get(key)) for key in ("next", "packets", "messages")),
            *(_number(channel.get(key)) for key in ("gaps", "lost")),
            *(_milliseconds(latency.get(key)) for key in ("p50", "p99")),
            ranges_text(recovery.get("requested", ())),
            ranges_text(recovery.get("lost", ())),
        )
    return made


def line_table(channels: Iterable[Mapping[str, Any]]) -> Table:
    """Tabulate the lines: what each brought, and what was wrong with it."""
    made = FittedTable(
        ("line",), (*(name.replace("_", " ") for name in _LINE_COUNTERS), "rejected")
    )
    for channel in channels:
        for name, counters in channel.get("lines", {}).items():
            made.add_row(
                f"{channel.get('service', '?')}/{name}",
                *(_number(counters.get(key)) for key in _LINE_COUNTERS),
                _number(sum(counters.get(reason, 0) for reason in _REJECTS)),
            )
    return made


def destination_table(destinations: Iterable[Mapping[str, Any]]) -> Table:
    """Tabulate the brokers: state, messages taken, waiting and missed; p50 and p99 to confirm."""
    made = FittedTable(
        ("destination", "state", "broker"),
        (*(name.replace("_", " ") for name in _DESTINATION_COUNTERS), "p50", "p99"),
    )
    made.add_column("why not", overflow="fold")
    for destination in destinations:
        confirm = destination.get("confirm_ns", {})
        made.add_row(
            str(destination.get("name", "?")),
            _state(destination.get("state")),
            str(destination.get("broker") or destination.get("to", "?")),
            *(_number(destination.get(key)) for key in _DESTINATION_COUNTERS),
            *(_milliseconds(confirm.get(key)) for key in ("p50", "p99")),
            str(destination.get("reason", "")),
        )
    return made


def queue_table(queues: Iterable[Mapping[str, Any]]) -> Table:
    """Tabulate the durable queues: state, items pending, and the outcomes of the others."""
    made = FittedTable(
        ("queue", "state"), (*(name.replace("_", " ") for name in _QUEUE_COUNTERS), "blocks")
    )
    made.add_column("why not", overflow="fold")
    for queue in queues:
        made.add_row(
            str(queue.get("name", "?")),
            _state(queue.get("state")),
            *(_number(queue.get(key)) for key in _QUEUE_COUNTERS),
            f"{_number(queue.get('blocks'))} of {_number(queue.get('blocks_max'))}",
            str(queue.get("reason", "")),
        )
    return made


def _counter_lines(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines such as `node: links 3, sent 1,234`: all other counters that are not zero."""
    for channel in snapshot.get("channels", ()):
        recovery = channel.get("recovery", {})
        if text := _shown(recovery):
            yield f"recovery {channel.get('service', '?')}: {text}"
    for line in snapshot.get("overlay", ()):
        yield overlay_line(line)
    for line in snapshot.get("tcp_lines", ()):
        yield tcp_line(line)
    whole = snapshot.get("recovery", {})
    if text := _shown(whole):
        yield f"recovery: {text}"
    for name, server in whole.get("servers", {}).items():
        up = "connected" if server.get("up") else "not connected"
        apart = ("paused_until_ns", "secondary")
        counts = {key: value for key, value in server.items() if key not in apart}
        second = "the secondary is asked" if server.get("secondary") else ""
        said = (f"server {name}: {up}", second, _pause(server), _shown(counts))
        yield ", ".join(filter(None, said))
    if text := _shown(snapshot.get("node", {})):
        yield f"node: {text}"
    if text := _shown(snapshot.get("books", {})):
        yield f"books: {text}"
    for destination in snapshot.get("destinations", ()):
        if destination.get("journal"):
            yield _journal_line(destination)
    if recorder := snapshot.get("recorder"):
        yield from _recorder_lines(recorder)


def overlay_line(line: Mapping[str, Any]) -> str:
    """Format the member of a line that comes through the overlay, and its counts."""
    version = line.get("topology_version", 0)
    counts = {key: value for key, value in line.items() if key not in ("tree", "topology_version")}
    where = f"{line.get('member', '?')} of {line.get('topology', '?')}, version {version}"
    text = _shown(counts) or "nothing yet"
    return f"overlay {line.get('line', '?')}: {where}: {text}"


def tcp_line(line: Mapping[str, Any]) -> str:
    """Format the connection of a line that comes by TCP, and its counts."""
    up = "connected" if line.get("up") else "not connected"
    counts = {key: value for key, value in line.items() if key != "up"}
    said = (f"{line.get('framing', '?')} at {line.get('server', '?')}, {up}", _shown(counts))
    return f"line {line.get('line', '?')}: {', '.join(filter(None, said))}"


def _pause(server: Mapping[str, Any]) -> str:
    """Return until when a server is not asked, and how to change that; "" if it is asked."""
    until_ns = server.get("paused_until_ns", 0)
    if not until_ns:
        return ""
    until = datetime.datetime.fromtimestamp(until_ns // 10**9, datetime.UTC)
    return f"not asked until {until:%Y-%m-%d %H:%M} UTC (feedhandler control resume-requests)"


def _journal_line(destination: Mapping[str, Any]) -> str:
    """Format the state of a destination's journal, and its counters."""
    counts = {name: destination.get(name, 0) for name in _JOURNAL_COUNTERS}
    oldest = destination.get("oldest_seconds", 0.0)
    age = f", oldest {oldest:,.1f} s" if oldest else ""
    text = _shown(counts) or "nothing in it"
    return f"journal {destination.get('name', '?')}: {destination['journal']}, {text}{age}"


def _recorder_lines(recorder: Mapping[str, Any]) -> Iterator[str]:
    reason = f" ({recorder['reason']})" if recorder.get("reason") else ""
    yield (
        f"recorder: {recorder.get('state')}{reason}, {_number(recorder.get('bytes'))} bytes in "
        f"{recorder.get('directory')}"
    )
    for name, series in recorder.get("series", {}).items():
        file = f", in {series['file']}" if series.get("file") else ""
        yield f"recorder {name}: {_shown(series) or 'nothing yet'}{file}"


def _shown(counters: Mapping[str, Any]) -> str:
    """Format the integers that are not zero, by name."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,}"
        for name, value in counters.items()
        if isinstance(value, int) and not isinstance(value, bool) and value
    )


def ranges_text(ranges: Iterable[Iterable[int]]) -> str:
    """Format ranges as `17..40 55 and 3 more`: with both ends, single numbers as such."""
    given = [tuple(each) for each in ranges]
    shown = " ".join(
        str(first) if first == last else f"{first}..{last}" for first, last in given[:RANGES_MAX]
    )
    return f"{shown} and {len(given) - RANGES_MAX} more" if len(given) > RANGES_MAX else shown


def _state(name: str | None, more: str = "") -> Text:
    text = Text(name or "-", style=_STYLES.get(name or "", ""))
    return text.append(f" {more}", style="bold red") if more else text


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _milliseconds(ns: int | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:,.2f} ms"
