"""From generated packets to blocks that a sender takes: every line's copy, with its faults.

A step of the session comes in as packets; a block goes out: the sends of all lines that are due
by then, in the order in which they leave. What a fault delays or displaces waits here for its
block, bounded by the greatest delay and reordering that a line may have. Sans-IO: sockets and
time are the exchange's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedhandler.replay.generator_packets import Outgoing
from feedhandler.replay.inject import FaultCounts, Injector, LineFaults


@dataclass(frozen=True, slots=True)
class Block:
    """Datagrams in the order in which they leave, as the columns of `Sender.send_block`."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    destinations: NDArray[np.uint16]
    due_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.due_ns)


class BlockMaker:
    """Gives every packet to every line, with the line's faults.

    `destinations[line][service]` is the number that the sender knows a line's group by.
    """

    def __init__(
        self,
        destinations: Sequence[dict[int, int]],
        faults: Sequence[LineFaults],
        seed: int,
        spare_shared: bool,
    ) -> None:
        self._destinations = destinations
        self._injector = Injector(faults, seed, spare_shared)
        self._delay_min_ns = 1000 * min(line.delay_us for line in faults)
        #: Packets that some line has still to send, by number; `_oldest` is the first of them.
        self._packets: dict[int, Outgoing] = {}
        self._next = self._oldest = 0
        #: Sends to come: (due, turn, packet, line). Turns keep a line's order at equal times.
        self._sends: list[tuple[int, int, int, int]] = []
        self._turn = 0

    @property
    def counts(self) -> list[FaultCounts]:
        """What the faults did so far, by line; the last block's faultless packets not counted."""
        return self._injector.counts

    def block(self, packets: Sequence[Outgoing], until_ns: int) -> Block:
        """The sends due by `until_ns`; no packet given later is due earlier than that."""
        due_ns = np.array([packet.due_ns for packet in packets], np.int64)
        self._keep(packets)
        for line, sends in enumerate(self._injector.plan(due_ns)):
            self._add(sends.due_ns.tolist(), sends.index.tolist(), line)
        return self._release(until_ns + self._delay_min_ns)

    def last_block(self, packets: Sequence[Outgoing]) -> Block:
        """All that is still to be sent, then the session's last packets, without faults."""
        for line, sends in enumerate(self._injector.finish()):
            self._add(sends.due_ns.tolist(), sends.index.tolist(), line)
        after_ns = max((due_ns for due_ns, _, _, _ in self._sends), default=0)
        numbers = self._keep(packets)
        due = [max(packet.due_ns, after_ns) for packet in packets]
        for line in range(len(self._destinations)):
            self._add(due, numbers, line)
        return self._release(None)

    def _keep(self, packets: Sequence[Outgoing]) -> range:
        numbers = range(self._next, self._next + len(packets))
        self._packets.update(zip(numbers, packets, strict=True))
        self._next = numbers.stop
        return numbers

    def _add(self, due_ns: Sequence[int], numbers: Sequence[int], line: int) -> None:
        for due, number in zip(due_ns, numbers, strict=True):
            self._turn += 1
            self._sends.append((due, self._turn, number, line))

    def _release(self, until_ns: int | None) -> Block:
        """A block of what is due; with None of everything."""
        self._sends.sort()
        if until_ns is None:
            count = len(self._sends)
        else:
            count = sum(due_ns <= until_ns for due_ns, _, _, _ in self._sends)
        sends, self._sends = self._sends[:count], self._sends[count:]
        block = self._block(sends)
        oldest = min((number for _, _, number, _ in self._sends), default=self._next)
        for number in range(self._oldest, min(oldest, self._injector.oldest_held)):
            del self._packets[number]
            self._oldest = number + 1
        return block

    def _block(self, sends: Sequence[tuple[int, int, int, int]]) -> Block:
        places: dict[int, int] = {}
        parts: list[bytes] = []
        size = 0
        rows: list[tuple[int, int, int, int]] = []
        for due_ns, _, number, line in sends:
            packet = self._packets[number]
            length = len(packet.packet)
            place = places.get(number)
            if place is None:
                place = places[number] = size
                parts.append(packet.packet)
                size += length
            rows.append((place, length, self._destinations[line][packet.service], due_ns))
        columns: Any = np.array(rows, np.int64).reshape(-1, 4).T
        return Block(
            np.frombuffer(b"".join(parts), np.uint8),
            columns[0].astype(np.uint32),
            columns[1].astype(np.uint32),
            columns[2].astype(np.uint16),
            columns[3].copy(),
        )
