"""Packet sockets for raw frames, with errors of one line where an interface cannot be used.

`open_frame_socket` binds a packet socket to an interface that is up and carries Ethernet frames.
`explain` turns an error of the kernel while sending into one that names the interface and the
reason: it went down, lost its link, or is gone.

A packet socket hands frames to the interface as they are: no routing, no address resolution, no
time to live to keep them in the local network. Receivers on this host see what goes out of the
loopback interface only.
"""

import dataclasses
import errno
import fcntl
import re
import socket
import struct

from feedhandler.codecs.errors import ConfigError, UsageError

# From <linux/sockios.h>, <linux/if.h>, <linux/if_arp.h>, <linux/if_packet.h>.
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFMTU, _SIOCGIFHWADDR = 0x8913, 0x8915, 0x8921, 0x8927
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_ARPHRD_ETHER, _ARPHRD_LOOPBACK = 1, 772
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20

#: What may wait for the interface. The kernel cuts this to net.core.wmem_max.
SEND_BUFFER_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class FrameInterface:
    """An interface as it is now: its own addresses, and the longest IPv4 packet it takes."""

    name: str
    mac: bytes
    address: str
    mtu_bytes: int
    is_up: bool
    has_link: bool
    carries_ethernet: bool


def parse_mac(text: str) -> bytes:
    """Parse `02:00:5e:10:00:01` (or with dashes) to six bytes.

    Raises `UsageError` where it is malformed or the address of a group."""
    if re.fullmatch(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}", text.strip()) is None:
        raise UsageError(f"'{text}' is no MAC address", "give six bytes, as 02:00:5e:10:00:01")
    mac = bytes.fromhex(re.sub("[:-]", "", text.strip()))
    if mac[0] & 1:
        raise UsageError(f"{text} is the address of a group of stations", "give one station's")
    return mac


def interface_of(interface: str) -> str:
    """Return the name of an interface that is given by name or by its own IPv4 address.

    Raises `ConfigError` where no interface has it.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface in names:
        return interface
    for name in names:
        if _address(name) == interface:
            return name
    raise ConfigError(
        f"cannot send frames through interface '{interface}': no such interface",
        "give the name or the IPv4 address of one of this host's, as `ip address` lists them",
    )


def look_at(name: str) -> FrameInterface:
    """Read the state of an interface. Raises `OSError` where there is none of that name."""
    (flags,) = struct.unpack_from("@H", _ask(_SIOCGIFFLAGS, name), 16)
    (mtu_bytes,) = struct.unpack_from("@i", _ask(_SIOCGIFMTU, name), 16)
    hardware = _ask(_SIOCGIFHWADDR, name)
    (kind,) = struct.unpack_from("@H", hardware, 16)
    return FrameInterface(
        name=name,
        mac=hardware[18:24],
        address=_address(name),
        mtu_bytes=mtu_bytes,
        is_up=bool(flags & _IFF_UP),
        has_link=bool(flags & _IFF_RUNNING),
        carries_ethernet=kind in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK),
    )


def _ask(request: int, name: str) -> bytes:
    """Call an ioctl about an interface and return the resulting struct ifreq."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("@16s24x", name.encode()))


def _address(name: str) -> str:
    """Return the interface's own IPv4 address, 0.0.0.0 where it has none."""
    try:
        return socket.inet_ntoa(_ask(_SIOCGIFADDR, name)[20:24])
    except OSError:
        return "0.0.0.0"


def open_frame_socket(name: str, bypass_queue: bool = False) -> socket.socket:
    """Open a packet socket that sends through the interface `name`; the caller closes it.

    `bypass_queue`: frames go to the driver without the interface's queueing discipline: faster, and
    unseen by shaping and by captures on this host. Raises `ConfigError` where the right is missing,
    the interface is down or has no link, or carries no Ethernet frames.
    """
    state = look_at(name)
    if (trouble := _trouble(state)) is not None:
        raise trouble
    sock = None
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sock.bind((name, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if bypass_queue:
            sock.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    except PermissionError:
        raise ConfigError(
            f"cannot send frames through interface '{name}': this takes the right CAP_NET_RAW",
            "run as root, or give it: sudo setcap cap_net_raw+ep $(readlink -f $(which python3))",
        ) from None
    except OSError as error:
        if sock is not None:
            sock.close()
        raise explain(name, error) from None
    return sock


def _trouble(state: FrameInterface) -> ConfigError | None:
    """Return the error that keeps frames from leaving through an interface, or None."""
    refusal = f"cannot send frames through interface '{state.name}'"
    if not state.carries_ethernet:
        return ConfigError(
            f"{refusal}: it carries no Ethernet frames", "replay without --raw through it"
        )
    if not state.is_up:
        return ConfigError(f"{refusal}: it is down", f"ip link set {state.name} up")
    if not state.has_link:
        return ConfigError(
            f"{refusal}: it has no link", "is the cable plugged in, and the other end up?"
        )
    return None


def explain(name: str, error: OSError) -> ConfigError:
    """Explain the kernel's refusal of a frame on the interface `name`."""
    try:
        trouble = _trouble(look_at(name))
    except OSError:
        return ConfigError(
            f"cannot send frames through interface '{name}': it is gone", "see `ip link`"
        )
    if trouble is not None:
        return trouble
    if error.errno == errno.EBADMSG:
        return ConfigError(
            "a frame of the capture has no headers that could be changed", "replay without --raw"
        )
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"cannot send frames through interface '{name}': {reason}", "see `ip link`")
