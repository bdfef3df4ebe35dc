"""A writer of a queue that is killed without warning (kill -9), at random instants, many times.

It puts, delivers and cancels, checkpoints and uses blocks anew; whatever it was told is done counts
for the next one: nothing acknowledged is lost, nothing that ended comes back, nothing comes twice.
This proves what a killed process leaves behind; what a power cut leaves is
`tests/simulation/test_journal_power.py`'s. `KILLS=n` sets how often (`make crash-journal` runs
2,000), `SEED=s` begins with another seed.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from feedhandler.journal import BlockingQueue
from feedhandler.journal.files import Files
from feedhandler.journal.verify import verify
from tests.support.journal_writer import SETTINGS, token_of, work

KILLS = int(os.environ.get("KILLS", "10"))
PATIENCE_S = 60.0
#: So many lives get something done, however slow the disk is.
CAMPAIGN = 100
#: A life's length: long enough to come some way, short enough to be cut off anywhere.
LIFE_S_MAX = 0.05


class Book:
    """Record of the operations that the writers said they tried and completed."""

    def __init__(self) -> None:
        self.tried: set[int] = set()
        self.put: dict[int, int] = {}
        self.ending: set[int] = set()
        self.ended: set[int] = set()
        self.next_token = 1

    def note(self, kind: str, what: str, about) -> None:
        """One line of a writer's."""
        if what == "put" and kind == "try":
            self.tried.update(about)
            self.next_token = max(about) + 1
        elif what == "put":
            self.put |= about
        elif what == "end":
            (self.ending if kind == "try" else self.ended).update(about)

    def check(self, found: dict[int, int], about: str) -> None:
        """Hold what is pending in the queue (token by id) against what was said."""
        assert found.keys().isdisjoint(self.ended), f"{about}: came back"
        lost = self.put.keys() - self.ending - found.keys()
        assert not lost, f"{about}: lost {sorted(lost)[:9]}"
        assert set(found.values()) <= self.tried, f"{about}: never put"
        assert len(set(found.values())) == len(found), f"{about}: twice"
        for number, token in found.items():
            assert self.put.setdefault(number, token) == token, f"{about}: another's bytes"
        # What was not acknowledged and is gone may be given to another item.
        self.ending = {n for n in self.ending if n in self.ended or n in self.put}
        self.ended |= self.ending - found.keys()
        self.ending &= self.ended


def live_and_die(context, folder: Path, seed: int, book: Book) -> None:
    """One writer's life."""
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(str(folder), seed, book.next_token, there))
    child.start()
    there.close()
    try:
        assert here.poll(PATIENCE_S), "the writer did not open the queue"
        time.sleep(random.Random(seed).random() * LIFE_S_MAX)
        os.kill(child.pid, signal.SIGKILL)
        with contextlib.suppress(EOFError, OSError):
            while True:
                book.note(*here.recv())
    finally:
        child.kill()
        child.join()
        here.close()


@pytest.mark.timeout(0 if KILLS > 10 else 1800)
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    first = int(os.environ.get("SEED", "1"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.journal_writer"])
    book = Book()
    for seed in range(first, first + KILLS):
        live_and_die(context, tmp_path, seed, book)
        about = f"SEED={first} KILLS={seed - first + 1} python -m pytest -s {__file__}"
        if seed % 10 == 0:
            assert not verify(Files(read_only=True), str(tmp_path)).recovered.report.items_damaged
        with BlockingQueue(tmp_path, SETTINGS) as queue:
            found = {item.id: token_of(item.content) for item in queue.pending()}
            book.check(found, about)
            if len(found) > 200:
                numbers = sorted(found)[:-50]
                queue.delivered(*numbers)
                book.ended.update(numbers)
                book.ending.update(numbers)
    if KILLS >= CAMPAIGN:
        assert len(book.put) > KILLS
        assert len(book.ended) > KILLS // 2
    print(f"{KILLS} kills, {len(book.put):,} acknowledged items, {len(book.ended):,} ended")
