"""A network namespace with a veth pair, and a ring that takes the kernel's stamps at its far end.

What is sent into `near0` comes out of `far0` and is seen nowhere else. `namespace()` moves the
calling thread, and so the threads and processes that it starts, into a new namespace and back.

`StampRing` is a PACKET_RX_RING (TPACKET_V2) of the first bytes of each frame: the kernel stamps and
fills it while the frame is delivered, in the sender's system call; no process has to wake up for
it, so measuring takes no processor from what is measured. It is read now and then, by the thousand.
"""

import contextlib
import ctypes
import mmap
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedhandler.replay.playing.frame_lines import look_at

NEAR, FAR = "near0", "far0"
#: How long the kernel may take to report a link.
LINK_SECONDS = 10.0
# From <sched.h>, <linux/if_packet.h>, <asm-generic/socket.h>, <linux/net_tstamp.h>.
_CLONE_NEWNET = 0x40000000
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_TIMESTAMP = 5, 6, 10, 17
_TPACKET_V2, _SOF_TIMESTAMPING_SOFTWARE = 1, 1 << 4
_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_ETH_P_ALL = 3
#: One frame in the ring: its header, and the frame's first bytes.
_SLOT_BYTES, _BLOCK_BYTES, _KEPT_BYTES = 128, 1 << 16, 48
#: IPv4 frames, cut to what is kept: everything else is none of ours (struct sock_filter).
_FILTER = ((0x28, 0, 0, 12), (0x15, 0, 1, 0x0800), (0x06, 0, 0, _KEPT_BYTES), (0x06, 0, 0, 0))
#: Behind Ethernet, IPv4 and UDP headers: the number of the datagram, big-endian.
_NUMBER_AT = 42

Array = np.ndarray[Any, Any]


class NoNamespace(Exception):
    """This process may make no network namespace; the text says why."""


def ip(*words: str) -> None:
    """Run `ip` in the calling thread's namespace."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _libc(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def namespace(mtu: int = 1_500) -> Iterator[None]:
    """Put the calling thread into a namespace with `near0` and `far0`, each other's other end.

    Loopback is up, too. Raises `NoNamespace` without root or iproute2.
    """
    if shutil.which("ip") is None:
        raise NoNamespace("there is no `ip` (package iproute2)")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _libc("unshare", _CLONE_NEWNET)
    except PermissionError:
        os.close(home)
        raise NoNamespace("a network namespace takes root") from None
    try:
        ip("link", "add", NEAR, "mtu", str(mtu), "type", "veth", "peer", "name", FAR)
        for name in (NEAR, FAR, "lo"):
            ip("link", "set", name, "up")
        wait_for_link(True)
        yield
    finally:
        _libc("setns", home, _CLONE_NEWNET)
        os.close(home)


def wait_for_link(there: bool) -> None:
    """Wait until the link is there, or gone: the kernel reports it a moment later."""
    end = time.monotonic() + LINK_SECONDS
    while look_at(NEAR).has_link is not there:
        assert time.monotonic() < end, f"the link of {NEAR} is not {there}"
        time.sleep(0.001)


class StampRing:
    """Numbers and arrival times of the datagrams at an interface; use as a context manager."""

    def __init__(self, frames: int = 1 << 18, interface: str = FAR) -> None:
        self._at = 0
        self._frames = frames
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        for option, value in (
            (_PACKET_VERSION, _TPACKET_V2),
            (_PACKET_TIMESTAMP, _SOF_TIMESTAMPING_SOFTWARE),
        ):
            self._socket.setsockopt(_SOL_PACKET, option, struct.pack("@i", value))
        program = b"".join(struct.pack("@HBBI", *line) for line in _FILTER)
        kept = ctypes.create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("@HxxxxxxP", len(_FILTER), ctypes.addressof(kept)),
        )
        size = frames * _SLOT_BYTES
        request = struct.pack("@IIII", _BLOCK_BYTES, size // _BLOCK_BYTES, _SLOT_BYTES, frames)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._map = mmap.mmap(self._socket.fileno(), size)
        self._words = np.frombuffer(self._map, np.uint32).reshape(frames, _SLOT_BYTES // 4)
        self._socket.bind((interface, _ETH_P_ALL))

    def __enter__(self) -> "StampRing":
        return self

    def __exit__(self, *error: object) -> None:
        del self._words
        self._map.close()
        self._socket.close()

    def drain(self) -> tuple[Array, Array]:
        """Return what arrived since the last call: numbers and times (int64, ns since 1970)."""
        numbers, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while True:
            rows = self._words[self._at : self._at + 65_536]
            there = rows[:, 0] & 1 != 0
            count = len(rows) if there.all() else int(np.argmin(there))
            if count == 0:
                return np.concatenate(numbers), np.concatenate(times)
            rows = rows[:count]
            times.append(rows[:, 4].astype(np.int64) * 10**9 + rows[:, 5])
            at = (int(rows[0, 3]) & 0xFFFF) + _NUMBER_AT  # the header's u16 tp_mac comes first
            number = rows.view(np.uint8)[:, at : at + 4].copy().view(">u4")
            numbers.append(number[:, 0].astype(np.int64))
            rows[:, 0] = 0
            self._at = (self._at + count) % self._frames

    def dropped(self) -> int:
        """Return the frames since the last time that the ring had no room for."""
        seen = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("@II", seen)[1])
