# What Python code sees of the scale; the meanings stand in scale.py.

from typing import Any

import numpy

STEPS: int
FIRST_POWER: int
LAST_POWER: int
BUCKETS: int

def bucket_of(value_ns: int) -> int: ...
def lower_bounds() -> numpy.ndarray[Any, Any]: ...
