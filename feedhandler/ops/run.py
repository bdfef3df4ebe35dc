"""`feedhandler run`: a gateway from its configuration, until it is asked to finish.

What an operator should see without asking goes to the log (`operator_log`): at the start that it is
ready, which lines got a smaller receive buffer than configured, and which of its secrets and
folders are open to others; at the end what was dropped, rejected or lost, a line for each channel
that has any of it.
"""

import asyncio
import contextlib
import errno
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.kinds import Reject
from feedhandler.config import Config
from feedhandler.doctor.cpu_latency import AWAKE_HINT, staying_awake
from feedhandler.doctor.openness import check_openness
from feedhandler.operator_log import log_event, opened
from feedhandler.terminal.console import host_faults, run_async

#: Prefix of a command's own lines, as of those of `console.complain`.
COMMAND_PREFIX = "feedhandler: "
#: Counters of a snapshot's channel that the account at the end names where they are not zero.
CHANNEL_FAULTS = (
    "gaps", "lost", "withdrawn", "contradicted", "mismatches", "evicted", "hold_full", "ring_full",
)  # fmt: skip
#: The same of each line. (Duplicates, silences and stale packets are a line's ordinary life.)
LINE_FAULTS = (
    "kernel_drops",
    "refused",
    "late",
    "oversize",
    "foreign_source",
    "unconfigured_service",
    "mismatches",
    *(reason.name.lower() for reason in Reject if reason),
)
#: The same of the receiver of a line that comes through the overlay.
OVERLAY_FAULTS = ("missing", "passed", "kernel_drops", "behind", "seal", "stale", "overfull")
#: The same of the connection of a line that comes by TCP.
TCP_LINE_FAULTS = ("disconnects", "refused", "malformed", "silent")


def run(path: Path) -> int:
    """Run the gateway configured in `path`; SIGINT and SIGTERM drain it."""
    from feedhandler.gateway import check_named, open_config

    config, feed = open_config(path)
    check_named(config, feed, path)
    return run_async(lambda stop: serve(config, stop, path=path), config.gateway.loop)


async def serve(
    config: Config,
    stop: asyncio.Event,
    prepare: Callable[[Any], object] | None = None,
    path: Path | None = None,
) -> int:
    """Run a gateway until `stop`; log that it is ready, and at the end what went wrong.

    `prepare` is called with the gateway before it begins; `path` is the configuration's file.
    Raises ConfigError for what is missing at the start, HostFault for what fails later.
    """
    with opened(config.log, config.gateway.name), contextlib.ExitStack() as meanwhile:
        for check in check_openness(config, path):
            if check.status != "ok":
                text = f"{check.name}: {check.found} ({check.remedy})"
                _log_once("open_to_others", text)
        if config.gateway.stay_awake and (fault := meanwhile.enter_context(staying_awake())):
            _log_once("asleep", f"idle processors may halt: {fault} ({AWAKE_HINT})")
        return await _serve(config, stop, prepare)


async def _serve(
    config: Config, stop: asyncio.Event, prepare: Callable[[Any], object] | None
) -> int:
    from feedhandler.gateway import Gateway

    is_ready = False

    def ready() -> None:
        nonlocal is_ready
        is_ready = True
        # Objects of the start stay: scanning them would prolong every full collection, and stop the
        # stream, for some 30 ms.
        gc.collect()
        gc.freeze()
        for found, remedy in short_buffers(config, gateway.receive_buffers()):
            _log_once("short_buffer", f"{found} ({remedy})")
        lines = sum(len(channel.lines) for channel in config.channels)
        host, port = gateway.node.address
        log_event(
            "ready",
            f"{config.gateway.name}: ready: {len(config.channels)} channels, {lines} lines, "
            f"AMQP on {host}:{port}",
            logging.INFO,
            prefix="",
            channels=len(config.channels),
            lines=lines,
            amqp=f"{host}:{port}",
        )

    try:
        gateway = Gateway(config)
        if prepare is not None:
            prepare(gateway)
        await gateway.run(ready, stop)
    except OSError as error:
        if is_ready:
            with host_faults():
                raise
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{config.amqp.listen}: already in use",
                "end what listens there, or change amqp.listen",
            ) from None
        raise
    finally:
        if is_ready:
            for line in account(gateway.snapshot()):
                _log_once("account", line)
    return 0


def _log_once(event: str, text: str) -> None:
    """Log one of the lines that come once, at the start or the end."""
    log_event(event, text, prefix=COMMAND_PREFIX, limited=False)


def short_buffers(config: Config, granted: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield a warning and its remedy for each line whose receive buffer (bytes) is too small."""
    wanted = config.receive.socket_buffer_bytes
    for name, size in granted.items():
        if size < wanted:
            yield (
                f"line {name}: receive buffer of {size:,} bytes, {wanted:,} asked for",
                f"sysctl -w net.core.rmem_max={wanted}",
            )


def account(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Yield drops, rejects and losses of a gateway's last snapshot; and its cache's hits."""
    name = snapshot["name"]
    for channel in snapshot["channels"]:
        parts = [_faults("", channel["arbitration"], CHANNEL_FAULTS)]
        parts += [
            _faults(f"line {line} ", counters, LINE_FAULTS)
            for line, counters in channel["lines"].items()
        ]
        if found := "; ".join(part for part in parts if part):
            yield f"{name}: service {channel['service']}: {found}"
    for line in snapshot.get("overlay", ()):
        if found := _faults(f"overlay {line['line']}: ", line, OVERLAY_FAULTS):
            yield f"{name}: {found}"
    for line in snapshot.get("tcp_lines", ()):
        if found := _faults(f"line {line['line']} by TCP: ", line, TCP_LINE_FAULTS):
            yield f"{name}: {found}"
    yield from _recorder_faults(name, snapshot.get("recorder", {}))
    if lookups := snapshot["node"]["route_lookups"]:
        hits = snapshot["node"]["route_hits"] / lookups
        yield f"{name}: routing cache: {hits:.1%} of {lookups:,} look-ups answered"


def _recorder_faults(name: str, recorder: Mapping[str, Any]) -> Iterator[str]:
    """Yield that recording stopped by itself, and packets that are in no file."""
    if recorder.get("state") == "stopped":
        yield f"{name}: recording stopped: {recorder['reason']}"
    for series, counters in recorder.get("series", {}).items():
        if found := _faults(f"recorder {series}: ", counters, ("dropped", "unwritable")):
            yield f"{name}: {found}"


def _faults(who: str, counters: Mapping[str, int], names: tuple[str, ...]) -> str:
    """Format as `line A kernel_drops 3, late 1` those of `names` that are not zero."""
    text = ", ".join(f"{name} {counters[name]:,}" for name in names if counters.get(name))
    return f"{who}{text}" if text else ""
