"""A link that conflates: what its subscriber knows when it has caught up is what others know.

Credit is simulated; the traffic has every kind of message.
"""

import random

import pytest

from feedhandler.amqp.queueing.book_cache import book_cache_of
from feedhandler.codecs import load_feed
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED
from tests.support.flow import ConflatedLink, Reader, Traffic


def same_state(made: ConflatedLink, services: tuple[int, ...] = (104, 105)) -> None:
    slow, quick = Reader(), Reader()
    for message in made.link.sent:
        slow.receive(message)
    for message in made.ideal.sent:
        quick.receive(message)
    for service in services:
        assert slow.market.digest(service) == quick.market.digest(service)
    numbers = [message.group_sequence for message in made.link.sent]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
@pytest.mark.parametrize("stalls", ["long", "trickle", "bursts"])
def test_after_any_stall_the_state_is_the_one_without(stalls: str, grain: str, seed: int) -> None:
    chance = random.Random(seed)
    made = ConflatedLink(f"#?as={grain}")
    traffic = [Traffic(chance), Traffic(chance, first=11)]
    pattern = {
        "long": lambda step: 100_000 if step % 100 == 99 else 0,
        "trickle": lambda step: 1,
        "bursts": lambda step: chance.choice([0, 0, 0, 0, 3, 60]),
    }[stalls]
    for step in range(150):
        for _ in range(chance.randrange(1, 6)):
            index = chance.randrange(2)
            made.put(traffic[index].messages(chance.randrange(1, 8)), index)
        if chance.random() < 0.01:
            index = chance.randrange(2)
            made.rig.control_event(
                RecordKind.RESET, channel=index, sequence=made.following[index],
                next_sequence=made.following[index],
            )  # fmt: skip
        made.rig.pump()
        made.link.grants = 0
        made.grant(pattern(step))
        made.link.grants = 0
        assert made.sender_queue.queued_bytes <= 1 << 20
    assert not made.sender_queue.overrun
    made.grant(1_000_000)
    assert made.sender_queue.queued_bytes == 0
    assert not made.sender_queue.behind
    assert made.sender_queue.conflated, "the stalls are long enough for something to give way"
    same_state(made)
    for code in (231, 240, 523):
        assert made.bodies_of(made.link, code) == made.bodies_of(made.ideal, code)
    last: dict[str, int] = {}
    for message in made.link.sent:
        if "quality" not in message.content and message.block_position is None:
            service = message.key.split(".")[1]
            assert message.sequence >= last.get(service, 0), "in the order of the stream"
            last[service] = message.sequence


def test_what_was_conflated_is_announced_before_what_follows_and_again_when_all_is_there() -> None:
    made = ConflatedLink(services=(104,))
    made.grant(1)
    for price in range(1, 41):
        made.put([FEED.encode_message(140, symbol_index=1, quote_number=1, ask_price=price)])
    made.rig.pump()
    made.grant(1000)
    contents = [message.content for message in made.link.sent]
    assert contents == ["quality+json", "quality+json", "packet", "quality+json"]
    _, quality, last = made.notes
    assert (quality["reason"], quality["state"]) == ("conflated", "CONFLATED")
    assert (quality["conflated"], quality["conflated_messages"]) == ([1, 39], 39)
    assert (last["reason"], last["state"], last["next"]) == ("caught-up", "OK", 41)
    assert made.sender_queue.conflated == 39
    made.put([FEED.encode_message(140, symbol_index=1, quote_number=1, ask_price=1)])
    made.rig.pump()
    assert len(made.link.sent) == 5, "and then all goes as it comes"


def test_a_book_is_sent_instead_of_orders_and_names_its_symbols() -> None:
    chance = random.Random(7)
    made = ConflatedLink(services=(104,))
    traffic = Traffic(chance, symbols=2)
    for _ in range(400):
        made.put([traffic._order(1)])
    made.put([traffic._order(2)])
    made.rig.pump()
    assert list(made.sender_queue.conflation.dirty) == [(104, 1)]
    made.grant(1000)
    begin = next(note for note in made.notes if note["reason"] == "books-begin")
    end = next(note for note in made.notes if note["reason"] == "books-end")
    assert begin["symbols"] == end["symbols"] == [1]
    assert (begin["last"], end["next"]) == (401, 402)
    assert begin["state"] == "CONFLATED"
    blocks = [message for message in made.link.sent if message.block_position is not None]
    assert len(blocks) == begin["packets"]
    assert [message.block_position for message in blocks] == [(401, n) for n in range(len(blocks))]
    assert made.sender_queue.books_sent == 1
    same_state(made, (104,))


def test_two_blocks_of_one_moment_have_tags_of_their_own() -> None:
    made = ConflatedLink(services=(104,))
    book_cache, stream = made.rig.fanout.book_cache, made.rig.streams[0]
    traffic = Traffic(random.Random(1), symbols=2)
    for symbol in (1, 2):
        for _ in range(50):
            made.put([traffic._order(symbol)])
    made.rig.pump()
    made.grant(10_000)
    loss_tracker = made.sender_queue.loss_trackers[104]
    for symbol in (1, 2):
        book_cache.send(made.rig.fanout, stream, [symbol], loss_tracker, made.sender_queue)
    tags = [message.tag for message in made.link.sent if message.block_position is not None]
    assert len(set(tags)) == len(tags) >= 2


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_where_even_that_is_too_much_the_link_is_given_up(grain: str) -> None:
    made = ConflatedLink(f"#?as={grain}", queue_bytes=30_000, services=(104,))
    sequence = 0
    while not made.sender_queue.overrun:
        sequence += 1
        made.put([FEED.encode_message(240, symbol_index=1, trade_id_number=sequence)])
        made.rig.pump()
        assert made.sender_queue.queued_bytes <= 30_000 or made.sender_queue.overrun
        assert sequence < 1000
    assert made.rig.peer.overruns == [made.sender_queue]
    made.grant(10)
    assert made.link.sent == []
    assert made.sender_queue.overflows == 1


def test_a_link_that_is_given_up_for_its_books_is_not_told_that_it_caught_up() -> None:
    made = ConflatedLink(queue_bytes=30_000, services=(104,))
    made.grant(1)
    traffic = Traffic(random.Random(4), symbols=1)
    for _ in range(200):
        made.put([traffic._order(1)])
    sequence = 0
    while made.sender_queue.queued_bytes < 29_000:
        sequence += 1
        made.put([FEED.encode_message(240, symbol_index=1, trade_id_number=sequence)])
        made.rig.pump()
    assert not made.sender_queue.overrun
    made.grant(1000)
    assert made.sender_queue.overrun
    assert "caught-up" not in [note["reason"] for note in made.notes]


def test_a_link_of_one_symbol_and_some_types_is_conflated_as_it_is_thinned() -> None:
    chance = random.Random(11)
    made = ConflatedLink("euronext.104.3,euronext.104.-?types=140,230,231", services=(104,))
    traffic = Traffic(chance)
    for _ in range(800):
        made.put(traffic.messages(4))
        made.rig.pump()
    made.grant(1_000_000)
    same_state(made, (104,))
    assert made.sender_queue.conflated > 100


def test_where_no_books_are_kept_orders_wait_at_their_position() -> None:
    made = ConflatedLink(services=(104,))
    made.rig.fanout.book_cache = None
    made.sender_queue.conflate(made.rig.fanout, FEED)
    traffic = Traffic(random.Random(5), symbols=1)
    for _ in range(200):
        made.put([traffic._order(1)])
    made.rig.pump()
    made.grant(1000)
    assert made.bodies_of(made.link, 230) == made.bodies_of(made.ideal, 230)
    assert book_cache_of(load_feed("iex-deep")) is None
    same_state(made, (104,))


def test_a_snapshot_block_waits_whole_and_books_come_behind_it() -> None:
    made = ConflatedLink(services=(104,))
    traffic = Traffic(random.Random(3), symbols=3)
    for _ in range(300):
        made.put(traffic.messages(3))
    made.rig.pump()
    whole = Reader()
    for message in made.ideal.sent:
        whole.receive(message)
    snapshot = whole.market.snapshot(104)
    made.rig.block([FEED.encode_packet(sequence=300, service=104, messages=snapshot[:200])], 300)
    for _ in range(300):
        made.put(traffic.messages(3))
    made.rig.pump()
    made.grant(1_000_000)
    reasons = [note["reason"] for note in made.notes]
    assert reasons.index("snapshot-end") < reasons.index("books-begin")
    same_state(made, (104,))
