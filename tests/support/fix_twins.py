"""The FIX codec's modules, compiled and as interpreted twins."""

import importlib
from types import ModuleType
from typing import Any

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.fix.dictionary import Dictionary, make_table

NAMES = ("values", "framing", "datagram", "index", "encode", "entries")
_PREFIX = "feedhandler.codecs.fix."

COMPILED = {name: importlib.import_module(_PREFIX + name) for name in NAMES}
INTERPRETED = {name: load_interpreted(_PREFIX + name) for name in NAMES}
#: Both, for `twins.either`.
BOTH = {"compiled": COMPILED, "interpreted": INTERPRETED}


def of_twin(fix: dict[str, ModuleType], dictionary: Dictionary) -> Any:
    """The dictionary's table, of the twin's own type."""
    return make_table(dictionary, fix["index"].FixTable)
