# Declarations for other compiled modules; framing.py describes each name.

cdef class Frame:
    cdef public Py_ssize_t bytes_max
    cdef readonly Py_ssize_t begin, end, length_at, body, body_end, header_end
    cdef readonly unsigned long long sequence, last_processed
    cdef readonly unsigned int message_type
    cdef readonly unsigned int flags
    cdef readonly Py_ssize_t type_at, type_size
    cdef readonly Py_ssize_t sender_at, sender_size
    cdef readonly Py_ssize_t target_at, target_size
    cdef readonly Py_ssize_t time_at, time_size
    cdef readonly Py_ssize_t fault_at
    cdef readonly unsigned int tag
    cdef readonly Py_ssize_t value_at, value_end
    cdef readonly unsigned int data_tag
    cdef readonly unsigned long long data_size
    cdef readonly Py_ssize_t sequence_at, sequence_size


# `first` points to the bytes that offsets count from; a message begins at `at`, and `size` bytes
# from `first` on may be read.
cdef int frame_at(
    const unsigned char *first, Py_ssize_t size, Py_ssize_t at, Frame out
) noexcept nogil
cdef int frame_next(
    const unsigned char *first, Py_ssize_t size, Py_ssize_t at, Frame out
) noexcept nogil
cdef int next_field(
    const unsigned char *first, Py_ssize_t at, Frame frame
) noexcept nogil
cdef int read_data_size(const unsigned char *first, Frame frame) noexcept nogil
cdef int read_number(const unsigned char *first, Frame frame) noexcept nogil
cdef int read_flag(const unsigned char *first, Frame frame) noexcept nogil
cpdef int frame_message(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size, Frame out
) except -1 nogil
cpdef int frame_envelope(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size, Frame out
) except -1 nogil
cpdef Py_ssize_t frame_all(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size, Frame out,
    unsigned int[::1] begins, unsigned long long[::1] sequences
) except -1 nogil
