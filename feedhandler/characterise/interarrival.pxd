# The part of Interarrival that other compiled modules may use.

cdef class Interarrival:
    cdef public Py_ssize_t rows, cells, overflow, capacity
    cdef public unsigned long long[::1] symbols
    cdef public int[::1] channels
    cdef public long long[::1] counts
    cdef public long long[::1] first_ns
    cdef public long long[::1] last_ns
    cdef public int[::1] first_cells
    cdef public unsigned int[:, ::1] buckets
    cdef public long long[:, ::1] tallies
    cdef int[::1] _slots
    cdef int _bits

    cdef Py_ssize_t _find(self, int channel, unsigned long long symbol) except? -1 nogil
    cpdef int note(
        self, int cell, int channel, unsigned long long symbol, long long time_ns
    ) except? -1 nogil
    cpdef int know(self, int cell) except? -1 nogil
    cdef int _begin(
        self, Py_ssize_t index, int cell, int channel, unsigned long long symbol, long long time_ns
    ) except? -1 nogil
