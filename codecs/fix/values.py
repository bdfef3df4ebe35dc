# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Values of FIX fields in compiled code: check of their types, numbers, times.

Source: FIX 5.0 SP2, volume 1, "Data types".
"""

import cython
from cython.cimports.feedhandler.codecs.fix.kinds import (
    BOOLEAN,
    CHAR,
    COUNTRY,
    CURRENCY,
    DATE,
    DECIMAL,
    INT,
    MONTH_YEAR,
    MULTIPLE_CHAR,
    NUMBER,
    TIME,
    TIMESTAMP,
)

#: Result of `decimal_raw` for no number, or for one with more than 18 digits.
_NO_DECIMAL = cython.declare(cython.longlong, -9_000_000_000_000_000_000)
#: A time that is missing or is not a UTCTimestamp.
NO_TIME = -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digits(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, count: cython.int
) -> cython.longlong:
    """Return the number of `count` digits at `at`; far below 0 where one is no digit."""
    value: cython.longlong = 0
    index: cython.int
    for index in range(count):
        digit: cython.int = first[at + index] - 48
        if digit < 0 or digit > 9:
            return -1_000_000_000
        value = 10 * value + digit
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _days(year: cython.longlong, month: cython.longlong, day: cython.longlong) -> cython.longlong:
    """Return the days since 1970-01-01; below 0 where there is no such day, or it is earlier."""
    in_month: cython.longlong = 31
    if year < 1970 or not 1 <= month <= 12:
        return -1
    if month == 4 or month == 6 or month == 9 or month == 11:
        in_month = 30
    elif month == 2:
        in_month = 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    if not 1 <= day <= in_month:
        return -1
    # Years that begin in March, so that the leap day is the last one.
    shifted: cython.longlong = year - (month <= 2)
    month = (month + 9) % 12
    return (
        365 * shifted + shifted // 4 - shifted // 100 + shifted // 400
        + (153 * month + 2) // 5 + day - 719_469
    )  # fmt: skip


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def utc_ns(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """Return a UTCTimestamp in ns since 1970; `NO_TIME` where it is none.

    The form is YYYYMMDD-HH:MM:SS, with 1 to 12 decimals or none; decimals beyond nine are cut off.
    A leap second counts as the next one.
    """
    fraction: cython.longlong = 0
    index: cython.int
    if size < 17 or size == 18 or size > 30:
        return -1
    if first[at + 8] != 45 or first[at + 11] != 58 or first[at + 14] != 58:
        return -1
    days: cython.longlong = _days(
        _digits(first, at, 4), _digits(first, at + 4, 2), _digits(first, at + 6, 2)
    )
    seconds: cython.longlong = _clock(
        _digits(first, at + 9, 2), _digits(first, at + 12, 2), _digits(first, at + 15, 2)
    )
    if days < 0 or seconds < 0:
        return -1
    if days > 106_750:  # in 2262 the nanoseconds run out of 63 bits
        return -1
    if size > 18:
        if first[at + 17] != 46 or _digits(first, at + 18, cython.cast(cython.int, size - 18)) < 0:
            return -1
        for index in range(9):
            fraction = 10 * fraction + (first[at + 18 + index] - 48 if 18 + index < size else 0)
    return (86_400 * days + seconds) * 1_000_000_000 + fraction


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _clock(
    hours: cython.longlong, minutes: cython.longlong, seconds: cython.longlong
) -> cython.longlong:
    """Return the seconds since midnight; below 0 where there is no such time of day."""
    if not (0 <= hours <= 23 and 0 <= minutes <= 59 and 0 <= seconds <= 60):
        return -1
    return 3600 * hours + 60 * minutes + seconds


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def small_number(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    """Return the whole number of up to nine digits at `at`; below 0 where it is none, or longer."""
    value: cython.int = 0
    index: cython.Py_ssize_t
    if size < 1 or size > 9:
        return -1
    for index in range(at, at + size):
        digit: cython.int = first[index] - 48
        if digit < 0 or digit > 9:
            return -1
        value = 10 * value + digit
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _are_digits(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether these bytes are all digits, at least one."""
    index: cython.Py_ssize_t
    for index in range(at, end):
        if first[index] < 48 or first[index] > 57:
            return False
    return end > at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_decimal(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether these bytes are digits, at least one, with at most one point among them."""
    digits: cython.Py_ssize_t = 0
    points: cython.int = 0
    while at < end:
        if first[at] == 46:
            points += 1
        elif 48 <= first[at] <= 57:
            digits += 1
        else:
            return False
        at += 1
    return digits > 0 and points < 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_month_year(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the value is YYYYMM, YYYYMMDD or YYYYMMwN."""
    if size != 6 and size != 8:
        return False
    if size == 8 and first[at + 6] != 119:
        return (
            _days(_digits(first, at, 4), _digits(first, at + 4, 2), _digits(first, at + 6, 2)) >= 0
        )
    if size == 8 and not 49 <= first[at + 7] <= 53:
        return False
    month: cython.longlong = _digits(first, at + 4, 2)
    return _digits(first, at, 4) >= 0 and 1 <= month <= 12


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_time(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the value is HH:MM:SS, with 1 to 12 decimals or none."""
    if size < 8 or size == 9 or size > 21:
        return False
    if first[at + 2] != 58 or first[at + 5] != 58:
        return False
    if _clock(_digits(first, at, 2), _digits(first, at + 3, 2), _digits(first, at + 6, 2)) < 0:
        return False
    return size == 8 or (first[at + 8] == 46 and _are_digits(first, at + 9, at + size))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _are_capitals(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether these bytes are all capital letters."""
    while at < end and 65 <= first[at] <= 90:
        at += 1
    return at == end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _are_characters(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the value is single characters with single spaces between."""
    index: cython.Py_ssize_t = 0
    while index < size and (first[at + index] == 32) == (index % 2 == 1):
        index += 1
    return size % 2 == 1 and index == size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_rare(
    kind: cython.int, first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Return `check_value` of the types that few fields have."""
    if kind == MULTIPLE_CHAR:
        return _are_characters(first, at, size)
    if kind == DATE:
        return (
            size == 8
            and _days(_digits(first, at, 4), _digits(first, at + 4, 2), _digits(first, at + 6, 2))
            >= 0
        )
    if kind == MONTH_YEAR:
        return _is_month_year(first, at, size)
    if kind == CURRENCY:
        return size == 3 and _are_capitals(first, at, at + 3)
    if kind == COUNTRY:
        return size == 2 and _are_capitals(first, at, at + 2)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_value(
    kind: cython.int, first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the value at `at` is of type `kind` (`feedhandler.codecs.fix.kinds`)."""
    if kind == DECIMAL:
        sign: cython.Py_ssize_t = first[at] == 45
        return _is_decimal(first, at + sign, at + size)
    if kind == INT:
        sign = first[at] == 45
        return _are_digits(first, at + sign, at + size)
    if kind == NUMBER:
        return _are_digits(first, at, at + size)
    if kind == CHAR:
        return size == 1
    if kind == BOOLEAN:
        return size == 1 and (first[at] == 89 or first[at] == 78)
    if kind == TIME:
        return _is_time(first, at, size)
    if kind == TIMESTAMP:
        return utc_ns(first, at, size) >= 0
    return _check_rare(kind, first, at, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decimal_raw(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """Return the digits of a decimal number as one integer, its sign included, the point left out.

    `_NO_DECIMAL` where it has more than 18 digits or is no number.
    """
    value: cython.longlong = 0
    digits: cython.int = 0
    sign: cython.Py_ssize_t = size > 0 and first[at] == 45
    index: cython.Py_ssize_t
    if not _is_decimal(first, at + sign, at + size):
        return _NO_DECIMAL
    for index in range(at + sign, at + size):
        if first[index] == 46:
            continue
        # Leading zeros do not count as digits.
        digits += digits > 0 or first[index] != 48
        if digits > 18:
            return _NO_DECIMAL
        value = 10 * value + (first[index] - 48)
    return -value if sign else value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decimal_places(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    """Return how many digits are behind the point of a decimal number."""
    index: cython.Py_ssize_t
    for index in range(size):
        if first[at + index] == 46:
            return size - index - 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def time_of_day_ns(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """Return a UTCTimeOnly in ns since midnight, decimals beyond nine cut off; else `NO_TIME`."""
    fraction: cython.longlong = 0
    index: cython.int
    if not _is_time(first, at, size):
        return -1
    seconds: cython.longlong = _clock(
        _digits(first, at, 2), _digits(first, at + 3, 2), _digits(first, at + 6, 2)
    )
    for index in range(9, 18):
        fraction = 10 * fraction + (first[at + index] - 48 if index < size else 0)
    return seconds * 1_000_000_000 + fraction
