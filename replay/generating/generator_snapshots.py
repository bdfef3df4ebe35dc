"""Refresh traffic of a generated session: snapshots of the services in turn, compressed.

`SnapshotSource` takes a service's state at one moment, as messages, and sends it packet by packet
on the service's refresh channel whenever it is asked for one: 580 with the number of the service's
last packet, the messages, 581, under the delivery flag that says that packets are compressed. Who
applies a snapshot and goes on behind LastSeqNum has the state of who followed from the start.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.replay.generating.deflate import Deflater
from feedhandler.replay.generating.generator_packets import SERVICES
from feedhandler.replay.generating.generator_tape import MESSAGES_MAX, REALTIME, ROOM

Array = np.ndarray[Any, Any]

#: Bytes that a message compresses to, at first; then what the service's last packet came to.
FIRST_RATIO = 28.0
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
        self._deflate = Deflater().compress
        self._ratios = [FIRST_RATIO] * REALTIME
        self._channel = REALTIME - 1
        self._messages: list[bytes] = []
        self._at = 0

    def send(self) -> None:
        """Send one packet of the snapshot under way, or of the next service's."""
        if self._at >= len(self._messages):
            self._take()
        channel = self._channel
        low, spread = SPREAD_PERCENT
        self._due_bytes += int(self._mean_bytes * 64)
        aim = (low + self._dice.below(spread)) * self._mean_bytes / 100
        aim = min(max(aim + self._due_bytes / 64 / 16, 60), ROOM)
        count = min(max(int(aim / self._ratios[channel]), 1), MESSAGES_MAX)
        while True:
            messages = self._messages[self._at : self._at + count]
            whole = b"".join(messages)
            packed = self._deflate(whole) if len(whole) <= INFLATED_MAX else b""
            if packed and len(packed) <= ROOM:
                break
            count = max(len(messages) // 2, 1)
        self._at += len(messages)
        if len(messages) == count and count > 1:
            self._ratios[channel] = (3 * self._ratios[channel] + len(packed) / count) / 4
        self._due_bytes -= len(packed) * 64
        self._due_messages += self._mean_messages - len(messages) * 1024
        body = memoryview(bytearray(packed))
        self._tape.send(REALTIME + channel, body, 0, len(body), len(messages))

    def _take(self) -> None:
        """The next service's state, between start and end of refresh."""
        if self._mean_messages and self._due_messages > 0 and self._quotes_have_room():
            self._channel = QUOTES
        else:
            self._channel = self._turn = (self._turn + 1) % len(SERVICES)
        channel = self._channel
        last = int(self._tape.tables["sequences"][channel]) - 1
        encode = self._feed.encode_message
        rows = [row for rows in self._states(channel) for row in map(bytes, rows)]
        self._messages = [encode(580, last_seq_num=last), *rows, encode(581, last_seq_num=last)]
        self._at = 0

    def _quotes_have_room(self) -> bool:
        """Whether quotes bring more messages a packet than the mean."""
        return self._mean_bytes / self._ratios[QUOTES] * 1024 > self._mean_messages


def rows_of(table: Array, size: int, which: Array | None = None) -> Array:
    """The messages of `size` bytes in a table, all or those that are marked."""
    rows = table.reshape(-1, size)
    return rows if which is None else rows[np.asarray(which) != 0]
