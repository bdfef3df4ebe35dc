# What Python code sees of Skew; the meanings stand in skew.py.

from typing import Any

import numpy

Array = numpy.ndarray[Any, Any]

RING: int
APART_NS_MAX: int
LEFT_MAX: int
CHANNELS_MAX: int

class Skew:
    services: int
    pairs: int
    left: int
    left_behind: int
    def add_service(self) -> int: ...
    def note(self, service: int, channel: int, number: int, time_ns: int) -> int: ...
    def histograms(self) -> dict[str, Array]: ...
    def leftovers(self) -> dict[str, Array]: ...
