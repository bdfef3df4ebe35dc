"""Which master a command's work is done on, and a Spark session for the length of a command.

`chosen_master` says what `--master auto` means: Spark where that is there and gains more than its
start costs.
`command_session` is a session that a signal ends within seconds. Its Java is told to end, which
gives jobs up and clears up behind them, and is killed where it does not; whatever call to Java the
command is in breaks with it. Nothing is asked of Java over the connection then: it may be busy.
"""

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct

from feedhandler.characterise.cluster import missing, spark_session
from feedhandler.characterise.files import COMPRESSED, find_captures, shown, size_of
from feedhandler.ops.console import complain, signal_handlers

#: Masters of our own: this process alone, without Spark; and whatever suits the captures.
NO_SPARK, AUTO = "none", "auto"
#: What `auto` takes where Spark gains: all processors of this machine.
LOCAL = "local[*]"
#: What Spark takes to start and to end, in s: 5 to 10 on an idle machine of two processors.
SPARK_START_S = 8.0
#: After a signal Java has so long to end by itself, in s; then it is killed.
GRACE_S = 2.0
#: How long the end of a killed process is waited for, in s.
KILLED_S = 1.0
#: How often a session that is being made is looked at for the Java it has started, in s.
LOOK_S = 0.1

#: Whose frames are in a call to Java.
_CALLING = "py4j"


class Rates(Struct, frozen=True):
    """Bytes of captures a second that one process takes, measured on UTP-MD: plain and compressed.
    Compressed files are inflated by one process each, so they are no faster side by side."""

    plain: float
    compressed: float


#: Of `characterise`, and of `pipeline`, which writes each message.
COUNTING, FILLING = Rates(480e6, 43e6), Rates(15e6, 3.3e6)


def chosen_master(asked: str, captures: Sequence[str], rates: Rates) -> str:
    """The master to work on, `asked` unless that is `auto`: then what is chosen is told on stderr.
    Raises `UsageError` for a path that names nothing, before Spark is begun."""
    found = find_captures(captures)
    if asked != AUTO:
        return asked
    sizes = [(path, size_of(path)) for path in found]
    why = missing()
    if why:
        return _told(NO_SPARK, why)
    here_s, there_s = durations_s(sizes, rates, len(os.sched_getaffinity(0)))
    megabytes = sum(size for _, size in sizes) / 1e6
    seconds = f"{megabytes:,.1f} MB take some {here_s:,.0f} s here, on Spark {there_s:,.0f} s"
    return _told(LOCAL if there_s < here_s else NO_SPARK, seconds)


def durations_s(
    sizes: Sequence[tuple[str, int]], rates: Rates, processors: int
) -> tuple[float, float]:
    """How long captures (path, bytes) are expected to take in this process, and on Spark on so many
    processors, in s."""
    whole = [size / rates.compressed for path, size in sizes if _is_compressed(path)]
    plain = sum(size / rates.plain for path, size in sizes if not _is_compressed(path))
    here = plain + sum(whole)
    return here, SPARK_START_S + max(here / processors, max(whole, default=0.0))


def _is_compressed(path: str) -> bool:
    return shown(path).endswith(COMPRESSED)


def _told(master: str, why: str) -> str:
    complain("without Spark" if master == NO_SPARK else f"on Spark, {master}", why)
    return master


class _Interrupt:
    """What signals do while a session is there, or is being made by the thread `maker_id`.

    The first has Java end, after `patience_s` in which the work may end by itself, and interrupts
    the main thread unless that is in a call to Java, which breaks with it. A second one kills."""

    def __init__(self, patience_s: float, on_signal: Callable[[], object]) -> None:
        self.came = False
        self.session: Any = None
        self.maker_id = 0
        self._patience_s = patience_s
        self._on_signal = on_signal
        self._over = threading.Event()
        self._ending = threading.Thread(target=self._end, daemon=True)

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        if self.came:
            for pid in self._java():
                _end_process(pid, 0.0)
            return
        self.came = True
        self._on_signal()
        # What breaks with Java is no news; py4j tells of it by the root's logger, too.
        logging.disable()
        self._ending.start()
        if self.session is not None and not self._patience_s and not _calls_java(frame):
            raise KeyboardInterrupt

    def raise_if_it_came(self) -> None:
        """Raise KeyboardInterrupt where a signal came."""
        if self.came:
            raise KeyboardInterrupt from None

    def close(self) -> None:
        """End the session; where a signal came, wait until its Java has ended."""
        try:
            if self.session is not None and (self._patience_s or not self.came):
                self.session.stop()
        except Exception:
            if not self.came:
                raise
        finally:
            self._over.set()
            if self.came:
                self._ending.join()

    def _end(self) -> None:
        if self._patience_s and self._over.wait(self._patience_s):
            return
        while True:
            for pid in self._java():
                _end_process(pid, GRACE_S)
            # Where a session is being made, Java may only now be started.
            if self._over.wait(LOOK_S):
                return

    def _java(self) -> list[int]:
        """Our Java: the session's, or what the thread that makes one has started."""
        if self.session is not None:
            process = getattr(self.session.sparkContext._gateway, "proc", None)
            return [] if process is None else [process.pid]
        with contextlib.suppress(OSError):
            children = Path(f"/proc/self/task/{self.maker_id}/children").read_text()
            return [int(word) for word in children.split()]
        return []


def _end_process(pid: int, grace_s: float) -> None:
    """Ask a child to end and wait for it; kill it where it has not ended by then."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLED_S)):
                signal.pidfd_send_signal(process, number)
                if select.select([process], [], [], wait_s)[0]:
                    return
        finally:
            os.close(process)


def _calls_java(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == _CALLING:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def command_session(
    master: str, patience_s: float = 0.0, on_signal: Callable[[], object] = lambda: None
) -> Iterator[Any]:
    """A session on `master`, gone at the end. Raises `UsageError` as `spark_session` does, and
    KeyboardInterrupt where a signal came meanwhile: at once, or with `patience_s` when the work
    has ended by itself, as `on_signal` has it do, or Java after so long."""
    interrupt = _Interrupt(patience_s, on_signal)

    def make() -> Any:
        interrupt.maker_id = threading.get_native_id()
        return spark_session(master)

    with signal_handlers(interrupt):
        try:
            # In the main thread Spark would put a handler of its own there.
            with ThreadPoolExecutor(1) as elsewhere:
                interrupt.session = elsewhere.submit(make).result()
            interrupt.raise_if_it_came()
            yield interrupt.session
        except Exception:
            interrupt.raise_if_it_came()
            raise
        finally:
            interrupt.close()
    interrupt.raise_if_it_came()
