"""Consumers' links of keyed queues. A delivery's number is its fence."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from feedhandler.amqp import proton
from feedhandler.amqp.durable.keyed_sections import delivery_annotations
from feedhandler.amqp.durable.links import Consumer, contained
from feedhandler.amqp.durable.sections import head_of, look
from feedhandler.keyed.queue import Delivery

if TYPE_CHECKING:
    from feedhandler.amqp.durable.keyed import KeyedDurableQueue


class KeyedConsumer(Consumer):
    """A link that gets messages of a keyed queue."""

    _queue: "KeyedDurableQueue"

    #: Messages that are being read for it: they use part of its credit.
    _reserved = 0

    @property
    def in_hand(self) -> int:
        """Number of messages that it has, or that are being read for it."""
        return len(self.unsettled) + self._reserved

    def ready(self) -> bool:
        """Return whether one more may be handed out now; where not, `flow` is called once it
        may."""
        return super().ready() and self.link.credit() > self._reserved

    def reserve(self, messages: int) -> None:
        """Count `messages` more (or less) that are being read for it."""
        self._reserved += messages

    def hand_out_keyed(self, content: bytes, delivery: Delivery) -> None:
        """Send a message; where that fails, the connection ends and another consumer gets it."""
        self.unsettled[delivery.fence] = None
        try:
            self._send_keyed(content, delivery)
        except Exception as error:  # whatever it is: the queue's other links go on
            self.peer.fail(error)

    def _send_keyed(self, content: bytes, delivery: Delivery) -> None:
        link: proton.HandoutLink = self.link
        queue, fence = self._queue, delivery.fence
        found = look(content)
        head = head_of(found, not delivery.tries, delivery.tries)
        head += delivery_annotations(queue.token(delivery.number), fence, delivery.after)
        link.hand_out(fence, head, content, found.passed_on)
        if link.settled:
            del self.unsettled[fence]
            queue.deliver(self, [fence])
        self._schedule_flush()

    def _settle(
        self, accepted: list[int], refused: list[int], released: list[int], failed: list[int]
    ) -> None:
        queue = self._queue
        if accepted:
            queue.deliver(self, accepted)
        if refused:
            queue.refuse(self, refused, "was rejected by its consumer")
        for fences, is_failure in ((released, False), (failed, True)):
            if fences:
                queue.give_back(self, fences, failed=is_failure)
        queue.push_soon()
        queue.offer(self)
        queue.serve()

    @contained
    def disowned(self, fences: Iterable[int]) -> None:
        """Release these deliveries, which it does not hold any more: outcomes for them come too
        late."""
        for fence in fences:
            self.link.disown(fence)
        self._schedule_flush()

    def leave(self, orderly: bool = False) -> None:
        """End the link, and commit what follows from that."""
        super().leave(orderly)
        self._queue.push()
