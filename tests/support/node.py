"""Helpers of the node's system tests: a node on a real socket, and a client that can misbehave.

`NodeRig` is `amqp.Rig` with the node in front, in the test's own event loop. `RawClient` drives
proton's Python binding by hand over a blocking socket, so that a test decides every frame; use it
by `await in_thread(...)`. A test runs on the loop that its subject has in life, the gateway's by
the mark `gateways_loop` and otherwise asyncio's; `both_loops` is for what has to hold on either.
"""

import asyncio
import contextlib
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import proton
import pytest
import uvloop

from feedhandler.amqp.serving.node import Node
from tests.support.amqp import Rig, Sent, decoded

#: What no event of a test takes as long as.
PATIENCE_S = 120.0
LOOK_S = 0.005
LOOKS = int(PATIENCE_S / LOOK_S)
ACTIVE = proton.Endpoint.REMOTE_ACTIVE
LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}

both_loops = pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
Run = Callable[[Awaitable[Any]], Any]


@dataclass
class Settings:
    """The `[amqp]` table; small bounds, any port."""

    address: tuple[str, int] = ("127.0.0.1", 0)
    queue_bytes: int = 8 << 20
    when_full: str = "detach"
    batch_max_bytes: int = 65_536
    max_frame_bytes: int = 65_536
    idle_timeout_ms: int = 0
    max_connections: int = 100
    max_links: int = 1000


class NodeRig(Rig):
    """A node that listens, behind a ring that the test fills."""

    def __init__(
        self,
        settings: Settings | None = None,
        snapshots: bool = False,
        on_attach: Any = None,
        gate: Any = None,
        observer: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.clients: list[RawClient] = []
        self.settings = settings or Settings()
        self.node = Node(
            self.fanout,
            self.settings,
            self.qualities,
            self.feed.type_code,
            "node under test",
            pump=self.share,
            snapshots=snapshots,
            on_attach=on_attach,
            gate=gate,
            observer=observer,
        )

    def raw(self, port: int = 0, **options: Any) -> "RawClient":
        """Connect a client, which `running` drops in the end."""
        made = RawClient(port or self.port, **options)
        self.clients.append(made)
        return made

    async def attached(
        self, address: str, credit: int = 0, settled: bool = True
    ) -> tuple["RawClient", proton.Receiver]:
        """Connect a client with one link."""
        client = self.raw()
        link = client.receiver(address, credit, settled=settled)
        await in_thread(client.attached, link)
        return client, link

    @property
    def port(self) -> int:
        return self.node.address[1]

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def tls_port(self) -> int:
        return self.node.tls_address[1]

    def narrow(self) -> None:
        """The kernel holds little of what later clients do not read: less is more than fits."""
        for each in self.node._listeners:
            each._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)

    async def deliver(self) -> None:
        """Publish what was put and pump it, letting the loop serve sockets in between."""
        self.ring.publish()
        while self.node.pump():
            await asyncio.sleep(0)

    async def stream(self, first: int, last: int, share: int = 200) -> None:
        """Put and deliver the packets `first`..`last`, a share at a time."""
        for begin in range(first, last + 1, share):
            self.packets(begin, min(last, begin + share - 1))
            await self.deliver()
            await asyncio.sleep(0)

    def count(self, name: str) -> int:
        """One of the node's counters."""
        return self.node.counters()[name]

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for a condition that the loop's own work brings about. Patience is counted in looks,
        not by a clock: a machine that stood still for minutes has not done that work either."""
        for _ in range(LOOKS):
            if condition():
                return
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"never happened: {what}")


@contextlib.asynccontextmanager
async def running(
    settings: Settings | None = None, faults: int = 0, **options: Any
) -> AsyncIterator[NodeRig]:
    """A node that runs while the block does. `faults`: connections that errors of ours must end:
    the node goes on after one, so a test would not see it otherwise."""
    rig = NodeRig(settings, **options)
    rig.node.start()
    try:
        yield rig
    finally:
        for client in rig.clients:
            client.drop()
        await rig.node.stop(2.0)
    assert rig.count("connections_faulted") == faults, "errors of ours; see the node's `fault`"


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run blocking client code beside the loop, for at most twice the patience."""
    async with asyncio.timeout(2 * PATIENCE_S):
        return await asyncio.to_thread(function, *arguments, **named)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes or resets."""
    sock.settimeout(PATIENCE_S)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            found += data
    return found


class RawClient:
    """A client made of proton's parts; nothing happens but in `pump`."""

    def __init__(
        self,
        port: int,
        *,
        receive_buffer: int = 0,
        sasl: bool = True,
        max_frame: int = 0,
        user: str = "",
        password: str = "",
        mechanisms: str = "",
        context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.connect(("127.0.0.1", port))
        if context is not None:
            self.sock.settimeout(PATIENCE_S)
            self.sock = context.wrap_socket(self.sock, server_hostname=host)
        self.sock.setblocking(False)
        self.connection = proton.Connection()
        self.connection.container = "raw client"
        self.transport = proton.Transport()
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        if sasl:
            wanted = mechanisms or ("PLAIN" if user else "ANONYMOUS")
            self.transport.sasl().allowed_mechs(wanted)
            self.transport.sasl().allow_insecure_mechs = True
        if user:
            self.connection.user, self.connection.password = user, password
        if max_frame:
            self.transport.max_frame_size = max_frame
        self.transport.bind(self.connection)
        self.connection.open()
        self.received: dict[str, list[Sent]] = {}
        self.deliveries: list[proton.Delivery] = []
        self.settle = True
        self.gone = False
        self.sessions: list[proton.Session] = []

    def receiver(
        self, address: str, credit: int = 0, name: str = "", settled: bool = True
    ) -> proton.Receiver:
        """Attach a receiving link in the first session."""
        if not self.sessions:
            self.new_session()
        link = self.sessions[-1].receiver(name or f"{address} {len(self.received)}")
        self.received[link.name] = []
        link.source.address = address
        link.snd_settle_mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
        link.open()
        if credit:
            link.flow(credit)
        return link

    def attached(self, *links: proton.Receiver) -> None:
        """Wait until the node has attached these links."""
        self.pump(lambda: all(link.state & ACTIVE for link in links), "attach")

    def new_session(self) -> proton.Session:
        """Begin a session; later links are in it."""
        session = self.connection.session()
        session.open()
        self.sessions.append(session)
        return session

    def pump(self, until: Callable[[], bool], what: str = "") -> None:
        """Exchange bytes with the node until a condition holds or the node has gone."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._events()
            self._write()
            if until():
                return
            assert not self.gone, f"the node has gone before: {what}"
            left = deadline - time.monotonic()
            assert left > 0, f"never happened: {what}"
            held = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0
            readable, _, _ = select.select([self.sock], [], [], 0.0 if held else min(left, 0.1))
            if readable or held:
                self._read()

    def sync(self) -> None:
        """Exchange bytes until the node has answered everything sent so far.

        AMQP answers in order, so a link attached now is answered after what came before.
        """
        echo = self.sessions[-1].receiver(f"echo {time.monotonic_ns()}")
        echo.source.address = "euronext.999"
        echo.open()
        self.pump(lambda: bool(echo.state & ACTIVE), "the echo")
        echo.close()
        self.pump(lambda: bool(echo.state & proton.Endpoint.REMOTE_CLOSED), "the echo's end")

    def _read(self) -> None:
        try:
            data = self.sock.recv(max(1, min(self.transport.capacity(), 1 << 16)))
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            with contextlib.suppress(proton.TransportException):
                self.transport.close_tail()
            return
        self.transport.push(data)

    def _write(self) -> None:
        while (pending := self.transport.pending()) > 0:
            try:
                sent = self.sock.send(self.transport.peek(pending))
            except (BlockingIOError, ssl.SSLWantWriteError):
                select.select([], [self.sock], [], PATIENCE_S)
                continue
            except OSError:
                self.gone = True
                return
            self.transport.pop(sent)

    def _events(self) -> None:
        while (event := self.collector.peek()) is not None:
            if event.type == proton.Event.DELIVERY:
                self._receive(event.delivery)
            elif event.type == proton.Event.LINK_REMOTE_CLOSE:
                event.link.close()
            self.collector.pop()

    def _receive(self, delivery: proton.Delivery) -> None:
        link = delivery.link
        if not link.is_receiver or delivery.partial or not delivery.readable:
            return
        self.received[link.name].append(decoded(link.recv(delivery.pending)))
        link.advance()
        if self.settle:
            delivery.settle()
        else:
            self.deliveries.append(delivery)

    def got(self, link: proton.Receiver) -> list[Sent]:
        """Return the messages that a link has received."""
        return self.received[link.name]

    def close(self) -> None:
        """Say goodbye and wait for the node's."""
        self.connection.close()
        closed = proton.Endpoint.REMOTE_CLOSED
        self.pump(lambda: self.gone or bool(self.connection.state & closed), "the goodbye")
        self.sock.close()

    def drop(self) -> None:
        """Leave without a word; unread data makes it a reset."""
        self.sock.close()
