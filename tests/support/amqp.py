"""Helpers of the AMQP tests: packets, a gateway's core behind a ring, links that are no links.

`Rig` is the gateway's core as it ships, without sockets and threads: a test puts records into the
ring as the receive thread would, pumps, and looks at what each `FakeLink` was sent.
"""

import datetime
import struct
from dataclasses import dataclass, replace
from typing import Any

from proton import Message as ProtonMessage

from feedhandler.amqp.framing import BLOCK_SHIFT, SNAPSHOT_BIT
from feedhandler.amqp.level_queue import LevelQueue
from feedhandler.amqp.policies import CONFLATE
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from feedhandler.amqp.serving.resume import Resumption
from feedhandler.amqp.stream import Stream
from feedhandler.codecs import load_feed
from feedhandler.codecs.kinds import UNSEQUENCED_BIT, PacketKind
from feedhandler.codecs.trading_day import day_number
from feedhandler.config import loopback_config
from feedhandler.config.amqp import AmqpConfig
from feedhandler.config.file import GatewaySettings
from feedhandler.config.trading_day import TradingDayConfig
from feedhandler.gateway.core import GatewayCore
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring

FEED = load_feed("euronext-utp-md")
DAY_DATE = datetime.date(2026, 11, 21)
#: A kernel receive stamp; tests add the sequence number to it.
STAMP_NS = 1_795_000_000_000_000_000


def prefix_of(feed: Any, service: int) -> bytes:
    """The first eight bytes of a service's tags."""
    return struct.pack(">IHH", day_number(DAY_DATE), feed.number, service)


def order(symbol: int, price: int = 100) -> bytes:
    """One 230 message of UTP-MD."""
    return FEED.encode_message(230, symbol_index=symbol, price=price, price_scale_code=2)


def quote(symbol: int, price: int = 100) -> bytes:
    """One 140 message of UTP-MD."""
    return FEED.encode_message(140, symbol_index=symbol, ask_price=price, price_scale_code=2)


def reference(symbol: int, name: str) -> bytes:
    """One 553 message of UTP-MD: the symbol is NAME_XPAR from here on, if it has a name."""
    return FEED.encode_message(553, symbol_index=symbol, mnemo=name, mic="XPAR" if name else "")


def packet(sequence: int, messages: list[bytes] | None = None, service: int = 104) -> bytes:
    """One UTP-MD packet; five messages of symbols 1000.. where none are given."""
    if messages is None:
        messages = [
            (quote if index % 2 else order)(1000 + (sequence + index) % 7, index)
            for index in range(5)
        ]
    return FEED.encode_packet(sequence=sequence, service=service, messages=messages)


@dataclass
class Sent:
    """One AMQP message as proton itself decodes it."""

    key: str
    content: str
    tag: bytes
    group_sequence: int
    body: bytes
    received_ns: int | None

    @property
    def sequence(self) -> int:
        """The tag's sequence number."""
        return int(struct.unpack(">IHHQH", self.tag)[3])

    @property
    def block_position(self) -> tuple[int, int] | None:
        """A snapshot block's LastSeqNum and the packet's index in the block; None if live."""
        if not self.sequence & SNAPSHOT_BIT:
            return None
        return (self.sequence ^ SNAPSHOT_BIT) >> BLOCK_SHIFT, self.sequence & 0xFF_FFFF

    @property
    def number(self) -> int:
        """The tag's message number."""
        return int(struct.unpack(">IHHQH", self.tag)[4])


def decoded(data: bytes) -> Sent:
    """Decode with proton's own codec, which knows nothing of ours."""
    message = ProtonMessage()
    message.decode(data)
    annotations = message.annotations or {}
    stamp = annotations.get("x-opt-received-ns")
    return Sent(
        message.subject,
        str(message.content_type).rpartition(".")[2],
        bytes(message.id),
        message.group_sequence,
        bytes(message.body),
        None if stamp is None else int(stamp),
    )


class FakeLink(SenderLink):
    """A sending link that keeps what it is sent; `grants` is the credit left."""

    def __init__(self, grants: int = 1_000_000) -> None:
        self.grants = grants
        self.frames: list[bytes] = []

    def ready(self) -> bool:
        return self.grants > 0

    def credit(self) -> int:
        return self.grants

    def send(self, data: Any, start: int, size: int) -> int:
        assert self.grants > 0, "sent without credit"
        self.grants -= 1
        self.frames.append(bytes(memoryview(data)[start : start + size]))
        return 0

    @property
    def sent(self) -> list[Sent]:
        return [decoded(frame) for frame in self.frames]

    @property
    def data(self) -> list[Sent]:
        """All but the quality messages."""
        return [each for each in self.sent if each.content != "quality+json"]


class NoIO:
    """A `GatewayIO` of a gateway without servers and receive thread: `reported` keeps what
    the operator is told."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.report = self.reported.append

    def fill(self, channel: int, data: bytes, epoch: int) -> bool:
        return False

    def disprove(self, channel: int, number: int, epoch: int) -> bool:
        return False

    def give_up(self, channel: int, until: int, epoch: int) -> bool:
        return False

    def flush_soon(self) -> None:
        """Do nothing: who looks at a link finds it written."""

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        """No time passes."""

    def line_changed(self, kind: int, channel: int, line: int) -> None:
        """No observer is there."""

    def renumbered(self) -> None:
        """The day is the same."""


class Rig:
    """The gateway's core for some services, without recovery, in one trading day; `attach` adds
    links. `names` are the core's, of symbols that have one; `symbols` is the configuration's.
    """

    def __init__(
        self,
        services: tuple[int, ...] = (104,),
        feed: Any = FEED,
        symbols_max: int = 1000,
        history_bytes: int = 0,
        symbols: str = "name",
        conflate: bool = False,
        records: bool = False,
    ) -> None:
        self.feed = feed
        self.ring = Ring()
        config = loopback_config(
            services=services,
            gateway=GatewaySettings(feed=feed.name, symbols=symbols),
            trading_day=TradingDayConfig(date=DAY_DATE.isoformat()),
            amqp=AmqpConfig(
                max_symbols=symbols_max,
                history_bytes=history_bytes,
                conflate=conflate,
                records=records,
            ),
        )
        self.core = GatewayCore(config, feed, self.ring, NoIO(), STAMP_NS, seed=0)
        self.fanout, self.names = self.core.fanout, self.core.names
        self.streams, self.qualities = self.core.streams, self.core.qualities
        self.peer = Peer(self.fanout.dirty_peers)
        self.snapshots_asked: list[tuple[SenderQueue, list[Stream]]] = []
        self.resumption = Resumption(
            self.fanout, self.qualities, lambda *asked: self.snapshots_asked.append(asked)
        )

    def attach(
        self,
        address: str,
        grants: int = 1_000_000,
        queue_bytes: int = 1 << 20,
        batch_bytes: int = 65_536,
        peer: Peer | None = None,
        entitlement: Any = None,
    ) -> tuple[SenderQueue, FakeLink]:
        """A link to `address`, taking part from now on, within an entitlement."""
        link = FakeLink(grants)
        subscription = parse_address(
            address,
            self.feed.type_code,
            snapshots=True,
            history=True,
            records=self.fanout.records is not None,
        )
        subscription = replace(subscription, entitlement=entitlement)
        given = (peer or self.peer, link, subscription, queue_bytes, batch_bytes)
        if subscription.schema and subscription.full == CONFLATE:
            sender_queue: SenderQueue = LevelQueue(*given, self.fanout.records)
        else:
            sender_queue = SenderQueue(*given)
        found = self.resumption.find(subscription)
        self.fanout.add(sender_queue, list(found))
        self.resumption.join(sender_queue, found)
        return sender_queue, link

    def detach(self, sender_queue: SenderQueue) -> None:
        """The link ends."""
        self.resumption.catch_ups.remove(sender_queue)
        self.fanout.remove(sender_queue)

    def catch_up(self, bytes_max: int = 1 << 17) -> None:
        """Let links read on in the history, until none can."""
        while self.resumption.catch_ups.turn(bytes_max):
            pass

    def put(self, data: bytes, sequence: int, count: int, skip: int = 0, channel: int = 0) -> None:
        """Write one packet record, as arbitration does."""
        following = sequence + (count if self.feed.counts_messages else 1)
        assert self.ring.put(
            RecordKind.PACKET,
            channel=channel,
            count=count,
            sequence=sequence,
            next_sequence=following,
            received_ns=STAMP_NS + sequence,
            skip=skip,
            payload=data,
        )

    def outside(self, data: bytes, number: int, count: int, channel: int = 0) -> int:
        """Write the record of a packet outside the sequence; the number that its tag has."""
        sequence = UNSEQUENCED_BIT | number
        assert self.ring.put(
            RecordKind.PACKET,
            channel=channel,
            flags=PacketKind.UNSEQUENCED,
            count=count,
            sequence=sequence,
            received_ns=STAMP_NS,
            payload=data,
        )
        return sequence

    def packets(self, first: int, last: int, channel: int = 0) -> list[bytes]:
        """Write the packets `first`..`last` of five messages each; their bytes."""
        service = self.streams[channel].service
        written = [packet(sequence, service=service) for sequence in range(first, last + 1)]
        for index, data in enumerate(written):
            self.put(data, first + index, 5, channel=channel)
        return written

    def control_event(self, kind: RecordKind, channel: int = 0, **fields: int) -> None:
        """Write a record that is no packet."""
        assert self.ring.put(kind, channel=channel, **fields)

    def block(self, packets: list[bytes], last: int, **options: Any) -> None:
        """Send a snapshot block of the first service, as recovery does."""
        quality, stream = self.qualities[0], self.streams[0]
        begin = quality.snapshot_begin(last, len(packets))
        end = quality.snapshot_end(stream.next_sequence)
        self.fanout.block(stream, begin, packets, last, end, **options)

    def share(self, bytes_max: int) -> bool:
        """Deliver a share of what the ring holds, and apply its events."""
        return self.core.pump(bytes_max, STAMP_NS)

    def pump(self, bytes_max: int = 1 << 18) -> None:
        """Publish and deliver everything."""
        self.ring.publish()
        while self.share(bytes_max):
            pass
