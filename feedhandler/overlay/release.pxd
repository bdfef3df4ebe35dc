cdef class Release:
    cdef public long long gap_wait_ns, start_wait_ns, extra_hold_ns
    cdef readonly long long delivered, late, passed, overfull
    cdef readonly object missing
    cdef list _held
    cdef bint _begun
    # Epochs and ids are as wide as the wire has them, and one more.
    cdef object _epoch, _number, _start_epoch, _start, _last_epoch, _last, _to
    cdef long long _start_ns, _heard_ns
    cdef int _kind

    cdef object _begin(self)
    cdef long long _step(self) except *
    cdef long long _behind(self, held_epoch) except *
    cdef list _release(self, long long now_ns)
