# Declarations for other compiled modules; healing.py describes each name.

from feedhandler.retrans.ranges cimport RangeSet
from libc.stdint cimport int64_t


cdef class Healing:
    cdef public object service, settings, phase
    cdef public bint configured, server
    cdef public RangeSet lost
    cdef readonly int64_t deadline_ns
    cdef list _actions
    cdef dict _counts
    cdef object _new_id, _backoff, _open_id, _trading_day
    cdef int _tries
    cdef int64_t _asked_ns, _barred_until_ns, _attempt_ns, _until_ns
    cdef bint _early, _wanted
    cdef set _alerted

    cpdef tick(self, int64_t now_ns)
