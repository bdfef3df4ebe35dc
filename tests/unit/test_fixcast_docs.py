"""The table of rules of FIX over multicast names tests that exist (`docs/fixcast.md`)."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "fixcast.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_that_a_rule_names_exists(file: str, name: str) -> None:
    (path,) = (CHECKOUT / "tests").rglob(file)
    assert f"def {name}(" in path.read_text()


def test_every_rule_has_a_test_or_says_that_it_is_not_ours() -> None:
    rules = re.findall(r"^\| ([A-Z]\d+) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert len(rules) > 40
    numbers = [number for number, _ in rules]
    assert len(set(numbers)) == len(numbers)
    untested = [number for number, test in rules if "test" not in test]
    assert untested == ["R11"]
