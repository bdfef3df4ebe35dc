"""Service of Resend Requests: by TCP, or on a request topic, to a `ResendServer` and back.

A client that sends something other than FIX messages is disconnected; invalid requests are ignored
and counted, as the server does. Answers for all go to `send`. Answers for one client go into its
connection as fast as it reads them, however long they are. A client that reads nothing for
`UNREAD_SECONDS` is disconnected, and one whose host has vanished leaves its place after
`VANISHED_SECONDS`.
"""

import asyncio
import itertools
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import cast

from feedhandler.codecs.errors import ConfigError, PeerError, reason_of
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.ingest.lines import Line, open_line
from feedhandler.retrans.fix.request import RequestFormat
from feedhandler.retrans.fix.server import ALL, NEVER, Answer, ResendServer

#: Upper limit on connections.
CLIENTS_MAX = 1024
#: Upper limit on a request's bytes, which has a hundred.
REQUEST_BYTES_MAX = 4096
#: Upper limit on requests of a topic that are read before others get their turn.
TURN_DATAGRAMS = 64
#: How long a client may read nothing of what waits for it.
UNREAD_SECONDS = 30.0
#: Bytes of an answer that are written at a time.
WRITE_BYTES = 64 << 10
#: After this time without a sign of the other host a connection ends; above `UNREAD_SECONDS`, for
#: to the kernel a client that reads nothing has vanished, too. Then the first question of whether
#: the host is there, and the interval of further ones.
VANISHED_SECONDS, PROBE_SECONDS = 40, 10
_SECOND = 1_000_000_000


class ResendService:
    """Receives requests for `server`; counts connections and their faults.

    `send` is called with answers for all; `written` returns the messages to write into the
    connection for an answer to one client.
    """

    def __init__(
        self,
        server: ResendServer,
        form: RequestFormat,
        send: Callable[[Answer], None],
        written: Callable[[Answer], list[bytes]] = lambda answer: answer.messages,
    ) -> None:
        self._written = written
        self.server = server
        self.counts: Counter[str] = Counter()
        self._form = form
        self._send = send
        self._clients: dict[int, _Client] = {}
        #: Clients that read more slowly than answers are made.
        self._behind: set[int] = set()
        self._ids = itertools.count()
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._topic: socket.socket | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen for connections. Raises `ConfigError` where that is not possible."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: _Client(self), host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for Resend Requests at {host}:{port}: {reason_of(error)}",
                "check the server in the definition of channels, or stop what listens there",
            ) from error

    def join(self, topic: Line) -> None:
        """Take requests from a multicast group. Raises `ConfigError` where it cannot be joined."""
        self._topic = open_line(topic)
        asyncio.get_running_loop().add_reader(self._topic, self._read, self._topic)

    def _read(self, topic: socket.socket) -> None:
        for _ in range(TURN_DATAGRAMS):
            try:
                data = topic.recv(REQUEST_BYTES_MAX)
            except BlockingIOError:
                return
            self.receive(data, ALL)

    async def close(self) -> None:
        """Stop listening, and end the connections."""
        if self._topic is not None:
            asyncio.get_running_loop().remove_reader(self._topic)
            self._topic.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients.values()):
            client.close()
        if self._listener is not None:
            await self._listener.wait_closed()

    def enter(self, client: "_Client") -> int | None:
        """Register a new client and return its id; None where there is no room."""
        if len(self._clients) >= CLIENTS_MAX:
            self.counts["refused"] += 1
            return None
        self.counts["connections"] += 1
        id = next(self._ids)
        self._clients[id] = client
        return id

    def leave(self, id: int) -> None:
        """Forget a client that disconnected."""
        self._clients.pop(id, None)
        self._behind.discard(id)
        self.server.forget(id)

    def pause(self, id: int) -> None:
        """Make no more answers for a client that reads them more slowly than they are made."""
        self._behind.add(id)

    def resume(self, id: int) -> None:
        """Make answers for a client again."""
        self._behind.discard(id)
        self.server.resume(time.monotonic_ns())
        self._set_timer()

    def receive(self, message: bytes, id: int) -> None:
        """Handle a client's message: a request, or a TestRequest, which is answered."""
        if reply := self._form.reply(message):
            if client := self._clients.get(id):
                client.write([reply])
            return
        self.server.request(self._form.decode(message), id, time.monotonic_ns())
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for what is due next; others get their turn before, also if it is due."""
        if self._timer is None and self.server.deadline_ns != NEVER:
            delay_s = (self.server.deadline_ns - time.monotonic_ns()) / _SECOND
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        """Send the answers that are due, and set the timer for the next."""
        self._timer = None
        for answer in self.server.tick(time.monotonic_ns(), self._behind):
            if answer.client == ALL:
                self._send(answer)
            elif client := self._clients.get(answer.client):
                client.write(self._written(answer))
        self._set_timer()


def watch_host(transport: asyncio.BaseTransport) -> None:
    """Have the kernel end a connection whose other host has vanished, also where both are idle."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_SECONDS * 1000)


class _Client(asyncio.Protocol):
    """One connection.

    Holds what the server makes at a time: while a client is behind, nothing is read of it, and no
    more answers are made for it.
    """

    def __init__(self, service: ResendService) -> None:
        self._service = service
        self._stream = FixStream(REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._id: int | None = None
        self._unsent: deque[bytes] = deque()
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._id = self._service.enter(self)
        if self._id is None:
            self._transport.abort()
        else:
            watch_host(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        if self._id is not None:
            self._service.leave(self._id)

    def data_received(self, data: bytes) -> None:
        if self._id is None:
            return
        try:
            messages = self._stream.receive(data)
        except PeerError:
            messages = []
        for message in messages:
            self._service.receive(message, self._id)
        if self._stream.fault:
            self._service.counts["not_fix"] += 1
            self.close()

    def pause_writing(self) -> None:
        """Write and read no further: the client reads more slowly than we write."""
        assert self._transport is not None
        assert self._id is not None
        self._transport.pause_reading()
        self._service.pause(self._id)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(UNREAD_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        """Go on, as the client has read."""
        assert self._transport is not None
        assert self._id is not None
        self._end_patience()
        self._send()
        if self._patience is None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._service.resume(self._id)

    def write(self, messages: list[bytes]) -> None:
        """Send answers, as far as the client reads them now; the rest follows."""
        self._unsent += messages
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        while self._unsent and self._patience is None:
            part = [self._unsent.popleft()]
            size = len(part[0])
            while self._unsent and size + len(self._unsent[0]) <= WRITE_BYTES:
                part.append(self._unsent.popleft())
                size += len(part[-1])
            self._transport.write(b"".join(part))

    def _give_up(self) -> None:
        self._service.counts["unread"] += 1
        self.close()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _end(self) -> None:
        """Drop what waits: the connection is over."""
        self._end_patience()
        self._unsent.clear()

    def close(self) -> None:
        """End the connection."""
        self._end()
        if self._transport is not None:
            self._transport.abort()
