"""The files of recordings: where bytes go, when a file is closed, when there is no room. No I/O.

`RecordingFiles` writes several series of files (`lines`, `published`) into one folder. A file is
named `<series>-<trading day>-<yyyymmdd-hhmmss>-<number>.pcap` after its trading day and the time
(UTC) it was begun, followed by `.part` until it is closed. It is closed at a size, at an age, and
when the trading day turns: no file spans two. Before each write two bounds are checked: all
recordings together (earlier runs' included), and the share of the file system that must stay free.
At a bound recording stops (`Full` is raised), or the oldest closed files are deleted, as the
settings say; a file that is being written never is.

`Folder` hides the folder itself, so that the rules can be tested without a disk. Its `OSError`s
pass through; with `delete-oldest` a full disk or quota is a bound like the others.
"""

import contextlib
import datetime
import errno
from typing import Protocol

from feedhandler.codecs.trading_day import TradingDay, day_number
from feedhandler.config.recording import RecordConfig
from feedhandler.recording.rotation import Sink

#: The suffix of a file's name; and the one behind that while it is being written.
SUFFIX = ".pcap"
PART = ".part"
#: Names that are tried before giving up, where files of the same second exist already.
NAME_TRIES = 10_000

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Full(Exception):
    """A bound that was reached while nothing may be deleted; the text says which."""


class Folder(Protocol):
    """The folder of recordings, as a protocol; every method may raise `OSError`."""

    def closed(self) -> list[tuple[str, int]]:
        """Return name and bytes of each closed recording."""
        ...

    def unfinished(self) -> list[str]:
        """Return the names, without `.part`, of files that were not closed."""
        ...

    def space(self) -> tuple[int, int]:
        """Return the bytes that are free in the file system, and its size."""
        ...

    def create(self, name: str) -> Sink:
        """Begin `name`.part. Raises `FileExistsError` where either name exists."""
        ...

    def finish(self, name: str) -> None:
        """Rename the complete `name`.part to `name`."""

    def remove(self, name: str) -> None:
        """Delete a closed recording."""


class OpenFile:
    """The file of one series that is being written."""

    def __init__(self, name: str, sink: Sink, begun_ns: int, turns_ns: int) -> None:
        self.name = name
        self.sink = sink
        self.begun_ns = begun_ns
        self.turns_ns = turns_ns
        self.size = 0


class RecordingFiles:
    """The files of all series in `folder`; `header` begins each; files end as `trading_day` turns.

    `total_bytes` is the size of all recordings; `begun` and `deleted` count files by series,
    `recovered` those found unfinished, and kept. Raises `Full` where a bound is reached already.
    """

    def __init__(
        self,
        folder: Folder,
        settings: RecordConfig,
        header: bytes,
        series: tuple[str, ...],
        trading_day: TradingDay,
    ) -> None:
        self._trading_day = trading_day
        self.open: dict[str, OpenFile] = {}
        self.begun = dict.fromkeys(series, 0)
        self.deleted = dict.fromkeys(series, 0)
        self.recovered = 0
        self._folder = folder
        self._settings = settings
        self._header = memoryview(header)
        self._number = 0
        self._closed: list[tuple[str, int]] = []  # oldest first
        self._closed_bytes = 0
        for name in folder.unfinished():
            folder.finish(name)
            self.recovered += 1
        self._look()
        self._make_room(len(header))

    @property
    def total_bytes(self) -> int:
        """The size of all recordings, those being written included; any thread may read it."""
        return self._closed_bytes + sum(file.size for file in tuple(self.open.values()))

    def room(self, series: str) -> int:
        """Return the bytes that the series' file, or else a new one, may still take."""
        file = self.open.get(series)
        return self._settings.file_bytes - (file.size if file else len(self._header))

    def write(self, series: str, data: memoryview, now_ns: int) -> None:
        """Append whole records. Raises `Full` or `OSError`; then none of `data` is kept."""
        file = self.open.get(series)
        if file is not None and now_ns >= file.turns_ns:
            self.finish(series)
            file = None
        if file is None:
            self._look()
            self._make_room(len(self._header) + len(data))
            file = self._begin(series, now_ns)
        else:
            self._make_room(len(data))
        self._append(file, data)

    def tick(self, now_ns: int) -> None:
        """Close files that are old enough or of a past day, or that begin in the future.

        A file begins in the future where the clock was set back.
        """
        for series, file in list(self.open.items()):
            age_ns = now_ns - file.begun_ns
            young = 0 <= age_ns < self._settings.file_seconds * 1_000_000_000
            if not young or now_ns >= file.turns_ns:
                self.finish(series)

    def finish(self, series: str) -> None:
        """Close the series' file, if one is open."""
        file = self.open.pop(series, None)
        if file is None:
            return
        try:
            file.sink.close()
        finally:
            self._folder.finish(file.name)
        self._closed.append((file.name, file.size))
        self._closed_bytes += file.size
        self._closed.sort(key=_age_key)

    def close(self) -> None:
        """Close every file, also where one of them fails to close."""
        with contextlib.ExitStack() as closing:
            for series in reversed(self.open):
                closing.callback(self.finish, series)

    # -- names and bytes --------------------------------------------------------------------

    def _begin(self, series: str, now_ns: int) -> OpenFile:
        begun = datetime.datetime.fromtimestamp(now_ns // 1_000_000_000, datetime.UTC)
        day = day_number(self._trading_day.of(now_ns))
        for _ in range(NAME_TRIES):
            self._number += 1
            name = f"{series}-{day}-{begun:%Y%m%d-%H%M%S}-{self._number:06}{SUFFIX}"
            try:
                sink = self._folder.create(name)
            except FileExistsError:
                continue
            turns_ns = self._trading_day.turns_ns(now_ns)
            file = self.open[series] = OpenFile(name, sink, now_ns, turns_ns)
            try:
                self._append(file, self._header)
            except BaseException:
                self._withdraw(series, name)
                raise
            self.begun[series] += 1
            return file
        raise FileExistsError(errno.EEXIST, "too many recordings of the same second", name)

    def _withdraw(self, series: str, name: str) -> None:
        """Delete the series' file: without its header it is no capture."""
        with contextlib.suppress(OSError):
            self.finish(series)
            self._folder.remove(name)
            self._look()

    def _append(self, file: OpenFile, data: memoryview) -> None:
        while True:
            try:
                file.sink.write(data)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                # Another process wrote in between, or there is a quota that `space` does not show.
                self._give_way("the disk is full")
            else:
                file.size += len(data)
                return

    # -- bounds -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the folder again: an operator may have moved recordings away."""
        self._closed = sorted(self._folder.closed(), key=_age_key)
        self._closed_bytes = sum(size for _, size in self._closed)

    def _make_room(self, size: int) -> None:
        """Make room for `size` more bytes within both bounds. Raises `Full` where that fails."""
        settings = self._settings
        total = self.total_bytes + size
        while total > settings.total_bytes:
            total -= self._give_way(f"record.total_bytes, {settings.total_bytes:,}, is reached")
        free, whole = self._folder.space()
        # The deleted bytes are added here: some file systems show them as free only after a while.
        while free - size < settings.disk_free_min_share * whole:
            free += self._give_way(
                f"less than record.disk_free_min_share, {settings.disk_free_min_share:.1%}, "
                "of the file system is free"
            )

    def _give_way(self, reason: str) -> int:
        """Delete the oldest closed recording; return its bytes. Raises `Full` where none may go."""
        if self._settings.when_full == "stop":
            raise Full(reason)
        if not self._closed:
            raise Full(f"{reason}, and no older recording is left to delete")
        name, size = self._closed.pop(0)
        self._closed_bytes -= size
        try:
            self._folder.remove(name)
        except FileNotFoundError:
            return size  # another process deleted it first
        series = name.partition("-")[0]
        if series in self.deleted:
            self.deleted[series] += 1
        return size


def _age_key(file: tuple[str, int]) -> str:
    """Return the sort key of a recording by the time it was begun, whatever its series."""
    return file[0].partition("-")[2]
