# Declarations for other compiled modules; encode.py describes each name.

cdef class MessageWriter:
    cdef readonly unsigned char[::1] data
    cdef readonly Py_ssize_t start, end
    cdef Py_ssize_t at
    cdef bint overflowed
    cdef bytes begin_string

    cpdef void begin(self, const unsigned char[::1] message_type)
    cpdef int put_bytes(self, unsigned int tag, const unsigned char[::1] value) except -1
    cpdef int put_number(self, unsigned int tag, unsigned long long value) except -1
    cpdef int put_decimal(self, unsigned int tag, long long raw, int places) except -1
    cpdef int put_time(self, unsigned int tag, long long time_ns, int places) except -1
    cpdef int put_fields(self, const unsigned char[::1] text) except -1
    cpdef Py_ssize_t finish(self) except -1
    cdef int _room(self, Py_ssize_t size) noexcept
    cdef void _digits(self, unsigned long long value, int least)
    cdef void _clock(self, long long second)
    cdef Py_ssize_t _seal(self) except -1
    cdef void _tag(self, unsigned int tag)
