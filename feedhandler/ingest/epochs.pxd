from feedhandler.codecs.scanner cimport PacketHeader

cdef class Epochs:
    cdef readonly int number
    cdef unsigned long long ends, window, fingerprint
    cdef unsigned long long old_expected, old_first_time
    cdef public unsigned long long first
    cdef readonly unsigned long long reset_time
    cdef int[::1] line_epoch
    cdef unsigned long long[::1] past
    cdef Py_ssize_t past_count

    cpdef bint changing(self, unsigned long long now_ns) noexcept nogil
    cpdef int leave(
        self, unsigned long long expected, unsigned long long first_time, unsigned long long first,
        unsigned long long now_ns) noexcept nogil
    cpdef int by_reset(
        self, int line, unsigned long long send_time, unsigned long long fingerprint
    ) except -1 nogil
    cpdef bint is_copy(
        self, int line, PacketHeader header, unsigned long long fingerprint,
        unsigned long long now_ns) except -1 nogil
    cpdef bint straggles(
        self, int line, PacketHeader header, unsigned long long expected,
        unsigned long long max_jump) except -1 nogil
    cpdef int leave_session(self, unsigned long long session) except -1 nogil
    cpdef bint is_past_session(self, unsigned long long session) except -1 nogil
    cdef unsigned long long busy_until, pending_time, pending_next, pending_old
    cdef readonly Py_ssize_t pending
    cdef int pending_line
    cpdef bint mixed(self, unsigned long long now_ns) noexcept nogil
    cpdef int suspend(
        self, Py_ssize_t slot, int line, PacketHeader header,
        unsigned long long old) except -1 nogil
    cpdef Py_ssize_t resume(self) except -2 nogil
    cpdef int judge(
        self, int line, PacketHeader header, unsigned long long max_jump) except -1 nogil
