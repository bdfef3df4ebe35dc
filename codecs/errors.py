"""Errors that name the party at fault and the remedy.

Every error a user can meet derives from `FeedhandlerError` and carries, beside the message, a hint
that names the remedy. Bad packets never become exceptions: the hot path counts them by reason and
drops them.
"""

import errno
import os

#: Error numbers of a write that fails though path and rights are in order, each with its remedy.
DISK_FAULTS = {
    errno.ENOSPC: "make room there, or name another path",
    errno.EDQUOT: "the quota is used up: make room there, or name another path",
    errno.EFBIG: "larger than the file system or the shell's `ulimit -f` allows",
    errno.EIO: "see to the disk",
}


class FeedhandlerError(Exception):
    """Root of all errors of this package: `message` is one line, `hint` names the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class PeerError(FeedhandlerError):
    """The other side sent something wrong: a file, a server, a broker, a subscriber."""


class UsageError(FeedhandlerError):
    """The caller asked for something that cannot be done as asked."""


class ConfigError(FeedhandlerError):
    """The operator configured something wrong: a file, a key, a value, a port, an interface."""


class HostFault(FeedhandlerError):
    """The host failed a command at work: a full disk, an interface that went away."""


def reason_of(error: OSError) -> str:
    """Return the operating system's reason in our style: lower case, no full stop."""
    # Libraries replace the system's text by sentences of their own.
    known = os.strerror(error.errno) if error.errno in DISK_FAULTS else ""
    reason = known or error.strerror or str(error) or type(error).__name__
    return f"{reason[:1].lower()}{reason[1:]}"


def unwritable(
    target: object, error: OSError, hint: str = "check path and rights"
) -> FeedhandlerError:
    """Return the error to raise where `target` could not be written.

    `HostFault` for a full or failing disk, with its remedy; else `UsageError` with `hint`.
    """
    message = f"cannot write {target}: {reason_of(error)}"
    if error.errno in DISK_FAULTS:
        return HostFault(message, DISK_FAULTS[error.errno])
    return UsageError(message, hint)
