"""Records of the hand-over ring: kinds, causes and the words of a header, by name.

Who writes or reads a record takes its words by these names, compiled or not. `ring` has the layout
as a table and what the words mean for each kind. What ends a run of deliveries of the fan-out is
handed on as a value: a `ControlEvent` or a `RefreshLinePacket`.
"""

from enum import IntEnum
from typing import NamedTuple


class RecordKind(IntEnum):
    """Kind of a record; the numbers stand in the ring."""

    PAD = 0
    PACKET = 1
    GAP = 2
    RESET = 3
    START = 4
    LINE_SILENT = 5
    LINE_BACK = 6
    MISMATCH = 7
    GAP_NOTICED = 8
    CLOSED = 9
    MISSING = 10
    WITHDRAWN = 11
    PASSED = 12
    SKIPPED = 13


class GapCause(IntEnum):
    """Why a range was given up (w7 of a GAP record)."""

    DEADLINE = 1  # every line had gap_wait_us to bring it, and recovery recovery_wait_us
    HOLD_FULL = 2  # no room to hold more packets behind it
    JUMP = 3  # a jump beyond the window was confirmed
    RESET = 4  # the epoch ended with the range still missing
    REFUSED = 5  # recovery knows that it cannot be had


class ResetCause(IntEnum):
    """Cause of a new epoch (w7 of a RESET record)."""

    PACKET = 1  # the feed's own sequence reset packet
    SESSION = 2  # a new session id in the packet header
    RESYNC = 3  # the only living line went on somewhere else


class ControlEvent(NamedTuple):
    """A record that is no packet: a gap, a reset, a line that fell silent.

    `channel` is the channel's index in the ring. What `sequence`, `next_sequence` and `auxiliary`
    (an epoch, or a cause) say depends on `kind`: see the table of `ring`.
    """

    kind: RecordKind
    channel: int
    line: int = 0
    sequence: int = 0
    next_sequence: int = 0
    received_ns: int = 0
    auxiliary: int = 0


class RefreshLinePacket(NamedTuple):
    """A packet of a refresh line: part of a snapshot. `channel` is its channel's index."""

    channel: int
    sequence: int
    data: bytes


# The same as plain numbers, for the cores.
(
    PAD,
    PACKET,
    GAP,
    RESET,
    START,
    LINE_SILENT,
    LINE_BACK,
    MISMATCH,
    GAP_NOTICED,
    CLOSED,
    MISSING,
    WITHDRAWN,
    PASSED,
    SKIPPED,
) = (int(kind) for kind in RecordKind)
(BY_DEADLINE, BY_HOLD_FULL, BY_JUMP, BY_RESET, BY_REFUSAL) = (int(cause) for cause in GapCause)
(BY_PACKET, BY_SESSION, BY_RESYNC) = (int(cause) for cause in ResetCause)
#: A record's header.
HEADER_WORDS = 8
HEADER_BYTES = 64
# The words of the header, counted from its first.
(
    WORD_RECORD,
    WORD_PAYLOAD,
    WORD_SEQUENCE,
    WORD_NEXT_SEQUENCE,
    WORD_RECEIVED_NS,
    WORD_SESSION,
    WORD_MESSAGES,
    WORD_AUXILIARY,
) = range(HEADER_WORDS)
# Where fields that share a word stand in it; in the low half of each is a u32.
KIND_SHIFT = 32  # WORD_RECORD: record size, kind, channel
KIND_MASK = 0xFFFF
CHANNEL_SHIFT = 48
LINE_SHIFT = 32  # WORD_PAYLOAD: payload length, line, flags, message count
LINE_MASK = 0xFF
FLAGS_SHIFT = 40
FLAGS_MASK = 0xFF
COUNT_SHIFT = 48
COUNT_MASK = 0xFFFF
BODY_SHIFT = 32  # WORD_MESSAGES: messages to skip, offset of the first one
