"""The destinations of a generated session's lines: group and port by line and service. No I/O.

A capture of a session has the destinations that the simulated exchange sends to by default, so
a capture can be played to a gateway that listens to the exchange.
"""

from dataclasses import dataclass

LINES = ("A", "B")


@dataclass(frozen=True, slots=True)
class Destinations:
    """Both lines of all services: on line n service s has group `prefixes[n]`.(s - 100) and port
    `base_ports[n]` + s."""

    prefixes: tuple[str, str]
    base_ports: tuple[int, int]

    def of(self, line: str, service: int) -> tuple[str, int]:
        """Group and port of a service on line A or B."""
        number = LINES.index(line)
        return f"{self.prefixes[number]}.{service - 100}", self.base_ports[number] + service


REALTIME = Destinations(("239.101.1", "239.101.2"), (30_000, 31_000))
#: The lines of snapshots, or of packets that were asked for.
RECOVERY = Destinations(("239.101.3", "239.101.4"), (32_000, 33_000))
