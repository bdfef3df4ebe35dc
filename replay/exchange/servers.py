"""The exchange's servers: one of retransmissions and one of snapshots, in a thread of their own.

The thread runs an event loop with a server for each port that the plan names: of UTP-MD a
`RequestServer` for either, of an order session those of the protocols that the feed's `[recovery]`
table names. The exchange hands over what it generates, ahead of time, with `publish`; the
retransmission server offers a packet from the moment on at which it is due, so a client can never
have it before the lines. Packets withheld from both lines are left out. What it keeps is bounded,
whether requests come or not: `window_bytes` of each service, and what is not due yet.

Snapshots of UTP-MD are made by the exchange's own thread (`RefreshFlow`), which receives requests
and reports snapshots; clients that get them over TCP as well get each when it begins to leave on
the lines. Those of an order session are the state (`order_state`) of everything that has been due.
Where a protocol answers by retransmission lines, or loops snapshots (`loops`), the lines are here
(`RecoveryLines`), and so are refresh lines by which snapshots come that were asked for: their
packets leave one after another, `PACKETS_PER_S` at most, and nothing is taken on while
`BACKLOG_PACKETS` wait.

Sockets are bound when `ExchangeServers` is made; `close` ends the thread.
"""

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from feedhandler.codecs import Feed
from feedhandler.replay.exchange.due import DuePackets
from feedhandler.replay.exchange.loops import SnapshotLoops
from feedhandler.replay.exchange.plan import FEED_NAME, ExchangePlan
from feedhandler.replay.exchange.refresh import (
    BACKLOG_PACKETS,
    PACKETS_PER_S,
    CutSnapshot,
    RefreshFlow,
)
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.order_session import CHANNEL, SERVICE
from feedhandler.replay.generating.order_state import OrderState
from feedhandler.replay.generating.packets import SERVICES, Outgoing
from feedhandler.replay.playing.sender_lines import MulticastLine, open_lines
from feedhandler.retrans.protocol import RefreshReject
from feedhandler.retrans.protocols.cme_replay_server import ReplayServer
from feedhandler.retrans.protocols.glimpse_server import GlimpseServer
from feedhandler.retrans.protocols.registry import protocol_of
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.server import RequestServer
from feedhandler.retrans.serving import DatagramServer
from feedhandler.retrans.sessions import SessionServer
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import serve
from feedhandler.retrans.udp import serve_datagrams

#: Snapshots that wait to go out over TCP at most; further ones go out on the lines alone.
SNAPSHOTS_WAITING_MAX = 16
#: What the servers are called.
RETRANSMISSION, REFRESH = "retransmission", "refresh"
#: The counts of servers that show that there was a request.
ASKED = ("requests", "refresh_requests", "logins")
#: How often it is looked whether packets of snapshots are due.
STEP_S = 0.01
#: Packets that leave by the refresh lines in a step.
STEP_PACKETS = int(PACKETS_PER_S * STEP_S)
#: Servers whose clients are there only while they ask.
ON_DEMAND = (DatagramServer, GlimpseServer, ReplayServer)
#: The ProductID of NYSE's requests.
PRODUCT = 1


class AnyServer(SessionServer, Protocol):
    """A server of any protocol, with its clients."""

    sessions: set[Any]


OnPackets = Callable[[list[bytes]], None]


class OfferedPackets(Mapping[int, PacketStore], DuePackets):
    """The stores of all services, `window_bytes` each; looking one up first brings in what has
    fallen due.

    `services`: by the session's channels the services that requests name. `advance` is to follow
    `publish` whether a store is looked up or not.
    """

    def __init__(
        self,
        feed: Feed,
        services: Mapping[int, int],
        window_bytes: int,
        elapsed_ns: Callable[[], int],
    ) -> None:
        super().__init__(elapsed_ns)
        self._services = services
        self._stores = {service: PacketStore(window_bytes) for service in services.values()}
        # Reading the number at its offset in the header is fastest.
        table = feed.table
        self._number = slice(table.sequence_at, table.sequence_at + table.sequence_size)
        self._order: Any = feed.byte_order
        #: What reads a number of which some bits stand elsewhere.
        self._number_of = feed.sequence_of if table.high_size else None
        self._by_message = feed.counts_messages

    def _process(self, outgoing: Outgoing) -> None:
        _, channel, packet, messages = outgoing
        if self._number_of is None:
            number = int.from_bytes(packet[self._number], self._order)
        else:
            number = self._number_of(packet)
        following = number + (messages if self._by_message else 1)
        self._stores[self._services[channel]].append(number, following, packet, 0, len(packet))

    def __getitem__(self, service: int) -> PacketStore:
        self.advance()
        return self._stores[service]

    def __iter__(self) -> Iterator[int]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)


class DueState(DuePackets):
    """The state of an order session as of what is due: a `SnapshotSource`.

    It is made of all packets, also of those that no server offers.
    """

    def __init__(self, feed: Feed, elapsed_ns: Callable[[], int]) -> None:
        super().__init__(elapsed_ns)
        self._feed = feed
        self._state = OrderState(feed)
        #: How many messages the state holds: they are numbered from 1.
        self._last = 0

    def _process(self, outgoing: Outgoing) -> None:
        for message in self._feed.messages_of(outgoing.packet):
            self._state.apply(message)
        self._last += outgoing.messages

    def __call__(self, service: int) -> tuple[int, tuple[bytes, ...]] | None:
        """Return the number of the latest message, and the state; None before any."""
        self.advance()
        return (self._last, self._state.messages()) if self._last else None


class SnapshotRequests:
    """Snapshots as the refresh server requests them and its clients subscribe to them.

    Lives in the servers' loop; `on_snapshot` may be called from any thread.
    """

    def __init__(
        self, flow: RefreshFlow, loop: asyncio.AbstractEventLoop, elapsed_ns: Callable[[], int]
    ) -> None:
        self._flow, self._loop, self._elapsed_ns = flow, loop, elapsed_ns
        self._callbacks: dict[int, dict[OnPackets, None]] = {}
        self._waiting = 0

    def request(self, service: int, now_ns: int) -> RefreshReject:
        """Request a snapshot; it is cut at the end of the exchange's next step."""
        return self._flow.request(service)

    def subscribe(self, service: int, callback: OnPackets) -> Callable[[], None]:
        """Subscribe `callback` to snapshots of the service; the returned function ends that."""
        callbacks = self._callbacks.setdefault(service, {})
        callbacks[callback] = None

        def leave() -> None:
            callbacks.pop(callback, None)

        return leave

    def on_snapshot(self, snapshot: CutSnapshot) -> None:
        """Schedule a snapshot for its subscribers, at the time at which it begins to leave.

        Called from the exchange's thread."""
        if self._callbacks.get(snapshot.service):
            self._loop.call_soon_threadsafe(self._schedule, snapshot)

    def _schedule(self, snapshot: CutSnapshot) -> None:
        if self._waiting >= SNAPSHOTS_WAITING_MAX:
            return
        self._waiting += 1
        delay_s = max(0, snapshot.due_ns - self._elapsed_ns()) / 1e9
        self._loop.call_later(delay_s, self._hand_out, snapshot)

    def _hand_out(self, snapshot: CutSnapshot) -> None:
        self._waiting -= 1
        for callback in list(self._callbacks.get(snapshot.service, ())):
            callback(snapshot.packets)


class RecoveryLines:
    """Lines A and B of what is sent again, or of snapshots. Raises `ConfigError` for an interface.

    `address` says where they are. Each loses datagrams, as the plan's refresh lines do.
    """

    def __init__(self, plan: ExchangePlan, address: Callable[[str, int], tuple[str, int]]) -> None:
        self._lines = open_lines(
            [MulticastLine(name, address(name, CHANNEL), plan.interface) for name in LINES]
        )
        self.close = self._lines.close
        self._draw = random.Random(plan.seed)
        self._losses = [faults.loss for faults in plan.refresh_faults]

    def send(self, data: bytes) -> None:
        """Put a datagram on both lines; what the network does not take is lost, as any."""
        for loss, (sock, group, port) in zip(self._losses, self._lines.destinations, strict=True):
            if self._draw.random() >= loss:
                with contextlib.suppress(OSError):
                    sock.sendto(data, (group, port))


class ExchangeServers:
    """The servers of one exchange; see the module's text. Raises `ConfigError` for a port.

    `elapsed_ns` returns the time since the session's start, 0 before it, in any thread.
    """

    def __init__(
        self,
        feed: Feed,
        plan: ExchangePlan,
        flow: RefreshFlow | None,
        elapsed_ns: Callable[[], int],
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._host = plan.host
        orders = feed.name != FEED_NAME
        services = {CHANNEL: SERVICE} if orders else dict(zip(SERVICES, SERVICES, strict=True))
        self._packets = OfferedPackets(feed, services, plan.servers.window_bytes, elapsed_ns)
        self._lines: RecoveryLines | None = None
        self._refresh_lines: RecoveryLines | None = None
        #: What waits to leave by the refresh lines.
        self._refreshes: deque[bytes] = deque()
        self._state: DueState | None = None
        self._loops: SnapshotLoops | None = None
        #: By name: the server, and the port that it is to listen on.
        self._servers: dict[str, tuple[AnyServer, int]] = {}
        self.ports: dict[str, int] = {}
        if orders:
            self._add_orders(feed, plan, elapsed_ns)
        else:
            self._add_utp_md(feed, plan, flow, elapsed_ns)
        self._asked, self._asked_ns = 0, 0
        self._elapsed_ns = elapsed_ns
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange-servers", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            self.close()
            raise self._error

    def _add_utp_md(
        self,
        feed: Feed,
        plan: ExchangePlan,
        flow: RefreshFlow | None,
        elapsed_ns: Callable[[], int],
    ) -> None:
        if plan.retransmission_port is not None:
            retransmission = RequestServer(feed, self._packets, plan.servers)
            self._servers[RETRANSMISSION] = (retransmission, plan.retransmission_port)
        if plan.refresh_port is not None and flow is not None:
            requests = SnapshotRequests(flow, self._loop, elapsed_ns)
            if plan.servers.refresh_over_tcp:
                flow.on_snapshot = requests.on_snapshot
            self._servers[REFRESH] = (
                RequestServer(feed, {}, plan.servers, requests),
                plan.refresh_port,
            )

    def _add_orders(self, feed: Feed, plan: ExchangePlan, elapsed_ns: Callable[[], int]) -> None:
        """Add the servers of the feed's protocols, where the plan has a port for them."""
        recovery = feed.recovery
        if recovery is None:
            return
        if plan.refresh_port is not None:
            self._state = DueState(feed, elapsed_ns)
        if plan.refresh_s and recovery.loops:
            self._loops = SnapshotLoops(feed, int(plan.refresh_s * 1e9), elapsed_ns)
        answers = recovery.retransmission_lines and plan.retransmission_port is not None
        if answers or self._loops is not None:
            self._lines = RecoveryLines(plan, plan.recovery_address)
        if recovery.snapshots_by_lines and plan.refresh_port is not None:
            self._refresh_lines = RecoveryLines(plan, plan.refresh_address)
        for name, facts, port, refresher in (
            (RETRANSMISSION, recovery.retransmission, plan.retransmission_port, None),
            (REFRESH, recovery.snapshots, plan.refresh_port, self._snapshot),
        ):
            make = protocol_of(facts).server if facts is not None else None
            if port is not None and make is not None:
                setup = ServerSetup(
                    feed, self._packets, plan.servers, refresher, retransmit=self._retransmit,
                    refresh=self._refresh, product=PRODUCT,
                )  # fmt: skip
                self._servers[name] = (cast(AnyServer, make(setup)), port)

    def _retransmit(self, service: int, data: bytes) -> None:
        if self._lines is not None:
            self._lines.send(data)

    def _snapshot(self, service: int) -> tuple[int, tuple[bytes, ...]] | None:
        """Return the state as of what is due; None before any, and where no more could leave."""
        assert self._state is not None
        return self._state(service) if len(self._refreshes) < BACKLOG_PACKETS else None

    def _refresh(self, service: int, data: bytes) -> None:
        self._refreshes.append(data)

    def publish(self, offered: Iterable[Outgoing], happened: Iterable[Outgoing]) -> None:
        """Add packets that the retransmission server offers from their due times on; and all that
        happen then, which a snapshot is of."""
        self._packets.publish(offered)
        for state in (self._state, self._loops):
            if state is not None:
                state.publish(happened)
        # Without a client no store would be looked up, and all would wait for ever.
        with contextlib.suppress(RuntimeError):  # the loop has ended: by a fault, or `close`
            self._loop.call_soon_threadsafe(self._advance)

    def _advance(self) -> None:
        self._packets.advance()
        if self._state is not None:
            self._state.advance()

    def close(self) -> None:
        """End every connection, the thread and the lines."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        for lines in (self._lines, self._refresh_lines):
            if lines is not None:
                lines.close()

    @property
    def in_use(self) -> bool:
        """Return whether a client is connected; one that connects for a request may be missed."""
        on_demand = any(isinstance(server, ON_DEMAND) for server, _ in self._servers.values())
        return on_demand or any(server.sessions for server, _ in self._servers.values())

    def quiet_ns(self) -> int:
        """Return the time without requests so far, as seen by calls of this."""
        now_ns = self._elapsed_ns()
        asked = sum(
            server.counts.get(name, 0) for server, _ in self._servers.values() for name in ASKED
        )
        if asked != self._asked:
            self._asked, self._asked_ns = asked, now_ns
        return now_ns - self._asked_ns

    def counts(self) -> dict[str, dict[str, int]]:
        """Return each server's counts that are not 0, and how many loops there were."""
        counts = {
            name: {what: count for what, count in server.counts.items() if count}
            for name, (server, _) in self._servers.items()
        }
        return counts if self._loops is None else {**counts, REFRESH: {"loops": self._loops.loops}}

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as listening:
            for name, (server, port) in self._servers.items():
                if isinstance(server, DatagramServer):
                    socket = await serve_datagrams(server, self._host, port)
                    listening.callback(socket.close)
                    self.ports[name] = socket.address[1]
                    continue
                listener = await serve(server, self._host, port)
                listening.push_async_callback(listener.close)
                self.ports[name] = listener.address[1]
            if self._loops is not None or self._refresh_lines is not None:
                sending = asyncio.create_task(self._send_snapshots())
                listening.callback(sending.cancel)
            self._ready.set()
            await self._stop.wait()

    async def _send_snapshots(self) -> None:
        """Send by lines, step by step, what is due of loops and of refreshes."""
        while True:
            for packet in self._loops.step() if self._loops is not None else ():
                self._retransmit(SERVICE, packet)
            for _ in range(min(len(self._refreshes), STEP_PACKETS)):
                assert self._refresh_lines is not None
                self._refresh_lines.send(self._refreshes.popleft())
            await asyncio.sleep(STEP_S)
