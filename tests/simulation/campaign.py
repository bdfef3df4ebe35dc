"""Many seeds: each played and checked, what they reached added up, and what none of them reached.

`play` is one seed; `campaign` plays many in processes of its own and gives a `Coverage`. Seeds
share a process's pool of sessions, and nothing else: a seed alone does what it does among others.
"""

import functools
import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sessions import DATA
from world import POOL, World, drawn, session

from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.quality import State as Quality
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.states import Input, State

PROCESSES = 2
#: So many seeds are worth processes of their own, which make the sessions anew.
MANY = 100
#: Seeds a process takes at a time.
CHUNK = 10
AGAIN = "SEED={seed} python -m pytest -s tests/simulation/test_recovery_seeds.py"

#: (state, input) pairs that recovery met in this process.
_MET = Counter[tuple[State, Input]]()


def _listen() -> None:
    """Count every step that any recovery takes."""
    step = Recovery._step

    @functools.wraps(step)
    def counted(self, given, now_ns, *about):
        _MET[self.state, given] += 1
        return step(self, given, now_ns, *about)

    Recovery._step = counted


_listen()


@dataclass
class Coverage:
    """Tally of what seeds did and reached; `failures` has (seed, what was wrong)."""

    seeds: int = 0
    totals: Counter = field(default_factory=Counter)
    reached: Counter = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Coverage") -> None:
        """Take in what other seeds did."""
        self.seeds += other.seeds
        self.totals += other.totals
        self.reached += other.reached
        self.failures += other.failures

    def missing(self) -> list[str]:
        """Return the states, qualities and rejections that must be reached and were not."""
        wanted = [f"state {state.name}" for state in State]
        wanted += [f"quality {state.name}" for state in Quality]
        wanted += [f"rejected {reason.name}" for reason in RetransReject if reason]
        wanted += [f"refresh rejected {reason.name}" for reason in RefreshReject if reason]
        return [name for name in wanted if not self.reached[name]]

    def report(self) -> str:
        """A page to read."""
        pairs = [(state, given) for state in State for given in Input]
        unmet = [
            f"{state.name}/{given.name}"
            for state, given in pairs
            if not self.reached[f"{state.name}/{given.name}"]
        ]
        lines = [f"{self.seeds:,} seeds, {len(self.failures)} failed"]
        lines += [f"  {name:32}{count:14,}" for name, count in sorted(self.totals.items())]
        for title in ("state", "quality", "rejected", "refresh rejected", "trick", "snapshot",
                      "broken", "record"):  # fmt: skip
            found = {
                name.removeprefix(title + " "): count
                for name, count in sorted(self.reached.items())
                if name.startswith(title + " ")
            }
            figures = ", ".join(f"{name} {count:,}" for name, count in found.items())
            lines.append(f"{title}: {figures}")
        lines.append(f"table: {len(pairs) - len(unmet)} of {len(pairs)} pairs; not {unmet}")
        return "\n".join(lines)


def play(seed: int) -> Coverage:
    """Play and check one seed."""
    _MET.clear()
    coverage = Coverage(seeds=1)
    world = World(drawn(seed), seed)
    try:
        world.play()
        world.subscriber.check_end(world.plan.heal_ns)
    except Exception as error:
        again = AGAIN.format(seed=seed)
        coverage.failures.append((seed, f"{type(error).__name__}: {error}\n  again: {again}"))
        if os.environ.get("SEED"):
            raise
    _count(coverage, world)
    if seed % CHUNK == CHUNK - 1 and not gc.isenabled():
        gc.collect()
    return coverage


def _count(coverage: Coverage, world: World) -> None:
    gateway, subscriber, reached = world.gateway, world.subscriber, coverage.reached
    recovery = gateway.core.recovery
    counts = recovery.counts
    coverage.totals.update({
        "packets sent": sum(sent.kind == DATA for sent in world.plan.session.sent),
        "packets received": len(world.arrivals),
        "packets published": sum(known.published for known in subscriber.services.values()),
        "numbers announced lost": sum(known.announced for known in subscriber.services.values()),
        "gaps announced": gateway.records["GAP"],
        "ranges asked for": gateway.records["MISSING"],
        "requests": counts["requests"],
        "packets retransmitted": counts["retransmitted"],
        "turned away by a full inlet": gateway.core.counts["inlet_full"],
        "refreshes": counts["refreshes"],
        "snapshots failed": counts["snapshots_failed"],
        "snapshots for links that attached": subscriber.seen["link/snapshot-end"],
        "mid-day starts": counts["mid_day_starts"],
        "of those, opened stale": counts["opened_stale"],
        "streams healed by retransmission alone": sum(
            known.joined <= 2 and not known.announced and recovery.state(index) is State.IN_SYNC
            for index, known in enumerate(subscriber.services.values())
        ),
    })  # fmt: skip
    for (state, given), count in _MET.items():
        reached[f"state {state.name}"] += count
        reached[f"{state.name}/{given.name}"] += count
    for name, count in subscriber.seen.items():
        if not name.startswith("link/"):
            reached[f"quality {name.split('/')[0]}"] += count
    for name, count in gateway.records.items():
        reached[f"record {name}"] += count
    for name, count in world.exchange.snapshots.items():
        reached[f"snapshot {name}"] += count
    for name, port in world.ports.items():
        for trick, count in port.mischief.played.items():
            reached[f"trick {name} {trick}"] += count
        reasons = RetransReject if name == "rts" else RefreshReject
        said = "rejected" if name == "rts" else "refresh rejected"
        for reason in reasons:
            count = port.refused[reason]
            if reason:
                count += port.server.counts[f"{said.replace(' ', '_')}_{reason.name.lower()}"]
                reached[f"{said} {reason.name}"] += count
        for counter, count in gateway.outward[name].server.client.counts.items():
            if count:
                reached[f"broken {name} {counter}"] += count


def _prepare() -> None:
    """In each process: sessions are made once, and are no garbage. A seed leaves little, so it is
    looked for after a few of them: that takes a fifth off their time."""
    for seed in range(POOL):
        session(seed)
    gc.collect()
    gc.freeze()
    gc.disable()


def campaign(seeds: Sequence[int]) -> Coverage:
    """Play them all; fewer than `MANY` in this process."""
    total = Coverage()
    if len(seeds) < MANY:
        for seed in seeds:
            total.add(play(seed))
        return total
    context = multiprocessing.get_context("fork")
    with context.Pool(PROCESSES, initializer=_prepare) as pool:
        for coverage in pool.imap_unordered(play, seeds, chunksize=CHUNK):
            total.add(coverage)
    total.failures.sort()
    return total
