# Declarations for other compiled modules; quota.py describes each name.

from libc.stdint cimport int64_t


cdef class Quota:
    cdef public int64_t outstanding_max, per_day, outstanding, used_today
    cdef public bint closed
    cdef public dict waiting
    cdef object _trading_day
    cdef int64_t _interval_ns, _burst, _theoretical_ns, _paused_until_ns, _width_max, _turns_ns
    cdef int64_t _round_ns, _silent_until_ns
    cdef int _rounds

    cpdef bint take(self, service, int64_t now_ns) except -1
    cpdef release(self)
    cpdef withdraw(self, service)
    cpdef int64_t ready_ns(self, int64_t now_ns) except? -1
    cpdef bint exhausted(self, int64_t now_ns) except -1
    cpdef int64_t closed_until_ns(self, int64_t now_ns) except? -1
    cpdef bint resume(self, int64_t now_ns) except -1
    cpdef bint refuse(self, int64_t sent_ns, int64_t now_ns, int64_t pause_ns) except -1
    cpdef accept(self, int64_t sent_ns)
    cpdef time_out(self, int64_t sent_ns, int64_t now_ns)
    cpdef hear(self)
    cpdef give_chance(self)
    cpdef bint silent(self, int64_t now_ns) except -1
    cpdef narrow(self, int64_t width)
    cpdef int64_t width(self, int64_t most) except? -1
    cpdef reopen(self)
    cpdef new_day(self, int64_t now_ns)
    cdef int64_t _ahead(self, service) except -1
    cdef int64_t _free(self, int64_t now_ns) except? -1
    cdef int64_t _tokens(self, int64_t now_ns) except? -1
