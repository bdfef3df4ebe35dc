"""C view of the message framing for the fan-out and the subscriber."""

cdef class Template:
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t tag_at
    cdef readonly Py_ssize_t stamp_at
    cdef readonly Py_ssize_t sent_at
    cdef readonly Py_ssize_t sequence_at
    cdef const unsigned char[::1] view
    cdef readonly str key
    cdef readonly str content
    cdef readonly bytes head


cdef class Frame:
    cdef readonly object memory
    cdef unsigned char[::1] data
    cdef readonly Template template
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t body_at
    cdef Py_ssize_t sequence_at
    cpdef Py_ssize_t room(self)
    cpdef int begin(
        self, Template template, unsigned long long sequence, unsigned int number,
        long long received_ns)
    cpdef int set_send_time(self, unsigned long long send_time)
    cpdef int append(
        self, const unsigned char[::1] source, Py_ssize_t start, Py_ssize_t size)
    cpdef int finish(self, unsigned int group_sequence)
    cpdef int number(self, unsigned int group_sequence)
    cpdef bytes snapshot(self)


cdef class Reader:
    cdef readonly Py_ssize_t tag_at
    cdef readonly Py_ssize_t tag_size
    cdef readonly Py_ssize_t subject_at
    cdef readonly Py_ssize_t subject_size
    cdef readonly Py_ssize_t content_at
    cdef readonly Py_ssize_t content_size
    cdef readonly Py_ssize_t body_at
    cdef readonly Py_ssize_t body_size
    cdef readonly long long group_sequence
    cdef readonly long long received_ns
    cdef readonly unsigned long long send_time
    cpdef bint parse(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end)
    cdef bint _properties(self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end)
    cdef bint _annotations(self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end)


cpdef Py_ssize_t value_end(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, int depth)
cpdef unsigned long long read_uint(const unsigned char[::1] data, Py_ssize_t at, int size)
cpdef int write_uint(unsigned char[::1] data, Py_ssize_t at, int size, unsigned long long value)
cpdef int copy(unsigned char[::1] target, Py_ssize_t at, const unsigned char[::1] source, Py_ssize_t start, Py_ssize_t size)
