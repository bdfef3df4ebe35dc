"""The `definition` of a directory rule, checked and resolved: which fields give a contract's terms.

Keys are the names of DBN's definition (`codecs.dbn.DEFINITION`), and `maturity` for the month or
the date that names a contract. An unknown key is refused, with the nearest known one; so is a
sub-key that means nothing for its key, and a missing one.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from feedhandler.codecs.book_rules import FieldLocation, Term, TermKind
from feedhandler.codecs.dbn import DEFINITION, DEFINITION_CODES
from feedhandler.codecs.description import BookRuleDescription, TermDescription
from feedhandler.codecs.field_lookup import FieldLookup
from feedhandler.codecs.field_values import nearest
from feedhandler.codecs.prices import SCALE_MAX
from feedhandler.codecs.times import UNIT_NS
from feedhandler.codecs.toml_text import WrongKey, convert, path_text

#: Keys of prices and of other numbers in units of 1e-9.
PRICES = (
    "min_price_increment", "display_factor", "high_limit_price", "low_limit_price",
    "max_price_variation", "unit_of_measure_qty", "min_price_increment_amount", "price_ratio",
    "strike_price",
)  # fmt: skip
#: Keys of whole numbers. A rule's `depth` gives `market_depth`.
INTEGERS = (
    "min_lot_size", "min_lot_size_round_lot", "min_lot_size_block", "min_trade_vol",
    "max_trade_vol", "contract_multiplier", "contract_multiplier_unit", "original_contract_size",
    "underlying_id", "market_segment_id", "appl_id", "inst_attrib_value",
    "decay_quantity", "decay_start_date", "main_fraction", "sub_fraction", "price_display_format",
    "underlying_product", "flow_schedule_type", "tick_rule",
)  # fmt: skip
#: Keys of text.
TEXTS = (
    "raw_symbol", "currency", "settl_currency", "strike_price_currency", "security_type",
    "secsubtype", "exchange", "group", "asset", "underlying", "unit_of_measure", "cfi",
)  # fmt: skip
#: Keys of dates, and the forms that each may have.
_UNITS = {**UNIT_NS, "days": 86_400 * UNIT_NS["s"]}
_TIMES = ("yyyymmdd", "yymmdd", *_UNITS)
DATES: Mapping[str, tuple[str, ...]] = {
    "expiration": _TIMES,
    "activation": _TIMES,
    "maturity": ("yyyymmdd", "yymmdd", "yyyymm"),
}
#: All keys.
KEYS = (*PRICES, *INTEGERS, *TEXTS, *DEFINITION_CODES, *DATES)
_PARTS = ("year", "month", "day", "week")


class DefinitionBuilder:
    """Builds the terms of one rule, for one layout."""

    def __init__(self, key: str, look: FieldLookup) -> None:
        self.key = f"{key}.definition"
        self.look = look

    def terms(self, rule: BookRuleDescription) -> tuple[Term, ...]:
        """Resolve the keys of a rule. Raises `ConfigError`."""
        found = []
        for name, given in rule.definition.items():
            key = f"{self.key}.{name}"
            if name not in KEYS:
                self.look.refuse(key, f"a definition has no {name!r}{nearest(name, KEYS)}")
            if name in DEFINITION_CODES and isinstance(given, str):
                found.append(Term(name, "constant", text=self._word(key, name, given)))
            else:
                described = self._described(key, given)
                self._check_keys(key, name, described)
                found.append(self._term(key, name, described))
        if isinstance(rule.depth, str):
            place = self.look.number(f"{self.key.rpartition('.')[0]}.depth", rule.depth)
            found.append(Term("market_depth", "integer", (place,)))
        elif rule.depth:
            found.append(Term("market_depth", "constant", text=str(rule.depth)))
        return tuple(found)

    def _described(self, key: str, given: Any) -> TermDescription:
        """Return a key's value as a table; the name of a field alone is short for one."""
        if isinstance(given, str):
            return TermDescription(field=given)
        if not isinstance(given, dict):
            self.look.refuse(key, "wants the name of a field, or a table")
        try:
            return convert(given, TermDescription)
        except WrongKey as wrong:
            hint = f"; {wrong.hint}" if wrong.hint and wrong.hint not in wrong.reason else ""
            self.look.refuse(f"{key}.{path_text(wrong.path)}", wrong.reason + hint)

    def _check_keys(self, key: str, name: str, given: TermDescription) -> None:
        """Refuse a term with sub-keys that mean nothing for it, or without those it needs."""
        if bool(given.field) == bool(given.year):
            self.look.refuse(key, "needs field" if name not in DATES else "needs field, or year")
        used = {"field", "at", "size", "none"}
        if name in DATES:
            used |= {"form"} if given.field else {"year", "month", "day"}
            used |= {"week"} if name == "maturity" else set()
        elif name in PRICES or name in INTEGERS:
            used.add("scale")
        else:
            used.add("codes")
        for each in msgspec.structs.fields(given):
            if each.name not in used and getattr(given, each.name) not in ("", 0, None, [], {}):
                self.look.refuse(f"{key}.{each.name}", f"means nothing of {name}")
        if name in DEFINITION_CODES and not given.codes:
            self.look.refuse(
                key, f"needs codes: which values mean {_listed(DEFINITION_CODES[name])}"
            )
        if name in DATES and given.field and given.form not in DATES[name]:
            self.look.refuse(key, f"needs form: {_listed(DATES[name])}")
        if given.year and not (given.month and (given.day or name == "maturity")):
            self.look.refuse(key, "needs month" if not given.month else "needs day")

    def _term(self, key: str, name: str, given: TermDescription) -> Term:
        """Resolve a term whose keys have been checked."""
        if given.year:
            places = tuple(
                self.look.number(f"{key}.{part}", getattr(given, part))
                if getattr(given, part)
                else None
                for part in _PARTS
            )
            return Term(name, "parts", places)
        place = self._place(key, given)
        none = (self.look.test(key, given.field, given.none),) if given.none else ()
        if given.codes:
            return Term(name, "code", (place,), none, codes=self._codes(key, name, place, given))
        if name in TEXTS:
            if not place.text:
                self.look.refuse(key, f"{given.field!r} is no text: say with codes what it means")
            return Term(name, "text", (place,), none)
        if place.floating and name not in PRICES:
            self.look.refuse(key, f"{given.field!r} is floating point, which prices may be")
        if given.form in _UNITS:
            return Term(name, "moment", (place,), none, unit_ns=_UNITS[given.form])
        if given.form:
            return Term(name, cast(TermKind, given.form), (place,), none)  # one of `DATES[name]`
        return Term(name, self._kind(name, place), (place,), none)

    def _kind(self, name: str, place: FieldLocation) -> TermKind:
        if name in PRICES:
            return "price"
        has_scale = place.decimals or place.scale_location or place.scale_name
        return "whole" if has_scale else "integer"

    def _place(self, key: str, given: TermDescription) -> FieldLocation:
        """Return the location of a term's field, or of the part of its text, with its scale."""
        place = self.look.term(key, given.field)
        if given.at or given.size:
            if not place.text:
                self.look.refuse(
                    key, f"{given.field!r} is no text, of which at and size are a part"
                )
            if not (given.at >= 0 and 0 < given.size <= place.size - given.at):
                self.look.refuse(key, f"at and size are not within the {place.size} of the text")
            place = msgspec.structs.replace(place, at=place.at + given.at, size=given.size)
        if given.scale is None:
            return place
        if isinstance(given.scale, str):
            if place.text:
                self.look.refuse(f"{key}.scale", "of digits is their number of decimals")
            return self.look.scaled_by(f"{key}.scale", place, given.scale)
        if not 0 <= given.scale <= SCALE_MAX:
            self.look.refuse(f"{key}.scale", f"is not within 0..{SCALE_MAX}")
        return msgspec.structs.replace(
            place, decimals=given.scale, scale_location=None, scale_codes=(), scale_name=""
        )

    def _codes(
        self, key: str, name: str, place: FieldLocation, given: TermDescription
    ) -> dict[int, str]:
        """Return the definition's text for each value of the field."""
        if place.size > 8:
            self.look.refuse(key, f"{given.field!r} has more than 8 bytes")
        codes: dict[int, str] = {}
        for word, labels in given.codes.items():
            text = self._word(f"{key}.codes", name, word)
            for label in labels:
                for value in self.look.values(f"{key}.codes", place, label):
                    if codes.setdefault(value, text) != text:
                        self.look.refuse(f"{key}.codes", f"{label!r} means two things")
        if not codes:
            self.look.refuse(f"{key}.codes", "names no value")
        return codes

    def _word(self, key: str, name: str, word: str) -> str:
        """Return the definition's text for a word of the description."""
        words = DEFINITION_CODES.get(name)
        if words is not None and word not in words:
            self.look.refuse(key, f"{name} is not {word!r}{nearest(word, words) or _or(words)}")
        text = word if words is None else words[word]
        room = DEFINITION[name].itemsize - (words is None)
        if not text or len(text.encode()) > room:
            self.look.refuse(key, f"{word!r} is no text of at most {room} characters")
        return text


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


def _or(words: Iterable[str]) -> str:
    return f", but {_listed(words)}"
