"""A queue's disk decays: of every flipped bit it is known beforehand what it may cost.

`journal_map` says of each byte which record it belongs to. A flipped bit of an item's content or
table entry costs that item, which is then *damaged* if it was pending; one of a status record
costs at most the ends that it says and no checkpoint has; one of `ended` what is known of those
ids; one of a header, checkpoint, trailer or tail costs nothing. Everything else is as it was, bit
by bit, and `verify` tells of exactly those that stand in a record. A file that was cut is refused.

`FLIPS=n` flips more bits, `SWEEP=1` one of every byte; `SEED=s` begins with another queue.
"""

import os
import random
from collections import Counter

import pytest

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.journal.batch import Batch
from feedhandler.journal.layout import Status
from feedhandler.journal.opening import Opened, open_store
from feedhandler.journal.producer_states import NAMES as PRODUCERS_NAMES
from feedhandler.journal.producer_states import parse_snapshot
from feedhandler.journal.segments import HEAD as SEGMENT_HEAD
from feedhandler.journal.segments import SEGMENT_PLAIN
from feedhandler.journal.store import Flush, Store
from feedhandler.journal.verify import verify
from tests.simulation.journal_map import Map, Region, View, differing, view_of
from tests.support.journal import FOLDER, Script
from tests.support.simulated_disk import SimulatedDisk

FLIPS = int(os.environ.get("FLIPS", "150"))
SWEEP = bool(os.environ.get("SWEEP"))
SEED = int(os.environ.get("SEED", "1"))
#: Bits flipped in one queue before another is made.
FLIPS_A_QUEUE = 250
KINDS = {
    "header", "tail", "checkpoint", "control", "ended", "segment header", "trailer",
    "status record", "table entry", "content", "segment fill", "fill", "free", "snapshot",
}  # fmt: skip


class Decaying:
    """A queue with several blocks in use, closed; what everybody knows of it, and its map."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        #: Ends that a flipped bit took back.
        self.brought_back = 0
        self.script = Script(seed, SimulatedDisk())
        self.script.open()
        store = self.script.parts.store
        while not (
            store.counts.blocks_grown > 1
            and len(store.live) > 2
            and store.counts.blocks_reused
            and any(block.active for block in store.live)
            and store.producers.latest
        ):
            self.script.step()
        for _ in range(8):  # so that there are changes that no checkpoint has
            self.script.step()
        self.disk = self.script.disk
        assert not verify(self.disk, FOLDER).problems
        self.map = Map(self.disk, self.script.parts)
        self.known = view_of(self.opened(self.disk.copy()))

    def opened(self, disk: SimulatedDisk) -> Opened:
        """The queue as its owner would find it on that disk."""
        return open_store(disk, FOLDER, self.script.settings, bytes(16), self.script.now_ns)

    def flip(self, path: str, bit: int) -> str:
        """Flip one bit, and hold what is found against what the map says; the record's kind."""
        region = self.map.at(path, bit // 8)
        about = f"SEED={self.seed}: {path}, bit {bit}, {region}"
        disk = self.disk.copy()
        disk.decay(path, bit)
        try:
            reported = bool(verify(disk, FOLDER).problems)
            opened = self.opened(disk)
        except FeedhandlerError:
            assert region.fatal, about
            return region.kind
        assert reported == region.reported, f"{about}: {'reported' if reported else 'not reported'}"
        assert not region.fatal, about
        self.hold(view_of(opened), region, about)
        return region.kind

    def is_moved(self, region: Region, number: int) -> bool:
        """Return whether the region is of a moved item, which may be found where it stood."""
        moved = region.kind == "move record" or (
            region.ends and region.kind in ("content", "table entry")
        )
        return bool(moved) or number not in self.known

    def hold(self, found: View, region: Region, about: str) -> None:
        """Check that exactly what the region says is lost."""
        lost = differing(self.known, found)
        pending = {n for n in region.items if self.known[n][0] is Status.PENDING}
        assert pending <= lost <= pending | region.ends, f"{about}: {sorted(lost)}"
        for number in lost:
            if region.gone:
                assert number not in found or number == 0 or found[number][0] is Status.PENDING
            elif number == 0:
                assert region.ends >= {0}, about
            elif self.is_moved(region, number) or number not in found:
                assert number in self.known or found[number][1] is None, about
            elif number in pending or region.kind == "unused entry":
                assert found[number][:2] == (Status.DAMAGED, None), about
            elif region.kind == "ended":
                assert found[number][:2] == (None, None), about
            else:
                self.brought_back += 1
                assert found[number][0] is Status.PENDING, about
                assert found[number][1] == self.script.ledger.contents[number], about


def drawn(queue: Decaying, draw: random.Random) -> tuple[str, int]:
    """A bit of some record: a kind of record first, so that small ones are hit as well."""
    path = draw.choice(queue.map.paths())
    regions = queue.map.regions(path)
    kind = draw.choice(sorted({region.kind for region in regions}))
    at = draw.choice([n for n, region in enumerate(regions) if region.kind == kind])
    end = regions[at + 1].start if at + 1 < len(regions) else queue.map.sizes[path]
    return path, draw.randrange(8 * regions[at].start, max(8 * end, 8 * regions[at].start + 1))


def test_a_flipped_bit_costs_what_it_belongs_to_and_is_reported() -> None:
    hit: Counter[str] = Counter()
    for seed in range(SEED, SEED + max(FLIPS // FLIPS_A_QUEUE, 1)):
        queue, draw = Decaying(seed), random.Random(seed)
        for _ in range(min(FLIPS, FLIPS_A_QUEUE)):
            hit[queue.flip(*drawn(queue, draw))] += 1
    print(dict(hit))
    assert hit.keys() - {"unused entry", "move record"} == KINDS


def test_both_snapshots_have_the_producers_of_a_group_that_no_segment_has(monkeypatch) -> None:
    record, with_groups = Store._recorded_by_checkpoints, []

    def noted(store: Store, batch: Batch) -> Flush:
        with_groups.append(bool(batch.all_groups))
        return record(store, batch)

    monkeypatch.setattr(Store, "_recorded_by_checkpoints", noted)
    queue = Decaying(116)
    assert any(with_groups), "in this script every group found room in a block"
    store = queue.script.parts.store
    found = [
        parse_snapshot(queue.disk.pread(f"{FOLDER}/{name}", 1 << 30, 0), store.queue_id)[1]
        for name in PRODUCERS_NAMES
    ]
    assert [snapshot.states for snapshot in found] == 2 * [store.producers.latest]


def test_of_a_last_segment_that_its_blocks_checkpoint_covers_all_counts_but_what_decayed() -> None:
    queue = Decaying(331)
    store = queue.script.parts.store
    newest = store.live[-1]
    regions = queue.map.regions(newest.path)
    begins = [region.start for region in regions if region.kind == "segment header"]
    head = queue.disk.pread(newest.path, 64, begins[-1])
    assert SEGMENT_HEAD.unpack_from(head)[1] != SEGMENT_PLAIN
    assert newest.last_sequence > store.roll.sequence, "all checkpoints cover it in this script"
    inside = [region for region in regions if begins[-1] < region.start < newest.end]
    assert not any(region.gone for region in inside)
    for region in inside:
        queue.flip(newest.path, 8 * region.start)
        disk = queue.disk.copy()
        disk.decay(newest.path, 8 * region.start)
        problems = verify(disk, FOLDER).problems
        assert not any("nothing of it counts" in problem for problem in problems), problems


@pytest.mark.skipif(not SWEEP, reason="takes a quarter of an hour: SWEEP=1 (make simulate-journal)")
def test_one_bit_of_every_byte() -> None:
    queue, draw = Decaying(SEED), random.Random(SEED)
    hit: Counter[str] = Counter()
    for path in queue.map.paths():
        for byte in range(queue.map.sizes[path]):
            hit[queue.flip(path, 8 * byte + draw.randrange(8))] += 1
        print(f"{path}: {hit.total():,} of {sum(queue.map.sizes.values()):,} bytes", flush=True)
    print(dict(hit))


def test_a_status_that_decayed_is_reported_and_takes_back_no_more_than_it_said() -> None:
    """Bits of every status record of some queues: ends that no checkpoint has come back."""
    brought_back = 0
    for seed in range(SEED, SEED + (6 if SWEEP else 2)):
        queue = Decaying(seed)
        for path in queue.map.paths():
            for region in queue.map.regions(path):
                if region.kind == "status record":
                    first = 8 * region.start
                    for bit in range(first, first + 8 * 24, 1 if SWEEP else 101):
                        queue.flip(path, bit)
        brought_back += queue.brought_back
    assert brought_back


@pytest.mark.parametrize("name", ["control", "ended", "block"])
def test_a_file_that_was_cut_is_refused_or_reported(name: str) -> None:
    queue = Decaying(SEED)
    path = next(path for path in queue.map.paths() if name in path)
    size = queue.map.sizes[path]
    draw = random.Random(SEED)
    lengths = range(size) if size < 1000 else sorted(draw.sample(range(size), 200))
    for length in lengths:
        disk = queue.disk.copy()
        disk.cut(path, length)
        if name == "ended":
            last = queue.map.at(path, max(length - 1, 0)).start
            regions = queue.map.regions(path)
            cut = {n for region in regions if region.start >= last for n in region.ends}
            assert differing(queue.known, view_of(queue.opened(disk))) <= cut
        else:
            with pytest.raises(FeedhandlerError, match=r"damaged|shorter|empty"):
                queue.opened(disk)


def test_the_map_bites() -> None:
    """Two bits, of which the map knows one only, are found out."""
    queue, path, regions = next(
        (queue, path, found)
        for queue in map(Decaying, range(SEED, SEED + 20))
        for path in queue.map.paths()
        if len(found := [index for index in queue.map.regions(path)
                         if index.kind == "content" and index.items
                         and queue.known[min(index.items)][0] is Status.PENDING]) > 1
    )  # fmt: skip
    disk = queue.disk.copy()
    for index in regions[:2]:
        disk.decay(path, 8 * index.start)
    with pytest.raises(AssertionError):
        queue.hold(view_of(queue.opened(disk)), regions[0], "two bits")
