# `first` points to the bytes; `length` of them may be read.
cdef unsigned long long fingerprint_at(
    const unsigned char *first, Py_ssize_t length) noexcept nogil
cpdef unsigned long long fingerprint(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t length
) except? 6148914691236517205 nogil

cdef class CompareWindow:
    cdef unsigned long long[::1] entries
    cdef unsigned long long mask

    cpdef int remember(
        self, unsigned long long sequence, unsigned long long fingerprint,
        unsigned long long span) except -1 nogil
    cpdef int compare(
        self, unsigned long long sequence, unsigned long long fingerprint,
        unsigned long long span) except -1 nogil
    cpdef bint knows(self, unsigned long long sequence) except -1 nogil
    cpdef unsigned long long span_of(
        self, unsigned long long sequence, unsigned long long fingerprint
    ) except? 6148914691236517205 nogil
    cpdef int clear(self) except -1 nogil

cdef class UnsequencedWindow:
    cdef unsigned long long[::1] prints, shown_by, first_ns, repeats
    cdef unsigned long long wait, repeat
    cdef Py_ssize_t next_index
    cdef readonly unsigned long long number

    cpdef bint is_copy(
        self, int line, unsigned long long fingerprint, unsigned long long now_ns) except -1 nogil
    cpdef int remember(
        self, int line, unsigned long long fingerprint, unsigned long long now_ns) except -1 nogil
