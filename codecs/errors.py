"""Errors that say whose fault it is.

Every error a user can meet derives from `FeedhandlerError` and carries, beside what went wrong,
a hint that names the remedy. Bad packets never become exceptions: the hot path counts them by
reason and drops them.
"""


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
