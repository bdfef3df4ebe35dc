"""The history of one channel for a server of Market Data Requests: messages, their times, the
books.

A `MarketHistory` uses the store of a `ServedChannel`, the same that Resend Requests are answered
from, and reads it by time: messages are stamped as they are stored, so that the stamps ascend. Its
`state` follows the store (`catch_up`), a bounded number of messages at a time; the publisher need
not wait for it. Numbers that the store lacks were left out by the publisher
(`ServedChannel.skipped`), or are missing here: then the state is not known.

Times are integer ns and arguments.
"""

import re

from feedhandler.retrans.fix.market_data import Refusal, Refused
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.server import NEVER, ServedChannel

#: SenderSubID, the sequence epoch of a message.
_EPOCH = re.compile(rb"\x0150=(\d{1,20})\x01")


class MarketHistory:
    """The history of one channel.

    A stamp of the store plus `offset_ns` is its time in UTC; what was sent before `since_ns`, UTC,
    is not known here.
    """

    def __init__(
        self,
        channel: ServedChannel,
        offset_ns: int = 0,
        since_ns: int = 0,
    ) -> None:
        self.channel = channel
        self.state = MarketState()
        #: Their sequence epoch, SenderSubID of the messages; 0: they have none.
        self.epoch = 0
        self._offset_ns = offset_ns
        self.since_ns = since_ns
        self._store_epoch = channel.store.epoch

    @property
    def end(self) -> int:
        """The number after the last that was sent."""
        return max(self.channel.store.end, 1)

    # -- the books -------------------------------------------------------------------------------

    def catch_up(self, messages: int) -> bool:
        """Apply up to `messages` messages to the state; return whether it has reached the end."""
        store = self.channel.store
        if self._store_epoch != store.epoch:
            self._store_epoch = store.epoch
            self.state.clear()
        at = self.state.number + 1
        taken = 0
        for first, end, data in store.packets(at, min(at + messages, store.end)):
            self._miss(at, first)
            self.epoch = _epoch_in(data)
            self.state.apply(data, end - 1)
            at = end
            taken += 1
        if not taken and at < store.end:
            following = store.packet(store.find(0, store.next_serial, at))
            self._miss(at, following[0] if following else store.end)
        return self.state.number + 1 >= store.end

    def _miss(self, first: int, end: int) -> None:
        """Advance the state over `first` to `end` - 1, which the store lacks.

        Where the publisher did not leave out all of them, the state is not known any more.
        """
        if first >= end:
            return
        if self._left_out(first, end - 1) < end - first:
            self.state.lost()
        self.state.number = end - 1

    def _left_out(self, first: int, last: int) -> int:
        """Return how many of these numbers the publisher left out."""
        return sum(end - begin + 1 for begin, end in self.channel.skipped.within(first, last))

    # -- the messages ----------------------------------------------------------------------------

    def numbers(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the first number and the number after the last of a time range's messages.

        From `begin_ns` to before `end_ns` (-1: until now), UTC. Raises `Refused` where messages of
        the beginning are not held.
        """
        store = self.channel.store
        if begin_ns < (held_from_ns := self._held_from_ns()):
            known = store.count > 0 or not store.next_serial
            raise Refused(
                Refusal.TIME_NOT_HELD,
                "messages of the beginning are not held"
                + ("" if known else ", and none of the new sequence epoch was sent yet"),
                held_from_ns=held_from_ns if known else 0,
            )
        begin = self._find(begin_ns)
        end = store.next_serial if end_ns < 0 else self._find(end_ns)
        if begin >= end:
            return (self.end, self.end)
        return (self._number(begin), self._number(end - 1) + 1)

    def _held_from_ns(self) -> int:
        """Return since when all that was sent is held; `NEVER` where nothing is."""
        store = self.channel.store
        if store.next_serial == store.count:
            return self.since_ns
        return self._time_ns(store.next_serial - store.count) if store.count else NEVER

    def _find(self, time_ns: int) -> int:
        """Return the serial of the first message that was sent at this time or later."""
        store = self.channel.store
        low, high = store.next_serial - store.count, store.next_serial
        while low < high:
            middle = (low + high) // 2
            if self._time_ns(middle) < time_ns:
                low = middle + 1
            else:
                high = middle
        return low

    def _time_ns(self, serial: int) -> int:
        found = self.channel.store.packet(serial)
        assert found is not None
        return found[3] + self._offset_ns

    def _number(self, serial: int) -> int:
        """Return the number of the message with this serial."""
        found = self.channel.store.packet(serial)
        assert found is not None
        return found[0]

    def epoch_of(self, number: int) -> int:
        """Return the sequence epoch in a message (SenderSubID); 0 without one, or if not held."""
        found = self.channel.store.packets(number, number + 1)
        return _epoch_in(found[0][2]) if found else 0

    def slice(self, first: int, end: int) -> list[tuple[int, int, bytes]]:
        """Return (first number, number after the last, bytes) of the messages `first` to `end` - 1.

        What the publisher left out is a GapFill. Raises `Refused` where some are not held.
        """
        messages: list[tuple[int, int, bytes]] = []
        at = first
        packets = self.channel.store.packets(first, end)
        for begin, after, data in [*packets, (end, end, b"")]:
            if begin > at:
                messages += self._fills(at, begin - 1)
            if data:
                messages.append((begin, after, data))
                at = after
        return messages

    def _fills(self, first: int, last: int) -> list[tuple[int, int, bytes]]:
        """Return GapFills for numbers that the store lacks and the publisher left out.

        Raises `Refused` where it did not leave out all of them.
        """
        if first < self.channel.store.first:
            raise Refused(Refusal.CUT_SHORT, f"message {first} is no longer held: ask anew")
        if self._left_out(first, last) < last - first + 1:
            raise Refused(
                Refusal.NOT_COMPLETE, f"the server lacks messages among {first} to {last}"
            )
        return [(first, last + 1, self.channel.gap_fill(first, last + 1))]


def _epoch_in(data: bytes) -> int:
    """Return SenderSubID (50) of a message; 0 where it has none."""
    found = _EPOCH.search(data)
    return int(found[1]) if found else 0
