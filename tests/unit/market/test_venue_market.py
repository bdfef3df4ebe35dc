"""Books, trades and states of feeds with a `[book]` table: from packets, messages and records."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import MBO, encode_symbol_mapping
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.loader import list_feeds
from feedhandler.market.records import Records
from feedhandler.market.stream_market import Market
from feedhandler.market.views import Trade
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.order_writers import ORDER_WRITERS
from tests.support.descriptions import EXAMPLE, described

ITCH = "nasdaq-totalview-itch"
NAMES = ["AAAB", "AAAC", "AAAD", "AAAE"]
Levels = list[tuple[int, int, int]]


def packets_of(name: str) -> list[bytes]:
    """The data packets of two generated seconds."""
    feed = load_feed(name)
    session = OrderSession(feed, 9, instruments=4, messages_per_s=600.0)
    return [
        data[begin : begin + header.length]
        for data in (each.packet for each in session.packets(2 * 10**9))
        for begin, header, _ in feed.scanned(data)
        if header.kind == PacketKind.DATA
    ]


def events_of(name: str, packets: list[bytes]) -> np.ndarray:
    """Their order events."""
    feed, records = load_feed(name), Records(load_feed(name), "mbo")
    for data in packets:
        for begin, header, index in feed.scanned(data):
            records.apply_packet(data, begin, index, 0, 1, 1, header.service)
    return records.of("mbo").copy()


def naive_levels(events: np.ndarray) -> dict[int, tuple[Levels, Levels]]:
    """The levels of both sides by instrument, from a dictionary of orders."""
    orders: dict[tuple[int, int], list[Any]] = {}
    for event in events:
        key = int(event["instrument_id"]), int(event["order_id"])
        if event["action"] in (b"A", b"M"):
            orders[key] = [event["side"], int(event["price"]), int(event["size"])]
        elif event["action"] == b"C":
            orders[key][2] -= int(event["size"])
            if not orders[key][2]:
                del orders[key]
    found: dict[int, tuple[Levels, Levels]] = defaultdict(lambda: ([], []))
    levels: dict[tuple[int, bytes, int], list[int]] = defaultdict(lambda: [0, 0])
    for (instrument, _), (side, price, size) in orders.items():
        level = levels[instrument, side, price]
        level[0] += size
        level[1] += 1
    for (instrument, side, price), (size, count) in levels.items():
        found[instrument][side == b"A"].append((price, size, count))
    for bids, asks in found.values():
        bids.sort(reverse=True)
        asks.sort()
    return found


def shown(market: Market) -> dict[int, tuple[Levels, Levels]]:
    return {
        market.instrument_of(name): (book.bids.top(1000), book.asks.top(1000))
        for name, book in market.books.items()
    }


def handed_out(content: str, body: bytes, service: int = 1, **more: Any) -> Any:
    """A message of a subscription."""
    return SimpleNamespace(content=content, body=body, service=service, **more)


@pytest.mark.parametrize("name", ORDER_WRITERS)
def test_books_and_trades_of_packets_are_those_of_a_naive_book(name: str) -> None:
    market, packets = feedhandler.Market(load_feed(name)), packets_of(name)
    assert sum(market.apply(packet) for packet in packets) > 1000
    events = events_of(name, packets)
    assert shown(market) == naive_levels(events)
    assert sorted(market.books) == NAMES
    for trade in events[events["action"] == b"T"]:
        last = trade
    name_of = {market.instrument_of(each): each for each in market.books}
    latest = market.trades[name_of[int(last["instrument_id"])]]
    assert (latest.price, latest.size, latest.side) == (
        int(last["price"]), int(last["size"]), last["side"].decode(),
    )  # fmt: skip
    assert not market.problems


def test_books_of_messages_and_of_records_are_those_of_packets() -> None:
    feed, packets = load_feed(ITCH), packets_of(ITCH)
    whole, single, normalised = (feedhandler.Market(feed) for _ in range(3))
    for packet in packets:
        whole.update(handed_out("packet", packet))
        for begin, _, index in feed.scanned(packet):
            for i in range(index.count):
                at = begin + index.offsets[i]
                single.update(handed_out("message", packet[at : at + index.sizes[i]]))
    events = events_of(ITCH, packets)
    symbols = {number: each for each, number in whole.instruments().items()}
    normalised.update(handed_out("records", b"", records=lambda: events, symbols=symbols))
    assert len(shown(whole)) == 4
    assert shown(single) == shown(whole) == shown(normalised)
    assert dict(single.states) == dict.fromkeys(NAMES, "trading")
    assert [*single.trades] == [*normalised.trades] == [*whole.trades]
    assert whole.names.keys() == {1, 2, 3, 4}
    assert whole.books[2].bids.top(3) == whole.books["AAAC"].bids.top(3)


def test_a_reset_and_a_snapshot_empty_the_books_of_their_service() -> None:
    market = feedhandler.Market(load_feed(ITCH))
    for reason, is_empty in (("gap", False), ("snapshot-begin", True), ("reset", True)):
        for packet in packets_of(ITCH)[:20]:
            market.update(handed_out("packet", packet, service=0))
        market.update(handed_out("quality", b"", service=0, quality={"reason": reason}))
        assert bool(market.states) == (reason != "reset"), "a snapshot of books tells no states"
        tops = [side.top(1) for book in market.books.values() for side in (book.bids, book.asks)]
        assert any(tops) != is_empty
    assert market.books["AAAB"].bids.orders == []
    assert not market.books["AAAB"].crossed


def test_what_does_not_fit_is_counted() -> None:
    market = feedhandler.Market(load_feed(ITCH))

    def unreadable() -> None:
        raise PeerError("no records")

    market.apply(b"nonsense")
    market.update(handed_out("records", b"", records=unreadable))
    bars = np.zeros(1, np.dtype([("x", "u1")]))
    market.update(handed_out("records", b"", records=lambda: bars, symbols={}))
    deleted = market.feed.encode_message("order_delete", order_reference_number=7)
    market.apply_message(deleted)
    assert market.problems == {
        "bad_packet": 1, "bad_message": 1, "other_records": 1, "unknown_orders": 1,
    }  # fmt: skip
    with pytest.raises(KeyError):
        market.books["NONE"]
    assert "NONE" not in market.trades


def test_the_front_door_opens_the_market_of_any_feed(tmp_path: Path) -> None:
    for name in list_feeds():
        assert feedhandler.Market(load_feed(name)).books == {}
    with pytest.raises(UsageError, match=r"needs a \[book\] table"):
        Market(described(tmp_path, EXAMPLE))
    assert Trade(1, 2, "B", 3).side == "B"
    assert len(encode_symbol_mapping(1, 2, "X", 3)) == 176


def test_a_snapshot_empties_the_books_of_a_service_that_packets_do_not_name() -> None:
    market = feedhandler.Market(load_feed(ITCH))
    for packet in packets_of(ITCH):
        market.update(handed_out("packet", packet, service=7))
    for service, is_empty in ((8, False), (7, True)):
        market.update(
            handed_out("quality", b"", service=service, quality={"reason": "snapshot-begin"})
        )
        assert bool(market.books["AAAB"].bids.orders) != is_empty


def test_a_market_of_records_serves_every_feed() -> None:
    feed = load_feed("euronext-utp-md")
    orders = [
        feed.encode_message(
            "order_update", symbol_index=7, order_id=number, side=side, price=price, volume=30,
            action_type="A", price_scale_code=2,
        )
        for number, (side, price) in enumerate((("B", 1005), ("B", 1010), ("S", 1020)), 1)
    ]  # fmt: skip
    packet = feed.encode_packet(sequence=1, service=1, messages=orders)
    events = events_of("euronext-utp-md", [packet])
    message = handed_out("records", b"", records=lambda: events, symbols={})
    of_records, of_packets = (feedhandler.Market(feed) for _ in range(2))
    of_records.update(message)
    of_packets.update(handed_out("packet", packet))
    for market in (of_records, of_packets):
        assert market.books[7].bids.top(3) == [(10_100_000_000, 30, 1), (10_050_000_000, 30, 1)]
        assert market.books[7].asks.top(3) == [(10_200_000_000, 30, 1)]


def test_records_of_a_service_above_255_are_cleared_with_it() -> None:
    feed = load_feed(ITCH)
    message = feed.encode_message(
        "add_order_no_mpid_attribution", stock_locate=7, order_reference_number=1,
        buy_sell_indicator="B", shares=5, price=20_000,
    )  # fmt: skip
    events = Records(feed, "mbo")
    code = feed.message_code(message)
    events.apply_message(message, 0, len(message), code, 1, 1, 1, 300)
    market = feedhandler.Market(feed)
    told = events.of("mbo").copy()
    market.update(
        handed_out("records", b"", service=300, records=lambda: told, symbols={7: "AAAB"})
    )
    assert market.books["AAAB"].bids.top(1) == [(2_000_000_000, 5, 1)]
    market.update(handed_out("quality", b"", service=300, quality={"reason": "snapshot-begin"}))
    assert market.books["AAAB"].bids.orders == []


@pytest.mark.parametrize(("one", "other"), [((1, 7), (2, 7)), ((1, 7), (1, 8)), ((1, 7), (1, 7))])
def test_digests_of_a_feed_whose_books_no_message_tells_differ_where_books_do(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    """The same level of another instrument, and another size."""
    feed = load_feed("cme-mdp3")
    digests = []
    for instrument, size in (one, other):
        market = feedhandler.Market(feed)
        event = np.zeros(1, MBO)
        event["instrument_id"], event["price"], event["size"] = instrument, 10**9, size
        event["action"], event["side"], event["flags"] = b"A", b"B", 128
        market.update(handed_out("records", b"", records=lambda told=event: told, symbols={}))
        digests.append(market.digest(1))
    assert (digests[0] == digests[1]) == (one == other)
