"""Network namespaces on one bridge, or on cables, for tests and benches of the overlay's hooks.

Each host is a namespace with a device `eth0`, `10.77.0.<number>` from 1 on; groups are routed to
it. On cables there is no bridge: the first host has a device for each other one, `eth<number>`, and
`10.77.<number>.1` to its `10.77.<number>.2`. Threads enter a host; sockets made there stay there.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence

from feedhandler.overlay.hooks.attaching import refusal

_CLONE_NEWNET = 0x40000000
_SO_RCVBUFFORCE = 33
PREFIX = 24


class NoNetwork(Exception):
    """Namespaces or hooks cannot be had here; the text says why."""


def require() -> None:
    """Raise `NoNetwork` where hooks cannot be tested."""
    if os.geteuid() != 0:
        raise NoNetwork("network namespaces and hooks take root")
    for command in ("ip", "ethtool"):
        if shutil.which(command) is None:
            raise NoNetwork(f"there is no `{command}` (packages iproute2, ethtool)")
    if (found := refusal()) is not None:
        raise NoNetwork(found[0])


def run(*words: str) -> str:
    """Run a command and return what it prints; its complaint is the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


class Network:
    """Hosts that reach each other; use as a context manager."""

    def __init__(self, hosts: Sequence[str], mtu: int = 1500, bridged: bool = True) -> None:
        self.hosts = tuple(hosts)
        self._mtu = mtu
        self._bridged = bridged
        self._made: list[str] = []
        self._tag = f"ovh{os.getpid()}"

    def __enter__(self) -> "Network":
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def name(self, host: str) -> str:
        """The namespace's name."""
        return f"{self._tag}-{host}"

    def address(self, host: str) -> str:
        """The host's address; the first one's, where there is no bridge, is at `eth1`."""
        at = self.hosts.index(host)
        if self._bridged:
            return f"10.77.0.{at + 1}"
        return f"10.77.{at}.2" if at else "10.77.1.1"

    def ip(self, host: str, *words: str) -> None:
        """Run `ip` in a host."""
        run("ip", "-n", self.name(host), *words)

    def exec(self, host: str, *words: str) -> str:
        """Run a command in a host, with this process's mounts."""
        return run("nsenter", f"--net=/run/netns/{self.name(host)}", *words)

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """The calling thread in a host."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name(host)}", os.O_RDONLY)
        try:
            assert libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            assert libc.setns(home, _CLONE_NEWNET) == 0
            os.close(there)
            os.close(home)

    def bind(self, host: str, port: int, group: str = "", timeout_s: float = 5.0) -> socket.socket:
        """A plain program's socket; of a group, if one is named."""
        with self.inside(host):
            bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            bound.settimeout(timeout_s)
            bound.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
            bound.bind((group, port))
            if group:
                wanted = socket.inet_aton(group) + socket.inet_aton(self.address(host))
                bound.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, wanted)
            return bound

    def raw(self, host: str, device: str = "eth0", timeout_s: float = 5.0) -> socket.socket:
        """A socket of whole frames."""
        with self.inside(host):
            bound = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            bound.settimeout(timeout_s)
            bound.bind((device, 0))
            return bound

    def _make(self) -> None:
        for host in (*self.hosts, *(["switch"] if self._bridged else [])):
            run("ip", "netns", "add", self.name(host))
            self._made.append(self.name(host))
            self.ip(host, "link", "set", "lo", "up")
        if self._bridged:
            self.ip("switch", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            self.ip("switch", "link", "set", "br0", "mtu", str(self._mtu), "up")
        for at, host in enumerate(self.hosts):
            if self._bridged:
                self._cable("switch", f"to-{host}"[:15], host, "eth0")
                self.ip("switch", "link", "set", f"to-{host}"[:15], "master", "br0")
                self._give(host, "eth0", self.address(host))
            elif at:
                self._cable(self.hosts[0], f"eth{at}", host, "eth0")
                self._give(self.hosts[0], f"eth{at}", f"10.77.{at}.1")
                self._give(host, "eth0", self.address(host))
        for at, host in enumerate(self.hosts):
            device = "eth1" if not self._bridged and not at else "eth0"
            self.ip(host, "route", "add", "224.0.0.0/4", "dev", device)

    def _cable(self, host: str, device: str, other: str, end: str) -> None:
        mtu = str(self._mtu)
        peer = ("peer", "name", end, "mtu", mtu, "netns", self.name(other))
        self.ip(host, "link", "add", device, "mtu", mtu, "type", "veth", *peer)
        self.ip(host, "link", "set", device, "up")
        self.ip(other, "link", "set", end, "up")

    def _give(self, host: str, device: str, address: str) -> None:
        self.ip(host, "address", "add", f"{address}/{PREFIX}", "dev", device)


def folded(data: bytes) -> int:
    """The Internet's sum of 16-bit words (RFC 1071); 0xffff where a checksum in it is right."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def udp_sum(frame: bytes) -> int:
    """The sum over the UDP datagram of a frame and its pseudo header."""
    udp = frame[34 : 14 + int.from_bytes(frame[16:18], "big")]
    return folded(frame[26:34] + struct.pack("!HH", 17, len(udp)) + udp)


def frame_of(
    payload: bytes,
    to: tuple[str, int],
    source: tuple[str, int] = ("10.77.0.1", 40000),
    checksum: str = "whole",
    link: bytes = b"\2\0\0\0\0\2\2\0\0\0\0\1",
) -> bytes:
    """An Ethernet frame of a UDP datagram; `checksum`: whole, none, partial (left to a device)."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0, 64, 17, 0)
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    ip = head[:10] + struct.pack("!H", 0xFFFF ^ folded(head + addresses)) + addresses
    udp = struct.pack("!HHHH", source[1], to[1], 8 + len(payload), 0) + payload
    pseudo = addresses + struct.pack("!HH", 17, len(udp))
    filled = {
        "whole": (0xFFFF ^ folded(pseudo + udp)) or 0xFFFF,
        "partial": folded(pseudo),
        "none": 0,
    }[checksum]
    return link + b"\x08\x00" + ip + udp[:6] + struct.pack("!H", filled) + udp[8:]
