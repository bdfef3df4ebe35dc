"""A driver of the gateway's core in a simulated world: ring, arbiters, connections and time.

`GatewayCore` is what `feedhandler.gateway` runs. A `CoreDriver` is its `GatewayIO`, with arbiters
in the place of the receive thread and simulated connections to its servers (`Outward`). Between the
two sides lies time: the loop sees a record `lag_ns` after it was written, and what recovery brings
reaches the arbiters as late, so the two sides race as threads do.

Worlds are subclasses: they have a `schedule`, and give packets to the arbiters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from network import CLOSED, NEVER, Connection
from servers import Port

from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.serving.node import PUMP_BYTES_MAX
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_next
from feedhandler.config import Config
from feedhandler.gateway import GatewayCore
from feedhandler.ingest.arbitration import Arbiter
from feedhandler.ingest.recovered import disprove, give_up, recover
from feedhandler.ingest.ring import Ring
from feedhandler.retrans.reconnection import ReconnectingClient

RING_BYTES = 1 << 20


class Outward:
    """The simulated connection to one server."""

    def __init__(self, driver: "CoreDriver", server: ReconnectingClient, port: Port) -> None:
        self.driver = driver
        self.server = server
        self.port = port
        self.connection: Connection | None = None
        self.asked = False
        server.on_output = self.flush_soon

    def tick(self, now_ns: int) -> None:
        """It is time to connect, or the client wants to know the time."""
        if self.connection is not None:
            self._judge(self.server.tick(now_ns))
            return
        self.connection = self.port.connect(now_ns, self.receive)
        if self.connection is None:
            self.server.lost("refused", now_ns)
            return
        self.server.made(now_ns)
        self.flush()

    def receive(self, data: bytes | None, now_ns: int) -> None:
        """Bytes from the server, or that it is gone."""
        self.driver.now = now_ns
        if data is CLOSED:
            self._drop("closed")
        else:
            self._judge(self.server.feed(data, now_ns))
        self.driver.settle()

    def flush_soon(self) -> None:
        """Many requests, one write."""
        self.asked = True

    def flush(self) -> None:
        """Write what the client has to say."""
        self.asked = False
        data = self.server.data_to_send()
        if data and self.connection is not None:
            self.connection.send(data, self.driver.now)

    def _judge(self, reason: str) -> None:
        if reason:
            self._drop(reason)
        self.flush()

    def _drop(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.close(self.driver.now)
            self.connection = None
            self.server.lost(reason, self.driver.now)


class CoreDriver(ABC):
    """The core's `GatewayIO`, with one verb for each thing that happens; see the module."""

    def __init__(self) -> None:
        self.now = 0
        self.deadline_ns = 0
        self.outward: dict[str, Any] = {}
        self._timer_ns = NEVER
        self._reading = self._flush = False
        self._looked = 0

    def make_core(self, config: Config, feed: Feed, lag_ns: int, seed: int) -> None:
        """Make the core and the arbiters of its channels, as `Receiver` makes them with sockets."""
        self.ring = Ring(RING_BYTES)
        self.core = GatewayCore(config, feed, self.ring, self, 0, seed)
        self.lag_ns = lag_ns
        self.arbiters = [
            Arbiter(
                self.ring,
                lines=len(plan.lines),
                channel=channel,
                first_sequence=feed.first_sequence,
                counts_messages=feed.counts_messages,
                settings=config.arbitration,
                recovery_wait_us=plan.recovery_wait_us,
                table=feed.table,
            )
            for channel, plan in enumerate(self.core.plans)
        ]
        self.peer = Peer(self.core.fanout.dirty_peers)
        self._header, self._feed = PacketHeader(), feed
        self._deadlines: list[int] = []

    @abstractmethod
    def schedule(self, at: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(now_ns, *arguments)` at `at`."""

    def inlet_has_room(self) -> bool:
        """Return whether the receive thread takes what recovery brings."""
        return True

    def start(self, now_ns: int) -> None:
        """From now on it listens."""
        self.now = now_ns
        for arbiter in self.arbiters:
            arbiter.start(now_ns)
        for outward in self.outward.values():
            outward.server.retry_ns = now_ns
        self.settle()

    # -- what happens to it -----------------------------------------------------------------

    def settle(self) -> None:
        """Anything may have moved: servers and links are written to, and when must `tick` be called
        next?"""
        for outward in self.outward.values():
            if outward.asked:
                outward.flush()
        if self._flush:
            self._write()
        assert not self.core.fanout.dirty_peers, "no write to links was scheduled"
        assert self._timer_ns <= self.core.recovery.deadline_ns, "no timer was set for the deadline"
        self._deadlines = [
            *[arbiter.deadline_ns for arbiter in self.arbiters],
            *[outward.server.deadline_ns for outward in self.outward.values()],
            self._timer_ns,
        ]
        self.deadline_ns = min(self._deadlines)

    def _write(self) -> None:
        """Links have been written to."""
        self._flush = False
        for peer in self.core.fanout.flush():
            peer.dirty = False

    def received(self, channel: int, now_ns: int) -> None:
        """Arbiter number `channel` was given something."""
        if self.ring.head != self._looked:
            self._look(now_ns)
        deadline = self.arbiters[channel].deadline_ns
        if deadline != self._deadlines[channel]:
            self._deadlines[channel] = deadline
            self.deadline_ns = min(self._deadlines)

    def tick(self, now_ns: int) -> None:
        """Everything that is due."""
        self.now = now_ns
        for arbiter in self.arbiters:
            if arbiter.deadline_ns <= now_ns:
                arbiter.tick(now_ns)
        for outward in self.outward.values():
            if outward.server.deadline_ns <= now_ns:
                outward.tick(now_ns)
        if self._timer_ns <= now_ns:
            self._timer_ns = NEVER
            self.core.tick(now_ns)
        if self.ring.head != self._looked:
            self._look(now_ns)
        self.settle()

    # -- the event loop's side --------------------------------------------------------------

    def _look(self, now_ns: int) -> None:
        """Records were written: read them, at once or when the loop gets round to it."""
        if not self.lag_ns:
            self.read(now_ns)
        elif not self._reading:
            self._reading = True
            self.schedule(now_ns + self.lag_ns, self.read)

    def read(self, now_ns: int) -> None:
        """Take every record in the ring."""
        self.now = now_ns
        self._reading = False
        self.ring.publish()
        self.witness()
        self._looked = self.ring.head
        while self.core.pump(PUMP_BYTES_MAX, now_ns):
            self._write()
        self._write()
        self.settle()

    def witness(self) -> None:
        """Look at the records that are going to be read; who minds overrides it."""
        return

    # -- what the core has done by us (`GatewayIO`) ---------------------------------------------

    def _later(self, function: Callable[..., None], *arguments: Any) -> bool:
        if not self.inlet_has_room():
            return False
        self.schedule(self.now + self.lag_ns, function, *arguments)
        return True

    def fill(self, channel: int, data: bytes, epoch: int) -> bool:
        return self._later(self._fill, channel, data, epoch)

    def _fill(self, now_ns: int, channel: int, data: bytes, epoch: int) -> None:
        self.now = now_ns
        assert parse_next(self._feed.table, data, 0, len(data), self._header) == 0
        assert self._header.length == len(data), "one run at a time"
        recover(self.arbiters[channel], self._header, data, 0, now_ns, now_ns, epoch)
        self.received(channel, now_ns)

    def give_up(self, channel: int, until: int, epoch: int) -> bool:
        return self._later(self._give_up, channel, until, epoch)

    def _give_up(self, now_ns: int, channel: int, until: int, epoch: int) -> None:
        self.now = now_ns
        give_up(self.arbiters[channel], until, now_ns, epoch)
        self.received(channel, now_ns)

    def disprove(self, channel: int, number: int, epoch: int) -> bool:
        return self._later(self._disprove, channel, number, epoch)

    def _disprove(self, now_ns: int, channel: int, number: int, epoch: int) -> None:
        self.now = now_ns
        disprove(self.arbiters[channel], number, now_ns, epoch)
        self.received(channel, now_ns)

    def flush_soon(self) -> None:
        self._flush = True

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        self._timer_ns = min(self._timer_ns, deadline_ns)

    def line_changed(self, kind: int, channel: int, line: int) -> None:
        """No observer is there."""
        return

    def renumbered(self) -> None:
        self.core.turn_day(self.now)

    def report(self, text: str) -> None:
        """There is no operator."""
        return
