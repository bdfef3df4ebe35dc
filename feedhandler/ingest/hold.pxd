from feedhandler.codecs.scanner cimport PacketHeader

cdef class PacketPool:
    cdef unsigned long long[::1] words
    cdef readonly unsigned char[::1] slab
    cdef int[::1] free
    cdef Py_ssize_t free_count
    cdef readonly Py_ssize_t slot_bytes

    cpdef Py_ssize_t store(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long noticed_ns,
        unsigned long long fingerprint) except -2 nogil
    cpdef int give_back(self, Py_ssize_t slot) except -1 nogil
    cpdef unsigned long long word(self, Py_ssize_t slot, int which) except? 6148914691236517205 nogil
    cpdef unsigned long long span(self, Py_ssize_t slot) except? 6148914691236517205 nogil
    cpdef Py_ssize_t body_at(self, Py_ssize_t slot) except -1 nogil
    cpdef Py_ssize_t body_size(self, Py_ssize_t slot) except? -1 nogil

cdef class Hold:
    cdef PacketPool pool
    cdef int[::1] order
    cdef Py_ssize_t mask, head
    cdef readonly Py_ssize_t count, capacity

    cpdef Py_ssize_t lowest(self) except -2 nogil
    cpdef Py_ssize_t highest(self) except -2 nogil
    cpdef Py_ssize_t slot(self, Py_ssize_t index) except -2 nogil
    cpdef Py_ssize_t index_of(self, unsigned long long sequence) except -2 nogil
    cpdef bint contains(
        self, unsigned long long sequence, unsigned long long next_sequence) except -1 nogil
    cpdef int insert(self, Py_ssize_t slot, bint fresh) except -1 nogil
    cpdef int notice_again(
        self, unsigned long long now_ns, unsigned long long order) except -1 nogil
    cpdef int drop_lowest(self) except -1 nogil
    cpdef Py_ssize_t take_highest(self) except -2 nogil
    cpdef Py_ssize_t take_lowest(self) except -2 nogil
    cpdef Py_ssize_t remove(self, Py_ssize_t index) except -2 nogil
