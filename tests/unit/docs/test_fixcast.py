"""The table of rules of FIX over multicast names tests that exist (`docs/fixcast.md`)."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from feedhandler.fixcast.channels import parse_channels
from tests.support.checkout import CHECKOUT
from tests.support.fixcast import definition, update

PAGE = (CHECKOUT / "docs" / "fixcast.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_that_a_rule_names_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (CHECKOUT / "tests" / file).read_text()


def test_every_rule_has_a_test_or_says_that_it_is_not_ours() -> None:
    rules = re.findall(r"^\| ([A-Z]\d+) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert len(rules) > 40
    numbers = [number for number, _ in rules]
    assert len(set(numbers)) == len(numbers)
    untested = [number for number, test in rules if "test" not in test]
    assert not untested


def test_the_definition_of_the_page_can_be_read() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    channels = parse_channels(text, "page")
    found = channels.of("SMITH", "equities")
    assert found is not None
    assert found.id == "equities-1"
    assert channels.warnings == []


def test_the_python_of_the_page_publishes(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    imports, block = text.split("\n\n")
    path = tmp_path / "channels.toml"
    path.write_text(definition().replace('id = "c1"', 'id = "equities-1"'))
    body = "".join(f"    {line}\n" for line in block.splitlines())
    names: dict[str, Any] = {}
    code = f"{imports}\nasync def main(path, message, messages):\n{body}    return number, last\n"
    exec(code, names)
    many = [update("two"), update("three")]
    assert asyncio.run(names["main"](path, update("one"), many)) == (1, 3)
