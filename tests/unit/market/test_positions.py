"""Price levels that are named by their position, which moves with each change."""

from random import Random
from typing import Any

import feedhandler
from feedhandler._compiled import load_interpreted
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import FLAG_SNAPSHOT, UNDEFINED_TIME
from feedhandler.market import normaliser as compiled
from tests.support.normalised import NORMALISERS, NormalisedRecords, shown
from tests.support.twins import either

twin = either(NORMALISERS)

ICE = "ice-impact"
DENOMINATORS = {"order_price_denominator": "2", "deal_price_denominator": "2"}
BID, OFFER = "1", "2"


def level(position: int, price: int = 0, quantity: int = 0, side: str = BID) -> dict[str, Any]:
    return {
        "market_id": 5, "side": side, "price_level_position": position, "price": price,
        "quantity": quantity,
    }  # fmt: skip


def defined(twin, name: str = "new_expiry") -> NormalisedRecords:
    records = NormalisedRecords(twin, ICE)
    assert records(name, market_id=5, **DENOMINATORS) == ""
    return records


def test_levels_move_down_and_up_and_are_known_by_their_price_in_records(twin):
    records = defined(twin)
    assert records("add_price_level", **level(1, 100, 7)) == "A B 0 7@1"
    assert records("add_price_level", **level(1, 120, 5)) == "A B 0 5@1.2"
    assert records("add_price_level", **level(2, 110, 6)) == "A B 0 6@1.1"
    assert records("change_price_level", **level(3, 100, 9)) == "M B 0 9@1"
    assert records("change_price_level", **level(3, 90, 9)) == "C B 0 9@1 | A B 0 9@0.9"
    gone = {"market_id": 5, "side": BID, "price_level_position": 1}
    assert records("delete_price_level", **gone) == "C B 0 5@1.2"
    assert records("delete_price_level", **gone) == "C B 0 6@1.1"
    assert records("delete_price_level", **gone) == "C B 0 9@0.9"
    assert records("delete_price_level", **gone) == ""
    assert records.normaliser.unknown_orders == 1


def test_what_is_moved_beyond_the_depth_of_a_channel_is_gone(twin):
    records = defined(twin)
    for position in range(1, 6):
        records("add_price_level", **level(position, 100 + position, 1, OFFER))
    assert records("add_price_level", **level(1, 100, 2, OFFER)) == "C A 0 1@1.05 | A A 0 2@1"
    assert records("add_price_level", **level(6, 200, 2, OFFER)) == ""
    assert records("change_price_level", **level(6, 200, 2, OFFER)) == ""
    option = defined(twin, "new_options_market_definition")
    assert option("add_price_level", **level(1, 100, 7)) == "A B 0 7@1"
    assert option("add_price_level", **level(1, 120, 5)) == "C B 0 7@1 | A B 0 5@1.2"
    assert option("add_price_level", **level(2, 110, 5)) == ""
    assert option.normaliser.unknown_orders == 1
    assert records.normaliser.unknown_orders == 2


def test_a_snapshot_tells_all_levels_anew(twin):
    records = defined(twin)
    records("add_price_level", **level(1, 120, 5))
    assert records("market_snapshot", market_id=5) == "R N 0 0@-"
    (first,) = records.of("market_snapshot_price_level", **level(1, 110, 4))
    assert shown(first) == "A B 0 4@1.1"
    assert int(first["flags"]) & FLAG_SNAPSHOT
    assert records("market_snapshot_price_level", **level(2, 100, 3)) == "A B 0 3@1"
    records.normaliser.empty(4, UNDEFINED_TIME)
    assert records("change_price_level", **level(1, 110, 6)) == "M B 0 6@1.1", "another channel's"
    records.normaliser.empty(3, UNDEFINED_TIME)
    assert records("change_price_level", **level(1, 110, 6)) == ""


def test_a_level_without_price_or_size_keeps_its_position(twin):
    records = NormalisedRecords(twin, ICE)
    assert records("add_price_level", **level(1, 120, 5)) == "", "no definition has come yet"
    records("new_expiry", market_id=5, **DENOMINATORS)
    assert records("add_price_level", **level(2, 110, 0)) == ""
    assert records("add_price_level", **level(3, 100, 3)) == "A B 0 3@1"
    assert records("change_price_level", **level(1, 121, 5)) == "A B 0 5@1.21"
    assert records("change_price_level", **level(2, 110, 2)) == "A B 0 2@1.1"
    assert records("change_price_level", **level(2, 110, 0)) == "C B 0 2@1.1"
    assert records("change_price_level", **level(1, 121, 5, " ")) == ""
    assert records.normaliser.sideless == 1


def test_sides_of_books_beyond_the_bound_are_counted(twin, monkeypatch):
    records = defined(twin)
    # The compiled module has its own copy of the bound as a Python name.
    monkeypatch.setattr(twin, "LADDERS_MAX", 1)
    records("add_price_level", **level(1, 120, 5))
    assert records("add_price_level", **level(1, 130, 5, OFFER)) == ""
    assert records.normaliser.orders.refused == 1


def actions(random: Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Random valid changes of levels of two markets, and the levels that follow from them."""
    found = []
    books: dict[tuple[int, str], list[list[int]]] = {}
    for _ in range(count):
        market, side = random.choice((5, 6)), random.choice((BID, OFFER))
        levels = books.setdefault((market, side), [])
        at = random.randrange(5)
        said: dict[str, Any] = {"market_id": market, "side": side}
        if at < len(levels) and random.random() < 0.6:
            said["price_level_position"] = at + 1
            if random.random() < 0.5:
                levels.pop(at)
                found.append(("delete_price_level", said))
                continue
            levels[at][1] = random.randrange(1, 99)
            said |= {"price": levels[at][0], "quantity": levels[at][1]}
            found.append(("change_price_level", said))
            continue
        price = random.randrange(1, 60)
        if price in [each[0] for each in levels]:
            continue
        levels.append([price, random.randrange(1, 99)])
        levels.sort(reverse=side == BID)
        at = [each[0] for each in levels].index(price)
        del levels[5:]
        if at < 5:
            said |= {"price": price, "quantity": levels[at][1], "price_level_position": at + 1}
            found.append(("add_price_level", said))
    found.append(("", {"books": books}))
    return found


def test_books_of_levels_are_those_of_a_naive_book(seed: int) -> None:
    feed = load_feed(ICE)
    market, random = feedhandler.Market(feed), Random(seed)
    twins = [compiled.Normaliser(feed), load_interpreted(compiled.__name__).Normaliser(feed)]
    *messages, (_, expected) = actions(random, 3000)
    definitions = [("new_expiry", {"market_id": number, **DENOMINATORS}) for number in (5, 6)]
    for name, said in (*definitions, *messages):
        message = feed.encode_message(name, **said)
        market.apply_message(message, 1)
        for each in twins:
            each.clear()
            code = feed.layout(name).code
            each.message(message, 0, len(message), code, UNDEFINED_TIME, UNDEFINED_TIME, 0, 1)
        assert twins[0].records.tobytes() == twins[1].records.tobytes()
        assert twins[0].count or name == "new_expiry"
    for (number, side), levels in expected["books"].items():
        book = market.books[number]
        top = (book.bids if side == BID else book.asks).top(10)
        assert [(price, size) for price, size, _ in top] == [
            (price * 10_000_000, size) for price, size in levels
        ]
    assert len(expected["books"]) == 4
    assert not market.problems
