"""A queue's disk fails, forgets, loses its power and decays: what was acknowledged is there.

Fault models are `feedhandler.journal.simulated`'s, the ledger's classes `journal_kit`'s. A script
of random operations (put, hand out, deliver, give back, cancel, cancel all, expire, grow) runs on a
small queue whose blocks are used anew all the time, and at every call that changes something:

    power       the power is cut there, in several ways, and the queue opened again
    twice       it is cut again while it recovers, or while the script goes on after that
    failing     that call fails: once, for good, half done or interrupted
    decay       at the end one bit is flipped: header, checkpoint, data, tail, control, `ended`

Nothing acknowledged may be lost, nothing that ended resurrected, nothing invented; a flipped bit
costs one record and is told of. `OPERATIONS=n SAMPLES=n TWICE=n FLIPS=n` make it longer
(`make simulate-journal`), `SEED=s` plays just one seed.
"""

import contextlib
import os
import random
from collections import Counter
from dataclasses import replace

import pytest
from journal_kit import FOLDER, QUEUE_ID, SMALL, Script, wrong

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.journal.block import Block
from feedhandler.journal.layout import Status
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.simulated import Fault, SimulatedDisk
from feedhandler.journal.store import Store
from feedhandler.journal.verify import verify

OPERATIONS = int(os.environ.get("OPERATIONS", "500"))
SAMPLES = int(os.environ.get("SAMPLES", "4"))
TWICE = int(os.environ.get("TWICE", "100"))
FLIPS = int(os.environ.get("FLIPS", "5000"))
#: Operations of one seed: enough for each block to be used anew several times.
SCRIPT = 50
AGAIN = "SEED={} python -m pytest -s tests/simulation/test_journal_power.py -k {}"


def seeds(count: int) -> list[int]:
    """The seeds to play."""
    chosen = os.environ.get("SEED")
    return [int(chosen)] if chosen else list(range(1, count + 1))


def reopened(disk: SimulatedDisk, script: Script) -> Opened:
    """The queue as its owner would find it on that disk."""
    return open_store(disk, FOLDER, script.settings, QUEUE_ID, script.now_ns)


def judged(disk: SimulatedDisk, script: Script, seed: int, about: str) -> Counter[str]:
    """What became of every id on that disk; fails where something is wrong."""
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
    for _ in range(operations):
        script.step()
    total["reused"] += script.opened.store.counts.blocks_reused
    total["grown"] += script.opened.store.counts.blocks_grown
    total["stalls"] += script.opened.store.counts.stalls
    total["prepared"] += script.opened.store.counts.prepared
    return total


def play_some(samples: int, settings: QueueSettings) -> None:
    """Enough seeds for any fault that is not a rare one."""
    for seed in range(1, 20):
        play_power(seed, SCRIPT, samples, settings)


def test_power_cut_at_every_call_loses_nothing_acknowledged() -> None:
    total: Counter[str] = Counter()
    for seed in seeds(max(OPERATIONS // SCRIPT, 1)):
        total += play_power(seed, SCRIPT, SAMPLES)
    print(dict(total))
    if not os.environ.get("SEED"):
        assert all(total[name] for name in ("ok", "cuts", "reused", "grown", "stalls", "prepared"))


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


def test_a_round_that_forgets_older_blocks_resurrects(monkeypatch) -> None:
    """The oracle bites: where only the newest block's checkpoint is written, ends are lost."""
    monkeypatch.setattr(Block, "dirty", property(lambda block: False))
    monkeypatch.setattr(Store, "_give_up", lambda self, block, steps: self.live.remove(block))
    with pytest.raises(AssertionError, match="resurrected"):
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


def play_until_cut(script: Script, steps: int, call: int) -> None:
    """Go on with a script until its power goes, or it is done."""
    cut_at(script.disk, script.disk.calls + call)
    try:
        script.open()
        for _ in range(steps):
            script.step()
    except Cut:
        pass
    script.disk.before_call = lambda name: None


def forget_unacknowledged(script: Script) -> None:
    """After a crash the ids above those found are given to other items."""
    opened, ledger = script.opened, script.ledger
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
    for seed in seeds(TWICE):
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

KINDS = ("EIO", "ENOSPC", "EINTR", "short")


def play_failing(seed: int, fault: Fault) -> bool:
    """A script one of whose calls fails; whether it stopped the queue. Nothing may be lost."""
    disk = SimulatedDisk()
    script = Script(seed, disk)
    script.open()
    disk.fault = replace(fault, at=disk.calls + fault.at)
    stopped = False
    try:
        for _ in range(SCRIPT):
            script.step()
    except OSError:
        stopped = True
    found = disk.after_power_cut(random.Random(seed))
    judged(found, script, seed, f"failing, {fault}")
    return stopped


def test_a_failing_call_stops_the_queue_and_acknowledges_nothing() -> None:
    stopped: Counter[str] = Counter()
    for at in range(1, OPERATIONS + 1):
        for for_good in (False, True):
            kind = KINDS[at % 2] if for_good else KINDS[at % 4]
            stopped[kind] += play_failing(at % 7 + 1, Fault(at % 120 + 1, kind, for_good))
    assert stopped["EIO"]
    assert stopped["ENOSPC"]
    assert not stopped["short"]


# -- decay ------------------------------------------------------------------------------------


def grown_queue(seed: int) -> Script:
    """A queue with several blocks in use, closed."""
    script = Script(seed, SimulatedDisk())
    script.open()
    while script.opened.store.counts.blocks_grown < 2 or len(script.opened.store.live) < 3:
        script.step()
    return script


def used_bits(script: Script, draw: random.Random) -> tuple[str, int]:
    """A bit of some record: each kind of record is as likely."""
    disk = script.disk
    block = draw.choice(script.opened.store.live)
    geometry = block.geometry
    kind = draw.randrange(6)
    if kind == 0:
        name = draw.choice(["control", "ended"])
        size = disk.size(f"{FOLDER}/{name}")
        if size:
            return f"{FOLDER}/{name}", draw.randrange(8 * size)
    if kind == 1:
        return block.path, 8 * draw.choice((0, geometry.tail)) + draw.randrange(8 * 100)
    if kind == 2:
        return block.path, 8 * draw.choice(geometry.checkpoints) + draw.randrange(8 * 300)
    used = max(block.end - geometry.data, 1)
    return block.path, 8 * geometry.data + draw.randrange(8 * used)


def damaged_at_most(script: Script, path: str, bit: int) -> frozenset[int]:
    """The items that a flipped bit of a block's data may cost: the one that it is in."""
    for block in script.opened.store.live:
        if block.path == path:
            return frozenset(range(block.first_id, block.next_id))
    return frozenset()


def test_a_flipped_bit_is_told_of_and_costs_one_record() -> None:
    seed = int(os.environ.get("SEED", "1"))
    told = refused = 0
    for number in range(max(FLIPS // 250, 1)):
        script = grown_queue(seed + number)
        draw = random.Random(seed + number)
        whole = verify(script.disk, FOLDER)
        assert not whole.problems
        for _ in range(min(FLIPS, 250)):
            outcome = flip(script, draw, f"{AGAIN.format(seed + number, 'flipped')}")
            told += outcome == "told"
            refused += outcome == "refused"
    assert told > FLIPS // 3
    assert refused


def flip(script: Script, draw: random.Random, again: str) -> str:
    """Flip one bit and look: was it told of, refused, or of no meaning?"""
    path, bit = used_bits(script, draw)
    disk = script.disk.copy()
    disk.decay(path, bit)
    try:
        problems = verify(disk, FOLDER).problems
        opened = reopened(disk, script)
    except FeedhandlerError:
        assert path.endswith("control"), again
        return "refused"
    damaged = opened.delivery.damaged
    verdicts = script.ledger.judge(opened, damaged_at_most(script, path, bit))
    lost = opened.delivery.damaged - damaged + opened.report.items_damaged
    assert lost <= 1, (lost, path, bit, again)
    # A status record that is hit brings what it said back; everything else is as it was.
    allowed = opened.report.changes_damaged
    assert not (wrong(verdicts).keys() - ({"resurrected"} if allowed else set())), (
        verdicts, path, bit, problems, again,
    )  # fmt: skip
    if problems or path.endswith("ended"):
        return "told"
    inert = opened.report.items_damaged == 0 and not wrong(verdicts)
    assert inert, (path, bit, again)
    return "inert"
