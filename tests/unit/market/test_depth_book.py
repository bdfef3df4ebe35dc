"""The compiled order books against naive ones, record by record."""

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.dbn import MBO, UNDEFINED_PRICE
from feedhandler.codecs.errors import UsageError
from feedhandler.market import depth_book
from tests.support.twins import either, twins_of

TICK = 10_000_000
module = either(twins_of(depth_book))


def record(
    action: str, side: str = "B", order_id: int = 1, price: int = 100, size: int = 10, **other: int
) -> np.ndarray:
    """One record; the price in ticks."""
    made = np.zeros(1, MBO)
    made["length"], made["rtype"] = MBO.itemsize // 4, 0xA0
    made["instrument_id"] = other.get("instrument", 7)
    made["channel_id"] = other.get("channel", 1)
    made["order_id"], made["price"], made["size"] = order_id, price * TICK, size
    made["action"], made["side"] = action.encode(), side.encode()
    return made


class NaiveBook:
    """Books as lists: what the promises say, and nothing else."""

    def __init__(self) -> None:
        #: (instrument, order id) -> [side, price, size], in priority within a price.
        self.orders: dict[tuple[int, int], list[Any]] = {}

    def apply(self, made: np.ndarray) -> None:
        instrument, order_id = int(made["instrument_id"]), int(made["order_id"])
        action, side = made["action"].decode(), made["side"].decode()
        price, size = int(made["price"]), int(made["size"])
        key = instrument, order_id
        held = self.orders.get(key)
        if action == "R":
            self.orders = {k: v for k, v in self.orders.items() if k[0] != instrument}
        elif action == "C" and held is not None:
            held[2] -= size
            if held[2] <= 0:
                del self.orders[key]
        elif action in "AM":
            if size == 0:
                self.orders.pop(key, None)
            elif held is not None and held[:2] == [side, price] and size <= held[2]:
                held[2] = size
            else:
                self.orders.pop(key, None)
                self.orders[key] = [side, price, size]

    def queue(self, instrument: int, side: str) -> list[tuple[int, int, int]]:
        rows = [
            (key[1], price, size)
            for key, (its, price, size) in self.orders.items()
            if key[0] == instrument and its == side
        ]
        return sorted(rows, key=lambda row: -row[1] if side == "B" else row[1])

    def levels(self, instrument: int, side: str) -> list[tuple[int, int, int]]:
        found: dict[int, list[int]] = {}
        for _, price, size in self.queue(instrument, side):
            level = found.setdefault(price, [0, 0])
            level[0] += size
            level[1] += 1
        return [(price, size, count) for price, (size, count) in found.items()]


def records_at_random(rng: random.Random, count: int) -> Iterator[np.ndarray]:
    """Additions, changes and cancellations of few orders at few prices, some of them unknown."""
    for _ in range(count):
        yield record(
            rng.choices("AMCRTFN", (40, 25, 30, 0.3, 1, 1, 1))[0],
            rng.choice("BA"),
            rng.randint(1, 60),
            rng.randint(90, 90 + rng.choice((4, 60))),
            rng.choice((0, *range(1, 30))),
            instrument=rng.choice((7, 8, 70_000)),
        )


@pytest.mark.random
def test_levels_priority_and_depth_are_those_of_a_naive_book(module: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    book, naive = module.DepthBook(), NaiveBook()
    for made in records_at_random(rng, 500):
        book.apply(made)
        naive.apply(made[0])
        for instrument in (7, 8, 70_000):
            for side, code in (("B", depth_book.BID), ("A", depth_book.ASK)):
                assert book.levels(instrument, code, 1000) == naive.levels(instrument, side)
                assert book.orders(instrument, code) == naive.queue(instrument, side)
    assert book.order_count == len(naive.orders)
    assert book.unknown
    assert book.duplicate


@pytest.mark.random
def test_the_returned_depth_is_the_least_at_which_a_level_changed(
    module: ModuleType, seed: int
) -> None:
    book, naive = module.DepthBook(), NaiveBook()
    for made in records_at_random(random.Random(seed), 500):
        (row,) = made
        instrument = int(row["instrument_id"])
        before = [naive.levels(instrument, side) for side in "BA"]
        depth = book.apply_record(
            instrument, int(row["order_id"]), int(row["price"]), int(row["size"]),
            row["action"][0], row["side"][0], int(row["channel_id"]),
        )  # fmt: skip
        naive.apply(row)
        after = [naive.levels(instrument, side) for side in "BA"]
        changed = [
            next(
                (
                    at
                    for at in range(max(len(old), len(new)))
                    if old[at : at + 1] != new[at : at + 1]
                ),
                depth_book.UNCHANGED,
            )
            for old, new in zip(before, after, strict=True)
        ]
        if min(changed) < depth_book.UNCHANGED:
            assert depth == min(changed), made


def test_the_twins_hold_the_same(seed: int) -> None:
    made = np.concatenate(list(records_at_random(random.Random(seed), 3000)))
    books = [depth_book.DepthBook(), load_interpreted("feedhandler.market.depth_book").DepthBook()]
    assert len({book.apply(made) for book in books}) == 1
    first, second = books
    for instrument in first.instruments():
        for side in (depth_book.BID, depth_book.ASK):
            assert first.orders(instrument, side) == second.orders(instrument, side)
    for name in ("unknown", "duplicate", "overdrawn", "odd", "refused", "order_count"):
        assert getattr(first, name) == getattr(second, name)


def test_an_order_that_shrinks_keeps_its_priority_and_one_that_grows_does_not(
    module: ModuleType,
) -> None:
    book = module.DepthBook()
    for number in (1, 2, 3):
        book.apply(record("A", order_id=number))
    book.apply(record("M", order_id=1, size=5))
    assert [row[0] for row in book.orders(7, 0)] == [1, 2, 3]
    book.apply(record("M", order_id=1, size=6))
    assert [row[0] for row in book.orders(7, 0)] == [2, 3, 1]
    assert book.find(7, 1) == (depth_book.BID, 100 * TICK, 6)
    assert book.find(7, 4) is None


def test_levels_of_a_feed_by_level_are_set_and_go(module: ModuleType) -> None:
    book = module.DepthBook()
    book.apply(record("A", "A", 0, 101, 5))
    book.apply(record("A", "A", 0, 102, 7))
    book.apply(record("M", "A", 0, 101, 9))
    assert book.asks(7) == [(101 * TICK, 9, 0), (102 * TICK, 7, 0)]
    book.apply(record("C", "A", 0, 101, 9))
    assert book.asks(7) == [(102 * TICK, 7, 0)]
    # An order at a level that was set as a whole fits nowhere.
    book.apply(record("A", "A", 5, 102, 1))
    assert (book.asks(7), book.odd) == ([(102 * TICK, 7, 0)], 1)


def test_a_clear_without_an_instrument_empties_the_books_of_its_channel(
    module: ModuleType,
) -> None:
    book = module.DepthBook()
    book.apply(record("A", order_id=1, instrument=1, channel=1))
    book.apply(record("A", order_id=1, instrument=2, channel=1))
    book.apply(record("A", order_id=1, instrument=3, channel=2))
    book.apply(record("R", "N", 0, instrument=0, channel=1))
    assert [bool(book.bids(instrument)) for instrument in (1, 2, 3)] == [False, False, True]
    assert book.order_count == book.level_count == 1


def test_levels_are_written_as_dbn_has_them(module: ModuleType) -> None:
    book = module.DepthBook()
    for number, (side, price) in enumerate([("B", 99), ("B", 98), ("A", 101), ("B", 99)], 1):
        book.apply(record("A", side, number, price, 10 * number))
    pair = np.dtype([("bid_px", "<i8"), ("ask_px", "<i8"), ("bid_sz", "<u4"), ("ask_sz", "<u4"),
                     ("bid_ct", "<u4"), ("ask_ct", "<u4")])  # fmt: skip
    levels = np.zeros(3, pair)
    book.write_levels(7, 3, memoryview(levels.view(np.uint64)), 0)
    none = UNDEFINED_PRICE
    assert levels.tolist() == [
        (99 * TICK, 101 * TICK, 50, 30, 2, 1),
        (98 * TICK, none, 20, 0, 1, 0),
        (none, none, 0, 0, 0, 0),
    ]
    book.write_levels(8, 3, memoryview(levels.view(np.uint64)), 0)
    assert set(levels["bid_px"]) == {none}


def test_what_is_beyond_the_bounds_is_counted(module: ModuleType) -> None:
    book = module.DepthBook(orders_max=2, levels_max=2, books_max=1)
    for number in range(1, 6):
        book.apply(record("A", order_id=number))
    assert (book.order_count, book.refused) == (2, 3)
    book.apply(record("C", order_id=1))
    for price in (101, 102):
        book.apply(record("A", order_id=price, price=price))
    assert (book.level_count, book.refused) == (2, 4)
    book.apply(record("A", instrument=8))
    assert (book.book_count, book.refused) == (1, 5)


@pytest.mark.random
def test_nothing_in_a_record_raises(module: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = np.frombuffer(rng.bytes(56 * 4000), MBO).copy()
    made["action"] = rng.choice([b"A", b"M", b"C", b"R", b"T", b"\xff", b""], 4000)
    made["side"] = rng.choice([b"A", b"B", b"N", b""], 4000)
    made["instrument_id"] = rng.choice([0, 1, 2, 2**32 - 1], 4000)
    made["order_id"] = rng.choice(np.array([0, 1, 2, 3, 2**64 - 1], np.uint64), 4000)
    made["price"] = rng.choice([0, -1, 1, 2**63 - 1, -(2**63), 2**62], 4000)
    book = module.DepthBook()
    book.apply(made)
    held = sum(len(book.orders(instrument, side)) for instrument in (0, 1, 2, 2**32 - 1)
               for side in (0, 1))  # fmt: skip
    assert held == book.order_count


def test_many_orders_take_less_than_200_bytes_each() -> None:
    """Of the order table's, too: a normaliser keeps what messages leave out."""
    count = 100_000
    made = np.repeat(record("A"), count)
    made["order_id"] = np.arange(1, count + 1)
    made["instrument_id"] = np.arange(count) % 500
    made["price"] = (10_000 + np.arange(count) % 97) * TICK
    book = depth_book.DepthBook()
    assert book.apply(made) == count
    assert book.order_count == count
    assert book.nbytes / count < 130
    made["action"] = b"C"
    book.apply(made)
    assert book.order_count == book.level_count == 0


def test_a_book_takes_order_records_alone() -> None:
    with pytest.raises(Exception, match="a book takes MBO records, not"):
        depth_book.DepthBook().apply(np.zeros(1, np.uint8))


def test_what_is_no_side_or_does_not_fit_is_refused(module: ModuleType) -> None:
    book = module.DepthBook()
    for ask in (book.levels, book.orders):
        with pytest.raises(UsageError, match="no side"):
            ask(7, 50_000_000)
    with pytest.raises(UsageError, match="do not fit"):
        book.write_levels(7, 10, memoryview(np.zeros(39, np.uint64)), 0)
