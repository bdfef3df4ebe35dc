"""Public names of a package that are imported on first use.

Otherwise a package with many public names would load all of them in every process: the gateway
needs a queue's settings, not the queue.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`, which imports each public name on first use.

    `homes` maps names to modules, relative to `package` (`.amqp.client`: to its parent). The
    function raises `AttributeError` for any other name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
