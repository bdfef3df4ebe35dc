"""Request and response between the controller and the roles, over ZeroMQ.

The controller has a `Bus` (a ROUTER), each role a `Station` (a DEALER) whose identity is the role's
name. A role says `hello` with its process id once it is ready; then the controller sends requests,
each with a verb and a number, and the role answers with that number. Between answers a role may
send its progress, which may be dropped. Messages are one JSON object each.

A role that does not answer in time, or answers with an error, raises a `RoleFailed` that names the
role and the step. ZeroMQ does not report that a role died: the `supervisor` notices that.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from feedhandler.ops.console import HostFault

#: Messages that may wait for one side or the other.
WAITING_MAX = 1_000

Answer = dict[str, Any]
#: One verb of a role: the question's fields in, the answer out.
Verb = Callable[[Mapping[str, Any]], Awaitable[Answer | None]]


class RoleFailed(HostFault):
    """A role died, hung or could not do its part."""


class Bus:
    """The controller's end. `progress` holds each role's last report."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.pids: dict[str, int] = {}
        self.progress: dict[str, Answer] = {}
        self._told: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._greetings: dict[str, asyncio.Event] = {}

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, WAITING_MAX)
        self._socket.setsockopt(zmq.SNDHWM, WAITING_MAX)
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._socket.close(linger=0)
        self._context.term()

    async def _read(self) -> None:
        while True:
            identity, body = (await self._socket.recv_multipart())[:2]
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                self._take(identity.decode(), msgspec.json.decode(body, type=dict))

    def _take(self, role: str, told: Answer) -> None:
        waiting = self._waiting.get(told.get("number", 0))
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(told)
        elif "hello" in told:
            self.pids[role] = told["hello"]
            self.greeting(role).set()
        elif "progress" in told:
            self.progress[role] = told["progress"]
            self._told[role] += 1

    def told(self, role: str) -> int:
        """Return how many progress reports a role has sent."""
        return self._told[role]

    def greeting(self, role: str) -> asyncio.Event:
        """Return the event that is set once the role has said that it is ready."""
        return self._greetings.setdefault(role, asyncio.Event())

    async def ask(self, role: str, verb: str, timeout_s: float, **fields: Any) -> Answer:
        """Send a request to a role and return its answer.

        Raises `RoleFailed` where the answer is an error or does not come within `timeout_s`, and
        `UsageError` where the role finds the user's request wrong.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        request = msgspec.json.encode({"number": number, "do": verb, **fields})
        try:
            await self._socket.send_multipart([role.encode(), request])
            async with asyncio.timeout(timeout_s):
                told = await answer
        except TimeoutError:
            raise RoleFailed(f"{role} did not answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]
        if "error" in told:
            kind = UsageError if told.get("usage") else RoleFailed
            raise kind(f"{role}: {told['error']}", told.get("hint", ""))
        return told


class Station:
    """A role's end: answers the controller's requests with `verbs`, each in a task of its own."""

    def __init__(self, name: str, endpoint: str, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)

    async def serve(self, stop: asyncio.Event, hello: int) -> None:
        """Send `hello`, then answer requests until `stop`; cancel those under way then."""
        reading = asyncio.create_task(self._read())
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._send({"hello": hello})
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            for task in (reading, stopping, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, stopping, *self._tasks, return_exceptions=True)
            self._socket.close(linger=0)
            self._context.term()

    async def tell(self, progress: Answer) -> None:
        """Send the controller a progress report."""
        await self._send({"progress": progress})

    async def _send(self, message: Answer) -> None:
        await self._socket.send(msgspec.json.encode(message))

    async def _read(self) -> None:
        while True:
            request = msgspec.json.decode(await self._socket.recv(), type=dict)
            task = asyncio.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Answer) -> None:
        answer: Answer = {}
        try:
            verb = self._verbs[request["do"]]
            answer = await verb(request) or {}
        except FeedhandlerError as error:
            usage = isinstance(error, UsageError | ConfigError)
            answer = {"error": error.message, "hint": error.hint, "usage": usage}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        await self._send({"number": request["number"], **answer})
