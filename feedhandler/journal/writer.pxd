"""C view of the writing thread."""


cdef struct Asked:
    int file
    char *data
    size_t size
    long long at
    int through


cdef class Writer:
    cdef readonly int told
    cdef readonly int error_number
    cdef readonly object failure
    cdef int _wake
    cdef int _flagged
    cdef Asked _places[4]
    cdef long long _asked
    cdef long long _done
    cdef list _kept
    cdef object _thread
    cpdef bint write(self, int file, object data, long long at, bint through)
    cpdef bint call(self, object function)
    cdef bint _hand_over(self, object kept)
    cpdef long long done(self) noexcept
    cdef void _write_on(self) noexcept nogil
