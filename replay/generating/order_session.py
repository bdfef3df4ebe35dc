"""Generated sessions of the feeds that have a writer: an order flow as packets of one channel.

An `OrderSession` answers like `SessionGenerator`: fed with simulated time, it gives the packets
that fall due, so that a capture and the real-time exchange draw from it alike. Messages that come
within `BATCH_NS` share a packet, as many as fit; an idle channel sends heartbeats; `close` ends the
session as the feed's framing does. Sans-IO.
"""

from collections.abc import Iterator
from datetime import date
from typing import Any

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import day_start_ns
from feedhandler.replay.generating.generator import DEFAULT_DAY, NINE_O_CLOCK_NS
from feedhandler.replay.generating.order_flow import Action, OrderFlow
from feedhandler.replay.generating.order_writers import WRITERS
from feedhandler.replay.generating.packets import PACKET_BYTES_MAX, Outgoing

#: The channel, as addresses number it: the first line of all; and its number in packets and
#: requests, which is a gateway's service.
CHANNEL, SERVICE = 101, 1
#: How long a packet waits for more messages, and the messages of one at most.
BATCH_NS, PACKET_MESSAGES_MAX = 100_000, 20
#: Packets at the end of a session: its end is sent more than once, as a line may lose it.
LAST_PACKETS = 3
_SECOND_NS = 1_000_000_000


class OrderSession:
    """One session of a feed in `WRITERS`.

    `day` and `opening_ns` (after midnight, exchange time) date the messages. Raises `UsageError`
    for a feed without a writer, and for settings out of bounds.
    """

    #: The channels, and the one that carries orders.
    services, orders = (CHANNEL,), CHANNEL

    def __init__(
        self,
        feed: Feed,
        seed: int,
        *,
        instruments: int = 100,
        messages_per_s: float = 20_000.0,
        heartbeat_ns: int = _SECOND_NS,
        day: date = DEFAULT_DAY,
        opening_ns: int = NINE_O_CLOCK_NS,
    ) -> None:
        if feed.name not in WRITERS:
            raise UsageError(
                f"no orders are generated for {feed.name}", f"known: {', '.join(WRITERS)}"
            )
        if heartbeat_ns < 1_000_000:
            raise UsageError(f"heartbeats every {heartbeat_ns} ns", "use 1 ms or more")
        self.feed, self.writer = feed, WRITERS[feed.name]
        self._write = self.writer.new()
        self.midnight_ns = day_start_ns(day, feed.zone)
        self.start_ns = self.midnight_ns + opening_ns
        flow = OrderFlow(
            seed, start_ns=self.start_ns, instruments=instruments, messages_per_s=messages_per_s
        )
        self._actions = flow.actions()
        self._coming: Action | None = None
        self._heartbeat_ns = heartbeat_ns
        self._sequence, self._second = 1, -1
        #: Bytes of messages sent so far.
        self._offset = 0
        self._open: list[bytes] = []
        self._open_ns = self._sent_ns = self.start_ns
        self._begun = self._closed = False
        #: Market messages in the packets given so far.
        self.messages = 0

    def step(self, until_ns: int) -> list[Outgoing]:
        """Return the packets due by `until_ns` after the start, in order of `due_ns`."""
        until_ns += self.start_ns
        outgoing: list[Outgoing] = []
        while not self._closed and (action := self._next_action(until_ns)) is not None:
            outgoing += self._idle(action.time_ns)
            outgoing += self._report(action)
        return outgoing + self._idle(until_ns)

    def packets(self, duration_ns: int, step_ns: int = 10_000_000) -> Iterator[Outgoing]:
        """Yield all packets of the session's first `duration_ns`, and those of its close."""
        for until_ns in range(step_ns, duration_ns + step_ns, step_ns):
            yield from self.step(min(until_ns, duration_ns))
        yield from self.close(duration_ns)

    def close(self, now_ns: int) -> list[Outgoing]:
        """End the session: what is open, its last message, and the packets that end it."""
        found = self.step(now_ns)
        found += self._cut()
        time_ns = max(now_ns + self.start_ns, self._sent_ns)
        self._closed = True
        for message in self.writer.messages(self.feed, self.writer.end(time_ns, self.midnight_ns)):
            self._open, self._open_ns = [message], time_ns
            found += self._cut()
        found += [self._control(time_ns) for _ in range(LAST_PACKETS)]
        return found

    def next_sequences(self) -> dict[int, int]:
        """Return the number that the channel's next packet will carry."""
        return {CHANNEL: self._sequence}

    def _next_action(self, until_ns: int) -> Action | None:
        """Take the next action, where it happens by `until_ns`."""
        if self._coming is None:
            self._coming = next(self._actions)
        if self._coming.time_ns > until_ns:
            return None
        action, self._coming = self._coming, None
        return action

    def _report(self, action: Action) -> list[Outgoing]:
        """Add an action's messages to the open packet; return the packets that are full."""
        writer, found = self.writer, []
        messages = self._write(action, self.midnight_ns)
        if not self._begun:
            self._begun = True
            messages = writer.begin(action.time_ns, self.midnight_ns) + messages
        second = action.time_ns // _SECOND_NS
        if second != self._second:
            # What follows counts from this second: it begins a packet.
            found += self._cut()
            self._second = second
            messages = writer.second(action.time_ns, self.midnight_ns) + messages
        for message in writer.messages(self.feed, messages):
            if self._open and self._is_full(len(message), action.time_ns):
                found += self._cut()
            if not self._open:
                self._open_ns = action.time_ns
            self._open.append(message)
        return found

    def _is_full(self, size: int, time_ns: int) -> bool:
        used = sum(map(len, self._open)) + self.feed.table.header_size
        return (
            len(self._open) >= PACKET_MESSAGES_MAX
            or used + size > PACKET_BYTES_MAX
            or time_ns - self._open_ns >= BATCH_NS
        )

    def _cut(self) -> list[Outgoing]:
        """Return the open packet, if there is one."""
        if not self._open:
            return []
        messages, self._open = self._open, []
        time_ns = self._open_ns
        packet = self.feed.encode_packet(
            sequence=self._sequence, messages=messages, **self._header(time_ns)
        )
        self._sequence += len(messages) if self.feed.counts_messages else 1
        self._offset += sum(map(len, messages))
        self.messages += len(messages)
        self._sent_ns = max(self._sent_ns, time_ns)
        return [Outgoing(time_ns - self.start_ns, CHANNEL, packet, len(messages))]

    def _header(self, time_ns: int) -> dict[str, Any]:
        """Return what the header of a packet of that time has."""
        writer = self.writer
        given: dict[str, Any] = {**writer.header, "send_time": time_ns if writer.sends else 0}
        return {**given, "header": {writer.offset: self._offset}} if writer.offset else given

    def _idle(self, until_ns: int) -> list[Outgoing]:
        """Return the open packet, if it waits no longer, and a channel's heartbeats until then."""
        waits = until_ns - self._open_ns < BATCH_NS
        found = [] if waits else self._cut()
        while not self._open and until_ns - self._sent_ns >= self._heartbeat_ns:
            self._sent_ns += self._heartbeat_ns
            found.append(self._control(self._sent_ns))
        return found

    def _control(self, time_ns: int) -> Outgoing:
        """Return a heartbeat, or after the close what ends a session."""
        last = self.writer.last if self._closed else {}
        packet = self.feed.encode_packet(
            kind="heartbeat" if self.feed.description.packet.kind else "data",
            sequence=self._sequence, **self._header(time_ns), **last,
        )  # fmt: skip
        return Outgoing(time_ns - self.start_ns, CHANNEL, packet, 0)
