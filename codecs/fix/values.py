# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Values of FIX fields in compiled code: times.

Source: FIX 5.0 SP2, volume 1, "Data types".
"""

import cython

#: A time that is missing or is not a UTCTimestamp.
NO_TIME = -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digits(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, count: cython.int
) -> cython.longlong:
    """The number of `count` digits at `at`; far below 0 where one is no digit."""
    value: cython.longlong = 0
    digit: cython.int
    place: cython.int
    for place in range(count):
        digit = first[at + place] - 48
        if digit < 0 or digit > 9:
            return -1_000_000_000
        value = 10 * value + digit
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _days(year: cython.longlong, month: cython.longlong, day: cython.longlong) -> cython.longlong:
    """Days since 1970-01-01; below 0 where there is no such day from then on."""
    in_month: cython.longlong = 31
    shifted: cython.longlong
    if year < 1970 or not 1 <= month <= 12:
        return -1
    if month == 4 or month == 6 or month == 9 or month == 11:
        in_month = 30
    elif month == 2:
        in_month = 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    if not 1 <= day <= in_month:
        return -1
    # Years that begin in March, so that the leap day is the last one.
    shifted = year - (month <= 2)
    month = (month + 9) % 12
    return (
        365 * shifted + shifted // 4 - shifted // 100 + shifted // 400
        + (153 * month + 2) // 5 + day - 719_469
    )  # fmt: skip


def utc_ns(first, at, size):
    """A UTCTimestamp (YYYYMMDD-HH:MM:SS, with 1 to 12 decimals or none) in ns since 1970, decimals
    beyond nine cut off; `NO_TIME` where it is none. A leap second counts as the next one."""
    days: cython.longlong
    seconds: cython.longlong
    fraction: cython.longlong = 0
    place: cython.int
    if size < 17 or size == 18 or size > 30:
        return -1
    if first[at + 8] != 45 or first[at + 11] != 58 or first[at + 14] != 58:
        return -1
    days = _days(_digits(first, at, 4), _digits(first, at + 4, 2), _digits(first, at + 6, 2))
    seconds = _clock(
        _digits(first, at + 9, 2), _digits(first, at + 12, 2), _digits(first, at + 15, 2)
    )
    if days < 0 or seconds < 0:
        return -1
    if days > 106_750:  # in 2262 the nanoseconds run out of 63 bits
        return -1
    if size > 18:
        if first[at + 17] != 46 or _digits(first, at + 18, cython.cast(cython.int, size - 18)) < 0:
            return -1
        for place in range(9):
            fraction = 10 * fraction + (first[at + 18 + place] - 48 if 18 + place < size else 0)
    return (86_400 * days + seconds) * 1_000_000_000 + fraction


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _clock(
    hours: cython.longlong, minutes: cython.longlong, seconds: cython.longlong
) -> cython.longlong:
    """Seconds since midnight; below 0 where there is no such time of day."""
    if not (0 <= hours <= 23 and 0 <= minutes <= 59 and 0 <= seconds <= 60):
        return -1
    return 3600 * hours + 60 * minutes + seconds
