"""Sessions of several feeds from the same orders: they decode, add up, and normalise alike."""

from collections import Counter
from itertools import islice

import numpy
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import FLAG_LAST, MBO, RTYPE_MBO
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import day_start_ns
from feedhandler.market.capture_records import CaptureRecords
from feedhandler.market.normaliser import Normaliser
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating import order_flow
from feedhandler.replay.generating.order_flow import OrderFlow, simple
from feedhandler.replay.generating.order_session import LAST_PACKETS, OrderSession
from feedhandler.replay.generating.order_writers import (
    LEVEL_WRITERS,
    ORDER_WRITERS,
    QUOTE_WRITERS,
    WRITERS,
    symbol_of,
)

START_NS = 1_300_195_800_000_000_000
SECOND_NS = 1_000_000_000


def mbo_of(
    action: order_flow.Action, number: int, publisher_id: int, channel: int
) -> numpy.ndarray:
    """Return the action's normalised order events, dtype `MBO`; none for directory and status.

    `number` becomes `sequence`; send and receive times are those of the action.
    """
    own, other = ("B", "A") if action.side == "B" else ("A", "B")
    order, price, size = action.order, action.price, action.size
    rows: list[tuple[str, str, int, int, int]] = {
        order_flow.ADD: [("A", own, order, price, size)],
        order_flow.REDUCE: [("C", own, order, price, size)],
        order_flow.DELETE: [("C", own, order, price, size)],
        order_flow.REPLACE: [
            ("C", own, order, action.old_price, action.old_size),
            ("A", own, action.new_order, price, size),
        ],
        order_flow.EXECUTE: [
            ("T", other, 0, price, size), ("F", own, order, price, size),
            ("C", own, order, price, size),
        ],
        order_flow.TRADE: [("T", "N", 0, price, size)],
    }.get(action.does, [])  # fmt: skip
    records = numpy.zeros(len(rows), MBO)
    for index, (what, side, id, at, amount) in enumerate(rows):
        last = FLAG_LAST if index == len(rows) - 1 else 0
        records[index] = (
            MBO.itemsize // 4, RTYPE_MBO, publisher_id, action.instrument, action.time_ns, id,
            at * 100_000, amount, last, channel, what, side, action.time_ns, 0, number,
        )  # fmt: skip
    return records


def flow(seed: int = 5, count: int = 1200) -> list[order_flow.Action]:
    return list(islice(OrderFlow(seed, start_ns=START_NS, instruments=7).actions(), count))


def test_the_same_seed_gives_the_same_orders_and_another_does_not():
    assert flow() == flow()
    assert flow()[20:] != flow(seed=6)[20:]
    assert {action.does for action in flow()} == {
        "directory", "status", "add", "reduce", "replace", "delete", "execute", "trade",
    }  # fmt: skip


@pytest.mark.parametrize("rate", [0.01, 1.0, 3.0, 100.0])
def test_actions_come_at_the_rate_that_was_asked_for_however_slow(rate):
    orders = OrderFlow(5, start_ns=START_NS, instruments=1_000, messages_per_s=rate)
    *_, last = islice(orders.actions(), 2_000)
    assert (last.time_ns - START_NS) / 2_000 == pytest.approx(SECOND_NS / rate, rel=0.1)


def test_books_never_cross_and_nothing_happens_to_an_order_that_is_gone():
    resting: dict[int, list] = {}
    for action in simple(iter(flow())):
        if action.does == "add":
            others = [o[2] for o in resting.values() if o[0] == action.instrument and
                      o[1] != action.side]  # fmt: skip
            crosses = [p for p in others if (p <= action.price) == (action.side == "B")]
            assert not [p for p in crosses if p != action.price]
            assert action.price not in others
            resting[action.order] = [action.instrument, action.side, action.price, action.size]
        elif action.does in ("delete", "execute"):
            order = resting[action.order]
            assert order[:3] == [action.instrument, action.side, action.price]
            order[3] -= action.size
            assert order[3] == action.left
            if not order[3]:
                del resting[action.order]


@pytest.mark.parametrize("name", WRITERS)
def test_every_packet_decodes_and_numbers_follow_one_another(name):
    feed = load_feed(name)
    session = OrderSession(feed, 3, instruments=9, messages_per_s=2000, opening_ns=9 * 3600 * 10**9)
    expected, count, kinds, messages = 1, 0, Counter(), Counter()
    for outgoing in session.packets(SECOND_NS):
        packet = feed.decode_packet(outgoing.packet)
        assert packet.sequence == expected
        assert len(packet.messages) == outgoing.messages
        assert len(outgoing.packet) <= 1400
        kinds[packet.kind.name] += 1
        messages.update(message.layout.name for message in packet.messages)
        count += outgoing.messages
        expected += outgoing.messages if feed.counts_messages else bool(outgoing.messages)
    assert kinds["DATA"] > 100
    assert kinds["HEARTBEAT"] >= LAST_PACKETS
    assert sum(messages.values()) == session.messages == count
    assert session.next_sequences() == {101: expected}


def test_a_header_tells_how_many_bytes_of_messages_came_before():
    feed, sent = load_feed("iex-deep-plus"), 0
    for outgoing in OrderSession(feed, 3, instruments=9, messages_per_s=500).packets(SECOND_NS):
        assert feed.decode_packet(outgoing.packet).header["stream_offset"] == sent
        sent += len(outgoing.packet) - feed.table.header_size


def test_an_idle_channel_sends_heartbeats():
    session = OrderSession(
        load_feed("memx-memoir"), 3, instruments=1, messages_per_s=0.01, heartbeat_ns=10**7
    )
    assert len(session.step(10**8)) >= 5


@pytest.mark.parametrize("rate", [4, 2_000])
def test_the_same_packets_come_whatever_the_steps(rate):
    made = []
    for step_ns in (10_000_000, SECOND_NS, 4 * SECOND_NS):
        session = OrderSession(
            load_feed("memx-memoir"), 3, instruments=2, messages_per_s=rate, heartbeat_ns=10**8
        )
        steps = range(step_ns, 4 * SECOND_NS + 1, step_ns)
        made.append([each for until_ns in steps for each in session.step(until_ns)])
    assert made[0] == made[1] == made[2]
    assert [each.due_ns for each in made[0]] == sorted(each.due_ns for each in made[0])


def test_a_feed_without_a_writer_is_refused():
    with pytest.raises(UsageError, match="no orders are generated for otc-link-ats"):
        OrderSession(load_feed("otc-link-ats"), 1)


def normalised(name: str, actions) -> numpy.ndarray:
    """The actions as the feed's messages, and these as the normaliser tells them; ids set alike."""
    feed, writer = load_feed(name), WRITERS[name]
    normaliser = Normaliser(feed)
    day = feed.trading_day.of(START_NS)
    normaliser.set_day(day)
    midnight_ns = day_start_ns(day, feed.zone)
    second, found, write = -1, [], writer.new()
    for number, action in enumerate(actions):
        written = write(action, midnight_ns)
        if action.time_ns // SECOND_NS != second:
            second = action.time_ns // SECOND_NS
            written = writer.second(action.time_ns, midnight_ns) + written
        normaliser.clear()
        for message, (layout, _) in zip(writer.messages(feed, written), written, strict=True):
            normaliser.message(
                message, 0, len(message), feed.layout(layout).code,
                action.time_ns, action.time_ns, number, 1,
            )  # fmt: skip
        found.append(normaliser.records.copy())
    assert not normaliser.unknown_orders
    assert not normaliser.short
    assert not normaliser.unscaled
    records = numpy.concatenate(found)
    records["publisher_id"] = 1
    return records


@pytest.mark.parametrize("name", ORDER_WRITERS)
def test_the_same_orders_normalise_to_the_same_records_byte_for_byte(name):
    actions = list(simple(iter(flow())))
    expected = numpy.concatenate([mbo_of(a, number, 1, 1) for number, a in enumerate(actions)])
    records = normalised(name, actions)
    assert len(expected) > 1200
    assert records.tobytes() == expected.tobytes()


#: What a record tells beside the packet it came in.
TOLD = ("ts_event", "instrument_id", "action", "side", "order_id", "price", "size")
#: Feeds without a message for a reduction: they tell the order anew, with what is left.
MODIFYING = {"nyse-integrated-pillar", "nyse-integrated-xdp", "iex-deep-plus"}


def told(records: numpy.ndarray) -> list[tuple]:
    return list(zip(*(records[field].tolist() for field in TOLD), strict=True))


@pytest.mark.parametrize("name", ORDER_WRITERS)
def test_replaced_and_reduced_orders_normalise_alike(name):
    expected = []
    for number, action in enumerate(flow()):
        rows = mbo_of(action, number, 1, 1)
        if action.does == "reduce" and name in MODIFYING:
            rows["action"], rows["size"] = b"M", action.left
        expected += told(rows)
    assert {row[2] for row in expected} >= {b"A", b"C", b"F", b"T"}
    assert told(normalised(name, flow())) == expected


def test_sessions_of_one_flow_have_the_same_records_whatever_their_packets():
    found = {}
    for name in ORDER_WRITERS.keys() - MODIFYING:
        feed = load_feed(name)
        source = CaptureRecords(feed, "mbo", day=feed.trading_day.of(START_NS))
        session = OrderSession(feed, 3, instruments=9, messages_per_s=500)
        for outgoing in session.packets(SECOND_NS):
            source.add(outgoing.packet, START_NS, ("239.1.1.1", 1), 1)
        assert not source.rejected
        found[name] = [row[1:] for row in told(source.pop()[0])]
    assert len(found) == 5
    first = next(iter(found.values()))
    assert len(first) > 400
    assert all(rows == first for rows in found.values())


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        *{**dict.fromkeys(LEVEL_WRITERS, 99), "cme-mdp3": 10}.items(),
        *dict.fromkeys(QUOTE_WRITERS, 1).items(),
    ],
)
def test_levels_are_sent_as_the_orders_add_up(name, depth):
    feed, writer = load_feed(name), WRITERS[name]
    orders, market = OrderFlow(5, start_ns=START_NS, instruments=7), Market(feed)
    write = writer.new()
    for action in islice(orders.actions(), 1200):
        for message in writer.messages(feed, write(action, 0)):
            market.apply_message(message)
    for instrument, book in enumerate(orders.books, 1):
        view = market.books[symbol_of(instrument)]
        for side, book_side in (("B", view.bids), ("S", view.asks)):
            prices = sorted({order.price for order in book.sides[side]}, reverse=side == "B")
            levels = [(price * 100_000, book.level(side, price)) for price in prices]
            assert [(price, size) for price, size, _ in book_side.top(99)] == levels[:depth]
    assert not market.problems


def test_a_split_action_tells_the_levels_in_between():
    levels: dict[tuple, int] = {}
    for action in simple(iter(flow())):
        if action.does in ("add", "delete", "execute"):
            index = (action.instrument, action.side, action.price)
            size = action.size if action.does == "add" else -action.size
            levels[index] = levels.get(index, 0) + size
            assert action.level == levels[index]
