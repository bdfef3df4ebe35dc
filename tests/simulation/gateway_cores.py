"""The gateway of the simulation: the core that ships, with a simulated world around it.

`GatewayCore` is what `feedhandler.gateway` runs. Here it has simulated connections to its servers
(`Outward`), subscribers who read at once (`links.py`), and arbiters in the place of the receive
thread: three live channels with recovery and three refresh channels share one ring. Between the
two sides lies time: the loop sees a record `lag_ns` after it was written, and what recovery brings
reaches the arbiters as late, so the two sides race as threads do.

The oracle hears what links are sent, and looks into the ring: what arbitration let through or
announced is the truth that quality must follow.
"""

from collections import Counter
from collections.abc import Callable

from links import LateLink, WholeLink
from network import CLOSED, NEVER
from oracle import Link, Subscriber
from servers import SOURCE_ID, Connection, Port
from sessions import FEED, OUTSIDE, Sent, parse

from feedhandler.amqp.framing import is_unsequenced
from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.serving.node import PUMP_BYTES_MAX
from feedhandler.config import ServerConfig, loopback_config
from feedhandler.config.amqp import AmqpConfig
from feedhandler.gateway import GatewayCore
from feedhandler.ingest.arbitration import Arbiter
from feedhandler.ingest.records import (
    CHANNEL_SHIFT,
    KIND_MASK,
    KIND_SHIFT,
    WORD_NEXT_SEQUENCE,
    WORD_RECORD,
    WORD_SEQUENCE,
    RecordKind,
)
from feedhandler.ingest.recovered import disprove, give_up, recover
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings

RING_BYTES = 1 << 20
MASK_32 = 0xFFFFFFFF


class Outward:
    """The simulated connection to one server."""

    def __init__(self, gateway: "Gateway", server: ReconnectingClient, port: Port) -> None:
        self.gateway = gateway
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
        self.gateway.now = now_ns
        if data is CLOSED:
            self._drop("closed")
        else:
            self._judge(self.server.feed(data, now_ns))
        self.gateway.settle()

    def flush_soon(self) -> None:
        """Many requests, one write."""
        self.asked = True

    def flush(self) -> None:
        """Write what the client has to say."""
        self.asked = False
        data = self.server.data_to_send()
        if data and self.connection is not None:
            self.connection.send(data, self.gateway.now)

    def _judge(self, reason: str) -> None:
        if reason:
            self._drop(reason)
        self.flush()

    def _drop(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.close(self.gateway.now)
            self.connection = None
            self.server.lost(reason, self.gateway.now)


class Gateway:
    """See the module's text; it is the core's `GatewayIO`, with one verb for each thing that
    happens. `schedule(at, function, *arguments)` is the world's.
    """

    def __init__(
        self,
        services: tuple[int, ...],
        arbitration: ArbitrationSettings,
        recovery: RecoverySettings,
        history_bytes: int,
        ports: dict[str, Port],
        subscriber: Subscriber,
        schedule: Callable[..., None],
        inlet_has_room: Callable[[], bool],
        seed: int,
        lag_ns: int = 0,
    ) -> None:
        self.services = services
        self.subscriber = subscriber
        self.schedule = schedule
        self.inlet_has_room = inlet_has_room
        self.lag_ns = lag_ns
        self.now = 0
        self.ring = Ring(RING_BYTES)
        self._looked = 0
        config = loopback_config(
            FEED.name,
            services,
            with_servers=True,
            arbitration=arbitration,
            recovery=recovery,
            amqp=AmqpConfig(history_bytes=history_bytes),
            servers=tuple(
                ServerConfig(name=name, address="127.0.0.1:1", source_id=SOURCE_ID)
                for name in ports
            ),
        )
        self.core = GatewayCore(config, FEED, self.ring, self, 0, seed)
        # As `Receiver` makes them, which has sockets.
        self.arbiters = [
            Arbiter(
                self.ring,
                lines=len(plan.lines),
                channel=channel,
                first_sequence=FEED.first_sequence,
                counts_messages=FEED.table.counts_messages,
                settings=config.arbitration,
                recovery_wait_us=plan.recovery_wait_us,
            )
            for channel, plan in enumerate(self.core.plans)
        ]
        self.outward = {
            name: Outward(self, self.core.servers[name], port) for name, port in ports.items()
        }
        self.peer = Peer(self.core.fanout.dirty_peers)
        self.core.fanout.add(WholeLink(subscriber).sender_queue(self.peer))
        self.records = Counter[str]()
        self.deadline_ns = 0
        self._deadlines: list[int] = []
        self._timer_ns = NEVER
        self._reading = self._flush = False

    def start(self, now_ns: int) -> None:
        """From now on it listens."""
        self.now = now_ns
        for arbiter in self.arbiters:
            arbiter.start(now_ns)
        for server in self.core.servers.values():
            server.retry_ns = now_ns
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
            *[server.deadline_ns for server in self.core.servers.values()],
            self._timer_ns,
        ]
        self.deadline_ns = min(self._deadlines)

    def _write(self) -> None:
        """Links have been written to."""
        self._flush = False
        for peer in self.core.fanout.flush():
            peer.dirty = False

    def _received(self, channel_index: int, now_ns: int) -> None:
        """Arbiter number `channel_index` was given something."""
        if self.ring.head != self._looked:
            self._look(now_ns)
        deadline = self.arbiters[channel_index].deadline_ns
        if deadline != self._deadlines[channel_index]:
            self._deadlines[channel_index] = deadline
            self.deadline_ns = min(self._deadlines)

    def live(self, channel_index: int, line: int, sent: Sent, now_ns: int) -> None:
        """A packet of a live line."""
        self.now = now_ns
        if sent.kind == OUTSIDE:
            self.subscriber.outside_came(line, sent.packet)
        self.arbiters[channel_index].receive(line, sent.header, sent.packet, 0, now_ns, now_ns)
        self._received(channel_index, now_ns)

    def refresh(self, channel_index: int, line: int, packet: bytes, now_ns: int) -> None:
        """A packet of a refresh line."""
        self.now = now_ns
        channel_index += len(self.services)
        self.arbiters[channel_index].receive(line, parse(packet), packet, 0, now_ns, now_ns)
        self._received(channel_index, now_ns)

    def attach(self, now_ns: int, link: Link) -> None:
        """A subscriber that wants each service's state first."""
        self.now = now_ns
        sender_queue = LateLink(self.subscriber, link).sender_queue(self.peer, "?snapshot=1")
        self.core.fanout.add(sender_queue)
        self.core.attached(sender_queue, self.core.streams, now_ns)
        self.settle()

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
        self._report_truth()
        while self.core.pump(PUMP_BYTES_MAX, now_ns):
            self._write()
        self._write()
        self.settle()
        self.subscriber.settled(now_ns)

    def _report_truth(self) -> None:
        """Tell the oracle what is in the ring."""
        words, mask, live = self.ring.words, self.ring.mask, len(self.services)
        end = self.ring.readable()
        while self._looked < end:
            word = (self._looked & mask) >> 3
            first = words[word + WORD_RECORD]
            kind, channel = RecordKind(first >> KIND_SHIFT & KIND_MASK), first >> CHANNEL_SHIFT
            self._looked += first & MASK_32
            if kind == RecordKind.PAD:
                continue
            sequence, following = words[word + WORD_SEQUENCE], words[word + WORD_NEXT_SEQUENCE]
            if kind != RecordKind.PACKET:
                self.records[kind.name if channel < live else f"refresh {kind.name}"] += 1
            if channel < live and not is_unsequenced(sequence):
                self.subscriber.record(self.services[channel], kind.name, sequence, following)

    # -- what the core has done by us (`GatewayIO`) ---------------------------------------------

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        if not self.inlet_has_room():
            return False
        self.schedule(self.now + self.lag_ns, self._fill, channel_index, data, epoch)
        return True

    def _fill(self, now_ns: int, channel_index: int, data: bytes, epoch: int) -> None:
        self.now = now_ns
        recover(self.arbiters[channel_index], parse(data), data, 0, now_ns, now_ns, epoch)
        self._received(channel_index, now_ns)

    def give_up(self, channel_index: int, until: int, epoch: int) -> bool:
        if not self.inlet_has_room():
            return False
        self.schedule(self.now + self.lag_ns, self._give_up, channel_index, until, epoch)
        return True

    def _give_up(self, now_ns: int, channel_index: int, until: int, epoch: int) -> None:
        self.now = now_ns
        give_up(self.arbiters[channel_index], until, now_ns, epoch)
        self._received(channel_index, now_ns)

    def disprove(self, channel_index: int, number: int, epoch: int) -> bool:
        if not self.inlet_has_room():
            return False
        self.schedule(self.now + self.lag_ns, self._disprove, channel_index, number, epoch)
        return True

    def _disprove(self, now_ns: int, channel_index: int, number: int, epoch: int) -> None:
        self.now = now_ns
        disprove(self.arbiters[channel_index], number, now_ns, epoch)
        self._received(channel_index, now_ns)

    def flush_soon(self) -> None:
        self._flush = True

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        self._timer_ns = min(self._timer_ns, deadline_ns)

    def line_changed(self, kind: int, channel_index: int, line: int) -> None:
        """No observer is there."""

    def renumbered(self) -> None:
        self.core.turn_day(self.now)

    def report(self, text: str) -> None:
        """There is no operator."""
