"""The client of a TCP line, as the part that connects sees it: its counts, its events, its times.

`soupbin` and `length` have the two clients. Each is a `retrans.reconnection.ConnectionClient` whose
events are packets of the feed (`bytes`), `Joined`, and `Broken` as the last one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.counters import TCP_LINE_COUNTS
from feedhandler.retrans.events import Broken
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.settings import RecoverySettings


@dataclass(frozen=True, slots=True)
class Joined:
    """The stream is here from now on; `text` says which, for the log."""

    text: str


StreamEvent = bytes | Joined | Broken


class StreamFault(FeedhandlerError):
    """A reason to give the connection up; `name` is the count of it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class StreamClient(ABC):
    """Base of the clients: counts, bytes to be written, and when the server was last heard.

    `counts` counts by the names of `TCP_LINE_COUNTS`, but for those of the hand-over.
    """

    def __init__(self, times: RecoverySettings) -> None:
        self.counts: dict[str, int] = dict.fromkeys(TCP_LINE_COUNTS, 0)
        #: Whether another attempt soon would be in vain: the server refused, or its day is over.
        self.is_hopeless = False
        self._heartbeat_ns = times.heartbeat_us * 1_000
        self._dead_ns = times.dead_us * 1_000
        self._output = bytearray()
        self._heard_ns = self._said_ns = 0
        self._connected = False

    @property
    def up(self) -> bool:
        """Whether the stream is here."""
        return self._connected

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return self._heard_ns + self._dead_ns if self._connected else NEVER_NS

    def connected(self, now_ns: int) -> None:
        """Begin a new connection."""
        self.counts["connections"] += 1
        self._heard_ns = self._said_ns = now_ns
        self._connected, self.is_hopeless = True, False
        self._output.clear()

    def disconnected(self, now_ns: int) -> None:
        """End the connection."""
        self._connected = False
        self._output.clear()

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def leave(self) -> None:
        """Log out, where there is a login."""
        self._output += self._logout()

    def _logout(self) -> bytes:
        """Return what ends a session; b"" where there is none."""
        return b""

    @abstractmethod
    def feed(self, data: bytes, now_ns: int) -> list[StreamEvent]:
        """Take in received bytes and return their events; behind `Broken` all is ignored."""

    def tick(self, now_ns: int) -> list[StreamEvent]:
        """Let time pass: give a silent server up."""
        if not self._connected or now_ns < self._heard_ns + self._dead_ns:
            return []
        lasted_ms = (now_ns - self._heard_ns) // 1_000_000
        return [self._broken(StreamFault("silent", f"the server was silent for {lasted_ms} ms"))]

    def _broken(self, fault: StreamFault) -> Broken:
        """Give the connection up: count why, and take no more of it."""
        self.counts[fault.name] += 1
        self._connected = False
        return Broken(fault.message)
