"""Order books kept by MBO records, beside a program in C that keeps levels alone.

The load is a market of additions, cancellations and changes of orders in 500 instruments, most of
them near the best price. The ceiling (`books_ceiling.c`) does the same without bounds, priority
within a price, or any check. Both must have the same orders at the end. Medians of passes, one
core.
"""

import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy

from bench.processes import median_rate
from bench.programs import compiled
from feedhandler.codecs.dbn import MBO, RTYPE_MBO
from feedhandler.market.depth_book import DepthBook

#: The bar and the goal: order records a second with ten levels kept; and bytes an order.
RECORDS_PER_S_MIN, RECORDS_PER_S_GOAL = 3e6, 8e6
ORDER_BYTES_MAX = 200

RECORDS = 1_000_000
STANDING = 20_000
INSTRUMENTS = 500
SECONDS, QUICK_SECONDS = 5.0, 1.0
CEILING_PASSES = 5
TICK = 10_000_000
SMOKE: dict[str, object] = {
    "RECORDS": 5_000, "STANDING": 500, "QUICK_SECONDS": 0.05, "CEILING_PASSES": 1,
}  # fmt: skip


def market(count: int, standing: int) -> numpy.ndarray:
    """Return records of a market in which about `standing` orders stand."""
    chance = random.Random(20261127)
    alive: list[tuple[int, int, bytes, int]] = []
    rows = []
    for number in range(1, count + 1):
        draw = chance.random()
        if len(alive) < standing or draw < 0.45:
            bid = chance.random() < 0.5
            away = int(abs(chance.gauss(0, 12)))
            price = (10_000 - away if bid else 10_001 + away) * TICK
            order = number, chance.randrange(INSTRUMENTS), b"B" if bid else b"A", price
            alive.append(order)
            rows.append((*order, 100, b"A"))
            continue
        index = chance.randrange(len(alive))
        order = alive[index]
        if draw < 0.9:
            alive[index] = alive[-1]
            alive.pop()
        rows.append((*order, 100 if draw < 0.9 else 50, b"C" if draw < 0.9 else b"M"))
    made = numpy.zeros(count, MBO)
    names = ("order_id", "instrument_id", "side", "price", "size", "action")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        made[name] = column
    made["length"], made["rtype"] = MBO.itemsize // 4, RTYPE_MBO
    return made


def ceiling(records: numpy.ndarray) -> tuple[float, int]:
    """Return records a second of the program in C, and the orders at its end."""
    with tempfile.TemporaryDirectory() as folder:
        program = compiled("books_ceiling", folder)
        file = Path(folder) / "records"
        records.tofile(file)
        words = [str(program), str(file), str(CEILING_PASSES)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    rate, standing = done.stdout.split()
    return float(rate), int(standing)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures of this file, JSON-ready; print them as it goes."""
    records = market(RECORDS, STANDING)
    books: list[DepthBook] = []

    def work() -> int:
        book = DepthBook()
        book.apply(records)
        books[:] = [book]
        return len(records)

    rate = median_rate(work, QUICK_SECONDS if quick else SECONDS)
    (book,) = books
    c_rate, standing = ceiling(records)
    each = book.nbytes / max(book.order_count, 1)
    problems = []
    if book.order_count != standing:
        problems.append(f"{book.order_count} orders stand, of C's {standing}")
    if book.unknown or book.odd or book.refused:
        problems.append(f"unknown {book.unknown}, odd {book.odd}, refused {book.refused}")
    print(
        f"  books {rate / 1e6:6.2f} million records/s (bar {RECORDS_PER_S_MIN / 1e6:g}, goal"
        f" {RECORDS_PER_S_GOAL / 1e6:g}), {rate / c_rate:.0%} of C; {each:.0f} bytes an order"
        f" (bar {ORDER_BYTES_MAX})"
    )
    return {
        "records_per_s": rate,
        "records_per_s_min": RECORDS_PER_S_MIN,
        "share_of_c": rate / c_rate,
        "c_records_per_s": c_rate,
        "bytes_per_order": each,
        "problems": problems,
    }
