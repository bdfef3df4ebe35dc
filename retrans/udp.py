"""Recovery over UDP: a client's core on an event loop, and a server's.

`DatagramConnection` is what `tcp.RequestConnection` is for TCP: a socket that a `Reconnection`
opens, feeds and gives up. `serve_datagrams` answers the clients of a `sessions.SessionServer` by
their addresses. Nothing here waits for a peer: a datagram that cannot be sent is lost, as it might
be on its way.
"""

import asyncio
from typing import Any, cast

from feedhandler.codecs.errors import ConfigError
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.reconnection import Reconnection
from feedhandler.retrans.sessions import DatagramSession, SessionServer
from feedhandler.retrans.tcp import Clock, Timer, steady_clock

Address = tuple[str, int]
#: Datagrams of one answer that are sent before anything else gets its turn.
TURN_DATAGRAMS = 16


class DatagramConnection(asyncio.DatagramProtocol):
    """A socket for the server at `host`:`port`, kept open from `start` to `close`."""

    def __init__(
        self, server: Reconnection[Any], host: str, port: int, *, clock: Clock | None = None
    ) -> None:
        self.server = server
        self.address = (host, port)
        self.clock = clock or steady_clock()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: Timer | None = None
        self._gone: asyncio.Future[None] | None = None
        self._reason = ""
        server.on_output = self._flush

    @property
    def up(self) -> bool:
        """Whether there is a socket."""
        return self.server.client.up

    def start(self) -> None:
        """Open the socket, and keep one open. Must be called within a running event loop."""
        if self._task is None:
            self._timer = Timer(self.clock, self._on_time)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Close, and stay closed. `on_down` is not called."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._drop("closed")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0, self.server.retry_ns - self.clock()) / 1e9)
            self._gone, self._reason = loop.create_future(), ""
            try:
                await loop.create_datagram_endpoint(lambda: self, remote_addr=self.address)
            except OSError as error:
                host, port = self.address
                reason = f"cannot reach {host}:{port}: {error.strerror or error}"
                self.server.lost(reason, self.clock())
                continue
            await self._gone

    # -- reports of the socket ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the client."""
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.server.made(self.clock())
        self._flush()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Feed the client."""
        self._judge(self.server.feed(data, self.clock()))

    def error_received(self, exc: Exception) -> None:
        """Give the socket up: the server's port is closed."""
        self._judge(f"the server is not there: {exc}")

    def connection_lost(self, error: Exception | None) -> None:
        """Report that the socket is gone, unless it was closed by its owner."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            self.server.left(self.clock())
        else:
            self.server.lost(self._reason or f"the socket broke: {error}", self.clock())
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _flush(self) -> None:
        """Send every datagram that waits, and set the client's next deadline."""
        if self._transport is None or self._reason:
            return
        while output := self.server.data_to_send():
            self._transport.sendto(output)
        if self._timer is not None:
            self._timer.set(self.server.deadline_ns)

    def _on_time(self) -> None:
        self._judge(self.server.tick(self.clock()))

    def _judge(self, reason: str) -> None:
        if reason:
            self._drop(reason)
        else:
            self._flush()

    def _drop(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()


class DatagramListener(asyncio.DatagramProtocol):
    """A server's socket, made by `serve_datagrams`; `address` is its host and port."""

    def __init__(self, server: SessionServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._sessions: dict[Address, DatagramSession] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._timer = Timer(clock, self._on_time)
        self.address: Address = ("", 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where it listens."""
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.address = transport.get_extra_info("sockname")[:2]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer a client, known or new."""
        now_ns = self._clock()
        session = self._sessions.get(addr)
        if session is None:
            session = cast(DatagramSession, self._server.session(f"{addr[0]}:{addr[1]}", now_ns))
            if session.closed:
                return
            self._sessions[addr] = session
        self._say(addr, session, session.feed(data, now_ns), now_ns)
        self._timer.set(session.deadline_ns)

    def _say(self, addr: Address, session: DatagramSession, data: bytes, now_ns: int) -> None:
        """Send a datagram, and some of those that wait behind it."""
        self._send(addr, data)
        for _ in range(TURN_DATAGRAMS):
            if not session.waiting:
                break
            self._send(addr, session.tick(now_ns))

    def _send(self, addr: Address, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.sendto(data, addr)

    def _on_time(self) -> None:
        now_ns, next_ns = self._clock(), NEVER_NS
        for addr, session in list(self._sessions.items()):
            if session.deadline_ns <= now_ns:
                self._say(addr, session, session.tick(now_ns), now_ns)
            if session.closed:
                del self._sessions[addr]
            else:
                next_ns = min(next_ns, session.deadline_ns)
        if next_ns < NEVER_NS:
            self._timer.set(next_ns)

    def close(self) -> None:
        """Forget the clients and close the socket."""
        self._timer.cancel()
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        if self._transport is not None:
            self._transport.abort()


async def serve_datagrams(
    server: SessionServer, host: str, port: int, *, clock: Clock | None = None
) -> DatagramListener:
    """Answer datagrams at `host`:`port` (0: any free port) by `server`.

    Raises `ConfigError` where the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    listener = DatagramListener(server, clock or steady_clock())
    try:
        await loop.create_datagram_endpoint(lambda: listener, local_addr=(host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}",
            "choose a free port and an address of this machine",
        ) from None
    return listener
