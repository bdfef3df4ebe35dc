"""Markers for attributes of compiled classes that Python reads or sets.

The C type of an attribute is its annotation in the class; it is C's alone, unless it stands within
`Public` or `Readonly`. `feedhandler/_declarations.py` makes Cython's declaration of it;
interpreted, the markers do nothing.
"""


class Public:
    """Mark an attribute that Python reads and sets: `x: Public[cython.int]`."""

    def __class_getitem__(cls, kind: object) -> object:
        return kind


class Readonly:
    """Mark an attribute that Python reads: `x: Readonly[cython.int]`."""

    def __class_getitem__(cls, kind: object) -> object:
        return kind
