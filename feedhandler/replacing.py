"""Files that are replaced whole or not at all: written beside the old one, then renamed over it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from feedhandler.private_files import SHARED_FILE_MODE


@contextlib.contextmanager
def replacing(path: Path, mode: int = SHARED_FILE_MODE, *, sync: bool = False) -> Iterator[Path]:
    """Provide an empty file that replaces `path` when the context ends without an error.

    It has rights from the start, those of `mode` that the umask leaves, and a name of the process's
    own, so that two which write the same file at a time do not mix. `sync`: it is on disk before it
    replaces the other; its name is not. After an error it is removed, and `path` is as it was.
    Raises `OSError`.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield beside
        if sync:
            with beside.open("rb") as file:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
