cdef class LostRanges:
    cdef unsigned long long[::1] first
    cdef unsigned long long[::1] end
    cdef Py_ssize_t count, newest

    cpdef bint touches(
        self, unsigned long long sequence, unsigned long long next_sequence) except -1 nogil
    cpdef int add(self, unsigned long long first, unsigned long long end) except -1 nogil
    cpdef int clear(self) noexcept nogil
