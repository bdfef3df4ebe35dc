"""Mapping of recorded groups and ports to those that are sent to, and to line A or B.

A `LineMap` sends what was recorded on one group and port to another, as line A, as line B, or as
neither. `mapped_lines` builds a player's lines from several maps and the endpoints of a recording:
the first map that matches an endpoint applies; endpoints without a match keep their address or are
left out. Sans-IO.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.sender_lines import Endpoint, MulticastLine

#: The line of endpoints that are neither A nor B.
RECORDED = "recorded"

_MAP = re.compile(r"([0-9.]+)(?::(\d+))?=([0-9.]+)(?::(\d+))?(?:@([ABab]))?")


class LineMap(Struct, frozen=True):
    """A mapping of the endpoint `old` to `new`, each a group and a port, as `line` (A, B or "").

    An old port of None matches any port; a new one of None keeps the port."""

    old: tuple[str, int | None]
    new: tuple[str, int | None]
    line: str = ""

    def apply(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the endpoint that `endpoint` is mapped to, None where the map does not match."""
        group, port = self.old
        if endpoint[0] != group or port not in (None, endpoint[1]):
            return None
        return self.new[0], self.new[1] or endpoint[1]


def parse_map(text: str) -> LineMap:
    """Parse `GROUP[:PORT]=GROUP[:PORT][@A|B]`. Raises `UsageError` where it is malformed."""
    match = _MAP.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"'{text}' maps nothing",
            "give GROUP:PORT=GROUP:PORT, with @A or @B behind it where it is line A or B",
        )
    old, new = _endpoint(match[1], match[2]), _endpoint(match[3], match[4])
    if not ipaddress.IPv4Address(new[0]).is_multicast:
        raise UsageError(
            f"'{text}': {new[0]} is no multicast group", "give 224.0.0.0 to 239.255.255.255"
        )
    return LineMap(old, new, (match[5] or "").upper())


def _endpoint(group: str, port: str | None) -> tuple[str, int | None]:
    try:
        address = str(ipaddress.IPv4Address(group))
    except ValueError:
        raise UsageError(f"'{group}' is no IPv4 address", "give 239.1.1.1, say") from None
    number = int(port) if port is not None else None
    if number is not None and not 0 < number < 65_536:
        raise UsageError(f"{number} is no port", "give 1 to 65535")
    return address, number


def mapped_lines(
    maps: Sequence[LineMap],
    endpoints: Iterable[Endpoint],
    *,
    keep_others: bool,
    interfaces: Mapping[str, str],
    faults: Mapping[str, LineFaults],
) -> list[MulticastLine]:
    """Return the lines that recorded `endpoints` go to, in the order A, B, recorded.

    Lines without endpoints are left out. `keep_others`: endpoints that no map matches keep their
    own address, where it is a multicast group with a port. `interfaces` and `faults` are keyed by
    the name of the line.
    """
    groups: dict[str, dict[Endpoint, Endpoint]] = {"A": {}, "B": {}, RECORDED: {}}
    for endpoint in endpoints:
        for one in maps:
            new = one.apply(endpoint)
            if new is not None:
                groups[one.line or RECORDED][endpoint] = new
                break
        else:
            if keep_others and ipaddress.IPv4Address(endpoint[0]).is_multicast and endpoint[1]:
                groups[RECORDED][endpoint] = endpoint
    return [
        MulticastLine(name, there, interfaces[name], faults[name])
        for name, there in groups.items()
        if there
    ]
