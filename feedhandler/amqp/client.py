"""A connection of ours to an AMQP 1.0 node or broker: opened, kept alive, closed.

What it is for: `connect` connects with the identity's credentials; the engine's events are then
passed to the hooks of a subclass (`_read`, `_handle`, `_gone`). Subscribers (`subscribing`) and
workers at queues (`working`) are such subclasses.

What it leaves to others: links and what they carry; reconnecting.
"""

import asyncio
import contextlib
import socket
import ssl  # noqa: F401  (imported early: uvloop needs it loaded before the loop runs)
import time
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.identity import Identity, refusal
from feedhandler.codecs import PeerError

#: How long connecting and attaching may take.
CONNECT_SECONDS = 10.0
#: How long closing may take.
CLOSE_SECONDS = 2.0
#: Silence of the node after which it counts as dead; it sends empty frames at half of that.
IDLE_TIMEOUT_MS = 30_000
#: Receive buffer asked of the kernel.
RECEIVE_BUFFER_BYTES = 1 << 20
#: Conditions that a new attempt would meet again: the request itself is at fault, or what the node
#: sends. After any other end a new connection may help.
FINAL_CONDITIONS = frozenset(
    {
        conditions.DECODE_ERROR,
        conditions.INVALID_FIELD,
        conditions.NOT_ALLOWED,
        conditions.NOT_FOUND,
        conditions.NOT_IMPLEMENTED,
        conditions.UNAUTHORIZED_ACCESS,
        conditions.MESSAGE_SIZE_EXCEEDED,
    }
)


class Ended(PeerError):
    """A link or connection has ended. `condition` is the node's AMQP condition, "" where it gave
    none; `final`: trying again would end the same way."""

    def __init__(self, message: str, hint: str = "", *, condition: str = "") -> None:
        super().__init__(message, hint or condition)
        self.condition = condition
        self.final = condition in FINAL_CONDITIONS


class ClientConnection:
    """A connection to the node at the identity's endpoint, with its credentials; used on the event
    loop's thread.

    `hostname`: what the connection is opened with, where that is not the host's name (a broker's
    virtual host). `over`: it has ended.
    """

    def __init__(self, identity: Identity, hostname: str = "") -> None:
        self.identity = identity
        self.hostname = hostname
        endpoint = identity.endpoint
        self.url = endpoint.shown
        self.host, self.port = endpoint.host, endpoint.port
        self.loop = asyncio.get_running_loop()
        self.over = False
        self._tls = self.identity.session()
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._engine: proton.Connection = None  # type: ignore[assignment]  # until connected
        self._writing = False
        self._closing = False
        self._closed: asyncio.Future[None] = self.loop.create_future()

    # -- what a subclass does ---------------------------------------------------------------

    def _read(self) -> None:
        """Process what may have come on the links; a hook for subclasses."""

    def _handle(self, kind: int, link: proton.Link | None) -> None:
        """Process an event of a link; a hook for subclasses."""

    def _gone(self, error: Ended | None) -> None:
        """Process the end of the connection, and of every link with it; `error` says why, None
        where we closed it. A hook for subclasses."""

    # -- connecting and leaving -------------------------------------------------------------

    async def connect(self) -> None:
        """Connect to the node. Raises `Ended` where it cannot be reached in `CONNECT_SECONDS`."""
        await self.in_time(self._connect())

    async def in_time(self, step: Awaitable[None]) -> None:
        """Wait for a step in which the node takes part; raises `Ended`, and abandons the
        connection, without an answer in `CONNECT_SECONDS`."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await step
        except TimeoutError:
            self.abandon()
            raise Ended(
                f"{self.url} did not answer within {CONNECT_SECONDS:.0f} s",
                "is it an AMQP 1.0 node?",
            ) from None

    async def _connect(self) -> None:
        try:
            sock = await self._open_socket()
        except OSError as error:
            reason = error.strerror or str(error)
            raise Ended(
                f"cannot connect to {self.host}:{self.port}: {reason}", "is the gateway running?"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._engine = proton.Connection(
            sock.fileno(),
            server=False,
            container=f"feedhandler-{uuid.uuid4().hex[:12]}",
            hostname=self.hostname or self.host,
            idle_timeout_ms=IDLE_TIMEOUT_MS,
            user=self.identity.user,
            password=self.identity.password,
            external=self.identity.external,
            tls=self._tls,
        )
        self.loop.add_reader(sock.fileno(), self._on_readable)
        self._tick()

    async def _open_socket(self) -> socket.socket:
        """Connect to the first of the host's addresses that answers. Raises OSError where none
        does."""
        found = await self.loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for index, (family, kind, protocol, _, where) in enumerate(found):
            self._sock = socket.socket(family, kind, protocol)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            try:
                await self.loop.sock_connect(self._sock, where)
                break
            except OSError:
                self._sock.close()
                if index == len(found) - 1:
                    self._sock = None
                    raise
        assert self._sock is not None
        return self._sock

    async def close(self) -> None:
        """Close the connection and wait `CLOSE_SECONDS` at most for the node's close; messages not
        taken yet are dropped."""
        if self._engine is not None and not self.over:
            self._closing = True
            self._engine.close()
            self.work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._closed
        self.abandon()

    def abandon(self) -> None:
        """Close the socket, whatever state the connection is in."""
        self.finish(None)
        if self._sock is None:
            return
        self._sock.close()
        self._sock = None
        if self._engine is not None:
            for link in list(self._engine.links.values()):
                link.release()  # or engine and links would keep each other alive

    # -- from the event loop ----------------------------------------------------------------

    def _on_readable(self) -> None:
        said = self._engine.turn()
        # Almost always there are messages and nothing else to do.
        if said != 0 or self._writing or self.over:
            self.work(self._engine.news)
            if said < 0:
                self.finish(self._why())
            return
        self._read()

    def _tick(self) -> None:
        """Let the engine see the time: a dead node is noticed, our own empty frames are sent."""
        self._engine.tick(time.monotonic_ns() // 1_000_000)
        self._timer = self.loop.call_later(1.0, self._tick)
        self.work()

    def work(self, news: Sequence[tuple[int, Any]] = ()) -> None:
        """Act upon the engine's events, then write: on every read, or settlements pile up."""
        if self.over:
            return
        events = (*news, *self._engine.events())
        self._read()  # messages that came before an end are passed on before it
        for kind, link in events:
            if kind == proton.CONNECTION_REMOTE_CLOSE:
                name, text = self._engine.remote_condition
                self._engine.close()
                why = f"the node closed the connection: {text}"
                self.finish(Ended(why, condition=name) if name else None)
            elif kind == proton.TRANSPORT_ERROR:
                self.finish(self._why())
            else:
                self._handle(kind, link)
        if self.over:
            return
        state = self._engine.flush()
        assert self._sock is not None
        if state == 1 and not self._writing:
            self._writing = True
            self.loop.add_writer(self._sock.fileno(), self.work)
        elif state == 0 and self._writing:
            self._writing = False
            self.loop.remove_writer(self._sock.fileno())
        elif state < 0:
            self.finish(self._why())

    def _why(self) -> Ended | None:
        """Return why the transport has ended; None where we closed it."""
        name, text = self._engine.transport_condition
        if self._tls is not None and self._tls.fault is not None:
            fault = self._tls.fault
            return Ended(f"{self.url}: no TLS: {fault.reason}", fault.remedy)
        refused = refusal(name, text, self.identity.user, self._tls is not None)
        if refused is not None:
            return Ended(f"{self.url}: {refused.reason}", refused.remedy, condition=name)
        if name:
            # Whatever was wrong with the transport, a new connection may succeed: not final.
            return Ended(f"connection to {self.url} failed: {text}", name)
        return None if self._closing else Ended(f"{self.url} closed the connection")

    def finish(self, error: Ended | None) -> None:
        """End the connection; what was received may still be taken."""
        if self.over:
            return
        self.over = True
        if self._sock is not None:
            if self._engine is not None:
                self._engine.flush()
            self.loop.remove_reader(self._sock.fileno())
            self.loop.remove_writer(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        self._gone(error)
