"""An independent calculation of what the job tells, and captures to try it on.

`Independent` reads a capture with dpkt and the standard library alone, one packet after the other
in plain Python, and keeps lists: no code of the job, and none of its ideas of slices, summaries
and bounds. It knows the two framings that the tests have (IEX-TP and UTP-MD) by their documents.
"""

import gzip
import random
import struct
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dpkt

from feedhandler._compiled import load_interpreted
from feedhandler.characterise.arbitrated import arbitrated_tables
from feedhandler.characterise.job import Outcome
from feedhandler.characterise.tables import tables_of
from feedhandler.codecs import Feed, load_feed
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.generator import SessionGenerator
from tests.support.captures import pieces_of
from tests.support.scanners import INTERPRETED

FEED = load_feed("euronext-utp-md")
#: 2011-03-15, 08:00 in Lisbon.
OPENING_NS = 1_300_176_000 * 10**9
LINE_A, LINE_B, REFRESH = "239.1.1.1", "239.1.2.1", "239.1.3.1"
PORT = 15_000


class Seen(NamedTuple):
    """One packet as the independent reading has it."""

    time_ns: int
    line: tuple[bytes, int]
    service: int
    number: int
    kind: str
    payload_bytes: int
    file_bytes: int
    count: int
    messages: list[tuple[int, int | None, int]]
    #: Of a compressed packet, what is in it.
    inflated: list[tuple[int, int | None, int]]
    compressed: bool = False


class Independent:
    """`packets`: everything of the feed in a capture, in order; `foreign`: how many other datagrams
    there were."""

    def __init__(self, path: Path, feed: str) -> None:
        parse = {"iex-deep": _iex, "euronext-utp-md": utp_packet}[feed]
        seen = [parse(*each) for each in _datagrams(path)]
        self.packets = [each for each in seen if each is not None]
        self.foreign = len(seen) - len(self.packets)


def _datagrams(path: Path) -> Iterator[tuple[int, tuple[bytes, int], bytes, int]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        reader = dpkt.pcap.Reader(file)
        for stamp, frame in reader:
            # Microseconds come as a float that is exact enough to be rounded, nanoseconds exact.
            time_ns = (
                int(stamp * 10**9) if isinstance(stamp, Decimal) else round(stamp * 10**6) * 1_000
            )
            packet = dpkt.ethernet.Ethernet(frame).data
            if isinstance(packet, dpkt.ip.IP) and isinstance(packet.data, dpkt.udp.UDP):
                line = (packet.dst, packet.data.dport)
                yield time_ns, line, bytes(packet.data.data), len(frame) + 16


#: IEX DEEP: types that name no symbol.
_IEX_WITHOUT = {ord("S")}


def _iex(time_ns: int, line: tuple[bytes, int], data: bytes, on_file: int) -> Seen | None:
    version, _, protocol, channel, _, length, count, _, number, _ = struct.unpack_from(
        "<BBHIIHHQQQ", data
    )
    assert (version, protocol, length) == (1, 0x8004, len(data) - 40)
    messages, at = [], 40
    for _ in range(count):
        (size,) = struct.unpack_from("<H", data, at)
        kind = data[at + 2]
        symbol = None
        if kind not in _IEX_WITHOUT:
            symbol = int.from_bytes(data[at + 12 : at + 20], "big")
        messages.append((kind, symbol, size + 2))
        at += size + 2
    kind_of_packet = "data" if count else "heartbeat"
    return Seen(
        time_ns, line, channel, number, kind_of_packet, len(data), on_file, count, messages, []
    )


#: UTP-MD: where the symbol index of a type stands, taken from the description and not the scanner.
_UTP_SYMBOLS = {
    layout.code: layout.by_name[layout.symbol].at
    for ways in FEED.layouts.values()
    for layout in ways
    if layout.symbol
}


def utp_packet(time_ns: int, line: tuple[bytes, int], data: bytes, on_file: int) -> Seen | None:
    """Return the packet in a datagram, read by the framing's document; None where it is none."""
    if len(data) < 16:
        return None
    length, kind, number, _, service, flag, count = struct.unpack_from(">HHIIHBB", data)
    if length != len(data) or kind not in (501, 1, 2):
        return None
    body = zlib.decompress(data[16:]) if flag == 17 else data[16:]
    messages, at = [], 0
    for _ in range(count):
        size, code = struct.unpack_from(">HH", body, at)
        symbol = None
        if code in _UTP_SYMBOLS:
            (symbol,) = struct.unpack_from(">I", body, at + _UTP_SYMBOLS[code])
        messages.append((code, symbol, size + 2))
        at += size + 2
    name = {501: "data", 1: "reset", 2: "heartbeat"}[kind]
    compressed = flag == 17
    read, inflated = ([], messages) if compressed else (messages, [])
    size = len(data)
    return Seen(
        time_ns, line, service, number, name, size, on_file, count, read, inflated, compressed
    )


def refresh_packet(packet: bytes) -> bytes:
    """The packet as a refresh server sends it, its body compressed."""
    service, count = struct.unpack_from(">H", packet, 12)[0], packet[15]
    body = zlib.compress(packet[16:])
    return FEED.encode_packet(service=service, flags=17, body=body, count=count, sequence=1)


def write_session(
    path: Path, seed: int, *, seconds: float = 0.4, loss: float = 0.02, skew_us: int = 300
) -> Path:
    """A generated session on lines A and B with loss and skew, and some refresh packets on a third
    group; datagrams that are none of the feed between them. In order of time."""
    rng = random.Random(seed)
    generator = SessionGenerator(FEED, seed, instruments=60)
    sent = list(generator.packets(int(seconds * 10**9)))
    rows: list[tuple[int, str, bytes]] = []
    for number, each in enumerate(sent):
        at_ns = OPENING_NS + each.due_ns
        if rng.random() >= loss:
            rows.append((at_ns, LINE_A, each.packet))
        if rng.random() >= loss:
            late = rng.randrange(-100, skew_us) * 1_000
            rows.append((max(OPENING_NS, at_ns + late), LINE_B, each.packet))
        if each.messages and number % 40 == 0:
            rows.append((at_ns, REFRESH, refresh_packet(each.packet)))
        if number % 100 == 0:
            rows.append((at_ns, LINE_A, b"no packet of the feed"))
    rows.sort(key=lambda row: row[0])
    with CaptureWriter(path) as writer:
        for at_ns, group, packet in rows:
            writer.write(at_ns, group, PORT, packet)
    return path


def table_rows(outcome: Outcome, feed: Feed = FEED) -> list[tuple[str, list[list[Any]]]]:
    """Name and rows of every table but the last, the account of the files."""
    made = tables_of if outcome.lines is None else arbitrated_tables
    return [(each.name, each.rows) for each in made(outcome, feed, "UTC")[:-1]]


def append(path: Path, data: bytes, share: float) -> None:
    """Append what a recorder has added when it has written the share `share` (0 to 1) of `data`."""
    with path.open("ab") as file:
        file.write(data[file.tell() : int(len(data) * share)])


def _interpreted() -> SimpleNamespace:
    """The Python files of the tallies, fed by the Python file of the scanner."""
    names = ("interarrival", "skew", "tally", "boundaries")
    twins = {name: load_interpreted(f"feedhandler.characterise.{name}") for name in names}
    frames = load_interpreted("feedhandler.replay.captures.frames")
    scan = INTERPRETED
    fine_bucket_of = load_interpreted("feedhandler.histogram").fine_bucket_of
    twins["interarrival"].fine_bucket_of = twins["skew"].fine_bucket_of = fine_bucket_of
    twins["boundaries"].read_u32 = frames.read_u32
    for name in ("Interarrival", "Skew"):
        setattr(twins["tally"], name, getattr(twins[name.lower()], name))
    for name in ("MessageIndex", "PacketHeader", "parse_header", "parse_next", "scan_messages"):
        setattr(twins["tally"], name, getattr(scan, name))
    return SimpleNamespace(**twins, scanner=scan, table=FEED.table_of(scan))


TWIN = _interpreted()


def frames_in_pieces() -> list[bytes]:
    """Return 60 packets, numbers from 1 on, in pieces; of every tenth the last one is missing."""
    frames = []
    for number in range(60):
        messages = [FEED.encode_message(230, symbol_index=each) for each in range(40)]
        packet = FEED.encode_packet(service=3, sequence=number + 1, messages=messages)
        pieces = pieces_of(packet, 296, number)
        frames += pieces[:-1] if number % 10 == 9 else pieces
    return frames
