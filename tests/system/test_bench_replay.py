"""The instruments of the replay benches: stamps of a veth's far end, errors, captures."""

from pathlib import Path

import numpy as np
import pytest

from bench.bench_pacing import errors_of
from bench.bench_replay_memory import anonymous_bytes, measure, write_large
from bench.replay_kit import GROUP, PORT, ours, payload_sizes, write_numbered
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.replay.playing.senders import raw
from tests.support.frames import namespace
from tests.support.veth import NEAR, StampRing


def test_the_ring_has_each_packets_number_and_a_time_that_rises(tmp_path: Path) -> None:
    count = 3_000
    path = tmp_path / "numbered.pcap"
    write_numbered(path, np.arange(count, dtype=np.int64) * 10_000, payload_sizes(count))
    line = MulticastLine("recorded", {(GROUP, PORT): (GROUP, PORT)}, NEAR)
    pace = Pace(PaceKind.PACKETS, 100_000)
    with namespace(), StampRing(1_024) as ring:
        for _ in range(2):
            taken = []
            player = Player(Capture(path), [line], pace=pace, transport=raw())
            player.run(lambda _, taken=taken: taken.append(ring.drain()), interval_s=0.002)
            taken.append(ring.drain())
            numbers, times = (np.concatenate(column) for column in zip(*taken, strict=True))
            assert len(numbers) + ring.dropped() == count
            assert (np.diff(numbers) > 0).all()
            assert (np.diff(times) >= 0).all()


def test_errors_are_reported_without_the_median_and_with_the_drift() -> None:
    due_ns = np.arange(1_000, dtype=np.int64) * 1_000_000
    late_ns = np.zeros(1_000, np.int64)
    late_ns[500] = 70_000
    late_ns[-20:] = 5_000
    found = errors_of(np.arange(1_000), due_ns + late_ns + 123_456_789, due_ns)
    assert (found.packets, found.p50_us, found.max_us, found.drift_us) == (1_000, 0.0, 70.0, 5.0)


def test_a_large_capture_is_one_that_is_read_whole(tmp_path: Path) -> None:
    count = write_large(tmp_path / "large.pcap", 30_000_000)
    capture = Capture(tmp_path / "large.pcap")
    numbers = [
        int.from_bytes(each.payload[:4], "big") for batch in capture.batches() for each in
        batch.select(slice(0, 1)).datagrams()
    ]  # fmt: skip
    assert capture.statistics.datagrams == count > 80_000
    assert numbers == sorted(numbers)
    assert capture.truncation is None


def test_the_command_that_is_measured_sends_everything_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.pcap"
    count = write_large(path, 3_000_000)
    with namespace():
        found = measure(ours(path, "--speed", "flat"), count)
    assert found["whole"]
    assert found["anonymous_bytes_max"] > 1_000_000
    assert anonymous_bytes(2**22 + 1) == 0


@pytest.mark.parametrize("count", [1, 10_000])
def test_packets_are_as_large_as_a_markets(count: int) -> None:
    sizes = payload_sizes(count)
    assert sizes.min() >= 40
    assert sizes.max() <= 1_400
    assert count == 1 or abs(sizes.mean() - 287.53) < 10
