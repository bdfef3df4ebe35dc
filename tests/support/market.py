"""Shared by tests of markets and snapshots: both twins, sessions, order messages, books."""

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import load_feed
from feedhandler.market import stream_market
from feedhandler.market.stream_market import Market
from feedhandler.market.views import BookView
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.packets import Outgoing

FEED = load_feed("euronext-utp-md")
MS = 1_000_000
SYMBOL = 10_001
DAY = 20_110_315


#: A price of 1, as markets have it.
UNIT = 10**9


def compiled(**options: Any) -> Market:
    """A market of UTP-MD as exchanges keep it."""
    return Market(FEED, keeps_messages=True, **options)


def interpreted(**options: Any) -> Market:
    """The same, whose compiled parts are interpreted."""
    parts = {
        name: getattr(load_interpreted(f"feedhandler.market.{module}"), name)
        for module, name in (
            ("depth_book", "DepthBook"), ("records", "Records"),
            ("order_messages", "OrderMessages"), ("latest_messages", "LatestMessages"),
            ("stream_reader", "StreamReader"),
        )
    }  # fmt: skip
    with patch.multiple(stream_market, **parts):
        return Market(FEED, keeps_messages=True, **options)


TWINS: dict[str, Callable[..., Market]] = {"compiled": compiled, "interpreted": interpreted}


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


def same_levels(book: BookView, quote: Any) -> None:
    """Check that a quote shows the level of a book that it is about; all zero where there is
    none."""
    for side, name in ((book.bids, "bid"), (book.asks, "ask")):
        price = getattr(quote, f"{name}_price")
        shown = (
            price.raw * UNIT // 10**price.scale,
            getattr(quote, f"{name}_size"),
            getattr(quote, f"number_{name}_orders"),
        )
        levels = side.top(quote.quote_number)
        assert shown == (levels[-1] if len(levels) == quote.quote_number else (0, 0, 0))


def key_of(order: int) -> tuple[int, int]:
    """An order's date and number, of its id in a book."""
    return order >> 32, order & 0xFFFF_FFFF


def keys(market: Market, symbol: int = SYMBOL) -> set[tuple[int, int]]:
    """Date and number of every open order of a symbol."""
    book = market.books[symbol]
    return {key_of(order) for order, _, _ in (*book.bids.orders, *book.asks.orders)}


def queues(book: BookView) -> list[list[tuple[int, int, int]]]:
    """Both sides of a book: (id, price, size) of the orders in priority, whose sums are checked
    against the levels."""
    found = []
    for side in (book.bids, book.asks):
        levels: dict[int, list[int]] = {}
        for _, price, size in side.orders:
            level = levels.setdefault(price, [0, 0])
            level[0] += size
            level[1] += 1
        assert side.top(1 << 20) == [(price, *both) for price, both in levels.items()]
        found.append(side.orders)
    return found
