"""File operations of a queue as values (`Write`, `Sync`, ...), and the files they apply to.

What it is for: the queue's logic plans steps and never touches a file except to read; `carry_out`
executes the steps one by one through `Files`. In tests a simulated disk stands in for it, which
fails, loses writes and loses its power.

What it promises: a call that is interrupted is made again, and a write that is short is continued;
any other failure is raised unchanged, at once, and no further step is executed. A failed sync is
never retried: it means that what was written may be lost, and a second sync would say nothing about
that.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from feedhandler.journal.scatter import read_parts
from feedhandler.private_files import make_folder, open_file

#: New blocks are filled with zeros in writes of this size.
FILL_BYTES = 1 << 20
#: Suffix of the new copy of a replaced file until it is renamed.
NEW_SUFFIX = ".new"


class Write(NamedTuple):
    """A step that writes `data` at `offset` of the file."""

    path: str
    offset: int
    data: bytes | memoryview


class WriteThrough(NamedTuple):
    """A step that writes `data` at `offset` and makes those bytes durable.

    Earlier writes to the file may not be durable afterwards.
    """

    path: str
    offset: int
    data: bytes | memoryview


class Sync(NamedTuple):
    """A step that makes everything written to the file durable."""

    path: str


class Create(NamedTuple):
    """A step that creates a file of `size` zero bytes.

    All of them are written, so that later syncs change data only.
    """

    path: str
    size: int


class Replace(NamedTuple):
    """A step that replaces the file's content atomically.

    The file holds either `data` or its old content, never part of either.
    """

    path: str
    data: bytes


Step = Write | WriteThrough | Sync | Create | Replace

#: Errors of a file system that does not support the write-through flag of the call.
NO_FLAG = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Files:
    """The operating system's files; descriptors stay open. Any thread may call."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._open: dict[str, int] = {}
        #: Flag to write and sync in one call, so that a thread waits for the interpreter once.
        self._flag: int = getattr(os, "RWF_DSYNC", 0)
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)

    def create(self, path: str) -> None:
        """Create an empty file, or empty it, for this user alone, and its folder."""
        make_folder(os.path.dirname(path))
        self._forget(path)
        self._open[path] = open_file(path, self._flags | os.O_TRUNC)

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        return os.path.exists(path)

    def pread(self, path: str, count: int, offset: int) -> bytes:
        """Read up to `count` bytes from `offset`; fewer only at the file's end."""
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
        """Read parts of these sizes in one call, at most `scatter.PARTS_MAX`; None where the file
        ends before."""
        return read_parts(self.descriptor(path), sizes, offset)

    def pwrite(self, path: str, data: memoryview, offset: int) -> int:
        """Write at `offset` and return the number of bytes written."""
        return os.pwrite(self.descriptor(path), data, offset)

    def pwrite_through(self, path: str, data: memoryview, offset: int) -> int:
        """Write and sync, in one call where the file system can."""
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
        """Make the file's data durable (fdatasync)."""
        os.fdatasync(self.descriptor(path))

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing it; both are closed."""
        self._forget(old)
        self._forget(new)
        _uninterrupted(os.rename, old, new)

    def remove(self, path: str) -> None:
        """Close and remove the file."""
        self._forget(path)
        _uninterrupted(os.unlink, path)

    def sync_folder(self, path: str) -> None:
        """Make the names in the folder durable."""
        folder = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self._forget(path)

    def descriptor(self, path: str) -> int:
        """Return the file's descriptor, opening it where needed.

        It stays open until `close`, or until the file is renamed or removed.
        """
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


def carry_out(files: Files, steps: Iterable[Step]) -> None:
    """Execute steps in order. Raises the first failure, an `OSError`, and executes no further
    step."""
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
    """Write all of `data`, in as many writes as it takes."""
    left = memoryview(data)
    while left:
        try:
            done = write(path, left, offset)
        except InterruptedError:
            continue
        left = left[done:]
        offset += done


def _uninterrupted(call: Callable[..., None], *arguments: str) -> None:
    """Make a call again where it is interrupted: Python does that itself for few of them."""
    while True:
        try:
            return call(*arguments)
        except InterruptedError:
            continue
