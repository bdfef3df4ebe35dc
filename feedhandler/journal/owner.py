"""One process owns a queue: a lock that says whose it is.

What it is for: the file `owner` in the queue's folder is locked (`flock`) while the queue is open,
and says who holds it. The lock goes with the process, however it ends; what the file says then is
of no meaning, for nobody holds it.
"""

import fcntl
import os
import socket
import time

from feedhandler.codecs.errors import UsageError
from feedhandler.private_files import make_folder, open_file

OWNER_NAME = "owner"
#: More than it ever says.
TEXT_BYTES_MAX = 1024


class Owner:
    """The lock on the queue in `folder`, held from here on. Raises `UsageError` where another
    process (or another queue object of this one) has it, and says which; `OSError`."""

    def __init__(self, folder: str) -> None:
        make_folder(folder)
        self._descriptor = open_file(os.path.join(folder, OWNER_NAME), os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(self._descriptor, TEXT_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise UsageError(
                f"{folder}: this queue is open already: {text or 'its owner has not said who'}",
                "one process owns a queue; stop it, or have it do the work",
            ) from None
        text = (
            f"process {os.getpid()} on {socket.gethostname()} since "
            f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
        )
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it."""
        os.close(self._descriptor)


def owner_of(folder: str) -> str:
    """Who has the queue open; "" where nobody has."""
    try:
        descriptor = os.open(os.path.join(folder, OWNER_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(descriptor, TEXT_BYTES_MAX, 0).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    return ""
