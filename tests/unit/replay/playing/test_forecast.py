"""Forecast of a replay: counts, sizes, times and peaks, held against a plain count of them."""

import collections
import random
from pathlib import Path

import pytest

from feedhandler.codecs import load_feed
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing import forecast as module
from feedhandler.replay.playing.blocks import Block, all_blocks, make_preparer
from feedhandler.replay.playing.forecast import Forecast, Outlook, Peak
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.pace import Pace, parse_pace
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.sender_lines import MulticastLine, number_lines
from feedhandler.replay.playing.source import chunks_of

UTP = load_feed("euronext-utp-md")
START_NS = 1_700_000_000 * 10**9
OLD = [("239.9.9.1", 7_001), ("239.9.9.2", 7_002)]
NEW = [("239.1.1.1", 5_001), ("239.1.1.2", 5_002)]


def recorded(path: Path, count: int, seed: int) -> Path:
    """Packets of three services and other payloads, in bursts, on two groups."""
    source, now = random.Random(seed), START_NS
    with CaptureWriter(path) as writer:
        for number in range(count):
            now += source.choice([0, 0, 1_000, 3_000_000, 400_000_000])
            payload = UTP.encode_packet(sequence=number, service=number % 3)
            if number % 10 == 0:
                payload = bytes(source.randrange(1_200))
            writer.write(now, *OLD[number % 2], payload)
    return path


def planned(path: Path, lines: list[MulticastLine], pace: Pace) -> tuple[list[Block], Outlook]:
    pipeline = Pipeline([Capture(path)], feed=UTP, headers=True)
    numbered = number_lines(lines)
    chunks = chunks_of(pipeline, None, numbered.channels, [line.name for line in lines])
    blocks = list(all_blocks(make_preparer(lines, pace, seed=3), chunks))
    forecast = Forecast(numbered, [line.name for line in lines])
    for block in blocks:
        forecast.add(block)
    return blocks, forecast.outlook()


LINES = [
    MulticastLine("A", dict(zip(OLD, NEW, strict=True)), faults=LineFaults(loss=0.1)),
    MulticastLine(
        "B", {OLD[0]: ("239.1.2.1", 5_001)}, faults=LineFaults(duplicate=0.2, delay_us=700)
    ),
]


@pytest.mark.parametrize("speed", ["1x", "7x", "3mbps", "900pps"])
def test_the_outlook_is_what_counting_one_by_one_gives(tmp_path: Path, speed: str) -> None:
    print("seed 5")
    blocks, outlook = planned(recorded(tmp_path / "x.pcap", 3_000, 5), LINES, parse_pace(speed))
    rows: dict[object, list[int]] = {}
    windows: dict[str, collections.Counter[int]] = {
        name: collections.Counter() for name in module.WINDOWS_NS
    }
    for block in blocks:
        services = module._services(block).tolist()
        lengths = block.udp_columns()[2].tolist()
        for row in range(len(block)):
            key = (int(block.destinations[row]), services[row])
            due, size = int(block.due_ns[row]), lengths[row]
            one = rows.setdefault(key, [0, 0, 0, due, due])
            one[0] += 1
            one[1] += size
            one[2] += max(60, size + 42)
            one[4] = due
            for name, window in module.WINDOWS_NS.items():
                windows[name][due // window] += 1
    found = {
        (OLD_NUMBER[row.group], -1 if row.service is None else row.service): [
            row.datagrams,
            row.payload_bytes,
            row.frame_bytes,
            row.first_ns,
            row.last_ns,
        ]
        for row in outlook.rows
    }
    assert found == rows
    for name, window in module.WINDOWS_NS.items():
        most = max(windows[name].values())
        assert outlook.peaks[name].datagrams_per_second == most * 1e9 / window
    assert outlook.datagrams == sum(one[0] for one in rows.values())
    assert outlook.recorded_from_ns == START_NS or outlook.recorded_from_ns > START_NS


OLD_NUMBER = {"239.1.1.1": 0, "239.1.1.2": 1, "239.1.2.1": 2}


def test_a_window_that_reaches_over_several_blocks_is_one_window(tmp_path: Path) -> None:
    path = tmp_path / "many.pcap"
    with CaptureWriter(path) as writer:
        for number in range(20_000):
            writer.write(START_NS + number * 400, *OLD[0], b"x" * 58)
    blocks, outlook = planned(path, [MulticastLine("A", {OLD[0]: NEW[0]})], Pace())
    assert len(blocks) > 2
    assert outlook.peaks["10ms"] == Peak(2_000_000.0, 20_000 * 100 * 8 * 100.0)
    assert outlook.peaks["1s"] == Peak(20_000.0, 20_000 * 100 * 8.0)
    assert outlook.peaks_of["239.1.1.1:5001"] == outlook.peaks
    assert outlook.duration_ns == 19_999 * 400
    (row,) = outlook.rows
    assert (row.service, row.datagrams, row.frame_bytes) == (None, 20_000, 2_000_000)


def test_nothing_to_send_is_an_outlook_too(tmp_path: Path) -> None:
    path = tmp_path / "none.pcap"
    CaptureWriter(path).close()
    _, outlook = planned(path, LINES, Pace())
    assert (outlook.datagrams, outlook.duration_ns, outlook.rows) == (0, 0, [])
    assert outlook.peaks["1s"] == Peak(0.0, 0.0)


def test_services_beyond_the_bound_are_counted_without_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    _, outlook = planned(recorded(tmp_path / "x.pcap", 300, 5), LINES[:1], Pace())
    assert len({row.service for row in outlook.rows} - {None}) <= 2
    assert outlook.datagrams == sum(row.datagrams for row in outlook.rows)


def test_sources_that_are_no_captures_are_counted_too() -> None:
    lines = [MulticastLine("A", NEW[0])]
    forecast = Forecast(number_lines(lines), ["A"])
    chunks = chunks_of([(5, b"abc"), (8, b"de")], None, [], ["A"])
    for block in all_blocks(make_preparer(lines, Pace()), chunks):
        forecast.add(block)
    outlook = forecast.outlook()
    assert (outlook.datagrams, outlook.payload_bytes, outlook.duration_ns) == (2, 5, 3)
    assert (outlook.recorded_from_ns, outlook.recorded_until_ns) == (5, 8)
