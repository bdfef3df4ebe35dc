"""Events of a channel's stream: what arbitration saw, as recovery and quality need them.

The gateway's core makes them of the ring's control events. `StreamEventKind` has the numbers that
`ingest.records.RecordKind` has for the same (a test holds the two together), so that a number of
the ring is enough to make one.
"""

from enum import IntEnum
from typing import NamedTuple


class StreamEventKind(IntEnum):
    """Event of a channel's stream."""

    GAP = 2  # a declared loss
    RESET = 3  # a new sequence epoch
    START = 4  # the stream was joined
    LINE_SILENT = 5
    LINE_BACK = 6
    MISMATCH = 7  # the lines' copies of a packet differ
    GAP_NOTICED = 8  # the other line may still fill it
    CLOSED = 9  # every gap is filled or declared lost
    MISSING = 10  # no line brought it: it is to be requested
    WITHDRAWN = 11  # a declared loss was none
    PASSED = 12  # the stream went on though a gap is open
    SKIPPED = 13  # numbers that the publisher says no messages carry


class StreamEvent(NamedTuple):
    """One event of channel `channel` (its index). Sequence numbers [`sequence`, `next_sequence`)
    are those that it is about; `epoch` is the arbiter's sequence epoch where the kind is MISSING.
    """

    kind: StreamEventKind
    channel: int
    line: int = 0
    sequence: int = 0
    next_sequence: int = 0
    epoch: int = 0
