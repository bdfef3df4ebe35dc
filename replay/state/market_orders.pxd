# What market.py uses of the orders; the meanings stand in market_orders.py.


cdef class Resting:
    cdef readonly unsigned long long price, volume
    cdef readonly int side
    cdef readonly long long level
    cdef readonly bytes message


cdef class OrderLayout:
    cdef readonly int code
    cdef readonly Py_ssize_t size
    cdef bint big
    cdef Py_ssize_t price_at, volume_at, id_at, date_at, side_at, action_at
    cdef Py_ssize_t level_volume_at, level_orders_at, clock_at, microseconds_at
    cdef int level_volume_size, level_orders_size

    cpdef unsigned long long key(self, const unsigned char[::1] view, Py_ssize_t at) except? 0
    cpdef int action(self, const unsigned char[::1] view, Py_ssize_t at) except -1
    cpdef Resting read(
        self, bytes data, const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t size)
    cpdef bytes again(self, bytes message, unsigned long long volume, unsigned long long count)
    cpdef object priority_ns(self, bytes message)


cdef class Orders:
    cdef readonly dict resting
    cdef readonly object live
    cdef OrderLayout layout

    cpdef int add(self, unsigned long long key, Resting order) except -1
    cpdef int shrink(self, unsigned long long key, Resting order, Resting now) except -1
    cpdef int remove(self, unsigned long long key) except -1
    cpdef int clear(self) except -1
    cpdef int again(self, list messages) except -1
    cpdef int parts(self, list parts) except -1


cpdef unsigned long long read_uint(
    const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size, bint big) except? 0
