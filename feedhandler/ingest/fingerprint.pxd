cpdef unsigned long long fingerprint(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t length
) except? 6148914691236517205 nogil

cpdef enum:
    UNKNOWN = 0
    SAME = 1
    DIFFERENT = 2

cdef class CompareWindow:
    cdef unsigned long long[::1] entries
    cdef unsigned long long mask

    cpdef int remember(
        self, unsigned long long sequence, unsigned long long fingerprint) except -1 nogil
    cpdef int compare(
        self, unsigned long long sequence, unsigned long long fingerprint) except -1 nogil
    cpdef int clear(self) except -1 nogil
