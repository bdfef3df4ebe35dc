from feedhandler.ingest.ring cimport Ring

cdef class FrameWriter:
    cdef readonly unsigned char[::1] out
    cdef readonly unsigned long long packets
    cdef readonly unsigned long long unwritable
    cdef readonly bint full
    cdef const unsigned char[::1] heads
    cdef Py_ssize_t head_count
    cdef bint by_line
    cdef bint blocks
    cdef Py_ssize_t head_bytes
    cdef unsigned long long limit

    cpdef Py_ssize_t drain(self, Ring ring, Py_ssize_t room) except -1 nogil
    cdef int record(
        self, Ring ring, Py_ssize_t offset, Py_ssize_t index, Py_ssize_t length,
        Py_ssize_t at, Py_ssize_t size) except -1 nogil
