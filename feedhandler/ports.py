"""Free ports of this host, chosen before the process that binds them starts.

The kernel may assign any port of its own range at any moment, for outgoing connections and for
binding to port 0. So ports that are to stay free for some seconds come from below its range.
"""

import contextlib
import random
import socket

from feedhandler.codecs.errors import UsageError

#: Below the kernel's own range (`net.ipv4.ip_local_port_range`, from 32,768 on) and the simulated
#: exchange's ports.
PORTS = range(26_700, 29_900)

#: Ports that this process has chosen, and may not have bound yet.
_given: set[int] = set()


def free_udp_port() -> int:
    """Return a UDP port that is free at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """Choose so many TCP ports of loopback that no process listens on, none of them chosen before.

    They are tried in random order, so that two processes that start together choose different ones.
    Raises `UsageError` where too few are free.
    """
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    if len(ports) < count:
        raise UsageError(
            f"no ports from {PORTS.start} to {PORTS.stop - 1} are free", "end what listens there"
        )
    _given.update(ports)
    return ports
