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

import bisect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.tape import HEADER_BYTES, MESSAGES_MAX, REALTIME, ROOM
from feedhandler.retrans.snapshots import deflated

Array = np.ndarray[Any, Any]

#: Bytes that messages add to a compressed body, in hundredths, by type: the first of a packet; a
#: further one; and each of its bytes that differs from the message before. Fitted to zlib's level 1
#: over both built-in profiles: 0.5 % off in the mean of a service that matters, 22 % at most in one
#: packet.
COSTS: dict[int, tuple[int, int, int]] = {
    140: (4220, 580, 145),
    230: (6200, 1290, 93),
    231: (400, 400, 100),
    240: (6710, 0, 127),
    241: (4360, 0, 142),
    505: (4320, 0, 141),
    546: (3140, 3140, 41),
    553: (12440, 2120, 90),
}
#: The same of a type that marks a beginning or an end.
BOUNDARY_COST = (600, 600, 100)
#: What a compressed body has beside its messages, in hundredths of a byte.
BODY_COST = 2370
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
        self, feed: Feed, tape: Any, prng: Any, states: Callable[[int], list[Array]],
        mean_bytes: float, mean_messages: float,
    ) -> None:  # fmt: skip
        self._feed, self._tape, self._prng, self._states = feed, tape, prng, states
        self._mean_bytes = mean_bytes
        self._mean_messages = int(mean_messages * 1024)
        self._due_bytes = self._due_messages = 0
        self._turn = REALTIME - 1
        self._quote_bytes = QUOTE_BYTES
        self._channel = REALTIME - 1
        self._state = _State(feed)
        self._at = 0

    def send(self) -> int:
        """Send one packet of the snapshot under way, or of the next service's; the bytes that it
        was reckoned to have, header and all."""
        if self._at >= self._state.count:
            self._begin_next()
        channel = self._channel
        low, spread = SPREAD_PERCENT
        self._due_bytes += int(self._mean_bytes * 64)
        aim = (low + self._prng.below(spread)) * self._mean_bytes / 100
        aim = min(max(aim + self._due_bytes / 64 / 16, 60), AIM_MAX)
        count, size = self._state.fitting(self._at, aim)
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

    def _packed(self, count: int) -> bytearray:
        """Compress the next `count` messages."""
        return bytearray(deflated(self._state.bytes_of(self._at, count)))

    def _begin_next(self) -> None:
        """Begin the next service's state, between start and end of refresh."""
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
        self._state, self._at = _State(self._feed, start, *self._states(channel), end), 0

    def _quotes_have_room(self) -> bool:
        """Return whether quotes bring more messages a packet than the mean."""
        return self._mean_bytes / self._quote_bytes * 1024 > self._mean_messages


class _State:
    """A service's messages in order, given as rows of one type each, and what each of them is
    reckoned to come to when it is compressed, in hundredths of a byte."""

    def __init__(self, feed: Feed, *given: Array) -> None:
        parts = [rows for rows in given if len(rows)]
        self.count = sum(map(len, parts))
        self._bytes = b"".join(rows.tobytes() for rows in parts)
        #: Of each message, what it costs as the first one of a packet.
        self._first: list[int] = []
        sizes: list[int] = []
        costs = [np.empty(0, np.int64)]
        for rows in parts:
            first, behind = _costs_of(feed, rows)
            self._first += [first] * len(rows)
            sizes += [rows.shape[1]] * len(rows)
            costs.append(behind)
        behind = np.concatenate(costs)
        sums = np.cumsum(np.concatenate([[0], behind]))
        #: Where each begins, in bytes and in costs, and twice the middle of its cost: all in order.
        self._starts = [0, *itertools.accumulate(sizes)]
        self._sums: list[int] = sums.tolist()
        self._middles: list[int] = (2 * sums[:-1] + behind).tolist()

    def fitting(self, at: int, aim: float) -> tuple[int, int]:
        """Return how many messages from index `at` on have about `aim` bytes, one at least, and how
        many bytes those have: as many messages as have their middle within the aim."""
        before = BODY_COST + self._first[at] - self._sums[at + 1]
        most = min(at + MESSAGES_MAX, self.count)
        end = bisect.bisect_right(self._middles, 2 * (aim * 100 - before), at + 1, most)
        room = self._starts[at] + INFLATED_MAX
        end = min(end, bisect.bisect_right(self._starts, room, at + 1, end + 1) - 1)
        end = max(end, at + 1)
        return end - at, (before + self._sums[end]) // 100

    def bytes_of(self, at: int, count: int) -> bytes:
        """Return the bytes of `count` messages from index `at` on."""
        return self._bytes[self._starts[at] : self._starts[at + count]]


def _costs_of(feed: Feed, rows: Array) -> tuple[int, Array]:
    """Estimate the cost of messages of one type: the first of a packet, and each after another."""
    at, size = feed.table.message_type_at, feed.table.message_type_size
    kind = int.from_bytes(rows[0, at : at + size].tobytes(), feed.byte_order)
    first, further, differing = COSTS.get(kind, BOUNDARY_COST)
    costs = np.empty(len(rows), np.int64)
    costs[0] = first
    costs[1:] = further + differing * np.sum(rows[1:] != rows[:-1], axis=1)
    return first, costs


def rows_of(table: Array, size: int, which: Array | None = None) -> Array:
    """Return the messages of `size` bytes in a table, all or those that are marked."""
    rows = table.reshape(-1, size)
    return rows if which is None else rows[np.asarray(which) != 0]
