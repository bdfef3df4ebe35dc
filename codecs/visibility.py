"""How Python sees an attribute of a compiled class.

The C type of an attribute is its annotation in the class; it is C's alone, unless it stands within
`Public` or `Readonly`. What Cython needs to know of it follows from there
(`feedhandler/_declarations.py`); interpreted, the annotations say the same and do nothing.
"""


class Public:
    """Mark an attribute that Python reads and sets: `x: Public[cython.int]`."""

    def __class_getitem__(cls, kind: object) -> object:
        return kind


class Readonly:
    """Mark an attribute that Python reads: `x: Readonly[cython.int]`."""

    def __class_getitem__(cls, kind: object) -> object:
        return kind
