"""Capturing of multicast lines into files, with an account of what was lost on the way.

The gateway's receive thread, without a feed, puts every datagram with its kernel stamp into a tap
(`ingest.receiver`); a thread of this module lays them out as records and writes them, as the
gateway's recorder does (`recorder.Series`). Receiving does not wait for the disk: packets that the
ring cannot take are counted, and so are those that the kernel dropped because a socket's buffer was
full (SO_MEMINFO, which also counts drops behind the last datagram received).

Every packet received is in the files or in the account: `received` = `written` + `ring_drops` +
`unwritten` + `left`. However a capture ends (a bound, a signal, a fault), it leaves whole files.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from feedhandler import __version__
from feedhandler.codecs.errors import FeedhandlerError, UsageError, unwritable
from feedhandler.counters import LineCounter
from feedhandler.ingest.lines import RECEIVE_BUFFER_BYTES, Line
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.recording.blocks import LineStatistics, section, statistics
from feedhandler.recording.frame_writer import NO_LIMIT
from feedhandler.recording.recorder import POLL_S, Series
from feedhandler.recording.rotation import CaptureFiles, Rotation, WrittenFile, split_suffixes
from feedhandler.recording.sinks import create_file
from feedhandler.replay.captures.records import file_header

#: Bytes that may wait for the disk: a second of 200,000 packets a second of the paper's size.
RING_BYTES = 64 << 20
#: The longest possible datagram is captured whole.
PACKET_BYTES_MAX = 65_535
#: How long an ending capture waits for a disk that does not answer.
STOP_SECONDS = 30.0

#: Linux: a socket's memory and drops, as nine unsigned integers; the last one counts drops.
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("9I")

EndReason = Literal["signal", "count", "duration", "fault"]


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a capture: its lines, its file, and what ends it (0: nothing does)."""

    lines: tuple[Line, ...]
    path: Path
    rotation: Rotation = Rotation()
    packets_max: int = 0
    duration_ns: int = 0
    overwrite: bool = False
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES
    ring_bytes: int = RING_BYTES


class LineAccount(Struct, frozen=True):
    """The account of one line: packets received and dropped.

    `cut` counts packets longer than a datagram can be.
    """

    name: str
    group: str
    port: int
    interface: str
    source: str | None
    receive_buffer_asked_bytes: int
    receive_buffer_bytes: int
    packets: int
    payload_bytes: int
    cut: int
    kernel_drops: int


class Account(Struct, frozen=True):
    """A capture so far; see the module's text. `reason` is None while it runs."""

    path: str
    format: str
    began_ns: int
    ended_ns: int
    reason: EndReason | None
    fault: str
    received: int
    written: int
    kernel_drops: int
    ring_drops: int
    unwritten: int
    left: int
    size_bytes: int
    lines: tuple[LineAccount, ...]
    files: tuple[WrittenFile, ...]

    @property
    def lost(self) -> int:
        """Packets sent here that are in no file, except those behind the end."""
        return self.kernel_drops + self.ring_drops + self.unwritten


class Capturing:
    """One capture, from `start` to its end; `ended` is set at the end.

    Raises `ConfigError` for lines that cannot be joined.
    """

    def __init__(self, settings: Settings) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._settings = settings
        self._blocks = split_suffixes(settings.path.name)[1].startswith(".pcapng")
        limit = settings.packets_max or NO_LIMIT
        self._series = Series(
            "lines", settings.lines, settings.ring_bytes, blocks=self._blocks, limit=limit
        )
        self._receiver = Receiver(
            None,
            0,
            [],
            Ring(),
            settings=ArbitrationSettings(packet_bytes_max=PACKET_BYTES_MAX),
            receive_buffer_bytes=settings.receive_buffer_bytes,
            tap=self._series.tap,
            lines=settings.lines,
        )
        # They outlive the receiver's own, so that the last drops can be read.
        self._sockets = [each.dup() for each in self._receiver.sockets]
        self._last_drops: list[int] | None = None
        self._buffers = self._receiver.receive_buffers()
        self._series.refused = lambda: self._receiver.tap_drops
        self._folder = settings.path.parent
        self._files = CaptureFiles(
            settings.path.name,
            settings.rotation,
            lambda name: create_file(self._folder / name, settings.overwrite),
            lambda name: os.unlink(self._folder / name),
            header=self._header(),
            trailer=self._trailer,
            laid_out=lambda: self._series.writer.packets,
        )
        self._began_ns = self._ended_ns = 0
        self._deadline_ns = 0
        self._reason: EndReason | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def start(self) -> None:
        """Begin to capture.

        Raises `UsageError` where the first file cannot be made; then nothing has begun.
        """
        self._began_ns = time.time_ns()
        try:
            self._files.begin(self._began_ns)
        except OSError as error:
            self._receiver.close()
            self._close_sockets()
            raise _unwritable(self._settings.path, error) from None
        self._deadline_ns = time.monotonic_ns() + self._settings.duration_ns
        self._receiver.start()
        self._thread.start()

    def stop(self) -> None:
        """End the capture; what the ring holds is still written. From any thread."""
        self._stopping.set()

    def account(self) -> Account:
        """Return the account as of now: packets received, written and lost."""
        lines = tuple(map(self._line_account, range(len(self._settings.lines))))
        received = sum(line.packets for line in lines)
        ring_drops = self._receiver.tap_drops
        wanted = min(received - ring_drops, self._settings.packets_max or NO_LIMIT)
        # Lost with a failed write, a block that was never written, or the ring behind it.
        unwritten = wanted - self._files.packets if self.error else 0
        left = received - ring_drops - self._files.packets - unwritten
        return Account(
            path=str(self._settings.path),
            format="pcapng" if self._blocks else "pcap",
            began_ns=self._began_ns,
            ended_ns=self._ended_ns or time.time_ns(),
            reason=self._reason,
            fault=_text_of(self.error) if self.error else "",
            received=received,
            written=self._files.packets,
            kernel_drops=sum(line.kernel_drops for line in lines),
            ring_drops=ring_drops,
            unwritten=unwritten,
            left=left,
            size_bytes=self._files.size_bytes,
            lines=lines,
            files=tuple(self._files.written),
        )

    def _line_account(self, number: int) -> LineAccount:
        line = self._settings.lines[number]
        row = self._receiver.line_counters[number]
        return LineAccount(
            name=line.name,
            group=line.group,
            port=line.port,
            interface=line.interface,
            source=line.source,
            receive_buffer_asked_bytes=self._settings.receive_buffer_bytes,
            receive_buffer_bytes=self._buffers[line.name],
            packets=int(row[LineCounter.PACKETS]),
            payload_bytes=int(row[LineCounter.BYTES]),
            cut=int(row[LineCounter.OVERSIZE]),
            kernel_drops=self._kernel_drops(number),
        )

    def _kernel_drops(self, number: int) -> int:
        """Return the socket's drops, up to the end of the capture.

        Where it is closed, they are the receive thread's last reading.
        """
        if self._last_drops is not None:
            return self._last_drops[number]
        try:
            meminfo = self._sockets[number].getsockopt(
                socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size
            )
            return int(_MEMINFO.unpack(meminfo)[-1])
        except (OSError, struct.error):
            return int(self._receiver.line_counters[number][LineCounter.KERNEL_DROPS])

    def _header(self) -> bytes:
        if not self._blocks:
            return file_header()
        descriptions = [
            (line.interface, f"line {line.name}, {line.group}:{line.port}")
            for line in self._settings.lines
        ]
        return section(f"feedhandler capture {__version__}", descriptions)

    def _trailer(self) -> bytes:
        if not self._blocks:
            return b""
        lines = tuple(map(self._line_account, range(len(self._settings.lines))))
        # The ring is one for all lines: whose packets found it full is unknown.
        per_line = [LineStatistics(line.packets, line.kernel_drops) for line in lines]
        return statistics(per_line, self._began_ns, time.time_ns())

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        """Write until something ends the capture; no exception leaves the thread."""
        try:
            reason = self._write_until_the_end()
            self._stop_receiving()
            while self._turn():
                pass
            self._files.finish("")
            self._reason = reason
        except BaseException as error:
            self.error = error
            self._reason = "fault"
            self._give_up()
        self._ended_ns = time.time_ns()
        self.ended.set()

    def _write_until_the_end(self) -> EndReason:
        settings = self._settings
        while True:
            more = self._turn()
            if settings.packets_max and self._series.writer.packets >= settings.packets_max:
                return "count"
            if settings.duration_ns and time.monotonic_ns() >= self._deadline_ns:
                return "duration"
            if self._stopping.wait(0 if more else POLL_S):
                return "signal"
            if not more and not self._receiver.running:
                raise self._receiver.error or RuntimeError("the receive thread has ended")

    def _turn(self) -> bool:
        """Write as much of the ring as one buffer or one file takes; return whether there is more.

        No more at a time: where packets come faster than the disk takes them, the ring never gets
        empty, and the end is still to be heeded.
        """
        now_ns = time.time_ns()
        more = self._series.write_some(self._files, now_ns)
        self._files.tick(now_ns)
        return more

    def _stop_receiving(self) -> None:
        """Stop the receive thread, and leave the groups.

        What the kernel drops of later datagrams is no loss of the capture.
        """
        self._receiver.stop()
        self._last_drops = [self._kernel_drops(number) for number in range(len(self._sockets))]
        self._close_sockets()

    def _give_up(self) -> None:
        """End what can still be ended after a fault."""
        for work in (self._stop_receiving, lambda: self._files.finish("")):
            try:
                work()
            except Exception as error:
                # The first fault is the one reported.
                self.error = self.error or error

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long; return whether the capture has ended."""
        return self.ended.wait(timeout_s)

    def close(self) -> Account:
        """Return the final account of an ended capture, and close its sockets."""
        account = self.account()
        self._close_sockets()
        return account

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()


def _unwritable(path: Path, error: OSError) -> FeedhandlerError:
    target = Path(error.filename) if error.filename else path
    if isinstance(error, FileExistsError) and not target.is_file():
        return UsageError(f"{target} is no file", "captures are written to files alone")
    if isinstance(error, FileExistsError):
        return UsageError(f"{target} is there already", "name another file, or --overwrite")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path.parent}: no such folder", f"mkdir -p {path.parent}")
    return unwritable(target, error)


def _text_of(error: BaseException) -> str:
    """Describe a fault for the account."""
    if isinstance(error, OSError) and error.strerror:
        prefix = f"{error.filename}: " if error.filename else ""
        return prefix + error.strerror.lower()
    return f"{type(error).__name__}: {error}"


def names(lines: Sequence[Line] | Sequence[LineAccount]) -> str:
    """Format the lines' addresses for a title: the first and how many more."""
    first = f"{lines[0].group}:{lines[0].port}"
    return first if len(lines) == 1 else f"{first} and {len(lines) - 1} more"
