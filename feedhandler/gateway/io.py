"""I/O of the gateway's core: connections to servers, a timer, the receive thread's inlet.

`CoreRunner` is the `GatewayIO` of a `GatewayCore`: connections to the servers (`retrans.tcp`), one
timer of the event loop for recovery's next deadline, the inlet of the receive thread. What recovery
puts into links outside a pump is written soon after.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial

from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.amqp.serving.node import Node
from feedhandler.amqp.stream import Stream
from feedhandler.config import LineConfig
from feedhandler.gateway.core import GatewayCore
from feedhandler.gateway.server_clients import facts_of
from feedhandler.ingest.lines import Line, open_line
from feedhandler.ingest.receiver import Receiver
from feedhandler.operator_log import log_note
from feedhandler.retrans.protocol import NEVER_NS as NEVER
from feedhandler.retrans.tcp import RequestConnection, steady_clock
from feedhandler.retrans.udp import DatagramConnection

#: Datagrams of one group that are read before the event loop does anything else.
TURN_DATAGRAMS = 64
DATAGRAM_BYTES_MAX = 65_535


class CoreRunner:
    """Runs a gateway's core; `start` in the event loop, `close` at the end.

    `renumbered()` is called when a new sequence epoch begins, before anything of it is sent, and
    `line_changed(kind, channel_index, line)` at each control event of the ring.
    """

    def __init__(
        self, renumbered: Callable[[], None], line_changed: Callable[[int, int, int], None]
    ) -> None:
        self.renumbered = renumbered
        self.line_changed = line_changed
        #: The time of recovery: now.
        self.now_ns = steady_clock()
        self.report = log_note
        self._connections: list[RequestConnection | DatagramConnection] = []
        self._groups: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop
        self._core: GatewayCore
        self._node: Node
        self._receiver: Receiver

    def bind(self, core: GatewayCore, node: Node, receiver: Receiver) -> None:
        """Set the core and its neighbours; to be called before `start`."""
        self._core, self._node, self._receiver = core, node, receiver

    def start(self) -> None:
        """Connect to the servers, and join the groups by which servers answer."""
        self._loop = asyncio.get_running_loop()
        for config in self._core.config.servers:
            server = self._core.servers[config.name]
            facts = facts_of(self._core.config, self._core.feed, config)
            kind = DatagramConnection if facts.transport == "udp" else RequestConnection
            for end, address in zip(server.ends, config.addresses, strict=True):
                connection = kind(end, *address, clock=self.now_ns)
                self._connections.append(connection)
                connection.start()
            for line in config.lines:
                on_datagram = partial(self._core.group_datagram, config.name)
                self._join(f"{config.name}/{line.name}", line, on_datagram)
        for channel_index, channel in enumerate(self._core.config.channels):
            for answers in channel.retransmission_lines:
                on_datagram = partial(self._core.line_datagram, channel_index)
                self._join(f"{channel.service}/retransmission/{answers.name}", answers, on_datagram)
            refreshes = channel.refresh_lines if self._core.lines_apart else ()
            for index, refresh in enumerate(refreshes):
                on_datagram = partial(self._core.refresh_datagram, channel_index, index)
                self._join(f"{channel.service}/refresh/{refresh.name}", refresh, on_datagram)

    def _join(self, name: str, line: LineConfig, on_datagram: Callable[[bytes, int], None]) -> None:
        """Join a group that a server answers by; `on_datagram` gets each datagram and the time."""
        interface = self._core.config.interface_of(line)
        sock = open_line(Line(name, line.group, line.port, interface, line.source or None))
        self._groups.append(sock)
        self._loop.add_reader(sock, self._read_group, on_datagram, sock)

    def _read_group(self, on_datagram: Callable[[bytes, int], None], sock: socket.socket) -> None:
        for _ in range(TURN_DATAGRAMS):
            try:
                data = sock.recv(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            on_datagram(data, self.now_ns())

    def pump(self, bytes_max: int) -> bool:
        """Deliver a share of what the ring holds; True when more waits."""
        return self._core.pump(bytes_max, self.now_ns())

    def attached(self, sender_queue: SenderQueue, streams: list[Stream]) -> None:
        """Take a link with snapshot=1."""
        self._core.attached(sender_queue, streams, self.now_ns())

    def finish(self) -> None:
        """Publish what closed streams hold back, when the gateway stops."""
        self._core.finish(self.now_ns())

    async def close(self) -> None:
        """Leave the groups, and close the connections to servers."""
        if self._timer is not None:
            self._timer.cancel()
        for sock in self._groups:
            self._loop.remove_reader(sock)
            sock.close()
        self._groups.clear()
        for connection in self._connections:
            await connection.close()

    # -- what the core has done by us (`GatewayIO`) -----------------------------------------------

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        """Put a packet that was missing into the inlet."""
        return self._receiver.fill(channel_index, data, epoch, time.time_ns())

    def disprove(self, channel_index: int, number: int, epoch: int) -> bool:
        """Put into the inlet that nothing from `number` on was sent."""
        return self._receiver.disprove(channel_index, number, epoch)

    def give_up(self, channel_index: int, until: int, epoch: int) -> bool:
        """Put into the inlet that what is missing below `until` is given up."""
        return self._receiver.give_up(channel_index, until, epoch)

    def flush_soon(self) -> None:
        """Schedule a write to all links that have something new."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._node.flush()

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        """Call the core's `tick` at the deadline, or earlier: an earlier timer is kept, because its
        `tick` sets the next one."""
        if deadline_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_later(max(0, deadline_ns - now_ns) / 1e9, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_ns = None, NEVER
        self._core.tick(self.now_ns())
