"""From packets to blocks: every line gets every packet that its faults leave, in order."""

import random

import numpy as np

from feedhandler.replay.exchange.blocks import BlockMaker, LineSet
from feedhandler.replay.generating.packets import Outgoing
from feedhandler.replay.playing.inject import LineFaults
from tests.support.seeds import drawn

DESTINATIONS = [{104: 0, 103: 1}, {104: 2, 103: 3}]


def packets_of(rng, count, start_ns):
    """Packets of two services with rising due times, each with bytes of its own."""
    due_ns, packets = start_ns, []
    for number in range(count):
        due_ns += rng.randrange(1_000_000)
        packets.append(Outgoing(due_ns, rng.choice((103, 104)), b"%d/%d" % (start_ns, number), 1))
    return packets


def sends(block):
    """(destination, payload, due) of each datagram of a block."""
    data = block.data.tobytes()
    return [
        (int(to), data[at : at + size], int(due))
        for at, size, to, due in zip(
            block.offsets, block.lengths, block.destinations, block.due_ns, strict=True
        )
    ]


def one_set(faults, seed=1, together=0.0):
    return LineSet(DESTINATIONS, faults, seed, False, together)


def session(maker, rng, steps=30):
    """(packets given, sends of all blocks) of a short session; the last packets are unharmed."""
    given, sent, now_ns = [], [], 0
    for _ in range(steps):
        packets = packets_of(rng, rng.randrange(12), now_ns)
        now_ns = packets[-1].due_ns if packets else now_ns + 1_000_000
        given += packets
        sent += sends(maker.block([packets], now_ns))
    last = packets_of(rng, 3, now_ns)
    maker.finish(0)
    sent += sends(maker.block([last], last[-1].due_ns))
    sent += sends(maker.last_block())
    return given + last, sent


def test_without_faults_both_lines_get_everything_in_order_at_its_time():
    rng = random.Random(1)
    maker = BlockMaker([one_set([LineFaults(), LineFaults()])])
    given, sent = session(maker, rng)
    for line in (0, 1):
        expected = [(DESTINATIONS[line][p.service], p.packet, p.due_ns) for p in given]
        assert [send for send in sent if send[0] // 2 == line] == expected
    assert np.all(np.diff([due for _, _, due in sent]) >= 0)


@drawn(4)
def test_faults_lose_displace_and_delay_but_invent_nothing(seed):
    rng = random.Random(seed)
    faults = [
        LineFaults(loss=rng.choice((0, 0.1)), reorder=rng.choice((0, 0.2)), delay_us=line * 2000)
        for line in (0, 1)
    ]
    lines = one_set(faults, seed, together=rng.choice((0, 0.1)))
    given, sent = session(BlockMaker([lines]), rng)
    for line, counts in enumerate(lines.counts):
        payloads = [payload for to, payload, _ in sent if to // 2 == line]
        assert sorted(payloads) == sorted(set(payloads))
        assert set(payloads) <= {packet.packet for packet in given}
        assert len(payloads) == counts.datagrams - counts.dropped + 3
        if not counts.reordered:
            order = [packet.packet for packet in given]
            assert [order.index(payload) for payload in payloads] == sorted(
                order.index(payload) for payload in payloads
            )
        # Displaced past the end, a packet leaves late; only between lines can that show.
        assert np.all(np.diff([due for to, _, due in sent if to // 2 == line]) >= 0)
    assert [payload for _, payload, _ in sent[-6:]].count(given[-1].packet) == 2
    assert lines.held == 0
    if faults[1].delay_us and not faults[1].reorder:
        due = {packet.packet: packet.due_ns for packet in given[:-3]}
        for to, payload, at in sent:
            if to >= 2 and payload in due:
                assert at == due[payload] + 2_000_000


def test_what_is_sent_is_forgotten():
    rng = random.Random(3)
    lines = one_set([LineFaults(), LineFaults(delay_us=3000)])
    maker = BlockMaker([lines])
    now_ns = 0
    for _ in range(300):
        packets = packets_of(rng, 5, now_ns)
        now_ns = packets[-1].due_ns
        maker.block([packets], now_ns)
        assert lines.held == 0
        assert maker.waiting < 100


def test_line_sets_keep_their_own_faults_and_share_the_blocks():
    rng = random.Random(4)
    live = one_set([LineFaults(), LineFaults()])
    refresh = LineSet(
        [{104: 4, 103: 5}, {104: 6, 103: 7}], [LineFaults(loss=1.0), LineFaults(delay_us=500)], 2
    )
    maker = BlockMaker([live, refresh])
    packets, snapshots = packets_of(rng, 20, 0), packets_of(rng, 10, 5)
    until_ns = max(packets[-1].due_ns, snapshots[-1].due_ns)
    sent = sends(maker.block([packets, snapshots], until_ns)) + sends(maker.last_block())
    assert sorted(due for _, _, due in sent) == [due for _, _, due in sent]
    assert len([to for to, _, _ in sent if to < 4]) == 40
    assert [(p, due) for to, p, due in sent if to >= 4] == [
        (packet.packet, packet.due_ns + 500_000) for packet in snapshots
    ]
    assert [counts.dropped for counts in refresh.counts] == [10, 0]
    assert [counts.dropped for counts in live.counts] == [0, 0]


def test_a_packet_on_several_lines_is_held_once_in_a_block():
    packets = packets_of(random.Random(5), 4, 0)
    block = BlockMaker([one_set([LineFaults(), LineFaults()])]).block([packets], packets[-1].due_ns)
    assert len(block) == 8
    assert len(block.data) == sum(len(packet.packet) for packet in packets)
