# cython: annotation_typing=False
"""Recovery of one channel: requests what is missing, heals what was lost, reports the state.

A `Recovery` gets control events of arbitration (gaps, losses), answers of the retransmission and
the refresh server, and the time. It gives actions (`take`), its state, and the instant at which it
must be called again. It owns no socket, no packet and no clock; packets that come go straight to
arbitration, and only their numbers are reported here.

Each kind of input is a method, one for every `Input` of the table in `states.py`; the table says
what is done about it and which states may follow. `retransmission.py` keeps what is missing,
`healing.py` what was lost. The order of things:

    MISSING ─▶ ask, again with back-off ─▶ came: nothing more to do
                       └▶ abandoned ─▶ `GiveUp` ─▶ arbitration announces it: LOST
    LOST ─▶ ask for a snapshot, again with back-off ─▶ it reaches: healed
                       └▶ stale, until the next turn, or until a snapshot comes by itself

The live stream is never held back beyond `recovery_wait_us`: arbitration sees to that by itself,
and here everything is abandoned at the same bound. One channel's losses touch no other channel; all
that channels share is the `Quota` of a server.

Times are integers in ns, sequence numbers are integers, ranges half-open.

Compiled.
"""

from collections.abc import Callable, Iterable
from typing import Any

import cython
from cython.cimports.feedhandler.retrans.healing import Healing
from cython.cimports.feedhandler.retrans.retransmission import Retransmission

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.retrans import actions
from feedhandler.retrans.quota import Quota
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import TABLE, Action, Input, State

#: Key of `Recovery.counts`: what it counts.
COUNTS: dict[str, str] = {
    "missing": "sequence numbers missing on every line, as arbitration reported them",
    "requests": "retransmission requests",
    "requested": "sequence numbers in them",
    "retries": "requests that came to nothing, and were made again after a back-off",
    "accepted": "requests that the server accepted",
    "rejected": "requests that it refused",
    "narrowed": "refusals of a range as too wide, after which half as much is asked for",
    "partial": "answers that left something out, and requests that could not be sent",
    "timed_out": "requests without an answer, or without the next packet of one",
    "cancelled": "requests cancelled: timed out, or everything in them came otherwise",
    "late": "answers to requests that were over",
    "abandoned": "sequence numbers that will not be asked for again",
    "out_of_time": "of those, because recovery_wait_us was over, or nearly",
    "unreachable": "of those, because the server was down, or silent",
    "crowded": "of those, because too many runs waited already",
    "given_up": "times that arbitration was asked to announce the abandoned ones lost",
    "lost": "sequence numbers announced lost",
    "refreshes": "refresh requests",
    "refreshes_accepted": "refresh requests that the server accepted",
    "refreshes_rejected": "refresh requests that it refused",
    "refreshes_timed_out": "refreshes without a snapshot, or without the end of one, in time",
    "snapshots_failed": "snapshots that came to nothing",
    "snapshots_old": "snapshots that did not reach what was lost",
    "healed": "snapshots that healed everything lost",
    "rests": "times that a refresh was left for a while, the channel being stale",
    "wants_refused": "times that those who wanted a snapshot were refused as there is none for now",
    "alerts": "messages to the operator",
}


class Recovery:
    """The recovery of the channel `service`.

    `quota` is the retransmission server's, None where there is none; `refresh` says whether
    snapshots are to be had, and `refresh_server` whether they can be requested, too; the same
    `seed` gives the same jitter. Requests are numbered from `first_id` on.
    """

    def __init__(
        self,
        service: int,
        settings: RecoverySettings,
        *,
        quota: Quota | None,
        refresh: bool,
        refresh_server: bool = True,
        seed: int,
        first_id: int = 1,
        trading_day: TradingDay,
    ) -> None:
        self.service = service
        self.state = State.IN_SYNC
        self.counts = dict.fromkeys(COUNTS, 0)
        self._actions: list[actions.Action] = []
        self._suspecting = False
        self._retransmission = Retransmission(
            service, settings, quota, self._actions, self.counts, seed, first_id
        )
        self._healing = Healing(
            service,
            settings,
            refresh,
            refresh_server,
            self._actions,
            self.counts,
            self._retransmission.new_id,
            seed + 1,
            trading_day,
        )
        # The table with the handlers in place of actions, indexed by state and input: it is looked
        # up for every packet that was missing, and members of an Enum hash slowly.
        do = self._handlers()
        self._rules: list[list[Any]] = [
            [(do[rule.action], rule.next) for _, rule in sorted(TABLE[state].items())]
            for state in State
        ]

    # -- the current state ------------------------------------------------------------------

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next; the largest signed 64-bit number for never."""
        return min(self._retransmission.deadline_ns, self._healing.deadline_ns)

    @property
    def requested(self) -> list[tuple[int, int]]:
        """The ranges of the requests under way, half-open, in order."""
        return sorted((each.first, each.end) for each in self._retransmission.requests.values())

    @property
    def missing_ranges(self) -> list[tuple[int, int]]:
        """The ranges that are missing and not abandoned, half-open, in order."""
        return [(first, last + 1) for first, last in self._retransmission.missing]

    @property
    def abandoned_ranges(self) -> list[tuple[int, int]]:
        """The ranges that are abandoned and not announced lost yet, half-open, in order."""
        return [(first, last + 1) for first, last in self._retransmission.abandoned]

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """The ranges that were announced lost and are not healed, half-open, in order."""
        return [(first, last + 1) for first, last in self._healing.lost]

    def pop_actions(self) -> list[actions.Action]:
        """Return the actions since the last call, in order."""
        taken = self._actions[:]
        if taken:
            self._actions.clear()
        return taken

    # -- control events of arbitration ------------------------------------------------------

    def noticed(self, now_ns: int) -> None:
        """Note that a gap was noticed; the other line may still fill it."""
        self._step(Input.NOTICED, now_ns)

    def missing(self, first: int, end: int, epoch: int, now_ns: int) -> None:
        """Take in that `first` to `end` - 1 is missing on every line, in the sequence epoch
        `epoch`."""
        _check(first, end)
        self._step(Input.MISSING, now_ns, first, end, epoch)

    def lost(self, first: int, end: int, now_ns: int) -> None:
        """Take in that `first` to `end` - 1 was announced lost, or was sent before we joined."""
        _check(first, end)
        self._step(Input.LOST, now_ns, first, end)

    def still_lost(self, ranges: Iterable[tuple[int, int]], now_ns: int) -> None:
        """Take in again the ranges (first, last) that stay lost after a withdrawal; each counts
        once."""
        counted = self.counts["lost"]
        for first, last in ranges:
            self.lost(first, last + 1, now_ns)
        self.counts["lost"] = counted

    def closed(self, expected: int, now_ns: int) -> None:
        """Note that nothing is missing any more: the stream goes on at `expected`."""
        self._step(Input.CLOSED, now_ns, expected)

    def progress(self, expected: int, now_ns: int) -> None:
        """Note that the stream has come to `expected`, though something is missing beyond."""
        self._step(Input.PROGRESS, now_ns, expected)

    def reset(self, now_ns: int) -> None:
        """Begin a new sequence epoch: everything under way is void."""
        self._step(Input.RESET, now_ns)

    # -- the retransmission server ----------------------------------------------------------

    def accepted(self, request_id: int, now_ns: int) -> None:
        """Note that the server will send the request's packets."""
        self._step(Input.ACCEPTED, now_ns, request_id)

    def rejected(self, request_id: int, reason: int, now_ns: int) -> None:
        """Note that the server refused the request, for the `reason` on the wire."""
        self._step(Input.REJECTED, now_ns, request_id, reason)

    def arrived(self, request_id: int, first: int, end: int, now_ns: int) -> None:
        """Note that `first` to `end` - 1 came in answer to the request."""
        _check(first, end)
        self._step(Input.ARRIVED, now_ns, request_id, first, end)

    def answered(self, request_id: int, now_ns: int) -> None:
        """Note that the answer to the request is over."""
        self._step(Input.ANSWERED, now_ns, request_id)

    def server_up(self, now_ns: int) -> None:
        """Note that the retransmission server can be asked; before the first call it cannot."""
        self._step(Input.SERVER_UP, now_ns)

    def server_down(self, now_ns: int) -> None:
        """Note that the connection is gone, and with it every answer under way."""
        self._step(Input.SERVER_DOWN, now_ns)

    # -- refresh ----------------------------------------------------------------------------

    def refresh_barred_until_ns(self, now_ns: int) -> int:
        """Return when the day turns, where the refresh server refuses until then; else 0."""
        barred_ns = self._healing.barred_until_ns
        return barred_ns if barred_ns > now_ns else 0

    def resume_refresh(self, now_ns: int) -> bool:
        """Lift the refresh server's refusal for today; return whether there was one."""
        if not self.refresh_barred_until_ns(now_ns):
            return False
        self._healing.resume()
        self._step(Input.REFRESH_UP, now_ns)
        return True

    def refresh_accepted(self, request_id: int, now_ns: int) -> None:
        """Note that the refresh server will send a snapshot."""
        self._step(Input.REFRESH_ACCEPTED, now_ns, request_id)

    def refresh_rejected(self, request_id: int, reason: int, now_ns: int) -> None:
        """Note that the refresh server refused, for the `reason` on the wire."""
        self._step(Input.REFRESH_REJECTED, now_ns, request_id, reason)

    def refresh_up(self, now_ns: int) -> None:
        """Note that the refresh server can be asked again; send what it may have missed."""
        self._step(Input.REFRESH_UP, now_ns)

    def snapshot_began(self, now_ns: int) -> None:
        """Note that a snapshot's first packet came."""
        self._step(Input.SNAPSHOT_BEGAN, now_ns)

    def snapshot_failed(self, reason: str, now_ns: int) -> None:
        """Note that a snapshot failed; `reason` is text for the log."""
        self._step(Input.SNAPSHOT_FAILED, now_ns, reason)

    def snapshot(self, last: int, now_ns: int) -> bool:
        """Return whether a whole snapshot with LastSeqNum `last` heals what was lost.

        True only where something was lost and every lost range ends at or below `last`.
        """
        return bool(self._step(Input.SNAPSHOT, now_ns, last))

    def want_snapshot(self, now_ns: int) -> None:
        """Request a snapshot for a subscriber, though nothing need be lost.

        Where none can be had for now, one `NoSnapshot` says so.
        """
        self._step(Input.WANT_SNAPSHOT, now_ns)

    def tick(self, now_ns: int) -> None:
        """Do what has become due; afterwards `deadline_ns` is later than `now_ns`."""
        self._step(Input.TICK, now_ns)

    # -- the machine ------------------------------------------------------------------------

    def _step(self, given: Input, now_ns: int, *about: Any) -> object:
        """Take one input through the table: act, send requests, move to the resulting state."""
        act, follow = self._rules[self.state][given - 1]
        answer = act(now_ns, *about)
        self._retransmission.pump(now_ns)
        self.state = self._stands()
        assert self.state in follow, (given, self.state)
        return answer

    def _stands(self) -> State:
        """Return the state that follows from what is lost, missing and suspected now."""
        if self._healing.lost:
            return State.REFRESHING if self._healing.trying else State.STALE
        if self._retransmission.missing or self._retransmission.abandoned:
            return State.REQUESTING
        return State.SUSPECTING if self._suspecting else State.IN_SYNC

    def _handlers(self) -> dict[Action, Callable[..., object]]:
        """Return the handler of each action, called with the time and the input's arguments."""
        asked, healing = self._retransmission, self._healing
        return {
            Action.NOTHING: lambda now, *about: None,
            Action.SUSPECT: lambda now: self._suspect(True),
            Action.REQUEST: self._request,
            Action.LOSE: self._lose,
            Action.SETTLE: lambda now, expected: self._settle(),
            Action.ADVANCE: lambda now, expected: asked.settle_below(expected),
            Action.VOID: lambda now: self._void(),
            Action.WAIT_ON: lambda now, each: asked.accept(each, now),
            Action.REACT: lambda now, each, reason: asked.react(each, reason, now),
            Action.TAKE: lambda now, each, first, end: asked.record_answer(each, first, end, now),
            Action.CHECK: lambda now, each: asked.check(each, now),
            Action.COUNT_LATE: lambda now, *about: asked.count_late(),
            Action.CONNECT: asked.connect,
            Action.DISCONNECT: asked.disconnect,
            Action.AWAIT_REFRESH: lambda now, each: healing.accept(each, now),
            Action.REACT_REFRESH: lambda now, each, reason: healing.react(each, reason, now),
            Action.RETRY_REFRESH: healing.retry,
            Action.AWAIT_SNAPSHOT: healing.await_end,
            Action.REFRESH_AGAIN: lambda now, reason: healing.fail(now),
            Action.HEAL: lambda now, last: healing.heal(last, now),
            Action.SATISFY: lambda now, last: healing.satisfy(),
            Action.WANT: healing.want,
            Action.LOOK: self._look,
        }

    def _suspect(self, gap: bool) -> None:
        self._suspecting = gap

    def _request(self, now_ns: int, first: int, end: int, epoch: int) -> None:
        # When the range has come, arbitration has still to say that the gap is closed.
        self._suspecting = True
        self.counts["missing"] += end - first
        self._retransmission.report(first, end, epoch, now_ns)

    def _lose(self, now_ns: int, first: int, end: int) -> None:
        self._retransmission.settle(first, end)
        self._healing.lose(first, end, now_ns)

    def _settle(self) -> None:
        self._suspecting = False
        self._retransmission.settle_all()

    def _void(self) -> None:
        self._suspecting = False
        self._retransmission.void()
        self._healing.void()

    def _look(self, now_ns: int) -> None:
        self._retransmission.tick(now_ns)
        self._healing.tick(now_ns)


@cython.cfunc
def _check(first: int, end: int) -> None:
    if first >= end:
        raise UsageError(f"the range {first} to {end} is empty", "ranges are half-open: first, end")
