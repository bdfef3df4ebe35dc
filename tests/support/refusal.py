"""The error text of a refused configuration or description, for tests."""

from collections.abc import Callable
from typing import Any

import pytest

from feedhandler.codecs import ConfigError


def refusal(call: Callable[..., object], *args: Any) -> str:
    """Return the text of the ConfigError that the call raises, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        call(*args)
    text = str(caught.value)
    assert "\n" not in text
    return text
