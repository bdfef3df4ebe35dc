from collections.abc import Callable

from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.outlet import Outlet, Peer
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.queueing.conflation import Conflation
from feedhandler.amqp.queueing.shortfall import Shortfall
from feedhandler.amqp.queueing.stopwatch import Stopwatch
from feedhandler.amqp.routing import Subscription
from feedhandler.amqp.stream import Stream
from feedhandler.codecs import Feed

DROP_SHARE: int
DROP_MESSAGES_MAX: int

class Backlog(Outlet):
    streams: list[Stream]
    shortfalls: dict[int, Shortfall]
    clock: Callable[[], int]
    conflated: int
    conflated_bytes: int
    books_sent: int
    behind_time: Stopwatch
    full_time: Stopwatch
    untold: bool
    dropped: int
    dropped_bytes: int
    overflows: int
    overflowing: bool
    given_up: bool
    conflation: Conflation | None
    def conflate(self, fanout: Fanout, feed: Feed) -> None: ...
    def __init__(
        self,
        peer: Peer,
        sender: SenderLink,
        subscription: Subscription,
        streams: list[Stream],
        queue_bytes_max: int,
        batch_bytes_max: int,
        clock: Callable[[], int],
    ) -> None: ...
