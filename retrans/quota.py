# cython: annotation_typing=False
"""What one retransmission server will bear: requests per second, per day, and at once.

All channels that ask the same server share its `Quota`. Places are given in turn: a channel that
was refused one is served before a channel that had one already, so that a service with thousands
of holes cannot starve one with a single hole.

The server's own words count too. When it says "too many requests today", everybody pauses once;
when it says so again to a request sent after the pause, the quota is closed until the next day,
or until the operator has it resumed.
When it refuses a range as too wide, everybody asks for half of that from then on. And when it says
nothing at all to `SILENT_ROUNDS` requests, each sent after the one before had timed out, it is
silent: nobody asks it for `SILENCE_NS`, or until it says something after all, or has been connected
to anew. If it says nothing to the first request after that either, it is silent again.

Time is an argument, in ns since 1970. A day is the trading day that the quota is given: when it
turns, all counts of the day begin again. A clock that is set back turns nothing.

Compiled; the types of attributes and verbs stand in `quota.pxd`.
"""

import cython

from feedhandler.codecs.trading_day import TradingDay

SECOND_NS = 1_000_000_000
#: How often a channel that waits for a place looks again; its owner may let it look sooner.
POLL_NS = 1_000_000
#: This part of a second's requests may go at once.
BURST_PARTS = 10
#: No limit worth the name, for a day or a second without one.
UNLIMITED = 1 << 62

#: Requests, one after another, that a server must have left without a word to be called silent.
SILENT_ROUNDS = 3
#: How long a silent server is left alone, so that not every hole waits for it.
SILENCE_NS = 5 * SECOND_NS

#: The same for C.
_POLL_NS = cython.declare(cython.longlong, POLL_NS)
_SILENCE_NS = cython.declare(cython.longlong, SILENCE_NS)


@cython.final
@cython.cclass
class Quota:
    """`per_s` and `per_day` requests (0: no limit), `outstanding_max` under way; `trading_day` says
    when the day turns."""

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
        # Time-outs in a row without a word, when the latest was, and until when it is silent.
        self._rounds = 0
        self._round_ns = 0
        self._silent_until_ns = 0
        #: Requests under way, of every channel.
        self.outstanding = 0
        self.used_today = 0
        #: The server has refused to go on today.
        self.closed = False
        #: Services that wait for a place, the longest waiting first.
        self.waiting: dict[int, None] = {}

    def take(self, service: int, now_ns: int) -> bool:
        """A place for one request of `service`; where there is none it waits in turn."""
        if self.exhausted(now_ns) or self._free(now_ns) <= self._ahead(service):
            self.waiting.setdefault(service)
            return False
        self.withdraw(service)
        self.outstanding += 1
        self.used_today += 1
        if self._interval_ns:
            self._theoretical_ns = max(self._theoretical_ns, now_ns) + self._interval_ns
        return True

    def release(self) -> None:
        """A request is over: answered, refused, timed out, or void."""
        assert self.outstanding > 0
        self.outstanding -= 1

    def withdraw(self, service: int) -> None:
        """`service` no longer waits."""
        if self.waiting:
            self.waiting.pop(service, None)

    def ready_ns(self, now_ns: int) -> int:
        """When to try again after `take` refused; always later than `now_ns`."""
        if now_ns < self._paused_until_ns:
            return self._paused_until_ns
        if self._tokens(now_ns) > 0:
            return now_ns + _POLL_NS
        return self._theoretical_ns - (self._burst - 1) * self._interval_ns

    def exhausted(self, now_ns: int) -> bool:
        """Nothing more can be asked today."""
        if now_ns >= self._turns_ns:
            self.new_day(now_ns)
        return self.closed or bool(self.per_day and self.used_today >= self.per_day)

    def refuse(self, sent_ns: int, now_ns: int, pause_ns: int) -> bool:
        """The server says "too many today" to a request sent at `sent_ns`: is it closed now?"""
        if not self._paused_until_ns:
            self._paused_until_ns = now_ns + pause_ns
        elif sent_ns >= self._paused_until_ns:
            self.closed = True
        return self.closed

    @property
    def paused_until_ns(self) -> int:
        """When the pause ends, or ended, that the server's refusal caused; 0 where none did."""
        return self._paused_until_ns

    def closed_until_ns(self, now_ns: int) -> int:
        """When the day turns, where nothing more can be asked until then; else 0."""
        return self._turns_ns if self.exhausted(now_ns) else 0

    def resume(self, now_ns: int) -> bool:
        """The operator has the day's requests counted anew, the server's refusals among them;
        could nothing more be asked?"""
        was_exhausted = self.exhausted(now_ns)
        self.closed = False
        self._paused_until_ns = self.used_today = 0
        return was_exhausted

    def accept(self, sent_ns: int) -> None:
        """The server has accepted a request sent at `sent_ns`: an earlier refusal is forgotten."""
        if sent_ns >= self._paused_until_ns:
            self._paused_until_ns = 0

    def time_out(self, sent_ns: int, now_ns: int) -> None:
        """The server has left a request without a word that was sent at `sent_ns`."""
        if sent_ns < self._round_ns:
            return  # sent together with the last one
        self._round_ns = now_ns
        self._rounds += 1
        if self._rounds >= SILENT_ROUNDS:
            self._silent_until_ns = now_ns + _SILENCE_NS

    def hear(self) -> None:
        """The server has said something."""
        self._rounds = 0
        self._silent_until_ns = 0

    def give_chance(self) -> None:
        """A silent server may be asked again, though it has said nothing yet."""
        self._silent_until_ns = 0

    def silent(self, now_ns: int) -> bool:
        """It would be in vain to ask the server now."""
        return now_ns < self._silent_until_ns

    def narrow(self, width: int) -> None:
        """The server refused `width` numbers as too wide: ask for half of that at most."""
        self._width_max = min(self._width_max, max(1, width // 2))

    def width(self, most: int) -> int:
        """The widest request, where the settings allow `most`."""
        return min(self._width_max, most)

    def reopen(self) -> None:
        """A new numbering began: the server may have other limits. What was used today stays."""
        self.closed = False
        self._paused_until_ns = 0
        self._silent_until_ns = 0
        self._width_max = UNLIMITED

    def new_day(self, now_ns: int) -> None:
        """Every count of the day begins again."""
        self._turns_ns = self._trading_day.turns_ns(now_ns)
        self.used_today = 0
        self.reopen()

    def _ahead(self, service: int) -> int:
        """How many others have waited longer; all who wait where `service` did not wait yet."""
        if not self.waiting:
            return 0
        for at, other in enumerate(self.waiting):
            if other == service:
                return at
        return len(self.waiting)

    def _free(self, now_ns: int) -> int:
        """Places that could be given now."""
        if now_ns < self._paused_until_ns:
            return 0
        return min(self.outstanding_max - self.outstanding, self._tokens(now_ns))

    def _tokens(self, now_ns: int) -> int:
        """Requests that the rate allows now."""
        if not self._interval_ns or self._theoretical_ns <= now_ns:
            return self._burst
        behind = self._theoretical_ns - now_ns
        return (self._burst * self._interval_ns - behind) // self._interval_ns
