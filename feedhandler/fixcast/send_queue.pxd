from feedhandler.fixcast.pacing cimport TokenBucket
from feedhandler.fixcast.stamping cimport Stamper
from feedhandler.retrans.store cimport PacketStore

cdef class SendQueue:
    cdef readonly Py_ssize_t bytes_max, longest, waiting_max, slots
    cdef readonly Py_ssize_t first, count
    cdef readonly long long period_ns, deadline_ns
    cdef readonly unsigned long long message_bytes
    cdef readonly unsigned char[::1] slab
    cdef readonly long long[::1] offsets, sizes
    cdef Py_ssize_t reserve, open_at, open_size

    cpdef bint is_full(self) except -1
    cpdef bint publish(
        self, Stamper stamper, PacketStore store, bytes data, unsigned long long number,
        long long now_ns) except -1
    cpdef Py_ssize_t publish_each(
        self, Stamper stamper, PacketStore store, list messages, Py_ssize_t begin, Py_ssize_t end,
        unsigned long long number, long long now_ns) except -1
    cdef bint _publish(
        self, Stamper stamper, PacketStore store, const unsigned char *first, Py_ssize_t size,
        unsigned long long number, long long now_ns) except -1
    cpdef bint add(self, const unsigned char[::1] data, long long now_ns) except -1
    cpdef bint push(self, const unsigned char[::1] data) except -1
    cpdef int tick(self, long long now_ns) except -1
    cpdef int flush(self) except -1
    cdef Py_ssize_t _grow(self, Py_ssize_t size, long long now_ns) except -2
    cdef int _close_full(self) except -1
    cdef int _wait(self, Py_ssize_t at, Py_ssize_t size) except -1
    cdef Py_ssize_t _room_for(self, Py_ssize_t size) except -2
    cdef int _copy(self, const unsigned char[::1] data, Py_ssize_t index) except -1
    cpdef Py_ssize_t due(self, TokenBucket bucket, long long now_ns, Py_ssize_t most) except -1
    cpdef Py_ssize_t ready_ns(self, TokenBucket bucket, long long now_ns) except -2
    cpdef int gone(self, TokenBucket bucket, Py_ssize_t count, long long now_ns) except -1
