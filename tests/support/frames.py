"""A network namespace of a test's own with a veth pair: what goes in at one end comes out byte for
byte at the other, and nothing of it is seen elsewhere.

The pair is `tests.support.veth`'s. It needs root and iproute2; without them a test skips with
the reason.
"""

import contextlib
import ctypes
import socket
import struct
import time
from collections.abc import Iterator

from feedhandler.ingest.lines import set_receive_buffer
from tests.support import veth
from tests.support.needs import absent
from tests.support.veth import FAR

# From <linux/if_ether.h>, <linux/if_packet.h>, <linux/capability.h>.
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_TP_STATUS_VLAN_VALID = 0x10
_CAPABILITY_VERSION_3, _CAP_NET_RAW = 0x20080522, 13
_IPV6 = b"\x86\xdd"
#: How long a test waits for a frame before it gives up.
PATIENCE_S = 60.0


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    """The calling thread in a namespace with `near0` and `far0`, and back."""
    try:
        with veth.namespace():
            yield
    except veth.NoNamespace as reason:
        absent("namespaces", str(reason))


@contextlib.contextmanager
def without_net_raw() -> Iterator[None]:
    """The calling thread without the right CAP_NET_RAW (capabilities(7)), which it gets back."""
    head = ctypes.create_string_buffer(struct.pack("@Ii", _CAPABILITY_VERSION_3, 0))
    rights = ctypes.create_string_buffer(24)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(head, rights) == 0
    effective, *rest = struct.unpack("@6I", rights.raw)
    less = struct.pack("@6I", effective & ~(1 << _CAP_NET_RAW), *rest)
    assert libc.capset(head, ctypes.create_string_buffer(less, 24)) == 0
    try:
        yield
    finally:
        assert libc.capset(head, rights) == 0


class FrameReceiver:
    """Whole frames as they arrive at an interface, with the VLAN tag that the kernel takes off put
    back; IPv6's own traffic left out."""

    def __init__(self, interface: str = FAR) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        set_receive_buffer(self._socket, 64 << 20)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.bind((interface, _ETH_P_ALL))

    def __enter__(self) -> "FrameReceiver":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def frames(self, count: int) -> list[bytes]:
        """The next `count` frames; fails the test where they do not come."""
        found: list[bytes] = []
        end = time.monotonic() + PATIENCE_S
        while len(found) < count:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                frame = self._frame()
            except TimeoutError:
                raise AssertionError(f"{len(found)} of {count} frames arrived") from None
            if frame[12:14] != _IPV6:
                found.append(frame)
        return found

    def _frame(self) -> bytes:
        frame, ancillary, _, _ = self._socket.recvmsg(1 << 17, 256)
        for _, _, data in ancillary:
            status, _, _, _, _, tag, kind = struct.unpack_from("@IIIHHHH", data)
            if status & _TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack(">HH", kind, tag) + frame[12:]
        return frame
