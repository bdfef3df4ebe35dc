"""C view of the writer thread."""


cdef struct Asked:
    int file
    char *data
    size_t size
    long long at
    int kind
    int more


cdef class Writer:
    cdef readonly int event_fd
    cdef readonly int error_number
    cdef readonly object failure
    cdef int _wake
    cdef int _flagged
    cdef Asked _ring[16]
    cdef long long _asked
    cdef long long _done
    cdef list _kept
    cdef object _thread
    cpdef long long write(
        self, int file, object data, long long at, bint through, bint more=*)
    cpdef long long sync(self, int file, bint more=*)
    cpdef long long call(self, object function)
    cdef long long _hand_over(self, object kept)
    cpdef long long room(self) noexcept
    cpdef long long done(self) noexcept
    cdef void _write_on(self) noexcept nogil
