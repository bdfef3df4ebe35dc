"""Requests to a running process and their replies, over ZeroMQ: gateway, proxy, replay, role.

A request is one JSON object, `{"do": VERB, ...}`; the reply is `{"ok": true, "answer": ...}`, or
`{"ok": false, "error": ..., "hint": ..., "usage": ...}`, where `usage` says that the request was
wrong, and not the process. `Verbs` maps requests to replies by a table of verbs, each a function or
a coroutine function of the request, and has no socket. Malformed requests and exceptions of verbs
become replies; none reaches the process.

`ControlSocket` is a ROUTER on the process's own event loop (REQ and DEALER clients fit). ZeroMQ's
file descriptor is edge-triggered: it becomes readable once, however many requests wait, so requests
are read until none is left, a bounded number at a time, and the loop serves the stream in between.
A reply that a client does not take is dropped. There is no authentication: bind the endpoint to a
path, which only the process's own user can open, or to the loopback interface.

The clients' side is `ask` for commands, and `Caller` on an event loop.
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from feedhandler.addresses import is_endpoint, split_address
from feedhandler.codecs.errors import ConfigError, FeedhandlerError, PeerError, UsageError
from feedhandler.private_files import private_sockets

#: The default endpoint of a gateway; docs/gateway.toml binds it.
ENDPOINT_DEFAULT = "tcp://127.0.0.1:5572"
#: The longest request that a gateway parses; a longer one is refused.
REQUEST_BYTES_MAX = 65_536
#: ZeroMQ drops a connection that sends a longer frame, which bounds memory.
FRAME_BYTES_MAX = 1 << 20
#: Requests and replies that wait for each client.
WAITING_MAX = 64
#: Requests answered before the loop serves the stream again.
SHARE = 8
#: How long an expensive answer is reused.
KEEP_NS = 50_000_000
#: How long a command waits for an answer.
TIMEOUT_S = 2.0
#: How often a waiting command checks that the gateway still listens.
LISTENS_S = 0.25

#: Key of `ControlSocket.counts`: what it counts.
COUNTS: dict[str, str] = {
    "answered": "requests answered",
    "refused": "requests refused, or answered with an error",
}

#: One verb: the request's fields in, the answer (anything JSON can say) out, or an awaitable of it.
#: It may raise `FeedhandlerError`, which becomes the reply.
Verb = Callable[[Mapping[str, Any]], Any]


class Verbs:
    """A table of verbs that maps requests to replies; `answered` and `refused` count."""

    def __init__(
        self, verbs: Mapping[str, Verb], request_bytes_max: int = REQUEST_BYTES_MAX
    ) -> None:
        self.answered = 0
        self.refused = 0
        self._verbs = dict(verbs)
        self._bytes_max = request_bytes_max

    def reply(self, request: bytes | memoryview) -> bytes | Awaitable[bytes]:
        """Return the reply to one request, whatever it is, or an awaitable of it; never raises."""
        try:
            answer = self._answer(request)
            return self._later(answer) if isinstance(answer, Awaitable) else self._said(answer)
        except Exception as error:
            return self._refused(error)

    async def _later(self, answer: Awaitable[Any]) -> bytes:
        try:
            return self._said(await answer)
        except Exception as error:
            return self._refused(error)

    def _said(self, answer: Any) -> bytes:
        reply = msgspec.json.encode({"ok": True, "answer": answer})
        self.answered += 1
        return reply

    def _refused(self, error: Exception) -> bytes:
        self.refused += 1
        answer: dict[str, Any] = {"ok": False, "usage": isinstance(error, UsageError | ConfigError)}
        if isinstance(error, FeedhandlerError):
            answer |= {"error": error.message, "hint": error.hint}
        else:
            text = f"internal error: {type(error).__name__}: {error}"
            answer |= {"error": text, "hint": "please report it"}
        return msgspec.json.encode(answer)

    def _answer(self, request: bytes | memoryview) -> Any:
        if len(request) > self._bytes_max:
            raise UsageError(f"a request of {len(request):,} bytes", f"at most {self._bytes_max:,}")
        try:
            fields = msgspec.json.decode(request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            hint = 'a request is one JSON object: {"do": "status"}'
            raise UsageError(f"not JSON: {error}", hint) from None
        word = fields.get("do") if isinstance(fields, dict) else None
        if not isinstance(word, str):
            raise UsageError("no verb", 'a request is one JSON object: {"do": "status"}')
        verb = self._verbs.get(word)
        if verb is None:
            known = ", ".join(sorted(self._verbs))
            raise UsageError(f"unknown verb {word[:64]!r}", f"verbs: {known}")
        return verb(fields)


def kept(
    make: Callable[[], Any], keep_ns: int = KEEP_NS, now_ns: Callable[[], int] = time.monotonic_ns
) -> Verb:
    """Make a verb without arguments that reuses its answer for `keep_ns`.

    However many requests come, the work of the gateway's loop is bounded.
    """
    made_ns = -keep_ns
    raw = msgspec.Raw(b"null")

    def verb(_request: Mapping[str, Any]) -> Any:
        nonlocal made_ns, raw
        now = now_ns()
        if now - made_ns >= keep_ns:
            raw = msgspec.Raw(msgspec.json.encode(make()))
            made_ns = now
        return raw

    return verb


class ControlSocket:
    """A socket that answers at `bind` on the running event loop, from `open` to `close`.

    `counts` has the requests answered and refused. `setting` names where the endpoint was given,
    for the error if it cannot be bound. A verb that is a coroutine function runs as a task.
    """

    def __init__(
        self,
        bind: str,
        verbs: Mapping[str, Verb],
        setting: str = "control.bind",
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        self.endpoint = bind
        self._setting = setting
        self._verbs = Verbs(verbs, request_bytes_max)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._fd = -1
        self._path = ""
        self._loop: asyncio.AbstractEventLoop
        self._again: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of requests answered and refused."""
        return {"answered": self._verbs.answered, "refused": self._verbs.refused}

    def open(self) -> None:
        """Bind and begin to answer. Raises `ConfigError` where it cannot be bound."""
        self._loop = asyncio.get_running_loop()
        if _is_served(self.endpoint):
            raise self._unavailable("already in use")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, "[" in self.endpoint)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._socket.setsockopt(zmq.RCVHWM, WAITING_MAX)
        self._socket.setsockopt(zmq.SNDHWM, WAITING_MAX)
        try:
            with private_sockets():
                self._socket.bind(self.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise self._unavailable(str(error.strerror).lower()) from None
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._path = _path_of(self.endpoint)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._on_readable)
        # Requests that came before the descriptor was watched trigger no edge.
        self._again = self._loop.call_soon(self._on_readable)

    def _unavailable(self, reason: str) -> ConfigError:
        word = "out" if self._setting.startswith("-") else "empty"
        hint = f"choose a free one, or leave {self._setting} {word}"
        return ConfigError(f"{self._setting}: cannot bind {self.endpoint}: {reason}", hint)

    def close(self) -> None:
        """Stop answering, and cancel verbs under way; does nothing where nothing is open."""
        for task in self._tasks:
            task.cancel()
        if self._again is not None:
            self._again.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1
        if self._socket is not None:
            if self._path:
                # ZeroMQ leaves the file; while our socket is open no other process has bound it.
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
                self._path = ""
            self._socket.close(linger=0)
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    async def closed(self) -> None:
        """Close, and wait until the verbs that were under way have ended."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_readable(self) -> None:
        """Answer some of the waiting requests; schedule the rest for the loop's next turn."""
        self._again = None
        for _ in range(SHARE):
            if self._socket is None or not self._answer_one(self._socket):
                return
        if self._again is None:
            self._again = self._loop.call_soon(self._on_readable)

    def _answer_one(self, router: "zmq.Socket[bytes]") -> bool:
        """Read and answer one request; return False when none waits."""
        try:
            frames = router.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            # Interrupted, or a client that left in the middle: there may be more behind it.
            return True
        # A REQ client puts an empty frame before its request, a DEALER may leave it out.
        reply = self._verbs.reply(frames[-1] if len(frames) > 1 else b"")
        envelope = frames[:2] if len(frames) > 2 and not frames[1] else frames[:1]
        if isinstance(reply, bytes):
            self._send(envelope, reply)
        else:
            task = self._loop.create_task(self._send_later(envelope, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def _send_later(self, envelope: list[bytes], reply: Awaitable[bytes]) -> None:
        self._send(envelope, await reply)

    def _send(self, envelope: list[bytes], reply: bytes) -> None:
        assert self._socket is not None  # closing cancels what would send later
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([*envelope, reply], zmq.DONTWAIT)


def _path_of(endpoint: str) -> str:
    """Return the file of an ipc endpoint; empty where it has none."""
    kind, _, path = endpoint.partition("://")
    return path if kind == "ipc" and not path.startswith("@") else ""


def _is_served(endpoint: str) -> bool:
    """Check whether another process answers at this path.

    ZeroMQ would silently take the path over from it.
    """
    path = _path_of(endpoint)
    if not path:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full: it lives
        except OSError:
            return False
    return True


def ask(
    endpoint: str,
    request: Mapping[str, Any] | str = "status",
    timeout_s: float = TIMEOUT_S,
    *,
    who: str = "gateway",
    setting: str = "control.bind",
) -> Any:
    """Ask a running gateway; return its answer. `request` is its fields, or just the verb.

    `who` names another kind of process that is asked, whose endpoint is in `setting`. Raises
    `UsageError` for a malformed endpoint, `PeerError` for a gateway that is not there, does not
    answer in time, or refuses.
    """
    if not is_endpoint(endpoint):
        raise UsageError(
            f"{endpoint!r} is no endpoint", f"a {who}'s {setting}, such as {ENDPOINT_DEFAULT}"
        )
    _reach(endpoint, timeout_s, who, setting)
    fields = {"do": request} if isinstance(request, str) else request
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.IPV6, "[" in endpoint)
        client.connect(endpoint)
        client.send(msgspec.json.encode(fields))
        until = time.monotonic() + timeout_s
        while not client.poll(round(min(max(until - time.monotonic(), 0), LISTENS_S) * 1000)):
            if time.monotonic() >= until:
                raise PeerError(
                    f"no answer from {endpoint} within {timeout_s:g} s",
                    f"is it a {who}'s {setting}, and is the {who} running?",
                )
            # It may have gone meanwhile; waiting alone would not show that before the time-out.
            _reach(endpoint, timeout_s, who, setting)
        reply = client.recv()
    try:
        return _answer_of(endpoint, reply, who)
    except UsageError as error:
        raise PeerError(error.message, error.hint) from None


class Caller:
    """Requests to one process on the running event loop, one at a time.

    The process need not listen yet: the first request waits for it. The connection ends with its
    context.
    """

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, who: str) -> None:
        self._who = who
        self._socket = context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)

    async def ask(self, verb: str, timeout_s: float | None = None, **fields: Any) -> Any:
        """Send a request and return its answer.

        Raises `UsageError` where the process finds the request wrong, `PeerError` where it fails,
        `TimeoutError` where the answer does not come in time; no other request is possible then.
        """
        await self._socket.send(msgspec.json.encode({"do": verb, **fields}))
        async with asyncio.timeout(timeout_s):
            return _answer_of(self._who, await self._socket.recv(), self._who)


def _answer_of(where: str, reply: bytes, who: str) -> Any:
    """Return a reply's answer; raise `UsageError` or `PeerError` where it has none."""
    try:
        answer = msgspec.json.decode(reply)
        if answer["ok"]:
            return answer["answer"]
        error, hint = str(answer["error"]), str(answer.get("hint", ""))
    except (msgspec.DecodeError, KeyError, TypeError):
        hint = f"another program's socket, or another version's {who}"
        raise PeerError(f"{where} answered, but not as a {who} does", hint) from None
    raise (UsageError if answer.get("usage") else PeerError)(f"{where}: {error}", hint)


def _reach(endpoint: str, timeout_s: float, who: str, setting: str) -> None:
    """Raise `PeerError` where no process listens: ZeroMQ would retry silently for ever."""
    kind, _, target = endpoint.partition("://")
    try:
        if kind == "ipc":
            address = "\0" + target[1:] if target.startswith("@") else target
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(timeout_s)
                probe.connect(address)
        else:
            socket.create_connection(split_address(target), timeout_s).close()
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else _reason(error)
        raise PeerError(
            f"no {who} at {endpoint}: {reason}", f"start it, or name its {setting}"
        ) from None


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if error.errno == errno.ENOENT:
        return "no such path"
    return os.strerror(error.errno).lower() if error.errno else str(error)
