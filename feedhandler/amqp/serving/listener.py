"""A listening socket of the node: accepts the clients that wait, and hands each on.

What it promises: no call blocks, and many clients at once are accepted in shares (`budget`), for a
hundred take the event loop 50 ms; no client is accepted while what ended connections left is still
to be freed (`crowded`); clients do not get the process's last descriptors (they are closed at once,
the operator is informed), and where there is none at all it pauses rather than spins. What becomes
of a client is the node's (`node`).
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from feedhandler.amqp.work_budget import ACCEPT_UNITS, WorkBudget
from feedhandler.codecs.errors import ConfigError
from feedhandler.descriptors import Shortage, has_client

#: How long new clients wait when the process has no descriptor left for them.
ACCEPT_PAUSE_SECONDS = 0.1
#: Connections waiting to be accepted.
BACKLOG = 128
#: Send buffer asked of the kernel for each connection: a turn's output, so that a subscriber
#: that is merely scheduled late does not stop the writer.
SEND_BUFFER_BYTES = 1 << 20


class Listener:
    """A socket that listens on `address` until `close`.

    `on_client(socket, host, port, encrypted)` gets each client, `on_exhausted()` is called for one
    that no descriptor is left for. Raises ConfigError, with the setting's name `key`, where the
    address cannot be had.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        key: str,
        encrypted: bool,
        on_client: Callable[[socket.socket, str, int, bool], None],
        on_exhausted: Callable[[], None],
        budget: WorkBudget,
        crowded: Callable[[], bool],
    ) -> None:
        self._crowded = crowded
        self._loop = loop
        self._turns = budget
        self._waits = False
        self._encrypted = encrypted
        self._on_client = on_client
        self._on_exhausted = on_exhausted
        self._shortage = Shortage("AMQP clients")
        self._closed = False
        host, port = address
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"{key}: cannot listen on {host}:{port}: {reason}",
                "another process has it; choose a free port"
                if getattr(error, "errno", None) == errno.EADDRINUSE
                else "choose an address of this machine",
            ) from None
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._accept)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Stop listening and close the socket."""
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        """Accept the clients that wait, as many as this turn of the loop has units for."""
        while not (self._waits or self._closed):
            if self._crowded() or not self._turns.try_spend(ACCEPT_UNITS):
                self._waits = True
                self._turns.wait(self._go_on)
                return
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                # No client waits any more, or it has left. Out of descriptors the listener would
                # stay readable and take every turn of the loop: try again a little later.
                if error.errno in (errno.EMFILE, errno.ENFILE) and has_client(self._socket):
                    self._shortage.report(error.strerror)
                    self._on_exhausted()
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            if self._shortage.reaches(sock.fileno()):
                self._on_exhausted()
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._on_client(sock, address[0], address[1], self._encrypted)

    def _go_on(self) -> None:
        """Continue accepting in a later turn of the loop."""
        self._waits = False
        self._accept()

    def _accept_again(self) -> None:
        """Listen again after a pause, unless closed meanwhile."""
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)
