"""Several gateways as one source of messages: from the links to the `StreamMerger`.

What it is for: it reads what the links hold, hands it to the merger in the order in which it came,
gives credit back for what has left the merge again, and schedules a turn for what has waited long
enough. For messages that wait behind a gap no credit is given back, so that a gateway sends no more
of them than its link's window.

What it leaves to others: keeping the links up (`upstream`), who consumes (`subscriber`).
"""

import asyncio
import time
from collections.abc import Callable

from feedhandler.amqp.subscribing.attachment import Intake
from feedhandler.amqp.subscribing.inbox import Message, feed_of, last_sequence, rewritten, trimmed
from feedhandler.amqp.subscribing.stream_merger import NEVER, WHOLE, StreamMerger
from feedhandler.codecs.feed_table import FeedTable, PacketHeader
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.scanner import frame_length, parse_header


class MessageShape:
    """Positions of messages of one grain, for `StreamMerger`."""

    def __init__(self, grain: str) -> None:
        self.grain = grain
        #: Positions are messages: gateways may pack them into packets that begin at different ones.
        self.by_message = False

    def span(self, message: Message) -> tuple[int, int]:
        """Return the first and the last position of a message: its own number where the feed counts
        messages."""
        sequence = message.sequence
        table = feed_of(message).table
        if table.fix:
            self.by_message = True
            return _fix_span(message, table)
        if self.grain == "message":
            if feed_of(message).counts_messages:
                self.by_message = True
                position = (sequence + message.number) << 16 | WHOLE
            else:
                position = sequence << 16 | message.number
            return position, position
        first = sequence << 16 | WHOLE
        return first, first if self.grain == "packet" else last_sequence(message) << 16 | WHOLE

    def cut(self, message: Message, after: int) -> Message:
        """Return a batch, or a packet of messages, without its packets up to number `after`."""
        return trimmed(message, after)

    def note(self, like: Message, body: bytes) -> Message:
        """Return a quality message like `like` with this body."""
        return rewritten(like, body)


def _fix_span(message: Message, table: FeedTable) -> tuple[int, int]:
    """Return the first and the last position of a body of FIX messages, whatever its grain.

    Each has a number of its own; but one that begins an epoch carries the number of the next
    message, and stands before it.
    """
    header, body = PacketHeader(), message.body
    length = frame_length(table, body, 0, len(body))
    if parse_header(table, body, 0, length, header):
        return message.sequence << 16 | WHOLE, message.sequence << 16 | WHOLE
    before = header.kind != PacketKind.DATA
    first = header.sequence - before
    last = first if before and length == len(body) else last_sequence(message)
    return first << 16 | WHOLE, last << 16 | WHOLE


class MultiSource:
    """The merged messages of several links, numbered from 0. `wake` is called when the timer has
    made something ready to take."""

    def __init__(self, grain: str, snapshot: bool, wake: Callable[[], None]) -> None:
        self._shape = MessageShape(grain)
        self.merge = StreamMerger(self._shape, snapshot)
        self._wake = wake
        self._intakes: dict[int, Intake] = {}
        #: By link, how many messages were read for which no credit was given back.
        self._owed: dict[int, int] = {}
        self._prefixes: dict[int, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None

    def up(self, link: int, intake: Intake, resumed: bool) -> None:
        """Add an attached link; `resumed`: it goes on behind the merged stream's last positions."""
        self._intakes[link] = intake
        self.merge.up(link, time.monotonic_ns(), resumed)
        self._set_timer()

    def down(self, link: int, messages: list[Message]) -> None:
        """Remove a link that has ended; `messages` are the last ones that it brought."""
        now_ns = time.monotonic_ns()
        for message in messages:
            self.merge.receive(link, message, now_ns)
        self._intakes.pop(link, None)
        self._owed.pop(link, None)
        self.merge.down(link, now_ns)
        self._set_timer()  # what it brought last may be the first that waits

    @property
    def waiting(self) -> bool:
        """Return whether there is anything to `read_links`."""
        return bool(self.merge.out) or any(x.link.count for x in self._intakes.values())

    def read_links(self, read: Callable[[Intake], list[Message]]) -> list[Message]:
        """Read all links by `read`, which empties one, and return the messages to hand out."""
        merge = self.merge
        now_ns = time.monotonic_ns()
        for link, intake in tuple(self._intakes.items()):
            if count := intake.link.count:
                self._owed[link] = self._owed.get(link, 0) + count
                for message in read(intake):
                    merge.receive(link, message, now_ns)
        for link, intake in tuple(self._intakes.items()):
            if (owed := self._owed.get(link, 0)) > (held := merge.held(link)):
                self._owed[link] = held
                intake.grant(owed - held)
        found, merge.out = merge.out, []
        for service, last in {message.service: message for message in found}.items():
            self._prefixes[service] = last.tag[:8]
        self._set_timer()
        return found

    def tags(self) -> dict[int, bytes]:
        """Return by service the tag up to which the merged stream has come.

        It is a packet's; where positions are messages, it is that of a message that begins a
        packet, for a gateway may have a packet that begins there and goes on.
        """
        mask = 0 if self._shape.by_message else WHOLE
        return {
            service: self._prefixes[service] + (at >> 16).to_bytes(8) + (at & mask).to_bytes(2)
            for service, at in self.merge.positions().items()
            if service in self._prefixes
        }

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        deadline = self.merge.deadline
        if deadline != NEVER:
            delay = max(0.0, (deadline - time.monotonic_ns()) / 1e9) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.merge.tick(time.monotonic_ns())
        self._set_timer()
        if self.merge.out:
            self._wake()
