"""A process whose every call on a queue's files is witnessed, and the disk as it was at each.

`system/journal_calls.c` is preloaded into `journal_worker.py`; what it writes down is read back
here (`entries`) and played into a `SimulatedDisk` (`Replay`), with the ledger that the process's
notes keep: so the power may be cut at each call that the compiled queue really made.
"""

import ctypes
import enum
import errno
import json
import os
import random
import select
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feedhandler.journal.files import Files
from feedhandler.journal.layout import Status
from feedhandler.journal.opening import open_store
from feedhandler.journal.owner import OWNER_NAME
from feedhandler.journal.settings import QueueSettings
from tests.support.journal import DAY_NS, QUEUE_ID, Attempt, Ledger, wrong
from tests.support.simulated_disk import SimulatedDisk

SOURCE = Path(__file__).parent / "journal_calls.c"
WORKER = Path(__file__).parent / "journal_worker.py"
PATIENCE_S = 120.0
SETTINGS = QueueSettings(
    block_bytes=64 << 10, blocks=2, blocks_max=5, journal_bytes=8 << 10, checkpoint_bytes=32 << 10
)
#: When what was left behind is looked at.
LATER_NS = DAY_NS + 3600 * 10**9
_HEAD = struct.Struct("<iiiiqqq")


class Kind(enum.IntEnum):
    """Kind of a trace entry, by the numbers of `journal_calls.c`; `THROUGH` writes and syncs."""

    NOTE, CREATE, OPEN, WRITE, THROUGH, SYNC, RENAME, REMOVE, CUT, OTHER = range(10)


class Entry(NamedTuple):
    """A call, or a note; `error`: an errno."""

    kind: Kind
    error: int
    path: str
    offset: int
    result: int
    data: bytes


@dataclass(frozen=True)
class Failing:
    """Call `at` fails, and all after it where it does so for good; `how`: an errno's name, SHORT (a
    write does half), NO_FLAG (a write with the flag is refused as not supported)."""

    at: int = 0
    how: str = "EIO"
    for_good: bool = False

    @property
    def number(self) -> int:
        """As the preloaded library reads it."""
        return {"SHORT": -1, "NO_FLAG": -2}.get(self.how) or getattr(errno, self.how)


def content_of(token: int) -> bytes:
    """An item's bytes, which begin with its token."""
    size = token * 7919 % (10, 100, 400, 3000, 9000)[token % 5]
    return b"%016d" % token + random.Random(token).randbytes(size)


def token_of(content: bytes) -> int:
    """The token of an item whose bytes are right; -1 of any other."""
    token = int(content[:16])
    return token if content == content_of(token) else -1


# -- the process ------------------------------------------------------------------------------


def built(folder: Path) -> Path:
    """The library. Raises `FileNotFoundError` where there is no compiler."""
    library = folder / "journal_calls.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"],
        check=True,
    )
    return library


class Worker:
    """A process with the library in it, that works on one queue after the other."""

    def __init__(self, library: Path) -> None:
        environment = os.environ | {
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._process = subprocess.Popen(
            [sys.executable, WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def work(self, folder: Path, seed: int, operations: int, failing: Failing) -> list[Entry]:
        """Have a fork of it make a queue in `folder` and work on it; everything that it did."""
        trace = folder.with_suffix(".trace")
        job = (str(folder), str(trace), seed, operations,
               failing.at, failing.number, failing.for_good)  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        code = self._process.stdout.readline().strip() if ready else b"no answer"
        assert code == b"0", f"{trace}: the process ended with {code.decode()}"
        return entries(trace)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def note(*what: Any) -> None:
    """In the process: write down what is said here, between the calls."""
    text = json.dumps(what).encode()
    ctypes.CDLL(None).journal_note(text, ctypes.c_size_t(len(text)))


def entries(trace: Path) -> list[Entry]:
    """Return the calls and notes that were written to a trace file."""
    found, at, data = [], 0, trace.read_bytes()
    while at < len(data):
        kind, error, named, _, offset, result, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        path = data[at : at + named].decode()
        at += named + size
        found.append(Entry(Kind(kind), error, path, offset, result, data[at - size : at]))
    return found


# -- what it left -----------------------------------------------------------------------------


class Replay:
    """A queue's disk and ledger, entry by entry. `through`: whether what was written through is
    taken to be on the disk."""

    def __init__(self, found: list[Entry], folder: Path, *, through: bool = True) -> None:
        self.entries = found
        self.folder = str(folder)
        self.through = through
        self.disk = SimulatedDisk()
        self.ledger = Ledger()
        self.notes: list[list[Any]] = []
        self._held: set[int] = set()
        self._groups: dict[int, Attempt] = {}
        #: What may or may not be cancelled by what is under way.
        self._maybe: list[int] = []

    def play(self, cut: Callable[[str], None] = lambda name: None) -> None:
        """Everything in order; `cut` is called before each call (before the write and before the
        sync of what is written through), and at the end."""
        self.disk.before_call = cut
        for entry in self.entries:
            if entry.kind is Kind.NOTE:
                what, *about = json.loads(entry.data)
                self.notes.append([what, *about])
                self._note(what, *about)
            elif os.path.basename(entry.path) != OWNER_NAME:
                self._call(entry)
        cut("end")

    def _call(self, entry: Entry) -> None:
        disk, (kind, error, path, offset, result, data) = self.disk, entry
        if kind in (Kind.WRITE, Kind.THROUGH) and result:
            through = kind is Kind.THROUGH and not error and self.through
            write = disk.pwrite_through if through else disk.pwrite
            assert write(path, memoryview(data), offset) == result
        elif error or kind is Kind.OPEN:
            disk.before_call(kind.name)
        elif kind is Kind.CREATE:
            disk.create(path)
        elif kind is Kind.SYNC:
            (disk.sync_folder if path == self.folder else disk.sync)(path)
        elif kind is Kind.RENAME:
            disk.rename(path, data.decode())
        elif kind is Kind.REMOVE:
            disk.remove(path)
        else:
            raise AssertionError(f"not witnessed as it should be: {entry}")

    def _note(self, what: str, *about: Any) -> None:
        ledger = self.ledger
        if what == "tried":
            ledger.contents |= {number: content_of(token) for number, token in about[0]}
        elif what in ("put", "had"):
            for number, token in about[0]:
                assert ledger.contents.get(number) == content_of(token), (what, number, token)
                ledger.acknowledge(number)
                if what == "had":
                    assert number not in self._held, f"{number} handed out twice"
                    assert number not in ledger.ended, f"{number} handed out after its end"
                    self._held.add(number)
        elif what == "group":
            self._commit(*about)
        elif what == "committed":
            self._groups[about[0]].acknowledged = True
        elif what == "released":
            self._held.discard(about[0])
        elif what in ("ask", "ask all"):
            ledger.ask(about[1], Status(about[0]))
            if what == "ask all":
                self._maybe = [number for number in ledger.contents if number not in ledger.asked]
                ledger.ask(self._maybe, Status(about[0]))
        elif what == "asked all":
            for number in set(self._maybe).difference(about[0]):
                ledger.asked[number].discard(Status.CANCELLED)
                if not ledger.asked[number]:
                    del ledger.asked[number]
        elif what == "ended":
            ledger.ended[about[1]] = Status(about[0])

    def _commit(self, group: int, pairs: Any, ends: Any, marks: Any) -> None:
        """A group is tried."""
        ledger = self.ledger
        ledger.contents |= {number: content_of(token) for number, token in pairs}
        ledger.ask([number for number, _ in ends], Status.DELIVERED)
        puts = range(pairs[0][0], pairs[-1][0] + 1)
        self._groups[group] = Attempt(puts, ends, marks, {b"worker": (0, group)})
        ledger.groups.append(self._groups[group])

    def judged(self, files: Files, about: str) -> Counter[str]:
        """Return how many ids in those files got each verdict; fail where something is wrong."""
        opened = open_store(files, self.folder, SETTINGS, QUEUE_ID, LATER_NS)
        verdicts = self.ledger.judge(opened)
        assert not wrong(verdicts), f"{dict(verdicts)} {about}: {opened.report}"
        return verdicts
