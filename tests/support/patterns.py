"""Patterns matched by a regular expression each: what the trie is held against."""

import re
from functools import lru_cache

#: Every word carries its own leading dot, so that `#` may stand for none.
_PARTS = {"*": r"\.[^.]+", "#": r"(?:\.[^.]+)*"}


@lru_cache(maxsize=4096)
def _expression(pattern: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("".join(_PARTS.get(word, re.escape("." + word)) for word in pattern))


def matches(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Return whether the pattern's words match the key's."""
    return bool(_expression(pattern).fullmatch("".join("." + word for word in words)))
