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
from feedhandler.replay.pace import Pace, PaceKind, parse_pace
from feedhandler.replay.player import LineTotals, Player, PlayProgress, PlayResult
from feedhandler.replay.player_source import PayloadField
from feedhandler.replay.sender_lines import MulticastLine
from feedhandler.replay.sender_load import LoadGenerator, LoadResult, LoadTemplate

__all__ = [
    "Capture",
    "CaptureStatistics",
    "CaptureWriter",
    "Datagram",
    "DatagramBatch",
    "FaultCounts",
    "Injector",
    "LineFaults",
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
    "PlayProgress",
    "PlayResult",
    "Player",
    "Skip",
    "Truncation",
    "parse_pace",
]
