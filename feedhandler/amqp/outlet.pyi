from collections import deque

from typing_extensions import Buffer

from feedhandler.amqp.framing import Frame, Template
from feedhandler.amqp.proton import Connection, SenderLink
from feedhandler.amqp.routing import Subscription

QUEUE_ENTRY_BYTES: int
PACKET_BYTES_MAX: int
SECTIONS_BYTES_MAX: int
MESSAGES_MAX: int

class Peer:
    def stir(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    dirty: bool
    engine: Connection
    backlog: int
    writing: bool
    leaving: bool
    gone: bool
    dirty_peers: list[Peer]
    overruns: list[Outlet]
    def __init__(self, dirty_peers: list[Peer]) -> None: ...
    def settle(self) -> bool: ...
    def attend(self) -> None: ...

class Outlet:
    peer: Peer
    sender: SenderLink
    subscription: Subscription
    grain: int
    stamp: bool
    any_type: bool
    queue: deque[bytes]
    queued_bytes: int
    queue_bytes_max: int
    batch_bytes_max: int
    overrun: bool
    behind: bool
    catching: int
    group_sequence: int
    sent: int
    sent_bytes: int
    waited: int
    queued_bytes_high: int
    def __init__(
        self,
        peer: Peer,
        sender: SenderLink,
        subscription: Subscription,
        queue_bytes_max: int,
        batch_bytes_max: int,
    ) -> None: ...
    def takes_more(self) -> bool: ...
    def give_up(self) -> int: ...
    def wants_type(self, message_type: int) -> bool: ...
    def select(self, number: int) -> int: ...
    def deliver(self, frame: Frame) -> int: ...
    def batch(
        self,
        stream: int,
        template: Template,
        sequence: int,
        received_ns: int,
        data: Buffer,
        start: int,
        size: int,
    ) -> int: ...
    def close_batch(self, stream: int) -> int: ...
    def has_open_batch(self) -> bool: ...
    def settle_batches(self) -> int: ...
    def drain(self) -> int: ...
