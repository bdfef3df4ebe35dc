"""Blocks for the sender, made of packets: every line's copy, with injected faults.

A `LineSet` is lines that carry the same packets (A and B of the market data, A and B of the
refreshes), with the faults of each. The input of a step is a list of packets per set; the output is
a block: the sends of all lines that are due by then, in the order in which they leave. Delayed and
displaced packets wait here for their block, bounded by the greatest delay and reordering of a line.
Sans-IO: sockets and time are the exchange's.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedhandler.replay.generating.packets import Outgoing
from feedhandler.replay.playing.inject import FaultCounts, Injector, LineFaults, LineSends
from feedhandler.replay.playing.plain_block import PlainBlock


class Send(NamedTuple):
    """One datagram on one line. `turn` keeps a line's order where times are equal."""

    due_ns: int
    turn: int
    destination: int
    packet: bytes


class LineSet:
    """A set of lines that carry the same packets, with the faults of each.

    `destinations[line][service]` is the sender's number of a line's group; `faults` has an entry
    per line; `together` is the rate of loss on all of them at once.
    """

    def __init__(
        self,
        destinations: Sequence[dict[int, int]],
        faults: Sequence[LineFaults],
        seed: int,
        spare_shared: bool = False,
        together: float = 0.0,
    ) -> None:
        self._destinations = destinations
        self._injector = Injector(faults, seed, spare_shared, together)
        self.delay_min_ns = 1000 * min(line.delay_us for line in faults)
        #: Packets that the injector may still name, by their number there.
        self._packets: dict[int, Outgoing] = {}
        self._next = self._oldest = 0
        self._latest_ns = 0
        self._over = False

    @property
    def counts(self) -> list[FaultCounts]:
        """Counts of faults so far, by line; packets given after `finish` are not counted."""
        return self._injector.counts

    @property
    def held(self) -> int:
        """Packets that are kept because a fault displaced them."""
        return len(self._packets)

    def sends(self, packets: Sequence[Outgoing]) -> Iterator[tuple[int, int, bytes]]:
        """Yield (due in ns, destination, packet) of the next packets, line by line, in order."""
        if self._over:
            yield from self._unharmed(packets)
            return
        due_ns = np.array([packet.due_ns for packet in packets], np.int64)
        self._packets.update(enumerate(packets, self._next))
        self._next += len(packets)
        yield from self._planned(self._injector.plan(due_ns))
        for number in range(self._oldest, self._injector.oldest_held):
            del self._packets[number]
        self._oldest = self._injector.oldest_held

    def finish(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield what faults still hold back; later packets are sent without faults."""
        self._over = True
        yield from self._planned(self._injector.finish())
        self._packets.clear()

    def _planned(self, lines: Iterable[LineSends]) -> Iterator[tuple[int, int, bytes]]:
        packets = self._packets
        for destinations, sends in zip(self._destinations, lines, strict=True):
            for due_ns, number in zip(sends.due_ns.tolist(), sends.index.tolist(), strict=True):
                packet = packets[number]
                yield due_ns, destinations[packet.service], packet.packet
            if len(sends):
                self._latest_ns = max(self._latest_ns, int(sends.due_ns[-1]))

    def _unharmed(self, packets: Sequence[Outgoing]) -> Iterator[tuple[int, int, bytes]]:
        """Yield every packet on every line, not before what was planned earlier."""
        for destinations in self._destinations:
            for packet in packets:
                due_ns = max(packet.due_ns, self._latest_ns)
                yield due_ns, destinations[packet.service], packet.packet


class BlockMaker:
    """A merger of the sends of several line sets into blocks."""

    def __init__(self, sets: Sequence[LineSet]) -> None:
        self._sets = sets
        self._delay_min_ns = min(lines.delay_min_ns for lines in sets)
        self._sends: list[Send] = []
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Sends that are not due yet."""
        return len(self._sends)

    def block(self, packets: Sequence[Sequence[Outgoing]], until_ns: int) -> PlainBlock:
        """Add packets and return the sends due by `until_ns`, plus the least delay of a line.

        `packets` has a sequence per line set, each in order of `due_ns`; packets of later calls
        must not be due before `until_ns`.
        """
        for lines, own in zip(self._sets, packets, strict=True):
            self._add(lines.sends(own))
        return self._release(until_ns + self._delay_min_ns)

    def finish(self, number: int) -> None:
        """End the faults of line set `number`; what they held back comes with the next block."""
        self._add(self._sets[number].finish())

    def last_block(self) -> PlainBlock:
        """End all faults and return all remaining sends."""
        for lines in self._sets:
            self._add(lines.finish())
        return self._release(None)

    def _add(self, sends: Iterable[tuple[int, int, bytes]]) -> None:
        for due_ns, destination, packet in sends:
            self._turn += 1
            self._sends.append(Send(due_ns, self._turn, destination, packet))

    def _release(self, until_ns: int | None) -> PlainBlock:
        """Take the sends due by `until_ns`, or all where it is None, as a block."""
        self._sends.sort()
        count = len(self._sends)
        if until_ns is not None:
            count = sum(send.due_ns <= until_ns for send in self._sends)
        sends, self._sends = self._sends[:count], self._sends[count:]
        return _block(sends)


def _block(sends: Sequence[Send]) -> PlainBlock:
    """Build the columns of the sends; a packet that leaves on several lines is held once."""
    indexes: dict[int, int] = {}
    parts: list[bytes] = []
    size = 0
    rows: list[tuple[int, int, int, int]] = []
    for due_ns, _, destination, packet in sends:
        # The sends keep their packets alive, so an identity names one packet.
        index = indexes.get(id(packet))
        if index is None:
            index = indexes[id(packet)] = size
            parts.append(packet)
            size += len(packet)
        rows.append((index, len(packet), destination, due_ns))
    columns: Any = np.array(rows, np.int64).reshape(-1, 4).T
    return PlainBlock(
        np.frombuffer(b"".join(parts), np.uint8),
        columns[0].astype(np.uint32),
        columns[1].astype(np.uint32),
        columns[2].astype(np.uint16),
        columns[3].copy(),
    )
