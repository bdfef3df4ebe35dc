"""The instruments of a generated session: what reference data says of them.

A listing is drawn from a seed: equities with order books, warrants quoted by their issuers, and
a handful of indices computed from the equities. Codes look like the real ones and obey their
rules (an ISIN has its country, nine characters and the check digit of ISO 6166; a mnemonic is at
most five characters and unique; MICs are the four cash markets of the group), but every company
is invented. Prices are whole numbers; `price_scale` is the power of ten that divides them, and
every price of an instrument is a multiple of its `tick`.
"""

import random
from dataclasses import dataclass
from enum import Enum

from feedhandler.codecs.errors import UsageError

#: Symbol indices start here; the feed gives them no meaning beyond being unique.
FIRST_SYMBOL = 10_001
#: A listing bounds what a session keeps in memory; real ones have tens of thousands.
INSTRUMENTS_MAX = 100_000
INSTRUMENTS_MIN = 8
#: Values in one index message burst: the paper's service 107 carries 5.6 messages a packet.
INDICES_MAX = 6
WARRANT_SHARE = 0.35

_MARKETS = (("XPAR", "FR", 0.55), ("XAMS", "NL", 0.2), ("XBRU", "BE", 0.15), ("XLIS", "PT", 0.1))
_ONSETS = ("B", "C", "D", "F", "G", "L", "M", "N", "P", "R", "S", "T", "V", "AL", "CR", "ST", "TR")
_VOWELS = ("A", "E", "I", "O", "U", "AU", "IO")
_ENDINGS = ("", "X", "S", "N", " SA", " NV", " GROUP", " IND", " TECH")
_INDICES = (
    ("IXPAR", "PARIS LEADING 40", "XPAR"),
    ("IXAMS", "AMSTERDAM LEADING", "XAMS"),
    ("IXBRU", "BRUSSELS LEADING", "XBRU"),
    ("IXLIS", "LISBON LEADING", "XLIS"),
    ("IXPAN", "PAN EUROPEAN 100", "XPAR"),
    ("IXALL", "ALL SHARES", "XPAR"),
)
#: From this price in cents on: the tick, and the power of ten of prices and tick.
_TICK_BANDS = ((0, 1, 3), (1_000, 5, 3), (5_000, 1, 2), (10_000, 5, 2))


class Kind(Enum):
    """Kind of an instrument, which decides the services that publish it."""

    EQUITY = "equity"
    WARRANT = "warrant"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One listed instrument; prices are integers to be divided by `10 ** price_scale`."""

    symbol: int
    kind: Kind
    isin: str
    mnemo: str
    name: str
    mic: str
    tick: int
    price_scale: int
    opening_price: int
    #: Symbol of the share that a warrant is written on; 0 for everything else.
    underlying: int = 0
    underlying_isin: str = ""


def listing(rng: random.Random, count: int) -> tuple[Instrument, ...]:
    """Return `count` instruments in order of their symbol: equities, then warrants, then indices.

    Raises `UsageError` where `count` is outside `INSTRUMENTS_MIN` to `INSTRUMENTS_MAX`.
    """
    if not INSTRUMENTS_MIN <= count <= INSTRUMENTS_MAX:
        raise UsageError(
            f"{count} instruments asked for", f"use {INSTRUMENTS_MIN} to {INSTRUMENTS_MAX}"
        )
    indices = min(INDICES_MAX, max(1, count // 8))
    warrants = int((count - indices) * WARRANT_SHARE)
    mnemos: set[str] = {mnemo for mnemo, _, _ in _INDICES}
    equities = [
        _equity(rng, FIRST_SYMBOL + rank, mnemos) for rank in range(count - indices - warrants)
    ]
    first_warrant = FIRST_SYMBOL + len(equities)
    issued = [
        _warrant(rng, first_warrant + rank, rank, equities, mnemos) for rank in range(warrants)
    ]
    first_index = first_warrant + warrants
    return (*equities, *issued, *(_index(first_index + rank, rank) for rank in range(indices)))


def isin_of(country: str, body: str) -> str:
    """Build an ISIN: country, nine characters, and the check digit of ISO 6166."""
    text = country + body
    digits = "".join(str(int(character, 36)) for character in text)
    total = 0
    for index, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (2 if index % 2 == 0 else 1)
        total += doubled // 10 + doubled % 10
    return f"{text}{-total % 10}"


def _equity(rng: random.Random, symbol: int, mnemos: set[str]) -> Instrument:
    mic, country = _market(rng)
    cents = int(10 ** rng.uniform(2.0, 4.4))
    tick, scale = next((tick, scale) for low, tick, scale in reversed(_TICK_BANDS) if cents >= low)
    name = _name(rng)
    return Instrument(
        symbol=symbol,
        kind=Kind.EQUITY,
        isin=isin_of(country, f"{rng.randrange(10**9):09d}"),
        mnemo=_mnemo(rng, name, mnemos),
        name=name,
        mic=mic,
        tick=tick,
        price_scale=scale,
        opening_price=max(cents * 10**scale // 100 // tick, 200) * tick,
    )


def _warrant(
    rng: random.Random, symbol: int, rank: int, equities: list[Instrument], mnemos: set[str]
) -> Instrument:
    share = equities[min(rank % len(equities), rng.randrange(len(equities)))]
    code = f"{rng.randrange(10**4):04d}{rng.choice('BCNSV')}"
    while code in mnemos:
        code = f"{rng.randrange(10**4):04d}{rng.choice('BCNSV')}"
    mnemos.add(code)
    return Instrument(
        symbol=symbol,
        kind=Kind.WARRANT,
        isin=isin_of("DE", f"000{code}{rng.randrange(10)}"),
        mnemo=code,
        name=f"{share.mnemo} {'CALL' if rng.random() < 0.6 else 'PUT'} {symbol % 1000:03d}",
        mic="XPAR",
        tick=1,
        price_scale=2,
        opening_price=rng.randrange(40, 900),
        underlying=share.symbol,
        underlying_isin=share.isin,
    )


def _index(symbol: int, rank: int) -> Instrument:
    mnemo, name, mic = _INDICES[rank]
    country = next(country for market, country, _ in _MARKETS if market == mic)
    return Instrument(
        symbol=symbol,
        kind=Kind.INDEX,
        isin=isin_of(country, f"00035{rank:04d}"),
        mnemo=mnemo,
        name=name,
        mic=mic,
        tick=1,
        price_scale=2,
        opening_price=400_000,
    )


def _market(rng: random.Random) -> tuple[str, str]:
    draw = rng.random()
    for mic, country, share in _MARKETS:
        draw -= share
        if draw < 0:
            return mic, country
    return _MARKETS[0][:2]


def _name(rng: random.Random) -> str:
    syllables = "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 3)))
    )
    return (syllables + rng.choice(_ENDINGS))[:18]


def _mnemo(rng: random.Random, name: str, taken: set[str]) -> str:
    letters = name.replace(" ", "")
    mnemo = letters[: rng.choice((2, 3, 4))]
    number = 0
    while mnemo in taken:
        number += 1
        mnemo = f"{letters[: 5 - len(str(number))]}{number}"
    taken.add(mnemo)
    return mnemo
