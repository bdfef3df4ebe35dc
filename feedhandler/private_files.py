"""Files of the gateway's own data: only its own user may read or write them.

Queues, journals, recordings and sockets hold what users may receive by entitlement only, so they
are made without rights for group and others, whatever the umask. What is there already keeps the
rights that somebody gave it; `openness` tells of them, for `feedhandler doctor` and the start. What
a command makes for its user (captures, reports, a lake) is not among these: the umask decides.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
#: The mode of a file that the umask decides on.
SHARED_FILE_MODE = 0o666
#: Rights that a new socket is not to have: group's, others', and the useless ones to execute.
_NOT_A_SOCKETS = 0o177
#: Rights of a file's group, and of others.
_GROUP, _OTHERS = 0o070, 0o007


def make_folder(path: str | Path) -> None:
    """Make the folder, for its user alone, and those above it as the umask says; one that is there
    stays as it is."""
    Path(path).mkdir(FOLDER_MODE, parents=True, exist_ok=True)


def open_file(path: str | Path, flags: int) -> int:
    """A descriptor of the file, which is made for its user alone where it is not there."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


@contextlib.contextmanager
def private_sockets() -> Iterator[None]:
    """Sockets that are bound to a path meanwhile are for their user alone.

    The umask is the process's: what another thread makes meanwhile gets no more rights either.
    """
    before = os.umask(_NOT_A_SOCKETS)
    try:
        yield
    finally:
        os.umask(before)


def openness(path: str | Path) -> str:
    """Whom but its user the file or folder is open to, `everybody` or `its group`, with the mode;
    "" where nobody, or where it is not there."""
    try:
        mode = os.stat(path).st_mode & 0o777
    except OSError:
        return ""
    if not mode & (_GROUP | _OTHERS):
        return ""
    return f"{'everybody' if mode & _OTHERS else 'its group'} (mode {mode:04o})"
