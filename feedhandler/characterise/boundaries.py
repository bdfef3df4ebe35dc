"""Record boundaries of a classic capture: where one may be, where a walk ends. No I/O, compiled.

Nothing in a classic capture marks a record's beginning: a payload may hold bytes that look like
records. `find_boundary` therefore only guesses, by a chain of `CHAIN` records that all could be;
its caller must check that each stretch ends where the next begins (`slices.Stitcher`). `walk` goes
from record to record without looking at frames.
"""

import cython
from cython.cimports.feedhandler.replay.captures.frames import read_u32

from feedhandler.replay.captures.frames import RECORD_BYTES_MAX
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES

#: Records in a row that make a boundary credible.
CHAIN = 8
#: How far from the capture's first second a record's may lie: a recording of a week.
SECONDS_APART_MAX = 7 * 86_400

_CHAIN = cython.declare(cython.int, CHAIN)
_APART = cython.declare(cython.longlong, SECONDS_APART_MAX)
_RECORD_MAX = cython.declare(cython.longlong, RECORD_BYTES_MAX)
_HEADER = cython.declare(cython.Py_ssize_t, RECORD_HEADER_BYTES)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _could_begin(
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    big: cython.bint,
    ticks: cython.longlong,
    second: cython.longlong,
) -> cython.longlong:
    """Return the size of the record that could begin at `at`, with its header; 0 if none could."""
    captured: cython.longlong = read_u32(data, at + 8, big)
    original: cython.longlong = read_u32(data, at + 12, big)
    apart: cython.longlong = read_u32(data, at, big) - second
    if captured > original or captured > _RECORD_MAX or original > _RECORD_MAX or captured == 0:
        return 0
    if read_u32(data, at + 4, big) >= ticks or apart > _APART or apart < -_APART:
        return 0
    return captured + _HEADER


def find_boundary(
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    big_endian: cython.bint,
    ticks: cython.longlong,
    second: cython.longlong,
) -> int:
    """Find the first position in `data[start:end]` where a chain of records could begin.

    Returns -1 where there is none. A chain that reaches the end of `data` counts. `ticks`: per
    second of the capture's times; `second`: of the capture's first record. Raises `IndexError` for
    positions outside `data`.
    """
    if start < 0 or end > len(data):
        raise IndexError("start and end must lie within data")
    at: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    with cython.nogil:
        for at in range(start, end):
            next_at: cython.Py_ssize_t = at
            count: cython.int = 0
            while count < _CHAIN and next_at + _HEADER <= len(data):
                size: cython.longlong = _could_begin(data, next_at, big_endian, ticks, second)
                if size == 0:
                    break
                next_at += size
                count += 1
            else:
                if count:
                    found = at
                    break
    return found


def walk(
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    big_endian: cython.bint,
) -> int:
    """Walk from the record at `start` to the first that begins at `end` or later.

    Returns its position. Stops before a record that is not whole or whose length is above the
    limit, as a reader does. Raises `IndexError` for positions outside `data`.
    """
    if start < 0 or end > len(data):
        raise IndexError("start and end must lie within data")
    at: cython.Py_ssize_t = start
    with cython.nogil:
        while at < end and at + _HEADER <= len(data):
            captured: cython.longlong = read_u32(data, at + 8, big_endian)
            if captured > _RECORD_MAX or at + _HEADER + captured > len(data):
                break
            at += _HEADER + captured
    return at
