"""The server's end of clients' connections, whatever the protocol."""

from collections.abc import Callable
from typing import Protocol


class Session(Protocol):
    """The server's end of a client's connection, as `retrans.server.ServerSession`."""

    closed: str
    on_output: Callable[[], None] | None

    @property
    def deadline_ns(self) -> int: ...
    def feed(self, data: bytes, now_ns: int) -> bytes: ...
    def tick(self, now_ns: int) -> bytes: ...
    def pause(self, now_ns: int) -> None: ...
    def resume(self, now_ns: int) -> None: ...
    def end(self) -> None: ...


class DatagramSession(Session, Protocol):
    """A client's exchange by datagrams: each call returns one datagram, or b"".

    `waiting`: `tick` has another one, now.
    """

    @property
    def waiting(self) -> bool: ...


class SessionServer(Protocol):
    """A server of one protocol, for many clients; `counts` counts by name."""

    @property
    def counts(self) -> dict[str, int]: ...
    def session(self, peer: str, now_ns: int) -> Session:
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
