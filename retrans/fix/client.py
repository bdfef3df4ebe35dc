"""The receiver's requests: each loss is requested once, and not at all where others have asked.

The owner of a `Requester` reports what is missing and what has come meanwhile, whichever receiver
asked for it. The requester waits a random time before it asks, so that of many receivers with one
loss few do: the first one's answer fills the others' gaps. Most waits are long and few are short,
since the more receivers there are, the likelier is a short one among them: the density grows with
exp(x (ln n + 1) / T) up to T, for n receivers (J. Nonnenmacher and E. Biersack, "Optimal multicast
feedback", 1998).

While an answer is coming, and after a request, it waits before it repeats, longer each time, and
gives up after `tries_max`. The owner decides what becomes of gaps that are not filled.

Times are integer ns and arguments; the same seed gives the same waits.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.fix.request import ResendRequest
from feedhandler.retrans.fix.server import NEVER, REQUEST_MESSAGES_MAX
from feedhandler.retrans.ranges import RangeSet

#: Most runs of missing messages at a time; further ones are not requested.
RUNS_MAX = 1024


@dataclass(frozen=True, slots=True)
class RequesterSettings:
    """Times and number of requests for a loss.

    spread_us        the first request waits a random part of this: 20 times the round trip to the
                     server; where there is but one receiver it does not wait
    receivers        about how many receivers may have the same loss
    retry_us         the wait for an answer, then twice that, and so on
    retry_most_us    the longest wait
    tries_max        most requests for one loss
    """

    spread_us: int = 10_000
    receivers: int = 100
    retry_us: int = 100_000
    retry_most_us: int = 1_000_000
    tries_max: int = 5
    request_messages_max: int = REQUEST_MESSAGES_MAX


@dataclass(slots=True)
class _Run:
    """One loss: the numbers still missing, when it is requested next, the tries so far."""

    missing: RangeSet
    due_ns: int
    tries: int = 0


class Requester:
    """The requests of one channel.

    Raises `UsageError` for settings without a wait for answers, or without a try.
    """

    def __init__(self, channel: str, settings: RequesterSettings, seed: int) -> None:
        if settings.retry_us < 1 or settings.tries_max < 1:
            raise UsageError(
                "requests need a wait for their answers", "set retry_us and tries_max above 0"
            )
        self.channel = channel
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._backoff = Backoff(settings.retry_us, settings.retry_most_us, seed)
        self._runs: list[_Run] = []

    def missing(self, first: int, last: int, now_ns: int) -> None:
        """Schedule a request for `first` to `last`, both included, which are missing.

        A longer range becomes several; where `RUNS_MAX` runs wait already, it is only counted.
        """
        if len(self._runs) >= RUNS_MAX:
            self.counts["not_asked_for_room"] += 1
            return
        wait_ns = self._wait_ns()
        step = self.settings.request_messages_max
        for begin in range(first, last + 1, step):
            end = min(begin + step - 1, last)
            self._runs.append(_Run(RangeSet([(begin, end)]), now_ns + wait_ns))

    def _wait_ns(self) -> int:
        """Return a random wait before the first request, in ns."""
        if self.settings.receivers < 2:
            return 0
        steep = math.log(self.settings.receivers) + 1
        share = math.log1p(self._random.random() * math.expm1(steep)) / steep
        return int(share * self.settings.spread_us * 1000)

    def settled(self, first: int, last: int, now_ns: int) -> None:
        """Remove `first` to `last`, which came, were skipped, or were given up.

        Puts off what remains of a run that they belong to, since its answer is on its way.
        """
        for run in list(self._runs):
            if not run.missing.touches(first, last):
                continue
            run.missing.discard(first, last)
            if not run.missing:
                self._runs.remove(run)
                self.counts["answered" if run.tries else "answered_to_others"] += 1
            else:
                # An answer is on its way.
                run.due_ns = max(run.due_ns, now_ns + self._backoff.delay_ns(run.tries))

    def clear(self) -> None:
        """Forget every loss, as another sequence epoch has begun."""
        self._runs.clear()

    def tick(self, now_ns: int) -> list[ResendRequest]:
        """Return the requests that are due; drops runs whose tries are used up."""
        requests = []
        for run in list(self._runs):
            if now_ns < run.due_ns:
                continue
            if run.tries == self.settings.tries_max:
                self._runs.remove(run)
                self.counts["abandoned"] += 1
                continue
            run.tries += 1
            run.due_ns = now_ns + self._backoff.delay_ns(run.tries)
            self.counts["requests"] += 1
            requests.append(ResendRequest(self.channel, run.missing.lowest, run.missing.highest))
        return requests

    @property
    def waiting(self) -> bool:
        """Whether anything is missing that is requested, or will be."""
        return bool(self._runs)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return min((run.due_ns for run in self._runs), default=NEVER)
