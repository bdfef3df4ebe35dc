"""Frames that the compiled reader puts aside: each kind against its payload, pieces, hostile bytes.

Frames are built by dpkt or by hand; the oracle is the payload that was put in.
"""

import random
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import dpkt
import pytest

from feedhandler.characterise.arbitrated import characterise_arbitrated
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import files_table, tables_of
from feedhandler.cli import app as cli
from feedhandler.codecs import load_feed
from feedhandler.replay.captures import fragments as bounds
from feedhandler.replay.captures import reading as capture_module
from feedhandler.replay.captures.fragments import Fragments, Key
from feedhandler.replay.captures.frames import LinkType, Skip
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.records import frame_headers
from feedhandler.replay.captures.slow_frames import LAYERS_MAX
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import run_guarded
from tests.support.captures import (
    GROUP,
    SECOND,
    SOURCE,
    START_NS,
    TWINS,
    PcapngBytes,
    pieces_of,
    write_frames,
)

GROUP_6 = socket.inet_pton(socket.AF_INET6, "ff3e::1:2:3")
SOURCE_6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1")
PAYLOAD = bytes(range(97)) * 3


def udp(payload: bytes = PAYLOAD, port: int = 7_001) -> dpkt.udp.UDP:
    return dpkt.udp.UDP(sport=9, dport=port, ulen=8 + len(payload), data=payload)


def ipv4(data: object, protocol: int = 17) -> bytes:
    src, dst = socket.inet_aton(SOURCE), socket.inet_aton(GROUP)
    return bytes(dpkt.ip.IP(src=src, dst=dst, p=protocol, ttl=3, data=data))


def ipv6(data: bytes, protocol: int = 17) -> bytes:
    head = struct.pack(">IHBB", 0x6000_0000, len(data), protocol, 3)
    return head + SOURCE_6 + GROUP_6 + data


def ethernet(ethertype: int, data: bytes) -> bytes:
    return bytes(12) + struct.pack(">H", ethertype) + data


def gre(protocol: int, data: bytes, flags: int = 0, fields: bytes = b"") -> bytes:
    return ipv4(struct.pack(">HH", flags, protocol) + fields + data, 47)


def vxlan(frame: bytes) -> bytes:
    return ipv4(udp(struct.pack(">II", 0x0800_0000, 77 << 8) + frame, 4_789))


def pppoe(data: bytes, protocol: int) -> bytes:
    return struct.pack(">BBHHH", 0x11, 0, 5, 2 + len(data), protocol) + data


def mpls(data: bytes, *labels: int) -> bytes:
    stack = [label << 12 | (n == len(labels) - 1) << 8 | 64 for n, label in enumerate(labels)]
    return struct.pack(f">{len(stack)}I", *stack) + data


PLAIN = ethernet(0x0800, ipv4(udp()))
TAG = struct.pack(">H", 5)
SIX = ipv6(bytes(udp()))
KINDS = {
    "ipv6": (1, ethernet(0x86DD, SIX), "IPv6"),
    "ipv6 with options": (
        1,
        ethernet(0x86DD, ipv6(b"\x11\x00\x01\x04\x00\x00\x00\x00" + bytes(udp()), 0)),
        "IPv6",
    ),
    "ipv6 raw": (101, SIX, "IPv6"),
    "ipv6 alone": (229, SIX, "IPv6"),
    "ipv6 cooked": (113, bytes(14) + b"\x86\xdd" + SIX, "IPv6"),
    "ipv6 cooked v2": (276, b"\x86\xdd" + bytes(18) + SIX, "IPv6"),
    "tag cooked": (113, bytes(14) + b"\x81\x00" + TAG + PLAIN[12:], "VLAN tags"),
    "three tags": (1, ethernet(0x88A8, (TAG + b"\x81\x00") * 2 + TAG + PLAIN[12:]), "VLAN tags"),
    "pppoe": (1, ethernet(0x8864, pppoe(ipv4(udp()), 0x21)), "PPPoE"),
    "pppoe behind a tag": (
        1,
        ethernet(0x8100, TAG + b"\x88\x64" + pppoe(SIX, 0x57)),
        "PPPoE",
    ),
    "pppoe alone": (51, pppoe(ipv4(udp()), 0x21), "PPPoE"),
    "mpls": (1, ethernet(0x8847, mpls(ipv4(udp()), 100, 200)), "MPLS"),
    "mpls bridged": (1, ethernet(0x8847, mpls(bytes(4) + PLAIN, 100)), "MPLS"),
    "gre": (1, ethernet(0x0800, gre(0x0800, ipv4(udp()))), "GRE"),
    "gre with a key": (
        1,
        ethernet(0x0800, gre(0x0800, ipv4(udp()), 0xB000, bytes(12))),
        "GRE",
    ),
    "gre bridged": (1, ethernet(0x0800, gre(0x6558, PLAIN)), "GRE"),
    "ip in ip": (1, ethernet(0x0800, ipv4(ipv4(udp()), 4)), "IP in IP"),
    "ipv6 in ipv4": (1, ethernet(0x0800, ipv4(SIX, 41)), "IP in IP"),
    "vxlan": (1, ethernet(0x0800, vxlan(PLAIN)), "VXLAN"),
    "vxlan with ipv6": (1, ethernet(0x0800, vxlan(ethernet(0x86DD, SIX))), "VXLAN"),
    "loopback": (0, b"\2\0\0\0" + ipv4(udp()), "loopback"),
    "loopback, big-endian": (0, b"\0\0\0\x1e" + SIX, "loopback"),
    "loopback of OpenBSD": (108, b"\0\0\0\2" + ipv4(udp()), "loopback"),
    "ppp": (9, b"\x00\x21" + ipv4(udp()), "PPP"),
    "ppp hdlc": (50, b"\xff\x03\x00\x21" + ipv4(udp()), "PPP"),
    "padding behind": (1, ethernet(0x8864, pppoe(ipv4(udp()), 0x21)) + b"padding", "PPPoE"),
}


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_gives_its_payload_at_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, twin: str
) -> None:
    for name in ("PcapScanner", "DatagramColumns"):
        monkeypatch.setattr(capture_module, name, getattr(TWINS[twin], name))
    link, frame, how = KINDS[kind]
    ordinary = {1: PLAIN, 101: PLAIN[14:], 113: bytes(14) + PLAIN[12:]}.get(link, frame)
    capture = Capture(write_frames(tmp_path / "x.pcap", [ordinary, frame, ordinary, frame], link))
    found = list(capture)
    assert [one.payload for one in found] == [PAYLOAD] * 4
    assert [one.time_ns for one in found] == [START_NS + n * SECOND for n in range(4)]
    assert {one.port for one in found} == {7_001}
    statistics = capture.statistics
    assert statistics.slowly == {how: 2 if ordinary is not frame else 4}
    assert (
        statistics.records,
        statistics.datagrams,
        statistics.skipped,
        statistics.cut_payloads,
    ) == (4, 4, {}, 0)
    if "ipv6" not in kind and SIX not in frame:
        assert {(one.group, one.source) for one in found} == {(GROUP, SOURCE)}
    else:
        number = 0xF000_0000 | zlib.crc32(GROUP_6) & 0x0FFF_FFFF
        assert found[1].group == socket.inet_ntoa(number.to_bytes(4, "big"))
        assert statistics.stand_ins[found[1].group] == "ff3e::1:2:3"


def test_link_layers_are_each_interfaces_own(tmp_path: Path) -> None:
    made = PcapngBytes().section().interface(0).interface(1).interface(LinkType.PPP)
    for number, (_, frame, _) in enumerate([KINDS["loopback"], KINDS["gre"], KINDS["ppp"]]):
        made.packet(frame, number, number)
    path = tmp_path / "x.pcapng"
    path.write_bytes(made.raw())
    capture = Capture(path)
    (batch,) = capture.batches()
    assert [one.payload for one in batch.datagrams()] == [PAYLOAD] * 3
    assert batch.interface.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (ethernet(0x86DD, ipv6(bytes(20), 6)), Skip.NOT_UDP),
        (ethernet(0x86DD, ipv6(b"\x11\x00\x00\x01" + bytes(4) + bytes(udp()), 44)), Skip.FRAGMENT),
        (ethernet(0x86DD, SIX[:30]), Skip.SHORT_CAPTURE),
        (ethernet(0x86DD, b"\x40" + SIX[1:]), Skip.BAD_IP_HEADER),
        (ethernet(0x86DD, ipv6(struct.pack(">HHHH", 1, 2, 7, 0))), Skip.BAD_UDP_LENGTH),
        (ethernet(0x8864, b"\x11\xa7" + bytes(20)), Skip.NOT_IP),
        (ethernet(0x8864, pppoe(bytes(20), 0xC021)), Skip.NOT_IP),
        (ethernet(0x0800, gre(0x0806, bytes(28))), Skip.NOT_IP),
        (ethernet(0x0800, gre(0x0800, ipv4(udp()), 0x4000)), Skip.NOT_UDP),
        (ethernet(0x0800, gre(0x0800, b"", 0xB000)), Skip.SHORT_CAPTURE),
        (ethernet(0x0800, gre(0x0800, b"\x44" + ipv4(udp())[1:])), Skip.MALFORMED),
    ],
)
def test_what_cannot_be_read_slowly_either_is_counted_by_its_reason(
    tmp_path: Path, frame: bytes, reason: Skip
) -> None:
    capture = Capture(write_frames(tmp_path / "x.pcap", [frame, PLAIN]))
    assert [one.payload for one in capture] == [PAYLOAD]
    assert capture.statistics.skipped == {reason: 1}
    assert capture.statistics.slowly == {}


def test_tunnels_in_tunnels_are_followed_up_to_a_bound(tmp_path: Path) -> None:
    packet = ipv4(udp())
    frames = []
    for _ in range(300):
        frames.append(ethernet(0x0800, packet))
        packet = ipv4(packet, 4)
    capture = Capture(write_frames(tmp_path / "x.pcap", frames))
    found = len(list(capture))
    assert 5 < found <= LAYERS_MAX
    assert capture.statistics.skipped == {Skip.TOO_MANY_LAYERS: 300 - found}


def test_what_only_looks_like_vxlan_stays_the_datagram_that_it_is(tmp_path: Path) -> None:
    alike = struct.pack(">II", 0x0800_0000, 77 << 8) + b"no frame"
    other = b"\x09" + alike[1:]
    frames = [ethernet(0x0800, ipv4(udp(each, 4_789))) for each in (alike, other)]
    capture = Capture(write_frames(tmp_path / "x.pcap", frames))
    assert [(one.port, one.payload) for one in capture] == [(4_789, alike), (4_789, other)]


def key(name: object) -> Key:
    return b"", str(name).encode(), 0, 17, 0


def test_pieces_in_any_order_and_twice_become_the_datagram_they_are_of(tmp_path: Path) -> None:
    draw = random.Random(5)
    payloads = [draw.randbytes(draw.randrange(3_000, 9_000)) for _ in range(20)]
    frames = []
    for number, payload in enumerate(payloads):
        frames += pieces_of(payload, 1_480, number)
    frames += frames[1:3]  # seen again: a datagram that is not whole
    rest = frames[:]
    draw.shuffle(rest)
    tunnelled = [ethernet(0x0800, gre(0x6558, each)) for each in rest]
    for name, each in (("plain.pcap", rest), ("tunnel.pcap", tunnelled)):
        capture = Capture(write_frames(tmp_path / name, [*each, PLAIN], step_ns=1_000))
        found = [one.payload for one in capture]
        assert found.pop() == PAYLOAD
        assert sorted(found) == sorted(payloads)
        statistics = capture.statistics
        lost = statistics.skipped.get(Skip.FRAGMENT, 0)
        assert statistics.joined + lost == len(frames)
        assert statistics.records == statistics.datagrams - 20 + statistics.joined + lost


def test_pieces_on_both_sides_of_a_slice_are_put_together_as_in_one_reading(
    tmp_path: Path,
) -> None:
    feed = load_feed("euronext-utp-md")
    message = bytes(feed.layouts[230][0].size - 4)
    body = b"".join(struct.pack(">HH", len(message) + 2, 230) + message for _ in range(40))
    frames = []
    for number in range(120):
        packet = feed.encode_packet(service=3, sequence=number + 1, body=body, count=40)
        mine = pieces_of(packet, 296, number)
        frames += mine[:-1] if number % 10 == 9 else mine
    path = write_frames(tmp_path / "x.pcap", frames, step_ns=1_000_000)
    whole = characterise([str(path)], Request(feed.name))
    sliced = characterise([str(path)], Request(feed.name), slice_size=7_000)
    assert whole.digest.totals[0, 0] == 108
    assert sliced.files[0].slices > 20
    assert sliced.files[0].read_again > 10
    tables = [[(t.name, t.rows) for t in tables_of(each, feed, "UTC")] for each in (whole, sliced)]
    assert tables[0][:-1] == tables[1][:-1]
    names = ("records", "datagrams", "skipped", "slowly", "joined")
    accounts = [[getattr(each.files[0], name) for name in names] for each in (whole, sliced)]
    assert accounts[0] == accounts[1]
    stream = characterise_arbitrated([str(path)], Request(feed.name), slice_size=7_000)
    assert stream.digest.totals[0, 0] == 108


def test_a_datagram_that_does_not_become_whole_is_given_up_by_the_captures_clock(
    tmp_path: Path,
) -> None:
    late = bounds.WAIT_NS + 1
    first, second = pieces_of(PAYLOAD, 160)
    in_time = Capture(write_frames(tmp_path / "a.pcap", [first, second], step_ns=late - 1))
    assert [one.payload for one in in_time] == [PAYLOAD]
    too_late = Capture(write_frames(tmp_path / "b.pcap", [first, second], step_ns=late))
    assert list(too_late) == []
    assert too_late.statistics.skipped == {Skip.FRAGMENT: 2}


def test_pieces_that_contradict_one_another_are_no_datagram() -> None:
    eight, other = b"12345678", b"12345679"
    for later in (
        [(0, True, other)],  # other bytes for the same offset
        [(16, False, b"x"), (24, False, b"x")],  # two ends
        [(24, True, eight), (16, False, b"x")],  # an end before what is there
        [(4, True, eight)],  # over another one
        [(8, True, b"123")],  # in the middle, and no multiple of 8
        [(65_512, False, eight)],  # past what an IPv4 packet can hold
        [(8, True, b"")],
    ):
        fragments = Fragments()
        assert fragments.add(key("a"), 0, True, eight, 0) is None
        for offset, more, data in later:
            assert fragments.add(key("a"), offset, more, data, 0) is None
        assert fragments.contradicting == 1 + len(later), later
        assert fragments.held_bytes == 0


def test_pieces_take_no_more_memory_than_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HELD_BYTES_MAX", 4_000)
    monkeypatch.setattr(bounds, "DATAGRAMS_MAX", 10)
    monkeypatch.setattr(bounds, "PIECES_MAX", 30)
    fragments = Fragments()
    for number in range(1_000):
        fragments.add(key(number), 0, True, bytes(80), number)
        assert fragments.held_bytes <= 800
    for number in range(100):
        fragments.add(key("large"), 16 * number, True, bytes(8), 0)
    assert fragments.contradicting == 3 * 31
    for number in range(9):
        fragments.add(key(-number), 0, True, bytes(1_000), 0)
        assert fragments.held_bytes <= 4_000
    fragments.finish()
    assert fragments.held_bytes == 0
    assert fragments.given_up + fragments.contradicting == 1_000 + 100 + 9


def test_hostile_bytes_are_counted_and_never_raise(tmp_path: Path) -> None:
    draw = random.Random(20_240_311)
    for link in LinkType:
        good = [frame for mine, frame, _ in KINDS.values() if mine == link]
        good += pieces_of(PAYLOAD, 160) if link == LinkType.ETHERNET else []
        frames = []
        for number in range(400):
            frame = bytearray(draw.choice(good) if good else draw.randbytes(60))
            for _ in range(draw.randrange(6)):
                frame[draw.randrange(min(len(frame), 90))] = draw.randrange(256)
            frames.append(
                bytes(frame[: draw.randrange(1, len(frame) + 1)] if number % 2 else frame)
            )
        capture = Capture(write_frames(tmp_path / f"{link}.pcap", frames, link, step_ns=1_000))
        found = len(list(capture))
        statistics = capture.statistics
        fragmented = statistics.slowly.get("fragments", 0)
        in_pieces = statistics.joined + sum(
            statistics.skipped.get(each, 0) for each in (Skip.FRAGMENT, Skip.OVERLAPPING)
        )
        others = sum(statistics.skipped.values()) - in_pieces + statistics.joined
        assert statistics.datagrams == found
        # Each record is a datagram, a piece, or skipped for a reason; a piece inside a tunnel
        # makes a datagram that is counted under the tunnel.
        assert found + others + in_pieces - min(fragmented, statistics.joined) >= 400


def test_datagrams_read_slowly_are_replayed_and_written_as_plain_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [PLAIN, *(frame for link, frame, _ in KINDS.values() if link == 1)]
    fragmented = pieces_of(bytes(4_000), 1_480)
    path = write_frames(tmp_path / "in.pcap", [*frames, *fragmented], step_ns=1_000_000)
    out = tmp_path / "out.pcap"
    words = ["--map", f"{GROUP}=239.9.9.9:5005", "--source-ip", "10.5.5.5", "--write", str(out)]
    assert run_guarded(lambda: cli.chosen(["replay", str(path), *words])()) == 0
    expected = [one for one in Capture(path) if one.group == GROUP]
    with out.open("rb") as file:
        found = [dpkt.ethernet.Ethernet(frame) for _, frame in dpkt.pcap.Reader(file)]
    assert [each.data.data.data for each in found] == [one.payload for one in expected]
    for each in found:
        assert each.dst == bytes.fromhex("01005e090909")
        assert each.data.dst == socket.inet_aton("239.9.9.9")
        assert each.data.src == socket.inet_aton("10.5.5.5")
        assert (each.data.data.sport, each.data.data.dport) == (9, 5_005)
        checksum, each.data.sum = each.data.sum, 0
        assert dpkt.ip.IP(bytes(each.data)).sum == checksum
    printed = capsys.readouterr().out
    assert "read slowly: 3 GRE" in printed
    assert "on no line" in printed  # IPv6, whose stand-ins are no groups


def test_the_job_tells_what_was_read_slowly(tmp_path: Path) -> None:
    feed = load_feed("euronext-utp-md")
    packet = feed.encode_packet(service=3, sequence=1, body=b"", count=0, kind="heartbeat")
    inner = ethernet(0x0800, ipv4(udp(packet, 15_000)))
    plain = frame_headers(GROUP, 15_000, SOURCE, 9, len(packet)) + packet
    path = write_frames(tmp_path / "x.pcap", [plain, ethernet(0x0800, gre(0x6558, inner))])
    outcome = characterise([str(path)], Request(feed.name))
    assert outcome.digest.totals[:, 0].tolist() == [2]
    (account,) = outcome.files
    assert account.slowly == {"GRE": 1}
    table = files_table(outcome.files)
    assert table.rows[0][table.columns.index("read_slowly")] == "1 GRE"


def test_dpkt_is_imported_only_where_a_frame_needs_it(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path / "plain.pcap") as writer:
        writer.write(START_NS, GROUP, 7_001, PAYLOAD)
    write_frames(tmp_path / "slow.pcap", [KINDS["gre"][1]])
    code = (
        "import sys\n"
        "from feedhandler.cli.app import main\n"
        "from feedhandler.replay.captures.reading import Capture\n"
        "for name in ('plain', 'slow'):\n"
        "    assert len(list(Capture(sys.argv[1] + f'/{name}.pcap'))) == 1\n"
        "    print('dpkt' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
