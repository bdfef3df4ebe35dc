"""Which file recorded bytes go to, when it is closed, and when there is room for no more: no I/O.

`RecordingFiles` writes several series of files (`lines`, `published`) into one folder. A file is
named `<series>-<trading day>-<yyyymmdd-hhmmss>-<number>.pcap` after the trading day that it is of
and the time (UTC) it was begun, and has `.part` behind that until it is closed. It is closed at a
size, at an age, and when the trading day turns: no file is of two. Before each write two bounds
are looked at: all recordings together (earlier runs' included), and the share of the file system
that must stay free. At a bound recording stops (`Full` is raised), or the oldest closed files give
way, as the settings say; a file that is being written never does.

The folder itself is behind `Folder`, so that the rules can be tested without a disk. An `OSError`
of it passes through; with `delete-oldest` a full disk or quota is a bound like the others.
"""

import datetime
import errno
from typing import Protocol

from feedhandler.codecs.trading_day import TradingDay, day_number
from feedhandler.config.recording import RecordConfig

#: What a file's name ends with; and, behind that, while it is being written.
SUFFIX = ".pcap"
PART = ".part"
#: Names that are tried before giving up, where files of the same second are there already.
NAME_TRIES = 10_000

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Full(Exception):
    """A bound was reached and nothing may give way; the text says which."""


class Sink(Protocol):
    """A file being written."""

    def write(self, data: memoryview) -> None:
        """Append all of `data`; after an `OSError` the file is as it was before."""

    def close(self) -> None:
        """Let the file go."""


class Folder(Protocol):
    """Where recordings are kept; every method may raise `OSError`."""

    def closed(self) -> list[tuple[str, int]]:
        """Name and bytes of each closed recording."""
        ...

    def unfinished(self) -> list[str]:
        """Names, without `.part`, of files that nobody closed."""
        ...

    def space(self) -> tuple[int, int]:
        """Bytes that are free in the file system, and its size."""
        ...

    def create(self, name: str) -> Sink:
        """Begin `name`.part; raises `FileExistsError` where either name is taken."""
        ...

    def finish(self, name: str) -> None:
        """`name`.part is complete: it becomes `name`."""

    def remove(self, name: str) -> None:
        """Delete a closed recording."""


class OpenFile:
    """One series' file being written."""

    def __init__(self, name: str, sink: Sink, begun_ns: int, turns_ns: int) -> None:
        self.name = name
        self.sink = sink
        self.begun_ns = begun_ns
        self.turns_ns = turns_ns
        self.size = 0


class RecordingFiles:
    """The files of all series in `folder`; `header` begins each; `trading_day` says which day is.

    `total_bytes` is what all recordings take; `begun`, `deleted` and `recovered` (found unfinished,
    and kept) count files by series.
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
        """What all recordings take, those being written included; any thread may ask."""
        return self._closed_bytes + sum(file.size for file in tuple(self.open.values()))

    def room(self, series: str) -> int:
        """Bytes that the series' file may still take; a new one's where none is open."""
        file = self.open.get(series)
        return self._settings.file_bytes - (file.size if file else len(self._header))

    def write(self, series: str, data: memoryview, now_ns: int) -> None:
        """Append whole records; raises `Full`, and `OSError`; then nothing of `data` is kept."""
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
        """Close what is old enough, of a day that is over, or begun in the future by a clock that
        was set back."""
        for series, file in list(self.open.items()):
            age_ns = now_ns - file.begun_ns
            young = 0 <= age_ns < self._settings.file_seconds * 1_000_000_000
            if not young or now_ns >= file.turns_ns:
                self.finish(series)

    def finish(self, series: str) -> None:
        """Close the series' file, where one is open."""
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
        """Close every file."""
        for series in list(self.open):
            self.finish(series)

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
            self.begun[series] += 1
            self._append(file, self._header)
            return file
        raise FileExistsError(errno.EEXIST, "too many recordings of the same second", name)

    def _append(self, file: OpenFile, data: memoryview) -> None:
        while True:
            try:
                file.sink.write(data)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                # Somebody else's bytes came in between, or a quota that `space` does not tell of.
                self._give_way("the disk is full")
            else:
                file.size += len(data)
                return

    # -- bounds -----------------------------------------------------------------------------

    def _look(self) -> None:
        """See what is in the folder: an operator may have moved recordings away."""
        self._closed = sorted(self._folder.closed(), key=_age_key)
        self._closed_bytes = sum(size for _, size in self._closed)

    def _make_room(self, size: int) -> None:
        """Be within both bounds with `size` more bytes; raises `Full`."""
        settings = self._settings
        total = self.total_bytes + size
        while total > settings.total_bytes:
            total -= self._give_way(f"record.total_bytes, {settings.total_bytes:,}, is reached")
        free, whole = self._folder.space()
        # What deleting frees is added here: some file systems show it only after a while.
        while free - size < settings.disk_free_min_share * whole:
            free += self._give_way(
                f"less than record.disk_free_min_share, {settings.disk_free_min_share:.1%}, "
                "of the file system is free"
            )

    def _give_way(self, reason: str) -> int:
        """Delete the oldest closed recording; its bytes. Raises `Full` where none may go."""
        if self._settings.when_full == "stop":
            raise Full(reason)
        if not self._closed:
            raise Full(f"{reason}, and no older recording is left to delete")
        name, size = self._closed.pop(0)
        self._closed_bytes -= size
        try:
            self._folder.remove(name)
        except FileNotFoundError:
            return size  # somebody was faster
        series = name.partition("-")[0]
        if series in self.deleted:
            self.deleted[series] += 1
        return size


def _age_key(file: tuple[str, int]) -> str:
    """What sorts recordings by the time they were begun, whatever their series."""
    return file[0].partition("-")[2]
