"""The player and the load generator over real multicast on the loopback interface."""

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.config.recording import FILE_BYTES_MIN, RecordConfig
from feedhandler.ingest.lines import Line
from feedhandler.ingest.records import RecordKind
from feedhandler.ops.replay import playing as replay
from feedhandler.recording.recorder import Recorder
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.inject import Injector, LineFaults
from feedhandler.replay.playing.pace import Pace, PaceKind, Schedule, parse_pace
from feedhandler.replay.playing.player import Player, PlayProgress
from feedhandler.replay.playing.sender import Progress, Sender
from feedhandler.replay.playing.sender_lines import MulticastLine, open_multicast_sender
from feedhandler.replay.playing.source import PayloadField
from tests.support import free_addresses
from tests.support.load import LoadGenerator, LoadTemplate
from tests.support.replay import PATIENCE_S, Receiver

#: Slow enough for a receiver whose buffer the kernel keeps at its default size.
GENTLE = Pace(PaceKind.PACKETS, 20_000)
LATE_NS = 3_600 * 10**9


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    """Three receivers, on groups of their own."""
    made = [Receiver(free_addresses.group()) for _ in range(3)]
    yield made
    for receiver in made:
        receiver.close()


def numbered(count: int, gap_ns: int = 0) -> list[tuple[int, bytes]]:
    return [(number * gap_ns, number.to_bytes(4, "big") * 5) for number in range(count)]


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "big")


def went_on(player: Player, seen: list[PlayProgress]) -> Callable[[PlayProgress], None]:
    """Pause a run before it begins; the answer, called with its progress, notes it and lets it
    go on. So it is seen to run however late a busy machine looks."""
    player.pause()

    def look(progress: PlayProgress) -> None:
        seen.append(progress)
        player.resume()

    return look


def test_everything_arrives_on_both_lines_in_order(receivers: list[Receiver]) -> None:
    items = numbered(5_000)
    a, b, _ = receivers
    lines = [MulticastLine("A", a.endpoint), MulticastLine("B", b.endpoint, "lo")]
    seen: list[PlayProgress] = []
    player = Player(items, lines, pace=GENTLE)
    result = player.run(went_on(player, seen), interval_s=0.02)
    for receiver in (a, b):
        assert receiver.wait_for(5_000) == [payload for _, payload in items]
    assert result.complete
    assert [line.sent for line in result.lines] == [5_000, 5_000]
    assert result.payload_bytes == 2 * 5_000 * 20
    assert result.lateness_max_ns >= 0
    assert result.duration_ns > 4_999 * 50_000
    assert seen
    assert all(0.0 <= one.share_done <= 1.0 for one in seen)
    assert [one.sent for one in seen] == sorted(one.sent for one in seen)
    last = player.progress()
    assert (last.sent, last.share_done) == (10_000, 1.0)


@pytest.mark.captures
def test_the_real_capture_arrives_whole(captures: Path, receivers: list[Receiver]) -> None:
    capture = Capture(captures / "iex" / "deep-2023-10-02.pcap.gz")
    a, b, _ = receivers
    lines = [MulticastLine("A", a.endpoint), MulticastLine("B", b.endpoint)]
    result = Player(capture, lines, pace=parse_pace("max", packets_max=10_000)).run()
    expected = [one.payload for one in capture]
    assert a.wait_for(5_000) == expected
    assert b.wait_for(5_000) == expected
    assert result.datagrams == 5_000
    assert result.truncation is None


@pytest.mark.parametrize("delays", [False, True])
def test_each_line_suffers_exactly_what_the_injector_planned(
    receivers: list[Receiver], delays: bool
) -> None:
    seed, count = 11, 6_000
    faults = [
        LineFaults(loss=0.1, reorder=0.05, duplicate=0.02),
        LineFaults(loss=0.2, reorder=0.1, reorder_distance=40),
    ]
    if delays:
        faults.append(LineFaults(loss=0.05, reorder=0.02, delay_us=30_000, jitter_us=2_000))
    items = numbered(count)
    lines = [
        MulticastLine("ABC"[number], receivers[number].endpoint, faults=fault)
        for number, fault in enumerate(faults)
    ]
    player = Player(items, lines, pace=GENTLE, seed=seed, spare_shared=True)
    result = player.run()

    injector = Injector(faults, seed, spare_shared=True)
    schedule = Schedule(GENTLE)
    due_ns = schedule.due_ns(np.zeros(count, np.int64), np.full(count, 20))
    plans = [injector.plan(due_ns), injector.finish()]
    for number, counts in enumerate(injector.counts):
        planned = [index for part in plans for index in part[number].index.tolist()]
        got = [number_of(payload) for payload in receivers[number].wait_for(len(planned))]
        assert got == planned
        totals = result.lines[number]
        assert totals.sent == counts.sends == len(planned)
        assert (totals.dropped, totals.duplicated) == (counts.dropped, counts.duplicated)
        assert (totals.reordered, totals.spared) == (counts.reordered, counts.spared)
    both = {number_of(p) for p in receivers[0].got} | {number_of(p) for p in receivers[1].got}
    assert both == set(range(count))


def test_services_go_to_their_own_groups_and_the_rest_is_counted(
    receivers: list[Receiver],
) -> None:
    items = [(0, struct.pack(">HI", 101 + number % 3, number)) for number in range(300)]
    groups = {101: receivers[0].endpoint, 102: receivers[1].endpoint}
    player = Player(items, [MulticastLine("A", groups)], key=PayloadField(0, 2), pace=GENTLE)
    result = player.run()
    for number in (0, 1):
        got = receivers[number].wait_for(100)
        assert got == [payload for _, payload in items[number::3]]
    assert (result.datagrams, result.unmapped, result.lines[0].datagrams) == (300, 100, 200)


def test_a_captures_groups_are_mapped_onto_the_lines_own(
    tmp_path: Path, receivers: list[Receiver]
) -> None:
    with CaptureWriter(tmp_path / "two.pcap.gz") as writer:
        for number in range(60):
            writer.write(number, f"233.1.1.{number % 2}", 7_000, number.to_bytes(4, "big"))
    groups = {
        ("233.1.1.0", 7_000): receivers[0].endpoint,
        ("233.1.1.1", 7_000): receivers[1].endpoint,
    }
    Player(Capture(tmp_path / "two.pcap.gz"), [MulticastLine("A", groups)]).run()
    assert [number_of(p) for p in receivers[0].wait_for(30)] == list(range(0, 60, 2))
    assert [number_of(p) for p in receivers[1].wait_for(30)] == list(range(1, 60, 2))


def test_a_datagram_may_be_for_one_line_alone(receivers: list[Receiver]) -> None:
    items = [(0, b"0001"), (1, b"0002", "A"), (2, b"0003", "B"), (3, b"0004")]
    a, b, _ = receivers
    Player(items, [MulticastLine("A", a.endpoint), MulticastLine("B", b.endpoint)]).run()
    assert a.wait_for(3) == [b"0001", b"0002", b"0004"]
    assert b.wait_for(3) == [b"0001", b"0003", b"0004"]


def test_a_run_stops_in_the_middle(receivers: list[Receiver]) -> None:
    items = [*numbered(3), (LATE_NS, b"never")]
    player = Player(items, [MulticastLine("A", receivers[0].endpoint)])
    player.start()
    receivers[0].wait_for(3)
    with pytest.raises(UsageError, match="not ended"):
        player.result()
    player.stop()
    assert player.wait(PATIENCE_S)
    result = player.result()
    assert not result.complete
    assert result.lines[0].sent == 3
    with pytest.raises(UsageError, match="has run already"):
        player.start()


def test_a_player_stopped_before_its_first_datagram_ends(receivers: list[Receiver]) -> None:
    player = Player(numbered(10), [MulticastLine("A", receivers[0].endpoint)])
    player.stop()
    assert not player.run().complete


def test_an_interrupt_stops_the_run_and_is_raised(receivers: list[Receiver]) -> None:
    looked = threading.Event()

    def interrupt() -> None:
        receivers[0].wait_for(1)
        assert looked.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    player = Player(
        [(0, b"once"), (LATE_NS, b"never")], [MulticastLine("A", receivers[0].endpoint)]
    )
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        player.run(lambda _: looked.set(), 0.01)
    helper.join()
    assert player.result().lines[0].sent == 1


def test_an_interrupt_reaches_a_sender_in_the_main_thread(receivers: list[Receiver]) -> None:
    def interrupt() -> None:
        receivers[0].wait_for(1)
        os.kill(os.getpid(), signal.SIGINT)

    with open_multicast_sender("127.0.0.1") as sock:
        sender = Sender([(sock, *receivers[0].endpoint)])
        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            send(sender, [b"once", b"never"], due_ns=[0, LATE_NS])
        helper.join()


def test_a_cancelled_task_stops_its_run(receivers: list[Receiver]) -> None:
    async def cancel_midway() -> Player:
        items = [(0, b"once"), (LATE_NS, b"never")]
        player = Player(items, [MulticastLine("A", receivers[0].endpoint)])
        task = asyncio.create_task(player.play(interval_s=0.01))
        await asyncio.to_thread(receivers[0].wait_for, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return player

    assert not asyncio.run(cancel_midway()).result().complete


def test_playing_does_not_block_the_event_loop(receivers: list[Receiver]) -> None:
    seen: list[PlayProgress] = []
    player = Player(numbered(500, 100_000), [MulticastLine("A", receivers[0].endpoint)])
    result = asyncio.run(player.play(went_on(player, seen), interval_s=0.01))
    assert result.complete
    assert seen
    assert len(receivers[0].wait_for(500)) == 500


def test_an_error_of_the_source_ends_the_run_and_is_raised(receivers: list[Receiver]) -> None:
    def broken() -> Iterator[tuple[int, bytes]]:
        yield 0, b"fine"
        raise UsageError("the source broke")

    player = Player(broken(), [MulticastLine("A", receivers[0].endpoint)])
    with pytest.raises(UsageError, match="the source broke"):
        player.run()


def test_delay_flat_out_is_refused(receivers: list[Receiver]) -> None:
    line = MulticastLine("A", receivers[0].endpoint, faults=LineFaults(delay_us=1))
    with pytest.raises(UsageError, match="no time to delay"):
        Player([], [line], pace=parse_pace("max"))


def test_an_empty_source_is_a_complete_run(receivers: list[Receiver]) -> None:
    result = Player([], [MulticastLine("A", receivers[0].endpoint)]).run()
    assert result.complete
    assert result.datagrams == result.lines[0].sent == 0


def send(sender: Sender, payloads: list[bytes], due_ns: list[int], **wrong: object) -> int:
    """Send payloads from one buffer to destination 0; `wrong` replaces columns."""
    lengths = np.array([len(payload) for payload in payloads], np.uint32)
    columns: dict[str, object] = {
        "buffers": [b"".join(payloads)],
        "buffer_of": np.zeros(len(payloads), np.uint32),
        "offsets": (np.cumsum(lengths) - lengths).astype(np.uint32),
        "lengths": lengths,
        "destinations": np.zeros(len(payloads), np.uint16),
        "due_ns": np.array(due_ns, np.int64),
        "anchor_ns": time.monotonic_ns(),
    }
    return sender.send_block(**(columns | wrong))  # type: ignore[arg-type]


def test_the_sender_refuses_what_lies_outside_its_buffers(receivers: list[Receiver]) -> None:
    with open_multicast_sender("127.0.0.1") as sock:
        sender = Sender([(sock, *receivers[0].endpoint)])
        for wrong in (
            {"offsets": np.array([2], np.uint32)},
            {"buffer_of": np.array([1], np.uint32)},
            {"destinations": np.array([1], np.uint16)},
            {"lengths": np.array([3, 3], np.uint32)},
        ):
            with pytest.raises(IndexError):
                send(sender, [b"abc"], [0], **wrong)
        assert sender.progress[Progress.SENT] == 0
        assert send(sender, [b"abc"], [0]) == 1
        assert receivers[0].wait_for(1) == [b"abc"]


def test_the_sender_raises_what_the_kernel_refuses(receivers: list[Receiver]) -> None:
    with open_multicast_sender("127.0.0.1") as sock:
        sender = Sender([(sock, *receivers[0].endpoint)])
        with pytest.raises(OSError, match="too long"):
            send(sender, [b"fine", bytes(65_508)], [0, 0])
        assert receivers[0].wait_for(1) == [b"fine"]
    with pytest.raises(UsageError, match="destinations"):
        Sender([])


def test_a_load_is_numbered_without_a_hole_on_every_line(receivers: list[Receiver]) -> None:
    a, b, _ = receivers
    templates = [LoadTemplate(bytes(12), step=1), LoadTemplate(bytes(30), step=5)]
    lines = [MulticastLine("A", a.endpoint), MulticastLine("B", b.endpoint)]
    with LoadGenerator(
        templates, lines, sequence_offset=4, sequence_width=4, first_sequence=1_000
    ) as load:
        first = load.run(10_000, 0.2)
        second = load.run(10_000, 0.1)
    assert (first.datagrams, second.datagrams) == (2_000, 1_000)
    assert first.complete
    expected = [1_000 + number // 2 * 6 + number % 2 for number in range(3_000)]
    for receiver in (a, b):
        got = receiver.wait_for(3_000)
        assert [struct.unpack_from(">I", payload, 4)[0] for payload in got] == expected
        assert [len(payload) for payload in got[:2]] == [12, 30]


def test_a_load_numbers_each_channel_for_itself(receivers: list[Receiver]) -> None:
    groups = {"x": receivers[0].endpoint, "y": receivers[1].endpoint}
    templates = [LoadTemplate(bytes(8), channel=key) for key in "xxy"]
    with LoadGenerator(
        templates,
        [MulticastLine("A", groups)],
        sequence_offset=0,
        sequence_width=8,
        byte_order="little",
    ) as load:
        assert load.run(3_000, 0.1).datagrams == 300
    for receiver, count in zip(receivers, (200, 100), strict=False):
        got = [struct.unpack("<Q", payload)[0] for payload in receiver.wait_for(count)]
        assert got == list(range(1, count + 1))


def test_a_load_stops_in_the_middle(receivers: list[Receiver]) -> None:
    with LoadGenerator(
        [LoadTemplate(bytes(8))],
        [MulticastLine("A", receivers[0].endpoint)],
        sequence_offset=0,
    ) as load:
        helper = threading.Thread(target=lambda: (receivers[0].wait_for(1), load.stop()))
        helper.start()
        result = load.run(100, 3_600)
        helper.join()
    assert not result.complete
    assert 1 <= result.datagrams < 360_000


@pytest.mark.parametrize(
    ("templates", "groups", "complaint"),
    [
        ([], None, "nothing to send"),
        ([LoadTemplate(bytes(3))], None, "3 bytes has no room"),
        ([LoadTemplate(bytes(8), channel="z")], {"x": ("239.1.1.1", 9)}, "channel 'z'"),
    ],
)
def test_a_load_that_cannot_be_is_refused(
    receivers: list[Receiver], templates: list[LoadTemplate], groups: object, complaint: str
) -> None:
    line = MulticastLine("A", groups or receivers[0].endpoint)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=complaint):
        LoadGenerator(templates, [line], sequence_offset=0)


#: Without checksums the kernel refuses to part joined datagrams (linux/socket.h).
SO_NO_CHECK = 11


@pytest.mark.parametrize("parting_refused", [False, True])
def test_joined_datagrams_arrive_one_by_one_even_where_the_kernel_will_not_part_them(
    receivers: list[Receiver], parting_refused: bool
) -> None:
    sizes = [4, 9, 9, 9, 0, 0, 9, 1_000, 1_000, *[50] * 70, 4, *[60_000] * 2]
    payloads = [bytes([number] * size) for number, size in enumerate(sizes)]
    with open_multicast_sender("127.0.0.1") as sock:
        if parting_refused:
            sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        sender = Sender([(sock, *receivers[0].endpoint)])
        assert send(sender, payloads, [0] * len(payloads)) == len(payloads)
    assert receivers[0].wait_for(len(payloads)) == payloads
    assert sender.progress[Progress.SENT] == len(payloads)
    assert sender.progress[Progress.BYTES] == sum(sizes)
    assert sender.sent_by_destination.tolist() == [len(payloads)]


def test_a_recording_is_replayed_onto_the_lines_it_came_from(
    receivers: list[Receiver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        Line(f"104/{number}", *receiver.endpoint, "127.0.0.1")
        for number, receiver in enumerate(receivers)
    ]
    settings = RecordConfig(
        dir=str(tmp_path), file_bytes=FILE_BYTES_MIN, disk_free_min_share=0.0, ring_bytes=1 << 23
    )
    recorder = Recorder(settings, lines, [], TradingDay("UTC"))
    recorder.start()
    tap = recorder.tap("lines")
    assert tap is not None
    wanted: list[list[bytes]] = [[], [], []]
    for number in range(3_000):
        payload = number.to_bytes(4, "big") * 120
        wanted[number % 3].append(payload)
        at_ns = 10**9 + number
        assert tap.put(RecordKind.PACKET, line=number % 3, received_ns=at_ns, payload=payload)
        tap.publish()
    assert recorder.stop()
    files = tuple(sorted(tmp_path.glob("lines-*.pcap")))
    assert len(files) > 1
    options = replay.Options(captures=files, lines=(), pace=GENTLE, losses=(0.0, 0.0))
    assert replay.run(options) == 0
    for receiver, payloads in zip(receivers, wanted, strict=True):
        assert receiver.wait_for(len(payloads)) == payloads
    assert "line recorded: 3,000 sent, 0 dropped" in capsys.readouterr().out
