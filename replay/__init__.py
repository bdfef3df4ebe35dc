"""Recordings, playing and generating them, injected faults, and the simulated exchange.

`captures` reads and writes files, `playing` sends them to lines, `generating` makes sessions,
`exchange` is an exchange in real time, `state` keeps what a stream says of its market.
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.replay.captures.frames import LinkType, Skip
    from feedhandler.replay.captures.reading import (
        Capture,
        CaptureStatistics,
        Datagram,
        DatagramBatch,
        Truncation,
    )
    from feedhandler.replay.captures.writer import CaptureWriter
    from feedhandler.replay.playing.inject import FaultCounts, Injector, LineFaults, LineSends
    from feedhandler.replay.playing.line_map import LineMap, mapped_lines, parse_map
    from feedhandler.replay.playing.pace import Pace, PaceKind, parse_pace
    from feedhandler.replay.playing.pipeline import Pipeline
    from feedhandler.replay.playing.player import LineTotals, Player, PlayProgress, PlayResult
    from feedhandler.replay.playing.selection import Selection
    from feedhandler.replay.playing.sender_lines import MulticastLine
    from feedhandler.replay.playing.sender_load import LoadGenerator, LoadResult, LoadTemplate
    from feedhandler.replay.playing.source import PayloadField
    from feedhandler.replay.playing.stamps import Stamper, Stamps
    from feedhandler.replay.playing.time_spec import TimeSpec, parse_time_spec

__all__ = [
    "Capture",
    "CaptureStatistics",
    "CaptureWriter",
    "Datagram",
    "DatagramBatch",
    "FaultCounts",
    "Injector",
    "LineFaults",
    "LineMap",
    "LineSends",
    "LineTotals",
    "LinkType",
    "LoadGenerator",
    "LoadResult",
    "LoadTemplate",
    "MulticastLine",
    "Pace",
    "PaceKind",
    "PayloadField",
    "Pipeline",
    "PlayProgress",
    "PlayResult",
    "Player",
    "Selection",
    "Skip",
    "Stamper",
    "Stamps",
    "TimeSpec",
    "Truncation",
    "mapped_lines",
    "parse_map",
    "parse_pace",
    "parse_time_spec",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Capture": "captures.reading",
        "CaptureStatistics": "captures.reading",
        "CaptureWriter": "captures.writer",
        "Datagram": "captures.reading",
        "DatagramBatch": "captures.reading",
        "FaultCounts": "playing.inject",
        "Injector": "playing.inject",
        "LineFaults": "playing.inject",
        "LineMap": "playing.line_map",
        "LineSends": "playing.inject",
        "LineTotals": "playing.player",
        "LinkType": "captures.frames",
        "LoadGenerator": "playing.sender_load",
        "LoadResult": "playing.sender_load",
        "LoadTemplate": "playing.sender_load",
        "TimeSpec": "playing.time_spec",
        "MulticastLine": "playing.sender_lines",
        "Pace": "playing.pace",
        "PaceKind": "playing.pace",
        "PayloadField": "playing.source",
        "Pipeline": "playing.pipeline",
        "PlayProgress": "playing.player",
        "PlayResult": "playing.player",
        "Player": "playing.player",
        "Selection": "playing.selection",
        "Skip": "captures.frames",
        "Stamper": "playing.stamps",
        "Stamps": "playing.stamps",
        "Truncation": "captures.reading",
        "mapped_lines": "playing.line_map",
        "parse_map": "playing.line_map",
        "parse_time_spec": "playing.time_spec",
        "parse_pace": "playing.pace",
    },
)
