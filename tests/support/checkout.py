"""The checkout, for tests that read its files: where it is, and its files parsed."""

import ast
import functools
import gc
from pathlib import Path

#: The folder that has `feedhandler`, `tests` and `docs`.
CHECKOUT = Path(__file__).resolve().parents[2]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The file, parsed once for all who look.

    Meanwhile nothing is collected: the collector would go through all trees again and again, and
    take twice the parser's time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        if collects:
            gc.enable()
