"""Captures, pacing and playing them, injected faults, and the simulated exchange."""

from feedhandler.replay.capture import (
    Capture,
    CaptureStatistics,
    Datagram,
    DatagramBatch,
    Truncation,
)
from feedhandler.replay.capture_writer import CaptureWriter
from feedhandler.replay.frames import LinkType, Skip
from feedhandler.replay.inject import FaultCounts, Injector, LineFaults, LineSends
from feedhandler.replay.line_map import LineMap, mapped_lines, parse_map
from feedhandler.replay.moments import Moment, parse_moment
from feedhandler.replay.pace import Pace, PaceKind, parse_pace
from feedhandler.replay.pipeline import Pipeline
from feedhandler.replay.player import LineTotals, Player, PlayProgress, PlayResult
from feedhandler.replay.player_source import PayloadField
from feedhandler.replay.selection import Selection
from feedhandler.replay.sender_lines import MulticastLine
from feedhandler.replay.sender_load import LoadGenerator, LoadResult, LoadTemplate
from feedhandler.replay.stamps import Stamper, Stamps

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
