"""A simulated disk for a queue, with injected faults and power cuts.

Fault model. Every call that changes something has a number. Before each of them `meanwhile` is
called, for what others do while the disk is busy, then `before_call`, so that a test can inspect
what a power cut at that point would leave. `fault` says which call fails and how: an `OSError`
before anything is done, a write that does half, an interrupted call.

A power cut (`after_power_cut`) keeps what was synced. For each unsynced sector of 512 bytes a fate
is drawn: written, dropped (its bytes are as before), torn (its first part written), zeroed, or
garbage. Names are treated likewise: a file that was created or renamed since its folder was synced
may have either name's content; no other name is harmed. `decay` flips one bit.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR = 512
#: The possible fates of a sector that was not synced.
FATES = ("written", "dropped", "torn", "zeroed", "garbage")


@dataclass(slots=True)
class _File:
    """A file's bytes as the process sees them, those on the disk, and the sectors that differ."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of call `at` (the first is 1), and with `for_good` of every later call.

    `kind`: "short" (a write does half), or an error's name ("EIO", "ENOSPC", "EINTR").
    """

    at: int
    kind: str = "EIO"
    for_good: bool = False


class SimulatedDisk:
    """An implementation of `Files` in memory; see the module."""

    def __init__(self, before_call: Callable[[str], None] = lambda name: None) -> None:
        self.before_call = before_call
        self.meanwhile: Callable[[], None] = lambda: None
        self.fault: Fault | None = None
        self.calls = 0
        self._files: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}

    # -- calls of a queue -------------------------------------------------------------------

    def create(self, path: str) -> None:
        self._call("create")
        self._files[path] = _File()

    def exists(self, path: str) -> bool:
        return path in self._files

    def pread(self, path: str, count: int, offset: int) -> bytes:
        return bytes(self._files[path].content[offset : offset + count])

    def pread_parts(self, path: str, sizes: list[int], offset: int) -> list[bytes] | None:
        data, parts = self.pread(path, sum(sizes), offset), []
        for size in sizes:
            parts.append(data[:size])
            data = data[size:]
        return parts if sum(map(len, parts)) == sum(sizes) else None

    def pwrite(self, path: str, data: memoryview, offset: int) -> int:
        fault = self._call("pwrite")
        count = len(data)
        if fault == "short":
            count = max(count // 2, 1)
        file = self._files[path]
        end = offset + count
        if end > len(file.content):
            file.content.extend(bytes(end - len(file.content)))
        file.content[offset:end] = data[:count]
        file.unsynced.update(range(offset // SECTOR, -(-end // SECTOR)))
        return count

    def pwrite_through(self, path: str, data: memoryview, offset: int) -> int:
        """Write, then sync just these bytes, as two calls, because either may fail."""
        count = self.pwrite(path, data, offset)
        self._call("sync")
        end = offset + count
        self._keep(self._files[path], set(range(offset // SECTOR, -(-end // SECTOR))))
        return count

    def sync(self, path: str) -> None:
        self._call("sync")
        file = self._files[path]
        self._keep(file, set(file.unsynced))

    def _keep(self, file: _File, sectors: set[int]) -> None:
        """Make these sectors durable."""
        file.durable.extend(bytes(len(file.content) - len(file.durable)))
        for sector in sectors:
            at = sector * SECTOR
            file.durable[at : at + SECTOR] = file.content[at : at + SECTOR]
        file.unsynced -= sectors

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        self._files[new] = self._files.pop(old)

    def remove(self, path: str) -> None:
        self._call("remove")
        if self._files.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def sync_folder(self, path: str) -> None:
        self._call("sync_folder")
        self._durable_names = dict(self._files)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _call(self, name: str) -> str:
        """Count a call and return its fault, "" or "short". Raises `OSError` where it fails."""
        self.meanwhile()
        self.before_call(name)
        self.calls += 1
        fault = self.fault
        if fault is None or not (
            self.calls == fault.at or (fault.for_good and self.calls > fault.at)
        ):
            return ""
        if fault.kind != "short":
            number = getattr(errno, fault.kind)
            raise OSError(number, f"simulated {fault.kind} of {name}")
        return fault.kind

    # -- what can happen to a disk ----------------------------------------------------------

    def after_power_cut(self, draw: random.Random) -> "SimulatedDisk":
        """Return the disk as found after a power cut now; this one stays unharmed."""
        found = SimulatedDisk()
        weights = [draw.choice((0, 1, 1, 4)) for _ in FATES]
        weights[0] += not any(weights)
        for path in sorted(self._files.keys() | self._durable_names.keys()):
            now, before = self._files.get(path), self._durable_names.get(path)
            file = now if now is before else draw.choice((now, before))
            if file is not None:
                survived = _survived(file, draw, weights)
                found._files[path] = _File(survived, bytearray(survived))
        found._durable_names = dict(found._files)
        return found

    def copy(self) -> "SimulatedDisk":
        """Return a copy of the disk with everything synced."""
        other = SimulatedDisk()
        for path, file in self._files.items():
            other._files[path] = _File(bytearray(file.content), bytearray(file.content))
        other._durable_names = dict(other._files)
        return other

    def decay(self, path: str, bit: int) -> None:
        """Flip one bit of a file."""
        self._files[path].content[bit // 8] ^= 1 << bit % 8

    def cut(self, path: str, size: int) -> None:
        """Truncate a file to `size` bytes."""
        del self._files[path].content[size:]

    def size(self, path: str) -> int:
        """Return a file's size in bytes."""
        return len(self._files[path].content)


def _survived(file: _File, draw: random.Random, weights: list[int]) -> bytearray:
    """Return a file's bytes after the power cut."""
    if not file.unsynced:
        return bytearray(file.durable)
    survived = bytearray(file.durable)
    for sector in sorted(file.unsynced):
        fate = draw.choices(FATES, weights)[0]
        if fate == "dropped":
            continue
        at = sector * SECTOR
        new = file.content[at : at + SECTOR]
        if fate == "torn":
            new = new[: draw.randrange(SECTOR)]
        elif fate == "zeroed":
            new = bytearray(len(new))
        elif fate == "garbage":
            new = bytearray(draw.randbytes(len(new)))
        if at + len(new) > len(survived):
            survived.extend(bytes(at + len(new) - len(survived)))
        survived[at : at + len(new)] = new
    return survived
