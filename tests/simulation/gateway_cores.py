"""The gateway of the simulation: the real cores, put together as the gateway puts them, less I/O.

Three live channels with recovery and three refresh channels share one ring, as in one receive
thread; the event loop's side is the desk, two request clients, and a plain consumer of the ring in
the place of the fan-out. Between the two sides lies time: the loop sees a record `lag_ns` after it
was written, and what recovery brings reaches the arbiters as late, so the two sides race as
threads do.

`subscriber` is told what a subscriber of a whole service gets, in that order.
"""

from collections import Counter
from collections.abc import Callable

from network import CLOSED
from servers import SOURCE_ID, Connection, Port
from sessions import DATA, FEED, OUTSIDE, Sent, parse

from feedhandler.amqp.quality import QualityState
from feedhandler.ingest.arbitration import Arbiter
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.recovered import give_up, recover
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.recovery.desk import Desk
from feedhandler.recovery.ports import DeskChannel
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings

PACKET, GAP, RESET, START = (
    int(kind) for kind in (RecordKind.PACKET, RecordKind.GAP, RecordKind.RESET, RecordKind.START)
)
RING_BYTES = 1 << 20
MASK_32 = 0xFFFFFFFF


class Outward:
    """One server as the gateway sees it: a simulated connection for the core that ships."""

    def __init__(self, gateway: "Gateway", name: str, port: Port, seed: int) -> None:
        self.gateway = gateway
        self.name = name
        self.port = port
        self.connection: Connection | None = None
        self.now = 0
        self.server = ReconnectingClient(
            RequestClient(FEED, SOURCE_ID, gateway.recovery_settings),
            gateway.recovery_settings,
            on_events=lambda events, now: gateway.desk.client_events(name, events, now),
            on_up=lambda now: gateway.desk.server_up(name, now),
            on_down=lambda reason, now: gateway.desk.server_down(name, now),
            seed=seed,
        )
        self.server.on_output = self.flush

    @property
    def deadline_ns(self) -> int:
        return self.server.deadline_ns

    def tick(self, now_ns: int) -> None:
        self.now = now_ns
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
        self.now = now_ns
        if data is CLOSED:
            self._drop("closed")
        else:
            self._judge(self.server.feed(data, now_ns))
        self.gateway.find_deadline()

    def ask(self, request, now_ns: int) -> None:
        self.now = now_ns
        self.server.ask(request, now_ns)

    def ask_refresh(self, request, now_ns: int) -> None:
        self.now = now_ns
        self.server.ask_refresh(request, now_ns)

    def flush(self) -> None:
        """Write what the client has to say."""
        data = self.server.take_output()
        if data and self.connection is not None:
            self.connection.send(data, self.now)

    def _judge(self, reason: str) -> None:
        if reason:
            self._drop(reason)
        self.flush()

    def _drop(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.close(self.now)
            self.connection = None
            self.server.lost(reason, self.now)


class Stream:
    """One service on its way out."""

    def __init__(self, service: int) -> None:
        self.service = service
        self.closed = False
        self.next = 0
        self.quality = QualityState(service, ["A", "B"])


class Gateway:
    """See the module's text; it is the desk's `Ports`, with one verb for each thing that happens.

    `schedule(at, function, *arguments)` is the world's.
    """

    def __init__(
        self,
        services: tuple[int, ...],
        arbitration: ArbitrationSettings,
        refresh_arbitration: ArbitrationSettings,
        recovery: RecoverySettings,
        ports: dict[str, Port],
        subscriber,
        schedule: Callable[..., None],
        seed: int,
        lag_ns: int = 0,
    ) -> None:
        self.services = services
        self.recovery_settings = recovery
        self.subscriber = subscriber
        self.schedule = schedule
        self.lag_ns = lag_ns
        self.now = 0
        self.ring = Ring(RING_BYTES)
        self._position = 0
        live = len(services)
        self.arbiters = [
            Arbiter(self.ring, lines=2, channel=place, settings=arbitration,
                    recovery_wait_us=recovery.recovery_wait_us)
            for place in range(live)
        ] + [
            Arbiter(self.ring, lines=2, channel=live + place, settings=refresh_arbitration)
            for place in range(live)
        ]  # fmt: skip
        self.streams = [Stream(service) for service in services]
        channels = [
            DeskChannel(
                service,
                retransmission="rts" if "rts" in ports else "",
                refresh=True,
                refresh_server="rfs" if "rfs" in ports else "",
                reference=service == 101,
            )
            for service in services
        ]
        self.desk = Desk(
            FEED, channels, [stream.quality for stream in self.streams], self, recovery, seed
        )
        self.outward = {
            name: Outward(self, name, port, seed + place)
            for place, (name, port) in enumerate(ports.items())
        }
        self.alerts = Counter[str]()
        self.records = Counter[str]()
        self.deadline_ns = 0
        self._deadlines: list[int] = []
        self._reading = False

    def start(self, now_ns: int) -> None:
        """From now on it listens."""
        self.now = now_ns
        for arbiter in self.arbiters:
            arbiter.start(now_ns)
        for outward in self.outward.values():
            outward.server.retry_ns = now_ns
        self.find_deadline()

    # -- what happens to it -----------------------------------------------------------------

    def find_deadline(self) -> None:
        """Anything may have moved: when `tick` must be called next."""
        self._deadlines = [
            *[arbiter.deadline_ns for arbiter in self.arbiters],
            *[outward.deadline_ns for outward in self.outward.values()],
            self.desk.deadline_ns,
        ]
        self.deadline_ns = min(self._deadlines)

    def _received(self, place: int, now_ns: int) -> None:
        """Arbiter number `place` was given something."""
        if self.ring.head != self._position:
            self._look(now_ns)
        deadline = self.arbiters[place].deadline_ns
        if deadline != self._deadlines[place]:
            self._deadlines[place] = deadline
            self.deadline_ns = min(self._deadlines)

    def live(self, place: int, line: int, sent: Sent, now_ns: int) -> None:
        """A packet of a live line."""
        self.now = now_ns
        if sent.kind == OUTSIDE:
            self.subscriber.outside_came(line, sent.packet)
        self.arbiters[place].receive(line, sent.header, sent.packet, 0, now_ns, now_ns)
        self._received(place, now_ns)

    def refresh(self, place: int, line: int, packet: bytes, now_ns: int) -> None:
        """A packet of a refresh line."""
        self.now = now_ns
        place += len(self.services)
        self.arbiters[place].receive(line, parse(packet), packet, 0, now_ns, now_ns)
        self._received(place, now_ns)

    def attach(self, now_ns: int, link: object) -> None:
        """A subscriber that wants each service's state first."""
        self.now = now_ns
        self.desk.attached(link, range(len(self.services)), now_ns)
        self.find_deadline()

    def tick(self, now_ns: int) -> None:
        """Everything that is due."""
        self.now = now_ns
        for arbiter in self.arbiters:
            if arbiter.deadline_ns <= now_ns:
                arbiter.tick(now_ns)
        for outward in self.outward.values():
            if outward.deadline_ns <= now_ns:
                outward.tick(now_ns)
        if self.desk.deadline_ns <= now_ns:
            self.desk.tick(now_ns)
        if self.ring.head != self._position:
            self._look(now_ns)
        self.find_deadline()

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
        ring, live = self.ring, len(self.services)
        ring.publish()
        words, mask, data = ring.words, ring.mask, ring.data
        position, end = self._position, ring.readable()
        while position < end:
            word = (position & mask) >> 3
            first = words[word]
            kind, channel = first >> 32 & 0xFFFF, first >> 48
            if kind == PACKET:
                begin = (position & mask) + 64
                second = words[word + 1]
                packet = bytes(data[begin : begin + (second & MASK_32)])
                if channel < live:
                    self._publish(
                        channel, words[word + 2], words[word + 3], packet, second >> 40 & 0xFF
                    )
                else:
                    self.desk.refresh_packet(channel - live, words[word + 2], packet, now_ns)
            elif kind:
                self._mark(kind, channel, word, now_ns)
            position += first & MASK_32
            self._position = position
            ring.release(position)
        self.find_deadline()
        self.subscriber.settled(now_ns)

    def _publish(self, place: int, sequence: int, following: int, packet: bytes, kind: int) -> None:
        stream = self.streams[place]
        if kind == OUTSIDE:
            self.subscriber.outside(packet)
            return
        store = self.desk.store(place)
        if store is not None:
            store.append(sequence, following, packet, 0, len(packet))
        self.subscriber.passed(stream.service, following)
        if not stream.closed:
            stream.next = following
            self.subscriber.packet(stream.service, sequence, following, packet, kind == DATA)

    def _mark(self, kind: int, channel: int, word: int, now_ns: int) -> None:
        words, live = self.ring.words, len(self.services)
        line = words[word + 1] >> 32 & 0xFF
        sequence, following, auxiliary = words[word + 2], words[word + 3], words[word + 7]
        name = RecordKind(kind).name
        if channel >= live:
            self.records[f"refresh {name}"] += 1
            self.desk.refresh_mark(channel - live, kind, now_ns)
            return
        self.records[name] += 1
        stream = self.streams[channel]
        if kind in (RESET, START) or (kind == GAP and not stream.closed):
            stream.next = following
        self.subscriber.record(stream.service, name, sequence, following)
        self.desk.mark(kind, channel, line, sequence, following, auxiliary, now_ns)
        if kind in (RESET, START):
            stream.next = following
            store = self.desk.store(channel)
            if store is not None:
                store.clear()

    # -- the desk's ports -------------------------------------------------------------------

    def ask(self, server: str, request, now_ns: int) -> None:
        self.outward[server].ask(request, now_ns)

    def cancel(self, server: str, request_id: int) -> None:
        self.outward[server].server.cancel(request_id)

    def ask_refresh(self, server: str, request, now_ns: int) -> None:
        self.outward[server].ask_refresh(request, now_ns)

    def fill(self, place: int, data: bytes, epoch: int) -> None:
        self.schedule(self.now + self.lag_ns, self._fill, place, data, epoch)

    def _fill(self, now_ns: int, place: int, data: bytes, epoch: int) -> None:
        self.now = now_ns
        recover(self.arbiters[place], parse(data), data, 0, now_ns, now_ns, epoch)
        self._received(place, now_ns)

    def give_up(self, place: int, until: int, epoch: int) -> None:
        self.schedule(self.now + self.lag_ns, self._give_up, place, until, epoch)

    def _give_up(self, now_ns: int, place: int, until: int, epoch: int) -> None:
        self.now = now_ns
        give_up(self.arbiters[place], until, now_ns, epoch)
        self._received(place, now_ns)

    def quality(self, place: int, body: bytes, links: list | None = None) -> None:
        if links is None:
            self.subscriber.quality(self.services[place], body)
        else:
            self.subscriber.told_apart(self.services[place], body, links)

    def withhold(self, place: int, link) -> None:
        link.withheld.add(self.services[place])

    def admit(self, place: int, link) -> None:
        link.withheld.discard(self.services[place])

    def block(self, place, begin, packets, last, end, links) -> None:
        stream = self.streams[place]
        self.subscriber.block(stream.service, begin, packets, last, end, links)

    def close_stream(self, place: int) -> None:
        self.streams[place].closed = True

    def open_stream(
        self, place: int, packets: list[tuple[int, int, bytes]], following: int
    ) -> None:
        stream = self.streams[place]
        stream.closed = False
        stream.next = max(stream.next, following)
        for sequence, following, packet in packets:
            stream.next = following
            data = parse(packet).kind == DATA
            self.subscriber.packet(stream.service, sequence, following, packet, data)

    def next_sequence(self, place: int) -> int:
        return self.streams[place].next

    def renumber(self, place: int) -> None:
        self.subscriber.renumbered(self.services[place])

    def is_here(self, link) -> bool:
        return True

    def alert(self, text: str) -> None:
        self.alerts[text] += 1
