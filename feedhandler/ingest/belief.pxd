cdef class Belief:
    cdef int lines
    cdef readonly unsigned long long serial
    cdef unsigned long long _began, _went_on, _went_on_before
    cdef unsigned long long[::1] _heard, _below, _copied, _shown, _claimed
    cdef unsigned long long[::1] _distrusted_until, _forged_until

    cpdef int note_input(self, int line, bint again) except -1 nogil
    cpdef int progress(self, int line) except -1 nogil
    cpdef int copy(
        self, int line, unsigned long long sequence,
        unsigned long long next_sequence) except -1 nogil
    cpdef int claim(self, int line, bint first) except -1 nogil
    cpdef bint show(
        self, int line, unsigned long long sequence,
        unsigned long long next_sequence) except -1 nogil
    cpdef int pass_by(self, int line, unsigned long long order) except -1 nogil
    cpdef int distrust(self, int line, unsigned long long now_ns) except -1 nogil
    cpdef int catch_out(self, int line, unsigned long long now_ns) except -1 nogil
    cpdef bint believes(self, int line, unsigned long long order) except -1 nogil
    cpdef bint distrusts(self, int line, unsigned long long now_ns) except -1 nogil
    cpdef bint is_forged(self, int line, unsigned long long now_ns) except -1 nogil
