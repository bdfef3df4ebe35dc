"""Reassembly of fragmented IPv4 datagrams (RFC 791, RFC 815): sans-IO, bounded.

`Fragments.add` accepts fragments one by one, with the time of their capture, and returns the
payload when it is complete. Times are the capture's, so that the result does not depend on the
speed of reading: a datagram that is incomplete after `WAIT_NS` is given up. So is the oldest where
there is no room, and a datagram whose fragments contradict one another: that is an attack
(RFC 1858) or damage, and the right bytes cannot be known.
"""

import msgspec
from msgspec import Struct

#: A datagram: its addresses, identification and protocol, and the interface that saw it.
Key = tuple[bytes, bytes, int, int, int]

#: Bytes of pieces, datagrams they are of, and pieces of one datagram (a datagram of 64 KiB in
#: frames of the least size that IPv4 allows, 68 bytes, has 1,366).
HELD_BYTES_MAX = 8 << 20
DATAGRAMS_MAX = 1_024
PIECES_MAX = 1_400
#: How long a datagram may take to become whole: as long as Linux waits (net.ipv4.ipfrag_time).
WAIT_NS = 30_000_000_000
#: What an IPv4 packet of the least header may carry.
PAYLOAD_BYTES_MAX = 65_515


class _Parts(Struct):
    """The fragments of one datagram: bytes by offset, and its end once that is known."""

    first_ns: int
    records: int = 0
    size: int = 0
    end: int | None = None
    pieces: dict[int, bytes] = {}


class Fragments:
    """The reassembly of datagrams; see the module's text.

    `waiting`: the property of that name of an instance that this one continues. `given_up` and
    `contradicting` count records of datagrams that stayed incomplete, `joined` of complete ones."""

    def __init__(self, waiting: bytes = b"") -> None:
        self.given_up = self.contradicting = self.joined = 0
        self._waiting: dict[Key, _Parts] = {}
        if waiting:
            self._waiting = dict(msgspec.msgpack.decode(waiting, type=list[tuple[Key, _Parts]]))
        self._held_bytes = sum(parts.size for parts in self._waiting.values())

    @property
    def waiting(self) -> bytes:
        """The fragments of incomplete datagrams, serialized for a successor; empty: none."""
        return msgspec.msgpack.encode(list(self._waiting.items())) if self._waiting else b""

    @property
    def held_bytes(self) -> int:
        """Bytes of pieces that wait for others."""
        return self._held_bytes

    def add(self, key: Key, offset: int, more: bool, data: bytes, time_ns: int) -> bytes | None:
        """Add a fragment; return the payload where the datagram is now complete, else None.

        `data` is at `offset` (bytes) of the payload of the datagram `key`; `more`: not the last."""
        self._give_up_late(time_ns)
        parts = self._waiting.get(key)
        if parts is None:
            while len(self._waiting) >= DATAGRAMS_MAX:
                self._give_up_oldest()
            parts = self._waiting[key] = _Parts(time_ns)
        parts.records += 1
        if not self._add(parts, offset, more, data):
            self.contradicting += parts.records
            self._forget(key)
            return None
        if parts.end is not None and parts.size == parts.end:
            self.joined += parts.records
            self._forget(key)
            return b"".join(parts.pieces[at] for at in sorted(parts.pieces))
        while self._held_bytes > HELD_BYTES_MAX:
            self._give_up_oldest()
        return None

    def finish(self) -> None:
        """Give up all incomplete datagrams, at the end of the capture."""
        while self._waiting:
            self._give_up_oldest()

    def _add(self, parts: _Parts, offset: int, more: bool, data: bytes) -> bool:
        """Keep a fragment; return False where it contradicts others or is invalid."""
        end = offset + len(data)
        if parts.pieces.get(offset) == data and (more or parts.end == end):
            return True  # the same piece again
        if end > PAYLOAD_BYTES_MAX or not data or (more and len(data) % 8):
            return False
        known = parts.end
        if known is not None and (end > known or not more):
            return False
        for at, other in parts.pieces.items():
            if (at < end and offset < at + len(other)) or (not more and at >= end):
                return False
        if len(parts.pieces) >= PIECES_MAX:
            return False
        if not more:
            parts.end = end
        parts.pieces[offset] = data
        parts.size += len(data)
        self._held_bytes += len(data)
        return True

    def _give_up_late(self, time_ns: int) -> None:
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if time_ns - oldest.first_ns <= WAIT_NS:
                return
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        key = next(iter(self._waiting))
        self.given_up += self._waiting[key].records
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._held_bytes -= self._waiting.pop(key).size
