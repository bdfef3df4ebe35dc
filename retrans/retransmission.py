# cython: annotation_typing=False, wraparound=True
"""Retransmission for one channel: which numbers to request, how often, and until when.

One `Retransmission` a channel. What is missing is one set of numbers, and that set alone is the
truth: a request, or a run that waits to be requested, is a claim over a range of numbers, and what
it means at any instant is the part of that range that is still missing. So whatever arrives, on a
line or in an answer, in any order, only has to be taken out of the set, and nothing is requested
that has come meanwhile. Claims are disjoint, so no number is requested twice at once.

A run becomes one request for each unbroken part of it that is still missing, no wider than the
server allows, lowest numbers first, as the quota gives slots. After a request further runs are
gathered for `request_gather_us`: a gap that comes alone is requested at once, and where every
hundredth packet is lost a few leave together. A request that fails (time-out, refusal, an answer
that leaves something out) waits for a back-off and becomes a run again, up to `retries` times.
After that, or `recovery_wait_us` after the range was reported, it is abandoned: as soon as nothing
that is missing lies before it, `GiveUp` says so. What is not under way when an eighth of that time
is left is abandoned then: its answer would come too late, and where the quota is short a slot is
worth more to a younger gap.

A server that is down is waited for once, for as long as a gap may hold the stream back
(`recovery_wait_us`); after that, and while a server is silent (`quota`), everything is abandoned as
soon as it is reported, so that a dead server does not hold the stream back again and again. Its
first sign of life ends that: an answer, or a connection that lasts as long. One that takes
connections and drops them, as where it refuses the login, is asked, but not waited for anew.

Bounds: `RUNS_MAX` runs that wait; a channel with more gaps than that is better healed by a
snapshot, so further ones are abandoned at once. Requests under way: the quota's. Sets of numbers:
theirs (a full one claims too much, never too little).

Compiled.
"""

import heapq
from collections import deque

import cython
from cython.cimports.feedhandler.retrans.quota import Quota
from cython.cimports.feedhandler.retrans.ranges import RangeSet

from feedhandler.codecs.visibility import Public
from feedhandler.retrans.actions import Action, Alert, Ask, Cancel, Disprove, GiveUp
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.reactions import RETRANSMISSION, UNKNOWN, Reaction
from feedhandler.retrans.settings import RecoverySettings

#: Most runs that wait to be requested, and most ranges whose deadline is kept.
RUNS_MAX = 4096
#: Most ranges that may be missing: a few for each run, since answers in order split none.
MISSING_RANGES_MAX = 1 << 16
#: No deadline: the largest signed 64-bit number.
NEVER = (1 << 63) - 1
#: A range is requested while more than one part in so many of its time is left.
RESERVE_PARTS = 8
#: Most runs that wait when another is refused as not sent yet, so that it is asked for again: what
#: a server lacks that lags by a moment are the latest gaps; a long blackout is not asked for twice.
LAGGING_RUNS_MAX = 8
#: Limit of the set of all claims: never reached, since runs and requests are bounded.
_CLAIMS_MAX = 1 << 20


@cython.final
@cython.cclass
class Request:
    """One request under way for `first` to `end` - 1, sent at `sent_ns`, overdue at `due_ns`."""

    first: Public[object]
    end: Public[object]
    come: Public[object]
    tries: Public[cython.int]
    accepted: Public[cython.bint]
    sent_ns: Public[cython.longlong]
    due_ns: Public[cython.longlong]

    def __init__(self, first: int, end: int, tries: int, sent_ns: int, due_ns: int) -> None:
        self.first, self.end = first, end
        self.tries = tries
        self.sent_ns, self.due_ns = sent_ns, due_ns
        self.accepted = False
        #: All its numbers below this one have come in answer to it.
        self.come = first


@cython.final
@cython.cclass
class Retransmission:
    """The missing numbers of one channel and its requests; `quota` None: there is no server.

    Actions are appended to `actions`, in order; `counts` has every key of `recovery.COUNTS`.
    Requests are numbered from `first_id` on.
    """

    service: Public[object]
    settings: Public[object]
    epoch: Public[object]
    quota: Public[Quota]
    connected: Public[cython.bint]
    missing: Public[RangeSet]
    abandoned: Public[RangeSet]
    requests: Public[dict]
    _actions: list
    _ready: list
    _later: list
    _counts: dict
    _backoff: object
    _reported: object
    _closing: object
    _alerted: set
    _wait_ns: cython.longlong
    _reserve_ns: cython.longlong
    _timeout_ns: cython.longlong
    _quota_due_ns: cython.longlong
    _grace_end_ns: cython.longlong
    _connected_ns: cython.longlong
    _heard: cython.bint
    _gather_ns: cython.longlong
    _asked_ns: cython.longlong
    _gathered_ns: cython.longlong
    _reported_end: object
    _given_up: object
    _next_id: object
    _void_below: object

    def __init__(
        self,
        service: int,
        settings: RecoverySettings,
        quota: Quota | None,
        actions: list[Action],
        counts: dict[str, int],
        seed: int,
        first_id: int = 1,
    ) -> None:
        self.service = service
        self.settings = settings
        self.quota = quota
        self.epoch = 0
        self.connected = False
        #: Numbers that are missing and not abandoned.
        self.missing = RangeSet(limit=MISSING_RANGES_MAX)
        #: Numbers that are missing and will not be asked for again.
        self.abandoned = RangeSet()
        self.requests: dict[int, Request] = {}
        self._actions = actions
        self._counts = counts
        self._backoff = Backoff(settings.backoff_us, settings.recovery_wait_us, seed)
        self._alerted: set[int] = set()
        # Heaps of runs: to request now, (first, end, tries); after a back-off, (time, first, ...).
        self._ready: list[tuple[int, int, int]] = []
        self._later: list[tuple[int, int, int, int]] = []
        # Deadlines of reported ranges, (time, first, end), by time: until the first one a range is
        # requested, from then to the second one its answer is waited for.
        self._reported: deque[tuple[int, int, int]] = deque()
        self._closing: deque[tuple[int, int, int]] = deque()
        self._wait_ns = settings.recovery_wait_us * 1000
        self._timeout_ns = settings.request_timeout_us * 1000
        self._reserve_ns = self._wait_ns // RESERVE_PARTS
        # Until when a server that is down is waited for: from a disconnect on, or from the first
        # range reported before there was any connection; NEVER where that has not begun.
        self._grace_end_ns = NEVER
        # Since when there is a connection, and whether the server has answered on it.
        self._connected_ns = 0
        self._heard = False
        self._reported_end = 0
        self._given_up = 0
        self._quota_due_ns = NEVER
        self._gather_ns = settings.request_gather_us * 1000
        # When the latest request was made; until when runs reported since then are gathered.
        self._asked_ns = -self._gather_ns
        self._gathered_ns = 0
        self._next_id = first_id
        self._void_below = first_id

    # -- the current state ------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether anything is missing, abandoned or not."""
        return bool(self.missing or self.abandoned)

    @property
    @cython.locals(due=cython.longlong, request=Request)
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        due = self._quota_due_ns
        for request in self.requests.values():
            due = min(due, request.due_ns)
        if self._ready and not self.connected:
            due = min(due, self._grace_end_ns)
        for waiting in (self._later, self._reported, self._closing):
            if waiting:
                due = min(due, waiting[0][0])
        return due

    def new_id(self) -> int:
        """Return the next request's number; requests for a refresh take theirs here too."""
        self._next_id += 1
        return self._next_id - 1

    # -- control events of arbitration ------------------------------------------------------

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def report(self, first: int, end: int, epoch: int, now_ns: int) -> None:
        """Record that `first` to `end` - 1 is missing on every line, in the sequence epoch `epoch`.

        Another epoch than before voids everything. Numbers already claimed are not claimed again.
        """
        if epoch != self.epoch:
            self.void()
            self.epoch = epoch
        for begin, last in self.abandoned.missing_in(first, end - 1):
            self.missing.add(begin, last)
        for begin, last in self._unclaimed(first, end):
            if len(self._ready) + len(self._later) < RUNS_MAX:
                heapq.heappush(self._ready, (begin, last + 1, 0))
            else:
                self._count("crowded", last + 1 - begin)
                self._abandon(begin, last + 1)
        if now_ns < self._asked_ns + self._gather_ns:
            self._gathered_ns = self._asked_ns + self._gather_ns
        _append(self._reported, (now_ns + self._wait_ns - self._reserve_ns, first, end))

    @cython.ccall
    def settle(self, first: int, end: int) -> None:
        """Remove `first` to `end` - 1, which has come or was announced lost."""
        self._gone(first, end)
        self._drop_settled()

    @cython.ccall
    def settle_below(self, number: int) -> None:
        """Remove everything below `number`, which has come or was announced lost."""
        self.missing.discard_below(number)
        self.abandoned.discard_below(number)
        self._drop_settled()

    @cython.ccall
    def settle_all(self) -> None:
        """Remove everything: nothing is missing any more."""
        self.missing.clear()
        self.abandoned.clear()
        # Numbers that were disproved and given up in vain may be missing again once they are sent.
        self._reported_end = self._given_up = 0
        self._drop_settled()

    def void(self) -> None:
        """Drop everything of the old sequence epoch; later answers to its requests are late."""
        self.settle_all()
        self._forget_runs()
        self._reported_end = self._given_up = 0
        self._void_below = self._next_id
        self._alerted.clear()

    # -- the server -------------------------------------------------------------------------

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def connect(self, now_ns: int) -> None:
        """Note that the server can be reached; a silent one gets another chance."""
        self.connected, self._connected_ns, self._heard = True, now_ns, False
        if self.quota is not None:
            self.quota.give_chance()

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def disconnect(self, now_ns: int) -> None:
        """Turn the requests under way into runs that wait for the server, spending no try."""
        if self.connected and (
            self._heard
            or self._grace_end_ns == NEVER
            or now_ns >= self._connected_ns + self._wait_ns
        ):
            self._grace_end_ns = now_ns + self._wait_ns
        self.connected = False
        for request_id, request in list(self.requests.items()):
            self._close(request_id)
            heapq.heappush(self._ready, (request.first, request.end, request.tries))

    @cython.locals(now_ns=cython.longlong, request=Request)
    @cython.ccall
    def accept(self, request_id: int, now_ns: int) -> None:
        """Restart the time-out of an accepted request; count a late answer."""
        self._hear()
        request = self.requests.get(request_id)
        if request is None or request.accepted:
            return self.count_late()
        request.accepted = True
        self._count("accepted")
        self._served.accept(request.sent_ns)
        request.due_ns = now_ns + self._timeout_ns

    @cython.locals(now_ns=cython.longlong, request=Request)
    @cython.ccall
    def record_answer(self, request_id: int, first: int, end: int, now_ns: int) -> None:
        """Record that `first` to `end` - 1 has come in answer to the request; restart its time-out.

        Of a request of an old epoch nothing is taken; of one that is over the numbers still are.
        """
        self._hear()
        if request_id < self._void_below:
            return self.count_late()
        self._gone(first, end)
        request = self.requests.get(request_id)
        if request is None:
            self.count_late()
            return self._drop_settled()
        if first < request.end and end > request.first:
            request.due_ns = now_ns + self._timeout_ns
            if first <= request.come:
                request.come = max(request.come, end)
        if not self._left(request):
            self._drop(request_id)

    @cython.locals(now_ns=cython.longlong, request=Request)
    @cython.ccall
    def check(self, request_id: int, now_ns: int) -> None:
        """End a request whose answer is over, and request again what the answer left out."""
        request = self.requests.get(request_id)
        if request is None:
            # Complete already, or its range was closed: the end of the answer adds nothing.
            return
        self._close(request_id)
        if self._left(request):
            self._count("partial")
            self._again(request, now_ns)

    @cython.locals(now_ns=cython.longlong, request=Request)
    @cython.ccall
    def react(self, request_id: int, reason: int, now_ns: int) -> None:
        """React to the server's refusal as `reactions.RETRANSMISSION` says for `reason`.

        Alerts the operator once for each reason.
        """
        self._hear()
        request = self.requests.get(request_id)
        if request is None:
            return self.count_late()
        self._close(request_id)
        self._count("rejected")
        reply = RETRANSMISSION.get(reason, UNKNOWN)
        width = request.end - request.first
        if reply.reaction is Reaction.PAUSE:
            self._refused_today(request, now_ns)
        elif reply.reaction is Reaction.DISPROVE:
            self._actions.append(Disprove(request.end - 1, self.epoch))
            # Where arbitration believes that, nothing is missing any more; else the server lags.
            if len(self._later) < LAGGING_RUNS_MAX:
                self._again(request, now_ns)
            else:
                self._abandon(request.first, request.end)
        elif reply.reaction is Reaction.NARROW and width > 1:
            self._served.narrow(width)
            self._count("narrowed")
            heapq.heappush(self._ready, (request.first, request.end, request.tries))
        else:
            self._abandon(request.first, request.end)
        if reply.reaction is Reaction.NARROW and width == 1:
            # A server that finds one packet too many would refuse the rest one by one.
            self._abandon_runs()
        if reply.reaction is Reaction.ALERT and reason not in self._alerted:
            self._alerted.add(reason)
            self._alert(f"refuses requests for service {self.service}: {reply.text} ({reason})")

    @cython.ccall
    def count_late(self) -> None:
        """Count an answer to a request that is over."""
        self._hear()
        self._count("late")

    # -- the clock --------------------------------------------------------------------------

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def tick(self, now_ns: int) -> None:
        """Handle time-outs, and abandon what has run out of time."""
        overdue = [each for each, request in self.requests.items() if request.due_ns <= now_ns]
        for request_id in overdue:
            request = self.requests[request_id]
            self._count("timed_out")
            self._served.time_out(request.sent_ns, now_ns)
            self._close(request_id, True)
            self._again(request, now_ns)
        while self._reported and self._reported[0][0] <= now_ns:
            until_ns, first, end = self._reported.popleft()
            self._close_range(first, end)
            _append(self._closing, (until_ns + self._reserve_ns, first, end))
        while self._closing and self._closing[0][0] <= now_ns:
            _, first, end = self._closing.popleft()
            self._count("out_of_time", self._abandon(first, end))
            self._drop_settled()

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def pump(self, now_ns: int) -> None:
        """Send the requests that are possible now, abandon the impossible, give up what is due."""
        self._quota_due_ns = NEVER
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappush(self._ready, heapq.heappop(self._later)[1:])
        self._trim()
        if self.quota is None or self.quota.exhausted(now_ns):
            self._abandon_runs()
        elif self._is_gone(now_ns):
            self._count("unreachable", self._abandon_runs())
        elif self._ready and self.connected and now_ns < self._gathered_ns:
            self._quota_due_ns = self._gathered_ns
        elif self._ready and self.connected and not self._ask_all(self.quota, now_ns):
            self._quota_due_ns = self.quota.ready_ns(now_ns)
        else:
            self.quota.withdraw(self.service)
        if self.abandoned:
            self._give_up()

    # -- parts ------------------------------------------------------------------------------

    @property
    def _served(self) -> Quota:
        """The quota, where a request is under way and so there is one."""
        assert self.quota is not None
        return self.quota

    @cython.locals(now_ns=cython.longlong)
    @cython.returns(cython.bint)
    def _is_gone(self, now_ns: int) -> bool:
        """Return whether the server is down for longer than it is waited for, or silent.

        The wait begins where runs are for a server that was never connected.
        """
        if self.connected:
            return self._served.silent(now_ns)
        if self._ready and self._grace_end_ns == NEVER:
            self._grace_end_ns = now_ns + self._wait_ns
        return self._grace_end_ns <= now_ns

    @cython.cfunc
    def _hear(self) -> None:
        """Note, in the quota as well, that the server has said something."""
        self._heard = True
        if self.quota is not None:
            self.quota.hear()

    @cython.locals(quota=Quota, now_ns=cython.longlong)
    @cython.returns(cython.bint)
    def _ask_all(self, quota: Quota, now_ns: int) -> bool:
        """Request the ready runs, lowest first; return False when the quota has no slot left."""
        width = quota.width(self.settings.request_packets_max)
        while self._ready:
            first, end, tries = heapq.heappop(self._ready)
            for begin, last in self.missing.within(first, end - 1):
                while begin <= last:
                    if not quota.try_acquire(self.service, now_ns):
                        heapq.heappush(self._ready, (begin, end, tries))
                        return False
                    stop = min(begin + width, last + 1)
                    self._ask(begin, stop, tries, now_ns)
                    begin = stop
        return True

    @cython.locals(tries=cython.int, now_ns=cython.longlong)
    @cython.cfunc
    def _ask(self, first: int, end: int, tries: int, now_ns: int) -> None:
        request_id = self.new_id()
        due_ns = now_ns + self._timeout_ns
        self._asked_ns, self._gathered_ns = now_ns, 0
        self.requests[request_id] = Request(first, end, tries, now_ns, due_ns)
        self._count("requests")
        self._count("requested", end - first)
        self._actions.append(Ask(request_id, self.service, first, end, self.epoch))

    @cython.locals(request=Request, now_ns=cython.longlong)
    @cython.cfunc
    def _again(self, request: Request, now_ns: int) -> None:
        """Schedule another try after a back-off, or abandon the range where tries are used up."""
        tries = request.tries + 1
        if tries > self.settings.retries or self._served.silent(now_ns):
            self._abandon(request.first, request.end)
            return
        self._count("retries")
        ready_ns = now_ns + self._backoff.delay_ns(tries)
        heapq.heappush(self._later, (ready_ns, request.first, request.end, tries))

    @cython.locals(request=Request, now_ns=cython.longlong)
    @cython.cfunc
    def _refused_today(self, request: Request, now_ns: int) -> None:
        """Handle "too many requests today": pause once, spending no try; then abandon."""
        quota = self._served
        was_closed = quota.closed
        if not quota.refuse(request.sent_ns, now_ns, self._backoff.delay_ns(1)):
            # Where others were refused before the pause, its end may lie in the past already.
            ready_ns = max(quota.paused_until_ns, now_ns)
            heapq.heappush(self._later, (ready_ns, request.first, request.end, request.tries))
            return
        self._abandon(request.first, request.end)
        if not was_closed:
            self._alert(
                "will take no more requests today; requests_per_day can keep below that, "
                "`feedhandler control resume-requests` has it asked again"
            )

    @cython.cfunc
    def _gone(self, first: int, end: int) -> None:
        self.missing.discard(first, end - 1)
        self.abandoned.discard(first, end - 1)

    @cython.locals(request=Request)
    @cython.returns(cython.bint)
    def _left(self, request: Request) -> bool:
        """Return whether anything in the request is still missing."""
        return self.missing.touches(request.first, request.end - 1)

    @cython.cfunc
    def _drop_settled(self) -> None:
        """Cancel requests in which nothing is missing any more."""
        if not self.requests:
            return
        for request_id in [each for each, held in self.requests.items() if not self._left(held)]:
            self._drop(request_id)

    @cython.locals(request=Request)
    @cython.cfunc
    def _drop(self, request_id: int) -> None:
        """End a request in which nothing is missing; cancel it where its answer is incomplete."""
        request = self.requests[request_id]
        self._close(request_id, request.come < request.end)

    @cython.locals(cancel=cython.bint)
    @cython.cfunc
    def _close(self, request_id: int, cancel: bool = False) -> None:
        """Remove a request from those under way and free its slot; `cancel` appends a `Cancel`."""
        del self.requests[request_id]
        self._served.release()
        if cancel:
            self._count("cancelled")
            self._actions.append(Cancel(request_id))

    @cython.cfunc
    def _abandon(self, first: int, end: int) -> int:
        """Stop requesting what is missing in the range; return how many numbers that is."""
        parts = self.missing.within(first, end - 1)
        for begin, last in parts:
            self.abandoned.add(begin, last)
        self.missing.discard(first, end - 1)
        total = sum(last + 1 - begin for begin, last in parts)
        self._count("abandoned", total)
        return total

    def _close_range(self, first: int, end: int) -> None:
        """Abandon the part of the range that is not under way."""
        under_way = RangeSet((each.first, each.end - 1) for each in self.requests.values())
        for begin, last in under_way.missing_in(first, end - 1):
            self._count("out_of_time", self._abandon(begin, last + 1))

    @cython.cfunc
    def _abandon_runs(self) -> int:
        """Abandon everything that is not under way; return how many numbers that is."""
        total = 0
        for first, end, _ in self._ready:
            total += self._abandon(first, end)
        for _, first, end, _ in self._later:
            total += self._abandon(first, end)
        self._forget_runs()
        return total

    @cython.cfunc
    def _forget_runs(self) -> None:
        self._ready.clear()
        self._later.clear()
        self._quota_due_ns = NEVER
        if self.quota is not None:
            self.quota.withdraw(self.service)

    @cython.cfunc
    def _trim(self) -> None:
        """Drop runs and deadlines in which nothing is missing any more."""
        missing = self.missing
        if not missing:
            self._drop_settled()
            for each in (self._ready, self._later, self._reported, self._closing):
                each.clear()
            return
        while self._ready and not missing.touches(self._ready[0][0], self._ready[0][1] - 1):
            heapq.heappop(self._ready)
        for bounds in (self._reported, self._closing):
            while bounds and not missing.touches(bounds[0][1], bounds[0][2] - 1):
                bounds.popleft()

    @cython.returns(list)
    @cython.cfunc
    def _unclaimed(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of the range that no request, run or abandoned range covers."""
        if first >= self._reported_end:
            self._reported_end = end
            return [(first, end - 1)]
        self._reported_end = max(self._reported_end, end)
        claims = RangeSet(self.abandoned, _CLAIMS_MAX)
        for request in self.requests.values():
            claims.add(request.first, request.end - 1)
        for begin, stop, _ in self._ready:
            claims.add(begin, stop - 1)
        for _, begin, stop, _ in self._later:
            claims.add(begin, stop - 1)
        return claims.missing_in(first, end - 1)

    @cython.cfunc
    def _give_up(self) -> None:
        """Append `GiveUp` for what is abandoned with nothing before it that may still come."""
        until = self.abandoned.highest + 1
        if self.missing:
            before = self.abandoned.within(0, max(self.missing.lowest - 1, 0))
            until = before[-1][1] + 1 if before else 0
        if until > self._given_up:
            self._given_up = until
            self._count("given_up")
            self._actions.append(GiveUp(until, self.epoch))

    def _alert(self, text: str) -> None:
        self._count("alerts")
        self._actions.append(Alert(f"the retransmission server {text}"))

    @cython.cfunc
    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by


@cython.cfunc
def _append(bounds: deque[tuple[int, int, int]], bound: tuple[int, int, int]) -> None:
    """Append a deadline; where there are too many, merge it with the latest, a little early."""
    if len(bounds) == RUNS_MAX:
        at_ns, first, end = bounds.pop()
        bound = at_ns, min(first, bound[1]), max(end, bound[2])
    bounds.append(bound)
