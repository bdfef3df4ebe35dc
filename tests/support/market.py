"""Shared by tests of markets and snapshots: both twins, sessions, order messages, books."""

import functools
import sys
from types import ModuleType
from typing import Any
from unittest.mock import patch

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import load_feed
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.packets import Outgoing
from feedhandler.replay.state import market as compiled_market
from feedhandler.replay.state.book import Book

FEED = load_feed("euronext-utp-md")
MS = 1_000_000
SYMBOL = 10_001
DAY = 20_110_315


def _interpreted_market() -> ModuleType:
    """The interpreted market above interpreted orders."""
    name = "feedhandler.replay.state.market_orders"
    with patch.dict(sys.modules, {name: load_interpreted(name)}):
        return load_interpreted("feedhandler.replay.state.market")


TWINS = {"compiled": compiled_market, "interpreted": _interpreted_market()}


@functools.cache
def session(seed: int, ms: int = 120, instruments: int = 20) -> tuple[Outgoing, ...]:
    """The packets of a small session, its close included."""
    generator = SessionGenerator(FEED, seed, instruments=instruments)
    packets = list(generator.packets(ms * MS))
    return (*packets, *generator.close(ms * MS))


def order(action: str, number: int, price: int = 100, volume: int = 10, **fields: Any) -> bytes:
    """An order message of the one symbol; a buy unless `side` says other."""
    values = {
        "symbol_index": SYMBOL, "action_type": action, "order_id": number, "price": price,
        "volume": volume, "side": "1", "order_date": DAY, **fields,
    }  # fmt: skip
    return FEED.encode_message(230, **values)


def packet(*messages: bytes, service: int = 104, sequence: int = 1, **header: Any) -> bytes:
    """A packet of these messages."""
    return FEED.encode_packet(sequence=sequence, messages=messages, service=service, **header)


def queues(book: Book) -> dict[int, list[tuple[Any, int, int]]]:
    """Every level of a book by key (price times side): its orders in priority as (key, volume,
    priority in microseconds, as messages tell it)."""
    found = {}
    for side in (book.bids, book.asks):
        assert sorted(side.levels) == side.keys
        for key, level in side.levels.items():
            orders = [(o.key, o.volume, o.priority_ns // 1000) for o in level.orders.values()]
            assert level.volume == sum(volume for _, volume, _ in orders)
            found[key] = orders
    return found
