"""Layouts that `overlay.bpf.c` and this process share: settings, targets, slots, counters.

All in the machine's byte order, addresses and ports in the network's. The numbers of counters are
those of the C enumeration; a test compares them, and sizes with what the kernel says of the maps.
"""

import struct
from dataclasses import dataclass
from socket import inet_aton, inet_ntoa

HEADER_BYTES = 56
PAYLOAD_MAX = 1400
TARGETS_MAX = 64
#: IPv4 and UDP headers before the overlay's.
OUTER_BYTES = 28
KEY_BYTES = 16
#: Slots of 24 bytes: 384 MiB of them are more than any message rate needs.
SLOTS_MAX = 1 << 24

#: In the order of the C enumeration.
COUNTERS = (
    "messages",
    "copies",
    "duplicates",
    "violations",
    "old_epochs",
    "restarts",
    "forged",
    "malformed",
    "other_kinds",
    "too_long",
    "fragments",
    "segmented",
    "options",
    "no_neighbour",
    "failed",
)

_SETTINGS = struct.Struct("=4s2sH4s2sHIIQqq16sII")
_TARGET = struct.Struct("=4s2sxx")
NUMBERING = struct.Struct("=IxxxxQq")
SLOT = struct.Struct("=IxxxxQQ")
SETTINGS_BYTES, TARGET_BYTES = _SETTINGS.size, _TARGET.size

Address = tuple[str, int]
ANY: Address = ("0.0.0.0", 0)


@dataclass(frozen=True)
class Settings:
    """Values of `struct settings`; times in ns.

    `match` is the address whose datagrams are taken; `plain` is where a receiver's payload goes, or
    the source address of a proxy's copies. `key` is empty where nothing is sealed.
    """

    match: Address
    tree: int
    device: int
    plain: Address = ANY
    targets: int = 0
    payload_max: int = PAYLOAD_MAX
    epoch: int = 0
    hold_ns: int = 0
    clock_offset_ns: int = 0
    key: bytes = b""
    slots: int = 1

    def pack(self) -> bytes:
        """Encode for the map."""
        return _SETTINGS.pack(
            inet_aton(self.match[0]),
            self.match[1].to_bytes(2, "big"),
            self.tree,
            inet_aton(self.plain[0]),
            self.plain[1].to_bytes(2, "big"),
            bool(self.key),
            self.targets,
            self.payload_max,
            self.epoch,
            self.hold_ns,
            self.clock_offset_ns,
            self.key,
            self.slots - 1,
            self.device,
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Settings":
        """Decode what the map holds."""
        parts = _SETTINGS.unpack(data)
        return cls(
            match=(inet_ntoa(parts[0]), int.from_bytes(parts[1], "big")),
            tree=parts[2],
            plain=(inet_ntoa(parts[3]), int.from_bytes(parts[4], "big")),
            targets=parts[6],
            payload_max=parts[7],
            epoch=parts[8],
            hold_ns=parts[9],
            clock_offset_ns=parts[10],
            key=parts[11] if parts[5] else b"",
            slots=parts[12] + 1,
            device=parts[13],
        )


def pack_target(address: Address) -> bytes:
    """Encode one target."""
    return _TARGET.pack(inet_aton(address[0]), address[1].to_bytes(2, "big"))


def unpack_target(data: bytes) -> Address:
    """Decode one target."""
    host, port = _TARGET.unpack(data)
    return inet_ntoa(host), int.from_bytes(port, "big")


def slots_for(messages_a_second: int) -> int:
    """Round up to the power of two that Appendix A asks for."""
    return 1 << max(0, messages_a_second - 1).bit_length()
