"""A compiled module and its interpreted twin, for tests of what has to hold of either."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from feedhandler._compiled import load_interpreted


def twins_of(module: ModuleType) -> dict[str, ModuleType]:
    """Return the compiled module and its twin, by the names that they have in the ids of tests."""
    return {"compiled": module, "interpreted": load_interpreted(module.__name__)}


def either(twins: Mapping[str, Any]) -> Any:
    """Return a fixture that gives one after the other."""

    @pytest.fixture(params=twins.values(), ids=twins)
    def twin(request: pytest.FixtureRequest) -> Any:
        return request.param

    return twin
