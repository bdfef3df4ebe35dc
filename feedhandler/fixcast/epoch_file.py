"""A channel's sequence epoch kept over restarts, with a lock on the channel.

Each channel has a small file. A publisher holds a lock on it while it runs, so that no second one
numbers the same channel. An ordered end stores the next number; a publisher that was killed has
stored none, because it is unknown what was sent last, and so the next one begins a new epoch.
"""

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import IO, NamedTuple

from feedhandler.codecs.errors import ConfigError, unwritable
from feedhandler.fixcast.values import NUMBER_MAX


class StoredEpoch(NamedTuple):
    """Content of the file: the epoch, and its next number; 0 where that is unknown."""

    epoch: int = 0
    next: int = 0


class EpochFile:
    """The file of one channel in `folder`, locked until `close`.

    Raises `ConfigError` where another process holds it, `UsageError` or `HostFault` where it cannot
    be written.
    """

    def __init__(self, folder: Path, channel: str) -> None:
        self.path = folder / f"{channel}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = open(self.path, "a+")  # noqa: SIM115
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"channel {channel} is being published by another process",
                "a channel has one publisher: stop that one first",
            ) from error

    def read(self) -> StoredEpoch:
        """Read the epoch. Raises `ConfigError` where the file has other content."""
        self._file.seek(0)
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            text = self._file.read()
            if not text:
                return StoredEpoch()
            values = json.loads(text)
            kept = StoredEpoch(int(values["epoch"]), int(values["next"]))
            if 0 <= kept.epoch <= NUMBER_MAX and 0 <= kept.next <= NUMBER_MAX + 1:
                return kept
        raise ConfigError(
            f"{self.path}: not a channel's sequence epoch",
            "remove it: the channel begins a new epoch then",
        )

    def write(self, kept: StoredEpoch) -> None:
        """Write the epoch durably; a publisher writes a `next` of 0 before it sends."""
        try:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps({"epoch": kept.epoch, "next": kept.next}) + "\n")
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        """Close the file, which releases the lock."""
        self._file.close()
