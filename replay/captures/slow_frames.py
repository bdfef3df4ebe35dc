"""Frames that the compiled reader puts aside, read with dpkt: link layers, tunnels, pieces, IPv6.

`SlowFrames.read` is given one frame and walks through its layers one by one, to the first UDP
datagram: dpkt reads each layer's header, and the walk goes on in what stands behind it. dpkt's own
descent is switched off in the classes below: it would decode a hostile frame as deep as that is
nested, and it cannot put pieces together. Whatever dpkt raises about a frame is counted
(`skipped`), never raised; `LAYERS_MAX` bounds the walk, `fragments` what pieces take.

Columns have IPv4 addresses. An IPv6 address that is no mapped IPv4 one goes by a stand-in out of
240.0.0.0/4, which no network uses: always the same for the same address, so that parts of a capture
that are read apart agree. `stand_ins` gives the address of each.

This module imports dpkt, which takes a while: it is imported when a frame needs it
(`capture.BatchMaker`).
"""

import ipaddress
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from dpkt import dpkt, ethernet, gre, ip, ip6, loopback, ppp, pppoe, sll, sll2, udp

from feedhandler.replay.captures.fragments import Fragments
from feedhandler.replay.captures.frames import VXLAN_PORT, DatagramColumns, LinkType, Skip
from feedhandler.replay.captures.records import PAYLOAD_BYTES_MAX, frame_headers

Array = np.ndarray[Any, Any]

#: Layers of a frame at most: more are no real tunnel.
LAYERS_MAX = 16
#: IPv6 addresses whose stand-ins are remembered, to be reported.
STAND_INS_MAX = 1_024
#: The network of the stand-ins, class E, and how much of an address they keep.
_STAND_IN, _STAND_IN_MASK = 0xF000_0000, 0x0FFF_FFFF
_MAPPED = bytes(10) + b"\xff\xff"

_IPV4, _IPV6, _PPPOE, _BRIDGED = 0x0800, 0x86DD, 0x8864, 0x6558
#: What dpkt's Ethernet takes apart together with its own header: VLAN tags and MPLS labels.
_MPLS = (0x8847, 0x8848)
_TAGGED = (0x8100, 0x88A8, 0x9100, *_MPLS)
#: Numbers of protocols behind IP, and behind PPP.
_IP_IN_IP, _UDP, _IPV6_IN_IP, _IPV6_FRAGMENT, _GRE = 4, 17, 41, 44, 47
_PPP_IPV4, _PPP_IPV6 = 0x21, 0x57
#: Address families of loopback headers: IPv4, and what the BSDs call IPv6.
_FAMILY_IPV4, _FAMILIES_IPV6 = 2, (24, 28, 30)
_GRE_ROUTING = 0x4000
#: A row's columns, in the order in which `read_aside` makes them.
_COLUMNS = tuple(DatagramColumns(0).arrays)


class Found(NamedTuple):
    """A UDP datagram; `how`: what the compiled reader does not read about it; `cut`: the capture
    holds a part of it."""

    source: int
    destination: int
    source_port: int
    destination_port: int
    payload: bytes
    how: str
    cut: bool


class _Unread(Exception):
    """A frame holds no datagram that can be read; why."""

    def __init__(self, reason: Skip) -> None:
        super().__init__(reason.name)
        self.reason = reason


class _Ethernet(ethernet.Ethernet):  # type: ignore[misc]
    _typesw: ClassVar[dict[int, Any]] = {}

    def __init__(self, data: bytes) -> None:
        # dpkt's own looks again into what is no packet after one look.
        self._next_type: Any = None
        dpkt.Packet.__init__(self, data)


class _Ip(ip.IP):  # type: ignore[misc]
    _protosw: ClassVar[dict[int, Any]] = {}


class _Ip6(ip6.IP6):  # type: ignore[misc]
    _protosw: ClassVar[dict[int, Any]] = {}


class _Sll(sll.SLL):  # type: ignore[misc]
    _typesw: ClassVar[dict[int, Any]] = {}


class _Sll2(sll2.SLL2):  # type: ignore[misc]
    _typesw: ClassVar[dict[int, Any]] = {}


class _Ppp(ppp.PPP):  # type: ignore[misc]
    _protosw: ClassVar[dict[int, Any]] = {}


class _PppOfPppoe(pppoe.PPP):  # type: ignore[misc]
    _protosw: ClassVar[dict[int, Any]] = {}


class _Pppoe(pppoe.PPPoE):  # type: ignore[misc]
    def unpack(self, buf: bytes) -> None:
        dpkt.Packet.unpack(self, buf)


class _Loopback(loopback.Loopback):  # type: ignore[misc]
    def unpack(self, buf: bytes) -> None:
        dpkt.Packet.unpack(self, buf)


class _Gre(gre.GRE):  # type: ignore[misc]
    def unpack(self, buf: bytes) -> None:
        dpkt.Packet.unpack(self, buf)
        _, formats = self.opt_fields_fmts()
        self.data: bytes = self.data[struct.calcsize("!" + "".join(formats)) :]


class _Vxlan(dpkt.Packet):  # type: ignore[misc]
    """RFC 7348, section 5."""

    __hdr__ = (("flags", "B", 8), ("reserved", "3s", b""), ("network", "3s", b""), ("last", "B", 0))


class _Walk:
    """One frame, layer by layer. `how` is set by the first layer that makes it slow."""

    def __init__(self, slow: "SlowFrames", time_ns: int, interface: int) -> None:
        self._slow = slow
        self._time_ns = time_ns
        self._interface = interface
        self._source = self._destination = 0
        self.how = ""
        #: The datagram that holds a tunnel, which stands where the tunnel holds none.
        self.outer: Found | None = None

    def walk(self, link_type: int, frame: bytes) -> Found | None:
        """Return the frame's datagram; None for a fragment while others are missing.

        Raises `_Unread` where it holds no readable datagram, and what dpkt raises."""
        layer: _Layer | Found | None = (_LINKS[link_type], frame)
        for _ in range(LAYERS_MAX):
            if not isinstance(layer, tuple) or isinstance(layer, Found):
                return layer
            reader, data = layer
            layer = reader(self, data)
        raise _Unread(Skip.TOO_MANY_LAYERS)

    def _note(self, how: str) -> None:
        self.how = self.how or how

    # -- link layers ----------------------------------------------------------------------------

    def ethernet(self, data: bytes) -> "_Layer":
        """Read an Ethernet frame with its VLAN tags and MPLS labels."""
        layer = _Ethernet(data)
        if layer.type <= 1_500:
            raise _Unread(Skip.NOT_IP)  # a length: LLC
        if hasattr(layer, "mpls_labels"):
            self._note("MPLS")
        return self._by_ethertype(layer._next_type, layer.data)

    def cooked(self, data: bytes) -> "_Layer":
        """Read a Linux cooked header, version 1."""
        layer = _Sll(data)
        return self._by_ethertype(layer.ethtype, layer.data)

    def cooked_v2(self, data: bytes) -> "_Layer":
        """Read a Linux cooked header, version 2."""
        layer = _Sll2(data)
        return self._by_ethertype(layer.ethtype, layer.data)

    def loopback(self, data: bytes) -> "_Layer":
        """Read a BSD loopback header: the address family, in either byte order."""
        layer = _Loopback(data)
        self._note("loopback")
        swapped = int.from_bytes(layer.family.to_bytes(4, "little"), "big")
        for family in (layer.family, swapped):
            if family == _FAMILY_IPV4:
                return _Walk.ipv4, layer.data
            if family in _FAMILIES_IPV6:
                return _Walk.ipv6, layer.data
        raise _Unread(Skip.NOT_IP)

    def raw(self, data: bytes) -> "_Layer":
        """Choose the IP version of a raw packet."""
        return (_Walk.ipv6 if data[0] >> 4 == 6 else _Walk.ipv4), data

    def ppp(self, data: bytes) -> "_Layer":
        """Read a PPP header, with HDLC's address and control bytes or without."""
        self._note("PPP")
        layer = _Ppp(data) if data.startswith(b"\xff\x03") else _PppOfPppoe(data)
        return self._by_ppp(layer)

    def pppoe(self, data: bytes) -> "_Layer":
        """Read a packet of a PPPoE session."""
        self._note("PPPoE")
        layer = _Pppoe(data)
        if layer.code != pppoe.PPPoE_SESSION:
            raise _Unread(Skip.NOT_IP)
        return self._by_ppp(_PppOfPppoe(layer.data[: layer.len]))

    def _by_ppp(self, layer: Any) -> "_Layer":
        if layer.p == _PPP_IPV4:
            return _Walk.ipv4, layer.data
        if layer.p == _PPP_IPV6:
            return _Walk.ipv6, layer.data
        raise _Unread(Skip.NOT_IP)

    def _by_ethertype(self, ethertype: int, data: bytes) -> "_Layer":
        if ethertype == _IPV4:
            return _Walk.ipv4, data
        if ethertype == _IPV6:
            return _Walk.ipv6, data
        if ethertype == _PPPOE:
            return _Walk.pppoe, data
        if ethertype == _BRIDGED:
            return _Walk.ethernet, data
        if ethertype in _TAGGED:
            self._note("MPLS" if ethertype in _MPLS else "VLAN tags")
            return _Walk.ethernet, bytes(12) + ethertype.to_bytes(2, "big") + data
        raise _Unread(Skip.NOT_IP)

    # -- networks -------------------------------------------------------------------------------

    def ipv4(self, data: bytes) -> "_Layer | None":
        """Read an IPv4 packet; None for a fragment, which waits for the others."""
        layer = _Ip(data)
        header_bytes = 4 * layer.hl
        if layer.v != 4 or (layer.len and layer.len < header_bytes):
            raise _Unread(Skip.BAD_IP_HEADER)
        self._address(layer)
        payload = layer.data
        if layer.mf or layer.offset:
            if len(payload) < layer.len - header_bytes:
                raise _Unread(Skip.SHORT_CAPTURE)
            self._note("fragments")
            key = (layer.src, layer.dst, layer.id, layer.p, self._interface)
            payload = self._slow.fragments.add(
                key, 8 * layer.offset, bool(layer.mf), payload, self._time_ns
            )
            if payload is None:
                return None
        return self._by_protocol(layer.p, payload)

    def ipv6(self, data: bytes) -> "_Layer":
        """Read an IPv6 packet with its extension headers; fragments are not reassembled."""
        self._note("IPv6")
        layer = _Ip6(data)
        if layer.v != 6:
            raise _Unread(Skip.BAD_IP_HEADER)
        if _IPV6_FRAGMENT in layer.extension_hdrs:
            raise _Unread(Skip.FRAGMENT)
        self._address(layer)
        return self._by_protocol(layer.p, layer.data)

    def _address(self, layer: Any) -> None:
        """Set source and destination to those of the innermost packet."""
        self._source = self._slow.number_of(layer.src)
        self._destination = self._slow.number_of(layer.dst)

    def _by_protocol(self, protocol: int, data: bytes) -> "_Layer":
        if protocol == _UDP:
            return _Walk.udp, data
        if protocol == _GRE:
            return _Walk.gre, data
        if protocol in (_IP_IN_IP, _IPV6_IN_IP):
            self._note("IP in IP")
            return (_Walk.ipv4 if protocol == _IP_IN_IP else _Walk.ipv6), data
        raise _Unread(Skip.NOT_UDP)

    def gre(self, data: bytes) -> "_Layer":
        """Read a header of generic routing encapsulation (RFC 2784, 2890)."""
        self._note("GRE")
        layer = _Gre(data)
        if layer.v or layer.flags & _GRE_ROUTING:
            raise _Unread(Skip.NOT_UDP)
        return self._by_ethertype(layer.p, layer.data)

    def udp(self, data: bytes) -> "_Layer | Found":
        """Read a UDP datagram, or go on with the frame inside where it is a VXLAN tunnel."""
        layer = udp.UDP(data)
        if layer.ulen < 8:
            raise _Unread(Skip.BAD_UDP_LENGTH)
        payload = layer.data[: layer.ulen - 8]
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise _Unread(Skip.BAD_UDP_LENGTH)  # of IPv6; no IPv4 packet has room for it
        found = Found(
            self._source, self._destination, layer.sport, layer.dport, payload, self.how,
            len(payload) < layer.ulen - 8,
        )  # fmt: skip
        if layer.dport == VXLAN_PORT and self.outer is None and len(payload) >= 8:
            tunnel = _Vxlan(payload)
            if tunnel.flags == 8 and tunnel.reserved == bytes(3) and tunnel.last == 0:
                self._note("VXLAN")
                self.outer = found._replace(how=self.how)
                return _Walk.ethernet, tunnel.data
        return found


#: What reads a layer, and its bytes.
_Layer: TypeAlias = tuple[Callable[[_Walk, bytes], Any], bytes]

_LINKS: dict[int, Callable[[_Walk, bytes], Any]] = {
    LinkType.ETHERNET: _Walk.ethernet,
    LinkType.LINUX_COOKED: _Walk.cooked,
    LinkType.LINUX_COOKED_V2: _Walk.cooked_v2,
    LinkType.LOOPBACK: _Walk.loopback,
    LinkType.LOOPBACK_OPENBSD: _Walk.loopback,
    LinkType.PPP: _Walk.ppp,
    LinkType.PPP_HDLC: _Walk.ppp,
    LinkType.PPPOE: _Walk.pppoe,
    LinkType.RAW: _Walk.raw,
    LinkType.RAW_BSD: _Walk.raw,
    LinkType.RAW_OPENBSD: _Walk.raw,
    LinkType.RAW_IPV4: _Walk.raw,
    LinkType.RAW_IPV6: _Walk.raw,
}
assert _LINKS.keys() == set(LinkType)


class SlowFrames:
    """The reader of frames put aside; see the module's text.

    `waiting`: fragments from before what is read here (`Fragments.waiting`). `slowly` counts the
    datagrams found, by what the compiled reader does not read; `cut_payloads` those that the
    capture holds in part."""

    def __init__(self, waiting: bytes = b"") -> None:
        self.slowly: Counter[str] = Counter()
        self.cut_payloads = 0
        self.stand_ins: dict[str, str] = {}
        self.fragments = Fragments(waiting)
        self._unread: Counter[Skip] = Counter()

    def read(self, frame: bytes, link_type: int, time_ns: int, interface: int) -> Found | None:
        """Return the datagram that the frame holds or completes, or None; never raises."""
        walk = _Walk(self, time_ns, interface)
        try:
            found = walk.walk(link_type, frame)
        except Exception as error:  # of hostile bytes dpkt raises all sorts
            found = walk.outer
            if found is None:
                self._unread[_reason(error)] += 1
        if found is not None:
            self.slowly[found.how] += 1
            self.cut_payloads += found.cut
        return found

    def read_aside(self, chunk: Array, columns: DatagramColumns) -> tuple[Array, dict[str, Array]]:
        """Read the frames put aside and insert their datagrams among the rows of `columns`.

        Returns the bytes that the rows refer to, and the columns by name. `columns` are a scanner's
        over `chunk`. A datagram read here gets a plain Ethernet frame of its own behind the
        capture's bytes, so that code that sends, rewrites or measures frames need not handle
        tunnels and fragments.
        """
        arrays = columns.arrays
        aside = slice(columns.limit, columns.capacity)
        names = ("offset", "frame_offset", "frame_length", "link_type", "time_ns", "interface")
        rows = zip(*(arrays[name][aside][::-1].tolist() for name in names), strict=True)
        before: list[int] = []
        made: list[tuple[int, ...]] = []
        frames: list[bytes] = []
        end = len(chunk)
        for index, start, length, link_type, time_ns, interface in rows:
            frame = chunk[start : start + length].tobytes()
            found = self.read(frame, link_type, time_ns, interface)
            if found is None:
                continue
            plain = _plain_frame(found)
            head = len(plain) - len(found.payload)
            before.append(index)
            made.append(
                (time_ns, *found[:4], end + head, len(found.payload), end, len(plain), interface,
                 LinkType.ETHERNET)
            )  # fmt: skip
            frames.append(plain)
            end += len(plain)
        fast = {name: column[: columns.count] for name, column in arrays.items()}
        if not made:
            return chunk, fast
        data = np.concatenate([chunk, np.frombuffer(b"".join(frames), np.uint8)])
        return data, {
            name: np.insert(fast[name], before, np.array(values, fast[name].dtype))
            for name, values in zip(_COLUMNS, zip(*made, strict=True), strict=True)
        }

    def finish(self) -> None:
        """Give up incomplete datagrams, at the end of the capture."""
        self.fragments.finish()

    @property
    def skipped(self) -> dict[Skip, int]:
        """Frames that held no datagram, by reason; pieces that wait are not counted yet."""
        found = self._unread.copy()
        found[Skip.FRAGMENT] += self.fragments.given_up
        found[Skip.OVERLAPPING] += self.fragments.contradicting
        return {reason: count for reason, count in found.items() if count}

    def number_of(self, address: bytes) -> int:
        """Convert an address to an IPv4 number, an IPv6 address to its stand-in."""
        if len(address) == 4:
            return int.from_bytes(address, "big")
        if address.startswith(_MAPPED):
            return int.from_bytes(address[12:], "big")
        number = _STAND_IN | (zlib.crc32(address) & _STAND_IN_MASK)
        if len(self.stand_ins) < STAND_INS_MAX:
            text = socket.inet_ntoa(number.to_bytes(4, "big"))
            self.stand_ins.setdefault(text, str(ipaddress.IPv6Address(address)))
        return number


def _reason(error: Exception) -> Skip:
    """Return the `Skip` reason of an error while reading a frame."""
    if isinstance(error, _Unread):
        return error.reason
    return Skip.SHORT_CAPTURE if isinstance(error, dpkt.NeedData) else Skip.MALFORMED


def _plain_frame(found: Found) -> bytes:
    """Build the frame that would carry a datagram without tunnels and fragments."""
    source, destination = (
        socket.inet_ntoa(each.to_bytes(4, "big")) for each in (found.source, found.destination)
    )
    headers = frame_headers(
        destination, found.destination_port, source, found.source_port, len(found.payload)
    )
    return headers + found.payload
