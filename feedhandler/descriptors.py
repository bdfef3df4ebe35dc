"""File descriptors that run out: what is kept back from clients, and what the operator is told.

The kernel hands out the lowest number that is free, so a client's own number tells how many are
left. Clients of the AMQP node never get the last `RESERVED`: those are for what the gateway opens
itself (blocks of queues, recordings, its health page).
"""

import resource
import select
import socket
import time

from feedhandler.notes import Level, tell

#: Descriptors below the process's bound that no AMQP client gets.
RESERVED = 64
#: What is said of a shortage is said so often at most.
TELL_SECONDS = 60.0


def has_client(listener: socket.socket) -> bool:
    """Whether somebody waits to be accepted: the kernel looks for a free descriptor first, and says
    that there is none also where nobody waits."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


class Shortage:
    """Sees that descriptors run out where `what` (plural, as in "AMQP clients") are taken in."""

    def __init__(self, what: str, reserved: int = RESERVED) -> None:
        self._what = what
        self._reserved = reserved
        self._told_at = float("-inf")

    def reaches(self, descriptor: int) -> bool:
        """Whether a descriptor just handed out is one of those kept back; that is told."""
        bound = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if bound == resource.RLIM_INFINITY or descriptor < bound - self._reserved:
            return False
        self.tell(f"{bound} less {self._reserved} kept back")
        return True

    def tell(self, found: str | None) -> None:
        """Tell the operator, once a while."""
        now = time.monotonic()
        if now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        text = (
            f"no file descriptor is left for {self._what} ({found}): they are turned away; raise "
            "LimitNOFILE of the unit, or ulimit -n (`feedhandler doctor` says how many it takes)"
        )
        tell("descriptors", text, Level.ERROR)
