"""One broker's sender queue of the fan-out: its unsettled messages, its group sequences, the
outcomes of its messages.

What it is for: to the fan-out a `Destination` is one more link: routing, thinning, grains and
quality messages are the same. It depends on a broker's confirmations, not on credit alone: what is
sent stays in the `UnsettledMap` until it is confirmed.

What it promises: messages of a service leave in order; what waits and what is unconfirmed never
exceed `queue_bytes` together; nothing here waits for the broker. What is dropped when that bound is
reached, and how it is announced, is the `Backlog`'s.

What it adds to a message: a group-sequence that counts per routing key. A gap in it is a loss on
the way to the broker. Numbers of quality messages are given as they are sent.

When a batch is sent: as soon as nothing more waits for the fan-out, when it is full, or when
`flush_batches` is called because it has gathered for long enough; without room for more unsettled
messages it grows until it is full.

What it leaves to others: header and address of a message (`envelope`); sockets, connecting, time
(`publisher`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import cython
from cython.cimports.feedhandler.amqp.proton import PublisherLink
from cython.cimports.feedhandler.amqp.publishing.envelope import Envelope
from cython.cimports.feedhandler.amqp.queueing.backlog import Backlog
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage, UnsettledMap
from cython.cimports.feedhandler.amqp.sender_queue import Peer
from cython.cimports.feedhandler.amqp.stream import Stream

from feedhandler.amqp.policies import DETACH, DROP_OLDEST
from feedhandler.codecs.visibility import Readonly

if TYPE_CHECKING:
    from feedhandler.amqp.routing import Subscription

#: Routing keys whose group-sequence is remembered; past it all begin again at 0.
KEYS_MAX = 1_000_000
_KEYS_MAX = cython.declare(cython.Py_ssize_t, KEYS_MAX)


@cython.cclass
class Destination(Backlog):
    """The sender queue of a broker that receives what `subscription` asks for.

    `streams`: the fan-out's, in its order. `retry_ns`: see `UnsettledMap`. `clock`: monotonic ns.
    `on_batch` is called when batches stay open at the end of a turn of the fan-out because more
    waits for it; None: none stays open. `policy`: what is dropped at the bound; by `detach` the
    destination puts itself into its connection's `overruns`.
    """

    link: Readonly[PublisherLink]
    unsettled: Readonly[UnsettledMap]
    numbers: dict
    on_batch: object
    policy: Readonly[str]
    envelope: Envelope
    abandoned: Readonly[cython.ulonglong]

    def __init__(
        self,
        peer: Peer,
        subscription: "Subscription",
        streams: list[Stream],
        messages_max: int,
        queue_bytes_max: int,
        batch_bytes_max: int,
        retry_ns: Callable[[int], int],
        clock: Callable[[], int],
        on_batch: Callable[[], None] | None = None,
        policy: str = DROP_OLDEST,
    ) -> None:
        super().__init__(
            peer, PublisherLink(), subscription, streams, queue_bytes_max, batch_bytes_max, clock
        )
        self.link = self.sender
        self.numbers_late = False
        self.unsettled = UnsettledMap(messages_max, queue_bytes_max, retry_ns)
        self.envelope = Envelope()
        self.numbers = {}
        self.on_batch = on_batch
        self.policy = policy
        self.abandoned = 0

    def connect(self, link: PublisherLink, envelope: Envelope) -> None:
        """Send on this link from now on, in this envelope; unconfirmed messages go first."""
        self.link = link
        self.envelope = envelope
        self.sender = link
        link.wants_flow = self.behind
        self.given_up = False

    def disconnect(self) -> int:
        """Forget the link, which is gone; return how many messages will be sent again."""
        given_up = self.given_up
        self.connect(PublisherLink(), self.envelope)
        self.given_up = given_up
        count = self.unsettled.lost()
        self._note_backlog()
        return count

    # -- what a backlog asks ----------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _number(self, key: str) -> cython.longlong:
        """Take the next group-sequence of a routing key."""
        number: cython.longlong = self.numbers.get(key, 0)
        if len(self.numbers) >= _KEYS_MAX and number == 0:
            self.numbers.clear()
        self.numbers[key] = (number + 1) & 0xFFFF_FFFF
        return number

    def _dispatch(self, outgoing: OutgoingMessage) -> cython.int:
        """Send a finished message, and keep it until it is confirmed."""
        number: cython.ulonglong = self.unsettled.add(outgoing, self.clock())
        return self.envelope.send(self.link, number, outgoing.key, outgoing.data)

    def _first(self) -> cython.bint:
        """Return whether something has to be sent again before anything new."""
        return len(self.unsettled.again) > 0

    def _room(self, size: cython.Py_ssize_t) -> cython.bint:
        return self.unsettled.room(size)

    def _held_elsewhere(self) -> cython.Py_ssize_t:
        return self.unsettled.bytes

    def _is_behind(self) -> cython.bint:
        """Return whether anything waits for credit, room or confirmation."""
        return (
            len(self.queue) > 0
            or self.unannounced
            or len(self.unsettled.again) > 0
            or (len(self.open_batches) > 0 and not self.more)
        )

    def drain(self) -> cython.int:
        """Send what waits, as far as the unsettled map, credit and the engine allow."""
        while self.unsettled.again and self.link.ready():
            number: cython.ulonglong = self.unsettled.next_again()
            outgoing: OutgoingMessage = self.unsettled.held.get(number)
            if outgoing is not None:
                outgoing.tried_ns = self.clock()
                self.envelope.send(self.link, number, outgoing.key, outgoing.data)
                self.peer.mark_dirty()
        return Backlog.drain(self)

    def _overflow(self) -> None:
        """Drop the oldest past the bound; by `detach`, drop all that waits and all that comes until
        the broker is connected again."""
        if self.policy != DETACH:
            Backlog._overflow(self)
            return
        self._set_overflowing(True)
        self.overflows += 1
        while self._peek() is not None:
            self._drop_oldest()
        self.given_up = True
        self.peer.overruns.append(self)
        self.peer.mark_dirty()

    def _lose(self, outgoing: OutgoingMessage) -> None:
        """Record the loss of a message; one that has no number yet takes one, so that the loss is a
        gap in its key's numbers."""
        if outgoing.number_at > 0:
            self._number(outgoing.key)
        Backlog._lose(self, outgoing)

    # -- what the broker says ---------------------------------------------------------------

    def process_outcomes(self) -> cython.int:
        """Forget what the broker has confirmed since the last call."""
        number: cython.ulonglong
        if self.link.confirmed:
            now_ns: cython.longlong = self.clock()
            for number in self.link.confirmed:
                self.unsettled.confirm(number, now_ns)
            self.link.confirmed.clear()
        return 0

    def abandon(self, outgoing: OutgoingMessage) -> None:
        """Record that a message was refused for good; it is announced like a dropped one."""
        self.abandoned += 1
        self.loss_trackers[outgoing.service].refuse(outgoing)
        self.unannounced = True
        self._note_backlog()

    # -- batches ----------------------------------------------------------------------------

    def flush_due_batches(self) -> cython.int:
        """Send what was gathered at the end of a turn of the fan-out, unless more is to come at
        once.

        Without room a batch stays open and grows, up to its limit: as many packets as wait.
        """
        if not self.more or self.on_batch is None:
            return self.flush_batches()
        if self.open_batches:
            self.on_batch()
        return 0

    def flush_batches(self) -> cython.int:
        """Send what was gathered; a batch that finds no room stays open, and grows."""
        return Backlog.flush_due_batches(self)
