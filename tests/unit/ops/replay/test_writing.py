"""A replay that is described or written instead of sent: commands, files, faults, and refusals."""

import itertools
import json
import random
from pathlib import Path
from types import ModuleType

import dpkt
import numpy as np
import pytest
import typer

from feedhandler._compiled import load_interpreted
from feedhandler.cli import app as cli
from feedhandler.codecs import load_feed
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.captures.records import file_header, frame_headers, record_header
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing import block_records as compiled
from feedhandler.replay.playing.blocks import Block
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.source import Chunk
from feedhandler.terminal.console import ExitCode
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here
from tests.support.twins import twins_of

SECOND = 10**9
START_NS = 1_763_625_600 * SECOND
UTP = load_feed("euronext-utp-md")
A, B = ("239.9.9.1", 7_001), ("239.9.9.2", 7_002)


def run(*words: str) -> tuple[int, str, str]:
    """A replay command in this process: exit code, what it printed, what it complained."""
    return run_here("replay", *words)


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """Half a minute of service 104 on A and B, a packet each 10 ms, B 1 ms behind."""
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for number in range(3_000):
            packet = UTP.encode_packet(sequence=number + 1, service=104, send_time=10 * number)
            at_ns = START_NS + number * 10_000_000
            writer.write(at_ns, *A, packet, source="10.9.8.7", source_port=4_321)
            writer.write(at_ns + 1_000_000, *B, packet)
    return tmp_path / "day.pcap"


def written(path: Path) -> list[Datagram]:
    return list(Capture(path))


def test_what_is_written_is_what_would_be_sent_at_the_times_it_would_be(
    day: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pcap"
    code, output, _ = run(
        *(str(day), "--map", "239.9.9.1=239.1.1.1:5001@A", "--from", "+10", "--until", "+20"),
        *("--speed", "10x", "--write", str(out)),
    )
    assert code == ExitCode.OK
    assert "1,000 datagrams written" in output
    assert "left out: 1,000 on no line" in output
    assert "left out: 2,000 before the window" in output
    found = written(out)
    assert [one.payload for one in found] == [
        one.payload for one in written(day)[2_000:4_000] if one.group == A[0]
    ]
    assert {(one.group, one.port, one.source) for one in found} == {
        ("239.1.1.1", 5_001, "10.9.8.7")
    }
    begins = START_NS + 10 * SECOND
    assert [one.time_ns for one in found] == [
        begins + number * SECOND // 1_000 for number in range(1_000)
    ]


def test_what_is_left_out_and_out_of_order_is_printed_after_sending_too(tmp_path: Path) -> None:
    for name in ("one.pcap", "two.pcap"):
        with CaptureWriter(tmp_path / name) as writer:
            writer.write_frame(START_NS, b"\xff" * 12 + b"\x08\x06" + bytes(40))
            for number in range(9_000):
                late_ns = 3_600 * SECOND if number == 8_900 and name == "two.pcap" else 0
                writer.write(START_NS + number * 1_000_000 - late_ns, *A, b"x" * 1_000)
    words = [str(tmp_path / "one.pcap"), str(tmp_path / "two.pcap"), "--merge", "--speed", "flat"]
    words += ["--map", f"{B[0]}:{B[1]}=239.195.77.1:5001", "--port", "7001"]
    code, output, _ = run(*words)
    assert code == ExitCode.OK
    assert "left out: 18,000 on no line" in output
    assert "left out: 2 no datagram: not ip" in output
    assert "too far out of order to be merged in place: 1" in output
    code, output, _ = run(*words, "--json")
    assert json.loads(output)["left_out"]["on no line"] == 18_000


def test_times_that_a_capture_cannot_hold_are_refused_in_one_line(
    day: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pcap"
    words = ("--as-recorded", "--speed", "0.00000001x", "--write", str(out))
    code, _, errors = run(str(day), *words)
    assert code == ExitCode.USAGE
    assert "after 2106-02-07 06:28:15 UTC, which a pcap file cannot hold" in errors
    assert errors.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("name", ["out.pcap.gz", "out.pcap.zst"])
def test_a_loop_is_written_compressed_as_one_session(day: Path, tmp_path: Path, name: str) -> None:
    words = ["--feed", "euronext-utp-md", "--loop", "3", "--group", A[0], "--as-recorded"]
    code, _, _ = run(str(day), *words, "--write", str(tmp_path / name))
    assert code == ExitCode.OK
    found = written(tmp_path / name)
    numbers = [UTP.decode_packet(one.payload).sequence for one in found]
    assert numbers == list(range(1, 9_001))
    assert [one.time_ns for one in found] == [START_NS + n * 10_000_000 for n in range(9_000)]


def test_faults_compose_with_all_the_rest_and_the_same_seed_gives_the_same_bytes(
    day: Path, tmp_path: Path
) -> None:
    words = [
        *(str(day), "--feed", "euronext-utp-md", "--service", "104", "--sequence", "100-900"),
        *("--loop", "2", "--stamps", "keep", "--speed", "4mbps", "--loss", "10%"),
        *("--map", "239.9.9.1=239.1.1.1@A", "--map", "239.9.9.2=239.1.2.1@B"),
        *("--duplicate", "5%", "--reorder", "5%", "--delay-b-us", "700"),
    ]
    outs = []
    for number, seed in enumerate((7, 7, 8)):
        path = tmp_path / f"{number}.pcap"
        code, output, _ = run(*words, "--seed", str(seed), "--write", str(path), "--json")
        assert code == ExitCode.OK
        assert json.loads(output)["datagrams"] == len(written(path))
        outs.append(path.read_bytes())
    assert outs[0] == outs[1] != outs[2]
    code, output, _ = run(*words, "--seed", "7", "--dry-run", "--json")
    plan = json.loads(output)
    assert plan["datagrams"] == len(written(tmp_path / "0.pcap"))
    dropped = sum(line["dropped"] for line in plan["faults"].values())
    doubled = sum(line["duplicated"] for line in plan["faults"].values())
    assert plan["datagrams"] == 2 * 2 * 801 - dropped + doubled
    assert dropped > 100
    assert plan["left_out"]["outside the sequence numbers"] == 2 * 2 * (3_000 - 801)


def test_a_dry_run_tells_lines_groups_services_times_and_rates(day: Path) -> None:
    words = [str(day), "--feed", "euronext-utp-md", "--as-recorded", "--dry-run", "--loss", "50%"]
    code, output, complaint = run(*words)
    assert (code, complaint) == (ExitCode.OK, "")
    assert "s (1 times the original pace)" in output
    assert "recorded 2025-11-20T08:00:00" in output
    assert "peak within 10ms" in output
    assert "239.9.9.1:7001" in output
    assert "dropped" in output
    code, output, _ = run(*words, "--speed", "flat")
    assert "as fast as it goes" in output
    assert "peak within" not in output
    code, output, _ = run(*words, "--speed", "flat", "--json")
    assert json.loads(output)["duration_ns"] is None


def test_line_b_alone_is_line_b_with_its_faults(day: Path) -> None:
    words = [str(day), "--line-b", "239.1.2.1:5002", "--loss-b", "100%", "--dry-run", "--json"]
    code, output, _ = run(*words)
    assert code == ExitCode.OK
    assert json.loads(output)["faults"] == {
        "B": {"dropped": 6_000, "duplicated": 0, "reordered": 0}
    }


def test_stamps_of_what_is_written_begin_now_or_are_the_times_of_sending(
    day: Path, tmp_path: Path
) -> None:
    words = [str(day), "--feed", "euronext-utp-md", "--as-recorded", "--group", A[0]]
    for stamps, apart_ms in (("shift", 10), ("now", 1)):
        out = tmp_path / f"{stamps}.pcap"
        code, _, _ = run(*words, "--stamps", stamps, "--speed", "10x", "--write", str(out))
        assert code == ExitCode.OK
        found = written(out)
        times = [UTP.decode_packet(one.payload).send_time for one in found]
        day_ms = 86_400_000
        assert {(b - a) % day_ms for a, b in itertools.pairwise(times)} == {apart_ms}
        midnight_ns = found[0].time_ns - times[0] * 1_000_000
        # Whatever the zone's offset is: the first send time is the file's first time.
        assert midnight_ns % (900 * SECOND) < 1_000_000


def test_a_file_that_is_there_already_is_replaced_only_where_that_is_asked_for(
    day: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pcap"
    out.write_bytes(b"kept")
    words = [str(day), "--as-recorded", "--write", str(out)]
    code, _, complained = run(*words)
    assert code == ExitCode.USAGE
    assert "is there already" in complained
    assert out.read_bytes() == b"kept"
    assert run(*words, "--overwrite")[0] == ExitCode.OK
    assert len(written(out)) == 6_000


@pytest.mark.parametrize("action", ["--dry-run", "--write"])
def test_a_capture_that_is_cut_short_is_reported_and_found(
    day: Path, tmp_path: Path, action: str
) -> None:
    day.write_bytes(day.read_bytes()[:-3])
    words = [action] + ([str(tmp_path / "out.pcap")] if action == "--write" else [])
    code, _, complained = run(str(day), "--as-recorded", *words)
    assert code == ExitCode.FOUND
    assert "cut short after 5,999 records" in complained


@pytest.mark.parametrize("action", ["--dry-run", "--write"])
def test_a_damaged_capture_is_played_up_to_the_damage_and_the_next_one_follows(
    day: Path, tmp_path: Path, action: str
) -> None:
    data, index = bytearray(day.read_bytes()), 24 + 1_000 * (16 + 60)
    data[index + 8 : index + 12] = b"\xff" * 4
    (tmp_path / "damaged.pcap").write_bytes(data)
    words = [str(tmp_path / "damaged.pcap"), str(day), "--as-recorded", "--from", "+0", "--json"]
    words += [action] + ([str(tmp_path / "out.pcap")] if action == "--write" else [])
    code, output, complained = run(*words, "--feed", "euronext-utp-md")
    assert code == ExitCode.FOUND
    assert json.loads(output)["datagrams"] == 1_000 + 6_000
    assert "damaged at byte" in complained
    assert complained.count("\n") == 1
    # Damage before anything could be read.
    data[24 + 8 : 24 + 12] = b"\xff" * 4
    (tmp_path / "damaged.pcap").write_bytes(data)
    assert run(*words, "--overwrite")[0] == ExitCode.FOUND


def test_the_page_about_replaying_names_every_option() -> None:
    page = (CHECKOUT / "docs" / "replay.md").read_text()
    command = typer.main.get_command(cli.app).commands["replay"]  # type: ignore[attr-defined]
    options = [param for param in command.params if param.param_type_name == "option"]
    assert len(options) > 30
    for option in options:
        assert any(name in page for name in option.opts), option.opts


# -- records, byte by byte ------------------------------------------------------------------

TWINS = twins_of(compiled)


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    module = TWINS[request.param]
    if request.param == "interpreted":
        vars(module)["HeaderChanges"] = load_interpreted(
            "feedhandler.replay.playing.frame_headers"
        ).HeaderChanges
    return module


def udp_frame(payload: bytes, link: bytes, checksum: bool) -> bytes:
    """A frame of our own; with a UDP checksum that dpkt has computed."""
    headers = frame_headers(A[0], A[1], "10.9.8.7", 4_321, len(payload))
    packet = dpkt.ip.IP(headers[14:] + payload)
    packet.data.sum = 0
    packet.sum = 0
    raw = bytearray(bytes(packet))
    if not checksum:
        raw[26:28] = b"\0\0"
    return link + bytes(raw)


def block_of(folder: Path, link_type: int, frames: list[bytes]) -> Block:
    """Each frame twice, to either destination, out of a capture of that link type."""
    records = b"".join(record_header(SECOND + 5, len(each)) + each for each in frames)
    (folder / "x.pcap").write_bytes(file_header(link_type=link_type) + records)
    batch = next(Capture(folder / "x.pcap").batches())
    count = len(batch)
    assert count == len(frames)
    channel = np.zeros(count, np.int64)
    chunk = Chunk(batch.data, batch.offset, batch.length, batch.time_ns, channel, None, 1.0, batch)
    return Block(
        [chunk],
        np.zeros(2 * count, np.uint32),
        np.repeat(np.arange(count), 2),
        np.tile(np.array([0, 1], np.uint16), count),
        np.arange(2 * count, dtype=np.int64) * 7,
        1.0,
    )


ETHERNET = bytes.fromhex("01005e090901020000000001") + b"\x08\x00"
LINKS = {1: ETHERNET, 101: b"", 113: bytes(14) + b"\x08\x00", 276: b"\x08\x00" + bytes(18)}


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("link_type", LINKS)
def test_records_hold_frames_with_new_headers_and_right_checksums(
    twin: ModuleType, tmp_path: Path, link_type: int, checksum: bool
) -> None:
    source = random.Random(link_type)
    payloads = [source.randbytes(size) for size in (0, 1, 17, 18, 19, 300, 1_400)]
    frames = [udp_frame(payload, LINKS[link_type], checksum) for payload in payloads]
    maker = twin.RecordMaker(
        [Destination("239.1.1.1", 5_001), Destination("239.1.2.1", None, b"\2abcde", "10.0.0.9")]
    )
    block = block_of(tmp_path, link_type, frames)
    out = tmp_path / "out.pcap"
    with CaptureWriter(out) as writer:
        writer.write_records(maker.records(block, 10 * SECOND), len(block))
    assert writer.records == len(block)
    with out.open("rb") as file:
        found = list(dpkt.pcap.Reader(file))
    assert len(found) == 2 * len(payloads)
    for number, (_, frame) in enumerate(found):
        ethernet = dpkt.ethernet.Ethernet(frame)
        ip, payload = ethernet.data, payloads[number // 2]
        assert len(frame) == max(60, 42 + len(payload))
        assert ip.data.data == payload
        ports = (4_321, 5_001) if number % 2 == 0 else (4_321, 7_001)
        assert (ip.data.sport, ip.data.dport) == ports
        assert ethernet.dst[:4] == b"\x01\x00\x5e\x01"
        if number % 2:
            assert (ethernet.src, ip.src) == (b"\2abcde", bytes([10, 0, 0, 9]))
        checksums = (ip.sum, ip.data.sum)
        ip.sum = ip.data.sum = 0
        fresh = dpkt.ip.IP(bytes(ip))
        assert checksums[0] == fresh.sum
        assert checksums[1] == (fresh.data.sum if checksum else 0)
    assert [one.time_ns for one in written(out)] == [10 * SECOND + 7 * n for n in range(len(found))]
