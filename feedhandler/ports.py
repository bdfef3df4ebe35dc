"""Ports of this host that a process may have which starts only after they were chosen.

What the kernel hands out by itself, to whoever connects or binds to port 0, is taken again at any
moment. So ports that are to stay free for some seconds come from below its range.
"""

import contextlib
import random
import socket

from feedhandler.codecs.errors import UsageError

#: Below the kernel's own range (`net.ipv4.ip_local_port_range`, from 32,768 on) and the simulated
#: exchange's ports.
PORTS = range(26_700, 29_900)

#: Those that this process has chosen, and may not have bound yet.
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """So many TCP ports of loopback that nobody listens on, none of them chosen before here.

    Tried in random order: two processes that start together do not choose the same.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    if len(found) < count:
        raise UsageError(
            f"no ports from {PORTS.start} to {PORTS.stop - 1} are free", "end what listens there"
        )
    _given.update(found)
    return found
