"""The server's side of every protocol: admission of clients, and a client's session.

A `SessionServer` admits clients up to a bound and counts. A `ClientSession` is one client's
connection: whether it is paused or silent, and how it ends; a `PacketSession` also reads what comes
packet by packet; a `DatagramClientSession` is a client over UDP, known only by its requests.
`sessions` defines what the owner of the sockets relies on; the messages are the protocols'.

Sans-IO: bytes and the time are arguments.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from feedhandler.retrans.protocol import NEVER_NS, WireError
from feedhandler.retrans.store import PacketStore

#: Most datagrams that wait to go to one client.
DATAGRAMS_WAITING_MAX = 4096


class ServingSettings(Protocol):
    """The bound of clients, and the times that say when one is dead, in µs."""

    @property
    def clients_max(self) -> int:
        """Upper limit on clients at a time."""
        ...

    @property
    def heartbeat_us(self) -> int:
        """Interval of heartbeats."""
        ...

    @property
    def dead_us(self) -> int:
        """Silence after which a client is dead."""
        ...


class Admitted(Protocol):
    """A session that can be refused."""

    closed: str


SettingsT = TypeVar("SettingsT", bound=ServingSettings)
SessionT = TypeVar("SessionT", bound=Admitted)


class ClientsServer(Generic[SettingsT, SessionT]):
    """State that all clients of a server share; `counts` counts by name, `clients` and
    `clients_refused` among them."""

    def __init__(self, settings: SettingsT, counts: dict[str, int]) -> None:
        self.settings = settings
        self.sessions: set[SessionT] = set()
        self.counts = counts

    def admit(self, session: SessionT) -> SessionT:
        """Return the session of a new client; `closed` where there are too many."""
        if len(self.sessions) >= self.settings.clients_max:
            self.counts["clients_refused"] += 1
            session.closed = f"more than {self.settings.clients_max} clients"
        else:
            self.counts["clients"] += 1
            self.sessions.add(session)
        return session


ServerT = TypeVar("ServerT", bound=ClientsServer[Any, Any])


class PacketsOwed:
    """Packets of an accepted request that are not sent yet: numbers `at` to `end` - 1 of a store.

    `flag` is the delivery flag that the packets get, where there is one.
    """

    __slots__ = ("at", "end", "epoch", "flag", "service", "store")

    def __init__(
        self, store: PacketStore, at: int, end: int, service: int = 0, flag: int = 0
    ) -> None:
        self.store = store
        self.epoch = store.epoch
        self.at = at
        self.end = end
        self.service = service
        self.flag = flag

    @property
    def same(self) -> bool:
        """Whether the store still has the sequence epoch that the request was about."""
        return self.store.epoch == self.epoch


class ClientSession(ABC, Generic[ServerT]):
    """The server's end of one client's connection.

    closed      the reason why the connection must be closed; empty while it need not
    on_output   called when there is something to write that neither `feed` nor `tick` returned, or
                when the session has closed itself; it must not call back before it has returned

    Subclasses say whether they are `_busy`, and `_drop` what waits. A connection that takes nothing
    for `dead_us` is closed where the protocol `closes_slow` ones; else it is closed when its client
    is silent, which cannot be heard while nothing is read.
    """

    closes_slow: ClassVar[bool] = True

    def __init__(self, server: ServerT, now_ns: int) -> None:
        self.closed = ""
        self.on_output: Callable[[], None] | None = None
        self._server = server
        self._counts = server.counts
        self._heartbeat_ns: int = server.settings.heartbeat_us * 1_000
        self._dead_ns: int = server.settings.dead_us * 1_000
        #: The time of the last call, when the client was heard, and when we said something.
        self._now_ns = self._heard_ns = self._said_ns = now_ns
        self._paused_ns: int | None = None

    @property
    @abstractmethod
    def _busy(self) -> bool:
        """Whether `tick` has something to do at once."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop what waits to go out: the session is over."""

    @property
    def waiting(self) -> bool:
        """Whether `tick` has something to do at once."""
        return self._busy and not self.closed

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next: at once while there is more to write."""
        if self.closed:
            return NEVER_NS
        if self._paused_ns is not None and self.closes_slow:
            return self._paused_ns + self._dead_ns
        if self._busy:
            return self._now_ns
        return min(self._said_ns + self._heartbeat_ns, self._heard_ns + self._dead_ns)

    def pause(self, now_ns: int) -> None:
        """Hold output back, as the connection takes no more; nothing is returned until `resume`."""
        self._now_ns = now_ns
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        """Return output again, as the connection takes bytes."""
        self._now_ns = now_ns
        self._paused_ns = None
        if self.closes_slow:  # what the client said meanwhile is still to be read
            self._heard_ns = now_ns

    def end(self) -> None:
        """End the session of a connection that is gone; call it for every accepted session."""
        if not self.closed:
            self._close("clients_left", "the client left")

    def _close(self, name: str, reason: str) -> None:
        self._counts[name] += 1
        self.closed = reason
        self._drop()
        self._server.sessions.discard(self)

    def _idle(self, now_ns: int, patient: bool = False) -> bool:
        """Return whether there is nothing to do at `now_ns`, as the session is over or paused.

        Ends it where the client takes nothing, or is silent; `patient`: it may be silent now.
        """
        if self.closed:
            return True
        self._now_ns = now_ns
        if self._paused_ns is not None and self.closes_slow:
            if now_ns >= self._paused_ns + self._dead_ns:
                self._close("clients_slow", "the client takes nothing any more")
            return True
        if now_ns >= self._heard_ns + self._dead_ns and not patient:
            self._close("clients_silent", "the client is silent")
        return bool(self.closed)

    def _beats(self, now_ns: int) -> bool:
        """Return whether a heartbeat is to be sent, and count it; none is while paused."""
        if now_ns < self._said_ns + self._heartbeat_ns:
            return False
        self._said_ns = now_ns
        if self._paused_ns is not None:
            return False
        self._counts["heartbeats_sent"] += 1
        return True


class PacketSession(ClientSession[ServerT]):
    """A session that reads its client's bytes packet by packet, and answers each at once."""

    @abstractmethod
    def _packets(self, data: bytes) -> Iterator[Any]:
        """Yield the packets that are whole now. Raises `WireError` behind them for a fault."""

    @abstractmethod
    def _packet(self, packet: Any, now_ns: int, output: bytearray) -> None:
        """Take a packet and append what answers it. Raises `WireError` for a wrong one."""

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in the client's bytes and return the bytes to write."""
        if self.closed or not data:
            return b""
        self._now_ns = now_ns
        output = bytearray()
        try:
            for packet in self._packets(data):
                self._heard_ns = now_ns
                self._packet(packet, now_ns, output)
                if self.closed:
                    break
        except WireError as error:
            self._counts[error.name] += 1
            self._close("clients_wrong", f"the client sent {error.message}")
        return bytes(output)


class DatagramServer(ClientsServer[ServingSettings, "DatagramClientSession"], ABC):
    """A server whose clients ask by datagrams; `too_many_waiting` is counted where it can be."""

    @abstractmethod
    def answer(self, data: bytes) -> Iterable[bytes]:
        """Return the datagrams that answer a request; none where it is ignored."""

    def session(self, peer: str, now_ns: int) -> "DatagramClientSession":
        """Return the session of a client that sent its first datagram; `closed`: too many."""
        return self.admit(DatagramClientSession(self, now_ns))


class DatagramClientSession:
    """A client of a `DatagramServer`: nothing is known of it but what it waits for."""

    def __init__(self, server: DatagramServer, now_ns: int) -> None:
        self.closed = ""
        self.on_output: Callable[[], None] | None = None
        self._server = server
        self._heard_ns = now_ns
        self._dead_ns = server.settings.dead_us * 1_000
        self.datagrams: deque[bytes] = deque()

    @property
    def waiting(self) -> bool:
        """Whether `tick` has another datagram, now."""
        return bool(self.datagrams) and not self.closed

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called: at once, or when a client that asks no more is forgotten."""
        if self.closed:
            return NEVER_NS
        return self._heard_ns + (0 if self.datagrams else self._dead_ns)

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in one datagram and return the next one of an answer, or b""."""
        if self.closed:
            return b""
        self._heard_ns = now_ns
        for datagram in self._server.answer(data):
            if len(self.datagrams) >= DATAGRAMS_WAITING_MAX:
                self._server.counts["too_many_waiting"] += 1
                break
            self.datagrams.append(datagram)
        return self._next()

    def _next(self) -> bytes:
        return self.datagrams.popleft() if self.datagrams else b""

    def tick(self, now_ns: int) -> bytes:
        """Return the next datagram, or let time pass: forget a client that asks no more."""
        if not self.datagrams and now_ns >= self.deadline_ns:
            self._end("the client asks no more")
        return self._next()

    def pause(self, now_ns: int) -> None:
        """Do nothing: a datagram that cannot be sent is lost."""

    def resume(self, now_ns: int) -> None:
        """Do nothing, as `pause` did."""

    def end(self) -> None:
        """End the session of a client that is gone."""
        self._end(self.closed or "the client left")

    def _end(self, reason: str) -> None:
        self.closed = reason
        self.datagrams.clear()
        self._server.sessions.discard(self)
