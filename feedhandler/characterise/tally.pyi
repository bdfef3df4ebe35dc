# What Python code sees of Tally; the meanings stand in tally.py.

from typing import Any

import numpy

from feedhandler.characterise.interarrival import Interarrival
from feedhandler.characterise.skew import Skew
from feedhandler.codecs.scanner import FeedTable

Array = numpy.ndarray[Any, Any]

TYPES_MAX: int
RECORD_HEADER_BYTES: int
MILLISECOND_NS: int
MINUTE_NS: int
STRAY_MAX: int
TOTALS: tuple[str, ...]

class Tally:
    interarrival: Interarrival
    skew: Skew
    channels: int
    channel_overflow: int
    def __init__(
        self,
        table: FeedTable,
        messages: bool = True,
        channel_keys: dict[int, int] | None = None,
    ) -> None: ...
    def take(
        self,
        data: Array,
        offset: Array,
        length: Array,
        frame_length: Array,
        time_ns: Array,
        destination: Array,
        port: Array,
    ) -> None: ...
    def columns(self) -> dict[str, Array]: ...
