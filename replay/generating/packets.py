"""Generated packets: the services, the specification's bound, one packet on its own."""

from typing import NamedTuple

REFERENCE, TRADES, QUOTES, ORDERS = 101, 102, 103, 104
WARRANT_TRADES, WARRANT_QUOTES, INDICES = 105, 106, 107
SERVICES = (REFERENCE, TRADES, QUOTES, ORDERS, WARRANT_TRADES, WARRANT_QUOTES, INDICES)

#: The specification's bound on a packet.
PACKET_BYTES_MAX = 1400


class Outgoing(NamedTuple):
    """One packet, due `due_ns` after the session's start; `messages` is 0 in control packets."""

    due_ns: int
    service: int
    packet: bytes
    messages: int
