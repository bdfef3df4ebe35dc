"""Values and names of fields that a description states: their bounds, and what is wrong with one.

The builders ask for nulls, constants, conditions of parts and of rules of books, and values of the
packet header. What is wrong is returned as the reason of a refusal; "" where nothing is.
"""

import difflib
import re
from collections.abc import Iterable

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")


def snake_case(wire_name: str) -> str:
    """Convert `SourceTimeMicroSecs` to `source_time_micro_secs`; snake_case stays as it is."""
    return "_".join(word.lower() for word in _WORD.findall(wire_name))


def bounds(bits: int, *, signed: bool = False) -> tuple[int, int]:
    """Return the least and the greatest integer of so many bits."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def fault_of_integer(value: object, bits: int, *, signed: bool = False) -> str:
    """Return why an integer field of so many bits cannot have the value."""
    least, most = bounds(bits, signed=signed)
    if isinstance(value, int) and least <= value <= most:
        return ""
    return f"{value!r} is no value of the field: {least} to {most}"


def fault_of_text(value: object, size: int) -> str:
    """Return why a text field of `size` bytes cannot have the value."""
    if isinstance(value, str) and len(value) <= size and value.isascii():
        return ""
    return f"{value!r} is no text of at most {size} character{'s' if size > 1 else ''}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest of the names; "" where none is near."""
    known = [each for each in names if each]
    near = difflib.get_close_matches(name, known, n=1)
    if not near:  # another case is as far away as another word
        near = [each for each in known if each.lower() == name.lower()]
    return f"; did you mean {near[0]}?" if near else ""
