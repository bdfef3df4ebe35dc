"""Compiled modules and what they share: one import for both ways to run, numbers said once."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feedhandler import _compiled
from tests.support.checkout import CHECKOUT

PACKAGE = Path(_compiled.__file__).parent


@pytest.mark.parametrize("name", ["codecs.kinds", "ingest.ring", "amqp.framing"])
def test_what_the_compiler_resolves_is_the_module_itself_when_interpreted(name: str) -> None:
    _compiled.allow_cimports()
    found = importlib.import_module(f"cython.cimports.feedhandler.{name}")
    assert found is importlib.import_module(f"feedhandler.{name}")


def test_a_wrong_cimport_is_an_error_in_the_twin_too() -> None:
    _compiled.allow_cimports()
    with pytest.raises(ImportError):
        importlib.import_module("cython.cimports.feedhandler.nothing_of_this_name")


@pytest.mark.parametrize("name", _compiled.CONSTANTS)
def test_c_has_every_number_that_the_plain_module_says(name: str) -> None:
    module = importlib.import_module(f"feedhandler.{name}")
    said = {key: n for key, n in vars(module).items() if key.isupper() and type(n) is int}
    text = (PACKAGE / f"{name.replace('.', '/')}.pxd").read_text()
    assert said
    assert {key: int(n) for key, n in re.findall(r"^    (\w+) = (-?\d+)$", text, re.M)} == said


@pytest.mark.parametrize("name", sorted(_compiled.TWINS_OF_TWINS))
def test_twins_of_twins_leave_the_modules_themselves_where_they_were(name: str) -> None:
    needed = [f"feedhandler.{each}" for each in (name, *_compiled.TWINS_OF_TWINS[name])]
    before = [importlib.import_module(each) for each in needed]
    _compiled.load_interpreted(f"feedhandler.{name}")
    for full, module in zip(needed, before, strict=True):
        package, _, child = full.rpartition(".")
        assert importlib.import_module(full) is module
        assert getattr(importlib.import_module(package), child) is module


def test_the_demo_loads_only_units_that_make_demo_compiles() -> None:
    (units,) = re.findall(r"^DEMO_UNITS := (.*)$", (CHECKOUT / "Makefile").read_text(), re.M)
    modules = "feedhandler.gateway, feedhandler.demo.showing, feedhandler.replay.exchange.simulated"
    program = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.split()
    needed = {_compiled.UNIT_OF[name] for name in loaded if name in _compiled.UNIT_OF}
    assert "amqp" in needed
    assert needed <= set(units.split())


def test_a_command_line_does_not_load_what_commands_work_with() -> None:
    """Numpy is half of what `feedhandler --help` and each Tab of a shell would wait for."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, feedhandler.cli.app; print(*sys.modules)"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert "typer" in loaded
    assert not {"numpy", "pyarrow", "proton", "pyspark", "zmq", "dpkt"} & set(loaded)
