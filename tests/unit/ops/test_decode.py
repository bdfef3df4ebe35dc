"""`feedhandler decode` of a capture that is damaged in the middle."""

from pathlib import Path

import pytest

from feedhandler.codecs import load_feed
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

UTP = load_feed("euronext-utp-md")
#: A record of an order: header, frame headers, packet header, message.
RECORD_BYTES = 16 + 42 + 16 + 64
START_NS = 1_795_168_800_000_000_000


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Ten orders, and a length that cannot be in front of the last five."""
    path = tmp_path / "day.pcap"
    with CaptureWriter(path) as writer:
        for number in range(1, 11):
            order = UTP.encode_message(
                230, symbol_index=7, action_type="A", side="B", price=100, volume=1,
                order_id=number, price_scale_code=2,
            )  # fmt: skip
            packet = UTP.encode_packet(sequence=number, service=104, messages=[order])
            writer.write(START_NS + number, "239.1.1.1", 5_001, packet)
    data = bytearray(path.read_bytes())
    at = 24 + 5 * RECORD_BYTES + 8
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    return path


def test_messages_before_the_damage_are_printed_and_the_damage_is_found(damaged: Path) -> None:
    done = run_here("decode", str(damaged), "--json")
    assert done.returncode == ExitCode.FOUND
    assert done.stdout.count("\n") == 5
    assert "damaged at byte" in done.stderr
    assert "all before it was read" in done.stderr
    assert run_here("decode", str(damaged), "--json", "--limit", "5").returncode == ExitCode.OK


def test_records_before_the_damage_are_written_and_the_damage_is_found(
    damaged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "day.csv"
    done = run_here("decode", str(damaged), "--as", "mbo", "--out", str(out))
    assert done.returncode == ExitCode.FOUND
    assert "damaged at byte" in done.stderr
    assert len(out.read_text().splitlines()) == 1 + 5


def test_a_damaged_capture_of_another_feed_is_foreign_and_damaged(damaged: Path) -> None:
    done = run_here("decode", str(damaged), "--feed", "iex-deep")
    assert done.returncode == ExitCode.FOUND
    assert "damaged at byte" in done.stderr
    assert "5 datagrams are no iex-deep packets" in done.stderr
