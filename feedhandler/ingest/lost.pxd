cdef class LostRanges:
    cdef unsigned long long[::1] first
    cdef unsigned long long[::1] end
    cdef unsigned long long[::1] published
    cdef unsigned char[::1] doubtful
    cdef Py_ssize_t count, newest, lines

    cpdef bint touches(
        self, unsigned long long sequence, unsigned long long next_sequence) except -1 nogil
    cdef Py_ssize_t _place(self, unsigned long long sequence) except -2 nogil
    cdef Py_ssize_t _before(self, Py_ssize_t at) noexcept nogil
    cpdef unsigned long long published_before(
        self, unsigned long long sequence, int line) except? 6148914691236517205 nogil
    cpdef bint is_doubtful(self, unsigned long long sequence) except -1 nogil
    cpdef unsigned long long first_of(
        self, unsigned long long sequence) except? 6148914691236517205 nogil
    cpdef unsigned long long newest_first(self) except? 6148914691236517205 nogil
    cpdef unsigned long long newest_end(self) except? 6148914691236517205 nogil
    cpdef int cut(self, unsigned long long first) except -1 nogil
    cpdef int add(
        self, unsigned long long first, unsigned long long end, bint doubtful) except -1 nogil
    cpdef int clear(self) noexcept nogil
