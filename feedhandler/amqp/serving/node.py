"""The embedded AMQP 1.0 node: listens, accepts links, feeds them.

What it is for: any AMQP 1.0 client connects, attaches a receiving link whose source address is a
key or pattern (`routing`), and receives. The node owns the listening socket; a client's socket and
links are its connection's (`connection`), protocol state is the engine's (`proton`), what a link
gets is the fan-out's.

What it promises: one client's slowness, overrun or invalid input ends that client's link or
connection and no other client's; no call blocks; connections and links are bounded; `stop` sends
what waits, closes the connections and is done within its time-out.

It runs on uvloop and on asyncio alike, by `add_reader` and `add_writer` on plain sockets: both
loops' own streams would copy each message once more and wake Python for it.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from feedhandler.amqp import conditions
from feedhandler.amqp.durable.queues import DurableQueues, kind_of
from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.policies import CONFLATE, DETACH, LINK_POLICIES, POLICIES
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.routing import Subscription
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from feedhandler.amqp.serving.backlogged_link import BackloggedLink
from feedhandler.amqp.serving.connection import NodeConnection
from feedhandler.amqp.serving.groups import Groups
from feedhandler.amqp.serving.leftovers import LEFTOVERS_MAX, Leftovers
from feedhandler.amqp.serving.link_counts import LinkObserver, add_sender_queue
from feedhandler.amqp.serving.listener import Listener
from feedhandler.amqp.serving.login import Gate
from feedhandler.amqp.serving.resume import Resumption
from feedhandler.amqp.serving.sasl import Credentials
from feedhandler.amqp.stream import Stream
from feedhandler.amqp.work_budget import TURN_UNITS, WorkBudget
from feedhandler.codecs import Feed
from feedhandler.codecs.dbn import LEVEL_SCHEMAS
from feedhandler.codecs.errors import ConfigError
from feedhandler.config import AmqpConfig
from feedhandler.counters import NodeCounter, as_dict, counter_array
from feedhandler.histogram import Histogram
from feedhandler.retrans.quality import QualityState

#: Bytes of the ring delivered before sockets are served again: about a millisecond's work.
PUMP_BYTES_MAX = 1 << 18
#: Bytes of history read before the loop serves others again: a fraction of a millisecond.
CATCH_UP_BYTES_MAX = 1 << 17
#: How often connections see the time: often enough for a client that asks for a heartbeat each
#: second, which proton's clients announce as a time-out of half of that.
TICK_SECONDS = 0.25


class Node:
    """The listening node.

    `settings` are the configuration's `[amqp]` table; `qualities[i]` belongs to stream i;
    `message_type` turns a word of `types=` into a number. `pump(bytes)` delivers a share of what
    the ring holds and returns whether more waits: the core's. `snapshots`: links may ask for them
    by `snapshot=1`, and `on_attach(sender_queue, streams)` is called for each that does, after its
    first quality messages; it may send the blocks at once or later. `observer` is notified of links
    and log-ins. `gate` decides who is admitted; without one every client is. `conflates`: the feed,
    where links may be conflated.
    """

    def __init__(
        self,
        fanout: Fanout,
        settings: AmqpConfig,
        qualities: list[QualityState],
        message_type: Callable[[str], int],
        container: str,
        *,
        pump: Callable[[int], bool],
        snapshots: bool = False,
        on_attach: Callable[[SenderQueue, list[Stream]], None] | None = None,
        observer: LinkObserver | None = None,
        gate: Gate | None = None,
        conflates: Feed | None = None,
    ) -> None:
        self.fanout = fanout
        self.settings = settings
        self.qualities = qualities
        self.message_type = message_type
        self.container = container
        self._pump_share = pump
        self.snapshots = snapshots
        self.on_attach = on_attach
        self.observer = observer
        self.gate = gate or Gate()
        self.conflates = conflates
        #: How long the stages of each `pump` took, in ns.
        self.stages = {"route": Histogram(), "write": Histogram()}
        idle_seconds = settings.idle_timeout_ms / 1000 or float("inf")
        self.open_seconds = min(self.gate.limits.login_ms / 1000, idle_seconds)
        self.counts = counter_array(NodeCounter, 1)[0]
        self.connections: set[NodeConnection] = set()
        self.links = 0
        #: Bytes of messages that clients have sent in part; and of answers that they do not read.
        self.partial_bytes = self.owed_bytes = 0
        #: Sessions, and links half closed.
        self.kept = 0
        #: Durable queues; without any, addresses of queues are refused as not found.
        self.queues = DurableQueues((), self.flush)
        self.kind_of = kind_of
        self.resumption = Resumption(fanout, qualities, self.send_snapshots)
        self.groups = Groups()
        #: Number of connections to which the last `pump` delivered something.
        self.wrote = 0
        self._catching_up = False
        self.budget: WorkBudget
        self.leftovers: Leftovers
        self.loop: asyncio.AbstractEventLoop
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener: the one without TLS, if there is one."""
        return self._listeners[0].address

    @property
    def tls_address(self) -> tuple[str, int]:
        """Host and port of the TLS listener."""
        return self._listeners[-1].address

    @property
    def history(self) -> bool:
        """Return whether links may resume by `from=`."""
        return any(stream.history is not None for stream in self.fanout.streams)

    @property
    def listening(self) -> bool:
        """Return whether new clients are accepted."""
        return bool(self._listeners)

    def start(self) -> None:
        """Listen. Raises ConfigError where an address cannot be had."""
        self.loop = asyncio.get_running_loop()
        self.budget = WorkBudget(self.loop.call_soon, TURN_UNITS)
        self.leftovers = Leftovers(self.budget)
        endpoints = (
            (self.settings.address, "amqp.listen", False),
            (self.gate.tls_address, "amqp.tls.listen", True),
        )
        try:
            for address, key, encrypted in endpoints:
                if address is not None:
                    self._listeners.append(
                        Listener(
                            self.loop,
                            address,
                            key,
                            encrypted,
                            self._on_client,
                            self._refuse_client,
                            self.budget,
                            lambda: len(self.leftovers) > LEFTOVERS_MAX,
                        )
                    )
        except ConfigError:
            self._close_listeners()
            raise
        self._tick()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _refuse_client(self) -> None:
        self.counts[NodeCounter.CONNECTIONS_REFUSED] += 1

    def _on_client(self, sock: socket.socket, host: str, port: int, encrypted: bool) -> None:
        """Accept a client that has connected, unless a bound on connections or log-ins forbids
        it."""
        counter = NodeCounter.CONNECTIONS_OPENED
        if self.full:
            counter = NodeCounter.CONNECTIONS_REFUSED
        elif self.gate.full(host):
            counter = NodeCounter.CONNECTIONS_LIMITED
        elif self.gate.shut(host):
            counter = NodeCounter.LOGINS_SHUT
        elif not self.gate.room_for(host):
            counter = NodeCounter.CONNECTIONS_CROWDED
        self.counts[counter] += 1
        if counter is not NodeCounter.CONNECTIONS_OPENED:
            sock.close()
            return
        admission = self.gate.enter(host, encrypted)
        peer = f"{host}:{port}"
        try:
            self.connections.add(NodeConnection(self, sock, peer, admission))
        except Exception as error:  # whatever it is: the listener goes on
            self.fault(peer, error)
            self.gate.leave(admission)
            self.loop.remove_reader(sock.fileno())
            sock.close()

    def fault(self, peer: str, error: Exception) -> None:
        """Count and report an internal error in handling a client; others' connections go on."""
        self.counts[NodeCounter.CONNECTIONS_FAULTED] += 1
        if self.observer is not None:
            self.observer.faulted(peer, error)

    @property
    def full(self) -> bool:
        """Return whether as many clients have logged in as the node takes."""
        return len(self.connections) - len(self.gate.strangers) >= self.settings.max_connections

    def check_password(self, connection: NodeConnection, asked: Credentials) -> None:
        """Check a password outside the loop; `connection.decided` is called with the decision."""

        async def check() -> None:
            try:
                decided = await self.gate.check(connection.admission.address, asked)
            except Exception as error:  # whatever it is: others log in
                connection.fail(error)
            else:
                connection.decided(decided)

        task = self.loop.create_task(check())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        """Let every connection see the time: idle peers end, our own empty frames are sent."""
        now_ms = time.monotonic_ns() // 1_000_000
        self.flush()
        for connection in list(self.connections):
            connection.on_tick(now_ms)
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)

    def pump(self) -> bool:
        """Deliver a share of what the ring holds, and write it; return whether more waits."""
        began = time.monotonic_ns()
        more = self._pump_share(PUMP_BYTES_MAX)
        routed = time.monotonic_ns()
        self.wrote = len(self.fanout.dirty_peers)
        self.flush()
        self.fanout.note_latency(time.time_ns())
        self.stages["route"].record(routed - began)
        self.stages["write"].record(time.monotonic_ns() - routed)
        return more

    def send_snapshots(self, sender_queue: SenderQueue, streams: list[Stream]) -> None:
        """Request snapshots of these services for a link."""
        if self.on_attach is not None:
            self.on_attach(sender_queue, streams)

    def send_records(self, sender_queue: SenderQueue, streams: list[Stream]) -> None:
        """Send the present books of these services to a link that takes normalised records."""
        assert self.fanout.records is not None, "such links are refused without"
        self.fanout.records.present(sender_queue, streams, time.time_ns())

    def catch_up_soon(self) -> None:
        """Schedule a turn of the links that read the history."""
        if not self._catching_up:
            self._catching_up = True
            self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Take a turn of the links that read the history, and schedule the next one."""
        self._catching_up = False
        catch_ups = self.resumption.catch_ups
        more = catch_ups.turn(CATCH_UP_BYTES_MAX)
        for sender_queue in catch_ups.arrived:
            if not sender_queue.catching and not sender_queue.queued_bytes:
                sender_queue.sender.drained()  # all there was is sent
                sender_queue.peer.schedule_flush()
        catch_ups.arrived.clear()
        self.flush()
        if more:
            self.catch_up_soon()

    def flush(self) -> None:
        """Write to every connection that has something new."""
        for peer in self.fanout.flush():
            peer.attend()

    async def stop(self, seconds: float) -> None:
        """Stop listening, drain for at most `seconds`, close all connections."""
        if not self._listeners:
            return
        self._close_listeners()
        self.queues.stop_taking()
        deadline = self.loop.time() + seconds
        for connection in list(self.connections):
            connection.work()
        while self._waiting() and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        self._idle = asyncio.Event()
        for connection in list(self.connections):
            connection.close(conditions.CONNECTION_FORCED, "the gateway stops")
        self.check_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), max(0.0, deadline - self.loop.time()))
        for connection in list(self.connections):
            connection.end()
        if self._ticker is not None:
            self._ticker.cancel()
        for task in list(self._tasks):
            task.cancel()
        self.gate.close()

    def _waiting(self) -> bool:
        """Return whether anything is still on its way to a client, or to a queue's disk."""
        return self.queues.busy or any(connection.waiting() for connection in self.connections)

    def counters(self) -> dict[str, int]:
        """Return every `NodeCounter` by name, links that are gone included."""
        fanout = self.fanout
        counts = self.counts.copy()
        counts[NodeCounter.ROUTE_LOOKUPS] = fanout.route_lookups
        counts[NodeCounter.ROUTE_HITS] = fanout.route_hits
        counts[NodeCounter.ROUTE_RESETS] = fanout.route_resets
        counts[NodeCounter.QUALITY_MESSAGES] = fanout.quality_messages
        resumption, groups = self.resumption, self.groups
        counts[NodeCounter.RESUMED] = resumption.resumed
        counts[NodeCounter.RESUMED_LATE] = resumption.refused
        counts[NodeCounter.OVERTAKEN] = resumption.catch_ups.overtaken
        counts[NodeCounter.HISTORY_SENT_BYTES] = resumption.catch_ups.bytes_read
        counts[NodeCounter.SHARED_AGAIN] = groups.resent
        counts[NodeCounter.SHARED_ABANDONED] = groups.abandoned
        transactions = self.queues.transactions
        counts[NodeCounter.TRANSACTIONS_COMMITTED] = transactions.committed
        counts[NodeCounter.TRANSACTIONS_ROLLED_BACK] = transactions.rolled_back
        for sender_queue in self.sender_queues():
            add_sender_queue(counts, sender_queue)
        return as_dict(NodeCounter, counts)

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that a link may ask for by `full=`."""
        return LINK_POLICIES if self.conflates is None else POLICIES

    def sender_queue(self, peer: Peer, link: SenderLink, subscription: Subscription) -> SenderQueue:
        """Create a new link's sender queue, with the policy that it asks for, or else the node's.

        A link without quality messages is detached when full: drops could not be announced to it.
        Of normalised records only those of levels are conflated; others give way by their age.
        """
        settings = self.settings
        policy = subscription.full or (settings.when_full if subscription.quality else DETACH)
        bounds = (settings.queue_bytes, settings.batch_max_bytes)
        if policy == DETACH:
            return SenderQueue(peer, link, subscription, *bounds)
        if policy == CONFLATE and subscription.schema in LEVEL_SCHEMAS:
            from feedhandler.amqp.level_queue import LevelQueue
            from feedhandler.amqp.record_fanout import RecordFanout

            made_of = self.fanout.records
            assert isinstance(made_of, RecordFanout), "such links are refused without"
            return LevelQueue(peer, link, subscription, *bounds, made_of)
        streams = self.fanout.streams
        made = BackloggedLink(peer, link, subscription, streams, *bounds, time.monotonic_ns)
        if policy == CONFLATE and self.conflates is not None and not subscription.schema:
            made.conflate(self.fanout, self.conflates)
        return made

    def sender_queues(self) -> Iterator[SenderQueue]:
        """Iterate over the sender queues of all links; brokers that are published to are not among
        them."""
        for connection in self.connections:
            yield from connection.sender_queues.values()

    def forget_kept(self, kept: int, owed_bytes: int) -> None:
        """Subtract the sessions, half-closed links and owed bytes of a connection that has been
        freed."""
        self.kept -= kept
        self.owed_bytes -= owed_bytes

    def check_idle(self) -> None:
        """Wake a waiting `stop` once the last connection is gone."""
        if self._idle is not None and not self.connections:
            self._idle.set()
