"""A command of ours run in the test's own process: what it prints, and its exit code.

The same path as `python -m feedhandler`, without the second that a new interpreter takes. What is
about a process (signals, a reader that goes away, what is loaded) starts one instead.
"""

import asyncio
import contextlib
import io
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple

from feedhandler.cli.app import chosen
from feedhandler.terminal.console import run_guarded

#: A channel of one line, for configurations.
CHANNEL = """
[[channel]]
service = 104
[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Done(NamedTuple):
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Signals are whose they were afterwards: a command's process would end with their handlers."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def run_here(*words: str) -> Done:
    """Run the command to its end."""
    out, err = io.StringIO(), io.StringIO()
    with signals_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_guarded(lambda: chosen([*words])())
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def beside(context: contextlib.AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """Keep what commands talk to open, on an event loop in a thread of its own: commands with a
    loop of theirs run in the main thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        stack = contextlib.AsyncExitStack()
        opened = wait(stack.enter_async_context(context))
        try:
            yield opened
        finally:
            wait(stack.aclose())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
