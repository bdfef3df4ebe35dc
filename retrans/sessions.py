"""The server's end of clients' connections, whatever the protocol."""

from collections.abc import Callable
from typing import Protocol


class Session(Protocol):
    """The server's end of a client's connection, as `retrans.server.ServerSession`."""

    closed: str
    on_output: Callable[[], None] | None

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        ...

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in the client's bytes and return the bytes to write."""
        ...

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write."""
        ...

    def pause(self, now_ns: int) -> None:
        """Hold output back, as the connection takes no more; nothing is returned until `resume`."""

    def resume(self, now_ns: int) -> None:
        """Return output again, as the connection takes bytes."""

    def end(self) -> None:
        """End the session of a connection that is gone."""


class DatagramSession(Session, Protocol):
    """A client's exchange by datagrams: each call returns one datagram, or b"".

    `waiting`: `tick` has another one, now.
    """

    @property
    def waiting(self) -> bool:
        """Whether `tick` has another datagram now."""
        ...


class SessionServer(Protocol):
    """A server of one protocol, for many clients; `counts` counts by name."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts by name."""
        ...

    def session(self, peer: str, now_ns: int) -> Session:
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
