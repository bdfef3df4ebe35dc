"""A very small HTTP/1.1 server on the gateway's own event loop, for metrics and health.

It answers GET and HEAD of the paths it is given, one request a connection, and nothing else.
Clients may be slow, many, or speak no HTTP at all, and the stream must not be disturbed: requests
are bounded in bytes and in time, answers in time, connections in number (the one whose request has
been outstanding longest is closed), and nothing here raises into the loop. No TLS, no
authentication: bind it to the loopback interface or to a management network. A request whose Host
is a name that is not this server's is refused: otherwise a foreign page in a browser of this
network could resolve its own name to this server (DNS rebinding) and read the answer. A spare
descriptor is kept, so that the health page answers where the process has none left.

It uses plain sockets with the loop's `sock_recv` and `sock_sendall`: a listener of asyncio or
uvloop reports exhausted descriptors to the loop's exception handler, which ends the gateway.
"""

import asyncio
import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from feedhandler.codecs.errors import ConfigError
from feedhandler.counters import WebCounter, as_dict, counter_array
from feedhandler.descriptors import Shortage, has_client

#: Connections at a time.
CONNECTIONS_MAX = 32
#: The longest request, headers included.
REQUEST_BYTES_MAX = 8192
#: How long a client may take to send its request, to read the answer, and to close after it.
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LINGER_SECONDS = 1.0
#: Read at a time, and at most after the answer.
READ_BYTES = 4096
LINGER_BYTES_MAX = 1 << 16
#: How long accepting pauses when the process has no descriptor left.
ACCEPT_PAUSE_SECONDS = 0.1
BACKLOG = 64
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """The answer to a request: body, status and content type."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


def verdict(word: str, reasons: list[str]) -> Answer:
    """Make the answer `ready`, or `not ready` (503) with a line for each reason."""
    if not reasons:
        return Answer(f"{word}\n".encode())
    body = "\n".join([f"not {word}", *reasons, ""])
    return Answer(body.encode(), HTTPStatus.SERVICE_UNAVAILABLE)


Page = Callable[[], Awaitable[Answer]]


class _BadRequest(Exception):
    """A refusal of the request with this status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class WebServer:
    """A server of `pages` by path at `address`, from `start` to `close`.

    Requests may be for addresses, this machine's own name, and those in `hosts`. `setting` names
    where the address was given, for the error if it cannot be bound.
    """

    def __init__(
        self,
        address: tuple[str, int],
        pages: Mapping[str, Page],
        hosts: Collection[str] = (),
        setting: str = "metrics.listen",
    ) -> None:
        self._setting = setting
        self._wanted = address
        self._pages = dict(pages)
        names = ("localhost", socket.gethostname(), address[0], *hosts)
        self._hosts = frozenset(name.lower() for name in names)
        self._shortage = Shortage("readers of metrics and health")
        self._spare: int | None = None
        self._counts = counter_array(WebCounter, 1)[0]
        self._listener: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None
        #: Connections that have sent no whole request yet, the oldest first.
        self._asking: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    def count(self, counter: WebCounter) -> None:
        """Count one more."""
        self._counts[counter] += 1

    def counts(self) -> dict[str, int]:
        """Return every `WebCounter` by name."""
        return as_dict(WebCounter, self._counts)

    def start(self) -> None:
        """Listen on the running loop. Raises `ConfigError` where the address cannot be bound."""
        self._loop = asyncio.get_running_loop()
        host, port = self._wanted
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            word = "out" if self._setting.startswith("-") else "empty"
            raise ConfigError(
                f"{self._setting}: cannot listen on {host}:{port}: {reason}",
                f"choose a free address of this machine, or leave {self._setting} {word}",
            ) from None
        self._listener.setblocking(False)
        self._keep_spare()
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._listener is None:
            return
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        self._give_spare()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- connections ------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept the clients that wait, each in a task of its own."""
        assert self._listener is not None
        for _ in range(CONNECTIONS_MAX):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    if not has_client(self._listener):
                        return
                    self._shortage.report(error.strerror)
                    # Give the spare one to this client; without one, close the slowest.
                    if self._give_spare() or self._make_room():
                        continue
                # The listener stays readable: accept again later.
                self._loop.remove_reader(self._listener.fileno())
                self._paused = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            sock.setblocking(False)
            self.count(WebCounter.CONNECTIONS)
            if len(self._tasks) >= CONNECTIONS_MAX and not self._make_room():
                sock.close()
                continue
            task = self._loop.create_task(self._attend(sock))
            self._tasks.add(task)
            self._asking[task] = None
            task.add_done_callback(partial(self._ended, sock))

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _make_room(self) -> bool:
        """Close the connection that has sent no request for longest; return whether one was."""
        oldest = next(iter(self._asking), None)
        if oldest is None:
            return False
        self.count(WebCounter.PUSHED_OUT)
        del self._asking[oldest]
        self._tasks.discard(oldest)
        oldest.cancel()
        return True

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """Clean up after a connection's task, which may have been cancelled before it began."""
        self._tasks.discard(task)
        self._asking.pop(task, None)
        sock.close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Open a spare descriptor, for one client where no other is left."""
        if self._spare is None and self._listener is not None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> bool:
        """Close the spare descriptor; return whether there was one."""
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        return True

    async def _attend(self, sock: socket.socket) -> None:
        """Serve one connection; errors of the client are counted or ignored, never raised."""
        try:
            await self._converse(sock)
        except TimeoutError:
            self.count(WebCounter.TIMED_OUT)
        except OSError:
            pass  # the client has gone

    async def _converse(self, sock: socket.socket) -> None:
        method = "GET"
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                method, path, host = await self._request(sock)
            if not self._is_mine(host):
                raise _BadRequest(HTTPStatus.MISDIRECTED_REQUEST)
            self._asking.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            answer = await self._answer(path)
        except _BadRequest as bad:
            self.count(WebCounter.BAD_REQUESTS)
            answer = Answer(f"{bad.status.phrase.lower()}\n".encode(), bad.status)
        self.count(WebCounter.REQUESTS)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._loop.sock_sendall(sock, _head(answer))
            if method != "HEAD":
                await self._loop.sock_sendall(sock, answer.body)
        await self._part(sock)

    async def _answer(self, path: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            raise _BadRequest(HTTPStatus.NOT_FOUND)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await page()
        except (TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n"
            return Answer(text.encode(), HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_mine(self, host: str) -> bool:
        """Check whether a request for this host (name, perhaps :port) may be answered.

        Any address may: DNS rebinding needs a name. So may a request without Host, as no browser
        sends one.
        """
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        name = name.strip("[]").lower()
        if not name or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _request(self, sock: socket.socket) -> tuple[str, str, str]:
        """Read the request; return its method, path and Host. Its other headers are ignored.

        Raises `_BadRequest`, or `ConnectionAbortedError` where the client closed before the end.
        """
        received = b""
        while b"\r\n\r\n" not in received:
            if len(received) >= REQUEST_BYTES_MAX:
                raise _BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            more = await self._loop.sock_recv(sock, READ_BYTES)
            if not more:
                raise ConnectionAbortedError
            received += more
            if b"\n" in received:
                _parsed(received)  # nonsense is not waited for
        return (*_parsed(received), _host(received))

    async def _part(self, sock: socket.socket) -> None:
        """Close our side and wait for the client's.

        Data left unread would make the kernel reset the connection, and discard the answer.
        """
        with contextlib.suppress(TimeoutError, OSError):
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_SECONDS):
                for _ in range(LINGER_BYTES_MAX // READ_BYTES):
                    if not await self._loop.sock_recv(sock, READ_BYTES):
                        return


def _parsed(received: bytes) -> tuple[str, str]:
    """Parse method and path from a request's first line. Raises `_BadRequest`."""
    words = received.partition(b"\n")[0].rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise _BadRequest(HTTPStatus.BAD_REQUEST)
    method = words[0].decode("latin-1")
    if method not in ("GET", "HEAD"):
        raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED)
    return method, words[1].partition(b"?")[0].decode("latin-1")


def _host(received: bytes) -> str:
    """Return the Host that a request is for; empty where it names none."""
    for line in received.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host":
            return value.strip().decode("latin-1")
    return ""


def _head(answer: Answer) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
    return (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode("latin-1")
