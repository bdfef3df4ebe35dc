"""The injector itself: what is drawn is what happens, and a seed says it all."""

import random

import pytest
from network import (
    CLOSED,
    DATA,
    HEARTBEAT,
    MS,
    NEVER,
    RESET,
    LineFaults,
    Shared,
    TcpFaults,
    TcpLink,
    arrivals,
)

COUNT = 40_000
SENDS = [(n * MS // 10, DATA) for n in range(COUNT)]


def test_a_line_without_faults_delivers_each_packet_once_at_once():
    came = arrivals(random.Random(1), LineFaults(), SENDS)
    assert came == [(at, index) for index, (at, _) in enumerate(SENDS)]


@pytest.mark.parametrize("mean", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
def test_losses_come_at_their_rate_and_in_runs_of_their_length(loss, mean):
    faults = LineFaults(loss=loss, run_mean=mean)
    came = {index for _, index in arrivals(random.Random(2), faults, SENDS)}
    lost = [index for index in range(COUNT) if index not in came]
    assert len(lost) / COUNT == pytest.approx(loss, rel=0.25)
    runs = sum(1 for index in lost if index - 1 in came or index == 0)
    expected = mean if mean > 1.0 else 1.0 / (1.0 - loss)
    assert len(lost) / runs == pytest.approx(expected, rel=0.2)


def test_doubled_packets_come_at_their_rate():
    came = arrivals(random.Random(3), LineFaults(doubled=0.4), SENDS)
    assert len(came) / COUNT == pytest.approx(1.4, rel=0.02)
    assert {index for _, index in came} == set(range(COUNT))


def test_jitter_reorders_within_its_bound_and_skew_is_constant():
    faults = LineFaults(jitter_ns=5 * MS, skew_ns=70 * MS)
    came = arrivals(random.Random(4), faults, SENDS)
    delays = [at - SENDS[index][0] - 70 * MS for at, index in came]
    assert min(delays) >= 0
    assert max(delays) < 5 * MS
    assert sum(delays) / len(delays) == pytest.approx(2.5 * MS, rel=0.02)
    assert [index for _, index in sorted(came)] != list(range(COUNT))


def test_nothing_passes_in_an_outage_and_everything_after_the_healing():
    faults = LineFaults(loss=0.3, outages=[(100 * MS, 300 * MS)], until_ns=2_000 * MS)
    came = {index for _, index in arrivals(random.Random(5), faults, SENDS)}
    assert not [index for index in came if 100 * MS <= SENDS[index][0] < 300 * MS]
    healed = [index for index, (at, _) in enumerate(SENDS) if at >= 2_000 * MS]
    assert set(healed) <= came


def test_resets_are_never_lost_and_heartbeats_at_a_rate_of_their_own():
    sends = [(n * MS, (DATA, HEARTBEAT, RESET)[n % 3]) for n in range(9_000)]
    faults = LineFaults(loss=0.2, beats_lost=0.5, doubled=0.5, jitter_ns=MS)
    lost = Shared(loss=0.2).lost(random.Random(6), sends)
    came = [index for _, index in arrivals(random.Random(7), faults, sends, lost)]
    assert [index for index in sorted(came) if index % 3 == 2] == list(range(2, 9_000, 3))
    beats = len({index for index in came if index % 3 == 1})
    assert beats / 3_000 == pytest.approx(0.8 * 0.8 * 0.5, rel=0.1)


def test_what_both_lines_lose_is_lost_on_both():
    shared = Shared(loss=0.05, blackouts=[(500 * MS, 600 * MS)], until_ns=3_000 * MS)
    lost = shared.lost(random.Random(8), SENDS)
    dark = {index for index, (at, _) in enumerate(SENDS) if 500 * MS <= at < 600 * MS}
    assert dark <= lost
    single = len(lost - dark) / (30_000 - len(dark))
    assert single == pytest.approx(0.05, rel=0.1)
    for seed in (9, 10):
        came = arrivals(random.Random(seed), LineFaults(), SENDS, lost)
        assert {index for _, index in came} == set(range(COUNT)) - lost


def test_a_seed_says_what_happens():
    def play(seed: int) -> tuple:
        draw = random.Random(seed)
        shared = Shared.drawn(draw, 3_000 * MS)
        lines = [LineFaults.drawn(draw, 3_000 * MS, second) for second in (False, True)]
        lost = shared.lost(draw, SENDS)
        return shared, lines, [arrivals(draw, line, SENDS, lost) for line in lines]

    assert play(11) == play(11)
    assert play(11) != play(12)


def test_intensities_are_drawn_from_nothing_to_their_bounds():
    lines = [LineFaults.drawn(random.Random(seed), 2_000 * MS, True) for seed in range(2_000)]
    for name, least, most in [
        ("loss", 0.25, 0.3), ("doubled", 0.4, 0.5), ("jitter_ns", 80 * MS, 100 * MS),
        ("skew_ns", 400 * MS, 500 * MS),
    ]:  # fmt: skip
        drawn = [getattr(line, name) for line in lines]
        assert drawn.count(0) > 200, name
        assert least < max(drawn) <= most, name
    assert any(line.outages for line in lines)
    assert any(line.beats_lost > 0.9 for line in lines)


def pump(link: TcpLink) -> list[tuple[int, int, bytes | None]]:
    """Everything that the link delivers, as (when, side, bytes or CLOSED)."""
    came = []
    while link.pending < NEVER:
        now = link.pending
        came += [(now, side, data) for side, data in link.deliver(now)]
    return came


@pytest.mark.parametrize("chunk", [1, 7, 100, 65_536])
def test_tcp_delivers_every_byte_in_order_in_chunks(chunk):
    draw = random.Random(chunk)
    faults = TcpFaults(jitter_ns=MS, chunk_bytes=chunk, stall=0.1, stall_ns=50 * MS)
    link = TcpLink(draw, faults)
    sent = {0: b"", 1: b""}
    for n in range(100):
        side, data = draw.randrange(2), draw.randbytes(draw.randrange(1, 300))
        sent[1 - side] += data
        link.send(side, data, n * MS)
    came = pump(link)
    for side in (0, 1):
        mine = [data for _, to, data in came if to == side]
        assert b"".join(mine) == sent[side]
        assert max(map(len, mine)) <= max(chunk, 1)
    assert [at for at, *_ in came] == sorted(at for at, *_ in came)


def test_a_break_cuts_what_is_under_way_and_both_sides_learn_once():
    cut = 0
    for seed in range(200):
        draw = random.Random(seed)
        link = TcpLink(draw, TcpFaults(chunk_bytes=64))
        data = draw.randbytes(1_000)
        link.send(1, data, 0)
        link.break_off(0)
        link.send(1, b"more", 0)
        came = pump(link)
        got = b"".join(chunk for _, side, chunk in came if side == 0 and chunk is not CLOSED)
        assert data.startswith(got)
        cut += 0 < len(got) < len(data)
        for side in (0, 1):
            mine = [chunk for _, to, chunk in came if to == side]
            assert mine.count(CLOSED) == 1
            assert mine[-1] is CLOSED
    assert cut > 100


def test_breaks_come_at_their_rate_and_not_after_the_healing():
    broken = 0
    for seed in range(500):
        link = TcpLink(random.Random(seed), TcpFaults(chunk_bytes=1, breaks=0.05, until_ns=10))
        link.send(0, b"0123456789", 0)
        broken += link.broken
        calm = TcpLink(random.Random(seed), TcpFaults(chunk_bytes=1, breaks=0.05, until_ns=10))
        calm.send(0, b"0123456789", 10)
        assert not calm.broken
        assert [data for _, _, data in pump(calm)] == [b"0123456789"]
    assert broken / 500 == pytest.approx(1 - 0.95**10, rel=0.5)
