"""Two servers of one kind, a primary and a secondary: which is asked, and what moves when.

Both connections are kept, so that a change costs no time. The primary is asked while it is there
and answers; where its connection breaks, or a request gets no answer for half of the time that
recovery gives it, the secondary is asked, and requests that wait for an answer move there. The
primary is asked again once it has been connected for `failback_us`, or at once where the secondary
fails. After `failback_us` the secondary still answers what it was asked for before. What a server
refuses, though the other may have it, is asked of the other, once: recovery hears the second
answer.

`TABLE` has the next state for each state and input; of the two, the second holds where the other
server, that of which the input does not speak, is not there:

PRIMARY    the primary is asked
SECONDARY  the secondary is asked, the primary is not there
RETURNING  the secondary is asked, the primary is there but has not been for long enough

A primary counts as there until it is known not to be, so that a start begins with it. An end whose
connection is made on demand is there again as soon as an attempt has failed: only the next will
report.

Sans-IO: the time is an argument. `FailoverPair` stands in the place of a `ReconnectingClient`;
`ends` are the two that have the connections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Event,
    RefreshAccepted,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
    Rejected,
)
from feedhandler.retrans.protocol import NEVER_NS, RetransReject
from feedhandler.retrans.reconnection import ReconnectingClient, RecoveryClient
from feedhandler.retrans.settings import RecoverySettings

#: The part of a request's time-out after which the other server is asked: it has the other half.
SILENT_PART = 2
#: The ends, by their index in `FailoverPair.ends`.
PRIMARY_END, SECONDARY_END = range(2)
#: Refusals of packets that the other server may not share.
REFUSED_HERE = frozenset(
    {
        RetransReject.PERMISSION,
        RetransReject.TOO_MANY_TODAY,
        RetransReject.NO_LONGER_AVAILABLE,
        RetransReject.WRONG_SERVICE,
    }
)

#: What is counted, by name.
COUNTS: dict[str, str] = {
    "failovers": "times that the secondary was asked from then on, as the primary failed",
    "failbacks": "times that the primary was asked again",
    "moved": "requests that moved to the other server, as one failed",
    "passed_on": "requests that one server refused and the other was asked for",
}


class State(Enum):
    """Server that is asked (see the module)."""

    PRIMARY = auto()
    SECONDARY = auto()
    RETURNING = auto()


class Input(Enum):
    """Event at one of the two; DUE: the primary has been there for long enough."""

    PRIMARY_UP = auto()
    PRIMARY_DOWN = auto()
    PRIMARY_SILENT = auto()
    SECONDARY_UP = auto()
    SECONDARY_DOWN = auto()
    SECONDARY_SILENT = auto()
    DUE = auto()


_P, _S, _R = State

#: Next states by input, a column for each state in the order of `State`: where the other server is
#: there, and where it is not.
_NEXT: dict[Input, tuple[tuple[State, State], ...]] = {
    # in:                    PRIMARY   SECONDARY RETURNING
    Input.PRIMARY_UP:       ((_P, _P), (_R, _P), (_R, _R)),
    Input.PRIMARY_DOWN:     ((_S, _P), (_S, _S), (_S, _S)),
    Input.PRIMARY_SILENT:   ((_R, _P), (_S, _S), (_R, _R)),
    Input.SECONDARY_UP:     ((_P, _S), (_S, _S), (_R, _R)),
    Input.SECONDARY_DOWN:   ((_P, _P), (_S, _S), (_P, _P)),
    Input.SECONDARY_SILENT: ((_P, _P), (_S, _S), (_P, _P)),
    Input.DUE:              ((_P, _P), (_S, _S), (_P, _P)),
}  # fmt: skip
TABLE: dict[State, dict[Input, tuple[State, State]]] = {
    state: {happened: row[column] for happened, row in _NEXT.items()}
    for column, state in enumerate(State)
}
_UP = (Input.PRIMARY_UP, Input.SECONDARY_UP)
_DOWN = (Input.PRIMARY_DOWN, Input.SECONDARY_DOWN)
_SILENT = (Input.PRIMARY_SILENT, Input.SECONDARY_SILENT)
#: Events after which no other names the request.
_LAST = (Answered, Rejected, RefreshRejected, RefreshSnapshot, RefreshFailed)


@dataclass(slots=True)
class _Asked:
    """A request under way at an end: since when it was asked or accepted, whether the end is still
    judged by its silence about it, and whether the other end has refused it before."""

    request: Ask | AskRefresh
    end: int
    asked_ns: int
    judged: bool = True
    passed_on: bool = False


class FailoverPair:
    """A primary and a secondary server; see the module.

    `make` makes the client of either. The callbacks are those of `Reconnection`: `on_up` and
    `on_down` say whether there is a server that can be asked. `on_switch` is called with a line of
    text when the other is asked from now on; `on_deadline` is called where `deadline_ns` may have
    moved otherwise than by asking or `tick`. `seed` draws the jitter of waits.
    """

    def __init__(
        self,
        make: Callable[[], RecoveryClient],
        settings: RecoverySettings,
        *,
        on_events: Callable[[list[Any], int], None],
        on_up: Callable[[int], None],
        on_down: Callable[[str, int], None],
        on_switch: Callable[[str, int], None],
        on_deadline: Callable[[int], None],
        seed: int,
    ) -> None:
        self.state = State.PRIMARY
        self.ends = tuple(
            ReconnectingClient(
                make(),
                settings,
                on_events=partial(self._events, end),
                on_up=partial(self._end_up, end),
                on_down=partial(self._end_down, end),
                seed=seed + end,
            )
            for end in (PRIMARY_END, SECONDARY_END)
        )
        self._on_events, self._on_up, self._on_down = on_events, on_up, on_down
        self._on_switch, self._on_deadline = on_switch, on_deadline
        self._counts = dict.fromkeys(COUNTS, 0)
        self._failback_ns = settings.failback_us * 1_000
        self._silent_ns = settings.request_timeout_us * 1_000 // SILENT_PART
        self._refresh_ns = settings.refresh_timeout_us * 1_000
        self._refresh_silent_ns = self._refresh_ns // SILENT_PART
        self._asked: dict[int, _Asked] = {}
        #: Whether each can be asked; and whether each is there, as far as the table knows.
        self._up = [self.on_demand, self.on_demand]
        self._there = [True, self.on_demand]
        #: When RETURNING ends.
        self._due_ns = NEVER_NS
        self._reported_up = self.on_demand

    # -- what it shows ----------------------------------------------------------------------

    @property
    def asked_end(self) -> int:
        """The end that is asked now."""
        return PRIMARY_END if self.state is State.PRIMARY else SECONDARY_END

    @property
    def on_demand(self) -> bool:
        """Whether connections are there only while they are wanted."""
        return self.ends[PRIMARY_END].on_demand

    @property
    def available(self) -> bool:
        """Whether the server that is asked now is there."""
        return self.ends[self.asked_end].available

    @property
    def counts(self) -> dict[str, int]:
        """Counts of both clients together, and those of the fail-over."""
        primary, secondary = (end.client.counts for end in self.ends)
        return {**{key: primary[key] + secondary[key] for key in primary}, **self._counts}

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next; the ends have deadlines of their own."""
        judged = [each for each in self._asked.values() if each.judged]
        return min([self._due_ns, *(self._silent_at_ns(each) for each in judged)])

    def _silent_at_ns(self, asked: _Asked) -> int:
        """Return when an end counts as silent that has not answered a request."""
        packets = isinstance(asked.request, Ask)
        return asked.asked_ns + (self._silent_ns if packets else self._refresh_silent_ns)

    # -- asking -----------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request packets of the server that is asked now; return False where it was not sent."""
        return self._ask(_Asked(request, self.asked_end, now_ns))

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot of the server that is asked now; False where it was not sent."""
        return self._ask(_Asked(request, self.asked_end, now_ns))

    def _ask(self, asked: _Asked) -> bool:
        end, request = self.ends[asked.end], asked.request
        if isinstance(request, Ask):
            sent = end.ask(request, asked.asked_ns)
        else:
            sent = end.ask_refresh(request, asked.asked_ns)
        if sent:
            self._forget_snapshot(request)
            self._asked[request.request_id] = asked
        return sent

    def _forget_snapshot(self, request: Ask | AskRefresh) -> None:
        """Cancel an earlier request for a service's snapshot: where it comes by lines, no event
        ends it, and what the other end still sends could not be cancelled later."""
        if isinstance(request, AskRefresh):
            for each in [asked.request for asked in self._asked.values()]:
                if isinstance(each, AskRefresh) and each.service == request.service:
                    self.cancel(each.request_id)

    def cancel(self, request_id: int) -> None:
        """Cancel a request, wherever it is."""
        asked = self._asked.pop(request_id, None)
        if asked is not None:
            self.ends[asked.end].cancel(request_id)

    def tick(self, now_ns: int) -> None:
        """Let time pass: leave a server that does not answer, return to the primary."""
        if now_ns >= self._due_ns:
            self._step(Input.DUE, "it has been connected for long enough", now_ns)
        late = [
            each for each in self._asked.values()
            if each.judged and now_ns >= self._silent_at_ns(each)
        ]  # fmt: skip
        for end in sorted({each.end for each in late}):
            self._step(_SILENT[end], "no answer in time", now_ns)
        for each in late:
            # Where there was no other to move to, recovery's own time-out is next.
            each.judged = False

    # -- reports of the ends -----------------------------------------------------------------

    def _events(self, end: int, events: list[Event], now_ns: int) -> None:
        """Hand on events, but for refusals that the other end is asked about instead."""
        events_left = [event for event in events if not self._kept(end, event, now_ns)]
        if events_left:
            self._on_events(events_left, now_ns)
        if len(events_left) < len(events):
            self._on_deadline(now_ns)

    def _kept(self, end: int, event: Event, now_ns: int) -> bool:
        """Note what an event says of its request; return whether it is kept to ourselves."""
        asked = self._asked.get(getattr(event, "request_id", 0))
        if asked is None or asked.end != end:
            return False
        if isinstance(event, Accepted | RefreshAccepted):
            asked.judged, asked.asked_ns = False, now_ns
        elif isinstance(event, _LAST):
            del self._asked[asked.request.request_id]
            return self._passed_on(asked, event, now_ns)
        return False

    def _passed_on(self, asked: _Asked, event: Event, now_ns: int) -> bool:
        """Ask the other end what one has refused; return whether it was asked."""
        refused = isinstance(event, RefreshRejected | RefreshFailed) or (
            isinstance(event, Rejected) and event.reason in REFUSED_HERE
        )
        other = 1 - asked.end
        if not refused or asked.passed_on or not self._up[other]:
            return False
        passed = self._ask(_Asked(asked.request, other, now_ns, passed_on=True))
        self._counts["passed_on"] += passed
        return passed

    def _end_up(self, end: int, now_ns: int) -> None:
        self._up[end] = self._there[end] = True
        self._step(_UP[end], "it is connected", now_ns)

    def _end_down(self, end: int, reason: str, now_ns: int) -> None:
        self._up[end] = self._there[end] = False
        self._step(_DOWN[end], reason, now_ns)
        if self.on_demand:
            self._end_up(end, now_ns)

    def _step(self, what: Input, reason: str, now_ns: int) -> None:
        """Apply an input: move requests where the other is asked, and say what changes."""
        of_primary = what in (Input.PRIMARY_UP, Input.PRIMARY_DOWN, Input.PRIMARY_SILENT)
        other = SECONDARY_END if of_primary else PRIMARY_END
        before, asked_before = self.state, self.asked_end
        self.state = TABLE[before][what][0 if self._there[other] else 1]
        if self.state is not before:
            returning = self.state is State.RETURNING
            self._due_ns = now_ns + self._failback_ns if returning else NEVER_NS
        # The owner is notified of the change before requests are made of the other end.
        self._report(reason, now_ns)
        if self.asked_end != asked_before:
            self._switch(reason, now_ns)
            if what is not Input.DUE:
                self._move(asked_before, now_ns)
        self._on_deadline(now_ns)

    def _report(self, reason: str, now_ns: int) -> None:
        """Notify the owner when the server that is asked now comes up or goes down."""
        up = self._up[self.asked_end]
        if up == self._reported_up:
            return
        self._reported_up = up
        if up:
            self._on_up(now_ns)
        else:
            self._asked.clear()
            self._on_down(reason, now_ns)

    def _switch(self, reason: str, now_ns: int) -> None:
        """Count and report that the other end is asked from now on."""
        to_primary = self.asked_end == PRIMARY_END
        self._counts["failbacks" if to_primary else "failovers"] += 1
        self._on_switch(
            f"{'primary' if to_primary else 'secondary'} is asked now: {reason}", now_ns
        )

    def _move(self, left: int, now_ns: int) -> None:
        """Ask the other end for what waits at the one that failed.

        A snapshot that was accepted long ago has come by lines, or is not waited for any more.
        """
        for asked in [each for each in self._asked.values() if each.end == left]:
            request = asked.request
            del self._asked[request.request_id]
            self.ends[left].cancel(request.request_id)
            if isinstance(request, Ask) or now_ns < asked.asked_ns + self._refresh_ns:
                self._counts["moved"] += self._ask(_Asked(request, self.asked_end, now_ns))
