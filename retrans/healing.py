# cython: annotation_typing=False
"""Healing of declared losses: request a snapshot, wait for it, judge whether it reaches far enough.

One `Healing` a channel. It is in one of five phases:

IDLE     nothing is requested
ASKED    a refresh was requested, and no snapshot has begun since
TAKING   a snapshot has begun: wait for its end
PAUSED   the snapshot failed, was refused or was too old: request again after a back-off, unless one
         begins by itself before that
RESTING  all tries are used up, or the server will not; try again much later, or when it is back

A snapshot heals when its LastSeqNum reaches every lost range, whether it was requested or not. A
snapshot begun before the loss may be too old: then the next one is waited for. Each request and
each snapshot that begins in a pause is a try; after `refresh_tries` of them the channel rests. It
rests in any case when the attempt, all its tries together, has lasted `attempt_us`.

When a server has come back, a request that it may not have received is sent again at once; that is
the same try, with the time that it has left. A returning server also ends a rest early, but only
once: if the attempt begun so fails, a whole rest follows, however often the server comes and goes.

A subscriber that has just attached may also want a snapshot: the phases are the same, but while
nothing is lost there is no rest, and such refreshes begin at least `refresh_backoff_us` apart.
Where none can be had for now, one `NoSnapshot` says so.

Compiled.
"""

from collections.abc import Callable
from enum import Enum, auto

import cython
from cython.cimports.feedhandler.retrans.ranges import RangeSet

from feedhandler.codecs.trading_day import TradingDay
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.retrans.actions import Action, Alert, AskRefresh, Cancel, NoSnapshot
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.reactions import REFRESH, UNKNOWN_REFRESH, RefreshReaction
from feedhandler.retrans.settings import RecoverySettings

#: Lost ranges kept, for reports; whether a snapshot heals depends on the highest number alone.
LOST_RANGES_MAX = 256
#: No deadline: the largest signed 64-bit number.
NEVER = (1 << 63) - 1
#: The back-off stops doubling here: a minute would be a rest.
_BACKOFF_DOUBLINGS = 4
#: An attempt lasts no longer than so many time-outs for each of its tries: one until the server
#: accepts, and one for the snapshot.
ATTEMPT_TIMEOUTS = 2


class Phase(Enum):
    """The phase of a channel's healing (see the module)."""

    IDLE = auto()
    ASKED = auto()
    TAKING = auto()
    PAUSED = auto()
    RESTING = auto()


def attempt_us(settings: RecoverySettings) -> int:
    """Return how long, in µs, a service may try to heal before it is stale."""
    return settings.refresh_tries * ATTEMPT_TIMEOUTS * settings.refresh_timeout_us


#: Phases in which a snapshot is to be expected.
_TRYING = (Phase.ASKED, Phase.TAKING, Phase.PAUSED)


@cython.final
@cython.cclass
class Healing:
    """The declared losses of one channel, and the attempt to heal them.

    `configured`: there is a refresh to wait for; `server`: there is a server to request it from,
    else snapshots come by themselves only. `new_id` numbers the requests. A server that refuses for
    "today" is not asked until `trading_day` turns. Actions are appended to `actions`, in order;
    `counts` has every key of `recovery.COUNTS`.
    """

    service: Public[object]
    settings: Public[object]
    phase: Public[object]
    configured: Public[cython.bint]
    server: Public[cython.bint]
    lost: Public[RangeSet]
    deadline_ns: Readonly[cython.longlong]
    _actions: list
    _counts: dict
    _new_id: object
    _backoff: object
    _open_id: object
    _trading_day: object
    _tries: cython.int
    _asked_ns: cython.longlong
    _barred_until_ns: cython.longlong
    _attempt_ns: cython.longlong
    _until_ns: cython.longlong
    _early: cython.bint
    _wanted: cython.bint
    _alerted: set

    def __init__(
        self,
        service: int,
        settings: RecoverySettings,
        configured: bool,
        server: bool,
        actions: list[Action],
        counts: dict[str, int],
        new_id: Callable[[], int],
        seed: int,
        trading_day: TradingDay,
    ) -> None:
        self.service = service
        self.settings = settings
        self.configured = configured
        self.server = server
        #: Numbers announced lost, and not healed.
        self.lost = RangeSet(limit=LOST_RANGES_MAX, only_grows=True)
        self.phase = Phase.IDLE
        self._actions = actions
        self._counts = counts
        self._new_id = new_id
        self._trading_day = trading_day
        backoff_us = settings.refresh_backoff_us
        self._backoff = Backoff(backoff_us, backoff_us << _BACKOFF_DOUBLINGS, seed)
        #: When `tick` must be called next.
        self.deadline_ns = NEVER
        self._tries = 0
        self._attempt_ns = attempt_us(settings) * 1000
        #: When the attempt under way ends in a rest.
        self._until_ns = NEVER
        #: The attempt under way was begun before its turn, because the server had come back.
        self._early = False
        #: Whether a subscriber waits for a snapshot.
        self._wanted = False
        #: The request that the server has not answered yet; 0 for none.
        self._open_id = 0
        self._asked_ns = -NEVER
        self._barred_until_ns = 0
        self._alerted: set[int] = set()

    @property
    def hurt(self) -> bool:
        """Whether anything was lost and is not healed."""
        return bool(self.lost)

    @property
    def trying(self) -> bool:
        """Whether a snapshot is to be expected."""
        return self.phase in _TRYING

    # -- what happens in the stream ---------------------------------------------------------

    def lose(self, first: int, end: int, now_ns: int) -> None:
        """Record that `first` to `end` - 1 was announced lost; begin an attempt if idle."""
        self.lost.add(first, end - 1)
        self._count("lost", end - first)
        if self.phase is Phase.IDLE:
            self._begin(now_ns)

    def void(self) -> None:
        """Forget the losses of the old sequence epoch, and refuse the snapshot wanted in it."""
        self.lost.clear()
        self._refuse("reset")
        self._idle()
        self._alerted.clear()

    def want(self, now_ns: int) -> None:
        """Request a snapshot for a subscriber, though nothing need be lost.

        Appends `NoSnapshot` where none can be had for now.
        """
        self._wanted = True
        if self.trying:
            return
        if not self.configured:
            self._refuse("no refresh")
        elif self.phase is Phase.RESTING or now_ns < self._barred_until_ns:
            self._refuse("resting")
        else:
            earliest_ns = self._asked_ns + self.settings.refresh_backoff_us * 1000
            if now_ns < earliest_ns:
                self._start(now_ns)
                self._go(Phase.PAUSED, earliest_ns)
            else:
                self._begin(now_ns)

    # -- the refresh server -----------------------------------------------------------------

    def accept(self, request_id: int, now_ns: int) -> None:
        """Restart the time-out of a request that the server accepted; count a late answer."""
        if request_id != self._open_id:
            return self._count("late")
        self._open_id = 0
        self._count("refreshes_accepted")
        if self.phase is Phase.ASKED:
            self._go(Phase.ASKED, now_ns + self._timeout_ns)

    def react(self, request_id: int, reason: int, now_ns: int) -> None:
        """React to the server's refusal, by its `reason` in `reactions.REFRESH`.

        A late answer is only counted.

        Alerts the operator once for each reason.
        """
        if request_id != self._open_id:
            return self._count("late")
        self._open_id = 0
        self._count("refreshes_rejected")
        reply = REFRESH.get(reason, UNKNOWN_REFRESH)
        if reply.reaction is RefreshReaction.REST_TODAY:
            self._barred_until_ns = self._trading_day.turns_ns(now_ns)
        if reply.reaction is not RefreshReaction.PAUSE and reason not in self._alerted:
            self._alerted.add(reason)
            self._count("alerts")
            self._actions.append(
                Alert(f"the refresh server refuses service {self.service}: {reply.text} ({reason})")
            )
        if self.phase is not Phase.ASKED:
            # A snapshot has begun by itself, or a pause is under way: these come first.
            return
        if reply.reaction is RefreshReaction.PAUSE:
            self._again(now_ns)
        else:
            self._rest("refused", now_ns)

    @property
    def barred_until_ns(self) -> int:
        """The turn of the day until which the server refused, perhaps past; 0: never."""
        return self._barred_until_ns

    def resume(self) -> None:
        """Lift the server's refusal for today, by order of the operator; `retry` must follow."""
        self._barred_until_ns = 0
        self._early = False
        self._alerted.clear()

    def retry(self, now_ns: int) -> None:
        """Request again, now that the server can be reached.

        Repeats a request that it may not have received, or ends a rest early, once a rest.
        """
        if self.phase is Phase.ASKED and self._open_id:
            self._request(now_ns)
        elif self.phase is Phase.RESTING and not self._early and now_ns >= self._barred_until_ns:
            self._begin(now_ns)
            self._early = True

    # -- snapshots --------------------------------------------------------------------------

    def await_end(self, now_ns: int) -> None:
        """Wait for the end of the snapshot that has begun; in a pause it counts as a try."""
        if self.phase is Phase.PAUSED:
            self._tries += 1
        if self.phase in (Phase.ASKED, Phase.PAUSED):
            self._go(Phase.TAKING, now_ns + self._timeout_ns)

    def fail(self, now_ns: int) -> None:
        """Count a failed snapshot; request again after a back-off, or rest."""
        self._count("snapshots_failed")
        if self.phase in (Phase.ASKED, Phase.TAKING):
            self._again(now_ns)

    def satisfy(self) -> None:
        """End the attempt: a whole snapshot came, and nothing was lost."""
        self._wanted = False
        self._idle()

    def heal(self, last: int, now_ns: int) -> bool:
        """Return whether the whole snapshot up to `last` reaches every lost range.

        If so the channel is healed; else the snapshot is too old and counts as a failed try.
        """
        if last < self.lost.highest:
            self._count("snapshots_old")
            if self.phase in (Phase.ASKED, Phase.TAKING):
                self._again(now_ns)
            return False
        self._count("healed")
        self._wanted = False
        self.lost.clear()
        self._idle()
        return True

    # -- the clock --------------------------------------------------------------------------

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def tick(self, now_ns: int) -> None:
        """Handle what is due: the end of a rest or a pause, or a time-out."""
        if self.deadline_ns > now_ns:
            return
        if self.phase is Phase.RESTING:
            self._begin(now_ns)
            return
        spent = self._tries >= self.settings.refresh_tries
        if self.phase is not Phase.PAUSED:
            self._count("refreshes_timed_out")
            if spent:
                return self._rest("timed out", now_ns)
        if now_ns >= self._until_ns:
            return self._rest("timed out", now_ns)
        self._ask_or_rest(now_ns)

    # -- parts ------------------------------------------------------------------------------

    @property
    def _timeout_ns(self) -> int:
        return self.settings.refresh_timeout_us * 1000

    def _start(self, now_ns: int) -> None:
        """Start an attempt: reset its tries and its time."""
        self._tries = 0
        self._early = False
        self._until_ns = now_ns + self._attempt_ns

    def _begin(self, now_ns: int) -> None:
        """Start an attempt with its first try."""
        self._start(now_ns)
        self._ask_or_rest(now_ns)

    def _ask_or_rest(self, now_ns: int) -> None:
        """Request a snapshot where a server may be asked; rest where not."""
        if not self.configured:
            self._rest("no refresh", now_ns)
        elif now_ns < self._barred_until_ns:
            self._rest("resting", now_ns)
        else:
            self._tries += 1
            self._request(now_ns)
            self._go(Phase.ASKED, now_ns + self._timeout_ns)

    def _request(self, now_ns: int) -> None:
        """Send the request of this try, in place of the one before."""
        self._cancel()
        self._asked_ns = now_ns
        if self.server:
            self._open_id = self._new_id()
            self._count("refreshes")
            self._actions.append(AskRefresh(self._open_id, self.service))

    def _again(self, now_ns: int) -> None:
        """Schedule another try after a back-off, or rest where all tries are used up."""
        if self._tries >= self.settings.refresh_tries:
            self._rest("failed", now_ns)
        else:
            self._go(Phase.PAUSED, now_ns + self._backoff.delay_ns(self._tries))

    def _rest(self, reason: str, now_ns: int) -> None:
        """Stop trying until `refresh_retry_us` is over, or the day has turned after a refusal.

        A snapshot that is merely wanted is not waited for: that returns to IDLE.
        """
        self._refuse(reason)
        if not self.hurt:
            self._idle()
            return
        self._cancel()
        self._count("rests")
        retry_ns = now_ns + self.settings.refresh_retry_us * 1000
        self._go(Phase.RESTING, max(retry_ns, self._barred_until_ns) if self.configured else NEVER)

    def _refuse(self, reason: str) -> None:
        """Append `NoSnapshot`, once, where a subscriber waits for a snapshot."""
        if self._wanted:
            self._wanted = False
            self._count("wants_refused")
            self._actions.append(NoSnapshot(reason))

    def _idle(self) -> None:
        self._cancel()
        self._go(Phase.IDLE, NEVER)

    def _go(self, phase: Phase, due_ns: int) -> None:
        self.phase = phase
        self.deadline_ns = min(due_ns, self._until_ns) if phase in _TRYING else due_ns

    def _cancel(self) -> None:
        """Cancel the open request; answers that still come to it are late."""
        if self._open_id:
            self._actions.append(Cancel(self._open_id))
            self._open_id = 0

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by
