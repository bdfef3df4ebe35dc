"""A Spark session for the length of a command, which Ctrl-C ends as it ends any other.

An exception that comes in the middle of a call to Java leaves this process and Spark's at odds: a
traceback, or a wait that never ends. So a signal that comes then has Spark give its jobs up, and
the call ends by itself; one that comes at any other time interrupts at once, and one that comes
while the session is made, once it is.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from feedhandler.characterise.cluster import spark_session
from feedhandler.ops.console import signal_handlers

#: Whose frames are in a call to Java.
_CALLING = "py4j"


class _Interrupt:
    """What a signal does while a session is there, or being made."""

    def __init__(self) -> None:
        self.came = False
        self.session: Any = None

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.came = True
        if self.session is None:
            return
        if not _calls_java(frame):
            raise KeyboardInterrupt
        # On a connection of its own: this thread's is in the middle of a call.
        threading.Thread(target=self._give_up, daemon=True).start()

    def raise_if_it_came(self) -> None:
        """Raise KeyboardInterrupt where a signal came, now that nothing is in the middle."""
        if self.came:
            raise KeyboardInterrupt from None

    def _give_up(self) -> None:
        # A session that is stopping meanwhile has no jobs left to give up.
        with contextlib.suppress(Exception):
            self.session.sparkContext.cancelAllJobs()


def _calls_java(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == _CALLING:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def session_under(handler: Any, master: str) -> Iterator[Any]:
    """A session on `master`, stopped at the end; signals go to `handler` all the while. Raises
    `UsageError` as `spark_session` does."""
    with signal_handlers(handler), ThreadPoolExecutor(1) as elsewhere:
        # In the main thread Spark would put a handler of its own there.
        spark = elsewhere.submit(spark_session, master).result()
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def command_session(master: str) -> Iterator[Any]:
    """A session on `master`. Raises KeyboardInterrupt where a signal came meanwhile."""
    interrupt = _Interrupt()
    with session_under(interrupt, master) as spark:
        interrupt.session = spark
        try:
            interrupt.raise_if_it_came()
            yield spark
        except Exception:
            interrupt.raise_if_it_came()
            raise
        finally:
            interrupt.session = None
    interrupt.raise_if_it_came()
