"""The recorder: it writes what each line received, and what was published, to pcap files.

A `Recorder` has a tap for each series (`tap("lines")`, `tap("published")`; see `frame_writer`),
which a thread that must not wait fills, and a thread of its own that polls the taps every `POLL_S`,
lays the packets out as pcap records without the GIL and writes them with one system call a
mebibyte. Whatever the disk does, the stream goes on: a producer that finds a tap full drops packets
and counts them.

`files` decides which file the bytes go to and when recording stops. Recording that stops
by itself (a bound, a failing disk) stays stopped until the gateway starts again: files are closed,
the reason is in the snapshot, and `on_stop` is called once, in the recorder's thread.

Recordings are not synced to the disk: they survive the gateway's death, but not always the
machine's.
"""

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.config.recording import RecordConfig, check_folder
from feedhandler.counters import RecorderCounter, as_dict, counter_array
from feedhandler.ingest.ring import Ring
from feedhandler.private_files import FILE_MODE, open_file
from feedhandler.recording.files import PART, SUFFIX, Full, RecordingFiles
from feedhandler.recording.frame_writer import NO_LIMIT, FrameWriter
from feedhandler.replay.captures.records import file_header

#: How often the taps are polled: at 1 Gbit/s some 1.3 MB wait then.
POLL_S = 0.01
#: Bytes that are laid out and written at a time.
BUFFER_BYTES = 1 << 20
#: How long `stop` waits for a disk that does not answer.
STOP_SECONDS = 5.0
#: The lock file of the process that records into a folder.
LOCK_NAME = ".recorder.lock"

_NAME = re.compile(r"(lines|published)-\d{8}-\d{8}-\d{6}-\d{6,}" + re.escape(SUFFIX))


class Endpoint(Protocol):
    """A line's address, as a protocol.

    `feedhandler.ingest.lines.Line` and a configuration's line both satisfy it.
    """

    @property
    def group(self) -> str:
        """The line's group, or its own address."""
        ...

    @property
    def port(self) -> int:
        """The UDP port."""
        ...

    @property
    def source(self) -> str | None:
        """The only sender that counts; None: any."""
        ...


class DiskFile:
    """A `Sink` on a disk; for its user alone, unless `mode` says otherwise."""

    held_bytes = 0

    def __init__(self, path: Path, mode: int = FILE_MODE) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`; after an `OSError` the file is as it was before."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            # Half a record would make the file end as if it had been cut.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
                os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes += len(data)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class DiskFolder:
    """A `Folder` on a disk, locked against other recorders. Raises `ConfigError` on opening."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            check_folder(path)
        except ConfigError as error:
            raise ConfigError(f"record.dir: {error.message}", error.hint) from None
        try:
            self._lock = open_file(self._path / LOCK_NAME, os.O_RDWR)
        except OSError as error:
            reason = reason_of(error)
            hint = "the gateway's user must be allowed to write there"
            raise ConfigError(f"record.dir: {path}: {reason}", hint) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            hint = "give each gateway a folder of its own"
            raise ConfigError(f"record.dir: {path}: another gateway records there", hint) from None

    def release(self) -> None:
        """Release the lock, so that another recorder may use the folder."""
        os.close(self._lock)

    def closed(self) -> list[tuple[str, int]]:
        """Return name and bytes of each closed recording."""
        found = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.name, entry.stat().st_size))
        return found

    def unfinished(self) -> list[str]:
        """Return the names, without `.part`, of files that were not closed."""
        names = (name.removesuffix(PART) for name in os.listdir(self._path) if name.endswith(PART))
        return [name for name in names if _NAME.fullmatch(name)]

    def space(self) -> tuple[int, int]:
        """Return the bytes free in the file system for ordinary users, and its size."""
        status = os.statvfs(self._path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def create(self, name: str) -> DiskFile:
        """Begin `name`.part. Raises `FileExistsError` where either name exists."""
        if (self._path / name).exists():
            raise FileExistsError(name)
        return DiskFile(self._path / (name + PART))

    def finish(self, name: str) -> None:
        """Rename the complete `name`.part to `name`."""
        os.rename(self._path / (name + PART), self._path / name)

    def remove(self, name: str) -> None:
        """Delete a closed recording."""
        os.unlink(self._path / name)


class Files(Protocol):
    """The files of a series' records, as a protocol: one after the other, of their own sizes."""

    def room(self, series: str) -> int:
        """Return the bytes that the series' file may still take."""
        ...

    def write(self, series: str, data: memoryview, now_ns: int) -> None:
        """Append whole records, or raise and keep none of them."""

    def finish(self, series: str) -> None:
        """Close the series' file; the next record begins another one."""


class Series:
    """One series: its tap, the writer that lays its packets out, and its row of counters.

    `refused` returns what the tap's producer dropped; `unwritten` counts what was taken and not
    written. `blocks` and `limit` are the `FrameWriter`'s.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        ring_bytes: int,
        *,
        blocks: bool = False,
        limit: int = NO_LIMIT,
    ) -> None:
        self.name = name
        self.tap = Ring(ring_bytes)
        self.refused: Callable[[], int] = int
        self.unwritten = 0
        self.writer = FrameWriter(
            [(endpoint.group, endpoint.port, _only_source(endpoint)) for endpoint in endpoints],
            BUFFER_BYTES,
            name == "lines",
            blocks,
            limit,
        )
        self.counters = counter_array(RecorderCounter, 1)[0]

    def write_some(self, files: Files, now_ns: int) -> bool:
        """Write as much as one buffer or one file takes; return whether there is more."""
        writer = self.writer
        before = writer.packets
        filled = writer.drain(self.tap, files.room(self.name))
        if filled:
            packets = writer.packets - before
            try:
                files.write(self.name, writer.out[:filled], now_ns)
            except BaseException:
                self.unwritten += packets
                raise
            self.counters[RecorderCounter.PACKETS] += packets
            self.counters[RecorderCounter.BYTES] += filled
        elif writer.full:
            # The next record does not fit into this file; it will fit into a new one.
            files.finish(self.name)
        return bool(writer.full)

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        self.counters[RecorderCounter.UNWRITABLE] = self.writer.unwritable
        self.counters[RecorderCounter.DROPPED] = self.refused() + self.unwritten
        return as_dict(RecorderCounter, self.counters)

    def discard(self) -> None:
        """Empty the tap; its packets count as dropped."""
        before = self.writer.packets
        while self.writer.drain(self.tap, BUFFER_BYTES):
            pass
        self.unwritten += self.writer.packets - before


def _only_source(endpoint: Endpoint) -> str:
    """Return the one configured sender; empty where there are several, or none."""
    source = endpoint.source or ""
    return "" if "," in source else source


class Recorder:
    """A recorder into the settings' folder, from `start` to `stop`.

    The settings say what is recorded. `lines` are the lines in the order of their numbers at the
    receive thread; `published` has, for each channel in order, the address that its published
    packets are written with: its line A's. A file ends when `trading_day` turns. `on_stop` is
    called in the recorder's thread with the reason why recording stopped by itself.
    """

    def __init__(
        self,
        settings: RecordConfig,
        lines: Sequence[Endpoint],
        published: Sequence[Endpoint],
        trading_day: TradingDay,
        on_stop: Callable[[str], None] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.state = "ready"
        self.reason = ""
        self._clock_ns = clock_ns
        self._on_stop = on_stop
        endpoints = {"lines": lines, "published": published}
        self._series = {
            name: Series(name, endpoints[name], settings.ring_bytes) for name in settings.series
        }
        self._settings = settings
        self._trading_day = trading_day
        self._files: RecordingFiles | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def tap(self, series: str) -> Ring | None:
        """Return the tap of `lines` or `published`; None where that series is not recorded."""
        found = self._series.get(series)
        return found.tap if found else None

    def count_refused(self, series: str, refused: Callable[[], int]) -> None:
        """Set the function that counts packets dropped at the series' full tap. From any thread."""
        if series in self._series:
            self._series[series].refused = refused

    def start(self) -> None:
        """Begin to record.

        Raises `ConfigError`, one line, for a folder that cannot be used or a bound that is reached
        already; then nothing has begun.
        """
        settings = self._settings
        self._folder = DiskFolder(settings.dir)
        try:
            self._files = RecordingFiles(
                self._folder, settings, file_header(), settings.series, self._trading_day
            )
        except Full as full:
            self._folder.release()
            hint = "move recordings away, or change [record]"
            raise ConfigError(f"record.dir: {settings.dir}: {full}", hint) from None
        except OSError as error:
            self._folder.release()
            reason = reason_of(error)
            raise ConfigError(f"record.dir: {settings.dir}: {reason}", "check the disk") from None
        self.state = "recording"
        self._thread.start()

    def stop(self) -> bool:
        """Write what the taps hold and close the files; return False if the disk does not answer.

        Called when no thread fills the taps any more.
        """
        self._stopping.set()
        if self._thread.ident is None:
            return True
        self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def snapshot(self) -> dict[str, Any]:
        """Return state and counters; any thread may call it."""
        files = self._files
        return {
            "state": self.state,
            "reason": self.reason,
            "directory": self._settings.dir,
            "bytes": files.total_bytes if files else 0,
            "recovered": files.recovered if files else 0,
            "series": {
                name: self._series_snapshot(each, files) for name, each in self._series.items()
            },
        }

    def _series_snapshot(self, series: Series, files: RecordingFiles | None) -> dict[str, Any]:
        file = None
        if files is not None:
            series.counters[RecorderCounter.FILES] = files.begun[series.name]
            series.counters[RecorderCounter.DELETED] = files.deleted[series.name]
            file = files.open.get(series.name)
        return {**series.counts(), "file": file.name if file else ""}

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        """Write until `stop` or until there is no room; no exception leaves the thread."""
        assert self._files is not None
        files = self._files
        more = False
        try:
            while not self._stopping.wait(0 if more else POLL_S):
                more = self._turn(files)
            while self._turn(files):
                pass
            self._end(files, "ended", "")
        except Full as full:
            self._end(files, "stopped", str(full))
        except OSError as error:
            prefix = f"{error.filename}: " if error.filename else ""
            self._end(files, "stopped", f"{prefix}{reason_of(error)}")
        except Exception as error:
            self._end(files, "stopped", f"internal error: {type(error).__name__}: {error}")
        while self.state == "stopped" and not self._stopping.wait(POLL_S):
            self._discard()
        self._discard()

    def _discard(self) -> None:
        for series in self._series.values():
            series.discard()

    def _turn(self, files: RecordingFiles) -> bool:
        """Write as much of each tap as one buffer or one file takes; return whether there is more.

        No more at a time: where packets of one series come faster than the disk takes them, its tap
        never gets empty, and the other series and the ends of files still have their turn.
        """
        now_ns = self._clock_ns()
        more = [series.write_some(files, now_ns) for series in self._series.values()]
        files.tick(now_ns)
        return any(more)

    def _end(self, files: RecordingFiles, state: str, reason: str) -> None:
        """Close the files, whatever happened, and note the state and its reason."""
        try:
            files.close()
        except OSError as error:
            state = "stopped"
            reason = reason or f"closing a file failed: {error}"
        self._folder.release()
        self.reason = reason
        self.state = state
        if state == "stopped" and self._on_stop is not None:
            with contextlib.suppress(Exception):
                self._on_stop(reason)
