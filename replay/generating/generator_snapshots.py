"""Refresh traffic of a generated session: snapshots of the services in turn, compressed.

`SnapshotSource` takes a service's state at one moment, as messages, and sends it packet by packet
on the service's refresh channel whenever it is asked for one: 580 with the number of the service's
last packet, the messages, 581, under the delivery flag that says that packets are compressed. Who
applies a snapshot and goes on behind LastSeqNum has the state of who followed from the start.

What zlib makes of a packet differs between its versions, and a session's messages must not. So no
decision here reads a compressed size: how many messages a packet gets follows from an estimate of
what they will come to (`COSTS`), and the flow reckons with that estimate too (`send` returns it).
Which messages stand in which packet is then the same everywhere; only the compressed bytes are not.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.replay.generating.generator_packets import SERVICES
from feedhandler.replay.generating.generator_tape import HEADER_BYTES, MESSAGES_MAX, REALTIME, ROOM
from feedhandler.retrans.snapshots import deflated

Array = np.ndarray[Any, Any]

#: Bytes that messages add to a compressed body, by type: the first one of a packet; a further one;
#: and each of its bytes that differs from the message before. Fitted to zlib's level 1 over both
#: built-in profiles: 0.5 % off in the mean of a service that matters, 22 % at most in one packet.
COSTS: dict[int, tuple[float, float, float]] = {
    140: (42.2, 5.8, 1.45),
    230: (62.0, 12.9, 0.93),
    231: (4.0, 4.0, 1.0),
    240: (67.1, 0.0, 1.27),
    241: (43.6, 0.0, 1.42),
    505: (43.2, 0.0, 1.41),
    546: (31.4, 31.4, 0.41),
    553: (124.4, 21.2, 0.90),
}
#: The same of a type that marks a beginning or an end.
MARK_COST = (6.0, 6.0, 1.0)
#: What a compressed body has beside its messages.
BODY_BYTES = 23.7
#: The most that a packet is aimed at: the estimate may be too low by a quarter.
AIM_MAX = ROOM * 3 / 4
#: Bytes that a quote compresses to, until a packet of them was estimated.
QUOTE_BYTES = 28.0
#: A packet is aimed at between one and three halves of the mean size, so that sizes differ.
SPREAD_PERCENT = (50, 101)
#: The channel of quotes.
QUOTES = 2
#: What inflated bodies may have.
INFLATED_MAX = 16_384


class SnapshotSource:
    """See the module. `states` answers, for a channel 0 to 6, with its messages as arrays of rows
    of equal size; `mean_bytes` and `mean_messages` are a packet's. Services take turns, but while
    there have been fewer messages than the mean (0: whatever comes), quotes, which compress best,
    come out of their turn."""

    def __init__(
        self, feed: Feed, tape: Any, dice: Any, states: Callable[[int], list[Array]],
        mean_bytes: float, mean_messages: float,
    ) -> None:  # fmt: skip
        self._feed, self._tape, self._dice, self._states = feed, tape, dice, states
        self._mean_bytes = mean_bytes
        self._mean_messages = int(mean_messages * 1024)
        self._due_bytes = self._due_messages = 0
        self._turn = REALTIME - 1
        self._quote_bytes = QUOTE_BYTES
        self._channel = REALTIME - 1
        self._messages: list[bytes] = []
        #: Of each message: its type, and what it costs as a packet's first of it and otherwise.
        self._costs: list[tuple[int, float, float]] = []
        self._at = 0

    def send(self) -> int:
        """Send one packet of the snapshot under way, or of the next service's; the bytes that it
        was reckoned to have, header and all."""
        if self._at >= len(self._messages):
            self._take()
        channel = self._channel
        low, spread = SPREAD_PERCENT
        self._due_bytes += int(self._mean_bytes * 64)
        aim = (low + self._dice.below(spread)) * self._mean_bytes / 100
        count, size = self._fitting(min(max(aim + self._due_bytes / 64 / 16, 60), AIM_MAX))
        body = self._packed(count)
        while len(body) > ROOM:  # the estimate was far too low
            count //= 2
            body = self._packed(count)
        self._at += count
        if channel == QUOTES:
            self._quote_bytes = (3 * self._quote_bytes + size / count) / 4
        self._due_bytes -= size * 64
        self._due_messages += self._mean_messages - count * 1024
        self._tape.send(REALTIME + channel, memoryview(body), 0, len(body), count)
        return HEADER_BYTES + size

    def _fitting(self, aim: float) -> tuple[int, int]:
        """How many messages come to about `aim` bytes, one at least, and to how many they do."""
        size, inflated, count, before = BODY_BYTES, 0, 0, 0
        for at in range(self._at, min(self._at + MESSAGES_MAX, len(self._messages))):
            kind, first, further = self._costs[at]
            cost = further if kind == before else first
            inflated += len(self._messages[at])
            if count and (size + cost / 2 > aim or inflated > INFLATED_MAX):
                break
            size, count, before = size + cost, count + 1, kind
        return count, int(size)

    def _packed(self, count: int) -> bytearray:
        """The next `count` messages, compressed."""
        whole = b"".join(self._messages[self._at : self._at + count])
        return bytearray(deflated(whole))

    def _take(self) -> None:
        """The next service's state, between start and end of refresh."""
        if self._mean_messages and self._due_messages > 0 and self._quotes_have_room():
            self._channel = QUOTES
        else:
            self._channel = self._turn = (self._turn + 1) % len(SERVICES)
        channel = self._channel
        last = int(self._tape.tables["sequences"][channel]) - 1
        start, end = (
            np.frombuffer(self._feed.encode_message(kind, last_seq_num=last), np.uint8)[None]
            for kind in (580, 581)
        )
        self._messages, self._costs, self._at = [], [], 0
        for rows in (start, *self._states(channel), end):
            self._messages += map(bytes, rows)
            self._costs += self._costs_of(rows)

    def _quotes_have_room(self) -> bool:
        """Whether quotes bring more messages a packet than the mean."""
        return self._mean_bytes / self._quote_bytes * 1024 > self._mean_messages

    def _costs_of(self, rows: Array) -> list[tuple[int, float, float]]:
        """Type and costs of messages of one type, in a row."""
        if not len(rows):
            return []
        at, size = self._feed.table.message_type_at, self._feed.table.message_type_size
        kind = int.from_bytes(rows[0, at : at + size].tobytes(), self._feed.byte_order)
        first, further, differing = COSTS.get(kind, MARK_COST)
        differ = np.zeros(len(rows), np.int64)
        np.sum(rows[1:] != rows[:-1], axis=1, out=differ[1:])
        return [(kind, first, further + differing * each) for each in differ.tolist()]


def rows_of(table: Array, size: int, which: Array | None = None) -> Array:
    """The messages of `size` bytes in a table, all or those that are marked."""
    rows = table.reshape(-1, size)
    return rows if which is None else rows[np.asarray(which) != 0]
