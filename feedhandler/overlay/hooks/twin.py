"""The kernel programs' rules in Python: the header, its seal, and which copy is the first.

Tests compare the kernel's verdicts with these; a member in user space that exchanges datagrams with
hooks seals and checks with `seal` too. A hook's seal is SipHash-2-4 (Aumasson, Bernstein 2012) of
the header's first 40 bytes under a key of 16 bytes, in the first half of the seal field; the other
half is 0.
"""

import enum
import struct
from dataclasses import dataclass, field

from feedhandler.overlay.hooks.abi import PAYLOAD_MAX

HEADER = struct.Struct("<2sBBHHQQqq")
MAGIC, VERSION, KIND_DATA = b"OV", 1, 1
_MASK = (1 << 64) - 1


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def siphash(key: bytes, data: bytes) -> int:
    """Return SipHash-2-4 of `data` as a whole number; the key has 16 bytes."""
    k0, k1 = struct.unpack("<QQ", key)
    a, b = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    c, d = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(number: int) -> None:
        nonlocal a, b, c, d
        for _ in range(number):
            a = (a + b) & _MASK
            b = _rotated(b, 13) ^ a
            a = _rotated(a, 32)
            c = (c + d) & _MASK
            d = _rotated(d, 16) ^ c
            a = (a + d) & _MASK
            d = _rotated(d, 21) ^ a
            c = (c + b) & _MASK
            b = _rotated(b, 17) ^ c
            c = _rotated(c, 32)

    whole = len(data) - len(data) % 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*struct.unpack(f"<{whole // 8}Q", data[:whole]), last):
        d ^= word
        rounds(2)
        a ^= word
    c ^= 0xFF
    rounds(4)
    return a ^ b ^ c ^ d


def seal(key: bytes, header: bytes) -> bytes:
    """Return the 16 bytes of a hook's seal over a header's first 40; zeros without a key."""
    return (siphash(key, header).to_bytes(8, "little") if key else bytes(8)) + bytes(8)


def encode(
    tree: int,
    epoch: int,
    id: int,
    payload: bytes,
    key: bytes = b"",
    times: tuple[int, int] = (0, 0),
) -> bytes:
    """Encode a data datagram; `times` are sent and deadline in ns."""
    header = HEADER.pack(MAGIC, VERSION, KIND_DATA, tree, len(payload), epoch, id, *times)
    return header + seal(key, header) + payload


class Verdict(enum.Enum):
    """Fate of a datagram."""

    FIRST = "messages"
    DUPLICATE = "duplicates"
    VIOLATION = "violations"
    OLD_EPOCH = "old_epochs"
    FORGED = "forged"
    MALFORMED = "malformed"
    OTHER_KIND = "other_kinds"


@dataclass
class Deduplicator:
    """Appendix A with epochs: slots hold (epoch, id); only a copy above its slot's is the first."""

    tree: int
    slots: int
    key: bytes = b""
    restarts: int = 0
    _newest_epoch: int = 0
    _held: dict[int, tuple[int, int]] = field(default_factory=dict)

    def judge(self, datagram: bytes) -> Verdict:
        """Return the fate of a datagram, a UDP payload; remember it if it is the first."""
        if len(datagram) < HEADER.size + 16:
            return Verdict.MALFORMED
        header = datagram[: HEADER.size]
        magic, version, kind, tree, length, epoch, id, _sent, _deadline = HEADER.unpack(header)
        if (magic, version, tree) != (MAGIC, VERSION, self.tree) or length > PAYLOAD_MAX:
            return Verdict.MALFORMED
        if kind != KIND_DATA:
            return Verdict.OTHER_KIND
        if id == 0 or len(datagram) != HEADER.size + 16 + length:
            return Verdict.MALFORMED
        if datagram[HEADER.size : HEADER.size + 16] != seal(self.key, header):
            return Verdict.FORGED
        return self._judge_id(epoch, id)

    def _judge_id(self, epoch: int, id: int) -> Verdict:
        if epoch < self._newest_epoch:
            return Verdict.OLD_EPOCH
        if epoch > self._newest_epoch:
            self.restarts += self._newest_epoch > 0
            self._newest_epoch = epoch
        index = id & (self.slots - 1)
        held = self._held.get(index, (0, 0))
        if (epoch, id) > held:
            self._held[index] = (epoch, id)
            return Verdict.FIRST
        return Verdict.DUPLICATE if id == held[1] else Verdict.VIOLATION
