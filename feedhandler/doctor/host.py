"""State of this host as the kernel reports it, asked the way a gateway will ask it. Linux only.

Every function answers a question and leaves nothing behind; `OSError` passes through where the
kernel's refusal is the answer.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import struct
import time
from pathlib import Path

from msgspec import Struct

from feedhandler.ingest.lines import SO_TIMESTAMPNS, Line, open_line, set_receive_buffer
from feedhandler.replay.playing.sender_lines import open_multicast_sender

# From <linux/sockios.h>, <net/if.h>, <sys/timex.h>, <linux/capability.h>.
_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_IFF_UP, _IFF_LOOPBACK, _IFF_MULTICAST = 0x1, 0x8, 0x1000
_STA_UNSYNC = 0x40
_CAP_NET_ADMIN = 12

#: Administratively scoped (RFC 2365), and none of the simulated exchange's.
SELF_TEST_GROUP = "239.101.255.254"
SELF_TEST_TIMEOUT_S = 1.0
SELF_TEST_BUFFER_BYTES = 65_536


class InterfaceState(Struct, frozen=True):
    """A network interface as the kernel describes it."""

    name: str
    address: str
    is_up: bool
    is_loopback: bool
    is_multicast: bool


class SelfTest(Struct, frozen=True):
    """The result of a self-test whose datagram came back."""

    elapsed_us: int
    has_kernel_stamp: bool


class ClockState(Struct, frozen=True):
    """The kernel's view of the clock's synchronisation."""

    is_synchronised: bool
    error_us_max: int


class FileSystem(Struct, frozen=True):
    """A mounted file system: its kind as `mount` names it, its mount point and its options."""

    kind: str
    mount_point: str
    options: tuple[str, ...]


def interface_names() -> list[str]:
    """Return the names of all interfaces of this network namespace."""
    return [name for _, name in socket.if_nameindex()]


def interface_state(interface: str) -> InterfaceState | None:
    """Return the state of the interface with this name or IPv4 address; None without one."""
    for name in interface_names():
        address = interface_address(name)
        if interface in (name, address) or _on_loopback(interface, address):
            flags = struct.unpack_from("H", _ask(_SIOCGIFFLAGS, name), 16)[0]
            return InterfaceState(
                name=name,
                address=address,
                is_up=bool(flags & _IFF_UP),
                is_loopback=bool(flags & _IFF_LOOPBACK),
                is_multicast=bool(flags & _IFF_MULTICAST),
            )
    return None


def _on_loopback(wanted: str, address: str) -> bool:
    """Return whether both addresses are in 127/8, all of which lies on the loopback interface."""
    return wanted.startswith("127.") and address.startswith("127.")


def interface_address(name: str) -> str:
    """Return the interface's first IPv4 address, or an empty string."""
    try:
        return socket.inet_ntoa(_ask(_SIOCGIFADDR, name)[20:24])
    except OSError:
        return ""


def _ask(request: int, name: str) -> bytes:
    """Send one `ifreq` to the kernel and return its answer. Raises `OSError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return fcntl.ioctl(asker, request, struct.pack("256s", name.encode()[:15]))


def granted_receive_buffer(wanted_bytes: int) -> int:
    """Return how many bytes of a receive buffer of `wanted_bytes` a line's socket gets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return set_receive_buffer(probe, wanted_bytes)


def strict_reverse_path(name: str) -> bool:
    """Return whether the kernel drops packets whose source it would not route back this way."""
    values = []
    for scope in ("all", name):
        try:
            path = Path("/proc/sys/net/ipv4/conf") / scope / "rp_filter"
            values.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return max(values, default=0) == 1


def multicast_self_test(interface: str) -> SelfTest | None:
    """Join a group as a line does and send one datagram there; None if it does not come back.

    Raises `ConfigError` where the group cannot be joined, `OSError` where sending fails.
    """
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_bound_probe()).getsockname()[1]
        line = Line("self-test", SELF_TEST_GROUP, port, interface)
        receiver = stack.enter_context(open_line(line, SELF_TEST_BUFFER_BYTES))
        receiver.settimeout(SELF_TEST_TIMEOUT_S)
        sender = stack.enter_context(open_multicast_sender(interface))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        token = struct.pack("<QQ", time.time_ns(), id(sender))
        started_ns = time.monotonic_ns()
        sender.sendto(token, (SELF_TEST_GROUP, port))
        while True:
            try:
                data, ancillary, _, _ = receiver.recvmsg(64, 128)
            except TimeoutError:
                return None
            elapsed_ns = time.monotonic_ns() - started_ns
            if data == token:
                stamped = any(kind == SO_TIMESTAMPNS for _, kind, _ in ancillary)
                return SelfTest(elapsed_ns // 1000, stamped)
            if elapsed_ns >= SELF_TEST_TIMEOUT_S * 1e9:
                return None


def _bound_probe() -> socket.socket:
    """Return a socket that holds a free UDP port for as long as it is open."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.bind(("127.0.0.1", 0))
    return probe


def try_listen(address: tuple[str, int]) -> None:
    """Listen and stop listening. Raises `OSError` if the port is taken or the host is not here."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)


class _Timex(ctypes.Structure):
    """`struct timex` of <sys/timex.h>, as far as it is read here, then room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock_state() -> ClockState | None:
    """Return whether the clock is synchronised, and its maximum error; None where not known."""
    answer = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer)) < 0:
        return None
    return ClockState(not answer.status & _STA_UNSYNC, answer.maxerror)


def has_net_admin() -> bool:
    """Return whether this process holds CAP_NET_ADMIN."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return False


def file_system_of(path: str | Path) -> FileSystem | None:
    """Return the file system that `path` is on, or will be once made; None where not known."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    real = Path(os.path.realpath(path))
    found = None
    for line in mounts.splitlines():
        mount = parse_mount(line)
        # Of several at one point the last one covers the others; of nested ones the deeper counts.
        if real.is_relative_to(mount.mount_point) and (
            found is None or len(mount.mount_point) >= len(found.mount_point)
        ):
            found = mount
    return found


def parse_mount(line: str) -> FileSystem:
    """Parse one line of /proc/PID/mountinfo (proc_pid_mountinfo(5)); blanks in paths are octal."""
    head, _, tail = line.partition(" - ")
    mounted, own_options = head.split(" ")[4:6]
    kind, _, options = tail.split(" ")[:3]
    mounted = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mounted)
    return FileSystem(kind, mounted, (*own_options.split(","), *options.split(",")))


def is_read_only(path: str | Path) -> bool:
    """Return whether the path's file system is mounted for reading only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def free_bytes(path: str | Path) -> int:
    """Return the bytes that a user other than root may still write there."""
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize
