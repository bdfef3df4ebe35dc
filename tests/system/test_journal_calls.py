"""The compiled queue's own system calls: each of them a point for a power cut, and each may fail.

A queue in an event loop, with the thread that writes by itself, runs in a process whose every call
on its files goes through a preloaded library (`journal_calls.c`), which writes it down and lets one
of them fail. From what was written down the disk is rebuilt as it was at each call, and the ledger
of `journal` judges what is found there:

    cut       the power is cut before each call, and between the write and the sync of what is
              written through; each sector not synced is kept, dropped, torn, zeroed or garbage
    failing   a call fails (EIO, ENOSPC, EDQUOT: once or for good): the queue stops, writes and
              acknowledges nothing more; or it is interrupted, does half, has no flag to write
              through: it goes on. What was acknowledged is in the files, and on the disk

`OPERATIONS=n SAMPLES=n FAILURES=n` make it longer (`make simulate-journal`), `SEED=s` plays just
one seed. Which thread comes when is not in the seed: what a failing test wrote down is kept, and
`TRACE=file` judges that again.
"""

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.journal.files import Files
from tests.support.seeds import seeds_to_play
from tests.system.journal_calls import Entry, Failing, Kind, Replay, Worker, built, entries

OPERATIONS = int(os.environ.get("OPERATIONS", "150"))
SAMPLES = int(os.environ.get("SAMPLES", "1"))
FAILURES = int(os.environ.get("FAILURES", "10"))
#: Operations of one queue.
SCRIPT = 150
#: Operations of one that fails; calls that it makes at least, and those until it is open.
SHORT, CALLS, OPENING = 60, 90, 36
#: How a call fails, and whether the queue stops by that.
WAYS = [Failing(0, how, good) for how in ("EIO", "ENOSPC", "EDQUOT") for good in (False, True)]
WAYS += [Failing(0, how) for how in ("EINTR", "SHORT")]
WAYS += [Failing(0, how, True) for how in ("SHORT", "NO_FLAG")]
AGAIN = "SEED={} OPERATIONS={} python -m pytest -s tests/system/test_journal_calls.py -k {}"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    try:
        library = built(tmp_path_factory.mktemp("library"))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the library that witnesses calls cannot be built: {error}")
    worker = Worker(library)
    yield worker
    worker.close()


def cut_everywhere(replay: Replay, seed: int, about: str) -> Counter[str]:
    """The power is cut at every call that was written down."""
    draw, total = random.Random(seed), Counter[str]()

    def cut(name: str) -> None:
        for _ in range(SAMPLES):
            found = replay.disk.after_power_cut(draw)
            total.update(replay.judged(found, f"at call {replay.disk.calls + 1}, {name}; {about}"))
            total["cuts"] += 1

    replay.play(cut)
    return total


def test_the_power_is_cut_at_every_call_that_the_queue_makes(worker, tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for seed in seeds_to_play(range(1, max(OPERATIONS // SCRIPT, 1) + 1)):
        folder = tmp_path / f"{seed}"
        if trace := os.environ.get("TRACE"):
            found, folder = entries(Path(trace)), Path(trace).with_suffix("")
        else:
            found = worker.work(folder, seed, SCRIPT, Failing())
        about = f"TRACE={folder}.trace " + AGAIN.format(seed, SCRIPT, "power")
        replay = Replay(found, folder)
        total += cut_everywhere(replay, seed, about)
        assert replay.notes[-1] == ["closed"], replay.notes[-1]
        total["full"] += ["full"] in replay.notes
        total["calls"] += sum(entry.kind is not Kind.NOTE for entry in found)
        total["written through"] += sum(entry.kind is Kind.THROUGH for entry in found)
        figures = next(about for what, *about in replay.notes if what == "figures")[0]
        for name in (
            "flushes",
            "flushes_prepared",
            "blocks_reused",
            "blocks_grown",
            "checkpoints",
            "groups",
        ):
            total[name] += figures[name]
        shutil.rmtree(folder, ignore_errors=True)
    print(dict(total))
    if not os.environ.get("SEED"):
        assert total["full"] <= 1 + OPERATIONS // SCRIPT // 4, "it is an exception"
        assert all(total[name] for name in ("ok", "written through", "flushes_prepared", "groups"))


def test_a_disk_that_only_says_that_it_wrote_through_is_found_out(worker, tmp_path: Path) -> None:
    found = worker.work(tmp_path / "queue", 3, SCRIPT, Failing())
    with pytest.raises(AssertionError, match=r"lost|resurrected"):
        cut_everywhere(Replay(found, tmp_path / "queue", through=False), 3, "")


# -- failing ----------------------------------------------------------------------------------


def growing(found: list[Entry]) -> set[int]:
    """Entries by which a further block is made, beside what goes on: by their positions."""
    opened = next((n for n, entry in enumerate(found) if b'"opened"' in entry.data), len(found))
    grows: set[int] = set()
    paths: set[str] = set()
    for at, entry in enumerate(found[opened:], opened):
        name = os.path.basename(entry.path)
        if entry.kind is Kind.CREATE and name.startswith("block-"):
            paths.add(entry.path)
        if entry.path in paths or name.startswith("control"):
            grows.add(at)
        if entry.kind is Kind.RENAME and name.startswith("control") and not entry.error:
            paths.clear()
    return grows


def hold_failed(replay: Replay, failing: Failing, folder: Path) -> str:
    """Check that the queue took its failure as it should; return how, in a word."""
    found, notes = replay.entries, {what for what, *_ in replay.notes}
    failed = next((at for at, entry in enumerate(found) if entry.error), None)
    assert not notes & {"went on", "locked"}, notes
    if failed is None or failing.how in ("EINTR", "SHORT", "NO_FLAG"):
        assert "closed" in notes, notes
        assert not notes & {"stopped", "refused"}, notes
        return "went on"
    entry = found[failed]
    grows = growing(found)
    if failed in grows or entry.path == str(folder):
        return "grew or not"
    if not any(b'"opened"' in other.data for other in found[:failed]):
        assert "refused" in notes, notes
        return "refused"
    assert "stopped" in notes, notes
    for at, other in enumerate(found[failed + 1 :], failed + 1):
        changes = other.kind not in (Kind.NOTE, Kind.OPEN)
        assert not changes or at in grows or other.path == str(folder), f"{other} after {entry}"
    return "stopped"


def test_every_way_in_which_a_call_may_fail(worker, tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for seed in seeds_to_play(range(1, FAILURES + 1)):
        draw = random.Random(seed)
        way = draw.choice(WAYS)
        # Each call of the opening in turn, and any that comes later.
        call = draw.randrange(OPENING, CALLS) if seed % 5 else 1 + seed // 5 % OPENING
        failing = Failing(call, way.how, way.for_good)
        folder = tmp_path / f"{seed}"
        found = worker.work(folder, seed, SHORT, failing)
        about = f"{failing} {folder}.trace " + AGAIN.format(seed, SHORT, "fail")
        replay = Replay(found, folder)
        replay.play()
        total[f"{failing.how}: {hold_failed(replay, failing, folder)}"] += 1
        for _ in range(SAMPLES):
            replay.judged(replay.disk.after_power_cut(draw), about)
        replay.judged(Files(), about)
        shutil.rmtree(folder)
        folder.with_suffix(".trace").unlink()
    print(dict(total))
