"""Parsers of arguments that are more than a number: shares, addresses, speeds, days, lists.

Each function takes the text as typed and raises `typer.BadParameter`, or the parser's `UsageError`,
where it makes no sense.
"""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from feedhandler.addresses import split_address

if TYPE_CHECKING:
    from feedhandler.replay.playing.line_map import LineMap
    from feedhandler.replay.playing.pace import Pace
    from feedhandler.replay.playing.senders import FrameSettings
    from feedhandler.replay.playing.time_spec import TimeSpec


class LineAddress(Struct, frozen=True):
    """The multicast group and port that a line goes to."""

    group: str
    port: int


class TcpAddress(Struct, frozen=True):
    """Address at which a line by TCP is served, and its framing."""

    framing: str
    host: str
    port: int


class RecordingPart(Struct, frozen=True):
    """The part of a recording that is asked for; moments are still relative to the recording."""

    begin: "TimeSpec | None" = None
    end: "TimeSpec | None" = None
    zone: str | None = None
    groups: tuple[tuple[int, int | None], ...] = ()
    ports: tuple[int, ...] = ()
    services: tuple[int, ...] = ()
    sequences: tuple[int, int] | None = None


def share(text: str | float) -> float:
    """Parse `5%` or `0.05` as 0.05; a default that is a number already passes too."""
    text = str(text)
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no share: write 5% or 0.05") from None
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{text} is not between 0% and 100%")
    return value


def line_address(text: str) -> LineAddress:
    """Parse `239.1.1.1:5001` as group and port."""
    try:
        host, port = split_address(text)
        group = ipaddress.IPv4Address(host)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not GROUP:PORT, such as 239.1.1.1:5001") from None
    if not group.is_multicast or not port:
        raise typer.BadParameter(f"{text} is no multicast group (224.0.0.0 to 239.255.255.255)")
    return LineAddress(host, port)


def tcp_address(text: str) -> TcpAddress:
    """Parse `soupbin:127.0.0.1:7001` as framing, host and port."""
    from feedhandler.replay.playing.tcp_line import FRAMINGS

    framing, _, address = text.partition(":")
    try:
        host, port = split_address(address)
    except ValueError:
        framing = ""
    if framing not in FRAMINGS:
        raise typer.BadParameter(
            f"{text!r} is not FRAMING:HOST:PORT, such as soupbin:127.0.0.1:7001; "
            f"framings: {', '.join(FRAMINGS)}"
        )
    return TcpAddress(framing, host, port)


def pace(text: str) -> "Pace":
    """Parse `1`, `100x`, `40mbps`, `5000pps` or `flat` as the player's pace."""
    from feedhandler.replay.playing.pace import parse_pace

    folded = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", folded):
        folded += "x"
    return parse_pace(folded)


def date(text: str | None) -> datetime.date | None:
    """Parse `2026-11-20` as a date; None stays None."""
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day: write yyyy-mm-dd") from None


def words(text: str | None) -> tuple[str, ...]:
    """Split `230,240` into its words; None has none."""
    return tuple(word for word in (text or "").replace(" ", "").split(",") if word)


def line_maps(texts: Sequence[str]) -> "tuple[LineMap, ...]":
    """Parse each `GROUP:PORT=GROUP:PORT[@A|B]` as a line map."""
    from feedhandler.replay.playing.line_map import parse_map

    return tuple(parse_map(text) for text in texts)


def recording_part(
    begin: str | None,
    end: str | None,
    zone: str | None,
    groups: Sequence[str] | None,
    ports: Sequence[int] | None,
    services: Sequence[int] | None,
    sequence: str | None,
) -> RecordingPart:
    """Parse the options that choose a part of a recording."""
    from feedhandler.replay.playing.selection import parse_group, parse_sequences
    from feedhandler.replay.playing.time_spec import check_zone, parse_time_spec

    return RecordingPart(
        begin=parse_time_spec(begin) if begin is not None else None,
        end=parse_time_spec(end) if end is not None else None,
        zone=check_zone(zone) if zone is not None else None,
        groups=tuple(parse_group(text) for text in groups or ()),
        ports=tuple(ports or ()),
        services=tuple(services or ()),
        sequences=parse_sequences(sequence) if sequence is not None else None,
    )


def frames(
    raw: bool, source_mac: str | None, source_ip: str | None, bypass_queue: bool
) -> "FrameSettings | None":
    """Parse the settings of raw frames; None where none are asked for."""
    from feedhandler.replay.playing.frame_lines import parse_mac
    from feedhandler.replay.playing.senders import FrameSettings

    if not raw:
        if source_mac or source_ip or bypass_queue:
            raise typer.BadParameter(
                "--source-mac, --source-ip and --bypass-queue are about raw frames: add --raw"
            )
        return None
    try:
        address = None if source_ip is None else str(ipaddress.IPv4Address(source_ip))
    except ValueError:
        raise typer.BadParameter(f"{source_ip!r} is no IPv4 address") from None
    return FrameSettings(parse_mac(source_mac) if source_mac else None, address, bypass_queue)


_SPANS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
#: Spans and sizes that fit 64 bits: 292 years, 9.2 exabytes.
_INT64_MAX = 2**63 - 1
_SIZES = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def span_ns(text: str | int) -> int:
    """Parse `90`, `90s`, `250ms`, `15min` or `1h` as nanoseconds; a bare number counts seconds."""
    if isinstance(text, int):
        return text  # a default, in nanoseconds already
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|min|h)?", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span of time: write 90s, 250ms, 15min or 1h")
    span = float(match[1]) * _SPANS_NS[match[2] or "s"]
    if span >= _INT64_MAX:
        raise typer.BadParameter(f"{text!r} is more than 292 years")
    return round(span)


def megabits(text: str | float) -> float:
    """Parse `200mbps`, `1.5gbps` or `200` as Mbit/s of Ethernet frames."""
    from feedhandler.replay.playing.pace import PaceKind, parse_rate

    return parse_rate(text, PaceKind.FRAME_BITS, "mbps") / 1e6


def messages_per_second(text: str | float) -> float:
    """Parse `20000`, `20kmps` as messages a second."""
    from feedhandler.replay.playing.pace import PaceKind, parse_rate

    return parse_rate(text, PaceKind.MESSAGES, "mps")


def size_bytes(text: str | int) -> int:
    """Parse `100mb`, `64MiB` or `1000000` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", str(text).strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size: write 100mb, 64mib or a number of bytes")
    size = float(match[1]) * _SIZES[match[2]]
    if size >= _INT64_MAX:
        raise typer.BadParameter(f"{text!r} is more than 9.2 exabytes")
    return round(size)


class CaptureLine(Struct, frozen=True):
    """A line to be captured: its address, and its own name and interface, if given."""

    address: LineAddress
    name: str = ""
    interface: str = ""


def capture_line(text: str) -> CaptureLine:
    """Parse `239.1.1.1:5001` or `A=239.1.1.1:5001@eth1` as a line to be captured."""
    name, equals, rest = text.rpartition("=")
    address, at, interface = rest.partition("@")
    if (equals and not name) or (at and not interface):
        raise typer.BadParameter(f"{text!r} is not [NAME=]GROUP:PORT[@INTERFACE]")
    return CaptureLine(line_address(address), name, interface)
