"""Recovery over real TCP connections: the cores of `client` and `server` on an event loop.

`RequestConnection` keeps one connection to a server: connects, feeds a `RequestClient`, closes
what is broken or dead, and connects again after a wait that doubles up to a bound and is jittered,
so that the clients of a server that restarts do not come back in step. `serve` listens for clients
of a `RequestServer`.

Nothing here waits for a peer: what a peer does not read is buffered up to a bound, and beyond it
the server makes no more of an answer, and a client gives the connection up. Works on asyncio and
uvloop alike.

Time is nanoseconds since 1970, anchored once and then steady: a clock that is set does not end
connections.
"""

import asyncio
import random
import socket
import time
from collections.abc import Callable
from typing import cast

from feedhandler.codecs.errors import ConfigError
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import Broken, Event
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.server import RequestServer, ServerSession
from feedhandler.retrans.settings import RecoverySettings

#: Most bytes of requests that wait for a server that does not read: some thousand requests.
REQUEST_BYTES_WAITING_MAX = 256 << 10
#: The same in the kernel, which would else hold some megabytes.
REQUEST_SEND_BUFFER_BYTES = 64 << 10
#: The server fills a connection's buffer up to here and goes on when it has fallen below the lower.
WRITE_BUFFER_HIGH_BYTES = 64 << 10
WRITE_BUFFER_LOW_BYTES = 16 << 10
#: Least and most time to the next look at a deadline: loops have millisecond timers.
TIMER_LEAST_NS = 1_000_000
TIMER_MOST_NS = 3_600_000_000_000
#: How long an orderly goodbye may take before the connection is cut.
GOODBYE_SECONDS = 1.0

Clock = Callable[[], int]


def steady_clock() -> Clock:
    """Nanoseconds since 1970 as of now, from then on at the pace of the monotonic clock."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: time.monotonic_ns() + offset


def _without_delay(transport: asyncio.BaseTransport) -> socket.socket:
    """Send at once what is written; the transport's socket."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Timer:
    """Calls `due` when a deadline that may move is reached."""

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._due = due
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_ns = NEVER_NS

    def set(self, deadline_ns: int) -> None:
        """Call at `deadline_ns`; a call that is set for earlier stays."""
        if self._handle is not None and self._set_for_ns <= deadline_ns:
            return
        self.cancel()
        wait_ns = min(max(deadline_ns - self._clock(), TIMER_LEAST_NS), TIMER_MOST_NS)
        self._set_for_ns = deadline_ns
        self._handle = self._loop.call_later(wait_ns / 1e9, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._due()


class RequestConnection:
    """A connection to `host`:`port` that is kept up from `start` to `close`.

    on_events gets every event of the client but `Broken`, those of one read together
    on_up     the connection is there: requests can be sent
    on_down   it is gone, or cannot be made, with the reason; told once until it has been up again

    `ask`, `cancel` and `ask_refresh` are the client's; what is asked while the connection is down
    is not sent. `chance` gives numbers from 0 to 1 for the jitter.
    """

    def __init__(
        self,
        client: RequestClient,
        host: str,
        port: int,
        settings: RecoverySettings,
        *,
        on_events: Callable[[list[Event]], None],
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[str], None] = lambda reason: None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.client = client
        self.address = (host, port)
        self._settings = settings
        self._on_events = on_events
        self._on_up = on_up
        self._on_down = on_down
        self._clock = clock or steady_clock()
        self._chance = chance
        self._task: asyncio.Task[None] | None = None
        self._link: _ClientLink | None = None
        self._told_down = False
        self._failures = 0
        self._made_ns = 0

    @property
    def up(self) -> bool:
        """Is there a connection?"""
        return self.client.up

    def start(self) -> None:
        """Connect, and keep connected. To be called within a running event loop."""
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

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask) -> bool:
        """`RequestClient.ask`, now."""
        sent = self.client.ask(request, self._clock())
        self._flush()
        return sent

    def ask_refresh(self, request: AskRefresh) -> bool:
        """`RequestClient.ask_refresh`, now."""
        sent = self.client.ask_refresh(request, self._clock())
        self._flush()
        return sent

    def cancel(self, request_id: int) -> None:
        """`RequestClient.cancel`."""
        self.client.cancel(request_id)

    def _flush(self) -> None:
        if self._link is not None:
            self._link.flush_soon()

    # -- keeping it up --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            reason = await self._connect_once()
            if self._task is None:  # closed by its owner
                return
            self._tell_down(reason)
            await asyncio.sleep(self._wait_seconds())

    def _wait_seconds(self) -> float:
        """The next wait: twice the last one, at most `reconnect_max_us`, less up to a half."""
        settings = self._settings
        longest = min(settings.reconnect_us << self._failures, settings.reconnect_max_us)
        self._failures = min(self._failures + 1, 32)
        return longest / 1e6 * (1 - self._chance() / 2)

    async def _connect_once(self) -> str:
        """Connect and stay until the connection ends; the reason why it did."""
        host, port = self.address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings.dead_us / 1e6):
                _, link = await loop.create_connection(lambda: _ClientLink(self), host, port)
        except TimeoutError:
            return f"cannot connect to {host}:{port}: no answer"
        except OSError as error:
            return f"cannot connect to {host}:{port}: {error.strerror or error}"
        return await link.lost

    def _tell_down(self, reason: str) -> None:
        if not self._told_down:
            self._told_down = True
            self._on_down(reason)

    # -- what the link says ---------------------------------------------------------------------

    def link_made(self, link: "_ClientLink") -> None:
        """The socket is connected."""
        self._link = link
        self.client.connected(self._clock())
        self._made_ns = self._clock()
        self._told_down = False
        self._on_up()

    def link_lost(self) -> None:
        """The socket is gone."""
        now_ns = self._clock()
        self._link = None
        self.client.disconnected(now_ns)
        # A connection that lasted means that the server is well: begin with short waits again.
        if now_ns - self._made_ns >= self._settings.reconnect_max_us * 1_000:
            self._failures = 0

    def received(self, data: bytes) -> str:
        """Bytes came; a reason to give the connection up, or nothing."""
        return self._tell(self.client.feed(data, self._clock()))

    def tick(self) -> str:
        """Time has passed; a reason to give the connection up, or nothing."""
        return self._tell(self.client.tick(self._clock()))

    def _tell(self, events: list[Event]) -> str:
        reason = ""
        if events and isinstance(events[-1], Broken):
            reason = events[-1].reason
            events = events[:-1]
        if events:
            self._on_events(events)
        return reason

    @property
    def clock(self) -> Clock:
        return self._clock


class _ClientLink(asyncio.Protocol):
    """One connected socket of a `RequestConnection`; `lost` becomes the reason of its end."""

    def __init__(self, owner: RequestConnection) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer = _Timer(owner.clock, self._on_time)
        self._reason = ""
        self._flushing = False
        self.lost: asyncio.Future[str] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = _without_delay(transport)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_SEND_BUFFER_BYTES)
        self._owner.link_made(self)
        self._timer.set(self._owner.client.deadline_ns)

    def data_received(self, data: bytes) -> None:
        self._judge(self._owner.received(data))

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._transport = None
        if not self._reason:
            self._reason = f"the connection broke: {error}" if error else "the server closed it"
        self._owner.link_lost()
        if not self.lost.done():
            self.lost.set_result(self._reason)

    def flush_soon(self) -> None:
        """Write what the client has to say at the end of this turn: many requests, one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._reason:
            return
        output = self._owner.client.take_output()
        if output:
            self._transport.write(output)
            if self._transport.get_write_buffer_size() > REQUEST_BYTES_WAITING_MAX:
                self._judge("the server does not read its requests")

    def _on_time(self) -> None:
        self._judge(self._owner.tick())
        if not self._reason:
            self._timer.set(self._owner.client.deadline_ns)

    def _judge(self, reason: str) -> None:
        """Give the connection up where there is a reason to; else write what there is to write."""
        if self._reason or self._transport is None:
            return
        if reason:
            self._reason = reason
            self._timer.cancel()
            self._transport.abort()
        else:
            self._flush()

    async def goodbye(self) -> None:
        """Write what waits and close; cut it where that takes too long."""
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
    """A server that listens; made by `serve`. `address` is where."""

    def __init__(self, listener: asyncio.Server, links: set["_ServerLink"]) -> None:
        self._listener = listener
        self._links = links
        self.address: tuple[str, int] = listener.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Listen no more, write what clients still take at once, and close every connection."""
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
    server: RequestServer, host: str, port: int, *, clock: Clock | None = None
) -> RequestListener:
    """Listen on `host`:`port` (0: any free port) for clients of `server`.

    Raises `ConfigError` where the address cannot be had.
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
    """One client's socket. Answers are made as fast as the client takes them, a chunk a turn of the
    loop."""

    def __init__(self, server: RequestServer, clock: Clock, links: set["_ServerLink"]) -> None:
        self._server = server
        self._clock = clock
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._session: ServerSession | None = None
        self._timer = _Timer(clock, self._on_time)
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
        """The client reads slower than we write: make no more answers, take no more requests."""
        if self._session is not None and self._transport is not None:
            self._session.pause(self._clock())
            if not self._shutting:
                self._transport.pause_reading()
                self._after()

    def resume_writing(self) -> None:
        """The client has read on."""
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
        """See to what comes next: the end, the next chunk, or the next deadline."""
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
        """Close after what is written already; cut it where the client does not take that."""
        if self._transport is None or self._shutting:
            return
        self._shutting = True
        self._timer.cancel()
        self._transport.close()
        self._loop.call_later(GOODBYE_SECONDS, self.abort)

    def abort(self) -> None:
        """Cut the connection, if it is still there."""
        if self._transport is not None:
            self._transport.abort()
