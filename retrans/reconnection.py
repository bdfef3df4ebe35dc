"""One server, through connection after connection: its client, and when to connect again.

A `Reconnection` decides; whoever has the sockets does: `tcp.RequestConnection` real ones, a
simulation its own. That one connects once `retry_ns` has come, says what became of it (`made`,
`lost`), hands over what was read (`feed`), lets time pass (`tick`), and writes what the client has
to say (`take_output`) after each of these, and whenever `on_output` is called.

What it promises: a server that cannot be had is tried again after a wait that doubles up to a
bound; the waits are short again once a connection has lasted, and not before, so that a server
that takes every connection and drops it is not tried all the time. Each break is told once.

Sans-IO: the time is an argument.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.events import Broken


class ConnectionSettings(Protocol):
    """When a connection is dead, and when another one is tried."""

    @property
    def dead_us(self) -> int: ...
    @property
    def reconnect_us(self) -> int: ...
    @property
    def reconnect_max_us(self) -> int: ...


class ConnectionClient(Protocol):
    """The client's end of a protocol, through one connection after the other. Events are its own;
    `Broken`, the last one, says that the connection is to be closed."""

    @property
    def up(self) -> bool: ...
    def connected(self, now_ns: int) -> Any: ...
    def disconnected(self, now_ns: int) -> Any: ...
    def feed(self, data: bytes, now_ns: int) -> list[Any]: ...
    def tick(self, now_ns: int) -> list[Any]: ...
    def take_output(self) -> bytes: ...
    @property
    def deadline_ns(self) -> int: ...


class RecoveryClient(ConnectionClient, Protocol):
    """A client of retransmissions and refreshes, whatever its protocol: `retrans.client` says what
    each verb means, and `retrans.events` has what it tells."""

    @property
    def counts(self) -> dict[str, int]: ...
    def ask(self, request: Ask, now_ns: int) -> bool: ...
    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool: ...
    def cancel(self, request_id: int) -> None: ...


ClientType = TypeVar("ClientType", bound=ConnectionClient)


class Reconnection(Generic[ClientType]):
    """`client` with its connections.

    on_events gets every event of the client but `Broken`, those of one read together
    on_up     the connection is there: requests can be sent
    on_down   it is gone, or cannot be made, with the reason; told once until it has been up again
    on_output the client has something to say that nobody knows of yet; set by who has the socket

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
        #: When to connect, while there is no connection; 0: at once.
        self.retry_ns = 0
        self._on_events = on_events
        self._on_up = on_up
        self._on_down = on_down
        self._backoff = Backoff(settings.reconnect_us, settings.reconnect_max_us, seed)
        self._lasting_ns = settings.reconnect_max_us * 1000
        self._stands = self._told_down = False
        self._failures = 0
        self._made_ns = 0

    @property
    def deadline_ns(self) -> int:
        """When something is due: to connect, or else to call `tick`."""
        return self.client.deadline_ns if self._stands else self.retry_ns

    # -- the connection ---------------------------------------------------------------------

    def made(self, now_ns: int) -> None:
        """The connection stands."""
        self._stands, self._told_down = True, False
        self._made_ns = now_ns
        self.client.connected(now_ns)
        self._on_up(now_ns)

    def lost(self, reason: str, now_ns: int) -> None:
        """The connection is gone, or could not be made; `retry_ns` is when to try again."""
        if self._stands:
            self.left(now_ns)
            # One that lasted means that the server is well: begin with short waits again.
            if now_ns - self._made_ns >= self._lasting_ns:
                self._failures = 0
        self._failures += 1
        self.retry_ns = now_ns + self._backoff.delay_ns(self._failures)
        if not self._told_down:
            self._told_down = True
            self._on_down(reason, now_ns)

    def left(self, now_ns: int) -> None:
        """The connection was closed by us, for good: nobody is told."""
        self._stands = False
        self.client.disconnected(now_ns)

    def feed(self, data: bytes, now_ns: int) -> str:
        """Bytes came; a reason to give the connection up, or nothing."""
        return self._tell(self.client.feed(data, now_ns), now_ns)

    def tick(self, now_ns: int) -> str:
        """Time has passed; a reason to give the connection up, or nothing."""
        return self._tell(self.client.tick(now_ns), now_ns)

    def take_output(self) -> bytes:
        """The bytes to write, once."""
        return self.client.take_output()

    def _tell(self, events: list[Any], now_ns: int) -> str:
        reason = ""
        if events and isinstance(events[-1], Broken):
            reason = events[-1].reason
            events = events[:-1]
        if events:
            self._on_events(events, now_ns)
        return reason


class ReconnectingClient(Reconnection[RecoveryClient]):
    """The connections of a client of retransmissions and refreshes."""

    def take(self, events: list[Any], now_ns: int) -> None:
        """What the client told of something that came beside the connection."""
        if events:
            self._on_events(events, now_ns)

    def ask(self, request: Ask, now_ns: int) -> bool:
        """`RequestClient.ask`; what is asked while there is no connection is not sent."""
        return self._asked(self.client.ask(request, now_ns))

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """`RequestClient.ask_refresh`, likewise."""
        return self._asked(self.client.ask_refresh(request, now_ns))

    def cancel(self, request_id: int) -> None:
        """`RequestClient.cancel`."""
        self.client.cancel(request_id)

    def _asked(self, sent: bool) -> bool:
        if sent:
            self.on_output()
        return sent


def _nobody_listens() -> None:
    """There is no socket yet."""
