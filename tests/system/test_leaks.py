"""Memory does not grow with what was sent, or with who has come and gone: `make leaks` in small.

The bounds are tighter than those of the long campaign, for what malloc has handed out counts every
byte at once; resident memory comes in pages, of which a short run would see few.
"""

import pytest

from bench.leaks import alone, memory

#: Campaign, pieces of work, most bytes each.
SHORT = [("sends", 200_000, 0.2), ("connects", 900, 100.0), ("reconnects", 450, 100.0)]


@pytest.mark.parametrize(("name", "count", "bytes_most"), SHORT, ids=[each[0] for each in SHORT])
def test_memory_does_not_grow(name: str, count: int, bytes_most: float) -> None:
    if not memory()["malloc"]:
        pytest.skip("this C library does not say what malloc has handed out (mallinfo2)")
    grown = alone(name, count)
    assert grown["malloc"] < bytes_most, grown
