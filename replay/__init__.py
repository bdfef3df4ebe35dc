"""Recordings, playing and generating them, injected faults, and the simulated exchange.

`captures` reads and writes files, `playing` sends them to lines, `generating` makes sessions,
`exchange` is an exchange in real time, `state` keeps what a stream says of its market.
"""

from feedhandler.replay.captures.capture import (
    Capture,
    CaptureStatistics,
    Datagram,
    DatagramBatch,
    Truncation,
)
from feedhandler.replay.captures.capture_writer import CaptureWriter
from feedhandler.replay.captures.frames import LinkType, Skip
from feedhandler.replay.playing.inject import FaultCounts, Injector, LineFaults, LineSends
from feedhandler.replay.playing.line_map import LineMap, mapped_lines, parse_map
from feedhandler.replay.playing.moments import Moment, parse_moment
from feedhandler.replay.playing.pace import Pace, PaceKind, parse_pace
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.player import LineTotals, Player, PlayProgress, PlayResult
from feedhandler.replay.playing.player_source import PayloadField
from feedhandler.replay.playing.selection import Selection
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.replay.playing.sender_load import LoadGenerator, LoadResult, LoadTemplate
from feedhandler.replay.playing.stamps import Stamper, Stamps

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
    "Moment",
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
    "Truncation",
    "mapped_lines",
    "parse_map",
    "parse_moment",
    "parse_pace",
]
