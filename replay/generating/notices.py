"""The messages of service 101: reference data, instruments halted and reopened.

`Notices` keeps each instrument's reference data (553) and state (505) as messages and puts them on
the tape. A halted share is marked in the books' `halted` table: nothing of it moves until it is
reopened. There are few of these messages, so this is plain Python.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedhandler.codecs import Feed
from feedhandler.replay.generating.instruments import Instrument, Kind
from feedhandler.replay.generating.layouts import (
    REFERENCE_FIELDS,
    STATE_FIELDS,
    offsets,
    templates,
)
from feedhandler.replay.generating.times import MessageTime, clock

#: Engine number, as in SystemID, and the channel.
REFERENCE_SYSTEM, REFERENCE = 10, 0
#: How long a share is halted at least, and what share of all may be at once.
HALT_NS, HALTED_SHARE = 400_000_000, 0.05
#: What reference data says of a kind: TypeOfInstrument and CFI.
KINDS = {Kind.EQUITY: (1, "ESVUFR"), Kind.WARRANT: (9, "RWSTCA"), Kind.INDEX: (7, "TIEXXX")}


class Notices:
    """See the module. `halted` is the table of the shares, which come first among the
    instruments; `prng` and `tape` are the generator's."""

    def __init__(
        self, feed: Feed, instruments: Sequence[Instrument], halted: Any, prng: Any, tape: Any,
        time: MessageTime,
    ) -> None:  # fmt: skip
        self._prng, self._tape, self._time, self._halted = prng, tape, time, halted
        self._number = 0
        self.reference = templates(
            feed, 553, instruments, lambda each: reference_fields(each, time.date)
        )
        self.states = templates(
            feed, 505, instruments[: len(halted)], lambda share: {
                "SymbolIndex": share.symbol, "SystemID": REFERENCE_SYSTEM,
                "StartDateHalting": f"{time.date:08d}",
            },
        )  # fmt: skip
        self.stated = np.zeros(len(halted), np.uint8)
        self.start = feed.encode_message(550, indicator="S")
        self.end = feed.encode_message(551, indicator="E")
        self.instruments = len(instruments)
        self.sizes = feed.layout(553).size, feed.layout(505).size
        self._at_reference = offsets(feed, 553, REFERENCE_FIELDS)
        self._at_state = offsets(feed, 505, STATE_FIELDS)
        self._waiting: deque[tuple[int, int]] = deque()
        self._turn = 0

    def write_boundary(self, message: bytes) -> None:
        """Put 550 or 551, which stand around the reference data."""
        self._tape.put(REFERENCE, memoryview(bytearray(message)), 0, len(message), -1)

    def write_reference(self, index: int) -> None:
        """Put the reference data of the instrument at this index of the listing."""
        self._number += 1
        start = index * self.sizes[0]
        data, at = memoryview(self.reference), self._at_reference
        self._stamp(data, start, at[0], at[1], at[2])
        self._tape.put(REFERENCE, data, start, self.sizes[0], index)

    def halt(self, share: int) -> None:
        """Put that the share is halted, whether it is already or not."""
        self._set(share, True)

    def report(self, room: int) -> None:
        """Put one notice, of about `room` bytes: reference data sent again, or states."""
        if room >= self.sizes[0] * 2 // 3:
            self.write_reference(self._turn)
            self._turn = (self._turn + 1) % self.instruments
            return
        for _ in range(max(1, min(4, round(room / self.sizes[1])))):
            self._report_state()

    def _report_state(self) -> None:
        now_ns = self._tape.now_ns
        many = len(self._waiting)
        if many and (self._waiting[0][0] <= now_ns or many > HALTED_SHARE * len(self._halted)):
            self._set(self._waiting.popleft()[1], False)
            return
        share = self._prng.below(len(self._halted))
        if self._halted[share]:
            self.write_reference(share)
            return
        self._waiting.append((now_ns + HALT_NS, share))
        self._set(share, True)

    def _set(self, share: int, halted: bool) -> None:
        """Put a 505: the share is halted (order entry forbidden) or trades again."""
        self._halted[share] = int(halted)
        self._number += 1
        self.stated[share] = 1
        start = share * self.sizes[1]
        data, at = memoryview(self.states), self._at_state
        self._stamp(data, start, at[0], at[1], at[2])
        now_ns = self._tape.now_ns
        self._text(start + at[3], b"%06d" % (clock(now_ns) // 1000))
        later_ns = now_ns + (HALT_NS if halted else 0)
        self._text(start + at[4], b"%06d" % (clock(later_ns) // 1000))
        for index, letter in zip(at[5:], b"YHMY" if halted else b"N  Z", strict=True):
            data[start + index] = letter
        self._tape.put(REFERENCE, data, start, self.sizes[1], share)

    def _stamp(self, data: memoryview, start: int, number: int, time: int, micros: int) -> None:
        """Write number and time into a message."""
        self._time.set(self._tape.now_ns)
        data[start + number : start + number + 4] = self._number.to_bytes(4, "big")
        data[start + time : start + time + 4] = self._time.milliseconds.to_bytes(4, "big")
        data[start + micros : start + micros + 2] = self._time.microseconds.to_bytes(2, "big")

    def _text(self, at: int, text: bytes) -> None:
        memoryview(self.states)[at : at + len(text)] = text


def reference_fields(instrument: Instrument, date: int) -> dict[str, Any]:
    """Return a 553's fields by the specification's names: the instrument's name, and how its prices
    are to be read. `date`: the trading day, yyyymmdd."""
    type_of_instrument, cfi = KINDS[instrument.kind]
    return {
        "SymbolIndex": instrument.symbol, "SystemID": REFERENCE_SYSTEM,
        "LastAdjPrice": instrument.opening_price, "LastAdjPriceScaleCode": instrument.price_scale,
        "FixPriceTick": instrument.tick, "FixPriceTickScaleCode": instrument.price_scale,
        "StockExchangeCode": 25, "TypeOfInstrument": type_of_instrument, "CFI": cfi,
        "EventDate": f"{date:08d}", "PeriodIndicator": "M", "TradingCurrency": "EUR",
        "InstrumentName": instrument.name, "InstrumentCode": instrument.isin,
        "IssuingCountryCode": instrument.isin[:2], "MIC": instrument.mic,
        "InstrumentGroupCode": instrument.kind.value[:2].upper(), "InstrumentCategory": "1",
        "UnderlyingISINCode": instrument.underlying_isin, "LotSize": 1, "Mnemo": instrument.mnemo,
    }  # fmt: skip
