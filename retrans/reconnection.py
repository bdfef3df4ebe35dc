"""One server through successive connections: its client, and when to connect again.

A `Reconnection` decides, the owner of the sockets acts: `tcp.RequestConnection` with real ones, a
simulation with its own. The owner connects once `retry_ns` has come, reports the outcome (`made`,
`lost`), passes on what it read (`feed`), lets time pass (`tick`), and writes the client's output
(`data_to_send`) after each of these and whenever `on_output` is called.

Promises: an unreachable server is tried again after a wait that doubles up to a bound; waits are
short again only once a connection has lasted, so that a server that accepts every connection and
drops it is not tried all the time. Each break is reported once.

**On demand**: the connection of an `OnDemandClient` is there only while the client `wants` it. It
is made when something was asked for, and closed when the client says `Finished`: that is no break,
and nothing is reported. Where it cannot be made, or breaks, the client says by events what failed,
and who asked decides when to ask again.

Sans-IO: the time is an argument.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.events import Broken, Finished
from feedhandler.retrans.protocol import NEVER_NS

#: The reason to close a connection of which nothing more is wanted.
FINISHED = "finished"


class ConnectionSettings(Protocol):
    """The times that say when a connection is dead and when another one is tried, in µs."""

    @property
    def dead_us(self) -> int:
        """Silence after which the connection is dead."""
        ...

    @property
    def reconnect_us(self) -> int:
        """Wait before the first attempt to connect again."""
        ...

    @property
    def reconnect_max_us(self) -> int:
        """Upper limit on the wait between attempts."""
        ...


class ConnectionClient(Protocol):
    """The client's end of a protocol, through successive connections.

    Events are its own, except `Broken` and `Finished`: either is the last one, and says that the
    connection must be closed.
    """

    @property
    def up(self) -> bool:
        """Whether there is a connection whose server has not broken the protocol."""
        ...

    def connected(self, now_ns: int) -> Any:
        """Begin a new connection; nothing of an earlier one counts any more."""
        ...

    def disconnected(self, now_ns: int) -> Any:
        """End the connection, and every request with it."""
        ...

    def feed(self, data: bytes, now_ns: int) -> list[Any]:
        """Take in received bytes and return their events."""
        ...

    def tick(self, now_ns: int) -> list[Any]:
        """Let time pass and return the events of that."""
        ...

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        ...

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        ...


class RecoveryClient(ConnectionClient, Protocol):
    """A client of retransmissions and refreshes, whatever its protocol.

    `retrans.client` describes each method, `retrans.events` the events.
    """

    @property
    def counts(self) -> dict[str, int]:
        """Counts by name."""
        ...

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request packets; return False where there is no connection or no room."""
        ...

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot; return False where there is no connection or no room."""
        ...

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""


@runtime_checkable
class OnDemandClient(ConnectionClient, Protocol):
    """A client whose connection is there only while it is wanted."""

    @property
    def wants(self) -> bool:
        """Whether something was asked for that a connection must bring."""

    def failed(self, reason: str, now_ns: int) -> list[Any]:
        """Take that the connection could not be made, or broke; return what has failed by that."""


ClientType = TypeVar("ClientType", bound=ConnectionClient)


class Reconnection(Generic[ClientType]):
    """A `client` and its successive connections.

    on_events gets every event of the client but `Broken`, those of one read together
    on_up     called when the connection is there: requests can be sent; not on demand
    on_down   called when it is gone or cannot be made, with the reason; once until it is up again
    on_output called when the client has output outside `feed` and `tick`; set by the socket's owner

    All but the last get the time as well. `seed` draws the jitter of the waits.
    """

    def __init__(
        self,
        client: ClientType,
        settings: ConnectionSettings,
        *,
        on_events: Callable[[list[Any], int], None],
        on_up: Callable[[int], None],
        on_down: Callable[[str, int], None],
        seed: int,
    ) -> None:
        self.client = client
        self.settings = settings
        self.on_output: Callable[[], None] = _nobody_listens
        #: The earliest time to connect, while there is no connection; 0: at once.
        self.retry_ns = 0
        #: Whether the client has all that it wanted of the connection, which is being closed.
        self.finished = False
        self._on_demand: OnDemandClient | None = (
            client if isinstance(client, OnDemandClient) else None
        )
        self._on_events = on_events
        self._on_up = on_up
        self._on_down = on_down
        self._backoff = Backoff(settings.reconnect_us, settings.reconnect_max_us, seed)
        self._lasting_ns = settings.reconnect_max_us * 1000
        self._stands = self._reported_down = False
        self._failures = 0
        self._made_ns = 0

    @property
    def deadline_ns(self) -> int:
        """When the next step is due: to connect, or to call `tick` where there is a connection."""
        return self.client.deadline_ns if self._stands else self.connect_ns

    @property
    def connect_ns(self) -> int:
        """When to connect, while there is no connection; `NEVER_NS` where none is wanted."""
        idle = self._on_demand is not None and not self._on_demand.wants
        return NEVER_NS if idle else self.retry_ns

    @property
    def on_demand(self) -> bool:
        """Whether the connection is there only while it is wanted."""
        return self._on_demand is not None

    @property
    def available(self) -> bool:
        """Whether there is a connection; on demand: whether the latest attempt at one was well."""
        return self.client.up if self._on_demand is None else not self._reported_down

    # -- the connection ---------------------------------------------------------------------

    def made(self, now_ns: int) -> None:
        """Record that the connection is made, and start the client on it."""
        self._stands, self._reported_down, self.finished = True, False, False
        self._made_ns = now_ns
        self.client.connected(now_ns)
        if self._on_demand is None:
            self._on_up(now_ns)

    def lost(self, reason: str, now_ns: int) -> None:
        """Record that the connection is gone or could not be made; set `retry_ns`.

        Calls `on_down` once until a connection is made again; not for a client that had finished.
        """
        if self._stands:
            self.left(now_ns)
            # A connection that lasted means that the server is well: return to short waits.
            if self.finished or now_ns - self._made_ns >= self._lasting_ns:
                self._failures = 0
        if self.finished:
            self.finished = False
            self.retry_ns = now_ns
            return
        self._failures += 1
        self.retry_ns = now_ns + self._backoff.delay_ns(self._failures)
        if self._on_demand is not None and (failed := self._on_demand.failed(reason, now_ns)):
            self._on_events(failed, now_ns)
        if not self._reported_down:
            self._reported_down = True
            self._on_down(reason, now_ns)

    def left(self, now_ns: int) -> None:
        """Record that we closed the connection for good; `on_down` is not called."""
        self._stands = False
        self.client.disconnected(now_ns)

    def feed(self, data: bytes, now_ns: int) -> str:
        """Feed received bytes to the client; return the reason to close the connection, or ""."""
        return self._report(self.client.feed(data, now_ns), now_ns)

    def tick(self, now_ns: int) -> str:
        """Let time pass; return the reason to close the connection, or ""."""
        return self._report(self.client.tick(now_ns), now_ns)

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        return self.client.data_to_send()

    def _report(self, events: list[Any], now_ns: int) -> str:
        reason = ""
        if events and isinstance(events[-1], Broken | Finished):
            last = events[-1]
            self.finished = isinstance(last, Finished)
            reason = last.reason if isinstance(last, Broken) else FINISHED
            events = events[:-1]
        if events:
            self._on_events(events, now_ns)
        return reason


class ReconnectingClient(Reconnection[RecoveryClient]):
    """A client of retransmissions and refreshes, and its successive connections."""

    #: Which of `ends` is asked: there is one.
    asked_end = 0

    @property
    def ends(self) -> "tuple[ReconnectingClient, ...]":
        """Itself, as `failover.FailoverPair` has two."""
        return (self,)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the client."""
        return self.client.counts

    def pass_on(self, events: list[Any], now_ns: int) -> None:
        """Hand on events of the client that did not come over the connection."""
        if events:
            self._on_events(events, now_ns)

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request packets (`RequestClient.ask`); return False where it was not sent."""
        return self._asked(self.client.ask(request, now_ns))

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot (`RequestClient.ask_refresh`); return False where it was not sent."""
        return self._asked(self.client.ask_refresh(request, now_ns))

    def cancel(self, request_id: int) -> None:
        """Cancel a request (`RequestClient.cancel`); a connection for it alone is closed."""
        self.client.cancel(request_id)
        if self._on_demand is not None:
            self.on_output()

    def _asked(self, sent: bool) -> bool:
        if sent:
            self.on_output()
        return sent


def _nobody_listens() -> None:
    """Do nothing: there is no socket yet."""
