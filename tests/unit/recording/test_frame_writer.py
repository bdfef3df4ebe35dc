"""The recorder's frames: what goes into a tap comes out as the capture writer's own pcap."""

import random
import socket
from pathlib import Path
from types import ModuleType

import dpkt
import pytest

from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.recording import frame_writer
from feedhandler.recording.blocks import section
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.captures.records import file_header
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.twins import either, twins_of

frames = either(twins_of(frame_writer))
RING_BYTES = 1 << 18
BUFFER_BYTES = 1 << 17
START_NS = 1_795_168_800_999_999_990
ENDPOINTS = [("239.101.1.4", 30104, ""), ("239.101.2.4", 31104, "10.9.8.7")]


def put(tap: Ring, line: int, at_ns: int, payload: bytes, sender: int = 0) -> bool:
    """A datagram of a line into the tap."""
    return tap.put(RecordKind.PACKET, line=line, received_ns=at_ns, session=sender, payload=payload)


def address_number(text: str) -> int:
    return int.from_bytes(socket.inet_aton(text), "big")


def drained(writer: object, tap: Ring, room: int = BUFFER_BYTES) -> bytes:
    filled = writer.drain(tap, room)  # type: ignore[attr-defined]
    return bytes(writer.out[:filled])  # type: ignore[attr-defined]


@pytest.mark.parametrize("sender", [0, address_number("172.16.254.255") << 16 | 65_535])
def test_frames_are_byte_for_byte_those_of_the_capture_writer(
    frames: ModuleType, tmp_path: Path, sender: int
) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True)
    random_source = random.Random(5)
    sizes = [0, 1, 17, 18, 19, 336, 1400, 1401, 2048, 65_507]
    payloads = [random_source.randbytes(size) for size in sizes]
    path = tmp_path / "wanted.pcap"
    with CaptureWriter(path) as wanted:
        for number, payload in enumerate(payloads):
            group, port, source = ENDPOINTS[number % 2]
            if sender:
                source, source_port = "172.16.254.255", 65_535
            else:
                source, source_port = source or "0.0.0.0", 0
            at_ns = START_NS + number
            wanted.write(at_ns, group, port, payload, source=source, source_port=source_port)
            assert put(tap, number % 2, at_ns, payload, sender)
    assert drained(writer, tap) == b"", "nothing is seen before it is published"
    tap.publish()
    assert file_header() + drained(writer, tap) == path.read_bytes()
    assert writer.packets == len(sizes)
    assert tap.tail == tap.published


def test_dpkt_finds_every_length_and_checksum_right(frames: ModuleType) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True)
    for size in (0, 17, 18, 1000):
        put(tap, 1, START_NS, bytes(size), size + 1 << 16 | size)
    tap.publish()
    data = drained(writer, tap)
    for size in (0, 17, 18, 1000):
        length = int.from_bytes(data[8:12], "little")
        frame, data = dpkt.ethernet.Ethernet(data[16 : 16 + length]), data[16 + length :]
        ip = frame.data
        assert (ip.len, ip.data.ulen, ip.data.sum) == (28 + size, 8 + size, 0)
        carried, ip.sum = ip.sum, 0
        assert dpkt.ip.IP(bytes(ip)).sum == carried
        assert (socket.inet_ntoa(ip.dst), ip.data.dport) == ("239.101.2.4", 31104)
    assert data == b""


def test_no_more_is_laid_out_than_there_is_room_for(frames: ModuleType) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True)
    for _ in range(10):
        put(tap, 0, START_NS, bytes(100))
    tap.publish()
    record = 16 + 42 + 100
    assert drained(writer, tap, record - 1) == b""
    assert len(drained(writer, tap, record)) == record
    assert len(drained(writer, tap, 4 * record + 157)) == 4 * record
    assert len(drained(writer, tap)) == 5 * record
    assert drained(writer, tap) == b""


def test_what_no_datagram_can_be_is_counted_and_passed_over(
    frames: ModuleType,
) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True)
    put(tap, 2, START_NS, b"unknown endpoint")
    put(tap, 0, START_NS, bytes(65_508))
    tap.put(RecordKind.GAP, sequence=1, next_sequence=9)
    put(tap, 0, START_NS, b"good")
    tap.publish()
    assert drained(writer, tap).endswith(b"good" + bytes(14))
    assert (writer.packets, writer.unwritable) == (1, 2)


def test_published_packets_have_their_channels_address(frames: ModuleType) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, False)
    tap.put(RecordKind.PACKET, channel=1, line=0, payload=b"published")
    tap.put(RecordKind.PACKET, channel=0, line=1, payload=b"published")
    tap.publish()
    data = drained(writer, tap)
    frame_bytes = len(data) // 2 - 16
    for number, (group, port, _) in enumerate(ENDPOINTS[::-1]):
        start = number * (16 + frame_bytes) + 16
        ip = dpkt.ethernet.Ethernet(data[start : start + frame_bytes]).data
        assert (socket.inet_ntoa(ip.dst), ip.data.dport) == (group, port)


def test_a_buffer_too_small_for_any_record_is_refused(frames: ModuleType) -> None:
    with pytest.raises(ValueError, match="cannot hold a record"):
        frames.FrameWriter(ENDPOINTS, 65_000, True)


def test_many_rounds_of_a_ring_read_back_whole(frames: ModuleType, tmp_path: Path) -> None:
    tap, writer = Ring(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True)
    random_source = random.Random(11)
    wanted, data = [], bytearray(file_header())
    for number in range(2_000):
        payload = random_source.randbytes(random_source.randrange(1_500))
        group, port, source = ENDPOINTS[number & 1]
        at_ns = START_NS + number * 1_001
        wanted.append(Datagram(at_ns, group, port, source or "0.0.0.0", payload))
        while not put(tap, number & 1, at_ns, payload):
            tap.publish()
            data += drained(writer, tap, random_source.randrange(70_000, 200_000))
    tap.publish()
    while some := drained(writer, tap):
        data += some
    path = tmp_path / "rounds.pcap"
    path.write_bytes(data)
    assert list(Capture(path)) == wanted


def test_blocks_are_read_back_as_the_same_datagrams(frames: ModuleType, tmp_path: Path) -> None:
    tap = Ring(RING_BYTES)
    writer = frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True, True)
    random_source = random.Random(6)
    sizes = [0, 1, 18, 19, 20, 21, 22, 1400, 2047, 65_507]
    payloads = [random_source.randbytes(size) for size in sizes]
    for number, payload in enumerate(payloads):
        assert put(tap, number % 2, START_NS + number, payload)
    tap.publish()
    path = tmp_path / "lines.pcapng"
    interfaces = [("eth1", "A"), ("eth2", "B")]
    path.write_bytes(section("test", interfaces) + drained(writer, tap))
    capture = Capture(path)
    read = [(each.time_ns, each.group, each.payload) for each in capture]
    assert read == [
        (START_NS + number, ENDPOINTS[number % 2][0], payload)
        for number, payload in enumerate(payloads)
    ]
    assert [*next(capture.batches()).interface] == [number % 2 for number in range(len(sizes))]
    assert capture.statistics.interfaces == ("eth1", "eth2")
    assert capture.truncation is None


def test_blocks_fit_into_the_room_there_is_to_the_byte(frames: ModuleType) -> None:
    tap = Ring(RING_BYTES)
    writer = frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True, True)
    for _ in range(2):
        put(tap, 0, START_NS, bytes(101))
    tap.publish()
    size = 28 + 144 + 4
    assert drained(writer, tap, size - 1) == b""
    assert writer.full
    assert len(drained(writer, tap, 2 * size - 1)) == size
    assert len(drained(writer, tap, size)) == size


def test_no_more_packets_are_laid_out_than_were_asked_for(frames: ModuleType) -> None:
    tap = Ring(RING_BYTES)
    writer = frames.FrameWriter(ENDPOINTS, BUFFER_BYTES, True, False, 3)
    for number in range(5):
        put(tap, 0, START_NS, bytes([number]) * 100)
    tap.publish()
    assert len(drained(writer, tap)) == 3 * (16 + 42 + 100)
    assert drained(writer, tap) == b""
    assert writer.packets == 3
    assert len(tap.drain()) == 2
