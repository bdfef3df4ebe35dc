"""One link's side: credit, the bounded queue, what happens when it overruns."""

import random

import pytest

from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import (
    QUEUE_ENTRY_BYTES,
    SELECTED_FIRST,
    Peer,
    SenderQueue,
    type_table,
)
from tests.support.amqp import FEED, FakeLink, Rig, order, packet
from tests.support.seeds import drawn


def test_nothing_is_sent_without_credit_and_all_of_it_in_order_with_it() -> None:
    rig = Rig()
    sender_queue, link = rig.attach("euronext.104", grants=0)
    put = rig.packets(1, 30)
    rig.pump()
    assert link.frames == []
    assert len(sender_queue.queue) == sender_queue.waited == 30
    for grants in (1, 0, 7, 2, 100):
        link.grants = grants
        sender_queue.drain()
        assert sender_queue.queued_bytes == sum(
            len(data) + QUEUE_ENTRY_BYTES for data in sender_queue.queue
        )
    assert [each.body for each in link.sent] == put
    assert [each.group_sequence for each in link.sent] == list(range(30))
    assert (sender_queue.queued_bytes, sender_queue.sent) == (0, 30)
    assert sender_queue.sent_bytes == sum(map(len, link.frames))


def test_a_message_never_overtakes_one_that_waits() -> None:
    rig = Rig()
    sender_queue, link = rig.attach("euronext.104", grants=0)
    put = rig.packets(1, 2)
    rig.pump()
    link.grants = 10
    put += rig.packets(3, 4)  # credit is there, but two messages wait
    rig.pump()
    assert link.frames == []
    sender_queue.drain()
    assert [each.body for each in link.sent] == put


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
@drawn(2)
def test_random_credit_loses_nothing_and_keeps_the_order(seed: int, grain: str) -> None:
    chance = random.Random(seed)
    rig, reference = Rig(), Rig()
    sender_queue, link = rig.attach(f"euronext.104?as={grain}", grants=0, batch_bytes=2000)
    _, ideal = reference.attach(f"euronext.104?as={grain}", batch_bytes=2000)
    sequence = 1
    for _ in range(60):
        count = chance.randrange(4)
        if count:
            rig.packets(sequence, sequence + count - 1)
            reference.packets(sequence, sequence + count - 1)
            sequence += count
        rig.pump()
        reference.pump()
        if chance.random() < 0.6:
            link.grants += chance.randrange(12)
            sender_queue.drain()
    link.grants = 10_000
    sender_queue.drain()
    bodies = b"".join(each.body for each in link.sent)
    assert bodies == b"".join(each.body for each in ideal.sent)
    assert [each.group_sequence for each in link.sent] == list(range(len(link.frames)))
    if grain != "batch":
        assert link.frames == ideal.frames


def test_a_link_that_overruns_its_queue_is_given_up_alone() -> None:
    rig = Rig()
    slow_peer = Peer(rig.fanout.dirty_peers)
    slow, slow_link = rig.attach("euronext.104", grants=2, queue_bytes=4000, peer=slow_peer)
    _, quick_link = rig.attach("euronext.104")
    put = rig.packets(1, 100)
    rig.pump()
    assert slow.overrun
    assert not slow.queue
    assert slow_peer.overruns == [slow]
    assert slow_peer in rig.fanout.dirty_peers
    assert [each.body for each in slow_link.sent] == put[:2]
    assert [each.body for each in quick_link.sent] == put
    assert rig.peer.overruns == []
    slow_link.grants = 100
    slow.drain()
    rig.packets(101, 102)
    rig.pump()
    assert len(slow_link.frames) == 2, "what was given up gets nothing more"


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_the_queue_never_holds_more_than_its_bound(grain: str) -> None:
    rig = Rig()
    sender_queue, _ = rig.attach(
        f"euronext.104?as={grain}", grants=0, queue_bytes=20_000, batch_bytes=1500
    )
    sequence = 1
    while not sender_queue.overrun:
        rig.packets(sequence, sequence)
        rig.pump()
        sequence += 1
        held = sum(len(data) + QUEUE_ENTRY_BYTES for data in sender_queue.queue)
        assert held <= 20_000
        assert sequence < 1000
    assert 15_000 < sender_queue.queued_bytes_high <= 20_000
    assert not sender_queue.has_open_batch()


def test_a_queue_exactly_full_is_not_overrun() -> None:
    rig = Rig()
    probe, _ = rig.attach("euronext.104", grants=0)
    rig.packets(1, 3)
    rig.pump()
    full = probe.queued_bytes
    for bound, overrun in ((full, False), (full - 1, True)):
        again = Rig()
        sender_queue, _ = again.attach("euronext.104", grants=0, queue_bytes=bound)
        again.packets(1, 3)
        again.pump()
        assert sender_queue.overrun is overrun


def test_a_connection_is_listed_once_a_hand_over_however_much_it_sends() -> None:
    rig = Rig()
    rig.attach("euronext.104")
    rig.attach("euronext.104?as=message")
    rig.packets(1, 10)
    rig.pump()
    assert rig.fanout.dirty_peers == [rig.peer]


def test_a_link_takes_the_types_it_named() -> None:
    def sender_queue(address: str) -> SenderQueue:
        asked = parse_address(address, int)
        return SenderQueue(Peer([]), FakeLink(), asked, 1000, 1000)

    assert sender_queue("e.1").wants_type(0)
    assert sender_queue("e.1").wants_type(65535)
    some = sender_queue("e.1?types=0,65535,7")
    assert [n for n in (0, 1, 6, 7, 8, 65534, 65535) if some.wants_type(n)] == [0, 7, 65535]


def test_a_link_selects_as_many_messages_of_a_packet_as_there_are() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104.1")
    count = 2 * SELECTED_FIRST - 1  # and twice that fits the UTP-MD count, a byte
    rig.put(packet(1, [order(n % 2) for n in range(2 * count)]), 1, 2 * count)
    rig.pump()
    (sent,) = link.data
    assert FEED.decode_packet(sent.body).symbols == [1] * count


def test_links_that_ask_for_the_same_types_share_one_table() -> None:
    wanted = frozenset({230, 140})
    assert type_table(wanted) is type_table(frozenset({140, 230}))
    assert [number for number, there in enumerate(type_table(wanted)) if there] == [140, 230]
