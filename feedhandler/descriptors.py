"""Shortage of file descriptors: the reserve kept from clients, and the operator's log lines.

The kernel assigns the lowest free number, so a client's own number shows how many are left. Clients
of the AMQP node never get the last `RESERVED`: they are for what the gateway opens itself (blocks
of queues, recordings, its health page).
"""

import logging
import resource
import select
import socket
import time

from feedhandler.operator_log import log_event

#: Descriptors below the process's bound that no AMQP client gets.
RESERVED = 64
#: The least time between two log lines about a shortage.
TELL_SECONDS = 60.0


def has_client(listener: socket.socket) -> bool:
    """Check whether a client waits to be accepted.

    `accept` alone does not show that: the kernel looks for a free descriptor first, and reports a
    shortage also where no client waits.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


class Shortage:
    """A shortage of descriptors where `what` (plural, as in "AMQP clients") are accepted."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._reported_at = float("-inf")

    def reaches(self, descriptor: int) -> bool:
        """Check whether a descriptor just assigned is in the reserve; if so, log that."""
        bound = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if bound == resource.RLIM_INFINITY or descriptor < bound - RESERVED:
            return False
        self.report(f"{bound} less {RESERVED} kept back")
        return True

    def report(self, found: str | None) -> None:
        """Log the shortage, at most once in `TELL_SECONDS`."""
        now = time.monotonic()
        if now - self._reported_at < TELL_SECONDS:
            return
        self._reported_at = now
        text = (
            f"no file descriptor is left for {self._what} ({found}): they are turned away; raise "
            "LimitNOFILE of the unit, or ulimit -n (`feedhandler doctor` says how many it takes)"
        )
        log_event("descriptors", text, logging.ERROR)
