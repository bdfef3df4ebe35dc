"""pcapng: interfaces and their resolutions, sections, block kinds, damage; zstd beside gzip."""

import gzip
import os
import random
from pathlib import Path

import dpkt
import pyarrow
import pytest

from feedhandler.codecs.errors import PeerError
from feedhandler.replay.captures import reading as capture_module
from feedhandler.replay.captures.frames import Skip
from feedhandler.replay.captures.pcapng import INTERFACES_MAX, Damage
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.status import Status
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.captures import TWINS, PcapngBytes

SEED = int(os.environ.get("FEEDHANDLER_SEED", "20240311"))
RERUN = f"FEEDHANDLER_SEED={SEED} pytest tests/unit/replay/captures/test_pcapng.py"
SECOND = 1_700_000_000
START_NS = SECOND * 1_000_000_000 + 123_456_789


@pytest.fixture(params=["compiled", "interpreted"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with either form of the walk over the bytes."""
    for name in ("PcapngScanner", "DatagramColumns"):
        monkeypatch.setattr(capture_module, name, getattr(TWINS[request.param], name))
    return str(request.param)


def frame_of(payload: bytes, tmp_path: Path) -> bytes:
    """An Ethernet frame around a payload, as the project's writer makes it."""
    path = tmp_path / "one.pcap"
    with CaptureWriter(path) as writer:
        writer.write(START_NS, "239.1.1.1", 5001, payload, source="10.0.0.1")
    return path.read_bytes()[24 + 16 :]


def read(tmp_path: Path, data: bytes) -> tuple[Capture, list[tuple[int, int, bytes]]]:
    """(time, interface, payload) of everything in a file of these bytes."""
    path = tmp_path / "made.pcapng"
    path.write_bytes(data)
    capture = Capture(path)
    found = []
    for batch in capture.batches():
        for index in range(len(batch)):
            row = int(batch.time_ns[index]), int(batch.interface[index]), batch.payload(index)
            found.append(row)
    return capture, found


def test_each_interface_has_its_own_resolution_and_offset(tmp_path: Path, twin: str) -> None:
    frame = frame_of(b"payload", tmp_path)
    made = PcapngBytes().section()
    resolutions: list[tuple[int | None, int | None, int, int]] = [
        (None, None, START_NS // 1_000, START_NS // 1_000 * 1_000),  # microseconds by default
        (9, None, START_NS, START_NS),
        (0, None, SECOND, SECOND * 10**9),
        (3, None, START_NS // 10**6, START_NS // 10**6 * 10**6),
        (12, SECOND, 123_456_789_999, START_NS),  # picoseconds, rounded down
        (9, 100, START_NS - 100 * 10**9, START_NS),
        (9, -100, START_NS + 100 * 10**9, START_NS),
        (0x80 | 20, None, (SECOND << 20) | 1, SECOND * 10**9 + 10**9 // 2**20),
        (0x80 | 31, None, (SECOND << 31) | 2**30, SECOND * 10**9 + 5 * 10**8),
        (0x80 | 33, None, (SECOND << 33) | 2**31, SECOND * 10**9 + 25 * 10**7),
        (0x80, None, SECOND, SECOND * 10**9),
    ]
    for number, (resolution, offset, _, _) in enumerate(resolutions):
        made.interface(resolution=resolution, offset=offset, name=f"eth{number}")
    for number, (_, _, ticks, _) in enumerate(resolutions):
        made.packet(frame, ticks, number)
    capture, found = read(tmp_path, made.raw())
    expected = [(time, number, b"payload") for number, (*_, time) in enumerate(resolutions)]
    assert found == expected
    assert capture.statistics.interfaces == tuple(f"eth{n}" for n in range(len(resolutions)))
    assert capture.truncation is None


def test_two_interfaces_in_the_same_nanoseconds_keep_their_order(tmp_path: Path) -> None:
    frame = frame_of(b"x", tmp_path)
    made = PcapngBytes().section().interface(resolution=9).interface(resolution=9)
    for step in range(200):
        made.packet(frame, START_NS + step, step % 2)
    _, found = read(tmp_path, made.raw())
    assert [time - START_NS for time, _, _ in found] == list(range(200))
    assert [interface for _, interface, _ in found] == [step % 2 for step in range(200)]


def test_sections_have_their_own_byte_order_and_interfaces(tmp_path: Path, twin: str) -> None:
    frame = frame_of(b"a", tmp_path)
    made = PcapngBytes()
    made.section("<").interface(resolution=9).packet(frame, START_NS)
    made.section(">").interface(resolution=6).other().packet(frame, START_NS // 1_000)
    made.section(">").interface(resolution=9).interface(resolution=3).packet(
        frame, START_NS // 10**6, 1
    )
    _, found = read(tmp_path, made.raw())
    times = [START_NS, START_NS // 1_000 * 1_000, START_NS // 10**6 * 10**6]
    assert [time for time, _, _ in found] == times


def test_simple_and_obsolete_packets_are_taken(tmp_path: Path, twin: str) -> None:
    payload = bytes(range(64))
    frame = frame_of(payload, tmp_path)
    made = PcapngBytes().section().interface(resolution=9, snap=len(frame) - 2)
    made.simple(frame[:-2], original=len(frame))
    made.old_packet(frame, START_NS)
    made.simple(frame[:-2], original=len(frame))
    capture, found = read(tmp_path, made.raw())
    assert found == [(0, 0, payload[:-2]), (START_NS, 0, payload), (START_NS, 0, payload[:-2])]
    assert capture.statistics.untimed == 2
    assert capture.statistics.cut_payloads == 2


def test_packets_of_an_unknown_link_layer_are_counted(tmp_path: Path, twin: str) -> None:
    frame = frame_of(b"a", tmp_path)
    made = PcapngBytes().section().interface(link=147).interface()
    made.packet(frame, 1, 0).packet(frame, START_NS // 1_000, 1)
    capture, found = read(tmp_path, made.raw())
    assert len(found) == 1
    assert capture.statistics.skipped == {Skip.OTHER_LINK: 1}
    assert capture.statistics.records == 2


def test_a_file_that_dpkt_writes_reads_as_dpkt_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "dpkt.pcapng"
    with path.open("wb") as file:
        writer = dpkt.pcapng.Writer(file)
        for number in range(50):
            writer.writepkt(frame_of(b"%d" % number, tmp_path), ts=SECOND + number * 0.25)
    with path.open("rb") as file:
        expected = [
            (round(seconds * 1_000_000) * 1_000, dpkt.ethernet.Ethernet(frame).data.data.data)
            for seconds, frame in dpkt.pcapng.Reader(file)
        ]
    assert [(one.time_ns, one.payload) for one in Capture(path)] == expected


def test_any_cut_yields_a_prefix_and_says_so(tmp_path: Path, twin: str) -> None:
    made = PcapngBytes().section().interface(resolution=9)
    ends = [len(made.data)]
    for number in range(4):
        made.packet(frame_of(bytes(number), tmp_path), START_NS + number)
        ends.append(len(made.data))
    data = made.raw()
    for size in range(12, len(data)):
        capture, found = read(tmp_path, data[:size])
        assert len(found) == sum(end <= size for end in ends[1:])
        whole_blocks = size in (28, *ends)
        assert (capture.truncation is None) == whole_blocks


def damaged(tmp_path: Path, data: bytes, text: str) -> None:
    with pytest.raises(PeerError, match=text):
        read(tmp_path, data)


def test_what_cannot_be_is_damage_with_its_reason(tmp_path: Path, twin: str) -> None:
    frame = frame_of(b"a", tmp_path)
    good = PcapngBytes().section().interface(resolution=9)
    start = bytes(good.data)
    damaged(tmp_path, b"\x0a\x0d\x0d\x0a" + bytes(24), "not a usable pcapng")
    damaged(tmp_path, start + b"\x0a\x0d\x0d\x0a" + bytes(24), "byte order")
    damaged(tmp_path, start + b"\6\0\0\0" + b"\xff" * 40, "lengths of a block")
    damaged(tmp_path, start + b"\6\0\0\0\7\0\0\0" + bytes(20), "lengths of a block")
    block = bytearray(PcapngBytes().packet(frame, START_NS).raw())
    block[-1] ^= 1
    damaged(tmp_path, start + bytes(block), "lengths of a block")
    block = bytearray(PcapngBytes().packet(frame, START_NS).raw())
    block[20:24] = b"\xff\xff\0\0"
    damaged(tmp_path, start + bytes(block), "longer than its block")
    damaged(tmp_path, start + PcapngBytes().packet(frame, 1, 1).raw(), "not described")
    damaged(tmp_path, start + PcapngBytes().packet(frame, 2**64 - 1).raw(), "a time that cannot")
    short = PcapngBytes()
    short.other(6, b"short")
    damaged(tmp_path, start + short.raw(), "lengths of a block")
    short = PcapngBytes()
    short.other(1, b"1")
    damaged(tmp_path, start + short.raw(), "lengths of a block")
    for resolution in (20, 0x80 | 64):
        wrong = PcapngBytes().section().interface(resolution=resolution).raw()
        damaged(tmp_path, wrong, "resolution or time offset")
    wrong = PcapngBytes().section().interface(offset=1 << 40).raw()
    damaged(tmp_path, wrong, "resolution or time offset")
    many = PcapngBytes().section()
    for _ in range(INTERFACES_MAX + 1):
        many.interface()
    damaged(tmp_path, many.raw(), "interfaces in a section")


@pytest.mark.parametrize("form", ["compiled", "interpreted"])
def test_blocks_before_any_section_are_refused(form: str) -> None:
    scanner = TWINS[form].PcapngScanner()
    columns = TWINS[form].DatagramColumns(4)
    data = PcapngBytes().other().raw()
    assert scanner.scan(data, 0, len(data), columns) == 0
    assert scanner.status == Status.DAMAGED
    assert "section" in scanner.damage
    with pytest.raises(IndexError):
        scanner.scan(data, 2, 1, columns)


def test_options_that_are_cut_off_are_passed_over(tmp_path: Path, twin: str) -> None:
    made = PcapngBytes().section()
    made.other(1, b"\1\0\0\0\0\0\0\0" + b"\x09\0\xff\0")
    made.packet(frame_of(b"a", tmp_path), START_NS // 1_000)
    _, found = read(tmp_path, made.raw())
    assert found == [(START_NS // 1_000 * 1_000, 0, b"a")]


def test_both_forms_agree_on_damaged_files_and_stay_inside(tmp_path: Path) -> None:
    print(f"seed {SEED}: {RERUN}")
    draw = random.Random(SEED)
    frame = frame_of(b"payload", tmp_path)
    made = PcapngBytes().section("<").interface(resolution=9).interface(resolution=0x80 | 40)
    for number in range(3):
        made.packet(frame, START_NS + number, 0).simple(frame).old_packet(frame, 5 << 40, 1)
    made.section(">").interface(resolution=3, name="b").packet(frame, START_NS // 10**6)
    good = made.raw()
    reached = set()
    for _ in range(800):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 4, 255, draw.randrange(256)])
        answers = []
        for form in TWINS.values():
            scanner, columns = form.PcapngScanner(), form.DatagramColumns(draw.choice([64]))
            end = scanner.scan(bytes(data), 0, len(data), columns)
            found = [column[: columns.count].tolist() for column in columns.arrays.values()]
            counts = (scanner.records, scanner.untimed, scanner.sections, scanner.interfaces)
            answers.append((end, int(scanner.status), scanner.damage, found, counts))
        assert answers[0] == answers[1]
        reached.add(answers[0][2])
    assert len(reached) >= len(Damage) - 3


def test_a_full_batch_goes_on_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "BATCH_DATAGRAMS_MAX", 3)
    made = PcapngBytes().section().interface(resolution=9)
    for number in range(10):
        made.packet(frame_of(bytes([number]), tmp_path), START_NS + number)
    _, found = read(tmp_path, made.raw())
    assert [payload[0] for _, _, payload in found] == list(range(10))


def test_zstd_and_gzip_read_like_the_plain_file(tmp_path: Path) -> None:
    made = PcapngBytes().section().interface(resolution=9)
    for number in range(2_000):
        made.packet(frame_of(number.to_bytes(4, "big") * 20, tmp_path), START_NS + number)
    data = made.raw()
    _, plain = read(tmp_path, data)
    half = len(data) // 2
    frames = [
        pyarrow.compress(part, codec="zstd", asbytes=True) for part in (data[:half], data[half:])
    ]
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    for packed in (gzip.compress(data), b"".join(frames), skippable + b"".join(frames)):
        _, found = read(tmp_path, packed)
        assert found == plain


def test_a_cut_zstd_yields_a_prefix_and_a_damaged_one_is_the_files_fault(tmp_path: Path) -> None:
    print(f"seed {SEED}: {RERUN}")
    draw = random.Random(SEED)
    made = PcapngBytes().section().interface(resolution=9)
    for number in range(400):
        made.packet(frame_of(draw.randbytes(1_000), tmp_path), START_NS + number)
    _, plain = read(tmp_path, made.raw())
    packed = pyarrow.compress(made.raw(), codec="zstd", asbytes=True)
    capture, found = read(tmp_path, packed[: len(packed) * 3 // 4])
    assert 0 < len(found) < len(plain)
    assert found == plain[: len(found)]
    assert capture.truncation is not None
    wrong = bytearray(packed)
    wrong[200_000:200_050] = bytes(50)
    wrong[4] ^= 0xFF
    with pytest.raises(PeerError, match="zstd"):
        read(tmp_path, bytes(wrong))
