# cython: language_level=3, boundscheck=True, cdivision=True
"""Trades of a generated market's instruments, kept as messages.

`Deals` has each instrument's day: the last, highest and lowest price, how often and how much was
traded. A deal changes them, patches the instrument's trade message, and puts it on the tape; so
does the last price, announced once more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cython
import numpy
from cython.cimports.feedhandler.replay.generating import indexes
from cython.cimports.feedhandler.replay.generating.tape import Tape
from cython.cimports.feedhandler.replay.generating.wirebytes import put2, put4

from feedhandler.replay.generating.instruments import Instrument
from feedhandler.replay.generating.layouts import TRADE_FIELDS, UPDATE_FIELDS, offsets

if TYPE_CHECKING:
    from feedhandler.codecs import Feed


@cython.final
@cython.cclass
class Deals:
    """The deals in `instruments`, sent on `channel`; `first` is the first one's number in the
    listing. `tables`: their messages, `trades` and `updates`."""

    tape: Tape
    channel: cython.int
    first: cython.int
    trades: cython.uchar[::1]
    updates: cython.uchar[::1]
    announced: cython.uchar[::1]
    opening: cython.int[::1]
    last: cython.int[::1]
    high: cython.int[::1]
    low: cython.int[::1]
    deals: cython.int[::1]
    traded: cython.longlong[::1]
    at_trade: cython.int[::1]
    at_update: cython.int[::1]
    trade_bytes: cython.int
    update_bytes: cython.int

    def __init__(
        self, feed: "Feed", instruments: Sequence[Instrument], tables: dict, tape: Tape,
        channel: int, first: int,
    ) -> None:  # fmt: skip
        self.tape, self.channel, self.first = tape, channel, first
        self.trade_bytes, self.update_bytes = feed.layout(240).size, feed.layout(241).size
        self.at_trade = offsets(feed, 240, TRADE_FIELDS)
        self.at_update = offsets(feed, 241, UPDATE_FIELDS)
        self.trades, self.updates = memoryview(tables["trades"]), memoryview(tables["updates"])
        prices = numpy.array([each.opening_price for each in instruments], numpy.intc)
        self.opening, self.last, self.high, self.low = (memoryview(prices.copy()) for _ in range(4))
        self.deals = memoryview(numpy.zeros(len(instruments), numpy.intc))
        self.traded = memoryview(numpy.zeros(len(instruments), numpy.int64))
        self.announced = memoryview(numpy.zeros(len(instruments), numpy.uint8))

    def mask(self, name: str) -> Any:
        """Return a mask, not 0 for instruments that have traded (`deals`), had their last price
        announced again (`announced`)."""
        return {"deals": self.deals, "announced": self.announced}[name]

    def add(
        self, index: cython.int, price: cython.int, volume: cython.int, number: cython.uint
    ) -> cython.int:
        """Put a 240: a trade, event `number`; the day's figures include it."""
        at: cython.Py_ssize_t = index * cython.cast(cython.Py_ssize_t, self.trade_bytes)
        self.trades[at + self.at_trade[indexes.T_DIRECTION]] = (
            43 if price > self.last[index] else 45 if price < self.last[index] else 61
        )
        self.last[index] = price
        self.high[index] = max(self.high[index], price)
        self.low[index] = min(self.low[index], price)
        self.deals[index] += 1
        self.traded[index] += volume
        put4(self.trades, at + self.at_trade[indexes.T_TIME], self.tape.milliseconds())
        put4(self.trades, at + self.at_trade[indexes.T_ID], self.deals[index])
        put4(self.trades, at + self.at_trade[indexes.T_NUMBER], number)
        put4(self.trades, at + self.at_trade[indexes.T_PRICE], price)
        put4(self.trades, at + self.at_trade[indexes.T_VOLUME], volume)
        put4(self.trades, at + self.at_trade[indexes.T_TOTAL], self.traded[index])
        put4(self.trades, at + self.at_trade[indexes.T_HIGH], self.high[index])
        put4(self.trades, at + self.at_trade[indexes.T_LOW], self.low[index])
        put4(
            self.trades, at + self.at_trade[indexes.T_VARIATION],
            variation(price, self.opening[index]),
        )  # fmt: skip
        put2(self.trades, at + self.at_trade[indexes.T_MICROS], self.tape.microseconds())
        self.trades[at + self.at_trade[indexes.T_FIRST]] = 49 if self.deals[index] == 1 else 48
        return self.tape.put(self.channel, self.trades, at, self.trade_bytes, self.first + index)

    def announce(self, index: cython.int, number: cython.uint) -> cython.int:
        """Put a 241: the last price, announced once more."""
        at: cython.Py_ssize_t = index * cython.cast(cython.Py_ssize_t, self.update_bytes)
        put4(self.updates, at + self.at_update[indexes.U_TIME], self.tape.milliseconds())
        put4(self.updates, at + self.at_update[indexes.U_NUMBER], number)
        put4(self.updates, at + self.at_update[indexes.U_PRICE], self.last[index])
        put4(self.updates, at + self.at_update[indexes.U_HIGH], self.high[index])
        put4(self.updates, at + self.at_update[indexes.U_LOW], self.low[index])
        put4(
            self.updates, at + self.at_update[indexes.U_VARIATION],
            variation(self.last[index], self.opening[index]),
        )  # fmt: skip
        put2(self.updates, at + self.at_update[indexes.U_MICROS], self.tape.microseconds())
        self.announced[index] = 1
        return self.tape.put(self.channel, self.updates, at, self.update_bytes, self.first + index)


@cython.ccall
def variation(price: cython.longlong, opening: cython.longlong) -> cython.longlong:
    """Return a price's difference from the opening price, in hundredths of a percent."""
    return quotient((price - opening) * 10000, opening)


@cython.ccall
def quotient(number: cython.longlong, by: cython.longlong) -> cython.longlong:
    """Divide `number` by `by` (positive), rounding down whatever the sign."""
    if number >= 0:
        return number // by
    return -((by - 1 - number) // by)
