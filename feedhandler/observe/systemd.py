"""Notifications to systemd: READY=1, STOPPING=1, WATCHDOG=1 over its socket (sd_notify(3)).

Where the environment names none, nothing happens. A datagram that would block is dropped: the
stream does not wait for systemd.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

#: The variables that systemd sets: the socket, the watchdog's period, and the process it watches.
SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


class Notifier:
    """A sender to the socket that `environment` names.

    `watchdog_ns`: half of the watchdog's period, the time within which it wants the next sign of
    life; 0 where there is none.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get(SOCKET_VARIABLE, "")
        #: An address that begins with @ lies in the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket: socket.socket | None = None
        watched = environment.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        period_us = environment.get(WATCHDOG_VARIABLE, "") if path and watched else ""
        self.watchdog_ns = int(period_us) * 1000 // 2 if period_us.isdigit() else 0

    def ready(self, status: str) -> None:
        """Report that the start is complete."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report one line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """Report that the gateway is stopping."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def watchdog(self) -> None:
        """Report that the gateway is alive."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(), self._address)
