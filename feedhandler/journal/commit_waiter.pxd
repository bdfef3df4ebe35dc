"""C view of commit waiters."""

cdef class CommitWaiter:
    cdef readonly long long target
    cdef public bint _asyncio_future_blocking
    cdef object _loop
    cdef bint _over
    cdef object _error
    cdef object _message
    cdef object _callback
    cdef object _context
    cdef CommitWaiter behind
    cdef bint complete(self, error, happened, bint at_once)


cdef class CommitWaiters:
    cdef object _loop
    cdef object _happened
    cdef CommitWaiter _first
    cdef CommitWaiter _last
    cpdef CommitWaiter add(self, long long target)
    cpdef bint complete(self, long long durable, error, bint at_once)
