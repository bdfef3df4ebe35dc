"""The request limits of one retransmission server: per second, per day, and under way at once.

All channels that ask the same server share its `Quota`. Slots are given in turn: a channel that
was refused one is served before a channel that had one already, so that a service with thousands of
gaps cannot starve one with a single gap.

The server's refusals count too. When it says "too many requests today", all channels pause once;
when it says so again to a request sent after the pause, the quota is closed until the next day, or
until the operator resumes it. When it refuses a range as too wide, all channels request half of
that from then on. And when it answers none of `SILENT_ROUNDS` requests, each sent after the one
before had timed out, it is silent: it is not asked for `SILENCE_NS`, or until it says something
after all, or a new connection is made. If the first request after that is not answered either, it
is silent again.

Time is an argument, in ns since 1970. A day is the trading day that the quota is given: when it
turns, all counts of the day begin again. A clock that is set back turns nothing.

Compiled.
"""

import cython

from feedhandler.codecs.trading_day import TradingDay
from feedhandler.codecs.visibility import Public

SECOND_NS = 1_000_000_000
#: How often a channel that waits for a slot looks again; its owner may let it look sooner.
POLL_NS = 1_000_000
#: One part in so many of a second's requests may go at once.
BURST_PARTS = 10
#: Stands for "no limit" of a day or a second.
UNLIMITED = 1 << 62

#: Requests, one after another, that a server must leave unanswered to be considered silent.
SILENT_ROUNDS = 3
#: How long a silent server is not asked, so that not every gap waits for it.
SILENCE_NS = 5 * SECOND_NS

#: The same for C.
_POLL_NS = cython.declare(cython.longlong, POLL_NS)
_SILENCE_NS = cython.declare(cython.longlong, SILENCE_NS)


@cython.final
@cython.cclass
class Quota:
    """The request limits of one server, shared by all channels that ask it.

    `per_s` and `per_day` requests (0: no limit), at most `outstanding_max` under way; `trading_day`
    says when the day turns.
    """

    outstanding_max: Public[cython.longlong]
    per_day: Public[cython.longlong]
    outstanding: Public[cython.longlong]
    used_today: Public[cython.longlong]
    closed: Public[cython.bint]
    waiting: Public[dict]
    _trading_day: object
    _interval_ns: cython.longlong
    _burst: cython.longlong
    _theoretical_ns: cython.longlong
    _paused_until_ns: cython.longlong
    _width_max: cython.longlong
    _turns_ns: cython.longlong
    _round_ns: cython.longlong
    _silent_until_ns: cython.longlong
    _rounds: cython.int

    def __init__(
        self, per_s: int, per_day: int, outstanding_max: int, trading_day: TradingDay
    ) -> None:
        self.per_day = per_day
        self._trading_day = trading_day
        self.outstanding_max = outstanding_max
        self._interval_ns = SECOND_NS // per_s if per_s else 0
        self._burst = max(1, per_s // BURST_PARTS) if per_s else UNLIMITED
        #: When the bucket is full again: the theoretical arrival time of a leaky bucket.
        self._theoretical_ns = 0
        self._paused_until_ns = 0
        self._width_max = UNLIMITED
        self._turns_ns = 0
        # Time-outs in a row, when the latest was, and until when the server counts as silent.
        self._rounds = 0
        self._round_ns = 0
        self._silent_until_ns = 0
        #: Requests under way, of every channel.
        self.outstanding = 0
        self.used_today = 0
        #: The server has refused to go on today.
        self.closed = False
        #: Services that wait for a slot, the longest waiting first.
        self.waiting: dict[int, None] = {}

    def try_acquire(self, service: cython.longlong, now_ns: cython.longlong) -> cython.bint:
        """Take a slot for one request of `service`; where there is none, queue it.

        Returns whether it got the slot.
        """
        if self.exhausted(now_ns) or self._free(now_ns) <= self._ahead(service):
            self.waiting.setdefault(service)
            return False
        self.withdraw(service)
        self.outstanding += 1
        self.used_today += 1
        if self._interval_ns:
            self._theoretical_ns = max(self._theoretical_ns, now_ns) + self._interval_ns
        return True

    @cython.ccall
    def release(self) -> None:
        """Give back the slot of a request that is over: answered, refused, timed out, or void."""
        assert self.outstanding > 0
        self.outstanding -= 1

    @cython.ccall
    def withdraw(self, service: cython.longlong) -> None:
        """Remove `service` from the queue for a slot."""
        if self.waiting:
            self.waiting.pop(service, None)

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def ready_ns(self, now_ns: cython.longlong) -> cython.longlong:
        """Return when to try again after `take` refused; always later than `now_ns`."""
        if now_ns < self._paused_until_ns:
            return self._paused_until_ns
        if self._tokens(now_ns) > 0:
            return now_ns + _POLL_NS
        return self._theoretical_ns - (self._burst - 1) * self._interval_ns

    def exhausted(self, now_ns: cython.longlong) -> cython.bint:
        """Return whether no more requests can be made today; begins a new day where it turns."""
        if now_ns >= self._turns_ns:
            self.new_day(now_ns)
        return self.closed or bool(self.per_day and self.used_today >= self.per_day)

    def refuse(
        self, sent_ns: cython.longlong, now_ns: cython.longlong, pause_ns: cython.longlong
    ) -> cython.bint:
        """Record a refusal for today; return whether that closes the quota.

        The first refusal causes a pause of `pause_ns`; one of a request sent after the pause closes
        the quota until the day turns.
        """
        if not self._paused_until_ns:
            self._paused_until_ns = now_ns + pause_ns
        elif sent_ns >= self._paused_until_ns:
            self.closed = True
        return self.closed

    @property
    def paused_until_ns(self) -> int:
        """The end of the pause that a refusal caused, which may be past; 0 where there was none."""
        return self._paused_until_ns

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def closed_until_ns(self, now_ns: cython.longlong) -> cython.longlong:
        """Return when the day turns where no more requests can be made until then; else 0."""
        return self._turns_ns if self.exhausted(now_ns) else 0

    def resume(self, now_ns: cython.longlong) -> cython.bint:
        """Reset the day's count and refusals for the operator; return whether it was exhausted."""
        was_exhausted = self.exhausted(now_ns)
        self.closed = False
        self._paused_until_ns = self.used_today = 0
        return was_exhausted

    @cython.ccall
    def accept(self, sent_ns: cython.longlong) -> None:
        """Forget an earlier refusal where a request sent after its pause was accepted.

        `sent_ns` is when the request was sent.
        """
        if sent_ns >= self._paused_until_ns:
            self._paused_until_ns = 0

    @cython.ccall
    def time_out(self, sent_ns: cython.longlong, now_ns: cython.longlong) -> None:
        """Count a round without an answer; after several of them the server is silent.

        `sent_ns` is when the request was sent.

        Requests sent before the last time-out belong to the same round.
        """
        if sent_ns < self._round_ns:
            return  # sent together with the last one
        self._round_ns = now_ns
        self._rounds += 1
        if self._rounds >= SILENT_ROUNDS:
            self._silent_until_ns = now_ns + _SILENCE_NS

    @cython.ccall
    def hear(self) -> None:
        """Note that the server has said something: it is not silent."""
        self._rounds = 0
        self._silent_until_ns = 0

    @cython.ccall
    def give_chance(self) -> None:
        """Allow requests to a silent server again, though it has said nothing yet."""
        self._silent_until_ns = 0

    def silent(self, now_ns: cython.longlong) -> cython.bint:
        """Return whether the server is considered silent, so that a request would be in vain."""
        return now_ns < self._silent_until_ns

    @cython.ccall
    def narrow(self, width: cython.longlong) -> None:
        """Halve the width of requests: the server refused `width` numbers as too wide."""
        self._width_max = min(self._width_max, max(1, width // 2))

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def width(self, most: cython.longlong) -> cython.longlong:
        """Return the greatest width of a request, in numbers, where the settings allow `most`."""
        return min(self._width_max, most)

    @cython.ccall
    def reopen(self) -> None:
        """Drop the limits that the server's answers imposed, for a new sequence epoch.

        The count of the day stays.
        """
        self.closed = False
        self._paused_until_ns = 0
        self._silent_until_ns = 0
        self._width_max = UNLIMITED

    @cython.ccall
    def new_day(self, now_ns: cython.longlong) -> None:
        """Begin the counts of a new day."""
        self._turns_ns = self._trading_day.turns_ns(now_ns)
        self.used_today = 0
        self.reopen()

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _ahead(self, service: cython.longlong) -> cython.longlong:
        """Return how many services wait ahead of `service`; all where it does not wait yet."""
        if not self.waiting:
            return 0
        for at, other in enumerate(self.waiting):
            if other == service:
                return at
        return len(self.waiting)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _free(self, now_ns: cython.longlong) -> cython.longlong:
        """Return the number of slots that can be given now."""
        if now_ns < self._paused_until_ns:
            return 0
        return min(self.outstanding_max - self.outstanding, self._tokens(now_ns))

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _tokens(self, now_ns: cython.longlong) -> cython.longlong:
        """Return the number of requests that the rate allows now."""
        if not self._interval_ns or self._theoretical_ns <= now_ns:
            return self._burst
        behind = self._theoretical_ns - now_ns
        return (self._burst * self._interval_ns - behind) // self._interval_ns
