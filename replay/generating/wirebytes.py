"""Big-endian numbers and whole stretches of bytes, written in place.

The interpreted twin of the inline functions in `wirebytes.pxd`, which the compiled generator
uses. Both raise `IndexError` for an offset outside the buffer; numbers are cut to their size.
"""


def put2(data: memoryview, at: int, value: int) -> int:
    """Write the lower 16 bits of `value`, high byte first."""
    data[at] = value >> 8 & 0xFF
    data[at + 1] = value & 0xFF
    return 0


def put4(data: memoryview, at: int, value: int) -> int:
    """Write the lower 32 bits of `value`, high byte first."""
    data[at] = value >> 24 & 0xFF
    data[at + 1] = value >> 16 & 0xFF
    data[at + 2] = value >> 8 & 0xFF
    data[at + 3] = value & 0xFF
    return 0


def copy(to: memoryview, at: int, source: memoryview, start: int, size: int) -> int:
    """Copy `source[start:start + size]` to `to[at:]`."""
    if size < 0 or at < 0 or start < 0 or at + size > len(to) or start + size > len(source):
        raise IndexError("bytes outside the buffer")
    to[at : at + size] = source[start : start + size]
    return 0
