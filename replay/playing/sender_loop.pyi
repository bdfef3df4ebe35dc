import enum
from typing import Any

import numpy as np

SPIN_NS: int
SPIN_MORE_NS: int
SPIN_LESS_NS: int
SPIN_LEAP_NS: int
POLL_NS: int
BEHIND_NS: int
NO_BUFFER_WAIT_NS: int
NO_BUFFER_MAX_NS: int

class Progress(enum.IntEnum):
    SENT = 0
    BYTES = 1
    BEHIND = 2
    LATENESS_MAX_NS = 3
    LATENESS_SUM_NS = 4
    WOULD_BLOCK = 5
    NO_BUFFERS = 6
    SYSTEM_CALLS = 7
    TOO_LONG = 8

class SendLoop:
    @property
    def progress(self) -> np.ndarray[Any, Any]: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def holding(self) -> bool: ...
    @property
    def shift_ns(self) -> int: ...
    def stop(self) -> None: ...
    def drop(self) -> None: ...
    def take(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
