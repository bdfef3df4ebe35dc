cdef class Ring:
    cdef readonly unsigned long long[::1] words
    cdef readonly unsigned char[::1] data
    cdef readonly unsigned long long capacity
    cdef readonly unsigned long long mask
    # The producer's own: nobody else reads or writes these two.
    cdef readonly unsigned long long head
    cdef unsigned long long seen_tail
    # Each shared position has a cache line to itself.
    cdef unsigned long long padding_1[8]
    cdef unsigned long long published_bytes
    cdef unsigned long long padding_2[8]
    cdef unsigned long long tail_bytes
    cdef unsigned long long padding_3[8]
    cdef unsigned long long asleep
    cdef unsigned long long rest_until_ns
    cdef unsigned long long padding_4[7]

    # producer
    cpdef unsigned long long refresh_room(self) noexcept nogil
    cpdef Py_ssize_t reserve(self, Py_ssize_t size) except -2 nogil
    cpdef int write_packet(
        self, int channel, int line, int flags, int count,
        unsigned long long sequence, unsigned long long next_sequence,
        unsigned long long received_ns, unsigned long long session,
        unsigned int skip, unsigned int body, unsigned long long auxiliary,
        const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t length) except -1 nogil
    cpdef int write_control_event(
        self, int kind, int channel, int line,
        unsigned long long sequence, unsigned long long next_sequence,
        unsigned long long received_ns, unsigned long long session,
        unsigned long long auxiliary) except -1 nogil
    cpdef unsigned long long room(self) noexcept nogil
    cpdef int publish(self) noexcept nogil
    # consumer
    cpdef unsigned long long readable(self) noexcept nogil
    cpdef void release(self, unsigned long long position) noexcept nogil
    cpdef bint arm(self) noexcept nogil
    cpdef void rest(self, unsigned long long until_ns) noexcept nogil
