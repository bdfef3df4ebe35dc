"""A very small HTTP/1.1 server on the gateway's own event loop, for metrics and health.

It answers GET and HEAD of the paths it is given, one request a connection, and nothing else. Who
talks to it may be slow, many, or no HTTP client at all, and the stream must not notice: requests
are bounded in bytes and in time, answers in time, connections in number (the one that has kept us
waiting longest makes room), and nothing here raises into the loop. No TLS, no authentication: bind
it to the loopback interface or to a management network. A request whose Host is a name that is
not this server's is refused: a page of somebody else's, open in a browser of this network, could
otherwise have its name lead here (DNS rebinding) and read the answer. A spare descriptor is kept,
so that the health page answers where the process has none left.

Plain sockets and the loop's `sock_recv` and `sock_sendall`: a listener of asyncio or uvloop tells
the loop of descriptors that ran out as of a fault, and a gateway ends on those.
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
#: How long a client may take to ask, to take the answer, and to close after it.
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LINGER_SECONDS = 1.0
#: Read at a time, and at most after the answer.
READ_BYTES = 4096
LINGER_BYTES_MAX = 1 << 16
#: How long clients wait when the process has no descriptor left for them.
ACCEPT_PAUSE_SECONDS = 0.1
BACKLOG = 64
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What a path answers with."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


def verdict(word: str, reasons: list[str]) -> Answer:
    """`ready`, or `not ready` with a line for each reason."""
    if not reasons:
        return Answer(f"{word}\n".encode())
    body = "\n".join([f"not {word}", *reasons, ""])
    return Answer(body.encode(), HTTPStatus.SERVICE_UNAVAILABLE)


Page = Callable[[], Awaitable[Answer]]


class _BadRequest(Exception):
    """The request is refused with this status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class WebServer:
    """Serves `pages` by path at `address`, from `start` to `close`; `counts` by name. Requests may
    be for addresses, this machine's own name, and those in `hosts`. `setting` is where the address
    was given, for whom it may not be had."""

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
        #: Connections, the longest waited for first; those that are answered are not here.
        self._asking: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    def count(self, counter: WebCounter) -> None:
        """One more."""
        self._counts[counter] += 1

    def counts(self) -> dict[str, int]:
        """Every `WebCounter` by name."""
        return as_dict(WebCounter, self._counts)

    def start(self) -> None:
        """Listen. Raises ConfigError where the address cannot be had."""
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
        """Stop listening and cut off whoever is connected."""
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
        """Take the clients that wait, each in a task of its own."""
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
                    self._shortage.tell(error.strerror)
                    # The spare one is this client's; without one, the slowest makes room.
                    if self._give_spare() or self._make_room():
                        continue
                # The listener stays readable: look again later.
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
        """Cut off whoever has not asked for longest; False where everybody is being answered."""
        self.count(WebCounter.PUSHED_OUT)
        oldest = next(iter(self._asking), None)
        if oldest is None:
            return False
        del self._asking[oldest]
        self._tasks.discard(oldest)
        oldest.cancel()
        return True

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """The conversation is over, cut off perhaps before it began."""
        self._tasks.discard(task)
        self._asking.pop(task, None)
        sock.close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Have a descriptor that one client may be given where there is no other."""
        if self._spare is None and self._listener is not None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> bool:
        """Close the spare descriptor, if there is one."""
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        return True

    async def _attend(self, sock: socket.socket) -> None:
        """One connection, from its request to its end; whatever happens stays here."""
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
        """Whether a request for this host (name, perhaps :port) may be answered: an address is
        nobody's name, and who sends none is no browser."""
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
        """Method, path and Host of the request, whose other headers are read and not looked at."""
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
        """Close our side and wait for the client's: data unread would take the answer with it."""
        with contextlib.suppress(TimeoutError, OSError):
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_SECONDS):
                for _ in range(LINGER_BYTES_MAX // READ_BYTES):
                    if not await self._loop.sock_recv(sock, READ_BYTES):
                        return


def _parsed(received: bytes) -> tuple[str, str]:
    """Method and path of a request's first line."""
    words = received.partition(b"\n")[0].rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise _BadRequest(HTTPStatus.BAD_REQUEST)
    method = words[0].decode("latin-1")
    if method not in ("GET", "HEAD"):
        raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED)
    return method, words[1].partition(b"?")[0].decode("latin-1")


def _host(received: bytes) -> str:
    """The Host that a request is for; "" where it names none."""
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
