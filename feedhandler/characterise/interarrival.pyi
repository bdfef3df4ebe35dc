# What Python code sees of Interarrival; the meanings stand in interarrival.py.

from typing import Any

import numpy

Array = numpy.ndarray[Any, Any]

SYMBOLS_MAX: int

class Interarrival:
    rows: int
    cells: int
    overflow: int
    def note(self, cell: int, channel: int, symbol: int, time_ns: int) -> int: ...
    def know(self, cell: int) -> int: ...
    def columns(self) -> dict[str, Array]: ...
    def histograms(self) -> dict[str, Array]: ...
