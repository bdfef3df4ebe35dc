"""Public names of a package that are imported when they are first used.

A package whose front door offers much would otherwise bring all of it into every process: the
gateway needs a queue's settings, not the queue.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: each public name comes from the module named beside it.

    `homes` maps names to modules, relative to `package` (`.amqp.client`: of its parent's). Raises
    `AttributeError` for any other.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
