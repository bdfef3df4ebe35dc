# The part of Skew that other compiled modules may use.

cdef class Skew:
    cdef public Py_ssize_t services, pairs, left, left_behind
    cdef unsigned long long[::1] _numbers
    cdef long long[::1] _times
    cdef int[::1] _channels
    cdef int[:, ::1] _pair_of
    cdef unsigned int[:, ::1] _buckets
    cdef int[:, ::1] _sides
    cdef long long[::1] _backwards
    cdef int[::1] _left_services
    cdef int[::1] _left_channels
    cdef unsigned long long[::1] _left_numbers
    cdef long long[::1] _left_ns

    cpdef int note(
        self, int service, int channel, unsigned long long number, long long time_ns
    ) except? -1 nogil
    cdef int _count(self, int first, int later, long long since) except? -1 nogil
    cdef int _leave(self, int service, Py_ssize_t slot) except? -1 nogil
