"""Generated sessions hold what their module promises, message by message.

The books here are rebuilt by the simplest means there are (a dict of orders, searched), not with
the project's own book.
"""

import itertools
import random
from collections import defaultdict
from functools import lru_cache

import pytest

from feedhandler.codecs import PacketKind, UsageError, load_feed
from feedhandler.replay.generating import session as generator_session
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.packets import PACKET_BYTES_MAX, SERVICES
from feedhandler.replay.generating.tape import SPARE_PACKETS
from tests.support.descriptions import built_in, described

FEED = load_feed("euronext-utp-md")
SECOND = 1_000_000_000


@lru_cache(maxsize=8)
def session(seed, instruments=40, seconds=3, rate=6000.0):
    """(packets, decoded packets) of one session with its close."""
    generator = SessionGenerator(FEED, seed, instruments=instruments, messages_per_s=rate)
    packets = [*generator.packets(seconds * SECOND), *generator.close(seconds * SECOND)]
    return packets, [FEED.decode_packet(packet.packet) for packet in packets]


def of_type(decoded, kind):
    return [
        message.wire()
        for packet in decoded
        for label, message in zip(packet.types, packet.messages, strict=True)
        if label == kind
    ]


def best(orders, side):
    """(price, volume, orders) of the best level among (side, price, volume)."""
    prices = [price for own, price, _ in orders if own == side]
    if not prices:
        return (0, 0, 0)
    price = max(prices) if side == "1" else min(prices)
    volumes = [volume for own, at, volume in orders if own == side and at == price]
    return (price, sum(volumes), len(volumes))


def apply(books, order):
    book = books[order["SymbolIndex"]]
    key = (order["OrderDate"], order["OrderID"])
    if order["ActionType"] == "F":
        book.clear()
    elif order["ActionType"] in "AY":
        # Y: sent again, at the opening.
        assert key not in book
        book[key] = (order["Side"], order["Price"], order["Volume"])
    elif order["ActionType"] == "M":
        assert book[key][0] == order["Side"]
        book[key] = (order["Side"], order["Price"], order["Volume"])
    else:
        assert book.pop(key)[:2] == (order["Side"], order["Price"])


@pytest.mark.parametrize("seed", range(2))
def test_a_book_rebuilt_from_orders_equals_every_quote_and_never_crosses(seed):
    _, decoded = session(seed)
    shares = {order["SymbolIndex"] for order in of_type(decoded, 230)}
    orders = iter(of_type(decoded, 230))
    quotes = [quote for quote in of_type(decoded, 140) if quote["SymbolIndex"] in shares]
    assert len(quotes) > 5000
    books, coming, quoted = defaultdict(dict), next(orders), 0
    for quote in quotes:
        while coming and coming["SourceSeqNum"] <= quote["SourceSeqNum"]:
            apply(books, coming)
            coming = next(orders, None)
        if quote["QuoteNumber"] == 1:
            book = list(books[quote["SymbolIndex"]].values())
            bid = (quote["BidPrice"], quote["BidSize"], quote["NumberBidOrders"])
            ask = (quote["AskPrice"], quote["AskSize"], quote["NumberAskOrders"])
            assert best(book, "1") == bid
            assert best(book, "2") == ask
            assert not bid[2] or not ask[2] or bid[0] < ask[0]
            quoted += 1
    assert quoted > 500


@pytest.mark.parametrize("seed", range(2))
def test_every_change_of_the_top_is_quoted_and_level_figures_in_orders_are_right(seed):
    _, decoded = session(seed)
    shown = {
        (quote["SymbolIndex"], quote["SourceSeqNum"]): (quote["BidPrice"], quote["AskPrice"])
        for quote in of_type(decoded, 140)
        if quote["QuoteNumber"] == 1
    }
    books, tops = defaultdict(dict), {}
    for order in of_type(decoded, 230):
        symbol, number = order["SymbolIndex"], order["SourceSeqNum"]
        apply(books, order)
        book = list(books[symbol].values())
        at = [left for own, price, left in book if (own, price) == (order["Side"], order["Price"])]
        assert (order["AggregatedVolume"], order["NumberOrders"]) == (sum(at), len(at))
        top = (best(book, "1")[0], best(book, "2")[0])
        assert not all(top) or top[0] < top[1]
        # While a book is sent, only the whole book is quoted.
        if symbol in tops and top != tops[symbol]:
            assert shown[symbol, number] == top
        if (symbol, number) in shown:
            tops[symbol] = top


def test_prices_are_on_the_tick_that_reference_data_tells():
    _, decoded = session(1)
    ticks = {row["SymbolIndex"]: row["FixPriceTick"] for row in of_type(decoded, 553)}
    assert len(ticks) == 40
    for kind, fields in [(230, ["Price"]), (140, ["BidPrice", "AskPrice"]), (240, ["Price"]),
                         (241, ["Price", "HighestPrice", "LowestPrice"])]:  # fmt: skip
        messages = of_type(decoded, kind)
        assert messages
        for message in messages:
            for field in fields:
                assert message[field] % ticks[message["SymbolIndex"]] == 0


def test_trades_add_up_and_happen_at_a_price_that_rested():
    _, decoded = session(2, rate=10000.0)
    resting, traded = defaultdict(dict), defaultdict(int)
    events = [("trade", t["SourceSeqNum"], t) for t in of_type(decoded, 240)]
    warrants = {t["SymbolIndex"] for t in of_type(decoded, 247)} - {
        order["SymbolIndex"] for order in of_type(decoded, 230)
    }
    events = [event for event in events if event[2]["SymbolIndex"] not in warrants]
    events += [("zorder", order["SourceSeqNum"], order) for order in of_type(decoded, 230)]
    trades = 0
    for kind, _, message in sorted(events, key=lambda event: (event[1], event[0])):
        symbol = message["SymbolIndex"]
        if kind == "trade":
            prices = {price for _, price, _ in resting[symbol].values()}
            assert message["Price"] in prices
            traded[symbol] += message["Volume"]
            assert message["CumulativeQuantity"] == traded[symbol]
            assert message["LowestPrice"] <= message["Price"] <= message["HighestPrice"]
            trades += 1
        else:
            apply(resting, message)
    assert trades > 50


def test_a_session_begins_with_resets_and_reference_data_and_numbers_packets():
    packets, decoded = session(0)
    expected = dict.fromkeys(SERVICES, 1)
    for packet in decoded:
        if packet.kind is PacketKind.HEARTBEAT:
            assert packet.messages == []
            continue
        assert packet.sequence == expected[packet.service]
        expected[packet.service] += 1
        if packet.sequence == 1:
            assert packet.kind is PacketKind.RESET
            assert packet.next_sequence == 2
        else:
            assert packet.kind is PacketKind.DATA
    assert [packet.service for packet in packets[:7]] == list(SERVICES)
    reference = [kind for packet in decoded if packet.service == 101 for kind in packet.types]
    assert reference[:42] == [550, *[553] * 40, 551]
    first_order = next(index for index, packet in enumerate(packets) if packet.service == 104
                       and packet.messages)  # fmt: skip
    last_reference = next(index for index, packet in enumerate(decoded) if 551 in packet.types)
    assert last_reference < first_order


def test_due_times_never_fall_and_message_times_match_them():
    packets, decoded = session(1)
    assert all(a.due_ns <= b.due_ns for a, b in itertools.pairwise(packets))
    nine = 9 * 3600 * SECOND
    for packet, content in zip(packets, decoded, strict=True):
        assert len(packet.packet) <= PACKET_BYTES_MAX
        assert packet.messages == len(content.messages)
        assert content.send_time == (nine + packet.due_ns) // 1_000_000
        for message in content.messages:
            wire = message.wire()
            # Orders that are sent again are of the day before.
            if "SourceTimeMicroSecs" in wire and wire.get("ActionType") != "Y":
                time = wire["SourceTime"] * 1_000_000 + wire["SourceTimeMicroSecs"] * 1000
                assert 0 <= nine + packet.due_ns - time < 50_000_000


def test_the_same_seed_gives_the_same_packets_whatever_the_steps():
    rng = random.Random(5)
    whole = list(SessionGenerator(FEED, 9, instruments=20).packets(SECOND))
    generator, parts, now = SessionGenerator(FEED, 9, instruments=20), [], 0
    while now < SECOND:
        now = min(SECOND, now + rng.randrange(1, 60_000_000))
        parts += generator.step(now)
    assert parts == whole
    assert list(SessionGenerator(FEED, 10, instruments=20).packets(SECOND)) != whole


def test_idle_services_send_heartbeats_at_their_interval():
    generator = SessionGenerator(
        FEED, 1, instruments=20, messages_per_s=20.0, heartbeat_ns=SECOND // 10
    )
    packets = list(generator.packets(5 * SECOND))
    last, beats = {}, 0
    for packet in packets:
        header = FEED.decode_packet(packet.packet)
        if packet.service in last:
            assert packet.due_ns - last[packet.service] <= SECOND // 10 + 1_000_000
        if header.kind is PacketKind.HEARTBEAT:
            assert packet.due_ns - last[packet.service] >= SECOND // 10
            beats += 1
        last[packet.service] = packet.due_ns
    assert beats > 250


def test_the_close_gives_every_service_a_packet_of_messages():
    packets, _ = session(0)
    closing = [packet for packet in packets if packet.due_ns >= 3 * SECOND]
    assert {packet.service for packet in closing if packet.messages} == set(SERVICES)
    assert [packet.service for packet in packets[-7:]] == list(SERVICES)


def test_after_the_close_there_are_heartbeats_alone():
    generator = SessionGenerator(FEED, 3, instruments=40, heartbeat_ns=SECOND // 10)
    generator.step(SECOND)
    closing = generator.close(SECOND)
    end_ns = closing[-1].due_ns
    before = generator.next_sequences()
    beats = generator.step(end_ns + SECOND)
    assert {FEED.decode_packet(beat.packet).kind for beat in beats} == {PacketKind.HEARTBEAT}
    assert [beat.due_ns for beat in beats] == sorted(beat.due_ns for beat in beats)
    for service in SERVICES:
        own = [beat.due_ns for beat in beats if beat.service == service]
        assert len(own) == 10
        assert end_ns < own[0] <= own[-1] <= end_ns + SECOND
    assert generator.next_sequences() == before
    assert generator.step(end_ns + SECOND) == []


def test_a_session_that_closes_at_once_tells_its_opening_first():
    generator = SessionGenerator(FEED, 3, instruments=20)
    packets = [*generator.step(0), *generator.close(0)]
    decoded = [FEED.decode_packet(packet.packet) for packet in packets]
    kinds = [kind for packet in decoded if packet.service == 101 for kind in packet.types]
    assert (kinds.count(553), kinds.count(551)) == (20, 1)
    books = defaultdict(dict)
    for order in of_type(decoded, 230):
        apply(books, order)
    assert len(books) == len(of_type(decoded, 505)) > 10
    assert not any(books.values())
    last = {(q["SymbolIndex"], q["QuoteNumber"]): q for q in of_type(decoded, 140)}
    assert {q["BidSize"] + q["AskSize"] + q["BidPrice"] for q in last.values()} == {0}


def test_a_session_goes_on_for_longer_than_its_plan_at_the_same_rate():
    generator = SessionGenerator(FEED, 5, instruments=20, messages_per_s=500.0)
    generator.step(SECOND)
    before, counts = generator.messages, []
    for minute in range(3):
        generator.step((60 * minute + 61) * SECOND)
        counts.append(generator.messages - before)
        before = generator.messages
    assert counts == pytest.approx([30_000] * 3, rel=0.05)


def test_packets_come_in_as_many_blocks_as_they_need():
    generator = SessionGenerator(FEED, 5, instruments=20, messages_per_s=200_000.0)
    packets = generator.step(SECOND // 2)
    assert len(packets) > 8_192
    assert all(a.due_ns <= b.due_ns for a, b in itertools.pairwise(packets))
    assert generator.messages == sum(packet.messages for packet in packets)


def test_where_a_session_is_cut_into_blocks_changes_nothing_in_it(monkeypatch):
    def session_packets():
        generator = SessionGenerator(FEED, 6, instruments=200)
        return [*generator.step(SECOND // 10), *generator.close(SECOND // 10)]

    whole = session_packets()
    # Room for five packets and for what one step may bring.
    monkeypatch.setattr(generator_session, "BLOCK_PACKETS", SPARE_PACKETS + 5)
    assert session_packets() == whole


def test_a_feed_with_another_packet_header_is_refused_in_one_line():
    with pytest.raises(UsageError, match="the header of iex-deep is not UTP-MD's") as refused:
        SessionGenerator(load_feed("iex-deep"), 1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("word", "less"), [("none", None), ("next", 0), ("last", 1)])
def test_heartbeats_say_of_the_sequence_what_the_description_tells(word, less, tmp_path):
    text = built_in("euronext-utp-md", 'heartbeat = "none"', f'heartbeat = "{word}"')
    feed = described(tmp_path, text)
    generator = SessionGenerator(feed, 3, instruments=20)
    beats = [feed.decode_packet(each.packet) for each in generator.close(0)[-7:]]
    ends = generator.next_sequences()
    for beat in beats:
        assert beat.kind is PacketKind.HEARTBEAT
        assert beat.sequence == (0 if less is None else ends[beat.service] - less)


def test_the_mix_is_the_papers():
    """Table 1 (packets by service, of real-time packets), mean messages and payload bytes."""
    packets = [packet for packet in SessionGenerator(FEED, 7).packets(6 * SECOND)
               if packet.due_ns > SECOND and packet.messages]  # fmt: skip
    shares = {service: sum(packet.service == service for packet in packets) / len(packets)
              for service in SERVICES}  # fmt: skip
    paper = {102: 0.0565, 103: 0.3617, 104: 0.3650, 105: 0.0082, 106: 0.1996, 107: 0.0079}
    for service, share in paper.items():
        assert shares[service] == pytest.approx(share, abs=0.005)
    messages = sum(packet.messages for packet in packets)
    assert messages / len(packets) == pytest.approx(4.77, rel=0.02)
    assert sum(len(p.packet) for p in packets) / len(packets) == pytest.approx(283.5, rel=0.02)
    assert {packet.messages for packet in packets if packet.service == 102} == {1}
    assert messages / 5 == pytest.approx(20_000, rel=0.03)


def test_most_repeats_of_a_symbol_come_within_a_millisecond():
    """Figure 6: 70 % within 1 ms, 80 % within 10 ms, on each service's own stream."""
    last, gaps = {}, []
    for packet in SessionGenerator(FEED, 7).packets(3 * SECOND):
        if packet.due_ns > SECOND:
            for symbol in FEED.decode_packet(packet.packet).symbols:
                key = (packet.service, symbol)
                if key in last:
                    gaps.append(packet.due_ns - last[key])
                last[key] = packet.due_ns
    assert sum(gap < 1_000_000 for gap in gaps) / len(gaps) == pytest.approx(0.7, abs=0.03)
    assert sum(gap < 10_000_000 for gap in gaps) / len(gaps) == pytest.approx(0.8, abs=0.03)
