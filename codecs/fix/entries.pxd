# Declarations for other compiled modules; entries.py describes each name.

from feedhandler.codecs.fix.framing cimport Frame
from feedhandler.codecs.fix.index cimport FieldIndex, FixTable


cdef class EntryColumns:
    cdef readonly FixTable table
    cdef readonly Frame frame
    cdef readonly FieldIndex index
    cdef readonly Py_ssize_t capacity, rows, messages
    cdef unsigned int root_symbol_at, root_symbol_size
    cdef bint named
    cdef readonly unsigned int[::1] message
    cdef readonly unsigned long long[::1] sequence
    cdef readonly unsigned char[::1] action
    cdef readonly unsigned char[::1] kind
    cdef readonly unsigned int[::1] symbol_at
    cdef readonly unsigned int[::1] symbol_size
    cdef readonly long long[::1] price_raw
    cdef readonly signed char[::1] price_places
    cdef readonly unsigned int[::1] price_at
    cdef readonly unsigned int[::1] price_size
    cdef readonly long long[::1] size_raw
    cdef readonly signed char[::1] size_places
    cdef readonly long long[::1] time_ns
    cdef readonly int[::1] date
    cdef readonly int[::1] position
    cdef readonly int[::1] level
    cdef readonly int[::1] orders
    cdef readonly unsigned int[::1] id_at
    cdef readonly unsigned int[::1] id_size

    cpdef void clear(self)
    cpdef Py_ssize_t decode(
        self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
        unsigned long long[::1] rejects
    ) except -1
