"""Books under any instructions: never crossed, never full, levels that add up."""

import random

import msgspec
import numpy as np
import pytest

from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.books import FLAT, SHIFT, SILENT, SLOTS
from feedhandler.replay.generating.deals import quotient
from feedhandler.replay.generating.tape import COLUMNS, ROOM
from feedhandler.replay.generating.traffic import Traffic
from tests.support.market import same_levels
from tests.support.market_traffic import FEED, MARKET

QUOTES, ORDERS, TRADES = 2, 3, 1


class Bench:
    """A market's books, by hand: what they put on the tape goes into a `Market`."""

    def __init__(self, seed: int) -> None:
        few = msgspec.structs.replace(MARKET, instruments=8)
        self.traffic = Traffic(few, seed, feed=FEED)
        self.books, self.tape = self.traffic.market.books, self.traffic.tape
        self.market = Market(FEED)
        self.begin()
        for share in range(self.books.shares):
            self.books.fill(share)
            self.books.retell(share)
        self.flush()

    def begin(self) -> None:
        columns = {name: np.empty(4_096, dtype) for name, dtype in COLUMNS.items()}
        self.data = np.empty(1 << 21, np.uint8)
        self.tape.begin(self.data, columns)

    def flush(self) -> int:
        """Cut everything, into the market; returns how many quotes there were."""
        for channel in (TRADES, ORDERS, QUOTES):
            self.tape.cut(channel)
        columns, data, quotes = self.tape.columns, self.data, 0
        for row in range(self.tape.count):
            at, size = int(columns["offset"][row]), int(columns["length"][row])
            self.market.apply(bytes(data[at : at + size]))
            quotes += int(columns["messages"][row]) * (columns["channel"][row] == QUOTES)
        self.begin()
        return quotes


@pytest.mark.parametrize("wants", [(SILENT,), (FLAT,), (SHIFT,), (SILENT, FLAT, SHIFT)])
def test_books_stay_sound_whatever_is_wanted_of_them(wants: tuple[int, ...], seed: int) -> None:
    rng, bench = random.Random(seed), Bench(seed)
    quotes = dict.fromkeys(wants, 0)
    for _ in range(1_500):
        share, want = rng.randrange(bench.books.shares), rng.choice(wants)
        if rng.random() < 0.05:
            bench.books.cross(share)
            bench.books.deals.announce(share, bench.books.number)
            bench.flush()
            continue
        bench.books.act(share, want)
        quotes[want] += bench.flush()
    assert not bench.market.problems
    for symbol, book in bench.market.books.items():
        assert not book.crossed
        assert book.bids.top(1)
        assert book.asks.top(1)
        assert len(book.bids.orders) + len(book.asks.orders) <= SLOTS
        for quote in bench.market.latest("quote")[symbol].values():
            same_levels(book, quote)
    if len(wants) == 3:
        assert quotes[SILENT] < quotes[FLAT] < quotes[SHIFT]


def test_quotients_are_rounded_down() -> None:
    for number in range(-20, 20):
        for by in (1, 3, 7):
            assert quotient(number, by) == number // by


def test_a_message_that_does_not_fit_begins_a_new_packet() -> None:
    bench = Bench(1)
    source = memoryview(bytearray(500))
    for _ in range(4):
        bench.tape.put(0, source, 0, 500, -1)
    bench.tape.cut(0)
    bench.tape.cut(0)
    assert bench.tape.columns["length"][: bench.tape.count].tolist() == [1016, 1016]
    assert 2 * 500 <= ROOM < 3 * 500
