"""Packing: whole messages into datagrams, several in each, until a period ends or one is full.

A `Packer` takes encoded messages and returns the datagrams that are complete. A datagram consists
of whole messages one behind the other, so that each decodes by itself. It is complete when the next
message does not fit, or when `period_ns` is over since its first one: no message waits longer.

A message longer than a datagram may be goes alone, after the messages before it, or is refused.
"""

from typing import Literal

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.session import NEVER

#: The recommended bound: below the MTU of Ethernet, with room for headers of tunnels.
DATAGRAM_BYTES = 1400
#: Upper limit on the payload of UDP over IPv4.
UDP_BYTES_MAX = 65_507
#: First bytes of a sealed datagram, with its version; FIX begins with "8=".
SEALED = b"FS\x01"


class Packer:
    """Packer of one channel's messages.

    bytes_max  upper limit on a datagram's bytes
    period_ns  the longest wait of a message; 0: each goes at once, alone
    long       a message longer than `bytes_max` is sent "alone", or refused: "refuse"
    """

    def __init__(
        self,
        period_ns: int,
        bytes_max: int = DATAGRAM_BYTES,
        long: Literal["alone", "refuse"] = "alone",
    ) -> None:
        if not 0 < bytes_max <= UDP_BYTES_MAX or period_ns < 0:
            raise UsageError(
                f"cannot pack datagrams of {bytes_max} bytes every {period_ns} ns",
                f"a datagram has 1 to {UDP_BYTES_MAX} bytes, a period is 0 or more",
            )
        self.period_ns = period_ns
        self.bytes_max = bytes_max
        self.longest = UDP_BYTES_MAX if long == "alone" else bytes_max
        self.deadline_ns = NEVER
        self._parts: list[bytes] = []
        self._size = 0

    def check(self, size: int) -> None:
        """Check a message's size in bytes. Raises `UsageError` where it could not be sent."""
        if not 0 < size <= self.longest:
            raise UsageError(
                f"a message of {size} bytes cannot be sent: at most {self.longest}",
                "split it, or let long messages go alone" if size else "give a whole message",
            )

    def add(self, message: bytes, now_ns: int) -> list[bytes]:
        """Add a message; return the datagrams that it completes. Raises `UsageError` as `check`."""
        self.check(len(message))
        full = self.flush() if self._size + len(message) > self.bytes_max else []
        if not self._parts:
            self.deadline_ns = now_ns + self.period_ns
        self._parts.append(message)
        self._size += len(message)
        if self._size >= self.bytes_max or not self.period_ns:
            full += self.flush()
        return full

    def tick(self, now_ns: int) -> list[bytes]:
        """Return the datagram whose period is over, if there is one."""
        return self.flush() if now_ns >= self.deadline_ns else []

    def flush(self) -> list[bytes]:
        """Complete and return the datagram that is being filled, if it has anything."""
        if not self._parts:
            return []
        datagram = b"".join(self._parts)
        self._parts = []
        self._size = 0
        self.deadline_ns = NEVER
        return [datagram]
