"""A link that conflates, of feeds by their `[book]` tables: what books its subscriber ends with.

Credit is simulated; the sessions are generated.
"""

import random
from typing import Any

import pytest

from feedhandler.amqp.queueing.book_cache import BookCache, book_cache_of
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.loader import list_feeds
from feedhandler.ingest.records import RecordKind
from feedhandler.replay.generating.order_session import OrderSession
from tests.support.flow import ConflatedLink, Reader

#: ITCH; PITCH, whose changes of orders name no symbol; SBE; XDP.
FEEDS = ("nasdaq-totalview-itch", "cboe-byx-pitch", "memx-memoir", "nyse-integrated-pillar")
#: As what each feed's link takes its messages.
GRAINS = {
    "long": ("packet", "batch", "message", "packet"),
    "trickle": ("message", "packet", "message", "packet"),
    "bursts": ("message", "packet", "batch", "batch"),
}
STALLS: dict[str, Any] = {
    "long": lambda chance, step: 100_000 if step % 250 == 249 else 0,
    "trickle": lambda chance, step: (step % 20 == 0) * (2 if step % 3 else 1),
    "bursts": lambda chance, step: 0 if chance.random() < 0.97 else chance.choice([3, 40]),
}


def conflated(name: str, seed: int, address: str = "#", duration_s: float = 0.3) -> Any:
    """A link of a feed, and the packets of a generated session for it."""
    feed = load_feed(name)
    session = OrderSession(feed, seed, instruments=4, messages_per_s=5_000.0)
    made = ConflatedLink(address, services=session.services, feed=feed)
    return made, session.packets(int(duration_s * 1e9))


def publish(made: ConflatedLink, packet: Any) -> None:
    """Publish a packet of a session, heartbeats not."""
    if packet.messages:
        made.rig.put(packet.packet, made.following[0], packet.messages)
        made.following[0] += packet.messages if made.rig.feed.counts_messages else 1


def markets(made: ConflatedLink) -> tuple[Any, Any]:
    """Return the market that the subscriber knows, and that of one that was never behind."""
    readers = []
    for link in (made.link, made.ideal):
        reader = Reader(made.rig.feed)
        for message in link.sent:
            reader.receive(message)
        readers.append(reader.market)
    return readers[0], readers[1]


def books_of(market: Any) -> dict[str, Any]:
    return {name: (book.bids.orders, book.asks.orders) for name, book in market.books.items()}


@pytest.mark.parametrize(
    ("name", "stalls", "grain"),
    [
        (name, stalls, grain)
        for stalls, grains in GRAINS.items()
        for name, grain in zip(FEEDS, grains, strict=True)
    ],
)
def test_after_any_stall_books_are_those_without(
    name: str, stalls: str, grain: str, seed: int
) -> None:
    chance = random.Random(seed)
    made, packets = conflated(name, seed, f"#?as={grain}")
    for step, packet in enumerate(packets):
        publish(made, packet)
        made.rig.pump()
        made.link.grants = 0
        made.grant(STALLS[stalls](chance, step))
    made.grant(1_000_000)
    assert not made.sender_queue.behind
    assert not made.sender_queue.overrun
    assert made.sender_queue.conflated, "the stalls are long enough for something to give way"
    slow, quick = markets(made)
    assert len(quick.books) == 4
    assert books_of(slow) == books_of(quick)
    assert dict(slow.states) == dict(quick.states)
    numbers = [message.group_sequence for message in made.link.sent]
    assert numbers == list(range(len(numbers)))
    assert made.sender_queue.books_sent
    assert not slow.problems, "no message is about an order that it has not"
    assert len(made.link.data) < len(made.ideal.data)


def test_a_link_of_one_symbol_has_that_book_whole(seed: int) -> None:
    made, packets = conflated("nasdaq-totalview-itch", seed, "itch.101.2")
    for packet in packets:
        publish(made, packet)
        made.rig.pump()
    made.grant(1_000_000)
    slow, quick = markets(made)
    assert made.sender_queue.books_sent == 1
    assert list(slow.books) == ["AAAC"]
    assert books_of(slow) == books_of(quick)


def test_books_are_named_by_the_text_of_symbols_and_their_orders_by_what_the_table_names() -> None:
    made, packets = conflated("cboe-byx-pitch", 3)
    for packet in packets:
        publish(made, packet)
    made.rig.pump()
    made.grant(1_000_000)
    feed = made.rig.feed
    begin = next(note for note in made.notes if note["reason"] == "books-begin")
    assert sorted(begin["symbols"]) == ["AAAB", "AAAC", "AAAD", "AAAE"]
    assert begin["through"] == []
    blocks = [message for message in made.link.sent if message.block_position is not None]
    assert len(blocks) == begin["packets"]
    types = {feed.message_code(each) for block in blocks for each in feed.messages_of(block.body)}
    assert types == {feed.layout("add_order_expanded").code}, "as they came"
    _, quick = markets(made)
    messages = [
        feed.decode_message(each) for block in blocks for each in feed.messages_of(block.body)
    ]
    first = next(each for each in messages if each.symbol_extended == "AAAB")
    order, price, size = quick.books["AAAB"].bids.orders[0]
    assert (first.order_id, first.side_indicator, first.quantity) == (order, "B", size)
    assert first.price.raw * 100_000 == price


def test_a_new_epoch_empties_the_books_that_are_kept() -> None:
    made, packets = conflated("memx-memoir", 3)
    for packet in packets:
        publish(made, packet)
    made.rig.pump()
    cache = made.rig.fanout.book_cache
    service = made.rig.streams[0].service
    assert cache.orders_of(service, 1) > 10
    made.rig.control_event(
        RecordKind.RESET, channel=0, sequence=made.following[0], next_sequence=1
    )  # fmt: skip
    made.rig.pump()
    assert cache.orders_of(service, 1) == 0
    assert cache.books.book_messages(service, 1) == []


def test_what_was_published_before_is_not_applied_twice() -> None:
    feed = load_feed("nasdaq-totalview-itch")
    made = ConflatedLink(services=(101,), feed=feed)
    add, reduce = (
        feed.encode_message(
            "add_order_no_mpid_attribution", stock_locate=1, order_reference_number=7,
            buy_sell_indicator="B", shares=100, price=10_000,
        ),
        feed.encode_message(
            "order_cancel", stock_locate=1, order_reference_number=7, canceled_shares=30
        ),
    )  # fmt: skip
    made.rig.put(feed.encode_packet(sequence=1, messages=[add, reduce]), 1, 2)
    made.rig.put(feed.encode_packet(sequence=2, messages=[reduce, reduce]), 2, 2, skip=1)
    made.rig.pump()
    (message,) = made.rig.fanout.book_cache.books.book_messages(101, 1)
    assert feed.decode_message(message).shares == 40


def test_changes_of_unknown_orders_wait_at_their_position() -> None:
    feed = load_feed("cboe-byx-pitch")
    made = ConflatedLink(services=(1,), feed=feed)
    for number in range(1, 60):
        message = feed.encode_message("delete_order", order_id=number)
        packet = feed.encode_packet(sequence=number, service=1, messages=[message])
        made.rig.put(packet, number, 1)
    made.rig.pump()
    assert (made.sender_queue.conflated, len(made.sender_queue.conflation.dirty)) == (0, 0)
    made.grant(1_000)
    assert len(made.link.data) == 59


def test_changes_of_a_symbol_whose_prices_have_no_scale_yet_wait_at_their_position() -> None:
    feed = load_feed("nyse-integrated-pillar")
    made = ConflatedLink(services=(1,), feed=feed)
    for number in range(1, 100):
        name, values = "modify_order", {"order_id": 51, "price": number, "volume": 1}
        if number <= 51:
            name, values = "add_order", {"order_id": number, "price": 5, "volume": 1, "side": "B"}
        if number == 50:
            name, values = "symbol_index_mapping", {"price_scale_code": 2}
        message = feed.encode_message(name, symbol_index=7, **values)
        made.rig.put(feed.encode_packet(sequence=number, messages=[message]), number, 1)
    made.rig.pump()
    assert (made.sender_queue.conflated, len(made.sender_queue.conflation.dirty)) == (49, 1)
    made.grant(1_000)
    slow, quick = markets(made)
    assert books_of(slow) == books_of(quick)


def test_the_scale_of_prices_is_sent_before_the_orders_that_came_behind_it() -> None:
    feed = load_feed("nyse-integrated-pillar")
    made = ConflatedLink(services=(1,), feed=feed)
    mapping = feed.encode_message("symbol_index_mapping", symbol_index=7, price_scale_code=2)
    add = feed.encode_message(
        "add_order", symbol_index=7, order_id=1, price=5, volume=1, side="B"
    )  # fmt: skip
    for number, message in enumerate((mapping, add, mapping), 1):
        made.rig.put(feed.encode_packet(sequence=number, messages=[message]), number, 1)
    made.rig.pump()
    made.grant(1_000)
    slow, quick = markets(made)
    assert books_of(slow) == books_of(quick)
    assert not slow.problems


@pytest.mark.parametrize("after", [0, 5, 40])
def test_what_empties_all_books_waits_at_its_position_and_books_come_behind_it(after: int) -> None:
    feed = load_feed("cboe-byx-pitch")
    made = ConflatedLink(services=(1,), feed=feed)
    messages = [
        feed.encode_message(
            "add_order_long", order_id=number, side_indicator="B", price=number, quantity=1,
            symbol="AB",
        )
        for number in range(1, 41 + after)
    ]  # fmt: skip
    messages[20:20] = [feed.encode_message("delete_order", order_id=each) for each in range(1, 21)]
    messages.insert(len(messages) - after, feed.encode_message("unit_clear"))
    for number, message in enumerate(messages, 1):
        packet = feed.encode_packet(sequence=number, service=1, messages=[message])
        made.rig.put(packet, number, 1)
        made.rig.pump()
    assert made.sender_queue.conflated
    made.grant(1_000)
    slow, quick = (books_of(market).get("AB", ([], [])) for market in markets(made))
    assert slow == quick
    assert len(slow[0]) == after


def test_what_cannot_be_sent_as_books_says_why() -> None:
    reasons = {}
    for name in list_feeds():
        try:
            BookCache(load_feed(name))
        except UsageError as error:
            reasons[name] = error.message
    assert "quotes, or several changes in one" in reasons["cme-mdp3"]
    assert "the latest messages are enough" in reasons["iex-deep"]
    assert "other messages belong to those" in reasons["fix-marketdata"]
    assert "quotes, or several changes in one" in reasons["otc-link-ats"]
    assert "other messages belong to those" in reasons["ice-impact"]
    assert book_cache_of(load_feed("siac-cqs")) is None
