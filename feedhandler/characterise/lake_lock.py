"""A lock on a lake's folder, so that one process at a time fills it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from feedhandler.codecs.errors import UsageError


@contextlib.contextmanager
def held(lake: Path) -> Iterator[None]:
    """Hold the folder against other processes that would fill it.

    Raises `UsageError` where one does, and `OSError`. File systems without such locks do without.
    """
    handle = os.open(lake, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait until it has ended, or name another --lake"
            raise UsageError(f"another process fills the lake {lake}", hint) from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
