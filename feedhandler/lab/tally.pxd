from feedhandler.amqp.subscribing.columns cimport Batch
from feedhandler.histogram cimport Histogram


cdef class Tally:
    cdef readonly Histogram histogram
    cdef readonly long long deliveries
    cdef readonly long long body_bytes
    cdef readonly long long announced
    cdef readonly long long misplaced
    cdef readonly long long strangers
    cdef public long long clock_from_ns
    cdef readonly list named
    cdef readonly bint checking
    cdef readonly bint thinned
    cdef int[::1] slots
    cdef long long[::1] bases
    cdef long long[::1] sizes
    cdef long long[::1] offsets
    cdef long long[::1] timed_from
    cdef long long[::1] last
    cdef unsigned short[::1] seen
    cpdef int record(self, Batch batch, long long now_ns)
    cdef bint _placed(self, long long service, long long sequence, long long number)
    cdef int _stranger(self, long long service, long long sequence, long long number)
    cdef int _name(self, str what, long long service, long long sequence, long long number)
