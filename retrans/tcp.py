"""Recovery over real TCP connections: the cores of clients and servers on an event loop.

`RequestConnection` keeps one connection to a server: it connects when a `Reconnection` says so,
feeds it, and closes a connection that it gives up, or that has brought all that was wanted.
`serve` listens for clients of a `RequestServer`, or of any server with the same sessions.

Nothing here waits for a peer: what a peer does not read is buffered up to a bound; beyond it the
server makes no more of an answer, and a client gives the connection up. Works on asyncio and uvloop
alike.

Time is ns since 1970, taken from the wall clock once and from the monotonic clock from then on: a
clock that is set does not end connections.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any, cast

from feedhandler.codecs.errors import ConfigError
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.reconnection import Reconnection
from feedhandler.retrans.sessions import Session, SessionServer

#: Most bytes of requests that wait for a server that does not read: some thousand requests.
REQUEST_BYTES_WAITING_MAX = 256 << 10
#: The same for the kernel's send buffer, which would else hold some megabytes.
REQUEST_SEND_BUFFER_BYTES = 64 << 10
#: The server fills a connection's buffer to the upper bound and goes on below the lower one.
WRITE_BUFFER_HIGH_BYTES = 64 << 10
WRITE_BUFFER_LOW_BYTES = 16 << 10
#: Shortest and longest wait for a deadline: loops have millisecond timers.
TIMER_LEAST_NS = 1_000_000
TIMER_MOST_NS = 3_600_000_000_000
#: Longest wait for a connection to be made: a server that may be silent for minutes (NYSE) still
#: answers a handshake at once, and until it is known not to be there the secondary is not asked.
CONNECT_SECONDS_MAX = 5.0
#: How long an orderly close may take before the connection is aborted.
GOODBYE_SECONDS = 1.0

Clock = Callable[[], int]


def steady_clock() -> Clock:
    """Return a clock in ns since 1970 that starts at the wall clock and runs monotonically."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: time.monotonic_ns() + offset


def _without_delay(transport: asyncio.BaseTransport) -> socket.socket:
    """Switch Nagle's algorithm off (TCP_NODELAY) and return the transport's socket."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Timer:
    """Calls `due` when a deadline that may move is reached."""

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._due = due
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_ns = NEVER_NS

    def set(self, deadline_ns: int) -> None:
        """Call `due` at `deadline_ns`; a call that is set for earlier stays."""
        if self._handle is not None and self._set_for_ns <= deadline_ns:
            return
        self.cancel()
        wait_ns = min(max(deadline_ns - self._clock(), TIMER_LEAST_NS), TIMER_MOST_NS)
        self._set_for_ns = deadline_ns
        self._handle = self._loop.call_later(wait_ns / 1e9, self._fire)

    def cancel(self) -> None:
        """Cancel the call that is set, if there is one."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._due()


class RequestConnection:
    """A connection to `host`:`port`, from `start` to `close` there whenever `server` wants it.

    Requests are made through `server`; they are written at the end of the loop's turn.
    """

    def __init__(
        self,
        server: Reconnection[Any],
        host: str,
        port: int,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.server = server
        self.address = (host, port)
        self.clock = clock or steady_clock()
        self._task: asyncio.Task[None] | None = None
        self._link: _ClientLink | None = None
        self._asked = asyncio.Event()
        server.on_output = self._flush

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self.server.client.up

    def start(self) -> None:
        """Connect when it is time. Must be called within a running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write what waits, close, and stay closed. `on_down` is not called."""
        task, self._task = self._task, None
        if task is None:
            return
        link = self._link
        if link is not None:
            await link.goodbye()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _flush(self) -> None:
        if self._link is not None:
            self._link.flush_soon()
        else:
            self._asked.set()

    # -- keeping it up --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._until_due()
            failure = await self._connect_once()
            if self._task is None:  # closed by its owner
                return
            if failure:
                self.server.lost(failure, self.clock())

    async def _until_due(self) -> None:
        """Wait until it is time to connect, which what is asked for meanwhile may bring about."""
        while (wait_ns := self.server.connect_ns - self.clock()) > 0:
            self._asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ns, TIMER_MOST_NS) / 1e9):
                    await self._asked.wait()

    async def _connect_once(self) -> str:
        """Connect and stay until the end; return why it could not be made, or ""."""
        host, port = self.address
        loop = asyncio.get_running_loop()
        seconds = min(self.server.settings.dead_us / 1e6, CONNECT_SECONDS_MAX)
        try:
            async with asyncio.timeout(seconds):
                _, link = await loop.create_connection(lambda: _ClientLink(self), host, port)
        except TimeoutError:
            return f"cannot connect to {host}:{port}: no answer"
        except OSError as error:
            return f"cannot connect to {host}:{port}: {error.strerror or error}"
        await link.lost
        return ""

    # -- reports of the link --------------------------------------------------------------------

    def link_made(self, link: "_ClientLink") -> None:
        """Record that the socket is connected; called by the link."""
        self._link = link
        self.server.made(self.clock())

    def link_lost(self, reason: str) -> None:
        """Record that the socket is gone; called by the link."""
        self._link = None
        if self._task is None:
            self.server.left(self.clock())
        else:
            self.server.lost(reason, self.clock())


class _ClientLink(asyncio.Protocol):
    """One connected socket of a `RequestConnection`; `lost` is done when it is gone."""

    def __init__(self, owner: RequestConnection) -> None:
        self._owner = owner
        self._server = owner.server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer = Timer(owner.clock, self._on_time)
        self._reason = ""
        self._flushing = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = _without_delay(transport)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_SEND_BUFFER_BYTES)
        self._owner.link_made(self)
        self.flush_soon()  # a login goes at once, not with the first heartbeat

    def data_received(self, data: bytes) -> None:
        self._judge(self._server.feed(data, self._owner.clock()))

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._transport = None
        if not self._reason:
            self._reason = f"the connection broke: {error}" if error else "the server closed it"
        if not self.lost.done():
            self.lost.set_result(None)
        self._owner.link_lost(self._reason)

    def flush_soon(self) -> None:
        """Write the client's output at the end of this loop turn: many requests, one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._reason:
            return
        output = self._server.data_to_send()
        if output:
            self._transport.write(output)
            if self._transport.get_write_buffer_size() > REQUEST_BYTES_WAITING_MAX:
                self._judge("the server does not read its requests")
                return
        self._timer.set(self._server.deadline_ns)

    def _on_time(self) -> None:
        self._judge(self._server.tick(self._owner.clock()))
        if not self._reason:
            self._timer.set(self._server.deadline_ns)

    def _judge(self, reason: str) -> None:
        """Close the connection where there is a reason to; else write what there is to write."""
        if self._reason or self._transport is None:
            return
        if reason and self._server.finished:
            self._finish(reason)
        elif reason:
            self._reason = reason
            self._timer.cancel()
            self._transport.abort()
        else:
            self._flush()

    def _finish(self, reason: str) -> None:
        """Write what waits and close: all that was wanted has come."""
        assert self._transport is not None
        self._flush()
        self._reason = self._reason or reason
        self._timer.cancel()
        self._transport.close()
        self._loop.call_later(GOODBYE_SECONDS, self._abort)

    def _abort(self) -> None:
        """Abort a connection that does not end."""
        if self._transport is not None:
            self._transport.abort()

    async def goodbye(self) -> None:
        """Write what waits and close; abort where that takes longer than `GOODBYE_SECONDS`."""
        if self._transport is None:
            return
        self._flush()
        self._reason = self._reason or "closed"
        transport = self._transport
        if transport is not None:
            transport.close()
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await asyncio.shield(self.lost)
            except TimeoutError:
                transport.abort()
                await self.lost


class RequestListener:
    """A listening server, made by `serve`; `address` is its host and port."""

    def __init__(self, listener: asyncio.Server, links: set["_ServerLink"]) -> None:
        self._listener = listener
        self._links = links
        self.address: tuple[str, int] = listener.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Stop listening, write what clients still take at once, and close every connection."""
        self._listener.close()
        links = list(self._links)
        for link in links:
            link.shut()
        if links:
            _, late = await asyncio.wait([link.lost for link in links], timeout=GOODBYE_SECONDS)
            for link in links:
                link.abort()
            if late:
                await asyncio.wait(late)
        await self._listener.wait_closed()


async def serve(
    server: SessionServer, host: str, port: int, *, clock: Clock | None = None
) -> RequestListener:
    """Listen on `host`:`port` (0: any free port) for clients of `server`.

    Raises `ConfigError` where the address cannot be bound.
    """
    links: set[_ServerLink] = set()
    ticking = clock or steady_clock()
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(
            lambda: _ServerLink(server, ticking, links), host, port, backlog=128
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}",
            "choose a free port and an address of this machine",
        ) from None
    return RequestListener(listener, links)


class _ServerLink(asyncio.Protocol):
    """One client's socket; answers are made as fast as the client takes them.

    One chunk is made in each turn of the loop.
    """

    def __init__(self, server: SessionServer, clock: Clock, links: set["_ServerLink"]) -> None:
        self._server = server
        self._clock = clock
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._timer = Timer(clock, self._on_time)
        self._going = self._shutting = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._links.add(self)
        _without_delay(transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._session = self._server.session(f"{peer[0]}:{peer[1]}", self._clock())
        self._session.on_output = self._go_on_soon
        self._after()

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._write(self._session.feed(data, self._clock()))

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._links.discard(self)
        self._transport = None
        if self._session is not None:
            self._session.end()
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        """Make no more answers and read no more requests: the client reads slower than we write."""
        if self._session is not None and self._transport is not None:
            self._session.pause(self._clock())
            if not self._shutting:
                self._transport.pause_reading()
                self._after()

    def resume_writing(self) -> None:
        """Make answers and read requests again, as the client has read on."""
        if self._session is not None and self._transport is not None:
            self._session.resume(self._clock())
            if not self._shutting:
                self._transport.resume_reading()
                self._after()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
        self._after()

    def _after(self) -> None:
        """Take the next step: shut down, send the next chunk, or wait for the next deadline."""
        session = self._session
        if session is None or self._transport is None:
            return
        if session.closed:
            self.shut()
        elif session.deadline_ns <= self._clock():
            self._go_on_soon()
        else:
            self._timer.set(session.deadline_ns)

    def _go_on_soon(self) -> None:
        if not self._going:
            self._going = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going = False
        self._on_time()

    def _on_time(self) -> None:
        if self._session is not None and self._transport is not None:
            self._write(self._session.tick(self._clock()))

    def shut(self) -> None:
        """Close after what is written already; abort where the client takes it too slowly."""
        if self._transport is None or self._shutting:
            return
        self._shutting = True
        self._timer.cancel()
        self._transport.close()
        self._loop.call_later(GOODBYE_SECONDS, self.abort)

    def abort(self) -> None:
        """Abort the connection, if it is still there."""
        if self._transport is not None:
            self._transport.abort()
