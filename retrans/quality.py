"""The completeness of a service, and the quality messages that announce it to subscribers.

One `QualityState` for each service: a small state machine over the events of its stream, as
arbitration sees them, and over what recovery reports. The table below is the whole of it; every
(state, input) pair has an entry and a test.

    WAITING     nothing was received yet
    OK          everything since `since` was published, in order; nothing of it was lost
    RECOVERING  a range is missing and is being asked for; what follows it waits
    STALE       a range was lost for good, or the stream was joined without a snapshot: what
                builds on it may be wrong
    REFRESHED   what was lost in this epoch has been made good by a snapshot
    SILENT      every line is silent: nothing is known of what the exchange sends

Where several hold, the worst is announced: SILENT, then STALE, RECOVERING, REFRESHED, OK. The
ranges are given in any state, so that nothing is hidden by that.

A quality message is JSON, one object (`Quality` is its typed form). Ranges are pairs
[first, last], both included, the latest 256 of each kind. A message of `CHANGE_REASONS` names what
changed, and of the rest the latest 8 only: a stream that loses much sends many of them.

    state     as above
    reason    what changed: attached, start, gap, skipped, withdrawn, reset, silent, back, mismatch,
              missing, recovered, snapshot-begin, snapshot-end, or why the stream was declared
              stale; to one link alone: with snapshot=1 snapshot, that it comes before anything
              else, or "no snapshot", that there is none (`doubt` says why); with from= resume
              (`resume`)
    service   the service
    since     first sequence of the stream that this epoch's messages belong to
    next      the sequence expected next
    missing   ranges that are missing now and being asked for
    stale     ranges lost in this epoch that no snapshot has made good
    doubt     why the stream is STALE beyond those ranges; null where it is not
    lost_ranges, lost_total   ranges and sequence numbers lost in this epoch, those that a
              snapshot has made good included
    silent    names of the lines that are silent now
    skipped   with reason skipped: the range that the publisher says no messages carry; nothing is
              lost by it
    lost      with reason gap: the range just lost; with reason attached: the same as `stale`
    withdrawn with reason withdrawn: ranges announced lost that were not; the stream goes back to
              `next`. What was published behind it, if anything (`doubt` then says "withdrawn"),
              came before its turn or was forged, and does not come again
    refreshed with reasons attached and snapshot-end: lost ranges that a snapshot has made good
    last      with reasons snapshot-begin and snapshot-end: the snapshot's LastSeqNum
    packets   with reason snapshot-begin: packets until snapshot-end, before they are thinned for
              the link; one that wants less than the service gets at most so many
    sequence  with reason mismatch: where A and B differ
    line      with silent, back, mismatch: the line; R for what recovery brought

What only one receiver lacks, because it is behind, is announced to it alone (`loss_tracker`), with
reasons and keys of its own:

    conflated, conflated_messages   with reasons conflated and caught-up: the range of packets that
              something was taken out of, and how many market messages
    unsequenced   with reason overflow: packets outside the sequence that were dropped; no key where
              there were none
    symbols, through   with reasons books-begin and books-end: whose books come anew, by index or
              text, and which of them a retransmission of orders has been through

No I/O; time is not needed: control events and reports come in order.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto

import msgspec
from msgspec import Struct

from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.stream_events import StreamEventKind

#: What brought a packet that no line of the channel brought.
RECOVERED = "R"
#: Ranges of each kind in one message, and in one of a change; older ones are counted only.
RANGES_REPORTED_MAX = 256
RANGES_IN_CHANGE_MAX = 8
#: Reasons of the messages of one change: each names it, so that who has had all messages before it
#: lacks nothing.
CHANGE_REASONS = frozenset(
    ("gap", "skipped", "withdrawn", "silent", "back", "mismatch", "missing", "recovered")
)

Ranges = tuple[tuple[int, int], ...]


class Quality(Struct, frozen=True):
    """A quality message, decoded; the module says what each key means."""

    state: str
    reason: str
    service: int
    since: int | None = None
    next: int | None = None
    missing: Ranges = ()
    stale: Ranges = ()
    doubt: str | None = None
    lost_ranges: int = 0
    lost_total: int = 0
    silent: tuple[str, ...] = ()
    lost: Ranges = ()
    refreshed: Ranges = ()
    last: int | None = None
    packets: int | None = None
    sequence: int | None = None
    line: str | None = None
    conflated: tuple[int, int] | None = None
    conflated_messages: int = 0
    symbols: tuple[int | str, ...] = ()
    through: tuple[int, ...] = ()
    unsequenced: int = 0
    withdrawn: Ranges = ()
    skipped: Ranges = ()

    @property
    def complete(self) -> bool:
        """Whether what was received is complete: nothing missing, lost or unknown."""
        return self.state in ("OK", "REFRESHED")


class State(Enum):
    """Completeness of a service's stream."""

    WAITING = "WAITING"
    OK = "OK"
    RECOVERING = "RECOVERING"
    REFRESHED = "REFRESHED"
    STALE = "STALE"
    SILENT = "SILENT"


class Input(Enum):
    """An event of a stream."""

    START = auto()
    GAP = auto()
    RESET = auto()
    ALL_SILENT = auto()
    SOME_BACK = auto()
    MISMATCH = auto()
    MISSING = auto()
    RECOVERED = auto()
    SNAPSHOT_BEGIN = auto()
    SNAPSHOT_END = auto()
    DOUBT = auto()
    WITHDRAWN = auto()


_WAIT, _OK, _RECOV, _REFR, _STALE, _SILENT = State
#: The next state by input, a column for each state in the order of `State`; `None`: derived from
#: the ranges (`_as_the_ranges_tell`).
_NEXT: dict[Input, tuple[State | None, ...]] = {
    # in:                  WAITING  OK       RECOV.   REFR.    STALE    SILENT
    Input.START:          (_OK,     _OK,     _OK,     _OK,     _OK,     _OK),
    Input.GAP:            (_STALE,  _STALE,  _STALE,  _STALE,  _STALE,  _SILENT),
    Input.RESET:          (_OK,     _OK,     _OK,     _OK,     _OK,     _SILENT),
    Input.ALL_SILENT:     (_WAIT,   _SILENT, _SILENT, _SILENT, _SILENT, _SILENT),
    Input.SOME_BACK:      (_WAIT,   _OK,     _RECOV,  _REFR,   _STALE,  None),
    Input.MISMATCH:       (_WAIT,   _OK,     _RECOV,  _REFR,   _STALE,  _SILENT),
    Input.MISSING:        (_RECOV,  _RECOV,  _RECOV,  _RECOV,  _STALE,  _SILENT),
    Input.RECOVERED:      (_WAIT,   _OK,     None,    _REFR,   _STALE,  _SILENT),
    Input.SNAPSHOT_BEGIN: (_WAIT,   _OK,     _RECOV,  _REFR,   _STALE,  _SILENT),
    Input.SNAPSHOT_END:   (None,    _OK,     None,    _REFR,   None,    _SILENT),
    Input.DOUBT:          (_STALE,  _STALE,  _STALE,  _STALE,  _STALE,  _SILENT),
    Input.WITHDRAWN:      (_WAIT,   None,    None,    None,    None,    _SILENT),
}  # fmt: skip
TABLE: dict[tuple[State, Input], State | None] = {
    (state, happened): following
    for happened, row in _NEXT.items()
    for state, following in zip(State, row, strict=True)
}

_REASONS = {
    StreamEventKind.START: "start",
    StreamEventKind.GAP: "gap",
    StreamEventKind.RESET: "reset",
    StreamEventKind.LINE_SILENT: "silent",
    StreamEventKind.LINE_BACK: "back",
    StreamEventKind.MISMATCH: "mismatch",
    StreamEventKind.WITHDRAWN: "withdrawn",
    StreamEventKind.SKIPPED: "skipped",
}


class QualityState:
    """The completeness of one service, fed with the control events of its channel and with what
    recovery reports.

    Each input returns the quality message that announces it, which is to be sent before the data
    that it concerns.
    """

    def __init__(self, service: int, lines: list[str]) -> None:
        self.service = service
        self.state = State.WAITING
        self.since: int | None = None
        self.next: int | None = None
        self.silent: set[str] = set()
        self.missing = RangeSet(only_grows=True)
        #: Lost and not repaired; `refreshed`: lost, and repaired by a snapshot.
        self.lost = RangeSet(only_grows=True)
        self.refreshed = RangeSet(only_grows=True)
        self.doubt: str | None = None
        self.lost_ranges = 0
        self.lost_total = 0
        self._lines = lines
        self._snapshot_last = 0
        #: Called at each change of `state`, with the state before.
        self.on_change: Callable[[QualityState, State], None] | None = None

    # -- what arbitration saw ---------------------------------------------------------------

    def control_event(self, kind: int, line: int, sequence: int, next_sequence: int) -> bytes:
        """Process one event of the stream; return the quality message that announces it."""
        kind = StreamEventKind(kind)
        more: dict[str, object] = {}
        if kind in (
            StreamEventKind.LINE_SILENT,
            StreamEventKind.LINE_BACK,
            StreamEventKind.MISMATCH,
        ):
            name = self._lines[line] if line < len(self._lines) else RECOVERED
            more["line"] = name
            if self.since is not None and kind != StreamEventKind.MISMATCH:
                self.next = sequence
            if kind == StreamEventKind.LINE_SILENT:
                self.silent.add(name)
            elif kind == StreamEventKind.LINE_BACK:
                self.silent.discard(name)
            else:
                more["sequence"] = sequence
        elif kind == StreamEventKind.GAP:
            self._lose(sequence, next_sequence)
            more["lost"] = [[sequence, next_sequence - 1]]
        elif kind == StreamEventKind.SKIPPED:
            self.next = next_sequence
            more["skipped"] = [[sequence, next_sequence - 1]]
        elif kind == StreamEventKind.WITHDRAWN:
            more["withdrawn"] = self._withdraw(next_sequence, sequence)
        else:
            self._begin(next_sequence)
        self._step(self._input(kind))
        return self._body(_REASONS[kind], **more)

    def attached(self, next_sequence: int | None = None) -> bytes:
        """Return the message that a new link gets first: all that is known of the service."""
        if next_sequence:
            self.next = next_sequence
        return self._body(
            "attached",
            lost=self.lost.latest(RANGES_REPORTED_MAX),
            refreshed=self.refreshed.latest(RANGES_REPORTED_MAX),
        )

    # -- what recovery reports --------------------------------------------------------------

    def recovering(
        self, ranges: Iterable[tuple[int, int]], next_sequence: int, reason: str = "missing"
    ) -> bytes:
        """Record `ranges` (first, end) as all that is missing now and being asked for; the stream
        goes on at `next_sequence`. Without any it is as `recovered`. Returns the message."""
        self.missing.replace([(first, end - 1) for first, end in ranges])
        if not len(self.missing):
            return self.recovered(next_sequence)
        self.next = next_sequence
        self._step(Input.MISSING)
        return self._body(reason)

    def recovered(self, next_sequence: int) -> bytes:
        """Record that nothing is missing any more; the stream goes on at `next_sequence`. Returns
        the message."""
        self.missing.clear()
        self.next = next_sequence
        self._step(Input.RECOVERED)
        return self._body("recovered")

    def snapshot_begin(self, last: int, packets: int) -> bytes:
        """Begin a snapshot block: the state after packet `last`, in `packets` packets with those
        that were published since, before they are thinned. Returns the message."""
        self._snapshot_last = last
        self._step(Input.SNAPSHOT_BEGIN)
        return self._body("snapshot-begin", last=last, packets=packets)

    def snapshot_end(self, next_sequence: int, heals: bool = True) -> bytes:
        """End the snapshot block; the stream goes on at `next_sequence`. Returns the message.

        `heals`: every number up to the snapshot's last one is repaired. Not so for a block that
        went to some links only: the others still lack what was lost.
        """
        if heals:
            self._heal(self._snapshot_last)
        self.next = next_sequence
        if self.since is None:
            self.since = next_sequence
        self._step(Input.SNAPSHOT_END)
        refreshed = self.refreshed.latest(RANGES_REPORTED_MAX)
        return self._body("snapshot-end", last=self._snapshot_last, refreshed=refreshed)

    def stale(self, reason: str) -> bytes:
        """Declare the stream STALE for this `reason`, until a snapshot or a new epoch. Returns
        the message."""
        self.doubt = reason
        self._step(Input.DOUBT)
        return self._body(reason)

    # -- messages for a single link ---------------------------------------------------------

    def awaiting_snapshot(self) -> bytes:
        """Return the message for a link that asked for a snapshot: it comes, and nothing comes
        before it."""
        return self._body("snapshot", state=State.RECOVERING.value)

    def no_snapshot(self, why: str) -> bytes:
        """Return the message for such a link that there is no snapshot, for this reason; it gets
        the stream as it is."""
        return self._body("no snapshot", state=State.STALE.value, doubt=why)

    # -- the machine ------------------------------------------------------------------------

    def _input(self, kind: StreamEventKind) -> Input | None:
        """Return the table's input for a control event; None where it changes no state."""
        if kind == StreamEventKind.SKIPPED:
            return None
        if kind == StreamEventKind.LINE_SILENT:
            return Input.ALL_SILENT if len(self.silent) == len(self._lines) else None
        if kind == StreamEventKind.LINE_BACK:
            return Input.SOME_BACK
        return Input[kind.name]

    def _step(self, happened: Input | None) -> None:
        if happened is None:
            return
        before, following = self.state, TABLE[self.state, happened]
        self.state = self._as_the_ranges_tell() if following is None else following
        if self.state is not before and self.on_change is not None:
            self.on_change(self, before)

    def _as_the_ranges_tell(self) -> State:
        if len(self.lost) or self.doubt is not None:
            return State.STALE
        if len(self.missing):
            return State.RECOVERING
        if self.since is None:
            return State.WAITING
        return State.REFRESHED if len(self.refreshed) else State.OK

    def _lose(self, first: int, end: int) -> None:
        """Record [first, end) as lost: no longer asked for, and not repaired yet."""
        self.missing.discard(first, end - 1)
        self.lost.add(first, end - 1)
        self.lost_ranges += 1
        self.lost_total += end - first
        self.next = end

    def _withdraw(self, first: int, end: int) -> list[tuple[int, int]]:
        """Withdraw the losses announced in [first, end); the stream goes on at `first`. Returns the
        ranges withdrawn."""
        ranges = RangeSet()
        for lost in (self.lost, self.refreshed):
            for low, last in lost.within(first, end - 1):
                ranges.add(low, last)
            lost.discard(first, end - 1)
        if list(ranges) != [(first, end - 1)]:
            # Something behind was published, forged or before its turn.
            self.doubt = "withdrawn"
        self.lost_ranges -= min(len(ranges), self.lost_ranges)
        self.lost_total -= min(ranges.total, self.lost_total)
        self.next = first
        return list(ranges)

    def _heal(self, last: int) -> None:
        """Record that a snapshot has the state after `last`: what was lost or skipped before is in
        it."""
        for ranges in (self.lost, self.missing):
            for begin, end in ranges:
                if begin <= last:
                    self.refreshed.add(begin, min(end, last))
            ranges.discard_below(last + 1)
        self.doubt = None

    def _begin(self, first: int) -> None:
        """Begin an epoch: what was missing or lost before no longer matters."""
        self.since = self.next = first
        for ranges in (self.missing, self.lost, self.refreshed):
            ranges.clear()
        self.doubt = None
        self.lost_ranges = self.lost_total = 0

    def _body(self, reason: str, **more: object) -> bytes:
        most = ranges_reported(reason)
        return msgspec.json.encode(
            {
                "state": self.state.value,
                "reason": reason,
                "service": self.service,
                "since": self.since,
                "next": self.next,
                "missing": self.missing.latest(most),
                "stale": self.lost.latest(most),
                "doubt": self.doubt,
                "lost_ranges": self.lost_ranges,
                "lost_total": self.lost_total,
                "silent": sorted(self.silent),
                **more,
            }
        )


def ranges_reported(reason: str) -> int:
    """Return how many ranges of a kind a message with this reason has at most."""
    return RANGES_IN_CHANGE_MAX if reason in CHANGE_REASONS else RANGES_REPORTED_MAX
