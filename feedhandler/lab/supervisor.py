"""The roles' processes: started together, watched all the time, and always ended.

Every step of a run has a name and a time-out, and goes on only while every role lives: `during`
fails the run with one line that names the step and the role, and quotes its last line. Each role
answers requests (`rpc`) at an endpoint of its own, and is asked for its progress all the time: one
that lives but hangs is noticed by its silence (`silent_s`). Leaving the supervisor's context sends
SIGTERM to all roles at once, and SIGKILL to those that do not end.
"""

import asyncio
import contextlib
import secrets
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import zmq.asyncio

from feedhandler.codecs.errors import PeerError
from feedhandler.rpc import Caller
from feedhandler.terminal.children import Child, ChildNotBuilt, Family, not_built
from feedhandler.terminal.console import HostFault

#: How long roles may take to end in order.
END_TIMEOUT_S = 5.0
#: The pause between two questions for a role's progress.
PROGRESS_S = 0.5
#: A role that does not say its progress for this long hangs; a machine that is overloaded lets one
#: wait for a second or two.
SILENT_S = 10.0
#: How often the roles are checked for silence.
LOOK_S = 0.25

T = TypeVar("T")


class RoleFailed(HostFault):
    """A role died, hung or could not do its part."""


class Supervisor(Family):
    """All roles of a run, and requests to them; `progress` has the latest report of each role."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        super().__init__()
        self.silent_s = silent_s
        self.progress: dict[str, dict[str, Any]] = {}
        self._heard: Counter[str] = Counter()
        self._callers: dict[str, Caller] = {}
        self._polling: list[asyncio.Task[None]] = []
        #: Sockets without a file: there is none to be left behind.
        self._endpoint = f"ipc://@feedhandler-lab-{secrets.token_hex(8)}-"
        self._watching: dict[Child, asyncio.Task[None]] = {}
        self._ended: dict[str, Child] = {}
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        return self

    async def __aexit__(self, *_: object) -> None:
        # A second interrupt must not leave a process behind.
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        for task in self._watching.values():
            task.cancel()
        living = [child for child in self.children if child.process.returncode is None]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in living:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)
            waits = [asyncio.ensure_future(child.wait()) for child in living]
            if waits:
                await asyncio.wait(waits, timeout=END_TIMEOUT_S)
            living = [child for child in living if child.process.returncode is None]
        for task in self._polling:
            task.cancel()
        await asyncio.gather(*self._polling, return_exceptions=True)
        self._context.destroy(linger=0)

    async def enlist(
        self, name: str, *words: str, on_error: Callable[[str], None] | None = None
    ) -> Child:
        """Start a process whose end, whenever it comes, fails the run."""
        child = await self.start(name, *words, on_error=on_error)
        self._watching[child] = asyncio.create_task(self._watch(child))
        return child

    async def enlist_role(self, name: str, kind: str) -> Child:
        """Start a role, which will answer requests."""
        endpoint = self._endpoint + name
        child = await self.enlist(name, "-m", "feedhandler.lab.role", kind, name, endpoint)
        self._callers[name] = Caller(self._context, endpoint, name)
        polling = self._poll(name, Caller(self._context, endpoint, name))
        self._polling.append(asyncio.create_task(polling))
        return child

    async def _poll(self, name: str, caller: Caller) -> None:
        """Ask a role for its progress again and again, until cancelled."""
        while True:
            self.progress[name] = await caller.ask("progress")
            self._heard[name] += 1
            await asyncio.sleep(PROGRESS_S)

    async def dismiss(self, name: str) -> None:
        """End one process in order, before the others; its end is no failure any more."""
        child = next((each for each in self.children if each.name == name), None)
        if child is not None:
            self._watching.pop(child).cancel()
            await child.stop()
            self.children.remove(child)

    async def _watch(self, child: Child) -> None:
        await child.wait()
        self._ended[child.name] = child
        self._news.set()

    async def greeted(self, step: str, timeout_s: float, *names: str) -> None:
        """Wait until these roles are ready: until they answer."""
        greetings = (self._callers[name].ask("progress") for name in names)
        await self.during(step, timeout_s, asyncio.gather(*greetings))

    async def ask(self, name: str, verb: str, timeout_s: float, **fields: Any) -> Any:
        """Send a request to a role and return its answer.

        Raises `RoleFailed` where it fails or does not answer within `timeout_s`, and `UsageError`
        where the role finds the user's request wrong.
        """
        try:
            return await self._callers[name].ask(verb, timeout_s, **fields)
        except PeerError as error:
            raise RoleFailed(error.message, error.hint) from None
        except TimeoutError:
            raise RoleFailed(f"{name} did not answer within {timeout_s:g} s") from None

    async def ask_all(
        self, step: str, timeout_s: float, names: list[str], verb: str, **fields: Any
    ) -> list[dict[str, Any]]:
        """Send the same request to several roles; return their answers in order."""
        asking = (self.ask(name, verb, timeout_s, **fields) for name in names)
        return await self.during(step, timeout_s + 1.0, asyncio.gather(*asking), tuple(names))

    async def during(
        self, step: str, timeout_s: float, work: Awaitable[T], talking: tuple[str, ...] = ()
    ) -> T:
        """Await `work` and return its result.

        Raises `RoleFailed` where a process ends first, where the time is up, or where one of the
        `talking` roles falls silent.
        """
        doing = asyncio.ensure_future(work)
        dying = asyncio.create_task(self._news.wait())
        silence = asyncio.create_task(self._silence(talking))
        try:
            done, _ = await asyncio.wait(
                {doing, dying, silence}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._ended:
                raise self._why_ended(step)
            if silence in done:
                raise self._hangs(step, silence.result())
            if doing not in done:
                raise RoleFailed(f"{step}: not done within {timeout_s:g} s")
            return self._result(step, doing)
        finally:
            for task in (doing, dying, silence):
                task.cancel()
            await asyncio.gather(doing, dying, silence, return_exceptions=True)

    def _result(self, step: str, doing: "asyncio.Future[T]") -> T:
        try:
            return doing.result()
        except RoleFailed as error:
            raise RoleFailed(f"{step}: {error.message}", error.hint) from None

    def _why_ended(self, step: str) -> RoleFailed | ChildNotBuilt:
        child = next(iter(self._ended.values()))
        if fault := not_built(child.name, child.last_words):
            return fault
        code = child.process.returncode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return RoleFailed(f"{step}: {child.name} ended ({how}){self.last_words(child.name)}")

    def _hangs(self, step: str, name: str) -> RoleFailed:
        return RoleFailed(
            f"{step}: {name} has said nothing for {self.silent_s:g} s{self.last_words(name)}"
        )

    def last_words(self, name: str) -> str:
        """Return the last line that a role wrote on stderr, to be appended to an error's text."""
        for child in self.children:
            if child.name == name:
                return f"; last words: {child.last_words}" if child.last_words else ""
        return ""

    async def _silence(self, talking: tuple[str, ...]) -> str:
        """Return the first of these roles without new progress for `silent_s`.

        Waits for ever while there is none.
        """
        loop = asyncio.get_running_loop()
        heard = {name: (self._heard[name], loop.time()) for name in talking}
        while True:
            await asyncio.sleep(LOOK_S)
            for name, (count, since) in heard.items():
                if self._heard[name] != count:
                    heard[name] = (self._heard[name], loop.time())
                elif loop.time() - since > self.silent_s:
                    return name
