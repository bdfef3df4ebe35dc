"""The generated pages of docs/ are those that the code would write now, and leave nothing out."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedhandler.config import loopback_config
from feedhandler.counters import ChannelCounter, LineCounter, NodeCounter, RecorderCounter
from feedhandler.gateway import Gateway
from feedhandler.retrans.recovery import COUNTS
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import TABLE, Action, Input, State
from tests.support.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
sys.path.insert(0, str(DOCS / "site"))
reference, reference_recovery = map(importlib.import_module, ("reference", "reference_recovery"))


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_would_write(name: str) -> None:
    assert (DOCS / name).read_text() == reference.PAGES[name](), "run `make docs`"


def test_every_counter_has_a_meaning() -> None:
    page = reference.counters()
    for scope in (LineCounter, ChannelCounter, NodeCounter, RecorderCounter):
        for counter in scope:
            assert counter.meaning
            assert f"| `{counter.name.lower()}` | {counter.meaning}" in page


def keys_of(value: Any) -> Iterator[str]:
    """Every key in a snapshot, but not the lines' own names."""
    if isinstance(value, list):
        for each in value:
            yield from keys_of(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(list(inner.values()) if key == "lines" else inner)


def test_every_key_of_a_snapshot_is_described() -> None:
    page = reference.counters()
    found = set(keys_of(Gateway(loopback_config()).snapshot()))
    assert {"time_ns", "arbitration", "won", "p99", "queued_bytes"} <= found
    assert not {key for key in found if f"`{key}`" not in page}


def test_the_pages_are_written_into_the_folder_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(reference.PAGES)
    assert capsys.readouterr().out.count("written: ") == len(reference.PAGES)


def test_the_diagram_has_every_arrow_between_two_states_and_no_other() -> None:
    drawn = set()
    for line in reference_recovery.diagram().splitlines()[2:]:
        arrow, inputs = line.strip().split(": ")
        state, after = arrow.split(" --> ")
        drawn |= {(State[state], Input[given], State[after]) for given in inputs.split(", ")}
    assert drawn == {
        (state, given, after)
        for state, rules in TABLE.items()
        for given, rule in rules.items()
        for after in rule.next
        if after is not state
    }


def test_recoverys_page_describes_every_input_action_setting_and_counter() -> None:
    page = reference.PAGES["recovery.md"]()
    names = {*RecoverySettings.__struct_fields__, *COUNTS}
    names |= {each.name for each in Input} | {each.name for each in Action}
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert names == {row[0].strip("| `") for row in rows}
    assert all(row[-1].strip("| ") for row in rows)
