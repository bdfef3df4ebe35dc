"""The embedded AMQP 1.0 node: listens, accepts links, feeds them.

What it is for: any AMQP 1.0 client connects, attaches a receiving link whose source address is a
key or pattern (`routing`), and receives. The node owns the sockets; protocol state is the
engine's (`proton`), what a link gets is the fan-out's.

What it promises: one client's slowness, overrun or nonsense ends that client's link or
connection and touches nobody else; no call blocks; connections and links are bounded; `stop`
sends what waits, says goodbye and is done within its time-out.

It runs on uvloop and on asyncio alike, by `add_reader` and `add_writer` on plain sockets: both
loops' own streams would copy each message once more and wake Python for it.
"""

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy

from feedhandler.amqp import proton
from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.outlet import Outlet, Peer
from feedhandler.amqp.quality import QualityState
from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.stream import Stream
from feedhandler.codecs.errors import ConfigError
from feedhandler.counters import NodeCounter, as_dict, counter_array
from feedhandler.histogram import Histogram

#: Bytes of the ring delivered before sockets are served again: about a millisecond's work.
PUMP_BYTES_MAX = 1 << 18
#: How often connections see the time: often enough for a client that asks for a heartbeat each
#: second, which proton's clients announce as a time-out of half of that.
TICK_SECONDS = 0.25
#: How long a client may take to open its connection; the engine's idle time-out begins after that.
OPEN_SECONDS = 10.0
#: How long a client may take to close its side once we have closed ours.
LINGER_SECONDS = 2.0
#: Read at a time of what a client says after the goodbye.
LEAVING_BYTES = 1 << 16
#: How long new clients wait when the process has no descriptor left for them.
ACCEPT_PAUSE_SECONDS = 0.1
#: Connections waiting to be accepted.
BACKLOG = 128
#: Send buffer asked of the kernel for each connection: a hand-over's worth, so that a subscriber
#: that is merely scheduled late does not stop the writer.
SEND_BUFFER_BYTES = 1 << 20


class NodeSettings(Protocol):
    """What the node reads of the configuration's `[amqp]` table."""

    @property
    def address(self) -> tuple[str, int]: ...
    @property
    def queue_bytes(self) -> int: ...
    @property
    def batch_max_bytes(self) -> int: ...
    @property
    def max_frame_bytes(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def max_links(self) -> int: ...


class LinkObserver(Protocol):
    """Who hears what becomes of links; `peer` is the client's host:port."""

    def attached(self, outlet: Outlet, peer: str, address: str) -> None: ...
    def refused(self, peer: str, address: str, condition: str, reason: str) -> None: ...
    def overrun(self, outlet: Outlet, peer: str) -> None: ...
    def ended(self, outlet: Outlet) -> None: ...


class NodeConnection(Peer):
    """One client's connection; `peer` is its host:port."""

    def __init__(self, node: "Node", sock: socket.socket, peer: str) -> None:
        super().__init__(node.fanout.dirty_peers)
        self.node = node
        self.sock = sock
        self.peer = peer
        self.outlets: dict[proton.Link, Outlet] = {}
        self.parted = False
        self.orderly = False
        self.leave_by: float | None = None
        self.open_by: float | None = node.loop.time() + node.open_seconds
        self.engine = proton.Connection(
            sock.fileno(),
            server=True,
            container=node.container,
            max_frame_bytes=node.settings.max_frame_bytes,
            idle_timeout_ms=node.settings.idle_timeout_ms,
        )
        node.loop.add_reader(sock.fileno(), self.on_readable)

    # -- from the event loop ----------------------------------------------------------------

    def on_readable(self) -> None:
        """The client sent something: credit, outcomes, links, its goodbye."""
        if self.leave_by is not None:
            self._read_to_the_end()
            return
        ended = self.engine.receive() < 0
        self.work()
        if ended:
            self.end()

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        self.work()

    def work(self) -> None:
        """Act upon the engine's events and write, until neither brings anything new.

        Writing frees room in the engine, which lets queued messages follow, which are written:
        it ends because each round needs messages that waited, or the socket stops it.
        """
        self.dirty = False
        if self.leave_by is not None:
            return
        while not self.gone:
            for kind, link in self.engine.events():
                self._handle(kind, link)
            if self.overruns:
                self._detach_overruns()
            if self.gone:
                return
            state = self.engine.flush()
            if state != 0:
                self._wait_writable(state)
                return
            self._stop_waiting()
            if not self.dirty and not self._drain():
                break
            self.dirty = False
        if self.engine.closed:
            self.end()

    def attend(self) -> None:
        """Do what a hand-over left to do beside writing."""
        if not self.writing:
            self.work()
            return
        self.dirty = False  # the socket is full: `on_writable` goes on
        if self.overruns:
            self._detach_overruns()

    def _drain(self) -> bool:
        """Let waiting messages into the engine; whether any went."""
        for outlet in self.outlets.values():
            if outlet.queued_bytes or outlet.has_open_batch():
                outlet.drain()
                if not outlet.queued_bytes:
                    outlet.sender.drained()
        return self.dirty

    def _wait_writable(self, state: int) -> None:
        if state < 0:
            self._leave()
        elif not self.writing:
            self.writing = True
            self.node.loop.add_writer(self.sock.fileno(), self.on_writable)

    def _stop_waiting(self) -> None:
        if self.writing:
            self.writing = False
            self.node.loop.remove_writer(self.sock.fileno())

    # -- protocol events --------------------------------------------------------------------

    def _handle(self, kind: int, link: Any) -> None:
        if kind == proton.LINK_FLOW:
            outlet = self.outlets.get(link)
            if outlet is not None:
                outlet.drain()
                if not outlet.queued_bytes:
                    link.drained()
        elif kind == proton.LINK_REMOTE_OPEN:
            self._attach(link)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            if link is not None:
                self._detach(link)
                link.close()
        elif kind == proton.CONNECTION_REMOTE_OPEN:
            self.open_by = None
            self.engine.open()
        elif kind == proton.CONNECTION_REMOTE_CLOSE:
            self.orderly = True
            self.engine.close()

    def _attach(self, link: Any) -> None:
        """A client wants to receive: read the address, join the fan-out, tell the quality."""
        node = self.node
        try:
            if isinstance(link, proton.ReceiverLink):
                raise AddressError("this node takes no messages", "amqp:not-allowed")
            if node.links >= node.settings.max_links:
                raise AddressError("too many links", "amqp:resource-limit-exceeded")
            subscription = parse_address(link.source_address, node.message_type, node.snapshots)
        except AddressError as refusal:
            node.counts[NodeCounter.LINKS_REFUSED] += 1
            link.refuse(refusal.condition, refusal.message)
            if node.observer is not None:
                address = "" if isinstance(link, proton.ReceiverLink) else link.source_address
                node.observer.refused(self.peer, address, refusal.condition, refusal.message)
            return
        link.open()
        outlet = Outlet(
            self, link, subscription, node.settings.queue_bytes, node.settings.batch_max_bytes
        )
        self.outlets[link] = outlet
        node.links += 1
        node.counts[NodeCounter.LINKS_OPENED] += 1
        node.fanout.add(outlet)
        if node.observer is not None:
            node.observer.attached(outlet, self.peer, link.source_address)
        concerned = [stream for stream in node.fanout.streams if outlet in stream.concerned]
        for stream in concerned:
            body = node.qualities[stream.index].attached(stream.next_sequence or None)
            node.fanout.quality(stream, body, [outlet])
        if subscription.snapshot and node.on_attach is not None:
            node.on_attach(outlet, concerned)

    def _detach(self, link: proton.Link) -> None:
        outlet = self.outlets.pop(link, None)
        if outlet is not None:
            _add_outlet(self.node.counts, outlet)
            if self.node.observer is not None:
                self.node.observer.ended(outlet)
            self.node.fanout.remove(outlet)
            self.backlog -= outlet.behind
            self.node.links -= 1

    def _detach_overruns(self) -> None:
        """Give up the links whose queue overran; the connection and its other links stay."""
        for outlet in self.overruns:
            link = outlet.sender
            if link not in self.outlets:
                continue
            if self.node.observer is not None:
                self.node.observer.overrun(outlet, self.peer)
            self._detach(link)
            self.node.counts[NodeCounter.LINKS_OVERRUN] += 1
            link.close(
                "amqp:resource-limit-exceeded",
                f"more than {outlet.queue_bytes_max} bytes waited for this link",
            )
        self.overruns.clear()

    # -- the end ----------------------------------------------------------------------------

    def waiting(self) -> bool:
        """Whether messages or frames still have to go out."""
        if self.leave_by is not None:
            return False
        return self.writing or any(
            outlet.queued_bytes or outlet.has_open_batch() for outlet in self.outlets.values()
        )

    def close(self, condition: str = "", description: str = "") -> None:
        """Say goodbye; the socket closes when the client answers or `end` is called."""
        if not self.gone:
            self.orderly = True
            self.engine.close(condition, description)
            self.work()

    def _leave(self) -> None:
        """All is written, the goodbye included: close our side, wait for the client to close its.

        Closing the socket at once would make the kernel drop what it still has to send as soon as
        the client says another word (RFC 1122, 4.2.2.13), and with it the last messages.
        """
        if self.gone or self.leave_by is not None:
            return
        self._part()
        self._stop_waiting()
        self.leaving = True
        self.leave_by = self.node.loop.time() + LINGER_SECONDS
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:  # the client is gone already
            self.end()
            return
        if self.engine.broken:
            self.end()

    def _read_to_the_end(self) -> None:
        """Take what the client still says, unread, until it closes."""
        try:
            while self.sock.recv(LEAVING_BYTES):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self.end()

    def _part(self) -> None:
        """The links leave the fan-out; a client that never said goodbye counts as failed."""
        for link in list(self.outlets):
            self._detach(link)
        if not self.parted and not self.orderly:
            self.node.counts[NodeCounter.CONNECTIONS_FAILED] += 1
        self.parted = True

    def end(self) -> None:
        """Close the socket and forget the client."""
        if self.gone:
            return
        self.gone = True
        self._part()
        for link in list(self.engine.links.values()):
            link.release()  # or engine and links would keep each other alive
        self.node.loop.remove_reader(self.sock.fileno())
        self._stop_waiting()
        self.sock.close()
        self.node.connections.discard(self)
        self.node.check_idle()


def _add_outlet(counts: numpy.ndarray, outlet: Outlet) -> None:
    """Add what one link has counted to the node's counters."""
    counts[NodeCounter.SENT] += outlet.sent
    counts[NodeCounter.SENT_BYTES] += outlet.sent_bytes
    counts[NodeCounter.WAITED] += outlet.waited
    counts[NodeCounter.ACCEPTED] += outlet.sender.accepted
    counts[NodeCounter.REFUSED] += outlet.sender.refused


class Node:
    """The listening node.

    `settings` are the configuration's `[amqp]` table; `qualities[i]` belongs to stream i;
    `message_type` turns a word of `types=` into a number. `snapshots`: links may ask for them by
    `snapshot=1`, and `on_attach(outlet, streams)` hears of each that does, after its first quality
    messages; it may send the blocks at once or later. `observer` hears what becomes of links.
    """

    def __init__(
        self,
        fanout: Fanout,
        settings: NodeSettings,
        qualities: list[QualityState],
        message_type: Callable[[str], int],
        container: str,
        *,
        snapshots: bool = False,
        on_attach: Callable[[Outlet, list[Stream]], None] | None = None,
        observer: LinkObserver | None = None,
    ) -> None:
        self.fanout = fanout
        self.settings = settings
        self.qualities = qualities
        self.message_type = message_type
        self.container = container
        self.snapshots = snapshots
        self.on_attach = on_attach
        self.observer = observer
        #: How long the stages of each hand-over took.
        self.stages = {"route": Histogram(), "write": Histogram()}
        idle_seconds = settings.idle_timeout_ms / 1000 or OPEN_SECONDS
        self.open_seconds = min(OPEN_SECONDS, idle_seconds)
        self.counts = counter_array(NodeCounter, 1)[0]
        self.connections: set[NodeConnection] = set()
        self.links = 0
        self.loop: asyncio.AbstractEventLoop
        self._listener: socket.socket | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where the node listens: host and port."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def listening(self) -> bool:
        """Whether new clients are accepted."""
        return self._listener is not None

    def start(self) -> None:
        """Listen. Raises ConfigError where the address cannot be had."""
        self.loop = asyncio.get_running_loop()
        host, port = self.settings.address
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"amqp.listen: cannot listen on {host}:{port}: {reason}",
                "another process has it; choose a free port"
                if getattr(error, "errno", None) == errno.EADDRINUSE
                else "choose an address of this machine",
            ) from None
        self._listener.setblocking(False)
        self.loop.add_reader(self._listener.fileno(), self._accept)
        self._tick()

    def _accept(self) -> None:
        """Take the clients that wait."""
        assert self._listener is not None
        for _ in range(BACKLOG):
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                # Nobody waits any more, or that one has left. Out of descriptors the listener
                # would stay readable and take every turn of the loop: look again a little later.
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self.counts[NodeCounter.CONNECTIONS_REFUSED] += 1
                    self.loop.remove_reader(self._listener.fileno())
                    self.loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            if len(self.connections) >= self.settings.max_connections:
                self.counts[NodeCounter.CONNECTIONS_REFUSED] += 1
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self.counts[NodeCounter.CONNECTIONS_OPENED] += 1
            self.connections.add(NodeConnection(self, sock, f"{address[0]}:{address[1]}"))

    def _accept_again(self) -> None:
        """Listen again after a pause, if the node has not been stopped meanwhile."""
        if self._listener is not None:
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def _tick(self) -> None:
        """Let every connection see the time: idle peers end, our own empty frames go out."""
        now_ms = time.monotonic_ns() // 1_000_000
        self.flush()
        for connection in list(self.connections):
            due = connection.leave_by or connection.open_by
            if due is not None and self.loop.time() >= due:
                connection.end()
            elif connection.leave_by is None:
                connection.engine.tick(now_ms)
                connection.work()
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)

    def pump(self) -> bool:
        """Deliver a share of what the ring holds, and write it out; True when more waits."""
        began = time.monotonic_ns()
        more = self.fanout.pump(PUMP_BYTES_MAX)
        routed = time.monotonic_ns()
        self.flush()
        self.fanout.note_latency(time.time_ns())
        self.stages["route"].record(routed - began)
        self.stages["write"].record(time.monotonic_ns() - routed)
        return more

    def flush(self) -> None:
        """Write to every connection that has something new."""
        for peer in self.fanout.settle():
            peer.attend()

    async def stop(self, seconds: float) -> None:
        """Stop listening, drain for at most `seconds`, say goodbye, close."""
        if self._listener is None:
            return
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        deadline = self.loop.time() + seconds
        for connection in list(self.connections):
            connection.work()
        while any(c.waiting() for c in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        self._idle = asyncio.Event()
        for connection in list(self.connections):
            connection.close("amqp:connection:forced", "the gateway stops")
        self.check_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), max(0.0, deadline - self.loop.time()))
        for connection in list(self.connections):
            connection.end()
        if self._ticker is not None:
            self._ticker.cancel()

    def counters(self) -> dict[str, int]:
        """Every `NodeCounter` by name, links that are gone included."""
        fanout = self.fanout
        counts = self.counts.copy()
        counts[NodeCounter.ROUTE_LOOKUPS] = fanout.route_lookups
        counts[NodeCounter.ROUTE_HITS] = fanout.route_hits
        counts[NodeCounter.ROUTE_RESETS] = fanout.route_resets
        counts[NodeCounter.QUALITY_MESSAGES] = fanout.quality_messages
        for outlet in self.outlets():
            _add_outlet(counts, outlet)
        return as_dict(NodeCounter, counts)

    def outlets(self) -> Iterator[Outlet]:
        """Every link's, brokers that are published to left out."""
        for connection in self.connections:
            yield from connection.outlets.values()

    def check_idle(self) -> None:
        """Tell a waiting `stop` once the last connection is gone."""
        if self._idle is not None and not self.connections:
            self._idle.set()
