"""A gateway of three services whose oracle sees what arbitration let through.

Three live channels with recovery and three refresh channels share one ring; subscribers read at
once (`links.py`). The oracle hears what links are sent, and looks into the ring: what arbitration
let through or announced is the truth that quality must follow.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from core_driver import CoreDriver, Outward
from links import LateLink, WholeLink
from oracle import Link, Subscriber
from servers import SOURCE_ID, Port
from sessions import FEED, OUTSIDE, Sent, parse

from feedhandler.amqp.framing import is_unsequenced
from feedhandler.config import ServerConfig, loopback_config
from feedhandler.config.amqp import AmqpConfig
from feedhandler.ingest.records import (
    CHANNEL_SHIFT,
    KIND_MASK,
    KIND_SHIFT,
    WORD_NEXT_SEQUENCE,
    WORD_RECORD,
    WORD_SEQUENCE,
    RecordKind,
)
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.settings import RecoverySettings

MASK_32 = 0xFFFFFFFF


class WatchedGateway(CoreDriver):
    """See the module's text. `schedule(at, function, *arguments)` is the world's."""

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
        super().__init__()
        self.services = services
        self.subscriber = subscriber
        self._schedule = schedule
        self._inlet_has_room = inlet_has_room
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
        self.make_core(config, FEED, lag_ns, seed)
        self.outward = {
            name: Outward(self, self.core.servers[name], port) for name, port in ports.items()
        }
        self.core.fanout.add(WholeLink(subscriber).sender_queue(self.peer))
        self.records = Counter[str]()

    def schedule(self, at: int, function: Callable[..., None], *arguments: Any) -> None:
        self._schedule(at, function, *arguments)

    def inlet_has_room(self) -> bool:
        return self._inlet_has_room()

    def live(self, channel: int, line: int, sent: Sent, now_ns: int) -> None:
        """A packet of a live line."""
        self.now = now_ns
        if sent.kind == OUTSIDE:
            self.subscriber.outside_came(line, sent.packet)
        self.arbiters[channel].receive(line, sent.header, sent.packet, 0, now_ns, now_ns)
        self.received(channel, now_ns)

    def refresh(self, channel: int, line: int, packet: bytes, now_ns: int) -> None:
        """A packet of a refresh line."""
        self.now = now_ns
        channel += len(self.services)
        self.arbiters[channel].receive(line, parse(packet), packet, 0, now_ns, now_ns)
        self.received(channel, now_ns)

    def attach(self, now_ns: int, link: Link) -> None:
        """A subscriber that wants each service's state first."""
        self.now = now_ns
        sender_queue = LateLink(self.subscriber, link).sender_queue(self.peer, "?snapshot=1")
        self.core.fanout.add(sender_queue)
        self.core.attached(sender_queue, self.core.streams, now_ns)
        self.settle()

    def read(self, now_ns: int) -> None:
        super().read(now_ns)
        self.subscriber.settled(now_ns)

    def witness(self) -> None:
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
