"""What a queue does to files, as values; and the real files that it is done to.

What it is for: the queue's logic plans (`Write`, `Sync`, ...) and never touches a file except to
read; `carry_out` does what was planned, call by call, through `Files`. In the product that is
`RealFiles`; in tests a disk of its own that fails, forgets and loses its power.

What it promises: a write that is interrupted or cut short is gone on with; any other failure is
raised as it is, at once, and nothing after it is done. A failed sync is never tried again: what it
says is that what was written may be gone, and a second one would say nothing about that.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from feedhandler.journal.scatter import read_parts
from feedhandler.private_files import make_folder, open_file

#: New blocks are filled in pieces of this size.
FILL_BYTES = 1 << 20
#: What the new copy of a replaced file is called until it has its name.
NEW_SUFFIX = ".new"


class Write(NamedTuple):
    """Put `data` at `offset` of the file."""

    path: str
    offset: int
    data: bytes | memoryview


class WriteThrough(NamedTuple):
    """Put `data` at `offset` of the file, and those bytes are on the disk afterwards; what else was
    written to the file may not be."""

    path: str
    offset: int
    data: bytes | memoryview


class Sync(NamedTuple):
    """What was written to the file is on the disk afterwards."""

    path: str


class Create(NamedTuple):
    """A file of `size` zero bytes, all of them written, so that later syncs change data only."""

    path: str
    size: int


class Replace(NamedTuple):
    """The file holds `data`, or what it held before; never part of either."""

    path: str
    data: bytes


Step = Write | WriteThrough | Sync | Create | Replace

#: What a file system says that cannot write through by a flag of the call.
NO_FLAG = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Files(Protocol):
    """The calls that a queue makes, by path; each may raise `OSError`."""

    def create(self, path: str) -> None:
        """An empty file, whatever was there."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def pread(self, path: str, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the file's end."""
        ...

    def pread_parts(self, path: str, sizes: list[int], offset: int) -> list[bytes] | None:
        """What is there from `offset` on as parts of these sizes (`scatter.PARTS_MAX` at most);
        None where the file ends before."""
        ...

    def pwrite(self, path: str, data: memoryview, offset: int) -> int:
        """Write at `offset`; how many bytes that were."""
        ...

    def pwrite_through(self, path: str, data: memoryview, offset: int) -> int:
        """As `pwrite`; the bytes that it says were written are on the disk."""
        ...

    def sync(self, path: str) -> None:
        """fdatasync."""

    def rename(self, old: str, new: str) -> None:
        """`old` takes the place of `new`."""

    def remove(self, path: str) -> None:
        """The file is gone."""

    def sync_folder(self, path: str) -> None:
        """Names in the folder are on the disk afterwards."""

    def close(self) -> None:
        """Let every file go."""


def carry_out(files: Files, steps: Iterable[Step]) -> None:
    """Do what was planned, in order; stops at the first failure, an `OSError`."""
    for step in steps:
        if isinstance(step, WriteThrough):
            _write_all(files.pwrite_through, step.path, step.data, step.offset)
        elif isinstance(step, Write):
            _write_all(files.pwrite, step.path, step.data, step.offset)
        elif isinstance(step, Sync):
            files.sync(step.path)
        elif isinstance(step, Create):
            files.create(step.path)
            zeros = bytes(min(step.size, FILL_BYTES))
            for offset in range(0, step.size, FILL_BYTES):
                _write_all(files.pwrite, step.path, zeros[: step.size - offset], offset)
            files.sync(step.path)
            files.sync_folder(os.path.dirname(step.path))
        else:
            new = step.path + NEW_SUFFIX
            files.create(new)
            _write_all(files.pwrite, new, step.data, 0)
            files.sync(new)
            files.rename(new, step.path)
            files.sync_folder(os.path.dirname(step.path))


def _write_all(
    write: Callable[[str, memoryview, int], int], path: str, data: bytes | memoryview, offset: int
) -> None:
    """All of `data`, in as many writes as it takes."""
    left = memoryview(data)
    while left:
        try:
            done = write(path, left, offset)
        except InterruptedError:
            continue
        left = left[done:]
        offset += done


class RealFiles:
    """The operating system's files; descriptors are kept open. Any thread may call."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._open: dict[str, int] = {}
        #: Write and sync in one call, so that a thread waits for its turn once and not twice.
        self._flag: int = getattr(os, "RWF_DSYNC", 0)
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)

    def create(self, path: str) -> None:
        make_folder(os.path.dirname(path))
        self._forget(path)
        self._open[path] = open_file(path, self._flags | os.O_TRUNC)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def pread(self, path: str, count: int, offset: int) -> bytes:
        parts = []
        while count:
            part = os.pread(self.descriptor(path), count, offset)
            if not part:
                break
            parts.append(part)
            count -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_parts(self, path: str, sizes: list[int], offset: int) -> list[bytes] | None:
        return read_parts(self.descriptor(path), sizes, offset)

    def pwrite(self, path: str, data: memoryview, offset: int) -> int:
        return os.pwrite(self.descriptor(path), data, offset)

    def pwrite_through(self, path: str, data: memoryview, offset: int) -> int:
        descriptor = self.descriptor(path)
        if self._flag:
            try:
                return os.pwritev(descriptor, [data], offset, self._flag)
            except OSError as error:
                if error.errno not in NO_FLAG:
                    raise
                self._flag = 0
        done = os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
        return done

    def sync(self, path: str) -> None:
        os.fdatasync(self.descriptor(path))

    def rename(self, old: str, new: str) -> None:
        self._forget(old)
        self._forget(new)
        os.rename(old, new)

    def remove(self, path: str) -> None:
        self._forget(path)
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        folder = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        for path in list(self._open):
            self._forget(path)

    def descriptor(self, path: str) -> int:
        """The file, open; it stays so until `close`, or until it gets another name."""
        found = self._open.get(path)
        if found is None:
            opened = os.open(path, self._flags)
            found = self._open.setdefault(path, opened)
            if found != opened:
                os.close(opened)
        return found

    def _forget(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
