"""Public names of a package that are imported on first use.

Otherwise a package with many public names would load all of them in every process: the gateway
needs a queue's settings, not the queue.

The names stand once, where type checkers look for them, as re-exports in the package's `__init__`:

    if TYPE_CHECKING:
        from feedhandler.journal.reading import Item as Item

    __getattr__ = lazy_names(__name__)

The list of a package's `__all__` will do in place of `as`, and must where the name changes.
"""

import functools
import importlib
import sys
from collections.abc import Callable

TYPE_CHECKING = False  # `typing` is not imported: see `feedhandler/__init__.py`
if TYPE_CHECKING:
    from typing import Any


def lazy_names(package: str) -> "Callable[[str], Any]":
    """Make a package's `__getattr__`, which imports each public name on first use.

    Public are the names that its `__init__` imports beneath `if TYPE_CHECKING`; `__all__` lists
    them. The function raises `AttributeError` for any other name.
    """

    @functools.cache
    def homes() -> dict[str, tuple[str, str]]:
        return _imported_for_types(str(sys.modules[package].__file__))

    def get(name: str) -> "Any":
        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, its_name = homes()[name]
        value = getattr(importlib.import_module(module), its_name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def _imported_for_types(path: str) -> dict[str, tuple[str, str]]:
    """Return what a file imports beneath `if TYPE_CHECKING`: module and name there by name here."""
    import ast

    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return {
        alias.asname or alias.name: (str(statement.module), alias.name)
        for block in tree.body
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
