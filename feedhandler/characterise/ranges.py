"""Sets of numbers as arrays of ranges: normalised, united, counted. No I/O.

A set is an int64 or uint64 array of shape (n, 2), each row a range `[first, after)`. It is *normal*
where its ranges rise and neither touch nor overlap.
"""

from typing import Any

import numpy as np

Ranges = np.ndarray[Any, Any]

#: The empty set.
NOTHING: Ranges = np.zeros((0, 2), np.int64)


def normal(ranges: Ranges) -> Ranges:
    """Normalise the set: ranges in rising order that neither touch nor overlap."""
    if not len(ranges):
        return ranges.reshape(0, 2)
    ordered = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))]
    reach = np.maximum.accumulate(ordered[:, 1])
    fresh = np.flatnonzero(ordered[1:, 0] > reach[:-1]) + 1
    starts = np.concatenate([[0], fresh])
    ends = np.concatenate([fresh - 1, [len(ordered) - 1]])
    return np.stack([ordered[starts, 0], reach[ends]], axis=1)


def count(ranges: Ranges) -> int:
    """Count the numbers in normal ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum()) if len(ranges) else 0


def union(*sets: Ranges) -> Ranges:
    """Return the numbers that are in any of the sets, normal."""
    return normal(np.concatenate([each.reshape(-1, 2) for each in sets]))


def gaps(ranges: Ranges, first: int, after: int) -> int:
    """Count the stretches of `[first, after)` missing from normal ranges that lie within it."""
    if not len(ranges):
        return int(after > first)
    at_the_ends = int(ranges[0, 0]) > first, int(ranges[-1, 1]) < after
    return len(ranges) - 1 + sum(at_the_ends)


def within(numbers: Ranges, ranges: Ranges) -> Ranges:
    """Return which of the numbers are in normal ranges (bool[n])."""
    if not len(ranges):
        return np.zeros(len(numbers), bool)
    index = np.searchsorted(ranges[:, 0], numbers, side="right") - 1
    return (index >= 0) & (numbers < ranges[index, 1])


def both(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two normal sets, normal."""
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    counts = np.maximum(0, np.searchsorted(other[:, 0], one[:, 1], side="left") - first)
    mine = np.repeat(np.arange(len(one)), counts)
    theirs = np.arange(len(mine)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.stack(
        [
            np.maximum(one[mine, 0], other[theirs, 0]),
            np.minimum(one[mine, 1], other[theirs, 1]),
        ],
        axis=1,
    )


def minus(one: Ranges, other: Ranges) -> Ranges:
    """Return the numbers of a normal set that are not in another, normal."""
    if not len(one) or not len(other):
        return one
    starts = np.concatenate([[min(one[0, 0], other[0, 0])], other[:, 1]])
    ends = np.concatenate([other[:, 0], [max(one[-1, 1], other[-1, 1])]])
    rest = np.stack([starts, ends], axis=1)
    return both(one, rest[ends > starts])
