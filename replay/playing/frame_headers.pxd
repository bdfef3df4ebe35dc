# What the frame sender uses of header changes; the meanings stand in frame_headers.py.


cdef class HeaderChanges:
    cdef readonly object changes, complete
    cdef long long[::1] group, source_ip
    cdef int[::1] port, source_port
    cdef unsigned char[::1] has_source_mac
    cdef const unsigned char[::1] group_macs, source_macs, heads

    cpdef Py_ssize_t make(
        self, Py_ssize_t destination, unsigned char[::1] room, Py_ssize_t start,
        Py_ssize_t payload_length) except -1 nogil
    cpdef int cover(
        self, Py_ssize_t destination, unsigned char[::1] room, Py_ssize_t start,
        Py_ssize_t end) except? -1 nogil
    cpdef int apply(
        self, Py_ssize_t destination, unsigned char[::1] room, Py_ssize_t start, Py_ssize_t end,
        Py_ssize_t payload_length, unsigned int payload_sum, bint made) except? -1 nogil
    cdef bint change(
        self, Py_ssize_t destination, unsigned char[::1] room, Py_ssize_t start, Py_ssize_t ip,
        Py_ssize_t udp) except? -1 nogil


cdef Py_ssize_t _behind_ethernet(
    unsigned char[::1] room, Py_ssize_t start, Py_ssize_t end) except? -1 nogil
cdef unsigned int _u16(unsigned char[::1] room, Py_ssize_t at) except? 0xFFFFFFFF nogil
cdef int _put16(unsigned char[::1] room, Py_ssize_t at, unsigned int value) except -1 nogil
cdef bint _put_port(unsigned char[::1] room, Py_ssize_t at, int port) except? -1 nogil
cdef bint _put32(unsigned char[::1] room, Py_ssize_t at, long long address) except? -1 nogil
cdef unsigned int _sum(
    unsigned char[::1] room, Py_ssize_t at, Py_ssize_t length) except? 0xFFFFFFFF nogil
cdef unsigned int _folded(unsigned int total) noexcept nogil
