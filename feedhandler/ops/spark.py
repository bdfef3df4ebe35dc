"""The master for a command's work, and a Spark session for the length of a command.

`chosen_master` resolves `--master auto`: Spark where that is installed and gains more than its
start costs.

`command_session` is a session that a signal ends within seconds. Its Java gets SIGTERM, on which it
gives up its jobs and cleans up, and is killed where it does not end; whatever call to Java the
command is in fails with it. Java is asked nothing over the connection then: it may be busy.
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
from feedhandler.terminal.console import complain, signal_handlers

#: Masters of our own: this process alone, without Spark; and the faster one for the captures.
NO_SPARK, AUTO = "none", "auto"
#: The master that `auto` chooses where Spark gains: all processors of this machine.
LOCAL = "local[*]"
#: Time that Spark takes to start and to end, in s: 5 to 10 on an idle machine of two processors.
SPARK_START_S = 8.0
#: Time for Java to end by itself after a signal, in s; then it is killed.
GRACE_S = 2.0
#: Wait for the end of a killed process, in s.
KILLED_S = 1.0
#: Interval of the checks whether a session that is being made has started its Java, in s.
LOOK_S = 0.1

#: The package whose frames mark a call to Java.
_CALLING = "py4j"


class Rates(Struct, frozen=True):
    """Bytes of captures a second that one process takes, measured on UTP-MD: plain and compressed.

    Compressed files are inflated by one process each, so they are no faster side by side.
    """

    plain: float
    compressed: float


#: Rates of `characterise`, and of `pipeline`, which writes each message.
COUNTING, FILLING = Rates(480e6, 43e6), Rates(15e6, 3.3e6)


def chosen_master(asked: str, captures: Sequence[str], rates: Rates) -> str:
    """Return the master to work on: `asked`, or for `auto` the faster one.

    Reports the choice of `auto` on stderr. Raises `UsageError` for a path that names nothing,
    before Spark is begun.
    """
    found = find_captures(captures)
    if asked != AUTO:
        return asked
    sizes = [(path, size_of(path)) for path in found]
    why = missing()
    if why:
        return _log_choice(NO_SPARK, why)
    here_s, there_s = durations_s(sizes, rates, len(os.sched_getaffinity(0)))
    megabytes = sum(size for _, size in sizes) / 1e6
    seconds = f"{megabytes:,.1f} MB take some {here_s:,.0f} s here, on Spark {there_s:,.0f} s"
    return _log_choice(LOCAL if there_s < here_s else NO_SPARK, seconds)


def durations_s(
    sizes: Sequence[tuple[str, int]], rates: Rates, processors: int
) -> tuple[float, float]:
    """Estimate how long captures (path, bytes) take in this process, and on Spark, in s.

    Spark has that number of `processors`.
    """
    whole = [size / rates.compressed for path, size in sizes if _is_compressed(path)]
    plain = sum(size / rates.plain for path, size in sizes if not _is_compressed(path))
    here = plain + sum(whole)
    return here, SPARK_START_S + max(here / processors, max(whole, default=0.0))


def _is_compressed(path: str) -> bool:
    return shown(path).endswith(COMPRESSED)


def _log_choice(master: str, why: str) -> str:
    complain("without Spark" if master == NO_SPARK else f"on Spark, {master}", why)
    return master


class _Interrupt:
    """The handler of signals while a session exists, or is being made by the thread `maker_id`.

    The first has Java end, after `patience_s` in which the work may end by itself, and interrupts
    the main thread unless that is in a call to Java, which fails with it. A second one kills Java.
    """

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
        # Errors that follow from Java's end are no news; py4j logs them by the root's logger, too.
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
        """Return the ids of our Java: the session's, or what the session's maker has started."""
        if self.session is not None:
            process = getattr(self.session.sparkContext._gateway, "proc", None)
            return [] if process is None else [process.pid]
        with contextlib.suppress(OSError):
            children = Path(f"/proc/self/task/{self.maker_id}/children").read_text()
            return [int(word) for word in children.split()]
        return []


def _end_process(pid: int, grace_s: float) -> None:
    """Send SIGTERM to a child and wait for it; kill it where it has not ended after `grace_s`."""
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
    """Yield a session on `master`, which ends with the block.

    Raises `UsageError` as `spark_session` does, and KeyboardInterrupt where a signal came
    meanwhile: at once, or with `patience_s` when the work has ended by itself, as `on_signal` asks
    it to, or Java after that time.
    """
    interrupt = _Interrupt(patience_s, on_signal)

    def make() -> Any:
        interrupt.maker_id = threading.get_native_id()
        return spark_session(master)

    with signal_handlers(interrupt):
        try:
            # In the main thread Spark would install a signal handler of its own.
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
