"""A wrong `[book]` is refused with file, line, key and reason; a right one says what it does."""

from pathlib import Path

import pytest

from feedhandler.codecs import ConfigError, load_feed
from tests.support.descriptions import EXAMPLE, check_refused, described, written

LEVEL = """
[book]
by = "level"

[[book.rules]]
messages = ["levels"]
does = "level"
group = "points"
side = "buy"
price = "Price"
size = "Volume"
"""
AGAIN = LEVEL.partition("\n\n")[2]


def test_rules_are_resolved_to_offsets(tmp_path: Path) -> None:
    book = described(tmp_path, EXAMPLE + LEVEL).book
    assert book is not None
    assert book.does("level")
    assert not book.does("trade")
    (rule,) = book.messages[0].rules
    assert rule.price is not None
    assert (rule.price.at, rule.price.in_element, rule.price.scale_name) == (0, True, "reference")
    assert rule.symbol is not None
    assert not rule.symbol.in_element


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ('["levels"]', '["level"]', "book.rules[0].messages", "did you mean levels?"),
        ('["levels"]', "[]", "book.rules[0].messages", "names no message"),
        ('"points"', '"point"', "book.rules[0].group", "did you mean points?"),
        ('"Price"', '"Prize"', "book.rules[0].price", "did you mean Price?"),
        ('side = "buy"', "", "book.rules[0]", "level needs side"),
        ('size = "Volume"', 'size = "Volume"\nof = "Time"', "book.rules[0].of", "means nothing"),
        ('by = "level"', 'by = "order"', "book.rules[0].does", "not for a book by order"),
        ('"buy"', '{ field = "Time", buy = [1], sell = [1] }', "book.rules[0].side", "means buy"),
        ('"buy"', '{ field = "Time", buy = [], sell = [] }', "book.rules[0].side", "no value"),
        (
            AGAIN,
            AGAIN + "\n" + AGAIN,
            "book.rules[1]",
            "never fires for 'levels': rule 0 takes all of it",
        ),
        (
            'side = "buy"',
            'side = "buy"\nwhen = [{ field = "Time", in = [-1] }]',
            "book.rules[0].when",
            "-1 is no value of the field",
        ),
        (
            'side = "buy"',
            'side = "buy"\nwhen = [{ field = "Time", in = ["A"] }]',
            "book.rules[0].when",
            "'A' is no value of the field",
        ),
    ],
)
def test_a_wrong_book_is_refused(tmp_path: Path, old: str, new: str, key: str, reason: str) -> None:
    assert old in LEVEL
    check_refused(tmp_path, EXAMPLE + LEVEL, LEVEL, LEVEL.replace(old, new), key, reason)


POINT = 'group = "points"\nside = "buy"\nprice = "Price"\nsize = "Volume"\n'
PLACED = POINT + 'position = "Volume"'
QUOTE = """does = "quote"
when = [{ field = "Volume", in = [1] }]
group = "points"
bid = BID
ask = { price = "Price", size = "Volume" }
"""
SIDE = '{ price = "Price", size = "Volume" }'
UPDATE = """
[[book.rules]]
messages = ["levels"]
does = "quote_side"
group = "points"
side = "sell"
price = "Price"
size = "Volume"
of = "Volume"
"""


@pytest.mark.parametrize(
    ("rule", "key", "reason"),
    [
        (f'does = "level_change"\n{PLACED}', "rules", "without a rule that does 'level_insert'"),
        ('does = "quote_delete"\nof = "Time"', "rules", "without a rule that does 'quote'"),
        (f'does = "level_insert"\n{POINT}', "rules[0]", "level_insert needs position"),
        ('does = "directory"\ndepth = 5', "rules[0].depth", "no rule is about levels"),
        (
            f'does = "level_insert"\n{PLACED}\n\n[[book.rules]]\nmessages = ["instrument"]\n'
            'does = "directory"\ndepth = 256',
            "rules[1].depth",
            "is no depth of 1 to 255",
        ),
        (QUOTE.replace("BID", '{ price = "Price" }'), "rules[0].bid.size", "is missing"),
        (
            QUOTE.replace("BID", SIDE) + UPDATE,
            "rules[0]",
            "other rules find the quote by its of, and it has none",
        ),
        (
            QUOTE.replace("BID", SIDE) + 'of = "Volume"\n' + UPDATE + "bid = " + SIDE,
            "rules[1].bid.price",
            "means nothing where a rule does 'quote_side'",
        ),
    ],
)
def test_half_a_table_is_refused(tmp_path: Path, rule: str, key: str, reason: str) -> None:
    begin = LEVEL[: LEVEL.index("does = ")]
    check_refused(tmp_path, EXAMPLE + begin, begin, begin + rule + "\n", f"book.{key}", reason)


def test_an_unknown_key_of_a_rule_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLE + LEVEL.replace("price =", "prize ="))
    with pytest.raises(ConfigError) as error:
        load_feed(path)
    assert error.value.hint == "did you mean price?"


def test_rules_with_other_values_follow_one_another(tmp_path: Path) -> None:
    one = LEVEL.replace('side = "buy"', 'side = "buy"\nwhen = [{ field = "Time", in = [1] }]')
    other = AGAIN.replace('side = "buy"', 'side = "sell"')
    book = described(tmp_path, EXAMPLE + one + other).book
    assert book is not None
    assert len(book.messages[0].rules) == 2
