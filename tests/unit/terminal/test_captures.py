"""Reports of commands about a capture, beside its datagrams."""

import json
from pathlib import Path

import pytest

from feedhandler.characterise.job import FileAccount
from feedhandler.characterise.tables import files_table
from feedhandler.cli import app as cli
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.records import frame_headers
from feedhandler.terminal.captures import report_reading
from feedhandler.terminal.console import run_guarded
from tests.support.captures import GROUP, SOURCE, write_frames

PAYLOAD = bytes(range(100))
FRAME = frame_headers(GROUP, 7_001, SOURCE, 9, len(PAYLOAD)) + PAYLOAD


@pytest.fixture
def snapped(tmp_path: Path) -> Path:
    """Two datagrams, of which one was not recorded to its end."""
    return write_frames(tmp_path / "snapped.pcap", [FRAME[:-5], FRAME])


def test_datagrams_recorded_in_part_are_reported(
    snapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Capture(snapped)
    assert [len(each.payload) for each in capture] == [95, 100]
    report_reading(capture)
    assert capsys.readouterr().err == (
        f"feedhandler: {snapped}: datagrams of which only the beginning was recorded: 1 "
        "(record whole packets: tcpdump -s 0)\n"
    )


def test_a_replay_says_how_many_datagrams_it_sends_in_part(
    snapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(snapped), "--as-recorded", "--dry-run"]
    assert run_guarded(lambda: cli.chosen(words)()) == 0
    assert "only their beginning was recorded, and goes on: 1\n" in capsys.readouterr().out
    assert run_guarded(lambda: cli.chosen([*words, "--json"])()) == 0
    assert json.loads(capsys.readouterr().out)["held_in_part"] == 1


def test_a_report_notes_how_many_datagrams_are_there_in_part() -> None:
    files = [FileAccount("a.pcap", cut_payloads=2), FileAccount("b.pcap", cut_payloads=1)]
    assert files_table(files).note == "of 3 datagrams only the beginning was recorded"
