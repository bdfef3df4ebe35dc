"""The recorder's tap and its frames: what goes into the ring comes out as the writer's own pcap."""

import random
import socket
from pathlib import Path
from types import ModuleType

import dpkt
import pytest

from feedhandler import recorder_frames, recorder_tap
from feedhandler._compiled import load_interpreted
from feedhandler.recorder_tap import sender_word
from feedhandler.replay.capture import Capture, Datagram
from feedhandler.replay.capture_writer import CaptureWriter

TWINS = {
    "compiled": (recorder_tap, recorder_frames),
    "interpreted": (
        load_interpreted("feedhandler.recorder_tap"),
        load_interpreted("feedhandler.recorder_frames"),
    ),
}
RING_BYTES = 1 << 18
BUFFER_BYTES = 1 << 17
START_NS = 1_795_168_800_999_999_990
ENDPOINTS = [("239.101.1.4", 30104, ""), ("239.101.2.4", 31104, "10.9.8.7")]


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    """The tap's module and the frames', compiled or interpreted."""
    return TWINS[request.param]


def address_number(text: str) -> int:
    return int.from_bytes(socket.inet_aton(text), "big")


def drained(writer: object, tap: object, room: int = BUFFER_BYTES) -> bytes:
    filled = writer.drain(tap.ring, room)  # type: ignore[attr-defined]
    return bytes(writer.out[:filled])  # type: ignore[attr-defined]


@pytest.mark.parametrize("sender", [0, sender_word(address_number("172.16.254.255"), 65_535)])
def test_frames_are_byte_for_byte_those_of_the_capture_writer(
    twin: tuple[ModuleType, ModuleType], tmp_path: Path, sender: int
) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
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
            assert tap.packet(number % 2, number, at_ns, sender, payload, 0, len(payload))
    assert drained(writer, tap) == b"", "nothing is seen before it is published"
    tap.publish()
    assert frames.FILE_HEADER + drained(writer, tap) == path.read_bytes()
    assert writer.packets == tap.taken == len(sizes)
    assert tap.ring.tail == tap.ring.published


def test_dpkt_finds_every_length_and_checksum_right(twin: tuple[ModuleType, ModuleType]) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
    for size in (0, 17, 18, 1000):
        tap.packet(1, 0, START_NS, sender_word(size + 1, size), bytes(size), 0, size)
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


def test_no_more_is_laid_out_than_there_is_room_for(twin: tuple[ModuleType, ModuleType]) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
    for number in range(10):
        tap.packet(0, number, START_NS, 0, bytes(100), 0, 100)
    tap.publish()
    record = 16 + 42 + 100
    assert drained(writer, tap, record - 1) == b""
    assert len(drained(writer, tap, record)) == record
    assert len(drained(writer, tap, 4 * record + 157)) == 4 * record
    assert len(drained(writer, tap)) == 5 * record
    assert drained(writer, tap) == b""


def test_a_full_ring_drops_and_counts(twin: tuple[ModuleType, ModuleType]) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
    taken = 0
    while tap.packet(0, taken, START_NS, 0, bytes(1000), 0, 1000):
        taken += 1
    for _ in range(9):
        assert tap.packet(0, 0, START_NS, 0, bytes(1000), 0, 1000) == 0
    assert (tap.taken, tap.dropped) == (taken, 10)
    tap.publish()
    got = 0
    while some := drained(writer, tap):
        got += len(some)
    assert got == taken * (16 + 42 + 1000)
    assert tap.packet(0, taken, START_NS, 0, bytes(1000), 0, 1000) == 1


def test_what_no_datagram_can_be_is_counted_and_passed_over(
    twin: tuple[ModuleType, ModuleType],
) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
    tap.packet(2, 0, START_NS, 0, b"unknown place", 0, 13)
    tap.packet(0, 0, START_NS, 0, bytes(65_508), 0, 65_508)
    tap.packet(0, 0, START_NS, 0, b"xgoodx", 1, 4)
    tap.publish()
    assert drained(writer, tap).endswith(b"good" + bytes(14))
    assert (writer.packets, writer.unwritable) == (1, 2)


def test_a_shut_tap_only_counts(twin: tuple[ModuleType, ModuleType]) -> None:
    taps, _ = twin
    tap = taps.Tap(RING_BYTES)
    tap.shut_off()
    assert tap.packet(0, 1, START_NS, 0, b"late", 0, 4) == 0
    assert (tap.taken, tap.dropped, tap.ring.head) == (0, 1, 0)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 5), (4, 1), (0, -1)])
def test_a_packet_outside_its_buffer_is_refused(
    twin: tuple[ModuleType, ModuleType], start: int, length: int
) -> None:
    taps, _ = twin
    with pytest.raises(IndexError):
        taps.Tap(RING_BYTES).packet(0, 1, START_NS, 0, b"four", start, length)


def test_a_buffer_too_small_for_any_record_is_refused(twin: tuple[ModuleType, ModuleType]) -> None:
    _, frames = twin
    with pytest.raises(ValueError, match="cannot hold a record"):
        frames.FrameWriter(ENDPOINTS, 65_000)


def test_many_rounds_of_a_ring_read_back_whole(
    twin: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    taps, frames = twin
    tap, writer = taps.Tap(RING_BYTES), frames.FrameWriter(ENDPOINTS, BUFFER_BYTES)
    random_source = random.Random(11)
    wanted, data = [], bytearray(frames.FILE_HEADER)
    for number in range(2_000):
        payload = random_source.randbytes(random_source.randrange(1_500))
        group, port, source = ENDPOINTS[number & 1]
        at_ns = START_NS + number * 1_001
        wanted.append(Datagram(at_ns, group, port, source or "0.0.0.0", payload))
        while not tap.packet(number & 1, number, at_ns, 0, payload, 0, len(payload)):
            tap.publish()
            data += drained(writer, tap, random_source.randrange(70_000, 200_000))
    tap.publish()
    while some := drained(writer, tap):
        data += some
    path = tmp_path / "rounds.pcap"
    path.write_bytes(data)
    assert list(Capture(path)) == wanted
