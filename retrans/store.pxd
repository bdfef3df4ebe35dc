cpdef enum:
    SEQUENCE = 0
    NEXT = 1
    RUN = 2
    OFFSET = 3
    SIZE = 4
    ENTRY_WORDS = 5

cdef class PacketStore:
    cdef unsigned char[::1] slab
    cdef unsigned long long[::1] table
    cdef Py_ssize_t oldest, write
    cdef readonly Py_ssize_t bytes_max, packets_max
    cdef readonly Py_ssize_t count, bytes
    cdef readonly unsigned long long first, end, evicted, refused, numbering

    cpdef int append(
        self, unsigned long long sequence, unsigned long long next_sequence,
        const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size) except -1 nogil
    cpdef int clear(self) except -1 nogil
    cpdef bint covers(self, unsigned long long first, unsigned long long end) except -1 nogil
    cdef int _make_room(self, Py_ssize_t size) except -1 nogil
    cdef int _evict(self) except -1 nogil
    cdef Py_ssize_t _entry(self, Py_ssize_t place) except -2 nogil
    cdef Py_ssize_t _place_of(self, unsigned long long number) except -2 nogil
