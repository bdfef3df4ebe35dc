"""Files of the gateway's own data, which only its own user may read or write.

Queues, journals, recordings and sockets hold what users may receive by entitlement only, so they
are made without rights for group and others, whatever the umask. Existing files keep the rights
that they have; `openness` reports those, for `feedhandler doctor` and the start. Files that a
command makes for its user (captures, reports, a lake) are not among these: the umask decides.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
#: The mode of a file that the umask decides on.
SHARED_FILE_MODE = 0o666
#: Rights that a new socket must not have: group's, others', and execution, which has no use.
_NOT_A_SOCKETS = 0o177
#: Rights of a file's group, and of others.
_GROUP, _OTHERS = 0o070, 0o007


def make_folder(path: str | Path) -> None:
    """Make the folder for its user alone.

    Its parents get the umask's rights; a folder that exists keeps its own.
    """
    Path(path).mkdir(FOLDER_MODE, parents=True, exist_ok=True)


def open_file(path: str | Path, flags: int) -> int:
    """Open the file; one that does not exist is created for its user alone."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


@contextlib.contextmanager
def private_sockets() -> Iterator[None]:
    """Give sockets that are bound to a path while the context lasts to their user alone.

    The umask is the process's: files that other threads create meanwhile get no more rights either.
    """
    before = os.umask(_NOT_A_SOCKETS)
    try:
        yield
    finally:
        os.umask(before)


def openness(path: str | Path) -> str:
    """Return whom the file or folder is open to besides its user, with its mode.

    That is `everybody` or `its group`; "" where it is open to none, or does not exist.
    """
    try:
        mode = os.stat(path).st_mode & 0o777
    except OSError:
        return ""
    if not mode & (_GROUP | _OTHERS):
        return ""
    return f"{'everybody' if mode & _OTHERS else 'its group'} (mode {mode:04o})"
