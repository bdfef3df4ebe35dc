# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Ends of messages in a part of a packet, found by the messages' own sizes alone."""

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable
from cython.cimports.feedhandler.codecs.fix_scanning import message_size_at
from cython.cimports.feedhandler.codecs.scanner import message_size_by_type, padded


@cython.ccall
@cython.nogil
def message_size(
    table: FeedTable, data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message that begins at `at`; 0 where none ends by `end`."""
    size: cython.Py_ssize_t = 0
    index: cython.int
    if at < 0 or end > len(data) or end - at < table.message_header_size or at >= end:
        return 0
    if table.fix:
        return message_size_at(data, at, end)
    for index in range(table.message_length_size):
        behind: cython.int = index if table.big_endian else table.message_length_size - 1 - index
        size = (size << 8) | data[at + table.message_length_at + behind]
    size += table.message_length_add
    if table.sized:
        size = message_size_by_type(table, data, at, end)
    elif table.message_length_size == 0:
        size = end - at
    if size < table.message_header_size or size > end - at:
        return 0
    return padded(table, size, end - at) if table.odd_messages else size


@cython.ccall
@cython.nogil
@cython.exceptval(-2, check=False)
def message_end(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.ulonglong,
) -> cython.Py_ssize_t:
    """Return the end of `count` consecutive messages from `at` on; -1 where `end` is before."""
    for _ in range(count):
        size: cython.Py_ssize_t = message_size(table, data, at, end)
        if size == 0:
            return -1
        at += size
    return at
