"""The workload: packets once each, numbered without a gap, known beforehand."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.lab import feeder
from feedhandler.lab.feeder import Feeder
from feedhandler.lab.replayer import generated
from feedhandler.lab.workload import Stretch, Workload, workload_of
from feedhandler.replay.playing.plain_block import PlainBlock
from feedhandler.replay.playing.sender_lines import MulticastLine

UTP = load_feed("euronext-utp-md")
IEX = load_feed("iex-deep")
LINES = [
    MulticastLine(name, {s: (f"239.111.{number}.{s - 100}", 40_000) for s in range(101, 108)})
    for number, name in enumerate("AB", 1)
]


def utp(sequence: int, service: int, messages: int = 1) -> bytes:
    message = UTP.encode_message(230, symbol_index=7, price=100, price_scale_code=2)
    return UTP.encode_packet(sequence=sequence, service=service, messages=[message] * messages)


def iex(sequence: int, messages: int) -> bytes:
    body = IEX.encode_message("S", system_event="O", timestamp=1)
    return IEX.encode_packet(sequence=sequence, messages=[body] * messages)


def untimed(packets: list[bytes]) -> list[tuple[int, bytes]]:
    return [(0, packet) for packet in packets]


@pytest.fixture
def small() -> Workload:
    """Three services, seven packets."""
    sent = [(104, 2), (103, 1), (104, 3), (104, 1), (107, 4), (103, 2), (104, 1)]
    numbers = dict.fromkeys((103, 104, 107), 40)
    packets = []
    for service, messages in sent:
        packets.append(utp(numbers[service], service, messages))
        numbers[service] += 1
    return workload_of(UTP, untimed(packets))


def test_a_workload_is_what_brings_data_once(small: Workload) -> None:
    heartbeat = UTP.encode_packet(kind="heartbeat", sequence=0, service=104)
    packets = [utp(5, 104), utp(5, 104), heartbeat, b"rubbish", utp(6, 104), utp(4, 104)]
    workload = workload_of(UTP, untimed(packets))
    assert (len(workload), workload.repeated) == (2, 2)
    assert small.describe()["packets_by_service"] == {103: 2, 104: 4, 107: 1}
    assert small.describe()["messages"] == 14


def test_a_workload_has_a_bound() -> None:
    packets = [utp(number, 104) for number in range(1, 100)]
    assert len(workload_of(UTP, untimed(packets), bytes_max=3 * len(packets[0]))) == 3


def test_where_there_is_nothing_to_replay_the_feed_is_named() -> None:
    with pytest.raises(UsageError, match="euronext-utp-md"):
        workload_of(UTP, [(0, b"rubbish")])


def test_packets_within_a_time_are_those_that_begin_in_it(small: Workload) -> None:
    bits = [
        (len(small.data[o : o + n]) + 42) * 8
        for o, n in zip(small.offset, small.length, strict=True)
    ]
    assert small.pass_bits == sum(bits)
    assert small.packets_within(0) == 0
    assert small.packets_within(1) == 1
    assert small.packets_within(bits[0]) == 1
    assert small.packets_within(bits[0] + 1) == 2
    assert small.packets_within(3 * small.pass_bits + 1) == 22


def played(
    workload: Workload, stretch: Stretch, bases: np.ndarray, messages: bool
) -> dict[tuple[int, int], int]:
    """By hand, packet after packet: (service, number) -> AMQP messages."""
    found = {}
    numbers = dict(zip(workload.services.tolist(), bases.tolist(), strict=True))
    for at in range(stretch.packets):
        index = at % len(workload)
        service = int(workload.services[workload.slot[index]])
        found[service, numbers[service]] = int(workload.count[index]) if messages else 1
        numbers[service] += int(workload.step[index])
    return found


@pytest.mark.parametrize("messages", [False, True])
def test_what_clients_must_get_is_known_beforehand(
    small: Workload, messages: bool, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        packets = chance.randint(1, 30)
        stretch = Stretch(packets, chance.randint(0, packets))
        bases = np.array([chance.randint(1, 100) for _ in small.services], np.int64)
        expected = small.expect(stretch, bases, messages)
        by_hand = played(small, stretch, bases, messages)
        assert expected.total == sum(by_hand.values())
        offsets = np.cumsum(expected.sizes) - expected.sizes
        for (service, number), count in by_hand.items():
            slot = expected.services.tolist().index(service)
            assert expected.counts[offsets[slot] + number - bases[slot]] == count
        warm_up = played(small, Stretch(stretch.warm_up, 0), bases, messages)
        assert (expected.timed_from - bases).tolist() == [
            sum(1 for service, _ in warm_up if service == each) for each in small.services
        ]


def test_where_a_feed_numbers_messages_numbers_go_on_by_them() -> None:
    workload = workload_of(IEX, untimed([iex(1, 2), iex(3, 3)]))
    expected = workload.expect(Stretch(3, 0), np.array([1]), messages=False)
    assert expected.counts.tolist() == [1, 0, 1, 0, 0, 1, 0]
    assert workload.expect(Stretch(3, 0), np.array([1]), messages=True).total == 7


def test_the_account_of_a_part_is_its_packets(small: Workload) -> None:
    for first, end in ((0, 7), (3, 20), (9, 9)):
        indexes = [at % len(small) for at in range(first, end)]
        assert small.messages_in(first, end) == sum(int(small.count[p]) for p in indexes)
        assert small.bytes_in(first, end) == sum(int(small.length[p]) for p in indexes)
        assert small.bits_in(first, end) == sum((int(small.length[p]) + 42) * 8 for p in indexes)
        by_slot = [sum(small.slot[p] == slot for p in indexes) for slot in range(3)]
        assert small.packets_by_slot(first, end).tolist() == by_slot


def decoded(
    feed: Feed, workload: Workload, feed_blocks: list[PlainBlock]
) -> list[tuple[int, int, int]]:
    """(service, sequence, messages) of each datagram of line A, in sending order."""
    found = []
    for block in feed_blocks:
        for at in range(0, len(block.offsets), 2):
            assert block.offsets[at] == block.offsets[at + 1]
            start = int(block.offsets[at])
            packet = feed.decode_packet(
                block.data[start : start + int(block.lengths[at])].tobytes()
            )
            found.append((packet.service, packet.sequence, len(packet.messages)))
    return found


def test_blocks_are_numbered_from_pass_to_pass_and_paced_by_bits(
    small: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "BLOCK_PACKETS", 3)
    monkeypatch.setattr(feeder, "BURST_NS", 1)
    player = Feeder(small, LINES)
    try:
        blocks = list(player.blocks(Stretch(17, 0), 2e6))
    finally:
        player.close()
    bases = np.ones(3, np.int64)
    by_hand = played(small, Stretch(17, 0), bases, True)
    assert {(s, n): count for s, n, count in decoded(UTP, small, blocks)} == by_hand
    due = np.concatenate([block.due_ns for block in blocks])
    # Two lines share 2 Mbps: a bit of one line takes a microsecond.
    assert due[::2].tolist() == [small.bits_in(0, at) * 1_000 for at in range(17)]
    assert (due[::2] == due[1::2]).all()
    where = np.concatenate([block.destinations for block in blocks])
    assert set(where[::2]).isdisjoint(where[1::2])


def recorded_at(*times_ns: int) -> Workload:
    return workload_of(UTP, [(at, utp(number, 104)) for number, at in enumerate(times_ns, 1)])


def test_at_its_own_pace_a_capture_keeps_its_gaps_from_pass_to_pass() -> None:
    workload = recorded_at(5_000, 5_000, 5_300, 6_500)
    assert (workload.ahead_ns.tolist(), workload.pass_ns) == ([0, 0, 300, 1_500], 2_000)
    player = Feeder(workload, LINES)
    try:
        for pace, spread in ((1.0, 1), (0.5, 2)):
            blocks = list(player.blocks(Stretch(6, 0), 0.0, pace))
            due = np.concatenate([block.due_ns for block in blocks])[::2]
            assert due.tolist() == [spread * at for at in (0, 0, 300, 1_500, 2_000, 2_000)]
        assert player.stretch(0.0, 1e-6, 2e-6, pace=1.0) == Stretch(7, 3)
        assert player.stretch(0.0, 1e-6, 2e-6, pace=0.5) == Stretch(3, 3)
    finally:
        player.close()


def test_where_a_captures_time_goes_back_nothing_is_waited_for() -> None:
    assert recorded_at(1_000, 5_000, 200, 300).ahead_ns.tolist() == [0, 4_000, 4_000, 4_100]
    assert not recorded_at(0, 0).timed


def test_the_peak_of_a_capture_is_its_busiest_window() -> None:
    workload = recorded_at(0, 900, 1_000, 1_100, 1_900, 2_000)
    bits = workload.bits_in(0, 1)
    assert workload.peak_bits(1_000, 6) == 3 * bits
    assert workload.peak_bits(1_000, 2) == 2 * bits
    assert workload.begins_ns(7) == workload.pass_ns + 900


def test_a_stretch_at_its_own_pace_is_accounted_for() -> None:
    player = Feeder(recorded_at(0, 100_000, 10_000_000), LINES)
    try:
        sent = player.play(player.stretch(0.0, 0.005, 0.02, pace=1.0), 0.0, 1.0)
    finally:
        player.close()
    # A pass takes 15 ms, the warm-up 5: what is timed begins after 10 ms.
    assert (sent.packets, sent.datagrams) == (3, 6)
    assert sent.duration_ns >= 5_100_000
    assert sent.peak_bps == pytest.approx(2 * 2 * 8 * (len(utp(1, 104)) + 42) / 0.01)


def test_a_stretch_is_played_to_its_end_and_accounted_for(small: Workload) -> None:
    player = Feeder(small, LINES)
    try:
        stretch = player.stretch(1e8, warm_up_s=0.01, duration_s=0.02)
        sent = player.play(stretch, 1e8)
        assert player.sent == 2 * stretch.packets
        assert sent.packets == stretch.packets - stretch.warm_up
        assert sent.datagrams == 2 * sent.packets
        assert sum(sent.services.values()) == sent.packets
        first = player.next_numbers.copy()
        player.play(Stretch(7, 0), 1e9)
        assert (player.next_numbers - first).tolist() == [2, 4, 1]
    finally:
        player.close()


def test_a_stopped_feeder_ends_at_once(small: Workload) -> None:
    player = Feeder(small, LINES)
    player.stop()
    try:
        player.play(Stretch(1_000_000, 0), 1e5)
        assert player.sent == 0
    finally:
        player.close()


def test_what_goes_wrong_while_preparing_ends_the_play(
    small: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(stretch: Stretch, rate_bps: float, pace: float) -> Iterator[PlainBlock]:
        raise ValueError("no more packets")

    player = Feeder(small, LINES)
    monkeypatch.setattr(player, "blocks", broken)
    with pytest.raises(ValueError, match="no more packets"):
        player.play(Stretch(5, 0), 1e6)
    player.close()


def test_a_generated_session_has_all_services_in_the_papers_sizes() -> None:
    workload = workload_of(UTP, generated(UTP, seed=1, messages=40_000))
    assert workload.services.tolist() == list(range(101, 108))
    description = workload.describe()
    assert description["messages"] >= 40_000
    assert 260 < description["mean_packet_bytes"] < 320
    assert 4.5 < description["mean_messages_a_packet"] < 5.6
