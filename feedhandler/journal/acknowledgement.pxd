"""C view of acknowledgements."""

cdef class Acknowledgement:
    cdef readonly long long target
    cdef public bint _asyncio_future_blocking
    cdef object _loop
    cdef bint _over
    cdef object _error
    cdef object _message
    cdef object _callback
    cdef object _context
    cdef Acknowledgement behind
    cdef bint tell(self, error, happened, bint at_once)


cdef class Acknowledgements:
    cdef object _loop
    cdef object _happened
    cdef Acknowledgement _first
    cdef Acknowledgement _last
    cpdef Acknowledgement add(self, long long target)
    cpdef bint tell(self, long long durable, error, bint at_once)
