"""Sessions for the simulation: what an exchange sends in two seconds, and what is true of it.

A `Session` is three services of one generated session, some 2,200 packets, each numbered, with its
header parsed once. Generation is slow beside a seed, so a process makes a handful of sessions and
all its seeds share them; a seed plays one with its times stretched. Some sessions are renumbered
from 1 in their middle, behind a sequence reset packet, as after a fail-over of the exchange.

`Session.truth` answers the oracle's question: the state of a service after a certain packet, as a
fault-free receiver holds it (the digest of a `Market`), and the exchange's: that state as snapshot
messages. Both are kept, for many seeds ask at the same packet.
"""

import functools
import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from feedhandler.codecs import load_feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.scanner import parse_header
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.generator import SessionGenerator

FEED = load_feed("euronext-utp-md")
DATA, HEARTBEAT, RESET = int(PacketKind.DATA), int(PacketKind.HEARTBEAT), int(PacketKind.RESET)
OUTSIDE = int(PacketKind.UNSEQUENCED)
HEADER = struct.Struct(">HHIIHBB")
MS = 1_000_000
SECOND = 1_000 * MS
#: Live traffic goes on a little after faults end; then the session closes, which gives every
#: service a last packet, so that a loss at its end shows.
LIVE_NS = 2_300 * MS
#: Services by session, in turn: reference data and orders always, trades or quotes beside them.
CHOICES = ((101, 103, 104), (101, 102, 104))
#: Messages a second that give either choice its 2,000 packets.
RATES = (7_200.0, 12_500.0)
#: How far the copies of a packet lie apart, in a session that has several of each.
COPY_NS = 1_000
#: Sessions a process makes, at most; every third is renumbered in its middle.
POOL = 6


class Sent(NamedTuple):
    """One packet of the exchange; `number` counts its service's packets from 0, resets included
    and heartbeats not (theirs is that of the packet before)."""

    at: int
    service: int
    epoch: int
    sequence: int
    next_sequence: int
    kind: int
    packet: bytes
    header: PacketHeader
    number: int


def outside(at: int, service: int, name: int) -> Sent:
    """A packet outside the sequence, as of a feed that sets number 0 aside; every other one has
    the bytes of the one before."""
    packet = FEED.encode_packet(service=service, send_time=name // 2)
    header = PacketHeader()
    assert parse_header(FEED.table, packet, 0, len(packet), header) == 0
    header.kind, header.next_sequence = OUTSIDE, 0
    return Sent(at, service, 0, 0, 0, OUTSIDE, packet, header, -1)


class Truth(NamedTuple):
    """A service's state after a packet: `digest` is equal iff states are."""

    digest: str
    messages: tuple[bytes, ...]


class Session:
    """Three services' packets in order of sending; see the module's text.

    `live_ns`, `rate` (messages a second, 0: as usual), `heartbeat_ns`: what is generated. `copies`:
    each data packet is sent so often, under a number of its own, for sessions of many packets.
    """

    def __init__(
        self,
        seed: int,
        *,
        live_ns: int = LIVE_NS,
        rate: float = 0.0,
        heartbeat_ns: int = 100 * MS,
        copies: int = 1,
    ) -> None:
        self.seed = seed
        self.services = CHOICES[seed % 2]
        self.renumbered = copies == 1 and live_ns == LIVE_NS and seed % 3 == 2
        self.heartbeat_ns = heartbeat_ns
        generator = SessionGenerator(
            FEED,
            seed,
            instruments=24,
            messages_per_s=rate or RATES[seed % 2],
            heartbeat_ns=heartbeat_ns,
        )
        outgoing = [*generator.packets(live_ns), *generator.close(live_ns)]
        self.sent: list[Sent] = []
        #: (service, epoch, sequence) -> the bytes after the packet header; data packets only.
        self.bodies: dict[tuple[int, int, int], bytes] = {}
        #: (service, epoch, sequence) -> its index among the service's packets.
        self.packet_indexes: dict[tuple[int, int, int], int] = {}
        #: reset packet -> the number of the epoch that it begins.
        self.resets: dict[bytes, int] = {}
        #: service -> its packets in order, heartbeats left out.
        self.packets: dict[int, list[Sent]] = {service: [] for service in self.services}
        self._epochs = dict.fromkeys(self.services, 0)
        self._next = dict.fromkeys(self.services, 1)
        self._last_at = dict.fromkeys(self.services, 0)
        for out in outgoing:
            if out.service in self._epochs:
                at = max(out.due_ns, self._last_at[out.service])
                for _ in range(copies if out.messages else 1):
                    self._send(at, out.service, out.packet)
                    at += COPY_NS
                self._last_at[out.service] = at if copies > 1 else 0
        self.sent.sort(key=lambda sent: sent.at)
        self.duration = self.sent[-1].at
        self._beat()
        self._chains: dict[tuple[int, ...], bytes] = {}
        self._cursors: dict[int, tuple[int, Market]] = {}
        self._truths: dict[tuple[int, int], Truth] = {}

    def _beat(self) -> None:
        """Heartbeats after the close, for as long as a simulation may go on."""
        for at in range(self.duration, self.duration + 2 * SECOND, self.heartbeat_ns):
            for service in self.services:
                self._record(at, service, FEED.encode_packet(kind="heartbeat", service=service))

    def chain(self, service: int, tails: Sequence[int]) -> bytes:
        """The hash over the message bytes of the service's data packets, in order; of epoch n
        those below `tails[n]`, of later ones all."""
        key = (service, *tails)
        known = self._chains.get(key)
        if known is None:
            chain = hashlib.blake2b(digest_size=16)
            for sent in self.packets[service]:
                ended = sent.epoch < len(tails) and sent.sequence >= tails[sent.epoch]
                if sent.kind == DATA and not ended:
                    chain.update(sent.packet[sent.header.body :])
            known = self._chains[key] = chain.digest()
        return known

    def last(self, service: int) -> Sent:
        """The service's last packet."""
        return self.packets[service][-1]

    def truth(self, service: int, index: int) -> Truth:
        """The service's state after its packet number `index`, -1 for before the first."""
        known = self._truths.get((service, index))
        if known is None:
            market = self._market(service, index)
            known = Truth(market.digest(service), tuple(market.snapshot(service)))
            self._truths[service, index] = known
        return known

    def _market(self, service: int, index: int) -> Market:
        reached, market = self._cursors.get(service, (-1, None))
        if market is None or reached > index:
            reached, market = -1, Market(FEED, keeps_messages=True)
        for sent in self.packets[service][reached + 1 : index + 1]:
            market.apply(sent.packet)
        self._cursors[service] = (index, market)
        return market

    def _send(self, at: int, service: int, packet: bytes) -> None:
        """Number a generated packet for this session and take it in."""
        length, kind, _, time, *rest = HEADER.unpack_from(packet)
        if self.renumbered and not self._epochs[service] and at > LIVE_NS // 2 and kind == 501:
            self._epochs[service] = 1
            self._next[service] = 2
            reset = FEED.encode_packet(
                kind="reset", sequence=1, service=service, send_time=time, next_sequence=2
            )
            self._record(at, service, reset)
        if kind != 2:
            sequence = self._next[service]
            self._next[service] = sequence + 1
            packet = HEADER.pack(length, kind, sequence, time, *rest) + packet[HEADER.size :]
        self._record(at, service, packet)

    def _record(self, at: int, service: int, packet: bytes) -> None:
        header = parse(packet)
        epoch, mine = self._epochs[service], self.packets[service]
        number = len(mine) - (header.kind == HEARTBEAT)
        sent = Sent(
            at, service, epoch, header.sequence, header.next_sequence, header.kind, packet, header,
            number,
        )  # fmt: skip
        self.sent.append(sent)
        if header.kind != HEARTBEAT:
            mine.append(sent)
            self.packet_indexes[service, epoch, header.sequence] = number
        if header.kind == RESET:
            self.resets[packet] = epoch
        if header.kind == DATA:
            self.bodies[service, epoch, header.sequence] = packet[header.body :]


def parse(packet: bytes) -> PacketHeader:
    """The packet's header, checked."""
    header = PacketHeader()
    reject = parse_header(FEED.table, packet, 0, len(packet), header)
    assert reject == 0, reject
    return header


@functools.lru_cache(maxsize=POOL)
def session(seed: int) -> Session:
    """The pool: session `seed` of this process."""
    return Session(seed)
