"""Packets that are handed over ahead of time, and taken when they are due."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from feedhandler.replay.generating.packets import Outgoing


class DuePackets(ABC):
    """A queue of packets in the order of their due times; `elapsed_ns` returns the time since the
    session's start.

    `publish` may be called by another thread than everything else. `advance` is to follow it soon:
    what waits for it is not bounded.
    """

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        self._elapsed_ns = elapsed_ns
        self._coming: deque[Outgoing] = deque()

    @abstractmethod
    def _process(self, outgoing: Outgoing) -> None:
        """Take in a packet that is due."""

    def publish(self, packets: Iterable[Outgoing]) -> None:
        """Add packets that are taken from their due times on; those without messages are not."""
        self._coming.extend(packet for packet in packets if packet.messages)

    @property
    def waiting(self) -> int:
        """Packets published that are not taken yet."""
        return len(self._coming)

    def advance(self) -> None:
        """Take in what is due by now."""
        coming, now_ns = self._coming, self._elapsed_ns()
        while coming and coming[0].due_ns <= now_ns:
            self._process(coming.popleft())
