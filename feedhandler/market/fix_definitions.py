"""Definitions of instruments in FIX: what SecurityDefinition, SecurityList and their updates say.

Tags are those of FIX 5.0 SP2; of a tag that comes several times in a security the first counts. A
value that is no number, date or code of its tag gives nothing.
"""

from collections.abc import Mapping, Sequence

from feedhandler.codecs.book_rules import Term
from feedhandler.codecs.fix.market_entries import decimal_of
from feedhandler.market.definitions import Values, read_term

#: NoRelatedSym: the count in front of the securities of a list.
_COUNT = 146
#: DBN's field of each tag with a number of 1e-9, a whole number, and text.
_NUMBERS = {
    969: "min_price_increment", 1146: "min_price_increment_amount", 1149: "high_limit_price",
    1148: "low_limit_price", 1143: "max_price_variation", 1147: "unit_of_measure_qty",
    202: "strike_price",
}  # fmt: skip
_INTEGERS = {
    561: "min_lot_size_round_lot", 562: "min_trade_vol", 1140: "max_trade_vol",
    231: "contract_multiplier",
}  # fmt: skip
_TEXTS = {
    15: "currency", 120: "settl_currency", 947: "strike_price_currency", 167: "security_type",
    762: "secsubtype", 207: "exchange", 1151: "group", 461: "cfi", 996: "unit_of_measure",
    311: "underlying", 980: "security_update_action",
}  # fmt: skip
#: SecurityType (167), and PutOrCall (201) of options.
_CLASSES = {b"FUT": b"F", b"CS": b"K", b"PS": b"K", b"0": b"P", b"1": b"C"}
_UPDATES = (b"A", b"M", b"D")
_MATURITY_DATE, _MONTH_YEAR = 541, 200
_TERMS = {
    **{tag: Term(name, "price") for tag, name in _NUMBERS.items()},
    **{tag: Term(name, "whole") for tag, name in _INTEGERS.items()},
    **{tag: Term(name, "text") for tag, name in _TEXTS.items()},
    _MATURITY_DATE: Term("expiration", "yyyymmdd"),
}
_MATURITY = Term("maturity", "parts")


def securities(found: Sequence[tuple[int, bytes]], is_list: bool) -> list[dict[int, bytes]]:
    """Return the fields of each security that a message defines, by tag."""
    tags = [tag for tag, _ in found]
    begin = tags.index(_COUNT) + 1 if is_list and _COUNT in tags else 0
    delimiter = tags[begin] if is_list and begin < len(tags) else 0
    made: list[dict[int, bytes]] = [] if is_list else [{}]
    for tag, value in found[begin:]:
        if tag == delimiter:
            made.append({})
        made[-1].setdefault(tag, value)
    return made


def terms_of(said: Mapping[int, bytes]) -> dict[str, int | bytes]:
    """Return what a security's fields say, by the names of `codecs.dbn.DEFINITION`."""
    found: dict[str, int | bytes] = {}
    for tag, term in _TERMS.items():
        if tag in said and (tag != 980 or said[tag] in _UPDATES):
            found.update(_read(term, said[tag]))
    kind = said.get(201, b"") if said.get(167) == b"OPT" else said.get(167, b"")
    if kind in _CLASSES:
        found["instrument_class"] = _CLASSES[kind]
    text = said.get(_MONTH_YEAR, b"")  # YYYYMM, YYYYMMDD or YYYYMMwN
    day, week = (b"", text[7:]) if text[6:7] == b"w" else (text[6:], b"")
    found.update(read_term(_MATURITY, (text[:4], text[4:6], day, week)))
    return found


def _read(term: Term, text: bytes) -> Values:
    if term.kind not in ("price", "whole"):
        return read_term(term, (text,))
    number = decimal_of(text)
    return {} if number is None else read_term(term, (int(number * 10**9),))
