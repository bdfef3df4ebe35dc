"""Links that go on where another has ended: the `from=<tag>` of an address.

What it is for: for each service of which a link names a tag, its history says from where on it can
be served (`History.find`); the link gets a quality message with the reason `resume` first, and then
reads on (`catchup`).

What it promises: the numbers that a link will not get are announced to it, as exactly as they are
known, before anything that follows them. Where it has asked for snapshots, one is sent instead of
what is left of the history. A link without quality messages that is overtaken is given up: the loss
could not be announced to it.

What it leaves to others: sockets and turns (`node`), where snapshots come from (`on_attach`).
"""

from collections.abc import Callable
from typing import Any

import msgspec

from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.history import Found
from feedhandler.amqp.routing import Subscription
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.amqp.serving.catchup import CatchUps, Cursor
from feedhandler.amqp.stream import Stream
from feedhandler.retrans.quality import QualityState

#: Keys of a quality message that describe the service's state, not an event.
_LASTING = (
    "state",
    "service",
    "since",
    "missing",
    "stale",
    "doubt",
    "lost_ranges",
    "lost_total",
    "silent",
)


class Resumption:
    """All links that resume. `on_attach(sender_queue, streams)` has snapshots of these services
    sent to a link that has asked for them."""

    def __init__(
        self,
        fanout: Fanout,
        qualities: list[QualityState],
        on_attach: Callable[[SenderQueue, list[Stream]], None],
    ) -> None:
        self.fanout = fanout
        self.qualities = qualities
        self.on_attach = on_attach
        self.catch_ups = CatchUps(fanout, self._overtaken)
        #: Services that links went on with from their tag, and those where that was too late.
        self.resumed = self.refused = 0

    def find(self, subscription: Subscription) -> dict[Stream, Found]:
        """Find where the link goes on, for each service that concerns it and of which it has a tag;
        tags of other services are ignored."""
        found: dict[Stream, Found] = {}
        if not subscription.resume:
            return found
        streams = {stream.prefix[4:8]: stream for stream in self.fanout.streams}
        for tag in subscription.resume:
            stream = streams.get(tag[4:8])
            if (
                stream is not None
                and stream.history is not None
                and subscription.concerns(*stream.words)
            ):
                found[stream] = stream.history.find(tag, stream.next_sequence)
        return found

    def join(self, sender_queue: SenderQueue, found: dict[Stream, Found]) -> list[Stream]:
        """Let the link read on in the history; return the streams of which it needs a snapshot
        instead."""
        afresh = []
        for stream, where in found.items():
            if where.why and sender_queue.subscription.snapshot:
                afresh.append(stream)
                self._live(sender_queue, stream, where)
                continue
            if where.why:
                self.refused += 1
            else:
                self.resumed += 1
            self._report(sender_queue, stream, where)
            self.catch_ups.add(sender_queue, stream, where.position, where.next)
        return afresh

    def _live(self, sender_queue: SenderQueue, stream: Stream, where: Found) -> None:
        """Let the link join the live stream now; announce all between its tag and here as lost."""
        self.refused += 1
        first = [begin for begin, _ in where.lost] or [where.next]
        lost = ((first[0], stream.next_sequence - 1),) if first[0] < stream.next_sequence else ()
        assert stream.history is not None
        end = stream.history.find_end()
        self._report(sender_queue, stream, Found(end, stream.next_sequence, where.why, lost))
        stream.admit(sender_queue)

    def _overtaken(self, cursor: Cursor) -> bool:
        """Handle a link whose next packet is gone from the history; return whether it reads on."""
        sender_queue, stream = cursor.sender_queue, cursor.stream
        where = cursor.history.overtaken(cursor.position, cursor.following, stream.next_sequence)
        if sender_queue.subscription.snapshot:
            self.catch_ups.remove(sender_queue, stream)
            self._live(sender_queue, stream, where)
            self.on_attach(sender_queue, [stream])
            return False
        if not sender_queue.subscription.quality:
            self.catch_ups.remove(sender_queue)
            sender_queue.give_up()
            return False
        self._report(sender_queue, stream, where)
        cursor.move(where.position, where.next)
        return True

    def _report(self, sender_queue: SenderQueue, stream: Stream, where: Found) -> None:
        """Send the link the quality message that says where it goes on."""
        if sender_queue.subscription.quality:
            assert stream.history is not None
            before = stream.history.quality_before(where.position)
            before = before or self.qualities[stream.index].attached(stream.next_sequence or None)
            body = resumed(before, where)
            self.catch_ups.report(sender_queue, stream, where.next, body)


def resumed(before: bytes, where: Found) -> bytes:
    """Build the quality message for a link that goes on at `where` from `before`, the last one
    before."""
    quality: dict[str, Any] = msgspec.json.decode(before)
    kept = {key: quality[key] for key in _LASTING}
    if where.why:
        kept["state"] = "STALE"
        kept["stale"] = [*kept["stale"], *where.lost]
        kept["doubt"] = where.why
    return msgspec.json.encode(
        {**kept, "reason": "resume", "next": where.next, "lost": list(where.lost)}
    )
