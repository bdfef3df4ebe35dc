"""A queue's disk fails, forgets, loses its power and decays: what was acknowledged is there.

Fault models are `tests.support.simulated_disk`'s, the ledger's classes `journal`'s. A script
of random operations (put, hand out, deliver, give back, cancel, cancel all, expire, grow) runs on a
small queue whose blocks are used anew all the time, and has what waits written in the two ways of
the product: one flush after the other, and segments behind each other. At every call that changes
something:

    power       the power is cut there, in several ways, and the queue opened again
    twice       it is cut again while it recovers, or while the script goes on after that
    failing     that call fails: once, for good, half done or interrupted; then nothing is written
                or acknowledged any more, unless it was a new block that could not be made

Nothing acknowledged may be lost, nothing that ended resurrected, nothing invented.
`OPERATIONS=n SAMPLES=n TWICE=n VARIANTS=8` make it longer (`make simulate-journal`), `SEED=s` plays
just one seed. What a decaying disk costs is `test_journal_decay.py`'s.
"""

import contextlib
import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from feedhandler.journal import recovery
from feedhandler.journal.block import Block
from feedhandler.journal.engine import Engine, QueueStopped
from feedhandler.journal.layout import Status
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import Store
from tests.support.journal import FOLDER, QUEUE_ID, SMALL, Script, wrong
from tests.support.seeds import seeds_to_play
from tests.support.simulated_disk import Fault, SimulatedDisk

OPERATIONS = int(os.environ.get("OPERATIONS", "50"))
SAMPLES = int(os.environ.get("SAMPLES", "3"))
TWICE = int(os.environ.get("TWICE", "10"))
#: Of the ways in which a call can fail, so many are tried at each call, in turn; 8 are all.
VARIANTS = int(os.environ.get("VARIANTS", "1"))
#: Operations of one seed: enough for each block to be used anew several times.
SCRIPT = 100
AGAIN = "SEED={} python -m pytest -s tests/simulation/test_journal_power.py -k {}"


def reopened(disk: SimulatedDisk, script: Script) -> Opened:
    """The queue as its owner would find it on that disk."""
    return open_store(disk, FOLDER, script.settings, QUEUE_ID, script.now_ns)


def judged(disk: SimulatedDisk, script: Script, seed: int, about: str) -> Counter[str]:
    """Count what became of the ids on that disk, by class; fail where something is wrong."""
    opened = reopened(disk, script)
    verdicts = script.ledger.judge(opened)
    assert not wrong(verdicts), (
        f"{dict(verdicts)} {about}: {opened.report}; again: {AGAIN.format(seed, about.split()[0])}"
    )
    return verdicts


def play_power(
    seed: int, operations: int, samples: int, settings: QueueSettings = SMALL
) -> Counter[str]:
    """A script whose power is cut at each of its calls, `samples` ways."""
    draw = random.Random(seed)
    disk = SimulatedDisk()
    script = Script(seed, disk, settings)
    script.open()
    total: Counter[str] = Counter()

    def cut(name: str) -> None:
        for _ in range(samples):
            found = disk.after_power_cut(draw)
            total.update(judged(found, script, seed, f"power at call {disk.calls + 1}, {name}"))
            total["cuts"] += 1

    disk.before_call = cut
    script.play(operations)
    total["operations"] += script.operations
    total["reused"] += script.parts.store.counts.blocks_reused
    total["grown"] += script.parts.store.counts.blocks_grown
    total["stalls"] += script.parts.store.counts.stalls
    total["prepared"] += script.parts.store.counts.prepared
    total["groups"] += script.parts.store.counts.groups
    total["moved"] += script.parts.store.counts.moved
    return total


def play_some(samples: int, settings: QueueSettings) -> None:
    """Enough seeds for any fault that is not a rare one."""
    for seed in range(1, 20):
        play_power(seed, SCRIPT, samples, settings)


def test_power_cut_at_every_call_loses_nothing_acknowledged() -> None:
    total: Counter[str] = Counter()
    for seed in seeds_to_play(range(1, max(OPERATIONS // SCRIPT, 2) + 1)):
        total += play_power(seed, SCRIPT, SAMPLES)
    print(dict(total))
    if not os.environ.get("SEED"):
        assert all(
            total[name]
            for name in ("ok", "cuts", "reused", "grown", "stalls", "prepared", "groups", "moved")
        )


def test_power_cut_while_the_queue_is_made_leaves_none_or_a_whole_one() -> None:
    draw = random.Random(1)
    disk = SimulatedDisk()
    script = Script(1, disk)

    def cut(_: str) -> None:
        assert reopened(disk.after_power_cut(draw), script).store.visible_end == 1

    disk.before_call = cut
    script.open()


def test_fast_acknowledgement_is_not_enough_for_a_power_cut() -> None:
    """The oracle bites: without syncs something acknowledged is lost."""
    with pytest.raises(AssertionError, match="lost"):
        play_some(SAMPLES, replace(SMALL, durability="fast"))


def test_who_is_behind_the_segment_that_is_on_the_disk_is_not_yet(monkeypatch) -> None:
    """The oracle bites: where all that was taken in is acknowledged with it, some is lost."""

    def settle(engine: Engine) -> None:
        settled(engine)
        engine.durable_id = engine.next_id - 1

    settled = Engine._settle
    monkeypatch.setattr(Engine, "_settle", settle)
    with pytest.raises(AssertionError, match="lost"):
        play_some(1, SMALL)


def test_a_round_that_forgets_older_blocks_resurrects(monkeypatch) -> None:
    """The oracle bites: where only the newest block's checkpoint is written, ends come back."""
    monkeypatch.setattr(Block, "dirty", property(lambda block: False))
    monkeypatch.setattr(Store, "_give_up", lambda self, block, steps: self.live.remove(block))
    with pytest.raises(AssertionError, match=r"resurrected|lost"):
        play_some(1, SMALL)


def test_a_group_that_was_cut_short_is_found_out_where_its_records_count_alone(
    monkeypatch,
) -> None:
    """The oracle bites: each record of a torn last segment for itself."""
    monkeypatch.setattr(recovery, "_is_unfinished", lambda *_: False)
    with pytest.raises(AssertionError, match="torn"):
        play_some(SAMPLES, SMALL)


def test_a_checkpoint_that_has_half_a_group_is_found_out(monkeypatch) -> None:
    """The oracle bites: a checkpoint with what is not on the disk yet."""
    monkeypatch.setattr(Block, "pledges", property(lambda _: [], lambda *_: None), raising=False)
    with pytest.raises(AssertionError, match=r"torn|changed"):
        play_some(SAMPLES, SMALL)


def test_a_snapshot_that_is_never_written_is_found_out(monkeypatch) -> None:
    """The oracle bites: producers' states are lost with the blocks that are used anew."""

    def forget(store: Store, *_: object) -> None:
        store.producers.uncovered = [0, 0]

    monkeypatch.setattr(Store, "_snapshot", forget)
    with pytest.raises(AssertionError, match=r"torn|forgotten"):
        play_some(1, SMALL)


def test_a_mark_that_no_checkpoint_keeps_is_found_out(monkeypatch) -> None:
    """The oracle bites: marks in segments only."""
    monkeypatch.setattr(Block, "packed_statuses", lambda block: bytes(block.statuses))
    with pytest.raises(AssertionError, match=r"torn|forgotten"):
        play_some(1, SMALL)


def unmoved(recovered, block, segment, offset, *, fresh: bool) -> None:
    """Apply moves as recovery does, without taking items from where they stood."""
    for number, ordinal, kind in segment.statuses:
        if kind & 0xFF == recovery.MOVE:
            recovered.slots[number] = segment.first_id + ordinal
            recovered.numbers[segment.first_id + ordinal] = number


def test_an_item_that_counts_where_it_was_and_where_it_is_is_found_out(monkeypatch) -> None:
    """The oracle bites: moved, and not taken from where it stood."""
    monkeypatch.setattr(recovery, "_apply_moves", unmoved)
    with pytest.raises(AssertionError, match="twice"):
        play_some(1, SMALL)


def test_a_move_that_no_checkpoint_keeps_is_found_out(monkeypatch) -> None:
    """The oracle bites: after a round it is not known whose content it is."""
    monkeypatch.setattr(recovery, "_read_moves", lambda *_: None)
    with pytest.raises(AssertionError, match=r"lost|phantom|changed"):
        play_some(1, SMALL)


# -- twice ------------------------------------------------------------------------------------


class Cut(Exception):
    """The power is gone."""


def cut_at(disk: SimulatedDisk, call: int) -> None:
    """The power of `disk` goes at a call."""

    def gone(_: str) -> None:
        if disk.calls + 1 >= call:
            raise Cut

    disk.before_call = gone


def play_until_cut(script: Script, operations: int, call: int) -> None:
    """Go on with a script until its power goes, or it is done."""
    cut_at(script.disk, script.disk.calls + call)
    try:
        script.open()
        script.play(operations)
    except Cut:
        pass
    script.disk.before_call = lambda name: None


def forget_unacknowledged(script: Script) -> None:
    """After a crash the ids above those found are given to other items."""
    opened, ledger = script.parts, script.ledger
    ledger.go_on(opened)
    for number in [n for n in ledger.contents if n >= opened.store.visible_end]:
        del ledger.contents[number]
        ledger.asked.pop(number, None)
    for number in ledger.contents:
        status = opened.delivery.status(number)
        if status:
            ledger.ended.setdefault(number, status)
            ledger.asked[number] = {ledger.ended[number]}
        elif status is Status.PENDING:
            ledger.asked.pop(number, None)


@pytest.mark.parametrize("again", ["while it recovers", "while it goes on"])
def test_two_power_cuts_lose_no_more_than_one(again: str) -> None:
    for seed in seeds_to_play(range(1, TWICE + 1)):
        draw = random.Random(seed)
        script = Script(seed, SimulatedDisk())
        play_until_cut(script, SCRIPT, draw.randrange(60, 300))
        script.disk = script.disk.after_power_cut(draw)
        if again == "while it recovers":
            call = draw.randrange(1, 8)
            cut_at(script.disk, call)
            with contextlib.suppress(Cut):
                reopened(script.disk, script)
        else:
            judged(script.disk, script, seed, "twice, first")
            script.open()
            forget_unacknowledged(script)
            play_until_cut(script, 10, draw.randrange(1, 60))
        judged(script.disk.after_power_cut(draw), script, seed, f"twice, {again}")


# -- failing ----------------------------------------------------------------------------------

#: Operations of a script here: each is played up to each of its calls.
SHORT = 25
#: How a call fails, and whether all after it do too.
WAYS = [
    (kind, for_good)
    for kind in ("EIO", "ENOSPC", "EINTR", "short")
    for for_good in (False, True)
    # A disk that interrupts each call, or does half for ever, never ends a write.
    if not (for_good and kind == "EINTR")
]


def play_failing(seed: int, fault: Fault) -> bool:
    """A script one of whose calls fails; whether that stopped the queue, or kept it from growing.
    Nothing may be lost, and what has stopped does and acknowledges nothing any more."""
    disk = SimulatedDisk()
    script = Script(seed, disk)
    disk.fault = fault
    noticed = False
    try:
        script.open()
        while script.operations < SHORT:
            script.step()
            if disk.calls > fault.at + 5 and not fault.for_good:
                break  # what one failure does not stop it never will
        noticed = script.opened.growth_failures > 0
    except OSError:
        noticed = True  # it was not opened
    except QueueStopped:
        noticed = True
        engine, calls, durable = script.opened, disk.calls, script.opened.durable_id
        disk.fault = None
        for call in (engine.flush, lambda: engine.take(1), engine.check):
            with pytest.raises(QueueStopped):
                call()
        engine.close()
        assert (disk.calls, engine.durable_id) == (calls, durable)
    found = disk.after_power_cut(random.Random(seed))
    judged(found, script, seed, f"failing, {fault}")
    return noticed


def calls_of(seed: int) -> int:
    """Return how many calls to the disk a script makes, the queue's making included."""
    disk = SimulatedDisk()
    script = Script(seed, disk)
    script.open()
    script.play(SHORT)
    return disk.calls


def test_every_call_may_fail_in_any_way_and_nothing_acknowledged_is_lost() -> None:
    """Each call of each script, the nth for all n: a failed write or sync stops the queue."""
    stopped: Counter[tuple[str, bool]] = Counter()
    tried: Counter[tuple[str, bool]] = Counter()
    for seed in seeds_to_play(range(1, max(OPERATIONS // SHORT, 1) + 1)):
        for at in range(1, calls_of(seed) + 1):
            for turn in range(min(VARIANTS, len(WAYS))):
                way = WAYS[(at + seed + turn) % len(WAYS)]
                tried[way] += 1
                stopped[way] += play_failing(seed, Fault(at, *way))
    print({f"{kind} {'for good' if good else 'once'}": (stopped[kind, good], tried[kind, good])
           for kind, good in WAYS})  # fmt: skip
    for kind, for_good in WAYS:
        if kind in ("EIO", "ENOSPC"):
            assert stopped[kind, for_good] == tried[kind, for_good]
    assert not stopped["short", False] + stopped["short", True]
    assert 0 < stopped["EINTR", False] < tried["EINTR", False]  # a sync is not tried again
