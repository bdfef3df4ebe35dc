# Declarations for other compiled modules; retransmission.py describes each name. Numbers of requests
# and packets are Python objects, times are C integers.

from feedhandler.retrans.quota cimport Quota
from feedhandler.retrans.ranges cimport RangeSet
from libc.stdint cimport int64_t


cdef class Request:
    cdef public object first, end, come
    cdef public int tries
    cdef public bint accepted
    cdef public int64_t sent_ns, due_ns


cdef class Retransmission:
    cdef public object service, settings, epoch
    cdef public Quota quota
    cdef public bint connected
    cdef public RangeSet missing, abandoned
    cdef public dict requests
    cdef list _actions, _ready, _later
    cdef dict _counts
    cdef object _backoff, _reported, _closing
    cdef set _alerted
    cdef int64_t _wait_ns, _reserve_ns, _timeout_ns, _quota_due_ns
    cdef int64_t _grace_end_ns, _gather_ns, _asked_ns, _gathered_ns
    cdef object _reported_end, _given_up, _next_id, _void_below

    cpdef report(self, first, end, epoch, int64_t now_ns)
    cpdef settle(self, first, end)
    cpdef settle_below(self, number)
    cpdef settle_all(self)
    cpdef connect(self)
    cpdef disconnect(self, int64_t now_ns)
    cpdef accept(self, request_id, int64_t now_ns)
    cpdef record_answer(self, request_id, first, end, int64_t now_ns)
    cpdef check(self, request_id, int64_t now_ns)
    cpdef react(self, request_id, reason, int64_t now_ns)
    cpdef count_late(self)
    cpdef tick(self, int64_t now_ns)
    cpdef pump(self, int64_t now_ns)
    cdef bint _is_gone(self, int64_t now_ns) except -1
    cdef _hear(self)
    cdef bint _ask_all(self, Quota quota, int64_t now_ns) except -1
    cdef _ask(self, first, end, int tries, int64_t now_ns)
    cdef _again(self, Request request, int64_t now_ns)
    cdef _refused_today(self, Request request, int64_t now_ns)
    cdef _gone(self, first, end)
    cdef bint _left(self, Request request) except -1
    cdef _drop_settled(self)
    cdef _drop(self, request_id)
    cdef _close(self, request_id, bint cancel=*)
    cdef _abandon(self, first, end)
    cdef _abandon_runs(self)
    cdef _forget_runs(self)
    cdef _trim(self)
    cdef list _unclaimed(self, first, end)
    cdef _give_up(self)
    cdef _count(self, name, by=*)
