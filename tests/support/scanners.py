"""The scanner and what it works with (`feed_table`) as one module: compiled, and interpreted."""

from types import ModuleType

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import feed_table, scanner


def _together(*modules: ModuleType) -> ModuleType:
    made = ModuleType(modules[-1].__name__)
    for module in modules:
        vars(made).update(vars(module))
    return made


COMPILED = _together(feed_table, scanner)
INTERPRETED = _together(
    *(load_interpreted(f"feedhandler.codecs.{name}") for name in ("feed_table", "scanner"))
)
#: Both, by the names that they have in the ids of tests.
SCANNERS = {"compiled": COMPILED, "interpreted": INTERPRETED}
