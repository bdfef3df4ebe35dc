"""Values of instruments' definitions, as a directory message's fields give them.

`read_term` turns the values of one key's fields, as the normaliser read them, into fields of DBN's
definition. A value that a definition has no room for, text that is longer than its place, and a
date that is none give nothing: the field stays undefined.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence

import numpy

from feedhandler.codecs.book_rules import Term
from feedhandler.codecs.dbn import DEFINITION, DEFINITION_CODES, PRICE_SCALE

#: What a field of a message gives: an integer, or the bytes of a text; None: nothing.
Raw = int | bytes | None
Values = Mapping[str, int | bytes]
_DAY_NS = 86_400 * PRICE_SCALE
_EPOCH = datetime.date(1970, 1, 1)
#: Digits that are read of a longer number: too many for any field, and fewer than Python refuses.
_DIGITS_MAX = 64
#: The decimals of prices in records.
_DECIMALS = 9
#: The least value of each integer of a definition, and the one that is undefined.
_BOUNDS = {
    name: (int(numpy.iinfo(DEFINITION[name]).min), int(numpy.iinfo(DEFINITION[name]).max))
    for name in DEFINITION.names or ()
    if DEFINITION[name].kind in "iu"
}
#: Bytes of each text; all but single characters end with a NUL.
_ROOM = {
    name: DEFINITION[name].itemsize - (name not in DEFINITION_CODES)
    for name in DEFINITION.names or ()
    if DEFINITION[name].kind == "S"
}


def read_term(term: Term, raw: Sequence[Raw]) -> Values:
    """Return the fields of `DEFINITION` that the values of a term's fields give, by name."""
    return {name: value for name, value in _READERS[term.kind](term, raw) if _fits(name, value)}


def _fits(name: str, value: int | bytes) -> bool:
    """Return whether a field of a definition has room for a value, and would not be undefined."""
    if isinstance(value, bytes):
        return 0 < len(value) <= _ROOM[name]
    least, undefined = _BOUNDS[name]
    return least <= value < undefined


_Found = list[tuple[str, int | bytes]]


def _number(term: Term, raw: Sequence[Raw]) -> _Found:
    """Read a whole number; a text's digits give it, too."""
    value = _integer(raw[0])
    return [] if value is None else [(term.name, value)]


def _price(term: Term, raw: Sequence[Raw]) -> _Found:
    """Read a number of 1e-9: the normaliser has scaled integers; digits are scaled here."""
    value = _integer(raw[0])
    if value is None:
        return []
    if isinstance(raw[0], bytes) and term.locations[0] is not None:
        decimals = term.locations[0].decimals
        value = value * 10**_DECIMALS // 10**decimals
    return [(term.name, value)]


def _whole(term: Term, raw: Sequence[Raw]) -> _Found:
    """Read a number of 1e-9 that is whole units."""
    found = _price(term, raw)
    return [
        (name, int(value) // PRICE_SCALE) for name, value in found if not int(value) % PRICE_SCALE
    ]


def _text(term: Term, raw: Sequence[Raw]) -> _Found:
    text = raw[0]
    if not isinstance(text, bytes):
        return []
    text = text.partition(b"\0")[0].strip(b" ")
    return [(term.name, text)] if text.isascii() else []


def _code(term: Term, raw: Sequence[Raw]) -> _Found:
    value = raw[0]
    found = term.codes.get(value) if isinstance(value, int) else None
    return [] if found is None else [(term.name, found.encode())]


def _constant(term: Term, raw: Sequence[Raw]) -> _Found:
    return [(term.name, term.text.encode() if term.name in _ROOM else int(term.text))]


def _moment(term: Term, raw: Sequence[Raw]) -> _Found:
    value = _integer(raw[0])
    return [] if value is None else [(term.name, value * term.unit_ns)]


def _digits(term: Term, raw: Sequence[Raw]) -> _Found:
    """Read a date whose digits are one number."""
    value = _integer(raw[0])
    if value is None or value <= 0:
        return []
    if term.kind == "yyyymm":
        return _date(term, (*divmod(value, 100), None))
    value, day = divmod(value, 100)
    year, month = divmod(value, 100)
    return _date(term, (year + 2_000 * (term.kind == "yymmdd"), month, day))


def _date(term: Term, raw: Sequence[Raw]) -> _Found:
    """Read a date by its parts; of a maturity those that are given."""
    year, month, day, *week = (_integer(each) or 0 for each in raw)
    try:
        date = datetime.date(year, month, day or 1)
    except (ValueError, OverflowError):
        return []
    if term.name == "maturity":
        parts = {"year": year, "month": month, "day": day, "week": sum(week)}
        return [(f"maturity_{part}", value) for part, value in parts.items() if value]
    return [(term.name, (date - _EPOCH).days * _DAY_NS)] if day else []


def _integer(raw: Raw) -> int | None:
    if isinstance(raw, bytes):
        digits = raw.strip(b" \0")
        return int(digits.lstrip(b"0")[:_DIGITS_MAX] or b"0") if digits.isdigit() else None
    return raw


_READERS: Mapping[str, Callable[[Term, Sequence[Raw]], _Found]] = {
    "price": _price,
    "integer": _number,
    "whole": _whole,
    "text": _text,
    "code": _code,
    "constant": _constant,
    "moment": _moment,
    "yyyymmdd": _digits,
    "yymmdd": _digits,
    "yyyymm": _digits,
    "parts": _date,
}
