"""The limit order book: priority and levels."""

import random

import pytest

from feedhandler.codecs.errors import PeerError
from feedhandler.replay.translation.book import BUY, SELL, Book
from tests.support.seeds import drawn


def book_of(*orders: tuple[str, int, int, int]) -> Book:
    book = Book()
    for key, side, price, volume in orders:
        book.add(key, side, price, volume)
    return book


def test_rows_are_best_first_with_volume_and_number_of_orders():
    book = book_of(("a", BUY, 10, 5), ("b", BUY, 12, 1), ("c", BUY, 12, 2), ("d", SELL, 15, 7))
    assert book.bids.top(3) == [(12, 3, 2), (10, 5, 1)]
    assert book.bids.top(1) == [(12, 3, 2)]
    assert book.asks.top(1) == [(15, 7, 1)]


def test_an_order_that_shrinks_keeps_its_priority_and_one_that_grows_or_moves_loses_it():
    book = book_of(("a", SELL, 10, 5), ("b", SELL, 10, 5))
    book.modify("a", 10, 3)
    assert list(book.asks.levels[-10].orders) == ["a", "b"]
    book.modify("a", 10, 8)
    assert list(book.asks.levels[-10].orders) == ["b", "a"]
    book.modify("b", 11, 4)
    assert book.asks.top(2) == [(10, 8, 1), (11, 4, 1)]


def test_what_a_feed_could_not_have_said_is_refused():
    book = book_of(("a", BUY, 10, 5))
    for wrong in (
        lambda: book.add("a", BUY, 10, 5),
        lambda: book.add("b", BUY, 10, 0),
        lambda: book.modify("c", 10, 5),
        lambda: book.modify("a", 10, 0),
        lambda: book.remove("c"),
    ):
        with pytest.raises(PeerError):
            wrong()


@drawn(4)
def test_levels_always_add_up_whatever_happens(seed):
    rng = random.Random(seed)
    book, plain, number = Book(), {}, 0
    for _ in range(400):
        draw = rng.random()
        side, price, volume = rng.choice((BUY, SELL)), rng.randrange(90, 110), rng.randrange(1, 9)
        if draw < 0.5:
            number += 1
            book.add(number, side, price, volume)
            plain[number] = (side, price, volume)
        elif plain:
            key = rng.choice(sorted(plain))
            if draw < 0.7:
                book.remove(key)
                del plain[key]
            else:
                own, old_price, old_volume = plain[key]
                book.modify(key, old_price, max(1, old_volume - 1))
                plain[key] = (own, old_price, max(1, old_volume - 1))
        assert plain.keys() == book.by_key.keys()
        for side in (BUY, SELL):
            levels = {}
            for own, at, left in plain.values():
                if own == side:
                    total, count = levels.get(at, (0, 0))
                    levels[at] = (total + left, count + 1)
            rows = [(at, *levels[at]) for at in sorted(levels, reverse=side == BUY)]
            assert book.side(side).top(100) == rows
