"""A running replay, paused and moved: what arrives at a socket is the capture from there on."""

import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedhandler.cli.app import chosen
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import ConfigError, PeerError, UsageError
from feedhandler.ops.replay.verbs import ReplayControl, ReplayVerbs
from feedhandler.recording.sinks import create_file
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.rpc import ask
from feedhandler.terminal.console import run_guarded
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.replay import Receiver

PATIENCE_S = 60.0

START_NS = 1_795_168_800_000_000_000
#: Datagrams of a capture, a millisecond apart, and as many bytes that a chunk is some of them.
COUNT, GAP_NS, SIZE = 6_000, 1_000_000, 600
#: So slow that a run does not end before a test on a busy machine has come to its next step.
PACE = Pace(PaceKind.PACKETS, 1_000)
#: A capture that is played to its end.
SHORT = 2_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """It keeps the numbers in what arrives, in order."""
    made = Receiver(free_addresses.group(), lambda payload: int.from_bytes(payload[:4], "big"))
    yield made
    made.close()


def write(path: Path, numbers: range, compression: str = "") -> Capture:
    """A capture of these numbers, each at its own time; compressed as a recorder does it."""
    plain = path.with_name(path.name + ".plain")
    with CaptureWriter(plain) as writer:
        for number in numbers:
            payload = number.to_bytes(4, "big").ljust(SIZE, b"\x55")
            writer.write(START_NS + number * GAP_NS, "239.1.1.1", 5_001, payload)
    path = path.with_name(path.name + compression)
    file = create_file(path, False)
    file.write(plain.read_bytes())
    file.close()
    return Capture(path)


def player_of(captures: list[Capture], receiver: Receiver, pace: Pace = PACE) -> Player:
    line = MulticastLine("A", receiver.endpoint)
    return Player(Pipeline(captures), [line], pace=pace)


def time_of(number: int) -> int:
    return START_NS + number * GAP_NS


def stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """The numbers as (first, last) of each stretch without a jump."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("paused", [False, True])
def test_what_comes_after_a_seek_is_exactly_the_capture_from_there_on(
    compression: str, paused: bool, tmp_path: Path, receiver: Receiver
) -> None:
    player = player_of([write(tmp_path / "x.pcap", range(COUNT), compression)], receiver)
    player.start()
    receiver.wait_until(lambda numbers: len(numbers) > 100)
    for target in (2_000, 50, 5_900):  # forwards, backwards, near the end
        if paused:
            player.pause()
            before = player.progress().sent
        first_ns = player.seek(time_of(target) - GAP_NS // 2)
        assert first_ns == time_of(target)
        if paused:
            progress = player.progress()
            assert (progress.paused, progress.sent) == (True, before)
            player.resume()
        if target < COUNT - 100:  # else the run may end meanwhile
            after = player.progress().sent + 50
            receiver.wait_until(lambda numbers: len(numbers) >= after)  # noqa: B023
    assert player.wait(PATIENCE_S)
    result = player.result()
    assert result.complete
    sent = sum(line.sent for line in result.lines)
    got = stretches(receiver.wait_until(lambda numbers: len(numbers) >= sent))
    assert [first for first, _ in got] == [0, 2_000, 50, 5_900]
    assert got[-1][1] == COUNT - 1
    assert len(receiver.got) == sent


def test_nothing_arrives_in_a_pause_and_nothing_is_missing_after_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    def elapsed() -> int:
        """An interruption between reading two clocks makes the figure too small."""
        return max(player.progress().elapsed_ns for _ in range(9))

    player = player_of([write(tmp_path / "x.pcap", range(COUNT))], receiver)
    player.start()
    receiver.wait_until(lambda numbers: len(numbers) > 100)
    player.pause()
    player.pause()
    sent = player.progress().sent
    assert receiver.wait_until(lambda numbers: len(numbers) >= sent) == list(range(sent))
    before_ns = elapsed()
    assert not player.wait(0.05)
    progress = player.progress()
    assert (progress.sent, progress.paused, progress.datagrams_per_second) == (sent, True, 0.0)
    assert len(receiver.got) == sent
    assert progress.position_ns == time_of(sent - 1)
    assert elapsed() == pytest.approx(before_ns, abs=1_000_000)
    player.resume()
    player.resume()
    numbers = receiver.wait_until(lambda numbers: len(numbers) >= sent + 100)
    assert numbers == list(range(len(numbers)))
    player.stop()
    assert player.wait(PATIENCE_S)


def test_random_seeks_and_pauses_leave_whole_stretches_that_begin_where_they_should(
    tmp_path: Path, receiver: Receiver, seed: int
) -> None:
    chance = random.Random(seed)
    # However late a busy machine is, the run does not end before the next seek.
    parts = [write(tmp_path / f"{n[0]}.pcap", n) for n in (range(1_500), range(1_500, COUNT))]
    player = player_of(parts, receiver, Pace(PaceKind.PACKETS, 500))
    player.start()
    begins = [0]
    for _ in range(25):
        chance.choice((player.pause, player.resume))()
        target = chance.randrange(COUNT // 2)
        assert player.seek(time_of(target)) == time_of(target)
        sent = player.progress().sent
        if begins[-1] != target:
            begins.append(target)
        if not player.progress().paused and chance.random() < 0.5:
            receiver.wait_until(lambda numbers: len(numbers) > sent)  # noqa: B023
    player.seek(time_of(COUNT - 500))
    begins.append(COUNT - 500)
    player.resume()
    assert player.wait(PATIENCE_S)
    sent = player.progress().sent
    got = stretches(receiver.wait_until(lambda numbers: len(numbers) >= sent))
    # A seek may be followed by the next one before anything was sent.
    wanted = iter(begins)
    assert all(first in wanted for first, _ in got)
    assert got[-1] == (begins[-1], COUNT - 1)


def test_a_seek_to_where_nothing_is_recorded_is_refused_and_changes_nothing(
    tmp_path: Path, receiver: Receiver
) -> None:
    player = player_of([write(tmp_path / "x.pcap.gz", range(COUNT))], receiver)
    player.start()
    receiver.wait_until(lambda numbers: len(numbers) > 10)
    with pytest.raises(UsageError, match="nothing is recorded from there on"):
        player.seek(time_of(COUNT))
    assert 0.0 < player.progress().share_done < 1.0
    sent = player.progress().sent
    numbers = receiver.wait_until(lambda numbers: len(numbers) >= sent + 100)
    assert numbers == list(range(len(numbers)))
    player.seek(time_of(COUNT - 100))
    assert player.wait(PATIENCE_S)
    assert player.progress().share_done == 1.0
    with pytest.raises(UsageError, match="the run has ended"):
        player.seek(time_of(0))


def test_after_a_seek_a_loop_goes_on_with_this_pass_and_those_that_are_left(
    tmp_path: Path, receiver: Receiver
) -> None:
    feed = load_feed("euronext-utp-md")
    path = tmp_path / "x.pcap"
    with CaptureWriter(path) as writer:
        for number in range(1_000):
            payload = feed.encode_packet(sequence=number + 1, messages=(), service=104)
            writer.write(time_of(number), "239.1.1.1", 5_001, payload)
    source = Pipeline([Capture(path)], feed=feed, passes=3)
    receiver.keep = lambda payload: feed.decode_packet(payload).sequence
    player = Player(source, [MulticastLine("A", receiver.endpoint)], pace=PACE)
    player.start()
    receiver.wait_until(lambda numbers: len(numbers) > 100)
    player.pause()
    sent = player.progress().sent
    with pytest.raises(UsageError, match="nothing is recorded from there on"):
        player.seek(time_of(1_000))
    assert player.seek(time_of(900)) == time_of(900)
    player.resume()
    assert player.wait(PATIENCE_S)
    assert player.result().complete
    numbers = receiver.wait_until(lambda numbers: len(numbers) >= player.progress().sent)
    assert numbers[:sent] == list(range(1, sent + 1))
    passed = (sent - 1) // 1_000 * 1_000
    assert numbers[sent:] == list(range(passed + 901, 3_001))


def test_captures_that_are_merged_are_entered_at_the_same_time(
    tmp_path: Path, receiver: Receiver
) -> None:
    captures = [write(tmp_path / f"{n}.pcap", range(n, COUNT, 2)) for n in (0, 1)]
    line = MulticastLine("A", receiver.endpoint)
    player = Player(Pipeline(captures, merge=True), [line], pace=PACE)
    player.start()
    receiver.wait_until(lambda numbers: len(numbers) > 100)
    player.pause()
    sent = player.progress().sent
    for target in (3_001, 5_500, 1_234):
        assert player.seek(time_of(target)) == time_of(target)
    player.resume()
    receiver.wait_until(lambda numbers: len(numbers) > sent + 100)
    player.pause()
    between = player.progress().sent
    assert player.seek(time_of(5_500)) == time_of(5_500)
    player.resume()
    assert player.wait(PATIENCE_S)
    wanted = [*range(sent), *range(1_234, 1_234 + between - sent), *range(5_500, COUNT)]
    assert receiver.wait_until(lambda numbers: len(numbers) >= len(wanted)) == wanted


def test_a_seek_wakes_a_replay_that_waits_for_the_next_hour(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Three datagrams an hour, for three hours: each hour's go out at once."""
    hour_ns, path = 3_600 * 10**9, tmp_path / "hours.pcap"
    with CaptureWriter(path) as writer:
        for hour, number in itertools.product(range(3), range(3)):
            payload = (10 * hour + number).to_bytes(4, "big")
            writer.write(hour * hour_ns + number, "239.1.1.1", 5_001, payload)
    player = Player(Pipeline([Capture(path)]), [MulticastLine("A", receiver.endpoint)])
    player.start()
    for target_ns, count in ((hour_ns + 1, 3), (0, 5), (2 * hour_ns, 8)):
        receiver.wait_for(count)
        assert player.seek(target_ns) == target_ns
    assert player.wait(PATIENCE_S)
    assert receiver.wait_for(11) == [0, 1, 2, 11, 12, 0, 1, 2, 20, 21, 22]
    assert player.result().complete


def test_what_is_no_recording_cannot_be_entered_in_the_middle(receiver: Receiver) -> None:
    player = Player([(0, b"none")], [MulticastLine("A", receiver.endpoint)])
    with pytest.raises(UsageError, match="play captures"):
        player.seek(0)
    assert player.run().complete


def test_a_paused_replay_can_be_stopped(tmp_path: Path, receiver: Receiver) -> None:
    player = player_of([write(tmp_path / "x.pcap", range(COUNT))], receiver)
    player.start()
    player.pause()
    player.stop()
    assert player.wait(PATIENCE_S)
    assert not player.result().complete


# -- the socket ---------------------------------------------------------------------------------


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/replay"


def report(endpoint: str, verb: str, **fields: Any) -> Any:
    return ask(endpoint, {"do": verb, **fields}, PATIENCE_S, who="replay", setting="--control")


def test_every_verb_is_answered_with_the_status_that_is_then(
    tmp_path: Path, endpoint: str, receiver: Receiver
) -> None:
    slow = Pace(PaceKind.PACKETS, 200)  # paused long before number 1,000
    player = player_of([write(tmp_path / "x.pcap", range(COUNT))], receiver, slow)
    verbs = ReplayVerbs(player, "x.pcap", START_NS, "Europe/Paris")
    with ReplayControl(endpoint, verbs.table()) as control:
        assert control.endpoint == endpoint
        assert report(endpoint, "status")["position"] is None
        player.start()
        receiver.wait_until(lambda numbers: len(numbers) > 10)
        assert report(endpoint, "status")["state"] == "playing"
        paused = report(endpoint, "pause")
        assert (paused["state"], paused["playing"]) == ("paused", "x.pcap")
        moved = report(endpoint, "seek", to="+2.5")
        assert (moved["state"], moved["position_ns"]) == ("paused", time_of(2_500))
        assert moved["sent"] == paused["sent"]
        assert moved["share_done"] == pytest.approx(2_500 / COUNT, abs=0.01)
        # 10:00 UTC is eleven o'clock in Paris in winter.
        back = report(endpoint, "seek", to="11:00:01")
        assert back["position_ns"] == time_of(1_000)
        assert back["share_done"] == pytest.approx(1_000 / COUNT, abs=0.01)
        for wrong, reason in (
            ({"to": "11:00:06"}, "nothing is recorded from there on"),
            ({"to": "soon"}, "is no moment"),
            ({"to": 7}, "nowhere to go to"),
            ({}, "nowhere to go to"),
        ):
            with pytest.raises(PeerError, match=reason):
                report(endpoint, "seek", **wrong)
        with pytest.raises(PeerError, match="verbs: pause, resume, seek, status, stop"):
            report(endpoint, "rewind")
        assert report(endpoint, "resume")["state"] == "playing"
        receiver.wait_until(lambda numbers: numbers[-1] > 1_000)
        assert report(endpoint, "stop")["state"] == "ended"
        for verb in ("pause", "resume", "stop"):
            with pytest.raises(PeerError, match="the run has ended"):
                report(endpoint, verb)
    with pytest.raises(PeerError, match="no replay at"):
        report(endpoint, "status")
    assert receiver.got.index(1_000) == paused["sent"]


def test_an_endpoint_that_cannot_be_had_is_reported_in_one_line(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--control: 'here' is no ZeroMQ endpoint"):
        ReplayControl("here", {})
    with (
        ReplayControl(endpoint, {}),
        pytest.raises(ConfigError, match=r"--control: cannot bind .*: already in use"),
        ReplayControl(endpoint, {}),
    ):
        pass


# -- the commands -------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run `replay-control`, require the exit code `code`, and return what it prints."""
    assert run_guarded(lambda: chosen(["replay-control", *words])()) == code
    captured = capsys.readouterr()
    assert (captured.out if code else captured.err) == ""
    return captured.err if code else captured.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_is_controlled_from_elsewhere_and_a_signal_ends_it_with_its_account(
    number: signal.Signals,
    tmp_path: Path,
    endpoint: str,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "x.pcap", range(COUNT)).path
    group, port = receiver.endpoint
    # A minute of it: there is time for all that follows.
    command = [sys.executable, "-m", "feedhandler", "replay", str(path), "--speed", "100pps"]
    command += ["--line-a", f"{group}:{port}", "--control", endpoint, "--json"]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert f"controlled at {endpoint}" in process.stderr.readline()
        receiver.wait_until(lambda numbers: len(numbers) > 10)
        assert "x.pcap: paused, at 2026-11-20T10:00:0" in said(capsys, endpoint, "pause")
        status = json.loads(said(capsys, endpoint, "seek", "+4", "--json"))
        assert (status["state"], status["position_ns"]) == ("paused", time_of(4_000))
        sent = status["sent"]
        wrong = said(capsys, endpoint, "seek", "+7", code=3)
        assert "nothing is recorded from there on" in wrong
        assert "seek wants a moment" in said(capsys, endpoint, "seek", code=2)
        assert "takes no moment" in said(capsys, endpoint, "pause", "+1", code=2)
        assert "playing" in said(capsys, endpoint, "resume")
        numbers = receiver.wait_until(lambda numbers: numbers[-1] > 4_000)
        assert numbers[sent] == 4_000
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    account = json.loads(out)
    assert not account["complete"]
    assert account["sent"] == account["lines"][0]["sent"] >= len(numbers)
    assert "no replay at" in said(capsys, endpoint, "status", code=3)
