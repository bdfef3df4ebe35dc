"""C view of the reader of segments."""


cdef class SegmentReader:
    cdef object _files
    cdef tuple _of
    cdef long long _first
    cdef long long _end
    cdef bytes _data
    cdef list _spans
    cdef list _damaged
    cdef long long _at
    cdef bytes _table
    cdef bint _has(self, object block, long long number)
    cdef Py_ssize_t _slice(self, list numbers, Py_ssize_t at, Py_ssize_t stop, list items)
    cdef Py_ssize_t _gather(
        self, object block, list numbers, Py_ssize_t at, Py_ssize_t stop, list items)
    cdef bint _read_table(self, object block, long long number)
    cdef bint _read(self, object block, long long number)
