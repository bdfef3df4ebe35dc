"""The sockets of entitlement: the server's listener, and a user's connection.

Passwords and keys go over these connections, so they use TLS. Without TLS only this machine's own
addresses are served and connected to, unless `plain` says that the network is trusted.

A client that does not read what it is sent is disconnected. Passwords are verified on a separate
thread, one at a time: each costs 16 MiB and some 50 ms.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from feedhandler.addresses import is_loopback
from feedhandler.amqp.users import Users
from feedhandler.codecs.errors import ConfigError, PeerError, reason_of
from feedhandler.fixcast.entitlement import (
    Action,
    Close,
    EntitlementClient,
    EntitlementServer,
    Event,
    Send,
    State,
    Verify,
)
from feedhandler.fixcast.session import NEVER

#: Upper limit on bytes that wait for a client that does not read: a dictionary, and some.
UNREAD_BYTES_MAX = 4 << 20
CONNECT_SECONDS = 10
#: Time that a client has to read its Logout.
CLOSE_SECONDS = 5
#: Time within which keys that others add to the rings are noticed.
LOOK_NS = 1_000_000_000
#: A wall clock that has moved by more than this against the monotonic one was set.
SET_NS = 1_000_000_000
_SECOND = 1_000_000_000
_READ_BYTES = 64 << 10


def check_secrecy(host: str, tls: ssl.SSLContext | None, plain: bool) -> None:
    """Check that passwords and keys do not go in clear over a network. Raises `ConfigError`."""
    if tls is None and not plain and not is_loopback(host):
        raise ConfigError(
            f"passwords and keys would go to {host} in clear",
            "use TLS, or --plain-over-network where the network is trusted",
        )


class WallClock:
    """The wall clock; `on_set` is called with how much it was set by, before a time after that."""

    def __init__(self, on_set: Callable[[int], None]) -> None:
        self._on_set = on_set
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time, ns since 1970."""
        now_ns = time.time_ns()
        by_ns = now_ns - time.monotonic_ns() - self._offset_ns
        if abs(by_ns) > SET_NS:
            self._offset_ns += by_ns
            self._on_set(by_ns)
        return now_ns


class EntitlementService:
    """Service of an `EntitlementServer` by TCP; `users` verify the passwords.

    `look`, once it is set, is called once a second, such as to read new keys.
    """

    def __init__(self, server: EntitlementServer, users: Users) -> None:
        self.server = server
        self.address: tuple[str, int] = ("", 0)
        self._users = users
        self.look: Callable[[], Iterable[Action]] = tuple[Action, ...]
        self._clients: dict[int, _Client] = {}
        self._ids = itertools.count()
        self._verifier = ThreadPoolExecutor(1, "passwords")
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looked_ns = 0
        self._closed = False
        self._clock = WallClock(self._clock_set)

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, plain: bool = False
    ) -> None:
        """Listen for connections. Raises `ConfigError` where that is not possible, or not
        secret."""
        check_secrecy(host, tls, plain)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: _Client(self), host, port, ssl=tls)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host}:{port}: {reason_of(error)}",
                "name another port, or stop what listens there",
            ) from error
        self.address = self._listener.sockets[0].getsockname()[:2]
        self._turn()

    def _clock_set(self, by_ns: int) -> None:
        self._looked_ns += by_ns
        self.server.clock_set(by_ns)

    def use(self, users: Users) -> None:
        """Verify by these users' passwords from now on."""
        self._users = users

    async def close(self) -> None:
        """Stop listening, and end the connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients.values()):
            client.close()
        if self._listener is not None:
            await self._listener.wait_closed()
        self._verifier.shutdown(wait=False, cancel_futures=True)

    def enter(self, client: "_Client", address: str) -> int:
        """Register a client that connected; return its id."""
        id = next(self._ids)
        self._clients[id] = client
        self.do(self.server.connected(id, address, self._clock.now_ns()))
        return id

    def leave(self, id: int) -> None:
        """Forget a client that disconnected."""
        self._clients.pop(id, None)
        self.server.closed(id)

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out the server's actions."""
        for action in actions:
            client = self._clients.get(action.connection)
            if client is None:
                continue
            match action:
                case Send():
                    client.write(action.data)
                case Close():
                    client.close()
                case Verify():
                    task = asyncio.get_running_loop().create_task(self._verify(action))
                    client.tasks.add(task)
                    task.add_done_callback(client.tasks.discard)

    def receive(self, id: int, data: bytes) -> None:
        """Handle a client's bytes."""
        self.do(self.server.received(id, data, self._clock.now_ns()))
        self._turn()

    async def _verify(self, asked: Verify) -> None:
        user = self._users.remembered(asked.user, asked.password)
        if user is None:
            user = await asyncio.get_running_loop().run_in_executor(
                self._verifier, self._users.by_password, asked.user, asked.password
            )
        now_ns = self._clock.now_ns()
        self.do(self.server.verified(asked.connection, user is not None, now_ns))
        self._turn()

    def _turn(self) -> None:
        """Do what is due, and set the timer for what is due next."""
        if self._closed:  # a password was still being verified
            return
        if self._timer is not None:
            self._timer.cancel()
        now_ns = self._clock.now_ns()
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            self.do(self.look())
        self.do(self.server.tick(now_ns))
        due_ns = min(max(self.server.deadline_ns - now_ns, 0), LOOK_NS)
        self._timer = asyncio.get_running_loop().call_later(due_ns / _SECOND, self._turn)


class _Client(asyncio.Protocol):
    """One connection at the server."""

    def __init__(self, service: EntitlementService) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._id = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = self._transport.get_extra_info("peername")[0]
        self._id = self._service.enter(self, address)

    def connection_lost(self, error: Exception | None) -> None:
        self._service.leave(self._id)

    def data_received(self, data: bytes) -> None:
        self._service.receive(self._id, data)

    def write(self, data: bytes) -> None:
        """Send data; disconnect where too much is unread."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._service.server.counts["unread"] += 1
            self._transport.abort()
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything is sent; disconnect a client that does not read it."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)


async def entitled(
    host: str,
    port: int,
    client: EntitlementClient,
    on_event: Callable[[Event], None],
    tls: ssl.SSLContext | None = None,
    plain: bool = False,
) -> None:
    """Run one session of a user until it ends; `on_event` is called with its events.

    Cancelled, it logs out. Raises `ConfigError` where it would not be secret, `PeerError` where the
    server cannot be reached, sends something faulty, or closes the connection without a Logout.
    """
    check_secrecy(host, tls, plain)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    except (OSError, TimeoutError, UnicodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "no answer"
        why = "no name of a host" if isinstance(error, UnicodeError) else why
        raise PeerError(f"cannot connect to {host}:{port}: {why}", "see the server") from error
    try:
        client.start(time.time_ns())
        await _converse(reader, writer, client, on_event)
    except asyncio.CancelledError:
        client.stop(time.time_ns())
        writer.write(client.data_to_send())
        raise
    finally:
        writer.close()


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    client: EntitlementClient,
    on_event: Callable[[Event], None],
) -> None:
    """Read and write until the session ends."""
    reading: asyncio.Task[bytes] | None = None
    clock = WallClock(client.clock_set)
    try:
        while client.state is not State.ENDED:
            writer.write(client.data_to_send())
            now_ns = clock.now_ns()
            reading = reading or asyncio.ensure_future(reader.read(_READ_BYTES))
            deadline_ns = client.deadline_ns
            wait_s = max(deadline_ns - now_ns, 0) / _SECOND if deadline_ns < NEVER else None
            await asyncio.wait({reading}, timeout=wait_s)
            if reading.done():
                data, reading = _result(reading), None
                if not data:
                    raise PeerError("the server has closed the connection", "connect anew")
                events = client.receive(data, clock.now_ns())
            else:
                events = client.tick(clock.now_ns())
            for event in events:
                on_event(event)
    finally:
        if reading is not None:
            reading.cancel()


def _result(reading: "asyncio.Task[bytes]") -> bytes:
    """Return what was read; nothing where the connection was lost."""
    try:
        return reading.result()
    except OSError:
        return b""
