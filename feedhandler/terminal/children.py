"""Child processes that end with their parent, and report why when they end early.

A `Child` is started with a command, watched line by line, and stopped with SIGTERM. `Family` holds
several: leaving its context, in any way, stops all of them. A child lives in a session of its own,
so that Ctrl-C in a terminal reaches the parent alone, which then stops the children in order; and
the kernel sends it SIGTERM should the parent die without doing so.
"""

import asyncio
import contextlib
import ctypes
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import Self

from feedhandler._compiled import NotCompiledError, build_fault
from feedhandler.codecs.errors import FeedhandlerError, UsageError

#: How long a child may take to drain after SIGTERM before it is killed.
DRAIN_TIMEOUT_S = 15.0
#: Last lines of a child's stderr that are kept, to say why it ended.
ERROR_LINES = 20
_PR_SET_PDEATHSIG = 1
#: The remedy where the compiled units are the fault, as a child's complaint ends.
REMEDY = "run `make build`"
_libc = ctypes.CDLL(None)


class ChildEnded(FeedhandlerError):
    """A child ended before it should have."""


class ChildNotBuilt(UsageError):
    """A child ended because its compiled units are missing or do not go together."""


def not_built(who: str, words: str) -> ChildNotBuilt | None:
    """Return an error where `words`, the last of a child, report its compiled units; else None.

    They may be its own message or the end of a traceback.
    """
    is_remedy = REMEDY in words or NotCompiledError.__name__ in words
    if not is_remedy and not build_fault(ImportError(words)):
        return None
    return ChildNotBuilt(f"the {who}: {words.removesuffix(f' ({REMEDY})')}", REMEDY)


class Child:
    """One child process: its lines of output, its end."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.errors: deque[str] = deque(maxlen=ERROR_LINES)
        self._tasks: list[asyncio.Task[None]] = []

    def watch(
        self, on_line: Callable[[str], None] | None, on_error: Callable[[str], None] | None
    ) -> None:
        """Call `on_line` with each line of stdout, `on_error` with each of stderr, from a task."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None

        def keep(line: str) -> None:
            self.errors.append(line)
            if on_error is not None:
                on_error(line)

        for stream, use in ((self.process.stdout, on_line), (self.process.stderr, keep)):
            self._tasks.append(asyncio.create_task(_each_line(stream, use)))

    async def wait(self) -> int:
        """Wait until the process has ended and all its output was read; return the exit code."""
        code = await self.process.wait()
        await asyncio.gather(*self._tasks)
        return code

    async def stop(self) -> int:
        """Send SIGTERM, and SIGKILL where it has not ended in time; return the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), DRAIN_TIMEOUT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            return await self.wait()

    @property
    def last_words(self) -> str:
        """The last line on stderr, without the `feedhandler: ` prefix; empty where none came."""
        last = next((line for line in reversed(self.errors) if line.strip()), "")
        return last.removeprefix("feedhandler: ")

    def failure(self) -> ChildEnded | ChildNotBuilt:
        """Return an error that says why the child ended."""
        code = self.process.returncode or 0
        if code < 0:
            return ChildEnded(f"the {self.name} ended early (signal {-code})")
        if fault := not_built(self.name, self.last_words):
            return fault
        reason = f": {self.last_words}" if self.last_words else ""
        return ChildEnded(f"the {self.name} ended early (exit code {code}){reason}")


async def _each_line(stream: asyncio.StreamReader, use: Callable[[str], None] | None) -> None:
    """Pass on each line; of one that is longer than asyncio's limit, 64 KiB, only the end."""
    while not stream.at_eof():
        try:
            line = await stream.readline()
        except ValueError:
            continue  # too long: what has come of it is gone
        if line and use is not None:
            use(line.decode(errors="replace").rstrip("\n"))


def _end_with_parent() -> None:
    """Make the kernel send SIGTERM when the parent ends; called in the child before the command."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Family:
    """Children that are stopped together, the last started first."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in reversed(self.children):
            if child.process.returncode is None:
                await child.stop()

    async def start(
        self,
        name: str,
        *words: str,
        on_line: Callable[[str], None] | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> Child:
        """Start `python WORDS...` as a child called `name`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        child = Child(name, process)
        child.watch(on_line, on_error)
        self.children.append(child)
        return child

    async def until(self, happened: asyncio.Event, timeout_s: float, what: str) -> None:
        """Wait for `happened`. Raises `ChildEnded` if a child fails first or time runs out."""
        waiting = asyncio.create_task(happened.wait())
        ends = {asyncio.create_task(child.process.wait()): child for child in self._running()}
        try:
            await self._raise_for_failed([c for c in self.children if c.process.returncode])
            async with asyncio.timeout(timeout_s):
                while not waiting.done():
                    pending = [waiting, *(task for task in ends if not task.done())]
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    await self._raise_for_failed([ends[task] for task in ends if task.done()])
        except TimeoutError:
            raise ChildEnded(f"{what}: nothing happened within {timeout_s:g} s") from None
        finally:
            for task in (waiting, *ends):
                task.cancel()

    def _running(self) -> list[Child]:
        return [child for child in self.children if child.process.returncode is None]

    async def _raise_for_failed(self, ended: list[Child]) -> None:
        for child in ended:
            if await child.wait() != 0:
                raise child.failure()
