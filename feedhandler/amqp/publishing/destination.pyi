from collections.abc import Callable

from feedhandler.amqp.outlet import Peer
from feedhandler.amqp.proton import PublisherLink
from feedhandler.amqp.publishing.envelope import Envelope
from feedhandler.amqp.queueing.backlog import Backlog
from feedhandler.amqp.queueing.window import Parcel, Window
from feedhandler.amqp.routing import Subscription
from feedhandler.amqp.stream import Stream

KEYS_MAX: int

class Destination(Backlog):
    link: PublisherLink
    window: Window
    abandoned: int
    policy: str
    def __init__(
        self,
        peer: Peer,
        subscription: Subscription,
        streams: list[Stream],
        messages_max: int,
        queue_bytes_max: int,
        batch_bytes_max: int,
        retry_ns: Callable[[int], int],
        clock: Callable[[], int],
        on_batch: Callable[[], None] | None = None,
        policy: str = ...,
    ) -> None: ...
    def connect(self, link: PublisherLink, envelope: Envelope) -> None: ...
    def disconnect(self) -> int: ...
    def settle(self) -> int: ...
    def abandon(self, parcel: Parcel) -> None: ...
    def flush_batches(self) -> int: ...
