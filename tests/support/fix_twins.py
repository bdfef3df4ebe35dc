"""The interpreted twins of the FIX codec's modules, which import one another, nothing compiled."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from feedhandler._compiled import allow_cimports, load_interpreted
from feedhandler.codecs.fix.dictionary import Dictionary, make_table

#: In the order in which they import one another.
NAMES = ("values", "framing", "datagram", "index", "encode", "entries")
_PREFIX = "feedhandler.codecs.fix."


@contextmanager
def _standing_for(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Have imports of these names meanwhile give these modules."""
    aliases = [f"cython.cimports.{name}" for name in modules]
    before = {name: sys.modules.pop(name, None) for name in [*modules, *aliases]}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _twins() -> dict[str, ModuleType]:
    allow_cimports()
    twins: dict[str, ModuleType] = {}
    for name in NAMES:
        full = _PREFIX + name
        with _standing_for({_PREFIX + each: twin for each, twin in twins.items()}):
            twins[name] = load_interpreted(full)
    return twins


COMPILED = {name: importlib.import_module(_PREFIX + name) for name in NAMES}
INTERPRETED = _twins()
#: For `pytest.mark.parametrize`: the modules by name, compiled and interpreted.
BOTH = [COMPILED, INTERPRETED]
IDS = ["compiled", "interpreted"]


def of_twin(fix: dict[str, ModuleType], dictionary: Dictionary) -> Any:
    """The dictionary's table, of the twin's own type."""
    return make_table(dictionary, fix["index"].FixTable)
