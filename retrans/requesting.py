"""The client's side of every recovery protocol: connection, silence, and requests under way.

A `Client` has successive connections to one server and `Broken` ends one; a `TcpClient` has them
over TCP, and a `PacketClient` reads what comes packet by packet; a `DatagramClient` has a socket
over UDP. `UnderWay` are the requests that its owner waits for. What is said, and when a heartbeat
is due, is the protocols'; `retrans.protocols.setup` says what a client must do.

Sans-IO: bytes and the time are arguments.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import Broken, Event
from feedhandler.retrans.protocol import NEVER_NS, WireError
from feedhandler.retrans.settings import RecoverySettings

#: Most requests of one client that wait for packets; `outstanding_max` is at most this.
REQUESTS_MAX = 4096

AskedT = TypeVar("AskedT")


class UnderWay(dict[int, AskedT]):
    """The requests that a client's owner waits for, by `request_id`.

    `range_max`: most numbers of one request; `what` they number.
    """

    def __init__(self, counts: dict[str, int], range_max: int, what: str = "messages") -> None:
        super().__init__()
        self.counts = counts
        self.range_max = range_max
        self._what = what

    def check(self, request: Ask) -> bool:
        """Return whether there is room for a request.

        Raises `UsageError` for a range that is empty or too wide, and for a `request_id` that is
        under way.
        """
        width = request.end - request.first
        if not 0 < width <= self.range_max:
            raise UsageError(
                f"a request for {width} {self._what}", f"ask for 1 to {self.range_max}"
            )
        if request.request_id in self:
            raise UsageError(f"request {request.request_id} is under way", "use a new number")
        return len(self) < REQUESTS_MAX

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        if self.pop(request_id, None) is not None:
            self.counts["cancelled"] += 1


class Client(ABC):
    """The client's end of successive connections to one server; `counts` counts by name.

    Subclasses reset in `_begin` what belongs to one connection, and take requests: those that they
    do not have are counted as not asked.
    """

    #: The requests for packets that the owner waits for.
    _requests: UnderWay[Any]

    def __init__(self, settings: RecoverySettings, counts: dict[str, int]) -> None:
        self.counts = counts
        self._heartbeat_ns = settings.heartbeat_us * 1_000
        self._dead_ns = settings.dead_us * 1_000
        self._requests = UnderWay(counts, settings.request_packets_max)
        self._up = False

    @abstractmethod
    def _begin(self, now_ns: int) -> None:
        """Reset everything that belongs to one connection."""

    def connected(self, now_ns: int) -> None:
        """Begin a new connection; nothing of an earlier one counts any more."""
        self._begin(now_ns)
        self._up = True

    def disconnected(self, now_ns: int) -> None:
        """End the connection, and every request with it."""
        self._up = False
        self._begin(now_ns)

    @property
    def up(self) -> bool:
        """Whether there is a connection of which something is wanted."""
        return self._up

    @property
    def outstanding(self) -> int:
        """The number of requests for packets that the owner waits for."""
        return len(self._requests)

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Count a request for packets and return False: another server has them."""
        self.counts["not_asked"] += 1
        return False

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Count a request for a snapshot and return False: another server has them."""
        self.counts["not_asked"] += 1
        return False

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        self._requests.cancel(request_id)

    def _break(self, name: str, reason: str) -> Broken:
        """Give the connection up, and count why."""
        self.counts[name] += 1
        self.counts["broken"] += 1
        self._up = False
        return Broken(reason)

    def _late(self, name: str, since_ns: int, did: str, now_ns: int) -> Broken:
        """Give up a server of which something was wanted since `since_ns`; `did`: what it did."""
        lasted_ms = (now_ns - since_ns) // 1_000_000
        return self._break(name, f"the server {did} for {lasted_ms} ms")


class TcpClient(Client):
    """A client over TCP: output, and when either end was heard last."""

    def _begin(self, now_ns: int) -> None:
        """Reset everything that belongs to one connection."""
        self._output = bytearray()
        #: When the server was heard, and when we said something.
        self._heard_ns = self._said_ns = now_ns

    @property
    @abstractmethod
    def _held(self) -> int:
        """Bytes held of an incomplete packet."""

    def disconnected(self, now_ns: int) -> None:
        """End the connection, and every request with it."""
        if self._up and self._held:
            self.counts["cut_off"] += 1
        super().disconnected(now_ns)

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def _silence(self, now_ns: int) -> list[Event]:
        """Give up a server that was silent for `dead_us`."""
        if now_ns < self._heard_ns + self._dead_ns:
            return []
        return [self._late("silent", self._heard_ns, "was silent", now_ns)]


class PacketClient(TcpClient):
    """A client over TCP that reads the server's bytes packet by packet."""

    @abstractmethod
    def _packets(self, data: bytes) -> Iterator[Any]:
        """Yield the packets that are whole now. Raises `WireError` behind them for a fault."""

    @abstractmethod
    def _packet(self, packet: Any, now_ns: int, events: list[Event]) -> None:
        """Take a packet and append its events. Raises `WireError` for a wrong one."""

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in received bytes and return their events; behind the last one all is ignored."""
        if not self._up or not data:
            return []
        events: list[Event] = []
        try:
            for packet in self._packets(data):
                # Bytes of a packet whose length is wrong are no sign of life.
                self._heard_ns = now_ns
                self._packet(packet, now_ns, events)
                if not self._up:
                    break
        except WireError as error:
            events.append(self._break(error.name, f"the server sent {error.message}"))
        return events


class DatagramClient(Client):
    """A client over UDP: the socket takes the connection's place."""

    def _begin(self, now_ns: int) -> None:
        """Reset everything that belongs to one socket."""
        self._requests.clear()
        self._output: deque[bytes] = deque()
        #: Since when the server owes an answer; NEVER_NS: it owes none.
        self._owing_ns = NEVER_NS

    def data_to_send(self) -> bytes:
        """Return the next datagram to send, and forget it; b"" where there is none."""
        return self._output.popleft() if self._output else b""

    def _silence(self, now_ns: int) -> list[Event]:
        """Give up a server that has answered nothing for `dead_us`."""
        if now_ns < self._owing_ns + self._dead_ns:
            return []
        return [self._late("silent", self._owing_ns, "has not answered", now_ns)]
