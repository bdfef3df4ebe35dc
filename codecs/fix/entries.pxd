# What other compiled modules may use of the columns. The meaning of each name stands in entries.py.

from feedhandler.codecs.fix.framing cimport Frame
from feedhandler.codecs.fix.index cimport FieldIndex, FixTable


cdef class EntryColumns:
    cdef public FixTable table
    cdef public Frame frame
    cdef public FieldIndex index
    cdef public Py_ssize_t capacity, rows, messages
    cdef unsigned int root_symbol_at, root_symbol_size
    cdef bint named
    cdef public unsigned int[::1] message
    cdef public unsigned long long[::1] sequence
    cdef public unsigned char[::1] action
    cdef public unsigned char[::1] kind
    cdef public unsigned int[::1] symbol_at
    cdef public unsigned int[::1] symbol_size
    cdef public long long[::1] price_raw
    cdef public signed char[::1] price_places
    cdef public unsigned int[::1] price_at
    cdef public unsigned int[::1] price_size
    cdef public long long[::1] size_raw
    cdef public signed char[::1] size_places
    cdef public long long[::1] time_ns
    cdef public int[::1] date
    cdef public int[::1] position
    cdef public int[::1] level
    cdef public int[::1] orders
    cdef public unsigned int[::1] id_at
    cdef public unsigned int[::1] id_size

    cpdef void clear(self)
    cpdef Py_ssize_t decode(
        self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
        unsigned long long[::1] rejects
    ) except -1
