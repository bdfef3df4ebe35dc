"""Seeking: a replay goes on elsewhere, and nothing of the old position comes after the answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support import free_addresses
from tests.support.replay import PATIENCE_S, Receiver

HOUR_NS = 3_600 * 10**9


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(free_addresses.group())
    yield made
    made.close()


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Three datagrams an hour, for three hours: each hour's go out at once."""
    with CaptureWriter(tmp_path / "hours.pcap") as writer:
        for hour in range(3):
            for number in range(3):
                writer.write(hour * HOUR_NS + number, "239.1.1.1", 5_001, b"%d%d" % (hour, number))
    return Pipeline([Capture(tmp_path / "hours.pcap")])


def test_a_seek_goes_on_elsewhere_at_once_forth_and_back(
    pipeline: Pipeline, receiver: Receiver
) -> None:
    player = Player(pipeline, [MulticastLine("A", receiver.endpoint)])
    player.start()
    receiver.wait_for(3)
    assert player.seek(HOUR_NS + 1) == HOUR_NS + 1
    receiver.wait_for(5)
    assert player.seek(0) == 0
    receiver.wait_for(8)
    assert player.seek(2 * HOUR_NS) == 2 * HOUR_NS
    assert player.wait(PATIENCE_S)
    hours = [b"00", b"01", b"02", b"11", b"12", b"00", b"01", b"02", b"20", b"21", b"22"]
    assert receiver.wait_for(11) == hours
    assert player.result().complete
    with pytest.raises(UsageError, match="has ended"):
        player.seek(0)


def test_a_seek_beyond_the_end_is_refused_and_changes_nothing(
    pipeline: Pipeline, receiver: Receiver
) -> None:
    player = Player(pipeline, [MulticastLine("A", receiver.endpoint)])
    player.start()
    receiver.wait_for(3)
    with pytest.raises(UsageError, match="nothing is recorded from there on"):
        player.seek(9 * HOUR_NS)
    assert not player.wait(0)
    player.stop()
    assert player.wait(PATIENCE_S)
    assert not player.result().complete


def test_what_is_no_recording_cannot_be_entered_in_the_middle(receiver: Receiver) -> None:
    player = Player([(0, b"x")], [MulticastLine("A", receiver.endpoint)])
    with pytest.raises(UsageError, match="play captures"):
        player.seek(0)
    assert player.run().complete
