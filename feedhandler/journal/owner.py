"""Exclusive ownership of a queue: a lock file that names the owning process.

What it is for: the file `owner` in the queue's folder is locked (`flock`) while the queue is open,
and names the process that holds it. The lock ends with the process, however that ends; the file's
text means nothing while it is not locked.
"""

import fcntl
import os
import socket
import time

from feedhandler.codecs.errors import UsageError
from feedhandler.private_files import make_folder, open_file

OWNER_NAME = "owner"
#: Upper limit on the bytes read from the file, more than it ever has.
TEXT_BYTES_MAX = 1024


class Owner:
    """The lock on the queue in `folder`, held from its creation until `release`.

    Raises `UsageError`, naming the owner, where another process (or another queue object of this
    one) holds it; `OSError`.
    """

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
        """Release the lock."""
        os.close(self._descriptor)


def owner_of(folder: str) -> str:
    """Return the text that names the queue's owner; "" where the queue is not open."""
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
