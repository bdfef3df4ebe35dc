from feedhandler.codecs.fix.framing cimport Frame

cdef class Stamper:
    cdef readonly Frame frame
    cdef readonly Py_ssize_t size
    cdef const unsigned char[::1] begin, own
    cdef Py_ssize_t own_size, body_size
    cdef unsigned long long number
    cdef int runs
    cdef Py_ssize_t kept_at[8]
    cdef Py_ssize_t kept_end[8]

    # `first` points to the bytes that offsets count from; `size` of them may be read.
    cdef Py_ssize_t measure(
        self, const unsigned char *first, Py_ssize_t size, Py_ssize_t at,
        unsigned long long number) noexcept nogil
    cdef bint _read_header(self, const unsigned char *first) noexcept nogil
    cdef bint _keep(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    cdef Py_ssize_t write(
        self, const unsigned char *first, unsigned char[::1] out, Py_ssize_t index
    ) except -1 nogil
