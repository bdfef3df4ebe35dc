"""A destination: what it adds to messages, its bound, what it tells of what it dropped."""

import itertools
import random
from typing import Any

import msgspec
import pytest
from proton import Message as ProtonMessage

from feedhandler.amqp.publishing.destination import Destination
from feedhandler.amqp.publishing.envelope import HEADER, Envelope
from feedhandler.amqp.queueing.backlog import DROP_MESSAGES_MAX
from feedhandler.amqp.queueing.book_cache import book_cache_of
from feedhandler.amqp.queueing.unsettled_map import Outcome
from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer
from feedhandler.ingest.records import RecordKind
from feedhandler.market.stream_market import Market
from tests.support import spill
from tests.support.amqp import FEED, Rig, decoded, packet
from tests.support.flow import Reader, Traffic, without
from tests.support.market import order


class FakeBroker(spill.FakeBroker):
    """A link that keeps what it is sent, read by an AMQP library of its own."""

    @property
    def sent(self) -> list[Any]:
        return [decoded(data) for _, data in self.frames]

    def confirm_all(self) -> None:
        self.confirmed.extend(number for number, _ in self.frames)


class Broker:
    """A fan-out with one destination; the connection is the test."""

    def __init__(
        self,
        address: str = "#",
        window: int = 10_000,
        queue_bytes: int = 1 << 20,
        batch_bytes: int = 65_536,
        on_batch: Any = None,
        policy: str = "drop_oldest",
        services: tuple[int, ...] = (104,),
    ) -> None:
        self.rig = Rig(services)
        self.now_ns = 0
        self.peer = Peer(self.rig.fanout.dirty_peers)
        self.destination = Destination(
            self.peer,
            parse_address(address, self.rig.feed.type_code),
            self.rig.fanout.streams,
            window,
            queue_bytes,
            batch_bytes,
            lambda tries: 1000 * tries,
            lambda: self.now_ns,
            on_batch,
            policy,
        )
        self.rig.fanout.add(self.destination)
        self.links: list[FakeBroker] = []
        self.envelope = Envelope()

    def connect(self, grants: int = 1_000_000) -> FakeBroker:
        link = FakeBroker(grants)
        self.links.append(link)
        self.destination.connect(link, self.envelope)
        self.destination.drain()
        return link

    def stream(self, first: int, last: int, channel: int = 0) -> None:
        self.rig.packets(first, last, channel)
        self.rig.pump()

    def hand_over(self, first: int, last: int, channel: int = 0) -> None:
        """Packets that are there to be pumped."""
        self.rig.packets(first, last, channel)
        self.rig.ring.publish()

    def begin(self) -> None:
        """The service's sequence epoch begins at 1."""
        self.rig.control_event(RecordKind.START, sequence=0, next_sequence=1)
        self.rig.pump()


def test_a_message_is_durable_and_otherwise_the_links_own() -> None:
    broker = Broker("#?quality=0")
    link = broker.connect()
    _, subscriber = broker.rig.attach("#?quality=0")
    broker.stream(1, 3)
    for (_, data), frame in zip(link.frames, subscriber.frames, strict=True):
        assert data == HEADER + frame
        message = ProtonMessage()
        message.decode(data)
        assert message.durable


def test_a_message_says_where_it_goes_where_its_link_does_not() -> None:
    broker = Broker("#?as=message")
    broker.envelope = Envelope(b"", lambda subject: f"/exchanges/x/{subject}")
    link = broker.connect()
    broker.begin()
    broker.stream(1, 5)
    assert len(link.frames) == 26
    for _, data in link.frames:
        message = ProtonMessage()
        message.decode(data)
        assert message.address == f"/exchanges/x/{message.subject}"
        assert message.durable
    assert {m.content for m in link.sent} == {"message", "quality+json"}


def test_what_is_sent_again_goes_where_the_new_link_wants_it() -> None:
    broker = Broker("#?quality=0")
    first = broker.connect()
    broker.stream(1, 3)
    broker.destination.disconnect()
    broker.envelope = Envelope(b"", lambda subject: f"to.{subject}")
    second = broker.connect()
    for (_, was), (_, now) in zip(first.frames, second.frames, strict=True):
        one, other = ProtonMessage(), ProtonMessage()
        one.decode(was)
        other.decode(now)
        assert (one.address, other.address) == (None, "to.euronext.104")
        assert (one.id, one.subject, one.body) == (other.id, other.subject, other.body)


def test_a_large_queue_that_is_full_gives_way_by_so_many_messages_at_a_time() -> None:
    broker = Broker(queue_bytes=1 << 22)
    seen, number = [], 1
    while len(seen) < 3:
        before = broker.destination.dropped
        broker.stream(number, number)
        number += 1
        if broker.destination.dropped > before:
            seen.append(broker.destination.dropped - before)
        assert broker.destination.queued_bytes <= 1 << 22
    assert seen == [DROP_MESSAGES_MAX] * 3
    assert broker.destination.overflows == 1


def test_time_behind_and_time_full_are_counted() -> None:
    broker = Broker("#?quality=0", queue_bytes=10_000)
    destination = broker.destination
    broker.now_ns = 100
    broker.stream(1, 1)
    broker.now_ns = 200
    broker.stream(2, 100)
    broker.now_ns = 500
    assert destination.behind_time.total_ns(500) == 400
    assert destination.full_time.total_ns(500) == 300
    broker.connect()
    assert destination.behind_time.total_ns(900) == 400
    assert destination.full_time.total_ns(900) == 300


def test_group_sequences_count_for_each_routing_key() -> None:
    broker = Broker("#?as=message&quality=0")
    link = broker.connect()
    broker.stream(1, 20)
    counted: dict[str, int] = {}
    for message in link.sent:
        assert message.group_sequence == counted.get(message.key, 0)
        counted[message.key] = message.group_sequence + 1
    assert len(counted) == 7
    assert sum(counted.values()) == 100


def test_without_a_link_messages_wait_and_then_leave_in_order() -> None:
    broker = Broker("#?quality=0")
    broker.stream(1, 50)
    assert broker.peer.backlog == 1
    link = broker.connect()
    broker.stream(51, 60)
    assert [message.sequence for message in link.sent] == [*range(1, 61)]
    assert broker.peer.backlog == 0
    assert broker.destination.queued_bytes == 0


def test_no_more_than_the_window_is_on_its_way() -> None:
    broker = Broker("#?quality=0", window=10)
    link = broker.connect()
    broker.stream(1, 30)
    assert len(link.frames) == 10
    link.confirm_all()
    broker.destination.process_outcomes()
    broker.destination.drain()
    assert [message.sequence for message in link.sent] == [*range(1, 21)]
    assert broker.destination.unsettled.confirmed == 10


def test_after_a_lost_link_the_unconfirmed_come_again_first_with_their_own_bytes() -> None:
    broker = Broker("#?quality=0", window=20)
    first = broker.connect()
    broker.stream(1, 30)
    first.confirmed.extend([1, 2, 3, 5])
    broker.destination.process_outcomes()
    assert broker.destination.disconnect() == 16
    broker.stream(31, 35)
    second = broker.connect(grants=18)
    assert [m.sequence for m in second.sent] == [4, *range(6, 21), 21, 22]
    assert dict(second.frames)[4] == dict(first.frames)[4]
    assert broker.destination.unsettled.resent == 16


def test_what_is_lost_while_sending_again_is_sent_once_more_in_order() -> None:
    broker = Broker("#?quality=0")
    broker.connect()
    broker.stream(1, 10)
    broker.destination.disconnect()
    broker.connect(grants=4)
    broker.destination.disconnect()
    assert [m.sequence for m in broker.connect().sent] == [*range(1, 11)]


def test_a_message_that_came_back_goes_out_again() -> None:
    broker = Broker("#?quality=0")
    link = broker.connect()
    broker.stream(1, 3)
    unsettled = broker.destination.unsettled
    assert unsettled.come_back(2, Outcome.RELEASED, 0) is None
    assert unsettled.due(1000)
    broker.destination.drain()
    assert [m.sequence for m in link.sent] == [1, 2, 3, 2]
    assert link.frames[1] == link.frames[3]


def test_a_message_that_is_given_up_is_announced_lost() -> None:
    broker = Broker()
    link = broker.connect()
    broker.begin()
    broker.stream(1, 3)
    number = next(n for n, data in link.frames if decoded(data).sequence == 2)
    outgoing = broker.destination.unsettled.come_back(number, Outcome.UNDELIVERABLE, 0)
    assert outgoing is not None
    broker.destination.abandon(outgoing)
    broker.stream(4, 4)
    broker.destination.drain()
    assert link.notes[-1]["reason"] == "overflow"
    assert link.notes[-1]["lost"] == [[2, 2]]
    assert [m.sequence for m in link.sent][-1] == 4, "announced before any later data"


def test_a_full_queue_drops_the_oldest_and_tells_so_before_what_follows() -> None:
    broker = Broker(queue_bytes=20_000)
    broker.begin()
    broker.stream(1, 200)
    destination = broker.destination
    assert destination.queued_bytes <= 20_000
    assert destination.dropped > 100
    assert destination.overflows == 1
    link = broker.connect()
    first = next(m for m in link.sent if m.content == "packet")
    body = link.notes[-1]
    assert body["state"] == "STALE"
    assert body["lost"] == [[1, first.sequence - 1]]
    assert body["since"] == 1, "the epoch's beginning was dropped, and is announced all the same"
    assert [m.content for m in link.sent].index("packet") == len(link.notes)
    assert [m.sequence for m in link.sent if m.content == "packet"] == [*range(first.sequence, 201)]
    assert not destination.overflowing


def test_what_waits_and_what_is_unconfirmed_share_one_bound(seed: int) -> None:
    chance = random.Random(seed)
    broker = Broker(window=30, queue_bytes=30_000, services=(104, 105))
    destination, sequence = broker.destination, 1
    link = broker.connect(0)
    for _ in range(300):
        what = chance.random()
        if what < 0.6:
            broker.stream(sequence, sequence + 9, chance.randrange(2))
            sequence += 10
        elif what < 0.8:
            link.grants += chance.randrange(40)
        elif what < 0.95:
            link.confirmed.extend(destination.unsettled.held)
            destination.process_outcomes()
        else:
            destination.disconnect()
            link = broker.connect(chance.randrange(20))
        destination.drain()
        assert destination.queued_bytes + destination.unsettled.bytes <= 30_000 + 4_096
        assert len(destination.unsettled.held) <= 30
    assert destination.dropped


def test_each_service_has_its_own_losses_announced() -> None:
    broker = Broker(queue_bytes=10_000, services=(104, 105))
    broker.stream(1, 30, 0)
    broker.stream(1, 300, 1)
    link = broker.connect()
    lost = {m.key: msgspec.json.decode(m.body)["lost"] for m in link.sent if "quality" in m.key}
    assert lost["euronext.104.quality"] == [[1, 30]]
    assert lost["euronext.105.quality"][0][0] == 1


def test_a_destination_without_quality_messages_gets_none() -> None:
    broker = Broker("#?quality=0", queue_bytes=10_000)
    broker.stream(1, 200)
    link = broker.connect()
    assert link.notes == []
    assert link.sent[0].group_sequence > 0, "the hole tells"


def test_a_snapshot_block_that_does_not_fit_is_dropped_whole() -> None:
    broker = Broker(queue_bytes=20_000)
    broker.begin()
    broker.rig.block([packet(9) for _ in range(200)], 9)
    broker.stream(10, 12)
    link = broker.connect()
    assert [m for m in link.sent if m.block_position is not None] == []
    assert "snapshot-end" not in [note["reason"] for note in link.notes]
    assert link.notes[-1]["state"] == "STALE"
    assert [m.sequence for m in link.sent if m.content == "packet"] == [10, 11, 12]


def test_a_snapshot_block_that_was_begun_is_not_ended_without_its_middle() -> None:
    broker = Broker(queue_bytes=20_000)
    link = broker.connect(3)
    broker.begin()
    broker.rig.block([packet(9) for _ in range(200)], 9)
    broker.stream(10, 12)
    link.grants = 1000
    broker.destination.drain()
    assert "snapshot-end" not in [note["reason"] for note in link.notes]
    assert link.notes[-1]["doubt"]


def test_a_block_that_fits_goes_whole_and_heals() -> None:
    broker = Broker(queue_bytes=20_000)
    broker.begin()
    broker.stream(1, 100)
    link = broker.connect()
    broker.rig.block([packet(100)], 100)
    broker.stream(101, 101)
    assert link.notes[-1]["reason"] == "snapshot-end"
    assert link.notes[-1]["state"] == "REFRESHED"
    assert link.notes[-1]["stale"] == []


def test_batches_leave_at_the_end_of_a_hand_over_and_grow_without_room() -> None:
    broker = Broker("#?as=batch&quality=0")
    link = broker.connect(1)
    broker.stream(1, 5)
    broker.stream(6, 10)
    broker.stream(11, 15)
    assert len(link.frames) == 1
    link.grants = 5
    broker.destination.drain()
    assert len(link.frames) == 2
    assert b"".join(m.body for m in link.sent) == b"".join(packet(n) for n in range(1, 16))


def gathering(batch_bytes: int = 65_536) -> tuple[Broker, FakeBroker, list[int]]:
    """A destination of batches whose fan-out has more in its ring than one hand-over takes."""
    calls: list[int] = []
    broker = Broker(
        "#?as=batch&quality=0", batch_bytes=batch_bytes, on_batch=lambda: calls.append(1)
    )
    return broker, broker.connect(), calls


def test_a_batch_gathers_while_more_waits_and_leaves_when_nothing_does() -> None:
    broker, link, calls = gathering()
    broker.hand_over(1, 10)
    while broker.rig.fanout.pump(1):
        assert link.frames == []
    assert len(calls) == 9, "each time that it stays open"
    assert b"".join(m.body for m in link.sent) == b"".join(packet(n) for n in range(1, 11))
    assert len(link.frames) == 1
    broker.stream(11, 12)
    assert (len(link.frames), len(calls)) == (2, 9), "idle: at once"


def test_a_batch_that_gathers_leaves_when_it_is_told_to() -> None:
    broker, link, _ = gathering()
    broker.hand_over(1, 4)
    assert broker.rig.fanout.pump(1)
    broker.destination.flush_batches()
    assert [m.sequence for m in link.sent] == [1]
    broker.rig.pump()
    assert [m.sequence for m in link.sent] == [1, 2]


def test_a_batch_that_gathers_leaves_when_it_is_full() -> None:
    broker, link, _ = gathering(batch_bytes=2000)
    broker.hand_over(1, 40)
    for _ in range(39):
        assert broker.rig.fanout.pump(1)
    assert len(link.frames) > 1
    assert all(1500 < len(m.body) <= 2000 for m in link.sent)


def test_batches_of_several_services_that_gather_leave_together() -> None:
    calls: list[int] = []
    broker = Broker("#?as=batch&quality=0", on_batch=lambda: calls.append(1), services=(104, 105))
    link = broker.connect()
    broker.hand_over(1, 2, 0)
    broker.hand_over(1, 3, 1)
    for _ in range(4):
        assert broker.rig.fanout.pump(1)
    assert link.frames == []
    broker.rig.pump()
    assert {m.key: len(m.body) for m in link.sent} == {
        "euronext.104": 2 * len(packet(1)),
        "euronext.105": 3 * len(packet(1)),
    }


def test_every_packet_of_a_dropped_batch_is_announced_lost() -> None:
    broker = Broker("#?as=batch", queue_bytes=10_000, batch_bytes=2000)
    broker.begin()
    broker.stream(1, 200)
    link = broker.connect()
    first = next(m.sequence for m in link.sent if m.content == "batch")
    assert link.notes[-1]["lost"] == [[1, first - 1]]


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_every_grain_arrives_whole_through_broken_links(grain: str, seed: int) -> None:
    broker = Broker(f"#?as={grain}&quality=0", window=16)
    chance = random.Random(seed)
    kept: dict[bytes, bytes] = {}
    for share in range(0, 100, 5):
        link = broker.connect(chance.randrange(1, 60))
        broker.stream(share + 1, share + 5)
        broker.destination.drain()
        arrived = link.frames[: chance.randrange(len(link.frames) + 1)]
        kept.update((decoded(data).tag, decoded(data).body) for _, data in arrived)
        link.confirmed.extend(n for n, _ in arrived[: chance.randrange(len(arrived) + 1)])
        broker.destination.process_outcomes()
        broker.destination.disconnect()
    while (
        broker.destination.queue or broker.destination.unsettled.held or broker.destination.behind
    ):
        link = broker.connect()
        kept.update((m.tag, m.body) for m in link.sent)
        link.confirm_all()
        broker.destination.process_outcomes()
        broker.destination.drain()
        broker.destination.disconnect()
    _, subscriber = broker.rig.attach(f"#?as={grain}&quality=0")
    if grain == "batch":
        assert b"".join(kept[tag] for tag in sorted(kept)) == b"".join(map(packet, range(1, 101)))
    else:
        broker.stream(1, 100)
        assert kept == {m.tag: m.body for m in subscriber.sent}


def test_by_detach_a_full_queue_gives_all_up_and_tells_so_when_the_link_is_back() -> None:
    broker = Broker(queue_bytes=20_000, policy="detach")
    link = broker.connect(5)
    broker.begin()
    broker.stream(1, 300)
    destination = broker.destination
    assert destination.given_up
    assert broker.peer.overruns == [destination]
    assert destination.queued_bytes == 0
    assert len(destination.unsettled.held) == len(link.frames) == 5, (
        "what was sent may be confirmed"
    )
    link.grants = 1000
    destination.drain()
    broker.stream(301, 310)
    assert len(link.frames) == 5, "nothing more on a link that is to be closed"
    destination.disconnect()
    assert destination.given_up
    again = broker.connect()
    broker.stream(311, 312)
    assert not destination.given_up
    assert again.notes[-1]["reason"] == "overflow"
    assert again.notes[-1]["lost"][-1][1] == 310
    assert [m.sequence for m in again.sent if m.content == "packet"][-2:] == [311, 312]


def conflating(queue_bytes: int = 100_000, window: int = 10_000) -> tuple[Broker, Traffic]:
    """A destination that conflates, and traffic for it."""
    broker = Broker(queue_bytes=queue_bytes, window=window, policy="conflate")
    broker.rig.fanout.book_cache = book_cache_of(FEED)
    broker.destination.conflate(broker.rig.fanout, FEED)
    broker.begin()
    return broker, Traffic(random.Random(21), symbols=4)


def publish(broker: Broker, messages: list[bytes], sequence: int) -> bytes:
    """Publish a packet; return it."""
    data = FEED.encode_packet(sequence=sequence, service=104, messages=messages)
    broker.rig.put(data, sequence, len(messages))
    broker.rig.pump()
    return data


def test_a_destination_that_conflates_brings_the_present_state_to_its_broker() -> None:
    broker, traffic = conflating(window=40)
    whole = Market(FEED, keeps_messages=True)
    for sequence in range(1, 700):
        messages = without(traffic.messages(4), 240, 523)
        whole.apply(publish(broker, messages, sequence))
        destination = broker.destination
        assert destination.queued_bytes + destination.unsettled.bytes <= 100_000
    assert destination.conflated > 500
    assert destination.dropped == 0
    link = confirmed(broker)
    reader = Reader()
    numbers: dict[str, int] = {}
    for message in link.sent:
        reader.receive(message)
        assert message.group_sequence == numbers.get(message.key, 0), "conflation leaves no hole"
        numbers[message.key] = message.group_sequence + 1
    assert reader.market.digest(104) == whole.digest(104)
    assert link.notes[-1]["reason"] == "caught-up"


def test_where_the_conflated_state_has_no_room_a_destination_drops_the_oldest_and_tells() -> None:
    broker, _ = conflating(queue_bytes=20_000)
    for number in range(1, 301):
        trade = FEED.encode_message(240, symbol_index=1, trade_id_number=number)
        publish(broker, [trade], number)
        assert broker.destination.queued_bytes <= 20_000
    link = broker.connect()
    first = next(message for message in link.sent if message.content == "packet")
    assert link.notes[-1]["lost"] == [[1, first.sequence - 1]]
    assert first.group_sequence == first.sequence - 1, "and the hole tells"


def test_where_not_even_the_names_of_books_have_room_that_is_announced() -> None:
    broker, _ = conflating(queue_bytes=6000)
    numbers = itertools.count(1)
    for sequence in range(1, 60):
        orders = [order("A", next(numbers), symbol_index=sequence) for _ in range(20)]
        publish(broker, orders, sequence)
        assert broker.destination.queued_bytes <= 6000
    link = confirmed(broker)
    assert "doubt" in link.notes[-1]
    assert link.notes[-1]["state"] == "STALE"


def confirmed(broker: Broker) -> FakeBroker:
    """A link on which all goes that waits, each message confirmed."""
    link, destination = broker.connect(), broker.destination
    while destination.behind or destination.unsettled.held:
        link.confirm_all()
        destination.process_outcomes()
        destination.drain()
    return link
