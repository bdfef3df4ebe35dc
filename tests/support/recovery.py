"""A `Recovery` under test: its making, its invariants, a monkey, and a small world around it.

`Watched` checks after every input what must hold whatever happens: nothing is asked for that is not
missing, no number is asked for twice at once, the quota's books are right, the next deadline lies
in the future after a tick. `monkey_input` draws any input at all, sensible or not. `World` answers
as arbitration, a retransmission server and a refresh server do, with faults drawn from a seed.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from feedhandler.codecs.trading_day import TradingDay
from feedhandler.retrans.actions import Ask, AskRefresh, Cancel, GiveUp
from feedhandler.retrans.quota import Quota
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import Input, State

MS = 1_000_000
SECOND = 1_000 * MS
NEVER = (1 << 63) - 1
SERVICE = 104
UTC = TradingDay("UTC")


def make(
    *,
    quota: Quota | None = None,
    rts: bool = True,
    refresh: bool = True,
    up: bool = True,
    **settings: Any,
) -> Recovery:
    """A recovery with a quota of its own unless one is given, its server up; it gathers nothing
    unless told so."""
    values = RecoverySettings(**{"request_gather_us": 0, **settings})
    if rts and quota is None:
        quota = Quota(values.requests_per_s, values.requests_per_day, values.outstanding_max, UTC)
    recovery = Recovery(SERVICE, values, quota=quota, refresh=refresh, seed=7, trading_day=UTC)
    if up:
        recovery.server_up(0)
    return recovery


def asks(recovery: Recovery) -> list[tuple[int, int]]:
    """The ranges asked for since the last look."""
    return [(each.first, each.end) for each in recovery.pop_actions() if isinstance(each, Ask)]


class Watched:
    """A recovery, what it has asked, and a plain model of what is missing."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self.missing: set[int] = set()
        self.open: dict[int, set[int]] = {}
        self.refresh_id = 0
        self.newest_id = 0
        self.void_below = 1
        self.epoch = 0
        self.arrows: set[tuple[State, Input, State]] = set()
        self.taken: list[Any] = []

    def give(self, given: Input, now_ns: int, *about: Any) -> Any:
        """One input, into the model first, then everything is checked."""
        before = self.recovery.state
        self._model(given, *about)
        answer = getattr(self.recovery, given.name.lower())(*about, now_ns)
        self.arrows.add((before, given, self.recovery.state))
        self.taken = self.recovery.pop_actions()
        for action in self.taken:
            self._judge(action)
        self._check(given, now_ns)
        return answer

    def _model(self, given: Input, *about: Any) -> None:
        if given is Input.MISSING:
            first, end, epoch = about
            if epoch != self.epoch:
                self._void()
                self.epoch = epoch
            self.missing.update(range(first, end))
        elif given is Input.ARRIVED:
            request_id, first, end = about
            if request_id >= self.void_below:
                self.missing.difference_update(range(first, end))
            self.open.get(request_id, set()).difference_update(range(first, end))
            if not self.open.get(request_id, {0}):
                del self.open[request_id]
        elif given is Input.LOST:
            self.missing.difference_update(range(*about))
        elif given is Input.CLOSED:
            self.missing.clear()
        elif given is Input.PROGRESS:
            self.missing = {each for each in self.missing if each >= about[0]}
        elif given is Input.RESET:
            self._void()
        elif given in (Input.REJECTED, Input.ANSWERED):
            self.open.pop(about[0], None)
        elif given is Input.SERVER_DOWN:
            self.open.clear()

    def _void(self) -> None:
        self.missing.clear()
        self.void_below = self.newest_id + 1

    def _judge(self, action: Any) -> None:
        if isinstance(action, Ask):
            numbers = set(range(action.first, action.end))
            assert numbers, action
            assert numbers <= self.missing, f"{action} is not all missing"
            for other in self.open.values():
                assert not numbers & other, f"{action} is asked for already"
            assert action.end - action.first <= self.recovery_settings.request_packets_max
            assert action.epoch == self.epoch
            self.open[action.request_id] = numbers
            self.newest_id = action.request_id
        elif isinstance(action, Cancel):
            self.open.pop(action.request_id, None)
            if action.request_id == self.refresh_id:
                self.refresh_id = 0
        elif isinstance(action, AskRefresh):
            self.refresh_id = self.newest_id = action.request_id
        elif isinstance(action, GiveUp):
            held = {n for first, end in self.recovery.missing_ranges for n in range(first, end)}
            assert not any(number < action.until for number in held), action
            assert action.epoch == self.epoch

    @property
    def recovery_settings(self) -> RecoverySettings:
        return self.recovery._retransmission.settings

    def _check(self, given: Input, now_ns: int) -> None:
        recovery = self.recovery
        ours = {n for first, end in recovery.missing_ranges for n in range(first, end)}
        assert ours <= self.missing
        ranges = recovery.requested
        assert all(end <= first for (_, end), (first, _) in pairwise(ranges))
        quota = recovery._retransmission.quota
        if quota is not None:
            assert quota.outstanding == len(ranges) <= quota.outstanding_max
        hurt = recovery.state in (State.REFRESHING, State.STALE)
        assert hurt == bool(recovery.lost_ranges)
        if not hurt:
            assert (recovery.state is State.REQUESTING) >= bool(ours)
        if given is Input.TICK:
            assert recovery.deadline_ns > now_ns


def monkey_input(watched: Watched, chance: random.Random) -> tuple[Input, tuple[Any, ...]]:
    """Any input, mostly with a request number that is open, and numbers from a small range."""
    given = chance.choice(list(Input))
    first = chance.randint(1, 60)
    end = first + chance.randint(1, 12)
    request_id = chance.choice([*watched.open, *watched.open, chance.randint(1, 40)])
    refresh_id = chance.choice([watched.refresh_id, watched.refresh_id, chance.randint(1, 40)])
    about: dict[Input, tuple[Any, ...]] = {
        Input.MISSING: (
            first,
            end,
            watched.epoch if chance.random() < 0.97 else chance.randint(1, 3),
        ),
        Input.LOST: (first, end),
        Input.CLOSED: (end,),
        Input.PROGRESS: (first,),
        Input.ACCEPTED: (request_id,),
        Input.REJECTED: (request_id, chance.choice((1, 2, 3, 3, 4, 5, 6, 7, 9))),
        Input.ARRIVED: (request_id, *_part(watched, request_id, chance, (first, end))),
        Input.ANSWERED: (request_id,),
        Input.REFRESH_ACCEPTED: (refresh_id,),
        Input.REFRESH_REJECTED: (refresh_id, chance.choice((1, 2, 3, 4, 5, 6, 6, 7, 9))),
        Input.SNAPSHOT_FAILED: ("no end",),
        Input.SNAPSHOT: (chance.choice((first, 80)),),
    }
    return given, about.get(given, ())


def _part(
    watched: Watched, request_id: int, chance: random.Random, other: tuple[int, int]
) -> tuple[int, int]:
    """Some of what is open of a request, usually its beginning; else any range."""
    numbers = sorted(watched.open.get(request_id, ()))
    if not numbers or chance.random() < 0.1:
        return other
    at = 0 if chance.random() < 0.7 else chance.randrange(len(numbers))
    return numbers[at], numbers[chance.randrange(at, len(numbers))] + 1


@dataclass
class Faults:
    """Probabilities of the faults, and how long answers and snapshots take."""

    refuse: float = 0.0
    reasons: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    stall: float = 0.0
    partial: float = 0.0
    disconnect: float = 0.0
    refresh_refuse: float = 0.0
    refresh_stall: float = 0.0
    snapshot_fail: float = 0.0
    snapshot_old: float = 0.0
    answer_ms: int = 1
    refresh_ms: int = 50


@dataclass
class World:
    """Arbitration, a retransmission and a refresh server around one recovery.

    The stream sends a packet a millisecond; gaps are as the test makes them with `lose`. A gap is
    reported missing at once, and announced lost when the recovery gives it up or its time is over.
    """

    recovery: Recovery
    faults: Faults = field(default_factory=Faults)
    seed: int = 0

    def __post_init__(self) -> None:
        self.watched = Watched(self.recovery)
        self.chance = random.Random(self.seed)
        self.now_ns = 0
        self.gaps: dict[int, int] = {}
        self.fetched: set[int] = set()
        self.lost: set[int] = set()
        self.connected = True
        self.newest = 0
        self.asked = self.asked_numbers = self.refreshes = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._generation = 0

    def at(self, delay_ns: int, what: Callable[[], None]) -> None:
        """Do `what` so much later; what is due together happens in the order it was planned."""
        self._order += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._order, what))

    def lose(self, first: int, end: int) -> None:
        """A gap that no line fills: reported missing now."""
        bound = self.now_ns + self.watched.recovery_settings.recovery_wait_us * 1000
        if not self.gaps:
            self.give(Input.NOTICED)
        for number in range(first, end):
            self.gaps[number] = bound
        self.newest = max(self.newest, end - 1)
        self.give(Input.MISSING, first, end, 1)
        self.at(bound - self.now_ns, self._overdue)

    def give(self, given: Input, *about: Any) -> Any:
        """An input now, and what the recovery does about it."""
        answer = self.watched.give(given, self.now_ns, *about)
        for action in self.watched.taken:
            if isinstance(action, Ask):
                self.asked += 1
                self.asked_numbers += action.end - action.first
                self._serve(action)
            elif isinstance(action, AskRefresh):
                self.refreshes += 1
                self._refresh(action.request_id)
            elif isinstance(action, GiveUp):
                self.at(0, lambda until=action.until: self._announce(until))
        return answer

    def run(self, until_ns: int) -> None:
        """Let everything happen that is due up to `until_ns`."""
        while True:
            due_ns = min(self.recovery.deadline_ns, self._events[0][0] if self._events else NEVER)
            if due_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(self.now_ns, due_ns)
            if self._events and self._events[0][0] <= self.now_ns:
                heapq.heappop(self._events)[2]()
            else:
                self.give(Input.TICK)

    # -- arbitration

    def come(self, first: int, end: int) -> None:
        """Packets have come, on whatever way."""
        for number in range(first, end):
            if self.gaps.pop(number, None) is not None:
                self.fetched.add(number)
        self._closed()

    def _closed(self) -> None:
        if not self.gaps:
            self.give(Input.CLOSED, self.newest + 1)

    def _overdue(self) -> None:
        due = [number for number, bound in self.gaps.items() if bound <= self.now_ns]
        if due:
            self._announce(max(due) + 1)

    def _announce(self, until: int) -> None:
        """Announce every gap below `until` as lost, run by run."""
        numbers = sorted(number for number in self.gaps if number < until)
        while numbers:
            first = end = numbers[0]
            while numbers and numbers[0] == end:
                del self.gaps[end]
                end = numbers.pop(0) + 1
            self.lost.update(range(first, end))
            self.give(Input.LOST, first, end)
            if not numbers:
                self._closed()

    # -- the servers

    def _serve(self, ask: Ask) -> None:
        generation, fate = self._generation, self.chance.random()
        faults = self.faults

        def answer(given: Input, *about: Any) -> Callable[[], None]:
            def happen() -> None:
                if generation == self._generation:
                    self.give(given, *about)
                    if given is Input.ARRIVED:
                        self.come(*about[1:])

            return happen

        delay = self.chance.randint(1, 2 * faults.answer_ms * MS)
        if fate < faults.stall:
            return
        if fate < faults.stall + faults.refuse:
            reason = self.chance.choice(faults.reasons)
            self.at(delay, answer(Input.REJECTED, ask.request_id, reason))
            return
        if self.chance.random() < faults.disconnect:
            self.at(delay, self._disconnect)
            return
        self.at(delay, answer(Input.ACCEPTED, ask.request_id))
        for number in range(ask.first, ask.end):
            if self.chance.random() >= faults.partial:
                delay += self.chance.randint(0, 20_000)
                self.at(delay, answer(Input.ARRIVED, ask.request_id, number, number + 1))
        self.at(delay, answer(Input.ANSWERED, ask.request_id))

    def _disconnect(self) -> None:
        if self.connected:
            self.connected = False
            self._generation += 1
            self.give(Input.SERVER_DOWN)
            self.at(self.chance.randint(1, 50) * MS, self._connect)

    def _connect(self) -> None:
        self.connected = True
        self.give(Input.SERVER_UP)

    def _refresh(self, request_id: int) -> None:
        fate, faults = self.chance.random(), self.faults
        delay = self.chance.randint(1, 2 * faults.refresh_ms * MS)
        if fate < faults.refresh_stall:
            return
        if fate < faults.refresh_stall + faults.refresh_refuse:
            reason = self.chance.choice((1, 2, 3, 4, 6, 7))
            self.at(delay, lambda: self.give(Input.REFRESH_REJECTED, request_id, reason))
            return
        self.at(delay, lambda: self.give(Input.REFRESH_ACCEPTED, request_id))
        self.at(delay + MS, self.cycle)

    def cycle(self) -> None:
        """A snapshot, whole or not, asked for or not."""
        last = self.newest
        if self.chance.random() < self.faults.snapshot_old:
            last = min(self.lost, default=1) - 1
        self.give(Input.SNAPSHOT_BEGAN)
        if self.chance.random() < self.faults.snapshot_fail:
            self.at(MS, lambda: self.give(Input.SNAPSHOT_FAILED, "no end"))
        else:
            self.at(MS, lambda: self._whole(last))

    def _whole(self, last: int) -> None:
        """A snapshot takes effect once the stream has passed its last number."""
        if any(number <= last for number in self.gaps):
            self.at(MS, lambda: self._whole(last))
        else:
            self.give(Input.SNAPSHOT, last)
