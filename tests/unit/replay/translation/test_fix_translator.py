"""Binary books as FIX: books made of the FIX stream are the binary feed's, message by message."""

import gzip
import random
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import dpkt
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.fields import fields
from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.index import FieldIndex, read_message
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.market.stream_market import Market
from feedhandler.market.views import BookView
from feedhandler.replay.translation.book import BUY, SELL, Book, Side
from feedhandler.replay.translation.fix_book import book_of
from feedhandler.replay.translation.fix_translator import FixTranslator
from feedhandler.retrans.fix.market_state import MarketState
from tests.support.checkout import CHECKOUT
from tests.support.fix_translation import Wire
from tests.support.market import DAY, FEED, SYMBOL, UNIT, order, packet, session

#: The capture's level updates and trades, as an independent decode counts them.
IEX_TYPES = {"8", "5", "T"}


def levels_of(state: MarketState, symbol: str) -> dict[str, dict[Decimal, int]]:
    """Sizes by price of both sides, as the FIX stream's books have them."""
    made = book_of(state, symbol.encode())
    assert not made.unread
    unit, size_unit = Decimal(1).scaleb(-made.price_places), Decimal(1).scaleb(-made.size_places)
    return {
        name: {price * unit: int(size * size_unit) for price, size, _ in side.top(1 << 20)}
        for name, side in (("8", made.book.bids), ("5", made.book.asks))
    }


def same_queues(binary: BookView | Book, made: Book, unit: int) -> None:
    """Each level's orders in their priority, with their volumes, are the same."""
    for ours, theirs in ((binary.bids, made.bids), (binary.asks, made.asks)):
        expected = [(price * unit, volume) for price, volume in queue_of(theirs)]
        if isinstance(ours, Side):
            assert queue_of(ours) == expected
        else:
            assert [(price, volume) for _, price, volume in ours.orders] == expected


def queue_of(side: Side) -> list[tuple[int, int]]:
    """Price and volume of a side's orders, best first, in priority."""
    return [
        (side.levels[key].price, each.volume)
        for key in reversed(side.keys)
        for each in side.levels[key].orders.values()
    ]


# -- the real session of IEX ---------------------------------------------------------------------


def iex_by_hand(path: Path) -> Iterator[tuple[bytes, list[tuple[str, str, int, int]]]]:
    """Each datagram and what its book messages say (type, symbol, size, raw price), by dpkt and
    struct: a decode that shares no code with the project."""
    with gzip.open(path) as file:
        for _, frame in dpkt.pcap.Reader(file):
            data = dpkt.ethernet.Ethernet(frame).data.data.data
            (count,) = struct.unpack_from("<H", data, 14)
            at, said = 40, []
            for _ in range(count):
                (size,) = struct.unpack_from("<H", data, at)
                kind = chr(data[at + 2])
                if kind in IEX_TYPES:
                    symbol = data[at + 12 : at + 20].decode().rstrip()
                    said.append((kind, symbol, *struct.unpack_from("<Iq", data, at + 20)))
                at += 2 + size
            yield data, said


def test_books_of_the_real_session_sent_as_fix_are_the_binary_feeds(captures: Path) -> None:
    translator, wire, state = FixTranslator(load_feed("iex-deep")), Wire(), MarketState()
    books: dict[str, dict[str, dict[Decimal, int]]] = defaultdict(lambda: {"8": {}, "5": {}})
    trades = Counter[tuple[str, Decimal, int]]()
    said: list[tuple[str, str, int, int]] = []
    got = Counter[tuple[str, Decimal, int]]()
    done = 0

    def follow(arrived: Iterator[tuple[int, bytes]]) -> None:
        nonlocal done
        for number, body in arrived:
            state.apply(body, number)
            kind, symbol, size, raw = said[number - 1]
            price = Decimal(raw).scaleb(-4)
            if kind == "T":
                trades[symbol, price, size] += 1
                values = dict(fields(body))
                got[values[55].decode(), Decimal(values[270].decode()), int(values[271])] += 1
                continue
            if size:
                books[symbol][kind][price] = size
            else:
                del books[symbol][kind][price]
            done += 1
            assert levels_of(state, symbol) == books[symbol], (number, symbol)

    standing: set[tuple[str, str, int]] = set()
    for data, messages in iex_by_hand(captures / "iex" / "deep-2023-10-02.pcap.gz"):
        for message in messages:
            kind, symbol, size, raw = message
            key = kind, symbol, raw
            # A level that goes and was not there is not sent.
            if kind == "T" or size or key in standing:
                said.append(message)
            if kind != "T":
                (standing.add if size else standing.discard)(key)
        follow(wire.publish(translator.packet(data)))
    follow(wire.end())
    assert len(wire.bodies) == len(said) == wire.sender.session.next - 1
    assert done > 2_500
    assert sum(trades.values()) > 30
    assert all(levels_of(state, symbol) == levels for symbol, levels in books.items())
    assert got == trades
    assert not state.problems


# -- real packets of OpenBook Ultra --------------------------------------------------------------


def openbook(captures: Path, name: str) -> bytes:
    """The payload of a real packet."""
    return payload(captures / "nyse" / "openbook-ultra-2.1.b" / f"{name}.pcap")


def payload(path: Path) -> bytes:
    """Return the UDP payload of a capture's only datagram."""
    with path.open("rb") as file:
        ((_, frame),) = list(dpkt.pcap.Reader(file))
    return bytes(dpkt.ethernet.Ethernet(frame).data.data.data)


def test_real_deltas_of_openbook_leave_the_same_levels(captures: Path) -> None:
    data = openbook(captures, "DeltaUpdateMessage")
    feed = load_feed("nyse-openbook-ultra")
    wire, state = Wire(), MarketState()
    for number, body in (*wire.publish(FixTranslator(feed).packet(data)), *wire.end()):
        state.apply(body, number)
    expected: dict[str, dict[Decimal, int]] = {"8": {}, "5": {}}
    at = 16
    while at < len(data):
        (size,) = struct.unpack_from(">H", data, at)
        for point in range(at + 20, at + size, 28):
            raw, volume = struct.unpack_from(">iI", data, point)
            side = expected["8" if data[point + 14 : point + 15] == b"B" else "5"]
            side[Decimal(raw).scaleb(-data[at + 19])] = volume
        at += size
    kept = {name: {p: v for p, v in side.items() if v} for name, side in expected.items()}
    assert any(kept.values())
    assert levels_of(state, feed.symbol_text(44936)) == kept
    assert not state.problems


def test_real_full_updates_of_openbook_are_empty_books(captures: Path) -> None:
    feed = load_feed("nyse-openbook-ultra")
    messages = FixTranslator(feed).packet(openbook(captures, "FullUpdateMessage"))
    assert [dict(fields(each)) | {60: b""} for each in messages] == [
        {35: b"W", 55: feed.symbol_text(index).encode(), 268: b"1", 269: b"J", 60: b""}
        for index in (9053, 40767)
    ]


def test_a_full_update_replaces_a_book_that_deltas_change(seed: int) -> None:
    rng, feed = random.Random(seed), load_feed("nyse-openbook-ultra")
    translator, state = FixTranslator(feed), MarketState()
    expected: dict[str, dict[Decimal, int]] = {"8": {}, "5": {}}

    def point(raw: int, volume: int, side: str) -> dict[str, object]:
        levels = expected["8" if side == "B" else "5"]
        levels[Decimal(raw).scaleb(-2)] = volume
        if not volume:
            levels.pop(Decimal(raw).scaleb(-2))
        return {"price_numerator": raw, "volume": volume, "num_orders": 3, "side": side}

    for number in range(1, 200):
        full = number == 1 or rng.random() < 0.05
        if full:
            expected.update({"8": {}, "5": {}})
        prices = rng.sample(range(90, 110), 4)
        points = [
            point(p, rng.choice((100, 200, 0)[: 2 if full else 3]), rng.choice("BS"))
            for p in prices
        ]
        kind = 230 if full else 231
        message = feed.encode_message(kind, symbol_index=7, price_scale_code=2, price_points=points)
        data = feed.encode_packet(sequence=number, messages=[message], packet_type=kind)
        for body in translator.packet(data):
            state.apply(body, number)
        assert levels_of(state, feed.symbol_text(7)) == expected
    assert not state.problems


# -- orders of NYSE Integrated ---------------------------------------------------------------------

INTEGRATED = load_feed("nyse-integrated-xdp")


def integrated(kind: str, symbol: int = 7, **fields: object) -> bytes:
    """A packet of one message."""
    message = INTEGRATED.encode_message(kind, symbol_index=symbol, **fields)
    return INTEGRATED.encode_packet(sequence=1, messages=[message])


def mapping(symbol: int, scale: int) -> bytes:
    """Return a symbol index mapping: the message that tells a symbol's price scale."""
    return integrated("symbol_index_mapping", symbol, symbol_name="ABC", price_scale_code=scale)


def test_a_real_order_of_integrated_is_an_entry_once_its_scale_is_known(captures: Path) -> None:
    path = captures / "nyse" / "integrated-xdp-2.1" / "AddOrderMessage.pcap"
    data = payload(path)
    index, raw, volume = (struct.unpack_from("<I", data, 16 + at)[0] for at in (8, 24, 28))
    (number,) = struct.unpack_from("<Q", data, 32)
    translator = FixTranslator(INTEGRATED)
    assert translator.packet(data) == []
    assert translator.counts["no_scale"] == 1
    translator.packet(mapping(index, 4))
    (message,) = translator.packet(data)
    values = dict(fields(message))
    assert (values[269], values[278]) == (b"0", b"%d" % number)
    assert Decimal(values[270].decode()) == Decimal(raw).scaleb(-4)
    assert int(values[271]) == volume


def test_real_messages_of_orders_that_are_not_known_tell_no_book(captures: Path) -> None:
    translator = FixTranslator(INTEGRATED)
    for path in sorted((captures / "nyse" / "integrated-xdp-2.1").glob("*.pcap")):
        assert translator.packet(payload(path)) == []
    assert (translator.counts["unknown_entry"], translator.counts["no_scale"]) == (2, 1)


def test_orders_of_integrated_leave_the_queues_of_a_book(seed: int) -> None:
    rng, translator, state, book = (
        random.Random(seed),
        FixTranslator(INTEGRATED),
        MarketState(),
        Book(),
    )
    translator.packet(mapping(7, 2))
    ids = 0

    def change() -> bytes:
        nonlocal ids
        kind = rng.choice(["add", "modify", "delete", "execution", "replace"])
        price, volume = rng.randint(90, 110), rng.randint(1, 50)
        if kind == "add" or not book.by_key:
            ids += 1
            side = rng.choice((BUY, SELL))
            book.add(ids, side, price, volume)
            text = "B" if side == BUY else "S"
            return integrated("add_order", order_id=ids, price=price, volume=volume, side=text)
        order = rng.choice(list(book.by_key.values()))
        values: dict[str, object] = {"order_id": order.key}
        if kind == "modify":
            lost = rng.random() < 0.3 or price != order.price or volume > order.volume
            if lost:
                book.remove(order.key)
                book.add(order.key, order.side, price, volume)
            else:
                book.modify(order.key, price, volume)
            values |= {"price": price, "volume": volume, "position_change": int(lost)}
        elif kind == "delete":
            book.remove(order.key)
        elif kind == "execution":
            traded = min(volume, order.volume)
            values |= {"price": order.price, "volume": traded, "printable_flag": 1}
            if traded == order.volume:
                book.remove(order.key)
            else:
                book.modify(order.key, order.price, order.volume - traded)
        else:
            ids += 1
            book.remove(order.key)
            book.add(ids, order.side, price, volume)
            values |= {"new_order_id": ids, "price": price, "volume": volume}
        name = {"execution": "order_execution"}.get(kind, f"{kind}_order")
        return integrated(name, **values)

    for number in range(1, 500):
        for message in translator.packet(change()):
            state.apply(message, number)
        made = book_of(state, INTEGRATED.symbol_text(7).encode())
        same_queues(book, made.book, 10 ** (2 - made.price_places))
    assert not state.problems
    assert set(translator.counts) == {"type_3"}


# -- orders: a generated session of UTP-MD against `feedhandler.Market` --------------------------


def test_queues_of_a_generated_session_sent_as_fix_are_the_markets(seed: int) -> None:
    market, translator, wire, state = Market(FEED), FixTranslator(FEED), Wire(), MarketState()
    checked = 0
    for at, outgoing in enumerate(session(seed, ms=300)):
        market.apply(outgoing.packet)
        for number, body in wire.publish(translator.packet(outgoing.packet)):
            state.apply(body, number)
        if at % 25 == 0:
            for number, body in wire.end_period():
                state.apply(body, number)
            checked += _compare(market, state)
    assert checked > 100
    assert not state.problems
    assert not {"unknown_entry", "odd_side", "odd_action", "full"} & set(translator.counts)


def _compare(market: Market, state: MarketState) -> int:
    """All books; how many were not empty."""
    full = 0
    for name, binary in market.books.items():
        made = book_of(state, FEED.symbol_text(market.instruments()[name]).encode())
        same_queues(binary, made.book, UNIT // 10**made.price_places)
        full += bool(binary.bids.orders or binary.asks.orders)
    return full


WHOLE = [
    ("an order comes", [("A", 1)], [(1, 10)]),
    (
        "it shrinks and keeps its priority",
        [("A", 1), ("A", 2), ("M", 1, 100, 5)],
        [(1, 5), (2, 10)],
    ),
    ("it grows and goes behind", [("A", 1), ("A", 2), ("M", 1, 100, 15)], [(2, 10), (1, 15)]),
    ("it goes", [("A", 1), ("A", 2), ("D", 1)], [(2, 10)]),
    ("the book is cleared", [("A", 1), ("A", 2), ("F", 0), ("A", 3)], [(3, 10)]),
    ("it comes again, at the back", [("A", 1), ("A", 2), ("A", 1, 100, 15)], [(2, 10), (1, 15)]),
    ("one that was not there changes", [("M", 1), ("A", 2)], [(1, 10), (2, 10)]),
    ("one that was not there goes", [("A", 1), ("D", 9)], [(1, 10)]),
    ("orders are sent again", [("A", 1), ("S",), ("Y", 2), ("Y", 1), ("E",)], [(2, 10), (1, 10)]),
    ("sent again without delimiters", [("A", 1), ("Y", 1), ("Y", 2)], [(1, 10), (2, 10)]),
    ("nothing rests of it", [("A", 1), ("A", 2, 100, 0)], [(1, 10)]),
]


@pytest.mark.parametrize(("what", "done", "expected"), WHOLE, ids=[each[0] for each in WHOLE])
def test_orders_stand_as_in_the_market(
    what: str, done: list[tuple[object, ...]], expected: list[tuple[int, int]]
) -> None:
    market, translator, state = Market(FEED), FixTranslator(FEED), MarketState()
    for number, (action, *rest) in enumerate(done, 1):
        message = (
            order(str(action), *rest)  # type: ignore[arg-type]
            if rest
            else FEED.encode_message(231, retransmission_indicator=action)
        )
        data = packet(message, sequence=number)
        market.apply(data)
        for body in translator.packet(data):
            state.apply(body, number)
    made = book_of(state, str(SYMBOL).encode()).book
    assert [
        (int(each.key[0].decode().partition("-")[2]), each.volume)  # type: ignore[index]
        for level in made.bids.levels.values()
        for each in level.orders.values()
    ] == expected
    same_queues(market.books[SYMBOL], made, UNIT)
    assert not state.problems


def test_a_side_that_changes_is_a_delete_and_a_new_entry() -> None:
    translator = FixTranslator(FEED)
    translator.packet(packet(order("A", 1)))
    (message,) = translator.packet(packet(order("M", 1, side="2")))
    found = [(tag, value) for tag, value in fields(message) if tag in (279, 269, 278)]
    key = f"{DAY}-1".encode()
    assert found == [(279, b"2"), (269, b"0"), (278, key), (279, b"0"), (269, b"1"), (278, key)]


def test_every_translated_message_is_right_by_the_dictionary(seed: int) -> None:
    dictionary, translator = load_dictionary("fix50sp2"), FixTranslator(FEED)
    frame, index = Frame(), FieldIndex(dictionary.table)
    wire = Wire()
    for outgoing in session(seed):
        list(wire.publish(translator.packet(outgoing.packet)))
    list(wire.end())
    assert wire.bodies
    for message in wire.bodies.values():
        reason = read_message(dictionary.table, message, 0, len(message), frame, index)
        assert FixReject(reason) == FixReject.FINE, message


def test_what_tells_no_book_is_counted_by_its_type() -> None:
    translator = FixTranslator(FEED)
    assert translator.packet(packet(FEED.encode_message(505, symbol_index=SYMBOL))) == []
    assert translator.packet(packet(order("D", 1))) == []
    assert translator.packet(packet(order("A", 1, side="x"))) == []
    assert translator.packet(packet(order("q", 1))) == []
    assert translator.counts == {
        "type_505": 1, "unknown_entry": 1, "odd_side": 1, "odd_action": 1
    }  # fmt: skip


def test_more_than_may_stand_is_counted_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedhandler.replay.translation.fix_translator.STANDING_MAX", 2)
    translator = FixTranslator(FEED)
    sent = [bool(translator.packet(packet(order("A", number)))) for number in (1, 2, 3)]
    assert sent == [True, True, False]
    assert translator.counts == {"full": 1}
    translator.packet(packet(order("F", 0)))
    assert translator.packet(packet(order("A", 3)))


def test_a_point_of_no_side_is_counted_and_not_sent() -> None:
    feed = load_feed("nyse-openbook-ultra")
    point = {"price_numerator": 100, "volume": 5, "side": "?"}
    message = feed.encode_message(231, symbol_index=7, price_points=[point])
    translator = FixTranslator(feed)
    assert translator.packet(feed.encode_packet(messages=[message], packet_type=231)) == []
    assert translator.counts == {"odd_side": 1}


def test_a_feed_whose_messages_are_not_understood_is_refused() -> None:
    with pytest.raises(UsageError, match="fix-marketdata cannot be translated to FIX"):
        FixTranslator(load_feed("fix-marketdata"))


def test_the_pages_example_makes_the_book(captures: Path) -> None:
    page = CHECKOUT / "docs" / "fix-feed.md"
    code = next(each for each in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    names: dict[str, Any] = {}
    exec(compile(code, str(page), "exec"), names)
    path, levels = captures / "iex" / "deep-2023-10-02.pcap.gz", dict[Decimal, int]()
    packets = []
    for data, messages in iex_by_hand(path):
        packets.append(data)
        for kind, symbol, size, raw in messages:
            if (kind, symbol) == ("8", "TQQQ"):
                levels[Decimal(raw).scaleb(-4)] = size
    made = names["books_of"](packets, b"TQQQ")
    unit = Decimal(1).scaleb(-made.price_places)
    bids = {price * unit: size for price, size, _ in made.book.bids.top(1_000)}
    assert bids == {price: size for price, size in levels.items() if size}
    assert len(levels) > 3


NOTHING = [
    ("an order of no side", integrated("add_order", order_id=2, volume=1, side="?"), "odd_side"),
    ("an order of nothing", integrated("add_order", order_id=2, side="B"), "no_volume"),
    ("an unknown order changes", integrated("modify_order", order_id=9, volume=1), "unknown_entry"),
    ("an unknown order goes", integrated("delete_order", order_id=9), "unknown_entry"),
    ("an unknown order trades", integrated("order_execution", order_id=9), "unknown_entry"),
    ("an unknown order is replaced", integrated("replace_order", order_id=9), "unknown_entry"),
]


@pytest.mark.parametrize(("what", "data", "counter"), NOTHING, ids=[each[0] for each in NOTHING])
def test_what_cannot_be_of_integrated_tells_nothing(what: str, data: bytes, counter: str) -> None:
    translator = FixTranslator(INTEGRATED)
    translator.packet(mapping(7, 2))
    assert translator.packet(data) == []
    assert translator.counts == {"type_3": 1, counter: 1}


def test_an_order_of_integrated_that_changes_to_nothing_stays_as_it_was() -> None:
    translator = FixTranslator(INTEGRATED)
    translator.packet(mapping(7, 2))
    translator.packet(integrated("add_order", order_id=1, price=5, volume=3, side="S"))
    assert translator.packet(integrated("modify_order", order_id=1, price=5)) == []
    assert translator.counts["no_volume"] == 1
    (message,) = translator.packet(integrated("delete_order", order_id=1))
    assert (279, b"2") in fields(message)
    assert not translator.standing


def test_an_order_of_integrated_without_room_is_counted_and_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedhandler.replay.translation.fix_translator.STANDING_MAX", 1)
    translator = FixTranslator(INTEGRATED)
    translator.packet(mapping(7, 2))
    added = [integrated("add_order", order_id=n, price=1, volume=1, side="B") for n in (1, 2)]
    assert [len(translator.packet(each)) for each in added] == [1, 0]
    assert translator.counts["full"] == 1


def test_a_level_of_iex_that_goes_and_was_not_there_tells_nothing() -> None:
    feed = load_feed("iex-deep")
    message = feed.encode_message("8", symbol="ABC", size=0, price=10_000)
    translator = FixTranslator(feed)
    assert translator.packet(feed.encode_packet(sequence=1, messages=[message])) == []
    assert translator.counts == {"unknown_entry": 1}
