"""Several captures as one, and where their datagrams went."""

from pathlib import Path

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.replay import playing as replay
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.pace import Pace
from feedhandler.replay.playing.pipeline import Pipeline, endpoints
from feedhandler.replay.playing.source import chunks_of
from feedhandler.terminal.captures import open_captures

GROUPS = [("239.1.1.2", 5_002), ("239.1.1.1", 5_001), ("239.1.1.1", 5_003)]


def written(path: Path, first: int, count: int) -> list[Datagram]:
    made = []
    with CaptureWriter(path) as writer:
        for number in range(first, first + count):
            group, port = GROUPS[number % 3]
            made.append(Datagram(number * 1000, group, port, "10.0.0.1", b"%d" % number))
            writer.write(made[-1].time_ns, group, port, made[-1].payload)
    return made


def all_of(source: Pipeline) -> list[Datagram]:
    return [one for batch in source.batches() for one in batch.datagrams()]


def test_a_series_is_its_files_in_turn_as_often_as_it_is_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pcap" for number in range(3)]
    wanted = [one for number, path in enumerate(paths) for one in written(path, 100 * number, 90)]
    series = Pipeline([Capture(path) for path in paths])
    assert all_of(series) == all_of(series) == wanted
    assert series.truncation is None
    assert series.share_done == 1.0
    shares = []
    for _ in series.batches():
        shares.append(series.share_done)
    assert shares == sorted(shares)
    assert shares[0] <= 1 / 3


def test_a_cut_file_is_read_to_its_end_and_reported(tmp_path: Path) -> None:
    first, second = tmp_path / "1.pcap", tmp_path / "2.pcap"
    wanted = written(first, 0, 10)[:-1] + written(second, 10, 5)
    first.write_bytes(first.read_bytes()[:-3])
    series = Pipeline([Capture(first), Capture(second)])
    assert all_of(series) == wanted
    assert series.truncation is not None
    assert series.truncation.records == 9


def test_every_datagram_of_a_series_finds_the_channel_of_its_own_address(tmp_path: Path) -> None:
    paths = [tmp_path / "1.pcap", tmp_path / "2.pcap"]
    wanted = written(paths[0], 0, 30) + written(paths[1], 30, 31)
    source = Pipeline(open_captures(paths))
    channels = endpoints(source)
    assert channels == sorted(GROUPS)
    found = [
        (channels[channel], chunk.data[start : start + length].tobytes())
        for chunk in chunks_of(source, None, channels, ["recorded"])
        for channel, start, length in zip(chunk.channel, chunk.offset, chunk.length, strict=True)
    ]
    assert found == [((one.group, one.port), one.payload) for one in wanted]


def test_a_capture_without_multicast_cannot_go_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "1.pcap"
    with CaptureWriter(path) as writer:
        writer.write(0, "10.1.1.1", 5_000, b"unicast")
    options = replay.Options(captures=(path,), lines=(), pace=Pace(), losses=(0.0, 0.0))
    with pytest.raises(UsageError, match="no datagram that is meant went to a multicast group"):
        replay.run(options)
