# cython: annotation_typing=False, wraparound=True
"""Getting back what is missing: which numbers, in which requests, how often, and until when.

One `Retransmission` a channel. What is missing is one set of numbers, and that set alone is the
truth: a request or a run that waits to be asked for is a claim over a range of numbers, and what it
means at any instant is the part of that range that is missing still. So whatever arrives, on a
line or in an answer, in any order, only has to be taken out of the set, and nothing is ever asked
for that has come meanwhile. Claims are disjoint, so no number is asked for twice at once.

A run becomes one request for each unbroken part of it that is still missing, no wider than the
server allows, lowest numbers first, as the quota gives places. After a request further runs are
gathered for `request_gather_us`: a hole that comes alone is asked for at once, and where every
hundredth packet is lost a few leave together. A request that comes to nothing
(time-out, refusal, an answer that leaves something out) waits for a back-off and becomes a run
again, up to `retries` times. After that, or `recovery_wait_us` after the range was told, it is
abandoned: as soon as nothing that is missing lies before it, `GiveUp` says so. What is not under
way when an eighth of that time is left is abandoned then: its answer would come too late, and
where the quota is short a place is worth more to a younger hole.

A server that is down is waited for as long as a reconnect takes that works at once
(`GRACE_RECONNECTS`); after that, and while a server is silent (`quota`), everything is abandoned as
soon as it is told, so that a dead server holds no hole back all day. Its first sign of life ends
that.

Bounds: `RUNS_MAX` runs that wait; a channel with more holes than that is better healed by a
snapshot, so further ones are abandoned at once. Requests under way: the quota's. Sets of numbers:
theirs (a full one claims too much, never too little).

Compiled; the types of attributes and verbs stand in `retransmission.pxd`.
"""

import heapq
from collections import deque

import cython
from cython.cimports.feedhandler.retrans.quota import Quota
from cython.cimports.feedhandler.retrans.ranges import RangeSet

from feedhandler.retrans.actions import Action, Alert, Ask, Cancel, Disprove, GiveUp
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.reactions import RETRANSMISSION, UNKNOWN, Reaction
from feedhandler.retrans.settings import RecoverySettings

#: Runs that may wait to be asked for, and ranges whose deadline is kept.
RUNS_MAX = 4096
#: Ranges that may be missing: a few for each run, since answers in order split none.
MISSING_RANGES_MAX = 1 << 16
#: No deadline: the largest signed 64-bit number.
NEVER = (1 << 63) - 1
#: A range is asked for while more than this part of its time is left.
RESERVE_PARTS = 8
#: A server may be gone for so many times the first wait before a reconnect: the wait, and the
#: connecting.
GRACE_RECONNECTS = 2
#: Ranges in the sum of all claims: never full, since runs and requests are bounded.
_CLAIMS_MAX = 1 << 20


@cython.final
@cython.cclass
class Request:
    """One request under way, for `first` to `end` - 1; sent at one time, overdue at another."""

    def __init__(self, first: int, end: int, tries: int, sent_ns: int, due_ns: int) -> None:
        self.first, self.end = first, end
        self.tries = tries
        self.sent_ns, self.due_ns = sent_ns, due_ns
        self.accepted = False
        #: Everything in it below this number has come in answer to it.
        self.come = first


@cython.final
@cython.cclass
class Retransmission:
    """What one channel misses and asks for. `quota` None: there is no server to ask.

    Actions go to `actions`, in order; `counts` has every key of `recovery.COUNTS`. Requests are
    numbered from `first_id` on.
    """

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
        # Runs to ask for now, (first, end, tries); and after a back-off, the time before them.
        self._ready: list[tuple[int, int, int]] = []
        self._later: list[tuple[int, int, int, int]] = []
        # Until when what was told is asked for; and from then on, until when an answer is waited
        # for. (time, first, end), in the order of the times.
        self._told: deque[tuple[int, int, int]] = deque()
        self._closing: deque[tuple[int, int, int]] = deque()
        self._wait_ns = settings.recovery_wait_us * 1000
        self._timeout_ns = settings.request_timeout_us * 1000
        self._reserve_ns = self._wait_ns // RESERVE_PARTS
        # The grace, and when it ends that began with the last disconnect, or with the first range
        # told before there was any connection; NEVER where it has not begun.
        self._grace_ns = settings.reconnect_us * 1000 * GRACE_RECONNECTS
        self._grace_end_ns = NEVER
        self._told_end = 0
        self._given_up = 0
        self._quota_due_ns = NEVER
        self._gather_ns = settings.request_gather_us * 1000
        # When the latest request was made; until when runs told since then are gathered.
        self._asked_ns = -self._gather_ns
        self._gathered_ns = 0
        self._next_id = first_id
        self._void_below = first_id

    # -- what the owner asks ----------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Is anything missing, abandoned or not?"""
        return bool(self.missing or self.abandoned)

    @property
    @cython.locals(due=cython.longlong, request=Request)
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        due = self._quota_due_ns
        for request in self.requests.values():
            due = min(due, request.due_ns)
        if self._ready:
            due = min(due, self._grace_end_ns)
        for waiting in (self._later, self._told, self._closing):
            if waiting:
                due = min(due, waiting[0][0])
        return due

    def new_id(self) -> int:
        """The next request's number; requests for a refresh take theirs here too."""
        self._next_id += 1
        return self._next_id - 1

    # -- marks of arbitration ---------------------------------------------------------------

    def tell(self, first: int, end: int, epoch: int, now_ns: int) -> None:
        """`first` to `end` - 1 is missing on every line."""
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
        _append(self._told, (now_ns + self._wait_ns - self._reserve_ns, first, end))

    def settle(self, first: int, end: int) -> None:
        """`first` to `end` - 1 has come, or was announced lost."""
        self._gone(first, end)
        self._drop_settled()

    def settle_below(self, number: int) -> None:
        """Everything below `number` has come, or was announced lost."""
        self.missing.discard_below(number)
        self.abandoned.discard_below(number)
        self._drop_settled()

    def settle_all(self) -> None:
        """Nothing is missing any more."""
        self.missing.clear()
        self.abandoned.clear()
        # What was disproved, and given up for nothing, may be missing yet when it is sent.
        self._told_end = self._given_up = 0
        self._drop_settled()

    def void(self) -> None:
        """A new numbering: whatever still answers belongs to the old one."""
        self.settle_all()
        self._forget_runs()
        self._told_end = self._given_up = 0
        self._void_below = self._next_id
        self._alerted.clear()

    # -- the server -------------------------------------------------------------------------

    def connect(self) -> None:
        """The server can be asked."""
        self.connected = True
        self._grace_end_ns = NEVER
        if self.quota is not None:
            self.quota.give_chance()

    def disconnect(self, now_ns: int) -> None:
        """Requests under way will not be answered: they wait for the server, no try spent."""
        if self.connected:
            self._grace_end_ns = now_ns + self._grace_ns
        self.connected = False
        for request_id, request in list(self.requests.items()):
            self._close(request_id)
            heapq.heappush(self._ready, (request.first, request.end, request.tries))

    @cython.locals(request=Request)
    def accept(self, request_id: int, now_ns: int) -> None:
        """The request's answer will come."""
        self._hear()
        request = self.requests.get(request_id)
        if request is None or request.accepted:
            return self.count_late()
        request.accepted = True
        self._count("accepted")
        self._served.accept(request.sent_ns)
        request.due_ns = now_ns + self._timeout_ns

    @cython.locals(request=Request)
    def take(self, request_id: int, first: int, end: int, now_ns: int) -> None:
        """`first` to `end` - 1 has come, in answer to the request."""
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

    @cython.locals(request=Request)
    def check(self, request_id: int, now_ns: int) -> None:
        """The answer is over: what it left out is asked for again."""
        request = self.requests.get(request_id)
        if request is None:
            # Complete already, or its range was closed: no more than a full stop.
            return
        self._close(request_id)
        if self._left(request):
            self._count("partial")
            self._again(request, now_ns)

    @cython.locals(request=Request)
    def react(self, request_id: int, reason: int, now_ns: int) -> None:
        """The server refuses the request, for `reason`."""
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

    def count_late(self) -> None:
        """Something answers a request that is over."""
        self._hear()
        self._count("late")

    # -- the clock --------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Time-outs, and what is abandoned because its time is over."""
        overdue = [each for each, request in self.requests.items() if request.due_ns <= now_ns]
        for request_id in overdue:
            request = self.requests[request_id]
            self._count("timed_out")
            self._served.time_out(request.sent_ns, now_ns)
            self._close(request_id, True)
            self._again(request, now_ns)
        while self._told and self._told[0][0] <= now_ns:
            until_ns, first, end = self._told.popleft()
            self._close_range(first, end)
            _append(self._closing, (until_ns + self._reserve_ns, first, end))
        while self._closing and self._closing[0][0] <= now_ns:
            _, first, end = self._closing.popleft()
            self._count("out_of_time", self._abandon(first, end))
            self._drop_settled()

    def pump(self, now_ns: int) -> None:
        """Ask for what can be asked for now, abandon what cannot be, give up what can be."""
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
        """The quota, where a request is under way: then there is one."""
        assert self.quota is not None
        return self.quota

    def _is_gone(self, now_ns: int) -> bool:
        """Is the server down for longer than the grace, or silent?"""
        if self.connected:
            return self._served.silent(now_ns)
        if self._ready and self._grace_end_ns == NEVER:
            self._grace_end_ns = now_ns + self._grace_ns
        return self._grace_end_ns <= now_ns

    def _hear(self) -> None:
        """The server has said something."""
        if self.quota is not None:
            self.quota.hear()

    def _ask_all(self, quota: Quota, now_ns: int) -> bool:
        """Ask for the ready runs, the lowest first; False when the quota has no place left."""
        width = quota.width(self.settings.request_packets_max)
        while self._ready:
            first, end, tries = heapq.heappop(self._ready)
            for begin, last in self.missing.within(first, end - 1):
                while begin <= last:
                    if not quota.take(self.service, now_ns):
                        heapq.heappush(self._ready, (begin, end, tries))
                        return False
                    stop = min(begin + width, last + 1)
                    self._ask(begin, stop, tries, now_ns)
                    begin = stop
        return True

    def _ask(self, first: int, end: int, tries: int, now_ns: int) -> None:
        request_id = self.new_id()
        due_ns = now_ns + self._timeout_ns
        self._asked_ns, self._gathered_ns = now_ns, 0
        self.requests[request_id] = Request(first, end, tries, now_ns, due_ns)
        self._count("requests")
        self._count("requested", end - first)
        self._actions.append(Ask(request_id, self.service, first, end, self.epoch))

    def _again(self, request: Request, now_ns: int) -> None:
        """A try has failed: once more after a back-off, or abandon it."""
        tries = request.tries + 1
        if tries > self.settings.retries or self._served.silent(now_ns):
            self._abandon(request.first, request.end)
            return
        self._count("retries")
        ready_ns = now_ns + self._backoff.delay_ns(tries)
        heapq.heappush(self._later, (ready_ns, request.first, request.end, tries))

    def _refused_today(self, request: Request, now_ns: int) -> None:
        """Too many requests today: pause once, no try spent; the second time that is all."""
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

    def _gone(self, first: int, end: int) -> None:
        self.missing.discard(first, end - 1)
        self.abandoned.discard(first, end - 1)

    def _left(self, request: Request) -> bool:
        """Is anything in it still missing?"""
        return self.missing.touches(request.first, request.end - 1)

    def _drop_settled(self) -> None:
        """Cancel requests in which nothing is missing any more."""
        if not self.requests:
            return
        for request_id in [each for each, held in self.requests.items() if not self._left(held)]:
            self._drop(request_id)

    @cython.locals(request=Request)
    def _drop(self, request_id: int) -> None:
        """The request has nothing more to bring; who asked for it may have to be told."""
        request = self.requests[request_id]
        self._close(request_id, request.come < request.end)

    def _close(self, request_id: int, cancel: bool = False) -> None:
        """The request is no longer under way."""
        del self.requests[request_id]
        self._served.release()
        if cancel:
            self._count("cancelled")
            self._actions.append(Cancel(request_id))

    def _abandon(self, first: int, end: int) -> int:
        """Ask no more for what is missing there; how many numbers that is."""
        parts = self.missing.within(first, end - 1)
        for begin, last in parts:
            self.abandoned.add(begin, last)
        self.missing.discard(first, end - 1)
        total = sum(last + 1 - begin for begin, last in parts)
        self._count("abandoned", total)
        return total

    def _close_range(self, first: int, end: int) -> None:
        """Abandon what is not under way."""
        under_way = RangeSet((each.first, each.end - 1) for each in self.requests.values())
        for begin, last in under_way.missing_in(first, end - 1):
            self._count("out_of_time", self._abandon(begin, last + 1))

    def _abandon_runs(self) -> int:
        """Nobody can be asked: abandon everything that is not under way; how many numbers."""
        total = 0
        for first, end, _ in self._ready:
            total += self._abandon(first, end)
        for _, first, end, _ in self._later:
            total += self._abandon(first, end)
        self._forget_runs()
        return total

    def _forget_runs(self) -> None:
        self._ready.clear()
        self._later.clear()
        self._quota_due_ns = NEVER
        if self.quota is not None:
            self.quota.withdraw(self.service)

    def _trim(self) -> None:
        """Drop runs and deadlines in which nothing is missing any more."""
        missing = self.missing
        if not missing:
            self._drop_settled()
            for each in (self._ready, self._later, self._told, self._closing):
                each.clear()
            return
        while self._ready and not missing.touches(self._ready[0][0], self._ready[0][1] - 1):
            heapq.heappop(self._ready)
        for bounds in (self._told, self._closing):
            while bounds and not missing.touches(bounds[0][1], bounds[0][2] - 1):
                bounds.popleft()

    def _unclaimed(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of the range that are neither asked for, nor waiting to be, nor abandoned."""
        if first >= self._told_end:
            self._told_end = end
            return [(first, end - 1)]
        self._told_end = max(self._told_end, end)
        claims = RangeSet(self.abandoned, _CLAIMS_MAX)
        for request in self.requests.values():
            claims.add(request.first, request.end - 1)
        for begin, stop, _ in self._ready:
            claims.add(begin, stop - 1)
        for _, begin, stop, _ in self._later:
            claims.add(begin, stop - 1)
        return claims.missing_in(first, end - 1)

    def _give_up(self) -> None:
        """Announce what is abandoned and has nothing before it that may still come."""
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

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by


@cython.cfunc
def _append(bounds: deque[tuple[int, int, int]], bound: tuple[int, int, int]) -> None:
    """Add a deadline; where there are too many it joins the latest, and so comes a little early."""
    if len(bounds) == RUNS_MAX:
        at_ns, first, end = bounds.pop()
        bound = at_ns, min(first, bound[1]), max(end, bound[2])
    bounds.append(bound)
