from feedhandler.ingest.ring cimport Ring

cdef class Tap:
    cdef readonly Ring ring
    cdef readonly unsigned long long taken
    cdef readonly unsigned long long dropped
    cdef int shut

    cpdef int packet(
        self, int place, unsigned long long sequence, unsigned long long received_ns,
        unsigned long long sender, const unsigned char[::1] data, Py_ssize_t start,
        Py_ssize_t length) except -1 nogil
    cpdef int publish(self) except -1 nogil
    cpdef int shut_off(self) except -1 nogil
