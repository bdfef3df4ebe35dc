cdef class PacketStore:
    cdef unsigned char[::1] slab
    cdef unsigned long long[::1] table
    cdef Py_ssize_t oldest, write
    cdef public bint keeping
    cdef bint trims
    cdef object cut
    cdef readonly Py_ssize_t bytes_max, packets_max
    cdef readonly Py_ssize_t count, bytes, held, held_bytes, taken
    cdef readonly unsigned long long first, end, evicted, refused, numbering, gone_first, gone_next

    cpdef int append(
        self, unsigned long long sequence, unsigned long long next_sequence,
        const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
        unsigned long long received_ns=*, unsigned long long skip=*,
        unsigned long long count=*) except -1 nogil
    cpdef int append_unsequenced(
        self, unsigned long long number, unsigned long long following,
        const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
        unsigned long long received_ns=*, unsigned long long count=*) except -1 nogil
    cpdef Py_ssize_t find_unsequenced(self, unsigned long long number) except -2 nogil
    cpdef int clear(self) except -1 nogil
    cpdef bint covers(self, unsigned long long first, unsigned long long end) except -1 nogil
    cpdef Py_ssize_t bytes_of(self, unsigned long long first, unsigned long long end) except -1
    cpdef Py_ssize_t entry(self, Py_ssize_t serial) except -2 nogil
    cpdef tuple packet(self, Py_ssize_t serial)
    cpdef Py_ssize_t find(self, Py_ssize_t begin, Py_ssize_t end, unsigned long long number)
    cdef int _keep(
        self, unsigned long long sequence, unsigned long long next_sequence,
        unsigned long long run, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
        unsigned long long received_ns, unsigned long long skip,
        unsigned long long count) except -1 nogil
    cdef int _make_room(self, Py_ssize_t size) except -1 nogil
    cdef int _evict(self) except -1 nogil
    cdef unsigned long long _begin(self, Py_ssize_t word) noexcept nogil
    cdef Py_ssize_t _entry(self, Py_ssize_t index) except -2 nogil
    cdef Py_ssize_t _search(
        self, Py_ssize_t low, Py_ssize_t high, unsigned long long number) except -2 nogil
    cdef bytes _data(self, Py_ssize_t word)
