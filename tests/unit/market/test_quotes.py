"""Quotes of market makers, kept by id while the book has one side of them, both, or none."""

from pathlib import Path
from random import Random
from typing import Any

import feedhandler
from feedhandler._compiled import load_interpreted
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import FLAG_SNAPSHOT, UNDEFINED_TIME
from feedhandler.market import normaliser as compiled
from feedhandler.market.capture_records import CaptureRecords
from tests.support.normalised import NORMALISERS, SENT_NS, NormalisedRecords, shown
from tests.support.twins import either
from tests.support.venues import packets
from tests.unit.codecs.feeds.test_venues import FOLDERS

twin = either(NORMALISERS)

OTC = "otc-link-ats"
OPEN, ASK_PRICED, BID_PRICED, ASK = 0x02, 0x08, 0x40, 0x01
BOTH = OPEN | ASK_PRICED | BID_PRICED
ADD, DELETE, SPIN = 2, 3, 4
WHOLE = {
    "quote_id": 7, "security_id": 30, "mpid": "ABCD", "quote_action": ADD, "quote_flags": BOTH,
    "bid_price": 1_000_000, "bid_size": 5, "ask_price": 2_000_000, "ask_size": 6,
}  # fmt: skip


def test_an_update_finds_its_quote_by_id_and_says_what_of_it_is_in_the_book(twin):
    records = NormalisedRecords(twin, OTC)
    assert records("quote", **WHOLE) == "A B 15 5@1 | A A 16 6@2"
    ask = {"quote_id": 7, "price": 3_000_000, "size": 8}
    (changed,) = records.of("quote_update", **ask, quote_flags=BOTH | ASK)
    assert (shown(changed), int(changed["instrument_id"])) == ("M A 16 8@3", 30)
    assert records("quote_update", **ask, quote_flags=BOTH | ASK) == ""
    bid = {"quote_id": 7, "price": 1_500_000, "size": 4}
    assert (
        records("quote_update", **bid, quote_flags=OPEN | BID_PRICED) == "M B 15 4@1.5 | C A 16 8@3"
    )
    assert records("quote_update", **bid, quote_flags=ASK_PRICED | BID_PRICED) == "C B 15 4@1.5"
    assert records("quote_update", **bid, quote_flags=BOTH) == "A B 15 4@1.5 | A A 16 8@3"
    assert records("quote_update", **{**bid, "size": 0}, quote_flags=BOTH) == "C B 15 4@1.5"
    deleted = {**WHOLE, "quote_action": DELETE}
    assert records("quote", **deleted) == "C A 16 8@3"
    assert records.normaliser.unknown_orders == 0
    assert records("quote", **deleted) == records("quote_update", **bid, quote_flags=BOTH) == ""
    assert records.normaliser.unknown_orders == 2
    assert records("quote", **{**WHOLE, "quote_action": 1}) == "", "no action that is known"


def test_a_quote_that_moves_leaves_the_book_that_had_it(twin):
    records = NormalisedRecords(twin, OTC)
    records("quote", **WHOLE)
    moved = records.of("quote", **{**WHOLE, "security_id": 31, "quote_flags": OPEN | BID_PRICED})
    assert [(int(each["instrument_id"]), shown(each)) for each in moved] == [
        (30, "C B 15 5@1"), (31, "A B 15 5@1"), (30, "C A 16 6@2"),
    ]  # fmt: skip


def test_a_spin_of_quotes_begins_with_empty_books_one_of_securities_does_not(twin):
    records = NormalisedRecords(twin, OTC)
    records("quote", **WHOLE)
    assert records("start_of_spin", spin_type=1) == records("end_of_spin", spin_type=1) == ""
    for spin in (2, 3):
        assert records("start_of_spin", spin_type=spin) == "R N 0 0@-"
        again = records.of("quote", **{**WHOLE, "quote_action": SPIN})
        assert " | ".join(map(shown, again)) == "A B 15 5@1 | A A 16 6@2"
        assert all(int(each["flags"]) & FLAG_SNAPSHOT for each in again)
        records("end_of_spin", spin_type=spin)
    inside = {"inside_id": 1, "inside_action": ADD, "quote_flags": BOTH, "security_id": 30}
    assert records("inside", **inside, bid_price=1, bid_size=1) == ""


def test_trades_have_no_side_and_a_deleted_security_no_book(twin):
    records = NormalisedRecords(twin, OTC)
    trade = {"security_id": 30, "trade_price": 1_230_000, "trade_size": 9}
    assert records("trade", **trade, trade_action=2) == "T N 0 9@1.23"
    assert records("trade", **trade, trade_action=3) == ""
    records("quote", **WHOLE)
    assert records("security", security_id=30, ticker="ABC", security_action=1) == ""
    assert [each[0] for each in records.normaliser.named] == [30]
    assert records("security", security_id=30, ticker="ABC", security_action=3) == "R N 0 0@-"
    assert records("quote_update", quote_id=7, quote_flags=BOTH, price=1, size=1) == ""


class NaiveQuotes:
    """Quotes in a dictionary, and the levels that follow from them."""

    def __init__(self) -> None:
        self.quotes: dict[int, list[Any]] = {}

    def apply(self, name: str, said: dict[str, int]) -> None:
        if name == "quote" and said["quote_action"] == DELETE:
            self.quotes.pop(said["quote_id"], None)
        elif name == "quote":
            self.quotes[said["quote_id"]] = [
                said["security_id"], said["quote_flags"],
                (said["bid_price"], said["bid_size"]), (said["ask_price"], said["ask_size"]),
            ]  # fmt: skip
        elif said["quote_id"] in self.quotes:
            quote = self.quotes[said["quote_id"]]
            quote[1] = said["quote_flags"]
            quote[3 if quote[1] & ASK else 2] = said["price"], said["size"]

    def levels(self, security: int, side: int) -> list[tuple[int, int, int]]:
        """(price, size, quotes) of a side, best first; side 0: bids."""
        found: dict[int, list[int]] = {}
        priced = OPEN | (ASK_PRICED if side else BID_PRICED)
        for owner, flags, *sides in self.quotes.values():
            price, size = sides[side]
            if owner == security and flags & priced == priced and size:
                level = found.setdefault(price * 1000, [0, 0])
                level[0] += size
                level[1] += 1
        return sorted(((price, *each) for price, each in found.items()), reverse=not side)


def quotes(random: Random, count: int) -> list[tuple[str, dict[str, int]]]:
    """Random messages about few quotes of few securities."""
    found: list[tuple[str, dict[str, int]]] = []
    for _ in range(count):
        flags = random.choice((BOTH, BOTH, random.randrange(256)))
        said = {"quote_id": random.randrange(12), "quote_flags": flags}
        prices = [random.randrange(1, 9) * 10_000 for _ in range(2)]
        sizes = [random.choice((0, 100, 200, 500)) for _ in range(2)]
        if random.random() < 0.6:
            found.append(("quote_update", {**said, "price": prices[0], "size": sizes[0]}))
            continue
        said |= {
            "security_id": random.choice((30, 31)),
            "quote_action": random.choice((2, 2, 3, 4)),
        }
        said |= {"bid_price": prices[0], "ask_price": prices[1]}
        found.append(("quote", {**said, "bid_size": sizes[0], "ask_size": sizes[1]}))
    return found


def test_books_of_quotes_are_those_of_a_naive_book(seed: int) -> None:
    feed = load_feed(OTC)
    market, naive = feedhandler.Market(feed), NaiveQuotes()
    twins = [compiled.Normaliser(feed), load_interpreted(compiled.__name__).Normaliser(feed)]
    for name, said in quotes(Random(seed), 2000):
        message = feed.encode_message(name, **said)
        market.apply_message(message, 1)
        naive.apply(name, said)
        for each in twins:
            each.clear()
            code = feed.layout(name).code
            each.message(message, 0, len(message), code, UNDEFINED_TIME, UNDEFINED_TIME, 0, 1)
        assert twins[0].records.tobytes() == twins[1].records.tobytes()
        for security in (30, 31):
            book = market.books.get(security)
            sides = (book.bids, book.asks) if book else ()
            for side, view in enumerate(sides):
                assert view.top(20) == naive.levels(security, side), (name, said)
    assert {*market.problems} <= {"unknown_orders"}
    assert twins[0].unknown_orders == twins[1].unknown_orders > 0
    assert all(market.books[security].bids.top(1) for security in (30, 31))


def test_real_quotes_of_which_none_is_open_make_no_book(venues: Path) -> None:
    """The packets at hand: the end of a spin, closed quotes, updates of quotes sent before."""
    feed = load_feed(OTC)
    market, records = feedhandler.Market(feed), CaptureRecords(feed, "mbo", "definition")
    for number, (payload, _) in enumerate(packets(venues / FOLDERS[OTC])):
        market.apply(payload)
        records.add(payload, SENT_NS, ("239.0.0.1", 1), channel=number)
    events, definitions = records.pop()
    assert [event["action"] for event in events] == [b"R"], "the opening spin"
    assert [row["raw_symbol"] for row in definitions] == [b"CEGX"]
    assert {*market.problems} == {"unknown_orders"}, "updates of quotes that were sent before"
    assert list(market.books) == []


def test_real_updates_of_both_sides_have_the_bid_below_the_ask(venues: Path) -> None:
    """As if their quotes were known, one a security, and open."""
    feed = load_feed(OTC)
    market, pairs, known = feedhandler.Market(feed), 0, set()
    for payload, _ in packets(venues / FOLDERS[OTC]):
        for message in feed.messages_of(payload):
            if feed.message_code(message) != feed.layout("quote_update").code:
                continue
            update = feed.decode_message(message)
            of = {"quote_id": update.quote_id, "quote_flags": update.quote_flags | OPEN}
            if update.quote_id not in known:
                known.add(update.quote_id)
                whole = {"security_id": update.quote_id, "quote_action": ADD}
                market.apply_message(feed.encode_message("quote", **of, **whole))
            market.apply_message(
                feed.encode_message("quote_update", **of, price=update.price.raw, size=update.size)
            )
    for book in market.books.values():
        if book.bids.top(1) and book.asks.top(1):
            assert not book.crossed
            pairs += 1
    assert pairs > 10
    assert not market.problems
