"""What subscribers are told about a service's completeness.

One `QualityState` a service: a small state machine over the marks that arbitration writes into
the ring. The table below is the whole of it; every (state, input) pair has an entry and a test.

    WAITING   nothing was received yet
    OK        everything since `since` was published, in order
    STALE     a range was lost on every line and announced; what builds on it may be wrong
    SILENT    every line is silent: nothing is known of what the exchange sends

A quality message is JSON, one object:

    state     as above
    reason    what changed: attached, start, gap, reset, silent, back, mismatch
    service   the service
    since     first sequence of the stream that this numbering's messages belong to
    next      the sequence expected next
    lost      [[first, last], ...]: with reason gap the range just lost, with reason attached all
              known ones (the latest 256; `lost_ranges` counts all)
    lost_ranges, lost_total   ranges and sequence numbers lost in this numbering
    silent    names of the lines that are silent now
    sequence  with reason mismatch: where A and B differ
    line      with silent, back, mismatch: the line

No I/O; time is not needed: marks come in order.
"""

from enum import Enum, auto

import msgspec

from feedhandler.ingest.ring import RecordKind
from feedhandler.retrans.ranges import RangeSet

#: Lost ranges that a newly attached link is told; older ones are counted only.
RANGES_TOLD_MAX = 256


class State(Enum):
    """How complete a service's stream is."""

    WAITING = "WAITING"
    OK = "OK"
    STALE = "STALE"
    SILENT = "SILENT"


class Input(Enum):
    """What happens to a stream."""

    START = auto()
    GAP = auto()
    RESET = auto()
    ALL_SILENT = auto()
    SOME_BACK = auto()
    MISMATCH = auto()


#: (state, input): the next state; `None` means "as the ranges tell", OK or STALE.
TABLE: dict[tuple[State, Input], State | None] = {
    (State.WAITING, Input.START): State.OK,
    (State.WAITING, Input.GAP): State.STALE,
    (State.WAITING, Input.RESET): State.OK,
    (State.WAITING, Input.ALL_SILENT): State.WAITING,
    (State.WAITING, Input.SOME_BACK): State.WAITING,
    (State.WAITING, Input.MISMATCH): State.WAITING,
    (State.OK, Input.START): State.OK,
    (State.OK, Input.GAP): State.STALE,
    (State.OK, Input.RESET): State.OK,
    (State.OK, Input.ALL_SILENT): State.SILENT,
    (State.OK, Input.SOME_BACK): State.OK,
    (State.OK, Input.MISMATCH): State.OK,
    (State.STALE, Input.START): State.OK,
    (State.STALE, Input.GAP): State.STALE,
    (State.STALE, Input.RESET): State.OK,
    (State.STALE, Input.ALL_SILENT): State.SILENT,
    (State.STALE, Input.SOME_BACK): State.STALE,
    (State.STALE, Input.MISMATCH): State.STALE,
    (State.SILENT, Input.START): State.OK,
    (State.SILENT, Input.GAP): State.SILENT,
    (State.SILENT, Input.RESET): State.SILENT,
    (State.SILENT, Input.ALL_SILENT): State.SILENT,
    (State.SILENT, Input.SOME_BACK): None,
    (State.SILENT, Input.MISMATCH): State.SILENT,
}

_REASONS = {
    RecordKind.START: "start",
    RecordKind.GAP: "gap",
    RecordKind.RESET: "reset",
    RecordKind.LINE_SILENT: "silent",
    RecordKind.LINE_BACK: "back",
    RecordKind.MISMATCH: "mismatch",
}


class QualityState:
    """The completeness of one service, fed with the marks of its channel."""

    def __init__(self, service: int, lines: list[str]) -> None:
        self.service = service
        self.state = State.WAITING
        self.since: int | None = None
        self.next: int | None = None
        self.silent: set[str] = set()
        self.lost = RangeSet()
        self.lost_ranges = 0
        self.lost_total = 0
        self._lines = lines

    def mark(self, kind: int, line: int, sequence: int, next_sequence: int) -> bytes:
        """Take one mark of the ring; the quality message that tells of it."""
        kind = RecordKind(kind)
        told: dict[str, object] = {}
        if kind in (RecordKind.LINE_SILENT, RecordKind.LINE_BACK, RecordKind.MISMATCH):
            name = self._lines[line]
            told["line"] = name
            if self.since is not None and kind != RecordKind.MISMATCH:
                self.next = sequence
            if kind == RecordKind.LINE_SILENT:
                self.silent.add(name)
            elif kind == RecordKind.LINE_BACK:
                self.silent.discard(name)
            else:
                told["sequence"] = sequence
        elif kind == RecordKind.GAP:
            self.lost.add(sequence, next_sequence - 1)
            self.lost_ranges += 1
            self.lost_total += next_sequence - sequence
            self.next = next_sequence
            told["lost"] = [[sequence, next_sequence - 1]]
        else:
            self._begin(next_sequence)
        self._step(self._input(kind))
        return self._body(_REASONS[kind], **told)

    def attached(self, next_sequence: int | None = None) -> bytes:
        """The message that a new link gets first."""
        lost = [list(pair) for pair in self.lost][-RANGES_TOLD_MAX:]
        if next_sequence:
            self.next = next_sequence
        return self._body("attached", lost=lost)

    def _input(self, kind: RecordKind) -> Input | None:
        """The mark as the table knows it; None where it changes no state."""
        if kind == RecordKind.LINE_SILENT:
            return Input.ALL_SILENT if len(self.silent) == len(self._lines) else None
        if kind == RecordKind.LINE_BACK:
            return Input.SOME_BACK
        return Input[kind.name]

    def _step(self, happened: Input | None) -> None:
        if happened is None:
            return
        following = TABLE[self.state, happened]
        if following is None:
            following = State.STALE if self.lost_ranges else State.OK
            following = State.WAITING if self.since is None else following
        self.state = following

    def _begin(self, first: int) -> None:
        """A numbering begins: what was lost before no longer matters."""
        self.since = self.next = first
        self.lost.clear()
        self.lost_ranges = self.lost_total = 0

    def _body(self, reason: str, **told: object) -> bytes:
        return msgspec.json.encode(
            {
                "state": self.state.value,
                "reason": reason,
                "service": self.service,
                "since": self.since,
                "next": self.next,
                "lost_ranges": self.lost_ranges,
                "lost_total": self.lost_total,
                "silent": sorted(self.silent),
                **told,
            }
        )
