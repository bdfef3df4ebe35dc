"""Why a walk over a chunk of a capture stopped, and the same as plain numbers."""

from enum import IntEnum


class Status(IntEnum):
    """Reason for which a scanner's `scan` returned."""

    NEED_DATA = 0  # what is left of the chunk is not a whole record or block
    FULL = 1  # the columns have no room left
    DAMAGED = 2  # what stands at the returned position cannot be; `damage` says why


NEED_DATA, FULL, DAMAGED = (int(status) for status in Status)
