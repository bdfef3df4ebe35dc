# cython: language_level=3, boundscheck=True, cdivision=True
"""Instruments without a book: warrants, quoted by their issuers, and indices, computed.

`IssuerQuotes` holds the one bid and one ask that an issuer shows for each warrant: it moves by a
tick or changes its spread or size, and now and then a trader takes it. `IndexValues` holds the
indices, each the mean of its shares' last prices over their opening prices. Both keep the latest
messages and patch them, as `books` does, and put them on the tape.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cython
import numpy
from cython.cimports.feedhandler.replay.generating import indexes
from cython.cimports.feedhandler.replay.generating.books import ShareBooks
from cython.cimports.feedhandler.replay.generating.deals import Deals, variation
from cython.cimports.feedhandler.replay.generating.prng import Prng
from cython.cimports.feedhandler.replay.generating.tape import Tape
from cython.cimports.feedhandler.replay.generating.wirebytes import put2, put4

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.generating.instruments import Instrument
from feedhandler.replay.generating.layouts import (
    INDEX_FIELDS,
    QUOTE_FIELDS,
    offsets,
    templates,
)

if TYPE_CHECKING:
    from feedhandler.codecs import Feed

#: Engine numbers, as in SystemID.
ISSUER_SYSTEM, INDEX_SYSTEM = 12, 13
#: An index is made of so many shares at most.
CONSTITUENTS_MAX = 20

_MEMBERS = cython.declare(cython.int, CONSTITUENTS_MAX)


@cython.final
@cython.cclass
class IssuerQuotes:
    """The quotes of `instruments`, all warrants; `first` is the first one's number in the
    listing. `number` counts events."""

    prng: Prng
    tape: Tape
    deals: Readonly[Deals]
    warrants: Readonly[cython.int]
    first: Readonly[cython.int]
    tables: Readonly[dict]
    number: Readonly[cython.uint]
    quotes: cython.uchar[::1]
    quoted: cython.uchar[::1]
    bid: cython.int[::1]
    spread: cython.int[::1]
    at_quote: cython.int[::1]
    quote_bytes: cython.int

    def __init__(
        self, feed: "Feed", instruments: Sequence[Instrument], first: int, prng: Prng, tape: Tape
    ) -> None:
        self.prng, self.tape, self.warrants, self.first = prng, tape, len(instruments), first
        self.number = 0
        self.quote_bytes = feed.layout(140).size
        self.at_quote = offsets(feed, 140, QUOTE_FIELDS)
        self.tables = messages = _messages(feed, instruments)
        self.quotes = memoryview(messages["quotes"])
        self.deals = Deals(feed, instruments, messages, tape, indexes.WARRANT_TRADES, first)
        prices = numpy.array([warrant.opening_price for warrant in instruments], numpy.intc)
        self.bid = memoryview(prices)
        self.spread = memoryview(numpy.ones(len(instruments), numpy.intc))
        self.quoted = memoryview(numpy.zeros(len(instruments), numpy.uint8))

    def mask(self) -> Any:
        """Return a mask, not 0 for warrants that were quoted."""
        return self.quoted

    def act(self, warrant: cython.int) -> cython.int:
        """Move the issuer's quote by a tick, change its spread, or only its size."""
        draw: cython.int = self.prng.below(1024)
        if draw < 614:
            # The further from the opening price, the likelier back.
            if self.prng.below(2 * self.deals.opening[warrant]) < cython.cast(
                cython.uint, self.bid[warrant]
            ):
                self.bid[warrant] -= 1 if self.bid[warrant] > 1 else 0
            else:
                self.bid[warrant] += 1
        elif draw < 768:
            self.spread[warrant] = 1 + self.prng.below(3)
        volume: cython.int = 1000 * (1 + self.prng.below(50))
        return self._show(
            warrant, self.bid[warrant], self.bid[warrant] + self.spread[warrant], volume
        )

    def clear(self, warrant: cython.int) -> cython.int:
        """Blank the issuer's quote; return the last price."""
        self._show(warrant, 0, 0, 0)
        return self.deals.last[warrant]

    def _show(
        self, warrant: cython.int, bid: cython.int, ask: cython.int, volume: cython.int
    ) -> cython.int:
        """Put a 140: the issuer's present quote; a volume of 0 is none."""
        self.number += 1
        orders: cython.int = 1 if volume else 0
        at: cython.Py_ssize_t = warrant * cython.cast(cython.Py_ssize_t, self.quote_bytes)
        put4(self.quotes, at + self.at_quote[indexes.Q_NUMBER], self.number)
        put4(self.quotes, at + self.at_quote[indexes.Q_TIME], self.tape.milliseconds())
        put2(self.quotes, at + self.at_quote[indexes.Q_MICROS], self.tape.microseconds())
        put4(self.quotes, at + self.at_quote[indexes.Q_BID], bid)
        put4(self.quotes, at + self.at_quote[indexes.Q_ASK], ask)
        put4(self.quotes, at + self.at_quote[indexes.Q_BID_SIZE], volume)
        put4(self.quotes, at + self.at_quote[indexes.Q_ASK_SIZE], volume)
        put2(self.quotes, at + self.at_quote[indexes.Q_BIDS], orders)
        put2(self.quotes, at + self.at_quote[indexes.Q_ASKS], orders)
        self.quoted[warrant] = 1
        return self.tape.put(
            indexes.WARRANT_QUOTES, self.quotes, at, self.quote_bytes, self.first + warrant
        )

    def trade(self, warrant: cython.int) -> cython.int:
        """Trade at the issuer's bid or ask."""
        price: cython.int = self.bid[warrant] + (
            self.spread[warrant] if self.prng.below(5) < 3 else 0
        )
        volume: cython.int = 100 * (1 + self.prng.below(40))
        self.number += 1
        return self.deals.add(warrant, price, volume, self.number)


@cython.final
@cython.cclass
class IndexValues:
    """The values of `instruments`, all indices; `first` is the first one's number in the listing,
    `shares` those of `books`, in its order."""

    tape: Tape
    books: ShareBooks
    indices: Readonly[cython.int]
    first: Readonly[cython.int]
    tables: Readonly[dict]
    next: cython.int
    values: cython.uchar[::1]
    announced: cython.uchar[::1]
    members: cython.int[::1]
    opening: cython.int[::1]
    high: cython.int[::1]
    low: cython.int[::1]
    at_index: cython.int[::1]
    index_bytes: cython.int

    def __init__(
        self, feed: "Feed", instruments: Sequence[Instrument], first: int, tape: Tape,
        books: ShareBooks, shares: Sequence[Instrument],
    ) -> None:  # fmt: skip
        self.tape, self.books, self.indices, self.first = tape, books, len(instruments), first
        self.next = 0
        self.index_bytes = feed.layout(546).size
        self.at_index = offsets(feed, 546, INDEX_FIELDS)
        chosen = [_constituents(index, shares) for index in instruments]
        self.tables: dict[str, Any] = {
            "values": _values(feed, instruments, [len(each) for each in chosen])
        }
        self.values = memoryview(self.tables["values"])
        self.announced = memoryview(numpy.zeros(len(instruments), numpy.uint8))
        levels = numpy.array([index.opening_price for index in instruments], numpy.intc)
        self.opening, self.high, self.low = (memoryview(levels.copy()) for _ in range(3))
        members = numpy.full((len(instruments), CONSTITUENTS_MAX), -1, numpy.intc)
        for row, each in zip(members, chosen, strict=True):
            row[: len(each)] = each
        self.members = memoryview(members.reshape(-1))

    def mask(self) -> Any:
        """Return a mask, not 0 for indices that were announced."""
        return self.announced

    def show(self, count: cython.int) -> cython.int:
        """Publish the present values of the next `count` indices, in turn."""
        _turn: cython.int
        i: cython.int
        many: cython.int
        relative: cython.longlong
        for _turn in range(count):
            index: cython.int = self.next
            self.next = (index + 1) % self.indices
            relative = many = 0
            for i in range(_MEMBERS):
                share: cython.int = self.members[index * _MEMBERS + i]
                if share >= 0:
                    # Each constituent weighs the same at the opening.
                    relative += (
                        self.books.deals.last[share] * cython.cast(cython.longlong, 1_000_000)
                        // self.books.deals.opening[share]
                    )  # fmt: skip
                    many += 1
            level: cython.int = self.opening[index] * relative // (many * 1_000_000)
            self.high[index] = max(self.high[index], level)
            self.low[index] = min(self.low[index], level)
            at: cython.Py_ssize_t = index * cython.cast(cython.Py_ssize_t, self.index_bytes)
            put4(self.values, at + self.at_index[indexes.X_TIME], self.tape.milliseconds())
            put4(self.values, at + self.at_index[indexes.X_LEVEL], level)
            put4(self.values, at + self.at_index[indexes.X_HIGH], self.high[index])
            put4(self.values, at + self.at_index[indexes.X_LOW], self.low[index])
            put4(
                self.values, at + self.at_index[indexes.X_VARIATION],
                variation(level, self.opening[index]),
            )  # fmt: skip
            put2(self.values, at + self.at_index[indexes.X_MICROS], self.tape.microseconds())
            self.announced[index] = 1
            self.tape.put(indexes.INDICES, self.values, at, self.index_bytes, self.first + index)
        return 0


def _messages(feed: Any, warrants: Sequence[Instrument]) -> dict[str, numpy.ndarray]:
    """Return every message that the issuers will ever patch, by its purpose."""

    def scaled(warrant: Instrument, **fields: Any) -> dict[str, Any]:
        return {
            "SymbolIndex": warrant.symbol,
            "SystemID": ISSUER_SYSTEM,
            "PriceScaleCode": warrant.price_scale,
            **fields,
        }

    return {
        "quotes": templates(feed, 140, warrants, lambda w: scaled(w, QuoteNumber=1)),
        "trades": templates(feed, 240, warrants, lambda w: scaled(w, VariationScaleCode=2)),
        "updates": templates(
            feed, 241, warrants, lambda w: scaled(w, VariationScaleCode=2, TypeOfPrice="00")
        ),
    }


def _values(feed: Any, indices: Sequence[Instrument], members: Sequence[int]) -> numpy.ndarray:
    many = dict(zip((index.symbol for index in indices), members, strict=True))

    def fields(index: Instrument) -> dict[str, Any]:
        return {
            "SymbolIndex": index.symbol, "SystemID": INDEX_SYSTEM, "PctOfCapitalisation": 10_000,
            "NumOfSecurities": many[index.symbol], "IndexCode": "R", "TypeOfLevel": "0",
            "IndexLevelScaleCode": index.price_scale, "PctScaleCode": 2, "VarScaleCode": 2,
        }  # fmt: skip

    return templates(feed, 546, indices, fields)


def _constituents(index: Instrument, shares: Sequence[Instrument]) -> list[int]:
    """Choose the most active shares of the index's market, or of all where it has too few."""
    local = [i for i, share in enumerate(shares) if share.mic == index.mic]
    return (local if len(local) >= 3 else list(range(len(shares))))[:CONSTITUENTS_MAX]
