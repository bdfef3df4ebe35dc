"""Lines of a gateway that come through the overlay: a receiver of a tree for each, in its own
thread.

A line's receiver has the member's socket, deduplication, deadlines and reports as a separate one
has, and passes what it releases to the gateway's receive thread, which takes it as any line's
datagrams. In between is a pair of local sockets: the kernel stamps what passes, and where it is
full the receiver waits (`waits`), so that nothing is lost there. What then waits is the member's
own datagrams, and where the kernel drops those, that is counted and announced as gaps.

A thread's turns are short, but it shares the interpreter with the gateway's event loop: a release
may be late by as long as that holds it, which that of a separate receiver (`feedhandler overlay
receive`) is not.

Topologies' files are checked once a second, and a later version is taken while the line runs. A
thread that ends by an error reports it (`failed`): a dead line must not look like a quiet market.
"""

import logging
import os
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.config import OverlayConfig
from feedhandler.ingest.lines import SO_TIMESTAMPNS, ChannelPlan, Line, set_receive_buffer
from feedhandler.operator_log import log_event
from feedhandler.overlay.merging import receiver_of
from feedhandler.overlay.port import hand_over
from feedhandler.overlay.readings import counts_of, gauges_of, parts_of
from feedhandler.overlay.release import Deliver, Event
from feedhandler.overlay.running import SWITCH_SECONDS, Loop, open_socket, pin
from feedhandler.overlay.topology_file import read_topology, receiving_member

#: Buffer requested for the pair of sockets: some thousand messages.
PAIR_BYTES = 4 << 20
#: Interval at which a waiting thread checks whether it is to end.
LOOK_MS = 50
#: Interval at which topologies' files are checked.
FILE_NS = 1_000_000_000
#: Counts that a receiver in a gateway always shows, also before its first datagram.
_COUNTS = (
    "first", "duplicate", "delivered", "late", "passed", "missing", "datagrams_sent",
    "datagrams_received", "not_taken", "oversize", "kernel_drops",
)  # fmt: skip


class OverlayLine:
    """One line's receiver. The receive thread reads and closes the socket `feed`.

    `failed` is called, in the line's thread, with the error that ended it. Raises `ConfigError` for
    an invalid topology or an address that cannot be used.
    """

    def __init__(
        self,
        line: Line,
        settings: OverlayConfig,
        buffer_bytes: int,
        failed: Callable[[BaseException], object],
    ) -> None:
        assert line.overlay is not None
        self.line = line
        self.paths, name = line.overlay
        topologies, self.me = receiving_member(self.paths, name)
        self.member = receiver_of(
            topologies,
            name,
            time.time_ns(),
            follows_clock=settings.follow_clock,
            gap_wait_ns=settings.gap_wait_us * 1_000,
        )
        self.waits = 0
        self._cpu = settings.cpu if settings.cpu >= 0 else None
        self._failed = failed
        self._stopping = False
        self._stamps = {path: _stamp_of(path) for path in self.paths}
        self._look_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"overlay {line.name}", daemon=True)
        self._loop: Loop | None = None
        self._sock = open_socket(self.me)
        self.buffer_bytes = set_receive_buffer(self._sock, buffer_bytes)
        self._into, self.feed = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for sock in (self._into, self.feed):
            sock.setblocking(False)
        self._into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        self.feed.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the sockets except `feed`; takes a tenth of a second."""
        self._stopping = True
        if self._thread.ident is not None:
            self._thread.join()
        self._sock.close()
        self._into.close()

    def snapshot(self) -> dict[str, Any]:
        """Return what the receiver counts and measures, and its identity."""
        counts = Counter(dict.fromkeys(_COUNTS, 0))
        first, *others = parts_of(self.member)
        if self._loop is not None:
            counts.update(counts_of(first, self._loop.port))
            for other in others:
                counts.update(counts_of(other, None))
        return {
            "line": self.line.name,
            "topology": ", ".join(self.paths),
            "member": self.me.name,
            "tree": first.topology.tree,
            **gauges_of(first, time.time_ns()),
            **counts,
            "waits": self.waits,
        }

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            pin(self._cpu)
            self._loop = Loop(self.member, self._sock, self._hand_on)
            self._loop.run(self._is_over)
        except BaseException as error:  # a thread has no caller to raise to
            self._failed(error)

    def _hand_on(self, events: Sequence[Event], _now_ns: int) -> None:
        """Pass what was released to the receive thread, whose arbiter judges order and gaps."""
        payloads = [event.payload for event in events if isinstance(event, Deliver)]
        done = hand_over(self._into, payloads, 0)
        if done == len(payloads):
            return
        poller = select.poll()
        poller.register(self._into, select.POLLOUT)
        while done < len(payloads) and not self._stopping:
            self.waits += 1
            poller.poll(LOOK_MS)
            done += hand_over(self._into, payloads, done)

    def _is_over(self) -> bool:
        if time.monotonic_ns() >= self._look_ns:
            self._look_ns = time.monotonic_ns() + FILE_NS
            for path, stamp in self._stamps.items():
                if stamp != (now := _stamp_of(path)):
                    self._stamps[path] = now
                    self._read_again(path)
        return self._stopping

    def _read_again(self, path: str) -> None:
        """Take a later version of a topology, or report why not."""
        try:
            topology = read_topology(Path(path))
            reason = self.member.change(topology)
        except FeedhandlerError as error:
            reason = error.message
        line = self.line.name
        if reason:
            text = f"line {line}: {path} stays as it was: {reason}"
            log_event("topology", text, logging.WARNING, line=line, reason=reason)
        else:
            text = f"line {line}: {path}: version {topology.version} is in force"
            log_event("topology", text, logging.INFO, line=line, version=topology.version)


class OverlayLines:
    """A gateway's overlay lines.

    `plans` are its channels; the attribute `plans` has them as the receive thread is to receive
    them.
    """

    def __init__(
        self,
        plans: Iterable[ChannelPlan],
        settings: OverlayConfig,
        buffer_bytes: int,
        failed: Callable[[BaseException], object],
    ) -> None:
        self._lines: list[OverlayLine] = []
        self._switch_seconds = sys.getswitchinterval()
        plans = list(plans)
        #: Socket of each overlay line, by the `Line` of the receive thread and the recorder.
        self.feeds: dict[Line, socket.socket] = {}
        addressed: dict[Line, Line] = {}
        try:
            for line in dict.fromkeys(each for plan in plans for each in plan.lines):
                if line.overlay is not None:
                    made = OverlayLine(line, settings, buffer_bytes, failed)
                    self._lines.append(made)
                    host, port = made.me.address
                    addressed[line] = replace(line, group=host, port=port)
                    self.feeds[addressed[line]] = made.feed
        except BaseException:
            self.close()
            raise
        self.plans = [
            replace(plan, lines=tuple(addressed.get(line, line) for line in plan.lines))
            for plan in plans
        ]

    def start(self) -> None:
        """Start the threads, and shorten the interpreter's switch interval, for deadlines."""
        sys.setswitchinterval(min(self._switch_seconds, SWITCH_SECONDS))
        for line in self._lines:
            line.start()

    def stop(self) -> None:
        """End the threads; `feeds` are closed by the receive thread."""
        for line in self._lines:
            line.stop()
        sys.setswitchinterval(self._switch_seconds)

    def close(self) -> None:
        """Close everything, if the lines were never started."""
        for line in self._lines:
            line.stop()
            line.feed.close()

    def receive_buffers(self) -> dict[str, int]:
        """Return the receive buffer of each line's member, bytes, by line name."""
        return {line.line.name: line.buffer_bytes for line in self._lines}

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the snapshot of each line's receiver."""
        return [line.snapshot() for line in self._lines]


def _stamp_of(path: str) -> tuple[int, int, int]:
    """Return inode, time and size of a file, which identify its version; zeros without one."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size
