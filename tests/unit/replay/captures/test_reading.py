"""Captures: the reader against dpkt, its interpreted twin, cut and damaged files, the writer."""

import gzip
import itertools
import os
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import dpkt
import numpy as np
import pytest

from feedhandler.characterise.files import look_at
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.captures import reading as capture_module
from feedhandler.replay.captures import sources as capture_sources
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, DatagramColumns, Skip
from feedhandler.replay.captures.pcap import PcapScanner
from feedhandler.replay.captures.reading import CHUNK_BYTES, Capture, Datagram
from feedhandler.replay.captures.records import TIME_END_NS, internet_checksum, multicast_mac
from feedhandler.replay.captures.status import Status
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.captures import TWINS

SEED = int(os.environ.get("FEEDHANDLER_SEED", "20240311"))
RERUN = f"FEEDHANDLER_SEED={SEED} pytest tests/unit/replay/captures/test_reading.py"
START_NS = 1_700_000_000_123_456_789


@pytest.fixture(params=["compiled", "interpreted"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with either form of the walk over the bytes."""
    if request.param == "interpreted":
        twin = TWINS["interpreted"]
        monkeypatch.setattr(capture_module, "PcapScanner", twin.PcapScanner)
        monkeypatch.setattr(capture_module, "DatagramColumns", twin.DatagramColumns)
    return str(request.param)


def random_datagrams(count: int, seed: int = SEED, size_max: int = 600) -> list[Datagram]:
    """Datagrams of random sizes to a few groups."""
    print(f"seed {seed}: {RERUN}")
    random_source = random.Random(seed)
    time_ns = START_NS
    made = []
    for _ in range(count):
        time_ns += random_source.randrange(2_000_000)
        made.append(
            Datagram(
                time_ns,
                f"239.{random_source.randrange(200)}.1.{random_source.randrange(4)}",
                random_source.randrange(1, 65_536),
                f"10.{random_source.randrange(256)}.3.4",
                random_source.randbytes(random_source.randrange(size_max)),
            )
        )
    return made


def write(path: Path, datagrams: list[Datagram], **options: object) -> Path:
    with CaptureWriter(path, **options) as writer:  # type: ignore[arg-type]
        for one in datagrams:
            writer.write(one.time_ns, one.group, one.port, one.payload, source=one.source)
    return path


def read_with_dpkt(path: Path) -> Iterator[Datagram]:
    """The oracle: dpkt's reader and packet classes."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        for seconds, frame in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(frame).data
            if not isinstance(ip, dpkt.ip.IP) or not isinstance(ip.data, dpkt.udp.UDP):
                continue
            if isinstance(seconds, float):
                time_ns = round(seconds * 1_000_000) * 1_000
            else:
                time_ns = int(seconds * 1_000_000_000)
            yield Datagram(
                time_ns,
                socket.inet_ntoa(ip.dst),
                ip.data.dport,
                socket.inet_ntoa(ip.src),
                ip.data.data[: ip.data.ulen - 8],
            )


@pytest.mark.parametrize("vlan_ids", [(), (100,), (200, 100)])
@pytest.mark.parametrize("nanosecond", [True, False])
@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("suffix", [".pcap", ".pcap.gz"])
def test_every_variant_reads_as_it_was_written_and_as_dpkt_reads_it(
    tmp_path: Path,
    scanner: str,
    vlan_ids: tuple[int, ...],
    nanosecond: bool,
    byte_order: str,
    suffix: str,
) -> None:
    datagrams = random_datagrams(150)
    path = tmp_path / f"generated{suffix}"
    write(path, datagrams, nanosecond=nanosecond, byte_order=byte_order, vlan_ids=vlan_ids)
    tick_ns = 1 if nanosecond else 1_000
    expected = [one._replace(time_ns=one.time_ns // tick_ns * tick_ns) for one in datagrams]
    capture = Capture(path)
    assert list(capture) == expected == list(read_with_dpkt(path))
    assert capture.truncation is None
    assert capture.statistics.records == capture.statistics.datagrams == len(datagrams)
    assert capture.share_done == 1.0


@pytest.mark.captures
def test_the_real_capture_reads_as_dpkt_reads_it(captures: Path, scanner: str) -> None:
    path = captures / "iex" / "deep-2023-10-02.pcap.gz"
    datagrams = list(Capture(path))
    assert len(datagrams) == 5_000
    assert datagrams == list(read_with_dpkt(path))


def test_a_file_of_many_chunks_reads_whole_and_twice(tmp_path: Path) -> None:
    datagrams = random_datagrams(4_000, size_max=1_400)
    for name in ("large.pcap", "large.pcap.gz"):
        path = write(tmp_path / name, datagrams)
        capture = Capture(path)
        assert list(capture) == datagrams
        assert sum(len(batch) for batch in capture.batches()) == len(datagrams)
    assert (tmp_path / "large.pcap").stat().st_size > 2 * CHUNK_BYTES


def test_batches_keep_their_bytes_after_later_ones_were_read(tmp_path: Path) -> None:
    datagrams = random_datagrams(2_500, size_max=1_400)
    batches = list(Capture(write(tmp_path / "kept.pcap", datagrams)).batches())
    assert len(batches) > 1
    again = [one for batch in batches for one in batch.datagrams()]
    assert again == datagrams
    assert batches[-1].payload(len(batches[-1]) - 1) == datagrams[-1].payload


def test_small_datagrams_overflow_a_batch_into_the_next(tmp_path: Path) -> None:
    datagrams = [Datagram(START_NS, "239.1.1.1", 5, "10.0.0.1", b"") for _ in range(9_000)]
    batches = list(Capture(write(tmp_path / "small.pcap", datagrams)).batches())
    assert [len(batch) for batch in batches] == [8_192, 808]


def open_cut(path: Path) -> Capture | None:
    """The capture, or None where there is too little of it to be one."""
    try:
        return Capture(path)
    except PeerError as error:
        if "is not a capture: it ends after" not in str(error):
            raise
        return None


@pytest.mark.parametrize("suffix", [".pcap", ".pcap.gz"])
def test_any_cut_yields_a_prefix_and_says_so(tmp_path: Path, scanner: str, suffix: str) -> None:
    datagrams = random_datagrams(60, size_max=200)
    whole = write(tmp_path / f"whole{suffix}", datagrams).read_bytes()
    random_source = random.Random(SEED)
    path = tmp_path / f"cut{suffix}"
    sizes = {len(whole) - 1, 25, 40, 41, *random_source.sample(range(1, len(whole)), 60)}
    record_ends = set(
        itertools.accumulate((16 + max(60, 42 + len(d.payload)) for d in datagrams), initial=24)
    )
    for size in sorted(sizes):
        path.write_bytes(whole[:size])
        capture = open_cut(path)
        if capture is None:
            # Too little for a header; a gzip stream holds its first bytes back for a while.
            assert size < (24 if suffix == ".pcap" else 1_000)
            continue
        got = list(capture)
        assert got == datagrams[: len(got)], size
        if suffix == ".pcap" and size in record_ends:
            assert capture.truncation is None  # nothing in the file tells of this cut
            continue
        assert capture.truncation is not None, size
        assert capture.truncation.records == len(got) == capture.statistics.records
        assert capture.truncation.offset in record_ends
        assert f"after {len(got)} records" in str(capture.truncation)


def test_two_gzip_members_are_one_stream_and_padding_behind_them_is_ignored(
    tmp_path: Path,
) -> None:
    datagrams = random_datagrams(30)
    whole = write(tmp_path / "plain.pcap", datagrams).read_bytes()
    path = tmp_path / "members.pcap.gz"
    path.write_bytes(gzip.compress(whole[:1_000]) + gzip.compress(whole[1_000:]) + b"\0" * 512)
    capture = Capture(path)
    assert list(capture) == datagrams
    assert capture.truncation is None


def test_damaged_gzip_is_the_files_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "damaged.pcap.gz", random_datagrams(200))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(PeerError, match="gzip stream is damaged"):
        list(Capture(path))


def test_an_impossible_record_length_stops_after_what_lies_before_it(
    tmp_path: Path, scanner: str
) -> None:
    datagrams = random_datagrams(5)
    path = write(tmp_path / "lying.pcap", datagrams)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 1, 2, RECORD_BYTES_MAX + 1, 60) + bytes(500))
    walk = iter(Capture(path))
    assert [next(walk) for _ in datagrams] == datagrams
    with pytest.raises(PeerError, match=f"damaged at byte {size:,}, after 5 records"):
        next(walk)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "ends after 0 bytes"),
        (b"\xd4\xc3\xb2\xa1", "ends after 4 bytes"),
        (b"%PDF-1.7 certainly not a capture", "begins with 25 50 44 46"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 105), "link type 105"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), "not a usable pcapng"),
        (gzip.compress(b"no capture, but long enough for a header", mtime=0), "begins with"),
    ],
)
def test_what_is_no_capture_is_refused_in_one_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(PeerError, match=complaint) as caught:
        Capture(path)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        Capture(tmp_path / "absent.pcap")


def ethernet(ethertype: int, payload: bytes, tags: bytes = b"") -> bytes:
    return bytes(12) + tags + struct.pack(">H", ethertype) + payload


def ipv4(
    payload: bytes,
    *,
    protocol: int = 17,
    total: int | None = None,
    fragment: int = 0,
    first: int = 0x45,
    options: bytes = b"",
) -> bytes:
    total = 20 + len(options) + len(payload) if total is None else total
    first += len(options) // 4
    header = struct.pack(">BBHHHBBH", first, 0, total, 0, fragment, 1, protocol, 0)
    return header + bytes([10, 0, 0, 1, 239, 1, 1, 1]) + options + payload


def udp(payload: bytes, length: int | None = None) -> bytes:
    return struct.pack(">HHHH", 7, 9, 8 + len(payload) if length is None else length, 0) + payload


def scan_frame(
    frame: bytes, link_type: int = 1, twin: str = "compiled"
) -> tuple[list[bytes], dict]:
    """The payloads found in one frame, and the skips; `twin` names the form of the scanner."""
    module = TWINS[twin]
    scanner = module.PcapScanner(False, 1, link_type)
    columns = module.DatagramColumns(4)
    data = struct.pack("<IIII", 5, 6, len(frame), len(frame)) + frame
    assert scanner.scan(data, 0, len(data), columns) == len(data)
    extents = zip(
        columns.arrays["offset"][: columns.count].tolist(),
        columns.arrays["length"][: columns.count].tolist(),
        strict=True,
    )
    skips = {Skip(reason): count for reason, count in scanner.frames.skipped().items()}
    return [data[start : start + size] for start, size in extents], skips


VLAN = struct.pack(">HH", 0x8100, 5)


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (ethernet(0x0806, bytes(46)), Skip.NOT_IP),
        (ethernet(0x0800, b"")[:13], Skip.SHORT_CAPTURE),
        (ethernet(0x0800, ipv4(b"")[:19]), Skip.SHORT_CAPTURE),
        (ethernet(0x0800, ipv4(udp(b"x"), options=bytes(8))[:30]), Skip.SHORT_CAPTURE),
        (ethernet(0x0800, ipv4(udp(b"abcd"))[:27]), Skip.SHORT_CAPTURE),
        (ethernet(0x0800, ipv4(udp(b"x"), first=0x65)), Skip.BAD_IP_HEADER),
        (ethernet(0x0800, ipv4(udp(b"x"), first=0x44)), Skip.BAD_IP_HEADER),
        (ethernet(0x0800, ipv4(udp(b"x"), total=19)), Skip.BAD_IP_HEADER),
        (ethernet(0x0800, ipv4(udp(b"x"), total=27)), Skip.BAD_IP_HEADER),
        (ethernet(0x0800, ipv4(bytes(20), protocol=6)), Skip.NOT_UDP),
        (ethernet(0x0800, ipv4(udp(b"x", length=7))), Skip.BAD_UDP_LENGTH),
        (b"", Skip.SHORT_CAPTURE),
    ],
    ids=lambda value: value.name if isinstance(value, Skip) else "frame",
)
def test_what_is_no_datagram_is_counted_by_its_reason(
    frame: bytes, reason: Skip, twin: str
) -> None:
    assert scan_frame(frame, twin=twin) == ([], {reason: 1})


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
@pytest.mark.parametrize(
    ("frame", "link_type"),
    [
        (ethernet(0x0800, ipv4(udp(b"payload"))), 1),
        (ethernet(0x0800, ipv4(udp(b"payload"), fragment=0x4000)), 1),  # "do not fragment"
        (ethernet(0x0800, ipv4(udp(b"payload"), options=bytes(40))), 1),
        (ethernet(0x0800, ipv4(udp(b"payload"))) + b"padding of the frame", 1),
        (ethernet(0x0800, ipv4(udp(b"payload"), total=0)), 1),
        (ethernet(0x0800, ipv4(udp(b"payload")), struct.pack(">HH", 0x88A8, 7) + VLAN), 1),
        (ipv4(udp(b"payload")), 101),
        (ipv4(udp(b"payload")), 228),
        (bytes(14) + b"\x08\x00" + ipv4(udp(b"payload")), 113),
        (b"\x08\x00" + bytes(18) + ipv4(udp(b"payload")), 276),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "frame",
)
def test_link_layers_options_and_padding_give_the_bare_payload(
    frame: bytes, link_type: int, twin: str
) -> None:
    assert scan_frame(frame, link_type, twin) == ([b"payload"], {})


@pytest.mark.parametrize("link_type", [101, 113, 276])
@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_short_or_foreign_frames_of_other_link_layers_are_counted(
    link_type: int, twin: str
) -> None:
    assert scan_frame(b"", link_type, twin) == ([], {Skip.SHORT_CAPTURE: 1})
    assert scan_frame(b"\x50" + bytes(50), link_type, twin) == ([], {Skip.NOT_IP: 1})


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_a_payload_that_the_capture_cuts_is_what_there_is_and_counted(twin: str) -> None:
    module = TWINS[twin]
    for frame in (
        ethernet(0x0800, ipv4(udp(b"0123456789")))[:-4],  # the recorder's snap length
        ethernet(0x0800, ipv4(udp(b"012345", length=18))),  # the UDP length says more than IP's
    ):
        scanner = module.PcapScanner(False, 1, 1)
        columns = module.DatagramColumns(4)
        data = struct.pack("<IIII", 5, 6, len(frame), 99) + frame
        scanner.scan(data, 0, len(data), columns)
        assert (columns.count, scanner.frames.cut_payloads) == (1, 1)
        assert columns.arrays["length"][0] == 6


def test_scanning_outside_the_bytes_is_refused() -> None:
    scanner = PcapScanner(False, 1, 1)
    for start, end in ((-1, 5), (0, 11), (6, 5)):
        with pytest.raises(IndexError):
            scanner.scan(b"0123456789", start, end, DatagramColumns(1))


def test_a_small_gzip_that_inflates_to_much_is_inflated_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "large.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    source = capture_sources.open_source(path)
    piece = memoryview(bytearray(4_096))
    tracemalloc.start()
    try:
        for _ in range(1_000):
            assert 0 < source.readinto(piece) <= 4_096
        ahead = capture_sources.AHEAD_BLOCKS * capture_sources.AHEAD_BLOCK_BYTES
        assert tracemalloc.get_traced_memory()[1] < ahead + (1 << 20)
    finally:
        tracemalloc.stop()
        source.close()


def test_random_bytes_never_take_the_scanner_outside_and_both_forms_agree() -> None:
    print(f"seed {SEED}: {RERUN}")
    random_source = random.Random(SEED)
    good = ethernet(0x0800, ipv4(udp(b"payload" * 3), options=bytes(8)), VLAN)
    for _ in range(1_000):
        frame = bytearray(good[: random_source.randrange(len(good) + 1)])
        for _ in range(random_source.randrange(4)):
            if frame:
                frame[random_source.randrange(len(frame))] = random_source.randrange(256)
        link_type = random_source.choice([1, 1, 1, 101, 113, 276])
        data = struct.pack("<IIII", 1, 2, len(frame), 0) + bytes(frame)
        answers = []
        for module in TWINS.values():
            scanner, columns = module.PcapScanner(False, 1, link_type), module.DatagramColumns(1)
            end = scanner.scan(data, 0, len(data), columns)
            found = [column[: columns.count].tolist() for column in columns.arrays.values()]
            skips = {int(reason): count for reason, count in scanner.frames.skipped().items()}
            answers.append((end, int(scanner.status), scanner.frames.cut_payloads, found, skips))
        assert answers[0] == answers[1]
        if answers[0][3][0]:
            start, size = answers[0][3][5][0], answers[0][3][6][0]
            assert start + size <= len(data)


def test_a_full_batch_stops_before_the_record_it_cannot_take(tmp_path: Path) -> None:
    path = write(tmp_path / "three.pcap", random_datagrams(3))
    data = path.read_bytes()[24:]
    scanner = PcapScanner(False, 1, 1)
    columns = DatagramColumns(2)
    end = scanner.scan(data, 0, len(data), columns)
    assert (columns.count, scanner.status, scanner.records) == (2, Status.FULL, 2)
    rest = DatagramColumns(2)
    assert scanner.scan(data, end, len(data), rest) == len(data)
    assert (rest.count, scanner.status, scanner.records) == (1, Status.NEED_DATA, 3)


def test_written_frames_are_what_a_switch_would_deliver(tmp_path: Path) -> None:
    path = write(tmp_path / "one.pcap", [Datagram(START_NS, "239.129.2.3", 9, "10.0.0.9", b"hi")])
    with path.open("rb") as file:
        ((_, frame),) = list(dpkt.pcap.Reader(file))
    assert len(frame) == 60  # the Ethernet minimum
    assert frame[:6] == bytes.fromhex("01005e010203") == multicast_mac("239.129.2.3")
    assert internet_checksum(frame[14:34]) == 0
    ip = dpkt.ethernet.Ethernet(frame).data
    assert (ip.len, ip.ttl, ip.data.ulen) == (30, 1, 10)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reads in (Capture, lambda path: look_at(str(path))):
        with pytest.raises(UsageError, match="pipe is a pipe, and captures are read from files"):
            reads(tmp_path / "pipe")


def test_the_writer_refuses_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        CaptureWriter(tmp_path / "absent" / "x.pcap")
    with CaptureWriter(tmp_path / "x.pcap") as writer:
        with pytest.raises(UsageError, match="65,507"):
            writer.write(0, "239.1.1.1", 1, bytes(65_508))
        for time_ns in (-1, TIME_END_NS):
            with pytest.raises(UsageError, match="after 2106-02-07"):
                writer.write(time_ns, "239.1.1.1", 1, b"payload")
        writer.write(TIME_END_NS - 1, "239.1.1.1", 1, b"payload")
    assert [one.time_ns for one in Capture(tmp_path / "x.pcap")] == [TIME_END_NS - 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_unfinished_capture_is_removed_whatever_ended_it(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def write_in_part() -> None:
        with CaptureWriter(tmp_path / "x.pcap") as writer:
            writer.write(0, "239.1.1.1", 1, b"payload")
            raise error

    with pytest.raises(error):
        write_in_part()
    assert not list(tmp_path.iterdir())


def test_the_largest_datagram_passes(tmp_path: Path) -> None:
    one = Datagram(START_NS, "239.1.1.1", 1, "10.0.0.1", bytes(65_507))
    assert list(Capture(write(tmp_path / "x.pcap", [one]))) == [one]


def test_columns_are_numpy_arrays_of_the_documented_types(tmp_path: Path) -> None:
    (batch,) = Capture(write(tmp_path / "x.pcap", random_datagrams(3))).batches()
    assert batch.data.dtype == np.uint8
    assert batch.time_ns.dtype == np.int64
    assert batch.destination.dtype == batch.offset.dtype == batch.length.dtype == np.uint32
    assert batch.destination_port.dtype == batch.source_port.dtype == np.uint16
