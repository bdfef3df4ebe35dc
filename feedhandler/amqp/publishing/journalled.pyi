from collections.abc import Callable

from feedhandler.amqp.outlet import Peer
from feedhandler.amqp.publishing.destination import Destination
from feedhandler.amqp.publishing.spill import Result, Spill
from feedhandler.amqp.routing import Subscription
from feedhandler.amqp.stream import Stream

class JournalledDestination(Destination):
    spill: Spill
    lacking: bool
    attended: bool
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
        on_batch: Callable[[], None] | None,
        spill: Spill,
        wall: Callable[[], int],
        on_work: Callable[[], None],
    ) -> None: ...
    @property
    def front_bytes(self) -> int: ...
    @property
    def oldest_ns(self) -> int: ...
    def take_back(self, result: Result) -> None: ...
